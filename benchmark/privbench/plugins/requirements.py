"""Common requirements of methods, and why a cell does not meet one.

A method declares them by name (``Method.requires``). Some follow from other facts and are not
declared: who reads or changes labels or posteriors needs classes, and who infers or reads
attributes needs attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.ground.errors import PluginError
from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Attack
from privbench.measure.methods.defense import Defense

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.method import Method

#: Access to what only a classifier gives.
_OF_CLASSES = Access.LABELS | Access.POSTERIORS


def reason_to_skip(method: Method, cell: Cell) -> str | None:
    """Return why the method cannot run in the cell, or None: common reasons, then its own.

    Raises:
        PluginError: if its own reason is no sentence.
    """
    for name in (*required(method), *_of_shadows(method)):
        unmet = REQUIREMENTS[name](cell)
        if unmet:
            return f"{method.name} needs {unmet}"
    reason: object = method.incompatible(cell)
    if reason is None or (isinstance(reason, str) and reason.strip()):
        return reason
    raise PluginError(
        f"incompatible() of {method.name} returned {reason!r}: return a sentence, or None if the "
        "method can run in the cell"
    )


def required(method: Method) -> tuple[str, ...]:
    """Return the names of all its requirements: declared, and implied by other facts."""
    names = list(method.requires)
    if isinstance(method, Attack):
        if method.needs & _OF_CLASSES:
            names.append("classes")
        if method.game == "attributes":
            names.append("attributes")
    elif isinstance(method, Defense):
        if method.release_class and method.release_class.of == "posterior":
            names.append("classes")
        if method.uses_attributes:
            names.append("attributes")
    return tuple(dict.fromkeys(names))


def _of_shadows(method: Method) -> tuple[str, ...]:
    """What the shadows of an attack require."""
    if not isinstance(method, Attack) or not method.shadows.count:
        return ()
    return ("pool", "trainable") if method.shadows.origin == "offline" else ("trainable",)


def _classes(cell: Cell) -> str | None:
    classes = cell.card.classes or 0
    if classes > 1:
        return None
    return f"at least two classes, and {cell.card.name} has {classes or 'none'}"


def _images(cell: Cell) -> str | None:
    if cell.card.kind == "image":
        return None
    return f"images, and {cell.card.name} has {cell.card.kind} columns"


def _attributes(cell: Cell) -> str | None:
    if not cell.sensitive:
        return "a sensitive attribute, and the cell names none"
    missing = [name for name in cell.sensitive if name not in cell.card.attributes]
    if not missing:
        return None
    have = ", ".join(cell.card.attributes) or "none"
    return f"attribute '{missing[0]}', which {cell.card.name} does not have (it has: {have})"


def _one_attribute(cell: Cell) -> str | None:
    if len(cell.sensitive) == 1:
        return _attributes(cell)
    return f"exactly one sensitive attribute, and the cell names {len(cell.sensitive) or 'none'}"


def _reference_rows(cell: Cell) -> str | None:
    if cell.protocol.parts()["reference"].count(cell.card):
        return None
    return f"reference rows, and protocol '{cell.protocol.name}' has none"


def _pool(cell: Cell) -> str | None:
    if cell.adversary.dataset or cell.protocol.parts()["pool"].count(cell.card) > 1:
        return None
    how = " (--shadow)" if cell.protocol.trained_elsewhere else ""
    return f"rows of the adversary's own{how}, and protocol '{cell.protocol.name}' has none"


def _trainable(cell: Cell) -> str | None:
    if cell.adversary.target or not cell.protocol.trained_elsewhere:
        return None
    return (
        "models that it can train, and the victim was trained elsewhere: name a target for them "
        "(--shadow-recipe)"
    )


def _member_labels(cell: Cell) -> str | None:
    if cell.target.labelled_encoder or cell.protocol.classifier == "members":
        return _classes(cell)
    return (
        "a phase that reads members' labels, and "
        f"{cell.target.name} has none under protocol '{cell.protocol.name}'"
    )


def _trained_encoder(cell: Cell) -> str | None:
    if cell.target.trains_encoder:
        return None
    return f"a phase that trains the encoder, and that of {cell.target.name} is frozen"


#: Name -> what a cell lacks, as the end of a sentence; None if it lacks nothing.
REQUIREMENTS: Mapping[str, Callable[[Cell], str | None]] = {
    "classes": _classes,
    "images": _images,
    "attributes": _attributes,
    "one-attribute": _one_attribute,
    "pool": _pool,
    "reference-rows": _reference_rows,
    "member-labels": _member_labels,
    "trained-encoder": _trained_encoder,
    "trainable": _trainable,
}
