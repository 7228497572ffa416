"""What an oracle hands out, refuses, counts and keeps."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench.ground.errors import AccessDeniedError
from privbench.ground.store.store import Store
from privbench.measure.data.augmentation import Augmentation
from privbench.measure.methods.access import Access
from privbench.measure.methods.oracle import Oracle, Views, views_seed
from privbench.testing import TinyImages, memoriser, tiny_split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

ROWS = tiny_split().candidates.select(slice(0, 30))
VIEWS = Views(ROWS, Augmentation(shift=1), 3, views_seed(0))
EVERYTHING = ~Access.NONE
ASK: dict[Access, Callable[[Oracle], Any]] = {
    Access.LABELS: lambda oracle: oracle.labels(ROWS),
    Access.POSTERIORS: lambda oracle: oracle.posteriors(ROWS),
    Access.EMBEDDINGS: lambda oracle: oracle.embeddings(ROWS),
    Access.GRADIENTS: lambda oracle: oracle.gradients(ROWS.x, lambda s, x: s.embeddings(x).sum(1)),
    Access.WEIGHTS: lambda oracle: oracle.weights(),
}


class Counting:
    """A served victim that says how often it was asked, with very sure posteriors."""

    card = TinyImages().card(None)
    grants = EVERYTHING

    def __init__(self, key: str | None = "counting", *, fresh: bool = False) -> None:
        self.key = key
        self.fresh = fresh
        self.asked = 0

    def embeddings(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return x.flatten(1)[:, :4].float()

    def log_posteriors(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        logits = torch.tensor([0.0, 800.0, -50.0], dtype=torch.float64).repeat(len(x), 1)
        return logits.log_softmax(1)

    def gradients(self, x: Tensor, loss: Callable[..., Tensor]) -> Tensor:
        del loss
        return torch.zeros_like(x, dtype=torch.float32)

    def weights(self) -> Mapping[str, Tensor]:
        return {}


@pytest.mark.parametrize("kind", list(Access), ids=str)
def test_only_what_was_declared_is_answered(kind: Access) -> None:
    ASK[kind](Oracle(Counting(), kind, asker="me"))
    others = EVERYTHING & ~kind
    with pytest.raises(AccessDeniedError) as error:
        ASK[kind](Oracle(Counting(), others, asker="me"))
    message = str(error.value)
    assert message.startswith(f"attack 'me' asked its oracle for {kind}")
    assert f"add Access.{kind.name} to its `needs`" in message


def test_log_posteriors_need_posteriors_and_labels_do_not_come_with_them() -> None:
    with pytest.raises(AccessDeniedError):
        Oracle(Counting(), Access.LABELS, asker="me").log_posteriors(ROWS)
    with pytest.raises(AccessDeniedError):
        Oracle(Counting(), Access.POSTERIORS, asker="me").labels(ROWS)


def test_nobody_gets_more_than_the_victim_grants() -> None:
    victim = memoriser(tiny_split().victim())
    victim.grants = EVERYTHING & ~Access.WEIGHTS
    oracle = Oracle(victim, EVERYTHING, asker="me")
    assert oracle.access == EVERYTHING & ~Access.WEIGHTS
    with pytest.raises(AccessDeniedError):
        oracle.weights()


def test_every_row_and_view_is_counted_also_where_the_answer_was_kept(tmp_path: Path) -> None:
    served = Counting()
    oracle = Oracle(served, EVERYTHING, asker="me", store=Store(tmp_path))
    for round_ in range(1, 3):
        oracle.embeddings(ROWS)
        oracle.embeddings(VIEWS)
        oracle.labels(ROWS)
        oracle.gradients(ROWS.x[:5], lambda s, x: s.embeddings(x))
        assert oracle.queries == round_ * (30 + 90 + 30 + 5)
    assert served.asked == 30 + 90 + 30
    assert oracle.weights() == {}


def test_kept_answers_equal_those_given_first(tmp_path: Path) -> None:
    victim = memoriser(tiny_split().victim())
    plain = Oracle(victim, EVERYTHING, asker="me")
    store = Store(tmp_path)
    views = Views(ROWS, Augmentation(crop=(0.5, 1.0)), 4, views_seed(0))
    for _ in range(2):
        kept = Oracle(victim, EVERYTHING, asker="me", store=store)
        for x in (ROWS, views):
            assert torch.equal(kept.embeddings(x), plain.embeddings(x))
            assert torch.equal(kept.log_posteriors(x), plain.log_posteriors(x))
            assert torch.equal(kept.labels(x), plain.labels(x))
    assert plain.embeddings(views).shape[:2] == (30, 4)
    assert len(list(store.list())) == 6  # embeddings, posteriors and labels of rows and of views


def test_tensors_unknown_victims_and_fresh_draws_are_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for served, x in ((Counting(), ROWS.x), (Counting(None), ROWS), (Counting(fresh=True), ROWS)):
        oracle = Oracle(served, EVERYTHING, asker="me", store=store)
        oracle.embeddings(x)
        oracle.embeddings(x)
        assert served.asked == 60
    assert not list(store.list())


class Wide(Counting):
    """Embeds into as many numbers as make the answer for all views that many MiB large."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        self.width = mib * 2**18 // len(ROWS) // VIEWS.n

    def embeddings(self, x: Tensor) -> Tensor:
        return super().embeddings(x).sum(1, keepdim=True).expand(-1, self.width)


@pytest.mark.parametrize(
    ("mib", "models", "asked"), [(72, 1, 90), (72, 7, 90), (72, 16, 180), (60, 1000, 90)]
)
def test_models_of_one_kind_share_what_may_be_kept(
    tmp_path: Path, mib: int, models: int, asked: int
) -> None:
    served = Wide(mib)
    for _ in range(2):  # attacks
        oracle = Oracle(
            served, EVERYTHING, asker="me", store=Store(tmp_path), models=models, rows_per_call=30
        )
        answer = oracle.embeddings(VIEWS)
        assert answer.shape == (30, 3, served.width)
        assert torch.equal(
            answer[..., 0].flatten(), Counting().embeddings(VIEWS.make(0, 30)).sum(1)
        )
        assert oracle.queries == 90
    assert served.asked == asked  # each view once, or once for each attack


def test_of_attacks_that_ask_at_the_same_time_one_computes(tmp_path: Path) -> None:
    class Slow(Counting):
        def embeddings(self, x: Tensor) -> Tensor:
            time.sleep(0.5)
            return super().embeddings(x)

    served = Slow()

    def ask(_: int) -> Tensor:
        return Oracle(served, EVERYTHING, asker="me", store=Store(tmp_path)).embeddings(VIEWS)

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(ask, range(3))
    assert served.asked == 90
    assert all(torch.equal(first, other) for other in others)


def test_a_damaged_answer_is_computed_again(tmp_path: Path) -> None:
    served = Counting()
    oracle = Oracle(served, EVERYTHING, asker="me", store=Store(tmp_path))
    before = oracle.embeddings(VIEWS).clone()
    (path,) = tmp_path.glob("outputs/*/*/tensors.safetensors")
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert torch.equal(oracle.embeddings(VIEWS), before)
    assert torch.equal(oracle.embeddings(VIEWS), before)
    assert served.asked == 2 * 90


def test_rows_whose_x_was_exchanged_are_not_taken_for_the_old_ones(tmp_path: Path) -> None:
    oracle = Oracle(Counting(), EVERYTHING, asker="me", store=Store(tmp_path))
    before = oracle.embeddings(ROWS)
    for x in (255 - ROWS.x, ROWS.x.float() / 255, ROWS.x.float() / 255 + 1e-4):
        moved = oracle.embeddings(replace(ROWS, x=x))
        assert torch.equal(moved, x.flatten(1)[:, :4].float())
    assert torch.equal(oracle.embeddings(ROWS), before)


def test_log_posteriors_stay_finite_where_posteriors_saturate() -> None:
    oracle = Oracle(Counting(), EVERYTHING, asker="me")
    log_p = oracle.log_posteriors(ROWS)
    assert log_p.dtype == torch.float64
    assert bool(log_p.isfinite().all())
    assert float(oracle.posteriors(ROWS)[0, 1]) == 1.0
    assert float(log_p[0, 0]) == pytest.approx(-800)


def test_views_are_keyed_by_the_row_and_come_in_the_rows_order() -> None:
    oracle = Oracle(memoriser(tiny_split().victim()), EVERYTHING, asker="me", rows_per_call=7)
    views = Views(ROWS, Augmentation(crop=(0.5, 1.0), shift=2), 3, views_seed(0))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    moved = replace(views, rows=ROWS.select(order))
    assert torch.equal(oracle.embeddings(moved), oracle.embeddings(views)[order])
    first = oracle.embeddings(views.make(0, 1))
    assert torch.equal(first, oracle.embeddings(views)[0])
    assert not torch.equal(first[0], first[1])
    assert views.digest() != replace(views, seed=1).digest() != replace(views, n=2).digest()
