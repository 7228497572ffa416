"""A whole trial: what the record holds, what is shared, and what nobody else can move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import PluginError
from privbench.ground.store.machine import machine
from privbench.ground.store.store import Store
from privbench.measure.games.attributes import AttributeAttack, Attributes
from privbench.measure.games.membership import Membership, MembershipAttack
from privbench.measure.methods.access import Access
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.attack import Attack, Shadows
from privbench.measure.methods.cell import Cell
from privbench.measure.methods.defense import Defense
from privbench.testing import CPU, TinyImages, TinyTarget, auc_band

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.measure.data.split import World
    from privbench.measure.games.attributes import AttributeQuestion
    from privbench.measure.games.membership import MembershipQuestion
    from privbench.measure.methods.context import AttackContext, DefenseContext
    from privbench.measure.methods.oracle import Oracle
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase
    from privbench.results.record import Record


class _Log:
    """Keeps what happened; unlike a list it is not part of a method's identity."""

    def __init__(self) -> None:
        self.items: list[Any] = []


SEEN = _Log()


@dataclass(frozen=True)
class Confident(MembershipAttack):
    name: ClassVar[str] = "confident"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        ctx.note(auxiliary=len(ctx.auxiliary))
        rows = question.examples
        p = oracle.posteriors(rows)
        scores = p.gather(1, rows.y[:, None])[:, 0]
        return Membership(scores, scores > 0.5, notes={"mine": 1.0})


@dataclass(frozen=True)
class Shadowed(MembershipAttack):
    """Nearness of the loss to that of the shadows' members; spoils its shadows afterwards."""

    name: ClassVar[str] = "shadowed"
    needs: ClassVar[Access] = Access.POSTERIORS
    origin: str = "offline"

    @property
    def shadows(self) -> Shadows:
        return Shadows(2, self.origin)  # type: ignore[arg-type]

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        rows = question.examples
        own = [s.oracle.log_posteriors(s.world.members).mean(0) for s in ctx.shadows]
        SEEN.items.append(
            [s.model["classifier"].get_parameter("weight").clone() for s in ctx.shadows]
        )
        once = ctx.once("means", lambda: {"m": torch.stack(own)})["m"]
        assert torch.equal(once, torch.stack(own)), "of other shadows"
        for shadow in ctx.shadows:
            shadow.model["classifier"].get_parameter("weight").data.zero_()
        log_p = oracle.log_posteriors(rows)
        return Membership(log_p.gather(1, rows.y[:, None])[:, 0] + 1e-3 * sum(own).sum())  # type: ignore[union-attr]


@dataclass(frozen=True)
class Careless(MembershipAttack):
    """Draws from the global generator."""

    name: ClassVar[str] = "careless"
    needs: ClassVar[Access] = Access.LABELS

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        del ctx
        return Membership(torch.rand(len(question.examples)) + 0 * oracle.labels(question.examples))


@dataclass(frozen=True)
class Cheat(MembershipAttack):
    """Knows the victim's members (the harness never tells: the test does)."""

    name: ClassVar[str] = "cheat"
    needs: ClassVar[Access] = Access.LABELS

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        del oracle, ctx
        return Membership(torch.isin(question.examples.index, SEEN.items[0]).double())


@dataclass(frozen=True)
class LeaveOneOut(MembershipAttack):
    """Counts in how many of the shadows over the candidates a row is: no query at all."""

    name: ClassVar[str] = "leave-one-out"
    needs: ClassVar[Access] = Access.LABELS

    @property
    def shadows(self) -> Shadows:
        return Shadows(12, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        del oracle
        times = [s.world.contains(question.examples).double() for s in ctx.shadows]
        return Membership(-torch.stack(times).sum(0))


@dataclass(frozen=True)
class Broken(MembershipAttack):
    name: ClassVar[str] = "broken"
    needs: ClassVar[Access] = Access.LABELS
    asks_for: str = "nothing"

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        del ctx
        if self.asks_for == "gradients":
            oracle.gradients(question.examples.x, lambda s, x: s.embeddings(x).sum(1))
        if self.asks_for == "shape":
            return Membership(torch.zeros(3))
        raise RuntimeError("out of ideas")


@dataclass(frozen=True)
class Gradients(MembershipAttack):
    name: ClassVar[str] = "gradients"
    needs: ClassVar[Access] = Access.LABELS
    wants: ClassVar[Access] = Access.GRADIENTS

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        x, y = question.examples.x, question.examples.y

        def loss(served: Any, x: torch.Tensor) -> torch.Tensor:
            return F.nll_loss(served.log_posteriors(x), y, reduction="none")

        gradient = oracle.gradients(x, loss)
        ctx.note(norm=float(gradient.norm()))
        return Membership(-gradient.flatten(1).norm(dim=1))


@dataclass(frozen=True)
class Nearest(AttributeAttack):
    name: ClassVar[str] = "nearest"

    def answer(self, oracle: Oracle, question: AttributeQuestion, ctx: AttackContext) -> Attributes:
        del oracle
        known = ctx.auxiliary_oracle.embeddings(ctx.auxiliary)
        at = torch.cdist(question.embeddings, known).argmin(1)
        values = ctx.auxiliary.attributes["bright"][at]
        return Attributes({"bright": F.one_hot(values, 2).double()})


@dataclass(frozen=True)
class Nothing(Defense):
    name: ClassVar[str] = "nothing"
    protects: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Smooth(Defense):
    name: ClassVar[str] = "smooth"
    protects: ClassVar[tuple[str, ...]] = ("membership",)

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        del model, world
        ctx.note(smoothing=0.4)
        ctx.claim(unit="example")

        def soft(out: Any, batch: Any, clock: Any) -> torch.Tensor:
            del clock
            return F.cross_entropy(out.logits, batch.y, label_smoothing=0.4)

        (phase,) = phases
        return [replace(phase, steps={"train": replace(phase.steps["train"], loss=soft)})]


@dataclass(frozen=True)
class Longer(TinyTarget):
    """Trains until it leaks."""

    name: ClassVar[str] = "longer"

    def phases(self, model: Model, world: World, ctx: Any) -> list[Phase]:
        return [replace(phase, epochs=120) for phase in super().phases(model, world, ctx)]


DATA = TinyImages()
CARD = DATA.card(None)


def _trial(
    attack: Attack, *defenses: Defense, seed: int = 0, adaptive: bool = True, target: Any = None
) -> Trial:
    return Trial(
        Cell(
            CARD, DATA.protocols["default"], target or TinyTarget(), defenses or (Nothing(),),
            Adversary(adaptive, white_box=True), attack, CARD.sensitive, DATA,
        ),
        seed,
    )  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> TrialRunner:
    SEEN.items.clear()
    return TrialRunner(Store(tmp_path / "a"), CPU)


def _ok(record: Record) -> Record:
    assert record.status == "ok", record.traceback
    return record


def test_making_victims_is_no_part_of_what_the_trial_took(
    lab: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of our own, on which making a victim takes a thousand seconds."""
    now, make = [0.0], lab.builder.victim

    def slowly(job: Any) -> Any:
        now[0] += 1000
        return make(job)

    monkeypatch.setattr("privbench.grid.trial_runner.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(lab.builder, "victim", slowly)
    record = _ok(lab.run(_trial(Confident(), Smooth())))
    assert now[0] >= 2000  # the victim and its null
    assert record.cost.seconds == 0


def test_a_record_holds_the_whole_story(lab: TrialRunner) -> None:
    trial = _trial(Confident(), Smooth(), target=Longer())
    record = _ok(lab.run(trial))
    assert record.trial == trial.digest
    assert record.phase == "encoder+classifier"
    assert record.sizes == {"members": 80, "nonmembers": 80}
    auc = record.metrics["auc"]
    assert auc.value is not None
    assert auc.low is not None
    assert auc.value > 0.6
    assert auc.low > 0.5
    assert record.metrics["balanced_accuracy"].value is not None
    assert record.metrics["tpr_at_fpr_0.001"].refused
    assert set(record.controls) == {"null"}
    assert set(record.baselines) == {"blind"}
    utility = record.utility
    assert utility["gap"] == pytest.approx(utility["train_accuracy"] - utility["test_accuracy"])
    assert utility["gap"] > 0.2
    assert record.updates == {"encoder": 240, "classifier": 240}
    record.notes.pop("fresh process", None)  # where classes of a test cannot be imported
    assert record.notes == {
        "smoothing": 0.4,
        "auxiliary": 400,
        "mine": 1.0,
        "stages": {"smooth": ["phases"]},
    }
    assert record.claims == [{"unit": "example"}]
    ran_on = {**machine(), "threads": lab.builder.numerics.threads}
    assert record.provenance["machine"] == ran_on
    assert record.provenance["made_on"] == [ran_on]
    assert record.cost.queries_per_sample == 1.0
    assert record.cost.seconds > 0
    assert record.cost.seconds_training >= (record.cost.seconds_victim or 0) > 0
    assert 0 < (record.cost.seconds_per_query or 0) < 1
    assert set(record.split) >= {"candidates", "members", "pool", "reference", "test"}
    assert record.cell.defense == "smooth"
    assert record.cell.protects == ["membership"]


def test_the_null_control_stays_at_chance_where_the_victim_leaks(lab: TrialRunner) -> None:
    record = _ok(lab.run(_trial(Confident(), target=Longer())))
    null = record.controls["null"]["auc"]
    assert null.value == pytest.approx(0.5, abs=auc_band(80, 80))
    assert null.low is not None
    assert record.metrics["auc"].low is not None
    assert record.metrics["auc"].low > null.low


def test_the_null_control_sees_truth_that_leaks_past_the_victim(lab: TrialRunner) -> None:
    SEEN.items.append(lab.materials.split(_trial(Cheat()).cell, 0).victim().members.index)
    record = _ok(lab.run(_trial(Cheat())))
    assert record.metrics["auc"].value == record.controls["null"]["auc"].value == 1.0


def test_shadows_over_the_candidates_do_not_give_the_truth_away(lab: TrialRunner) -> None:
    for seed in range(2):
        record = _ok(lab.run(_trial(LeaveOneOut(), seed=seed)))
        for auc in (record.metrics["auc"], record.controls["null"]["auc"]):
            assert auc.value == pytest.approx(0.5, abs=auc_band(80, 80))
        assert record.metrics["auc"] == record.controls["null"]["auc"], "it asked nothing"


def test_an_attack_beside_moves_no_numbers(lab: TrialRunner, tmp_path: Path) -> None:
    trials = [_trial(Confident()), _trial(Shadowed()), _trial(Careless()), _trial(Nearest())]
    together = [_ok(lab.run(trial)).digest for trial in trials]
    for i in (3, 2, 1, 0):
        alone = TrialRunner(Store(tmp_path / f"alone{i}"), CPU)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(i)
            assert _ok(alone.run(trials[i])).digest == together[i]
    again = TrialRunner(lab.store, CPU)
    assert [_ok(again.run(trial)).digest for trial in trials[::-1]] == together[::-1]
    assert again.builder.trained_phases == 0


def test_a_finished_answer_loads_no_shadow(
    lab: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _ok(lab.run(_trial(Shadowed())))
    again, loaded = TrialRunner(lab.store, CPU), list[str]()
    make = again.builder.victim

    def watched(spec: Any) -> Any:
        loaded.append(spec.world.origin)
        return make(spec)

    monkeypatch.setattr(again.builder, "victim", watched)
    second = _ok(again.run(_trial(Shadowed())))
    assert sorted(loaded) == ["null", "victim"]
    assert second.digest == first.digest
    assert second.cost.seconds_training == first.cost.seconds_training


def test_seeds_differ(lab: TrialRunner) -> None:
    one, other = lab.run(_trial(Confident())), lab.run(_trial(Confident(), seed=1))
    assert _ok(one).metrics != _ok(other).metrics
    assert one.split["members"] != other.split["members"]
    assert one.trial != other.trial


def test_an_attack_that_spoils_its_shadows_spoils_nobody_elses(lab: TrialRunner) -> None:
    _ok(lab.run(_trial(Shadowed())))
    for first, again in zip(SEEN.items[0], SEEN.items[1], strict=True):
        assert torch.equal(first, again), "the control is put to the same shadows"
        assert bool(first.any())
    assert not torch.equal(SEEN.items[0][0], SEEN.items[0][1])


def test_shadows_are_defended_where_the_adversary_adapts(lab: TrialRunner) -> None:
    _ok(lab.run(_trial(Shadowed(), Smooth())))
    adaptive = SEEN.items[0]
    _ok(lab.run(_trial(Shadowed(), Smooth(), adaptive=False)))
    naive = SEEN.items[2]
    assert not torch.equal(adaptive[0], naive[0])
    trained = lab.builder.trained_phases
    _ok(lab.run(_trial(Shadowed())))
    undefended = SEEN.items[4]
    assert torch.equal(naive[0], undefended[0])
    assert lab.builder.trained_phases == trained + 2, "victim and null; the shadows are shared"


def test_naive_is_adaptive_where_nothing_acts(lab: TrialRunner) -> None:
    first = _ok(lab.run(_trial(Shadowed())))
    trained = lab.builder.trained_phases
    second = _ok(lab.run(_trial(Shadowed(), adaptive=False)))
    assert lab.builder.trained_phases == trained
    assert first.metrics == second.metrics


def test_jobs_say_all_that_will_be_trained(lab: TrialRunner) -> None:
    trial = _trial(Shadowed())
    jobs = lab.specs(trial)
    assert list(jobs) == ["victim", "null", "shadow 0", "shadow 1"]
    planned = {key for job in jobs.values() for key in lab.builder.planned(job)}
    assert lab.builder.trained_phases == 0
    _ok(lab.run(trial))
    assert all(key in lab.store for key in planned)
    assert lab.builder.trained_phases == len(planned) == 4


@pytest.mark.parametrize(
    ("asks_for", "reason"),
    [
        ("nothing", "RuntimeError: out of ideas"),
        ("gradients", "attack 'broken' asked its oracle for GRADIENTS"),
        ("shape", "BadAnswerError: scores have shape"),
    ],
)
def test_failure_is_data_and_others_go_on(lab: TrialRunner, asks_for: str, reason: str) -> None:
    record = lab.run(_trial(Broken(asks_for)))
    assert record.status == "failed"
    assert record.reason.startswith(reason)
    assert "Traceback" in record.traceback
    assert record.metrics == {}
    assert _ok(lab.run(_trial(Confident()))).metrics


def test_a_trial_that_fails_late_has_no_numbers(
    lab: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no test rows today")

    monkeypatch.setattr(lab.materials, "utility", fails)
    record = lab.run(_trial(Confident()))
    assert (record.status, record.reason) == ("failed", "RuntimeError: no test rows today")
    assert (record.metrics, record.controls, record.notes, record.sizes) == ({}, {}, {}, {})
    assert record.cost.seconds > 0
    assert record.board is not None


def test_gradients_where_they_are_granted(lab: TrialRunner) -> None:
    record = _ok(lab.run(_trial(Gradients())))
    assert record.notes["norm"] > 0

    @dataclass(frozen=True)
    class Closed(TinyTarget):
        name: ClassVar[str] = "closed"
        grants: ClassVar[Access] = Access.LABELS | Access.POSTERIORS

    refused = lab.run(_trial(Gradients(), target=Closed()))
    assert refused.status == "failed"
    assert "but has access to LABELS only" in refused.reason


def test_an_attribute_trial_has_its_baselines_and_controls(lab: TrialRunner) -> None:
    record = _ok(lab.run(_trial(Nearest())))
    assert set(record.controls) == {"pixels", "untrained"}
    assert set(record.baselines) == {"majority", "label_only"}
    assert record.metrics["accuracy"] == record.metrics["accuracy[bright]"]
    with pytest.raises(PluginError, match="there is no control 'nul': name null, untrained or"):
        lab.materials.control("nul", mock.Mock())
    pixels = record.controls["pixels"]["accuracy"].value
    assert pixels is not None
    assert pixels > 0.6
    assert record.sizes == {"rows": 160}
    assert record.cost.queries_own == 400


def test_protocols_that_differ_in_what_a_phase_sees_have_different_victims(
    lab: TrialRunner,
) -> None:
    cell = _trial(Confident()).cell
    base = replace(cell.protocol, public=60, test=40)
    keys = []
    for encoder in (("members",), ("public", "members")):
        protocol = replace(base, encoder=encoder)
        there = replace(cell, protocol=protocol)
        keys.append(lab.builder.keys(lab.materials.needed(there, 0).victims()[0]).key)
    assert keys[0] != keys[1]
