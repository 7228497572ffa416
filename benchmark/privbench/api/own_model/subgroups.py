"""Groups of rows that leak more than the rest: each class, each value or range of a column.

The AUC of an attack among the members and nonmembers of a group is compared with its AUC among all
other rows. The two share no row, so the variance of their difference is the sum of DeLong's
variances (DeLong, DeLong, Clarke-Pearson: Biometrics 1988). These are too small for a small group
whose AUC is near 1 or whose scores are tied: the normal test then errs up to 30 times as often as
it should. So the test counts two rows more on each side, all of them against the finding: in the
group a member with the lowest score and a nonmember with the highest, among the rest the opposite.
p-values are one-sided and corrected for all groups (Holm).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.api.own_model.rows import FEWEST
from privbench.ground.text import several, shown
from privbench.measure.games.metrics import auc, auc_band, placed
from privbench.results.intervals import Answers
from privbench.results.record import Number
from privbench.results.statistics import ERROR, holm
from privbench.toolbox.looked_up import ONE_HOT, library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from privbench.api.own_model.rows import Rows
    from privbench.results.samples import Columns

    #: Groups of one kind: name -> which rows (n,) are in it; or why there are none.
    Groups = Mapping[str, NDArray[np.bool_]] | str

#: Ranges of a column of numbers, which hold as many rows each.
RANGES = 4
#: Different numbers up to which each is a group.
_VALUES = 10
_NAMED = 3  # groups in a sentence


@dataclass(frozen=True)
class Group:
    """Rows of one class, or with one value or range of a column.

    Attributes:
        name: such as `class 3`, `sex = Female` or `28 <= age < 37`.
        members: how many it has.
        nonmembers: how many it has.
        auc: of the attack in the group, with its own 95 % interval.
        rest: of the attack among all other rows, with the same.
        p_value: of "it leaks no more than the rest", corrected for all groups.
    """

    name: str
    members: int
    nonmembers: int
    auc: Number
    rest: Number
    p_value: float

    @property
    def leaks_more(self) -> bool:
        """Whether it leaks more than the rest: at most one of 20 audits says so wrongly."""
        return self.p_value < ERROR and (self.auc.value or 0.0) > 1 / 2


@dataclass(frozen=True)
class Subgroups:
    """What the strongest attack finds in groups of rows.

    Attributes:
        attack: its name, with the hyperparameters that are not the default.
        tested: groups that were compared with the rest, the smallest p-value first.
        left_out: class, column or attribute -> why some or all of its groups were not compared.
    """

    attack: str
    tested: tuple[Group, ...]
    left_out: dict[str, str]

    @property
    def more(self) -> list[Group]:
        """Groups that leak more than the rest, the smallest p-value first."""
        return [one for one in self.tested if one.leaks_more]

    def beyond_chance(self, error: float) -> list[Group]:
        """Groups that leak more than the rest and more than chance in a share of the audits.

        Where nothing leaks, chance puts one of all groups there in this share, at most.
        """
        each = 2 * error / max(1, len(self.tested))  # a band is two-sided
        return [
            one for one in self.more
            if (one.auc.value or 0.0) - 1 / 2 > auc_band(one.members, one.nonmembers, each)
        ]  # fmt: skip

    def __str__(self) -> str:
        """One line."""
        found = self.more
        if not self.tested:
            return (f"No group of rows could be compared with the rest: that takes {FEWEST} "
                    "members and nonmembers in both.")  # fmt: skip
        if not found:
            return ("No class, and no group of a column, leaks more than the rest beyond chance "
                    f"({several(len(self.tested), 'group')} tested).")  # fmt: skip
        told = "; ".join(map(_told, found[:_NAMED]))
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        return (f"Leaking more than the rest, by {self.attack}: {told}{more} "
                f"({several(len(self.tested), 'group')} tested).")  # fmt: skip


def _told(of: Group) -> str:
    return (f"{of.name} (AUC {of.auc.value:.3f}, 95 % interval {of.auc.low:.3f} to "
            f"{of.auc.high:.3f}; the rest {of.rest.value:.3f}; corrected p = "
            f"{of.p_value:.2g})")  # fmt: skip


def subgroups(attack: str, columns: Columns, keys: Sequence[int], rows: Rows) -> Subgroups:
    """Compare each group with the rest.

    Args:
        attack: its label.
        columns: its per-sample scores.
        keys: of all rows of the audit, members first, then nonmembers.
        rows: of the audit.
    """
    member = columns["truth.member"].astype(bool)
    scores = columns["victim.scores"].astype(np.float64)
    large, left_out = _large(columns, keys, rows)
    tested = {name: _group(name, scores, member, of) for name, of in large.items()}
    corrected = holm({name: one.p_value for name, one in tested.items()})
    made = tuple(replace(tested[name], p_value=p) for name, p in corrected.items())
    return Subgroups(attack, made, left_out)


def answers(columns: Columns, keys: Sequence[int], rows: Rows) -> dict[str, Answers]:
    """Return what an attack answered about each group that is compared; as ``subgroups``."""
    asked = ("truth.member", "victim.scores", "victim.decisions")
    known = {name: columns[name] for name in asked if name in columns}
    return {
        name: Answers.of({column: values[of] for column, values in known.items()})
        for name, of in _large(columns, keys, rows)[0].items()
    }


def _large(
    columns: Columns, keys: Sequence[int], rows: Rows
) -> tuple[dict[str, NDArray[np.bool_]], dict[str, str]]:
    """Return group -> which scored rows (n,) it has, if they are enough; and why others have not.

    The second one is class, column or attribute -> why some or all of its groups are left out.
    """
    at = _places(columns, keys, rows)
    member = columns["truth.member"].astype(bool)
    large: dict[str, NDArray[np.bool_]] = {}
    left_out: dict[str, str] = {}
    for kind, groups in _grouped(rows):
        if isinstance(groups, str):
            left_out[kind] = groups
            continue
        held = {name: inside[at] for name, inside in groups.items()}
        enough = {name: inside for name, inside in held.items() if _fewest(inside, member)}
        if len(enough) < len(held):
            left_out[kind] = (
                f"{len(held) - len(enough)} of {several(len(held), 'group')}: fewer than {FEWEST} "
                "members or nonmembers, in the group or among the rest, so luck would decide"
            )
        large |= enough
    return large, left_out


def _group(
    name: str, scores: NDArray[np.float64], member: NDArray[np.bool_], inside: NDArray[np.bool_]
) -> Group:
    """Return a group with the p-value of it alone."""
    own, rest = (Number.of(auc(scores[of], member[of])) for of in (inside, ~inside))
    members, nonmembers, *others = (
        scores[of & at] for of in (inside, ~inside) for at in (member, ~member)
    )
    alone = p_value(members, nonmembers, *others)
    return Group(name, members.size, nonmembers.size, own, rest, alone)


def p_value(
    members: NDArray[np.float64], nonmembers: NDArray[np.float64],
    rest_members: NDArray[np.float64], rest_nonmembers: NDArray[np.float64],
) -> float:  # fmt: skip
    """Return the one-sided p-value of "the AUC of a group is not above that of the rest".

    Args:
        members: (m,) scores of the group; higher means more likely a member.
        nonmembers: (n,) likewise.
        rest_members: (k,) scores of all other rows.
        rest_nonmembers: (l,) likewise.

    >>> apart = np.arange(40.0)
    >>> round(p_value(apart[20:], apart[:20], apart[::2], apart[1::2]), 4)
    0.0003
    """
    group = _with(members, -np.inf), _with(nonmembers, np.inf)
    rest = _with(rest_members, np.inf), _with(rest_nonmembers, -np.inf)
    (value, *own), (other, *others) = placed(*group), placed(*rest)
    sizes = [one.size for one in (*group, *rest)]
    variance = sum(one / size for one, size in zip([*own, *others], sizes, strict=True))
    if not variance:  # all scores of both are in order, one way and the other
        return float(value <= other)
    return math.erfc((value - other) / math.sqrt(2 * variance)) / 2


def _with(scores: NDArray[np.float64], one: float) -> NDArray[np.float64]:
    return np.append(scores, one)


def _fewest(inside: NDArray[np.bool_], member: NDArray[np.bool_]) -> bool:
    counts = [int((of & at).sum()) for of in (inside, ~inside) for at in (member, ~member)]
    return min(counts) >= FEWEST


def _places(columns: Columns, keys: Sequence[int], rows: Rows) -> NDArray[np.int64]:
    """Return where each row of the scores is among the rows of the audit: (n,).

    Rows that are equal in all but attributes have one score, so it does not matter which is which.
    """
    members = rows.sizes["members"]
    free: dict[tuple[int, int, bool], list[int]] = {}
    y = [-1] * len(keys) if rows.y is None else rows.y.tolist()
    for place in reversed(range(members + rows.sizes["nonmembers"])):
        free.setdefault((keys[place], y[place], place < members), []).append(place)
    asked = (columns[name].tolist() for name in ("row", "label", "truth.member"))
    return np.array([free[key, c, bool(of)].pop() for key, c, of in zip(*asked, strict=True)])


# ---- which groups there are ---------------------------------------------------------------------


def _grouped(rows: Rows) -> Iterator[tuple[str, Groups]]:
    """Yield classes or ranges of y, attributes and columns with their groups of all rows."""
    if rows.y is not None:
        labels = rows.y if rows.labels is None else rows.labels
        yield "class", {f"class {shown(str(c))}": labels == c for c in np.unique(labels).tolist()}
    if rows.targets is not None:
        yield "y", _column("y", rows.targets)
    for name, values in rows.attributes.items():
        yield shown(name), _values(shown(name), values.tolist())
    if library(table := rows.table()):
        for name in table.columns:
            yield shown(str(name)), _column(shown(str(name)), table[name])


def _column(name: str, column: Any) -> Groups:
    """Return values or ranges of a column of a table."""
    held = np.asarray(column)
    if held.dtype.kind in "Mm":
        unit, known = held.dtype, held.astype("<i8").astype(np.float64)

        def exact(at: float) -> str:
            return str(np.int64(at).astype(unit))

        def short(at: float) -> str:
            return exact(at)[:16].removesuffix("T00:00")

        return _ranges(name, known, ~np.isnat(held), short, exact)
    if held.dtype.kind == "O" and all(_missing(one) or _is_number(one) for one in held):
        held = np.array([math.nan if _missing(one) else float(one) for one in held])
    if held.dtype.kind in "uif":
        there = np.isfinite(held)
        if len(np.unique(held[there])) > _VALUES:
            return _ranges(name, held.astype(np.float64), there, "{:.6g}".format, repr)
    return _values(name, list(column))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _values(name: str, values: Sequence[Any]) -> Groups:
    texts = np.array(["" if _missing(one) else f"= {shown(str(one), 40)}" for one in values])
    known = np.unique(texts)
    if len(known) > ONE_HOT:
        return f"more than {ONE_HOT} different values"
    return {f"{name} {one or 'is missing'}": texts == one for one in known.tolist()}


def _missing(value: Any) -> bool:
    """Whether a cell is None, NaN, NaT or NA."""
    known = value is None or type(value).__name__ in ("NAType", "NaTType")
    return known or (isinstance(value, numbers.Real) and math.isnan(value))


def _ranges(
    name: str, known: NDArray[np.float64], there: NDArray[np.bool_],
    *written: Callable[[float], str],
) -> Groups:  # fmt: skip
    """Return ranges that hold as many rows each, and the rows without a number.

    Ends are ``written`` in the first way that tells them apart.
    """
    made = {} if there.all() else {f"{name} is missing": ~there}
    if not there.any():
        return made
    cuts = np.quantile(known[there], np.linspace(0, 1, RANGES + 1)[1:-1], method="nearest")
    inner = np.unique(cuts[cuts > known[there].min()]).tolist()
    if not inner:  # nearly all are equal
        return made
    texts = next(told for write in written if len({*(told := [*map(write, inner)])}) == len(inner))
    made[f"{name} < {texts[0]}"] = there & (known < inner[0])
    for (low, first), (high, last) in pairwise(zip(inner, texts, strict=True)):
        made[f"{first} <= {name} < {last}"] = there & (low <= known) & (known < high)
    made[f"{name} >= {texts[-1]}"] = there & (inner[-1] <= known)
    return made
