"""Reasons to skip a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from privbench.ground.errors import BadInputError
from privbench.measure.games.catalog import GAMES
from privbench.measure.methods.access import BLACK_BOX, Access
from privbench.plugins.requirements import reason_to_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench.measure.methods.cell import Cell


def why_not(cell: Cell) -> str | None:
    """The reason to skip a cell, or None; a pure function of card, protocol and hyperparameters."""
    return next(_reasons(cell), None)


def _reasons(cell: Cell) -> Iterator[str]:
    """All reasons to skip, in order of the checks; a check may rely on those before it."""
    if cell.attack.game not in GAMES:
        known = ", ".join(sorted(GAMES))
        yield f"{cell.attack.name} plays '{cell.attack.game}': choose from {known}"
    try:
        cell.protocol.sizes(cell.card)
    except BadInputError as error:
        yield str(error)
    yield from _incompatible_pool(cell)
    yield from _unstackable(cell)
    shadow_target = cell.adversary.target
    for method in (cell.dataset, cell.target, *cell.defenses, cell.attack):
        if method and (reason := reason_to_skip(method, cell)):
            yield reason
    if shadow_target and (
        reason := reason_to_skip(shadow_target, replace(cell, target=shadow_target))
    ):
        yield f"shadows of {shadow_target.name}: {reason}"
    if reason := _ungranted(cell):
        yield reason


def _unstackable(cell: Cell) -> Iterator[str]:
    """Why these defenses cannot be combined in one stack."""
    training = {"data", "labels", "build", "phases", "weights"}
    trainers = [d.name for d in cell.defenses if d.stages() & training]
    if len(trainers) > 1:
        yield (
            f"{' and '.join(trainers)} each change training, and one would undo or misread the "
            "changes of the other: use only one of them"
        )
    claims = [d.name for d in cell.defenses if d.claims_epsilon]
    learn = [
        d.name
        for d in cell.defenses
        if d.uses_training_data and not d.claims_epsilon and d.stages()
    ]
    if claims and learn:
        yield (
            f"the epsilon of {claims[0]} would not cover what {learn[0]} learns from members: "
            "with a DP claim, use only defenses that read no training data"
        )
    released = [(d.name, d.release_class) for d in cell.defenses if d.release_class]
    masks = [name for name, release in released if release.of == "posterior"]
    if len(masks) > 1:
        yield (
            f"{' and '.join(masks)} each change posteriors, and one learns from the posteriors of "
            "the unprotected model: use only one of them"
        )
    inner = next((name for name, release in reversed(released) if release.feeds_classifier), None)
    for name, release in released:
        if release.feeds_classifier and name == inner:
            break
        if inner and release.of == "embedding" and not release.feeds_classifier:
            yield (
                f"the classifier trains on embeddings released by {inner}, before {name} "
                f"changes them: write them as {inner}+{name}"
            )


def _incompatible_pool(cell: Cell) -> Iterator[str]:
    """Why a pool from another dataset cannot be used in this cell."""
    dataset, pool, attack = cell.adversary.dataset, cell.pool, cell.attack
    if dataset is None or pool is None:
        return
    if cell.dataset and dataset.name == cell.dataset.name:
        yield f"a pool from {dataset.name} itself would contain the victim's members"
    alike = [(card.kind, card.shape, card.scale) for card in (pool, cell.card)]
    if alike[0] != alike[1] and not pool.kind == cell.card.kind == "image":
        yield f"{pool.name} {pool.shape} cannot be converted to the shape of {cell.card.name}"
    sizes = cell.protocol.sizes(cell.card)
    shadow = cell.protocol.shadow or sizes["members"]
    wanted = 2 * shadow + 2 * sizes["reference"] + sizes["public"] + sizes["downstream"]
    if pool.rows < wanted:
        yield f"shadows on {pool.name} need {wanted} rows, but it has {pool.rows}"
    if attack.game != "membership":
        yield f"{attack.name} learns from rows of {cell.card.name}, not of {pool.name}"
    if attack.needs & (Access.LABELS | Access.POSTERIORS) and pool.classes != cell.card.classes:
        yield (
            f"{attack.name} compares classes, but {pool.name} has {pool.classes} and "
            f"{cell.card.name} has {cell.card.classes}"
        )
    censors = [d.name for d in cell.defenses if d.uses_attributes]
    if censors and cell.adversary.adaptive and attack.shadows.count:
        yield f"{censors[0]} needs attributes, which shadows on {pool.name} do not have"


def _ungranted(cell: Cell) -> str | None:
    """What the attack needs but is not granted, and who does not grant it."""
    attack, shadow_target = cell.attack, cell.adversary.target
    missing, never = attack.needs & ~cell.access, attack.needs & ~cell.target.grants
    if never:
        return f"{attack.name} needs {missing}, which target {cell.target.name} does not grant"
    if missing & ~BLACK_BOX and not cell.adversary.white_box:
        return f"{attack.name} needs {missing}, which only a white-box adversary has"
    if missing:
        culprit = f"target {cell.target.name} under {cell.defense}"
        return f"{attack.name} needs {missing}, which {culprit} does not grant"
    if shadow_target and attack.shadows.count and attack.needs & ~shadow_target.grants:
        lacking = attack.needs & ~shadow_target.grants
        return f"{attack.name} needs {lacking}, which shadows of {shadow_target.name} do not grant"
    return None
