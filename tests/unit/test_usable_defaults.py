"""Defaults of defenses leave a victim of the embedded data usable, or their card says why not."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from privbench.ground.store.store import Store
from privbench.measure.data.split import cut
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.plugins.registry import load
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU
from privbench_plugins.attacks.metric import MetricLoss
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Defense

#: Its mask never changes a label (tests/oracles/test_memguard.py); the default takes 20 s to train.
KEEPS_LABELS = ("memguard",)
#: A card names the size from which a default makes sense, if it is unusable below.
SIZE = re.compile(r"sense[^.]* from [^.]*\d (members|rows)")


def _defenses() -> list[Defense]:
    every = [one for one in load().all("defense") if not one.control and one.name != "none"]
    return [one for one in every if one.name not in KEEPS_LABELS]


def _says_from_which_size(defense: Defense) -> bool:
    texts = (inspect.getdoc(type(defense)), sys.modules[type(defense).__module__].__doc__)
    return any(SIZE.search(" ".join((text or "").split())) for text in texts)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from target and defenses to who is right of the test rows, None if unfit."""
    data = Digits()
    protocol = data.protocols["default"]
    builder = Builder(Store(tmp_path_factory.mktemp("store")), CPU)
    split = cut(data.load(None), data.card(None), protocol, 1)

    def right(target: Any, *defenses: Defense) -> Tensor | None:
        cell = Cell(
            card=split.card, protocol=protocol, target=target, defenses=defenses, dataset=data,
            adversary=Adversary(), attack=MetricLoss(), sensitive=("slant",),
        )  # fmt: skip
        if any(reason_to_skip(defense, cell) for defense in defenses):
            return None
        spec = VictimSpec(
            split.card, protocol, split.victim(), target, defenses, sensitive=cell.sensitive
        )
        guessed = builder.victim(spec).session("test").labels(split.test.x)
        return (guessed == split.test.y).double()

    return right


@pytest.mark.parametrize("defense", _defenses(), ids=lambda defense: defense.name)
@pytest.mark.slow
def test_a_default_costs_at_most_ten_points(lab: Any, defense: Defense) -> None:
    if _says_from_which_size(defense):
        pytest.skip("its card says from which size it makes sense")
    lost = [
        lab(target) - found
        for target in (Supervised(), SimCLR())
        if (found := lab(target, defense)) is not None
    ]
    assert lost
    for rows in lost:  # one seed: more than 10 points, and more than its test rows explain
        doubt = 3 * float(rows.std()) / len(rows) ** 0.5
        assert float(rows.mean()) - doubt <= 0.1


def test_cards_that_name_a_size_are_those_of_noise_for_epsilon() -> None:
    named = {defense.name for defense in _defenses() if _says_from_which_size(defense)}
    assert named == {
        "alm", "laplace", "gaussian", "dp-sgd", "dp-features", "dp-gcl", "logit-dp", "pate",
    }  # fmt: skip
