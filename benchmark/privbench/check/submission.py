"""Results of others: every metric is recomputed from the per-sample scores in their lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from privbench.boards.html.curves import has_scores, roc
from privbench.check.numbers import same, told
from privbench.check.rescore import Scored
from privbench.ground.text import shown
from privbench.ground.tokens import token_in
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.game import Game
from privbench.results.audits import NAMES
from privbench.results.files import each_line
from privbench.results.record import DamagedResultError
from privbench.results.sample_files import read_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from privbench.results.record import Number, Record
    from privbench.results.samples import Columns

#: Bytes of a submission.
MOST_BYTES = 2**31
#: How metrics of canaries begin: they are of other rows than the scores.
_OF_CANARIES = "loo_"
#: A control may refuse these alone: where it cannot judge a threshold, it can judge scores.
_OF_DECISIONS = ("balanced_accuracy", "precision", "recall")


@dataclass
class Checked:
    """What a submission says.

    Attributes:
        results: number of lines.
        differences: what is not as the scores say, one sentence each.
        unchecked: number that scores do not tell -> how many results have it.
    """

    results: int = 0
    differences: list[str] = field(default_factory=list)
    unchecked: dict[str, int] = field(default_factory=dict)


def check(path: Path) -> Checked:
    """Recompute every metric of a submission; nothing in it is imported or run.

    Load the registry first: games of plugins are known once these are imported.

    Raises:
        DamagedResultError: if a line is not a result, is too large, or occurs twice.
    """
    if path.exists() and path.stat().st_size > MOST_BYTES:
        raise DamagedResultError(path, f"it has more than {MOST_BYTES:,} bytes")
    made = Checked()
    seen: dict[str, int] = {}
    for line, record in each_line(path, scores=True):
        for what in (record.trial, f"{record.cell.model_dump_json()} {record.seed}"):
            if seen.setdefault(what, line) != line:
                raise DamagedResultError(
                    path, f"line {line}: line {seen[what]} is of the same trial"
                )
        made.results += 1
        where = f"line {line} ({shown(record.cell.title, 120)}, seed {record.seed}): "
        made.differences += [where + one for one in _differences(record, path, made.unchecked)]
    if not made.results:
        raise DamagedResultError(path, "it is empty")
    return made


def _differences(record: Record, path: Path, unchecked: dict[str, int]) -> Iterator[str]:
    if where := token_in(record):
        yield f"{shown(where)} holds what looks like a token or password"
    if record.status != "ok":
        if record.metrics or record.controls or record.baselines:
            yield f"it {shown(record.status)}, and has numbers"
        return
    game = GAMES.get(record.cell.game)
    if game is None:
        yield f"it plays '{shown(record.cell.game)}', which no plugin here knows"
        return
    if record.board != game.board:
        yield "it says otherwise than its game how boards show it"
    if type(game).measure is Game.measure:  # it is not about rows
        _count(unchecked, record, {})
        return
    columns = read_samples(record, [path.parent] if record.unwritten_samples else [])
    if columns is None:
        yield "it has no per-sample scores"
        return
    yield from _of_scores(Scored(record, columns, path.parent), game.controls, unchecked)


def _of_scores(
    scored: Scored, controls: Sequence[str], unchecked: dict[str, int]
) -> Iterator[str]:  # fmt: skip
    record, columns = scored.record, scored.columns
    yield from _of_rows(record, scored)
    if record.roc is not None and not _is_roc(record.roc, columns):
        yield "its ROC curve is not that of its scores"
    recomputed = {"victim": scored.measured()}
    yield from _compared("", record.metrics, recomputed["victim"], ())
    for control in sorted({*controls, *record.controls, *scored.players()[1:]}):
        if control not in record.controls or control not in scored.players():
            yield f"the control {shown(control)} or its scores are missing"
            continue
        recomputed[control] = scored.measured(player=control)
        given = record.controls[control]
        yield from _compared(f"{control} ", given, recomputed[control], _OF_DECISIONS)
    yield from _untold(record, recomputed)
    _count(unchecked, record, recomputed)


def _of_rows(record: Record, scored: Scored) -> Iterator[str]:
    """Whether there are as many rows as the result says, each asked about once."""
    rows = scored.columns["row"]
    if (stated := sum(record.sizes.values())) != len(rows):
        yield f"it says that {stated:,} rows were asked about, and has scores of {len(rows):,}"
    member = scored.columns.get("truth.member")
    members = record.sizes.get("members")
    if member is not None and members != (inside := int(np.count_nonzero(member))):
        yield f"it says that {shown(members)} rows were members, and its truth has {inside:,}"


def _is_roc(given: Sequence[tuple[float, float]], columns: Columns) -> bool:
    if not has_scores(columns):
        return False
    made = roc([columns])
    points = np.stack([made.fpr, made.tpr], 1)
    return points.shape == np.shape(given) and np.allclose(given, points, rtol=1e-5, atol=1e-9)


def _untold(record: Record, made: Mapping[str, Mapping[str, Number]]) -> Iterator[str]:
    """What a game measures by scores alone, and these scores do not tell."""
    for who, given in {"victim": record.metrics, **record.controls}.items():
        for name, number in given.items():
            told_elsewhere = name in NAMES or name.startswith(_OF_CANARIES)
            if number.value is not None and name not in made.get(who, {}) and not told_elsewhere:
                what = name if who == "victim" else f"{who} {name}"
                yield f"{shown(what)} is {told(number)}, and its scores do not tell it"
    if not made["victim"]:
        yield "its scores tell no metric"


def _compared(
    who: str, given: Mapping[str, Number], made: Mapping[str, Number], may_refuse: tuple[str, ...]
) -> Iterator[str]:
    for name, number in made.items():
        stated = given.get(name)
        if stated is None:
            yield f"{shown(who + name)} is missing, and {told(number)} from its scores"
        elif not same(stated, number) and not (stated.refused and name in may_refuse):
            yield f"{shown(who + name)} is {told(stated)}, and {told(number)} from its scores"


def _count(
    unchecked: dict[str, int], record: Record, made: Mapping[str, Mapping[str, Number]]
) -> None:
    """Count the numbers of a result that were not recomputed."""
    given = {"": record.metrics, **{f"{who} ": one for who, one in record.controls.items()}}
    names = [
        f"{who}{name}"
        for who, metrics in given.items()
        for name in metrics
        if name not in made.get(who.strip() or "victim", {})
    ]
    names += [f"{who} {name}" for who, metrics in record.baselines.items() for name in metrics]
    for name in [*names, *record.utility]:
        unchecked[name] = unchecked.get(name, 0) + 1
