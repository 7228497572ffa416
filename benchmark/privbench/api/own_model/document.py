"""What an audit found as one document, ``audit.json``: for archives, annexes and other programs.

The docstrings here and in ``gate`` are the descriptions in ``docs/audit.schema.json``. After a
change write it by ``python -m privbench.api.own_model.document``.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from privbench.api.own_model.claim import Verdict
from privbench.api.own_model.errors import Errors
from privbench.api.own_model.gate import Found, Gate, Threshold
from privbench.api.own_model.shift import Shift
from privbench.api.own_model.subgroups import Group, Subgroups
from privbench.api.own_model.words import reworded
from privbench.ground.text import several
from privbench.ground.tokens import redacted
from privbench.measure.games.audit import Guesses
from privbench.results.limits import MOST_BYTES
from privbench.results.provenance import versions
from privbench.results.record import Number
from privbench.results.schema import described
from privbench.toolbox.shadow_recipe import named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from privbench.api.own_model.words import Audit
    from privbench.results.record import Record

#: Version of the form of the document.
VERSION = 1


class Model(BaseModel):
    """The model that was audited.

    Attributes:
        name: as it was given; of an address, without the values of its query.
        version: the user's name for its version; "" without one.
        gives: what it answers: posteriors, logits, labels, embeddings or values.
        answers_sha256: SHA-256 digest of its answers to members, nonmembers and at most 64 changed
            rows, 64 hexadecimal digits.
        parameters: number of its parameters; null if they cannot be counted, as of anything but a
            torch module.
        members_per_parameter: members of the audit for each parameter; null without their number.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    version: str
    gives: str
    answers_sha256: str
    parameters: int | None
    members_per_parameter: float | None


class Data(BaseModel):
    """The rows that it was asked about.

    Attributes:
        members: number of different rows that it was trained on.
        nonmembers: number of different rows that it was not trained on.
        shadow: number of the adversary's own rows.
        rows_sha256: SHA-256 digest of the file that holds all of them, 64 hexadecimal digits.
    """

    model_config = ConfigDict(extra="forbid")

    members: int
    nonmembers: int
    shadow: int
    rows_sha256: str


class Shadows(BaseModel):
    """The models that the adversary trained as the audited one may have been.

    Attributes:
        trained_by: the shadow recipe, or the target of privbench with its hyperparameters.
        code: digest of the recipe's code and of what it was made with, 32 hexadecimal digits; ""
            for a target of privbench.
        most: largest number of them that an attack compared the model with.
        right_own: share of the rows that they were trained on about which they are right, from 0
            to 1, mean of up to four; null if it is unknown.
        right_others: the same of other rows.
        far: whether one of these is far from the model's share of members, or of nonmembers: then
            they were not trained as the model was.
    """

    model_config = ConfigDict(extra="forbid")

    trained_by: str
    code: str
    most: int
    right_own: float | None = None
    right_others: float | None = None
    far: bool = False


class Tried(BaseModel):
    """What became of an attack.

    Attributes:
        attack: its name, with the hyperparameters that are not the default.
        game: what it tries to find out, for example `membership`; "" if it was not planned.
        seed: of its random numbers; null if it was not planned.
        status: `ran`; `failed` if it broke; `not run`.
        reason: why it failed or did not run; "" if it ran.
        reads: what it reads of the model's answers, joined by `+`; "" if it was not planned.
        adversary: what it knows besides; "" if it was not planned.
        doubtful: why it does not count in the verdict; "" if it does.
        metrics: its numbers on the model, each with its own 95 % interval.
        null: its numbers on a network with random weights.
    """

    model_config = ConfigDict(extra="forbid")

    attack: str
    game: str = ""
    seed: int | None = None
    status: Literal["ran", "failed", "not run"]
    reason: str = ""
    reads: str = ""
    adversary: str = ""
    doubtful: str = ""
    metrics: dict[str, Number] = Field(default_factory=dict)
    null: dict[str, Number] = Field(default_factory=dict)


class Defense(BaseModel):
    """What a defense changes that was tried on the model's answers.

    Attributes:
        defense: its name, with the hyperparameters that are not the default.
        words: leak and accuracy before and after, in one sentence; or why it was not tried.
        judges: attack that the defense names as its judge -> why it did not run; "" if it ran.
        attacks: what became of each attack on the defended model.
        utility: accuracies of the defended model from 0 to 1, by name.
    """

    model_config = ConfigDict(extra="forbid")

    defense: str
    words: str
    judges: dict[str, str]
    attacks: list[Tried]
    utility: dict[str, float]


class Document(BaseModel):
    """An audit of a model: the file `audit.json` in its folder.

    Attributes:
        version: of this form.
        date: when the audit first ended with this outcome, in UTC, as in ISO 8601.
        model: that was audited.
        data: the rows that it was asked about.
        shadows: models that the adversary trained; null if no attack with any ran.
        attacks: what became of each attack.
        shift: whether members and nonmembers differ in more than membership; null if nothing is
            known of them.
        utility: accuracies of the model from 0 to 1, by name.
        errors: of a regression; null for other models.
        subgroups: what the strongest attack finds in groups of rows; null without a verdict.
        defenses: what each defense changes that was tried; all else here is about the model without
            a defense.
        no_verdict: why nothing can be said about a leak; "" if it can.
        words: the verdict in words, as in `audit.txt`.
        limits: what the audit does not say, a sentence each.
        gate: the verdict over the thresholds of `--fail-above`; null without any.
        claim: what the coins say about a claimed epsilon; null without a claim.
        python: version of Python.
        versions: package -> version.
        commit: of privbench; null for an installed copy.
    """

    model_config = ConfigDict(extra="forbid")

    version: int = VERSION
    date: str
    model: Model
    data: Data
    shadows: Shadows | None = None
    attacks: list[Tried]
    shift: Shift | None
    utility: dict[str, float]
    errors: Errors | None = None
    subgroups: Subgroups | None = None
    defenses: list[Defense] = Field(default_factory=list)
    no_verdict: str
    words: str
    limits: list[str]
    gate: Gate | None
    claim: Verdict | None
    python: str
    versions: dict[str, str]
    commit: str | None


def document(made: Audit, doubtful: Mapping[str, str], parameters: int | None = None) -> Document:
    """Return the document of an audit.

    Args:
        made: the audit; at least one of its attacks was planned.
        doubtful: attacks that do not count -> why.
        parameters: number of parameters of the model; None if it is unknown.
    """
    cell = made[0].cell
    target, protocol = cell.target.fields, cell.protocol
    planned = {one.cell.attack.name for one in made}
    told = versions()
    compared = made.shift.auc is not None
    shadows = _shadows(made)
    return Document(
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        model=Model(
            name=redacted(target["model"]), version=target["tag"], gives=target["gives"],
            answers_sha256=target["answered"], parameters=parameters,
            members_per_parameter=protocol["members"] / parameters if parameters else None,
        ),
        data=Data(
            members=protocol["members"], nonmembers=protocol["nonmembers"],
            shadow=protocol["pool"], rows_sha256=cell.dataset.fields["sha256"],
        ),
        shadows=shadows,
        attacks=[
            *(_tried(one, doubtful.get(one.cell.attack.label, "")) for one in made),
            *(Tried(attack=name, status="not run", reason=reworded(name, why))
              for name, why in made.left_out.items() if name not in planned),
        ],
        shift=made.shift if compared or made.shift.p_value_of_y is not None else None,
        utility=next((one.utility for one in made if one.utility), {}),
        errors=made.errors, subgroups=made.subgroups,
        defenses=[
            Defense(
                defense=of.defense, words=of.words, judges=dict(of.judges),
                attacks=[_tried(one, "") for one in of.records],
                utility=next((one.utility for one in of.records if one.utility), {}),
            )
            for of in made.defended
        ],
        no_verdict=made.no_verdict, words=made.summary,
        limits=_limits(made, shadows, target["gives"], protocol["members"], compared=compared),
        gate=made.gate, claim=made.claim,
        python=told["python"], versions=told["versions"], commit=told["commit"],
    )  # fmt: skip


def _shadows(made: Audit) -> Shadows | None:
    """Return what trained the shadows of the attacks that ran."""
    used = [(one.cell.knows.target, one.cell.attack.fields) for one in made if one.status == "ok"]
    known = [(target, fields) for target, fields in used if target is not None]
    if not known:
        return None
    target = known[0][0]
    counts = [int(fields.get("k", 1)) for _, fields in known]
    own = str(target.fields.get("recipe", ""))
    fit = made.shadow_fit
    return Shadows(
        trained_by=named(own) if own else target.label, code=str(target.fields.get("code", "")),
        most=max(counts), right_own=fit.own if fit else None,
        right_others=fit.others if fit else None, far=bool(fit and fit.far),
    )  # fmt: skip


def _limits(
    made: Audit, shadows: Shadows | None, gives: str, members: int, *, compared: bool
) -> list[str]:
    """Return what an audit does not say, a sentence each."""
    ran = [one for one in made if one.status == "ok"]
    out = len(made.left_out.keys() - {one.cell.attack.name for one in ran})
    told = ["What attacks find is a lower bound: a stronger attack may find more."]
    if shadows is None or not shadows.code:
        told.append("No attack had shadows, models trained as this one was, which find more.")
    elif shadows.far:
        told.append("The shadows were not trained as this model was: attacks with them find less.")
    if out:
        told.append(f"{several(out, 'attack')} did not run: what they would find is unknown.")
    told.append(f"Attacks read the model's {gives} only: who reads weights may find more.")
    told.append(f"Other rows than the {members:,} members may be more exposed.")
    if not compared:
        told.append("Members and nonmembers were not compared: attacks may find how they differ.")
    told.append("Intervals are over rows: another training gives another model.")
    return told


def annexed(path: Path) -> list[str]:
    """Return what ``audit.json`` adds to the words, a line each; [] if it cannot be read."""
    try:
        with path.open("rb") as file:
            told = Document.model_validate_json(file.read(MOST_BYTES))
    except (OSError, ValueError):
        return []
    model = told.model
    made_by = told.versions.get("privbench", "?")
    head = (
        f"Audited at {told.date} with privbench {made_by}. The model answers {model.gives} "
        f"(SHA-256 {model.answers_sha256}); the rows have SHA-256 {told.data.rows_sha256}."
    )
    lines = [head]
    if model.parameters and model.members_per_parameter:
        lines.append(f"It has {model.parameters:,} parameters, {model.members_per_parameter:.2g} "
                     "members of the audit for each.")  # fmt: skip
    return [*lines, f"Limits: {' '.join(told.limits)}"]


def as_dated(made: Document, path: Path) -> Document:
    """Return a document with the date of the file, if the file says the same otherwise."""
    new = json.loads(made.model_dump_json())
    try:
        old = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return made
    if not isinstance(old, dict) or {**old, "date": made.date} != new:
        return made
    return made.model_copy(update={"date": str(old.get("date", made.date))})


def _tried(record: Record, doubtful: str) -> Tried:
    ran: dict[str, Any] = {"ok": "ran", "failed": "failed", "skipped": "not run"}
    cell = record.cell
    return Tried(
        attack=cell.attack.label, game=cell.game, seed=record.seed, status=ran[record.status],
        reason=reworded(cell.attack.name, record.reason), reads=cell.needs,
        adversary=cell.adversary, doubtful=doubtful, metrics=record.metrics,
        null=record.controls.get("null", {}),
    )  # fmt: skip


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the document."""
    made = Document.model_json_schema()
    described(made, Document)
    made["properties"]["version"] = {"const": VERSION, "description": "Of this form."}
    for model in (
        Model,
        Data,
        Shadows,
        Tried,
        Defense,
        Shift,
        Errors,
        Subgroups,
        Group,
        Gate,
        Threshold,
        Found,
        Number,
        Verdict,
        Guesses,
    ):
        described(made["$defs"][model.__name__], model)
    made["required"] = [*made["required"], "version"]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"privbench-audit-{VERSION}", "title": "An audit of privbench",
    }  # fmt: skip
    return {**head, **{name: value for name, value in made.items() if name != "title"}}


def dumped() -> str:
    """Return the text of ``docs/audit.schema.json``."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(dumped(), end="")  # noqa: T201
