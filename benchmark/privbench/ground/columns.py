"""How boards show a game. Results carry it, so that boards need neither the game nor torch."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import MaxLen, MinLen
from pydantic import ConfigDict, StringConstraints
from pydantic.dataclasses import dataclass

_Part = Annotated[str, StringConstraints(pattern=r"^(metrics|(controls|baselines)\.\w{1,60})$")]
_Text = Annotated[str, MinLen(1), MaxLen(60)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Column:
    """One number of a game's table.

    >>> Column("AUC", "metrics", "auc").high
    1.0

    Attributes:
        heading: what stands above it.
        part: part of the result that holds it: ``metrics``, ``controls.NAME`` or
            ``baselines.NAME``.
        name: its name there.
        low, high: range of the number; an interval over seeds is clipped to it. None for no end.
        seeds: shows the mean over seeds, the smallest (bounds hold one by one, their mean is
            none), or what an audit finds in all of them together.
        optional: whether the column is left out where no result has the number.
        terminal: whether a terminal shows it ``always``, only where it is ``wide`` enough, or
            ``never``.
    """

    heading: _Text
    part: _Part
    name: _Text
    low: float | None = 0.0
    high: float | None = 1.0
    seeds: Literal["mean", "smallest", "pooled"] = "mean"
    optional: bool = False
    terminal: Literal["always", "wide", "never"] = "always"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Board:
    """How boards show a game.

    >>> Board((Column("AUC", "metrics", "auc"),), tells=("phase",)).columns[0].heading
    'AUC'

    Attributes:
        columns: numbers of its table; the first is the headline, by which attacks are ranked.
        higher: whether a higher headline is a stronger attack.
        tells: what distinguishes rows besides the methods: the ``phase`` asked about, or the
            ``sensitive`` attributes.
        constant: name of the baseline that boards show beside the attacks: an answer that uses
            nothing that the victim released; "" for none.
        place: games with a smaller place stand further up; equal places are ordered by name.
    """

    columns: Annotated[tuple[Column, ...], MinLen(1), MaxLen(60)]
    higher: bool = True
    tells: tuple[Literal["phase", "sensitive"], ...] = ()
    constant: Annotated[str, StringConstraints(pattern=r"^\w{0,60}$")] = ""
    place: int = 10
