"""Undefended panels that differ only in what the adversary knows, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards.matrix import (
    WIDEST,
    Table,
    aim_text,
    attack_text,
    rate_text,
    spot_text,
    strongest_first,
)
from privbench.text import markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.panel import Panel


def grouped(found: Sequence[Panel]) -> list[list[Panel]]:
    """Return panels in groups, in the order of their first ones.

    Panels of one dataset and target that have no defense and the same attacks are together; every
    other one is alone.
    """
    groups: dict[object, list[Panel]] = {}
    for panel in found:
        alone = len(panel.lines) > 1 or len(panel.own) >= WIDEST
        same = (panel.dataset, panel.target, *sorted(panel.own))
        groups.setdefault(id(panel) if alone else same, []).append(panel)
    return list(groups.values())


def title(group: Sequence[Panel]) -> str:
    """Return what all numbers of a group share."""
    first = group[0]
    return first.title if len(group) == 1 else f"{first.dataset}, {first.target}, no defense"


def table(group: Sequence[Panel]) -> Table:
    """Return what adversaries know, as rows, against attacks, with their rates if they fit.

    Args:
        group: two panels or more, see ``grouped``.
    """
    first = group[0]
    attacks = strongest_first(first, first.own)
    rated = 2 * len(attacks) < WIDEST and any(
        spot.rates for panel in group for spot in panel.lines[0].spots.values()
    )
    heads, body = ["adversary"], [[markdown(panel.adversary)] for panel in group]
    for attack in attacks:
        names = [attack_text(first, attack), markdown(f"{attack.name}: TPR at 1 % FPR")]
        heads += names[: 1 + rated]
        for row, panel in zip(body, group, strict=True):
            spot = panel.lines[0].spots.get(attack)
            row.extend([spot_text(spot, panel), rate_text(spot, panel)][: 1 + rated])
    return Table(title(group), heads, body, "adversaries")


def findings(group: Sequence[Panel]) -> list[str]:
    """Return how far the adversary's knowledge moves the strongest attack, a line an aim."""
    first = group[0]
    told = []
    for aim in first.aims:
        known = {panel.adversary: panel.lines[0].leak(aim) for panel in group}
        leaks = {name: leak for name, leak in known.items() if leak is not None}
        if leaks:
            sign = 1 if first.higher[aim] else -1
            weak, strong = (pick(leaks, key=lambda name: sign * leaks[name]) for pick in (min, max))
            told.append(
                f"- **{markdown(f'{first.target} on {first.dataset}, {aim_text(aim)}')}**"
                + markdown(
                    f": without a defense the strongest attack reaches {first.metric[aim]} "
                    f"{leaks[strong]:.3f} ({strong}); with what the adversaries of the table "
                    f"know, no less than {leaks[weak]:.3f} ({weak})."
                )
            )
    return told
