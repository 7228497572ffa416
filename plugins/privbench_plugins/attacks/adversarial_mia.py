"""Adversarial-example MIA: members keep their class under adversarial perturbations.

Song, Shokri, Mittal: Privacy Risks of Securing Machine Learning Models against Adversarial
Examples. CCS 2019, section 3.3.

The adversary sees posteriors, knows the true labels of the candidate rows, and owns one shadow
model, trained as the target is on the adversary's own rows. A white-box adversary also has the
victim's gradients. Steps:

1. Perturb each row by projected gradient descent, changing no value by more than eps: away from
   its true class (``adversarial-mia``), or once towards each of the other classes
   (``adversarial-mia-targeted``).
2. Query the victim for the posteriors of the perturbed rows.
3. Untargeted: compare the confidence in the true class with a threshold. Targeted: feed all
   posteriors into a network, one network per true class. The threshold and the networks are fitted
   on the shadow's members and nonmembers, perturbed with the shadow's own gradients.

Without the victim's gradients, the candidate rows are perturbed with the shadow's gradients
(transfer). The threshold and the networks are still fitted on the shadow, for which these
gradients are exact. If they are more effective there than on the victim, too many candidate rows
are called members; the order of the scores is not affected.

A row without a label (y = -1) gets the predicted class as its label, which costs one query.

Deviations: see each class. What to expect: better than plain confidence on victims trained to be
robust (adversarial training on CIFAR10: accuracy .757 against .749), worse on others (.509 against
.574), since few of their rows keep the class, member or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import (
    Access,
    Ge,
    Gt,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    best_threshold,
    hookimpl,
)
from privbench.toolbox.classifiers import (
    fit,
    log_odds,
    rows_by,
    slots,
    stacked_logits,
    stacked_mlp,
)
from privbench.toolbox.likelihood import scaled_logit
from privbench.toolbox.pgd import PGD, of_network, of_oracle

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import (
        Attack,
        AttackContext,
        Examples,
        MembershipQuestion,
        Model,
        Oracle,
    )
    from privbench.toolbox.pgd import Gradient

SONG = Paper(
    "Privacy Risks of Securing Machine Learning Models against Adversarial Examples",
    "Song, Shokri, Mittal", "CCS 2019", "section 3.3 (3.3.1: targeted)",
)  # fmt: skip


@dataclass(frozen=True)
class _Adversarial(PGD, MembershipAttack):
    """Base of both attacks: posteriors, the victim's gradients where granted, one shadow."""

    needs: ClassVar[Access] = Access.POSTERIORS
    wants: ClassVar[Access] = Access.GRADIENTS
    paper: ClassVar[Paper] = SONG

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, trained on the adversary's own rows."""
        return Shadows(1)


@dataclass(frozen=True)
class AdversarialMIA(_Adversarial):
    """Thresholds the confidence in the true class on an untargeted adversarial example.

    Access: posteriors, true labels and one shadow; the victim's gradients where granted, otherwise
    the examples are crafted on the shadow (transfer). Cost per row: one query, plus ``steps``
    gradients if they are the victim's.
    """

    name: ClassVar[str] = "adversarial-mia"
    deviations: ClassVar[str] = (
        "The threshold is the best on a shadow (the authors': the best on the victim itself). "
        "Confidences are compared as log-odds, which order them alike and do not round to 1. "
        "Steps go down the gradient of the log-odds, whose signs are opposite to those of the "
        "cross-entropy's: so they go up the cross-entropy's. The examples are the authors': 20 "
        "steps of 1/255 within 8/255 from the row itself. Where the victim's gradients are not "
        "granted they are made on the shadow."
    )

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the log-odds of the true class; the shadow's best threshold decides."""
        (shadow,) = ctx.shadows
        mine = of_model(shadow.model)
        inside = self._confidence(shadow.oracle, shadow.world.members, mine, ctx).cpu()
        outside = self._confidence(shadow.oracle, shadow.nonmembers, mine, ctx).cpu()
        crafted, theirs = source(oracle, mine)
        asked = self._confidence(oracle, question.examples, theirs, ctx)
        known, member = torch.cat([inside, outside]), torch.arange(len(inside) + len(outside))
        threshold = best_threshold(known.numpy(), (member < len(inside)).numpy())
        decisions = torch.from_numpy(threshold.decide(asked.cpu().numpy())).to(asked.device)
        notes: dict[str, float | str] = {"threshold": threshold.overall, "crafted on": crafted}
        return Membership(asked, decisions, notes)

    def _confidence(
        self, oracle: Oracle, rows: Examples, gradient: Gradient, ctx: AttackContext
    ) -> Tensor:
        """Return log-odds (n,) float64 of the true class on examples that lead away from it."""
        y = true_classes(oracle, rows, ctx)
        made = self.answers(oracle.log_posteriors, rows, y[:, None], gradient, ctx, targeted=False)
        return scaled_logit(made.squeeze(1), y)


@dataclass(frozen=True)
class AdversarialMIATargeted(_Adversarial):
    """Feeds posteriors of one targeted example per wrong class to a network per true class.

    Access: posteriors, true labels and one shadow; the victim's gradients where granted, otherwise
    the examples are crafted on the shadow (transfer). Cost per row with k classes: k - 1 queries,
    plus (k - 1) ``steps`` gradients if they are the victim's.

    One more network, trained on the rows of all classes, scores rows without a label and rows of
    classes for which the shadow has no members or no nonmembers.

    Attributes:
        hidden: neurons of the first hidden layer.
        hidden2: neurons of the second hidden layer.
        epochs: passes over the shadow's rows.
        batch: rows per update of each network.
        lr: learning rate of Adam.
        updates: minimum number of updates, so that a small shadow set does not leave networks
            undertrained.
    """

    name: ClassVar[str] = "adversarial-mia-targeted"
    deviations: ClassVar[str] = (
        "Networks are trained on a shadow's rows (the authors': on half of the victim's members "
        "and nonmembers). Their two hidden layers of 200 and 20 are recalled, not read; Adam, 50 "
        "epochs and at least 300 updates are ours. Steps go up the gradient of the "
        "log-odds, whose signs are opposite to those of the cross-entropy's. A network of all "
        "classes answers for classes with rows of one side only. Without the victim's gradients, "
        "the shadow gives examples."
    )

    hidden: Annotated[int, Ge(1)] = 200
    hidden2: Annotated[int, Ge(1)] = 20
    epochs: Annotated[int, Ge(1)] = 50
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 1e-3
    updates: Annotated[int, Ge(0)] = 300

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the log-odds of "member" that the network of the true class gives."""
        (shadow,) = ctx.shadows
        mine = of_model(shadow.model)
        sides = shadow.world.members, shadow.nonmembers
        x = torch.cat([self._features(shadow.oracle, side, mine, ctx) for side in sides])
        y = torch.cat([side.y for side in sides]).to(x.device)
        inside = (torch.arange(len(x), device=x.device) < len(sides[0])).long()
        crafted, theirs = source(oracle, mine)
        asked = self._features(oracle, question.examples, theirs, ctx)

        slot = slots(y, inside, ctx.card.classes or 2)
        chosen, own = slot[question.examples.y.to(x.device)], slot[y] > 0
        odds = asked.new_zeros(int(slot.max()) + 1, len(asked), dtype=torch.float64)
        if (chosen == 0).any():
            odds[:1] = self._odds(x, inside, torch.zeros_like(y), asked, ctx, purpose="all")
        if own.any():
            odds[1:] = self._odds(
                x[own], inside[own], slot[y[own]] - 1, asked, ctx, purpose="class"
            )
        scores = odds.gather(0, chosen[None]).squeeze(0)
        notes: dict[str, float | str] = {"attack models": float(len(odds) - 1)}
        return Membership(scores, scores >= 0, notes | {"crafted on": crafted})

    def _features(
        self, oracle: Oracle, rows: Examples, gradient: Gradient, ctx: AttackContext
    ) -> Tensor:
        """Return posteriors (n, (k - 1) k) float32 of examples that lead to each wrong class."""
        y = true_classes(oracle, rows, ctx)
        wrong = others(y, ctx.card.classes or 2)
        made = self.answers(oracle.log_posteriors, rows, wrong, gradient, ctx, targeted=True)
        return made.exp().float().flatten(1)

    def _odds(
        self, x: Tensor, inside: Tensor, groups: Tensor, asked: Tensor, ctx: AttackContext,
        *, purpose: str,
    ) -> Tensor:  # fmt: skip
        """Return log-odds (g, n) of "member" for all candidate rows, by one network per group."""
        rows = rows_by(groups)
        widths = [x.shape[1], self.hidden, self.hidden2, 2]
        network = ctx.init(partial(stacked_mlp, len(rows), widths), purpose)
        fit(
            network, x, inside, epochs=self.epochs, steps=self.updates, batch=self.batch,
            lr=self.lr, rows=rows, generator=ctx.generator("batches", purpose),
        )  # fmt: skip
        return log_odds(stacked_logits(network, asked))


def of_model(model: Model) -> Gradient:
    """Return the gradients of a model that the adversary owns."""
    return of_network(lambda x: model.logits(model.encode(x)))


def source(oracle: Oracle, mine: Gradient) -> tuple[str, Gradient]:
    """Return whose gradients perturb the candidate rows: the victim's if granted, else ``mine``."""
    if Access.GRADIENTS in oracle.access:
        return "victim", of_oracle(oracle)
    return "shadow", mine


def true_classes(oracle: Oracle, rows: Examples, ctx: AttackContext) -> Tensor:
    """Return classes (n,) on the device; a row without a label gets the oracle's prediction."""
    y = rows.y.to(ctx.device)
    blank = y < 0
    if not blank.any():
        return y
    predicted = oracle.log_posteriors(rows.x[blank.to(rows.device)]).argmax(1)
    return y.masked_scatter(blank, predicted.to(ctx.device))


def others(y: Tensor, classes: int) -> Tensor:
    """Return all classes except y, ascending: (n,) to (n, classes - 1).

    >>> others(torch.tensor([0, 2]), 3).tolist()
    [[1, 2], [0, 1]]
    """
    rest = torch.arange(classes - 1, device=y.device)
    return rest + (rest >= y[:, None])


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both attacks."""
    return [AdversarialMIA(), AdversarialMIATargeted()]
