"""By which attacks a defense must be judged. It is text, and in no key; attacks are names here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Judge:
    """An attack that a defense must meet before anyone calls it better than another.

    >>> own = Judge("reconstruction", "It has masks of its own.", {"rows": "own"})
    >>> own.label, own.entry
    ('reconstruction(rows=own)', {'reconstruction': {'rows': 'own'}})

    Attributes:
        attack: its name. It need not be installed.
        why: one sentence: what it does that this defense does not foresee.
        fields: its hyperparameters; those left out are its defaults.
    """

    attack: str
    why: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return its name with the hyperparameters."""
        inside = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.attack}({inside})" if inside else self.attack

    @property
    def entry(self) -> str | dict[str, dict[str, Any]]:
        """Return it as a suite writes it."""
        return {self.attack: dict(self.fields)} if self.fields else self.attack


#: Stands for every defense: the strongest attacks of each game judge it.
EVERY = ""

#: Game -> the strongest attacks of each access level that every suite can afford; they judge every
#: defense of the game. ``cmia`` and its like train four times as many shadows and mostly find
#: more. The game of a plugin has none.
STRONGEST: Mapping[str, tuple[Judge, ...]] = {
    "membership": (
        Judge("lira", "Compares a row's posteriors with those of shadows with and without it."),
        Judge("rmia", "Compares a row with the adversary's own rows, also where shadows are few."),
        Judge("label-lira", "Needs labels only, which no defense can hide."),
        Judge(
            "lira-encoder",
            "Needs embeddings only, and compares a row's place and its views over shadows.",
            {"online": True},
        ),
        Judge(
            "lira-head",
            "Needs both, and adds what logits hold in directions that few embeddings have.",
        ),
    ),
    "attributes": (
        Judge("attribute-inference", "Chooses the best of several well-trained classifiers."),
        Judge("attribute-decensoring", "Maps embeddings to features of a model without censoring."),
    ),
    "reconstruction": (
        Judge(
            "reconstruction",
            "Learns from what the victim releases of its own rows.",
        ),
    ),
    "property": (Judge("property-inference", "Compares the victim with shadows of both shares."),),
}


@dataclass(frozen=True)
class Wanted:
    """A judge with all its hyperparameters, as results name them.

    >>> asked = {"k": 16, "variance": "fixed"}
    >>> lira = Wanted("lira", "lira", 2, "membership", asked, origin="privbench")
    >>> from types import SimpleNamespace
    >>> ran = SimpleNamespace(name="lira", version=2, fields={"k": 64, "variance": "fixed"})
    >>> lira.is_met_by(ran, "privbench"), lira.is_met_by(ran, "mine.py")
    (True, False)
    >>> ran.fields["k"] = 8
    >>> lira.is_met_by(ran, "privbench")
    False

    Attributes:
        label: of the judge.
        attack: its name.
        version: of the attack; 0 if it is not installed.
        game: that it plays; "" if it is not installed.
        fields: hyperparameter -> value.
        origin: distribution or plugin file of the attack; "" for any.
    """

    label: str
    attack: str
    version: int
    game: str
    fields: dict[str, Any]
    origin: str = ""

    def is_attack(self, name: str, origin: str) -> bool:
        """Return whether an attack is this one, at whatever strength.

        Args:
            name: of the attack.
            origin: of the attack, "" if unknown. What another package calls so is another attack.
        """
        return name == self.attack and (not origin or self.origin in ("", origin))

    def is_met_by(self, attack: Any, origin: str) -> bool:
        """Return whether an attack is this one at full strength.

        Whole numbers (shadows, epochs, queries, views) and the version may be larger, and nothing
        else may differ.

        Args:
            attack: with ``name``, ``version`` and ``fields``, as a result says.
            origin: as for ``is_attack``.
        """
        same = self.is_attack(attack.name, origin) and attack.version >= self.version
        return same and all(
            name in attack.fields and _at_least(attack.fields[name], wanted)
            for name, wanted in self.fields.items()
        )


def _at_least(value: Any, wanted: Any) -> bool:
    if type(value) is int and type(wanted) is int:
        return value >= wanted
    return bool(value == wanted)


def judges_of(defense: Any) -> list[Judge]:
    """Return all judges of a defense: its own, then the strongest attacks of what it protects.

    Args:
        defense: with ``judged_by`` and ``protects``, such as a ``Defense``.

    >>> from types import SimpleNamespace
    >>> mine = SimpleNamespace(protects=("reconstruction",), judged_by=(Judge("lira", "Why not?"),))
    >>> [judge.label for judge in judges_of(mine)]
    ['lira', 'reconstruction']
    """
    every = [*defense.judged_by]
    every += [one for game in defense.protects for one in STRONGEST.get(game, ())]
    first: dict[str, Judge] = {}
    for one in every:
        first.setdefault(one.label, one)  # its own sentence, where the defense has one
    return [*first.values()]


def judges(
    known: Mapping[str, Sequence[Wanted]], defenses: Iterable[str], game: str
) -> list[Wanted]:
    """Return the attacks that judge a stack of defenses in a game, each once.

    Args:
        known: defense -> its own judges; ``EVERY`` -> those of all defenses.
        defenses: names of the stack.
        game: of the attacks.
    """
    found = [one for name in (*defenses, EVERY) for one in known.get(name, ())]
    return [*{one.label: one for one in found if one.game in ("", game)}.values()]
