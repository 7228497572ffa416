"""The grid: which cells there are, which are skipped and why, what is kept and what runs again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import pytest
import torch
from annotated_types import Ge

from privbench import (
    Access,
    BadInputError,
    Defense,
    Membership,
    MembershipAttack,
    Method,
    Release,
    Strength,
)
from privbench.grid.compatible import why_not
from privbench.grid.here import PlannedHere
from privbench.grid.plan import PlannedTrial, plan
from privbench.grid.run import execute
from privbench.grid.suite import suite_from
from privbench.grid.trial import cell_record
from privbench.ground.errors import PluginError, UnknownNameError
from privbench.measure.methods.attack import Shadows
from privbench.plugins.registry import Plugin, Registry
from privbench.results.files import read
from privbench.results.record import Record
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from privbench.grid.trial import Trial
    from privbench.grid.trial_runner import TrialRunner


@dataclass(frozen=True)
class Guess(MembershipAttack):
    """Asks for posteriors, with shadows."""

    name: ClassVar[str] = "guess"
    needs: ClassVar[Access] = Access.POSTERIORS
    count: Annotated[int, Ge(0)] = 1

    @property
    def shadows(self) -> Shadows:
        return Shadows(self.count)

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        raise NotImplementedError


@dataclass(frozen=True)
class White(Guess):
    """Wants it all."""

    name: ClassVar[str] = "white"
    needs: ClassVar[Access] = Access.WEIGHTS | Access.GRADIENTS


@dataclass(frozen=True)
class Nothing(Defense):
    """Does nothing."""

    name: ClassVar[str] = "none"
    protects: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Shield(Defense):
    """Acts while training."""

    name: ClassVar[str] = "shield"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    strength: ClassVar[Strength | None] = Strength("power", stronger="up", sweep=(0.5, 1.0, 2.0))
    power: Annotated[float, Ge(0)] = 1.0
    depth: int = 1

    def on_phases(self, phases: Any, model: Any, world: Any, ctx: Any) -> Any:
        raise NotImplementedError


class Masked(Release):
    of = "embedding"

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Mask(Shield):
    """Acts on what is released too, so weights are hidden."""

    name: ClassVar[str] = "mask"
    release_class: ClassVar[type[Release]] = Masked

    def release(self, card: Any, model: Any, ctx: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Picky(Guess):
    """Takes part nowhere."""

    name: ClassVar[str] = "picky"

    def incompatible(self, cell: Any) -> str | None:
        return f"picky takes no {cell.card.name}"


@pytest.fixture(scope="module")
def tiny() -> Registry:
    made = Registry()
    offered: dict[str, list[Method]] = {
        "dataset": [TinyImages()], "target": [TinyTarget()],
        "defense": [Nothing(), Shield(), Mask()],
        "attack": [Guess(), White(), Picky()],
    }  # fmt: skip
    for kind, methods in offered.items():
        for method in methods:
            made.add(kind, method, Plugin("test", "test", "test"))
    return made


@pytest.fixture
def planned(tiny: Registry) -> Callable[..., list[PlannedTrial]]:
    def make(**keys: Any) -> list[PlannedTrial]:
        base = {"datasets": ["tiny-images"], "targets": ["tiny-target"], "attacks": ["guess"]}
        return plan(suite_from({**base, **keys}, "here"), tiny, root=None, device="cpu")

    return make


def shown(items: list[PlannedTrial]) -> list[tuple[str, str]]:
    return [(i.trial.cell.defense, i.trial.cell.adversary.label) for i in items]


def test_none_runs_beside_defenses_unless_told_otherwise(planned: Any) -> None:
    assert shown(planned()) == [("none", "adaptive")]
    both = [("none", "adaptive"), ("shield", "adaptive")]
    assert shown(planned(defenses=["shield"])) == both
    assert shown(planned(defenses=["none", "shield"])) == both
    assert shown(planned(defenses=["shield"], baseline=False)) == both[1:]


def test_naive_collapses_where_nothing_is_defended(planned: Any) -> None:
    both = ["adaptive", "naive"]
    assert shown(planned(defenses=["shield"], adversaries=both)) == [
        ("none", "adaptive"), ("shield", "adaptive"), ("shield", "naive"),
    ]  # fmt: skip
    assert shown(planned(adversaries=["naive"])) == [("none", "adaptive")]
    alone = [{"guess": {"count": 0}}]
    got = planned(defenses=["shield", "mask"], adversaries=both, attacks=alone)
    assert shown(got) == [
        ("none", "adaptive"), ("shield", "adaptive"), ("mask", "adaptive"), ("mask", "naive"),
    ]  # fmt: skip


def test_grid_is_the_product_and_every_trial_is_there_once(planned: Any) -> None:
    items = planned(defenses=["shield", "mask", "shield + mask"], seeds=[0, 1, 1])
    assert len(items) == 4 * 2
    assert len({item.trial.digest for item in items}) == len(items)
    assert [item.trial.seed for item in items] == [0] * 4 + [1] * 4
    assert shown(items)[3] == ("shield+mask", "adaptive")


def test_sweeps_get_labels(planned: Any) -> None:
    sweep = [{"shield": {"power": s}} for s in (1, 2, 5)]
    items = planned(defenses=sweep, baseline=False)
    assert [name for name, _ in shown(items)] == [
        "shield", "shield(power=2.0)", "shield(power=5.0)",
    ]  # fmt: skip


def test_a_sweep_is_a_cell_for_each_value(planned: Any) -> None:
    want = ["none", "shield(power=0.5)", "shield", "shield(power=2.0)"]
    assert [name for name, _ in shown(planned(sweep=["shield"]))] == want
    both = planned(sweep=["shield"], defenses=["shield"], seeds=2)
    assert [name for name, _ in shown(both)] == [want[0], want[2], want[1], want[3]] * 2
    assert len({item.trial.digest for item in both}) == 8
    own = planned(sweep=[{"shield": {"power": [3, 4]}}], baseline=False)
    assert [name for name, _ in shown(own)] == ["shield(power=3.0)", "shield(power=4.0)"]
    fixed = planned(sweep=["mask"], set={"mask": {"depth": 3}}, baseline=False)
    assert [item.trial.cell.defenses[0].depth for item in fixed] == [3, 3, 3]


def test_utility_is_matched_with_none_on_reference_rows(planned: Any) -> None:
    assert len(planned(sweep=["shield"], match_utility=0.02)) == 4
    with pytest.raises(BadInputError, match="compares defenses with 'none': leave out `baseline"):
        planned(sweep=["shield"], match_utility=0.02, baseline=False)
    with pytest.raises(BadInputError, match="protocol 'custom' has none on tiny-images: give it"):
        planned(sweep=["shield"], match_utility=0.02, protocols=[PARTS])


def test_settings_reach_every_entry_and_entries_win(planned: Any) -> None:
    got = planned(
        defenses=["shield", {"shield": {"power": 7}}], set={"shield": {"power": 3}},
        baseline=False,
    )  # fmt: skip
    assert [item.trial.cell.defenses[0].power for item in got] == [3.0, 7.0]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"attacks": ["guess", "picky"]}, "picky takes no tiny-images"),
        (
            {"attacks": ["white"], "defenses": ["mask"], "adversaries": ["white-box"]},
            r"white needs GRADIENTS\+WEIGHTS, which target tiny-target under mask does not grant",
        ),
        (
            {"protocols": ["default", {"name": "big", "members": 300, "nonmembers": 500,
                                       "pool": 500}]},
            r"'big' does not fit .*\+ pool 500 exceed the 720 rows.*; pool 500 is less than twice",
        ),
    ],
)  # fmt: skip
def test_cells_that_cannot_be_are_skipped_with_the_reason(
    planned: Any, keys: dict[str, Any], reason: str
) -> None:
    items = planned(**keys)
    runs, skipped = items
    assert runs.skip is None
    with pytest.raises(BadInputError, match=reason):
        raise BadInputError(skipped.skip)


def test_a_grid_of_nothing_but_skips_is_an_error(planned: Any) -> None:
    with pytest.raises(BadInputError, match="nothing in this grid can run: picky takes no"):
        planned(attacks=["picky"], defenses=["shield"], seeds=2)


PARTS = {"members": 10, "nonmembers": 10, "pool": 30}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attacks": ["gues"]}, r"unknown attack 'gues': did you mean 'guess'\?"),
        ({"defenses": ["sheild"]}, "unknown defense 'sheild': did you mean 'shield'"),
        ({"defenses": ["shield+"]}, "unknown defense ''"),
        ({"defenses": ["shield+shield"]}, "stacks a method on itself: name it once"),
        ({"defenses": ["shield+none"]}, "stacks 'none', which does nothing"),
        ({"protocols": ["quarter"]}, "unknown protocol 'quarter': did you mean 'quarters'"),
        ({"preset": "papper"}, "unknown preset 'papper'"),
        ({"sensitive": ["brigth"]}, "attribute of tiny-images 'brigth': did you mean 'bright'"),
        ({"set": {"shield": {"power": 1}}}, "--set shield: this run has no shield: it has "),
        ({"set": {"guess": {"cuont": 1}}}, "hyperparameter of guess 'cuont': did you mean 'count'"),
        ({"set": {"guess": {"count": -1}}}, "guess.count: give 0 or more, not -1"),
        ({"set": {"guess": {"count": "x"}}}, "guess.count: give a whole number, not 'x'"),
        ({"sweep": ["none"]}, "sweep 'none': this defense has one setting only; list it under def"),
        ({"sweep": ["shield+mask"]}, "a stack has no strength of its own; sweep one defense"),
        ({"sweep": ["sheild"]}, "unknown defense 'sheild': did you mean 'shield'"),
        ({"sweep": [{"shield": {}, "mask": {}}]}, "a name, or one name with its"),
        ({"sweep": [{"shield": {"power": 2}}]}, "runs over power: give no single value"),
        (
            {"sweep": ["shield"], "set": {"shield": {"power": 2}}},
            "it runs over power: give no single",
        ),
        ({"sweep": [{"shield": {"power": [2]}}]}, "sweep of power is .*: write a tuple of several"),
        ({"sweep": [{"shield": {"power": [2, 1]}}]}, r"sweep of power \(2, 1\) is not increasing"),
        ({"sweep": [{"shield": {"power": [1, -1]}}]}, "is not increasing"),
        ({"sweep": [{"shield": {"power": [-1, 1]}}]}, "shield.power: give 0.0 or more, not -1"),
        ({"attacks": [{"guess": {}, "white": {}}]}, "a name, or one name with its"),
        ({"protocols": [{**PARTS, "tests": 4}]}, "part of protocol 'custom' 'tests': .*'test'"),
        ({"protocols": [{**PARTS, "members": -4}]}, "members -4: give 0 rows or more"),
        ({"protocols": [{**PARTS, "pool": "x"}]}, "protocol 'custom': pool: "),
        ({"protocols": [{**PARTS, "encoder": ["test"]}]}, "protocol 'custom': encoder: "),
    ],
)
def test_mistakes_end_the_plan_with_a_sentence(
    planned: Any, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message) as caught:
        planned(**keys)
    assert "\n" not in str(caught.value)


def test_a_dataset_that_raises_while_planning_is_named(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell needs its card."""

    def card(*given: Any) -> Any:
        raise KeyError(given)

    monkeypatch.setattr(TinyImages, "card", card)
    with pytest.raises(PluginError, match=r"dataset 'tiny-images'.*KeyError.*its method out"):
        planned()


def test_shadows_of_another_target(planned: Any) -> None:
    (item,) = planned(adversaries=[{"target": "tiny-target"}])
    assert (
        item.trial.cell.adversary.label == "adaptive"
    )  # it has no shadows, and the augmentation is his
    with pytest.raises(UnknownNameError, match="unknown target 'x'"):
        planned(adversaries=[{"target": "x"}])


# ---- running -------------------------------------------------------------------------------------


class Lab:
    """Stands in for the laboratory: notes what runs, and fails what it is told to."""

    def __init__(self, failing: str = "") -> None:
        self.device = torch.device("cpu")
        self.ran: list[str] = []
        self.failing = failing

    def run(self, trial: Trial) -> Record:
        self.ran.append(f"{trial.cell.defense} {trial.seed}")
        bad = self.failing and trial.cell.defense == self.failing
        return Record(
            trial=trial.digest, cell=cell_record(trial.cell), seed=trial.seed,
            status="failed" if bad else "ok", reason="told to" if bad else "",
        )  # fmt: skip


def go(
    items: list[PlannedTrial], folder: Path, lab: Lab | None = None, **more: Any
) -> list[Record]:
    return execute(PlannedHere(items, cast("TrialRunner", lab or Lab())), folder, **more)


def noting(seen: list[tuple[str, bool]]) -> Any:
    """A watch that notes the status of each trial, and whether its result was kept."""
    return SimpleNamespace(
        trial=lambda r, kept: seen.append((r.status, kept)),
        left=lambda *_: None,
        idle=lambda *_: None,
    )


def test_ok_results_are_kept_and_failed_ones_run_again(planned: Any, tmp_path: Path) -> None:
    items = planned(defenses=["shield"], seeds=2)
    first = Lab(failing="shield")
    records = go(items, tmp_path, first)
    assert first.ran == ["none 0", "shield 0", "none 1", "shield 1"]
    assert [record.status for record in records] == ["ok", "failed", "ok", "failed"]
    second = Lab()
    seen: list[tuple[str, bool]] = []
    records = go(items, tmp_path, second, watch=noting(seen))
    assert second.ran == ["shield 0", "shield 1"]
    assert {record.status for record in records} == {"ok"}
    assert seen == [("ok", True), ("ok", True), ("ok", False), ("ok", False)]
    third = Lab()
    assert go(items, tmp_path, third) == records
    assert third.ran == []
    more = Lab()
    go(planned(defenses=["shield"], seeds=3), tmp_path, more)
    assert more.ran == ["none 2", "shield 2"]


def test_results_are_on_disk_as_soon_as_they_are_done(planned: Any, tmp_path: Path) -> None:
    class Dies(Lab):
        def run(self, trial: Trial) -> Record:
            if self.ran:
                raise KeyboardInterrupt
            return super().run(trial)

    items = planned(defenses=["shield"])
    with pytest.raises(KeyboardInterrupt):
        go(items, tmp_path, Dies())
    written = [(tmp_path / f"{item.trial.digest}.json").exists() for item in items]
    assert written == [True, False]
    assert not list(tmp_path.glob(".*"))


def test_skips_are_written_and_run_once_their_reason_is_gone(planned: Any, tmp_path: Path) -> None:
    items = planned(attacks=["guess", "picky"])
    lab = Lab()
    seen: list[tuple[str, bool]] = []
    records = go(items, tmp_path, lab, watch=noting(seen))
    assert [r.status for r in records] == ["ok", "skipped"]
    assert seen == [("skipped", False), ("ok", False)]
    assert records[1].board is not None  # so a board shows the cell
    assert records[1].reason == "picky takes no tiny-images"
    assert len(lab.ran) == 1
    again = Lab()
    seen.clear()
    go(items, tmp_path, again, watch=noting(seen))
    assert again.ran == []
    assert seen == [("ok", True), ("skipped", True)]
    freed = [replace(item, skip=None) for item in items]
    assert go(freed, tmp_path, again)[1].status == "ok"
    assert again.ran == ["none 0"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema_version": 99}', "other"])
def test_a_damaged_result_runs_again(planned: Any, tmp_path: Path, damage: str) -> None:
    items = planned()
    (record,) = go(items, tmp_path)
    path = record.path(tmp_path)
    if damage == "other":  # a result under another's name
        damage = record.model_copy(update={"trial": "0" * 8}).model_dump_json()
    path.write_text(damage, encoding="utf-8")
    lab = Lab()
    with pytest.warns(RuntimeWarning, match=r"\.json is damaged \(.*moved to .*\.damaged-"):
        assert go(items, tmp_path, lab) == [record]
    assert lab.ran == ["none 0"]
    assert read(path) == record


class Backwards:
    """Runs everything, the last first."""

    def run(self, planned: Any, todo: Sequence[str], watch: Any = None) -> Iterator[Record]:
        del watch
        return map(planned.run, reversed(todo))


def test_order_of_execution_is_free(planned: Any, tmp_path: Path) -> None:
    items = planned(defenses=["shield", "mask"], seeds=2)
    lab = Lab()
    records = go(items, tmp_path / "back", lab, executor=Backwards())
    assert lab.ran[0] == "mask 1"
    assert records == go(items, tmp_path / "there")
    assert [r.trial for r in records] == [item.trial.digest for item in items]


def test_an_attack_of_a_game_that_there_is_not_is_skipped(registry: Any) -> None:
    planned = plan(suite_from({"attacks": ["encodermi-t"]}, "x"), registry, root=None, device="cpu")
    cell = planned[0].trial.cell
    guess = type("Guess", (type(cell.attack),), {"name": "guess", "game": "charades"})()
    known = "attributes, deja-vu, membership, property, reconstruction"
    reason = why_not(replace(cell, attack=guess))
    assert reason == f"guess plays 'charades': choose from {known}"
