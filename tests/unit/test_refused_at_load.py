"""What would silently be taken for something else is refused when plugins are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from privbench import Access, BadInputError, Defense, MembershipAttack, Release, Shadows
from privbench.ground.errors import PluginError
from privbench.measure.training.phase import BatchSpec, Monitor, Optimizer, Stream
from privbench.plugins import registry as plugins
from privbench.plugins.requirements import reason_to_skip
from privbench.plugins.valid import KINDS, misfit
from privbench.testing import AnyAttack, TinyImages, TinyTarget, tiny_split


class Plain(Release):
    """Changes nothing."""

    of: ClassVar[Any] = "embedding"

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value


class Wrapped:
    """No release at all."""


@dataclass(frozen=True)
class Guard(Defense):
    """Releases something."""

    name: ClassVar[str] = "guard"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    release_class: ClassVar[Any] = Plain


BASES: dict[str, Any] = {"defense": Guard, "attack": AnyAttack, "target": TinyTarget}


def method(kind: str, **members: Any) -> Any:
    """Return a method of that kind whose class defines these members."""
    made: Any = dataclass(frozen=True)(type("Theirs", (BASES[kind],), members))
    return made()


def releasing(**members: Any) -> Any:
    return method("defense", release_class=type("Given", (Plain,), members))


def test_the_bases_are_fine() -> None:
    for kind in BASES:
        assert misfit(kind, method(kind)) is None


def nothing(*given: Any) -> Any:
    del given


MISSPELT = {
    "on_phase": ("defense", "on_phases"),
    "onTrained": ("defense", "on_trained"),
    "relabels": ("defense", "relabel"),
    "use_attributes": ("defense", "uses_attributes"),
    "protect": ("defense", None),  # the base has `protects` itself
    "incompatibel": ("attack", "incompatible"),
    "shadow": ("attack", "shadows"),
    "want": ("attack", "wants"),
    "max_row": ("attack", "max_rows"),
    "contrastiv": ("target", "contrastive"),
    "labeled_encoder": ("target", "labelled_encoder"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_name_near_a_hook(name: str) -> None:
    kind, meant = MISSPELT[name]
    problem = misfit(kind, method(kind, **{name: nothing}))
    assert problem == (
        meant
        and f"Theirs.{name} is no member of {KINDS[kind].__name__}: did you mean '{meant}'? "
        f"If not, name it _{name}"
    )


@pytest.mark.parametrize(("name", "meant"), [("fitt", "fit"), ("feed_classifier",
                         "feeds_classifier"), ("keep_labels", "keeps_labels")])  # fmt: skip
def test_a_name_near_that_of_a_release(name: str, meant: str) -> None:
    problem = misfit("defense", releasing(**{name: nothing}))
    assert problem == (
        f"Given.{name} is no member of Release: did you mean '{meant}'? If not, name it _{name}"
    )


def test_hyperparameters_and_helpers_are_free() -> None:
    assert misfit("attack", method("attack", _shadow=nothing)) is None
    made = make_dataclass("Wide", [("shadow", int, 3)], bases=(AnyAttack,), frozen=True)
    assert misfit("attack", made()) is None
    both = {"shadow": nothing, "shadows": property(lambda _: Shadows(1))}
    assert misfit("attack", method("attack", **both)) is None


def test_fields_and_constants_that_mean_something() -> None:
    @dataclass(frozen=True)
    class Base(AnyAttack):
        rounds: ClassVar[int] = 3
        max_rows: int = 100
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.max_rows)

    @dataclass(frozen=True)
    class Mine(Base):
        rounds = 5

    for made in (Base(), Mine()):
        assert misfit("attack", made) is None


def test_every_in_tree_method_loads() -> None:
    for plugin in plugins.load().plugins:
        assert not plugin.problems


LITERALS: dict[str, tuple[Any, str]] = {
    "of": (releasing(of="embeddings"), "Given.of is 'embeddings': write 'embedding' or"),
    "release": (method("defense", release_class=Wrapped), "release_class is .*Wrapped.*: a subcl"),
    "protects": (
        method("defense", protects="membership"),
        r"protects is 'membership': write a tuple of names, \('membership',\)",
    ),
    "game": (method("defense", protects=("members",)), "protects has 'members': choose from attr"),
    "stages": (
        method("defense", stages=lambda _: frozenset({"phase"})), r"stages\(\) has 'phase': choose",
    ),
    "stage": (
        method("defense", stages=lambda _: "phases"), r"stages\(\) is 'phases': write a frozenset",
    ),
    "requires": (
        method("defense", requires="images"),
        r"requires is 'images': write a tuple of names, \('images',\)",
    ),
    "no name": (method("attack", name=""), "Theirs has no name: set `name"),
    "name": (method("attack", name="My_attack"), "Theirs has the name 'My_attack': use lower-case"),
    "field": (
        make_dataclass("Wide", [("of", Any, Path("x"))], bases=(AnyAttack,), frozen=True)(),
        "Wide: 'fields.of' is a PosixPath: a path does not identify the content",
    ),
    "needs": (method("attack", needs="posteriors"), "needs is 'posteriors': write it with Access"),
    "wants": (method("attack", wants=None), "wants is None: write it with Access"),
    "grants": (method("target", grants=7), "grants is 7: write it with Access"),
    "shadows": (
        method("attack", shadows=property(lambda _: 4)), r"shadows is 4: return Shadows\(count",
    ),
    "origin": (
        method("attack", shadows=property(lambda _: Shadows(2, "onlin"))),  # type: ignore[arg-type]
        "origin of shadows is 'onlin': write 'offline' or 'online'",
    ),
    "count": (method("attack", shadows=property(lambda _: Shadows(-1))), "count of shadows is -1"),
    "decides at": (method("attack", decides_at=0.01), "decides_at is 0.01: write"),
    "version": (method("attack", version="2"), "version is '2': write a whole number"),
    "no default": (
        make_dataclass("Wide", [("of", int)], bases=(AnyAttack,), frozen=True)(3),
        "Wide: of has no default: write one, such as `of: int = 3`",
    ),
    "no class variable": (
        make_dataclass("Wide", [("needs", Any, Access.LABELS)], bases=(AnyAttack,), frozen=True)(),
        "Wide: needs is a hyperparameter: write `needs: ClassVar",
    ),
    "no type": (method("attack", k=4), "k = 4 has no type: write `k: int = …` for a hyperp"),
    "fact": (method("target", contrastive="no"), "contrastive is 'no': write True or False"),
}  # fmt: skip


@pytest.mark.parametrize("what", LITERALS)
def test_a_value_that_means_nothing(what: str) -> None:
    made, problem = LITERALS[what]
    kind = next(kind for kind, base in KINDS.items() if isinstance(made, base))
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(misfit(kind, made))


def test_shadows_by_position_are_what_they_say() -> None:
    assert Shadows(2, "online") == Shadows(count=2, origin="online")
    with pytest.raises(PluginError, match="count of shadows is 'online'"):
        Shadows("online", 2)  # type: ignore[arg-type]


def test_a_dataclass_that_is_not_frozen() -> None:
    @dataclass
    class Loose(MembershipAttack):
        """Can be changed."""

        name: ClassVar[str] = "loose"
        needs: ClassVar[Access] = Access.NONE
        k: int = 3

        def answer(self, oracle: Any, question: Any, ctx: Any) -> Any:
            raise NotImplementedError

    problem = "Loose is not frozen: decorate it with @dataclass(frozen=True)"
    assert misfit("attack", Loose()) == problem


@pytest.mark.parametrize("given", [True, 3, ["no"], ""])
def test_a_reason_to_skip_that_is_no_sentence(given: Any) -> None:
    made = method("attack", incompatible=lambda *_: given)
    with pytest.raises(PluginError, match=r"incompatible.. of anything returned .*: return a sent"):
        reason_to_skip(made, None)  # type: ignore[arg-type]


def test_a_card_and_a_phase_of_no_kind() -> None:
    card = TinyImages().card(None)
    phase = TinyTarget().phases(None, None, SimpleNamespace(protocol=tiny_split().protocol))[0]  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="kind of 'tiny-images' is 'images': write 'image', "):
        replace(card, kind="images")  # type: ignore[arg-type]
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (phase, {"reads": "embedding"}), (BatchSpec(3), {"kind": "shuffled"}),
        (Optimizer("adam", 1.0), {"kind": "Adam"}), (Optimizer("sgd", 1.0), {"per": "updates"}),
        (Optimizer("sgd", 1.0), {"schedule": "Cosine"}),
        (Stream(TinyImages().load(None)), {"match": "label"}),
        (Stream(TinyImages().load(None)), {"match": "classes"}),
    ]  # fmt: skip
    for made, fields in wrong:
        (name, value), = fields.items()  # fmt: skip
        with pytest.raises(ValueError, match=rf"{name} is '{value}': write '"):
            replace(made, **fields)
    Monitor({})
