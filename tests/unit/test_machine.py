"""Answers that depend on the row alone, on every processor; and what is recorded of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from privbench.ground.store.machine import STRICT, machine
from privbench.measure.data.examples import Card
from privbench.measure.methods.access import BLACK_BOX
from privbench.measure.training.model import Model
from privbench.measure.training.nets import backbone
from privbench.measure.victims.served import ROWS_PER_PASS, Victim

QUICK = [
    ("mlp", (1, 8, 8)), ("mlp", (446,)), ("convnet", (1, 8, 8)), ("convnet", (3, 32, 32)),
]  # fmt: skip
#: The number of classes concerns the classifier alone, which is linear for every encoder.
SLOW = [("resnet18", (3, 16, 16)), ("resnet50", (3, 4, 4)), ("mobilenetv2", (3, 32, 32))]
SHAPES = [
    *((*shape, n) for shape in QUICK for n in (2, 10, 30)),
    *(pytest.param(*shape, 10, marks=pytest.mark.slow) for shape in SLOW),
]


@pytest.mark.parametrize(("name", "shape", "classes"), SHAPES)
def test_an_answer_does_not_depend_on_what_is_asked_beside_it(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    card = Card(
        name="fake", kind="image", shape=shape, classes=classes, scale=1, sources={"all": 1}
    )
    encoder = backbone(name, shape)
    trained = Model(
        card, {"encoder": encoder, "classifier": torch.nn.Linear(encoder.width, classes)}
    )
    served = Victim(card, trained, key="fake", grants=BLACK_BOX)
    x = torch.rand(ROWS_PER_PASS + 40, *shape, generator=generator)
    order = torch.randperm(len(x), generator=generator)
    for ask in (served.embeddings, served.log_posteriors):
        together = ask(x)
        assert torch.equal(ask(x[order]), together[order])
        assert torch.equal(ask(x[17:18]), together[17:18])


def test_mkl_is_strict_unless_the_user_chose_otherwise() -> None:
    asked = "import privbench, os; print(os.environ['MKL_CBWR'])"
    for given, expected in (({}, STRICT), ({"MKL_CBWR": "COMPATIBLE"}, "COMPATIBLE")):
        bare = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
        environment = {**bare, **given}
        told = subprocess.run(
            [sys.executable, "-c", asked],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == expected


def test_the_machine_names_what_decides_the_last_bits() -> None:
    found = machine()
    assert found["cpu"]
    assert found["capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["mkl_cbwr"] == os.environ["MKL_CBWR"]
    assert found["threads"] == torch.get_num_threads()
