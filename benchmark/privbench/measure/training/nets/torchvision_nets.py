"""Backbones whose networks are torchvision's, without their classifiers.

Importing torchvision takes seconds, so `backbone` imports this module when it builds one of them. A
state dict of torchvision's model without its classifier loads into the network, unless the number
of channels or the stem differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import resnet, vgg

from privbench.measure.training.nets.layers import SplitBatchNorm

if TYPE_CHECKING:
    from privbench.measure.training.nets.layers import Backbone

RGB = 3  #: channels that torchvision's networks read


def resnet50(channels: int, splits: int, *, stock: bool) -> Backbone:
    """Return ResNet-50 (He et al. 2016, table 1) up to its global average pool: width 2,048.

    The stem is as in `ResNet18`: 3x3 of stride 1 without pooling for small images, or torchvision's
    7x7 of stride 2 and a 3x3 max pool of stride 2. Talos uses the stock one on 96x96 images (He
    and Zhang 2021, section 3.3).
    """
    net = resnet.ResNet(_Bottleneck, [3, 4, 6, 3])
    if not stock:
        net.conv1 = _convolution(channels, net.conv1.out_channels, kernel=3, stride=1)
        net.maxpool = nn.Identity()
    elif channels != RGB:
        net.conv1 = _convolution(channels, net.conv1.out_channels, kernel=7, stride=2)
    width = int(net.fc.in_features)
    net.fc = nn.Identity()
    return _backbone(net, width, splits)


def mobilenet_v2(channels: int, splits: int) -> Backbone:
    """Return MobileNetV2 (Sandler et al. 2018, table 2) up to its global mean: width 1,280.

    The stem is torchvision's, a 3x3 convolution of stride 2; Talos uses it on 96x96 images (He and
    Zhang 2021, section 3.3). Sides are halved five times, rounded up: 32x32 images end at 1x1.
    """
    net = models.mobilenet_v2(weights=None)
    if channels != RGB:
        first = net.features[0]
        first[0] = _convolution(channels, first[0].out_channels, kernel=3, stride=2)
    net.classifier = nn.Identity()
    return _backbone(net, int(net.last_channel), splits)


def vgg11_bn(channels: int, splits: int) -> Backbone:
    """Return VGG-11 with batch norm (Simonyan, Zisserman 2015, table 1, A): width 512.

    The embedding is the mean over the places of the last convolution's map, as usual for 32x32
    images, where that map has one place; torchvision's three layers of 4,096 neurons are left out.
    EncoderMI uses VGG-11 with batch norm where the architecture is unknown (section 5.1); which of
    its layers it takes is not in the text at hand. Sides are halved five times, rounded down.
    """
    layers = vgg.make_layers(vgg.cfgs["A"], batch_norm=True)
    if channels != RGB:
        layers[0] = nn.Conv2d(channels, layers[0].out_channels, 3, padding=1)
    with torch.device("meta"):  # the left out layers, 0.5 GB, get no memory
        net = vgg.VGG(layers)  # initialises the given layers
    net.avgpool = nn.AdaptiveAvgPool2d(1)
    net.classifier = nn.Identity()
    return _backbone(net, int(layers[-4].out_channels), splits)


class _Bottleneck(resnet.Bottleneck):  # type: ignore[misc]  # torchvision has no types
    """torchvision's block, whose sum is not made in place: hooks of Opacus refuse that."""

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual(x) + shortcut(x))."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        return cast("Tensor", self.relu(out + shortcut))


def _convolution(channels: int, width: int, *, kernel: int, stride: int) -> nn.Conv2d:
    """Return a first convolution, initialised as torchvision initialises its own."""
    made = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


def _backbone(net: nn.Module, width: int, splits: int) -> Backbone:
    """Give the network its width and the batch norms their splits; change nothing in place.

    Gradients per example need activations as they were.
    """
    for module in list(net.modules()):
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d) and splits != 1:
                setattr(module, name, SplitBatchNorm(child.num_features, splits))
    net.width = width  # type: ignore[assignment]
    return cast("Backbone", net)
