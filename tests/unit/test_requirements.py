"""Common requirements: which a method has, and when a cell meets them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from privbench import Access, AttributeAttack, Cell, Defense, MembershipAttack, Protocol, Release
from privbench.grid.compatible import why_not
from privbench.measure.methods.adversary import Adversary
from privbench.plugins.about import about
from privbench.plugins.requirements import REQUIREMENTS, reason_to_skip, required
from privbench.testing import AnyAttack, TinyImages, TinyTarget

DATA = TinyImages()
CARD, PROTOCOL = DATA.card(None), DATA.protocols["default"]


def cell(**changes: Any) -> Cell:
    """Return a cell that meets all requirements, with these changes."""
    return replace(
        Cell(CARD, PROTOCOL, TinyTarget(), (Picky(),), Adversary(), AnyAttack(), ("bright",)),
        **changes,
    )


@dataclass(frozen=True)
class Picky(Defense):
    name: ClassVar[str] = "picky"
    protects: ClassVar[tuple[str, ...]] = ()
    needs: str = ""

    @property
    def requires(self) -> tuple[str, ...]:
        return (self.needs,) if self.needs else ()

    def incompatible(self, cell: Cell) -> str | None:
        return f"picky takes no {cell.card.name}" if self.needs == "classes" else None


@dataclass(frozen=True)
class Unlabelled(TinyTarget):
    name: ClassVar[str] = "unlabelled"
    labelled_encoder: ClassVar[bool] = False


@dataclass(frozen=True)
class Frozen(TinyTarget):
    name: ClassVar[str] = "frozen"
    trains_encoder: ClassVar[bool] = False


APART = Protocol(
    name="apart", members=80, nonmembers=80, pool=400, downstream=40, classifier="downstream"
)


@pytest.mark.parametrize(
    ("name", "changes", "lacks"),
    [
        ("classes", {"card": replace(CARD, classes=None)}, "at least two classes, and tiny-images"),
        ("classes", {"card": replace(CARD, classes=1)}, "at least two classes, and tiny-images"),
        ("images", {"card": replace(CARD, kind="binary")}, "images, and tiny-images has binary"),
        ("attributes", {"sensitive": ()}, "a sensitive attribute, and the cell names none"),
        ("attributes", {"sensitive": ("bright", "age")}, "attribute 'age', which tiny-images"),
        ("one-attribute", {"sensitive": ("bright", "bright")}, "exactly one sensitive attribute"),
        ("one-attribute", {"sensitive": ("age",)}, "attribute 'age', which tiny-images"),
        ("reference-rows", {"protocol": APART}, "reference rows, and protocol 'apart' has none"),
        (
            "member-labels",
            {"protocol": APART, "target": Unlabelled()},
            "a phase that reads members' labels, and unlabelled has none under protocol 'apart'",
        ),
        ("member-labels", {"card": replace(CARD, classes=None)}, "at least two classes"),
        (
            "trained-encoder",
            {"target": Frozen()},
            "a phase that trains the encoder, and that of frozen is frozen",
        ),
    ],
)
def test_a_cell_that_does_not_meet_a_requirement_says_why(
    name: str, changes: dict[str, Any], lacks: str
) -> None:
    method, bare = Picky(name), Picky()
    assert f"picky needs {lacks}" in (reason_to_skip(method, cell(**changes)) or "")
    assert reason_to_skip(bare, cell(**changes)) is None
    assert REQUIREMENTS[name](cell()) is None
    assert why_not(cell(defenses=(method,), **changes)) == reason_to_skip(method, cell(**changes))


def test_own_reasons_come_after_common_ones() -> None:
    assert reason_to_skip(Picky("classes"), cell()) == "picky takes no tiny-images"
    without = cell(card=replace(CARD, classes=None))
    assert "needs at least" in (reason_to_skip(Picky("classes"), without) or "")


class Posteriors(Release):
    of = "posterior"

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Masks(Picky):
    name: ClassVar[str] = "masks"
    release_class: ClassVar[type[Release]] = Posteriors
    uses_attributes: ClassVar[bool] = True


@dataclass(frozen=True)
class Reads(MembershipAttack):
    name: ClassVar[str] = "reads"
    needs: ClassVar[Access] = Access.LABELS
    requires: ClassVar[tuple[str, ...]] = ("images", "classes")

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Guesses(AttributeAttack):
    name: ClassVar[str] = "guesses"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Any:
        raise NotImplementedError


def test_what_follows_from_other_facts_is_not_declared() -> None:
    assert required(Masks()) == ("classes", "attributes")
    assert required(Reads()) == ("images", "classes")
    assert required(Guesses()) == ("attributes",)
    assert required(Picky()) == required(AnyAttack()) == ()
    assert about("attack", Reads()).facts["Requires"] == "images, classes"


def test_authors_can_look_them_up() -> None:
    page = Path(__file__).parents[2] / "docs" / "plugins" / "class-variables.md"
    guide = page.read_text(encoding="utf-8")
    assert [name for name in REQUIREMENTS if f"\n| `{name}` |" not in guide] == []
