"""Quantile regression: a member's score is higher than predicted for a nonmember like it.

Bertran, Tang, Kearns, Morgenstern, Roth, Wu: Scalable Membership Inference Attacks via Quantile
Regression. NeurIPS 2023, sections 2 and 3.

The adversary sees posteriors, knows true labels, and has rows that the victim did not train on. It
trains no shadow and does not need to know how the victim was trained. Steps:

1. Compute the victim's hinge score ``z_y - max z_j`` on those rows.
2. Train a network to predict the distribution of the score given x and y: the mean and standard
   deviation of a Gaussian (head ``gaussian``), or 41 quantiles by pinball loss (head ``pinball``).
3. Call a row a member if its score is at least the quantile 1 - alpha predicted for it. The score
   of the attack is the level that the row's own score reaches.

Deviations: see the class. What to expect: with hundreds of rows, little better than one threshold
for all rows, at the price of one small network (the authors, with tens of thousands, come close to
``lira``); 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable  # noqa: TC003 - a field's type
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from privbench import (
    Access,
    Ge,
    Gt,
    Lt,
    Membership,
    MembershipAttack,
    Paper,
    as_float,
    backbone,
    hookimpl,
    mlp,
)
from privbench.toolbox.classifiers import logits
from privbench.toolbox.likelihood import hinge

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

#: Highest i of the pinball head's levels ``1 - 10 ** (-i / 10)``: 0, 0.206, ... 0.9999.
TOP = 40
#: Range of the Gaussian head's log standard deviation, in standard deviations of all scores.
LOG_SPREAD = (-7.0, 7.0)
CLIP = 1.0


@dataclass(frozen=True)
class Quantile(MembershipAttack):
    """Calls a member if the score reaches the quantile predicted for a nonmember like this row.

    The adversary has posteriors, labels and public nonmembers; no shadows. Cost: one query per
    row, plus one for each of the adversary's own rows, once.

    Attributes:
        head: what is predicted: a ``gaussian`` or ``pinball`` quantiles.
        alpha: target false positive rate of the decisions.
        network: backbone below the head; ``mlp`` takes any data, the others only images.
        hidden: neurons of each of the head's two hidden layers.
        epochs: maximum number of passes over the training rows; the state that is best on the
            held-out rows is kept.
        patience: epochs without a better state before training stops.
        batch: rows per update.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        held_out: share of the adversary's rows held out to select the state and to measure the
            realised false positive rate, which is noted.
    """

    name: ClassVar[str] = "quantile"
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Scalable Membership Inference Attacks via Quantile Regression",
        "Bertran, Tang, Kearns, Morgenstern, Roth, Wu", "NeurIPS 2023", "sections 2 and 3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "A small network from scratch, in batches of 64 at 1e-3, instead of a pre-trained ConvNeXt "
        "in batches of 16 at 1e-4, since the adversary has hundreds of rows; it reads the label "
        "too. Decisions are at 1 % FPR (the paper sweeps it). Between "
        "and beyond the 41 quantiles the score is continued linearly, so that it is not capped at "
        "the highest level. A row without a label scores 0."
    )

    head: Literal["gaussian", "pinball"] = "gaussian"
    alpha: Annotated[float, Ge(1e-4), Lt(1)] = 0.01
    network: Literal["mlp", "convnet", "resnet18"] = "mlp"
    hidden: Annotated[int, Ge(1)] = 512
    epochs: Annotated[int, Ge(1)] = 30
    patience: Annotated[int, Ge(1)] = 5
    batch: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.2

    @property
    def decides_at(self) -> str:
        """Decide at a false positive rate of ``alpha``."""
        return f"FPR {self.alpha:g}"

    @property
    def requires(self) -> tuple[str, ...]:
        """Require rows to learn from, and images for a network that needs them."""
        return ("pool",) if self.network == "mlp" else ("pool", "images")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the position of each row's hinge score in its predicted distribution."""
        rows = ctx.auxiliary.select(ctx.auxiliary.y >= 0)
        rows = rows.select(ctx.uniform(rows, 1, "held out").squeeze(1).argsort(stable=True))
        held = max(1, round(self.held_out * len(rows)))
        x, s = self._records(oracle, rows, ctx)
        centre, spread = s[held:].mean(), s[held:].std().clamp_min(1e-6)
        s = (s - centre) / spread
        network = ctx.init(partial(self._build, ctx), "network")
        self._fit(network, (x[held:], s[held:]), (x[:held], s[:held]), ctx.generator("batches"))
        place, limit = HEADS[self.head].place, HEADS[self.head].limit(self.alpha)
        realised = (place(logits(network, x[:held]), s[:held]) >= limit).double().mean()
        x, s = self._records(oracle, question.examples, ctx)
        scores = place(logits(network, x), (s - centre) / spread)
        notes = {"threshold": limit, f"realised FPR at {self.alpha:g}": float(realised)}
        return Membership(scores.nan_to_num(0.0), scores >= limit, notes)

    def _records(self, oracle: Oracle, rows: Examples, ctx: AttackContext) -> tuple[Tensor, Tensor]:
        """Return network inputs (n, features + classes) and hinge scores (n,) float64."""
        log_p = oracle.log_posteriors(rows)
        y = rows.y.to(log_p.device)
        classes = torch.arange(ctx.card.classes or 0, device=log_p.device)
        x = as_float(rows.x.to(log_p.device), rows.scale).flatten(1)
        return torch.cat([x, (y[:, None] == classes).float()], dim=1), hinge(log_p, y)

    def _build(self, ctx: AttackContext) -> nn.Module:
        shape, classes = ctx.card.shape, ctx.card.classes or 0
        body = backbone(self.network, shape)
        outputs = HEADS[self.head].outputs
        return Regressor(shape, body, mlp([body.width + classes, *[self.hidden] * 2, outputs]))

    def _fit(
        self, network: nn.Module, train: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor],
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        """Train in place, keeping the state with the lowest loss on the held-out rows."""
        loss = HEADS[self.head].loss
        parameters = list(network.parameters())
        descent = torch.optim.AdamW(
            parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True
        )
        (x, s), least, stale = train, math.inf, 0
        best = copy.deepcopy(network.state_dict())
        for _ in range(self.epochs):
            network.train()
            order = torch.randperm(len(x), generator=generator, device=x.device)
            for chosen in order.tensor_split(-(-len(x) // self.batch)):
                descent.zero_grad()
                loss(network(x[chosen]), s[chosen]).mean().backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(parameters, CLIP)
                descent.step()
            now = float(loss(logits(network.eval(), held[0]), held[1]).mean())
            stale = stale + 1 if now >= least else 0
            if not stale:
                least, best = now, copy.deepcopy(network.state_dict())
            if stale == self.patience:
                break
        network.load_state_dict(best)
        network.eval()


class Regressor(nn.Module):
    """Makes predictions (n, outputs) from concatenated features and one-hot class."""

    def __init__(self, shape: tuple[int, ...], body: nn.Module, head: nn.Module) -> None:
        """``body`` reads x (n, *shape); ``head`` reads the output of ``body`` and the class."""
        super().__init__()
        self.shape, self.body, self.head = shape, body, head

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (n, features + classes) to predictions (n, outputs)."""
        x, y = inputs.tensor_split([math.prod(self.shape)], dim=1)
        made: Tensor = self.head(torch.cat([self.body(x.view(-1, *self.shape)), y], dim=1))
        return made


# ---- heads ---------------------------------------------------------------------------------------


def gaussian_loss(made: Tensor, s: Tensor) -> Tensor:
    """Return minus log-likelihood (n,), up to a constant, of s (n,) under (mean, log deviation)."""
    mean, log_spread = made[:, 0], made[:, 1].clamp(*LOG_SPREAD)
    return log_spread + 0.5 * ((s - mean) * (-log_spread).exp()).square()


def gaussian_place(made: Tensor, s: Tensor) -> Tensor:
    """Return standard deviations above the mean, (n,)."""
    return (s - made[:, 0]) * (-made[:, 1].clamp(*LOG_SPREAD)).exp()


def gaussian_limit(alpha: float) -> float:
    """Return the position of the quantile 1 - alpha.

    >>> round(gaussian_limit(0.05), 9)
    1.644853627
    """
    return float(torch.special.ndtri(torch.tensor(1 - alpha, dtype=torch.float64)))


def pinball_loss(made: Tensor, s: Tensor) -> Tensor:
    """Return the mean pinball loss (n,) of s (n,) over the quantiles (n, 41), in any order."""
    levels = 1 - 10 ** (-torch.arange(TOP + 1, device=made.device) / 10)
    return pinball(made, s[:, None], levels).mean(1)


def pinball(quantile: Tensor, s: Tensor, level: Tensor) -> Tensor:
    """Return ``level * (s - q)`` above the quantile q, ``(1 - level) * (q - s)`` below."""
    return torch.maximum(level * (s - quantile), (level - 1) * (s - quantile))


def pinball_place(made: Tensor, s: Tensor) -> Tensor:
    """Return the position of s (n,) in its sorted quantiles (n, 41): i at quantile i, else linear.

    Beyond the first and the last quantile the slope is 1, so that no two scores tie.
    """
    q = made.sort(1).values
    below = torch.searchsorted(q, s[:, None].contiguous(), right=True)
    low, high = q.gather(1, (below - 1).clamp(0, TOP)), q.gather(1, below.clamp(0, TOP))
    between = below - 1 + (s[:, None] - low) / (high - low)
    place = torch.where(below > TOP, TOP + s[:, None] - q[:, -1:], between)
    return torch.where(below == 0, s[:, None] - q[:, :1], place).squeeze(1)


def pinball_limit(alpha: float) -> float:
    """Return the position of the quantile 1 - alpha.

    >>> round(pinball_limit(0.01), 9)
    20.0
    """
    return -10 * math.log10(alpha)


class Head(NamedTuple):
    """Number of outputs of a network, their loss, position of a score, position of a quantile."""

    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    place: Callable[[Tensor, Tensor], Tensor]
    limit: Callable[[float], float]


HEADS = {
    "gaussian": Head(2, gaussian_loss, gaussian_place, gaussian_limit),
    "pinball": Head(TOP + 1, pinball_loss, pinball_place, pinball_limit),
}


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [Quantile()]
