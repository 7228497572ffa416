"""CelebA holds 202,599 faces of 10,177 celebrities with 40 yes-or-no attributes.

Liu, Luo, Wang, Tang: Deep Learning Face Attributes in the Wild. ICCV 2015. This is the "aligned and
cropped" part. The licence allows non-commercial research only and the files lie on Google Drive,
so the data are not downloaded here.

Files, under the data root, as torchvision's ``CelebA`` expects and checks them (md5 of tables):
``celeba/img_align_celeba/*.jpg`` (unpacked from ``img_align_celeba.zip``) and the five tables
``celeba/list_attr_celeba.txt``, ``identity_CelebA.txt``, ``list_bbox_celeba.txt``,
``list_landmarks_align_celeba.txt`` and ``list_eval_partition.txt``. Pictures are 178x218 and are
resized to squares, as Talos' code does. They are decoded once, by the first process that needs
them, and then mapped from a file (``privbench.toolbox.kept_rows``; 622 MB, or 5.6 GB at size 96).

The class is one of the attributes, by default ``Male``, as in Talos, whose sensitive attribute is
``Smiling``. For ARS, section 5.3, set ``task`` to ``High_Cheekbones``, with sensitive attributes
``Male`` and ``Smiling``. All 40 attributes are available, the class among them; 0 is no, 1 is yes.

Sources ``train`` (162,770), ``valid`` (19,867) and ``test`` (19,962) are the published partition,
in which no person is in two parts. A person has some 20 pictures, so members and nonmembers from
``train`` are often pictures of one person.

The default protocol is sized for a short run on a CPU. Published sizes: ``quarters`` and ``talos``
(60,000 rows), ``ars`` (10,000 rows of each participant).

Views are those of ``utkface``; what they do to these attributes has not been measured, because the
files could not be had where this was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import torch

from privbench import (
    BadInputError,
    Card,
    Dataset,
    Examples,
    Paper,
    Part,
    Protocol,
    hookimpl,
)
from privbench.toolbox import views
from privbench.toolbox.kept_rows import kept, stamp
from privbench.toolbox.pictures import decoded
from privbench.toolbox.published import home, short_run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER, PICTURES, PARTITION = "celeba", "img_align_celeba", "list_eval_partition.txt"
ORIGIN = (
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html (agreement: non-commercial research only)"
)
Attribute = Literal[
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs",
    "Big_Lips", "Big_Nose", "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows",
    "Chubby", "Double_Chin", "Eyeglasses", "Goatee", "Gray_Hair", "Heavy_Makeup",
    "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache", "Narrow_Eyes", "No_Beard",
    "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks", "Sideburns",
    "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat",
    "Wearing_Lipstick", "Wearing_Necklace", "Wearing_Necktie", "Young",
]  # fmt: skip
#: The attributes, in the order of the published table.
ATTRIBUTES: tuple[str, ...] = get_args(Attribute)


@dataclass(frozen=True)
class CelebA(Dataset):
    """Loads CelebA, in the order of its files, as 8-bit images.

    Attributes:
        size: pixels per side; the files are resized, bilinear and antialiased.
        task: the attribute that is the class.
    """

    name: ClassVar[str] = "celeba"
    paper: ClassVar[Paper] = Paper(
        "Deep Learning Face Attributes in the Wild", "Liu, Luo, Wang, Tang", "ICCV 2015"
    )
    deviations: ClassVar[str] = (
        "Talos pre-trains on STL-10; here the public rows of its protocol are other faces."
    )
    presets: ClassVar[Mapping[str, Mapping[str, int]]] = {"paper": {"size": 96}}
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": short_run(members=2_000, pool=5_000),
        # Talos, section 3.3: 60,000 random rows in four equal parts.
        "quarters": Protocol(name="quarters", members=15_000, nonmembers=15_000, pool=30_000),
        "talos": Protocol(
            name="talos", members=15_000, nonmembers=15_000, pool=30_000, public=100_000,
            encoder=("public", "members"),
        ),
        # ARS, section 5.1: 10,000 rows of each participant; the adversary has 20,000.
        "ars": Protocol(
            name="ars", members=Part(10_000, "train"), nonmembers=Part(10_000, "test"),
            pool=Part(20_000, "train"),
        ),
    }  # fmt: skip

    size: Literal[32, 64, 96] = 32
    task: Attribute = "Male"

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(3, self.size, self.size),
            classes=2,
            scale=255,
            attributes=dict.fromkeys(ATTRIBUTES, 2),
            sensitive=("Male",) if self.task == "Smiling" else ("Smiling",),
            sources={"train": 162_770, "valid": 19_867, "test": 19_962},
            limits=views.of_faces(),
        )

    def load(self, root: Path | None) -> Examples:
        """Read the data: x (202599, 3, size, size) uint8, mapped from a file."""
        card, place = self.card(root), home(root)
        table = _table(place)
        names, folder = table.filename, place / FOLDER / PICTURES
        if tuple(table.attr_names[: len(ATTRIBUTES)]) != ATTRIBUTES or len(names) != card.rows:
            raise BadInputError(
                f"celeba: the tables in {place / FOLDER} list {len(names)} pictures where "
                f"{card.rows} were published; get them again from {ORIGIN}"
            )
        files = [folder / name for name in names]
        if absent := [file.name for file in files if not file.is_file()]:
            raise BadInputError(
                f"celeba: {folder} is incomplete: {len(absent)} of {card.rows} pictures are "
                f"missing, {absent[0]} first; unpack img_align_celeba.zip again"
            )
        x = kept(
            self.name, [self.replace(task="Male").digest, *map(stamp, files)],
            (card.rows, *card.shape), np.uint8, lambda: decoded(self.name, files, self.size),
        )  # fmt: skip
        columns = dict(zip(ATTRIBUTES, table.attr.T.contiguous(), strict=True))
        part = np.loadtxt(place / FOLDER / PARTITION, dtype=np.int64, usecols=1)
        return Examples.of(
            x.tensor(), columns[self.task].clone(), columns, scale=card.scale,
            source=torch.from_numpy(part), mapped=x.mapped,
        )  # fmt: skip


def _table(place: Path) -> Any:
    """Return torchvision's instance, which has checked and read the tables, but no picture."""
    from torchvision import datasets

    folder = place / FOLDER
    needed = [name for *_, name in datasets.CelebA.file_list if name.endswith(".txt")]
    absent = [name for name in needed if not (folder / name).is_file()]
    if not (folder / PICTURES).is_dir():
        absent.append(f"{PICTURES}/ (unpacked from {PICTURES}.zip)")
    if absent:
        raise BadInputError(
            f"celeba: {FOLDER}/ in {place} lacks {', '.join(absent)}; get the aligned and cropped "
            f"faces and the tables from {ORIGIN} and set --data-root or PRIVBENCH_DATA to the "
            f"folder that holds {FOLDER}/"
        )
    try:
        return datasets.CelebA(place, split="all")
    except Exception as error:  # a table whose md5 is wrong, or that cannot be parsed
        raise BadInputError(
            f"celeba: a table in {folder} is damaged: its md5 is not the published one; get "
            f"{', '.join(needed)} again from {ORIGIN}"
        ) from error


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [CelebA()]
