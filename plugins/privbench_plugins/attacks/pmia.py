"""PMIA: the row's own in-models are missing, so other rows stand in for it (proxies).

Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li: Cascading and Proxy Membership Inference Attacks.
NDSS 2026, the proxy attack (PMIA).

The adversary sees posteriors, knows true labels, and owns k shadow models, all trained before it
knows the candidate rows. So no shadow holds a candidate, but each holds rows of the adversary.
Steps:

1. Signal of a row: ``log p_y - log(1 - p_y)``, as ``lira``.
2. Without training on it: the distribution of the row's signal over the shadows.
3. With training on it: the distribution of its proxies' signals over the shadows that hold them.
   Proxies are all of the adversary's rows, those of the same class, or those that behave alike.
4. Score: the log of the posterior odds, which is the log-likelihood ratio of 3 to 2.

Deviations: see the class. What to expect: about what ``lira-offline`` finds, which costs the same,
and less than ``lira``, whose shadows hold the candidates: on ``digits`` AUC .748, .725 and .795
with ``supervised``, .773, .797 and .833 with ``simclr`` (leaderboards/digits-attacks.md). 0.5 on a
victim that answers members and nonmembers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.likelihood import observe, of_views, watch, weights_of_views
from privbench.toolbox.likelihood_ratio import (
    Location,
    Predictive,
    Variance,
    fit,
    kind,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, MembershipQuestion, Oracle


@dataclass(frozen=True)
class PMIA(MembershipAttack):
    """The likelihood ratio of proxies that shadows hold to the row that they do not hold.

    The adversary has posteriors and labels, and trains shadows on its own rows only. A row is
    called a member if the ratio is at least 1. Cost: at most 1 + `views` queries per row.

    Attributes:
        k: number of shadow models, each a full training.
        proxy: which rows stand in for a candidate: all (``global``), those of its ``class``, or
            the ``neighbours`` of its class whose mean signal in shadows without them is nearest to
            the candidate's (``instance``).
        neighbours: number of proxies of ``instance``.
        views: number of views queried in addition to the row itself, see ``lira``.
        variance: of the nonmember's signal, see ``lira``; the members' is that of the proxies.
        location: mean or median of the signals.
    """

    name: ClassVar[str] = "pmia"
    version: ClassVar[int] = 2
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Cascading and Proxy Membership Inference Attacks",
        "Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li", "NDSS 2026", "proxy attack (PMIA)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Checked against the abstract and the authors' code, not against the text. 16 shadows, "
        "shared with `lira-offline` (`paper`: 256, as their code, which has 18 views on CIFAR). "
        "With few of them the variance of nonmembers is that of `bayes` (theirs: always the "
        "row's own). Their `instance` takes the image nearest in CLIP's features; here the rows "
        "nearest in signal, so that tables have proxies too. More views than one are random. A "
        "class without proxies takes those of all classes. The threshold is 0; their code has none."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"k": 256, "views": 17}}

    k: Annotated[int, Ge(2)] = 16
    proxy: Literal["class", "global", "instance"] = "class"
    neighbours: Annotated[int, Ge(1)] = 20
    views: Annotated[int, Ge(0)] = 1
    variance: Variance = "auto"
    location: Location = "median"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` offline shadows."""
        return Shadows(self.k, "offline")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the log-likelihood ratio of proxies to the row itself."""
        ask, rows = of_views(ctx, self.views), question.examples
        evidence = observe(ask, oracle, ctx.shadows, rows)
        own = ctx.auxiliary.select(ctx.auxiliary.y >= 0)
        known, inside = watch(ask, ctx.shadows, own)
        known, inside = known.to(evidence.asked.device), inside.to(evidence.asked.device)
        weights = weights_of_views(known, inside)[:, None]
        known, evidence = known @ weights, evidence.joined(weights)
        chosen = kind(self.variance, evidence, online=False)
        without = fit(evidence.known, ~evidence.inside, self.location, chosen)
        held = inside.any(0)
        y = [labels.to(evidence.asked.device) for labels in (rows.y, own.y)]
        within = self._within(without.centre, y[0], known[:, held], inside[:, held], y[1][held])
        scores = within.log_density(evidence.asked) - without.log_density(evidence.asked)
        scores = scores.mean(1)
        notes = {"variance": chosen, "proxies": float(held.sum())}
        return Membership(scores.nan_to_num(0.0), scores >= 0, notes)

    def _within(
        self, centre: Tensor, y: Tensor, known: Tensor, inside: Tensor, classes: Tensor
    ) -> Predictive:
        """Return the distribution of each row's signal in shadows that hold it, from proxies.

        Args:
            centre: (n, v) of each row in shadows without it.
            y: (n,) classes.
            known: (k, m, v) signals of the adversary's rows.
            inside: (k, m) bool, which of them were members.
            classes: (m,) of these rows.
        """
        found = pooled(known, inside, self.location, len(y))
        if self.proxy == "global":
            return found
        at = fit(known, ~inside, self.location, "pooled").centre
        for label in classes.unique():  # type: ignore[no-untyped-call]
            of_it, proxies = (y == label).nonzero().squeeze(1), classes == label
            if self.proxy == "class":
                made = pooled(known[:, proxies], inside[:, proxies], self.location, len(of_it))
            else:
                near = nearest(centre[of_it], at[proxies], self.neighbours)
                made = alike(known[:, proxies], inside[:, proxies], near, self.location)
            found.centre[of_it], found.scale[of_it] = made.centre, made.scale
        return found


def pooled(known: Tensor, inside: Tensor, location: Location, n: int) -> Predictive:
    """Return one distribution of the signals of all rows (k, m, v) where ``inside``, n times."""
    one = fit(known.flatten(0, 1)[:, None], inside.flatten()[:, None], location, "per-example")
    return Predictive(*(part.repeat(n, 1) for part in (one.centre, one.scale, one.free)))


def alike(known: Tensor, inside: Tensor, near: Tensor, location: Location) -> Predictive:
    """Return, for each of n rows, the distribution of the signals of its proxies.

    Args:
        known: (k, m, v) signals.
        inside: (k, m) bool, which of them count.
        near: (n, p) positions of each row's proxies.
        location: see ``fit``.
    """
    signals = known[:, near].transpose(1, 2).flatten(0, 1)
    return fit(signals, inside[:, near].transpose(1, 2).flatten(0, 1), location, "per-example")


def nearest(centre: Tensor, at: Tensor, p: int) -> Tensor:
    """Return (n, p) positions of the rows whose ``at`` (m, v) is nearest; fewer if m is less.

    >>> nearest(torch.tensor([[0.0], [4.0]]), torch.tensor([[5.0], [1.0], [-2.0]]), 2).tolist()
    [[1, 2], [0, 1]]
    """
    distance = torch.cdist(centre.nan_to_num(0.0), at).nan_to_num(torch.inf)
    return distance.argsort(dim=1, stable=True)[:, :p]


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [PMIA()]
