"""How numbers are computed: each setting gives other last bits, so all are part of every key."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal

import torch

#: Of the matrix products of a training step; weights, losses and all answers are float32.
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Numerics:
    """How numbers are computed.

    Attributes:
        threads: of torch and of the BLAS; sums in another order give other last bits.
        compiled: whether encoders go through torch.compile while training.
        precision: ``bf16`` trains with autocast to bfloat16.
    """

    threads: int = 1
    compiled: bool = False
    precision: Precision = "float32"


USUAL = Numerics()


def slow_in_bf16(device: torch.device) -> bool:
    """Whether a processor computes bfloat16 by float32 instructions, as far as torch can tell."""
    if device.type != "cpu" or platform.machine() not in {"x86_64", "AMD64"}:
        return False
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    return not supported()
