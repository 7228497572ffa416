"""Metrics recomputed from per-sample scores: of whole results, and of slices of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.text import shown
from privbench.measure.games.catalog import GAMES
from privbench.results.files import located
from privbench.results.provenance import commit
from privbench.results.record import DamagedResultError, Number, Record
from privbench.results.sample_files import read_samples
from privbench.results.samples import pack, part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privbench.results.samples import Columns

#: A slice with fewer rows than this is left out.
FEWEST_ROWS = 2


@dataclass(frozen=True)
class Scored:
    """A result and its per-sample scores.

    Attributes:
        record: the result, with the metrics as they were.
        columns: see ``privbench.results.samples``.
        folder: where both are.
    """

    record: Record
    columns: Columns
    folder: Path

    def metrics(
        self, chosen: NDArray[np.bool_] | slice = slice(None), player: str = "victim"
    ) -> dict[str, Number]:
        """Return the metrics of some rows; none if they cannot be computed of these rows.

        What the record refused stays refused: the game knew the split, columns do not.

        Args:
            chosen: rows, by default all.
            player: ``victim`` or a control.

        Raises:
            DamagedResultError: if the columns are not those of the record's game.
        """
        kept = self.record.metrics if player == "victim" else self.record.controls.get(player, {})
        refused = {name: number for name, number in kept.items() if number.refused}
        made = self.measured(chosen, player)
        return {name: refused.get(name) or number for name, number in made.items()}

    def measured(
        self, chosen: NDArray[np.bool_] | slice = slice(None), player: str = "victim"
    ) -> dict[str, Number]:
        """Return what the columns alone tell; the arguments are those of ``metrics``.

        Raises:
            DamagedResultError: as there.
        """
        game = GAMES[self.record.cell.game]
        truth, answer = part(self.columns, "truth"), part(self.columns, player)
        order = self.record.cell.sensitive
        names = [*(n for n in order if n in truth), *(n for n in truth if n not in order)]
        try:
            made = game.measure(
                {name: truth[name][chosen] for name in names},
                {name: column[chosen] for name, column in answer.items()},
            )
        except ValueError as error:
            if isinstance(chosen, slice):
                raise self._misfit(error) from None
            return {}
        except (KeyError, TypeError, IndexError, NotImplementedError) as error:
            raise self._misfit(error) from None
        return {name: Number.of(metric) for name, metric in made.items()}

    def players(self) -> list[str]:
        """Return ``victim`` and the controls that answered."""
        controls = {name.split(".")[0] for name in self.columns if "." in name}
        return ["victim", *sorted(controls - {"victim", "truth", "attribute"})]

    def recomputed(self) -> Record:
        """Return the record with recomputed metrics, and the code that recomputed them.

        What depends on more than scores and truth (audited epsilons, baselines) stays.
        """
        made = self.record.model_copy(deep=True)
        made.attach(pack(self.columns))
        made.metrics |= self.metrics()
        for name in self.players()[1:]:
            made.controls[name] = self.metrics(player=name)
        made.provenance["rescored"] = commit()
        return made

    def slices(self, by: str) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield each value of a column with the rows that have it; unknown values are left out.

        Args:
            by: ``label``, or the name of an attribute.

        Raises:
            BadInputError: if the rows have no such attribute.
        """
        name = by if by == "label" else f"attribute.{by}"
        if name not in self.columns:
            have = ["label", *part(self.columns, "attribute")]
            raise UnknownNameError("slice", by, have)
        column = self.columns[name]
        for value in np.unique(column):
            chosen: NDArray[np.bool_] = column == value
            if value >= 0 and chosen.sum() >= FEWEST_ROWS:
                yield f"{by} {int(value)}", chosen

    def _misfit(self, error: Exception) -> DamagedResultError:
        reason = f"its columns do not fit the game '{shown(self.record.cell.game)}' ({error})"
        return DamagedResultError(self.record.samples_path(self.folder), shown(reason, 200))


def read_scored(folders: Sequence[Path]) -> tuple[list[Scored], list[str]]:
    """Return all results that have per-sample scores, and a note on each kind that is left out.

    Load the registry first: games of plugins are known once these are imported.

    Raises:
        BadInputError: if no result has any, or if a file is damaged.
    """
    found: list[Scored] = []
    without = 0
    unknown: dict[str, int] = {}
    for record, places in located(folders, scores=True):
        if record.status != "ok":
            continue
        if record.cell.game not in GAMES:
            unknown[record.cell.game] = unknown.get(record.cell.game, 0) + 1
            continue
        columns = read_samples(record, places)
        if columns is None:
            without += 1
        else:
            found.append(Scored(record, columns, places[0]))
    notes = []
    if without:
        notes.append(f"{without} results have no per-sample scores and are left out")
    if unknown:
        named = ", ".join(shown(game) for game in sorted(unknown))
        notes.append(
            f"{sum(unknown.values())} results play a game that no plugin here knows ({named}) and "
            "are left out: install its plugin"
        )
    if unknown and not found and not without:
        raise BadInputError(notes[0])
    if not found:
        listed = ", ".join(str(folder) for folder in folders)
        raise BadInputError(
            f"no result in {shown(listed, 200)} has per-sample scores: copy the .safetensors files "
            "beside the results, or run the suite again"
        )
    return found, notes


def by_cell(found: Iterable[Scored]) -> list[list[Scored]]:
    """Return the seeds of each cell together, ordered by seed; cells in the order of their text."""
    cells: dict[str, list[Scored]] = {}
    for one in found:
        cells.setdefault(one.record.cell.model_dump_json(), []).append(one)
    return [sorted(cells[cell], key=lambda one: one.record.seed) for cell in sorted(cells)]
