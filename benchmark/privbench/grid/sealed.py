"""Attacks of other packages, in processes that must not run their code.

A worker needs what an attack declares, never what it does: the attack answers in a process of its
own. So a worker gets it sealed: its declarations as values, and its pickle as bytes.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.grid.messages import CHANGED
from privbench.ground.errors import AnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.measure.methods.access import Access
    from privbench.measure.methods.attack import Attack, Shadows


@dataclass(frozen=True)
class SealedAttack:
    """What an attack declares, and the attack itself as bytes; see ``Attack`` for the rest.

    Attributes:
        origin: where it comes from, see ``origins.origins``.
        packed: its pickle.
    """

    name: str
    label: str
    version: int
    digest: str
    fields: Mapping[str, Any]
    game: str
    needs: Access
    wants: Access
    shadows: Shadows
    decides_at: str
    max_rows: int | None
    origin: Mapping[str, str]
    packed: bytes

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values of the fields."""
        return dict(self.fields)

    def replace(self) -> SealedAttack:
        """The same attack."""
        return self

    def opened(self) -> Attack:
        """The attack: its code is imported here.

        Raises:
            AnswerError: if that code has changed since the run began.
        """
        attack: Attack = pickle.loads(self.packed)  # noqa: S301 - from the process that planned
        if attack.digest != self.digest:
            raise AnswerError(CHANGED)
        return attack
