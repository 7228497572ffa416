"""Which model an audit is about: told by its answers to members, nonmembers and changed rows.

A file of weights or a pickle does not tell: the same forest, loaded twice, has other bytes. Answers
tell, up to rounding. So the answers of the first run are kept beside its results; another run is
about the same model if its answers agree with them, and then has their digest.

Some attacks ask about changed rows, and two models may agree on the rows as they are and on no
other. So up to 64 changed rows are asked too, if the model can be asked about any: half of them mix
the columns of two rows, half are rows with noise of several sizes.

Answers of an endpoint are kept one by one, so that no row is paid for twice. Before they count,
it is asked some of the rows again: it may have been trained again, or be gone. Another model is
asked some rows twice: it may answer differently each time.
"""

from __future__ import annotations

import hashlib
import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.ground.store.files import write
from privbench.ground.text import shown
from privbench.ground.tokens import redacted

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

#: The file of the answers to members, then nonmembers, then changed rows, beside the results.
ANSWERS = "answers.npy"
#: Numbers that agree differ at most by this share: what float32 loses in a network, several times.
ROUNDING = 1e-4
_OF_SERVERS = 0.05  # the same for answers of a server
AGAIN = 48  # rows that an endpoint is asked again
_FEW = 7  # rows of a small batch
_SMALLEST = 1e-7  # differences below it are rounding, whatever the number
CHANGED = 64  # changed rows that a model is asked
_SIGMAS = (0.01, 0.03, 0.1, 0.3)  # of their noise, of the range of a column


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


def changed(asked: Any, x: Tensor) -> Tensor:
    """Return rows that are changed ones of x (n, *shape) in [0, 1]: (m, *shape), m at most 64.

    Hardly any is also in x. Whole numbers stay whole. There are none if the model gets the user's
    own rows: then no attack asks about others.
    """
    import torch

    if asked.form.source:
        return x[:0]
    draw = np.random.default_rng(0)
    order = draw.permutation(len(x))
    first, second = (x[np.roll(order, by)[:CHANGED]].flatten(1) for by in (0, 1))
    sizes = tuple(first.shape)
    mixed = torch.where(torch.from_numpy(draw.random(sizes) < 1 / 2), first, second)
    units = asked.form.in_units(first.reshape(-1, *x.shape[1:])).flatten(1)
    whole = (units == units.round()).all(0)
    sigmas = np.resize(np.repeat(_SIGMAS, 2), sizes[0])[:, None]
    noise = torch.from_numpy((sigmas * draw.normal(size=sizes)).astype(np.float32))
    noisy = torch.where(whole, mixed, (first + noise).clamp(0, 1))
    made = torch.where(torch.arange(sizes[0])[:, None] % 2 == 0, mixed, noisy)
    return made.reshape(-1, *x.shape[1:])


def beside(asked: Any, rows: Tensor, x: Tensor, answers: NDArray[np.float64]) -> Any:
    """Return the answers to changed rows; none, (0, ...), if the model answers no such rows.

    Args:
        asked: module that asks the model.
        rows: from ``changed``.
        x: (n, *shape) rows that it answered.
        answers: (m,) or (m, k), some of its answers.

    Raises:
        BadInputError: if an endpoint does not answer any more.
    """
    try:
        made = asked.raw(rows) if len(rows) else answers[:0]
    except BadInputError:  # the attacks that ask about changed rows will meet it, too
        if asked.endpoint is not None:
            asked.again(x[:1])
        return answers[:0]
    return made if made.shape[1:] == answers.shape[1:] else answers[:0]


def confirmed(asked: Any, x: Tensor, url: str, out: Path) -> str:
    """Ask an endpoint again some of the rows whose answers are kept; return a sentence about them.

    Half of the 48 rows are those whose two largest numbers are closest, which training changes
    first; the others are drawn at random. A server may answer in half precision and in batches of
    any size, so numbers may differ by 5 %, and of one row in 20 by more; classes must be equal.

    Args:
        asked: module that asks the model.
        x: (n, *shape) rows in [0, 1], members, nonmembers and changed rows.
        url: of the endpoint.
        out: folder of the audit.

    Returns:
        How many answers are kept, from whom and from when; "" if none are.

    Raises:
        BadInputError: if the endpoint does not answer, or answers differently.
    """
    times = asked.kept(x)
    held = np.flatnonzero(times)
    if not held.size:
        return ""
    kept = asked.raw(x[held])
    some = _sample(kept)
    first, last = min(filter(None, times)), max(times)
    place, when = shown(redacted(url), 200), shown(first if first == last else f"{first} to {last}")
    try:
        again = asked.again(x[held[some]])
    except BadInputError as error:
        raise BadInputError(f"{error}; its {held.size:,} answers of {when} stay in "
                            f"{shown(str(out), 200)}, and count once it gives them "
                            "again") from error  # fmt: skip
    apart = np.ones(len(some), bool)
    if again.shape == kept[some].shape:
        apart = differing(kept[some], again, _OF_SERVERS)
    if apart.sum() > _tolerated(kept[some]):
        raise BadInputError(
            f"{place} answers differently than at {when}, {apart.sum()} of {len(some)} rows that "
            "were asked again: it is another model now, or is asked in another way, so choose "
            f"another directory; {shown(str(out), 200)} keeps what was found of the old one"
        )
    return (
        f"Kept answers: {held.size:,}, which {place} gave at {when}; asked again now, it answers "
        f"{len(some) - apart.sum()} of {len(some)} of these rows in the same way."
    )


def _sample(kept: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of the rows to ask again, at most 48."""
    drawn = np.random.default_rng(0).permutation(len(kept))
    if kept.ndim > 1 and kept.shape[1] > 1:
        two = np.sort(kept, axis=1)[:, -2:]
        close = np.argsort(two[:, 1] - two[:, 0], kind="stable")[: AGAIN // 2]
        drawn = np.concatenate([close, drawn[~np.isin(drawn, close)]])
    return drawn[:AGAIN]


def identified(answers: NDArray[np.float64], out: Path, *, endpoint: bool) -> NDArray[np.float64]:
    """Return the kept answers of the folder of an audit if they agree with these, else these.

    An endpoint that was too busy for changed rows has no answers to these at the end, now or then.
    """
    try:
        kept = np.load(out / ANSWERS, allow_pickle=False)
    except Exception:  # noqa: BLE001 - none, or damaged: then it is as if there were none
        return answers
    if not isinstance(kept, np.ndarray) or kept.shape[1:] != answers.shape[1:]:
        return answers
    both = min(len(kept), len(answers)) if endpoint else None
    one, other = kept[:both], answers[:both]
    if len(one) != len(other) or differing(one, other).any():
        return answers
    return np.asarray(kept, np.float64)


def unsteady(asked: Any, x: Tensor, answers: NDArray[np.float64]) -> str:
    """Ask a model that is no endpoint some rows again; return a warning if it answers differently.

    First in one batch, twice, so that both are computed alike; then in small batches of other rows.
    Of these, as of a server, numbers may differ by 5 %, and of one row in 20 by more.

    Args:
        asked: module that asks the model.
        x: (n, *shape) rows in [0, 1], members and nonmembers.
        answers: (n,) or (n, k), what it answered.
    """
    if asked.endpoint is not None:
        return ""
    some = _sample(answers)
    mixed = np.random.default_rng(1).permutation(len(some))
    parts = np.array_split(mixed, math.ceil(len(mixed) / _FEW))
    try:
        one, other = asked.raw(x[some]), asked.raw(x[some])
        beside = np.empty_like(one)
        for part in parts:
            beside[part] = asked.raw(x[some[part]])
    except (BadInputError, ValueError):  # the attacks will meet it, too
        return ""
    if (apart := differing(one, other)).any():
        return (
            f"WARNING: asked again, the model answered {apart.sum()} of {len(some)} rows "
            "differently. Attacks asked each row once, and an adversary who asks often may find "
            "more: give a model that answers alike each time, in evaluation mode and without noise."
        )
    moved = differing(one, beside, _OF_SERVERS)
    if moved.sum() <= _tolerated(one):
        return ""
    return (
        f"WARNING: asked again beside other rows, the model answered {moved.sum()} of {len(some)} "
        "rows differently, so what attacks find depends on the rows that are asked together: give "
        "a model whose answer to a row is its own, such as a network in evaluation mode."
    )


def _tolerated(answers: NDArray[np.float64]) -> int:
    """Return of how many rows the answers may differ, if they are computed in other batches."""
    return len(answers) // 20 if answers.ndim > 1 else 0


def keep(answers: NDArray[np.float64], out: Path) -> None:
    """Keep answers for the next run."""
    file = io.BytesIO()
    np.save(file, answers)
    write(out / ANSWERS, file.getvalue(), private=True)


def digest(answers: NDArray[np.float64]) -> str:
    """Return the name of a model that answered these."""
    return hashlib.sha256(answers.tobytes()).hexdigest()
