"""Small regression for attacks: like ``classifiers.fit``, with vectors instead of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor, nn


def regress(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    lr: float,
    batch: int,
    generator: torch.Generator,
    epochs: int = 0,
    steps: int = 0,
    weight_decay: float = 0.0,
) -> nn.Module:
    """Train in place by mean squared error on mini-batches with Adam; the last state is kept.

    Args:
        network: (b, ...) -> (b, d), without dropout.
        x: (n, ...) features.
        y: (n, d) targets of the regression.
        lr: learning rate of Adam (betas .9, .999).
        batch: rows per update; the last batch of an epoch may be smaller.
        generator: on the device of x; shuffles each epoch.
        epochs: passes over the rows.
        steps: minimum number of updates: with few rows there are more epochs, the last cut short.
        weight_decay: L2 penalty, added to the gradient.

    Returns:
        The network, in eval mode.
    """
    left = max(epochs * -(-len(x) // batch), steps)
    descent = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
    network.train()
    while left > 0:
        order = torch.randperm(len(x), generator=generator, device=x.device)
        for chosen in torch.split(order, batch)[:left]:
            loss = F.mse_loss(network(x[chosen]), y[chosen])
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
            left -= 1
    return network.eval()
