"""Which device a node is made on, by the memory that nodes took; which kernels compute there."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes on a GPU that every process needs for itself: its CUDA context and kernels.
PROCESS_BYTES = 600 * 2**20


@dataclass
class Devices:
    """Devices and the kinds of nodes that are being made on each.

    Attributes:
        room: device -> bytes that nodes may use together; None for no limit, as on the CPU.
        peaks: kind of node -> most bytes that one of them took.
        running: device -> kinds that are being made on it.
    """

    room: Mapping[str, int | None]
    peaks: dict[str, int] = field(default_factory=dict)
    running: dict[str, list[str]] = field(default_factory=dict)

    def place(self, kind: str) -> str | None:
        """The device with most room for a node of that kind; None if it has to wait.

        On a device with a limit, the first node is alone until its size is known: once an epoch is
        trained, or when it is over. The first of another kind counts as the largest so far; if that
        is too little, it runs out of memory, and is made once more, alone.
        """
        left = {device: self._left(device) for device in self.room}
        least_busy = sorted(left, key=lambda device: len(self.running.get(device, ())))
        device = max(least_busy, key=lambda device: left[device])
        if not self.running.get(least_busy[0]):
            return least_busy[0]
        return device if self._needed(device, kind) <= left[device] else None

    def begin(self, device: str, kind: str) -> None:
        """A node of that kind begins there."""
        self.running.setdefault(device, []).append(kind)

    def end(self, device: str, kind: str, peak: int | None) -> None:
        """It is over; ``peak`` is the most bytes that it took, None if it never said."""
        self.running[device].remove(kind)
        self.learn(kind, peak)

    def learn(self, kind: str, peak: int | None) -> None:
        """A node of that kind took so many bytes, or has so far; None if it did not say."""
        if peak is not None:
            self.peaks[kind] = max(peak, self.peaks.get(kind, 0))

    def _left(self, device: str) -> float:
        limit = self.room[device]
        if limit is None:
            return float("inf")
        return limit - sum(self._needed(device, kind) for kind in self.running.get(device, ()))

    def _needed(self, device: str, kind: str) -> float:
        if self.room[device] is None:
            return 0.0
        known = self.peaks.get(kind, max(self.peaks.values(), default=None))
        return float("inf") if known is None else known + PROCESS_BYTES


def room(device: str) -> int | None:
    """Bytes that are free on a CUDA device now; None for other devices."""
    if not device.startswith("cuda"):
        return None
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def make_deterministic() -> None:
    """Let this process use those CUDA kernels that give the same bits again, where there are any.

    Without it, convolutions and sums over indices differ in their last bits from run to run. A user
    who asked for such kernels already keeps what they asked for.
    """
    import torch

    if torch.are_deterministic_algorithms_enabled():
        return
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    warnings.filterwarnings("ignore", ".*does not have a deterministic implementation")
