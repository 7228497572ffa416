"""Trains torchvision's ResNet-18 on the CIFAR-10 members, about a minute on one core.

    python train_resnet.py rows/cifar10-members.npz resnet.safetensors

It is a small training that fits its rows: 15 epochs of Adam on 1,000 rows, no augmentation.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from models import resnet
from safetensors.torch import save_file
from torch.nn import functional as F

EPOCHS, BATCH = 15, 50


def main(rows: str, checkpoint: str) -> None:
    """Train on the rows of a file and write the weights to another."""
    torch.manual_seed(0)  # noqa: TID251 - a script of its own
    with np.load(rows) as file:
        x, y = torch.from_numpy(file["x"]).float() / 255, torch.from_numpy(file["y"])
    net = resnet().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        print(f"epoch {epoch + 1}: loss {total / len(x):.3f}")  # noqa: T201
    save_file({name: one.contiguous() for name, one in net.state_dict().items()}, checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
