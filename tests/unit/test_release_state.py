"""A release is served from its stored state, in the first run as in all later ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from privbench import Defense, Release
from privbench.ground.errors import PluginError
from privbench.testing import TinyTarget, tiny_builder, tiny_spec, tiny_split

if TYPE_CHECKING:
    from pathlib import Path


class Blunt(Release):
    """Adds what it learned; keeps it in a buffer."""

    of: ClassVar[Any] = "embedding"
    shift: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(()))

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        del model, ctx
        self.shift.fill_(float(len(world.members)))

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value + self.shift


class Forgetful(Blunt):
    """Keeps what it learned in an attribute."""

    learned = 0.0

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        super().fit(model, world, ctx)
        self.learned = 1.0

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        return super().forward(x, value, u) + self.learned


class Growing(Blunt):
    """Makes a buffer only when it learns."""

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        super().fit(model, world, ctx)
        self.register_buffer("more", torch.ones(()))


class Unsaved(Blunt):
    """Keeps what it learned in a buffer that is not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(()), persistent=False)


class ForgetfulMask(Forgetful):
    """The same of posteriors, which it flattens."""

    of: ClassVar[Any] = "posterior"

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value ** (1 - 0.5 * self.learned)


class Curious(Release):
    """Counts the rows it learned from, and sharpens posteriors."""

    of: ClassVar[Any] = "posterior"
    rows = 0

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        del model, ctx
        self.rows = len(world.members)

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        assert torch.allclose(value.sum(1), torch.ones(len(value), dtype=value.dtype))
        return value.square() / value.square().sum(1, keepdim=True)


def defense(made: type[Release]) -> Any:
    @dataclass(frozen=True)
    class Adds(Defense):
        """Has that release."""

        name: ClassVar[str] = "adds"
        protects: ClassVar[tuple[str, ...]] = ()
        release_class: ClassVar[type[Release]] = made

        def release(self, card: Any, model: Any, ctx: Any) -> Release:
            del card, model, ctx
            return made()

    return Adds()


def test_the_first_run_and_the_second_answer_alike(tmp_path: Path) -> None:
    spec, x = tiny_spec(TinyTarget(), (defense(Blunt),)), tiny_split().pool.x[:40]
    first, second = (tiny_builder(str(tmp_path)).victim(spec).embeddings(x) for _ in range(2))
    assert torch.equal(first, second)
    assert float(first.min()) > 1, "the shift is there"


@pytest.mark.parametrize("made", [Forgetful, ForgetfulMask, Unsaved])
def test_state_outside_stored_buffers_is_refused(made: type[Release], tmp_path: Path) -> None:
    spec = tiny_spec(TinyTarget(), (defense(made),))
    for _ in range(2):  # under 0.2.0 the first run was right, and the second wrong
        with pytest.raises(PluginError, match=r"release of adds answers otherwise.*buffers"):
            tiny_builder(str(tmp_path)).victim(spec)


def test_a_release_may_count_what_no_answer_depends_on(tmp_path: Path) -> None:
    spec, x = tiny_spec(TinyTarget(), (defense(Curious),)), tiny_split().pool.x[:40]
    first, second = (tiny_builder(str(tmp_path)).victim(spec).log_posteriors(x) for _ in range(2))
    assert torch.equal(first, second)


def test_a_buffer_that_only_fitting_makes_is_refused_at_once(tmp_path: Path) -> None:
    spec = tiny_spec(TinyTarget(), (defense(Growing),))
    with pytest.raises(PluginError, match=r"state of the release of adds cannot be loaded.*more"):
        tiny_builder(str(tmp_path)).victim(spec)
