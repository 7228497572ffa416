"""IMIA: how would the victim answer the row with and without training on it? Imitate the victim.

Du, Chen, Xiao, Ribeiro, Li: Imitative Membership Inference Attack. USENIX Security 2026, the
non-adaptive attack.

The adversary sees posteriors, knows true labels, and has labelled rows of its own, none of which is
a candidate. It trains few models, but each imitates this victim. Steps, for each model:

1. Warm up: train a new model on half of the adversary's rows, by cross-entropy.
2. *Out* model: train on by the mean of cross-entropy and of the imitation loss, the squared
   differences between the logs of its posteriors and the victim's.
3. *In* model: train the warmed-up model on by cross-entropy on the pivots, the rows of each class
   that the victim fits best.

The signal of a row is ``log p_y - log max p_j`` over the other classes. Without training on a row,
the victim's is the median over out models. With it, it is the median over in models and pivots of
the row's class. Score: how much nearer the victim's own signal is to the second.

Deviations: see the class. What to expect: more than one threshold finds, for a few short trainings,
and less than shadows find: on ``digits`` AUC .674 with a ``supervised`` victim, where
``metric-confidence`` has .650 and ``lira`` .795 (leaderboards/digits-attacks.md). 0.5 on a victim
that answers members and nonmembers alike.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from privbench import (
    Access,
    Batch,
    BatchSpec,
    Ge,
    Gt,
    Le,
    Lt,
    Membership,
    MembershipAttack,
    Optimizer,
    Outputs,
    Paper,
    Phase,
    Step,
    Training,
    hookimpl,
)
from privbench.toolbox.likelihood import floored, hinge
from privbench.toolbox.phases import cross_entropy
from privbench.toolbox.undefended import log_posteriors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from privbench import (
        Attack,
        AttackContext,
        Clock,
        Examples,
        MembershipQuestion,
        Model,
        Oracle,
    )

    Loss = Callable[[Outputs, Batch, Clock], Tensor]


@dataclass(frozen=True)
class IMIA(MembershipAttack):
    """Scores how much nearer the victim's answer is to imitations with the row than without.

    The adversary has posteriors and labels, knows the victim's architecture, and trains imitations
    on its own rows only. A row is called a member if its score is above 0. Cost: one query per
    row, plus one for each of the adversary's own rows, once.

    Attributes:
        models: number of imitations; each is an out model and an in model.
        epochs: passes over its rows in which an out model trains, warm-up included.
        warm_up: how many of them are the warm-up.
        in_epochs: passes over the pivots.
        in_updates: minimum number of updates on the pivots: with few pivots there are more epochs.
            The paper's 20 epochs are 800 updates.
        pivots: share of the adversary's rows that are pivots.
        margin: weight, in the imitation loss, of the true class and of the most likely other one;
            all others have 1.
        batch: rows per update.
        optimizer: ``adam``, or ``sgd`` with momentum .9.
        lr: learning rate at the start of each of the three trainings; cosine decay to 0.
        weight_decay: L2 penalty.
    """

    name: ClassVar[str] = "imia"
    requires: ClassVar[tuple[str, ...]] = ("pool", "trainable")
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Imitative Membership Inference Attack",
        "Du, Chen, Xiao, Ribeiro, Li", "USENIX Security 2026",
        "non-adaptive attack",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Checked against the abstract, a summary with the formulas of signal and imitation loss, "
        "and the authors' code, not against the text. Only the non-adaptive form. Logs of "
        "posteriors are matched, as in the summary (their code: logits, which an adversary does "
        "not see). The weighted squares are divided by the sum of the weights. Adam at 1e-3 in "
        "batches of 64, which suits networks without batch normalisation (`paper`: SGD at .1 in "
        "batches of 256). Each training has a cosine of its own (theirs: one for warm-up and "
        "imitation) and keeps its last state (theirs: the most accurate on held-out rows). At "
        "least 800 updates on the pivots (the paper: 20 passes, few updates on few pivots). No "
        "augmented queries. The threshold is 0; their code has none. A class without pivots takes "
        "those of all classes."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "batch": 256, "warm_up": 80}
    }

    models: Annotated[int, Ge(2)] = 10
    epochs: Annotated[int, Ge(1)] = 100
    warm_up: Annotated[int, Ge(1)] = 50
    in_epochs: Annotated[int, Ge(1)] = 20
    in_updates: Annotated[int, Ge(0)] = 800
    pivots: Annotated[float, Gt(0), Le(1)] = 0.5
    margin: Annotated[float, Gt(0)] = 1.0
    batch: Annotated[int, Ge(1)] = 64
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Gt(0), Lt(10)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.0

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the victim's signal between those of in and out models."""
        rows = ctx.auxiliary.select(ctx.auxiliary.y >= 0).to(ctx.device)
        asked = question.examples.to(ctx.device)
        victim = ctx.auxiliary_oracle.log_posteriors(rows).to(ctx.device)
        chosen = best_fitted(hinge(victim, rows.y), rows.y, self.pivots)
        # a row trains exactly half of the imitations, whatever its place
        rank = ctx.uniform(rows, self.models, "halves").argsort(dim=1).argsort(dim=1)
        outside, inside = [], []
        for i in range(self.models):
            half = (rank[:, i] < self.models // 2).nonzero().squeeze(1)
            if not len(half):
                half = torch.arange(len(rows), device=rows.device)
            out, within = self._imitate(
                ctx, i, rows.select(half), victim[half], rows.select(chosen)
            )
            outside.append(hinge(log_posteriors(out, asked), asked.y))
            inside.append(hinge(log_posteriors(within, rows.select(chosen)), rows.y[chosen]))
        without = torch.stack(outside).nanquantile(0.5, 0)
        member = by_class(torch.stack(inside), rows.y[chosen], asked.y)
        signal = hinge(oracle.log_posteriors(asked).to(ctx.device), asked.y)
        scores = nearer(signal, member, without).nan_to_num(0.0)
        notes = {
            "pivots": float(len(chosen)),
            "mean signal of out models": float(without.nanmean()),
            "mean signal of in models": float(torch.stack(inside).mean()),
        }
        return Membership(scores, scores > 0, notes)

    def _imitate(
        self, ctx: AttackContext, i: int, half: Examples, victim: Tensor, pivots: Examples
    ) -> tuple[Model, Model]:
        """Return the out model and the in model of imitation i."""

        def train(model: Model, name: str, rows: Examples, epochs: int, loss: Loss) -> Model:
            phase = self._phase(name, epochs, loss)
            Training(model.requires_grad_(True), phase, rows, ctx.salt(name, i)).run()
            return model

        def imitation(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
            target = victim[batch.rows].to(out.logits.dtype)
            matched = imitation_loss(out.logits.log_softmax(1), target, batch.y, self.margin)
            return (matched + cross_entropy(out, batch, clock)) / 2

        warm = train(ctx.untrained(i), "warm-up", half, min(self.warm_up, self.epochs),
                     cross_entropy)  # fmt: skip
        out, rest = copy.deepcopy(warm), self.epochs - self.warm_up
        if rest > 0:
            train(out, "imitation", half, rest, imitation)
        epochs = max(
            self.in_epochs, -(-self.in_updates // BatchSpec(self.batch).steps(len(pivots)))
        )
        return out, train(warm, "pivots", pivots, epochs, cross_entropy)

    def _phase(self, name: str, epochs: int, loss: Loss) -> Phase:
        momentum = 0.9 if self.optimizer == "sgd" else 0.0
        spec = Optimizer(self.optimizer, self.lr, self.weight_decay, momentum, "cosine")
        parts = ("encoder", "classifier")
        return Phase(
            name=name, rows="members", forward=_forward, steps={"train": Step(loss, trains=parts)},
            epochs=epochs, batch=BatchSpec(self.batch), optimizers=dict.fromkeys(parts, spec),
        )  # fmt: skip


def _forward(model: Model, batch: Batch) -> Outputs:
    """Return logits (n, k)."""
    return Outputs(logits=lambda: model.logits(model.encode(batch.x)))


def imitation_loss(log_q: Tensor, log_p: Tensor, y: Tensor, margin: float) -> Tensor:
    """Return the mean over rows of the weighted mean squared difference of log-posteriors.

    Args:
        log_q: (n, k) of the imitation.
        log_p: (n, k) of the victim; a 0 is floored as in ``hinge``.
        y: (n,) true classes.
        margin: weight of the true class and of the victim's most likely other class; others 1.

    >>> log_q, log_p = torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 3.0]])
    >>> [float(imitation_loss(log_q, log_p, torch.tensor([0]), m)) for m in (1.0, 2.0)]
    [4.666666507720947, 4.800000190734863]
    """
    log_p = floored(log_p)
    at = y[:, None]
    rival = log_p.scatter(1, at, -torch.inf).argmax(1, keepdim=True)
    weight = torch.ones_like(log_q).scatter(1, at, margin).scatter(1, rival, margin)
    return (weight * (log_q - log_p).square()).sum(1).div(weight.sum(1)).mean()


def best_fitted(signal: Tensor, y: Tensor, share: float) -> Tensor:
    """Return positions of the rows with the highest signals: of each class this share, at least 1.

    >>> best_fitted(torch.tensor([1.0, 3.0, 2.0, 0.0, 9.0]), torch.tensor([0, 0, 0, 0, 1]), 0.5)
    tensor([1, 2, 4])
    """
    found = []
    for label in y.unique():  # type: ignore[no-untyped-call]
        of_it = (y == label).nonzero().squeeze(1)
        best = signal[of_it].argsort(descending=True, stable=True)
        found.append(of_it[best[: max(1, int(share * len(of_it)))]])
    return torch.cat(found).sort().values


def by_class(signals: Tensor, classes: Tensor, y: Tensor) -> Tensor:
    """Return the median (n,) of the signals (models, m) of the rows of each row's class y (n,).

    For a class without rows it is the median of all.

    >>> by_class(torch.tensor([[1.0, 2, 9], [3, 4, 9]]), torch.tensor([0, 0, 1]), torch.arange(3))
    tensor([2.5000, 9.0000, 3.5000])
    """
    found = signals.new_full((len(y),), float(signals.flatten().quantile(0.5)))
    for label in classes.unique():  # type: ignore[no-untyped-call]
        found[y == label] = signals[:, classes == label].flatten().quantile(0.5)
    return found


def nearer(signal: Tensor, member: Tensor, other: Tensor) -> Tensor:
    """Return by how much the square of a signal's distance to the nonmember's is larger, (n,).

    0 where the member's signal is not above the nonmember's.

    >>> nearer(torch.tensor([1.0, 4.0, 4.0]), torch.tensor([5.0, 5.0, 1.0]), torch.full((3,), 3.0))
    tensor([-12.,   0.,   0.])
    """
    gain = (other - signal).square() - (member - signal).square()
    return gain.masked_fill(member < other, 0.0)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [IMIA()]
