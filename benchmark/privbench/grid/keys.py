"""What enters the keys of a trial, and of what trials share.

A change of these fields gives other keys: everything is computed again. The code of this module is
in no key. Keys of victims are in ``measure/victims``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from privbench.ground.store.machine import machine
from privbench.ground.store.source import COMPUTING, computing_digest, digest, source_digest
from privbench.ground.store.store import Key
from privbench.measure.games.catalog import GAMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from torch import Tensor

    from privbench.measure.data.split import Split
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.training.numerics import Numerics
    from privbench.measure.victims.play import NeededModels


def code_digest() -> str:
    """Digest of the code that determines results."""
    return computing_digest(COMPUTING)


def dataset_of(cell: Cell) -> Dataset:
    """Return the dataset of the cell, which its keys name.

    Raises:
        TypeError: if the cell has only a card.
    """
    if cell.dataset is None:
        raise TypeError("a cell of a trial needs a dataset")
    return cell.dataset


def of_trial(cell: Cell, seed: int, device: str, numerics: Numerics) -> str:
    """Digest of methods, protocol, seed, source code, torch version, device kind, numerics."""
    adversary = cell.adversary
    return digest(
        {
            "dataset": dataset_of(cell).digest,
            "content": [card.content for card in (cell.card, cell.pool) if card],
            "protocol": cell.protocol,
            "target": cell.target.digest,
            "defenses": [defense.digest for defense in cell.defenses],
            "adversary": {
                "adaptive": adversary.adaptive,
                "white_box": adversary.white_box,
                "target": adversary.target.digest if adversary.target else None,
                "dataset": adversary.dataset.digest if adversary.dataset else None,
            },
            "attack": cell.attack.digest,
            "sensitive": list(cell.sensitive),
            "preset": cell.preset,
            "seed": seed,
            "code": code_digest(),
            "torch": torch.__version__,
            "device": torch.device(device).type,
            "numerics": numerics,
        }
    )


def of_answer(
    needed: NeededModels,
    served: str,
    own_key: str,
    shadows: Sequence[str],
    *,
    device: str,
    numerics: Numerics,
) -> tuple[Key, str]:
    """Return the key of an answer, and the digest of everything that the attack may read.

    Args:
        needed: models of the cell.
        served: key of the victim or control that the attack queries.
        own_key: key of the same, as it answers the adversary's own rows.
        shadows: keys of those that the attack gets.
        device: kind of device.
        numerics: of the trial.
    """
    cell, parts = needed.cell, needed.split
    readable: dict[str, Any] = {
        "victim": served, "own": own_key, "shadows": list(shadows),
        "sensitive": list(cell.sensitive), "dataset": dataset_of(cell).digest,
        "card": cell.card, "protocol": cell.protocol, "split": parts.digest, "seed": parts.seed,
        "pool": needed.pool.digest, "access": str(cell.access),
        "target": cell.target.digest, "code": code_digest(), "torch": torch.__version__,
        "device": device, "numerics": numerics,
    }  # fmt: skip
    return Key("answer", {"attack": cell.attack.digest, **readable}), digest(readable)


def of_baselines(cell: Cell, parts: Split, *, device: str, threads: int) -> Key:
    """Return the key of the guesses without the victim; all cells of a question share them."""
    return Key("baselines", {
        "split": parts.digest, "seed": parts.seed, "game": cell.attack.game,
        "rules": source_digest(type(GAMES[cell.attack.game])),
        "dataset": dataset_of(cell).digest,
        "max_rows": cell.attack.max_rows, "sensitive": list(cell.sensitive),
        "code": code_digest(), "torch": torch.__version__, "device": device, "threads": threads,
    })  # fmt: skip


def of_utility(victim: str, parts: Split) -> Key:
    """Return the key of the accuracies of a victim with that key."""
    return Key("utility", {"victim": victim, "split": parts.digest, "code": code_digest()})


def of_probe(encoder: str, parts: Split) -> Key:
    """Return the key of the answers of a probe of the encoder with that key."""
    return Key("probe", {"encoder": encoder, "split": parts.digest, "code": code_digest()})


def of_fresh_answers(
    victim: str, x: Tensor, rules: Sequence[ModuleType], *, device: str, threads: int
) -> Key:
    """Return the key of what a fresh process answers about x; each kind of machine has its own."""
    return Key("fresh", {
        "victim": victim, "rows": digest(x.cpu().numpy().tobytes().hex()), "device": device,
        "threads": threads, "machine": machine(), "rules": source_digest(*rules),
        "code": code_digest(),
    })  # fmt: skip


def of_difference(victim: str, rules: Sequence[ModuleType]) -> Key:
    """Return the key of a difference between the answers of a victim with that key."""
    return Key("differs", {"victim": victim, "rules": source_digest(*rules), "code": code_digest()})


def of_split(cell: Cell, seed: int) -> str:
    """Name a split in memory; equal for all cells of that dataset, protocol and seed."""
    return digest([dataset_of(cell).digest, cell.protocol, seed])


def of_pool(parts: Split, dataset: Dataset) -> str:
    """Name in memory a split whose pool comes from another dataset."""
    return digest([parts.digest, dataset.digest, parts.seed])
