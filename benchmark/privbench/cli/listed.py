"""A method as the index knows it: what is listed, explained and checked without its class."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.judges import Judge
from privbench.measure.methods.strength import Strength

if TYPE_CHECKING:
    from typing import Self


class UnlistedError(Exception):
    """The index does not know; the class does."""


@dataclass(frozen=True)
class Listed:
    """What the index holds of one method. All values have a form in JSON.

    It stands in for the method where names of a suite are looked up and hyperparameters set.

    Attributes:
        name: of the method.
        version: of the method.
        title: the first line of what its class says.
        fields: hyperparameter -> its annotation, see ``cli.annotations``; None for one that has no
            form in JSON.
        presets: their names.
        texts: what its class and its module say, in paragraphs.
        card: the lines of ``privbench doc`` after these.
        game: of an attack.
        access: that an attack needs, as ``posteriors``.
        shadows: that an attack asks for, as ``16 online``; "" for none.
        control: whether it is a defense that plants a leak.
        sweep: strength of a defense, as [field, direction, values]; None for none, [] for one that
            has no form in JSON.
        protects: games that a defense claims to protect.
        judges: its own judges, as arguments of ``Judge``.
        protocols: name -> lines of ``privbench doc``, of a dataset's own protocols.
        attributes: of a dataset; None if its hyperparameters or files decide.
        of_files: whether the card of a dataset depends on files.
        described: whether the rest is known; False if asking the method failed.
        given: hyperparameters that were set.
    """

    name: str
    version: int
    title: str
    fields: dict[str, list[Any] | None]
    presets: list[str]
    texts: list[str]
    card: list[str]
    game: str = ""
    access: str = ""
    shadows: str = ""
    control: bool = False
    sweep: list[Any] | None = None
    protects: list[str] = field(default_factory=list)
    judges: list[list[Any]] = field(default_factory=list)
    protocols: dict[str, list[str]] = field(default_factory=dict)
    attributes: list[str] | None = None
    of_files: bool = False
    described: bool = True
    given: dict[str, Any] = field(default_factory=dict)

    def hyperparameters(self) -> dict[str, list[Any] | None]:
        """Names of the fields."""
        return self.fields

    def preset(self, name: str) -> Self:
        """Return itself: the values of a preset are those of its author."""
        del name
        return self

    def replace(self, **given: Any) -> Self:
        """Check hyperparameters, as ``Method.replace`` does.

        Raises:
            UnknownNameError: for a field that does not exist, with the nearest name.
            BadInputError: for a value out of range.
            UnlistedError: if its hyperparameters are not known.
        """
        if not self.described:
            raise UnlistedError(self.name)
        for name in given:
            if name not in self.fields:
                raise UnknownNameError(f"hyperparameter of {self.name}", name, self.fields)
        forms = {name: form for name, form in self.fields.items() if name in given}
        wrong = [f"{self.name}.{name}: {told}" for name, form in forms.items()
                 if (told := _problem(form, given[name]))]  # fmt: skip
        if wrong:
            raise BadInputError("; ".join(wrong))
        return replace(self, given={**self.given, **given})

    @property
    def judged_by(self) -> tuple[Judge, ...]:
        """The judges of a defense."""
        return tuple(Judge(*one) for one in self.judges)

    @property
    def strength(self) -> Strength | None:
        """Its strength.

        Raises:
            UnlistedError: if it has no form in JSON.
        """
        if self.sweep is None:
            return None
        if len(self.sweep) != len(fields(Strength)):
            raise UnlistedError(self.name)
        name, stronger, values = self.sweep
        return Strength(name, stronger, tuple(values))


def _problem(form: Any, value: Any) -> str:
    """What to give instead; "" if the value fits, or if only the class can say."""
    if form is None:
        return ""
    from pydantic import TypeAdapter

    from privbench.cli.annotations import read
    from privbench.ground.values import is_bounded, misfit

    try:
        annotation = read(form)
    except ValueError:  # the class will say
        return ""
    return misfit(TypeAdapter(annotation), value, bounded=is_bounded(annotation))[1]


def listed(kind: str, method: Any, card: list[str]) -> Listed:
    """Return what the index holds of a method.

    Args:
        kind: of the method.
        method: of that kind.
        card: the lines of ``privbench doc`` after its texts.
    """
    from privbench.cli.cards import protocol_card
    from privbench.measure.methods.method import annotation
    from privbench.plugins.about import about

    forms = {one.name: _form(annotation(type(method), one.name)) for one in fields(method)}
    known = replace(
        undescribed(method), fields=forms, presets=list(method.presets),
        texts=list(about(kind, method).texts), card=card,
    )  # fmt: skip
    if kind == "attack":
        asked = method.shadows
        return replace(
            known, game=method.game,
            access=str(method.needs).lower().replace("+", ", ") if method.needs else "nothing",
            shadows=f"{asked.count} {asked.origin}" if asked.count else "",
        )  # fmt: skip
    if kind == "defense":
        return replace(
            known, control=bool(method.control), sweep=_sweep(method.strength),
            protects=list(method.protects),
            judges=[[one.attack, one.why, dict(one.fields)] for one in method.judged_by],
        )  # fmt: skip
    if kind == "dataset":
        own = {name: [*protocol_card(one)] for name, one in method.protocols.items()}
        attributes = _attributes(method)
        of_files = attributes is None and not method.reads_given_files
        return replace(known, protocols=own, attributes=attributes, of_files=of_files)
    return known


def undescribed(method: Any, error: Exception | None = None) -> Listed:
    """Return only what every method has, and why its card could not be made."""
    text = (type(method).__doc__ or "").strip()
    card = [] if error is None else [f"Its card fails: {type(error).__name__}: {error}"]
    return Listed(
        method.name, method.version, next(iter(text.splitlines()), ""), fields={}, presets=[],
        texts=[text], card=card, described=error is None,
    )  # fmt: skip


def _form(annotation: Any) -> list[Any] | None:
    from privbench.cli.annotations import written

    try:
        return list(written(annotation))
    except TypeError:
        return None


def _sweep(strength: Strength | None) -> list[Any] | None:
    if strength is None:
        return None
    try:
        json.dumps(strength.sweep)
    except (TypeError, ValueError):
        return []
    return [strength.field, strength.stronger, list(strength.sweep)]


def _attributes(dataset: Any) -> list[str] | None:
    if dataset.reads_given_files:  # what its card says without them is what it says
        return None
    try:
        return sorted(dataset.card(None).attributes)
    except BadInputError:
        return None
