"""Workers that are processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from privbench.grid.devices import Devices, room
from privbench.grid.executors import NODES_PER_WORKER, Workers
from privbench.grid.messages import Begun, Done, Lost, PhaseProgress
from privbench.grid.server import PATIENCE, start, start_isolated, start_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from privbench.grid.messages import Message, Node, Setup
    from privbench.grid.planned import Planned


@dataclass
class _Worker:
    """A process and what it is making.

    ``lifeline`` is never written to: it ends with this process, and then so does the worker.
    """

    number: int
    process: Any
    pipe: Connection
    lifeline: Connection
    device: str
    code: str  #: of others, see ``Setup``
    apart: Any = None  #: process that starts those in which its attacks answer
    node: Node | None = None
    begun: float | None = None
    made: int = 0


@dataclass
class Processes(Workers):
    """Runs trials in worker processes on this machine.

    Attributes:
        jobs: how many workers.
        timeout: see ``Workers``.
        devices: that workers compute on; () for the runner's. Several workers share a CUDA device
            as far as its memory allows, see ``Devices``.
        isolate: whether every node is made in a process of its own, and every attack answers in
            another one. Attacks of other packages always do.

    A worker that has loaded code of other packages makes only nodes that name the same code.
    """

    jobs: int
    timeout: float | None = None
    devices: tuple[str, ...] = ()
    isolate: bool = False
    _devices: Devices = field(default_factory=lambda: Devices({}))
    _context: Any = None
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _unsent: list[tuple[Node, Lost]] = field(default_factory=list)

    def start(self, setup: Setup) -> None:
        """Workers start when they are needed; what they start from imports meanwhile."""
        self._setup = setup
        self._devices = Devices({name: room(name) for name in self.devices or (setup.device,)})
        self._context = start_server(setup.threads)

    def free(self) -> int:
        """How many more nodes can be made at the same time."""
        return self.jobs - self.busy()

    def busy(self) -> int:
        """How many nodes are being made."""
        return sum(worker.node is not None for worker in self._workers.values())

    def fits(self, node: Node) -> bool:
        """Whether a device has room for the node."""
        return self._devices.place(node.kind) is not None

    def rest(self) -> None:
        """End idle workers."""
        for worker in [w for w in self._workers.values() if not w.node]:
            self._end(worker)

    def give(self, node: Node, planned: Planned) -> None:
        """Let an idle worker make a node, or a new one."""
        device = self._devices.place(node.kind) or next(iter(self._devices.room))
        try:
            packed = planned.packed(node.name)
        except Exception as error:  # noqa: BLE001 - whatever pickling a plugin's class raises
            lost = Lost(f"it cannot be sent to a worker process: {error}", again=False)
            self._unsent.append((node, lost))
            return
        code, apart = packed.code, self.isolate or packed.apart
        worker = self._idle(device, code, apart=apart) or self._start(device, code, apart=apart)
        worker.node, worker.begun = node, None
        self._devices.begin(device, node.kind)
        with contextlib.suppress(OSError):  # it died while idle: listen hears of it
            worker.pipe.send_bytes(packed.sent)

    def listen(self) -> Iterator[tuple[Node, int, Message]]:
        """What workers say of their nodes, or how they ended."""
        unsent, self._unsent = self._unsent, []
        yield from ((node, 0, lost) for node, lost in unsent)
        busy = [worker for worker in self._workers.values() if worker.node]
        told: list[Any] = [worker.pipe for worker in busy]
        told += [worker.process.sentinel for worker in busy]
        ready = set(wait(told, timeout=1.0)) if told else set()
        for worker in busy:
            for message in self._heard(worker, ended=worker.process.sentinel in ready):
                node = worker.node
                assert node is not None  # noqa: S101 - a worker speaks of what it was given
                if isinstance(message, Begun):
                    worker.begun = time.monotonic()
                if isinstance(message, PhaseProgress):
                    self._devices.learn(node.kind, message.peak_bytes)
                if isinstance(message, Done | Lost):
                    self._over(worker, message.peak_bytes)
                yield node, worker.number, message

    def stop(self) -> None:
        """End all workers: at once, but those that train write a checkpoint first."""
        for worker in self._workers.values():
            worker.process.terminate()
        until = time.monotonic() + PATIENCE
        for worker in list(self._workers.values()):
            worker.process.join(max(0.0, until - time.monotonic()))
            self._end(worker)

    def _heard(self, worker: _Worker, *, ended: bool) -> Iterator[Message]:
        try:
            while worker.node and worker.pipe.poll():
                yield worker.pipe.recv()
        except (EOFError, OSError):
            ended = True
        if worker.node and ended:
            worker.process.join(5)
            status = worker.process.exitcode  # None: its pipe closed, and yet it goes on
            whose = "its worker process"
            if worker.apart:
                worker.apart.join(1)
                if worker.apart.exitcode:
                    status, whose = worker.apart.exitcode, "the process of its attack"
            self._end(worker)
            yield Lost(_how(whose, -signal.SIGKILL if status is None else status))
        elif worker.node and self.overdue(worker.node, worker.begun):
            self._end(worker)
            yield self.stopped()

    @property
    def _nodes_per_worker(self) -> int:
        return 1 if self.isolate else NODES_PER_WORKER

    def _over(self, worker: _Worker, peak: int | None = None) -> None:
        """A worker's node is over."""
        assert worker.node is not None  # noqa: S101
        self._devices.end(worker.device, worker.node.kind, peak)
        worker.node, worker.made = None, worker.made + 1

    def _idle(self, device: str, code: str, *, apart: bool) -> _Worker | None:
        """An idle worker that suits. Another one ends, if all have been started."""
        idle = [worker for worker in self._workers.values() if not worker.node]
        for worker in sorted(
            idle, key=lambda worker: (worker.device, worker.code) != (device, code)
        ):
            fresh = worker.made < self._nodes_per_worker and worker.process.is_alive()
            suits = (worker.device, worker.code) == (device, code)
            if fresh and suits and (worker.apart or not apart):
                return worker
            if not fresh or len(self._workers) == self.jobs:
                self._end(worker)
        return None

    def _start(self, device: str, code: str, *, apart: bool) -> _Worker:
        number = next(i for i in range(self.jobs) if i not in self._workers)
        setup = replace(self._setup, device=device, code=code)
        context = self._context
        ours, theirs = context.Pipe()
        life_ours, life_theirs = context.Pipe()
        worker = _Worker(number, None, ours, life_ours, device, code)
        attack_process = None
        if apart:
            pipe, worker.apart = start_isolated(context, self._setup, life_theirs)
            attack_process = pipe, self.isolate
        worker.process = start(
            context, setup.threads, "privbench.grid.worker:work",
            theirs, life_theirs, setup, attack_process,
        )  # fmt: skip
        theirs.close()
        life_theirs.close()
        if attack_process:
            attack_process[0].close()
        self._workers[number] = worker
        return worker

    def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        if worker.apart:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.apart.pid, signal.SIGKILL)
            worker.apart.kill()
            worker.apart.join()
        worker.pipe.close()
        worker.lifeline.close()
        self._workers.pop(worker.number, None)


def _how(whose: str, status: int) -> str:
    """How a process ended, twice, in words."""
    if status < 0:
        memory = " (often: out of memory)" if status == -signal.SIGKILL else ""
        return f"{whose} was killed by signal {-status}{memory}, twice"
    return f"{whose} ended with status {status}, twice"
