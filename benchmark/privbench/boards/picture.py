"""A figure that a notebook shows as it is, without ``pyplot``."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure of matplotlib; ``savefig`` writes it to a file."""

    def _repr_png_(self) -> bytes:
        """Return it as PNG on white."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()
