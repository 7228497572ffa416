"""InfoRMIA by hand, in loops, and on victims."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privbench import MembershipQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench.toolbox.likelihood import Evidence
from privbench_plugins.attacks.informia import InfoRMIA, InfoRMIAOffline

FORMS = [InfoRMIA, InfoRMIAOffline]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(p: list[float], shadows: list[list[float]], inside: list[list[int]]) -> Evidence:
    return Evidence(double(p).log(), double(shadows).log(), torch.tensor(inside).bool())


#: p = .9 under the victim, .4 under the shadow that holds x, .2 under the other; two z.
X = rows([0.9], [[0.4], [0.2]], [[1], [0]])
Z = rows([0.6, 0.3], [[0.6, 0.1], [0.2, 0.2]], [[0, 0], [0, 1]])


def test_score_by_hand() -> None:
    attack = InfoRMIA(a=0.5)
    # p(z) from shadows without z: means .4 and .1, then (1.5 mean + .5) / 2 = .55 and .325
    usual = (0.55 * math.log(0.6 / 0.55) + 0.325 * math.log(0.3 / 0.325)) / 0.875
    assert attack._usual(Z).item() == pytest.approx(usual)
    # p(x) = (.4 + .2) / 2; offline only .2 counts: (1.5 * .2 + .5) / 2 = .4
    assert attack._scores(X, Z).item() == pytest.approx(math.log(0.9 / 0.3) - usual)
    offline = InfoRMIAOffline(a=0.5)._scores(X, Z)
    assert offline.item() == pytest.approx(math.log(0.9 / 0.4) - usual)


def test_prior_where_all_or_no_shadow_holds_the_row() -> None:
    attack = InfoRMIA(a=0.5)
    none, every = (rows([0.5], [[0.4], [0.2]], [[h], [h]]) for h in (0, 1))
    assert attack._log_prior(none, outside_only=False).exp().item() == pytest.approx(0.475)
    assert attack._log_prior(every, outside_only=False).exp().item() == pytest.approx(0.3)
    assert attack._log_prior(every, outside_only=True).isnan().all()
    assert attack._usual(every).isnan()
    # a z that every shadow holds, or that has no label, does not count
    more = rows([0.6, 0.3, 0.9, 0.9], [[0.6, 0.1, 0.9, 0.9], [0.2, 0.2, 0.9, 0.9]],
                [[0, 0, 1, 0], [0, 1, 1, 0]])  # fmt: skip
    more.asked[3] = math.nan
    more.known[:, 3] = math.nan
    torch.testing.assert_close(attack._usual(more), attack._usual(Z))


def test_answers_near_zero_stay_finite() -> None:
    tiny = Evidence(double([-900.0]), double([[-800.0], [-1000.0]]), X.inside)
    assert InfoRMIA()._scores(tiny, Z).item() == pytest.approx(
        -900 + 800 + math.log(2) - InfoRMIA()._usual(Z).item()
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_scores_are_those_of_loops_over_rows(form: Any, temperature: float, a: float) -> None:
    rng = np.random.default_rng(0)
    models, classes = 6, 4
    logits = {name: rng.normal(size=(1 + models, n, classes)) for name, n in (("x", 30), ("z", 20))}
    y = {name: rng.integers(classes, size=(one.shape[1],)) for name, one in logits.items()}
    held = {
        name: rng.permuted(np.arange(models)[:, None].repeat(one.shape[1], 1), axis=0) < models // 2
        for name, one in logits.items()
    }

    def p(name: str, model: int, i: int) -> float:
        powers = np.exp(logits[name][model, i] / temperature)
        return float(powers[y[name][i]] / powers.sum())

    def prior(name: str, i: int) -> float:
        out = [p(name, 1 + m, i) for m in range(models) if not held[name][m, i]]
        within = [p(name, 1 + m, i) for m in range(models) if held[name][m, i]]
        mean = sum(out) / len(out)
        if form is InfoRMIA and name == "x":
            return (mean + sum(within) / len(within)) / 2
        return ((1 + a) * mean + 1 - a) / 2

    weights = [prior("z", j) for j in range(20)]
    usual = sum(w * math.log(p("z", 0, j) / w) for j, w in enumerate(weights)) / sum(weights)
    expected = [math.log(p("x", 0, i) / prior("x", i)) - usual for i in range(30)]

    attack = form(k=models, a=a, temperature=temperature)

    def evidence(name: str) -> Evidence:
        labels = torch.from_numpy(y[name])
        asked = [torch.from_numpy(model).log_softmax(-1) for model in logits[name]]
        victim, *shadows = (attack._signal(log_p, labels) for log_p in asked)
        return Evidence(victim, torch.stack(shadows), torch.from_numpy(held[name]))

    found = attack._scores(evidence("x"), evidence("z"))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def play(attack: Any, served: Any, examples: Any = None) -> Any:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    if examples is not None:
        question = MembershipQuestion(examples, question.phase)
    oracle, ctx = arena(attack, served)
    answer = attack.answer(oracle, question, ctx)
    assert oracle.queries == len(question.examples) + int(answer.notes["population"])
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*(form() for form in FORMS), InfoRMIA(population=30)], ids=str)
def test_planted_and_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer = play(attack, memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.95
    assert (answer.decisions == split.member).double().mean() > 0.9
    null = play(attack, memoriser(split.null()))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )


@pytest.mark.parametrize("form", FORMS)
def test_rows_without_a_label_get_a_neutral_score(form: Any) -> None:
    split = tiny_split()
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    answer = play(form(), memoriser(split.victim()), some)
    assert (answer.scores[blank] == 0).all()
    assert not answer.decisions[blank].any()
    assert auc(answer.scores[~blank].numpy(), split.member[~blank].numpy()).value > 0.95
