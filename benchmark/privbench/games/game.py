"""What a game is: it poses the question, keeps the truth back, and scores the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from privbench.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench.data.examples import Examples
    from privbench.data.split import Split
    from privbench.games.oracle import Served

Metrics = dict[str, Estimate | Refused]


class BadAnswerError(ValueError):
    """An attack's answer has the wrong shape, or numbers that are not finite."""


class Game(ABC):
    """One kind of question.

    Attributes:
        name: as attacks declare it.
        headline: the metric that boards rank by.
        controls: other victims that the same attack is put to, with the same question: ``null``
            (trained in a spare world), ``pixels`` (the raw input as embedding), ``untrained``.
    """

    name: ClassVar[str]
    headline: ClassVar[str]
    controls: ClassVar[tuple[str, ...]]

    @abstractmethod
    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[Any, Any]:
        """Make the question and its truth.

        Args:
            split: of the cell.
            served: who is asked about; questions about embeddings hold its answers.
            max_rows: at most so many rows, drawn by their canonical order; None for all.
            sensitive: attributes of the cell.
        """

    @abstractmethod
    def auxiliary(self, split: Split) -> Examples:
        """Rows with labels and attributes that the adversary has."""

    @abstractmethod
    def pack(self, answer: Any) -> dict[str, Tensor]:
        """An answer as tensors, for the store."""

    @abstractmethod
    def unpack(self, tensors: Mapping[str, Tensor]) -> Any:
        """The answer of tensors from the store, without its notes."""

    @abstractmethod
    def score(self, answer: Any, truth: Any) -> Metrics:
        """Metrics of an answer.

        Raises:
            BadAnswerError: if it has the wrong shape or is not finite.
        """

    @abstractmethod
    def baselines(self, split: Split, question: Any, truth: Any) -> Mapping[str, Metrics]:
        """What guessing without the victim reaches, by name."""

    @abstractmethod
    def sizes(self, truth: Any) -> dict[str, int]:
        """How many rows of each kind were asked about."""
