"""Workers that are tasks of Ray, on this machine or on a cluster (extra ``privbench[ray]``)."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import secrets
import socket
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from privbench.grid.executors import NODES_PER_WORKER, Workers
from privbench.grid.messages import Begun, Done, Lost, Message, PhaseProgress, Setup
from privbench.grid.server import start_isolated, start_server
from privbench.ground.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from privbench.grid.isolated import IsolatedAttack
    from privbench.grid.messages import Node
    from privbench.grid.planned import Planned
    from privbench.grid.trial_runner import TrialRunner
    from privbench.grid.worker import Reporter


@dataclass
class _Task:
    """A node that runs as a Ray task."""

    node: Node
    number: int
    begun: float | None = None
    late: bool = False


@dataclass
class Ray(Workers):
    """Runs nodes as Ray tasks of one CPU each; on CUDA each has a GPU.

    All machines need privbench, the same plugins, and the store (``PRIVBENCH_CACHE``) on a shared
    path: this is checked before anything runs. On several machines, second tries run side by side.

    Attributes:
        address: address of the cluster; None for the one that Ray finds, else a new local one.
        timeout: see ``Workers``.
    """

    address: str | None = None
    timeout: float | None = None
    _tasks: dict[Any, _Task] = field(default_factory=dict)
    _unsent: list[tuple[Node, Lost]] = field(default_factory=list)

    def start(self, setup: Setup) -> None:
        """Connect, and check that every machine of the cluster sees the store.

        Raises:
            BadInputError: if Ray is missing, no cluster is there, or a machine lacks the store.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Under `uv run`, Ray would copy the folder to every machine and install it there again.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # read on import
        try:
            import ray
        except ImportError:
            raise BadInputError(
                "--executor ray needs Ray: install it with pip install 'privbench[ray]'"
            ) from None
        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect()
        on_gpu = setup.device.startswith("cuda")
        # Ray shows a task its own GPU only, as the first one.
        self._setup = replace(setup, device="cuda" if on_gpu else setup.device)
        self._gpus = 1 if on_gpu else 0
        if on_gpu and not self._ray.cluster_resources().get("GPU"):
            raise BadInputError("--device cuda: the Ray cluster has no GPU: use --device cpu")
        machines = [node for node in self._ray.nodes() if node["Alive"]]
        self.alone = len(machines) == 1
        most = max(int(node["Resources"].get("CPU", 0)) for node in machines)
        threads = setup.threads
        if most < threads:
            raise BadInputError(
                f"--threads {threads}: no machine of the Ray cluster has more than {most} CPUs"
            )
        self._make = self._ray.remote(
            max_retries=0,
            num_cpus=threads,
            num_gpus=self._gpus,
            max_calls=NODES_PER_WORKER,
        )(_make)
        here = self._at(ray.get_runtime_context().get_node_id())
        self._news = self._ray.remote(num_cpus=0, scheduling_strategy=here)(_News).remote()
        self._check_store(setup.store)

    def free(self) -> int:
        """Return how many more nodes the cluster can make now; clusters may grow and shrink."""
        there = self._ray.cluster_resources()
        slots = int(there.get("CPU", 1)) // self._setup.threads
        if self._gpus:
            slots = min(slots, int(there.get("GPU", 0)))
        return max(slots, 1) - self.busy()

    def busy(self) -> int:
        """Return how many nodes are being made."""
        return len(self._tasks)

    def give(self, node: Node, planned: Planned) -> None:
        """Submit a node."""
        taken = {task.number for task in self._tasks.values()}
        number = next(i for i in range(len(taken) + 1) if i not in taken)
        try:
            packed = planned.packed(node.name, "ray.cloudpickle")
            setup = replace(self._setup, code=packed.code)
            # Ray lets only tasks with equal variables share a process.
            variables = {"PRIVBENCH_CODE": packed.code} if packed.code else {}
            apart = {"runtime_env": {"env_vars": variables}} if variables else {}
            ref = self._make.options(**apart).remote(packed.sent, setup, self._news)
        except Exception as error:  # noqa: BLE001 - whatever pickling a plugin's class raises
            self._unsent.append((node, Lost(f"it cannot be sent to the cluster: {error}", False)))
        else:
            self._tasks[ref] = _Task(node, number)

    def listen(self) -> Iterator[tuple[Node, int, Message]]:
        """Yield the messages of workers, or how they ended."""
        unsent, self._unsent = self._unsent, []
        yield from ((node, 0, lost) for node, lost in unsent)
        if not self._tasks:
            return
        over, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=0.5)
        news = self._ray.get(self._news.take.remote())
        for ref, task in list(self._tasks.items()):
            told: Message | None = news.get(task.node.name)
            if told and task.begun is None:
                task.begun = time.monotonic()
            if ref in over:
                del self._tasks[ref]
                yield task.node, task.number, self._result(ref, late=task.late)
                continue
            if told:
                yield task.node, task.number, told
            if not task.late and self.overdue(task.node, task.begun):
                task.late = True
                self._ray.cancel(ref, force=True)

    def stop(self) -> None:
        """End all tasks at once, and Ray if this run started it."""
        if not hasattr(self, "_ray"):
            return
        for ref in self._tasks:
            self._ray.cancel(ref, force=True)
        self._tasks.clear()
        if self._ours:
            self._ray.shutdown()

    def _connect(self) -> None:
        """Connect to the cluster, or start one on this machine."""
        address = self.address or os.environ.get("RAY_ADDRESS")
        host, colon, port = (address or "").rpartition(":")
        try:
            if colon and port.isdecimal() and "/" not in host:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=5).close()
            self._ray.init(
                address, log_to_driver=False, logging_level=logging.WARNING,
                **({} if address else {"include_dashboard": False}),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise BadInputError(
                f"--address {address}: no Ray cluster answers there ({error}): "
                "start one with `ray start`"
            ) from None

    def _result(self, ref: Any, *, late: bool) -> Done | Lost:
        errors = self._ray.exceptions
        try:
            result: Done | Lost = self._ray.get(ref)
        except errors.RayTaskError as error:  # the node could not be sent, or not be read there
            return Lost(f"it cannot be run on the cluster: {error.cause or error}", again=False)
        except errors.RayError as error:
            if late:
                return self.stopped()
            how = str(error).splitlines()[0]
            return Lost(f"its worker on the cluster ended ({how}), twice")
        return result

    def _check_store(self, store: Path) -> None:
        """Check that every machine sees a file that this one writes into the store."""
        store.mkdir(parents=True, exist_ok=True)
        token = store / f".shared-{secrets.token_hex(8)}"
        token.touch()
        sees = self._ray.remote(num_cpus=0)(_sees)
        try:
            for machine in self._ray.nodes():
                if not machine["Alive"]:
                    continue
                name = machine["NodeManagerAddress"]
                there = sees.options(scheduling_strategy=self._at(machine["NodeID"]))
                try:
                    found = self._ray.get(there.remote(token))
                except self._ray.exceptions.RayError as error:
                    raise BadInputError(
                        f"the machine {name} of the cluster cannot run privbench "
                        f"({str(error).strip().splitlines()[-1]}): install it there as here"
                    ) from None
                if not found:
                    raise BadInputError(
                        f"the machine {name} of the cluster does not see the store {store}: set "
                        "PRIVBENCH_CACHE to a folder that all machines share"
                    )
        finally:
            token.unlink(missing_ok=True)

    def _at(self, machine: str) -> Any:
        """Return the strategy that schedules a task on that machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(machine, soft=False)


class _News:
    """Keeps the latest message of every node until it is read."""

    def __init__(self) -> None:
        self.latest: dict[str, Begun | PhaseProgress] = {}

    def tell(self, name: str, message: Begun | PhaseProgress) -> None:
        """Store a message about a node."""
        self.latest[name] = message

    def take(self) -> dict[str, Begun | PhaseProgress]:
        """Return the messages since the last call."""
        taken, self.latest = self.latest, {}
        return taken


@functools.lru_cache(maxsize=1)
def _runner(setup: Setup) -> tuple[TrialRunner, Reporter]:
    """Return the runner of this worker process; it keeps data and victims in memory."""
    from privbench.grid.worker import Reporter, runner_of

    reporter = Reporter(lambda _: None)
    return runner_of(setup, reporter), reporter


@functools.lru_cache(maxsize=1)
def _isolated(setup: Setup) -> IsolatedAttack:
    """Start the process in which attacks of others answer; it ends with this worker."""
    from privbench.grid.isolated import IsolatedAttack

    context = start_server(setup.threads)
    _lifelines.append(context.Pipe())
    pipe, _ = start_isolated(context, setup, _lifelines[-1][1])
    return IsolatedAttack(pipe, every=False)


#: Held until this worker ends.
_lifelines: list[Any] = []


def _make(packed: bytes, setup: Setup, news: Any) -> Done | Lost:
    """A Ray task: make a node, which is pickled."""
    from privbench.grid.sealed import SealedAttack
    from privbench.grid.worker import make

    setup.load_plugins()
    node, trial = pickle.loads(packed)  # noqa: S301 - from this run
    runner, reporter = _runner(setup)
    runner.isolated = _isolated(setup) if isinstance(trial.cell.attack, SealedAttack) else None
    reporter.send = lambda step: news.tell.remote(node.name, step)
    news.tell.remote(node.name, Begun())
    return make(node, trial, runner)


def _sees(path: Path) -> bool:
    return path.exists()
