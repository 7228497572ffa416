"""ResNet-18 (He et al. 2016, table 1) without its classifier.

Implemented here because importing torchvision takes seconds. Names and functions match
torchvision's: a state dict of `torchvision.models.resnet18` without `fc.*` loads into the network
with the stock stem.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from privbench.measure.training.nets.layers import Backbone, batch_norm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (n, c, h, w) to (n, width, h/stride, w/stride)."""

    def __init__(self, channels: int, width: int, stride: int, splits: int) -> None:
        """Build the block; the shortcut gets a 1x1 convolution if the block changes the shape."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = batch_norm(width, splits)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = batch_norm(width, splits)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or channels != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), batch_norm(width, splits)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual(x) + shortcut(x))."""
        shortcut = x if self.downsample is None else self.downsample(x)
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + shortcut)


class ResNet18(Backbone):
    """ResNet-18 up to its global average pool: (n, channels, h, w) to (n, 512).

    The small stem is a 3x3 convolution of stride 1 without pooling, as for CIFAR-10 in MoCo's
    notebook and in SimCLR (Chen et al. 2020, section B.9). The stock stem is a 7x7 convolution of
    stride 2 and a 3x3 max pool of stride 2. Weights are initialised as in torchvision: Kaiming
    normal by fan-out for convolutions, 1 and 0 for batch norms.

    Attributes:
        width: 512.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)

    def __init__(self, channels: int, *, stock: bool = False, splits: int = 1) -> None:
        """Build for any number of image channels; see `SplitBatchNorm` for `splits`."""
        super().__init__()
        first, *_, self.width = self.WIDTHS
        if stock:
            self.conv1 = nn.Conv2d(channels, first, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = batch_norm(first, splits)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stock else nn.Identity()
        self.layer1 = _stage(first, self.WIDTHS[0], 1, splits)
        self.layer2 = _stage(self.WIDTHS[0], self.WIDTHS[1], 2, splits)
        self.layer3 = _stage(self.WIDTHS[1], self.WIDTHS[2], 2, splits)
        self.layer4 = _stage(self.WIDTHS[2], self.WIDTHS[3], 2, splits)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, 512), all at least 0, of images (n, channels, h, w)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


def _stage(channels: int, width: int, stride: int, splits: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels, width, stride, splits), BasicBlock(width, width, 1, splits)
    )
