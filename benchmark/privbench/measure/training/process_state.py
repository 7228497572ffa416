"""The state of the process: known while a plugin's code runs, and as before when it is done."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import random
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from collections.abc import Iterator

_CUDNN = ("enabled", "benchmark", "deterministic", "allow_tf32")
#: Libraries with threads of their own that are imported late.
_LATE = ("scipy.linalg", "sklearn.linear_model")


@contextmanager
def restored() -> Iterator[None]:
    """Undo what code changes of the process.

    That is: torch's default dtype and device, grad mode, number of threads, precision of products
    and choice of deterministic algorithms; the global generators of torch, numpy and Python; the
    current folder, the environment, standard output and error, and filters of warnings.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    cudnn = {name: getattr(torch.backends.cudnn, name) for name in _CUDNN}
    determinism = _determinism()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one
    folder, environment = _folder(), dict(os.environ)
    streams = sys.stdout, sys.stderr
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    try:
        devices = range(torch.cuda.device_count()) if used else ()
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        sys.stdout, sys.stderr = streams
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
        if folder is not None and _folder() != folder:
            with contextlib.suppress(OSError):  # it was deleted
                os.chdir(folder)
        np.random.set_state(numpy)  # noqa: NPY002
        random.setstate(python)
        for name, value in cudnn.items():
            setattr(torch.backends.cudnn, name, value)
        if _determinism() != determinism:  # to set it imports half of torch, also where equal
            strict, warn_only = determinism
            torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def known(seed: int) -> Iterator[None]:
    """Run code with float32, gradients and seeded global generators; undo what it changes."""
    with restored():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 - the one place that does
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
        torch.set_grad_enabled(True)
        yield


@contextmanager
def serving() -> Iterator[None]:
    """Let a victim answer with float32 and without gradients; undo what it changes."""
    with restored():
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
        torch.set_grad_enabled(False)
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with that many threads in torch and in the BLAS of numpy and scikit-learn."""
    before = torch.get_num_threads()
    with _pools().limit(limits=count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@functools.cache
def _pools() -> ThreadpoolController:
    """The libraries with threads of their own; one that is loaded later would not be among them."""
    for late in _LATE:
        importlib.import_module(late)
    return ThreadpoolController()


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - as text, to compare and to return to
    except OSError:  # it was deleted
        return None
