"""De-censoring: what a map hides and a transform can undo is found, what is gone is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.oracles.toy_cell import toy_cell
from torch import Tensor, nn

from privbench import (
    Access,
    AttackContext,
    AttributeQuestion,
    Attributes,
    BadInputError,
    Card,
    Examples,
    Oracle,
    Protocol,
)
from privbench.plugins.requirements import reason_to_skip
from privbench.toolbox.classifiers import standardised
from privbench_plugins.attacks.attribute_decensoring import AttributeDecensoring, Known, regress

D = 6
CARD = Card(
    name="toy", kind="real", shape=(D,), classes=2, scale=1.0, attributes={"a": 3, "b": 2},
    sensitive=("a",), sources={"all": 400},
)  # fmt: skip
QUICK = AttributeDecensoring(epochs=1, steps=150)


class Censor:
    """Embeds by a fixed linear map (d, any)."""

    card = CARD
    grants = Access.EMBEDDINGS
    key = None

    def __init__(self, through: Tensor) -> None:
        self.through = through

    def embeddings(self, x: Tensor) -> Tensor:
        return torch.mm(x.float(), self.through)


def mixing(spread: float = 4.0) -> Tensor:
    """An invertible map (d, d) that stretches some directions ``spread`` times as much as others.

    Coordinate 2, which tells the attribute, goes where it is weakest.
    """
    drawn = torch.randn(D, D, generator=torch.Generator().manual_seed(5))
    turn: Tensor = torch.linalg.qr(drawn).Q
    strength = torch.full((D,), spread)
    strength[2] = 1
    return strength[:, None] * turn


def people(n: int, seed: int) -> Examples:
    """Rows whose coordinate 2 is attribute a; b is told by coordinate 1."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), n, replacement=True, generator=generator)
    x = torch.randn(n, D, generator=generator)
    x[:, 2] = a - 0.5 + 0.1 * x[:, 2]
    b = (x[:, 1] > 0).long()
    return Examples.of(x, b, {"a": a, "b": b}, scale=1.0)


def play(
    auxiliary: Examples,
    asked: Examples,
    through: Tensor,
    attack: AttributeDecensoring = QUICK,
    **values: int,
) -> Attributes:
    own = Oracle(Censor(through), Access.EMBEDDINGS, asker="test")  # type: ignore[arg-type]
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=("a",),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(),
        auxiliary=auxiliary, auxiliary_oracle=own, data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    question = AttributeQuestion(asked.x.float() @ through, values or {"a": 3})
    answer = attack.answer(Oracle(Censor(through), Access.NONE, asker="test"), question, ctx)  # type: ignore[arg-type]
    assert own.queries == len(auxiliary)
    for guess in answer.probabilities.values():
        assert guess.isfinite().all()
        torch.testing.assert_close(guess.sum(1), torch.ones(len(asked), dtype=torch.float64))
    return answer


def accuracy(answer: Attributes, asked: Examples, name: str = "a") -> float:
    return float((answer.probabilities[name].argmax(1) == asked.attributes[name]).double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("through", [torch.eye(D), mixing()], ids=["nothing", "invertible"])
def test_a_linear_censoring_that_can_be_undone_is_undone(through: Tensor) -> None:
    auxiliary, asked = people(500, 0), people(300, 1)
    answer = play(auxiliary, asked, through)
    assert accuracy(answer, asked) > 0.97
    assert float(answer.notes["a: variance that T leaves"]) < 0.2


@pytest.mark.slow
def test_what_is_gone_stays_at_the_majority() -> None:
    gone = torch.eye(D)
    gone[2] = 0
    auxiliary, asked = people(500, 0), people(1000, 1)
    answer = play(auxiliary, asked, gone, AttributeDecensoring(epochs=1, steps=40))
    majority = float((asked.attributes["a"] == 0).double().mean())
    assert majority - 0.15 < accuracy(answer, asked) < majority + 0.03
    nothing = play(auxiliary, asked, torch.zeros(D, 4))
    assert accuracy(nothing, asked) == pytest.approx(majority)


@pytest.mark.slow
def test_each_attribute_is_guessed_by_itself() -> None:
    auxiliary, asked = people(400, 0), people(200, 1)
    answer = play(auxiliary, asked, torch.eye(D), a=3, b=2)
    assert [p.shape for p in answer.probabilities.values()] == [(200, 3), (200, 2)]
    assert accuracy(answer, asked, "a") > 0.95
    assert accuracy(answer, asked, "b") > 0.85


def test_rows_without_the_attribute_are_left_out() -> None:
    auxiliary, asked = people(300, 0), people(50, 1)
    missing = torch.arange(300) % 3 == 0
    some = Examples.of(
        auxiliary.x, auxiliary.y, {"a": torch.where(missing, -1, auxiliary.attributes["a"])},
        scale=1.0,
    )  # fmt: skip
    quick = QUICK.replace(steps=10)
    found = play(some, asked, torch.eye(D), quick).probabilities["a"]
    kept = play(auxiliary.select(~missing), asked, torch.eye(D), quick).probabilities["a"]
    assert torch.equal(found, kept)


def test_every_release_of_a_row_is_regressed_on_that_row_s_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from privbench_plugins.attacks import attribute_decensoring

    seen = list[tuple[Tensor, Tensor]]()

    def released(oracle: Oracle, rows: Examples, ctx: AttackContext, *numbers: int) -> Tensor:
        del oracle, numbers
        h = ctx.auxiliary_oracle.embeddings(rows)
        return torch.stack([h, 2 * h, 3 * h])

    def regressing(network: nn.Module, x: Tensor, y: Tensor, **settings: Any) -> nn.Module:
        del settings
        seen.append((x, y))
        return network

    monkeypatch.setattr(attribute_decensoring, "released", released)
    monkeypatch.setattr(attribute_decensoring, "regress", regressing)
    monkeypatch.setattr(AttributeDecensoring, "_features", lambda _, known, __: known.x)
    auxiliary, asked = people(30, 0), people(5, 1)
    play(auxiliary, asked, torch.eye(D), QUICK.replace(steps=1))
    ((z, wanted),) = seen
    x = auxiliary.x
    torch.testing.assert_close(z, standardised(torch.cat([x, 2 * x, 3 * x]), x)[0])
    assert torch.equal(wanted, torch.cat([x, x, x]))


def test_one_value_only_is_the_answer_and_none_is_an_error() -> None:
    auxiliary, asked = people(60, 0), people(20, 1)
    ones = Examples.of(auxiliary.x, auxiliary.y, {"a": torch.ones(60).long()}, scale=1.0)
    answer = play(ones, asked, torch.eye(D))
    assert (answer.probabilities["a"].argmax(1) == 1).all()
    assert answer.notes["a: model"] == "majority"
    for attributes in ({"a": torch.full((60,), -1)}, {}):
        blank = Examples.of(auxiliary.x, auxiliary.y, attributes, scale=1.0)
        with pytest.raises(BadInputError, match="no auxiliary row"):
            play(blank, asked, torch.eye(D))


def test_a_permuted_question_and_the_global_generator() -> None:
    auxiliary, asked = people(100, 0), people(40, 1)
    quick = QUICK.replace(steps=10)
    plain = play(auxiliary, asked, mixing(), quick).probabilities["a"]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(99)  # noqa: TID251 - nothing may depend on it
        before = torch.get_rng_state()
        moved = play(auxiliary, asked.select(order), mixing(), quick).probabilities["a"]
        assert torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(moved, plain[order], rtol=1e-4, atol=1e-5)


def test_images_larger_than_eight_pixels_are_read_by_a_convolutional_network() -> None:
    card = Card(
        name="pictures", kind="image", shape=(1, 12, 12), classes=2, scale=255,
        attributes={"a": 2}, sensitive=("a",), sources={"all": 200},
    )  # fmt: skip

    class Flat(Censor):
        def embeddings(self, x: Tensor) -> Tensor:
            return (x.float() / 255).flatten(1)

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 128, (200, 1, 12, 12), generator=generator)
    s = torch.arange(200) % 2
    x[s == 1, :, :, 6:] += 100
    rows = Examples.of(x.byte(), s, {"a": s}, scale=255)
    own = Oracle(Flat(torch.eye(1)), Access.EMBEDDINGS, asker="test")  # type: ignore[arg-type]
    ctx: Any = AttackContext(
        card=card, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1),
        sensitive=("a",), device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(),
        auxiliary=rows.select(slice(0, 120)), auxiliary_oracle=own, data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    question = AttributeQuestion(own.embeddings(rows.select(slice(120, 200))), {"a": 2})
    answer = QUICK.replace(steps=40).answer(own, question, ctx)
    right = answer.probabilities["a"].argmax(1) == s[120:]
    assert float(right.double().mean()) > 0.95


def test_cells_without_something_to_guess_are_unfit() -> None:
    attack = AttributeDecensoring()

    def cell(**changes: Any) -> Any:
        return toy_cell(**{"card": CARD, "sensitive": ("a",), **changes})

    assert reason_to_skip(attack, cell()) is None
    assert "names none" in str(reason_to_skip(attack, cell(sensitive=())))
    assert "attribute 'z', which" in str(reason_to_skip(attack, cell(sensitive=("z",))))
    assert "reads images" in str(reason_to_skip(attack.replace(backbone="resnet18"), cell()))


def test_regression_finds_a_linear_map_and_counts_updates() -> None:
    generator = torch.Generator().manual_seed(0)
    x, through = torch.randn(50, 3, generator=generator), torch.randn(3, 2, generator=generator)
    network = nn.Linear(3, 2)
    regress(network, x, x @ through, lr=0.05, batch=10, epochs=100, generator=generator)
    assert not network.training
    torch.testing.assert_close(network.weight.T, through, atol=1e-3, rtol=0)
    steps: list[int] = []
    network.register_forward_hook(lambda *_: steps.append(1))
    few = x[:5], x[:5] @ through
    regress(network, *few, lr=0.1, batch=2, epochs=2, steps=8, generator=generator)
    assert len(steps) == 8  # two epochs are six


@pytest.mark.slow
def test_the_scale_of_an_embedding_changes_no_guess() -> None:
    auxiliary, asked = people(300, 0), people(100, 1)
    plain, large = (play(auxiliary, asked, scale * mixing()) for scale in (1.0, 1000.0))
    for guess, other in zip(
        plain.probabilities.values(), large.probabilities.values(), strict=True
    ):
        torch.testing.assert_close(guess, other, atol=0.02, rtol=0)


def test_features_are_standardised() -> None:
    """A coordinate of the own model's features with a large spread would be all that T learns."""
    rows = people(300, 0)
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=("a",),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(), auxiliary=rows,
        auxiliary_oracle=None, data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    known = Known("a", rows.x.float(), rows.x.float()[None], rows.attributes["a"], 3)
    found = QUICK._features(known, ctx)
    assert found.mean(0).abs().max() < 1e-4
    moving = found.std(0) > 0
    assert moving.any()
    torch.testing.assert_close(
        found.std(0)[moving], torch.ones(int(moving.sum())), atol=0.01, rtol=0
    )
