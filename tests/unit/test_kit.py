"""The conformance kit refuses methods that contradict themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from privbench import Defense, Release
from privbench.testing import TinyTarget, checks

if TYPE_CHECKING:
    from privbench import Method
    from privbench.plugins.registry import Registry


def run(method: Method, name: str) -> None:
    """Run the check of that name."""
    (check,) = (check for check in checks(method) if name in check.name)
    check()


@pytest.mark.parametrize(("fact", "value"), [("contrastive", True), ("labelled_encoder", False)])
def test_a_target_that_contradicts_its_phases(fact: str, value: bool) -> None:
    run(TinyTarget(), "facts of the encoder")
    cls: Any = dataclass(frozen=True)(type("Wrong", (TinyTarget,), {fact: value}))
    with pytest.raises(AssertionError, match=f"{fact} is {value}, but a phase of the encoder"):
        run(cls(), "facts of the encoder")


class Posteriors(Release):
    """Returns posteriors unchanged."""

    of = "posterior"
    feeds_classifier = True

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value


@dataclass(frozen=True)
class Feeds(Defense):
    """Says that the classifier trains on posteriors."""

    name: ClassVar[str] = "feeds"
    protects: ClassVar[tuple[str, ...]] = ()
    release_class: ClassVar[type[Release]] = Posteriors

    def release(self, card: Any, model: Any, ctx: Any) -> Release:
        del card, model, ctx
        return Posteriors()


@dataclass(frozen=True)
class Hidden(Feeds):
    """Leaves its release out of its stages."""

    name: ClassVar[str] = "hidden"

    def stages(self) -> frozenset[str]:
        return frozenset({"phases"})


@dataclass(frozen=True)
class Fussy(TinyTarget):
    """Requires what nobody knows."""

    name: ClassVar[str] = "fussy"
    requires: ClassVar[tuple[str, ...]] = ("image",)


def test_what_would_not_load_as_a_plugin() -> None:
    with pytest.raises(
        AssertionError, match="Fussy: requires has 'image': choose from classes, images"
    ):
        run(Fussy(), "says what it is")


def test_a_defense_that_contradicts_its_release() -> None:
    with pytest.raises(AssertionError, match="cannot feed the classifier"):
        run(Feeds(), "defended training")
    with pytest.raises(AssertionError, match="include 'release'"):
        run(Hidden(), "defended training")


@dataclass(frozen=True)
class Pictures(TinyTarget):
    """Needs what the kit's rows do not have."""

    name: ClassVar[str] = "pictures"

    def incompatible(self, cell: Any) -> str | None:
        return f"it needs photographs, and {cell.card.name} has none"


def test_what_was_not_tried_is_said() -> None:
    (check,) = (one for one in checks(Pictures()) if one.name == "shapes")
    assert check() == "it needs photographs, and tiny-images has none"
    (check,) = (one for one in checks(TinyTarget()) if one.name == "shapes")
    assert check() == ""


def test_every_check_says_what_it_tries(registry: Registry) -> None:
    for kind, name in (("attack", "lira"), ("defense", "talos"), ("target", "simclr"),
                       ("dataset", "digits")):  # fmt: skip
        for check in checks(registry.get(kind, name)):
            assert check.tried.endswith("."), check.name
            assert "\n" not in check.tried
    assert checks(registry.get("attack", "lira"))[2].tried == (
        "`replace(no_such_hyperparameter=1)`."
    )
