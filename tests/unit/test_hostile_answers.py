"""Hostile answers of attacks: the cell fails with one sentence, and no number is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from privbench.measure.games.attributes import AttributeGame, Attributes, AttributeTruth
from privbench.measure.games.game import BadAnswerError
from privbench.measure.games.membership import Membership, MembershipGame
from privbench.measure.games.reconstruction import Reconstruction, ReconstructionGame

TRUTH = np.array([True, False, True, False])


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Membership(torch.ones(4, dtype=torch.complex64)), "scores are complex"),
        (Membership(torch.full((4,), torch.inf)), "no score is finite"),
        (Membership(torch.tensor([torch.inf, -torch.inf] * 2)), "no score is finite"),
        (Membership(torch.tensor([0.1, torch.nan, 0.2, 0.3])), "1 scores are NaN"),
        (Membership(torch.ones(4), torch.full((4,), torch.nan)), "decisions must be"),
        (Membership(torch.ones(4), torch.tensor([0.2, 1, 0, 1])), "decisions must be"),
        (Membership(torch.ones(4), torch.ones(4, dtype=torch.complex64)), "decisions"),
        (Membership(["a", "b", "c", "d"]), "scores are no numbers"),  # type: ignore[arg-type]
        (Membership(None), "scores are no numbers"),  # type: ignore[arg-type]
        (None, "return a Membership"),
    ],
)
def test_answers_about_membership(answer: Any, sentence: str) -> None:
    game = MembershipGame()
    with pytest.raises(BadAnswerError, match=sentence):
        game.score(game.unpack(game.pack(answer)), TRUTH)


def test_some_infinite_scores_are_an_answer() -> None:
    game = MembershipGame()
    scores, decisions = torch.tensor([torch.inf, -torch.inf, 0.5, 0.1]), torch.tensor([1, 0, 1, 0])
    made = game.score(game.unpack(game.pack(Membership(scores, decisions))), TRUTH)
    assert made["auc"].value == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given",
    [torch.ones(4, 2, dtype=torch.complex64), torch.full((4, 2), torch.nan), "text", None],
)
def test_other_answers(given: Any) -> None:
    attributes, reconstruction = AttributeGame(), ReconstructionGame()
    truth = AttributeTruth({"a": np.zeros(4, np.int64)}, np.zeros(4, np.int64))
    with pytest.raises(BadAnswerError):
        attributes.score(attributes.unpack(attributes.pack(Attributes({"a": given}))), truth)
    rows: Any = SimpleNamespace(x=torch.zeros(4, 2))
    with pytest.raises(BadAnswerError):
        reconstruction.score(
            reconstruction.unpack(reconstruction.pack(Reconstruction(given))), rows
        )
