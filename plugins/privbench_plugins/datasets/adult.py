"""Adult holds 48,842 people of the US census of 1994, and who of them earned over $50,000.

Kohavi: Scaling Up the Accuracy of Naive-Bayes Classifiers. KDD 1996. UCI Machine Learning
Repository, https://archive.ics.uci.edu/dataset/2/adult. Licence: CC BY 4.0, as that page says.

Files, under the data root (downloaded if missing): ``adult/adult.data`` and ``adult/adult.test``,
as published; the first line of the latter is a comment, and its labels end in a dot. Sources
``train`` (32,561 rows) and ``test`` (16,281) are these two files, in their order.

ARS (Chen, Qiang, Ruan, 2022) maps 13 attributes to 133 columns and does not say how. Here:

- ``fnlwgt`` is left out: it is a weight of the survey and says nothing about the person.
- Eight categorical attributes are one-hot, 99 columns; a missing value ("?") is a category of its
  own, in ``workclass``, ``occupation`` and ``native-country``: 102.
- Five numbers are one-hot in bins: age 10, years of education 5, capital gain 5, capital loss 4,
  hours per week 7: 31.

Every column is 0 or 1, and ``Card.groups`` says which columns belong together. The class is 1 above
$50,000 (24 % of the rows). Sensitive attributes are ``sex`` (0 female, 1 male; the default) and
``race`` (0 to 4: white, Asian or Pacific islander, American Indian or Eskimo, other, black); they
are also among the columns.

What to expect: binning makes different people identical. Of 48,842 rows, 17,786 have the same
columns as an earlier row. A member that equals a nonmember cannot be distinguished from it, so
membership attacks have an upper limit. Compare their numbers with the blind baseline.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from privbench import Card, Dataset, Examples, Paper, Part, Protocol, hookimpl
from privbench.toolbox.messages import one_line
from privbench.toolbox.published import damaged, found_or_downloaded, home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FOLDER = "adult"
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
#: Source -> file, its MD5 and its rows.
FILES = {
    "train": ("adult.data", "5d7c39d7b8804f071cdd1f2a7c460872", 32_561),
    "test": ("adult.test", "35238206dfdf7f1fe215bbb874adecdc", 16_281),
}
#: Labels, in the order of their classes.
CLASSES = ["<=50K", ">50K"]
#: Names of the 14 fields of a line before the label, in order.
FIELDS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country",
)  # fmt: skip
#: Field -> its values, in the order of adult.names.
VALUES = {
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov",
        "Without-pay", "Never-worked", "?",
    ),
    "education": (
        "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc",
        "9th", "7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
    ),
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
        "Married-spouse-absent", "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial",
        "Prof-specialty", "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical",
        "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv", "Armed-Forces",
        "?",
    ),
    "relationship": (
        "Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried",
    ),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
        "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran",
        "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal",
        "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia",
        "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador",
        "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands", "?",
    ),
}  # fmt: skip
#: Field -> numbers at which its second and later bins start.
BINS = {
    "age": (20, 25, 30, 35, 40, 45, 50, 55, 65),
    "education-num": (9, 10, 13, 14),
    "capital-gain": (1, 5_000, 10_000, 99_999),
    "capital-loss": (1, 1_600, 1_900),
    "hours-per-week": (20, 35, 40, 41, 50, 60),
}
#: Fields that become columns -> how many columns.
COLUMNS = {
    field: len(VALUES[field]) if field in VALUES else len(BINS[field]) + 1
    for field in FIELDS
    if field != "fnlwgt"
}


@dataclass(frozen=True)
class Adult(Dataset):
    """Loads UCI Adult as 133 columns of zeros and ones."""

    name: ClassVar[str] = "adult"
    paper: ClassVar[Paper] = Paper(
        "Scaling Up the Accuracy of Naive-Bayes Classifiers: A Decision-Tree Hybrid", "Kohavi",
        "KDD 1996", "section 5",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "ARS (2022) counts 133 columns of 13 attributes without naming them: here fnlwgt is left "
        "out, numbers are in bins, and a missing value is a category."
    )
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=2_000, nonmembers=2_000, reference=500, pool=5_000, test=2_000
        ),
        # ARS, section 5.1: 10,000 rows of each participant; the adversary has 10,000 and 20,000.
        "ars": Protocol(
            name="ars", members=Part(10_000, "train"), nonmembers=Part(10_000, "test"),
            pool=Part(20_000, "train"),
        ),
    }  # fmt: skip

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return Card(
            name=self.name, kind="binary", shape=(sum(COLUMNS.values()),), classes=2, scale=1,
            attributes={"sex": len(VALUES["sex"]), "race": len(VALUES["race"])},
            sensitive=("sex",), sources={source: rows for source, (_, _, rows) in FILES.items()},
            groups=tuple(groups().values()),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (48842, 133) uint8 of zeros and ones."""
        card, folder = self.card(root), home(root) / FOLDER
        parts = []
        for source, (name, md5, _) in FILES.items():
            file = found_or_downloaded(self.name, folder / name, URL + name, md5=md5)
            codes, y = _read(file)
            if len(y) != card.sources[source]:
                raise damaged(
                    self.name, file,
                    f"it holds {len(y)} rows where {card.sources[source]} were published",
                )  # fmt: skip
            parts.append((codes, y))
        codes, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        at = list(COLUMNS)
        return Examples.of(
            torch.from_numpy(one_hot(codes)),
            torch.from_numpy(y),
            {name: torch.from_numpy(codes[:, at.index(name)].copy()) for name in card.attributes},
            scale=card.scale,
            source=torch.arange(len(parts)).repeat_interleave(
                torch.tensor([len(y) for _, y in parts])
            ),
        )


def groups() -> dict[str, tuple[int, int]]:
    """Return field -> its columns, as (start, stop) with stop excluded.

    >>> groups()["age"], groups()["native-country"]
    ((0, 10), (91, 133))
    """
    stops = np.cumsum(list(COLUMNS.values())).tolist()
    starts = [0, *stops]
    return dict(zip(COLUMNS, zip(starts, stops, strict=False), strict=True))


def codes_of(fields: Sequence[str]) -> list[int]:
    """Return the value or bin of each field that becomes columns, from the 14 fields of a line.

    Raises:
        ValueError: if a field holds a value that is not allowed.
    """
    if len(fields) != len(FIELDS):
        raise ValueError(f"{len(fields)} fields before the label, not {len(FIELDS)}")
    named = dict(zip(FIELDS, fields, strict=True))
    wrong = [
        f"'{named[f]}' is no {f}" for f in COLUMNS if f in VALUES and named[f] not in VALUES[f]
    ]
    if wrong:
        raise ValueError(", ".join(wrong))
    return [
        VALUES[field].index(named[field])
        if field in VALUES
        else bisect_right(BINS[field], int(named[field]))
        for field in COLUMNS
    ]


def one_hot(codes: np.ndarray) -> np.ndarray:
    """Return columns (n, 133) uint8 of codes (n, 13)."""
    x = np.zeros((len(codes), sum(COLUMNS.values())), dtype=np.uint8)
    starts = np.array([start for start, _ in groups().values()])
    np.put_along_axis(x, codes + starts, 1, axis=1)
    return x


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (n, 13) and classes (n,), both int64."""
    codes, y = [], []
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged("adult", file, one_line(error)) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("|"):
            continue
        *fields, label = (field.strip() for field in line.split(","))
        label = label.removesuffix(".")
        try:
            codes.append(codes_of(fields))
        except ValueError as error:
            raise damaged("adult", file, f"line {number}: {error}") from error
        if label not in CLASSES:
            raise damaged("adult", file, f"line {number}: '{label}' is no class")
        y.append(CLASSES.index(label))
    return np.array(codes, dtype=np.int64).reshape(-1, len(COLUMNS)), np.array(y, dtype=np.int64)


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Adult()]
