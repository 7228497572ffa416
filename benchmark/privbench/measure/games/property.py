"""Property inference: which of two shares of the training rows has a sensitive value?

The game of Suri, Evans: Formalizing and Estimating Distribution Inference Risks, arXiv 2109.06024,
for a ratio, as in Ganju, Wang, Yang, Gunter, Borisov: Property Inference Attacks on Fully Connected
Neural Networks using Permutation Invariant Representations, CCS 2018.

One victim would be one coin, so each seed has 16. Each trains on rows drawn from the victim's
members such that the asked value has one of two shares, the low or the high one. A fair coin
decides for each pair of victims which of them has the high share; only the harness knows it. The
attack answers about one victim at a time, and knows both shares, the number of rows and the value.

- *What is asked*: the most frequent value, among the adversary's rows, of the cell's first
  sensitive attribute; of the class, if the cell has no sensitive attribute.
- *Shares*: the odds of the population, divided and multiplied by 3 (.25 and .75 for a half), so
  that knowing the population tells nothing. All victims train on equally many rows: as many as the
  members allow at both shares.
- *Shadows* are drawn from the adversary's pool in the same way: an even one has the low share, an
  odd one the high share.
- *Null control*: as many victims at the population's share, on rows of the null victim. They know
  nothing of the coins, so the AUC must stay around 0.5.
- *Baselines*: ``guess``, the same answer about every victim; ``one_row``, what seeing the value of
  a single training row of each victim would tell, exactly.

Deviations from the paper: it draws both training sets from two distributions that hold as many
rows as it wants; here they are subsets of the same members, so victims share rows (and the
intervals, over victims, hold for the given members). Its metric n_leaked is not computed.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from privbench.ground.columns import Board, Column
from privbench.ground.errors import BadInputError
from privbench.measure.data.row_random import fold, salt, uniform
from privbench.measure.games import metrics
from privbench.measure.games.game import BadAnswerError, Game, Metrics, new_game, real
from privbench.measure.methods.attack import Attack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import Split, World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle, Served

#: Victims of a seed; half of them have the high share.
VICTIMS = 16
#: The odds of the population are divided and multiplied by it.
ODDS = 3.0


class PropertyAttack(Attack):
    """An attack that infers which share of a victim's training rows has a value.

    >>> class Coin(PropertyAttack):
    ...     name = "coin"
    ...     def answer(self, oracle, question, ctx):
    ...         return Property(torch.tensor([0.5]), torch.tensor([False]))
    >>> Coin.game
    'property'
    """

    game: ClassVar[str] = "property"

    @abstractmethod
    def answer(self, oracle: Oracle, question: PropertyQuestion, ctx: AttackContext) -> Property:
        """Score the one victim behind the oracle; higher means more likely the high share."""

    def incompatible(self, cell: Cell) -> str | None:
        """Require an attribute that the dataset has, or classes."""
        missing = [name for name in cell.sensitive[:1] if name not in cell.card.attributes]
        if missing:
            return f"{cell.card.name} has no attribute '{missing[0]}'"
        if not cell.sensitive and (cell.card.classes or 0) < 2:  # noqa: PLR2004
            return f"{cell.card.name} has neither a sensitive attribute nor classes"
        return None


@dataclass(frozen=True)
class PropertyQuestion:
    """The question: which of two shares of the victim's training rows has this value?

    >>> from privbench.testing import tiny_split
    >>> question = PropertyQuestion("bright", 1, (0.25, 0.75), 80, "encoder")
    >>> 0 < question.share(tiny_split().pool) < 1
    True

    Attributes:
        attribute: the sensitive attribute; "" for the class.
        value: the value asked about.
        shares: the low and the high share, in (0, 1).
        rows: number of rows that every victim and shadow trains on.
        phase: the phase that trains on them ("encoder", "classifier", "encoder+classifier").
    """

    attribute: str
    value: int
    shares: tuple[float, float]
    rows: int
    phase: str

    def values(self, rows: Examples) -> Tensor:
        """Return what the question is about, of each row: (n,) int64, -1 if unknown."""
        return rows.attributes[self.attribute] if self.attribute else rows.y

    def share(self, rows: Examples) -> float:
        """Return the share of the rows that have the value; e.g. of the members of a shadow."""
        return float((self.values(rows) == self.value).double().mean())


@dataclass(frozen=True)
class Property:
    """The answer.

    >>> Property(torch.tensor([1.5]), torch.tensor([True])).decisions
    tensor([True])

    Attributes:
        scores: (1,) higher means more likely the high share; read as float64. The harness joins
            the answers about m victims to (m,).
        decisions: (1,) bool, whether it is the high share.
        notes: facts to record with the metrics.
    """

    scores: Tensor
    decisions: Tensor
    notes: Mapping[str, float | str] = field(default_factory=dict)


@new_game
class PropertyGame(Game):
    """Property inference: victims with the high share of a value against those with the low one."""

    name: ClassVar[str] = "property"
    board: ClassVar[Board] = Board(
        (
            Column("AUC", "metrics", "auc"),
            Column("balanced accuracy", "metrics", "balanced_accuracy"),
            Column("null AUC", "controls.null", "auc"),
            Column("AUC of one row", "baselines.one_row", "auc"),
            Column("guess", "baselines.guess", "auc", terminal="never"),
        ),
        tells=("phase", "sensitive"),
        place=3,
    )
    controls: ClassVar[tuple[str, ...]] = ("null",)

    def victims(self, split: Split, sensitive: tuple[str, ...]) -> tuple[World, ...]:
        """Return worlds at one of both shares, on rows of the victim's members."""
        question, base = _question(split, sensitive), split.victim()
        return tuple(
            _world(base, base.members, question, question.shares[int(high)], index)
            for index, high in enumerate(_coins(split))
        )

    def nulls(self, split: Split, sensitive: tuple[str, ...]) -> tuple[World, ...]:
        """Return worlds at the population's share, on rows of the null victim's members."""
        question, base = _question(split, sensitive), split.null()
        share = question.share(_known(split.pool, question))
        return tuple(_world(base, base.members, question, share, index) for index in range(VICTIMS))

    def offline(
        self, split: Split, index: int, sensitive: tuple[str, ...]
    ) -> tuple[World, Examples]:
        """Return a shadow's world, at the low share if the index is even, and other pool rows."""
        question, base = _question(split, sensitive), split.offline(index)[0]
        free = split.pool.select(~torch.isin(split.pool.index, base.reference.index))
        world = _world(base, free, question, question.shares[index % 2], index)
        others = free.select(~world.contains(free))
        return world, others.select(_order(others, world.salt("others"))[: question.rows])

    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[PropertyQuestion, NDArray[np.bool_]]:
        """Ask about one victim; the truth (m,) bool is which of all victims have the high share."""
        del served, max_rows
        return _question(split, sensitive), _coins(split)

    def pack(self, answer: Property) -> dict[str, Tensor]:
        """Return scores (1,) float64 and decisions (1,) bool."""
        if not isinstance(answer, Property):
            raise BadAnswerError(f"the answer is a {type(answer).__name__}: return a Property")
        scores, decided = real(answer.scores, "scores"), real(answer.decisions, "decisions")
        for what, values in {"scores": scores, "decisions": decided}.items():
            if values.shape != (1,):
                raise BadAnswerError(f"{what} have shape {tuple(values.shape)}: return shape (1,)")
        if not bool(((decided == 0) | (decided == 1)).all()):
            raise BadAnswerError("the decision must be true or false (or 1 or 0)")
        return {"scores": scores.double(), "decisions": decided.bool()}

    def unpack(self, tensors: Mapping[str, Tensor]) -> Property:
        """Return an answer with these scores and decisions."""
        return Property(tensors["scores"], tensors["decisions"])

    def score(self, answer: Property, truth: NDArray[np.bool_]) -> Metrics:
        """Return AUC and balanced accuracy over the victims."""
        scores = answer.scores.double().cpu().numpy()
        if scores.shape != truth.shape or not np.isfinite(scores).all():
            raise BadAnswerError(
                f"{len(scores)} scores for {len(truth)} victims, or some are not finite: return "
                "one finite number for each"
            )
        return {
            "auc": metrics.auc(scores, truth),
            "balanced_accuracy": metrics.balanced_accuracy(answer.decisions.cpu().numpy(), truth),
        }

    def baselines(
        self, split: Split, question: PropertyQuestion, truth: NDArray[np.bool_]
    ) -> Mapping[str, Metrics]:
        """Score the same answer about all victims, and the value of one training row of each."""
        del split
        same = Property(torch.zeros(len(truth)), torch.zeros(len(truth), dtype=torch.bool))
        low, high = question.shares
        seen = 0.5 + (high - low) / 2  # a random row of the high share has the value more often
        exact = metrics.Estimate(seen, seen, seen)
        return {
            "guess": self.score(same, truth),
            "one_row": {"auc": exact, "balanced_accuracy": exact},
        }

    def sizes(self, truth: NDArray[np.bool_]) -> dict[str, int]:
        """Return the numbers of victims with the high and the low share."""
        return {"high": int(truth.sum()), "low": int((~truth).sum())}


def _question(split: Split, sensitive: tuple[str, ...]) -> PropertyQuestion:
    """Return the question of a split.

    Raises:
        BadInputError: if its rows allow none.
    """
    attribute = sensitive[0] if sensitive else ""
    if attribute and attribute not in split.pool.attributes:
        have = ", ".join(split.card.attributes) or "none"
        raise BadInputError(
            f"dataset '{split.card.name}' has no attribute '{attribute}' (it has: {have})"
        )
    asked = PropertyQuestion(attribute, 0, (0.0, 1.0), 0, split.protocol.phase)
    seen = asked.values(_known(split.pool, asked))
    what = f"'{attribute or 'class'}' of '{split.card.name}'"
    if not len(seen) or (seen == seen[0]).all():
        raise BadInputError(f"{what} has fewer than two values in the pool: name another attribute")
    asked = replace(asked, value=int(seen.bincount().argmax()))
    share = float((seen == asked.value).double().mean())
    low, high = (share * factor / (1 - share + share * factor) for factor in (1 / ODDS, ODDS))
    members = _known(split.victim().members, asked)
    having = int((asked.values(members) == asked.value).sum())
    rows = int(min(having / high, (len(members) - having) / (1 - low)))
    if round(low * rows) == round(high * rows):
        raise BadInputError(f"too few members to vary {what}: use a protocol with more members")
    return replace(asked, shares=(low, high), rows=rows)


def _known(rows: Examples, question: PropertyQuestion) -> Examples:
    """Return the rows whose value is known."""
    return rows.select(question.values(rows) >= 0)


def _coins(split: Split) -> NDArray[np.bool_]:
    """Return which victims have the high share: one of each pair, by a fair coin."""
    pairs = fold(torch.arange(VICTIMS // 2), salt(split.seed, "shares", split.digest))
    heads = uniform(pairs, 1)[:, 0].numpy() < 0.5  # noqa: PLR2004
    return np.stack([heads, ~heads], 1).ravel()


def _world(
    base: World, rows: Examples, question: PropertyQuestion, share: float, index: int
) -> World:
    """Return a world like ``base`` whose members are drawn from the rows at that share."""
    world = replace(base, index=index)
    rows = _known(rows, question)
    rows = rows.select(_order(rows, world.salt("drawn")))
    has = question.values(rows) == question.value
    having = round(share * question.rows)
    place = torch.where(has, has.cumsum(0), (~has).cumsum(0))  # among the rows of its kind
    taken = place <= torch.where(has, having, question.rows - having)
    if int(taken.sum()) < question.rows:
        raise BadInputError(
            f"no {question.rows} rows of which {share:.2f} have the value asked about: use a "
            "protocol with a larger pool or fewer members"
        )
    return world.replace(members=rows.select(taken))


def _order(rows: Examples, seed: int) -> Tensor:
    """Return a random order of the rows."""
    return uniform(fold(rows.index, seed), 1)[:, 0].argsort(stable=True)
