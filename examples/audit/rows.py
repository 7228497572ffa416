"""Writes the rows of the examples: Adult and CIFAR-10, as files that ``privbench audit`` reads.

    PRIVBENCH_DATA=~/data python rows.py FOLDER

Members, nonmembers and shadow rows are disjoint, drawn at random from one source, and no row of one
set equals a row of another.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from privbench_plugins.datasets.adult import Adult
from privbench_plugins.datasets.torchvision_images import CIFAR10

SIZES = {
    "adult": {"members": 2000, "nonmembers": 2000, "shadow": 4000},
    "cifar10": {"members": 1000, "nonmembers": 1000, "shadow": 2000},
}


def main(folder: Path) -> None:
    """Write NAME-SET.npz for both datasets and all sets."""
    root = Path(os.environ["PRIVBENCH_DATA"]).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for name, dataset in {"adult": Adult(), "cifar10": CIFAR10()}.items():
        rows = dataset.load(root)
        x, y = rows.x.numpy(), rows.y.numpy()
        _, first = np.unique(x.reshape(len(x), -1), axis=0, return_index=True)
        order = np.random.default_rng(0).permutation(first)
        for part, n in SIZES[name].items():
            taken, order = order[:n], order[n:]
            np.savez(folder / f"{name}-{part}.npz", x=x[taken], y=y[taken])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
