"""Backbones by name: networks from one example's shape to an embedding."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor, nn

from privbench.ground.errors import UnknownNameError
from privbench.measure.training.nets.layers import Backbone, HalvingMaxPool, batch_norm, mlp
from privbench.measure.training.nets.resnet import ResNet18

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMAGE_DIMENSIONS = 3


class MLP(Backbone):
    """Hidden ReLU layers over the flattened example: (n, *shape) to (n, width).

    Attributes:
        width: of the last hidden layer.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = (512, 512)

    def __init__(self, inputs: int, hidden: Sequence[int] = ()) -> None:
        """Build for `inputs` values per example; by default two hidden layers of 512."""
        super().__init__()
        widths = (*hidden,) or self.WIDTHS
        self.width = widths[-1]
        self.layers = nn.Sequential(nn.Flatten(), *mlp([inputs, *widths]), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations (n, width), all at least 0, of the last hidden layer."""
        return cast("Tensor", self.layers(x))


class ConvNet(Backbone):
    """Four convolutions for two CPU cores: (n, channels, h, w) to (n, 128).

    Each block is conv 3x3, batch norm, 2x2 max pool, ReLU; the last has no pool. The global mean
    follows. Pool and ReLU commute; pooling first leaves a quarter of the work for the ReLU. Meant
    for images of 8 to 64 pixels per side.

    Attributes:
        width: 128.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = (16, 32, 64, 128)

    def __init__(self, channels: int, splits: int = 1) -> None:
        """Build for any number of image channels; see `SplitBatchNorm` for `splits`."""
        super().__init__()
        self.width = self.WIDTHS[-1]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((channels, *self.WIDTHS)):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                batch_norm(outputs, splits),
                HalvingMaxPool(),
                nn.ReLU(),
            ]
        del layers[-2]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, 128), all at least 0, of images (n, channels, h, w)."""
        return cast("Tensor", self.layers(x).mean((2, 3)))


def _of_torchvision(name: str, **options: bool) -> Callable[[int, int], Backbone]:
    """Return what builds a network of `torchvision_nets`, which is imported only then."""

    def made(channels: int, splits: int) -> Backbone:
        from privbench.measure.training.nets import torchvision_nets

        build: Callable[..., Backbone] = getattr(torchvision_nets, name)
        return build(channels, splits, **options)

    return made


_IMAGE_BACKBONES: dict[str, Callable[[int, int], Backbone]] = {
    "convnet": ConvNet,
    "resnet18": lambda channels, splits: ResNet18(channels, splits=splits),
    "resnet18-stock": lambda channels, splits: ResNet18(channels, stock=True, splits=splits),
    "resnet50": _of_torchvision("resnet50", stock=False),
    "resnet50-stock": _of_torchvision("resnet50", stock=True),
    "mobilenetv2": _of_torchvision("mobilenet_v2"),
    "vgg11-bn": _of_torchvision("vgg11_bn"),
}
#: Those that a CPU trains faster so, see `docs/scale.md`; a GPU trains all of them so.
_CHANNELS_LAST = {"convnet", "mobilenetv2", "vgg11-bn"}
#: Least side, in pixels, of the images that a backbone can read; 1 for all others.
_LEAST_SIDE = {"vgg11-bn": 32}

BACKBONES: tuple[str, ...] = ("mlp", *_IMAGE_BACKBONES)


def backbone_misfit(name: str, shape: tuple[int, ...]) -> str | None:
    """Return why a backbone cannot read examples of that shape, as one sentence; None if it can.

    Args:
        name: one of `BACKBONES`; any other fits.
        shape: shape of one example.

    >>> backbone_misfit("vgg11-bn", (1, 8, 8))
    "backbone 'vgg11-bn' needs images of at least 32x32 pixels, got 8x8"
    """
    if name not in _IMAGE_BACKBONES:
        return None
    if len(shape) != IMAGE_DIMENSIONS:
        return (
            f"backbone {name!r} needs images of shape (channels, height, width), "
            f"got examples of shape {shape}: use 'mlp'"
        )
    least = _LEAST_SIDE.get(name, 1)
    if min(shape[1:]) >= least:
        return None
    return (
        f"backbone {name!r} needs images of at least {least}x{least} pixels, "
        f"got {shape[1]}x{shape[2]}"
    )


def backbone(
    name: str, shape: tuple[int, ...], splits: int = 1, *, hidden: Sequence[int] = ()
) -> Backbone:
    """Return a freshly initialised backbone, its weights drawn from torch's default generator.

    Args:
        name: one of `BACKBONES`. "resnet18" and "resnet50" have the 3x3 stem of stride 1 for small
            images, "resnet18-stock" and "resnet50-stock" the 7x7 stem of stride 2 and the max pool.
            "mobilenetv2" has torchvision's stem of stride 2, "vgg11-bn" its own of stride 1.
        shape: shape of one example: (channels, height, width), or any shape for "mlp".
        splits: number of parts of a training batch that every batch norm treats separately, see
            `SplitBatchNorm`; "mlp" has no batch norm and ignores it.
        hidden: widths of the layers of "mlp"; by default two of 512. The others ignore it.

    Returns:
        A module from float (n, *shape) to (n, d), with d in its attribute `width`: 128 for
        "convnet", the last of ``hidden`` for "mlp", 512 for "resnet18" and "vgg11-bn", 1,280 for
        "mobilenetv2", 2,048 for "resnet50".

    Raises:
        UnknownNameError: if there is no backbone with that name.
        ValueError: if a convolutional network gets examples that are not images, or too small ones.

    >>> backbone("mlp", (14,)).width
    512
    """
    if name == "mlp":
        return MLP(math.prod(shape), hidden)
    if name not in _IMAGE_BACKBONES:
        raise UnknownNameError("backbone", name, BACKBONES)
    if problem := backbone_misfit(name, shape):
        raise ValueError(problem)
    net = _IMAGE_BACKBONES[name](shape[0], splits)
    return net.to(memory_format=torch.channels_last) if name in _CHANNELS_LAST else net
