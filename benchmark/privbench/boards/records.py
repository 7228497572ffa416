"""Results: one JSON file per trial, validated on reading and written atomically.

Beside it may be a file of per-sample scores, see ``samples``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import from_json

from privbench.boards import one_file, samples
from privbench.errors import BadInputError, WriteError
from privbench.games.board import Board  # noqa: TC001 - pydantic reads it
from privbench.games.metrics import Estimate, Refused
from privbench.store import files
from privbench.store.canonical import checksum, digest
from privbench.text import shown
from privbench.values import Count, Measured  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Schema 1 had no checksum, and 1 and 2 do not say how boards show them. Such results are shown and
#: merged, but no run keeps them.
SCHEMA, OLD_SCHEMAS = 3, (1, 2)
#: File beside the results of a run, which is no result: operating points and curves.
POINTS = "operating-points.json"


class Number(BaseModel):
    """A metric with its 95 % interval, or the reason why it was refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Measured | None = None
    low: Measured | None = None
    high: Measured | None = None
    refused: str | None = None

    @classmethod
    def of(cls, metric: Estimate | Refused) -> Number:
        """Convert a metric."""
        if isinstance(metric, Refused):
            return cls(refused=metric.reason)
        return cls(value=metric.value, low=metric.low, high=metric.high)


class MethodRecord(BaseModel):
    """A method with the hyperparameters that it ran with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    label: str
    version: Count
    fields: dict[str, Any]


class CellRecord(BaseModel):
    """The cell as plain values; a leaderboard reads nothing else about methods.

    ``access`` is what the defended victim grants, ``needs`` the part of it that the attack reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: MethodRecord
    protocol: dict[str, Any]
    target: MethodRecord
    defenses: list[MethodRecord]
    adversary: str
    attack: MethodRecord
    game: str
    sensitive: list[str]
    preset: str
    access: str
    protects: list[str]
    decides_at: str = ""
    control: bool = False
    needs: str = ""

    @property
    def defense(self) -> str:
        """Label of the stack of defenses."""
        return "+".join(d.label for d in self.defenses)

    @property
    def title(self) -> str:
        """The cell in one line."""
        return f"{self.attack.label} × {self.defense} × {self.target.label} × {self.dataset.label}"


class StrengthRecord(BaseModel):
    """Which hyperparameter of a defense makes it stronger, and in which direction.

    Attributes:
        field: its name.
        stronger: "up" or "down" for numbers; "listed" for later values of the sweep.
        sweep: values from the weakest to the strongest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    stronger: Literal["up", "down", "listed"]
    sweep: list[Any]


class Cost(BaseModel):
    """Cost of the trial; not part of the result's identity.

    ``seconds_training`` is the build seconds of the artifacts of victim and shadows, each counted
    once, even if an earlier run built them. ``seconds`` is the rest of the trial, including what
    the attack itself trains unless that was in the store. ``seconds_victim`` is the part of
    ``seconds_training`` that the victim took (the first one, if there are several), and
    ``seconds_per_query`` how long it takes for one label; None where it gives none.
    """

    model_config = ConfigDict(extra="forbid")

    seconds: Measured = 0.0
    seconds_training: Measured = 0.0
    seconds_victim: Measured | None = None
    seconds_per_query: Measured | None = None
    queries_per_sample: Measured = 0.0
    queries_own: Count = 0
    peak_bytes: Count = 0


class SampleFile(BaseModel):
    """The file of per-sample scores beside a result: its size and checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: Count
    blake2b: str


class Record(BaseModel):
    """The result of one trial: cell, seed, status and numbers.

    ``board`` says how boards show its game; results of schema 1 and 2 do not have it.
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA
    trial: str
    cell: CellRecord
    board: Board | None = None
    seed: Count
    status: Literal["ok", "skipped", "failed"]
    reason: str = ""
    traceback: str = ""
    phase: str = ""
    sizes: dict[str, Count] = Field(default_factory=dict)
    metrics: dict[str, Number] = Field(default_factory=dict)
    controls: dict[str, dict[str, Number]] = Field(default_factory=dict)
    baselines: dict[str, dict[str, Number]] = Field(default_factory=dict)
    utility: dict[str, Measured] = Field(default_factory=dict)
    strengths: dict[str, StrengthRecord] = Field(default_factory=dict)
    updates: dict[str, Count] = Field(default_factory=dict)
    notes: dict[str, Any] = Field(default_factory=dict)
    claims: list[dict[str, Any]] = Field(default_factory=list)
    split: dict[str, str] = Field(default_factory=dict)
    seal: dict[str, str] = Field(default_factory=dict)
    flags: list[str] = Field(default_factory=list)
    samples: SampleFile | None = None
    cost: Cost = Field(default_factory=Cost)
    provenance: dict[str, Any] = Field(default_factory=dict)
    _samples: bytes = PrivateAttr(default=b"")  # until they are written

    @property
    def digest(self) -> str:
        """Digest of all but cost, provenance and traceback: equal runs have equal digests."""
        return digest(self.model_dump(mode="json", exclude={"cost", "provenance", "traceback"}))

    def path(self, folder: Path) -> Path:
        """Path of this record in a results folder."""
        return folder / f"{self.trial}.json"

    def samples_path(self, folder: Path) -> Path:
        """Path of the per-sample scores in a results folder."""
        return folder / f"{self.trial}{samples.SUFFIX}"

    @property
    def unwritten_samples(self) -> bytes:
        """The per-sample scores that the next ``write`` writes, b"" for none."""
        return self._samples

    def attach(self, content: bytes) -> None:
        """Let ``write`` also write these per-sample scores, of ``samples.pack``."""
        self._samples = content
        self.samples = SampleFile(bytes=len(content), blake2b=samples.checksum(content))

    def write(self, folder: Path) -> Path:
        """Write atomically, with a checksum of all other fields, after attached per-sample scores.

        Those of a sealed result hold the truth and stay in memory until the secret is revealed.

        Raises:
            WriteError: if that is impossible; then nothing is left behind.
        """
        values = json.loads(self.model_dump_json())
        values["checksum"] = checksum(values)
        target, beside = self.path(folder), self.samples_path(folder)
        text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
        if not self._samples or (self.seal and "nonce" not in self.seal):
            files.write(target, text)
            return target
        files.write(beside, self._samples)
        try:
            files.write(target, text)
        except WriteError:
            beside.unlink(missing_ok=True)
            raise
        self._samples = b""
        return target


class DamagedResultError(BadInputError):
    """A file is no valid result.

    Attributes:
        path: of the file.
        reason: why, in a few words.
    """

    def __init__(self, path: Path, reason: str) -> None:
        """Compose the message."""
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} is not a privbench result: {reason}; remove it or run the trial again"
        )


def read(path: Path) -> Record:
    """Read one result.

    Raises:
        DamagedResultError: if the file is not a result, or has changed since it was written.
    """
    return parsed(_content(path), path)


def read_lines(path: Path) -> list[Record]:
    """Read all results of one file, see ``one_file``.

    Raises:
        DamagedResultError: if a line is not a result, or has changed since it was written.
    """
    lines = _content(path).splitlines()
    return [parsed(line, path, f"line {i}: ") for i, line in enumerate(lines, 1) if line.strip()]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno in files.BUSY:
            raise
        raise DamagedResultError(path, f"it cannot be read ({error.strerror})") from None


def parsed(text: bytes, path: Path, where: str = "") -> Record:
    """Return a result from its JSON text.

    Args:
        text: of a file or a line.
        path: of the file.
        where: put before the reason if it is not a result.

    Raises:
        DamagedResultError: if it is not a result, or has changed since it was written.
    """
    try:
        values = from_json(text, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise DamagedResultError(path, f"{where}it is not JSON ({error})") from None
    told = dict(values) if isinstance(values, dict) else {}
    written, schema = told.pop("checksum", None), told.get("schema_version", SCHEMA)
    if schema not in (*OLD_SCHEMAS, SCHEMA):
        known = f"but this privbench reads {', '.join(map(str, OLD_SCHEMAS))} and {SCHEMA}"
        raise DamagedResultError(path, f"{where}it has schema {shown(schema)}, {known}")
    try:
        record = Record.model_validate(told or values)
    except (ValidationError, RecursionError) as error:
        raise DamagedResultError(path, where + _wrong(error)) from None
    if not (_unchanged(told, written) or (written is None and schema == 1)):
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


def sample_bytes(record: Record, folders: Iterable[Path]) -> bytes | None:
    """The per-sample scores of a result, from the first of these folders that has them.

    Returns:
        None if the result has none, or if no folder has the file.

    Raises:
        DamagedResultError: if the only files are not those that were written with the result.
    """
    if record.samples is None:
        return None
    damaged: DamagedResultError | None = None
    for folder in folders:
        path = record.samples_path(folder)
        try:
            return samples.load_checked(path, record.samples.bytes, record.samples.blake2b)
        except FileNotFoundError:
            continue
        except samples.BadSamplesError as error:
            damaged = DamagedResultError(path, str(error))
        except OSError as error:
            if error.errno in files.BUSY:
                raise
            damaged = DamagedResultError(path, f"it cannot be read ({error.strerror})")
    if damaged:
        raise damaged
    return None


def read_samples(record: Record, folders: Iterable[Path]) -> samples.Columns | None:
    """The columns of ``sample_bytes``.

    Raises:
        DamagedResultError: as there, or if they are no per-sample scores.
    """
    folders = list(folders)
    content = sample_bytes(record, folders)
    if content is None:
        return None
    try:
        return samples.unpack(content)
    except samples.BadSamplesError as error:
        raise DamagedResultError(record.samples_path(folders[0]), str(error)) from None


def read_all(folders: Iterable[Path]) -> list[Record]:
    """All results under these folders (or files), as ``located`` without their places."""
    return [record for record, _ in located(folders)]


def located(folders: Iterable[Path]) -> list[tuple[Record, list[Path]]]:
    """All results under these folders (or files), ordered by trial, each trial once.

    With each come the folders where results of that trial are.

    If a trial occurs twice, the better result counts (ok before skipped before failed), in
    whatever order the folders are given.

    Raises:
        BadInputError: if a folder is missing, or if there is no result in any of them.
    """
    found: dict[str, Record] = {}
    places: dict[str, list[Path]] = {}
    for folder in folders:
        if not folder.exists():
            raise BadInputError(
                f"no results folder at {shown(str(folder), 200)}: "
                "run `privbench run --out FOLDER` first"
            )
        for path in _files(folder):
            for record in read_lines(path) if path.suffix == one_file.SUFFIX else [read(path)]:
                found[record.trial] = min(found.get(record.trial, record), record, key=_rank)
                places.setdefault(record.trial, []).append(path.parent)
    if not found:
        listed = ", ".join(str(f) for f in folders)
        raise BadInputError(
            f"no results in {shown(listed, 200)}: run `privbench run --out FOLDER` first"
        )
    return [(found[trial], places[trial]) for trial in sorted(found)]


def _rank(record: Record) -> tuple[int, str]:
    return ("ok", "skipped", "failed").index(record.status), record.model_dump_json()


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    else:
        found = [*folder.rglob("*.json"), *folder.rglob(f"*{one_file.SUFFIX}")]
        yield from sorted(p for p in found if p.name != POINTS and not p.name.startswith("."))
