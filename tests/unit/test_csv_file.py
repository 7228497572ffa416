"""A dataset of a plugin that reads a csv file needs a few lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from privbench import BadInputError, CsvFile, Dataset, Protocol
from privbench.testing import checks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*numbered in sorted order")
TEXT = "age,job,sex,rich\n20,clerk,f,no\n40,cook,m,yes\n30,clerk,m,no\n"


def table(root: Path) -> CsvFile:
    return CsvFile(root / "people.csv", "rich", sensitive=("sex",), get="ask its author")


def test_columns_become_numbers_by_hand(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(TEXT + "20,cook,f,no\n" * 112)
    card, rows = table(tmp_path).card("people"), table(tmp_path).load()
    assert (card.kind, card.shape, card.classes, card.rows) == ("real", (5,), 2, 115)
    assert card.groups == ((1, 3), (3, 5))  # clerk, cook; f, m
    assert card.attributes == {"sex": 2}
    assert rows.x[:3].tolist() == [[0, 1, 0, 1, 0], [1, 0, 1, 0, 1], [0.5, 1, 0, 0, 1]]
    assert (rows.y[:3].tolist(), rows.attributes["sex"][:3].tolist()) == ([0, 1, 0], [0, 1, 1])


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(TEXT + "20,cook,f,no\n" * 112)
    assert table(tmp_path).card("people").rows == 115
    file.write_text(TEXT + "20,cook,f,no\n" * 113)
    assert table(tmp_path).card("people").rows == 116


def test_a_missing_file_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"people.csv \(No such file.*\): ask its author"):
        table(tmp_path).card("people")
    (tmp_path / "people.csv").write_text("age,rich\n1,no\n")
    with pytest.raises(BadInputError, match=r"people.csv: it has no column 'sex'"):
        table(tmp_path).card("people")


def test_such_a_dataset_passes_the_kit(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class People(Dataset):
        """Loads people."""

        name: ClassVar[str] = "people"
        protocols: ClassVar[dict[str, Protocol]] = {
            "default": Protocol(
                name="default", members=40, nonmembers=40, reference=20, pool=100, test=40
            )
        }

        def card(self, root: Any) -> Any:
            return table(root).card(self.name)

        def load(self, root: Any) -> Any:
            return table(root).load()

    drawn = torch.rand(300, generator=torch.Generator().manual_seed(1)).tolist()
    lines = [f"{d:.9f},{'ab'[i % 2]},{'fm'[d < 0.5]},{['no', 'yes'][d < 0.3]}\n"
             for i, d in enumerate(drawn)]  # fmt: skip
    (tmp_path / "people.csv").write_text("age,job,sex,rich\n" + "".join(lines))
    for check in checks(People(), root=tmp_path):
        check()
