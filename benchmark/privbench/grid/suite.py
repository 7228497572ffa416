"""A suite describes a grid; YAML, command line and Python are all converted to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le, Len
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
)

from privbench.grid import strict_yaml
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.text import quoted, shown

if TYPE_CHECKING:
    from pathlib import Path

#: The name of a method, or name -> hyperparameters.
Ref = str | dict[str, dict[str, Any]]
#: scikit-learn takes no larger seed.
Seed = Annotated[StrictInt, Ge(0), Le(2**32 - 1)]
Loss = Annotated[float, Ge(0), Le(1), Field(strict=True, allow_inf_nan=False)]
MOST_SEEDS = 1_000
#: Stands for the attacks that judge the defenses of a suite.
STRONGEST_ATTACKS = "strongest"


def _strongest(given: Any) -> Any:
    return [given] if given == STRONGEST_ATTACKS else given


class AdversarySpec(BaseModel):
    """What the attacker knows, as written in a suite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    adaptive: StrictBool = True
    target: Ref | None = None
    dataset: Ref | None = None
    white_box: StrictBool = False


class Suite(BaseModel):
    """A grid of trials.

    Attributes:
        name: title of the board.
        datasets, targets, defenses, attacks: names, or name -> hyperparameters; a defense may be a
            stack ("talos+memguard"), and the attack "strongest" is all that judge the defenses.
        protocols: names, or protocols written in full.
        adversaries: "adaptive", "naive", "white-box" (adaptive, with gradients and weights), or
            written in full, with the target of the shadows and the dataset of the pool.
        seeds: their number, at most 1,000, or a list of seeds.
        preset: name of the preset that sets the size of every method.
        sensitive: attributes to infer; None for the dataset's default.
        set: method -> hyperparameters, applied to all entries of the method.
        baseline: whether the defense ``none`` runs in addition to the listed ones.
        sweep: defenses that run with every value of their strength; a list of values of that
            hyperparameter replaces the sweep that the defense declares.
        match_utility: largest loss of accuracy on reference rows, compared with ``none``, at which
            a setting of a defense counts as an operating point; None for no operating points.
        controls: whether every attack also runs on the positive controls that suit it (planted
            leaks, which it must find).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "run"
    datasets: list[Ref] = Field(default=["digits"], min_length=1)
    protocols: list[str | dict[str, Any]] = Field(default=["default"], min_length=1)
    targets: list[Ref] = Field(default=["simclr"], min_length=1)
    defenses: list[Ref] = []
    attacks: Annotated[list[Ref], BeforeValidator(_strongest)] = Field(min_length=1)
    adversaries: list[Literal["adaptive", "naive", "white-box"] | AdversarySpec] = Field(
        default=["adaptive"], min_length=1
    )
    seeds: (
        Annotated[StrictInt, Ge(1), Le(MOST_SEEDS)] | Annotated[list[Seed], Len(1, MOST_SEEDS)]
    ) = 1
    preset: str = "cpu"
    sensitive: list[str] | None = None
    set: dict[str, dict[str, Any]] = {}
    baseline: StrictBool = True
    sweep: list[Ref] = []
    match_utility: Loss | None = None
    controls: StrictBool = False

    @property
    def names(self) -> frozenset[tuple[str, str]] | None:
        """Kind and name of all methods that it names, "" for any kind; None if it takes all."""
        if self.controls or STRONGEST_ATTACKS in self.attacks:
            return None
        others = [spec for spec in self.adversaries if isinstance(spec, AdversarySpec)]
        of: dict[str, list[Ref]] = {
            "dataset": [*self.datasets, *(one.dataset for one in others if one.dataset)],
            "target": [*self.targets, *(one.target for one in others if one.target)],
            "defense": [*self.defenses, *self.sweep],
            "attack": self.attacks,
            "": [*self.set],
        }
        return frozenset(
            (kind, part.strip()) for kind, refs in of.items() for ref in refs
            for name in ([ref] if isinstance(ref, str) else ref) for part in name.split("+")
        )  # fmt: skip

    @property
    def seed_list(self) -> list[int]:
        """The seeds, in order."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)


def suite_from(values: dict[str, Any], where: str) -> Suite:
    """Validate the values and return a suite.

    Raises:
        UnknownNameError: for an unknown key.
        BadInputError: for invalid values, listing all of them in one sentence.
    """
    for key in values:
        if key not in Suite.model_fields:
            raise UnknownNameError(f"key in {where}", str(key), Suite.model_fields)
    try:
        suite = Suite.model_validate(values)
    except ValidationError as error:
        wrong = {str(e["loc"][0]): e for e in error.errors(include_url=False, include_input=False)}
        listed = "; ".join(_misfit(key, values.get(key), e) for key, e in wrong.items())
        raise BadInputError(f"{where}: {listed}") from None
    return suite


_WANTED = {
    "name": "text",
    "datasets": "a list of names, or of {name: {field: value}}",
    "protocols": "a list of names, or of protocols written in full",
    "targets": "a list of names, or of {name: {field: value}}",
    "defenses": "a list of names, or of {name: {field: value}}",
    "attacks": "a list of names, or of {name: {field: value}}, at least one, or `strongest`",
    "adversaries": "a list of 'adaptive', 'naive', 'white-box', or "
    "{adaptive: true, white_box: false, target: name, dataset: name}",
    "seeds": f"a count from 1 to {MOST_SEEDS:,} or a list of seeds from 0 and below {2**32:,}",
    "preset": "a name",
    "sensitive": "a list of attribute names",
    "set": "{method: {field: value}}",
    "baseline": "true or false",
    "sweep": "a list of defenses, or of {name: {field: value}}",
    "match_utility": "a number from 0 to 1, such as 0.02",
    "controls": "true or false",
}


def _misfit(key: str, given: Any, error: Any) -> str:
    """What a key must be and what was given."""
    if error["type"] == "missing":
        return f"{key} is missing: it must be {_WANTED[key]}"
    place = next((part for part in error["loc"] if isinstance(part, int)), None)
    if isinstance(given, list) and place is not None:
        given = given[place]
    return f"{key} must be {_WANTED[key]}, not {quoted(given)}"


def read_suite(path: Path) -> Suite:
    """Read a suite from YAML.

    Raises:
        BadInputError: if it is missing, not YAML or invalid; the message says where.
    """
    told = shown(str(path), 200)
    where = f"suite {told}"
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(strict_yaml.LONGEST + 1)
    except FileNotFoundError:
        raise BadInputError(
            f"no suite at {told}: give a YAML file, or use --attack and --defense"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInputError(f"cannot read {where}: {why}; give a YAML file") from None
    try:
        values = strict_yaml.load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or f"not YAML ({' '.join(str(error).split())})"
        place = "at this line" if mark else "in this file"
        raise BadInputError(f"{where}{at}: {shown(problem, 160)}; fix the YAML {place}") from None
    if not isinstance(values, dict):
        given = "empty" if values is None else f"a {type(values).__name__}"
        raise BadInputError(f"{where} is {given}: write keys, for example `attacks: [encodermi-t]`")
    return suite_from({"name": shown(path.stem), **values}, where)


def parse_settings(settings: list[str]) -> dict[str, dict[str, Any]]:
    """``METHOD.FIELD=VALUE`` -> {method: {field: value}}; values are read as YAML.

    Raises:
        BadInputError: for a setting in any other form, or one that is given twice.

    >>> parse_settings(["talos.adversarial_factor=5", "simclr.crop=[0.2, 1]"])
    {'talos': {'adversarial_factor': 5}, 'simclr': {'crop': [0.2, 1]}}
    """
    made: dict[str, dict[str, Any]] = {}
    for setting in settings:
        left, equals, value = setting.partition("=")
        method, dot, field = left.strip().rpartition(".")
        if not (equals and dot and method and field):
            raise BadInputError(
                f"--set {shown(setting)}: write METHOD.FIELD=VALUE, for example "
                "talos.adversarial_factor=3"
            )
        if field in made.setdefault(method, {}):
            raise BadInputError(f"--set {shown(f'{method}.{field}')} is given twice: give it once")
        try:
            made[method][field] = strict_yaml.load(value)
        except yaml.YAMLError:
            raise BadInputError(
                f"--set {shown(setting)}: '{shown(value)}' is not a YAML value: put it in quotes"
            ) from None
    return made
