"""Tiny-ImageNet holds 110,000 labelled colour photographs of 200 kinds of things, 64x64.

Le, Yang: Tiny ImageNet Visual Recognition Challenge. Stanford CS231n, 2015; rows of ImageNet, whose
terms allow non-commercial research and education. The published archive (248 MB, md5 checked) is
downloaded if its folder, ``tiny-imagenet-200``, is missing. Of the folder are read ``wnids.txt``,
``train/<class>/images/*.JPEG``, ``val/val_annotations.txt`` and ``val/images/*.JPEG``.

Source ``train`` holds 100,000 rows, by class and name; source ``test`` holds the 10,000 rows of the
published ``val``, since the labels of the published ``test`` are secret. Classes are numbered in
the order of their names (n01443537, ...). There is no sensitive attribute. Pictures are decoded
once, by the first process that needs them, and then mapped from a file
(``privbench.toolbox.kept_rows``; 1.35 GB). The files could not be had where this was written: their
layout is what published codes read.

The default protocol is sized for a short run on a CPU, with 10 members of each class. Published
sizes: ``encodermi`` (nonmembers from ``test``, as in that paper) and ``encodermi-matched``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from privbench import BadInputError, Card, Dataset, Examples, Paper, Protocol, hookimpl
from privbench.toolbox import views
from privbench.toolbox.kept_rows import kept, stamp
from privbench.toolbox.pictures import decoded
from privbench.toolbox.published import fetched, home, short_run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER = "tiny-imagenet-200"
URL = f"http://cs231n.stanford.edu/{FOLDER}.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
ORIGIN = f"{URL} (ImageNet's terms: non-commercial research and education)"


@dataclass(frozen=True)
class TinyImageNet(Dataset):
    """Loads Tiny-ImageNet, train rows first, as 8-bit images.

    Attributes:
        size: pixels per side; 32 is made by resizing, bilinear and antialiased.
    """

    name: ClassVar[str] = "tiny-imagenet"
    paper: ClassVar[Paper] = Paper(
        "Tiny ImageNet Visual Recognition Challenge", "Le, Yang", "Stanford CS231n 2015"
    )
    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(members=2_000, pool=6_000)}

    size: Literal[32, 64] = 64

    def card(self, root: Path | None) -> Card:
        """Describe the dataset; channel means and deviations are those of the train rows."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(3, self.size, self.size),
            classes=200,
            scale=255,
            sources={"train": 100_000, "test": 10_000},
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.277, 0.2691, 0.2821),
            limits=views.of_objects(self.size),
        )

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (110000, 3, size, size) uint8, mapped from a file."""
        card, place = self.card(root), home(root)
        if not (place / FOLDER).is_dir():
            _download(place)
        try:
            train, test = _listed(place / FOLDER)
            files = [file for file, _ in (*train, *test)]
            stamps = [stamp(file) for file in files]
        except (OSError, UnicodeDecodeError, ValueError, KeyError) as error:
            raise _damaged(place, f"{type(error).__name__}: {error}") from error
        y = torch.tensor([label for _, label in (*train, *test)])
        if [len(train), len(test)] != [*card.sources.values()] or len(y.unique()) != card.classes:  # type: ignore[no-untyped-call]
            raise _damaged(
                place,
                f"it holds {len(train)} train and {len(test)} val pictures where "
                f"{' and '.join(map(str, card.sources.values()))} were published",
            )
        x = kept(
            self.name, [self.digest, *stamps], (card.rows, *card.shape), np.uint8,
            lambda: decoded(self.name, files, self.size),
        )  # fmt: skip
        rows = torch.tensor([*card.sources.values()])
        source = torch.arange(len(rows)).repeat_interleave(rows)
        return Examples.of(x.tensor(), y, scale=card.scale, source=source, mapped=x.mapped)


def _listed(folder: Path) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    """Return the files of train and val, each with its class, in the order of their names.

    Raises:
        OSError, ValueError, KeyError: if a table or folder is missing or names what is not there.
    """
    classes = sorted((folder / "wnids.txt").read_text(encoding="ascii").split())
    number = {name: at for at, name in enumerate(classes)}
    train = [
        (file, number[name])
        for name in classes
        for file in sorted((folder / "train" / name / "images").iterdir())
        if file.suffix == ".JPEG"
    ]
    val = folder / "val"
    lines = (val / "val_annotations.txt").read_text(encoding="ascii").splitlines()
    named = sorted(line.split("\t")[:2] for line in lines if line)
    return train, [(val / "images" / file, number[name]) for file, name in named]


def _download(place: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    def read() -> None:
        place.mkdir(parents=True, exist_ok=True)
        download_and_extract_archive(URL, str(place), md5=MD5)

    fetched(read, "tiny-imagenet", place, FOLDER, ORIGIN)


def _damaged(place: Path, why: str) -> BadInputError:
    return BadInputError(
        f"tiny-imagenet: {place / FOLDER} is damaged or incomplete ({' '.join(why.split())}); "
        f"remove it to download it again, or get it from {ORIGIN}"
    )


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [TinyImageNet()]
