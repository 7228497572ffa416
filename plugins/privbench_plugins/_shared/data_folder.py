"""Where the files of a dataset are looked for."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_data_dir


def home(root: Path | None) -> Path:
    """The folder that was named, or else the user's data folder of privbench."""
    return Path(user_data_dir("privbench")) if root is None else root
