"""Networks against torchvision, plain batch norm and autograd."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privbench.ground.errors import UnknownNameError
from privbench.measure.training.nets import (
    BACKBONES,
    SplitBatchNorm,
    backbone,
    backbone_misfit,
    gradient_reversal,
    mlp,
)
from privbench.measure.training.nets.layers import HalvingMaxPool

IMAGES = [name for name in BACKBONES if name != "mlp"]
#: VGG-11 reads no smaller images. ResNet-50 is ResNet-18 with other blocks, which other tests read.
SHAPES = [
    pytest.param(name, shape, marks=[pytest.mark.slow] * name.startswith("resnet50"))
    for name in BACKBONES
    for shape in ([(2, 32, 35)] if name == "vgg11-bn" else [(1, 8, 8), (3, 17, 32)])
]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


# ── backbones ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_backbone_returns_its_width_and_trains_every_parameter(
    name: str, shape: tuple[int, ...], splits: int
) -> None:
    net = backbone(name, shape, splits)
    out = net(torch.randn(8, *shape))  # batch norm of two values is a sign: no gradient
    assert out.shape == (8, net.width)
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {getattr(m, "splits", 1) for m in norms} <= {splits}
    assert bool(norms) == (name != "mlp")
    storages = [value.data_ptr() for value in net.state_dict().values()]
    assert len(set(storages)) == len(storages)


def test_mlp_backbone_takes_tables() -> None:
    net = backbone("mlp", (14,))
    assert net(torch.randn(3, 14)).shape == (3, 512)
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [(14, 512), (512, 512)]


@pytest.mark.parametrize(("side", "last"), [(1, 1), (8, 1), (28, 4), (64, 8)])
def test_convnet_halves_the_image_three_times(side: int, last: int) -> None:
    net = backbone("convnet", (1, side, side)).eval()
    maps: list[Tensor] = []
    net.get_submodule("layers").register_forward_hook(lambda *call: maps.append(call[2]))
    out = net(torch.randn(2, 1, side, side))
    assert maps[0].shape == (2, net.width, last, last)
    torch.testing.assert_close(out, maps[0].flatten(2).mean(2))


@pytest.mark.parametrize("name", IMAGES)
def test_convolutions_refuse_tables(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"'{name}' needs images .* got examples of shape \(14,\)"
    ):
        backbone(name, (14,))


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'resnet-18': did you mean 'resnet18'\?"):
        backbone("resnet-18", (3, 32, 32))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * n.startswith("resnet50")) for n in IMAGES]
)
def test_same_seed_same_weights_and_channels_last_same_features(name: str) -> None:
    side = 32 if name == "vgg11-bn" else 16

    def build() -> nn.Module:
        torch.default_generator.manual_seed(5)
        return backbone(name, (3, side, side), splits=2).double()

    one, other = build(), build()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    x = torch.randn(12, 3, side, side).double()
    other = other.to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        other(x.to(memory_format=torch.channels_last)), one(x), rtol=1e-6, atol=1e-9
    )


# ── ResNet-18 against torchvision ────────────────────────────────────────────


def torchvision_resnet18(*, stock: bool) -> nn.Module:
    models = pytest.importorskip("torchvision.models")
    net: nn.Module = models.resnet18(weights=None)
    net.fc = nn.Identity()
    if not stock:
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.maxpool = nn.Identity()
    return net


@pytest.mark.parametrize(("name", "stock"), [("resnet18", False), ("resnet18-stock", True)])
def test_resnet18_is_torchvisions(name: str, stock: bool) -> None:
    theirs = torchvision_resnet18(stock=stock)
    ours = backbone(name, (3, 40, 40))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 3, 40, 40)
    for training in (True, False):  # the first pass moves the running statistics
        ours.train(training)
        theirs.train(training)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-6, atol=1e-6)


def test_resnet18_starts_as_torchvisions() -> None:
    theirs, ours = torchvision_resnet18(stock=True), backbone("resnet18-stock", (3, 32, 32))
    for (name, a), (key, b) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
        assert name == key
        torch.testing.assert_close(b.std(), a.std(), rtol=0.05, atol=0)
        torch.testing.assert_close(b.mean(), a.mean(), rtol=0, atol=a.std().item() / 20)


# ── the other networks against torchvision ───────────────────────────────────


def torchvision_stock(name: str) -> nn.Module:
    """Torchvision's model up to its global mean, with the weights of its own initialisation."""
    models = pytest.importorskip("torchvision.models")
    if name == "resnet50-stock":
        net: nn.Module = models.resnet50(weights=None)
        net.fc = nn.Identity()
    elif name == "mobilenetv2":
        net = models.mobilenet_v2(weights=None)
        net.classifier = nn.Identity()
    else:
        features = models.vgg.make_layers(models.vgg.cfgs["A"], batch_norm=True)
        net = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return net


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50-stock", "mobilenetv2", "vgg11-bn"])
def test_stock_backbones_are_torchvisions(name: str) -> None:
    theirs, ours = torchvision_stock(name), backbone(name, (3, 40, 48))
    values = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(values)
    x = torch.randn(4, 3, 40, 48)
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "weights", "classifier"),
    [
        ("resnet18-stock", "ResNet18_Weights", 512 * 1000 + 1000),
        ("resnet50-stock", "ResNet50_Weights", 2048 * 1000 + 1000),
        ("mobilenetv2", "MobileNet_V2_Weights", 1280 * 1000 + 1000),
        (
            "vgg11-bn", "VGG11_BN_Weights",
            7 * 7 * 512 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 1000 + 1000,
        ),
    ],
)  # fmt: skip
def test_backbones_have_torchvisions_published_numbers_of_parameters(
    name: str, weights: str, classifier: int
) -> None:
    models = pytest.importorskip("torchvision.models")
    published = getattr(models, weights).IMAGENET1K_V1.meta["num_params"]
    count = sum(p.numel() for p in backbone(name, (3, 96, 96)).parameters())
    assert count + classifier == published


@pytest.mark.parametrize(
    ("name", "width"),
    [("resnet50", 2048), ("resnet50-stock", 2048), ("mobilenetv2", 1280), ("vgg11-bn", 512)],
)
def test_widths_are_the_papers(name: str, width: int) -> None:
    """Talos, section 3.3: 2,048 of ResNet-50 and 1,280 of MobileNetV2."""
    assert backbone(name, (3, 32, 32)).width == width


@pytest.mark.parametrize(
    ("name", "places"),
    [("resnet50", 16), ("resnet50-stock", 1), ("mobilenetv2", 1), ("vgg11-bn", 1)],
)
def test_only_the_small_stem_keeps_places_of_small_images(name: str, places: int) -> None:
    """The last map of a 32x32 image: four places a side behind the small stem, else one."""
    net = backbone(name, (1, 32, 32)).eval()
    maps: list[Tensor] = []
    last = net.get_submodule("layer4" if "resnet" in name else "features")
    last.register_forward_hook(lambda *call: maps.append(call[2]))
    out = net(torch.randn(2, 1, 32, 32))
    assert maps[0].shape == (2, net.width, round(places**0.5), round(places**0.5))
    torch.testing.assert_close(out, maps[0].flatten(2).mean(2))


@pytest.mark.parametrize("name", ["resnet50", "resnet50-stock", "mobilenetv2", "vgg11-bn"])
def test_first_convolutions_start_alike_for_any_number_of_channels(name: str) -> None:
    """Their deviation is that of Kaiming's fan-out, which does not depend on the channels."""
    first = [
        next(m for m in backbone(name, (c, 32, 32)).modules() if isinstance(m, nn.Conv2d))
        for c in (3, 1)
    ]
    for conv in first:
        fan_out = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.2)


@pytest.mark.parametrize("name", IMAGES)
def test_nothing_is_overwritten_in_place(name: str) -> None:
    """Hooks on gradients, as Opacus sets them, refuse outputs that a later operation overwrites."""
    side = 32 if name == "vgg11-bn" else 8
    net = backbone(name, (3, side, side))
    for module in net.modules():
        module.register_full_backward_hook(lambda *_: None)
    net(torch.randn(2, 3, side, side, requires_grad=True)).sum().backward()


def test_sizes_that_fit() -> None:
    assert all(backbone_misfit(name, (3, 32, 32)) is None for name in BACKBONES)
    assert [n for n in BACKBONES if backbone_misfit(n, (1, 28, 28))] == ["vgg11-bn"]
    assert [n for n in BACKBONES if backbone_misfit(n, (14,))] == IMAGES
    with pytest.raises(ValueError, match="at least 32x32 pixels, got 32x31"):
        backbone("vgg11-bn", (3, 32, 31))


# ── split batch norm against batch norm of each part ─────────────────────────


def moved(norm: SplitBatchNorm) -> SplitBatchNorm:
    """Give the affine map and the running statistics values that are not their first ones."""
    for value in norm.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
    return norm


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_split_batch_norm_is_batch_norm_of_each_part(layout: torch.memory_format) -> None:
    splits, width = 4, 6
    norm = moved(SplitBatchNorm(width, splits))
    parts = [nn.BatchNorm2d(width) for _ in range(splits)]
    for part in parts:
        part.load_state_dict(norm.state_dict())
    x = torch.randn(12, width, 3, 5).to(memory_format=layout).requires_grad_()
    y = x.detach().clone().requires_grad_()

    got = norm(x)
    want = torch.empty_like(got)
    for j, part in enumerate(parts):
        want[j::splits] = part(y[j::splits])
    torch.testing.assert_close(got, want)
    assert got.is_contiguous(memory_format=layout)

    weight = torch.randn_like(got)
    torch.autograd.backward(got, weight)
    torch.autograd.backward(want, weight)
    torch.testing.assert_close(x.grad, y.grad)
    for name, parameter in norm.named_parameters():
        grads = [part.get_parameter(name).grad for part in parts]
        torch.testing.assert_close(
            parameter.grad, torch.stack([g for g in grads if g is not None]).sum(0)
        )
    for name in ("running_mean", "running_var"):
        mean = torch.stack([part.get_buffer(name) for part in parts]).mean(0)
        torch.testing.assert_close(norm.get_buffer(name), mean)
    assert norm.get_buffer("num_batches_tracked") == 1


@pytest.mark.parametrize(("n", "training"), [(12, False), (10, True)])
def test_split_batch_norm_is_batch_norm_in_eval_and_for_odd_batches(n: int, training: bool) -> None:
    norm, plain = moved(SplitBatchNorm(6, 4)), nn.BatchNorm2d(6)
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(n, 6, 3, 3)
    assert torch.equal(norm.train(training)(x), plain.train(training)(x))
    assert torch.equal(norm.running_var, plain.running_var)  # type: ignore[arg-type]


def test_splits_change_the_training_statistics() -> None:
    x = torch.randn(8, 6, 2, 2)
    assert not torch.allclose(SplitBatchNorm(6, 4)(x), SplitBatchNorm(6, 1)(x), atol=0.05)
    with pytest.raises(ValueError, match="splits must be at least 1, got 0"):
        SplitBatchNorm(6, 0)


# ── mlp and gradient reversal ────────────────────────────────────────────────


def test_mlp_is_alternating_affine_maps_and_ends_without_relu() -> None:
    net = mlp([5, 7, 6, 3])
    x = torch.randn(50, 5)
    first, second, third = (m for m in net if isinstance(m, nn.Linear))
    hidden = (second.weight @ (first.weight @ x.T + first.bias[:, None]).relu()).T + second.bias
    torch.testing.assert_close(net(x), hidden.relu() @ third.weight.T + third.bias)
    assert (net(x) < 0).any()
    with pytest.raises(ValueError, match=r"an input and an output width, got \[5\]"):
        mlp([5])


def gradient(x: Tensor, loss: Tensor) -> Tensor:
    return torch.autograd.grad(loss, x)[0]


def test_gradient_reversal_scales_and_flips() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    weight = torch.randn(4, 3)
    out = gradient_reversal(x, 0.5)
    assert torch.equal(out, x)
    torch.testing.assert_close(gradient(x, (out.sin() * weight).sum()), -0.5 * x.cos() * weight)


def test_gradient_reversal_twice() -> None:
    x = torch.randn(4, requires_grad=True)
    nested = gradient_reversal(gradient_reversal(x, 0.5), 3.0)
    torch.testing.assert_close(gradient(x, nested.square().sum()), 1.5 * 2 * x)
    both = x.square().sum() + gradient_reversal(x, 0.5).square().sum()
    torch.testing.assert_close(gradient(x, both), (1 - 0.5) * 2 * x)
    assert not gradient(x, gradient_reversal(x, 0.0).square().sum()).any()


def test_gradient_reversal_under_vmap() -> None:
    x = torch.randn(4, 3)

    def loss(row: Tensor) -> Tensor:
        return gradient_reversal(row, 0.5).square().sum()

    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), -0.5 * 2 * x)


@pytest.mark.parametrize("side", [(8, 8), (7, 4), (4, 7), (1, 1), (2, 2)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_halving_max_pool_is_the_library_s(side: tuple[int, int], layout: Any) -> None:
    """With and without gradients; NaN stays NaN."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, *side, generator=generator).to(memory_format=layout)
    x[1, 0, 0, 0] = math.nan
    pool, given = HalvingMaxPool(), F.max_pool2d(x, 2, ceil_mode=True)
    torch.testing.assert_close(pool(x), given, rtol=0, atol=0, equal_nan=True)
    assert pool(x).is_contiguous(memory_format=layout)
    traced = x.clone().requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(pool(traced), given, rtol=0, atol=0, equal_nan=True)
    pool(traced)[0].sum().backward()
    assert traced.grad is not None
    torch.testing.assert_close(traced.grad.sum(), torch.tensor(float(given[0].numel())))
