"""Makes the cells of every published suite small; ``test_pretend_device.py`` runs them.

Each dataset is replaced by generated rows of its kind, with its attributes and sources, and every
size of a protocol or a method by a small one. Of the cells that are then left, enough run that each
value of a suite (dataset, protocol, target, defenses, adversary, attack) is in one of them, unless
an earlier suite had it. With ``--every-cell`` all of them run there, which takes hours.
"""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench import backbone
from privbench.api.planning import Planning
from privbench.grid.compatible import why_not
from privbench.grid.plan import PlannedTrial, plan
from privbench.grid.suite import read_suite
from privbench.grid.trial import Trial
from privbench.measure.data.protocol import Part, Protocol
from privbench.testing import Generated
from privbench.toolbox.phases import chosen_backbone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from privbench import Card
    from privbench.measure.methods.adversary import Adversary
    from privbench.measure.methods.cell import Cell

SUITES = sorted(Path(__file__).parents[2].glob("leaderboards/suites/*.yaml"))

#: Hyperparameter -> its largest value here.
MOST = {
    "adversary_steps": 1, "attack": 2, "batch": 32, "bottleneck": 8, "classifier_epochs": 2,
    "copies": 2, "decoder_depth": 1, "decoder_heads": 2, "decoder_width": 8, "depth": 1,
    "epochs": 2, "head_epochs": 2, "head_updates": 2, "heads": 2, "held_out": 1, "hidden": 8,
    "in_epochs": 2, "in_updates": 2, "init_eval": 2, "iterations": 1, "judges": 1, "k": 2,
    "limit": 4, "max_eval": 4, "models": 2, "n": 4, "noises": 4, "outputs": 16, "pairs": 2,
    "parts": 8, "patch": 2, "patience": 1, "places": 2, "projection": 8, "queue": 64, "rows": 40,
    "selection": 40, "siblings": 2, "small": 1, "splits": 1, "starts": 2, "steps": 2,
    "teachers": 2, "transform": 8, "updates": 2, "warm_up": 1, "width": 8,
    "classifier_updates": 0,
}  # fmt: skip
#: Method -> its largest values, where those of the others do not fit.
MOST_OF = {
    "label-lira": {"queries": 8}, "order-lira": {"queries": 8}, "union": {"k": 4, "queries": 8},
}  # fmt: skip
#: Part of a protocol -> its rows here, if it has any.
ROWS = {
    "members": 40, "nonmembers": 40, "reference": 20, "public": 40, "downstream": 40, "pool": 160,
    "test": 60,
}  # fmt: skip
SIDE, CLASSES, IN_SOURCE = 8, 4, 400


@cache
def small(method: Any) -> Any:
    """The method with small sizes; of several values, the first; and a small network."""
    changed: dict[str, Any] = {}
    most = MOST | MOST_OF.get(method.name, {})
    for name, value in method.hyperparameters().items():
        if isinstance(value, int) and not isinstance(value, bool) and name in most:
            changed[name] = min(value, most[name])
        elif isinstance(value, tuple) and name in ("updates", "neighbours", "penalties", "sigmas"):
            changed[name] = (min(value[0], most.get(name, value[0])),)
        elif name == "backbone":
            changed[name] = "auto"
    return method.replace(**changed)


def small_card(card: Card) -> Card:
    """Images of 8×8, at most four classes, 400 rows of each source."""
    shape = (card.shape[0], SIDE, SIDE) if card.kind == "image" else card.shape
    classes = min(card.classes, CLASSES) if card.classes else card.classes
    return replace(
        card, shape=shape, classes=classes, sources=dict.fromkeys(card.sources, IN_SOURCE)
    )


def small_protocol(protocol: Protocol, card: Card) -> Protocol:
    """The same parts from the same sources, of few rows."""
    parts: dict[str, Any] = {
        name: Part(ROWS[name] if part.count(card) else 0, part.source)
        for name, part in protocol.parts().items()
    }
    if protocol.canaries:
        canaries = replace(protocol.canaries, count=20)
        return replace(protocol, **parts, canaries=canaries, shadow=None)
    return replace(protocol, **parts, shadow=protocol.shadow and 20)


def small_adversary(adversary: Adversary, pool: Card | None) -> Adversary:
    """The same knowledge, of small methods."""
    return replace(
        adversary,
        target=small(adversary.target) if adversary.target else None,
        dataset=Generated(pool) if pool else None,
    )


def small_cell(cell: Cell) -> Cell:
    """The cell on generated rows, with small sizes."""
    card, pool = small_card(cell.card), small_card(cell.pool) if cell.pool else None
    return replace(
        cell,
        card=card,
        dataset=Generated(card),
        protocol=small_protocol(cell.protocol, cell.card),
        target=small(cell.target),
        defenses=tuple(small(defense) for defense in cell.defenses),
        attack=small(cell.attack),
        adversary=small_adversary(cell.adversary, pool),
        pool=pool,
    )


def kind(method: Any) -> str:
    """The method and its settings; of two that differ in a real number only, one is enough."""
    plain = type(method)().hyperparameters() if not isinstance(method, Generated) else {}
    told = {
        name: value
        for name, value in method.hyperparameters().items()
        if name in plain
        and value != plain[name]
        and not (isinstance(value, float) and isinstance(plain[name], float))
    }
    return f"{method.name} {sorted(told.items())}"


def values(cell: Cell) -> set[tuple[str, ...]]:
    """What a cell is made of, as far as it is tested."""
    adversary, part = cell.adversary, cell.protocol
    return {
        ("dataset", cell.card.name),
        ("protocol", *part.encoder, part.classifier, part.inclusion, str(part.canaries)),
        ("target", kind(cell.target), cell.card.kind),
        ("defenses", *map(kind, cell.defenses)),
        ("adversary", str(adversary.adaptive), str(adversary.white_box), cell.pool.name if cell.pool
         else "", kind(adversary.target) if adversary.target else ""),
        ("attack", kind(cell.attack)),
    }  # fmt: skip


def covering(cells: list[Cell], seen: set[tuple[str, ...]]) -> Iterator[Cell]:
    """Cells that together have every value that is not yet in ``seen``, and at least one."""
    todo = [(cell, values(cell)) for cell in cells]
    while todo:
        cell, mine = max(todo, key=lambda one: len(one[1] - seen))
        new = mine - seen
        if new or len(todo) == len(cells):
            yield cell
        seen |= mine
        todo = [one for one in todo if one[1] - seen]


def planned(path: Path, registry: Any) -> list[PlannedTrial]:
    """The trials of a suite with one seed."""
    return plan(read_suite(path).model_copy(update={"seeds": 1}), registry, root=None, device="cpu")


def made_small(items: Iterable[PlannedTrial]) -> list[Cell]:
    """The cells that can run, made small.

    Raises:
        AssertionError: for a cell that cannot run when it is small.
    """
    cells = []
    for item in items:
        assert not item.failed, item.failed
        if not item.skip:
            cells.append(small_cell(item.trial.cell))
            assert (reason := why_not(cells[-1])) is None, f"{cells[-1]}: {reason}"
    return cells


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_dry_run(path: Path, registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many phases would be trained."""
    monkeypatch.setattr("privbench.api.planning.registry.load", lambda *_, **__: registry)
    told = io.StringIO()
    options = {"out": path.parent, "data_root": None, "device": "cpu", "compiled": False}
    session = Planning(read_suite(path).model_copy(update={"seeds": 1}), (), options)
    cell = next(small_cell(item.trial.cell) for item in session.planned if not item.skip)
    session.planned = [
        PlannedTrial(Trial(cell, 0)),
        *(item for item in session.planned if item.skip),
    ]
    session.explain(path.parent, None, lambda line: print(line, file=told))
    said = told.getvalue()
    assert "would run; " in said
    assert "would fail" not in said
    assert said.count("skipped: ") == len(session.planned) - 1


@pytest.mark.slow
def test_every_backbone_reads_the_images_that_a_suite_gives_it(registry: Any) -> None:
    pairs: dict[tuple[Any, int, int], Card] = {}
    for path in SUITES:
        for item in planned(path, registry):
            cell = item.trial.cell
            if item.skip or cell.card.kind != "image":
                continue
            for target in (cell.target, cell.adversary.target):
                name = getattr(target, "backbone", None)
                if name:
                    pairs[name, cell.card.shape[0], cell.card.shape[-1]] = cell.card
    assert {"resnet18", "resnet50-stock", "mobilenetv2", "vgg11-bn"} <= {name for name, *_ in pairs}
    for (name, *_), card in pairs.items():
        encoder = backbone(chosen_backbone(name, card), card.shape).eval()
        with torch.no_grad():
            assert encoder(torch.rand(2, *card.shape)).shape == (2, encoder.width), name
