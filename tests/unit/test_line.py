"""An attack that asks over the line gets what it would get here, and no more."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench import Access, Augmentation
from privbench.grid.line import Answering, Line, RemoteOracle, RemoteSiblings, receive, send
from privbench.ground.errors import AccessDeniedError, AnswerError
from privbench.measure.methods.oracle import Oracle, Views
from privbench.measure.victims.play import Siblings
from privbench.testing import CPU, memoriser, tiny_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor


class Far:
    """A worker's side in a thread, and the attack's side."""

    def __init__(self, access: Access) -> None:
        served = memoriser(tiny_split().victim())

        def oracles() -> tuple[Oracle, Siblings]:
            return Oracle(served, access, asker="it"), Siblings(
                served, served, access, adaptive=True, seed=0, asker="it", store=None
            )

        here, there = Pipe()
        self.near, _ = oracles()
        self.answering = Answering(SimpleNamespace(device=CPU, oracles=oracles))  # type: ignore[arg-type]
        self.line, self.there = Line(here), there
        card, may, own = self.answering.described
        self.oracle = RemoteOracle(self.line, 0, card, may)
        self.own = RemoteSiblings(self.line, card, own)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                send(self.there, *self.answering.reply(*receive(self.there)))
            except (EOFError, OSError):
                return


@pytest.fixture
def far() -> Iterator[Far]:
    made = Far(~Access.NONE)
    yield made
    made.line._pipe.close()


SPLIT = tiny_split()
ROWS = SPLIT.candidates
ASKED: dict[str, Callable[[Any], Tensor]] = {
    "labels": lambda o: o.labels(ROWS),
    "posteriors": lambda o: o.posteriors(ROWS),
    "log-posteriors of a tensor": lambda o: o.log_posteriors(ROWS.x[:7]),
    "embeddings": lambda o: o.embeddings(ROWS),
    "views": lambda o: o.embeddings(Views(ROWS, Augmentation(crop=(0.8, 1.0), shift=1), 3, 5)),
    "gradient": lambda o: o.gradients(ROWS.x[:9] / 255, lambda served, x: (
        served.log_posteriors(x)[:, 0].double() + served.embeddings(2 * x).square().sum(1))),
    "gradient of whole numbers": lambda o: o.gradients(ROWS.x[:9], lambda served, x: (
        served.log_posteriors(x)[:, 0].double() + served.embeddings(x).square().sum(1))),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_answers_are_equal_bit_for_bit(far: Far, what: str) -> None:
    here, there = ASKED[what](far.near), ASKED[what](far.oracle)
    assert here.dtype == there.dtype
    assert torch.equal(here, there)
    assert float(there.double().abs().sum()) > 0
    steps = 2 if what == "gradient" else 1  # it asks about 2 x, too
    assert far.oracle.queries == far.answering.queries[0] == steps * far.near.queries
    assert (far.oracle.card, far.oracle.access) == (far.near.card, far.near.access)


def test_weights_and_siblings(far: Far) -> None:
    here, there = far.near.weights(), far.oracle.weights()
    assert here.keys() == there.keys()
    assert [*here] == [*there]
    assert all(torch.equal(here[name], there[name]) for name in here)
    (own,) = far.own.ask_for(3)  # it has no release, so there is one
    assert own.embeddings(SPLIT.pool).shape[0] == len(SPLIT.pool)
    assert (own.queries, far.oracle.queries) == (len(SPLIT.pool), 0)
    assert far.answering.own.oracles[0].queries == len(SPLIT.pool)


def test_the_far_side_decides() -> None:
    far = Far(Access.LABELS)
    far.oracle._may = ~Access.NONE
    for name in ("posteriors", "embeddings", "gradient"):
        with pytest.raises(AccessDeniedError, match="has access to LABELS only"):
            ASKED[name](far.oracle)
    with pytest.raises(AccessDeniedError):
        far.oracle.weights()
    far.line.queries = [0, 0]
    far.oracle.labels(ROWS)
    assert far.oracle.queries == len(ROWS)


@pytest.mark.parametrize("head", [
    {"ask": "_ask", "of": 0}, {"ask": "forward", "of": 0, "kind": "weights"}, {"of": 0},
    {"ask": "labels", "of": 7}, {"ask": "back", "of": 0, "step": 3}, {"ask": "labels", "of": 0},
    {"ask": "labels", "of": 0, "rows": "views", "scale": 255, "views": {"no": 1}, "n": 1},
])  # fmt: skip
def test_nonsense_is_refused(far: Far, head: dict[str, Any]) -> None:
    with pytest.raises((AnswerError, LookupError, TypeError)):
        far.line.ask({"x": ROWS.x[:2]}, **head)
    assert far.oracle.labels(ROWS).shape == (len(ROWS),)  # and the line goes on


def test_an_oracle_can_only_be_read() -> None:
    oracle = Oracle(memoriser(SPLIT.victim()), Access.LABELS, asker="it")
    for name in ("access", "queries"):
        with pytest.raises(AttributeError):
            setattr(oracle, name, 1)


def test_what_cannot_be_sent_leaves_the_line_as_it_was(far: Far) -> None:
    with pytest.raises(AttributeError):
        far.oracle.posteriors(ROWS.x.numpy())  # type: ignore[arg-type]
    assert torch.equal(far.oracle.labels(ROWS), far.near.labels(ROWS))


def test_threads_may_ask(far: Far) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [*pool.map(lambda i: far.oracle.embeddings(ROWS.x[i : i + 1]), range(40))]
    one_by_one = [far.near.embeddings(ROWS.x[i : i + 1]) for i in range(40)]
    assert torch.equal(torch.cat(made), torch.cat(one_by_one))
    assert far.oracle.queries == 40


def test_errors_of_the_victim_keep_their_kind(far: Far) -> None:
    wrong = torch.zeros(3, 5)
    for oracle in (far.near, far.oracle):
        with pytest.raises(RuntimeError):
            oracle.embeddings(wrong)
