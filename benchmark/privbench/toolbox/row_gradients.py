"""Gradients of single rows, clipped and added up; those of linear layers are never written out.

The gradient of one row in the weights of a linear layer is the outer product of g, the gradient at
the layer's output, and a, its input. Its norm is |g| |a|, and a weighted sum over rows is a matrix
product: no (rows, outputs, inputs) tensor is needed. Numbers are those of Opacus up to rounding.

Goodfellow: Efficient Per-Example Gradient Computations. arXiv:1510.01799. Bu, Wang, Zha, Karypis:
Differentially Private Optimization on Large Model at Small Cost. ICML 2023 ("book-keeping": the
products are kept from the one backward pass). Needs Opacus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from torch import nn

from privbench.ground.errors import BadInputError
from privbench.toolbox.noise import gaussian

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True)
class Outer:
    """Gradients (n, o, i) of n rows as outer products of g (n, o) and a (n, i).

    >>> rows = Outer(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[2.0], [1.0]]))
    >>> rows.norms().tolist()
    [10.0, 1.0]
    >>> rows.weighted(torch.tensor([0.5, 1.0])).tolist()
    [[3.0], [5.0]]
    """

    g: Tensor
    a: Tensor

    def norms(self) -> Tensor:
        """Return the L2 norm (n,) of each row's gradient."""
        norms: Tensor = self.g.norm(dim=1) * self.a.norm(dim=1)
        return norms

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the sum (o, i) of all rows' gradients with weights (n,)."""
        return (self.g * weights[:, None]).T @ self.a


class WrittenOut(GradSampleHooks):  # type: ignore[misc, unused-ignore]
    """Opacus's hooks, with inputs row by row in memory, and in float32 after a pass in bf16.

    Opacus 1.6 reads convolutions' inputs as if they were, but a convolution of one channel makes
    tensors with channels last, from which it takes zeros for gradients. Norms of bf16 gradients
    would not bound a row's influence.
    """

    def capture_activations_hook(
        self, module: nn.Module, forward_input: Any, _forward_output: Tensor
    ) -> None:
        """Keep a layer's inputs."""
        plain = [
            _wide(t.detach()).clone(memory_format=torch.contiguous_format) for t in forward_input
        ]
        super().capture_activations_hook(module, plain, _forward_output)

    def rearrange_grad_samples(self, **given: Any) -> tuple[list[Tensor], Tensor]:
        """Return a layer's inputs, and the gradient at its output, in float32 as well."""
        activations, backprops = super().rearrange_grad_samples(**given)
        return activations, _wide(backprops)


class RowGradients(WrittenOut):
    """The same, but the weights of linear layers get an ``Outer`` as their ``grad_sample``.

    That holds for layers that a pass uses once, with inputs (n, i); others are left to Opacus.
    """

    def capture_backprops_hook(
        self,
        module: nn.Module,
        forward_input: Any,
        forward_output: Any,
        loss_reduction: str,
        batch_first: bool,
    ) -> None:
        """Keep what the gradients of the rows are made of."""
        if not (self.hooks_enabled and _is_plain(module)):
            super().capture_backprops_hook(
                module, forward_input, forward_output, loss_reduction, batch_first
            )
            return
        (a,), g = self.rearrange_grad_samples(
            module=module, backprops=forward_output[0].detach(), loss_reduction=loss_reduction,
            batch_first=batch_first,
        )  # fmt: skip
        made = {"weight": Outer(g, a), "bias": g}
        for name, parameter in module.named_parameters(recurse=False):
            parameter._forward_counter -= 1  # type: ignore[attr-defined]  # noqa: SLF001 - Opacus's
            if parameter.requires_grad:
                parameter.grad_sample = made[name]  # type: ignore[attr-defined]
        del module.max_batch_len


class ClippingOptimizer(DPOptimizer):  # type: ignore[misc, unused-ignore]
    """Opacus's optimizer for rows' gradients of both kinds.

    It also steps on an empty batch: that noise is part of the claim.

    Args:
        drawn: its last number is how many rows the step has drawn; empty if that is not known.
    """

    def __init__(self, *args: Any, drawn: Sequence[int] = (), **kwargs: Any) -> None:
        """Take what Opacus's optimizer takes."""
        super().__init__(*args, **kwargs)
        self.drawn = drawn

    def add_noise(self) -> None:
        """Add Gaussian noise to the sum of clipped gradients."""
        scale = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.grad = (p.summed_grad + scale * gaussian(p, self.generator)).view_as(p)

    @property
    def grad_samples(self) -> list[Any]:
        """Return the rows' gradients of each parameter: an ``Outer`` or a tensor (n, *shape)."""
        return [p.grad_sample for p in self.params]

    @property
    def accumulated_iterations(self) -> int:
        """Return 1: every batch is followed by a step."""
        return 1

    def clip_and_accumulate(self) -> None:
        """Add up the rows' gradients, each clipped to the largest norm over all parameters."""
        norms = torch.stack([_norms(rows) for rows in self.grad_samples]).norm(dim=0)
        if self.drawn and len(norms) not in (0, *self.drawn):
            raise BadInputError(
                f"a step of {self.drawn[-1]} rows has {len(norms)} gradients, and clipping bounds "
                "a row only if it has one: the model makes views of its own, or leaves rows out"
            )
        weights = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        for p, rows in zip(self.params, self.grad_samples, strict=True):
            p.summed_grad = _weighted(rows, weights)

    def step(self, closure: Any = None) -> Any:
        """Clip, add noise and step."""
        for p in self.params:
            if getattr(p, "grad_sample", None) is None:
                p.grad_sample = p.new_zeros((0, *p.shape))
        return super().step(closure)


def _is_plain(module: nn.Module) -> bool:
    """Whether it is a linear layer that the pass has used once, with inputs (n, i)."""
    return (
        type(module) is nn.Linear
        and len(module.activations) == 1  # type: ignore[arg-type]
        and module.activations[0][0].dim() == 2  # type: ignore[index]  # noqa: PLR2004
        and all(
            p._forward_counter == 1 and not hasattr(p, "_current_grad_sample")  # type: ignore[attr-defined]  # noqa: SLF001
            for p in module.parameters()
            if p.requires_grad
        )
    )


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype is torch.bfloat16 else x


def _norms(rows: Any) -> Tensor:
    norms: Tensor = rows.norms() if isinstance(rows, Outer) else rows.flatten(1).norm(dim=1)
    return norms


def _weighted(rows: Any, weights: Tensor) -> Tensor:
    if isinstance(rows, Outer):
        return rows.weighted(weights)
    total: Tensor = torch.tensordot(weights, rows, dims=1)
    return total
