"""The checks of the conformance kit, by kind of method."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench.ground.errors import BadInputError
from privbench.measure.methods.attack import Attack
from privbench.measure.methods.dataset import Dataset
from privbench.measure.methods.defense import Defense
from privbench.measure.methods.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.measure.methods.method import Method


from privbench.testing import (
    attack_checks,
    dataset_checks,
    defense_checks,
    method_checks,
    target_checks,
)
from privbench.testing.fixtures import rebuild
from privbench.testing.small import NotTriedError


@dataclass(frozen=True)
class Check:
    """One requirement for a method; calling it raises AssertionError if it does not hold."""

    method: Method
    name: str
    run: Callable[[], None]

    @property
    def tried(self) -> str:
        """What the check tries, in words."""
        run = self.run.func if isinstance(self.run, partial) else self.run
        told = inspect.cleandoc(run.__doc__ or "").partition("Tried: ")[2].replace("``", "`")
        return " ".join(told.split())

    def __call__(self) -> str:
        """Run the check, on the kit's rows as they were generated.

        Returns:
            "", or why there was nothing to try: the method cannot run in the kit's small cell.

        Raises:
            AssertionError: saying what is wrong and what to change.
            BadInputError: if a dataset does not find its files, or cannot use them.
        """
        rebuild()
        try:
            self.run()
        except NotTriedError as reason:
            return str(reason)
        except AssertionError:
            raise
        except Exception as error:
            if isinstance(self.method, Dataset) and isinstance(error, BadInputError):
                raise
            told = " ".join(str(error).split())
            raise AssertionError(
                f"it raised {type(error).__name__}{_place(error, self.method)}: {told}"
            ) from error
        return ""

    def __str__(self) -> str:
        """Return the method's name and what is checked."""
        return f"{self.method.name}: {self.name}"


def _place(error: Exception, method: Method) -> str:
    """Where in the method's own file the error arose; "" if nowhere there."""
    own = inspect.getfile(type(method))
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own
    ]
    return f" in {Path(own).name}, line {lines[-1]}" if lines else ""


def checks(method: Method, *, root: Path | None = None, auc: float = 0.6) -> list[Check]:
    """Return all checks for a method, depending on its kind.

    Some of them look at one answer of an attack, or at one small victim: the first makes it.

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
    shared: list[tuple[str, Callable[..., None]]] = []
    small: Any = None  # what the shared checks look at
    if isinstance(method, Target):
        small = target_checks.small(method)
        table += [
            ("shapes", target_checks.shapes),
            ("facts of the encoder's loss agree with its phases", target_checks.facts_agree),
            ("losses that say so are means over rows", target_checks.means_agree),
            ("trains on the rows of the protocol", target_checks.obeys),
            ("says whether the classifier has its own phase", target_checks.apart_agrees),
            ("writes into no row that it is given", target_checks.leaves_world),
        ]
        shared = [
            ("reads only the labels and attributes that it declares", target_checks.reads_declared),
            ("is the same from the store, and on whole numbers and floats", target_checks.reloads),
            (
                "training is deterministic and blind to the global generator",
                target_checks.trains_alike,
            ),
        ]
    if isinstance(method, Defense):
        small = defense_checks.small(method)
        table += [
            ("never widens access", defense_checks.never_widens),
            ("untouched phases stay the same objects", defense_checks.keeps_phases),
            ("every setting of its sweep can be built", defense_checks.sweeps),
            ("writes into no row that it is given", defense_checks.leaves_world),
        ]
        shared = [
            ("releases each row on its own, and changes nothing else", defense_checks.releases),
            ("learns from reference rows only if it says so", defense_checks.leaves_reference),
            ("defended training is deterministic, and release is row-wise", defense_checks.defends),
            ("is the same from the store, and on whole numbers and floats", defense_checks.reloads),
        ]
    if isinstance(method, Attack):
        small = attack_checks.Plain(method)
        shared = [
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
    return [
        Check(method, name, partial(check, subject))
        for subject, some in ((method, table), (small, shared))
        for name, check in some
    ]
