"""Scripts of leaderboards/ as modules: they are in no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def script(name: str) -> Any:
    """Load leaderboards/NAME.py."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / "leaderboards" / name)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made
