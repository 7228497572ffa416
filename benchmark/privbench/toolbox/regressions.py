"""Attacks on regressions: what they read, and which victims they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privbench.measure.games.membership import MembershipAttack
from privbench.measure.methods.access import Access

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.oracle import Oracle


class RegressionAttack(MembershipAttack):
    """Base of attacks on the membership of a regression's rows; `privbench audit` runs them all.

    The adversary knows a row's true number, so all that it reads is the ``residuals``.
    """

    needs: ClassVar[Access] = Access.EMBEDDINGS

    def incompatible(self, cell: Cell) -> str | None:
        """Require a regression."""
        if getattr(cell.target, "gives", "") == "values":
            return None
        return f"{self.name} attacks regressions: use `privbench audit --output values`"


def residuals(oracle: Oracle, rows: Examples) -> Tensor:
    """Return answer minus truth (n, 1) float64, in the unit of the truth."""
    return oracle.embeddings(rows).double()
