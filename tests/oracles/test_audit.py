"""Audited epsilon: the one-run bound against exact cases, and which cells it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy.stats import binom

from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import Split, cut
from privbench.measure.games.audit import (
    COUNTS,
    ERROR,
    Guesses,
    assessed,
    bound,
    contradiction,
    counted,
    guesses,
    loosest,
    p_value,
    pooled,
)
from privbench.measure.games.audited import audited
from privbench.measure.games.curves import gaussian_delta, mu_bound
from privbench.measure.games.metrics import Estimate, Refused
from privbench.testing import TinyImages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def _split(inclusion: str, seed: int = 0, phase: str = "encoder+classifier") -> Split:
    data = TinyImages()
    encoder = ("members",) if "encoder" in phase else ("public",)
    protocol = Protocol(
        name="a", members=80, nonmembers=80, reference=20, pool=300, test=60, public=40,
        inclusion=inclusion, encoder=encoder,  # type: ignore[arg-type]
    )  # fmt: skip
    return cut(data.load(None), data.card(None), protocol, seed)


def _naive(of: Guesses, epsilon: float, delta: float) -> float:
    """The authors' loop, written out (appendix of the paper)."""
    q = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(of.right - 1, of.made, q))
    alpha = total = 0.0
    for i in range(1, of.right + 1):
        total += float(binom.pmf(of.right - i, of.made, q))
        alpha = max(alpha, total / i)
    return min(beta + alpha * delta * 2 * of.coins, 1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize("of", [Guesses(500, 124, 90), Guesses(100, 100, 100), Guesses(80, 20, 0)])
def test_p_value_is_the_authors(of: Guesses, delta: float) -> None:
    for epsilon in (0.0, 0.5, 3.0):
        assert p_value(of, epsilon, delta) == pytest.approx(_naive(of, epsilon, delta))


def test_ceiling_of_a_perfect_attack() -> None:
    found = [round(bound(Guesses(n, n, n)), 2) for n in (100, 500, 1000, 10_000)]
    assert found == [3.28, 4.91, 5.60, 7.90]


def test_bound_is_where_the_p_value_crosses() -> None:
    of = Guesses(500, 124, 90)
    epsilon = bound(of, 1e-5)
    assert p_value(of, epsilon - 1e-3, 1e-5) < ERROR < p_value(of, epsilon + 1e-3, 1e-5)
    assert bound(of, 1e-2) < epsilon < bound(of)
    assert bound(Guesses(500, 124, 62)) == 0.0


def test_the_bound_holds_for_randomised_response() -> None:
    # Each coin is told truly with probability e / (1 + e): exactly epsilon 1, the tight case.
    rng, truth = np.random.default_rng(0), 1.0
    q = math.e / (1 + math.e)
    over = [
        bound(guesses(np.where(rng.random(400) < q, member, ~member).astype(float), member)) > truth
        for member in (rng.random((400, 400)) < 0.5)
    ]
    assert np.mean(over) <= ERROR + 3 * math.sqrt(ERROR * (1 - ERROR) / 400)
    # and it is no empty bound: a quarter of 4,000 coins show most of it
    member = rng.random(4000) < 0.5
    told = np.where(rng.random(4000) < q, member, ~member) + rng.random(4000) * 0.1
    assert 0.7 < bound(guesses(told, member)) < 1.1


def test_guesses_are_the_extremes_and_do_not_look_at_the_truth() -> None:
    scores = np.array([0.9, 0.1, 0.5, 0.4, 0.45, 0.55, 0.3, 0.6])
    member = np.array([True, False, True, False, True, False, True, False])
    assert guesses(scores, member) == Guesses(8, 2, 2)
    assert guesses(-scores, member) == Guesses(8, 2, 0)
    assert guesses(scores, ~member) == Guesses(8, 2, 0)


def number(made: Mapping[str, Estimate | Refused], name: str) -> float:
    """A metric that was not refused."""
    found = made[name]
    assert isinstance(found, Estimate), found
    return found.value


CLAIM: dict[str, Any] = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "adjacency": "add/remove",
    "phase": "encoder+classifier",
}


def test_a_perfect_attack_reaches_the_ceiling() -> None:
    split = _split("coin")
    truth = split.member.numpy()
    made = audited([CLAIM], truth.astype(float), truth, split)
    assert made["claimed_epsilon"] == Estimate(2.0, 2.0, 2.0)
    assert made["audited_epsilon"] == made["audit_ceiling"]
    ceiling = made["audit_ceiling"]
    assert isinstance(ceiling, Estimate)
    assert ceiling.value == pytest.approx(bound(Guesses(160, 40, 40), 1e-5))


def test_pairs_test_replacement() -> None:
    split = _split("pairs")
    assert int(split.member.sum()) == 80
    first, second = split.pairs.T
    assert torch.equal(split.member[first], ~split.member[second])
    truth = split.member.numpy()
    claim = {**CLAIM, "adjacency": "replace-one"}
    made = audited([claim], truth.astype(float), truth, split)
    assert made["audited_epsilon"] == made["audit_ceiling"]
    assert isinstance(made["audit_ceiling"], Estimate)
    assert made["audit_ceiling"].value == pytest.approx(bound(Guesses(80, 20, 20), 1e-5))
    noise = audited([claim], np.zeros(160), truth, split)["audited_epsilon"]
    assert isinstance(noise, Estimate)
    assert noise.value < 1


def test_cells_that_say_nothing_of_the_claim() -> None:
    fixed, coin = _split("size"), _split("coin")
    truth = coin.member.numpy()
    scores = truth.astype(float)

    def reason(claim: dict[str, object], split: Split, asked: int = 160) -> str:
        found = audited([claim], scores[:asked], truth[:asked], split)["audited_epsilon"]
        assert isinstance(found, Refused)
        return found.reason

    assert "inclusion 'coin'" in reason(CLAIM, fixed)
    assert "inclusion 'pairs'" in reason({**CLAIM, "adjacency": "replace-one"}, coin)
    assert "used to train encoder" in reason({**CLAIM, "phase": "classifier"}, coin)
    assert "scored 100 of 160" in reason(CLAIM, coin, 100)
    assert audited([{"distortion": 1.0}], scores, truth, coin) == {}
    two = audited([CLAIM, CLAIM], scores, truth, coin)
    assert all(isinstance(number, Refused) for number in two.values())
    # a claim about the classifier is tested where members train nothing else
    alone = _split("coin", phase="classifier")
    assert isinstance(
        audited([{**CLAIM, "phase": "classifier"}], scores, truth, alone)["audited_epsilon"],
        Estimate,
    )


def test_coins_are_fair_and_independent_of_everything_else() -> None:
    counts = [int(_split("coin", seed).member.sum()) for seed in range(30)]
    assert len(set(counts)) > 5  # the number of members is no constant
    assert abs(np.mean(counts) - 80) < 4
    coin, fixed = _split("coin"), _split("size")
    assert torch.equal(coin.candidates.index, fixed.candidates.index)
    # worlds of the adversary are of the nominal size: their size must not tell the draw
    assert {len(coin.offline(i)[0].members) for i in range(4)} == {80}
    assert len(coin.null().members) == 80
    assert {len(coin.online(i)[0].members) for i in range(4)} == {80}


@pytest.mark.parametrize("inclusion", ["coin", "pairs"])
def test_nonmembers_for_a_test_part_are_nonmembers(inclusion: str) -> None:
    data = TinyImages()
    protocol = Protocol(members=80, nonmembers=80, pool=300, inclusion=inclusion)  # type: ignore[arg-type]
    split = cut(data.load(None), data.card(None), protocol, 0)
    assert not split.victim().contains(split.test).any()
    assert len(split.test) == int((~split.member).sum())


def test_runs_are_pooled_as_one_with_more_coins() -> None:
    runs = [Guesses(200, 50, 40), Guesses(180, 44, 36)]
    assert pooled(runs) == Guesses(380, 94, 76)
    # more than either run shows alone, where taking the smallest bound would show less
    assert bound(pooled(runs)) > max(bound(run) for run in runs)


def test_pooled_runs_hold_for_randomised_response_over_the_same_rows() -> None:
    # four runs of 100 fresh coins each; the tight case of epsilon 1, as with one run of 400
    rng, over, runs = np.random.default_rng(1), 0, 400
    for _ in range(runs):
        found = []
        for _ in range(4):
            member = rng.random(100) < 0.5
            told = np.where(rng.random(100) < math.e / (1 + math.e), member, ~member)
            found.append(guesses(told.astype(float), member))
        over += bound(pooled(found)) > 1.0
    assert binom.sf(over - 1, runs, ERROR) > 1e-4


def test_one_run_is_a_pool_of_one_and_counts_are_enough() -> None:
    rng = np.random.default_rng(2)
    split, claim = _split("coin"), {**CLAIM, "profile": [(2.0, 1e-5), (0.5, 0.1)]}
    made = audited([claim], rng.standard_normal(160), split.member.numpy(), split)
    counts = {name: number(made, name) for name in COUNTS}
    assert assessed([claim], [counted(counts)]) == made
    assert counts["audit_coins"] == 160
    assert (counts["audit_made"], counts["audit_made_most"]) == (40, 128)
    assert number(made, "audit_p") > 1e-4


def test_the_p_of_a_claim_is_corrected_for_two_shares() -> None:
    claim = {"epsilon": 0.0, "delta": 0.0}  # every guess is a fair coin's
    right = {0.25: Guesses(16, 4, 4), 0.8: Guesses(16, 12, 9)}  # p of 1/16 and 299/4096
    assert number(assessed([claim], [right]), "audit_p") == pytest.approx(2 / 16)
    wrong = {0.25: Guesses(16, 4, 0), 0.8: Guesses(16, 12, 0)}
    assert number(assessed([claim], [wrong]), "audit_p") == 1.0


def test_the_bound_on_mu_is_the_best_of_two_shares_each_at_half_the_error() -> None:
    right = {0.25: Guesses(400, 100, 70), 0.8: Guesses(400, 320, 200)}
    alone = [mu_bound(of.coins, of.made, of.right, ERROR / 2) for of in right.values()]
    assert alone[0] > alone[1] > 0
    assert number(assessed([CLAIM], [right]), "audited_mu") == alone[0]
    right[0.8] = Guesses(400, 320, 300)
    assert number(assessed([CLAIM], [right]), "audited_mu") > alone[0]


def test_the_worst_of_several_claims_is_tested() -> None:
    first = {"epsilon": 2.0, "delta": 1e-5, "profile": [[2.0, 1e-5], [1.0, 0.1]]}
    second = {"epsilon": 1.9, "delta": 1e-4, "profile": [[2.2, 1e-5], [0.9, 0.1]]}
    assert loosest([first, second]) == {
        "epsilon": 2.0, "delta": 1e-4, "profile": [(2.2, 1e-5), (1.0, 0.1)],
    }  # fmt: skip
    assert loosest([first, {"epsilon": 3.0}]) == {"epsilon": 3.0, "delta": 1e-5}


def test_a_claim_is_refuted_by_its_profile() -> None:
    # (8, 1e-5) alone allows a perfect attack on 160 coins; a Gaussian of mu 1 does not
    profile = [(e, gaussian_delta(e, 1.0)) for e in (0.3, 1.0, 2.0, 4.0, 8.0)]
    split = _split("coin")
    truth = split.member.numpy()
    pair = {**CLAIM, "epsilon": 8.0}
    by_pair = audited([pair], truth.astype(float), truth, split)
    whole = audited([{**pair, "profile": profile}], truth.astype(float), truth, split)
    assert number(by_pair, "audit_p") > ERROR
    assert number(whole, "audit_p") < ERROR
    assert number(whole, "claimed_mu") == pytest.approx(1.0, abs=1e-6)
    assert number(whole, "audited_mu") > 1.0
    assert number(whole, "epsilon_regret") > 0.25
    assert number(whole, "mu_regret") < 0.02
    assert "claimed_mu" not in by_pair


def test_a_forgotten_delta_contradicts_the_profile() -> None:
    profile = [(e, gaussian_delta(e, 1.0)) for e in (1.0, 4.377178)]
    split = _split("coin")
    truth = split.member.numpy()
    forgot = {**CLAIM, "epsilon": 4.377178, "delta": 0.0, "profile": profile}
    made = audited([forgot], truth.astype(float), truth, split)["audited_epsilon"]
    assert isinstance(made, Refused)
    assert "contradicts its own privacy profile" in made.reason
    kept = {**forgot, "delta": 1.0001e-5}
    assert contradiction(kept) is None


def test_unequal_sides_are_no_coins() -> None:
    data = TinyImages()
    protocol = Protocol(members=40, nonmembers=80, pool=300, inclusion="coin")
    with pytest.raises(Exception, match="as many members as nonmembers"):
        protocol.sizes(data.card(None))


@pytest.mark.parametrize(("n", "made"), [(14, 2), (15, 2), (16, 4), (7, 2), (2, 2), (1, 0)])
def test_a_share_of_the_coins_is_rounded_down_to_pairs(n: int, made: int) -> None:
    """A quarter of 14 is 3.5: one pair. More guesses than the share would need another proof."""
    found = guesses(np.arange(float(n)), np.arange(n) >= n / 2, 0.25)
    assert (found.coins, found.made, found.right) == (n, made, made)
