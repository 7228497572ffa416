"""Label-only augmentation attack: members are still classified correctly when rotated and shifted.

Choquette-Choo, Tramer, Carlini, Papernot: Label-Only Membership Inference Attacks. ICML 2021,
section 3.2.

The adversary sees only the predicted class, for any input of its choice, knows the true labels of
the candidate rows, and owns one shadow model. Steps:

1. Make copies of an image: the image itself, rotations by 2r + 1 angles evenly spaced in [-r, r]
   degrees (0 is the image itself), and translations by all integer (dx, dy) with
   |dx| + |dy| = d.
2. Compute one bit per copy: whether its predicted class is the row's *true* class.
3. Train one small network per true class on the bits of the shadow's members and nonmembers.
4. The network of a row's true class estimates how likely its bits are to come from a member.

One more network, trained on the rows of all classes, scores rows without a label and rows of
classes for which the shadow has no members or no nonmembers.

Deviations: see the class. What to expect: better than the gap between training and test accuracy
alone if victims were trained on augmented rows that resemble the copies; about that gap otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from privbench import Access, Ge, Gt, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.classifiers import (
    fit,
    log_odds,
    rows_by,
    stacked_logits,
    stacked_mlp,
)
from privbench.toolbox.copies import survivors

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LabelOnlyAugment(MembershipAttack):
    """Feeds bits (does a rotated or shifted copy keep the class?) to a network per true class.

    Access: labels only, one shadow. Cost: 1 + 2 rotation + 4 translation queries per row (23).

    Attributes:
        rotation: r, the largest angle in degrees, in steps of one; 0 for no rotations.
        translation: d, length of a translation in pixels, |dx| + |dy|; 0 for none.
        hidden: neurons of each of the two hidden layers.
        epochs: passes over the shadow's rows.
        batch: rows per update of each network.
        lr: learning rate of Adam.
        steps: minimum number of updates, so that a small shadow set does not leave networks
            undertrained.
    """

    name: ClassVar[str] = "label-only-augment"
    requires: ClassVar[tuple[str, ...]] = ("images",)
    needs: ClassVar[Access] = Access.LABELS
    paper: ClassVar[Paper] = Paper(
        "Label-Only Membership Inference Attacks",
        "Choquette-Choo, Tramer, Carlini, Papernot", "ICML 2021", "section 3.2",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Rotations and translations in one vector (the paper attacks with either: set the other "
        "to 0). r = 1 gives -1, 0 and 1 degree (the authors' code only 0). Rotations are bilinear "
        "and continue the border (the authors' code: cubic, black). One learning rate, 0.01, of "
        "the four that the authors' code tries; at least 1,000 updates. A network of all classes "
        "answers for classes with rows of one side only."
    )

    rotation: Annotated[int, Ge(0)] = 9
    translation: Annotated[int, Ge(0)] = 1
    hidden: Annotated[int, Ge(1)] = 10
    epochs: Annotated[int, Ge(1)] = 50
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 0.01
    steps: Annotated[int, Ge(0)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, trained on the adversary's own rows."""
        return Shadows(1)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the log-odds of "member" that the network of the true class gives."""
        (shadow,) = ctx.shadows
        sides = shadow.world.members, shadow.nonmembers
        x = torch.cat([self._bits(shadow.oracle, side) for side in sides])
        y = torch.cat([side.y for side in sides])
        inside = (torch.arange(len(x), device=x.device) < len(sides[0])).long()
        asked = self._bits(oracle, question.examples)

        both = classes_of_both(y, inside)
        chosen, slot = slots(question.examples.y, both), slots(y, both)
        odds = asked.new_zeros(len(both) + 1, len(asked), dtype=torch.float64)
        if (chosen == 0).any():
            odds[:1] = self._odds(x, inside, torch.zeros_like(y), asked, ctx)
        if len(both):
            own = slot > 0
            odds[1:] = self._odds(x[own], inside[own], slot[own] - 1, asked, ctx)
        scores = odds.gather(0, chosen[None]).squeeze(0)
        return Membership(scores, scores >= 0, {"attack models": float(len(both))})

    def _bits(self, oracle: Oracle, rows: Examples) -> Tensor:
        """Return one bit per copy, (n, m) float32 of 0 and 1."""
        m = 1 + 2 * self.rotation + 4 * self.translation
        copies = partial(moved, rotation=self.rotation, translation=self.translation)
        return survivors(oracle, rows, copies, m).float()

    def _odds(
        self, x: Tensor, inside: Tensor, groups: Tensor, asked: Tensor, ctx: AttackContext
    ) -> Tensor:
        """Return log-odds (g, n) of "member" for all candidate rows, by one network per group."""
        rows = rows_by(groups)
        widths = [x.shape[1], self.hidden, self.hidden, 2]
        network = ctx.init(partial(stacked_mlp, len(rows), widths, nn.LeakyReLU), "network")
        fit(
            network, x, inside, epochs=self.epochs, steps=self.steps, batch=self.batch,
            lr=self.lr, rows=rows, generator=ctx.generator("batches"),
        )  # fmt: skip
        return log_odds(stacked_logits(network, asked))


def moved(x: Tensor, rotation: int, translation: int) -> Tensor:
    """Return each image x (n, c, h, w), then its rotations, then its translations.

    Returns:
        (n, 1 + 2 rotation + 4 translation, c, h, w).
    """
    angles = [float(a) for a in range(-rotation, rotation + 1) if a]
    turned = [rotated(x, angle) for angle in angles]
    return torch.stack([x, *turned, *(translated(x, *s) for s in shifts(translation))], dim=1)


def shifts(length: int) -> list[tuple[int, int]]:
    """Return all integer (dx, dy) with |dx| + |dy| = length > 0, in pixels; none for 0.

    >>> shifts(1)
    [(-1, 0), (0, -1), (0, 1), (1, 0)]
    """
    reach = range(-length, length + 1)
    return [(dx, dy) for dx in reach for dy in reach if abs(dx) + abs(dy) == length > 0]


def translated(x: Tensor, dx: int, dy: int) -> Tensor:
    """Shift images (n, c, h, w) by dx to the right and dy down, repeating border pixels."""
    h, w = x.shape[-2:]
    down = (torch.arange(h, device=x.device) - dy).clamp(0, h - 1)
    right = (torch.arange(w, device=x.device) - dx).clamp(0, w - 1)
    return x[..., down, :][..., right]


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Rotate images (n, c, h, w) counterclockwise about the centre, repeating border pixels."""
    h, w = x.shape[-2:]
    angle = torch.deg2rad(torch.tensor(degrees, device=x.device))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # Coordinates run over [-1, 1] on both axes, hence the aspect ratio.
    matrix = torch.stack([cos, -sin * h / w, zero, sin * w / h, cos, zero]).view(1, 2, 3)
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, "bilinear", "border", align_corners=False).clamp(0, 1)


def classes_of_both(y: Tensor, inside: Tensor) -> Tensor:
    """Return known classes, ascending, with both a member (inside 1) and a nonmember (0).

    >>> classes_of_both(torch.tensor([0, 2, 2, -1, -1]), torch.tensor([1, 0, 1, 0, 1])).tolist()
    [2]
    """
    members, others = y[inside == 1], y[inside == 0]
    both: Tensor = torch.unique(members[torch.isin(members, others) & (members >= 0)])
    return both


def slots(y: Tensor, classes: Tensor) -> Tensor:
    """Return the network of each row: 1 + the position of its class, or 0 (all classes) if absent.

    >>> slots(torch.tensor([5, 2, -1, 0]), torch.tensor([2, 5])).tolist()
    [2, 1, 0, 0]
    """
    same = y[:, None] == classes
    return same.any(1) * (same.int() * torch.arange(1, len(classes) + 1, device=y.device)).sum(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LabelOnlyAugment()]
