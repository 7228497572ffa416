"""Dual CMIA: what each row itself adds to a model, judged against shadows close to the victim.

Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li: Cascading and Proxy Membership Inference Attacks.
NDSS 2026, the cascading attack, with signals of our own.

``cmia`` makes shadows that agree with the victim on all rows of which the adversary is sure, so
that the other rows of a shadow add to a row what they add in the victim. ``dual-lira`` takes
away what rows nearby add. Both want the same, each takes away what the other leaves. The adversary
knows true labels and trains shadow models on subsets of the candidate rows. Steps:

1. Ask every model for the dual coefficients of the rows, as ``dual-lira`` (posteriors),
   ``dual-encoder`` (embeddings) or ``dual-head`` (both) do.
2. Train round after round of shadows with the rows that are sure, as ``cmia`` does.
3. Add up the signals by the weights that tell shadows with a row best from shadows without it, over
   the shadows of all rounds. Score: the log-likelihood ratio.

Deviations: see the classes. What to expect: more than any other attack where no defense acts, for
four times as many shadows. ``supervised`` on digits, 100 members among 500 rows, mean of 3 seeds of
the suite digits-cascade, AUC and TPR at 1 % FPR: ``dual-cmia`` .915, 46.3 %, ``dual-cmia-encoder``
.911, 41.7 %, ``dual-cmia-head`` .929, 47.0 % (``cmia`` .891, 33.0 %; with 16 shadows ``dual-lira``
.862, 32.7 %, ``dual-encoder`` .867, 31.0 %, ``dual-head`` .882, 34.7 %); null victims .48.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import Access, Ge, hookimpl
from privbench.toolbox.cascade import Cascade
from privbench.toolbox.duals import of_encoder, of_posteriors
from privbench.toolbox.likelihood_ratio import kind, log_ratio
from privbench.toolbox.traces import weights_of_traces

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples
    from privbench.toolbox.cascade import Judge
    from privbench.toolbox.likelihood import Ask, Evidence


@dataclass(frozen=True)
class DualCMIA(Cascade):
    """The likelihood ratio of what a row adds to posteriors, over shadows close to the victim.

    The adversary has posteriors and labels, and can train shadows on the candidate rows, also
    after it has asked the victim. A row is called a member if the ratio is at least 1. Cost: one
    query per row, and `rounds` times `k` trainings; the first `k` are those of `lira`. The others
    are trained again for the null victim, and with canaries for every shadow in the victim's place,
    one after the other.
    """

    name: ClassVar[str] = "dual-cmia"
    needs: ClassVar[Access] = Access.POSTERIORS
    deviations: ClassVar[str] = (
        "The signals are our own, those of `dual-lira`, `dual-encoder` and `dual-head`, added up "
        "as they do; rounds, limits and worlds are those of `cmia`. If a true label is missing, "
        "all rows score 0 and none is called a member."
    )

    def asks(self, ctx: AttackContext, rows: Examples) -> Ask:
        """Return what asks a model for the signals of the rows."""
        return of_posteriors(ctx, rows)

    def judge(self, rows: Examples) -> Judge:
        """Return what scores (n,) rows by the signals (n, v) of them."""
        del rows

        def judge(seen: Evidence) -> Tensor:
            seen = seen.joined(weights_of_traces(seen.known, seen.inside)[:, None])
            return log_ratio(seen, kind=kind(self.variance, seen, online=True))

        return judge


@dataclass(frozen=True)
class DualCMIAEncoder(DualCMIA):
    """The likelihood ratio of what a row adds to embeddings, over shadows close to the victim.

    The adversary has embeddings and labels, and can train shadows on the candidate rows, also
    after it has asked the victim. One query per row, and `views` more on images that may be
    augmented; trainings as `dual-cmia`.

    Attributes:
        views: augmented views per row, shared with ``lira-encoder``.
    """

    name: ClassVar[str] = "dual-cmia-encoder"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    views: Annotated[int, Ge(2)] = 10

    def asks(self, ctx: AttackContext, rows: Examples) -> Ask:
        """Return what asks a model for the signals of the rows."""
        return of_encoder(ctx, rows, self.views, self.needs)


@dataclass(frozen=True)
class DualCMIAHead(DualCMIAEncoder):
    """The likelihood ratio of what a row adds to both answers, over shadows close to the victim.

    The adversary has embeddings, posteriors and labels, and can train shadows on the candidate
    rows, also after it has asked the victim. Two queries per row, and `views` more on images that
    may be augmented; trainings as `dual-cmia`.

    Attributes:
        views: augmented views per row, shared with ``lira-encoder``.
    """

    name: ClassVar[str] = "dual-cmia-head"
    needs: ClassVar[Access] = Access.POSTERIORS | Access.EMBEDDINGS


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attacks."""
    return [DualCMIA(), DualCMIAEncoder(), DualCMIAHead()]
