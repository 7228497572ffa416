"""STL-10 holds 13,000 labelled and 100,000 unlabelled colour photographs, 96x96.

Coates, Lee, Ng: An Analysis of Single Layer Networks in Unsupervised Feature Learning. AISTATS
2011. The authors name no licence; the pictures come from ImageNet, whose terms allow non-commercial
research and education. The files are downloaded if missing (2.6 GB) and checked (md5 of every file)
by torchvision; the folder is ``stl10_binary``.

Source ``labelled`` holds the 5,000 published train rows and then the 8,000 test rows, of ten
classes; source ``unlabelled`` holds 100,000 rows of these and other classes. There is no sensitive
attribute. Pictures are decoded once, by the first process that needs them, and then mapped from a
file (``privbench.toolbox.kept_rows``; 347 MB, or 3.1 GB at the published size).

The default protocol is sized for a short run on a CPU and is about labelled rows alone. Public
pre-training on unlabelled rows: ``public-encoder`` and ``public-encoder-pairs`` (short; the
classifier alone sees members), ``talos`` and ``alm`` (published sizes). ``encodermi`` has members
from the unlabelled and nonmembers from the labelled rows, as published, so that it also measures
how the two differ; ``encodermi-matched`` has both from the unlabelled rows. ``quarters``, ``audit``
and ``audit-pairs`` split the labelled rows.

As an adversary's data (EncoderMI's unknown distribution) take ``{stl10: {rows: unlabelled}}``: it
has no classes, so it suits attacks on embeddings. ``{stl10: {rows: labelled}}`` has classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from privbench import Card, Dataset, Examples, Paper, Part, Protocol, hookimpl
from privbench.toolbox import views
from privbench.toolbox.kept_rows import kept, stamp
from privbench.toolbox.pictures import GROUP, resized
from privbench.toolbox.published import fetched, home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from PIL.Image import Image

FOLDER = "stl10_binary"
ORIGIN = (
    "https://cs.stanford.edu/~acoates/stl10/ (no licence named; ImageNet's terms: non-commercial "
    "research and education)"
)
#: Files of pictures, in order, each with its file of labels.
FILES = (("train_X.bin", "train_y.bin"), ("test_X.bin", "test_y.bin"), ("unlabeled_X.bin", None))
#: Pixels per side, as published.
SIDE = 96
SOURCES = {"labelled": 13_000, "unlabelled": 100_000}


def _labelled(size: float) -> Part:
    return Part(size, "labelled")


def _unlabelled(size: float) -> Part:
    return Part(size, "unlabelled")


#: The encoder trains on public rows and only the classifier on members; see ``digits``.
_PUBLIC = Protocol(
    name="public-encoder", members=_labelled(1_500), nonmembers=_labelled(1_500),
    reference=_labelled(500), public=_unlabelled(4_000), pool=_labelled(4_000),
    test=_labelled(2_000), encoder=("public",), classifier="members", inclusion="coin",
)  # fmt: skip
_AUDIT = Protocol(
    name="audit", members=_labelled(0.15), nonmembers=_labelled(0.15), reference=_labelled(0.05),
    pool=_labelled(0.4), test=_labelled(0.2), inclusion="coin",
)  # fmt: skip


@dataclass(frozen=True)
class STL10(Dataset):
    """Loads STL-10, labelled rows first, as 8-bit images.

    Attributes:
        size: pixels per side; fewer than 96 are made by resizing, bilinear and antialiased.
        rows: the sources that are loaded; ``unlabelled`` alone has no classes.
    """

    name: ClassVar[str] = "stl10"
    paper: ClassVar[Paper] = Paper(
        "An Analysis of Single Layer Networks in Unsupervised Feature Learning",
        "Coates, Lee, Ng",
        "AISTATS 2011",
    )
    deviations: ClassVar[str] = (
        "The published train and test rows are one source. So EncoderMI's nonmembers are 10,000 "
        "random labelled rows, not the train rows and the first 5,000 test rows. It trains its "
        "classifier on CIFAR-10; here the other 3,000 labelled rows train it."
    )
    presets: ClassVar[Mapping[str, Mapping[str, int]]] = {"paper": {"size": SIDE}}
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=_labelled(1_000), nonmembers=_labelled(1_000),
            reference=_labelled(500), pool=_labelled(4_000), test=_labelled(2_000),
        ),
        "public-encoder": _PUBLIC,
        "public-encoder-pairs": replace(_PUBLIC, name="public-encoder-pairs", inclusion="pairs"),
        "quarters": Protocol(
            name="quarters", members=_labelled(0.25), nonmembers=_labelled(0.25),
            pool=_labelled(0.5),
        ),
        # Talos, section 3.3: pre-training on all unlabelled rows, then on the members.
        "talos": Protocol(
            name="talos", members=_labelled(0.25), nonmembers=_labelled(0.25),
            pool=_labelled(0.5), public=_unlabelled(100_000), encoder=("public", "members"),
        ),
        # ALM, Table 1: 100,000 public and 5,000 private rows. Shadows have half of these, since
        # only 13,000 rows have labels.
        "alm": Protocol(
            name="alm", members=_labelled(5_000), nonmembers=_labelled(1_500),
            pool=_labelled(5_000), test=_labelled(1_500), public=_unlabelled(100_000),
            encoder=("public",), classifier="members", shadow=2_500,
        ),
        # EncoderMI, section 5.1.
        "encodermi": Protocol(
            name="encodermi", members=_unlabelled(10_000), nonmembers=_labelled(10_000),
            pool=_unlabelled(20_000), downstream=_labelled(3_000), classifier="downstream",
        ),
        "encodermi-matched": Protocol(
            name="encodermi-matched", members=_unlabelled(10_000), nonmembers=_unlabelled(10_000),
            pool=_unlabelled(20_000), downstream=_labelled(10_000), test=_labelled(3_000),
            classifier="downstream",
        ),
        "audit": _AUDIT,
        "audit-pairs": replace(_AUDIT, name="audit-pairs", inclusion="pairs"),
    }  # fmt: skip

    size: Literal[32, 64, 96] = 32
    rows: Literal["all", "labelled", "unlabelled"] = "all"

    def card(self, root: Path | None) -> Card:
        """Describe the dataset; channel means and deviations are those of the train rows."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(3, self.size, self.size),
            classes=None if self.rows == "unlabelled" else 10,
            scale=255,
            sources={s: n for s, n in SOURCES.items() if self.rows in {"all", s}},
            mean=(0.4467, 0.4398, 0.4066),
            std=(0.2603, 0.2566, 0.2713),
            limits=views.of_objects(self.size),
        )

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (n, 3, size, size) uint8, mapped from a file."""
        card, place = self.card(root), home(root)
        folder = place / FOLDER
        files = [folder / name for pair in FILES for name in pair if name]
        if not all(file.is_file() for file in files):
            _check(place)

        def decode() -> Iterator[np.ndarray]:
            _check(place)
            return resized(_images(folder), self.size)

        images = kept(
            self.name, [replace(self, rows="all").digest, *map(stamp, files)],
            (sum(SOURCES.values()), *card.shape), np.uint8, decode,
        )  # fmt: skip
        x = images.tensor()
        y = torch.from_numpy(_labels(folder))
        source = torch.arange(2).repeat_interleave(torch.tensor(list(SOURCES.values())))
        first = SOURCES["labelled"]
        which = {"all": slice(None), "labelled": slice(first), "unlabelled": slice(first, None)}
        part = which[self.rows]
        return Examples.of(
            x[part], y[part], scale=card.scale, source=source[part] - source[part][0],
            mapped=images.mapped,
        )  # fmt: skip


def _check(place: Path) -> None:
    """Let torchvision compare every file with its md5, and download what is missing or damaged."""
    from torchvision import datasets

    fetched(lambda: datasets.STL10(place, "test", download=True), "stl10", place, FOLDER, ORIGIN)


def _images(folder: Path) -> Iterator[Image]:
    """Yield the pictures; a file holds each as three channels of columns."""
    from PIL import Image

    for name, _ in FILES:
        held = np.memmap(folder / name, np.uint8, "r").reshape(-1, 3, SIDE, SIDE)
        for start in range(0, len(held), GROUP):
            group = np.ascontiguousarray(held[start : start + GROUP].transpose(0, 3, 2, 1))
            yield from map(Image.fromarray, group)


def _labels(folder: Path) -> np.ndarray:
    """Return classes (n,) int64 from 0, -1 for unlabelled rows; a file holds them from 1."""
    known = [np.fromfile(folder / y, np.uint8).astype(np.int64) - 1 for _, y in FILES if y]
    return np.concatenate([*known, np.full(SOURCES["unlabelled"], -1)])


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [STL10()]
