"""Turns a suite into planned trials."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from privbench.grid.compatible import why_not
from privbench.grid.outcome import encodable
from privbench.grid.resolver import Resolver
from privbench.grid.trial import Trial
from privbench.ground.errors import BadInputError, PluginError, PrivbenchError
from privbench.ground.text import shown
from privbench.measure.methods.access import BLACK_BOX
from privbench.measure.methods.cell import Cell
from privbench.measure.training.numerics import USUAL, Numerics
from privbench.measure.training.process_state import restored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from privbench.grid.suite import Suite
    from privbench.measure.data.examples import Card
    from privbench.measure.methods.adversary import Adversary
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.target import Target
    from privbench.plugins.registry import Registry


MOST_TRIALS = 120_000
MOST_SHADOWS = 1_000


@dataclass(frozen=True)
class PlannedTrial:
    """A trial, and the reason if it is skipped or has failed already.

    Attributes:
        trial: what is to run.
        skip, failed: see ``Item``.
    """

    trial: Trial
    skip: str | None = None
    failed: tuple[str, str] | None = None


class NothingRunsError(BadInputError):
    """No cell of a grid can run.

    Attributes:
        reasons: why -> an attack that it keeps from running.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        """Compose the message."""
        self.reasons = reasons
        super().__init__(f"nothing in this grid can run: {'; '.join(sorted(reasons))}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy is made, for other processes."""
        return type(self), (self.reasons,)


def plan(
    suite: Suite,
    registry: Registry,
    *,
    root: Path | None,
    device: str,
    numerics: Numerics = USUAL,
) -> list[PlannedTrial]:
    """All trials of the grid, with a reason if skipped; nothing is loaded or trained.

    Args:
        suite: what to run.
        registry: of methods.
        root: folder of datasets.
        device: where trials run.
        numerics: of each trial.

    Raises:
        UnknownNameError: for a name or hyperparameter that does not exist.
        BadInputError: for a value out of range, or if no cell of the grid can run.
    """
    with restored():
        resolver = Resolver(suite, registry)
        _check_shadows(resolver.attacks)
        cells = []
        for cell in _cells(resolver, root):
            cells.append(cell)
            if len(cells) * len(suite.seed_list) > MOST_TRIALS:
                raise BadInputError(
                    f"this grid has more than {MOST_TRIALS:,} trials: split it into several suites"
                )
        if suite.match_utility is not None:
            _check_matching(cells)
        judged = [_runnable(cell) for cell in cells]
    planned: dict[str, PlannedTrial] = {}
    for seed in suite.seed_list:
        for cell, (skip, failed) in zip(cells, judged, strict=True):
            trial = Trial(cell, seed, device, numerics)
            planned.setdefault(trial.digest, PlannedTrial(trial, skip, failed))
    if all(skip for skip, _ in judged):
        raise NothingRunsError(
            {skip: cell.attack.name for cell, (skip, _) in zip(cells, judged, strict=True) if skip}
        )
    return list(planned.values())


def _check_matching(cells: Iterable[Cell]) -> None:
    """Refuse to match utility where there is nothing to compare, or no rows to compare it on."""
    cells = list(cells)
    if not any(all(d.name == "none" for d in cell.defenses) for cell in cells):
        raise BadInputError(
            "match_utility compares defenses with 'none': leave out `baseline: false`"
        )
    for cell in cells:
        if not cell.protocol.parts()["reference"].count(cell.card):
            raise BadInputError(
                "match_utility compares accuracy on reference rows, and protocol "
                f"'{shown(cell.protocol.name)}' has none on {cell.card.name}: give it `reference`"
            )


def _runnable(cell: Cell) -> tuple[str | None, tuple[str, str] | None]:
    """Return why a cell is skipped, and what went wrong when its methods were asked.

    A plugin that raises here costs its own cells and no others.
    """
    try:
        _ = cell.attack.shadows.count, cell.attack.max_rows  # asked by everything that follows
        why = why_not(cell)
        return None if why is None else encodable(why), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - failure is data, and so is sys.exit()
        sentence = str(error) if isinstance(error, PrivbenchError) else _raised(error)
        return None, (encodable(sentence), encodable(traceback.format_exc()))


def _raised(error: BaseException) -> str:
    return (
        f"a plugin raised {type(error).__name__} while the grid was planned "
        f"({shown(str(error), 160)}): fix the plugin or leave its method out"
    )


def _asked(what: str, call: Callable[..., Any], *args: Any) -> Any:
    """Ask a plugin what every cell of the grid needs; an exception in it ends planning.

    Raises:
        PluginError: one sentence that says what was asked.
    """
    try:
        return call(*args)
    except PrivbenchError:
        raise
    except Exception as error:
        raise PluginError(f"{what}: {_raised(error)}") from error


def _check_shadows(attacks: Iterable[Attack]) -> None:
    for attack in attacks:
        if _shadows(attack) > MOST_SHADOWS:
            raise BadInputError(
                f"{attack.name} asks for {shown(attack.shadows.count)} shadows: "
                f"choose {MOST_SHADOWS:,} or fewer"
            )


def _cells(resolver: Resolver, root: Path | None) -> Iterator[Cell]:
    """Yield the cells of a grid, in the order of the suite."""
    suite, controls = resolver.suite, resolver.controls
    for dataset in resolver.datasets:
        card: Card = _asked(f"dataset '{dataset.name}'", dataset.card, root)
        resolver.refuse_sensitive(card.name, card.attributes)
        sensitive = _sensitive(suite, card)
        for named in suite.protocols:
            protocol = resolver.protocol(named, dataset)
            for target in resolver.targets:
                for stack in (*resolver.stacks, *controls):
                    for attack in resolver.attacks:
                        adversaries = _distinct(
                            resolver.adversaries, dataset, target, stack, attack,
                            elsewhere=protocol.trained_elsewhere,
                        )  # fmt: skip
                        for adversary in adversaries:
                            cell = Cell(
                                card, protocol, target, stack, adversary, attack, sensitive,
                                dataset, suite.preset, _pool(adversary, root),
                            )  # fmt: skip
                            if stack not in controls or _suits(cell):
                                yield cell


def _sensitive(suite: Suite, card: Card) -> tuple[str, ...]:
    if suite.sensitive is None:
        return card.sensitive
    return tuple(dict.fromkeys(suite.sensitive))


def _suits(cell: Cell) -> bool:
    """Whether the attack of the cell can find what its control plants."""
    (control,) = cell.defenses
    return _asked(f"defense '{control.name}'", control.incompatible, cell) is None


def _pool(adversary: Adversary, root: Path | None) -> Card | None:
    """Card of the dataset of the adversary's pool, if that is another than the victim's."""
    dataset = adversary.dataset
    return _asked(f"dataset '{dataset.name}'", dataset.card, root) if dataset else None


def _distinct(
    adversaries: Iterable[Adversary],
    dataset: Dataset,
    target: Target,
    stack: tuple[Defense, ...],
    attack: Attack,
    *,
    elsewhere: bool,
) -> Iterator[Adversary]:
    """Adversaries that differ in this cell: naive equals adaptive without a defense.

    Without shadows, their target does not matter, and adaptive and naive differ only if a release
    changes the outputs for the adversary's own rows. Gradients and weights matter only to attacks
    that use them. Giving the victim's own target or dataset is the same as leaving it out. An
    attack may train models without asking for shadows: if the victim was trained ``elsewhere``, all
    of them are of the adversary's target.
    """
    undefended = all(d.stages() == frozenset() for d in stack)
    releases = any("release" in d.stages() for d in stack)
    shadowless = _shadows(attack) == 0
    unused = shadowless and not (elsewhere and "trainable" in attack.requires)
    seen = set()
    for adversary in adversaries:
        as_used = replace(
            adversary,
            adaptive=adversary.adaptive or undefended or (shadowless and not releases),
            target=None if unused or adversary.target == target else adversary.target,
            dataset=None if adversary.dataset == dataset else adversary.dataset,
            white_box=adversary.white_box and bool((attack.needs | attack.wants) & ~BLACK_BOX),
        )
        if as_used not in seen:
            seen.add(as_used)
            yield as_used


def _shadows(attack: Attack) -> int:
    """Return how many shadows an attack needs; 1 if it cannot say so, which fails its cells."""
    try:
        return int(attack.shadows.count)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - told for each of its cells, see ``_runnable``
        return 1
