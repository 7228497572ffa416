"""A computation whose result is known: does this process still compute as before plugins came?

Plugins share a process with each other. One that leaves a hook on all modules, replaces a function
of torch or of privbench, or changes a setting would change the numbers of every other method. So a
few fixed tensors go through layers, losses, an optimizer, generators and metrics, once before any
plugin of others is imported, and again around each cell. A cell that changes the result fails, and
so does every later one in that process.

It finds what changes these results by more than rounding, and nothing else: a plugin that means to
deceive can pass it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from privbench.ground.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

#: Relative and absolute difference that is rounding.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6
_known: dict[str, list[float]] = {}
_blamed: list[str] = []


def remember() -> None:
    """Keep the results of today's process; later calls change nothing."""
    if not _known:
        _known.update(_computed())


def changed() -> list[str]:
    """Return which of the results differ now, or what fails now; [] if nothing, or unknown."""
    if not _known:
        return []
    try:
        now: Mapping[str, list[float]] = _computed()
    except Exception as error:  # noqa: BLE001 - what was possible before is not any more
        return [f"{type(error).__name__}: {error}"]
    return [
        name for name, values in _known.items()
        if not np.allclose(values, now[name], _RELATIVE, _ABSOLUTE)
    ]  # fmt: skip


def refuse_changed(by: str = "") -> None:
    """Raise an error if the process computes otherwise than before.

    Args:
        by: the plugin code that ran since the last check; "" for none, so it was an earlier one.

    Raises:
        PluginError: naming what differs, and who may have changed it.
    """
    if not (names := changed()):
        return
    if by and by not in _blamed:
        _blamed.append(by)
    who = by or ", ".join(_blamed) or "a plugin"
    raise PluginError(
        f"{who} changed how this process computes ({', '.join(names)}), for all methods: results "
        "after that would be wrong; repair that plugin or leave it out, and run again"
    )


def _computed() -> dict[str, list[float]]:
    from privbench.measure.data.row_random import normal, uniform
    from privbench.measure.games.metrics import auc

    with torch.enable_grad():
        x = torch.linspace(-1, 1, 32, dtype=torch.float32).view(2, 1, 4, 4)
        linear, conv = (
            nn.utils.skip_init(*of)  # type: ignore[no-untyped-call]
            for of in ((nn.Linear, 9, 3), (nn.Conv2d, 1, 1, 2))
        )
        for module in (linear, conv):
            for parameter in module.parameters():
                steps = torch.linspace(-0.5, 0.7, parameter.numel(), dtype=torch.float32)
                parameter.data.copy_(steps.view_as(parameter))
        hidden = conv(x)
        logits = linear(F.relu(hidden).flatten(1))
        loss = F.cross_entropy(logits, torch.tensor([0, 2])) + F.mse_loss(logits, logits + 0.3)
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = linear.weight.grad
        assert gradient is not None  # noqa: S101 - of the loss
        gradient = gradient.clone()
        torch.optim.Adam(linear.parameters(), lr=0.1).step()
    scores, member = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([0, 0, 1, 1, 1], dtype=bool)
    keys = torch.arange(3)
    drawn = torch.rand(3, generator=torch.Generator().manual_seed(5), dtype=torch.float32)
    return {
        "convolution": _numbers(hidden), "linear layer": _numbers(logits),
        "loss": [float(loss.detach())], "gradient": _numbers(gradient),
        "optimizer": _numbers(linear.weight), "softmax": _numbers(logits.softmax(1)),
        "logarithm of softmax": _numbers(logits.log_softmax(-1)),
        "cosine": _numbers(F.normalize(logits, dim=1)),
        "metrics": [float(auc(scores, member).value)],
        "numpy": [float(np.mean(scores)), *np.sort(scores).tolist(), float(np.median(scores))],
        "generators": [*_numbers(drawn), *np.random.default_rng(5).random(2).tolist(),
                       *_numbers(uniform(keys, 2)), *_numbers(normal(keys, 2))],
        "default dtype": [float(torch.tensor([0.1]).dtype == torch.float32)],
    }  # fmt: skip


def _numbers(values: Tensor) -> list[float]:
    return [float(one) for one in values.detach().double().flatten()]
