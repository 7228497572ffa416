"""Adversarial regularization: a classifier that trains against a membership attack on itself.

Nasr, Shokri, Houmansadr: Machine Learning with Membership Privacy using Adversarial Regularization.
CCS 2018, section 3, algorithm 1. A membership classifier h reads an answer and its label and learns
to tell members (1) from reference rows (0); the model descends

    cross-entropy + alpha (mean of h over the batch - 1/2),

so that its members look to h like nonmembers. ``attack`` updates of h alternate with ``train``
updates of the model (52 to 2 in the authors' code and preset ``paper``; fewer by default, for small
sets on a CPU). The count runs on over epochs, since a small set has only a few updates in each.
While one learns the other stands still, in eval mode.

Equal budget: the phase gets as many epochs as it takes for the model to be updated exactly as
often as without the defense. With alpha 0 and no attack updates that is plain training.

What to expect: fewer leaks at a clear cost in accuracy; adaptive thresholds regain most of what is
lost (Song and Mittal, USENIX Security 2021). On a contrastive target only the classifier is
trained so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import nn
from torch.nn import functional as F

from privbench import BadInputError, Defense, Optimizer, Paper, Step, Stream, hookimpl, mlp
from privbench_plugins._shared.label_losses import none_reads_members, note_reach
from privbench_plugins._shared.phases import reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Batch, Cell, Clock, DefenseContext, Model, Outputs, Phase, World

Gain = Literal["linear", "log"]
#: Name of h among the model's parts.
PART = "membership"


@dataclass(frozen=True)
class AdversarialRegularization(Defense):
    """Cross-entropy plus what a membership classifier gains.

    Attributes:
        alpha: weight of the gain (λ in the paper; 3 Purchase, 6 CIFAR, 10 Texas).
        gain: ``linear``, the mean of h less 1/2, h trained by squared error (the authors' code);
            or ``log``, the mean of log h, h trained by cross-entropy (the paper).
        attack: updates of h in a row.
        train: updates of the model in a row after them.
        reads: what h reads beside the label: posteriors, as in the paper, or the raw logits of the
            authors' code, which the model can shift without changing an answer.
        width: of h's layers: features 2w, w, 64; labels 128, 64; both together w, 256, 128, 64.
        lr: of h, with Adam.
    """

    name: ClassVar[str] = "adversarial-regularization"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    paper: ClassVar[Paper] = Paper(
        "Machine Learning with Membership Privacy using Adversarial Regularization",
        "Nasr, Shokri, Houmansadr", "CCS 2018", "section 3, algorithm 1",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "As many updates of the model as without the defense, so more epochs; no first epoch "
        "without the adversary; batches are the target's, the last one of an epoch included; h "
        "starts from torch's own initial weights, not from N(0, 0.01), and reads posteriors; it is "
        "narrower and learns less often by default (`paper` has the authors' values): 8 times for "
        "2, the fewest of 2, 8 and 20 that tell on reference rows of digits."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"attack": 52, "width": 512}}

    alpha: Annotated[float, Ge(0)] = 3.0
    gain: Gain = "linear"
    reads: Literal["posteriors", "logits"] = "posteriors"
    attack: Annotated[int, Ge(0)] = 8
    train: Annotated[int, Ge(1)] = 2
    width: Annotated[int, Ge(1)] = 128
    lr: Annotated[float, Gt(0)] = 1e-4

    def incompatible(self, cell: Cell) -> str | None:
        """There must be classes, reference rows, and a phase that reads members' labels."""
        if cell.card.classes is None:
            return f"{self.name} reads class posteriors, and {cell.card.name} has no classes"
        if not cell.protocol.parts()["reference"].count(cell.card):
            return (
                f"{self.name} tells members from reference rows, and protocol "
                f"'{cell.protocol.name}' has none"
            )
        return none_reads_members(self.name, cell)

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Let h learn beside every phase whose loss reads labels of members."""
        note_reach(self.name, phases, ctx)
        ctx.module(model, PART, lambda: Inference(ctx.card.classes or 0, self.width))
        return [self._regularized(p, model, world, ctx) if reads_members(p) else p for p in phases]

    def _regularized(self, phase: Phase, model: Model, world: World, ctx: DefenseContext) -> Phase:
        if len(phase.steps) > 1:
            raise BadInputError(
                f"{self.name} alternates updates of phase '{phase.name}', and another defense "
                "does so already: leave one of them out"
            )
        (base,) = phase.steps.values()
        h = partial(_log_odds, model[PART], self.reads)
        steps = {
            "attack": Step(
                partial(self._attack, h), trains=(PART,),
                streams={"reference": Stream(world.reference.to(ctx.device))},
            ),
            "train": replace(base, loss=partial(self._loss, base.loss, h)),
        }  # fmt: skip
        mask = phase.rows
        rows = len(world.members) if isinstance(mask, str) else int(mask.sum())
        per_epoch = phase.batch.steps(rows)
        updates = phase.epochs * per_epoch
        epochs = math.ceil(self.position(updates) / per_epoch)
        ctx.note(**{f"{self.name}: epochs of {phase.name}": epochs})
        monitor = phase.monitor
        if monitor:  # h's updates between two measurements do not move what is measured
            longer = max(1, round(epochs / max(1, phase.epochs)))
            monitor = replace(monitor, every=monitor.every * longer)
        return replace(
            phase, steps=steps, epochs=epochs, monitor=monitor, per_example=False,
            optimizers={**phase.optimizers, PART: Optimizer("adam", self.lr)},
            schedule=lambda epoch, i: self.kind((epoch - 1) * per_epoch + i, updates),
        )  # fmt: skip

    def position(self, updates: int) -> int:
        """How many steps of both kinds it takes until the model has had so many updates.

        >>> AdversarialRegularization(attack=52, train=2).position(3)
        107
        """
        whole, rest = divmod(updates - 1, self.train)
        return whole * (self.attack + self.train) + self.attack + rest + 1 if updates else 0

    def kind(self, at: int, updates: int) -> str:
        """Which step runs at that position, where the model is to have so many updates in all."""
        whole, rest = divmod(at, self.attack + self.train)
        done = whole * self.train + rest - self.attack
        return "train" if rest >= self.attack and done < updates else "attack"

    def _attack(self, h: _Guess, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """What h loses on members (1) and reference rows (0)."""
        del clock
        inside = h(out.logits.detach(), batch.y)
        outside = h(out.streams["reference"].logits.detach(), batch.streams["reference"].y)
        odds = torch.cat([inside, outside])
        truth = torch.cat([torch.ones_like(inside), torch.zeros_like(outside)])
        if self.gain == "log":
            return F.binary_cross_entropy_with_logits(odds, truth)
        return F.mse_loss(odds.sigmoid(), truth)

    def _loss(self, base: _Loss, h: _Guess, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """The phase's own loss plus what h gains on the batch."""
        gained = gain(h(out.logits, batch.y), self.gain)
        return base(out, batch, clock) + self.alpha * gained


class Inference(nn.Module):
    """h: answers (n, k) and one-hot labels (n, k) to log-odds (n,) of "member"."""

    def __init__(self, classes: int, width: int) -> None:
        """Two branches that meet in a third, all of ReLU layers."""
        super().__init__()
        self.features = nn.Sequential(mlp([classes, 2 * width, width, 64]), nn.ReLU())
        self.labels = nn.Sequential(mlp([classes, 128, 64]), nn.ReLU())
        self.both = mlp([128, width, 256, 128, 64, 1])

    def forward(self, answers: Tensor, y: Tensor) -> Tensor:
        """No sigmoid: the losses take it in."""
        joined = torch.cat([self.features(answers), self.labels(y)], dim=1)
        odds: Tensor = self.both(joined)
        return odds.squeeze(1)


def gain(log_odds: Tensor, kind: Gain) -> Tensor:
    """What h gains on members whose log-odds (n,) are these: the model minimises it.

    >>> float(gain(torch.zeros(4), "linear"))  # h undecided
    0.0
    >>> float(gain(torch.ones(4), "linear")) > 0  # right about members
    True
    """
    if kind == "log":
        return F.logsigmoid(log_odds).mean()
    return log_odds.sigmoid().mean() - 0.5


def _log_odds(inference: nn.Module, reads: str, logits: Tensor, y: Tensor) -> Tensor:
    """Log-odds of h, for labels (n,) or (n, k)."""
    hard = y if y.ndim > 1 else F.one_hot(y, logits.shape[1])
    answers = logits.float().softmax(1) if reads == "posteriors" else logits.float()
    odds: Tensor = inference(answers, hard.float())
    return odds


if TYPE_CHECKING:
    _Guess = Callable[[Tensor, Tensor], Tensor]
    _Loss = Callable[[Outputs, Batch, Clock], Tensor]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [AdversarialRegularization()]
