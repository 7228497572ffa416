"""A checkpoint: all of a running phase that its end depends on, in one file.

What was trained before an interruption is then not lost. A phase that goes on from a checkpoint
ends with the same bits as one that was never interrupted. The file is safetensors: tensors by name,
and JSON for the rest.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

#: Environment variable: seconds between two checkpoints, five minutes if it is not set.
SECONDS = "PRIVBENCH_CHECKPOINT_SECONDS"


def seconds() -> float:
    """Seconds between two checkpoints.

    Raises:
        BadInputError: if the variable is no number of seconds, 0 or more.
    """
    given = os.environ.get(SECONDS, "")
    try:
        value = float(given or 300)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise BadInputError(
            f"{SECONDS} is {shown(given)}: set it to a number of seconds, or unset it"
        )
    return value


def write(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        WriteError: if the disk is full, for example.
    """
    from safetensors.torch import save

    from privbench.ground.store.files import write as write_whole

    held = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
    write_whole(path, save(held, {"values": json.dumps(values)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read a checkpoint; None if there is none, or it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            values = json.loads(file.metadata()["values"])
            return {name: file.get_tensor(name) for name in file.keys()}, values  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


# ---- parts of the state --------------------------------------------------------------------------


def flattened(value: Any, at: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of nested values to ``tensors``; return the rest, which JSON can hold."""
    if isinstance(value, torch.Tensor):
        tensors[at] = value
        return {"tensor": at}
    if isinstance(value, dict):
        return {"items": [[k, flattened(v, f"{at}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        held = [flattened(one, f"{at}.{i}", tensors) for i, one in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": held}
    return {"value": value}


def nested(held: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The values that ``flattened`` took apart."""
    ((kind, inside),) = held.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "items":
        return {key: nested(one, tensors) for key, one in inside}
    if kind in ("tuple", "list"):
        made = [nested(one, tensors) for one in inside]
        return tuple(made) if kind == "tuple" else made
    return inside


def global_generators() -> dict[str, Any]:
    """The states of the global generators of torch, numpy and Python."""
    name, numbers, *rest = np.random.get_state()  # noqa: NPY002 - the global one
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {
        "torch": torch.get_rng_state(), "cuda": list(on_gpu), "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(numbers).astype(np.int64)), *rest),
    }  # fmt: skip


def set_global_generators(states: Mapping[str, Any]) -> None:
    """Set what ``global_generators`` returned."""
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    random.setstate(states["python"])
    name, numbers, *rest = states["numpy"]
    np.random.set_state((name, numbers.numpy().astype(np.uint32), *rest))  # noqa: NPY002


# ---- when to write -------------------------------------------------------------------------------


class Told:
    """Whether this process got SIGTERM or Ctrl-C."""

    def __init__(self) -> None:
        """It did not."""
        self.to_end = False


@contextmanager
def told_to_end() -> Iterator[Told]:
    """Let SIGTERM and Ctrl-C wait until a checkpoint is written; a second one does not wait.

    Batch systems send SIGTERM before they take a machine back; on leaving, the process gets it
    again. Only a main thread can wait for signals.
    """
    told = Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    came: list[int] = []

    def handle(number: int, _: object) -> None:
        told.to_end = True
        came.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, handle)
    try:
        yield told
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        if signal.SIGTERM in came:
            os.kill(os.getpid(), signal.SIGTERM)
