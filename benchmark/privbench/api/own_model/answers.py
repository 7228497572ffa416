"""The audit of a model's answers alone, without the model: of any library, or out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.api.own_model.rows import (
    Rows,
    is_regression,
    labels_of,
    sizes_of,
    source_of,
    targets_of,
)
from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.toolbox.looked_up import Lookup, joined, library, register

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privbench.toolbox.row_files import Reading

_MATRIX = 2  # axes


def as_given(answers: Any) -> Any:
    """Return the answers: the model of an audit whose rows are these."""
    return answers


def read_answers(
    members: Any, nonmembers: Any, reading: Reading, *, shadow: Any = None, recipe: Any = None,
    output: str = "auto",
) -> Rows:  # fmt: skip
    """Read what a model answered, as the rows of an audit.

    Each file or object holds posteriors or logits (n, k), a column for each class, and the classes
    y. Columns of a table may be named as the classes; otherwise they are in the order of these.
    A regression's x is one column of predictions, and y what they should be.

    Raises:
        BadInputError: if they cannot be used; one sentence that says what to do.
    """
    if shadow is not None or recipe is not None:
        raise BadInputError("answers: shadows are models that are asked about rows, and there are "
                            "none: leave them out, or give the model and its rows")  # fmt: skip
    files = {"members": members, "nonmembers": nonmembers}
    held = {source: source_of(given, source, reading) for source, given in files.items()}
    for source, arrays in held.items():
        if not {"x", "y"} <= set(arrays):
            raise BadInputError(f"{source}: it needs the answers x and the classes y")
    x = {source: arrays["x"] for source, arrays in held.items()}
    sizes = sizes_of(x)
    regression = is_regression(held, output)
    if regression:
        x = {source: one[:, None] if np.ndim(one) == 1 else one for source, one in x.items()}
    widths = {_numbers(one, source).shape[1] for source, one in x.items()}
    if len(widths) > 1:
        raise BadInputError("nonmembers: it has not as many columns as the members: give one "
                            "column for each class")  # fmt: skip
    made = _numbers(joined(x), "answers")  # columns of both tables are in one order
    if regression:
        lookup = Lookup(made, opaque=True, targets=targets_of(held, sizes))
        return Rows(
            lookup.x, None, sizes, fingerprints=lookup.prints, lookup=lookup,
            source=register(lookup, [], reading), targets=lookup.targets,
        )  # fmt: skip
    labels = labels_of(held, sizes)
    names = _names(x["members"], labels)
    if names is not None:  # ties are decided by order: that of columns must not matter
        order = np.argsort(names)
        names, made = names[order], made[:, order]
    lookup = Lookup(made, opaque=True)
    places: NDArray[np.int64] = np.unique(np.asarray(labels), return_inverse=True)[1]
    return Rows(
        lookup.x, places, sizes, fingerprints=lookup.prints, labels=labels, lookup=lookup,
        source=register(lookup, [], reading), names=names,
    )  # fmt: skip


def _numbers(x: Any, source: str) -> NDArray[np.float64]:
    """Return answers (n, k)."""
    try:
        made = np.asarray(x.to_numpy() if library(x) else x, np.float64)
    except (TypeError, ValueError):
        names = (
            [n for n in x.columns if x[n].to_numpy().dtype.kind not in "biuf"] if library(x) else []
        )
        told = f"column {shown(names[0])} holds no numbers" if names else "x holds no numbers"
        raise BadInputError(f"{source}: {told}: give answers, a column for each class, and the "
                            "label")  from None  # fmt: skip
    if not np.isfinite(made).all():
        row = int((~np.isfinite(made)).reshape(len(made), -1).any(1).argmax())
        raise BadInputError(f"{source}: an answer is NaN or infinite, first in row {row}: correct "
                            "or drop such rows; in place of logarithms give posteriors"
                            )  # fmt: skip
    if made.ndim != _MATRIX:
        raise BadInputError(f"{source}: answers have shape {made.shape}: give (n, k), a column for "
                            "each class")  # fmt: skip
    return made


def _names(x: Any, labels: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return the classes that columns are named after, in their order; None if they are not."""
    if not library(x) or labels is None or len(x.columns) == 1:
        return None
    names = [str(name) for name in x.columns]
    if labels.dtype.kind == "U":
        return np.array(names)
    try:
        return np.array([int(name) for name in names])
    except ValueError:
        return None
