"""The conformance kit: checks that every plugin must pass, in-tree or third-party.

In a plugin package's tests::

    import pytest
    from privbench.testing import checks
    from my_package import MyAttack

    @pytest.mark.parametrize("check", checks(MyAttack()), ids=str)
    def test_conformance(check):
        check()

The fixtures are tiny and deterministic: ``TinyImages`` (smooth random images), a smooth memoriser
(confidence and view similarity decrease with the distance to the nearest member), and a revealer
(the embedding contains the sensitive attribute). An attack must beat chance on a planted victim and
stay at chance on a model trained on none of these samples. Each check gets new rows; those that
look at one answer, or at one small victim, share it. Some run on rows stored as floats as well. A
failing check says what was tried and what to change.
"""

from privbench.measure.games.metrics import auc_band
from privbench.testing.checks import Check, checks
from privbench.testing.fixtures import (
    CPU,
    AnyAttack,
    TinyContrastive,
    TinyImages,
    TinyPairs,
    TinyTarget,
    arena,
    memoriser,
    rate_band,
    tiny_builder,
    tiny_spec,
    tiny_split,
)
from privbench.testing.generated import Generated

__all__ = [
    "CPU", "AnyAttack", "Check", "Generated", "TinyContrastive", "TinyImages", "TinyPairs",
    "TinyTarget", "arena", "auc_band", "checks", "memoriser", "rate_band", "tiny_builder",
    "tiny_spec", "tiny_split",
]  # fmt: skip
