"""Déjà Vu: a corner that an encoder remembers tells the class; another tells nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import privbench
from privbench import Access, AttackContext, BadAnswerError, Card, Examples, Oracle, Protocol
from privbench.measure.data.split import cut
from privbench.testing import tiny_split
from privbench_plugins.attacks.deja_vu import (
    SIDE,
    DejaVu,
    DejaVuGame,
    DejaVuNeighbours,
    DejaVuQuestion,
    corners,
)

GAME = DejaVuGame()
CLASSES = 4
CARD = Card(
    name="toy", kind="image", shape=(1, 10, 10), classes=CLASSES, scale=1.0, sources={"all": 400}
)


def pictures(n: int = 400) -> Examples:
    """Noise, but for a middle that shows the class."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 1, 10, 10, generator=generator)
    y = torch.randint(CLASSES, (n,), generator=generator)
    x[:, :, 4:6, 4:6] = (y.float() / (CLASSES - 1)).view(-1, 1, 1, 1)
    return Examples.of(x, y, scale=1.0)


class Encoder:
    """Embeds a picture by the class in its middle, and each remembered one by its own class."""

    card = CARD
    grants = Access.EMBEDDINGS
    key = None

    def __init__(self, remembered: Tensor, classes: Tensor) -> None:
        self.remembered, self.classes = remembered.flatten(1), classes

    def embeddings(self, x: Tensor) -> Tensor:
        seen = (x[:, 0, 4, 4] * (CLASSES - 1)).round().long()
        if len(self.remembered):
            exact = "donot_use_mm_for_euclid_dist"
            far = torch.cdist(x.flatten(1), self.remembered, compute_mode=exact)
            distance, nearest = far.min(1)
            seen = torch.where(distance < 1e-3, self.classes[nearest], seen)
        return torch.nn.functional.one_hot(seen, CLASSES).float() + 0.1


def asked(encoder: Encoder, question: DejaVuQuestion, pool: Examples) -> DejaVu:
    """What the attack answers."""
    oracle = Oracle(encoder, Access.EMBEDDINGS, asker="test")  # type: ignore[arg-type]
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=(),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(),
        auxiliary=pool, auxiliary_oracle=oracle, data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    return DejaVuNeighbours(k=10).answer(oracle, question, ctx)


def value(metrics: Any, name: str = "accuracy") -> float:
    return float(metrics[name].value)


def test_remembered_corners_tell_the_class_and_others_nothing() -> None:
    split = cut(pictures(), CARD, Protocol(name="toy", members=80, nonmembers=80, pool=200), 0)
    question, truth = GAME.pose(split, None, max_rows=None, sensitive=())
    assert (question.corners.y == -1).all()
    assert (question.corners.index == torch.arange(80)).all()
    memory = Encoder(question.corners.x, torch.from_numpy(truth))
    assert value(GAME.score(asked(memory, question, split.pool), truth)) == 1.0
    nothing = Encoder(torch.empty(0, 100), torch.empty(0).long())
    found = GAME.score(asked(nothing, question, split.pool), truth)
    assert value(found) == pytest.approx(1 / CLASSES, abs=0.17)  # 80 rows: 3.5 standard deviations
    half = Encoder(question.corners.x[:40], torch.from_numpy(truth[:40]))
    answer = asked(half, question, split.pool)
    guess = answer.probabilities.argmax(1).numpy()
    assert (guess[:40] == truth[:40]).all()
    assert (guess[40:] == truth[40:]).mean() == pytest.approx(1 / CLASSES, abs=0.24)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    moved = DejaVuQuestion(question.corners.select(order), question.classes, question.phase)
    again = asked(half, moved, split.pool)
    assert torch.equal(again.probabilities, answer.probabilities[order])


def test_an_encoder_that_trained_on_corners_knows_its_own_and_no_others() -> None:
    """A network, trained on whole pictures and their corners, answers about its own members."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (600,), generator=generator)
    x = 0.3 * torch.rand(600, 1, 16, 16, generator=generator)
    x[:, :, 6:10, 6:10] = 0.0
    for at in range(CLASSES):  # a quarter of the middle is lit
        top, left = 6 + 2 * (at // 2), 6 + 2 * (at % 2)
        x[y == at, :, top : top + 2, left : left + 2] = 1.0
    card = replace(CARD, shape=(1, 16, 16), sources={"all": 600})
    sizes = Protocol(name="toy", members=60, nonmembers=80, pool=200)
    split = cut(Examples.of(x, y, scale=1.0), card, sizes, 0)
    question, truth = GAME.pose(split, None, max_rows=None, sensitive=())
    found = {}
    for name, world in (("victim", split.victim()), ("null", split.null())):
        rows = world.members
        four = [corners(rows.x, torch.full((len(rows),), at)) for at in (0.1, 0.3, 0.6, 0.9)]
        encoder = Encoder(torch.empty(0, 256), torch.empty(0).long())
        net = trained(torch.cat([rows.x, *four]).flatten(1), rows.y.repeat(5))
        encoder.embeddings = net  # type: ignore[method-assign]
        found[name] = value(GAME.score(asked(encoder, question, split.pool), truth))
    assert found["victim"] > 0.8
    assert found["null"] < 0.5  # 60 rows, .25 by chance: 4.5 standard deviations


def trained(x: Tensor, y: Tensor) -> Any:
    """Return scores of the classes of (n, 256), by ridge regression on random ReLUs."""
    first = torch.randn(256, 512, generator=torch.Generator().manual_seed(0)).double() / 16
    centre = x.mean(0).double()

    def hidden(rows: Tensor) -> Tensor:
        return ((rows.flatten(1).double() - centre) @ first).relu()

    known = hidden(x)
    kernel = known @ known.T
    kernel += 1e-4 * kernel.diagonal().mean() * torch.eye(len(x))
    last = known.T @ torch.linalg.solve(kernel, torch.nn.functional.one_hot(y, CLASSES).double())
    return lambda rows: (hidden(rows) @ last).float()


def test_a_null_victim_of_the_public_pictures_is_refused() -> None:
    split = cut(pictures(), CARD, Protocol(name="toy", members=80, nonmembers=80, pool=240), 0)
    assert not split.null_apart
    made = GAME.score(DejaVu(torch.eye(CLASSES)), np.arange(CLASSES))
    assert GAME.controlled("untrained", made, split) == made
    told = GAME.controlled("null", made, split)
    assert {type(one).__name__ for one in told.values()} == {"Refused"}
    assert {*told} == {*made}


def test_the_question_is_about_the_members_and_shows_a_corner_of_each() -> None:
    split = tiny_split()
    question, truth = GAME.pose(split, None, max_rows=7, sensitive=())
    members = split.candidates.select(split.member).select(slice(0, 7))
    assert truth.tolist() == members.y.tolist()
    assert question.corners.x.shape == members.x.shape
    assert question.corners.attributes == {}
    whole = privbench.as_float(members.x, members.scale)
    for at, picture in enumerate(whole):
        four = [corners(picture[None], torch.tensor([(i + 0.5) / 4]))[0] for i in range(4)]
        assert any(torch.equal(question.corners.x[at], one) for one in four)


def test_a_corner_is_as_large_as_it_says() -> None:
    x = torch.arange(100.0).view(1, 1, 10, 10)
    side = round(SIDE * 10)
    piece = x[..., 10 - side :, :side]  # the lower left one
    made = corners(x, torch.tensor([0.6]))
    by_hand = torch.nn.functional.interpolate(piece, (10, 10), mode="bilinear")
    torch.testing.assert_close(made, by_hand)
    assert made.min() == piece.min()
    assert made.max() == piece.max()


def test_the_surest_fifth_is_that_of_least_entropy() -> None:
    given = torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9], [0.3, 0.7], [0.45, 0.55]])
    found = GAME.score(DejaVu(given), np.array([0, 1, 1, 0, 0]))
    assert value(found) == pytest.approx(2 / 5)
    assert value(found, "accuracy_surest") == 1.0  # the third row alone
    twice = GAME.score(DejaVu(7 * given), np.array([0, 1, 1, 0, 0]))
    assert twice == found  # votes are as good as shares


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3), torch.full((2, 3), -1.0), torch.ones(3, 3)])
def test_wrong_answers_are_refused(wrong: Tensor) -> None:
    with pytest.raises(BadAnswerError):
        GAME.score(DejaVu(wrong), np.array([0, 1]))


def test_a_run_has_the_null_victim_and_the_guess_beside_it(tmp_path: Any) -> None:
    suite = {"datasets": ["digits"], "targets": [{"simclr": {"epochs": 2}}],
             "attacks": ["deja-vu", "metric-loss"]}  # fmt: skip
    results = privbench.run(suite, out=tmp_path)
    (ours,) = (one for one in results if one.cell.game == "deja-vu")
    assert ours.status == "ok", ours.reason
    assert ours.sizes == {"rows": 100}
    assert {"accuracy", "accuracy_surest"} <= {*ours.metrics} & {*ours.controls["null"]}
    assert "accuracy" in ours.baselines["majority"]
    assert "deja-vu" in results.table()
