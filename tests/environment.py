"""A clean environment for packages that tests install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


#: How uv builds with what the environment holds, and so without a network.
HERE = ("--no-build-isolation", "--python")


def clean_environment(where: Path) -> str:
    """Make an environment with a build backend that also sees what is installed here.

    Returns its Python. The test is skipped where the backend cannot be had.
    """
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [uv, "venv", "--python", sys.executable, str(where)]
    subprocess.run(command, check=True, capture_output=True)
    (site,) = where.glob("lib/python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "here.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    python = os.fspath(where / "bin" / "python")
    backend = [uv, "pip", "install", "--python", python, "hatchling", "editables"]
    if subprocess.run(backend, check=False, capture_output=True, timeout=120).returncode != 0:
        pytest.skip("no hatchling from the registry: nothing can be built here")
    return python
