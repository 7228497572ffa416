"""Provenance of a result: versions, machine, code."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from privbench.ground.store.machine import machine

_PACKAGES = ("privbench", "torch", "numpy", "scikit-learn", "scipy")


def provenance(device: str) -> dict[str, Any]:
    """Versions, commit, machine and time; recorded with a result but not part of its identity.

    Args:
        device: kind of device, and its name in brackets.
    """
    return {
        **versions(),
        "device": device,
        "machine": machine(),
        "finished": now(),
    }


def now() -> str:
    """Return the time, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


@functools.cache
def versions() -> dict[str, Any]:
    """Versions of Python (``python``) and of packages (``versions``), and the ``commit``."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "unknown"
    return {"python": platform.python_version(), "versions": found, "commit": commit()}


@functools.cache
def commit(here: Path = Path(__file__)) -> str | None:
    """Return the commit of the checkout that holds this file, with ``-dirty`` if code differs.

    Results and pages of boards do not count as code. None outside of git, and for an installed copy
    inside a checkout of something else.
    """
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        at = _git(here.parent, "describe", "--always", "--abbrev=12")
        code = (":/", ":(top,exclude)leaderboards")
        return at + "-dirty" * bool(_git(here.parent, "status", "--porcelain", "-uno", "--", *code))
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    made = subprocess.run(  # noqa: S603
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True,  # noqa: S607
    )  # fmt: skip
    return made.stdout.strip()
