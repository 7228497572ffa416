"""ARS and uniform noise: hand cases, budgets, masks, and who owns which row and column."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, kstest

from privbench import Access
from privbench.ground.store.store import Store
from privbench.measure.games.catalog import GAMES
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.methods.context import AttackContext
from privbench.measure.methods.oracle import Oracle
from privbench.measure.victims.build import Builder
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.attacks.reconstruction import Decoder
from privbench_plugins.defenses.ars import (
    Ars,
    ArsAttributes,
    Shared,
    against_classifier,
    against_decoder,
    alike,
    combined,
    learn_to_decode,
    places,
    random_masks,
    shares,
)
from privbench_plugins.defenses.uniform_noise import Noisy, UniformNoise
from privbench_plugins.targets.autoencoder import Autoencoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from privbench import Defense
    from privbench.measure.victims.served import Victim

FAST = Ars(epochs=1, updates=80, hidden=32)
HIDING = ArsAttributes(epochs=1, updates=150, hidden=32)
SMALL = Autoencoder(width=12, hidden=32, epochs=30, classifier_epochs=30, classifier_lr=1e-2)
Z = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64)
X = torch.tensor([0.0, 0.0, 0.1], dtype=torch.float64)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _map(seed: int, d: int, p: int) -> Tensor:
    return torch.randn(p, d, generator=_generator(seed)).double()


# ---- noise against decoders ----


@pytest.mark.parametrize(
    ("mask", "noise", "error"), [((1, 1, 1), (1, -1, 0), 3.69), ((1, 0, 1), (1, 0, 0), 2.29)]
)
def test_the_identity_by_hand(mask: tuple[int, ...], noise: tuple[int, ...], error: float) -> None:
    made = against_decoder(Z, X, lambda z: z, torch.tensor(mask).double(), 1.0, iterations=10)
    assert made.tolist() == list(noise)
    assert float((X - Z - made).square().sum()) == pytest.approx(error, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), bound=st.floats(0, 10), iterations=st.integers(1, 12))
def test_noise_is_bounded_and_only_where_the_mask_is(
    seed: int, bound: float, iterations: int
) -> None:
    weights, generator = _map(seed, 6, 9), _generator(seed + 1)
    z, x = torch.randn(4, 6, generator=generator).double(), torch.rand(4, 9, generator=generator)
    mask = torch.rand(6, generator=generator) < 0.5

    def decode(z: Tensor) -> Tensor:
        return (z @ weights.T).tanh()

    noises = [
        against_decoder(z, x.double(), decode, mask.double(), bound, iterations=iterations),
        against_classifier(z, 2, decode, mask.double(), bound),
    ]
    mixed = combined(noises, 0.3)
    for noise in (*noises, mixed):
        assert float(noise.abs().max()) <= bound * (1 + 1e-15)
        assert not noise[:, ~mask].any()
    assert torch.allclose(mixed, 0.7 * noises[0] + 0.3 * noises[1], rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), bound=st.sampled_from([0.1, 1.0, 30.0]))
def test_each_step_against_a_linear_decoder_gains_what_convexity_promises(
    seed: int, bound: float
) -> None:
    weights, generator = _map(seed, 5, 7), _generator(seed + 1)
    z, x = torch.randn(5, generator=generator).double(), torch.rand(7, generator=generator).double()
    mask, steps = (torch.rand(5, generator=generator) < 0.6).double(), 10
    seen: list[Tensor] = []

    def decode(z: Tensor) -> Tensor:
        seen.append(z.detach().clone())
        return weights @ z

    noise = against_decoder(z, x, decode, mask, bound, iterations=steps)
    seen.append(z + noise)
    for before, after in itertools.pairwise(seen):
        gradient = 2 * weights.T @ (weights @ before - x)  # by hand, and not by autograd
        promised = bound / steps * float((mask * gradient).abs().sum())
        gained = [float((x - weights @ at).square().sum()) for at in (before, after)]
        assert gained[1] - gained[0] >= promised * (1 - 1e-9) - 1e-9
        assert torch.allclose(after - before, bound / steps * mask * gradient.sign(), atol=1e-9)


def test_a_step_against_a_linear_classifier_goes_towards_the_fixed_value() -> None:
    weights = torch.tensor([[1.0, 0.0, -2.0], [-1.0, 0.0, 2.0]]).double()
    ones = torch.ones(3).double()
    for fixed, expected in ((0, [0.5, 0.0, -0.5]), (1, [-0.5, 0.0, 0.5])):
        noise = against_classifier(Z, fixed, lambda z: z @ weights.T, ones, 0.5)
        assert noise.tolist() == expected


def test_rows_do_not_reach_each_other() -> None:
    weights = _map(3, 6, 9)
    z, x = _map(4, 6, 5), _map(5, 9, 5)
    ones = torch.ones(6).double()

    def made(z: Tensor, x: Tensor) -> Tensor:
        return against_decoder(z, x, lambda z: z @ weights.T, ones, 1.0, iterations=10)

    assert torch.equal(made(z, x), torch.cat([made(z[i : i + 1], x[i : i + 1]) for i in range(5)]))


# ---- masks ----


def test_random_masks_overlap_as_often_as_fair_coins() -> None:
    masks = random_masks(1, 3_000, [(0, 20)])
    agree = (masks[::2] == masks[1::2]).double().mean(1)
    expected = float(binom.sf(12, 20, 0.5))
    assert float((agree > 0.6).double().mean()) == pytest.approx(expected, abs=0.03)
    assert abs(float(masks.double().mean()) - 0.5) < 0.01


@given(seed=st.integers(0, 10_000), width=st.integers(1, 4))
def test_no_mask_hides_nothing_of_an_owner_s_block(seed: int, width: int) -> None:
    masks = random_masks(seed, 6, [(0, width), (width, width + 1)])
    assert masks[:, :width].any(1).all()
    assert masks[:, width].all()
    assert torch.equal(masks, random_masks(seed, 6, [(0, width), (width, width + 1)]))


@given(seed=st.integers(0, 10_000), agreeing=st.integers(0, 16))
def test_an_overlap_is_kept_exactly(seed: int, agreeing: int) -> None:
    masks = random_masks(seed, 3, [(0, 16)])
    other = alike(masks, agreeing / 16, seed + 1)
    assert (other == masks).sum(1).tolist() == [agreeing] * 3


# ---- who owns which row ----


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_every_row_has_a_place_of_its_own(owners: list[int]) -> None:
    owner = torch.tensor(owners)
    place, most = places(owner, 5)
    assert len({(o, int(p)) for o, p in zip(owners, place, strict=True)}) == len(owners)
    assert most == int(owner.bincount().max())
    assert int(place.max()) == most - 1
    mine = shares(owner, 5)
    for party, rows in enumerate(mine.tolist()):
        own = {i for i, o in enumerate(owners) if o == party}
        assert set(rows) == own or (not own and set(rows) <= set(range(len(owners))))


def test_decoders_side_by_side_learn_as_if_alone() -> None:
    """Each party's decoder learns its own rows: here, two opposite codes."""
    from privbench.toolbox.classifiers import stacked_mlp

    generator = _generator(0)
    z = torch.rand(60, 1, generator=generator) * 2 - 1
    owner = torch.arange(60) % 2
    x = torch.where(owner[:, None] == 0, z.sign(), -z.sign()).clamp(0, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # noqa: TID251 - some network, the same each time
        network = stacked_mlp(2, [1, 16, 1])
    learn_to_decode(
        network, z, x, shares(owner, 2), Ars(updates=400, epochs=1, lr=1e-2), generator=generator
    )
    made = network(torch.tensor([[[0.8], [-0.8]]]).expand(2, -1, -1)).sigmoid().squeeze(-1)
    assert torch.allclose(made.round(), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


# ---- served ----


def _victim(tmp_path: Path, *defenses: Defense, target: Any = SMALL) -> Victim:
    return Builder(Store(tmp_path), CPU).victim(tiny_spec(target, defenses))


def _shared(victim: Victim) -> Shared:
    (release,) = victim.releases
    assert isinstance(release, Shared)
    return release


def _differences(victim: Victim, plain: Victim, x: Tensor) -> Tensor:
    return victim.embeddings(x).double() - plain.embeddings(x).double()


@pytest.mark.parametrize("parties", [1, 5])
def test_what_is_released_keeps_to_bound_and_mask(tmp_path: Path, parties: int) -> None:
    bound = 0.5
    victim = _victim(tmp_path, FAST.replace(bound=bound, parties=parties))
    plain, x = _victim(tmp_path), tiny_split().pool.x[:100]
    release, noise = _shared(victim), _differences(victim, plain, tiny_split().pool.x[:100])
    h = plain.embeddings(tiny_split().victim().members.x).double()
    unit = float(h.var(0, correction=0).mean().sqrt())
    assert float(release.unit[0]) == pytest.approx(unit, rel=1e-5)
    assert float(noise.abs().max()) == pytest.approx(bound * unit, rel=1e-4)
    owner = release.owner(x / 255)
    assert set(owner.tolist()) == set(range(parties))
    assert float(noise[~release.masks[owner]].abs().max()) < 1e-6
    notes = victim.facts["notes"]
    assert notes["ars: absolute bound"] == [pytest.approx(bound * unit, rel=1e-5)]
    moved = _differences(victim, plain, tiny_split().victim().members.x)
    relative = float(moved.norm(dim=1).mean() / h.norm(dim=1).mean())
    assert notes["ars: relative L2"] == pytest.approx(relative, rel=1e-4)


def test_the_noise_misleads_the_decoder_it_was_made_against(tmp_path: Path) -> None:
    victim = _victim(tmp_path, FAST.replace(parties=1, updates=600, hidden=64, lr=5e-3))
    plain = _victim(tmp_path)
    members, release = tiny_split().victim().members.x, _shared(victim)
    truth = (members / 255).flatten(1).double()
    errors = [
        float((truth - release._decoder(0)(z[None].double())[0]).square().mean())
        for z in (plain.embeddings(members), victim.embeddings(members))
    ]
    assert errors[1] > 2 * errors[0]


def test_a_row_is_answered_alike_alone_and_among_others(tmp_path: Path) -> None:
    victim, x = _victim(tmp_path, FAST), tiny_split().pool.x[:300]
    whole = victim.embeddings(x)
    order = torch.randperm(300, generator=_generator(0))
    assert torch.allclose(victim.embeddings(x[order]), whole[order], atol=1e-5)
    assert torch.allclose(victim.embeddings(x[7:9]), whole[7:9], atol=1e-5)
    assert torch.equal(victim.embeddings(x), whole)


def test_no_bound_is_no_defense(tmp_path: Path) -> None:
    x = tiny_split().pool.x[:50]
    plain = _victim(tmp_path)
    for defense in (FAST.replace(bound=0.0), UniformNoise(bound=0.0)):
        victim = _victim(tmp_path, defense)
        assert torch.equal(victim.embeddings(x), plain.embeddings(x))
        assert torch.equal(victim.log_posteriors(x), plain.log_posteriors(x))


def test_the_classifier_trains_on_what_is_released(tmp_path: Path) -> None:
    """So it does better there than the classifier of the undefended victim."""
    victim, plain = _victim(tmp_path, FAST.replace(bound=2.0)), _victim(tmp_path)
    members = tiny_split().victim().members
    h = victim.embeddings(members.x)
    right = [
        float((v.model.logits(h).argmax(1) == members.y).double().mean()) for v in (victim, plain)
    ]
    assert right[0] > right[1] + 0.1


def test_a_sibling_has_the_decoders_and_a_mask_of_its_own(tmp_path: Path) -> None:
    victim = _victim(tmp_path, FAST)
    mine, theirs = _shared(victim), _shared(victim.sibling(1))
    again, other = _shared(victim.sibling(1)), _shared(victim.sibling(2))
    assert torch.equal(theirs.masks, again.masks)
    assert not torch.equal(theirs.masks, other.masks)
    assert bool((theirs.masks == theirs.masks[:1]).all())  # one adversary, one mask
    assert not torch.equal(theirs.masks, mine.masks)
    for name, tensor in mine.state_dict().items():
        assert name == "masks" or torch.equal(tensor, theirs.state_dict()[name])
    assert torch.equal(mine.masks, _shared(victim).masks)


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_sibling_overlaps_as_it_is_told(tmp_path: Path, overlap: float) -> None:
    victim = _victim(tmp_path, FAST.replace(overlap=overlap, updates=1))
    agree = _shared(victim.sibling(3)).masks == _shared(victim).masks
    assert agree.double().mean(1).tolist() == [overlap] * 5


def test_without_masks_there_is_nothing_of_one_s_own(tmp_path: Path) -> None:
    victim, x = _victim(tmp_path, FAST.replace(masked=False)), tiny_split().pool.x[:50]
    assert bool(_shared(victim).masks.all())
    assert torch.equal(victim.embeddings(x), victim.sibling(1).embeddings(x))
    assert "masked" in (reason_to_skip(FAST.replace(masked=False, overlap=0.5), _cell(())) or "")


# ---- attributes ----


def test_predictions_turn_to_the_fixed_value(tmp_path: Path) -> None:
    only = HIDING.replace(attribute_weight=1.0, masked=False, bound=3.0, parties=2)
    victim = _victim(tmp_path, only)
    release = _shared(victim)
    assert set(release.fixed) == {"bright"}
    name = "ars-attributes: predictions of bright that equal the fixed value"
    assert victim.facts["notes"][name] > 0.95
    fewer = _victim(tmp_path, only.replace(bound=0.0)).facts["notes"][name]
    assert 0.2 < fewer < 0.8


def test_attributes_and_decoder_share_the_bound(tmp_path: Path) -> None:
    plain, x = _victim(tmp_path), tiny_split().pool.x[:60]
    victim = _victim(tmp_path, HIDING.replace(bound=0.5, masked=False))
    noise = _differences(victim, plain, x).abs() / _shared(victim).unit
    assert float(noise.max()) <= 0.5 + 1e-5
    # halves of 0.5 that add up or cancel where I-FGSM went all the way
    near = (noise < 1e-5) | ((noise - 0.5).abs() < 1e-5)
    assert 0.5 < float(near.double().mean()) <= 1
    assert bool((noise > 0.4).any())
    assert bool((noise < 0.1).any())


def _cell(sensitive: tuple[str, ...]) -> Cell:
    data = TinyImages()
    return Cell(
        data.card(None), data.protocols["default"], TinyTarget(), (HIDING,), Adversary(),
        AnyAttack(), sensitive,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sensitive", "fits"), [((), False), (("age",), False), (("bright",), True)]
)
def test_there_must_be_an_attribute_to_hide(sensitive: tuple[str, ...], fits: bool) -> None:
    assert (reason_to_skip(HIDING, _cell(sensitive)) is None) == fits
    assert reason_to_skip(FAST, _cell(sensitive)) is None


# ---- owners of columns ----


def test_an_owner_s_noise_comes_from_its_own_columns(tmp_path: Path) -> None:
    target = SMALL.replace(owners=2, width=6)
    victim = _victim(tmp_path, FAST.replace(parties=1, bound=0.5), target=target)
    plain = _victim(tmp_path, target=target)
    x = tiny_split().pool.x[:60].clone()
    other = x.clone()
    other[:, :, :4] = tiny_split().pool.x[100:160, :, :4]  # the first owner's rows of the picture
    release = _shared(victim)
    assert [at for _, at in release.blocks] == [(0, 6), (6, 12)]
    assert len(set(release.unit.tolist())) == 2
    before, after = victim.embeddings(x), victim.embeddings(other)
    assert torch.allclose(before[:, 6:], after[:, 6:], atol=1e-5)
    assert not torch.allclose(before[:, :6], after[:, :6], atol=1e-2)
    noise = _differences(victim, plain, x).abs()
    for first, last in ((0, 6), (6, 12)):
        unit = float(release.unit[first])
        assert float(noise[:, first:last].max()) == pytest.approx(0.5 * unit, rel=1e-4)


# ---- uniform noise ----


def test_uniform_noise_is_uniform_and_in_units_of_the_spread(tmp_path: Path) -> None:
    victim, plain = _victim(tmp_path, UniformNoise(bound=0.5)), _victim(tmp_path)
    x = tiny_split().pool.x
    (release,) = victim.releases
    assert isinstance(release, Noisy)
    h = plain.embeddings(tiny_split().victim().members.x).double()
    assert float(release.unit) == pytest.approx(float(h.var(0, correction=0).mean().sqrt()))
    noise = _differences(victim, plain, x) / float(release.unit)
    assert float(noise.abs().max()) <= 0.5 + 1e-5
    flat = noise.flatten().numpy()
    assert kstest(flat, "uniform", args=(-0.5, 1.0)).pvalue > 1e-4
    assert float(torch.corrcoef(noise.T).fill_diagonal_(0).abs().max()) < 0.25
    note = victim.facts["notes"]["uniform-noise: absolute bound"]
    assert note == pytest.approx(0.5 * float(release.unit))
    relative = float(_differences(victim, plain, x).norm(dim=1).mean() / h.norm(dim=1).mean())
    assert victim.facts["notes"]["uniform-noise: relative L2"] == pytest.approx(relative, rel=0.1)


@pytest.mark.parametrize("fresh", [False, True])
def test_asking_twice(tmp_path: Path, fresh: bool) -> None:
    victim, x = _victim(tmp_path, UniformNoise(fresh=fresh)), tiny_split().pool.x[:40]
    order = torch.randperm(40, generator=_generator(0))
    first, second = victim.embeddings(x), victim.embeddings(x[order])
    assert torch.allclose(first[order], second, atol=1e-5) is not fresh
    plain = _victim(tmp_path).embeddings(x)
    mean = torch.stack([victim.embeddings(x) for _ in range(40)]).mean(0)
    shrinks = float((mean - plain).abs().mean()) < 0.3 * float((first - plain).abs().mean())
    assert shrinks is fresh


# ---- against the attack ----


def _error(served: Victim, own: Victim) -> float:
    split, game = tiny_split(), GAMES["reconstruction"]
    question, truth = game.pose(split, served, max_rows=60, sensitive=())
    ctx = AttackContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="test", shadows=(), auxiliary=split.pool,
        auxiliary_oracle=Oracle(own, Access.EMBEDDINGS, asker="test"), data_seed=0,
        train=_no_training,
    )  # fmt: skip
    oracle = Oracle(served, Access.EMBEDDINGS, asker="test")
    attack = Decoder(rows="own", epochs=1, steps=100, hidden=32)
    found: Any = game.score(attack.answer(oracle, question, ctx), truth)["mse"]
    return float(found.value)


_no_training: Callable[..., Any] = pytest.fail


@pytest.mark.slow
def test_reconstruction_suffers_least_where_the_mask_is_known(tmp_path: Path) -> None:
    plain = _victim(tmp_path)
    clean = _error(plain, plain)
    known, own = (
        _error(victim, victim.sibling(1))
        for victim in (_victim(tmp_path, FAST.replace(overlap=o, parties=1)) for o in (1.0, None))
    )
    victim = _victim(tmp_path, FAST.replace(parties=1))
    assert clean < known < own
    assert own < _error(victim, victim.unreleased()) + 0.05
