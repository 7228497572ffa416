"""One digest over all that an audit consists of, and whether its folder is still as it was.

``SHA256SUMS`` has a line for each file, as ``sha256sum`` writes and checks them. The digest of the
audit is the SHA-256 of that file, so it stands in none of the files that it covers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from privbench.api.own_model.identity import ANSWERS
from privbench.ground.errors import BadInputError
from privbench.ground.store.files import write
from privbench.ground.text import shown
from privbench.results import one_file
from privbench.results.files import AUDIT
from privbench.results.samples import SUFFIX

#: The file of the digests, beside the results.
SUMS = "SHA256SUMS"
#: The ledger of an endpoint, the words, and the sheet to sign.
LEDGER, WORDS, SHEET = "queries.ndjson", "audit.txt", "audit.html"
_OWN = frozenset({ANSWERS, LEDGER, WORDS, SHEET, "leaderboard.md", "leaderboard.csv"})
_READ = (".json", one_file.SUFFIX, SUFFIX)  # what commands read in any folder of results
_MOST_BYTES, _MOST_FILES = 32 << 20, 100_000
_MOST_SHOWN = 10
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True)
class Verified:
    """Whether an audit is as it was.

    Attributes:
        words: the same in one sentence.
        unchanged: whether every file is there with its content, and no result is new.
        digest: SHA-256 of ``SHA256SUMS``, 64 hexadecimal digits.
    """

    words: str
    unchanged: bool
    digest: str


def seal(folder: Path) -> str:
    """Write ``SHA256SUMS`` for the user alone (mode 0600); return the digest of the audit."""
    told = _told(folder)
    write(folder / SUMS, told, private=True)
    return hashlib.sha256(told.encode()).hexdigest()


def content_digest(folder: Path) -> str:
    """Return one digest over all files of the audit but the sheet, which names it.

    It is the SHA-256 of the lines of ``SHA256SUMS`` without that of the sheet.
    """
    return hashlib.sha256(_told(folder, SHEET).encode()).hexdigest()


def _told(folder: Path, but: str = "") -> str:
    told = ""
    for name, mode in sorted(_found(folder).items()):
        named = name.isprintable() and "\\" not in name and name != but
        if _is_of_audit(name) and stat.S_ISREG(mode) and named:
            told += f"{_sum(folder / name)}  {name}\n"
    return told


def verified(folder: Path, digest: str | None = None) -> Verified:
    """Compare the folder of an audit with its ``SHA256SUMS``.

    Args:
        folder: of the audit.
        digest: that the audit had, 64 hexadecimal digits; None if it is not known.

    Raises:
        BadInputError: if ``digest`` is none, or if the folder holds no audit that can be read.
    """
    wanted = (digest or "").strip().lower()
    if digest is not None and not re.fullmatch("[0-9a-f]{64}", wanted):
        raise BadInputError(f"digest {shown(digest)}: give the 64 hexadecimal digits that "
                            "`privbench audit` printed")  # fmt: skip
    place = shown(str(folder), 200)
    if not folder.is_dir():
        raise BadInputError(f"no audit at {place}: there is no such folder")
    found = _found(folder, _MOST_FILES)
    content = _sums(folder, found.get(SUMS))
    now = hashlib.sha256(content).hexdigest()
    known = _parsed(content)
    changed, missing, date = [], [], ""
    for name, before in (known or {}).items():
        if name not in found:
            missing.append(name)
        elif not stat.S_ISREG(found[name]) or _sum(folder / name) != before:
            changed.append(name)
        elif name == AUDIT:
            date = _date(folder / name)
    if known is None or (wanted and wanted != now):
        changed.append(SUMS)
    others = sorted(found.keys() - (known or {}).keys() - {SUMS})
    new = [name for name in others if _is_of_audit(name)] if known is not None else []
    parts = [f"{what}: {_listed(names)}" for what, names in
             (("changed", changed), ("missing", missing), ("new", new)) if names]  # fmt: skip
    if parts:
        words = f"{place} is not the audit that it was: {'; '.join(parts)}"
        if wanted and wanted != now:
            words += f" (its digest is sha256 {now}, not {wanted})"
        return Verified(f"{words}.", unchanged=False, digest=now)
    since = f" since {shown(date)}" if date else ""
    rest = "" if not (aside := [name for name in others if name not in new]) else (
        f"; not part of the audit: {_listed(aside)}"
    )  # fmt: skip
    words = f"Nothing in {place} has changed{since}: {len(known or {})} files, digest sha256 {now}"
    return Verified(f"{words}{rest}.", unchanged=True, digest=now)


def _is_of_audit(name: str) -> bool:
    """Whether a file is of the audit, or would be read as one of its results."""
    last = name.rpartition("/")[2]
    return name in _OWN or (last.endswith(_READ) and not last.startswith("."))


def _found(folder: Path, most: int | None = None) -> dict[str, int]:
    """Return path below the folder -> mode, of all that is not a folder; no link is followed."""

    def refuse(error: OSError) -> None:
        raise BadInputError(f"{shown(str(error.filename), 200)} cannot be read "
                            f"({error.strerror})")  # fmt: skip

    found: dict[str, int] = {}
    for place, folders, names in os.walk(folder, onerror=refuse if most else None):
        for name in (*folders, *names):
            path = Path(place, name)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                mode = path.lstat().st_mode
                if not stat.S_ISDIR(mode):
                    found[path.relative_to(folder).as_posix()] = mode
        if most is not None and len(found) > most:
            raise BadInputError(f"{shown(str(folder), 200)} holds more than {most:,} files: give "
                                "the folder of one audit")  # fmt: skip
    return found


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


def _sum(path: Path) -> str:
    try:
        with open(_opened(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInputError(f"{shown(str(path), 200)} cannot be read ({error.strerror})") from error


def _sums(folder: Path, mode: int | None) -> bytes:
    place = shown(str(folder), 200)
    if mode is None:
        raise BadInputError(f"no audit with a digest at {place}: it has no {SUMS}, which "
                            "`privbench audit` writes at its end")  # fmt: skip
    if not stat.S_ISREG(mode):
        raise BadInputError(f"{SUMS} in {place} is not a file: give the folder of an audit")
    try:
        with open(_opened(folder / SUMS), "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInputError(f"{SUMS} in {place} cannot be read ({error.strerror})") from error
    if len(content) > _MOST_BYTES:
        raise BadInputError(f"{SUMS} in {place} has more than {_MOST_BYTES:,} bytes: "
                            "`privbench audit` did not write it")  # fmt: skip
    return content


def _parsed(content: bytes) -> dict[str, str] | None:
    """Return path -> SHA-256; None if ``seal`` did not write this."""
    known: dict[str, str] = {}
    for line in content.decode(errors="replace").removesuffix("\n").split("\n"):
        made = _LINE.fullmatch(line)
        if made is None or made[2] in known or not _is_of_audit(made[2]):
            return None
        known[made[2]] = made[1]
    return known


def _date(path: Path) -> str:
    try:
        with open(_opened(path), "rb") as file:
            held = json.loads(file.read(_MOST_BYTES))
        return str(held["date"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return ""


def _listed(names: list[str]) -> str:
    told = ", ".join(shown(name) for name in sorted(names)[:_MOST_SHOWN])
    more = len(names) - _MOST_SHOWN
    return f"{told} and {more:,} more" if more > 0 else told
