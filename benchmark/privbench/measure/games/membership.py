"""Membership inference: which rows did the victim train on?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from privbench.ground.columns import Board, Column
from privbench.measure.data.examples import as_float
from privbench.measure.games import metrics
from privbench.measure.games.audited import audited
from privbench.measure.games.game import BadAnswerError, Game, Metrics, new_game, real
from privbench.measure.methods.attack import Attack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import Split
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle, Served


class MembershipAttack(Attack):
    """An attack that distinguishes members from nonmembers.

    >>> from dataclasses import dataclass
    >>> from privbench import Access
    >>> @dataclass(frozen=True)
    ... class Loud(MembershipAttack):
    ...     name = "loud"
    ...     needs = Access.POSTERIORS
    ...     def answer(self, oracle, question, ctx):
    ...         return Membership(oracle.posteriors(question.examples).amax(1))
    >>> from privbench.testing import arena, memoriser, tiny_split
    >>> split = tiny_split()
    >>> oracle, ctx = arena(Loud(), memoriser(split.victim()))
    >>> question = MembershipQuestion(split.candidates, "encoder")
    >>> scores = Loud().answer(oracle, question, ctx).scores
    >>> bool(scores[split.member].mean() > scores[~split.member].mean()), oracle.queries
    (True, 160)
    """

    game: ClassVar[str] = "membership"

    @abstractmethod
    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score each row of ``question.examples``; higher means more likely a member."""


@dataclass(frozen=True)
class MembershipQuestion:
    """The question: which of these rows did a phase of the victim train on?

    >>> from privbench.testing import tiny_split
    >>> question = MembershipQuestion(tiny_split().candidates, "encoder+classifier")
    >>> question.examples.x.shape, question.examples.y.shape
    (torch.Size([160, 1, 8, 8]), torch.Size([160]))

    Attributes:
        examples: n rows with x and y, without attributes, in canonical order; y is -1 for all rows
            if some of them have no label.
        phase: the phase asked about ("encoder", "classifier", "encoder+classifier").
    """

    examples: Examples
    phase: str


@dataclass(frozen=True)
class Membership:
    """The answer: scores, and decisions if the attack has its own threshold.

    >>> answer = Membership(torch.tensor([0.2, 0.9]), decisions=torch.tensor([False, True]))
    >>> answer.scores.argmax()
    tensor(1)

    Attributes:
        scores: (n,) higher means more likely a member; read as float64.
        decisions: (n,) bool, from a threshold chosen on shadow data; None if there is no threshold.
            Without decisions, only AUC and TPR at fixed FPR are reported.
        notes: facts to record with the metrics.
    """

    scores: Tensor
    decisions: Tensor | None = None
    notes: Mapping[str, float | str] = field(default_factory=dict)


#: Of an audit: boards show what it finds in all seeds together.
_EPSILON: Any = {"high": None, "seeds": "pooled", "optional": True}


#: Metrics of decisions, not of scores.
_OF_DECISIONS = ("balanced_accuracy", "precision", "recall")


_FOLDS = 5


#: Components with a smaller standard deviation, relative to the largest one, are dropped.
_LEAST_SPREAD = 1e-3


@new_game
class MembershipGame(Game):
    """Membership inference: members against nonmembers of one phase."""

    name: ClassVar[str] = "membership"
    board: ClassVar[Board] = Board(
        (
            Column("AUC", "metrics", "auc"),
            Column("balanced accuracy", "metrics", "balanced_accuracy", terminal="never"),
            Column("TPR at 1 % FPR", "metrics", "tpr_at_fpr_0.01", terminal="wide"),
            Column("TPR at 0.1 % FPR", "metrics", "tpr_at_fpr_0.001", terminal="never"),
            Column("null AUC", "controls.null", "auc"),
            Column("null TPR at 1 % FPR", "controls.null", "tpr_at_fpr_0.01", terminal="never"),
            Column("blind AUC", "baselines.blind", "auc", terminal="wide"),
            Column("claimed ε", "metrics", "claimed_epsilon", **_EPSILON, terminal="wide"),
            Column("nominal ε", "metrics", "nominal_epsilon", **_EPSILON, terminal="wide"),
            Column("audited ε", "metrics", "audited_epsilon", **_EPSILON),
            Column("audit's ceiling", "metrics", "audit_ceiling", **_EPSILON, terminal="wide"),
            Column("claimed μ", "metrics", "claimed_mu", **_EPSILON, terminal="wide"),
            Column("audited μ", "metrics", "audited_mu", **_EPSILON, terminal="wide"),
            Column("p of the claim", "metrics", "audit_p", **_EPSILON, terminal="wide"),
            Column("canaries' AUC", "metrics", "loo_auc", optional=True),
            Column(
                "canaries' TPR at 1 % FPR",
                "metrics",
                "loo_tpr_at_fpr_0.01",
                optional=True,
                terminal="never",
            ),
            Column("canaries' TPR at 0.1 % FPR", "metrics", "loo_tpr_at_fpr_0.001", optional=True),
        ),
        tells=("phase",),
        place=0,
    )
    controls: ClassVar[tuple[str, ...]] = ("null",)

    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[MembershipQuestion, NDArray[np.bool_]]:
        """Ask about the candidates in canonical order; the truth is (n,) bool.

        If some candidates have no label, none shows its label: members and nonmembers may come from
        sources of which one is unlabelled, so that a label would tell which is which.
        """
        del served
        rows = self.asked(split, max_rows=max_rows, sensitive=sensitive)
        examples = rows.without_attributes().without_source()
        if bool((split.candidates.y < 0).any()):
            examples = examples.with_y(torch.full_like(examples.y, -1))
        question = MembershipQuestion(examples, split.protocol.phase)
        return question, split.member[:max_rows].cpu().numpy()

    def asked(self, split: Split, *, max_rows: int | None, sensitive: tuple[str, ...]) -> Examples:
        """Return the first candidates."""
        del sensitive
        return split.candidates.select(slice(0, max_rows))

    def pack(self, answer: Membership) -> dict[str, Tensor]:
        """Return scores (n,) float64, and decisions (n,) bool if there are any."""
        if not isinstance(answer, Membership):
            raise BadAnswerError(f"the answer is a {type(answer).__name__}: return a Membership")
        tensors = {"scores": real(answer.scores, "scores").double()}
        if answer.decisions is not None:
            tensors["decisions"] = _flags(answer.decisions)
        return tensors

    def unpack(self, tensors: Mapping[str, Tensor]) -> Membership:
        """Return an answer with these scores and decisions."""
        return Membership(tensors["scores"], tensors.get("decisions"))

    def controlled(self, control: str, scored: Metrics, split: Split) -> Metrics:
        """Refuse decisions about a null victim whose members the attack takes for nonmembers."""
        if control != "null" or split.null_apart:
            return scored
        refused = metrics.Refused(
            "the protocol leaves too few rows outside the pool for the null victim, so its members "
            "are among the rows that attacks learn decisions from"
        )
        return {name: refused if name in _OF_DECISIONS else of for name, of in scored.items()}

    def audit(
        self,
        claims: Sequence[Mapping[str, Any]],
        answer: Membership,
        truth: NDArray[np.bool_],
        split: Split,
    ) -> Metrics:
        """Return the claimed and the audited epsilon, if a defense claims one."""
        return audited(claims, np.asarray(answer.scores), truth, split)

    def score(self, answer: Membership, truth: NDArray[np.bool_]) -> Metrics:
        """Return AUC and TPR at fixed FPR, and the rates of the decisions if there are any."""
        return self.measure(self.per_sample_truth(truth), self.per_sample(answer, truth))

    def per_sample(
        self, answer: Membership, truth: NDArray[np.bool_]
    ) -> dict[str, NDArray[np.generic]]:
        """Return ``scores`` (n,) float64, and ``decisions`` (n,) bool if there are any."""
        scores = _vector(answer.scores, len(truth), "scores").astype(np.float64)
        if np.isnan(scores).any():
            raise BadAnswerError(
                f"{int(np.isnan(scores).sum())} scores are NaN: give every row a number"
            )
        if not np.isfinite(scores).any():
            raise BadAnswerError("no score is finite, so rows cannot be ranked: give finite scores")
        made: dict[str, NDArray[np.generic]] = {"scores": scores}
        if answer.decisions is not None:
            decided = _vector(_flags(answer.decisions), len(truth), "decisions")
            made["decisions"] = decided.astype(bool)
        return made

    def per_sample_truth(self, truth: NDArray[np.bool_]) -> dict[str, NDArray[np.generic]]:
        """Return ``member`` (n,) bool."""
        return {"member": truth}

    def measure(
        self,
        truth: Mapping[str, NDArray[np.generic]],
        answer: Mapping[str, NDArray[np.generic]],
    ) -> Metrics:
        """Return the metrics of ``score`` from columns."""
        scores, member = answer["scores"], truth["member"]
        made: Metrics = {
            "auc": metrics.auc(scores, member),
            "tpr_at_fpr_0.01": metrics.tpr_at_fpr(scores, member, 0.01),
            "tpr_at_fpr_0.001": metrics.tpr_at_fpr(scores, member, 0.001),
        }
        if "decisions" in answer:
            decisions = answer["decisions"]
            made["balanced_accuracy"] = metrics.balanced_accuracy(decisions, member)
            made["precision"] = metrics.precision(decisions, member)
            made["recall"] = metrics.recall(decisions, member)
        return made

    def baselines(
        self, split: Split, question: MembershipQuestion, truth: NDArray[np.bool_]
    ) -> Mapping[str, Metrics]:
        """Score a blind classifier: trained on raw x and the *true* membership, cross-validated.

        It never queries the victim. Any success is therefore a difference in distribution between
        members and nonmembers, not a leak.
        """
        return {"blind": {"auc": blind_auc(question.examples, truth, split.seed)}}

    def suspicions(
        self, controls: Mapping[str, Metrics], sizes: Mapping[str, int]
    ) -> Sequence[str]:
        """Flag an attack that tells apart what its victim never saw.

        Without signal an AUC leaves the band around 0.5 less than once in 10,000 cells.
        """
        found = controls["null"]["auc"]
        if isinstance(found, metrics.Refused):
            return ()
        band = metrics.auc_band(sizes["members"], sizes["nonmembers"])
        if abs(found.value - 0.5) <= band:
            return ()
        told = (
            f"its AUC is {found.value:.3f} on a victim that saw none of these samples, and chance "
            f"reaches 0.5 ± {band:.3f}: the truth reaches the attack, or the samples differ"
        )
        return (told,)

    def sizes(self, truth: NDArray[np.bool_]) -> dict[str, int]:
        """Return the numbers of members and nonmembers."""
        return {"members": int(truth.sum()), "nonmembers": int((~truth).sum())}


def blind_auc(
    examples: Examples, truth: NDArray[np.bool_], seed: int
) -> metrics.Estimate | metrics.Refused:
    """Return the cross-validated AUC of a linear classifier on raw x.

    The features are at most 64 principal components, computed in float64. Components with less
    than 1e-6 of the largest variance are dropped: standardising them would turn rounding errors
    into features.

    Scores are ranked within each fold before they are pooled. Pooling raw scores of different fits
    would bias the AUC below 0.5 when there is nothing to learn.
    """
    from scipy.stats import rankdata
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    few = int(min(truth.sum(), (~truth).sum()))
    if few < 2 * _FOLDS:
        return metrics.Refused(
            f"{_FOLDS} folds need at least {2 * _FOLDS} members and {2 * _FOLDS} nonmembers, but "
            f"the smaller side has {few}"
        )
    x = as_float(examples.x, examples.scale).flatten(1).double().cpu().numpy()
    if (x == x[0]).all():
        return metrics.Refused("all rows have the same x")
    width = min(64, x.shape[1], int(0.8 * len(x)) - 1)
    ranks = np.zeros(len(x))
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    for train, test in folds.split(x, truth):
        components = PCA(width, random_state=0).fit(x[train])
        spread = np.sqrt(components.explained_variance_)
        varied = spread > _LEAST_SPREAD * spread[0]
        z = components.transform(x)[:, varied] / spread[varied]
        model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000)
        scores = model.fit(z[train], truth[train]).decision_function(z[test])
        ranks[test] = rankdata(scores) / len(test)
    return metrics.auc(ranks, truth)


def _flags(values: Any) -> Tensor:
    """The decisions as bool; a NaN or a share is none."""
    given = real(values, "decisions")
    if not bool(((given == 0) | (given == 1)).all()):
        raise BadAnswerError("decisions must be true or false (or 1 or 0): apply a threshold")
    return given.bool()


def _vector(values: Any, n: int, what: str) -> NDArray[np.generic]:
    array = real(values, what).detach().cpu().numpy()
    if array.shape != (n,):
        raise BadAnswerError(f"{what} have shape {array.shape}: return shape ({n},)")
    return array
