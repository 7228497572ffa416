"""A page as PDF, by the chromium of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from privbench.ground.errors import BadInputError
from privbench.ground.store.files import write
from privbench.ground.text import shown

#: The printed sheet: it stays out of the digest, since chromium writes the time into it.
PDF = "audit.pdf"
#: Seconds that chromium may take.
TIMEOUT = 30.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTEAD = "print audit.html in a browser, or leave pdf out"


def browser() -> str:
    """Return the path of chromium.

    Raises:
        BadInputError: if there is none.
    """
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise BadInputError(f"pdf: no chromium is installed here: install it, {_INSTEAD}")
    return found


def printed(page: Path, pdf: Path, command: str) -> None:
    """Print a page that needs nothing else, for the user alone (mode 0600).

    Args:
        page: HTML.
        pdf: file that is written.
        command: path of chromium.

    Raises:
        BadInputError: if chromium fails, or takes more than 30 s.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Path(folder, "page.pdf")
        options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--no-pdf-header-footer", f"--user-data-dir={folder}",
                   f"--print-to-pdf={made}"]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # its sandbox refuses root
            options.append("--no-sandbox")
        told = _run([command, *options, page.absolute().as_uri()])
        if told is None:
            raise BadInputError(f"pdf: chromium took more than {TIMEOUT:.0f} s and was stopped; "
                                f"the audit is finished: {_INSTEAD}")  # fmt: skip
        if not made.is_file() or not (content := made.read_bytes()):
            raise BadInputError(f"pdf: chromium wrote no file ({shown(told, 160)}); the audit is "
                                f"finished: {_INSTEAD}")  # fmt: skip
    write(pdf, content, private=True)


def _run(command: list[str]) -> str | None:
    """Return the last line that a command says; None if it was stopped, with all it started."""
    with subprocess.Popen(  # noqa: S603 - arguments of ours, no shell
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            told = process.communicate(timeout=TIMEOUT)[1]
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = told.decode(errors="replace").strip().splitlines() or ["it says nothing"]
    return lines[-1]
