"""Texas-100 records 67,330 stays in hospitals of Texas, as 6,169 yes-or-no columns.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section VI.A; from the public-use discharge data of the Texas Department of State
Health Services. Columns encode the patient, the hospital, the cause and the diagnosis; the 100
classes are the most frequent procedures. Licence: none is named for the table; the
Department's data use agreement forbids to pass records on and to identify patients or physicians.

File, under the data root: ``texas/dataset_texas.tgz``, as the authors publish it (downloaded if
missing, and then compared with git's checksum of the published file); in it ``texas/100/feats``, a
line of columns for each stay, and ``texas/100/labels``, its class, 1 to 100. It is parsed once, by
the first process that needs it, and then mapped from a file (see ``_shared/kept_rows.py``; 415 MB).
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

from privbench import Card, Dataset, Protocol, hookimpl
from privbench_plugins._shared.published_tables import PublishedTable, lines_of

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Mapping

CLASSES = "texas/100/labels"


@dataclass(frozen=True)
class Texas100(PublishedTable):
    """Loads Texas-100: x (67330, 6169) uint8 of zeros and ones."""

    name: ClassVar[str] = "texas-100"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=2_000, nonmembers=2_000, reference=500, pool=5_000, test=2_000
        ),
        "selena": Protocol(
            name="selena", members=10_000, nonmembers=10_000, reference=7_000, pool=27_000,
            test=10_000,
        ),
    }  # fmt: skip
    described: ClassVar[Card] = Card(
        name=name, kind="binary", shape=(6_169,), classes=100, scale=1, sources={"all": 67_330}
    )
    folder: ClassVar[str] = "texas"
    archive: ClassVar[str] = "dataset_texas.tgz"
    blob: ClassVar[str] = "966f7ff40b24cf5912ff84759aab9adb8c25f30e"
    text: ClassVar[str] = "texas/100/feats"

    def tables(self, packed: tarfile.TarFile) -> Iterator[np.ndarray]:
        """Yield classes, which are in a file of their own, and columns side by side.

        Raises:
            ValueError: if there are not as many of both.
        """
        classes, start = np.concatenate(list(lines_of(packed, CLASSES))) - 1, 0
        for columns in lines_of(packed, self.text):
            mine = classes[start : start + len(columns)]
            yield np.concatenate([mine, columns], axis=1)
            start += len(columns)
        if start != len(classes):
            raise ValueError(f"{CLASSES} has {len(classes)} lines and {self.text} {start}")


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Texas100()]
