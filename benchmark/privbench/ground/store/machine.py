"""The machine that computed an artifact: processor, torch's kernels, MKL's mode, threads."""

from __future__ import annotations

import functools
import os
import platform
import resource
import sys
from pathlib import Path

#: A row's answer must not depend on its place in a batch; MKL guarantees this in strict mode only.
STRICT = "AUTO,STRICT"
#: Sums of cuBLAS have a fixed order only with a workspace of a fixed size.
WORKSPACE = ":4096:8"


def make_strict() -> None:
    """Set MKL and cuBLAS to strict modes unless the user chose; must run before torch computes."""
    os.environ.setdefault("MKL_CBWR", STRICT)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)


def machine() -> dict[str, str | int]:
    """Facts that determine the last bits of a number; empty if torch is not imported."""
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


def peak_memory() -> int:
    """Return the most bytes of memory that this process has taken so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@functools.cache
def _cpu() -> str:
    """Model name of the processor, as reported by the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
