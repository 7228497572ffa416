"""Train a small CLIP on pictures and captions that are made here, and save what privbench reads.

``python train.py FOLDER`` writes

- ``pictures.npz``: pictures ``x``, the shape in each ``y``, and ``source``: ``train`` for those
  that the model was trained on, ``test`` for those from the same generator that it never saw;
- ``clip.json``: the architecture, in open_clip's form;
- ``clip.safetensors``: the weights;
- ``members.npz``, ``nonmembers.npz``: pictures of both sources, and the number of each caption.

``load`` is the whole model for an audit: which of the captions belongs to a picture? ``fit`` trains
a shadow of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import open_clip
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE, TRAIN, TEST = 32, 300, 1200
EPOCHS, BATCH, LR = 200, 100, 1e-3
SHAPES = ("square", "disc", "cross", "frame")
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220), "white": (240,) * 3}
CONFIG = {
    "embed_dim": 64,
    "vision_cfg": {
        "image_size": SIDE, "patch_size": 8, "width": 64, "layers": 3, "head_width": 16,
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 2},
}  # fmt: skip


def pictures(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return n pictures (n, 3, 32, 32) uint8, their shapes (n,), and their captions."""
    draw = np.random.default_rng(seed)
    x = draw.normal(110, 25, (n, 3, SIDE, SIDE))
    y, captions = draw.integers(0, len(SHAPES), n), []
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for i in range(n):
        colour = list(COLOURS)[draw.integers(len(COLOURS))]
        half, top, left = draw.integers(4, 9), *draw.integers(9, SIDE - 9, 2)
        down, right = np.abs(rows - top), np.abs(columns - left)
        far = np.maximum(down, right)
        drawn = {
            "square": far <= half, "disc": np.hypot(down, right) <= half,
            "cross": (np.minimum(down, right) <= 1) & (far <= half), "frame": far == half,
        }[SHAPES[y[i]]]  # fmt: skip
        x[i][:, drawn] = np.array(COLOURS[colour])[:, None] + draw.normal(0, 15, (3, drawn.sum()))
        captions.append(f"a {colour} {SHAPES[y[i]]} of size {half} at {top} {left}")
    return x.clip(0, 255).astype(np.uint8), y, captions


KNOWN, NEW = pictures(TRAIN, seed=0), pictures(TEST, seed=1)
#: Of the members, then of as many nonmembers.
CAPTIONS = KNOWN[2] + NEW[2][:TRAIN]


def untrained() -> open_clip.CLIP:
    """Return a model with random weights."""
    return open_clip.CLIP(CONFIG["embed_dim"], CONFIG["vision_cfg"], CONFIG["text_cfg"])


def inputs(x: np.ndarray, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures (n, 3, 32, 32) normalised, and captions as tokens (k, 16).

    Pictures are bytes, or numbers from 0 to 1 as audits give them.
    """
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in (
        open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD,
    ))  # fmt: skip
    texts = open_clip.SimpleTokenizer(context_length=16)(captions)
    unit = torch.from_numpy(x).float() / (255 if x.dtype == np.uint8 else 1)
    return (unit - mean) / std, texts


def trained(x: np.ndarray, captions: list[str], seed: int) -> open_clip.CLIP:
    """Train a model on pictures (n, 3, 32, 32) uint8, each with its caption."""
    torch.manual_seed(seed)  # noqa: TID251 - a script
    model = untrained()
    images, texts = inputs(x, captions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    steps = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            image, text, scale = model(images[rows], texts[rows])
            logits, own = scale * image @ text.T, torch.arange(len(rows))
            loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def asked(model: open_clip.CLIP) -> Callable[[np.ndarray], np.ndarray]:
    """Return what gives the posteriors (n, k) of all captions for pictures (n, 3, 32, 32)."""

    @torch.no_grad()
    def answer(x: np.ndarray) -> np.ndarray:
        images, texts = inputs(x, CAPTIONS)
        image, text, scale = model(images, texts)
        return (scale * image @ text.T).softmax(1).numpy()

    return answer


def load() -> Callable[[np.ndarray], np.ndarray]:
    """Return the trained model for ``privbench audit``."""
    model = untrained()
    model.load_state_dict(load_file("clip.safetensors"))
    return asked(model.eval())


def fit(x: np.ndarray, y: np.ndarray, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Train a shadow on pictures and their captions."""
    return asked(trained(x, [CAPTIONS[i] for i in y], seed))


def main(folder: Path) -> None:
    """Make the pictures, train, and save."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y, _ = KNOWN
    other, labels, _ = NEW
    np.savez(
        folder / "pictures.npz", x=np.concatenate([x, other]), y=np.concatenate([y, labels]),
        source=np.repeat(["train", "test"], [TRAIN, TEST]),
    )  # fmt: skip
    number = np.arange(2 * TRAIN)
    np.savez(folder / "members.npz", x=x, y=number[:TRAIN])
    np.savez(folder / "nonmembers.npz", x=other[:TRAIN], y=number[TRAIN:])
    (folder / "clip.json").write_text(json.dumps(CONFIG))
    save_file(trained(x, CAPTIONS[:TRAIN], seed=0).state_dict(), folder / "clip.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
