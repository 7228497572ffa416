"""A pretend accelerator: its tensors refuse those of the host, and the host computes them.

It finds, without a GPU, what only a GPU would refuse, or be slow at:

- tensors of host and device in one operator, other than single numbers and indices;
- ``.numpy()`` or ``np.asarray`` of a tensor that was not brought to the host;
- a generator of the other device;
- transfers, synchronisations and operators: it counts them, and knows the lines of the first two.

It cannot find what depends on real kernels: rounding, memory, streams, compiled code.

>>> with pretend_device() as (device, counts):
...     x = torch.arange(3, device=device)
...     before = counts.copy()
...     total = (x * 2).sum().item()
>>> total, sorted((counts - before).items())
(6, [('operators', 2), ('synchronisations', 1)])
"""

# mypy: ignore-errors
# torch does not type what its own backends use

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from privbench.measure.training.withheld import Withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAME = "pretend"
CPU = torch.device("cpu")
_ROOT, _THIS = Path(__file__).parents[1], Path(__file__).name
#: What takes a single number of the host beside tensors of the device, other than pointwise ones.
_TAKE_NUMBERS = {"fill_", "index_fill", "index_fill_", "masked_fill", "masked_fill_"}
#: Pointwise operators that take none: on CUDA they ask for all tensors on one device.
_CLAMPS = {"clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_"}
#: What takes indices of the host, and brings them to the device.
_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


#: What computes nothing, and is no view by its schema.
_FREE = {"lift_fresh", "_reshape_alias", "_unsafe_view"}


class Counts(Counter[str]):
    """How many ``operators``, ``synchronisations``, ``to_device`` and ``to_host`` there were.

    Views are not counted, since they start no kernel.

    Attributes:
        places: kind, function, file and line of each transfer and synchronisation.
    """

    def __init__(self, *given: Any) -> None:
        """Take counts, or start at zero."""
        super().__init__(*given)
        self.places: list[str] = []

    def note(self, kind: str) -> None:
        """Count a transfer or a synchronisation, and where it was."""
        self[kind] += 1
        for frame, line in traceback.walk_stack(sys._getframe()):
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(_ROOT) and ".venv" not in file.parts and file.name != _THIS:
                self.places.append(f"{kind} in {frame.f_code.co_name} at {file.name}:{line}")
                return


_counts = Counts()


class OnDevice(torch.Tensor):
    """A tensor on the pretend device; ``inner`` is the tensor of the host that has its numbers."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        """Wrap a tensor of the host."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=_device(),
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        """Show it without asking the device."""
        return f"OnDevice({self.inner!r})"

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refuse, as a tensor on a GPU does."""
        raise TypeError(f"can't convert {NAME} device type tensor to numpy: use .cpu() first")

    def tolist(self) -> Any:
        """Wait for the numbers and return them."""
        _counts.note("synchronisations")
        return self.inner.tolist()


class _Withheld(Withheld, OnDevice):
    """Labels that a phase does not declare, on the device."""

    @classmethod
    def like(cls, y: torch.Tensor, phase: str) -> Withheld:
        """Return a stand-in for y, on its device."""
        if not isinstance(y, OnDevice):
            return _like(y, phase)
        made = OnDevice.__new__(cls, y.inner.new_zeros(()).expand(y.shape))
        made.phase = phase
        return made


_like = Withheld.like


class _Mode(TorchDispatchMode):
    """Sees operators without a tensor of the device too, such as ``torch.rand``."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        return _run(func, args, kwargs or {})


_PlainGenerator = torch.Generator
#: Address -> generator of the device. Operators get a new object around the same address.
_generators: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()


class _Generator(_PlainGenerator):
    """A generator of the host that says on which device it is."""

    def __new__(cls, device: Any = CPU) -> Any:
        """Create one for that device."""
        made = super().__new__(cls, device=CPU)
        if torch.device(device).type == NAME:
            _generators[made._cdata] = made
        return made

    def __init__(self, device: Any = CPU) -> None:
        """Nothing is left to do."""

    @property
    def device(self) -> torch.device:
        """The device."""
        return _device() if self._cdata in _generators else CPU


class _Module(_DummyBackendModule):
    """What torch asks a device for."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing draws without a generator that is given."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


@contextlib.contextmanager
def pretend_device() -> Iterator[tuple[torch.device, Counts]]:
    """Enter a world with the device; yield it and what is counted. Not for several threads."""
    global _counts  # noqa: PLW0603 - operators are classless
    device, before = _device(), _counts
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    try:
        torch.Generator = _Generator
        Withheld.like = _Withheld.like
        torch.__future__.set_swap_module_params_on_conversion(True)
        _counts = Counts()
        # backward in this thread: autograd's own threads know only devices of its first use
        with _Mode(), torch.autograd.set_multithreading_enabled(False):
            yield device, _counts
    finally:
        _counts = before
        torch.__future__.set_swap_module_params_on_conversion(swapped)
        Withheld.like = _like
        torch.Generator = _PlainGenerator


@functools.cache
def _device() -> torch.device:
    """Register the device in this process, once."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    for name in ("empty_strided", "empty.memory_format", "copy_", "_local_scalar_dense"):
        packet, _, overload = name.partition(".")
        func = getattr(getattr(torch.ops.aten, packet), overload or "default")
        # torch.tensor(..., device=...) creates and fills tensors below the mode
        _library().impl(name, lambda *a, _func=func, **k: _run(_func, a, k), "PrivateUse1")
    return torch.device(NAME, 0)


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("aten", "IMPL")


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the host, and wrap its results if it belongs to the device."""
    name = func._schema.name.removeprefix("aten::")
    given = list(_leaves((*args, *kwargs.values())))
    mine = [one for one in given if isinstance(one, OnDevice)]
    device = args[0].device if name == "copy_" else kwargs.get("device")
    here = device.type == NAME if device is not None else bool(mine)
    if any(type(one) is _PlainGenerator and (one._cdata in _generators) != here for one in given):
        raise RuntimeError(f"{name}: the generator and the tensors are not on the same device")
    if not (here or mine):
        return func(*args, **kwargs)
    if device is None:
        _refuse_host(func, name, args, given)
    on_host = {key: _mapped(_on_host, value) for key, value in kwargs.items()}
    result = func(*(_mapped(_on_host, value) for value in args), **on_host)
    _count(func, name, args, here=here)
    own = {id(one.inner): one for one in mine} if func._schema.is_mutable else {}
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # the wrapper changes its shape too
            func(*args, **kwargs)
    if any(one.shape != one.inner.shape for one in own.values()):
        raise NotImplementedError(f"{name} changes the shape of a tensor on {NAME} in place")

    def wrapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return own[id(value)] if id(value) in own else OnDevice(value)
        return value

    return _mapped(wrapped, result) if here else result


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments, and what is in lists among them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change an argument, or what is in a list."""
    return type(value)(map(change, value)) if isinstance(value, list | tuple) else change(value)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == NAME:
        return CPU
    return value.inner if isinstance(value, OnDevice) else value


def _refuse_host(func: Any, name: str, args: Any, given: list[Any]) -> None:
    """Refuse tensors of the host beside those of the device, as CUDA does."""
    hosts = [
        one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, OnDevice)
    ]
    if name in _INDEX and isinstance(args[0], OnDevice):
        indices = {id(index) for index in args[1]}
        for _ in [one for one in hosts if id(one) in indices]:
            _counts.note("to_device")
        hosts = [one for one in hosts if id(one) not in indices and one.dim()]
    elif name in _TAKE_NUMBERS or (torch.Tag.pointwise in func.tags and name not in _CLAMPS):
        hosts = [one for one in hosts if one.dim()]
    if hosts:
        shapes = [tuple(one.shape) for one in hosts]
        raise RuntimeError(f"{name}: expected all tensors on {NAME}, but on the host are {shapes}")


def _count(func: Any, name: str, args: Any, *, here: bool) -> None:
    """Count an operator as what it is: a copy between devices, one that waits, or another."""
    if name in ("_to_copy", "copy_") and isinstance(args[name == "copy_"], OnDevice) != here:
        _counts.note("to_device" if here else "to_host")
    elif _waits(func, name, args):
        _counts.note("synchronisations")
    elif here and not func.is_view and name not in _FREE:
        _counts["operators"] += 1


def _waits(func: Any, name: str, args: Any) -> bool:
    """Whether the host must know numbers of the device before it can go on."""
    if name in _INDEX:  # of one number, a mask need not be counted: it is filled
        masked = any(isinstance(i, OnDevice) and i.dtype is torch.bool for i in args[1])
        return masked and not (len(args) > 2 and args[2].numel() == 1)
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags})
