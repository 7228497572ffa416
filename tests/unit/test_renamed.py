"""What a plugin written for 0.1.0 still may say, with a warning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import privbench
from privbench import Access, Cell, Defense, MembershipAttack, Shadows
from privbench.grid.suite import suite_from
from privbench.testing import arena, memoriser, tiny_split


def test_names_of_the_package() -> None:
    for old, new in {"Recipe": "Augmentation", "CellCard": "Cell"}.items():
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(privbench, old) is getattr(privbench, new)


def test_origins_of_shadows() -> None:
    for old, new in {"own": "offline", "candidates": "online"}.items():
        with pytest.warns(DeprecationWarning, match=new):
            assert Shadows(2, old) == Shadows(2, new)  # type: ignore[arg-type]


def test_members_of_a_method() -> None:
    with pytest.warns(DeprecationWarning, match="is now called") as told:

        @dataclass(frozen=True)
        class Old(MembershipAttack):
            name: ClassVar[str] = "old"
            needs: ClassVar[Access] = Access.LABELS

            @property
            def asks(self) -> int:
                return 7

            def unfit(self, cell: Cell) -> str:
                return f"not for {cell}"

            def answer(self, oracle: Any, question: Any, ctx: Any) -> Any:
                raise NotImplementedError

    assert {str(one.message).split(" is now")[0] for one in told} == {"Old.asks", "Old.unfit"}
    assert Old().max_rows == 7
    assert (Old().incompatible("it") or "") == "not for it"  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="is now called"):

        @dataclass(frozen=True)
        class Claims(Defense):
            name: ClassVar[str] = "claims"
            protects: ClassVar[tuple[str, ...]] = ()
            claims: ClassVar[bool] = True
            learns: ClassVar[bool] = False

    assert Claims.claims_epsilon
    assert not Claims.uses_training_data


def test_the_oracle_of_the_adversary_s_own_rows() -> None:
    from privbench.testing import AnyAttack

    _, ctx = arena(AnyAttack(), memoriser(tiny_split().victim()))
    with pytest.warns(DeprecationWarning, match="auxiliary_oracle"):
        assert ctx.own is ctx.auxiliary_oracle


def test_the_preset_quick() -> None:
    assert suite_from({"attacks": ["x"], "preset": "quick"}, "x").preset == "cpu"
