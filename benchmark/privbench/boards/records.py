"""Results: one JSON file per trial, validated on reading and written atomically."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from privbench.errors import BadInputError
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
    """The cell as plain values; a leaderboard reads nothing else about methods."""

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
    control: bool = False

    @property
    def defense(self) -> str:
        """Label of the stack of defenses."""
        return "+".join(d.label for d in self.defenses)

    @property
    def title(self) -> str:
        """The cell in one line."""
        return f"{self.attack.label} × {self.defense} × {self.target.label} × {self.dataset.label}"


class Cost(BaseModel):
    """Cost of the trial; not part of the result's identity.

    ``seconds_training`` is the build seconds of the artifacts of victim and shadows, each counted
    once, even if an earlier run built them. ``seconds`` is the rest of the trial, including what
    the attack itself trains unless that was in the store.
    """

    model_config = ConfigDict(extra="forbid")

    seconds: Measured = 0.0
    seconds_training: Measured = 0.0
    queries_per_sample: Measured = 0.0
    queries_own: Count = 0
    peak_bytes: Count = 0


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
    updates: dict[str, Count] = Field(default_factory=dict)
    notes: dict[str, Any] = Field(default_factory=dict)
    claims: list[dict[str, Any]] = Field(default_factory=list)
    split: dict[str, str] = Field(default_factory=dict)
    seal: dict[str, str] = Field(default_factory=dict)
    flags: list[str] = Field(default_factory=list)
    cost: Cost = Field(default_factory=Cost)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of all but cost, provenance and traceback: equal runs have equal digests."""
        return digest(self.model_dump(mode="json", exclude={"cost", "provenance", "traceback"}))

    def path(self, folder: Path) -> Path:
        """Path of this record in a results folder."""
        return folder / f"{self.trial}.json"

    def write(self, folder: Path) -> Path:
        """Write atomically, with a checksum of all other fields.

        Raises:
            WriteError: if that is impossible; then nothing is left behind.
        """
        values = json.loads(self.model_dump_json())
        values["checksum"] = checksum(values)
        target = self.path(folder)
        files.write(target, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
        return target


class DamagedResultError(BadInputError):
    """A file is no valid result.

    Attributes:
        reason: why, in a few words.
    """

    def __init__(self, path: Path, reason: str) -> None:
        """Compose the message."""
        self.reason = reason
        super().__init__(
            f"{path} is not a privbench result: {reason}; remove it or run the trial again"
        )


def read(path: Path) -> Record:
    """Read one result.

    Raises:
        DamagedResultError: if the file is not a result, or has changed since it was written.
    """
    try:
        values = from_json(path.read_bytes(), allow_inf_nan=False)
    except OSError as error:
        if error.errno in files.BUSY:
            raise
        raise DamagedResultError(path, f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DamagedResultError(path, f"it is not JSON ({error})") from None
    told = dict(values) if isinstance(values, dict) else {}
    written, schema = told.pop("checksum", None), told.get("schema_version", SCHEMA)
    if schema not in (*OLD_SCHEMAS, SCHEMA):
        known = f"but this privbench reads {', '.join(map(str, OLD_SCHEMAS))} and {SCHEMA}"
        raise DamagedResultError(path, f"it has schema {shown(schema)}, {known}")
    try:
        record = Record.model_validate(told or values)
    except (ValidationError, RecursionError) as error:
        raise DamagedResultError(path, _wrong(error)) from None
    if not (_unchanged(told, written) or (written is None and schema == 1)):
        raise DamagedResultError(path, "it has changed since it was written")
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
    """All results under these folders (or files), ordered by trial, each trial once.

    If a trial occurs twice, the better result counts (ok before skipped before failed), in
    whatever order the folders are given.

    Raises:
        BadInputError: if a folder is missing, or if there is no result in any of them.
    """
    found: dict[str, Record] = {}
    for folder in folders:
        if not folder.exists():
            raise BadInputError(
                f"no results folder at {shown(str(folder), 200)}: "
                "run `privbench run --out FOLDER` first"
            )
        for path in _files(folder):
            record = read(path)
            found[record.trial] = min(found.get(record.trial, record), record, key=_rank)
    if not found:
        listed = ", ".join(str(f) for f in folders)
        raise BadInputError(
            f"no results in {shown(listed, 200)}: run `privbench run --out FOLDER` first"
        )
    return [found[trial] for trial in sorted(found)]


def _rank(record: Record) -> tuple[int, str]:
    return ("ok", "skipped", "failed").index(record.status), record.model_dump_json()


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    else:
        yield from sorted(p for p in folder.rglob("*.json") if not p.name.startswith("."))
