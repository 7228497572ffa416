"""The interface of a game: it poses a question, hides the truth and scores the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from privbench.ground.errors import PluginError
from privbench.measure.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from privbench.ground.columns import Board
    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import Split, World
    from privbench.measure.methods.oracle import Served

AnyGame = TypeVar("AnyGame", bound="Game")
Metrics = dict[str, Estimate | Refused]


class BadAnswerError(ValueError):
    """An attack's answer has the wrong type or shape, or its numbers are not real and finite.

    >>> from privbench import Membership
    >>> from privbench.measure.games.catalog import GAMES
    >>> GAMES["membership"].pack(Membership(["high"]))
    Traceback (most recent call last):
        ...
    privbench.measure.games.game.BadAnswerError: scores are no numbers but a list: return a tensor
    """


def real(values: Any, what: str) -> Tensor:
    """The values as a tensor of real numbers.

    Raises:
        BadAnswerError: if they are none.
    """
    try:
        made = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        kind = type(values).__name__
        raise BadAnswerError(f"{what} are no numbers but a {kind}: return a tensor") from None
    if made.is_complex():
        raise BadAnswerError(f"{what} are complex: return real numbers")
    return made


#: All games of this process by name.
GAMES: dict[str, Game] = {}


def new_game(cls: type[AnyGame]) -> type[AnyGame]:
    """Class decorator that makes a game known by its name.

    The base class of its attacks stands in the same module, so that every process that knows an
    attack knows its game too.

    >>> from privbench.measure.games.catalog import GAMES  # those that are known
    >>> {"attributes", "membership", "property", "reconstruction"} <= {*GAMES}
    True

    Raises:
        PluginError: if another game has that name.
    """
    known = type(GAMES.get(cls.name, cls()))
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise PluginError(
            f"game '{cls.name}' of {cls.__module__} has the name of the game of "
            f"{known.__module__}: rename it"
        )
    GAMES[cls.name] = cls()  # of the same class: its module was loaded again
    return cls


class Game(ABC):
    """One kind of question. Decorate a subclass with ``new_game``.

    >>> from privbench.measure.games.catalog import GAMES
    >>> game = GAMES["membership"]
    >>> game.controls, game.board.columns[0].heading
    (('null',), 'AUC')

    Attributes:
        name: name that attacks declare.
        board: how boards show it; its first column is the headline, which attacks are ranked by.
        controls: other victims on which the same attack answers the same question: ``null``
            (trained on none of these samples), ``pixels`` (the raw input as embedding),
            ``untrained``.
    """

    name: ClassVar[str]
    board: ClassVar[Board]
    controls: ClassVar[tuple[str, ...]]

    # ---- which models the question is about; a game on other worlds than the split's overrides ---

    def victims(self, split: Split, sensitive: tuple[str, ...]) -> tuple[World, ...]:
        """Return the worlds of the victims; by default the one of the split.

        If there are several, the attack answers about each of them on its own. The tensors of these
        answers (see ``pack``) are joined along their first axis before they are scored. Utility,
        notes and claims of a result are those of the first victim.
        """
        del sensitive
        return (split.victim(),)

    def nulls(self, split: Split, sensitive: tuple[str, ...]) -> tuple[World, ...]:
        """Return the worlds of the null victims, as many as victims."""
        del sensitive
        return (split.null(),)

    def offline(
        self, split: Split, index: int, sensitive: tuple[str, ...]
    ) -> tuple[World, Examples]:
        """Return the world of an offline shadow, and as many pool rows outside it."""
        del sensitive
        return split.offline(index)

    @abstractmethod
    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[Any, Any]:
        """Create the question and its truth.

        Args:
            split: split of the cell.
            served: the victim; questions about embeddings contain its outputs. If there are several
                victims, the question is posed about each; the truth is that of all of them.
            max_rows: maximum number of rows, the first in canonical order; None for all.
            sensitive: sensitive attributes of the cell.
        """

    @abstractmethod
    def pack(self, answer: Any) -> dict[str, Tensor]:
        """Convert an answer to tensors for the store."""

    @abstractmethod
    def unpack(self, tensors: Mapping[str, Tensor]) -> Any:
        """Convert tensors from the store back to an answer, without its notes."""

    @abstractmethod
    def score(self, answer: Any, truth: Any) -> Metrics:
        """Return the metrics of an answer.

        Raises:
            BadAnswerError: if the answer has the wrong shape or is not finite.
        """

    # ---- what is kept per sample, so that a new metric or a slice needs no new run --------------

    def asked(
        self, split: Split, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> Examples | None:
        """Return the rows that the question is about, in its order; None if it is not about rows.

        The arguments are those of ``pose``. If None, nothing is kept per sample.
        """
        del split, max_rows, sensitive
        return None

    def per_sample(self, answer: Any, truth: Any) -> dict[str, NDArray[np.generic]]:
        """Return an answer as columns: name -> one bool or number, or a row of them, per sample.

        Only a game whose ``asked`` returns rows needs this and the next two.

        Raises:
            BadAnswerError: if the answer has the wrong shape or is not finite.
        """
        raise NotImplementedError

    def per_sample_truth(self, truth: Any) -> dict[str, NDArray[np.generic]]:
        """Return the truth as columns; the first axis has one entry per sample."""
        raise NotImplementedError

    def measure(
        self,
        truth: Mapping[str, NDArray[np.generic]],
        answer: Mapping[str, NDArray[np.generic]],
    ) -> Metrics:
        """Return the metrics of ``score`` from columns, which may be those of some samples only.

        Args:
            truth: of ``per_sample_truth``.
            answer: of ``per_sample``.
        """
        raise NotImplementedError

    def controlled(self, control: str, scored: Metrics, split: Split) -> Metrics:
        """Return what an answer about a control tells; by default all its metrics.

        Args:
            control: name of the control.
            scored: metrics of the answer.
            split: of the cell.
        """
        del control, split
        return scored

    def audit(
        self, claims: Sequence[Mapping[str, Any]], answer: Any, truth: Any, split: Split
    ) -> Metrics:
        """Return what the answer says about the guarantees that defenses claim; by default nothing.

        Args:
            claims: of the victim's defenses, see ``ctx.claim``.
            answer: of the attack.
            truth: of the question.
            split: of the cell.
        """
        del claims, answer, truth, split
        return {}

    def suspicions(
        self, controls: Mapping[str, Metrics], sizes: Mapping[str, int]
    ) -> Sequence[str]:
        """Return why the result of a cell cannot be trusted, one sentence each; by default nothing.

        Args:
            controls: metrics of the same attack on the game's controls.
            sizes: see ``sizes``.
        """
        del controls, sizes
        return ()

    @abstractmethod
    def baselines(self, split: Split, question: Any, truth: Any) -> Mapping[str, Metrics]:
        """Return the metrics of guesses that do not use the victim, by name."""

    @abstractmethod
    def sizes(self, truth: Any) -> dict[str, int]:
        """Return the number of rows of each kind in the question."""
