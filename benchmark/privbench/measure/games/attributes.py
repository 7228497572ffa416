"""Attribute inference: which sensitive value does the input of a released embedding have?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from privbench.ground.columns import Board, Column
from privbench.ground.errors import BadInputError
from privbench.measure.data.examples import join
from privbench.measure.games import metrics
from privbench.measure.games.game import BadAnswerError, Game, Metrics, new_game, real
from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Attack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import Split
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle, Served


class AttributeAttack(Attack):
    """An attack that infers sensitive attributes from released embeddings.

    >>> class Guess(AttributeAttack):
    ...     name = "guess"
    ...     def answer(self, oracle, question, ctx):
    ...         n = len(question.embeddings)
    ...         return Attributes({a: torch.rand(n, k) for a, k in question.values.items()})
    >>> str(Guess.needs)
    'EMBEDDINGS'
    """

    game: ClassVar[str] = "attributes"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    @abstractmethod
    def answer(self, oracle: Oracle, question: AttributeQuestion, ctx: AttackContext) -> Attributes:
        """Return, for each embedding, a distribution over the values of each attribute."""


@dataclass(frozen=True)
class AttributeQuestion:
    """The question: which sensitive values do the inputs of these released embeddings have?

    >>> question = AttributeQuestion(torch.zeros(3, 8), {"bright": 2})
    >>> question.values["bright"]
    2

    Attributes:
        embeddings: (n, d) float32, as released.
        values: attribute -> number of values.
    """

    embeddings: Tensor
    values: Mapping[str, int]


@dataclass(frozen=True)
class Attributes:
    """The answer: a distribution per attribute.

    >>> Attributes({"bright": torch.tensor([[0.9, 0.1]])}).probabilities["bright"].argmax(1)
    tensor([0])

    Attributes:
        probabilities: attribute -> (n, values).
        notes: facts to record with the metrics.
    """

    probabilities: Mapping[str, Tensor]
    notes: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttributeTruth:
    """The truth of the question.

    Attributes:
        values: attribute -> (n,) int.
        y: (n,) task labels, for the label-only baseline.
    """

    values: Mapping[str, NDArray[np.int64]]
    y: NDArray[np.int64]


@new_game
class AttributeGame(Game):
    """Attribute inference on rows that no phase trained on: the nonmembers and the test part."""

    name: ClassVar[str] = "attributes"
    board: ClassVar[Board] = Board(
        (
            Column("accuracy", "metrics", "accuracy"),
            Column("balanced accuracy", "metrics", "balanced_accuracy", terminal="never"),
            Column("majority", "baselines.majority", "accuracy"),
            Column("label only", "baselines.label_only", "accuracy", terminal="never"),
            Column("raw pixels", "controls.pixels", "accuracy"),
            Column("untrained encoder", "controls.untrained", "accuracy"),
        ),
        tells=("sensitive",),
        place=1,
    )
    controls: ClassVar[tuple[str, ...]] = ("pixels", "untrained")

    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[AttributeQuestion, AttributeTruth]:
        """Ask about released embeddings, without x, since x would reveal the answer."""
        rows = self.asked(split, max_rows=max_rows, sensitive=sensitive)
        values = {name: split.card.attributes[name] for name in sensitive}
        question = AttributeQuestion(served.embeddings(rows.x), values)
        truth = {name: rows.attributes[name].cpu().numpy() for name in sensitive}
        return question, AttributeTruth(truth, rows.y.cpu().numpy())

    def asked(self, split: Split, *, max_rows: int | None, sensitive: tuple[str, ...]) -> Examples:
        """Return the first rows that no phase trained on and whose attributes are known.

        Raises:
            BadInputError: if the dataset lacks an attribute.
        """
        rows = strangers(split)
        known = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for name in sensitive:
            if name not in rows.attributes:
                have = ", ".join(split.card.attributes) or "none"
                raise BadInputError(
                    f"dataset '{split.card.name}' has no attribute '{name}' (it has: {have})"
                )
            known &= rows.attributes[name] >= 0
        return rows.select(known).select(slice(0, max_rows))

    def pack(self, answer: Attributes) -> dict[str, Tensor]:
        """Return probabilities (n, values) float64 by attribute."""
        if not isinstance(answer, Attributes):
            raise BadAnswerError(f"the answer is a {type(answer).__name__}: return Attributes")
        given = answer.probabilities.items()
        return {name: real(p, f"probabilities of '{name}'").double() for name, p in given}

    def unpack(self, tensors: Mapping[str, Tensor]) -> Attributes:
        """Return an answer with these probabilities by attribute."""
        return Attributes(dict(tensors))

    def score(self, answer: Attributes, truth: AttributeTruth) -> Metrics:
        """Return accuracy and balanced accuracy of the most likely value, per attribute."""
        return self.measure(self.per_sample_truth(truth), self.per_sample(answer, truth))

    def per_sample(
        self, answer: Attributes, truth: AttributeTruth
    ) -> dict[str, NDArray[np.generic]]:
        """Return attribute -> (n, values) scores of its values."""
        made: dict[str, NDArray[np.generic]] = {}
        for name, values in truth.values.items():
            if name not in answer.probabilities:
                raise BadAnswerError(
                    f"no probabilities for attribute '{name}': answer every attribute asked about"
                )
            found = real(answer.probabilities[name], f"probabilities of '{name}'")
            given = found.detach().cpu().numpy()
            if given.ndim != 2 or len(given) != len(values):  # noqa: PLR2004 - rows by values
                raise BadAnswerError(
                    f"probabilities of '{name}' have shape {given.shape}: "
                    f"return shape ({len(values)}, values)"
                )
            if not np.isfinite(given).all():
                raise BadAnswerError(
                    f"probabilities of '{name}' are not finite: return finite numbers only"
                )
            made[name] = given
        return made

    def per_sample_truth(self, truth: AttributeTruth) -> dict[str, NDArray[np.generic]]:
        """Return attribute -> (n,) int."""
        return dict(truth.values)

    def measure(
        self,
        truth: Mapping[str, NDArray[np.generic]],
        answer: Mapping[str, NDArray[np.generic]],
    ) -> Metrics:
        """Return the metrics of ``score`` from columns."""
        made: Metrics = {}
        for name, values in truth.items():
            guess = answer[name].argmax(1)
            made |= _metrics(name, guess, values.astype(np.int64), first=not made)
        return made

    def baselines(
        self, split: Split, question: AttributeQuestion, truth: AttributeTruth
    ) -> Mapping[str, Metrics]:
        """Score two guesses: the pool's majority value, and the majority among rows of one label.

        The second guess uses the task label of the row asked about.
        """
        del question
        pool, majority, by_label = split.pool, Metrics(), Metrics()
        y = pool.y.cpu().numpy()
        for name, values in truth.values.items():
            known = pool.attributes[name].cpu().numpy()
            seen = known >= 0
            common = _mode(known[seen])
            majority |= _metrics(name, np.full_like(values, common), values, first=not majority)
            guess = np.full_like(values, common)
            for label in np.unique(y[seen]):
                guess[truth.y == label] = _mode(known[seen & (y == label)])
            by_label |= _metrics(name, guess, values, first=not by_label)
        return {"majority": majority, "label_only": by_label}

    def sizes(self, truth: AttributeTruth) -> dict[str, int]:
        """Return the number of rows asked about."""
        return {"rows": len(truth.y)}


def strangers(split: Split) -> Examples:
    """Return the rows that no phase trained on, in canonical order, each once."""
    outside = split.candidates.select(~split.member)
    new = ~torch.isin(split.test.index, outside.index)
    return join([outside, split.test.select(new)])


def _mode(values: NDArray[np.int64]) -> int:
    return int(np.bincount(values).argmax())


def _metrics(
    name: str, guess: NDArray[np.int64], values: NDArray[np.int64], *, first: bool
) -> Metrics:
    """Return the metrics of one attribute; the first one's also without the attribute's name."""
    accuracy = metrics.accuracy(guess, values)
    balanced = metrics.balanced_class_accuracy(guess, values)
    made: Metrics = {f"accuracy[{name}]": accuracy, f"balanced_accuracy[{name}]": balanced}
    return {"accuracy": accuracy, "balanced_accuracy": balanced, **made} if first else made
