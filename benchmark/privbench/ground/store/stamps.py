"""Stamps of files, by which a note about what code said is known to be of today's code."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from privbench.ground.store.content import files_digested

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STARTED = time.time_ns()


def stamps(files: Iterable[Any]) -> dict[str, tuple[int, int]]:
    """Return time of the last change (ns) and size (bytes) of those files that exist."""
    found = {}
    for file in files:
        try:
            stat = os.stat(file)  # noqa: PTH116 - thousands of files
        except (OSError, ValueError):  # a string that is no path
            continue
        found[file] = (stat.st_mtime_ns, stat.st_size)
    return found


def imported_files() -> dict[str, tuple[int, int]]:
    """Return the stamps of all files that were imported, or whose digest was computed."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if (source := sys.modules.get("privbench.ground.store.source")) is not None:
        files |= source.files_read()
    return stamps({*files, *files_digested()} - {None})


def edited_since_start(files: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a file changed after the start: then the imported text may be the old one."""
    return max((changed for changed, _ in files.values()), default=0) > _STARTED
