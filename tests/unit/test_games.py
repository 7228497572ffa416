"""Games pose fair questions and score from the truth alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold

from privbench.ground.errors import BadInputError
from privbench.measure.data.examples import Card, Examples, as_float
from privbench.measure.data.protocol import Part, Protocol
from privbench.measure.data.split import Split, cut
from privbench.measure.games.attributes import Attributes
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.controls import Pixels
from privbench.measure.games.game import BadAnswerError, Game
from privbench.measure.games.membership import Membership, blind_auc
from privbench.measure.games.metrics import Estimate, Refused
from privbench.testing import TinyImages, auc_band, memoriser, tiny_split
from privbench_plugins.datasets.digits import Digits

MEMBERSHIP, ATTRIBUTES = GAMES["membership"], GAMES["attributes"]


def _membership(max_rows: int | None = None, split: Split | None = None) -> tuple[Any, Any]:
    split = split or tiny_split()
    served = memoriser(split.victim()) if split is tiny_split() else Pixels(split.card)
    return MEMBERSHIP.pose(split, served, max_rows=max_rows, sensitive=())


# ---- membership ----------------------------------------------------------------------------------


def test_scores_are_compared_with_the_truth() -> None:
    _, truth = _membership()
    exact = torch.as_tensor(truth).double()
    made = MEMBERSHIP.score(Membership(exact, exact > 0.5), truth)
    for name in ("auc", "balanced_accuracy", "precision", "recall"):
        metric = made[name]
        assert isinstance(metric, Estimate)
        assert metric.value == 1.0
    opposite = MEMBERSHIP.score(Membership(-exact, exact < 0.5), truth)
    assert isinstance(opposite["auc"], Estimate)
    assert opposite["auc"].value == 0.0
    assert isinstance(opposite["recall"], Estimate)
    assert opposite["recall"].value == 0.0


def test_labels_are_hidden_if_they_could_tell_members_from_nonmembers() -> None:
    """STL-10's members come from its unlabelled rows, and nonmembers may be labelled ones."""
    split = tiny_split()
    rows = split.candidates
    some = replace(split, candidates=rows.with_y(torch.where(split.member, -1, rows.y)))
    question, truth = _membership(split=some)
    assert truth.tolist() == split.member.tolist()
    assert set(question.examples.y.tolist()) == {-1}
    question, _ = _membership()
    assert question.examples.y.tolist() == rows.y.tolist()


@pytest.mark.parametrize("left_out", ["pose", "pack", "unpack", "score", "baselines", "sizes"])
def test_a_game_that_lacks_a_method_is_none(left_out: str) -> None:
    methods: dict[str, Any] = dict.fromkeys(
        ("pose", "pack", "unpack", "score", "baselines", "sizes"), lambda _: None
    )
    type("Whole", (Game,), dict(methods))()
    del methods[left_out]
    with pytest.raises(TypeError, match=left_out):
        type("Half", (Game,), methods)()


def test_decisions_are_optional() -> None:
    _, truth = _membership()
    made = MEMBERSHIP.score(Membership(torch.zeros(len(truth))), truth)
    assert set(made) == {"auc", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001"}


@pytest.mark.parametrize("test", [80, 79])
def test_decisions_on_a_null_victim_from_the_pool_are_refused(test: int) -> None:
    data = TinyImages()
    card = data.card(None)
    rest = card.rows - 80 - 80 - 40 - test
    protocol = Protocol(members=80, nonmembers=80, reference=40, pool=rest, test=test)
    split = cut(data.load(None), card, protocol, 0)
    _, truth = _membership()
    exact = torch.as_tensor(truth).double()
    scored = MEMBERSHIP.score(Membership(exact, exact > 0.5), truth)
    made = MEMBERSHIP.controlled("null", scored, split)
    assert made["auc"] == scored["auc"]
    apart = test == 80
    assert isinstance(made["balanced_accuracy"], Estimate) == apart
    assert isinstance(made["recall"], Estimate) == apart


def test_tpr_is_refused_where_nonmembers_are_too_few() -> None:
    _, truth = _membership()
    made = MEMBERSHIP.score(Membership(torch.arange(len(truth))), truth)
    assert isinstance(made["tpr_at_fpr_0.001"], Refused)


def test_an_attack_that_finds_members_of_a_null_victim_is_flagged_beyond_the_band() -> None:
    sizes = {"members": 100, "nonmembers": 400}
    band = auc_band(**sizes)

    def flags(auc: float) -> int:
        return len(MEMBERSHIP.suspicions({"null": {"auc": Estimate(auc, auc, auc)}}, sizes))

    for away in (0.5, 0.5 - 0.99 * band, 0.5 + 0.99 * band):
        assert flags(away) == 0
    for away in (0.0, 0.5 - 1.01 * band, 0.5 + 1.01 * band, 1.0):
        assert flags(away) == 1
    assert not MEMBERSHIP.suspicions({"null": {"auc": Refused("few")}}, sizes)


@pytest.mark.parametrize("bad", [
    torch.full((160,), torch.nan), torch.zeros(159), torch.zeros(160, 1), torch.zeros(()),
])  # fmt: skip
def test_bad_scores_are_refused(bad: torch.Tensor) -> None:
    _, truth = _membership()
    with pytest.raises(BadAnswerError):
        MEMBERSHIP.score(Membership(bad), truth)
    with pytest.raises(BadAnswerError, match="decisions have shape"):
        MEMBERSHIP.score(Membership(torch.zeros(160), torch.zeros(3)), truth)


def test_the_question_names_the_phase_and_holds_no_truth() -> None:
    question, truth = _membership()
    split = tiny_split()
    assert question.phase == "encoder+classifier"
    assert question.examples.attributes == {}
    assert np.array_equal(truth, split.member.numpy())
    assert torch.equal(question.examples.index, split.candidates.index)
    few, some = _membership(max_rows=50)
    assert len(few.examples) == len(some) == 50
    assert 10 < some.sum() < 40
    assert MEMBERSHIP.sizes(truth) == {"members": 80, "nonmembers": 80}


def _shifted(shift: int) -> Split:
    """Members from one source, nonmembers from another that may be darker."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(100, 156, (600, 1, 4, 4), generator=generator)
    source = (torch.arange(600) >= 400).long()
    x -= shift * source[:, None, None, None]
    rows = Examples.of(x.byte(), torch.zeros(600, dtype=torch.long), scale=255, source=source)
    card = Card(
        name="shift", kind="image", shape=(1, 4, 4), classes=2, scale=255,
        sources={"train": 400, "test": 200},
    )  # fmt: skip
    protocol = Protocol(
        members=Part(100, "train"), nonmembers=Part(100, "test"), pool=Part(200, "train")
    )
    return cut(rows, card, protocol, 0)


def test_the_question_does_not_say_from_which_source_a_row_came() -> None:
    question, truth = _membership(split=_shifted(0))
    assert set(question.examples.source.tolist()) == {0}
    assert question.examples.digest() == _shifted(0).candidates.digest()
    assert truth.sum() == 100


def test_the_blind_baseline_finds_a_planted_shift_and_nothing_else() -> None:
    for shift, low, high in ((40, 0.9, 1.0), (0, 0.38, 0.62)):
        split = _shifted(shift)
        question, truth = _membership(split=split)
        metric = MEMBERSHIP.baselines(split, question, truth)["blind"]["auc"]
        assert isinstance(metric, Estimate)
        assert low < metric.value <= high
    question, truth = _membership(max_rows=12)
    found = blind_auc(question.examples, truth, 0)
    assert isinstance(found, Refused)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_errors_in_x_do_not_move_the_blind_baseline(seed: int) -> None:
    """The digits have pixels that are always blank, so components of almost no variance."""
    split = _digits(seed)
    rows, truth = split.candidates, split.member.numpy()
    x = as_float(rows.x, rows.scale)
    noise = 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    still, moved = (blind_auc(replace(rows, x=v), truth, seed) for v in (x, x + noise))
    assert isinstance(still, Estimate)
    assert isinstance(moved, Estimate)
    assert abs(still.value - moved.value) < 0.005


def _digits(seed: int) -> Split:
    dataset = Digits()
    return cut(dataset.load(None), dataset.card(None), dataset.protocols["default"], seed)


def test_equal_rows_count_half_in_the_blind_baseline() -> None:
    """In each fold, one of four members has the x of all nonmembers, and ties with them."""
    truth = np.arange(35) >= 15
    bright = truth.copy()
    for _, fold in StratifiedKFold(5, shuffle=True, random_state=0).split(truth, truth):
        assert truth[fold].tolist() == [False] * 3 + [True] * 4
        bright[fold[3]] = False
    x = torch.from_numpy(bright[:, None]).byte()
    found = blind_auc(Examples.of(x, torch.zeros(35, dtype=torch.long), scale=1), truth, 0)
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(3 / 4 + 1 / 4 / 2)


def test_the_fewest_rows_may_have_many_columns_in_the_blind_baseline() -> None:
    x = torch.rand(20, 64, generator=torch.Generator().manual_seed(0))
    found = blind_auc(Examples.of(x, torch.zeros(20).long(), scale=1), np.arange(20) < 10, 0)
    assert isinstance(found, Estimate)


def test_equal_rows_have_no_blind_baseline() -> None:
    rows = tiny_split().candidates
    blank = replace(rows, x=torch.zeros_like(rows.x))
    assert isinstance(blind_auc(blank, tiny_split().member.numpy(), 0), Refused)


# ---- attributes ----------------------------------------------------------------------------------


def _attributes(split: Split | None = None, **changes: Any) -> tuple[Any, Any]:
    split = split or tiny_split()
    options = {"max_rows": None, "sensitive": ("bright",), **changes}
    return ATTRIBUTES.pose(split, memoriser(split.victim()), **options)


def test_only_rows_that_no_phase_saw_are_posed_and_without_x() -> None:
    split = tiny_split()
    question, truth = _attributes()
    assert set(vars(question)) == {"embeddings", "values"}
    assert question.values == {"bright": 2}
    strangers = torch.cat([split.candidates.index[~split.member], split.test.index])
    assert len(truth.y) == len(set(strangers.tolist())) == 160
    inputs = torch.cat([split.candidates.x[~split.member], split.test.x])
    served = memoriser(split.victim())
    assert torch.equal(question.embeddings, served.embeddings(inputs))
    assert not torch.isin(strangers, split.victim().members.index).any()
    assert ATTRIBUTES.sizes(truth) == {"rows": 160}


def test_a_test_part_that_is_the_nonmembers_is_posed_once() -> None:
    split = tiny_split()
    again = replace(split, test=split.candidates.select(~split.member))
    assert len(_attributes(again)[1].y) == 80


def test_rows_without_the_attribute_are_not_posed() -> None:
    split = tiny_split()
    bright = split.test.attributes["bright"].clone()
    bright[:30] = -1
    partial = replace(split, test=replace(split.test, attributes={"bright": bright}))
    _, truth = _attributes(partial)
    assert len(truth.y) == 130
    assert truth.values["bright"].min() == 0
    assert len(_attributes(partial, max_rows=10)[1].y) == 10
    with pytest.raises(BadInputError, match="no attribute 'age'"):
        _attributes(sensitive=("age",))


def test_attribute_answers_are_scored_by_their_most_likely_value() -> None:
    _, truth = _attributes()
    values = torch.as_tensor(truth.values["bright"])
    p = torch.nn.functional.one_hot(values, 2) * 0.2 + 0.4
    made = ATTRIBUTES.score(Attributes({"bright": p}), truth)
    assert isinstance(made["accuracy"], Estimate)
    assert made["accuracy"].value == 1.0
    assert made["accuracy[bright]"] == made["accuracy"]
    wrong = ATTRIBUTES.score(Attributes({"bright": 1 - p}), truth)
    assert isinstance(wrong["accuracy"], Estimate)
    assert wrong["accuracy"].value == 0.0
    for bad, says in (
        ({}, "no probabilities"), ({"bright": p[:5]}, "shape"), ({"bright": p[:, 0]}, "shape"),
        ({"bright": p * torch.nan}, "not finite"),
    ):  # fmt: skip
        with pytest.raises(BadAnswerError, match=says):
            ATTRIBUTES.score(Attributes(bad), truth)


def test_majority_and_label_only_by_hand() -> None:
    split = tiny_split()
    pool_values = torch.tensor([1] * 250 + [0] * 150)
    pool_labels = torch.tensor([0] * 250 + [1] * 100 + [2] * 50)
    pool = replace(split.pool, y=pool_labels, attributes={"bright": pool_values})
    changed = replace(split, pool=pool)
    question, truth = _attributes(changed)
    made = ATTRIBUTES.baselines(changed, question, truth)
    majority, by_label = made["majority"]["accuracy"], made["label_only"]["accuracy"]
    assert isinstance(majority, Estimate)
    assert isinstance(by_label, Estimate)
    values = truth.values["bright"]
    assert majority.value == pytest.approx((values == 1).mean())
    guess = (truth.y != 1) & (truth.y != 2)  # of classes that the pool lacks: the majority
    assert by_label.value == pytest.approx((values == guess).mean())
