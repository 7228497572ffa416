"""Defaults of defenses leave a victim of the embedded data usable: at most 10 points are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from privbench.data.split import cut
from privbench.store.store import Store
from privbench.testing import CPU
from privbench.victims.build import Builder
from privbench.victims.spec import VictimSpec
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.defenses.adversarial_regularization import AdversarialRegularization
from privbench_plugins.defenses.relaxloss import RelaxLoss
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from privbench import Defense


@pytest.mark.parametrize(
    "defense", [RelaxLoss(), AdversarialRegularization()], ids=lambda defense: defense.name
)
def test_a_default_costs_at_most_ten_points(tmp_path: Path, defense: Defense) -> None:
    data = Digits()
    protocol, builder = data.protocols["default"], Builder(Store(tmp_path), CPU)
    split = cut(data.load(None), data.card(None), protocol, 1)

    def accuracy(*defenses: Defense) -> float:
        spec = VictimSpec(split.card, protocol, split.victim(), Supervised(), defenses)
        guessed = builder.victim(spec).log_posteriors(split.test.x).argmax(1)
        return float((guessed == split.test.y).double().mean())

    assert accuracy(defense) > accuracy() - 0.1
