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


def clean_environment(where: Path) -> str:
    """Make an environment that also sees what is installed here; return its Python."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [uv, "venv", "--python", sys.executable, str(where)]
    subprocess.run(command, check=True, capture_output=True)
    (site,) = where.glob("lib/python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "here.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return os.fspath(where / "bin" / "python")
