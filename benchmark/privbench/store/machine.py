"""What computed an artifact: processor, torch's kernels, MKL's mode, threads."""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path

#: A row's answer must not depend on its place in a batch. MKL promises that in strict mode only.
STRICT = "AUTO,STRICT"


def make_strict() -> None:
    """Ask MKL for strict mode, unless the user chose one. Has to run before torch computes."""
    os.environ.setdefault("MKL_CBWR", STRICT)


def machine() -> dict[str, str | int]:
    """Facts that decide the last bits of a number; empty as long as nothing imported torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "cpu": _cpu(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


@functools.cache
def _cpu() -> str:
    """Model of the processor, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
