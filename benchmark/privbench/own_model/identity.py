"""Which model an audit is about: told by its answers to the members and nonmembers.

A file of weights or a pickle does not tell: the same forest, loaded twice, has other bytes. Answers
tell, up to rounding. So the answers of the first run are kept beside its results; another run is
about the same model if its answers agree with them, and then has their digest.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import numpy as np

from privbench.store.files import write

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

#: The file of the answers to members, then nonmembers, beside the results.
ANSWERS = "answers.npy"
#: Numbers that agree differ at most by this share: what float32 loses in a network, several times.
ROUNDING = 1e-4
_SMALLEST = 1e-7  # differences below it are rounding, whatever the number


def differing(
    one: NDArray[np.float64], other: NDArray[np.float64], share: float = ROUNDING
) -> NDArray[np.bool_]:
    """Return which rows of two arrays of answers (n,) or (n, k) differ: (n,).

    Classes must be equal. Numbers that are not negative (posteriors) may differ by a share of the
    larger one, which small posteriors of a confident model reach at once; others (logits,
    embeddings) by a share of the largest number of the row.
    """
    if one.ndim == 1:
        return np.not_equal(one, other)
    size: NDArray[np.float64] = np.maximum(np.abs(one), np.abs(other))
    if min(one.min(), other.min()) < 0:
        size = size.max(1, keepdims=True)
    apart: NDArray[np.bool_] = np.abs(one - other) > share * size + _SMALLEST
    return np.asarray(apart.any(1))


def identified(answers: NDArray[np.float64], out: Path) -> NDArray[np.float64]:
    """Return the kept answers of the folder of an audit if they agree with these, else these."""
    try:
        kept = np.load(out / ANSWERS, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # none, or damaged: then it is as if there were none
        return answers
    if kept.shape != answers.shape or differing(kept, answers).any():
        return answers
    return np.asarray(kept, np.float64)


def keep(answers: NDArray[np.float64], out: Path) -> None:
    """Keep answers for the next run."""
    file = io.BytesIO()
    np.save(file, answers)
    write(out / ANSWERS, file.getvalue())


def digest(answers: NDArray[np.float64]) -> str:
    """Return the name of a model that answered these."""
    return hashlib.sha256(answers.tobytes()).hexdigest()
