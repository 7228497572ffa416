"""Results on disk: read, checked and found in folders."""

from __future__ import annotations

import contextlib
import itertools
import re
import stat
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json

from privbench.ground.errors import BadInputError
from privbench.ground.store import files
from privbench.ground.store.canonical import checksum
from privbench.ground.text import shown
from privbench.results import limits, one_file
from privbench.results.record import FILE_NAME, SCHEMA, DamagedResultError, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: File beside the results of a run, which is no result: the bound of accuracy lost, if it had one.
POINTS = "operating-points.json"
#: The same beside the results of an audit: what it found, as one document.
AUDIT = "audit.json"
#: Bytes of a line that are read at once; in base64, four stand for three of the scores.
_LONGEST_LINE = limits.MOST_BYTES + limits.MOST_SCORES // 3 * 4 + 8


def read(path: Path) -> Record:
    """Read one result.

    Raises:
        DamagedResultError: if the file is not a result, or has changed since it was written.
    """
    with _opened(path) as file:
        return parsed(file.read(limits.MOST_BYTES + 1), path)


def each_line(path: Path, *, scores: bool = False) -> Iterator[tuple[int, Record]]:
    """Yield the number of each line of a file of ``one_file`` and its result, one at a time.

    Args:
        path: of the file.
        scores: whether results keep the per-sample scores in their lines, for ``sample_bytes``.

    Raises:
        DamagedResultError: if a line is not a result, or has changed since it was written, or if
            there are too many.
    """
    with _opened(path) as file:
        for i in itertools.count(1):
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            if i > limits.MOST_RECORDS:
                raise DamagedResultError(path, f"it has more than {limits.MOST_RECORDS:,} lines")
            if line.strip():
                line, encoded = one_file.without_scores(line)
                record = parsed(line, path, f"line {i}: ")
                if encoded and scores:
                    record.decode(encoded, path, f"line {i}: ")
                yield i, record


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with path.open("rb") as file:
                yield file
            return
    except OSError as error:
        if error.errno in files.BUSY:
            raise
        raise DamagedResultError(path, f"it cannot be read ({error.strerror})") from None
    raise DamagedResultError(path, "it is not a file")  # a pipe or a device may never end


def parsed(text: bytes, path: Path, where: str = "") -> Record:
    """Return a result from its JSON text.

    Args:
        text: of a file or a line.
        path: of the file.
        where: put before the reason if it is not a result.

    Raises:
        DamagedResultError: if it is not a result, or has changed since it was written.
    """
    if len(text) > limits.MOST_BYTES:
        raise DamagedResultError(path, f"{where}it has more than {limits.MOST_BYTES:,} bytes")
    try:
        values = from_json(text, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise DamagedResultError(path, f"{where}it is not JSON ({error})") from None
    if problem := limits.excess(values):
        raise DamagedResultError(path, f"{where}{problem}")
    told = dict(values) if isinstance(values, dict) else {}
    written, schema = told.pop("checksum", None), told.get("schema_version", SCHEMA)
    if schema != SCHEMA:
        problem = f"it has schema {shown(schema)}, but this privbench reads {SCHEMA}"
        raise DamagedResultError(path, where + problem)
    try:
        record = Record.model_validate(told or values)
    except (ValidationError, RecursionError) as error:
        raise DamagedResultError(path, where + _wrong(error)) from None
    if not re.fullmatch(FILE_NAME, record.trial):
        raise DamagedResultError(path, f"{where}trial {shown(record.trial)} is no name of a file")
    if not _unchanged(told, written):
        raise DamagedResultError(path, f"{where}it has changed since it was written")
    return record


def _unchanged(values: dict[str, Any], written: Any) -> bool:
    try:
        return bool(checksum(values) == written)
    except (ValueError, RecursionError):  # nested too deep
        return False


def _wrong(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return str(error)
    first = error.errors()[0]
    where = shown(".".join(str(part) for part in first["loc"]) or "the file")
    return f"{where}: {first['msg'].lower()}"


def read_all(folders: Iterable[Path]) -> list[Record]:
    """All results under these folders (or files), as ``located`` without their places."""
    return [record for record, _ in located(folders)]


def located(folders: Iterable[Path], *, scores: bool = False) -> list[tuple[Record, list[Path]]]:
    """All results under these folders (or files), ordered by trial, each trial once.

    With each come the folders where results of that trial are, and with ``scores`` the per-sample
    scores that are in its line.

    If a trial occurs twice, the better result counts (ok before skipped before failed), in
    whatever order the folders are given.

    Raises:
        BadInputError: if a folder is missing, or if there is no result in any of them.
    """
    found: dict[str, Record] = {}
    places: dict[str, list[Path]] = {}
    for folder in folders:
        refuse_missing(folder)
        for path in _files(folder):
            lines = path.suffix == one_file.SUFFIX
            made = each_line(path, scores=scores) if lines else [(1, read(path))]
            for _, record in made:
                found[record.trial] = min(found.get(record.trial, record), record, key=_rank)
                places.setdefault(record.trial, []).append(path.parent)
    if not found:
        listed = ", ".join(str(f) for f in folders)
        raise BadInputError(
            f"no results in {shown(listed, 200)}: `privbench run` and `privbench audit` write them"
        )
    return [(found[trial], places[trial]) for trial in sorted(found)]


def refuse_missing(folder: Path) -> None:
    """Refuse a folder (or file) of results that is not there.

    Raises:
        BadInputError: saying how one is made.
    """
    if not folder.exists():
        raise BadInputError(
            f"no results folder at {shown(str(folder), 200)}: `privbench run` and `privbench "
            "audit` write one"
        )


def _rank(record: Record) -> tuple[int, bool, str, bool]:
    rank, without = ("ok", "skipped", "failed").index(record.status), record.samples is None
    return rank, without, record.model_dump_json(), not record.unwritten_samples


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        yield folder
    else:
        found = [*folder.rglob("*.json"), *folder.rglob(f"*{one_file.SUFFIX}")]
        yield from sorted(
            p for p in found if p.name not in (POINTS, AUDIT) and not p.name.startswith(".")
        )
