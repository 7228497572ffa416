"""What a run and its workers tell each other, as plain data: nodes, setup, progress, outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.measure.training.numerics import Numerics
    from privbench.plugins.plugin_file import PluginFile


#: Why a node is not made whose trial is not the planned one.
CHANGED = "the code changed during the run: run the command again"


@dataclass(frozen=True)
class Role:
    """The part of a trial that a node makes: ``victim``, ``null``, ``shadow 3`` or ``baselines``.

    ``inner`` is the position of a model that a defense of that victim trains.
    """

    name: str
    inner: int | None = None


@dataclass
class Node:
    """Something to make.

    Attributes:
        name: digest of the key of its last stage, or of the trial.
        trial: digest of the first trial that needs it.
        role: role of the victim in the trial; None for the trial itself.
        kind: readable name; nodes of one kind take about equally long.
        needs: names of nodes that must be made before it.
        after: names of nodes that store something that it would also compute. It waits for them, so
            that nothing is computed twice, but does not fail with them.
    """

    name: str
    trial: str
    role: Role | None
    kind: str
    needs: set[str] = field(default_factory=set)
    after: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Packed:
    """A node with its trial, for a worker.

    Attributes:
        sent: both, pickled.
        code: digest of the code of others that the worker loads, see ``origins.code_of``.
        apart: whether the attack is of another package, and so answers in a process of its own.
    """

    sent: bytes
    code: str = ""
    apart: bool = False


@dataclass(frozen=True)
class Setup:
    """Everything that a worker needs to start.

    Attributes:
        store: folder of artifacts.
        device: device on which it computes.
        root: folder of datasets.
        threads: of torch, see ``Numerics`` for this and the next two.
        compiled: whether torch.compile is used.
        precision: of training.
        plugins: plugins that are single files; one is loaded where something names it.
        code: digest of the code of others that the worker loads, see ``origins.code_of``.
    """

    store: Path
    device: str
    root: Path | None
    threads: int = 1
    compiled: bool = False
    precision: str = "float32"
    plugins: tuple[PluginFile, ...] = ()
    code: str = ""

    @property
    def numerics(self) -> Numerics:
        """How each node is computed; torch is imported here."""
        from privbench.measure.training.numerics import Numerics

        return Numerics(self.threads, self.compiled, self.precision)  # type: ignore[arg-type]

    def load_plugins(self) -> None:
        """Let plugin files be found, so that what names their classes can be unpickled.

        How the process computes is remembered before.
        """
        from privbench.ground.store.store import Store
        from privbench.plugins import canary
        from privbench.plugins.plugin_file import offer

        canary.remember()
        Store.code = self.code
        offer(self.plugins)


@dataclass(frozen=True)
class Begun:
    """The worker has started and begins its node."""


@dataclass(frozen=True)
class PhaseProgress:
    """Progress of a training phase; see ``Progress``.

    ``peak_bytes`` is the most memory that the node took so far, as in ``Done``.
    """

    phase: str
    done: float
    total: int
    rows: int
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Done:
    """The worker finished its node.

    Attributes:
        seconds: seconds that it took.
        trained_phases: number of phases that it trained.
        record: the record of a trial, as JSON.
        samples: its per-sample scores; b"" for none.
        error: why the node could not be made; "" if it was made.
        traceback: traceback of the error.
        peak_bytes: most memory that it took on a CUDA device; 0 on the CPU.
    """

    seconds: float = 0.0
    trained_phases: int = 0
    record: str = ""
    samples: bytes = b""
    error: str = ""
    traceback: str = ""
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Lost:
    """The worker died or ran out of memory before it finished its node.

    ``again`` says whether to try once more; the rest as in ``Done``.
    """

    how: str
    again: bool = True
    trained_phases: int = 0
    traceback: str = ""
    peak_bytes: int | None = None


Message: TypeAlias = "Begun | PhaseProgress | Done | Lost"
