"""Coins, tossed before training: which rows a model of one's own is trained on.

Whether a row was trained on must be an independent fair coin, if a claim of differential privacy is
to be tested by one model (Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run.
NeurIPS 2023). The coins follow from a secret and from the content of each row (HMAC-SHA256), so the
order of the rows does not matter.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import os
import re
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.api.arguments import named_as_arguments
from privbench.api.own_model.rows import read_source
from privbench.ground.errors import BadInputError
from privbench.ground.store.files import naming
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from privbench.api.own_model.rows import Given

_MOST_BYTES = 2**28  # of a file of coins


@dataclass(frozen=True)
class Coins:
    """Tossed coins.

    Attributes:
        seed: secret, hexadecimal.
        candidates: (m,) fingerprints of the rows that coins are about, in sorted order, which says
            nothing about the coins.
    """

    seed: str
    candidates: tuple[str, ...]

    @property
    def included(self) -> NDArray[np.bool_]:
        """(m,) whether each candidate is to be trained on."""
        heads = [_drawn(self.seed, "coin", one)[0] & 1 for one in self.candidates]
        return np.array(heads, bool)

    def dumped(self) -> bytes:
        """The content of the secret file."""
        told = {"privbench": "coins", "seed": self.seed, "candidates": self.candidates}
        return f"{json.dumps(told, indent=0)}\n".encode()


def _drawn(seed: str, what: str, row: str) -> bytes:
    return hmac.digest(bytes.fromhex(seed), f"{what} {row}".encode(), "sha256")


def toss(prints: list[str], count: int) -> Coins:
    """Toss coins about ``count`` of the rows with these fingerprints, chosen at random.

    A row that occurs twice gets no coin: one copy could be trained on, and the other not.
    """
    given: Any = count
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise BadInputError(f"count: {shown(count)} is no whole number: give how many rows get a "
                            "coin")  # fmt: skip
    single = [one for one, times in Counter(prints).items() if times == 1]
    if not 1 <= count <= len(single):
        told = "" if len(single) == len(prints) else " that occur once"
        raise BadInputError(f"count: {count:,} candidates among {len(single):,} rows{told}: give a "
                            f"number from 1 to {len(single):,}")  # fmt: skip
    seed = secrets.token_hex(32)
    chosen = sorted(single, key=lambda one: _drawn(seed, "candidate", one))[:count]
    return Coins(seed, tuple(sorted(chosen)))


@named_as_arguments
def coins(rows: Given, *, count: int, seed_file: str | Path) -> NDArray[np.bool_]:
    """Toss a coin for each of ``count`` rows; return which of all rows to train on.

    A later ``privbench.audit(..., claim=(epsilon, delta), coins=seed_file)`` tests whether the
    training was as private as it claims. Rows without a coin are all trained on.

    >>> import numpy as np, privbench, tempfile
    >>> x = np.random.default_rng(0).random((1000, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train = privbench.coins({"x": x}, count=400, seed_file=f"{folder}/secret")
    >>> train.shape, 700 < int(train.sum()) < 900  # 600, and about half of 400
    ((1000,), True)

    Args:
        rows: a ``.npz`` file, or a mapping of arrays, with ``x`` (n, *shape).
        count: number of candidates, from 1 to n; they are chosen at random.
        seed_file: file to write, which must not exist: the secret of the coins (mode 0600).

    Returns:
        (n,) whether to train on each row. Those that are left out are nonmembers for the audit.

    Raises:
        BadInputError: if rows or count cannot be used, or the file exists.
    """
    path = Path(seed_file)
    _, prints = read_source(rows, "rows")
    made = toss(prints, count)
    write_new({path: made.dumped()})
    return train_on(made, prints)


def train_on(made: Coins, prints: list[str]) -> NDArray[np.bool_]:
    """Return which of the rows with these fingerprints to train on: (n,)."""
    left_out = set(np.array(made.candidates)[~made.included].tolist())
    return np.array([one not in left_out for one in prints], bool)


def coins_to_files(rows: Path, count: int, seed_file: Path) -> tuple[Path, Path, int, int]:
    """Toss coins; write ``NAME-included.npz`` and ``NAME-excluded.npz`` beside the rows.

    Returns:
        The two files, and the numbers of their rows.
    """
    made = [rows.with_name(f"{rows.stem}-{what}.npz") for what in ("included", "excluded")]
    for path in (seed_file, *made):
        _refuse_existing(path)
    held, prints = read_source(rows, "rows")
    for name, array in held.items():
        if array.shape[:1] != (len(prints),):
            raise BadInputError(f"rows: {shown(name)} has shape {array.shape}, and x {len(prints)} "
                                "rows: give one entry for each row")  # fmt: skip
    tossed = toss(prints, count)
    train = train_on(tossed, prints)
    parts = [_npz({name: array[chosen] for name, array in held.items()})
             for chosen in (train, ~train)]  # fmt: skip
    write_new(dict(zip((*made, seed_file), (*parts, tossed.dumped()), strict=True)))
    return made[0], made[1], int(train.sum()), int((~train).sum())


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise BadInputError(f"{shown(str(path), 200)} exists already: coins are never tossed again "
                            "for a model, so name another file, or move it away")  # fmt: skip


def write_new(contents: Mapping[Path, bytes]) -> None:
    """Write files that do not exist, for the user alone (mode 0600); all of them or none."""
    with contextlib.ExitStack() as undo:
        for path, content in contents.items():
            _refuse_existing(path)
            with naming(path), open(path, "xb", opener=_private) as file:
                undo.callback(path.unlink, missing_ok=True)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        undo.pop_all()


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def read_coins(path: str | Path) -> Coins:
    """Read what ``coins`` wrote.

    Raises:
        BadInputError: if the file is not that.
    """
    if not isinstance(path, str | os.PathLike):
        raise BadInputError(f"coins: they are a {type(path).__name__}: give the path of the seed "
                            "file of `privbench coins`")  # fmt: skip
    told = f"coins {shown(str(path), 200)}"
    file = Path(path)
    if not file.is_file():
        raise BadInputError(f"{told}: there is no such file: name the seed file of "
                            "`privbench coins`")  # fmt: skip
    held: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        if file.stat().st_size <= _MOST_BYTES:
            held = json.loads(file.read_bytes())
    if not _is_ours(held):
        raise BadInputError(f"{told}: it was not written by `privbench coins`: name its seed file")
    return Coins(held["seed"], tuple(sorted(held["candidates"])))


def _is_ours(held: Any) -> bool:
    if not isinstance(held, dict) or held.get("privbench") != "coins":
        return False
    seed, candidates = held.get("seed"), held.get("candidates")
    texts = isinstance(candidates, list) and all(isinstance(one, str) for one in candidates)
    secret = isinstance(seed, str) and re.fullmatch("[0-9a-f]{64}", seed)
    return bool(secret and texts and candidates)
