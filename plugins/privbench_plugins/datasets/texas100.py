"""Texas-100 records 67,330 stays in hospitals of Texas, as 6,169 yes-or-no columns.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section VI.A; from the public-use discharge data of the Texas Department of State
Health Services. Columns encode the patient, the hospital, the cause and the diagnosis; the 100
classes are the most frequent procedures.

File, under the data root: ``texas/dataset_texas.tgz``, as the authors publish it (downloaded if
missing, and then compared with git's checksum of the published file); in it ``texas/100/feats``, a
line of columns for each stay, and ``texas/100/labels``, its class, 1 to 100. It is parsed once, by
the first process that needs it, and then mapped from a file (see ``_shared/mapped.py``; 415 MB).
The archive could not be had where this was written: its layout and sizes are those that codes of
published papers read.

Source ``all`` holds all rows. There is no sensitive attribute. No rows can be augmented, because a
changed row would be another patient.

The default protocol is sized for a short run on a CPU. ``selena`` has the 10,000 members of the
code of SELENA (Tang et al., USENIX Security 2022). There the defender has 20,199 rows; here 7,000,
since a shadow model needs as many of the adversary's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from privbench import Card, Dataset, Examples, Paper, Protocol, hookimpl
from privbench_plugins._shared.published_tables import lines_of, load_table

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FOLDER, ARCHIVE = "texas", "dataset_texas.tgz"
COLUMNS, CLASSES = "texas/100/feats", "texas/100/labels"
#: Git's object id of the archive at the authors' commit.
BLOB = "966f7ff40b24cf5912ff84759aab9adb8c25f30e"


@dataclass(frozen=True)
class Texas100(Dataset):
    """Loads Texas-100 as 8-bit columns of zeros and ones."""

    name: ClassVar[str] = "texas-100"
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks Against Machine Learning Models",
        "Shokri, Stronati, Song, Shmatikov", "IEEE S&P 2017", "section VI.A",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=2_000, nonmembers=2_000, reference=500, pool=5_000, test=2_000
        ),
        "selena": Protocol(
            name="selena", members=10_000, nonmembers=10_000, reference=7_000, pool=27_000,
            test=10_000,
        ),
    }  # fmt: skip

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return Card(
            name=self.name, kind="binary", shape=(6_169,), classes=100, scale=1,
            sources={"all": 67_330},
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (67330, 6169) uint8 of zeros and ones."""
        return load_table(
            self.card(root), root, digest=self.digest, folder=FOLDER, archive=ARCHIVE, blob=BLOB,
            read=_rows,
        )  # fmt: skip


def _rows(packed: tarfile.TarFile) -> Iterator[np.ndarray]:
    """Yield classes and columns side by side.

    Raises:
        ValueError: if there are not as many of both.
    """
    classes, start = np.concatenate(list(lines_of(packed, CLASSES))) - 1, 0
    for columns in lines_of(packed, COLUMNS):
        mine = classes[start : start + len(columns)]
        yield np.concatenate([mine, columns], axis=1)
        start += len(columns)
    if start != len(classes):
        raise ValueError(f"{CLASSES} has {len(classes)} lines and {COLUMNS} {start}")


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Texas100()]
