"""Purchase-100 records what 197,324 shoppers bought, as 600 yes-or-no columns.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section VI.A; from Kaggle's "Acquire Valued Shoppers" challenge. A column says
whether a person bought one product; the 100 classes are clusters of persons. Licence: none is named
for the table; the shopping records are under the rules of that challenge.

File, under the data root: ``purchase/dataset_purchase.tgz``, as the authors publish it (downloaded
if missing, and then compared with git's checksum of the published file); in it one text file,
``dataset_purchase``, in which a line is the class, 1 to 100, and the columns. It is parsed once, by
the first process that needs it, and then mapped from a file (see ``_shared/kept_rows.py``; 119 MB).
The archive could not be had where this was written: its layout and sizes are those that codes of
published papers read.

Source ``all`` holds all rows. There is no sensitive attribute. No rows can be augmented, because a
changed row would be another person.

The default protocol is sized for a short run on a CPU. ``selena`` has the sizes of the code of
SELENA (Tang et al., USENIX Security 2022): a tenth of the rows are members, 15 % the defender's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privbench import Card, Dataset, Protocol, hookimpl
from privbench_plugins._shared.published_tables import PublishedTable

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Purchase100(PublishedTable):
    """Loads Purchase-100: x (197324, 600) uint8 of zeros and ones."""

    name: ClassVar[str] = "purchase-100"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=2_000, nonmembers=2_000, reference=500, pool=5_000, test=2_000
        ),
        "selena": Protocol(
            name="selena", members=19_732, nonmembers=19_732, reference=29_598, pool=69_062,
            test=19_732,
        ),
    }  # fmt: skip
    described: ClassVar[Card] = Card(
        name=name, kind="binary", shape=(600,), classes=100, scale=1, sources={"all": 197_324}
    )
    folder: ClassVar[str] = "purchase"
    archive: ClassVar[str] = "dataset_purchase.tgz"
    blob: ClassVar[str] = "3efa7476ad5ed7ac3e558d28585a186b38fc5f19"
    text: ClassVar[str] = "dataset_purchase"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Purchase100()]
