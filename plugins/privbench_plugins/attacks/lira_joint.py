"""Joint LiRA: a model's answer to a row also tells which rows near it were members.

Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li: Cascading and Proxy Membership Inference Attacks.
NDSS 2026, the cascading attack (CMIA): what is known of other rows' membership sharpens the
question about one. It trains new shadows round after round (``cmia``). Here a regression on the
shadows of ``lira`` says what a member nearby does to a row's answer, so no model is trained for it.

The adversary sees posteriors, knows true labels, and owns k shadow models trained on subsets of the
candidate rows. Steps:

1. Signal of a row: ``log p_y - log(1 - p_y)``, as ``lira``.
2. Neighbours of a row: the candidates that most often share a leaf with it, in a forest that the
   adversary fits to all candidates and their labels. The share of trees says how near they are.
3. A member nearby of the row's class pulls its signal up, one of another class pulls it down. A
   ridge regression on all rows and shadows says how strongly, for the nearest, the second and so
   on. It is fitted to what is left of signals and pulls after their means over the shadows that
   hold the row, and over those that do not.
4. Believe what the log-likelihood ratio of the signals says, where before it as many rows are
   members as of shadows.
5. Subtract the pull from all shadows' signals, and from the victim's by what is believed of the
   neighbours. Score: the log-likelihood ratio of what is left.
6. Believe half of that and half of the old, and do 5 once more.

Where rows pull each other down as strongly as they pull themselves up, wrong beliefs confirm each
other and ``lira`` finds more (simulated: neighbours of other classes alone, .81 against .87).

Deviations: see the class. What to expect: on random forests more than ``lira`` with the same
shadows. Audits with ``--shadow-recipe clone``, TPR at 1 % FPR and AUC: a forest with 2,000 members
of Adult 36.8 %, .909 (``lira``: 21.2 %, .878), one with 600 of digits 73.2 %, .983 (65.8 %, .976).
On networks about what ``lira`` finds: ``supervised`` on digits, 3 seeds, .794 (.782). Less where a
leak has nothing to do with neighbours: with 10,000 rows it finds .73 of a leak of AUC .55, ``lira``
all of it (leaderboards/power.md). 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.likelihood import Evidence, observe, scaled_logit
from privbench.toolbox.likelihood_ratio import Variance, kind
from privbench.toolbox.neighbours import bounded, joint, pulls

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LiRAJoint(MembershipAttack):
    """The likelihood ratio of a row, given what is believed of the rows near it.

    The adversary has posteriors and labels, and can train shadows on the candidate rows. A row is
    called a member if the ratio is at least 1. One query per row.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        neighbours: number of rows that may pull a row's signal.
        variance: of the distributions, see ``lira``.
    """

    name: ClassVar[str] = "lira-joint"
    version: ClassVar[int] = 2
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Cascading and Proxy Membership Inference Attacks",
        "Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li", "NDSS 2026", "the cascading attack",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The idea is CMIA's, the form is not: it trains shadows that hold the rows of which it is "
        "sure, round after round; here a regression on one set of shadows stands for that. A "
        "row's score depends on the others in question. Rows are ranked by Student's t with a "
        "variance of its own for each row (`bayes`), since what is left after the pull differs "
        "between rows more than the signal does. What a row does to the signals of its neighbours "
        "is no evidence about the row: models err alike on rows nearby, and counting that lowered "
        "the AUC. A row without a label scores 0, is not called a member and pulls nothing. "
        "Equally near rows are taken in the order of their numbers, which say nothing. Posteriors "
        "of 0 and 1 count as the smallest and largest other ones."
    )

    k: Annotated[int, Ge(2)] = 16
    neighbours: Annotated[int, Ge(1)] = 20
    variance: Variance = "bayes"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) the log-likelihood ratio of "member" to "nonmember", given the neighbours."""
        every = question.examples
        known = (every.y >= 0).nonzero()[:, 0]
        known = known[every.index[known].argsort()]  # a forest depends on the order of its rows
        rows = every.select(known)
        scores = torch.zeros(len(every), dtype=torch.float64)
        if len(rows) < 2:  # noqa: PLR2004 - there is no neighbour
            return Membership(scores)
        places = known.cpu()
        evidence = observe(_signal, oracle, ctx.shadows, rows)
        evidence = bounded(
            Evidence(evidence.asked.cpu(), evidence.known.cpu(), evidence.inside.cpu())
        )
        chosen = kind(self.variance, evidence, online=True)
        scores[places], weights = joint(evidence, pulls(rows, self.neighbours), chosen)
        decisions = torch.zeros(len(every), dtype=torch.bool)
        decisions[places] = scores[places] >= 0
        return Membership(scores, decisions, {"pull of the nearest": float(weights[0])})


def _signal(oracle: Oracle, rows: Examples) -> Tensor:
    return scaled_logit(oracle.log_posteriors(rows), rows.y)[:, None]


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LiRAJoint()]
