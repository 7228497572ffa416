"""Quantise meets what privbench requires of every defense."""

import pytest
from privbench_quantise.quantise import Quantise

from privbench.testing import checks


@pytest.mark.parametrize("check", checks(Quantise()), ids=str)
def test_conformance(check):
    """Say what was tried and what to change."""
    check()
