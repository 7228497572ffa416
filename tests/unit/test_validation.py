"""A dataset that is not what its card says fails its cells with one sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from privbench import BadInputError, Card, Dataset, Examples, Protocol
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.validation import validated
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.testing import AnyAttack, TinyImages, TinyTarget, checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

N = 569


def table(scale: float = 2.0**20) -> tuple[Card, Examples]:
    """Return a table of floats, like scikit-learn's breast cancer, and its card."""
    card = Card(
        name="cancer", kind="real", shape=(3,), classes=2, scale=scale, sources={"all": N},
        attributes={"old": 2}, sensitive=("old",),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 3, generator=generator)
    y, old = (torch.randint(2, (N,), generator=generator) for _ in range(2))
    return card, Examples.of(x, y, {"old": old}, scale=scale)


def nan_after_row_64(rows: Examples) -> Examples:
    rows.x[70, 1] = float("nan")
    return rows


WRONG: Mapping[str, tuple[Callable[[Examples], Any], str]] = {
    "NaN after row 64": (nan_after_row_64, r"x is NaN, first in row 70"),
    "infinite": (lambda r: replace(r, x=r.x / 0), r"x (lies in|is NaN)"),
    "outside": (lambda r: replace(r, x=r.x * 4000), r"x lies in .*, not in \[0, 1\]: scale each"),
    "negative": (lambda r: replace(r, x=r.x - 0.5), r"not in \[0, 1\]"),
    "float64": (lambda r: replace(r, x=r.x.double()), r"x is torch.float64"),
    "complex": (lambda r: replace(r, x=r.x + 0j), r"x is torch.complex64"),
    "float labels": (lambda r: replace(r, y=r.y.float()), r"y is torch.float32: convert"),
    "int32 labels": (lambda r: replace(r, y=r.y.int()), r"y is torch.int32: convert"),
    "labels of ±1": (lambda r: replace(r, y=2 * r.y - 1), r"no row has class 0 of 2: number"),
    "labels from 1": (lambda r: replace(r, y=r.y + 1), r"between 1 and 2.*0 to 1"),
    "columns of labels": (lambda r: replace(r, y=r.y[:, None]), r"y has shape \(569, 1\)"),
    "attribute": (
        lambda r: replace(r, attributes={"old": r.y + 1}), r"'old' lies between 1 and 2",
    ),
    "no attribute": (lambda r: replace(r, attributes={}), r"attributes none.*says old"),
    "rows": (lambda r: r.select(slice(0, 9)), r"x has shape \(9, 3\), but the card says"),
    "scale": (lambda r: replace(r, scale=255.0), r"scale is 255"),
    "source": (lambda r: replace(r, source=r.source + 1), r"source is not in 0 to 0"),
    "order": (lambda r: replace(r, index=r.index.flip(0)), r"index is not the position"),
    "no examples": (lambda r: (r.x, r.y), r"load\(\) returned a tuple"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_sentence(what: str) -> None:
    card, rows = table()
    assert validated(rows, card) is rows
    change, problem = WRONG[what]
    with pytest.raises(BadInputError, match=rf"^dataset 'cancer': .*{problem}"):
        validated(change(rows), card)


def test_a_scale_at_which_rows_share_keys() -> None:
    card, rows = table(scale=1.0)
    with pytest.raises(BadInputError, match=r"569 different rows have only 8 keys.*larger scale"):
        validated(rows, card)


def test_equal_rows_may_share_a_key_and_zero_has_one_sign() -> None:
    card, rows = table()
    x = rows.x.clone()
    x[1] = x[0]
    x[2], x[3] = 0.0, -0.0
    validated(replace(rows, x=x), card)


def test_integers_above_the_scale() -> None:
    data = TinyImages()
    card, rows = data.card(None), data.load(None)
    validated(rows, card)
    card, rows = replace(card, scale=16.0), replace(rows, scale=16.0)
    with pytest.raises(BadInputError, match=r"not in \[0, 16\]: set `scale` to the largest"):
        validated(rows, card)


@dataclass(frozen=True)
class Broken(Dataset):
    """Has a NaN in row 70."""

    name: ClassVar[str] = "cancer"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(name="default", members=50, nonmembers=50, pool=200)
    }

    def card(self, root: Path | None) -> Card:
        del root
        return table()[0]

    def load(self, root: Path | None) -> Examples:
        del root
        return nan_after_row_64(table()[1])


def test_such_a_dataset_fails_its_cells(tmp_path: Path) -> None:
    data = Broken()
    cell = Cell(
        data.card(None), data.protocols["default"], TinyTarget(), (), Adversary(), AnyAttack(),
        dataset=data,
    )  # fmt: skip
    record = TrialRunner(Store(tmp_path), torch.device("cpu")).run(Trial(cell, 0))
    assert record.status == "failed"
    assert record.reason.startswith("dataset 'cancer': x is NaN, first in row 70: fill in")


def test_the_kit_says_the_same() -> None:
    (check,) = (check for check in checks(Broken()) if "card agrees" in check.name)
    with pytest.raises(AssertionError, match="x is NaN, first in row 70"):
        check()
