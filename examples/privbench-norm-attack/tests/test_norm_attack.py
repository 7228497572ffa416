"""NormAttack meets what privbench requires of every attack."""

import pytest
from privbench_norm_attack.norm_attack import NormAttack

from privbench.testing import checks


@pytest.mark.parametrize("check", checks(NormAttack()), ids=str)
def test_conformance(check):
    """Say what was tried and what to change."""
    check()
