"""Adversarial regularization trains a classifier against a membership attack on itself.

Nasr, Shokri, Houmansadr: Machine Learning with Membership Privacy using Adversarial Regularization.
CCS 2018, section 3, algorithm 1. A membership classifier h reads an answer and its label and learns
to separate members (1) from reference rows (0). The model minimises

    cross-entropy + alpha (mean of h over the batch - 1/2),

so that its members look like nonmembers to h. ``attack`` updates of h alternate with ``train``
updates of the model (52 to 2 in the authors' code and in preset ``paper``; fewer by default, for
small sets on a CPU). The count continues across epochs, since a small set has only a few updates
in each epoch. While one of the two is trained, the other is frozen, in eval mode.

Equal budget: the phase runs as many epochs as are needed to update the model exactly as often as
without the defense. With alpha 0 and no attack updates, this is plain training.

What to expect: less leakage at a clear cost in accuracy; attacks with adaptive thresholds regain
most of what they lose (Song and Mittal, USENIX Security 2021). On a contrastive target, only the
classifier is trained this way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from privbench import (
    BadInputError,
    Defense,
    Ge,
    Gt,
    Judge,
    Le,
    Optimizer,
    Paper,
    Step,
    Stream,
    Strength,
    hookimpl,
    mlp,
)
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Batch, Clock, DefenseContext, Model, Outputs, Phase, World

Gain = Literal["linear", "log"]
#: Name of h among the parts of the model.
PART = "membership"


@dataclass(frozen=True)
class AdversarialRegularization(Defense):
    """Minimises cross-entropy plus the gain of a membership classifier.

    Attributes:
        alpha: weight of the gain (λ in the paper; 3 for Purchase, 6 for CIFAR, 10 for Texas;
            presets have 3).
        gain: ``linear`` is the mean of h minus 1/2, with h trained by squared error (the authors'
            code); ``log`` is the mean of log h, with h trained by cross-entropy (the paper).
        attack: number of consecutive updates of h.
        train: number of consecutive updates of the model after them.
        reads: what h reads in addition to the label: ``posteriors``, as in the paper, or the raw
            ``logits`` of the authors' code, which the model can shift without changing an answer.
        width: size w of h's layers: features 2w, w, 64; labels 128, 64; both together
            w, 256, 128, 64.
        lr: learning rate of h, with Adam.
    """

    name: ClassVar[str] = "adversarial-regularization"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("reference-rows", "member-labels")
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge("rmia", "Shadows trained against an h of their own show which rows still stand out."),
        Judge(
            "label-lira",
            "The gain that training removes is of posteriors; labels are not in it.",
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "Machine Learning with Membership Privacy using Adversarial Regularization",
        "Nasr, Shokri, Houmansadr", "CCS 2018", "section 3, algorithm 1",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "alpha", stronger="up", sweep=(0.03, 0.1, 0.3, 1.0, 3.0)
    )
    deviations: ClassVar[str] = (
        "As many updates of the model as without the defense, so more epochs; no first epoch "
        "without the adversary; batches are the target's, including the last one of an epoch; h "
        "starts from torch's own initial weights, not from N(0, 0.01), and reads posteriors; by "
        "default its gain weighs a tenth of the paper's smallest weight, at which a hundred digits "
        "lose most of their accuracy, and it is narrower and is updated less often (`paper` has "
        "the paper's gain and the authors' sizes for Purchase, `code` what their code does): 8 "
        "updates per 2 of the model, the fewest of 2, 8 and 20 that have an effect on reference "
        "rows of digits."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"alpha": 3.0, "attack": 52, "width": 512, "gain": "log"},
        "code": {"alpha": 3.0, "attack": 52, "width": 512, "reads": "logits"},
    }

    alpha: Annotated[float, Ge(0)] = 0.3
    gain: Gain = "linear"
    reads: Literal["posteriors", "logits"] = "posteriors"
    attack: Annotated[int, Ge(0)] = 8
    train: Annotated[int, Ge(1)] = 2
    width: Annotated[int, Ge(1), Le(10_000)] = 128
    lr: Annotated[float, Gt(0)] = 1e-4

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Train h alongside the model in every phase whose loss reads labels of members."""
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
        if monitor:  # updates of h between two measurements do not change what is measured
            longer = max(1, round(epochs / max(1, phase.epochs)))
            monitor = replace(monitor, every=monitor.every * longer)
        return replace(
            phase, steps=steps, epochs=epochs, monitor=monitor, per_example=False,
            optimizers={**phase.optimizers, PART: Optimizer("adam", self.lr)},
            schedule=lambda epoch, i: self.kind((epoch - 1) * per_epoch + i, updates),
        )  # fmt: skip

    def position(self, updates: int) -> int:
        """Return how many steps of both kinds are needed to update the model ``updates`` times.

        >>> AdversarialRegularization(attack=52, train=2).position(3)
        107
        """
        whole, rest = divmod(updates - 1, self.train)
        return whole * (self.attack + self.train) + self.attack + rest + 1 if updates else 0

    def kind(self, at: int, updates: int) -> str:
        """Return which step runs at a position, if the model gets ``updates`` updates in total."""
        whole, rest = divmod(at, self.attack + self.train)
        done = whole * self.train + rest - self.attack
        return "train" if rest >= self.attack and done < updates else "attack"

    def _attack(self, h: _Guess, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """Return the loss of h on members (1) and reference rows (0)."""
        del clock
        inside = h(out.logits.detach(), batch.y)
        outside = h(out.streams["reference"].logits.detach(), batch.streams["reference"].y)
        odds = torch.cat([inside, outside])
        truth = torch.cat([torch.ones_like(inside), torch.zeros_like(outside)])
        if self.gain == "log":
            return F.binary_cross_entropy_with_logits(odds, truth)
        return F.mse_loss(odds.sigmoid(), truth)

    def _loss(self, base: _Loss, h: _Guess, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """Return the phase's own loss plus the weighted gain of h on the batch."""
        gained = gain(h(out.logits, batch.y), self.gain)
        return base(out, batch, clock) + self.alpha * gained


class Inference(nn.Module):
    """Maps answers (n, k) and one-hot labels (n, k) to log-odds (n,) of "member"; called h."""

    def __init__(self, classes: int, width: int) -> None:
        """Build two branches and a third that joins them, all with ReLU layers."""
        super().__init__()
        self.features = nn.Sequential(mlp([classes, 2 * width, width, 64]), nn.ReLU())
        self.labels = nn.Sequential(mlp([classes, 128, 64]), nn.ReLU())
        self.both = mlp([128, width, 256, 128, 64, 1])

    def forward(self, answers: Tensor, y: Tensor) -> Tensor:
        """Return log-odds without a sigmoid; the losses apply it."""
        joined = torch.cat([self.features(answers), self.labels(y)], dim=1)
        odds: Tensor = self.both(joined)
        return odds.squeeze(1)


def gain(log_odds: Tensor, kind: Gain) -> Tensor:
    """Return what h gains on members with these log-odds (n,); the model minimises it.

    >>> float(gain(torch.zeros(4), "linear"))  # h undecided
    0.0
    >>> float(gain(torch.ones(4), "linear")) > 0  # right about members
    True
    """
    if kind == "log":
        return F.logsigmoid(log_odds).mean()
    return log_odds.sigmoid().mean() - 0.5


def _log_odds(inference: nn.Module, reads: str, logits: Tensor, y: Tensor) -> Tensor:
    """Return the log-odds of h, for labels (n,) or (n, k)."""
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
