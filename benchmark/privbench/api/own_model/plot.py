"""Figures of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbench.boards.front import FAINT, INK, plain
from privbench.boards.html.plot import Plot
from privbench.ground.errors import BadInputError
from privbench.ground.text import several, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from privbench.api.own_model.subgroups import Subgroups

_MOST = 20  # groups of a figure
_LONG = 40  # characters of the name of a group
_LEAKS = "#c0392b"


@dataclass(frozen=True)
class AuditPlot(Plot):
    """The figures of an audit, beside those of all results.

    Attributes:
        exposed: see ``Audit``.
        groups: see ``Audit.subgroups``.
    """

    exposed: Sequence[tuple[int, float]] = ()
    groups: Subgroups | None = None

    def exposure(self) -> Figure:
        """Return how exposed the members are, the most exposed first.

        The exposure of a member is the share of nonmembers that the strongest attack ranks below
        it. Members that a model does not remember lie on the dashed line, as nonmembers would.

        Raises:
            BadInputError: if no attack told members from nonmembers row by row.
        """
        if not self.exposed:
            raise BadInputError("no exposure to draw: no membership attack has numbers for rows")
        from privbench.boards.picture import Picture

        with plain():
            figure = Picture(figsize=(4.6, 3.4), layout="constrained")
            axis = figure.subplots()
            values = np.array([value for _, value in self.exposed])
            share = np.arange(1, len(values) + 1) / len(values)
            axis.plot([0, 1], [1, 0], color=INK, linewidth=0.8, linestyle="--", label="chance")
            axis.step(share, values, where="pre", color=_LEAKS, linewidth=1.4,
                      label=several(len(values), "member"))  # fmt: skip
            axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="share of members, most exposed first",
                     ylabel="exposure")  # fmt: skip
            axis.grid(visible=True, color=FAINT, linewidth=0.3)
            axis.legend(loc="lower left", frameon=False, fontsize=8)
        return figure

    def subgroups(self) -> Figure:
        """Return the AUC of each group of rows with its 95 % interval, and that of all others.

        Groups that leak more than the rest are red. Of more than 20 the clearest are shown.

        Raises:
            BadInputError: if no group was compared with the rest.
        """
        tested = self.groups.tested[:_MOST] if self.groups else ()
        if not self.groups or not tested:
            raise BadInputError("no groups to draw: none has enough members and nonmembers to be "
                                "compared with the rest")  # fmt: skip
        from privbench.boards.picture import Picture

        with plain():
            figure = Picture(figsize=(5.6, 0.9 + 0.27 * len(tested)), layout="constrained")
            axis = figure.subplots()
            for at, group in enumerate(reversed(tested)):
                colour = _LEAKS if group.leaks_more else INK
                own, rest = group.auc, group.rest
                ends = [end for end in (own.low, own.high) if end is not None]
                axis.plot(ends, [at] * len(ends), color=colour, linewidth=1)
                axis.plot([own.value or 0.0], [at], "o", color=colour, markersize=4)
                axis.plot([rest.value or 0.0], [at], "|", color=FAINT, markersize=9)
            axis.axvline(1 / 2, color=FAINT, linewidth=0.8, linestyle="--")
            names = [shown(group.name, _LONG) for group in reversed(tested)]
            axis.set_yticks(range(len(names)), names, parse_math=False)
            axis.set(xlabel=f"AUC of {self.groups.attack} (bar: the other rows)")
        return figure
