"""The gate of an audit: whether what attacks found is surely below the user's thresholds.

A threshold is compared with intervals, never with bare numbers. It *passed* if the interval of
every attack that ran lies below it, *failed* if that of one lies above it, and is *undecided*
otherwise. All intervals of a gate hold together with 95 % probability: each has the error .05
divided by their number (Bonferroni). So a model that is at its threshold fails in at most one of
40 audits, however many attacks are tried, and one above it passes in at most one of 40.

A group of rows fails a threshold, too, if the interval of the strongest attack in it lies above.
These intervals hold together with 99.5 % probability, for all attacks among which the strongest was
chosen. They pass nothing: groups are small.

It reads results and their per-sample scores, and nothing else.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from privbench.ground.errors import BadInputError, nearest
from privbench.ground.text import several, shown
from privbench.results.intervals import FIGURES, Answers, rows_that_decide
from privbench.results.record import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from privbench.results.record import Record
    from privbench.results.samples import Columns

Outcome = Literal["passed", "failed", "undecided"]

#: Probability that any interval of a gate misses the truth.
ERROR = 0.05
#: The same for the intervals of groups of rows.
ERROR_OF_GROUPS = 0.005
FEWEST = 20  # rows of each set that an audit takes
_NONE = {"balanced_accuracy": "No attack that ran decides; most need shadows for it"}


@dataclass(frozen=True)
class Found:
    """What an attack reached of a figure.

    Attributes:
        attack: its label, with the seed if there are several.
        number: with the interval of the gate; refused if it could not be computed.
        rows: how many members, and as many nonmembers, put the interval beside the threshold; None
            if it is beside it, or if no number of rows does.
        doubtful: why it does not count as a failure; "" if it does.
    """

    attack: str
    number: Number
    rows: int | None = None
    doubtful: str = ""


def side(number: Number, threshold: float) -> Literal["below", "above", "around"]:
    """Return where the interval of a number lies."""
    if number.low is None or number.high is None:
        return "around"
    return "below" if number.high < threshold else "above" if number.low > threshold else "around"


@dataclass(frozen=True)
class Threshold:
    """The verdict over one threshold.

    Attributes:
        figure: what is compared, for example ``auc``.
        value: of the threshold, in the unit of the figure.
        outcome: passed, failed or undecided.
        words: why, in one sentence that names the threshold.
        rows: how many members, and as many nonmembers, would decide; None if it is decided, or if
            more rows would not.
        found: what each attack reached.
    """

    figure: str
    value: float
    outcome: Outcome
    words: str
    rows: int | None
    found: tuple[Found, ...]

    @property
    def name(self) -> str:
        """As the command line writes it."""
        return f"{self.figure}={self.value:g}"


@dataclass(frozen=True)
class Gate:
    """The verdict over all thresholds.

    >>> Gate.rows_needed({"auc": 0.55, "tpr@1%": 0.02}, attacks=1)
    {'auc': 340, 'tpr@1%': 3900}

    Attributes:
        outcome: failed if a threshold failed; otherwise undecided if one is; otherwise passed.
        words: the same in lines of words with numbers.
        thresholds: the verdict over each.
        error: probability that the interval of one figure misses the truth.
    """

    outcome: Outcome
    words: str
    thresholds: tuple[Threshold, ...]
    error: float

    @staticmethod
    def rows_needed(fail_above: Mapping[str, float], *, attacks: int) -> dict[str, int | None]:
        """Return how many members, and as many nonmembers, let a model pass that leaks nothing.

        So many are enough if attacks are at chance; luck moves them, so about half of such audits
        pass. Twice as many make a pass likely.

        Args:
            fail_above: figure -> threshold.
            attacks: number of attacks that will run.

        Returns:
            Figure -> rows, with two digits; None if ten million of each are too few.

        Raises:
            BadInputError: if a threshold is none, or ``attacks`` is below 1.
        """
        if attacks < 1:
            raise BadInputError(f"attacks is {shown(attacks)}: give the number of attacks, from 1")
        wanted, of = thresholds(fail_above.items(), "fail_above"), Answers.of_no_leak()
        error = ERROR / (attacks * len(wanted))
        found = {name: rows_that_decide(name, of, t, error, FEWEST) for name, t in wanted.items()}
        return {name: rows and _rounded(rows) for name, rows in found.items()}


def thresholds(given: Iterable[tuple[str, Any]], option: str) -> dict[str, float]:
    """Return figure -> threshold.

    Args:
        given: name of a figure and threshold, a number or its text.
        option: as messages name it.

    Raises:
        BadInputError: if a figure does not exist or comes twice, or if a threshold is not a number
            above what chance reaches and below what a perfect attack reaches.
    """
    made: dict[str, float] = {}
    for written, value in given:
        name = _plain(written)
        told = f"{option} {shown(written)}={shown(value)}"
        if name not in FIGURES:
            rates = [one for one in FIGURES if one.startswith("tpr@") and name.startswith("tpr@")]
            near, known = "" if rates else nearest(name, FIGURES), rates or FIGURES
            tail = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
            raise BadInputError(f"{told}: there is no figure {shown(written)}: {tail}")
        if name in made:
            raise BadInputError(f"{told}: {name} has two thresholds: give one")
        figure = FIGURES[name]
        number = _number(value)
        if not figure.chance < number < figure.most:
            raise BadInputError(
                f"{told}: give a number above {figure.chance:g}, which chance reaches, and below "
                f"{figure.most:.4g}, which a perfect attack reaches"
            )
        made[name] = number
    return made


def written(options: Sequence[str], option: str) -> dict[str, float]:
    """Return figure -> threshold, from texts such as ``auc=.55``; raises as ``thresholds``."""
    bare = next((text for text in options if "=" not in text), None)
    if bare is not None:
        raise BadInputError(f"{option} {shown(bare)}: write FIGURE=NUMBER, such as auc=.55")
    pairs = (text.partition("=") for text in options)
    return thresholds([(name.strip(), value.strip()) for name, _, value in pairs], option)


def _number(value: object) -> float:
    """Return a threshold; NaN if it is none, also if only Python reads it, such as ``.5_5``."""
    if isinstance(value, str) and not re.fullmatch(r"[-+.\deE]+", value, re.ASCII):
        return math.nan
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _plain(name: object) -> str:
    """Return a name as ``FIGURES`` has it: ``tpr@.10%`` is ``tpr@0.1%``."""
    share = re.fullmatch(r"tpr@(\d*\.?\d+)%", str(name), re.ASCII)
    return f"tpr@{float(share[1]):g}%" if share else str(name)


def judged(
    records: Sequence[Record],
    scores: Callable[[Record], Columns | None],
    fail_above: Mapping[str, float],
    *,
    doubtful: Mapping[str, str],
    left_out: Mapping[str, str],
    no_verdict: str,
    unsure: str = "",
    groups: Mapping[str, Answers] = MappingProxyType({}),
) -> Gate:
    """Return the gate of an audit.

    Args:
        records: of all attacks.
        scores: returns the per-sample scores of a result; None if there are none.
        fail_above: from ``thresholds``.
        doubtful: attacks that do not count -> why.
        left_out: attack -> why it did not run.
        no_verdict: why nothing can be said about a leak; "" if it can.
        unsure: why no threshold can pass; "" if it can.
        groups: group of rows -> what the strongest attack answered about it.
    """
    asked = [one for one in records if one.cell.game == "membership"]
    ran = [one for one in asked if one.status == "ok"]
    several_seeds = len({one.seed for one in ran}) > 1
    broken = {one.cell.attack.label: "failed to run" for one in asked if one.status == "failed"}
    answers = {}
    for one in ran:
        label = one.cell.attack.label + (f", seed {one.seed}" if several_seeds else "")
        columns = scores(one)
        if columns is None:
            broken[label] = "has lost its per-sample scores"
        else:
            answers[label] = one, Answers.of(columns)
    asks = {
        name: {
            label: given for label, given in answers.items()
            if name != "balanced_accuracy" or given[1].called is not None
        }
        for name in fail_above
    }  # fmt: skip
    error = ERROR / max(1, sum(map(len, asks.values())))
    made = tuple(
        decided(
            name, value,
            [Found(label, *_measured(name, value, of, error),
                   doubtful.get(one.cell.attack.label, ""))
             for label, (one, of) in asks[name].items()],
            broken=broken, no_verdict=no_verdict, unsure=unsure,
            groups=_above(name, value, groups, len(fail_above) * max(1, len(answers))),
        )
        for name, value in fail_above.items()
    )  # fmt: skip
    return whole(made, error, left_out)


def _above(name: str, threshold: float, groups: Mapping[str, Answers], tested: int) -> list[Found]:
    """Return the groups of rows whose interval of a figure lies above its threshold.

    Args:
        name: of the figure.
        threshold: of it.
        groups: the scores of each by the strongest attack.
        tested: number of thresholds, times that of the attacks of which it is the strongest.
    """
    error = ERROR_OF_GROUPS / max(1, len(groups) * tested)
    found = [
        Found(group, Number.of(FIGURES[name].measure(of, error, of.sizes)))
        for group, of in groups.items()
        if name != "balanced_accuracy" or of.called is not None
    ]
    return [one for one in found if side(one.number, threshold) == "above"]


def _measured(name: str, threshold: float, of: Answers, error: float) -> tuple[Number, int | None]:
    """Return a figure, and how many rows would put its interval beside the threshold."""
    number = Number.of(FIGURES[name].measure(of, error, of.sizes))
    if side(number, threshold) != "around":
        return number, None
    rows = rows_that_decide(name, of, threshold, error, min(of.sizes))
    return number, rows and _rounded(rows)


def decided(
    figure: str,
    threshold: float,
    found: Sequence[Found],
    *,
    broken: Mapping[str, str] = MappingProxyType({}),
    no_verdict: str = "",
    unsure: str = "",
    groups: Sequence[Found] = (),
) -> Threshold:
    """Return the verdict over one threshold.

    A doubtful attack cannot fail it, but it must lie below for a pass. An attack that broke is no
    pass either.

    Args:
        figure: that is compared.
        threshold: of it.
        found: what each attack reached.
        broken: attacks without numbers -> what happened to them.
        no_verdict: why nothing can be said about a leak; "" if it can.
        unsure: why it cannot pass; "" if it can.
        groups: what the strongest attack reached in groups of rows that are above the threshold.
    """
    sides = {one.attack: side(one.number, threshold) for one in found}
    above = [one for one in found if sides[one.attack] == "above" and not one.doubtful]
    around = [one for one in found if sides[one.attack] == "around"]
    doubted = [one for one in found if sides[one.attack] == "above" and one.doubtful]
    outcome: Outcome = "undecided"
    rows = None
    if no_verdict:
        told = f"No verdict: {no_verdict}"
    elif above:
        outcome, told = "failed", _told("Above", figure, above, len(found))
    elif groups:
        outcome, told = "failed", _in_groups(figure, groups)
    elif found and not (around or doubted or broken):
        told = _told("Below", figure, found, len(found))
        outcome, told = ("undecided", f"{told}, but {unsure}") if unsure else ("passed", told)
    else:
        rows = _rows(around, threshold)
        parts = [
            *(_told("Around", figure, group, len(found)) + _help(group, rows)
              for group in (around,) if group),
            *(f"Above it, but not counted: {one.attack}: {shown(one.doubtful, 200)}"
              for one in doubted),
            *(f"{name} {what}, which does not count as passed" for name, what in broken.items()),
        ]  # fmt: skip
        told = ". ".join(parts) if parts else _NONE.get(figure, "No attack on membership ran")
    words = f"{figure}={threshold:g} {'is ' * (outcome == 'undecided')}{outcome}. {told}."
    return Threshold(figure, threshold, outcome, words, rows, tuple(found))


def whole(made: Sequence[Threshold], error: float, left_out: Mapping[str, str]) -> Gate:
    """Return the verdict over all thresholds.

    Args:
        made: over each.
        error: of the interval of one figure.
        left_out: attack -> why it did not run.
    """
    outcomes = {one.outcome for one in made}
    outcome: Outcome = "passed"
    if "failed" in outcomes:
        outcome = "failed"
    elif "undecided" in outcomes:
        outcome = "undecided"
    number = sum(len(one.found) for one in made)
    lines = [f"The gate {'is ' * (outcome == 'undecided')}{outcome}."]
    lines += [one.words for one in made]
    if number:
        lines.append(
            f"{several(number, 'interval')} of {1 - error:.2%}, which hold together with "
            f"{1 - ERROR:.0%} probability (Bonferroni)."
        )
    lines += [FIGURES[one.figure].note for one in made if FIGURES[one.figure].note]
    if left_out:
        lines.append(f"Did not run, so nothing is known of: {', '.join(left_out)}.")
    return Gate(outcome, "\n".join(lines), tuple(made), error)


def _rows(around: Sequence[Found], threshold: float) -> int | None:
    """Return how many rows would decide.

    An attack whose number is above the threshold decides alone; if there is none, all must come to
    lie below.
    """
    over = [one.rows for one in around if (one.number.value or 0.0) > threshold]
    known = [rows for rows in over if rows is not None]
    if known:
        return min(known)
    every = [one.rows for one in around]
    return None if None in every or not every else max(rows or 0 for rows in every)


def _help(around: Sequence[Found], rows: int | None) -> str:
    if rows is None:
        return "; more rows like these would not decide"
    refused = next((one.number.refused for one in around if one.number.refused), "")
    why = f" ({shown(refused.rstrip('.'), 160)})" if refused else ""
    return f"{why}; about {rows:,} members and as many nonmembers would decide"


def _told(where: str, figure: str, found: Sequence[Found], of: int) -> str:
    """Return which attacks lie there, and the number of the highest."""
    best = max(found, key=lambda one: -1.0 if one.number.value is None else one.number.value)
    who = "the only attack" if of == 1 else f"{'all' if len(found) == of else len(found)} of {of}"
    who = who.replace("all of", "all") + " attacks" * (of > 1)
    number, form = best.number, FIGURES[figure].form
    if number.value is None or number.low is None or number.high is None:
        return f"{where} it: {who}"
    ends = f"{form.format(number.low)} to {form.format(number.high)}"
    which = "the highest " if len(found) > 1 else ""
    return f"{where} it: {who}, {which}{best.attack} with {form.format(number.value)} ({ends})"


def _in_groups(figure: str, groups: Sequence[Found]) -> str:
    """Return which groups of rows lie above a threshold, and the number of the highest."""
    best = max(groups, key=lambda one: one.number.value or 0.0)
    more = f"; and {several(len(groups) - 1, 'more group')}" if len(groups) > 1 else ""
    value, low, high = (FIGURES[figure].form.format(end) for end in
                        (best.number.value, best.number.low, best.number.high))  # fmt: skip
    return (f"Above it, by the strongest attack: the rows of {shown(best.attack, 100)} with {value}"
            f" ({low} to {high}, corrected for the number of groups){more}")  # fmt: skip


def _rounded(rows: int) -> int:
    """Return a number rounded up to two digits.

    >>> _rounded(3621), _rounded(20)
    (3700, 20)
    """
    unit = int(10 ** max(0, len(str(rows)) - 2))
    return -(-rows // unit) * unit
