r"""Your own table, in a text file with one row per line (``.csv``), under your own licence.

Two lines of a suite, or a few options, suffice:

    attacks: [lira]
    datasets: [{csv: {path: mine.csv, class_column: income, sensitive: [sex]}}]

    privbench run --attack lira --target supervised --dataset csv --set csv.path=mine.csv \
        --set csv.class_column=income

The first line names the columns; text is UTF-8. One column is the class, others may be sensitive
attributes; both are numbered in sorted order. All other columns, and the sensitive ones too, are
encoded as columns of x:

- a column of numbers is scaled so that its smallest value is 0 and its largest 1, and rounded to
  multiples of 2**-20 (a constant column is 0);
- a column of texts, or one named in ``categorical``, is one-hot, its values in sorted order; an
  empty cell is a value of its own. ``Card.groups`` says which columns belong together.

A table without numbers is ``binary`` (uint8), another one ``real`` (float32). The smallest and the
largest value, and the texts of a column, are taken from all rows, also those held out; the epsilon
of a defense does not cover them. No rows are augmented: a changed row would be another person.

The default protocol is that of ``npz``. The key of a result holds the digest of the file, not its
name. Encoded columns of more than 64 MB are kept in the user's cache folder and memory-mapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch

from privbench import Card, CsvFile, Dataset, Examples, MaxLen, MinLen, Protocol, hookimpl
from privbench.toolbox.kept_rows import kept
from privbench.toolbox.mapped_array import LARGE, Array
from privbench.toolbox.messages import plain
from privbench.toolbox.own_data import OwnDataset, default_protocol
from privbench.toolbox.tables import Facts, encoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Csv(OwnDataset):
    """Loads your own table from a csv file.

    Attributes:
        class_column: column with the class.
        sensitive: columns with sensitive attributes; the first is the default of attacks.
        categorical: columns of numbers that are one-hot, like texts.
        drop: columns that are left out, such as names and numbers of persons.
        separator: between two columns.
    """

    name: ClassVar[str] = "csv"

    class_column: str = "label"
    sensitive: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    separator: Annotated[str, MinLen(1), MaxLen(1)] = ","

    @property
    def protocols(self) -> Mapping[str, Protocol]:  # type: ignore[override]
        """The default protocol, from the number of rows."""
        return {"default": default_protocol(len(self._facts().y) if self.path else None)}

    def card(self, root: Path | None) -> Card:
        """Describe the file.

        Raises:
            BadInputError: if it cannot be used; says why and what to do.
        """
        del root
        return self._file().card(self.name, self.sha256)

    def load(self, root: Path | None) -> Examples:
        """Encode the file: x (n, columns) uint8 or float32, mapped if it is large."""
        card, facts = self.card(root), self._facts()
        dtype = np.dtype(np.float32 if card.kind == "real" else np.uint8)

        def rows() -> Iterator[np.ndarray]:
            return self._while_unchanged(encoded(self._file(), facts))

        if card.rows * facts.width * dtype.itemsize < LARGE:
            x = Array(np.concatenate(list(rows())))
        else:
            x = kept(self.name, [self.digest], (card.rows, facts.width), dtype, rows)
        return Examples.of(
            x.tensor(), torch.from_numpy(facts.y.copy()),
            {name: torch.from_numpy(codes.copy()) for name, (codes, _) in facts.attributes.items()},
            scale=card.scale, mapped=x.mapped,
        )  # fmt: skip

    def _file(self) -> CsvFile:
        return CsvFile(
            self.location, self.class_column, self.sensitive, self.categorical, self.drop,
            self.separator, called=f"{self.name}: {plain(self.path)}",
        )  # fmt: skip

    def _facts(self) -> Facts:
        return self._file().facts(self.sha256)


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Csv()]
