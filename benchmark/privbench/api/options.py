"""The options of a run: those that are refused without importing torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where trials run.
EXECUTORS = ("serial", "processes", "ray")
#: ``auto``: bf16 on CUDA, float32 on the CPU.
PRECISIONS = ("auto", "float32", "bf16")
#: What is said of bf16 where it is slow.
SLOW = ("--precision bf16: this processor has no instructions for bfloat16 and trains many times "
        "slower than in float32")  # fmt: skip
MOST_JOBS = 4096
MOST_SECONDS = 1e9
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,9})?")


def check(options: Mapping[str, Any]) -> None:
    """Refuse what is wrong whatever the suite is.

    Raises:
        BadInputError: one sentence that says which option, and what to give.
    """
    if options["out"].exists() and not options["out"].is_dir():
        raise BadInputError(f"--out {shown(str(options['out']))} is a file: choose a directory")
    data_root(options["data_root"])
    if not _DEVICE.fullmatch(str(options["device"])):
        raise BadInputError(
            f"unknown device '{shown(options['device'])}': use cpu, cuda, cuda:1 or auto"
        )
    threads = options.get("threads", 1)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_JOBS:
        raise BadInputError(
            f"--threads {shown(threads)}: give a whole number from 1 to {MOST_JOBS}"
        )
    if options.get("precision", "auto") not in PRECISIONS:
        raise UnknownNameError("precision", str(options["precision"]), PRECISIONS)
    shard(options.get("shard"))
    executor(options)


def data_root(given: Path | None) -> Path | None:
    """Return the folder of datasets: the given one, or that of PRIVBENCH_DATA, or none.

    Raises:
        BadInputError: if it is not a folder.
    """
    if given is None and os.environ.get("PRIVBENCH_DATA"):  # from Python; click has read it
        given = Path(os.environ["PRIVBENCH_DATA"])
    if given is not None and not os.path.isdir(given):  # noqa: PTH112 - False for any bad name
        raise BadInputError(
            f"--data-root (or PRIVBENCH_DATA) {shown(str(given))} is not a directory: "
            "create it or choose another"
        )
    return given


def shard(given: str | None) -> slice:
    """Return the part ``I/N`` of a grid; the parts are disjoint and cover the grid.

    Raises:
        BadInputError: unless it is two numbers with 1 <= I <= N.
    """
    if given is None:
        return slice(None)
    i, slash, n = given.partition("/")
    if not (slash and _is_number(i) and _is_number(n) and 1 <= int(i) <= int(n)):
        raise BadInputError(
            f"--shard {shown(given)}: write I/N with I from 1 to N, for example 2/8"
        )
    return slice(int(i) - 1, None, int(n))


def device_numbers(given: str | None) -> tuple[str, ...]:
    """Return the numbers of CUDA devices for workers; () for none.

    Raises:
        BadInputError: unless they are numbers.
    """
    if given is None:
        return ()
    numbers = tuple(word.strip() for word in given.split(","))
    if not all(_is_number(word) for word in numbers):
        raise BadInputError(
            f"--devices {shown(given)}: write numbers of CUDA devices, for example 0,1"
        )
    return numbers


def executor(options: Mapping[str, Any]) -> tuple[Literal["serial", "processes", "ray"], int]:
    """Return where trials run, and the number of worker processes.

    In this process; in workers if several are asked for or there is a limit; or on Ray.

    Raises:
        BadInputError: if options do not fit each other, or one is out of range.
    """
    jobs, timeout = options.get("jobs", "1"), options.get("timeout")
    devices, isolate = device_numbers(options.get("devices")), bool(options.get("isolate"))
    if jobs == "auto":
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    else:
        count = int(jobs) if _is_number(str(jobs)) else 0
    count = count or 0
    if not 0 < count <= MOST_JOBS:
        raise BadInputError(
            f"--jobs {shown(jobs)}: give a whole number from 1 to {MOST_JOBS:,}, or auto"
        )
    if timeout is not None and not (_is_real(timeout) and 0 < timeout <= MOST_SECONDS):
        raise BadInputError(
            f"--timeout {shown(timeout)}: give a number of seconds above 0, up to 1e9"
        )
    kind = options.get("executor")
    if kind not in (None, *EXECUTORS):
        raise UnknownNameError("executor", str(kind), EXECUTORS)
    if options.get("address") and kind != "ray":
        raise BadInputError("--address is for --executor ray: give both")
    if kind == "ray":
        if devices or str(jobs) != "1" or isolate:
            raise BadInputError("--executor ray takes CPUs and GPUs from the cluster: leave out "
                                "--jobs, --devices and --isolate")  # fmt: skip
        return "ray", count
    workers = count > 1 or timeout is not None or bool(devices) or isolate
    if kind == "serial" and workers:
        raise BadInputError("--executor serial has neither workers nor a time limit: leave "
                            "out --jobs, --devices, --timeout and --isolate")  # fmt: skip
    if kind == "processes" or workers:
        return "processes", max(count, len(devices))
    return "serial", 1


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9  # noqa: PLR2004 - below 2^31
