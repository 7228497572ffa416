"""Results: one JSON file per trial, validated on reading and written atomically.

Beside it may be a file of per-sample scores, see ``samples``. The docstrings of the models here are
the descriptions in ``docs/result.schema.json``, see ``schema``.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
)

from privbench.ground.columns import Board  # noqa: TC001 - pydantic reads it
from privbench.ground.errors import BadInputError, WriteError
from privbench.ground.store import files
from privbench.ground.store.canonical import checksum, digest
from privbench.ground.text import shown
from privbench.ground.values import Count, Measured  # noqa: TC001 - pydantic reads them
from privbench.measure.games.metrics import Estimate, Refused
from privbench.results import limits, samples

if TYPE_CHECKING:
    from pathlib import Path

#: Version of the form of results; no other is read.
SCHEMA = 3

_Name = Annotated[str, MaxLen(limits.LONGEST_NAME)]
_Text = Annotated[str, MaxLen(limits.LONGEST_TEXT)]
#: Metrics, and numbers of utility, on a screen, and characters of a line.
_SHOWN, _FEW, _WIDE = 18, 6, 100
_Rate = Annotated[float, Ge(0), Le(1)]
_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
#: A trial names the file of its result, so none leads out of the folder.
FILE_NAME = r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,199}$"


class Number(BaseModel):
    """A metric with its 95 % interval, or the reason why it was refused.

    Attributes:
        value: the metric, in its own unit (rates and AUC from 0 to 1, epsilons from 0); null if it
            was refused.
        low, high: ends of the 95 % interval over the rows of this trial, in the same unit; both are
            the value where it is exact, null if it was refused.
        refused: why there is no value, in one sentence; null if there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Measured | None = None
    low: Measured | None = None
    high: Measured | None = None
    refused: _Text | None = None

    @classmethod
    def of(cls, metric: Estimate | Refused) -> Number:
        """Convert a metric."""
        if isinstance(metric, Refused):
            return cls(refused=metric.reason)
        return cls(value=metric.value, low=metric.low, high=metric.high)

    def __str__(self) -> str:
        """The value with its interval, or that it was refused."""
        if self.value is None:
            return "refused"
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class MethodRecord(BaseModel):
    """A method with the hyperparameters that it ran with.

    Attributes:
        name: by which the command line finds it.
        label: the name with the hyperparameters that differ from their defaults.
        version: of the method; increased when its numbers change.
        fields: hyperparameter -> value. `privbench doc NAME` says units and ranges.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: _Name
    label: _Text
    version: Count
    fields: dict[str, Any]


class AdversaryRecord(BaseModel):
    """What the adversary knows.

    Attributes:
        adaptive: whether its shadows are trained under the victim's defense.
        white_box: whether it has gradients and weights.
        target: how its shadows are trained; null for the victim's target.
        dataset: source of its rows; null for the victim's dataset.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    adaptive: bool = True
    white_box: bool = False
    target: MethodRecord | None = None
    dataset: MethodRecord | None = None


class CellRecord(BaseModel):
    """The cell as plain values; a leaderboard reads nothing else about methods.

    Attributes:
        dataset: whose rows the question is about.
        protocol: its name, and how rows are split: counts of rows, or shares of their source from 0
            to 1, of `members`, `nonmembers`, `reference`, `public`, `downstream`, `pool` and
            `test`; the `sources` that parts are drawn from; the parts that `encoder` and
            `classifier` train on; `inclusion`, `shadow`, `canaries` and `trained_elsewhere` where
            they are not the default.
        target: how the victim is trained.
        defenses: the stack, in order.
        adversary: what the adversary knows, in words.
        knows: the same as values.
        attack: that was run.
        game: what the attack tries to find out, for example `membership`.
        sensitive: attributes that are asked about.
        preset: which set the sizes of the methods, for example `cpu`.
        access: what the defended victim grants, joined by `+`, for example `LABELS+POSTERIORS`.
        protects: games that the defenses are meant to protect against.
        decides_at: where the attack puts its threshold; "" for the best balanced accuracy.
        control: whether a defense is a positive control, which plants a leak.
        needs: the part of `access` that the attack reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: MethodRecord
    protocol: dict[str, Any]
    target: MethodRecord
    defenses: list[MethodRecord]
    adversary: _Text
    knows: AdversaryRecord
    attack: MethodRecord
    game: _Name
    sensitive: list[_Name]
    preset: _Name
    access: _Name
    protects: list[_Name]
    decides_at: _Text = ""
    control: bool = False
    needs: _Name = ""

    @property
    def defense(self) -> str:
        """Label of the stack of defenses."""
        return "+".join(d.label for d in self.defenses)

    @property
    def undefended(self) -> bool:
        """Whether there is no defense but ``none``."""
        return all(defense.name == "none" for defense in self.defenses)

    @property
    def data(self) -> str:
        """Label of the dataset, with the protocol if it is not the default."""
        protocol = str(self.protocol.get("name", "default"))
        return self.dataset.label + ("" if protocol == "default" else f" ({protocol})")

    @property
    def of_audit(self) -> bool:
        """Whether the victim was trained elsewhere: the model of an audit."""
        return bool(self.protocol.get("trained_elsewhere"))

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

    field: _Name
    stronger: Literal["up", "down", "listed"]
    sweep: list[Any]


class Cost(BaseModel):
    """Cost of the trial; not part of the result's identity.

    Attributes:
        seconds: of the trial without `seconds_training`, including what the attack itself trains
            unless that was in the store.
        seconds_training: build seconds of the artifacts of victim and shadows, each counted once,
            even if an earlier run built them.
        seconds_victim: the part of `seconds_training` that the victim took (the first one, if there
            are several); null if unknown.
        seconds_per_query: how long the victim takes for one label, in seconds; null where it gives
            none.
        queries_per_sample: rows that the victim answered, per row of the question.
        queries_own: rows of its own about which the adversary asked the victim.
        peak_bytes: largest memory of the process, in bytes; on a GPU, of its memory.
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
    """The file of per-sample scores beside a result: its size and checksum.

    Attributes:
        bytes: size of the file.
        blake2b: BLAKE2b digest of the file, 32 hexadecimal digits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: Count
    blake2b: _Digest


class Record(BaseModel):
    """The result of one trial: cell, seed, status and numbers.

    Attributes:
        schema_version: of this form.
        trial: digest of all that decides the result: cell, seed, code, torch, kind of device,
            threads, precision, whether compiled. ``digest`` is that of the numbers.
        cell: what was run.
        board: how boards show the game; null if no game of that name is installed.
        seed: of the split and of all random numbers.
        status: `ok`; `skipped` if the methods do not fit together; `failed` if something broke.
        reason: why it was skipped or failed; "" if it is ok.
        traceback: of a failure.
        phase: training phases that see the members, `encoder`, `classifier` or both joined by `+`.
        sizes: rows of the question, by name.
        metrics: numbers of the attack on the victim, by name.
        controls: control -> the same numbers of the same attack on it, for example on a `null`
            victim that saw no row of the question.
        baselines: answer that uses nothing of the victim -> its numbers.
        utility: accuracy of the defended victim from 0 to 1, and what belongs to it, by name.
        strengths: defense -> which of its hyperparameters makes it stronger.
        updates: part of the model -> number of its gradient steps.
        notes: what methods noted, for example distortion of a release.
        claims: epsilons that defenses state: each with `epsilon` and `delta` (numbers from 0; an
            infinite one is {"$float": "inf"}), adjacency, phases, and whether it is a guarantee.
        split: part of the split -> digest of its rows.
        flags: why the result is suspicious, one sentence each.
        samples: the file of per-sample scores; null if there is none.
        roc: points of a membership attack's ROC curve, [FPR, TPR] each, the FPR rising; null unless
            the result was published from its per-sample scores.
        cost: time, memory and queries.
        provenance: versions, commit, machine and time of the run.
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA
    trial: str = Field(json_schema_extra={"pattern": FILE_NAME})
    cell: CellRecord
    board: Board | None = None
    seed: Count
    status: Literal["ok", "skipped", "failed"]
    reason: _Text = ""
    traceback: _Text = ""
    phase: _Name = ""
    sizes: dict[str, Count] = Field(default_factory=dict)
    metrics: dict[str, Number] = Field(default_factory=dict)
    controls: dict[str, dict[str, Number]] = Field(default_factory=dict)
    baselines: dict[str, dict[str, Number]] = Field(default_factory=dict)
    utility: dict[str, Measured] = Field(default_factory=dict)
    strengths: dict[str, StrengthRecord] = Field(default_factory=dict)
    updates: dict[str, Count] = Field(default_factory=dict)
    notes: dict[str, Any] = Field(default_factory=dict)
    claims: list[dict[str, Any]] = Field(default_factory=list)
    split: dict[str, _Name] = Field(default_factory=dict)
    flags: list[_Text] = Field(default_factory=list)
    samples: SampleFile | None = None
    roc: Annotated[list[tuple[_Rate, _Rate]], MaxLen(100)] | None = None
    cost: Cost = Field(default_factory=Cost)
    provenance: dict[str, Any] = Field(default_factory=dict)
    _samples: bytes = PrivateAttr(default=b"")  # until they are written

    def __repr__(self) -> str:
        """The cell, its status and its first numbers; ``model_dump()`` has everything."""
        cell = self.cell
        lines = [f"{self.status}: {cell.title}, {cell.adversary}, seed {self.seed}"]
        lines += [self.reason] if self.reason else []
        told = {**self.metrics, **{f"{name} {metric}": number for name, of in self.controls.items()
                                   for metric, number in of.items()}}  # fmt: skip
        lines += [f"  {name:<28}{number!s}" for name, number in [*told.items()][:_SHOWN]]
        lines += [f"  {name:<28}{value:.3f}" for name, value in [*self.utility.items()][:_FEW]]
        return "\n".join(shown(line, _WIDE) for line in lines)

    __str__ = __repr__

    @property
    def digest(self) -> str:
        """Digest of all but cost, provenance and traceback: equal runs have equal digests.

        The ROC curve is not part of it: it follows from per-sample scores, which not all have.
        """
        left_out = {"cost", "provenance", "traceback", "roc"}
        return digest(self.model_dump(mode="json", exclude=left_out))

    @property
    def attack_origin(self) -> str:
        """Distribution or plugin file that the attack came from; "" if that is not recorded."""
        plugins = self.provenance.get("plugins")
        of = plugins.get(f"attack {self.cell.attack.name}") if isinstance(plugins, dict) else None
        return str(of.get("distribution", "")) if isinstance(of, dict) else ""

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

    def decode(self, encoded: bytes, path: Path, where: str) -> None:
        """Take the per-sample scores of a line.

        Raises:
            DamagedResultError: if they are too large, or not those that the record names.
        """
        if len(encoded) > limits.MOST_SCORES // 3 * 4 + 4:
            told = f"it has more than {limits.MOST_SCORES:,} bytes of per-sample scores"
            raise DamagedResultError(path, where + told)
        try:
            content = b64decode(encoded)
        except ValueError:
            raise DamagedResultError(path, f"{where}its scores are no base64") from None
        named = self.samples and (self.samples.bytes, self.samples.blake2b)
        if named != (len(content), samples.checksum(content)):
            raise DamagedResultError(path, f"{where}its per-sample scores have changed")
        self._samples = content

    def excess(self) -> str:
        """Why no reader would take this result, in a few words; "" if it is not too large."""
        if len(self._text().encode()) > limits.MOST_BYTES:
            return f"it has more than {limits.MOST_BYTES:,} bytes"
        return limits.excess(self.model_dump(mode="json"))

    def _text(self) -> str:
        """The text of the file."""
        values = json.loads(self.model_dump_json())
        values["checksum"] = checksum(values)
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    def write(self, folder: Path) -> Path:
        """Write atomically, with a checksum of all other fields, after attached per-sample scores.

        Only the user may read the result of an audit of a model of theirs.

        Raises:
            WriteError: if that is impossible; then nothing is left behind.
        """
        target, beside, text = self.path(folder), self.samples_path(folder), self._text()
        private = self.cell.of_audit
        if not self._samples:
            files.write(target, text, private=private)
            return target
        files.write(beside, self._samples, private=private)
        try:
            files.write(target, text, private=private)
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
            f"{path} is not a privbench result: {reason}; run the trial again, or move the file "
            "away"
        )
