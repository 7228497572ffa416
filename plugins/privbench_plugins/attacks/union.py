"""Union: several attacks at once, weighed by what they find on shadow models.

Wang, Zhang, Chen, Baracaldo, Kadhe, Yu: Membership Inference Attacks as Privacy Tools:
Reliability, Disparity and Ensemble. CCS 2025. Attacks of equal strength find different members, so
one attack alone understates what leaks.

The adversary sees predicted classes, posteriors and embeddings as far as they are granted, knows
true labels, and owns k shadow models trained on subsets of the candidate rows. Steps:

1. Components: the signals of several attacks, asked of the victim and of every shadow.
2. Each shadow takes the victim's place in turn, and the others judge it. This gives the scores of
   all components for models whose members are known.
3. A score becomes the standard normal's quantile at its rank among the scores of one model, so that
   components are comparable, and models too.
4. A logistic regression on these quantiles, fitted on all shadows, is the combination.
5. The combination and each component alone find, on shadows, some share of members at a false
   positive rate of `fpr`. The one that finds most scores the victim. The regression of this
   comparison is fitted without the shadows that it is compared on.

Step 5 keeps useless components, such as posteriors behind a mask, from costing more than chance
does.

Deviations: see the class. What to expect: at `fpr`, about what the best component finds, or
more; 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch.nn import functional as F

from privbench import (
    Access,
    Ge,
    Gt,
    Lt,
    Membership,
    MembershipAttack,
    MinLen,
    Paper,
    Shadows,
    hookimpl,
)
from privbench.toolbox.copies import fitting_levels, kept
from privbench.toolbox.likelihood import (
    Evidence,
    log_confidence,
    mean,
    observe,
    of_views,
    split,
    stand_in,
    weights_of_views,
)
from privbench.toolbox.likelihood_ratio import kind, log_ratio
from privbench.toolbox.traces import of_traces, weights_of_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import (
        Attack,
        AttackContext,
        Cell,
        Examples,
        MembershipQuestion,
        Oracle,
        Shadow,
    )

Component = Literal[
    "lira", "rmia", "label-lira", "metric-modified-entropy", "lira-encoder", "lira-head"
]

#: What each component reads.
READS: dict[str, Access] = {
    "lira": Access.POSTERIORS, "rmia": Access.POSTERIORS, "label-lira": Access.LABELS,
    "metric-modified-entropy": Access.POSTERIORS, "lira-encoder": Access.EMBEDDINGS,
    "lira-head": Access.POSTERIORS | Access.EMBEDDINGS,
}  # fmt: skip
#: Components whose signals are of several units.
TRACES = ("lira-encoder", "lira-head")
#: Views of ``lira`` and ``rmia``, and temperature of the latter.
MIRROR, TEMPERATURE = 1, 2.0
#: Smallest probability.
LEAST = 1e-12
#: Penalty of the regression's weights, relative to the number of rows.
PENALTY = 1e-3


@dataclass(frozen=True)
class Union(MembershipAttack):
    """Weighs the scores of several attacks by a regression fitted on shadows.

    The adversary has predicted classes and true labels, uses posteriors and embeddings where they
    are granted, and can train shadows on the candidate rows. Cost per row: two queries for
    ``lira`` and as many for ``rmia``, one for ``metric-modified-entropy``,
    `queries` for ``label-lira`` (whose noise also takes up to 10,500 of every shadow), one for
    ``lira-encoder`` and two for ``lira-head``, each with `views` more on images.

    Attributes:
        components: attacks that take part. Those whose access is not granted are left out; the
            result names those that took part.
        k: number of shadow models, each a full training, shared with ``lira``.
        fpr: false positive rate at which the combination is compared with its components, and at
            which it decides.
        queries: noisy copies of a row for ``label-lira``, over all levels.
        views: views of a row for ``lira-encoder`` and ``lira-head``.
        rows: maximum number of candidate rows, if ``label-lira`` takes part.
    """

    name: ClassVar[str] = "union"
    version: ClassVar[int] = 6
    needs: ClassVar[Access] = Access.LABELS
    wants: ClassVar[Access] = Access.POSTERIORS | Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks as Privacy Tools: Reliability, Disparity and Ensemble",
        "Wang, Zhang, Chen, Baracaldo, Kadhe, Yu", "CCS 2025", "ensembles of attacks",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The idea is the paper's, the form is not (checked against its abstract alone): a "
        "regression on calibrated scores replaces unions and intersections of decisions, so that "
        "there is a score at every false positive rate. Components are the signals of the named "
        "attacks with online shadows: `rmia` has the plain softmax, and no population, which moves "
        "no rank of one model; `metric-modified-entropy` has one threshold for all classes "
        "and `lira-encoder` all signals. Ranks are among the rows in question, so a row's score "
        "depends on the others."
    )

    components: Annotated[tuple[Component, ...], MinLen(1)] = (
        "lira", "rmia", "label-lira", "metric-modified-entropy", "lira-encoder", "lira-head",
    )  # fmt: skip
    k: Annotated[int, Ge(4)] = 16
    fpr: Annotated[float, Gt(0), Lt(1)] = 0.01
    queries: Annotated[int, Ge(6)] = 240
    views: Annotated[int, Ge(2)] = 10
    rows: Annotated[int, Ge(2)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    @property
    def max_rows(self) -> int | None:
        """Limit the question to ``rows`` rows, if ``label-lira`` takes part."""
        return self.rows if "label-lira" in self.components else None

    @property
    def decides_at(self) -> str:
        """Decide at a false positive rate of ``fpr``."""
        return f"FPR {self.fpr:g}"

    def incompatible(self, cell: Cell) -> str | None:
        """Require a component that can take part."""
        if takes_part(self.components, cell.access):
            return None
        names = ", ".join(self.components)
        return (
            f"{self.name} has no component that the cell's access ({cell.access}) allows: {names}"
        )

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the combination that finds most members of shadows."""
        rows = question.examples
        asks = self._asks(oracle, rows, ctx)
        evidence = {name: on_cpu(observe(ask, oracle, ctx.shadows, rows))
                    for name, ask in asks.items()}  # fmt: skip
        known = (rows.y >= 0).cpu()
        victim = calibrated(scored(evidence), known)
        tables, members = [], []
        for index, judges in trials(ctx.shadows, rows):
            held = {n: in_place(one, index, judges) for n, one in evidence.items()}
            tables.append(calibrated(scored(held), known)[known])
            members.append(next(iter(evidence.values())).inside[index][known])
        notes: dict[str, float | str] = {"components": ", ".join(asks)}
        if not tables:
            return Membership(victim.mean(1), None, notes)
        weights, shares = chosen(tables, members, self.fpr)
        notes |= {f"found by {n}": s for n, s in zip([*asks, "all"], shares, strict=True)}
        notes |= {f"weight of {n}": float(w) for n, w in zip(asks, weights, strict=True)}
        others = torch.cat([t[~m] @ weights for t, m in zip(tables, members, strict=True)])
        limit = float(others.quantile(1 - self.fpr))
        scores = (victim @ weights).masked_fill(~known, 0.0)
        decisions = (scores > limit) & known
        return Membership(scores, decisions, {**notes, "threshold": limit})

    def _asks(
        self, oracle: Oracle, rows: Examples, ctx: AttackContext
    ) -> Mapping[str, Callable[[Oracle, Examples], Tensor]]:
        """Return what asks each component's signal (n, v), of those that can take part."""
        names = takes_part(self.components, oracle.access)
        levels = fitting_levels(ctx) if "label-lira" in names else ()
        asks: dict[str, Callable[[Oracle, Examples], Tensor]] = {
            "lira": of_views(ctx, MIRROR),
            "rmia": of_views(ctx, MIRROR, warm),
            "metric-modified-entropy": lambda o, r: certainty(o.log_posteriors(r), r.y)[:, None],
            "label-lira": lambda o, r: kept(o, r, ctx, levels, self.queries),
        }  # fmt: skip
        asks |= {
            name: of_traces(ctx, rows, views=self.views, posteriors=name == "lira-head")
            for name in TRACES
            if name in names
        }
        return {name: asks[name] for name in names}


# ---- components ----------------------------------------------------------------------------------


def takes_part(names: Sequence[str], access: Access) -> list[str]:
    """Return the components that this access allows, each once."""
    return [name for name in dict.fromkeys(names) if READS[name] in access]


def scored(evidence: Mapping[str, Evidence]) -> Tensor:
    """Return the scores (n, components) of one model; higher means more likely a member."""
    scores = []
    for name, signals in evidence.items():
        weigh = weights_of_traces if name in TRACES else weights_of_views
        one = signals.joined(weigh(signals.known, signals.inside)[:, None])
        if name == "metric-modified-entropy":
            scores.append(one.asked[:, 0])
        elif name == "rmia":
            scores.append(one.asked[:, 0] - prior(one))
        else:
            variance = "bayes" if name == "label-lira" else kind("auto", one, online=True)
            scores.append(log_ratio(one, kind=variance))
    return torch.stack(scores, dim=1)


def warm(log_p: Tensor, y: Tensor) -> Tensor:
    """Return log p_y (n, ...) of log-posteriors (n, ..., classes) at ``TEMPERATURE``."""
    return log_confidence((log_p / TEMPERATURE).log_softmax(-1), y)


def prior(one: Evidence) -> Tensor:
    """Return log p(x) (n,): the mean of p over shadows with x and those without x, averaged."""
    p = one.known.exp()
    held = one.inside.unsqueeze(-1).expand_as(p)
    means = torch.stack([mean(p, held, (0,)), mean(p, ~held, (0,))])
    return means.nanmean(0)[:, 0].clamp_min(LEAST).log()


def certainty(log_p: Tensor, y: Tensor) -> Tensor:
    """Return minus the modified entropy (n,): 0 for certainty of y (n,); NaN where y is -1.

    >>> p = torch.tensor([[0.5, 0.25, 0.25]]).double()
    >>> round(float(certainty(p.log(), torch.tensor([0]))), 4)  # .5 log .5 + 2 × .25 log .75
    -0.4904
    """
    own, others = split(log_p, y)
    p = others.exp()
    outside = p.sum(-1).clamp_min(LEAST)
    entropy = (p * (1 - p).clamp_min(LEAST).log()).sum(-1)
    return outside * own.clamp_min(-1e6) + entropy


# ---- shadows in the victim's place ---------------------------------------------------------------


def on_cpu(one: Evidence) -> Evidence:
    """Return the evidence in float64 on the CPU."""
    return Evidence(one.asked.double().cpu(), one.known.double().cpu(), one.inside.cpu())


def trials(shadows: Sequence[Shadow], rows: Examples) -> list[tuple[int, list[int]]]:
    """Return the position of every shadow that can stand in, and those of at least 2 judges."""
    found = []
    for index, shadow in enumerate(shadows):
        others = [one for one in shadows if one is not shadow]
        known = stand_in([shadow, *others], rows, fewest=2)
        if known is not None:
            judges = [i for i, one in enumerate(shadows) if any(one is j for j in known.judges)]
            found.append((index, judges))
    return found


def in_place(one: Evidence, index: int, judges: list[int]) -> Evidence:
    """Return the evidence of the shadow at ``index`` as if it were the victim's."""
    return Evidence(one.known[index], one.known[judges], one.inside[judges])


def calibrated(scores: Tensor, known: Tensor) -> Tensor:
    """Return normal quantiles of each column's ranks among the known rows; equal scores are equal.

    Args:
        scores: (n, c); NaN counts as the middle.
        known: (n,) bool; other rows get 0.

    >>> column = torch.tensor([[3.0], [1.0], [1.0], [9.0]]).double()
    >>> calibrated(column, torch.ones(4).bool())[:, 0].round(decimals=3).tolist()
    [0.319, -0.674, -0.674, 1.15]
    """
    out = torch.zeros_like(scores)
    for column in range(scores.shape[1]):
        value = scores[known, column].contiguous()
        some = ~value.isnan()
        if not some.any():
            continue
        rising = value[some].sort().values
        below = torch.searchsorted(rising, value[some])
        upto = torch.searchsorted(rising, value[some], right=True)
        place = torch.full_like(value, 0.5)
        place[some] = (below + upto).to(value.dtype) / (2 * len(rising))
        out[known, column] = torch.special.ndtri(place)
    return out


# ---- the combination -----------------------------------------------------------------------------


def chosen(
    tables: Sequence[Tensor], members: Sequence[Tensor], fpr: float
) -> tuple[Tensor, list[float]]:
    """Return the weights (c,) that find most members, and what each choice finds.

    Args:
        tables: (n, c) calibrated scores of each shadow.
        members: (n,) bool of each.
        fpr: where shares of members are compared.

    Returns:
        The weights; the mean shares over shadows of each component alone and of the regression,
        each shadow's by the regression of those in the other half. Equal shares: the regression.
    """
    width = tables[0].shape[1]
    shares = [[found(t[:, c], m, fpr) for c in range(width)]
              for t, m in zip(tables, members, strict=True)]  # fmt: skip
    # Worlds 2i and 2i + 1 may be complements: they stay on one side.
    side = [i // 2 % 2 for i in range(len(tables))]
    for i, (table, member) in enumerate(zip(tables, members, strict=True)):
        apart = [j for j in range(len(tables)) if side[j] != side[i]] or [i]
        weights = regression(
            torch.cat([tables[j] for j in apart]), torch.cat([members[j] for j in apart])
        )
        shares[i].append(found(table @ weights, member, fpr))
    means = torch.tensor(shares).double().mean(0)
    best = int(means.argmax())
    if means[width] >= means[best]:
        return regression(torch.cat([*tables]), torch.cat([*members])), means.tolist()
    return F.one_hot(torch.tensor(best), width).double(), means.tolist()


def found(scores: Tensor, member: Tensor, fpr: float) -> float:
    """Return the share of members above all but a share ``fpr`` of nonmembers.

    >>> scores, member = torch.arange(6.0), torch.tensor([0, 0, 1, 0, 1, 1]).bool()
    >>> [round(found(scores, member, fpr), 3) for fpr in (0.01, 0.4)]
    [0.667, 1.0]
    """
    others = scores[~member].sort(descending=True).values
    return float((scores[member] > others[int(fpr * len(others))]).double().mean())


def regression(x: Tensor, member: Tensor) -> Tensor:
    """Return the weights (c,) of a logistic regression of ``member`` (n,) on x (n, c).

    With an intercept, which ranks nothing and is dropped; a small L2 penalty keeps weights finite.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / (PENALTY * len(x)), max_iter=1000, tol=1e-8)
    model.fit(x.numpy(), member.numpy())
    return torch.from_numpy(model.coef_[0])


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [Union()]
