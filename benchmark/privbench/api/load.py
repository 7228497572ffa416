"""A trained victim or shadow of a suite, for a researcher who wants to look inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench.api.arguments import named_as_arguments
from privbench.api.planning import Planning
from privbench.api.session import suite_of
from privbench.grid.origins import code_here
from privbench.grid.trial import cell_record
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.store.store import Store
from privbench.ground.text import shown
from privbench.measure.training.process_state import threads as thread_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.grid.plan import PlannedTrial
    from privbench.grid.suite import Suite
    from privbench.grid.trial_runner import TrialRunner
    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.training.model import Model
    from privbench.measure.victims.served import Victim
    from privbench.measure.victims.spec import VictimSpec
    from privbench.results.record import CellRecord

#: Cells that a message names.
_SHOWN = 6


@dataclass(frozen=True, repr=False)
class Loaded:
    """A trained model with the rows that it was trained on.

    It holds the truth of the membership question, so never give it to an attack.

    >>> import privbench
    >>> sorted(f for f in privbench.Loaded.__dataclass_fields__ if f != "served")
    ['cell', 'model', 'nonmembers', 'role', 'seed', 'world']

    Attributes:
        model: the raw model, a torch module in eval mode without gradients: ``model.parts`` by
            name, ``model.encode(x)`` (n, d), ``model.logits(h)`` (n, k), ``state_dict()``.
        served: the same model as attacks query it, through the releases of its defenses:
            ``embeddings(x)``, ``log_posteriors(x)``, ``labels(x)``; ``facts`` says what its making
            took, noted and claimed.
        world: what it was trained on: ``world.members``, ``world.reference`` and other parts, each
            with x, y and attributes.
        nonmembers: candidates that are no members of this model.
        cell: the cell of the grid that it was made for.
        role: ``victim``, ``null``, ``shadow 0``, …
        seed: of the split.
    """

    model: Model
    served: Victim
    world: World
    nonmembers: Examples
    cell: Cell
    role: str
    seed: int

    def __repr__(self) -> str:
        """Name the model; its rows and weights would be pages."""
        cell = self.cell
        return (
            f"Loaded({self.role} of {cell.target.label} on {cell.card.name}, defense "
            f"{cell.defense}, seed {self.seed}; {len(self.world.members)} members)"
        )


@named_as_arguments
def load(
    suite: Suite | Mapping[str, Any] | str | Path,
    role: str = "victim",
    *,
    seed: int | None = None,
    dataset: str | None = None,
    target: str | None = None,
    defense: str | None = None,
    adversary: str | None = None,
    attack: str | None = None,
    data_root: str | Path | None = None,
    device: str = "auto",
    threads: int = 1,
    precision: str = "auto",
    plugins: Sequence[str | Path] = (),
) -> Loaded:
    """Return a trained model of a suite: from the store, or trained now if it is not there.

    >>> import privbench
    >>> suite = {"attacks": ["metric-loss"], "targets": [{"supervised": {"epochs": 1}}]}
    >>> victim = privbench.load(suite, defense="none", device="cpu")
    >>> sorted(victim.model.parts), len(victim.world.members), len(victim.nonmembers)
    (['classifier', 'encoder'], 100, 400)
    >>> victim.served.labels(victim.nonmembers.x).shape
    torch.Size([400])

    Args:
        suite: a suite, a mapping, or a path of a YAML file; see ``run``.
        role: ``victim`` (``victim 1``, … in games about several), ``null`` for the one trained on
            none of the candidates, ``shadow 0``, … for those that the attack declares.
        seed: one of the suite's; None for its first one.
        dataset: as a board names it. These names are needed where the suite has several cells
            that give different models.
        target: likewise.
        defense: likewise; a stack is ``talos+memguard``.
        adversary: likewise.
        attack: likewise.
        data_root: directory of datasets; None for the one that PRIVBENCH_DATA names, if any.
        device: ``cpu``, ``cuda`` or ``auto``.
        threads: of training; another number gives another model.
        precision: of training, see ``run``.
        plugins: paths of plugins that are single files.

    Raises:
        UnknownNameError: if the suite has no such cell, seed or role.
        BadInputError: if several models are meant.
    """
    options = {"out": Path(), "data_root": Path(data_root) if data_root else None,
               "device": device, "threads": threads, "precision": precision}  # fmt: skip
    files = [Path(one).absolute() for one in plugins]
    asked = suite_of(suite)
    planned = Planning(asked, files, options)
    wanted = {"dataset": dataset, "target": target, "defense": defense, "adversary": adversary,
              "attack": attack}  # fmt: skip
    return loaded(planned, wanted, role, asked.seed_list[0] if seed is None else seed)


def loaded(
    planned: Planning,
    wanted: Mapping[str, str | None],
    role: str,
    seed: int,
    *,
    refusal: str | None = None,
) -> Loaded:
    """Return a model of a planned grid.

    Args:
        planned: the grid.
        wanted: kind of method -> its name; None for any.
        role: as in ``load``.
        seed: one of the grid's.
        refusal: what to say instead of training a model that the store lacks; None trains it.

    Raises:
        UnknownNameError: if the grid has no such cell, seed or role.
        BadInputError: if several models are meant, or one would be trained that must not be.
    """
    items = chosen(planned.planned, wanted, seed)
    runner = planned.runner
    code = code_here(one.trial.cell for one in planned.planned)
    with thread_count(runner.builder.numerics.threads), Store.of_code(code):
        item, spec = _one(items, role, runner)
        needed = runner.builder.keys(spec).stages
        if refusal is not None and not all(key in runner.store for key in needed):
            raise BadInputError(refusal)
        served = runner.materials.victim(spec)
    cell = item.trial.cell
    candidates = runner.materials.split(cell, item.trial.seed).candidates
    outside = candidates.select(~spec.world.contains(candidates))
    return Loaded(served.model, served, spec.world, outside, cell, role, item.trial.seed)


def chosen(
    planned: Sequence[PlannedTrial], wanted: Mapping[str, str | None], seed: int
) -> list[PlannedTrial]:
    """The trials that have these names and this seed, and can run."""
    seeds = dict.fromkeys(str(item.trial.seed) for item in planned)
    if str(seed) not in seeds:
        raise UnknownNameError("seed of the suite", str(seed), seeds)
    left = [(item, _names(cell_record(item.trial.cell))) for item in planned
            if item.trial.seed == seed]  # fmt: skip
    for kind, name in wanted.items():
        if name is None:
            continue
        known = dict.fromkeys(one for _, names in left for one in names[kind])
        left = [(item, names) for item, names in left if name in names[kind]]
        if not left:
            raise UnknownNameError(f"{kind} of the suite", name, known)
    able = [item for item, _ in left if not (item.skip or item.failed)]
    if not able:
        first = left[0][0]
        raise BadInputError(f"no such cell can run: {first.skip or (first.failed or ('',))[0]}")
    return able


def _names(cell: CellRecord) -> dict[str, tuple[str, ...]]:
    """Kind -> the label, and the name without settings."""
    stack = "+".join(defense.name for defense in cell.defenses)
    return {
        "dataset": (cell.dataset.label, cell.dataset.name),
        "target": (cell.target.label, cell.target.name), "defense": (cell.defense, stack),
        "adversary": (cell.adversary,), "attack": (cell.attack.label, cell.attack.name),
    }  # fmt: skip


def _one(
    items: Iterable[PlannedTrial], role: str, runner: TrialRunner
) -> tuple[PlannedTrial, VictimSpec]:
    """The only model of that role, with the first trial that needs it."""
    found: dict[str, tuple[PlannedTrial, VictimSpec]] = {}
    roles: dict[str, None] = {}
    for item in items:
        specs = runner.every_spec(item.trial)
        roles |= dict.fromkeys(specs)
        if role in specs:
            found.setdefault(specs[role].identity, (item, specs[role]))
    if not found:
        raise UnknownNameError("role", role, roles)
    if len(found) > 1:
        cells = [_names(cell_record(item.trial.cell)) for item, _ in found.values()]
        apart = {
            kind: sorted({cell[kind][0] for cell in cells})[:_SHOWN]
            for kind in cells[0] if len({cell[kind] for cell in cells}) > 1
        }  # fmt: skip
        told = "; ".join(f"{kind}: {shown(', '.join(names), 200)}" for kind, names in apart.items())
        raise BadInputError(
            f"the suite has {len(found)} different models with the role '{shown(role)}': say which "
            f"you mean ({told or 'give a suite of one protocol'})"
        )
    return next(iter(found.values()))
