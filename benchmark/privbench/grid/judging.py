"""By which attacks each defense is judged, with all their hyperparameters, for boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.grid.origins import OURS, origin_of
from privbench.grid.trial import plain
from privbench.ground.errors import PrivbenchError
from privbench.ground.judges import EVERY, STRONGEST, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from privbench.ground.judges import Judge
    from privbench.measure.methods.attack import Attack
    from privbench.plugins.registry import Registry


def judging(registry: Registry) -> dict[str, list[Wanted]]:
    """Return defense -> the attacks that must have met it before a board ranks it.

    ``EVERY`` stands for all defenses: the strongest attacks of each game.
    """
    made = {one.name: _wanted(one.judged_by, registry, origin_of(one))
            for one in registry.all("defense") if one.judged_by}  # fmt: skip
    every = (judge for judges in STRONGEST.values() for judge in judges)
    return {**made, EVERY: _wanted(every, registry, OURS)}


def installed(judge: Judge, registry: Registry, names_it: str) -> Attack | None:
    """Return a judge with its hyperparameters; None if it, or a version with these, is not here.

    Args:
        judge: of a defense.
        registry: with all attacks.
        names_it: origin of the defense. What privbench names is its own attack, whoever else uses
            the name.
    """
    try:
        attack: Attack = registry.get("attack", judge.attack).replace(**judge.fields)
    except PrivbenchError:
        return None
    return None if names_it == OURS != origin_of(attack) else attack


def _wanted(judges: Iterable[Judge], registry: Registry, names_it: str) -> list[Wanted]:
    return [_at_full_strength(one, registry, names_it) for one in judges]


def _at_full_strength(judge: Judge, registry: Registry, names_it: str) -> Wanted:
    attack = installed(judge, registry, names_it)
    if attack is None:
        origin = OURS if names_it == OURS else ""
        return Wanted(judge.label, judge.attack, 0, "", dict(judge.fields), origin)
    fields = {name: plain(value) for name, value in attack.hyperparameters().items()}
    return Wanted(judge.label, judge.attack, attack.version, attack.game, fields, origin_of(attack))
