"""The checks of the conformance kit, by kind of method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from privbench.games.attack import Attack
from privbench.methods.dataset import Dataset
from privbench.methods.defense import Defense
from privbench.methods.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from privbench.method import Method


from privbench.testing import (
    attack_checks,
    dataset_checks,
    defense_checks,
    method_checks,
    target_checks,
)
from privbench.testing.fixtures import rebuild


@dataclass(frozen=True)
class Check:
    """One requirement for a method; calling it raises AssertionError if it does not hold."""

    method: Method
    name: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Run the check, with fixtures of its own.

        Raises:
            AssertionError: saying what was tried and what to change.
        """
        rebuild()
        try:
            self.run()
        except AssertionError:
            raise
        except Exception as error:
            told = " ".join(str(error).split())
            raise AssertionError(
                f"checking that it {self.name} on the kit's rows raised "
                f"{type(error).__name__}: {told}"
            ) from error

    def __str__(self) -> str:
        """Return the method's name and what is checked."""
        return f"{self.method.name}: {self.name}"


def checks(method: Method, *, root: Path | None = None, auc: float = 0.6) -> list[Check]:
    """Return all checks for a method, depending on its kind.

    Args:
        method: an instance with default hyperparameters.
        root: data folder, for datasets that read files.
        auc: AUC that a membership attack must exceed on the planted victim.
    """
    table: list[tuple[str, Callable[..., None]]] = [
        ("is frozen, printable and cloned by its fields", method_checks.is_frozen),
        ("says what it is", method_checks.is_described),
        ("refuses unknown hyperparameters", method_checks.refuses_unknown),
    ]
    if isinstance(method, Dataset):
        table += [
            ("card agrees with the data", partial(dataset_checks.card_agrees, root=root)),
            ("loads the same rows each time", partial(dataset_checks.loads_alike, root=root)),
            ("default protocol fits", partial(dataset_checks.protocol_fits, root=root)),
        ]
    if isinstance(method, Target):
        table += [
            ("shapes", target_checks.shapes),
            ("facts of the encoder's loss agree with its phases", target_checks.facts_agree),
            ("trains on the rows of the protocol", target_checks.obeys),
            ("writes into no row that it is given", target_checks.leaves_world),
            ("reads only the labels and attributes that it declares", target_checks.reads_declared),
            ("is the same from the store, and on whole numbers and floats", target_checks.reloads),
            (
                "training is deterministic and blind to the global generator",
                target_checks.trains_alike,
            ),
        ]
    if isinstance(method, Defense):
        table += [
            ("never widens access", defense_checks.never_widens),
            ("untouched phases stay the same objects", defense_checks.keeps_phases),
            ("every setting of its sweep can be built", defense_checks.sweeps),
            ("writes into no row that it is given", defense_checks.leaves_world),
            ("learns from reference rows only if it says so", defense_checks.leaves_reference),
            ("defended training is deterministic, and release is row-wise", defense_checks.defends),
            ("releases each row on its own, and changes nothing else", defense_checks.releases),
            ("is the same from the store, and on whole numbers and floats", defense_checks.reloads),
        ]
    if isinstance(method, Attack):
        table += [
            ("answers well-formed, from declared access only", attack_checks.answers),
            ("is deterministic and blind to the global generator", attack_checks.is_deterministic),
            *(
                [("a permuted question gives a permuted answer", attack_checks.is_equivariant)]
                if method.game in attack_checks.CORE_GAMES
                else []
            ),
            ("leaves its inputs as they were", attack_checks.leaves_inputs),
            ("answers alike on whole numbers and floats", attack_checks.reads_floats),
            ("beats chance on a planted victim", partial(attack_checks.beats_chance, auc=auc)),
            ("stays at chance on a null victim", attack_checks.stays_at_chance),
        ]
    return [Check(method, name, partial(check, method)) for name, check in table]
