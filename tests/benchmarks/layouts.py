"""Training speed of each backbone on this CPU: layout of its weights, and precision.

``uv run python tests/benchmarks/layouts.py`` prints the table of docs/scale.md. One thread, idle
cores; the ways take turns, and the median counts. The last column is the better float32 speed
as a share of the speed of large matrix products. ``ONEDNN_MAX_CPU_ISA=AVX2
ATEN_CPU_CAPABILITY=avx2`` before it computes as a processor without AVX-512, where bf16 is
emulated: add ``--float32``.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from privbench.measure.training.nets.backbones import backbone

#: Backbone, channels, side, batch.
WORK = (
    ("convnet", 1, 8, 256), ("convnet", 3, 32, 256), ("convnet", 3, 64, 64),
    ("resnet18", 3, 32, 16), ("resnet18-stock", 3, 32, 64), ("resnet50", 3, 32, 8),
    ("resnet50-stock", 3, 32, 32), ("mobilenetv2", 3, 32, 64), ("vgg11-bn", 3, 32, 64),
)  # fmt: skip
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
WAYS = list(itertools.product((False, True), LAYOUTS))  # bf16, layout
ROUNDS = 7


def rows_per_second(name: str, channels: int, side: int, batch: int, ways: int) -> list[float]:
    """Forward and backward of a batch, in the first ways; rows a second."""
    x = torch.rand(batch, channels, side, side)
    nets = {
        layout: backbone(name, x.shape[1:]).to(memory_format=LAYOUTS[layout]) for layout in LAYOUTS
    }
    seconds: dict[tuple[bool, str], list[float]] = {way: [] for way in WAYS[:ways]}
    for _ in range(ROUNDS):
        for (bf16, layout), taken in seconds.items():
            begun = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                out = nets[layout](x)
            out.float().square().mean().backward()
            taken.append(time.perf_counter() - begun)
    return [batch / statistics.median(taken[1:]) for taken in seconds.values()]


def main(ways: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    heads = [f"{layout}, {'bf16' if bf16 else 'float32'}" for bf16, layout in WAYS[:ways]]
    print(f"Products of 1024x1024 float32 matrices: {_matrix_rate() / 1e9:.0f} GFLOP/s")
    print("|", " | ".join(["backbone, image", *heads, "of the matrix rate"]), "|")
    print("|---" * (ways + 2) + "|")
    for name, channels, side, batch in WORK:
        found = rows_per_second(name, channels, side, batch, ways)
        of = f"{name}, {channels}x{side}x{side}"
        share = max(found[:2]) * _operations(name, channels, side) / _matrix_rate()
        told = [of, *(f"{one:,.0f}" for one in found), f"{share:.0%}"]
        print("|", " | ".join(told), "|", flush=True)


def _matrix_rate() -> float:
    """Floating-point operations a second of large matrix products."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - begun)
    return 2 * 1024**3 / statistics.median(seconds)


def _operations(name: str, channels: int, side: int) -> float:
    """Floating-point operations of products for a row, forward and backward."""
    x = torch.rand(2, channels, side, side)
    with FlopCounterMode(display=False) as counted:
        backbone(name, x.shape[1:])(x).sum().backward()
    return float(counted.get_total_flops()) / len(x)


if __name__ == "__main__":
    main(2 if "--float32" in sys.argv else 4)
