"""Panels without a defense that differ in victim or adversary only, as one table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from privbench.boards.matrix import (
    WIDEST,
    Table,
    attack_text,
    rate_text,
    spot_text,
    strongest_first,
    with_error,
)
from privbench.boards.notes import remarks
from privbench.ground.text import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench.boards.panel import Panel

_PARTS = ("target", "adversary")


def grouped(found: Sequence[Panel]) -> list[list[Panel]]:
    """Return panels in groups, in the order of their first ones.

    Panels of one dataset that have no defense and the same attacks are together; every other one
    is alone.
    """
    groups: dict[object, list[Panel]] = {}
    for panel in found:
        alone = len(panel.rows) > 1 or len(panel.own) >= WIDEST - 1
        same = (panel.dataset, *sorted(panel.own), *sorted(_settings(panel)))
        groups.setdefault(id(panel) if alone else same, []).append(panel)
    return [sorted(group, key=_place) for group in groups.values()]


def _settings(panel: Panel) -> set[str]:
    """Attacks with all hyperparameters and versions, which names do not always tell apart."""
    spots = panel.rows[0].spots
    records = [one for attack in panel.own if attack in spots for one in spots[attack].records]
    return {f"{one.cell.attack.label} v{one.cell.attack.version}" for one in records}


def _place(panel: Panel) -> list[list[tuple[int, str]]]:
    """A key that sorts numbers inside labels as numbers."""
    return [
        [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", label)]
        for label in (panel.target, panel.adversary)
    ]


def differing(group: Sequence[Panel]) -> list[str]:
    """Return the names of the parts in which the panels of a group differ."""
    return [part for part in _PARTS if len({getattr(panel, part) for panel in group}) > 1]


def named(panel: Panel, parts: Sequence[str]) -> str:
    """Return what tells a panel from the others of its group, as text."""
    return ", ".join(getattr(panel, part) for part in parts)


def group_title(group: Sequence[Panel]) -> str:
    """Return what all numbers of a group share."""
    first = group[0]
    if len(group) == 1:
        return first.title
    same = [first.dataset]
    same += [getattr(first, part) for part in _PARTS if part not in differing(group)]
    adversary = "" if "adversary" in differing(group) else " adversary"
    return f"{', '.join(same)}{adversary}, no defense"


def group_table(group: Sequence[Panel]) -> Table:
    """Return victims or adversaries, as rows, against attacks, with their rates if they fit.

    Args:
        group: two panels or more, see ``grouped``.
    """
    first, parts = group[0], differing(group)
    attacks = strongest_first(first, first.own)
    spots = [panel.rows[0].spots for panel in group]
    fit = 2 * len(attacks) < WIDEST - 1
    heads, body = [", ".join(parts)], [[markdown(named(panel, parts))] for panel in group]
    for attack in attacks:
        names = [attack_text(first, attack), markdown(f"{attack.name}: TPR at 1 % FPR")]
        rated = fit and any(known[attack].rates for known in spots if attack in known)
        heads += names[: 1 + rated]
        for row, panel, known in zip(body, group, spots, strict=True):
            spot = known.get(attack)
            row.extend([spot_text(spot, panel), rate_text(spot, panel)][: 1 + rated])
    if parts == ["adversary"]:
        line = first.rows[0]
        note = f"Test accuracy: {with_error(line.accuracy, len(line.accuracies))}."
        return Table(group_title(group), heads, body, "rows", note=note if line.accuracies else "")
    heads.append("test accuracy")
    for row, panel in zip(body, group, strict=True):
        line = panel.rows[0]
        row.append(with_error(line.accuracy, len(line.accuracies)))
    return Table(group_title(group), heads, body, "rows")


def at(leaks: Mapping[str, float], leak: float) -> str:
    """Return a leak, and who finds it: the name, or how many where several do."""
    names = [name for name, value in leaks.items() if round(value, 3) == round(leak, 3)]
    who = names[0] if len(names) == 1 else f"{len(names)} of {len(leaks)} rows"
    return f"{leak:.3f} ({who})"


def group_remarks(group: Sequence[Panel]) -> list[str]:
    """Return what the panels of a group lack: once if it is the same for all, else by row."""
    told = {named(panel, differing(group)): remarks(panel) for panel in group}
    if len({*told.values()}) == 1:
        return [*filter(None, {*told.values()})]
    return [f"{markdown(name)}: {text}" for name, text in told.items() if text]
