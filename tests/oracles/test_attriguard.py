"""AttriGuard: both phases against hand cases, and what must hold for every query."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from privbench import BadInputError, mlp
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.defenses.attriguard import (
    AttriGuard,
    Mechanism,
    carlini_wagner,
    greedy,
    mechanism,
    pick,
)
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FAST = AttriGuard(epochs=1, updates=200)


def _double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _kl(p: Tensor, m: Tensor) -> Tensor:
    return (p * (p / m).log()).sum(-1)


# ---- phase II ------------------------------------------------------------------------------------


def test_mechanism_by_hand() -> None:
    p, d = _double([0.5, 0.3, 0.2])[0], _double([0, 1, 2])
    made = mechanism(p, d, 0.35)
    assert torch.allclose(made, _double([0.73041332, 0.18917336, 0.08041332]), rtol=0, atol=1e-8)
    assert float(_kl(p, made)) == pytest.approx(0.13106186, abs=1e-8)
    two = mechanism(_double([0.3, 0.7])[0], _double([0, 4]), 1.0)
    assert torch.allclose(two, _double([0.75, 0.25]), atol=1e-12)
    for budget in (0.7, 0.71, 100.0):  # the aim itself costs 0.7
        assert torch.allclose(mechanism(p, d, budget), p.expand(1, -1), atol=1e-15)


def test_no_budget_picks_what_is_free() -> None:
    p = _double([0.5, 0.3, 0.2])[0]
    made = mechanism(p, _double([0, 1, 2], [1, 0, 0]), 0.0)
    assert torch.allclose(made, _double([1, 0, 0], [0, 0.6, 0.4]), atol=1e-12)


def _instance(seed: int, values: int, n: int = 1) -> tuple[Tensor, Tensor]:
    """An aim, and distortions of which one is 0 in each row."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(values, generator=generator).double() + 0.01
    d = 3 * torch.rand(n, values, generator=generator).double()
    d[torch.arange(n), torch.randint(values, (n,), generator=generator)] = 0
    return p / p.sum(), d


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), values=st.integers(2, 7), share=st.floats(0.02, 1.2))
def test_mechanism_is_as_good_as_a_solver(seed: int, values: int, share: float) -> None:
    p, d = _instance(seed, values)
    budget = share * float(p @ d[0])
    ours = mechanism(p, d, budget)[0]
    q, cost = p.numpy(), d[0].numpy()
    start = np.full(values, 1e-3)
    start[cost.argmin()] = 1 - start[1:].sum()
    limits: Any = [
        {"type": "eq", "fun": lambda m: m.sum() - 1, "jac": np.ones_like},
        {"type": "ineq", "fun": lambda m: budget - m @ cost, "jac": lambda _: -cost},
    ]
    solve: Any = minimize
    solved = solve(
        lambda m: float((q * np.log(q / m)).sum()), start, jac=lambda m: -q / m,
        bounds=[(1e-10, 1)] * values, constraints=limits, method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )  # fmt: skip
    assert float(ours.sum()) == pytest.approx(1, abs=1e-12)
    assert float(ours.min()) > 0
    assert float(ours @ d[0]) <= budget + 1e-9
    allowed = solved.x @ cost <= budget + 1e-9 and abs(solved.x.sum() - 1) < 1e-9
    if allowed:  # a solver that broke its constraints is no comparison
        assert float(_kl(p, ours)) <= solved.fun + 1e-8


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), values=st.integers(2, 7))
def test_more_budget_comes_closer_to_the_aim(seed: int, values: int) -> None:
    p, d = _instance(seed, values, 20)
    full = float((p * d).sum(1).max())
    far = [_kl(p, mechanism(p, d, share * full)) for share in (0.1, 0.3, 0.6, 1.0)]
    for less, more in pairwise(far):
        assert bool((more <= less + 1e-12).all())
    assert float(far[-1].abs().max()) < 1e-12
    other = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(mechanism(p, d[other], 0.4), mechanism(p, d, 0.4)[other])


def test_picks_come_as_often_as_they_should_and_the_present_value_first() -> None:
    m = _double([0.2, 0.5, 0.3])
    u = torch.arange(1000).double() / 1000 + 0.0005
    for now in range(3):
        picked = pick(m.expand(1000, -1), torch.full((1000,), now), u)
        assert picked.bincount(minlength=3).tolist() == [200, 500, 300]
        assert bool((picked[: picked.bincount()[now]] == now).all())


# ---- phase I -------------------------------------------------------------------------------------


def _network(seed: int, width: int, values: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 - some classifier, the same each time
        return mlp([width, 64, 64, values]).double().requires_grad_(requires_grad=False)


def _targets(network: Any, x: Tensor, values: int) -> Tensor:
    guessed: Tensor = network(x).argmax(1)
    return (guessed + 1) % values


def test_cw_finds_the_least_noise_against_a_linear_classifier() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).double() for shape in ((30, 12), (12,)))
    x = x[(x @ w) > 0]
    noise = carlini_wagner(
        x, torch.zeros(len(x), dtype=torch.long), lambda h: torch.stack([-(h @ w), h @ w], 1), 60
    )
    least = (x @ w) / w.abs().sum()  # Hölder
    assert bool(((x + noise) @ w < 0).all())
    assert bool((noise.abs().amax(1) <= 1.01 * least).all())


@pytest.mark.parametrize("values", [2, 5])
def test_cw_turns_a_network_with_little_noise(values: int) -> None:
    network, generator = _network(1, 40, values), torch.Generator().manual_seed(2)
    x = 2 * torch.randn(60, 40, generator=generator).double()
    target = _targets(network, x, values)
    noise = carlini_wagner(x, target, network, 60)
    assert float((network(x + noise).argmax(1) == target).double().mean()) >= 0.95
    # random signs of twice that length turn next to nothing
    signs = torch.randn(60, 40, generator=generator).sign()
    other = network(x + 2 * noise.abs().amax(1, keepdim=True) * signs).argmax(1)
    assert float((other == target).double().mean()) < 0.4


def test_cw_takes_back_what_a_linear_classifier_would_have_needed() -> None:
    w = torch.randn(12, generator=torch.Generator().manual_seed(0)).double()
    x = _double([2.0], [1.5], [1.1]) * w / w.square().sum()  # x @ w is 2, 1.5, 1.1

    def guess(h: Tensor) -> Tensor:
        z = (h @ w).clamp_min(1e-3).log()  # turns where h @ w is 1; is steeper than it seems
        return torch.stack([0 * z, z], 1)

    zero = torch.zeros(3, dtype=torch.long)
    least = _double([1.0, 0.5, 0.1])[0] / w.abs().sum()
    lengths = [carlini_wagner(x, zero, guess, n).abs().amax(1) for n in (0, 60)]
    assert float((lengths[0] / least)[0]) > 1.35
    assert bool((lengths[1] > least).all())
    assert bool((lengths[1] < 1.08 * least).all())


def test_noise_that_does_not_get_there_is_used() -> None:
    network = _network(1, 40, 5)
    x = 5 * torch.randn(60, 40, generator=torch.Generator().manual_seed(2)).double()
    target = _targets(network, x, 5)
    noise = carlini_wagner(x, target, network, 0)
    failed = network(x + noise).argmax(1) != target
    assert bool(failed.any())
    assert bool(noise[failed].abs().amax(1).gt(0).all())


def test_greedy_policies_by_hand() -> None:
    weights = torch.tensor([3.0, 2.0, -2.5, -1.0]).double()

    def guess(h: Tensor) -> Tensor:
        z = h @ weights
        return torch.stack([torch.zeros_like(z), z - 1.4], 1)

    x, one = _double([0, 0.5, 0.5, 0]), torch.ones(1, dtype=torch.long)
    add = greedy(x, one, guess, 100, "add-new")  # z = -.25: the first to 1 does
    assert torch.equal(add, _double([1, 0, 0, 0]))
    # 2 * .5 by setting the second to 1 is less than 2.5 * .5 by setting the third to 0
    exist = greedy(x, one, guess, 100, "modify-exist")
    assert torch.equal(exist, _double([0, 0.5, -0.5, 0]))
    assert torch.equal(greedy(x, one, guess, 100, "modify-add"), add)
    assert torch.equal(greedy(x, one, guess, 1, "modify-exist"), _double([0, 0, -0.5, 0]))
    zero = torch.zeros(1, dtype=torch.long)
    assert not greedy(x, zero, guess, 100, "modify-add").any()  # guessed already


def test_greedy_follows_the_targets_own_logit() -> None:
    # by the difference of logits the first coordinate would be best, by the target's the second
    weights = _double([1, 2], [-5, 0])
    made = greedy(_double([0, 0]), torch.zeros(1, dtype=torch.long),
                  lambda h: h @ weights.T + _double([-1, 0]), 1, "modify-add")  # fmt: skip
    assert torch.equal(made, _double([0, 1]))


def test_greedy_stops_where_nothing_helps() -> None:
    made = greedy(
        _double([0, 1]), torch.ones(1, dtype=torch.long),
        lambda h: torch.stack([5 + 0 * h[:, 0], h[:, 1] - h[:, 0]], 1), 100, "modify-add",
    )  # fmt: skip
    assert not made.any()


# ---- the release ---------------------------------------------------------------------------------


def _mechanism(seed: int, defense: AttriGuard, values: int) -> Mechanism:
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 - some classifier, the same each time
        made = Mechanism(defense, "s", 20, values)
    made.unit.fill_(0.5)
    made.centre.fill_(0.1)
    return made.eval().requires_grad_(requires_grad=False)


def _release(made: Mechanism, h: Tensor, u: Tensor) -> Tensor:
    with torch.no_grad():
        released: Tensor = made(torch.zeros(len(h), 1), h, u)
    return released


@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 10_000), distortion=st.sampled_from([0.0, 0.05, 0.3, 5.0]),
    values=st.sampled_from([2, 4]), search=st.sampled_from(["cw", "modify-add"]),
)  # fmt: skip
def test_what_holds_for_every_query(seed: int, distortion: float, values: int, search: Any) -> None:
    generator = torch.Generator().manual_seed(seed)
    h = torch.rand(25, 20, generator=generator)
    made = _mechanism(seed % 5, FAST.replace(distortion=distortion, search=search), values)
    now = made.classifier(made.standard(h.double())).argmax(1)
    with torch.enable_grad():
        noise, d = made.noises(h.double(), now)
    rows = torch.arange(25)
    assert not noise[rows, now].any()
    assert not d[rows, now].any()
    norms = noise.abs().amax(2) / 0.5 if search == "cw" else (noise != 0).sum(2).double()
    assert torch.allclose(d, norms)
    chances = mechanism(made.aim, d, distortion)
    assert bool(((chances * d).sum(1) <= distortion + 1e-9).all())
    grid = (torch.arange(32) / 32 + 1 / 64).repeat_interleave(25)[:, None]  # 32 times all rows
    released = _release(made, h.repeat(32, 1), grid)
    picked = pick(chances.repeat(32, 1), now.repeat(32), grid[:, 0].double())
    expected = h.double().repeat(32, 1) + noise[rows.repeat(32), picked]
    assert torch.allclose(released.double(), expected, atol=1e-6)
    r = released.double() - h.double().repeat(32, 1)
    norm = r.abs().amax(1) / 0.5 if search == "cw" else (r != 0).sum(1).double()
    spent = norm.view(32, 25).mean(0)  # the expectation over u
    assert bool((spent <= distortion + d.amax(1) * values / 32 + 1e-6).all())
    counted = (released != h.repeat(32, 1)).any(1).view(32, 25).double().mean(0)
    share = (chances * (d > 0)).sum(1)
    assert bool(((counted - share).abs() <= values / 32).all())
    if distortion == 0:
        assert not counted.any()


def test_a_row_does_not_depend_on_what_is_asked_beside() -> None:
    generator = torch.Generator().manual_seed(1)
    h, u = torch.rand(40, 20, generator=generator), torch.rand(40, 1, generator=generator)
    made, order = _mechanism(3, FAST, 4), torch.randperm(40, generator=generator)
    plain = _release(made, h, u)
    assert torch.allclose(_release(made, h[order], u[order]), plain[order], atol=1e-6)
    assert torch.allclose(_release(made, h[:7], u[:7]), plain[:7], atol=1e-6)
    assert bool((plain != h).any())


def test_it_turns_the_guesses_of_a_served_victim(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=15)
    defense = FAST.replace(distortion=5.0)
    victim, plain = shop.victim(tiny_spec(target, (defense,))), shop.victim(tiny_spec(target))
    rows = tiny_split().pool
    (release,) = victim.releases
    assert isinstance(release, Mechanism)
    before, after = plain.embeddings(rows.x), victim.embeddings(rows.x)

    def right(h: Tensor) -> float:
        guessed = release.classifier(release.standard(h.double())).argmax(1)
        return float((guessed == rows.attributes["bright"]).double().mean())

    assert right(before) > 0.75
    assert abs(right(after) - 0.5) < 0.1
    assert torch.equal(after, victim.embeddings(rows.x))  # asking twice
    members = plain.embeddings(tiny_split().victim().members.x).double()
    deviation = members.var(0, correction=0).mean().sqrt()
    assert float(release.unit) == pytest.approx(float(deviation), rel=1e-5)
    notes = victim.facts["notes"]
    assert notes["attriguard: absolute distortion"] == pytest.approx(5 * float(deviation), rel=1e-5)
    assert "L-infinity" in notes["attriguard: norm"]
    assert notes["attriguard: classifier's accuracy"] > 0.7
    state = plain.weights()
    for name, tensor in victim.weights().items():  # the classifier is trained on raw embeddings
        assert torch.equal(tensor, state[name])


def test_prior_counts_the_members(tmp_path: Path) -> None:
    defense = FAST.replace(aim="prior", updates=1)
    victim = Builder(Store(tmp_path), CPU).victim(tiny_spec(TinyTarget(), (defense,)))
    (release,) = victim.releases
    assert isinstance(release, Mechanism)
    ones = int(tiny_split().victim().members.attributes["bright"].sum())
    assert torch.allclose(release.aim, _double([81 - ones, 1 + ones])[0] / 82)


@pytest.mark.parametrize("known", [30, 0])
def test_members_whose_value_is_missing_do_not_count(tmp_path: Path, known: int) -> None:
    job = tiny_spec(TinyTarget(), (FAST.replace(aim="prior", updates=1),))
    members = job.world.members
    s = members.attributes["bright"].clone()
    s[known:] = -1
    world = job.world.replace(members=replace(members, attributes={"bright": s}))
    shop, job = Builder(Store(tmp_path), CPU), replace(job, world=world)
    if not known:
        with pytest.raises(BadInputError, match="'bright' of every member is missing"):
            shop.victim(job)
        return
    (release,) = shop.victim(job).releases
    assert isinstance(release, Mechanism)
    assert torch.allclose(32 * release.aim, (s[:known].bincount(minlength=2) + 1).double())


def test_it_needs_one_attribute() -> None:
    card = TinyImages().card(None)

    def why(*sensitive: str) -> str | None:
        cell = Cell(
            card, TinyImages.protocols["default"], TinyTarget(), (AttriGuard(),), Adversary(),
            AnyAttack(), sensitive,
        )  # fmt: skip
        return reason_to_skip(AttriGuard(), cell)

    assert why("bright") is None
    assert "one sensitive attribute" in (why() or "")
    assert "one sensitive attribute" in (why("bright", "dark") or "")
