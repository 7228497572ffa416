"""Dual label LiRA: what each row itself adds to a model that answers with labels only.

Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles.
IEEE S&P 2022, algorithm 1. Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li: Cascading and Proxy
Membership Inference Attacks. NDSS 2026, the cascading attack. With signals of our own.

A release that hides or alters posteriors keeps the classes that it predicts, and so what they are
for copies of a row with noise. ``label-lira`` reads how many copies keep the true class. Here all
classes that copies get stand in for the posteriors, and from these the adversary takes away what
rows nearby add, as ``dual-lira`` does. It knows true labels, and owns k shadow models trained on
subsets of the candidate rows. Steps:

1. Ask every model about copies of all rows with noise of several levels. The mean over levels of
   the logarithms of the classes' shares are the model's log-posteriors, to the adversary.
2. Signals of a row are their dual coefficients, as in ``dual-lira``, and the signal of
   ``label-lira``.
3. Add up the signals by the weights that tell shadows with a row best from shadows without it.
   Score: the log-likelihood ratio.
4. With `rounds`, train round after round of shadows with the rows that are sure, as ``cmia`` does.

Deviations: see the class. What to expect: more than ``label-lira`` finds with the same queries and
shadows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import Access, Ge, Gt, MinLen, hookimpl
from privbench.toolbox.cascade import Cascade
from privbench.toolbox.copies import fitting_levels
from privbench.toolbox.likelihood_ratio import kind, log_ratio
from privbench.toolbox.traces import weights_of_traces
from privbench.toolbox.votes import of_labels

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples
    from privbench.toolbox.cascade import Judge
    from privbench.toolbox.likelihood import Ask, Evidence


@dataclass(frozen=True)
class DualLabel(Cascade):
    """The likelihood ratio of what a row itself adds to the labels of its noisy copies.

    The adversary sees the predicted class for any input of its choice, knows true labels, and can
    train shadows on the candidate rows. A row is called a member if the ratio is at least 1. Cost:
    at most `queries` queries per row, of the victim and of every shadow (one more of the first `k`,
    which without `levels` also answer up to 10,500 about own rows), and `rounds` times `k`
    trainings; the first `k` are those of `lira`. The others are trained again for the null victim,
    and with canaries for every shadow in the victim's place, one after the other.

    Attributes:
        rounds: number of rounds; 1 trains the shadows of `lira` only.
        queries: copies of a row, over all levels.
        levels: of the noise, see ``label-lira``; None for five that fit the model.
    """

    name: ClassVar[str] = "dual-label"
    needs: ClassVar[Access] = Access.LABELS
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    deviations: ClassVar[str] = (
        "The signals are our own: those of `dual-lira`, of what the classes of noisy copies say in "
        "place of posteriors, half a copy added to each class. Noise and its levels are those of "
        "`label-lira`; rounds, limits and worlds are those of `cmia`. If a true label is missing, "
        "all rows score 0 and none is called a member."
    )

    rounds: Annotated[int, Ge(1)] = 1
    queries: Annotated[int, Ge(8)] = 240
    levels: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] | None = None

    def asks(self, ctx: AttackContext, rows: Examples) -> Ask:
        """Return what asks a model for the signals of the rows."""
        return of_labels(ctx, rows, self.levels or fitting_levels(ctx), self.queries)

    def judge(self, rows: Examples) -> Judge:
        """Return what scores (n,) rows by the signals (n, v) of them."""
        del rows

        def judge(seen: Evidence) -> Tensor:
            seen = seen.joined(weights_of_traces(seen.known, seen.inside)[:, None])
            return log_ratio(seen, kind=kind(self.variance, seen, online=True))

        return judge


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [DualLabel()]
