"""Figures of results as matplotlib has them, for notebooks and papers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from privbench.boards.front import drawable, painted, plain
from privbench.boards.html.pictures import curves_of, rocs
from privbench.ground.errors import BadInputError
from privbench.results.sample_files import read_samples

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from privbench.boards.board import Leaderboard

#: ROC pictures of one figure.
_MOST = 6


@dataclass(frozen=True)
class Plot:
    """The figures of results; ``savefig`` of what a method returns writes a file.

    >>> import privbench
    >>> figures = privbench.Results.read("leaderboards/results/digits.jsonl").plot
    >>> isinstance(figures, privbench.Plot)
    True

    Attributes:
        board: with results of any status.
        folders: where per-sample scores are looked for.
    """

    board: Leaderboard
    folders: tuple[Path, ...] = ()

    def front(self) -> Figure:
        """Return worst-case leak against test accuracy, a point for each defense.

        >>> import privbench
        >>> figures = privbench.Results.read("leaderboards/results/digits.jsonl").plot
        >>> figure = figures.front()  # figure.savefig("front.png") writes it
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['worst case, AUC', 'worst case, accuracy']

        Raises:
            BadInputError: if there are not two defenses with a leak and an accuracy.
        """
        drawn = drawable(self.board.panels)
        if not drawn:
            raise BadInputError(
                "no front to draw: run an attack on at least two defenses (`none` is one) of a "
                "target with a classifier"
            )
        with plain():
            return painted(drawn)

    def roc(self) -> Figure:
        """Return ROC curves of the strongest membership attacks without a defense, both axes log.

        They are drawn from the per-sample scores that a run writes beside its results, so not from
        a published file:

        >>> import privbench
        >>> privbench.Results.read("leaderboards/results/digits.jsonl").plot.roc()
        Traceback (most recent call last):
        privbench.ground.errors.BadInputError: ...

        Bands are 95 % intervals: Student's over seeds, or over the rows of one seed.

        Raises:
            BadInputError: if there are no per-sample scores of membership attacks, or if their
                files are damaged.
        """
        drawn = []
        for panel in self.board.foremost:
            for aim in panel.aims:
                mine = replace(panel, attacks=[one for one in panel.attacks if one.aim == aim])
                if curves := curves_of(mine, lambda one: read_samples(one, self.folders)):
                    drawn.append((mine, curves))
        if not drawn:
            raise BadInputError(
                "no ROC curve to draw: it needs a membership attack on `none`, and its per-sample "
                "scores beside the results; read them from their folder"
            )
        with plain():
            return rocs(drawn[:_MOST])
