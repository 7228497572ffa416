"""CMIA: rows of which the adversary is sure make shadows that are closer to the victim.

Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li: Cascading and Proxy Membership Inference Attacks.
NDSS 2026, the cascading attack.

How a model answers a row depends on which other rows it was trained on. The adversary sees
posteriors, knows true labels, and trains shadow models on subsets of the candidate rows. Steps:

1. Score all rows as ``lira-joint`` does, over k shadows trained on random subsets.
2. Put each shadow of the last round in the victim's place and let the others judge it. Its
   members are known, so it says up to which score there are hardly any members, and from which
   score on hardly any nonmembers. Take the mean over the shadows.
3. The victim's rows beyond these two scores are sure, the furthest first, up to a share.
4. Train k new shadows. All of them hold the rows that are surely members and none that surely are
   not; the other rows are drawn at random, as many as fill a world.
5. Score all rows over the shadows of all rounds, and go on with 2.

``label-cmia`` does the same where only labels are seen: the signal of a row is that of
``label-lira``, how often copies with noise keep its class.

Deviations: see the classes. What to expect: more than attacks with one round where no defense acts.
Audits with ``--shadow-recipe clone``, TPR at 1 % FPR and AUC: a forest with 2,000 members of Adult
52.8 %, .934 (``lira-joint`` 36.8 %, .909), one with 600 of digits 81.5 %, .991 (73.2 %, .983).
``supervised`` on digits, 100 members among 500 rows, 5 seeds (leaderboards/digits-cascade.md):
33.2 %, .887 (``lira`` 18.0 %, .794). From labels alone, seed 0: ``label-cmia`` 18.0 %, .802
(``label-lira`` 9.0 %, .703). 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from privbench import Access, Ge, Gt, MinLen, hookimpl
from privbench.toolbox.cascade import Cascade
from privbench.toolbox.copies import fitting_levels, kept
from privbench.toolbox.likelihood import of_views, weights_of_views
from privbench.toolbox.likelihood_ratio import kind, log_ratio
from privbench.toolbox.neighbours import bounded, joint, pulls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Examples
    from privbench.toolbox.cascade import Judge
    from privbench.toolbox.likelihood import Ask, Evidence

DEVIATIONS = (
    "Checked against the abstract and the authors' code, not against the text. Rows are scored "
    "as `lira-joint` does (theirs: LiRA, RMIA and others), with 16 shadows a round (theirs: "
    "256). Limits are means over all shadows of a round, each judged by the "
    "others (their code trains one more model for it). A round takes members and nonmembers, "
    "up to a fifth of the other rows of each (their code: nonmembers, up to a twentieth and "
    "at least 20; members, at least 5, only in a round that finds no nonmembers). Worlds hold "
    "as many rows as the victim's and each class evenly, theirs half of the rows. The rounds "
    "end when no more row is sure, or when a world cannot be filled any more. If a true "
    "label is missing, all rows score 0 and none is called a member."
)


@dataclass(frozen=True)
class _CMIA(Cascade):
    """Base of both forms.

    Attributes:
        neighbours: number of rows that may pull a row's signal, see ``lira-joint``; with 0 rows
            are scored as ``lira`` does.
    """

    neighbours: Annotated[int, Ge(0)] = 20

    def judge(self, rows: Examples) -> Judge:
        """Return what scores (n,) rows by the signals (n, v) of them."""
        near = pulls(rows, self.neighbours) if self.neighbours else None

        def judge(seen: Evidence) -> Tensor:
            seen = bounded(seen)
            seen = seen.joined(weights_of_views(seen.known, seen.inside)[:, None])
            chosen = kind(self.variance, seen, online=True)
            return log_ratio(seen, kind=chosen) if near is None else joint(seen, near, chosen)[0]

        return judge


@dataclass(frozen=True)
class CMIA(_CMIA):
    """The likelihood ratio over shadows that agree with the victim on the rows that are sure.

    The adversary has posteriors and labels, and can train shadows on the candidate rows, also
    after it has asked the victim. A row is called a member if the ratio is at least 1. Cost: at
    most 1 + `views` queries per row, and `rounds` times `k` trainings; the first `k` are those
    of `lira`. The others are trained again for the null victim, and with canaries for every
    shadow in the victim's place, one after the other.

    Attributes:
        views: see ``lira``.
    """

    name: ClassVar[str] = "cmia"
    needs: ClassVar[Access] = Access.POSTERIORS
    deviations: ClassVar[str] = DEVIATIONS + (
        " `paper` has 256 shadows a round, the paper's shares, and the scores of `lira`."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"k": 256, "share": 0.05, "views": 17, "neighbours": 0, "variance": "auto"}
    }

    views: Annotated[int, Ge(0)] = 1

    def asks(self, ctx: AttackContext, rows: Examples) -> Ask:
        """Return what tells the scaled logits of rows and of their views."""
        del rows
        return of_views(ctx, self.views)


@dataclass(frozen=True)
class LabelCMIA(_CMIA):
    """Label-only LiRA over shadows that agree with the victim on the rows that are sure.

    The adversary sees the predicted class for any input of its choice, knows true labels, and can
    train shadows on the candidate rows, also after it has asked the victim. Cost: at most
    `queries` queries per row, of the victim and of every shadow, for all rows (`label-lira` asks
    about 1,000); without `levels` the first `k` shadows answer up to 10,500 queries about own rows.
    `rounds` times `k` trainings; all but the first `k` again for the null victim, and with canaries
    for every shadow in the victim's place.

    Attributes:
        queries: copies of a row, over all levels.
        levels: of the noise, see ``label-lira``; None for five that fit the model.
    """

    name: ClassVar[str] = "label-cmia"
    needs: ClassVar[Access] = Access.LABELS
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    deviations: ClassVar[str] = (
        "The paper reads posteriors; the signal of a row here is that of `label-lira`: how often "
        "noisy copies keep its class. "
    ) + DEVIATIONS

    queries: Annotated[int, Ge(8)] = 240
    levels: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] | None = None

    def asks(self, ctx: AttackContext, rows: Examples) -> Ask:
        """Return what tells the log-odds that copies with noise keep the true class."""
        del rows
        levels = self.levels or fitting_levels(ctx)
        return lambda oracle, rows: kept(oracle, rows, ctx, levels, self.queries)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both forms."""
    return [CMIA(), LabelCMIA()]
