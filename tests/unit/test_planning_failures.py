"""A plugin that raises while the grid is planned costs its own cells, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from privbench import Access, Defense, Membership, MembershipAttack, Shadows
from privbench.grid.here import PlannedHere
from privbench.grid.plan import plan
from privbench.grid.run import execute
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.plugins.registry import Plugin, Registry
from privbench.plugins.valid import misfit
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Nothing(Defense):
    """Does nothing."""

    name: ClassVar[str] = "none"
    protects: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Guess(MembershipAttack):
    """Says the same of every row's key."""

    name: ClassVar[str] = "guess"
    needs: ClassVar[Access] = Access.NONE

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del oracle, ctx
        return Membership(question.examples.keys.double())


def fail(*given: Any) -> Any:
    del given
    raise KeyError("no such thing")


def leave(*given: Any) -> Any:
    del given
    raise SystemExit(3)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "shadows": ({"shadows": property(fail)}, "raised KeyError while the grid was planned"),
    "max_rows": ({"max_rows": property(fail)}, "raised KeyError while the grid was planned"),
    "incompatible": ({"incompatible": fail}, "raised KeyError.*'no such thing'.*leave its meth"),
    "leaves": ({"incompatible": leave}, "raised SystemExit while the grid was planned"),
    "no sentence": (
        {"incompatible": lambda *_: 3}, "incompatible.. of broken returned 3: return a sentence",
    ),
    "no shadows": ({"shadows": property(lambda _: 3)}, "raised AttributeError"),
    "origin": (
        {"shadows": property(lambda _: Shadows(1, "on"))}, "origin of shadows is 'on'",  # type: ignore[arg-type]
    ),
}  # fmt: skip


def broken(members: dict[str, Any]) -> Any:
    made: Any = dataclass(frozen=True)(type("Broken", (Guess,), {"name": "broken", **members}))
    return made()


@pytest.mark.parametrize("how", BROKEN)
def test_it_costs_its_cells_only(how: str, tmp_path: Path) -> None:
    members, reason = BROKEN[how]
    registry = Registry()
    offered: dict[str, list[Any]] = {
        "dataset": [TinyImages()], "target": [TinyTarget()], "defense": [Nothing()],
        "attack": [Guess(), broken(members)],
    }  # fmt: skip
    for kind, methods in offered.items():
        for method in methods:
            registry.add(kind, method, Plugin("test", "test", "test"))
    suite = suite_from({
        "datasets": ["tiny-images"], "targets": ["tiny-target"], "attacks": ["broken", "guess"],
    }, "test")  # fmt: skip
    runner = TrialRunner(Store(tmp_path / "store"), torch.device("cpu"))
    planned = plan(suite, registry, root=None, device="cpu")
    first, second = execute(PlannedHere(planned, runner), tmp_path / "out")
    assert (first.status, second.status) == ("failed", "ok")
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(first.reason)
    assert "\n" not in first.reason
    assert first.cell.attack.name == "broken"
    assert "Traceback" in first.traceback
    assert (first.path(tmp_path / "out")).exists()


def test_shadows_that_raise_do_not_keep_a_plugin_from_loading() -> None:
    assert misfit("attack", broken({"shadows": property(fail)})) is None
