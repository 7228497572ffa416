"""A figure that a notebook shows as it is, without ``pyplot``."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Picture(Figure):
    """A figure of matplotlib; ``savefig`` writes it to a file."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of ``Figure``."""
        super().__init__(**settings)
        FigureCanvasAgg(self)  # measures all texts; without it, each makes a canvas of its own

    def _repr_png_(self) -> bytes:
        """Return it as PNG on white."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()
