"""Clipped sums of rows' gradients: linear layers from factors, against Opacus, which writes out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("opacus")

from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer

from privbench.toolbox.row_gradients import ClippingOptimizer, Outer, RowGradients, WrittenOut


class Net(nn.Module):
    """A convolution, linear layers with and without bias, one used twice, one on sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Conv2d(1, 2, 3)
        self.first = nn.Linear(2 * 2 * 2, 6)
        self.twice = nn.Linear(6, 6)
        self.each = nn.Linear(3, 3)
        self.last = nn.Linear(6, 4, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.first(self.see(x).flatten(1)).tanh()
        h = self.twice(self.twice(h).tanh())
        return self.last(self.each(h.view(-1, 2, 3)).flatten(1).tanh())


def _stepped(
    hooks: Any, optimizer: Any, net: nn.Module, clip: float
) -> tuple[list[torch.Tensor], set[str]]:
    """Clipped sums after two steps without noise, and which parameters had an ``Outer``."""
    attached = hooks(net)
    dp = optimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=clip,
        expected_batch_size=5,
    )  # fmt: skip
    generator, kinds = torch.Generator().manual_seed(0), set()
    for _ in range(2):  # the second batch must not meet anything of the first
        dp.zero_grad(set_to_none=True)
        x = torch.randn(5, 1, 4, 4, generator=generator).requires_grad_()
        loss = nn.functional.cross_entropy(net(x), torch.arange(5) % 4)
        loss.backward()  # type: ignore[no-untyped-call]
        rows = {name: vars(p)["grad_sample"] for name, p in net.named_parameters()}
        kinds |= {name for name, kept in rows.items() if isinstance(kept, Outer)}
        dp.step()
    found = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    attached.cleanup()
    return found, kinds


@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_the_sums_are_those_of_opacus(clip: float) -> None:
    net = Net()
    expected, none = _stepped(GradSampleHooks, DPOptimizer, copy.deepcopy(net), clip)
    found, kinds = _stepped(RowGradients, ClippingOptimizer, net, clip)
    assert none == set()
    assert kinds == {"first.weight", "last.weight"}  # others are left to Opacus
    assert len(found) == len(expected) == 9
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [RowGradients, WrittenOut])
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_a_pass_in_bf16_is_clipped_in_float32(kind: Any, clip: float) -> None:
    """The norm of a row's clipped gradient must not exceed the bound by bf16's rounding."""
    net, x = Net(), torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    found = {}
    for bf16 in (False, True):
        hooks = kind(net)
        dp = ClippingOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.0), noise_multiplier=0.0, max_grad_norm=clip,
            expected_batch_size=1,
        )  # fmt: skip
        dp.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = net(x)
        loss: Any = nn.functional.cross_entropy(logits.float(), torch.tensor([1]))
        loss.backward()
        dp.step()
        found[bf16] = torch.cat([vars(p)["summed_grad"].flatten() for p in net.parameters()])
        hooks.cleanup()
    assert found[True].dtype is torch.float32
    assert found[True].norm() <= clip * (1 + 1e-6)
    assert 0 < (found[True] - found[False]).norm() / found[False].norm() < 0.03


def test_an_empty_batch_adds_nothing() -> None:
    net = nn.Linear(3, 2)
    hooks = RowGradients(net)
    dp = ClippingOptimizer(
        torch.optim.SGD(net.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=1.0,
        expected_batch_size=5,
    )  # fmt: skip
    before = net.weight.detach().clone()
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    dp.step()
    hooks.cleanup()
    assert torch.equal(net.weight, before)
