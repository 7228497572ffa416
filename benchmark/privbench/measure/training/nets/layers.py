"""Layers shared by several networks: split batch norm, max pool, a plain MLP, gradient reversal."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence


class Backbone(nn.Module):
    """A network that ends in an embedding.

    Attributes:
        width: d, the number of features: forward maps (n, *shape) to (n, d).
    """

    width: int


class SplitBatchNorm(nn.BatchNorm2d):
    """Batch norm that computes training statistics separately for each part of the batch.

    With `splits` = s, part j contains the rows j, j + s, j + 2s, ... Each part is normalised by its
    own mean and variance, as if s devices had n/s rows each. MoCo needs this on one device (He et
    al. 2020, section 3.3, "Shuffling BN"; the CIFAR-10 notebook of the authors uses s = 8).
    Parameters, buffers, state dict and eval mode are the same as for `BatchNorm2d`. In training
    mode, a batch that s does not divide is normalised as a whole.

    Attributes:
        splits: s, at least 1; with 1 this is `BatchNorm2d`.
    """

    def __init__(self, num_features: int, splits: int) -> None:
        """Raise ValueError unless `splits` is positive."""
        if splits < 1:
            raise ValueError(f"splits must be at least 1, got {splits}.")
        super().__init__(num_features)
        self.splits = splits

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (n, c, h, w) to the same shape.

        The running statistics take one momentum step towards the mean and the unbiased variance,
        each averaged over the parts.
        """
        s, (n, c, h, w) = self.splits, x.shape
        if not self.training or s == 1 or n % s:
            return super().forward(x)
        mean, var = cast("Tensor", self.running_mean), cast("Tensor", self.running_var)
        means, variances = mean.repeat(s), var.repeat(s)
        out = F.batch_norm(
            x.reshape(n // s, s * c, h, w),  # one channel for each channel of each part
            means,
            variances,
            self.weight.repeat(s),
            self.bias.repeat(s),
            training=True,
            momentum=cast("float", self.momentum),
            eps=self.eps,
        )
        with torch.no_grad():
            mean.copy_(means.view(s, -1).mean(0))
            var.copy_(variances.view(s, -1).mean(0))
            cast("Tensor", self.num_batches_tracked).add_(1)
        out = out.reshape(n, c, h, w)
        if x.is_contiguous(memory_format=torch.channels_last):
            return out.contiguous(memory_format=torch.channels_last)
        return out


class HalvingMaxPool(nn.MaxPool2d):
    """Max pool over 2x2: (n, c, h, w) to (n, c, h/2, w/2), rounded up, so one pixel stays one.

    The same values as `MaxPool2d(2, ceil_mode=True)`. Without gradients, which need the places of
    the maxima, a CPU finds them several times faster by comparing whole slices.
    """

    def __init__(self) -> None:
        """Build; there is nothing to choose."""
        super().__init__(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        """Halve both sides of x (n, c, h, w)."""
        graph = torch.is_grad_enabled() and x.requires_grad
        if graph or x.device.type != "cpu" or x.shape[-2] % 2 or x.shape[-1] % 2:
            return cast("Tensor", super().forward(x))
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def batch_norm(width: int, splits: int) -> nn.BatchNorm2d:
    """Return `BatchNorm2d(width)`, or a `SplitBatchNorm` if `splits` is not 1."""
    return nn.BatchNorm2d(width) if splits == 1 else SplitBatchNorm(width, splits)


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Return Linear layers with a ReLU between any two and none after the last.

    A ReLU on the outputs would zero the gradient of every negative logit.

    Args:
        widths: input width, hidden widths, output width; at least two.

    Returns:
        A network from (n, widths[0]) to (n, widths[-1]), with unbounded outputs.

    Raises:
        ValueError: if there are fewer than two widths.

    >>> [type(layer).__name__ for layer in mlp([8, 32, 2])]
    ['Linear', 'ReLU', 'Linear']
    """
    pairs = list(pairwise(widths))
    if not pairs:
        raise ValueError(f"widths must hold an input and an output width, got {list(widths)}.")
    layers: list[nn.Module] = []
    for inputs, outputs in pairs[:-1]:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    inputs, outputs = pairs[-1]
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class _Reversal(torch.autograd.Function):
    generate_vmap_rule = True  # per-example gradients pass through

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:  # noqa: ARG004  # factor is for backward
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * -ctx.factor, None


def gradient_reversal(x: Tensor, factor: float) -> Tensor:
    """Return x; the gradient that flows back through it is multiplied by -factor.

    Layers after the reversal minimise the loss; layers before it maximise the loss, with a gradient
    scaled by `factor` (Ganin and Lempitsky 2015, section 3; Talos, He and Zhang 2021, eq. 8, with
    lambda).

    Args:
        x: any shape.
        factor: lambda, at least 0; 0 stops the gradient.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> (2 * gradient_reversal(x, 0.5)).backward()
    >>> torch.allclose(x.grad, torch.tensor([-1.0]))
    True
    """
    return cast("Tensor", _Reversal.apply(x, factor))
