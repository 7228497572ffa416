"""Methods with a guarantee, with and without one row: only what the proof allows may move.

Two victims differ in one member and share all seeds. First the place where the proof lets the row
act is closed: then the victims are equal bit for bit, so the row acts nowhere else (in no seed, no
statistic of the rows, no number of steps). Then it is open, and what moves there is measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from privbench import Protocol
from privbench.ground.store.store import Store
from privbench.measure.data.split import cut
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.plugins import registry
from privbench.testing import CPU, TinyImages, TinyPairs, TinyTarget
from privbench.toolbox import noise
from privbench.toolbox.undefended import posteriors
from privbench_plugins.defenses import dp_features
from privbench_plugins.defenses.dp_features import DPFeatures
from privbench_plugins.defenses.dp_gcl import DPGCL
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.defenses.logit_dp import LogitDP, sensitivity
from privbench_plugins.defenses.pate import PATE
from privbench_plugins.targets.autoencoder import Autoencoder
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from privbench import Defense, Examples, Target
    from privbench.measure.victims.served import Victim

#: Methods that claim a guarantee; each is tested below.
TESTED = {"pate", "dp-sgd", "dp-features", "logit-dp", "dp-gcl"}

DEFAULT = TinyImages.protocols["default"]
PUBLIC = Protocol(
    name="public", members=80, nonmembers=80, reference=40, pool=300, public=100,
    encoder=("public",), classifier="members",
)  # fmt: skip


def _spec(defense: Defense, target: Target, protocol: Protocol = DEFAULT) -> VictimSpec:
    data = TinyImages()
    split = cut(data.load(None), data.card(None), protocol, 0)
    return VictimSpec(split.card, protocol, split.victim(), target, (defense,))


def _holding(spec: VictimSpec, members: Examples) -> VictimSpec:
    return replace(spec, world=spec.world.replace(members=members))


def _without(spec: VictimSpec, row: int) -> VictimSpec:
    members = spec.world.members
    return _holding(spec, members.select(torch.arange(len(members)) != row))


def _replaced(spec: VictimSpec, row: int) -> VictimSpec:
    """Put a negative with another label in the place of a member; its number stays."""
    members = spec.world.members.private()
    members.x[row] = 255 - members.x[row]
    members.y[row] = (members.y[row] + 5) % 10
    return _holding(spec, members.rekeyed())


def _made(folder: Path, spec: VictimSpec) -> Victim:
    """Build a victim in a store of its own: nothing is loaded that another one made."""
    return Builder(Store(folder), CPU).victim(spec)


def _weights(victim: Victim) -> dict[str, Tensor]:
    return dict(victim.model.state_dict())


def _equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _same(a: Victim, b: Victim) -> None:
    """Assert that two victims are the same, down to what is claimed of them and their steps."""
    assert a.facts["claims"] == b.facts["claims"]
    steps = [
        [(p["phase"], p["epochs"], p["updates"]) for p in v.facts["phases"] if "epochs" in p]
        for v in (a, b)
    ]
    assert steps[0] == steps[1]
    assert _equal(_weights(a), _weights(b))


def test_every_method_with_a_guarantee_is_tested_here(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    found = set()
    for defense in registry.load().all("defense"):
        if not defense.claims_epsilon:
            continue
        quick: dict[str, Any] = {"pairs": 2, "accountant": "rdp"}
        few = {k: v for k, v in quick.items() if k in defense.hyperparameters()}
        spec = _spec(defense.replace(**few), SimCLR(epochs=1, classifier_epochs=1), PUBLIC)
        claims = _made(tmp_path / defense.name, spec).facts["claims"]
        assert claims, f"{defense.name} says claims_epsilon and claims nothing"
        if any(claim["guarantee"] for claim in claims):
            found.add(defense.name)
    assert found == TESTED


# ---- pate ----------------------------------------------------------------------------------------


#: Targets of teachers and students: one phase, and two.
TAUGHT = [TinyTarget(), Autoencoder(width=8, hidden=16, layers=2, epochs=2, classifier_epochs=2)]

ONE_IS_SLOW = [TAUGHT[0], pytest.param(TAUGHT[1], marks=pytest.mark.slow)]


class _Taught:
    """A student of PATE and all that came before it.

    Attributes:
        teachers: number of a shard -> weights of its teacher.
        members: number of a shard -> numbers of its rows.
        counts: (n, 10) votes for each reference row.
        noise: (n, 10) that was added to them.
        y: (n, 10) labels of the reference rows.
    """

    def __init__(self, folder: Path, spec: VictimSpec, patched: pytest.MonkeyPatch) -> None:
        drawn: list[Tensor] = []
        normal = noise.normal

        def recorded(u: Tensor, scale: float) -> Tensor:
            drawn.append(normal(u, scale))
            return drawn[-1]

        patched.setattr(noise, "normal", recorded)
        self.victim, builder = _made(folder, spec), Builder(Store(folder), CPU)
        patched.undo()
        draft = builder.draft(spec)
        (stage,) = draft.labels
        made = {one.world.branch: builder.victim(one) for one in stage.inner}
        self.teachers = {shard: _weights(one) for shard, one in made.items()}
        self.members = {i.world.branch: set(i.world.members.index.tolist()) for i in stage.inner}
        votes = [posteriors(one.model, spec.world.reference).argmax(1) for one in made.values()]
        self.counts = sum((F.one_hot(v, 10) for v in votes), torch.zeros(40, 10).long())
        (self.noise,) = drawn
        self.y = draft.world.members.y


def _row(taught: _Taught, members: Examples, *, alone: bool) -> int:
    """Return the position of a member that is alone in its shard, or of one that is not."""
    shard = next(own for own in taught.members.values() if (len(own) == 1) == alone)
    return members.index.tolist().index(min(shard))


@pytest.mark.parametrize("alone", [True, False], ids=["only row of its shard", "one of several"])
@pytest.mark.parametrize("target", ONE_IS_SLOW, ids=lambda t: t.name)
def test_pate_a_row_less_changes_one_teacher_and_one_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, alone: bool
) -> None:
    spec = _spec(PATE(teachers=30, queries=30), target)
    whole = _Taught(tmp_path / "whole", spec, monkeypatch)
    row = _row(whole, spec.world.members, alone=alone)
    fewer = _Taught(tmp_path / "fewer", _without(spec, row), monkeypatch)
    index = int(spec.world.members.index[row])
    (shard,) = (number for number, own in whole.members.items() if index in own)
    changed = [n for n, own in whole.teachers.items() if not _equal(own, fewer.teachers.get(n, {}))]
    assert changed == [shard]
    assert whole.teachers.keys() - fewer.teachers.keys() == ({shard} if alone else set())
    moved = (whole.counts - fewer.counts).abs()
    assert int(moved.amax()) <= 1
    assert int(moved.sum(1).amax()) == 1 if alone else int(moved.sum(1).amax()) <= 2
    assert torch.equal(whole.noise, fewer.noise)
    asked = whole.y.sum(1) > 0
    assert int(asked.sum()) == 30
    for one in (whole, fewer):  # the labels are the noisy votes, and nothing else
        won = F.one_hot((one.counts + one.noise).argmax(1), 10)
        assert torch.equal(one.y, torch.where(asked[:, None], won, 0).float())
    assert whole.victim.facts["claims"] == fewer.victim.facts["claims"]


@pytest.mark.parametrize("alone", [True, False], ids=["only row of its shard", "one of several"])
@pytest.mark.parametrize("target", ONE_IS_SLOW, ids=lambda t: t.name)
def test_pate_a_row_reaches_the_student_through_votes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, alone: bool
) -> None:
    spec = _spec(PATE(teachers=30, noise=1e6), target)  # noise decides every label
    whole = _Taught(tmp_path / "whole", spec, monkeypatch)
    row = _row(whole, spec.world.members, alone=alone)
    fewer = _Taught(tmp_path / "fewer", _without(spec, row), monkeypatch)
    assert torch.equal(whole.y, fewer.y)
    _same(whole.victim, fewer.victim)


def test_pate_without_any_member_still_draws_the_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = _spec(PATE(teachers=3, noise=1e6), TinyTarget())
    one = _holding(spec, spec.world.members.select(slice(0, 1)))
    single = _Taught(tmp_path / "one", one, monkeypatch)
    none = _Taught(tmp_path / "none", _without(one, 0), monkeypatch)
    assert int(single.counts.sum(1).amax()) == 1
    assert int(none.counts.sum()) == 0
    _same(single.victim, none.victim)


# ---- dp-sgd --------------------------------------------------------------------------------------

ROW = 17
CLIP = 0.05
SGD = DPSGD(noise_multiplier=1.0, clip=CLIP, batch=20, accountant="rdp")
#: Victims whose training is private: all of it, or that of the classifier on a public encoder.
PRIVATE = [
    pytest.param(SGD, TinyTarget(), DEFAULT, id="linear"),
    pytest.param(SGD, Supervised(epochs=2, updates=20), DEFAULT, id="mlp"),
    pytest.param(SGD, Supervised(backbone="convnet", epochs=2), DEFAULT, id="batch norm"),
    pytest.param(SGD, Autoencoder(epochs=2, classifier_epochs=2), DEFAULT, id="two phases"),
    pytest.param(SGD, SimCLR(epochs=1, classifier_epochs=3), PUBLIC, id="public encoder"),
    pytest.param(SGD.replace(gradient_canaries=True), TinyTarget(), DEFAULT, id="canaries"),
]  # fmt: skip


def _never_drawn(patched: pytest.MonkeyPatch, index: int) -> None:
    """Leave the row with that number out of every batch.

    The number of members is public in the proof: with it, sample rate and number of steps stay.
    """
    batches = Training._batches

    def others(self: Training) -> Iterator[tuple[int, Tensor]]:
        for i, drawn in batches(self):
            yield i, drawn[self.rows.index[drawn] != index]

    patched.setattr(Training, "_batches", others)


@pytest.mark.parametrize(("defense", "target", "protocol"), PRIVATE)
def test_dp_sgd_a_row_that_no_step_draws_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defense: Defense, target: Target,
    protocol: Protocol,
) -> None:  # fmt: skip
    pytest.importorskip("opacus")
    spec = _spec(defense, target, protocol)
    _never_drawn(monkeypatch, int(spec.world.members.index[ROW]))
    other = _replaced(spec, ROW)
    _same(_made(tmp_path / "a", spec), _made(tmp_path / "b", other))
    monkeypatch.undo()
    drawn = _made(tmp_path / "c", spec), _made(tmp_path / "d", other)
    assert not _equal(*map(_weights, drawn))


@pytest.mark.parametrize(("defense", "target", "protocol"), PRIVATE)
def test_dp_sgd_a_row_moves_the_sum_of_a_step_by_the_clip_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defense: Defense, target: Target,
    protocol: Protocol,
) -> None:  # fmt: skip
    pytest.importorskip("opacus")
    from opacus.optimizers import optimizer as opacus

    from privbench.toolbox.row_gradients import ClippingOptimizer

    spec = _spec(defense, target, protocol)
    index = int(spec.world.members.index[ROW])
    clip_all, draw = ClippingOptimizer.clip_and_accumulate, opacus._generate_noise

    def steps(name: str, *, drawn: bool) -> tuple[list[Tensor], list[Tensor], list[float]]:
        sums: list[Tensor] = []
        noises: list[Tensor] = []
        scales: list[float] = []

        def clipped(self: Any) -> None:
            clip_all(self)
            sums.append(torch.cat([p.summed_grad.flatten() for p in self.params]).clone())

        def noisy(std: float, **kwargs: Any) -> Tensor:
            noises.append(draw(std=std, **kwargs))
            scales.append(std)
            return noises[-1]

        def still(self: Training, parts: tuple[str, ...], started: Any) -> None:
            del started  # every step is then at the same weights
            for group in self.optimizers[parts].param_groups:
                group["lr"] = 0.0

        with monkeypatch.context() as patched:
            patched.setattr(ClippingOptimizer, "clip_and_accumulate", clipped)
            patched.setattr(opacus, "_generate_noise", noisy)
            patched.setattr(Training, "_set_rate", still)
            if not drawn:
                _never_drawn(patched, index)
            claim = _made(tmp_path / name, spec).facts["claims"][0]
        assert len(sums) == sum(claim["steps"])
        return sums, noises, scales

    (whole, noise_a, scales), (fewer, noise_b, _) = steps("a", drawn=True), steps("b", drawn=False)
    moved = [float((a - b).double().norm()) for a, b in zip(whole, fewer, strict=True)]
    assert max(moved) <= CLIP * (1 + 1e-4)
    assert max(moved) > 0.9 * CLIP  # gradients are longer than the clip, so the bound is reached
    assert 0.0 in moved  # and in steps without the row nothing moves
    assert all(torch.equal(a, b) for a, b in zip(noise_a, noise_b, strict=True))
    assert scales == pytest.approx([CLIP] * len(scales))


# ---- logit-dp and dp-gcl -------------------------------------------------------------------------

LOGITS = LogitDP(noise_multiplier=1.0, clip=CLIP, batch=8, accountant="rdp")
GROUPS = DPGCL(noise_multiplier=1.0, clip=CLIP, batch=8, group=4, accountant="rdp")
#: Encoders that members train in private, and one that they do not.
ENCODERS = [
    pytest.param(TinyPairs(), DEFAULT, id="linear"),
    pytest.param(SimCLR(epochs=2, classifier_epochs=2, temperature=0.5), DEFAULT, id="mlp"),
    pytest.param(
        SimCLR(epochs=1, classifier_epochs=1, backbone="convnet"), DEFAULT, id="batch norm",
        marks=pytest.mark.slow,
    ),
    pytest.param(SimCLR(epochs=1, classifier_epochs=3), PUBLIC, id="public encoder"),
]  # fmt: skip


@pytest.mark.parametrize("defense", [LOGITS, GROUPS], ids=lambda d: d.name)
@pytest.mark.parametrize(("target", "protocol"), ENCODERS)
def test_contrastive_a_row_that_no_step_draws_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, protocol: Protocol,
    defense: Defense,
) -> None:  # fmt: skip
    pytest.importorskip("opacus")
    spec = _spec(defense, target, protocol)
    _never_drawn(monkeypatch, int(spec.world.members.index[ROW]))
    other = _replaced(spec, ROW)
    _same(_made(tmp_path / "a", spec), _made(tmp_path / "b", other))
    monkeypatch.undo()
    drawn = _made(tmp_path / "c", spec), _made(tmp_path / "d", other)
    assert not _equal(*map(_weights, drawn))


class _Recorded:
    """The gradients of the steps of an encoder's phase at its first weights, noise included."""

    def __init__(self, folder: Path, spec: VictimSpec, patched: pytest.MonkeyPatch) -> None:
        self.gradients: list[Tensor] = []
        update = Training._update

        def recorded(training: Training, *args: Any) -> None:
            before = {name: t.clone() for name, t in training.model.state_dict().items()}
            update(training, *args)
            if training.phase.name == "encoder":
                parts = training.phase.optimizers
                own = [p for part in parts for p in training.model[part].parameters()]
                noisy = [p.grad.flatten() for p in own if p.grad is not None]
                self.gradients.append(torch.cat(noisy).double())
            training.model.load_state_dict(before)

        patched.setattr(Training, "_update", recorded)
        self.claim = _made(folder, spec).facts["claims"][0]


@pytest.mark.parametrize("target", [ENCODERS[0].values[0], ENCODERS[1].values[0]],
                         ids=["linear", "mlp"])  # fmt: skip
@pytest.mark.parametrize("defense", [LOGITS, GROUPS], ids=lambda d: d.name)
def test_contrastive_a_row_moves_the_sum_of_a_step_by_the_sensitivity_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, defense: Any
) -> None:
    pytest.importorskip("opacus")
    clip = 1e-3  # all gradients are longer
    spec = _spec(defense.replace(clip=clip, noise_multiplier=1e-3), target)
    with monkeypatch.context() as patched:
        whole = _Recorded(tmp_path / "a", spec, patched)
    with monkeypatch.context() as patched:
        _never_drawn(patched, int(spec.world.members.index[ROW]))
        fewer = _Recorded(tmp_path / "b", spec, patched)
    # The sum is divided by the expected number of views, or of groups.
    pairs = defense is LOGITS
    bound, terms = (sensitivity(clip, target.temperature, 80), 2 * 8) if pairs else (2 * clip, 2)
    assert whole.claim["sensitivity"][0] == fewer.claim["sensitivity"][0] == bound
    assert len(whole.gradients) == len(fewer.gradients) == whole.claim["steps"][0]
    moved = [  # their noise is the same
        terms * float((a - b).norm()) for a, b in zip(whole.gradients, fewer.gradients, strict=True)
    ]
    assert max(moved) <= bound
    assert max(moved) > 0.05 * bound
    assert 0.0 in moved  # in steps without the row nothing moves


# ---- dp-features ---------------------------------------------------------------------------------

#: A frozen encoder of public rows, without labels and with a classifier that is trained before.
FROZEN = [SimCLR(epochs=1, classifier_epochs=1), Supervised(epochs=2)]


@pytest.mark.parametrize("mechanism", ["gaussian", "gamma"])
@pytest.mark.parametrize("target", FROZEN, ids=lambda t: t.name)
def test_dp_features_a_row_acts_through_the_minimum_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, mechanism: Any
) -> None:
    spec = _spec(DPFeatures(epsilon=2.0, mechanism=mechanism), target, PUBLIC)
    other = _replaced(spec, ROW)
    whole, changed = _made(tmp_path / "a", spec), _made(tmp_path / "b", other)
    (claim,) = whole.facts["claims"]
    name = "parts.classifier.linear.weight"
    moved = float((_weights(whole)[name] - _weights(changed)[name]).double().norm())
    assert 1e-3 * claim["sensitivity"] < moved <= claim["sensitivity"]

    def nowhere(x: Tensor, y: Tensor, penalty: float) -> Tensor:
        del penalty
        return x.new_zeros(y.shape[1], x.shape[1])

    monkeypatch.setattr(dp_features, "minimum", nowhere)
    _same(_made(tmp_path / "c", spec), _made(tmp_path / "d", other))
