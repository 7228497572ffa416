"""What a run asks of its plan, in plain values, wherever the plan is; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.grid.messages import Node, Packed, Setup


@dataclass(frozen=True)
class Item:
    """A planned trial.

    Attributes:
        digest: of the trial.
        skip: why it is skipped; None if it runs.
        failed: what went wrong when a plugin was asked about its cell, and the traceback.
    """

    digest: str
    skip: str | None = None
    failed: tuple[str, str] | None = None


class Planned(Protocol):
    """Planned trials: in this process (``PlannedHere``) or in another (``PlannedApart``).

    Attributes:
        trained_phases: how many phases were trained for them so far.
    """

    trained_phases: int

    @property
    def items(self) -> Sequence[Item]:
        """All trials, in order."""

    @property
    def setup(self) -> Setup:
        """What workers need to start."""

    def ask(self, what: str, *args: Any) -> Any:
        """Return an attribute of the plan, or what its method returns for the arguments.

        They are those of ``api.planning.Planning`` and ``grid.here.PlannedHere``.
        """

    def close(self) -> None:
        """Nothing more will be asked."""

    def blank(self, digest: str) -> str:
        """Return the record of a trial without results, as JSON."""

    def nodes(self, digests: Sequence[str]) -> dict[str, Node]:
        """Return the graph of some of the trials, see ``graph``."""

    def packed(self, name: str, writer: str = "pickle") -> Packed:
        """Return a node of that graph with its trial, for a worker.

        Args:
            name: of the node.
            writer: module whose ``dumps`` writes them.
        """
