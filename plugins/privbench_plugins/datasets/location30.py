"""Location-30 records where 5,010 people went in Bangkok, as 446 yes-or-no columns.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section VI.A; from the Foursquare check-ins of Yang, Zhang, Qu, 2016. A column says
whether a person visited one region or one type of place; the 30 classes are clusters of persons.
Licence: neither the authors of the table nor its archive name one.

File, under the data root: ``location/dataset_location.tgz``, as the authors publish it (287 kB;
downloaded if missing, and then compared with git's checksum of the published file); in it one text
file, ``bangkok``, in which a line is the class in quotes, 1 to 30, and the columns.

Source ``all`` holds all rows; no two are equal. There is no sensitive attribute. No rows can be
augmented, because a changed row would be another person.

The default protocol has 800 members, 800 nonmembers (which also measure utility), a reference part
of 500, a pool that gives a shadow model the same sizes, and 800 rows in no part, which the null
victim trains on.

What to expect: ``supervised`` is correct for all members and 59 % of the nonmembers, and AUC is
.94 for ``nn-mia`` and ``metric-modified-entropy``, .90 for ``shokri`` (one seed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privbench import Card, Dataset, Protocol, hookimpl
from privbench_plugins._shared.published_tables import PublishedTable

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Location30(PublishedTable):
    """Loads Location-30: x (5010, 446) uint8 of zeros and ones."""

    name: ClassVar[str] = "location-30"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=800, nonmembers=800, reference=500, pool=2_110
        ),
        # MemGuard's own sizes: 1,000 members, 1,000 nonmembers to attack, 1,000 rows of the
        # defender, a shadow model with 500 members and 500 nonmembers. Here rows are drawn at
        # random; the authors take them by position in a shuffled order that they publish.
        "memguard": Protocol(
            name="memguard", members=1_000, nonmembers=1_000, reference=1_000, pool=2_010,
            shadow=500,
        ),
    }  # fmt: skip
    described: ClassVar[Card] = Card(
        name=name, kind="binary", shape=(446,), classes=30, scale=1, sources={"all": 5_010}
    )
    folder: ClassVar[str] = "location"
    archive: ClassVar[str] = "dataset_location.tgz"
    blob: ClassVar[str] = "0cfc2caa0c8c8569cd68a5d4ab369a98c1f98447"
    text: ClassVar[str] = "bangkok"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Location30()]
