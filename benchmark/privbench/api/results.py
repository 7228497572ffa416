"""The results of a run in Python: as a board, a figure, plain rows or a data frame."""

from __future__ import annotations

import contextlib
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench.boards import game_columns
from privbench.boards.board import Leaderboard
from privbench.boards.csv_table import table
from privbench.boards.front import front
from privbench.boards.html.notebook import notebook
from privbench.boards.html.plot import Plot
from privbench.boards.page import page
from privbench.boards.tradeoffs import stored_bound
from privbench.ground.errors import BadInputError
from privbench.ground.text import several, shown
from privbench.results.files import read_all
from privbench.results.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.ground.judges import Wanted
    from privbench.results.record import Number

#: Libraries of data frames, the preferred first.
FRAMES = ("pandas", "polars")
_LINES, _WIDE = 26, 100  # of results on a screen


class Results(list[Record]):
    """Records, one for each trial; a notebook shows them as the front and the matrix.

    The examples below read a published board of this repository.

    >>> import privbench
    >>> results = privbench.Results.read("leaderboards/results/digits.jsonl")
    >>> len(results), results[0].status
    (80, 'ok')

    Attributes:
        match_utility: largest loss of accuracy at which defenses are compared; None for no bound.
            ``read`` takes the one that the runs were given.
        judging: defense -> the attacks that judge it; None for what the installed plugins say.
        folders: where per-sample scores are looked for.
    """

    match_utility: float | None = None
    judging: Mapping[str, list[Wanted]] | None = None
    folders: tuple[Path, ...] = ()

    @classmethod
    def read(cls, *places: str | Path) -> Results:
        """Read results of folders and merged files.

        >>> results = Results.read("leaderboards/results/digits.jsonl")
        >>> sorted({record.cell.defense for record in results})
        ['none', 'talos']

        Raises:
            BadInputError: if a place does not exist or holds no results, or a result is damaged.
        """
        results = cls(read_all([Path(place) for place in places]))
        results.folders = tuple(Path(place) for place in places if Path(place).is_dir())
        with contextlib.suppress(BadInputError):  # the runs had several bounds
            results.match_utility = stored_bound(results.folders)
        return results

    @property
    def _board(self) -> Leaderboard:
        """What the results say, as pages and figures show it; the list may change afterwards."""
        known = _judging() if self.judging is None else self.judging
        return Leaderboard(self, self.match_utility, known)

    def __repr__(self) -> str:
        """A line for each trial, at most 30 of them, so that it fits a screen.

        >>> results = Results.read("leaderboards/results/digits.jsonl")
        >>> print(str(results).splitlines()[1])
          accuracy 0.854  attribute-decensoring × none × simclr × digits, seed 2
        """
        lines = [f"{several(len(self), 'result')}:", *map(_line, self[:_LINES])]
        if len(self) > _LINES:
            lines.append(f"  … and {len(self) - _LINES} more")
        return "\n".join([*lines, "All of it: table(), rows(), to_dataframe(), to_records()"])

    def table(self) -> str:
        """The board, as markdown.

        >>> print(Results().table().splitlines()[0])
        # privbench leaderboard
        """
        return page(self._board, "privbench leaderboard")

    def csv(self) -> str:
        """All numbers of the board as csv: a line for each cell, means and intervals over seeds.

        >>> results = Results.read("leaderboards/results/digits.jsonl")
        >>> results.csv().split(",")[:4]
        ['dataset', 'protocol', 'target', 'defense']
        """
        return table(self._board)

    def front(self) -> str:
        """Worst-case leak against utility, a point for each defense: SVG text, or "".

        >>> Results.read("leaderboards/results/digits.jsonl").front().startswith("<svg")
        True
        >>> Results().front()
        ''
        """
        return front(self._board.panels)

    @property
    def plot(self) -> Plot:
        """Figures: ``results.plot.front()``, ``results.plot.roc()``.

        >>> figure = Results.read("leaderboards/results/digits.jsonl").plot.front()
        >>> len(figure.axes)  # one for each game that a defense of that board changes
        2
        """
        return Plot(self._board, self.folders)

    def _repr_html_(self) -> str:
        """The front and the matrix, for notebooks."""
        return notebook(self._board)

    def to_records(self) -> list[dict[str, Any]]:
        """One plain dictionary per trial, with everything that a result file holds.

        >>> record = Results.read("leaderboards/results/digits.jsonl").to_records()[0]
        >>> record["cell"]["target"]["name"], record["status"]
        ('simclr', 'ok')
        """
        return [record.model_dump(mode="json") for record in self]

    def rows(self) -> list[dict[str, Any]]:
        """One flat dictionary per trial: what ran, each metric with its interval, utility, cost.

        A metric ``auc`` has ``auc``, ``auc low`` and ``auc high``; that of the null victim is
        ``null auc``. None stands for what was refused or not measured.

        >>> rows = Results.read("leaderboards/results/digits.jsonl").rows()
        >>> [rows[0][name] for name in ("dataset", "target", "defense", "game", "status")]
        ['digits', 'simclr', 'none', 'attributes', 'ok']
        """
        return [_flat(record) for record in self]

    def to_dataframe(self) -> Any:
        """``rows`` as a data frame of pandas, or of polars if only that is installed.

        >>> frame = Results.read("leaderboards/results/digits.jsonl").to_dataframe()
        >>> len(frame), "null auc" in frame
        (80, True)

        Raises:
            BadInputError: if neither is installed.
        """
        for name in FRAMES:
            try:
                library = importlib.import_module(name)
            except ImportError:
                continue
            rows = self.rows()
            names = dict.fromkeys(name for row in rows for name in row)
            return library.DataFrame({name: [row.get(name) for row in rows] for name in names})
        raise BadInputError(
            "a data frame needs pandas or polars: pip install 'privbench[report]', or use rows()"
        )


def _line(record: Record) -> str:
    """The main number of a result, or its status, and its cell; at most 100 characters."""
    column = record.board.columns[0] if record.board else None
    number = game_columns.number(record, column) if column else None
    told: str = record.status
    if column and number and number.value is not None:
        told = f"{column.heading} {number.value:.3f}"
    return shown(f"  {told:<16}{record.cell.title}, seed {record.seed}", _WIDE)


def _flat(record: Record) -> dict[str, Any]:
    cell = record.cell
    named = {
        "dataset": cell.dataset.label, "protocol": cell.protocol.get("name", "default"),
        "target": cell.target.label, "defense": cell.defense, "adversary": cell.adversary,
        "attack": cell.attack.label, "game": cell.game, "sensitive": ", ".join(cell.sensitive),
        "seed": record.seed, "status": record.status, "reason": record.reason,
    }  # fmt: skip
    apart = {**record.baselines, **record.controls}
    measured = _spread(record.metrics)
    for name, metrics in apart.items():
        measured |= _spread(metrics, f"{name} ")
    cost = {"training seconds": record.cost.seconds_training, "seconds": record.cost.seconds}
    return named | measured | record.utility | cost


def _spread(metrics: Mapping[str, Number], before: str = "") -> dict[str, float | None]:
    return {
        f"{before}{name}{end}": value
        for name, number in metrics.items()
        for end, value in (("", number.value), (" low", number.low), (" high", number.high))
    }


@cache
def _judging() -> dict[str, list[Wanted]]:
    """Which attacks judge which defenses, as the installed plugins say."""
    from privbench.grid.judging import judging
    from privbench.plugins import registry

    return judging(registry.load())
