"""Training speed on one CUDA device, beside bare loops and kornia, in one run.

``uv run python tests/benchmarks/gpu.py`` prints tables; a few minutes on an idle GPU. Names of
parts choose: rates, encoders, views, profile, replicas, victims. Without kornia, its rows lack.
With PRIVBENCH_LOOSE=1, without the kernels that give the same bits again.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import privbench
from privbench import TargetContext
from privbench.grid.devices import make_deterministic
from privbench.ground.store.machine import make_strict
from privbench.measure.data.augmentation import Augmentation, augment
from privbench.measure.data.examples import Card, Examples
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import World
from privbench.measure.training.loop import Training
from privbench.measure.training.nets.backbones import backbone
from privbench_plugins.targets.moco import COLAB_VIEWS, MoCo
from privbench_plugins.targets.simclr import SimCLR, nt_xent

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, STEPS, SHAPE = 512, 20, (3, 32, 32)
CUDA = torch.device("cuda")
PROTOCOL = Protocol(name="default", members=BATCH * STEPS, nonmembers=0, pool=0, test=0)
CARD = Card(name="noise", kind="image", shape=SHAPE, classes=10, scale=255,
            sources={"all": BATCH * STEPS})  # fmt: skip


def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Median time of a round, with its last kernel, after one that is not counted."""
    taken = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])


def matrix_rate() -> float:
    """Floating-point operations a second of large bf16 products on random data."""
    a, b = (torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / seconds(lambda: [a @ b for _ in range(10)]) * 10


def rates() -> None:
    """Print what the machine can do."""
    x = torch.empty(2**31, device=CUDA, dtype=torch.uint8)
    y = torch.empty_like(x)
    copied = 2 * len(x) / seconds(lambda: y.copy_(x))
    print(f"bf16 products {matrix_rate() / 1e12:.0f} TFLOP/s, copies {copied / 1e12:.2f} TB/s")


def rows() -> Examples:
    """Random bytes of CIFAR-10's size, on the device."""
    n = BATCH * STEPS
    x = torch.randint(256, (n, *SHAPE), dtype=torch.uint8, device=CUDA)
    return Examples.of(x, torch.randint(10, (n,), device=CUDA), {}, scale=255)


def training(target: Any, *, compiled: bool, bf16: bool = True) -> Training:
    """A running contrastive phase, as a run makes it."""
    given = rows()
    ctx = TargetContext(card=CARD, protocol=PROTOCOL, sensitive=(), store=None, device=CUDA,
                        seed=0, scope="")  # fmt: skip
    model = target.build(CARD, ctx).to(CUDA).to(memory_format=torch.channels_last)
    if compiled:
        model["encoder"].compile()
    phase = target.phases(model, World({"members": given}, "victim", 0, 0), ctx)[0]
    return Training(model, phase, given, 0, bf16=bf16)


def bare(views: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    """An epoch of SimCLR in twenty lines: torchvision's network, autocast, one optimizer."""
    net = torchvision.models.resnet18(num_classes=128)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    net = net.to(CUDA, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    x = rows().x

    def epoch() -> None:
        order: Any = torch.randperm(len(x), device=CUDA)
        for part in order.split(BATCH):
            batch = x[part].float() / 255
            with torch.autocast("cuda", torch.bfloat16):
                z = torch.cat([net(views(batch)), net(views(batch))])
            optimizer.zero_grad(set_to_none=True)
            loss: Any = nt_xent(z.float(), 0.5)
            loss.backward()
            optimizer.step()

    return epoch


def kornia_views() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The same crops, flips, jitter and grey as ours, by kornia; None where it is not installed."""
    try:
        k: Any = importlib.import_module("kornia.augmentation")
    except ImportError:
        return None
    return nn.Sequential(
        k.RandomResizedCrop((32, 32), scale=(0.08, 1.0)), k.RandomHorizontalFlip(),
        k.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), k.RandomGrayscale(p=0.2),
    )  # fmt: skip


def operations() -> float:
    """Floating-point operations of products for an image, forward and backward."""
    x = torch.rand(2, *SHAPE)
    with FlopCounterMode(display=False) as counted:
        backbone("resnet18", SHAPE)(x).sum().backward()
    return float(counted.get_total_flops()) / 2


def _epoch(loop: Training) -> None:
    for _ in loop._epoch(1):
        pass


def encoders() -> None:
    """Print images a second of SimCLR and MoCo, each beside bare loops."""
    rate, each = matrix_rate(), operations()
    print("| encoder, ResNet-18, batch 512 | images/s | of the matrix rate |\n|---|---|---|")

    def told(what: str, taken: float, passes: float) -> None:
        speed = BATCH * STEPS / taken
        print(f"| {what} | {speed:,.0f} | {speed * passes * each / rate:.1%} |", flush=True)

    simclr = SimCLR(backbone="resnet18", batch=BATCH, augmentation=COLAB_VIEWS)
    moco = MoCo(backbone="resnet18", batch=BATCH, queue=4096, splits=8)
    ways = {"bf16": (False, True), "bf16, compiled": (True, True), "float32": (False, False)}
    for name, target, passes in (("simclr", simclr, 2), ("moco, 8 splits", moco, 4 / 3),
                                 ("moco", replace(moco, splits=1), 4 / 3)):  # fmt: skip
        for how, (compiled, bf16) in ways.items():
            loop = training(target, compiled=compiled, bf16=bf16)
            told(f"{name}, {how}", seconds(partial(_epoch, loop), 3), passes)
    told("bare SimCLR, bf16, no views", seconds(bare(lambda x: x), 3), 2)
    told("bare SimCLR, bf16, our views", seconds(bare(partial(_views, how=COLAB_VIEWS)), 3), 2)
    if theirs := kornia_views():
        told("bare SimCLR, bf16, kornia's views", seconds(bare(theirs), 3), 2)


def _views(x: torch.Tensor, how: Augmentation) -> torch.Tensor:
    return augment(x, how, torch.rand(len(x), how.uniforms, device=x.device))


def views() -> None:
    """Print images a second of the views alone."""
    x = torch.rand(BATCH, *SHAPE, device=CUDA)
    for hue in ("hsv", "yiq"):
        how = replace(COLAB_VIEWS, hue=hue)
        taken = seconds(partial(_views, x, how), 20)
        print(f"views, ours, {hue}: {BATCH / taken:,.0f} images/s")
    if theirs := kornia_views():
        print(f"views, kornia: {BATCH / seconds(lambda: theirs(x), 20):,.0f} images/s")


def profile() -> None:
    """Print what a step of SimCLR spends, on the host and on the device."""
    loop = training(SimCLR(backbone="resnet18", batch=BATCH, augmentation=COLAB_VIEWS),
                       compiled=False)  # fmt: skip
    list(loop._epoch(1))
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as seen:
        begun = time.perf_counter()
        list(loop._epoch(2))
        torch.cuda.synchronize()
        taken = time.perf_counter() - begun
    table = seen.key_averages()
    busy = sum(one.self_device_time_total for one in table) / 1e6
    kernels = sum(one.count for one in table if one.key == "cudaLaunchKernel")
    print(f"a step: {taken / STEPS * 1e3:.1f} ms (profiled), GPU busy {busy / taken:.0%}, "
          f"{kernels / STEPS:.0f} launches")  # fmt: skip
    print(table.table(sort_by="self_device_time_total", row_limit=14, max_name_column_width=60,
                      max_src_column_width=1))  # fmt: skip


def replicas() -> None:
    """Print steps a second of k small networks: one after another, and together by torch.func."""
    for name, shape, batch in (("mlp", (1, 8, 8), 128), ("convnet", SHAPE, 128)):
        for k in (4, 16):
            _replicas(name, shape, batch, k)


def _replicas(name: str, shape: tuple[int, ...], batch: int, k: int) -> None:
    nets = [nn.Sequential(net := backbone(name, shape), nn.Linear(net.width, 10)).to(CUDA)
            for _ in range(k)]  # fmt: skip
    x = torch.rand(k, batch, *shape, device=CUDA)
    y = torch.randint(10, (k, batch), device=CUDA)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]

    def in_turn() -> None:
        for i, net in enumerate(nets):
            optimizers[i].zero_grad()
            loss: Any = nn.functional.cross_entropy(net(x[i]), y[i])
            loss.backward()
            optimizers[i].step()

    weights, buffers = torch.func.stack_module_state(nets)
    leaves = {n: w.detach().requires_grad_() for n, w in weights.items()}
    together = torch.optim.SGD(leaves.values(), lr=0.1, momentum=0.9)

    def one_loss(
        weight: Any, buffer: Any, images: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        logits = torch.func.functional_call(nets[0], (weight, buffer), (images,))
        return nn.functional.cross_entropy(logits, labels)

    def at_once() -> None:
        together.zero_grad()
        each: Any = torch.func.vmap(one_loss)(leaves, buffers, x, y)
        each.sum().backward()
        together.step()

    try:
        one, all_ = seconds(in_turn, 20), seconds(at_once, 20)
    except RuntimeError as error:  # batch norm that counts its batches in place
        print(f"replicas, {name}, {k}: {str(error).splitlines()[0][:100]}")
        return
    print(f"replicas, {name}, {k}: in turn {k / one:,.0f}, together {k / all_:,.0f} steps/s")


def victims() -> None:
    """Print small victims a minute, with so many workers on the device."""
    grid = {"attacks": [{"lira": {"k": 64}}], "targets": [{"supervised": {"epochs": 30}}],
            "defenses": [], "controls": False}  # fmt: skip
    for jobs in (1, 4, 8, 16):
        with TemporaryDirectory() as folder:
            begun = time.perf_counter()
            privbench.run(grid, out=Path(folder) / "out", device="cuda", jobs=jobs)
            taken = time.perf_counter() - begun
        print(f"victims, {jobs} workers: {65 / taken * 60:.0f} a minute", flush=True)


if __name__ == "__main__":
    make_strict()
    if not os.environ.get("PRIVBENCH_LOOSE"):
        make_deterministic()
    parts = {one.__name__: one for one in (rates, encoders, views, profile, replicas, victims)}
    for chosen in sys.argv[1:] or parts:
        parts[chosen]()
