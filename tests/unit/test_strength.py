"""A defense's strength: its field, its direction, and a sweep from the weakest to the strongest."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest
from annotated_types import Ge, Le

from privbench import Defense, Strength
from privbench.plugins.about import about
from privbench.plugins.valid import misfit


@dataclass(frozen=True)
class Dimmer(Defense):
    """Dims."""

    name: ClassVar[str] = "dimmer"
    protects: ClassVar[tuple[str, ...]] = ("membership",)

    power: Annotated[float, Ge(0), Le(1)] = 0.5
    kind: Literal["soft", "hard"] = "soft"


def dimmer(strength: Any) -> Defense:
    made: Any = dataclass(frozen=True)(type("Theirs", (Dimmer,), {"strength": strength}))
    return made()  # type: ignore[no-any-return]


WRONG: Any = "more"
LISTED: Any = [0.1, 0.2]


@pytest.mark.parametrize(
    "strength",
    [
        None,
        Strength("power", stronger="up", sweep=(0, 0.5, 1.0)),
        Strength("power", stronger="down", sweep=(1.0, 0.5)),
        Strength("kind", stronger="listed", sweep=("soft", "hard")),
    ],
)
def test_a_strength_that_fits(strength: Any) -> None:
    assert misfit("defense", dimmer(strength)) is None


@pytest.mark.parametrize(
    ("strength", "said"),
    [
        ("power", "strength is 'power': write Strength"),
        (Strength("powr", "up", (0.1, 0.2)), "there is no hyperparameter 'powr': choose from pow"),
        (Strength("power", WRONG, (0.1, 0.2)), "stronger is 'more': choose from up, down, listed"),
        (Strength("power", "up", (0.1,)), "write a tuple of several values"),
        (Strength("power", "up", LISTED), "write a tuple of several values"),
        (Strength("power", "up", (0.1, 2.0)), "has a value that does not fit: dimmer.power"),
        (Strength("power", "up", (0.1, 0.1)), "is not increasing: the strongest comes last"),
        (Strength("power", "up", (0.2, 0.1)), "is not increasing: the strongest comes last"),
        (Strength("power", "down", (0.1, 0.2)), "is not decreasing: the strongest comes last"),
        (Strength("power", "up", (0.1, float("nan"))), "is not increasing"),
        (Strength("power", "up", (False, True)), "values that are no numbers"),
        (Strength("kind", "up", ("soft", "hard")), "values that are no numbers"),
        (Strength("kind", "listed", ("soft", "soft")), "has a value twice"),
        (Strength("kind", "listed", ("soft", "hrd")), "has a value that does not fit"),
    ],
)  # fmt: skip
def test_a_strength_that_does_not_fit(strength: Any, said: str) -> None:
    problem = misfit("defense", dimmer(strength))
    assert problem
    assert said in problem
    assert "\n" not in problem


def test_a_misspelt_strength_is_not_silently_none() -> None:
    made: Any = dataclass(frozen=True)(type("Theirs", (Dimmer,), {"strenght": None}))
    assert "did you mean 'strength'?" in str(misfit("defense", made()))


def test_every_defense_of_the_package_says_its_strength(registry: Any) -> None:
    for defense in registry.all("defense"):
        owners = [c for c in type(defense).__mro__ if "strength" in vars(c) and c is not Defense]
        assert owners, f"{defense.name} declares no strength: set it, or None"
    without = {d.name for d in registry.all("defense") if d.strength is None}
    controls = {d.name for d in registry.all("defense") if d.control}
    assert without == {"none", "selena"} | controls


def test_the_card_shows_it(registry: Any) -> None:
    talos = about("defense", registry.get("defense", "talos")).facts["Strength"]
    assert talos.startswith("adversarial_factor (larger is stronger); sweep 1.0, 2.0, ")
    none = about("defense", registry.get("defense", "none")).facts["Strength"]
    assert none == "one setting only"


def test_a_hyperparameter_of_that_name() -> None:
    made: Any = make_dataclass("Theirs", [("strength", float, 1.0)], bases=(Dimmer,), frozen=True)
    assert "strength is a hyperparameter: rename it" in str(misfit("defense", made()))
