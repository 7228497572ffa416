"""The line between an attack in a process of its own and the worker that holds the victim.

The attack's side asks, the worker's side answers, and both send data only: JSON and safetensors.
The worker holds the oracles, so it decides what is allowed and counts what is asked, whatever code
runs in the other process.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import threading
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from privbench.grid.outcome import encodable
from privbench.ground import errors
from privbench.measure.data.augmentation import Augmentation
from privbench.measure.data.examples import Examples, as_float
from privbench.measure.methods.oracle import Oracle, Views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from torch import Tensor

    from privbench.measure.data.examples import Card
    from privbench.measure.methods.access import Access
    from privbench.measure.methods.oracle import Served
    from privbench.measure.victims.play import Match

_ANSWERS = ("labels", "log_posteriors", "embeddings")


def send(pipe: Connection, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Send plain values and named tensors, as one message: whole, or not at all."""
    from safetensors.torch import save

    values = json.dumps({**head, "names": [*tensors]}).encode()
    held = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    pipe.send_bytes(len(values).to_bytes(8, "little") + values + held)


def receive(pipe: Connection) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Receive what ``send`` sent; tensors come in the order in which they were sent.

    Raises:
        EOFError, OSError: if the other side has ended.
    """
    from safetensors.torch import load

    message = pipe.recv_bytes()
    end = 8 + int.from_bytes(message[:8], "little")
    head, held = json.loads(message[8:end]), load(message[end:])
    return head, {name: held[name] for name in head.pop("names")}


class Answering:
    """The worker's side: the oracles of a match, which the attack asks by number.

    Number 0 is about the question; the others are about the adversary's own rows.
    """

    def __init__(self, match: Match) -> None:
        """Create the oracles of a match."""
        self.device = match.device
        self.asked, self.own = match.oracles()
        self._steps: list[tuple[Tensor, Tensor]] = []  # x and value, of one gradient
        self._went_back = False
        self._twice = Counter[Oracle]()

    @property
    def oracles(self) -> list[Oracle]:
        """The oracles by number."""
        return [self.asked, *self.own.oracles]

    @property
    def queries(self) -> list[int]:
        """Rows that each was asked about."""
        return [oracle.queries - self._twice[oracle] for oracle in self.oracles]

    @property
    def described(self) -> tuple[Card, Access, Access]:
        """What the attack's side is told of them: their card and their access."""
        return self.asked.card, self.asked.access, self.own.oracles[0].access

    def reply(
        self, head: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """Answer one question; what is wrong with it comes back as a sentence."""
        error, kind = "", ""
        made: Mapping[str, Tensor] = {}
        try:
            made = self._made(head, tensors)
        except Exception as wrong:  # noqa: BLE001 - the attack is told
            error, kind = encodable(str(wrong)), type(wrong).__name__
        return {"error": error, "kind": kind, "queries": self.queries}, made

    def _made(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        ask, oracle = head["ask"], self.oracles[head["of"]]
        if ask == "siblings":
            self.own.ask_for(int(head["n"]))
            return {}
        if ask == "weights":
            weights: Mapping[str, Tensor] = oracle.weights()
            return weights
        if ask == "forward":
            return {"answer": self._forward(oracle, head["kind"], tensors["x"].to(self.device))}
        if ask == "back":
            x, value = self._steps[head["step"]]
            self._went_back = True
            given = tensors["gradient"].to(self.device)
            (gradient,) = torch.autograd.grad(value, x, given, retain_graph=True)
            return {"answer": gradient}
        if ask not in _ANSWERS:
            raise errors.AnswerError(
                f"an oracle has no '{ask}': ask for labels, posteriors or embeddings"
            )
        return {"answer": getattr(oracle, ask)(self._rows(head, tensors["x"].to(self.device)))}

    def _rows(self, head: Mapping[str, Any], x: Tensor) -> Tensor | Examples | Views:
        if head["rows"] == "tensor":
            return x
        unlabelled = torch.full((len(x),), -1, device=x.device)
        rows = Examples.of(x, unlabelled, scale=head["scale"])
        if head["rows"] == "examples":
            return rows
        given: Any = {
            name: tuple(v) if isinstance(v, list) else v for name, v in head["views"].items()
        }
        return Views(rows, Augmentation(**given), head["n"], head["seed"])

    def _forward(self, oracle: Oracle, kind: str, x: Tensor) -> Tensor:
        """The victim's answer, of which the attack will ask the gradient."""
        if kind not in _ANSWERS[1:]:
            raise errors.AnswerError(
                f"there is no gradient of '{kind}': take posteriors or embeddings"
            )
        if self._went_back:
            self._steps, self._went_back = [], False
        if self._steps and torch.equal(self._steps[0][0], x):
            # One pass of the model gives embeddings and posteriors of the same rows.
            self._twice[oracle] += len(x)

        def loss(served: Served, x: Tensor) -> Tensor:
            self._steps.append((x, getattr(served, kind)(x)))
            raise _EnoughError

        with contextlib.suppress(_EnoughError):
            oracle.gradients(x, loss)
        return self._steps[-1][1]


class _EnoughError(Exception):
    """The answer is there; its gradient comes later."""


class Line:
    """The attack's side of the line.

    Attributes:
        queries: rows that each oracle was asked about, as the worker counts.
    """

    def __init__(self, pipe: Connection) -> None:
        """``pipe`` leads to the worker."""
        self._pipe, self._lock, self._owner = pipe, threading.Lock(), os.getpid()
        self.queries = [0, 0]

    def ask(self, tensors: Mapping[str, Tensor] | None = None, **head: Any) -> dict[str, Tensor]:
        """Ask the worker.

        Raises:
            AccessDeniedError: if the attack did not declare that access.
            AnswerError: in a process that the attack forked.
            Exception: whatever else went wrong there.
        """
        if os.getpid() != self._owner:
            raise errors.AnswerError("an oracle answers the attack's own process only: ask it "
                                     "there, and give the answers to what you start")  # fmt: skip
        with self._lock:  # threads of an attack ask one after the other
            send(self._pipe, head, tensors or {})
            told, made = receive(self._pipe)
            self.queries = told["queries"]
        if told["kind"]:
            raise _error(told["kind"], told["error"])
        return made

    def end(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Say the last word. Threads that go on asking wait, until this process ends.

        A process that the attack forked, and that came back from its answer, ends here.
        """
        if os.getpid() != self._owner:
            os._exit(0)
        self._lock.acquire()
        send(self._pipe, told, tensors)


def _error(kind: str, text: str) -> Exception:
    """The error of that name, if it is one of ours or of Python's."""
    found = getattr(errors, kind, None) or getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with contextlib.suppress(TypeError):
            return found(text)
    return errors.AnswerError(f"{kind}: {text}")


class RemoteOracle(Oracle):
    """An oracle whose victim stays with the worker."""

    def __init__(self, line: Line, of: int, card: Card, access: Access) -> None:
        """Ask the oracle with number ``of``; card and access are what the worker said of it."""
        self._line, self._of, self._about, self._may = line, of, card, access

    @property
    def access(self) -> Access:
        """See ``Oracle``."""
        return self._may

    @property
    def queries(self) -> int:
        """See ``Oracle``."""
        return int(self._line.queries[self._of])

    @property
    def card(self) -> Card:
        """See ``Oracle``."""
        return self._about

    def labels(self, x: Tensor | Examples | Views) -> Tensor:
        """See ``Oracle``."""
        return self._answer("labels", x)

    def log_posteriors(self, x: Tensor | Examples | Views) -> Tensor:
        """See ``Oracle``."""
        return self._answer("log_posteriors", x)

    def embeddings(self, x: Tensor | Examples | Views) -> Tensor:
        """See ``Oracle``."""
        return self._answer("embeddings", x)

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """See ``Oracle``: the loss is computed here, and the victim's part of it by the worker."""
        x = as_float(x, self.card.scale).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(_Differentiable(self), x).sum(), x)
        return gradient

    def weights(self) -> Mapping[str, Tensor]:
        """See ``Oracle``."""
        return self._line.ask(ask="weights", of=self._of)

    def forget(self) -> None:
        """Keep nothing: the worker keeps answers."""

    def forward(self, kind: str, x: Tensor) -> Tensor:
        """Return the victim's answer, of which ``back`` gives the gradient."""
        made = self._line.ask({"x": x}, ask="forward", of=self._of, kind=kind)
        return made["answer"].to(x.device)

    def back(self, step: int, gradient: Tensor) -> Tensor:
        """Return the gradient of step ``step`` with respect to x."""
        made = self._line.ask({"gradient": gradient}, ask="back", of=self._of, step=step)
        return made["answer"].to(gradient.device)

    def _answer(self, ask: str, x: Tensor | Examples | Views) -> Tensor:
        head: dict[str, Any] = {"ask": ask, "of": self._of, "rows": "tensor"}
        rows = x.rows if isinstance(x, Views) else x
        if isinstance(rows, Examples):
            head |= {"rows": "examples", "scale": rows.scale}
            rows = rows.x
        if isinstance(x, Views):
            head |= {"rows": "views", "views": asdict(x.augmentation), "n": x.n, "seed": x.seed}
        return self._line.ask({"x": rows}, **head)["answer"].to(rows.device)


class RemoteSiblings:
    """The victim as it answers the adversary's own rows; see ``play.Siblings``."""

    def __init__(self, line: Line, card: Card, access: Access) -> None:
        """Begin with one oracle."""
        self._line, self._card, self._access = line, card, access
        self.oracles: list[Oracle] = [RemoteOracle(line, 1, card, access)]

    def ask_for(self, n: int) -> tuple[Oracle, ...]:
        """Return n oracles, or a single one if there are no others."""
        self._line.ask(ask="siblings", of=0, n=n)
        for of in range(len(self.oracles) + 1, len(self._line.queries)):
            self.oracles.append(RemoteOracle(self._line, of, self._card, self._access))
        return tuple(self.oracles[:n])


class _Differentiable:
    """The victim as a loss sees it."""

    def __init__(self, oracle: RemoteOracle) -> None:
        self.card, self.grants, self.key = oracle.card, oracle.access, None
        self.gradients, self.weights = oracle.gradients, oracle.weights
        self._oracle, self._steps = oracle, 0

    def embeddings(self, x: Tensor) -> Tensor:
        return self._step("embeddings", x)

    def log_posteriors(self, x: Tensor) -> Tensor:
        return self._step("log_posteriors", x)

    def _step(self, kind: str, x: Tensor) -> Tensor:
        self._steps += 1
        made: Tensor = _Step.apply(x, self._oracle, kind, self._steps - 1)
        return made


class _Step(torch.autograd.Function):
    """A step of a loss that the worker computes, forward and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, oracle: RemoteOracle, kind: str, step: int) -> Tensor:
        ctx.oracle, ctx.step = oracle, step
        return oracle.forward(kind, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.oracle.back(ctx.step, gradient), None, None, None
