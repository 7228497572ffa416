"""The folder in which a dataset's files are looked up."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_data_dir


def home(root: Path | None) -> Path:
    """Return ``root``, or privbench's user data folder if it is None."""
    return Path(user_data_dir("privbench")) if root is None else root
