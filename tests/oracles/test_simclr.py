from __future__ import annotations

import math

import pytest
import torch

from privbench_plugins.targets.simclr import nt_xent


def _by_hand(z: torch.Tensor, temperature: float) -> float:
    """Equation 1 as a double loop over views, in Python floats."""
    n = len(z) // 2
    unit = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in z.tolist()]
    total = 0.0
    for i in range(2 * n):
        j = (i + n) % (2 * n)
        similar = [
            sum(a * b for a, b in zip(unit[i], unit[k], strict=True)) / temperature
            for k in range(2 * n)
        ]
        below = sum(math.exp(s) for k, s in enumerate(similar) if k != i)
        total += -math.log(math.exp(similar[j]) / below)
    return total / (2 * n)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_nt_xent_equals_the_double_loop(temperature: float) -> None:
    z = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    assert float(nt_xent(z, temperature)) == pytest.approx(_by_hand(z, temperature), rel=1e-5)


def test_nt_xent_is_blind_to_length_and_symmetric_in_views() -> None:
    z = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    loss = nt_xent(z, 0.2)
    assert torch.allclose(nt_xent(z * 7, 0.2), loss)
    assert torch.allclose(nt_xent(z.roll(6, 0), 0.2), loss)
    assert not torch.allclose(nt_xent(z[torch.tensor([1, 0, *range(2, 12)])], 0.2), loss)
