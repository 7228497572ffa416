"""By which attacks each defense is judged, with all their hyperparameters, for boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.grid.trial import plain
from privbench.ground.errors import PrivbenchError
from privbench.ground.judges import EVERY, STRONGEST, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from privbench.ground.judges import Judge
    from privbench.plugins.registry import Registry


def judging(registry: Registry) -> dict[str, list[Wanted]]:
    """Return defense -> the attacks that must have met it before a board ranks it.

    ``EVERY`` stands for all defenses: the strongest attacks of each game.
    """
    made = {one.name: _wanted(one.judged_by, registry) for one in registry.all("defense")
            if one.judged_by}  # fmt: skip
    every = (judge for judges in STRONGEST.values() for judge in judges)
    return {**made, EVERY: _wanted(every, registry)}


def _wanted(judges: Iterable[Judge], registry: Registry) -> list[Wanted]:
    return [_at_full_strength(one, registry) for one in judges]


def _at_full_strength(judge: Judge, registry: Registry) -> Wanted:
    try:
        attack = registry.get("attack", judge.attack).replace(**judge.fields)
    except PrivbenchError:  # it is not installed, or another version is
        return Wanted(judge.label, judge.attack, 0, "", dict(judge.fields))
    fields = {name: plain(value) for name, value in attack.hyperparameters().items()}
    return Wanted(judge.label, judge.attack, attack.version, attack.game, fields)
