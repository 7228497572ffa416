"""What an audit found, in words with numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import TextWrapper
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from privbench.api.own_model.misfit import LEVEL, TESTS
from privbench.api.own_model.plot import AuditPlot
from privbench.api.results import Results
from privbench.boards.board import Leaderboard
from privbench.boards.html.notebook import notebook
from privbench.boards.row_exposure import exposure
from privbench.ground.text import several, shown
from privbench.measure.games.metrics import auc_band, clopper_pearson
from privbench.results.fixed_fpr import true_fpr
from privbench.results.record import Number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from privbench.api.own_model.claim import Verdict
    from privbench.api.own_model.errors import Errors
    from privbench.api.own_model.gate import Gate
    from privbench.api.own_model.shadow_fit import ShadowFit
    from privbench.api.own_model.shift import Shift
    from privbench.api.own_model.subgroups import Subgroups
    from privbench.results.record import Record
    from privbench.results.samples import Columns

#: What they say where no attack had shadows that were trained as the model was.
BOUND = "This is a lower bound: no attack had shadows, models trained as yours was."
ADVICE = (
    "Give a shadow recipe: on Adult it finds 37 % of a random forest's members at 1 % of false "
    "alarms, and without shadows none are found."
)
ADVICE_ON_ERRORS = (
    "Give a shadow recipe: of a forest that answers ages on Adult it finds 28 % of the members at "
    "1 % of false alarms, and the error alone 3 %."
)
#: Metric that the words are about, and what chance reaches.
TPR, CHANCE = "tpr_at_fpr_0.01", 0.01
_FEW = (
    "How many members it finds where it takes 1 % of the nonmembers for members is not known: that "
    "takes at least 100 nonmembers."
)
_BELOW = (
    "An AUC below 0.5 like this one is chance in one of 40 audits; otherwise the files of members "
    "and nonmembers are swapped."
)
_LEAST = 437  # nonmembers from which on ``tpr_at_fpr`` bounds a TPR at 1 % FPR from below
_MOST = 10  # rows that are listed
_NAMED = 3  # groups in a sentence
_ROUNDING = 1e-9  # .01 * 300 may be a little below 3 in floating point
_LINES, _WIDE = 27, 100  # of words on a screen
_CERTAIN = 1e-4  # chance of a leak that is certain where there is none
_UNLIKELY = 0.05  # chance of a likely leak where there is none


@dataclass(frozen=True)
class Defended:
    """What a defense changes.

    Attributes:
        defense: its name, with the hyperparameters that are not the default.
        words: leak and accuracy before and after, in one sentence; or why it was not tried.
        judges: attack that the defense names as its judge -> why it did not run; "" if it ran.
        records: of all attacks on the defended model.
    """

    defense: str
    words: str
    judges: Mapping[str, str]
    records: Sequence[Record]


class Audit(Results):
    """The results of an audit, as ``privbench.audit`` returns them.

    >>> import numpy as np, privbench, tempfile
    >>> draw = np.random.default_rng(0)
    >>> members, others = (
    ...     {"x": draw.random((100, 4), np.float32), "y": np.arange(100) % 2} for _ in range(2))
    >>> def model(x):  # as sure of any row as of any other
    ...     return np.full((len(x), 2), 0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = privbench.audit(model, members=members, nonmembers=others, out=folder,
    ...                             attacks=["metric-confidence"])
    >>> isinstance(found, privbench.Audit), found.shift.found
    (True, False)
    >>> found.summary[:17]
    'No leak was found'

    Attributes:
        summary: the risk in words with numbers.
        shift: whether members and nonmembers differ in more than membership.
        exposed: (row of the members' file, share of nonmembers that the strongest attack ranks
            below it), the most exposed first.
        subgroups: what the strongest attack finds in each class and in groups of each column, with
            ``.tested`` and ``.more``, those that leak more than the rest; None without a verdict.
        left_out: attack -> why it did not run.
        defended: what each defense of ``defenses`` changes, with ``.defense``, ``.words``,
            ``.judges`` and ``.records``; all else is about the model without a defense.
        claim: what the coins say about a claimed epsilon; None without a claim. ``claim.refuted``
            tells whether it fell, ``claim.lower`` how large epsilon is at least.
        errors: ``.members`` and ``.nonmembers``, root mean squared errors of a regression; None for
            other models.
        shadow_fit: how often shadows are right, ``.own`` and ``.others``, and whether that is
            ``.far`` from the model; None if none were trained by your recipe, or without classes.
        no_verdict: why nothing can be said about a leak, and what to check; "" if it can.
        gate: the verdict over the thresholds of ``fail_above``; None without any.
        not_printed: why there is no ``audit.pdf`` though it was asked for; "" if nothing failed.
        digest: SHA-256 over all files of the audit, 64 hexadecimal digits; ``privbench verify``
            compares them with it.
    """

    summary: str = ""
    no_verdict: str = ""
    not_printed: str = ""
    digest: str = ""
    gate: Gate | None = None
    shift: Shift
    exposed: Sequence[tuple[int, float]] = ()
    subgroups: Subgroups | None = None
    left_out: Mapping[str, str] = {}
    claim: Verdict | None = None
    errors: Errors | None = None
    shadow_fit: ShadowFit | None = None
    defended: Sequence[Defended] = ()

    def __repr__(self) -> str:
        """The words, and how many results there are, so that it fits a screen."""
        screen = TextWrapper(_WIDE, break_on_hyphens=False)
        words = [part for line in self.summary.splitlines() for part in screen.wrap(line)]
        if len(words) > _LINES:
            words = [*words[:_LINES], "… the rest: print(….summary)"]
        more = "table(), rows(), to_dataframe(), to_records()"
        return "\n".join([*words, f"{several(len(self), 'result')}: {more}"])

    @property
    def plot(self) -> AuditPlot:
        """Figures: ``.roc()``, ``.exposure()``, ``.subgroups()`` and ``.front()``."""
        return AuditPlot(self._board, self.folders, self.exposed, self.subgroups)

    def _repr_html_(self) -> str:
        """The words and the matrix, for notebooks."""
        return notebook(self._board, words=self.summary)


@dataclass(frozen=True)
class Strongest:
    """What the strongest attack found.

    Attributes:
        record: of the attack that finds most members.
        by_auc: of the attack with the highest AUC.
        of: number of attacks that ran.
        leaks: whether any of them tells members from nonmembers better than chance lets one of them
            do in one of 10,000 audits, by its AUC.
        perhaps: whether, although ``leaks`` is false, one of them does better than chance does in
            one of 20 audits (corrected for their number), or the strongest finds more members at
            1 % false positives than chance, at 95 %.
        swapped: the attack that takes nonmembers for members more clearly than chance lets one of
            them do in its share of ``misfit.LEVEL``; None if there is none.
        doubtful: attacks that do not count -> why.
        suspect: the one of these with the highest AUC, if this is above what chance lets one of
            them reach in one of 20 audits.
    """

    record: Record
    by_auc: Record
    of: int
    leaks: bool
    perhaps: bool
    swapped: Record | None
    doubtful: Mapping[str, str]
    suspect: Record | None = None

    @property
    def counts(self) -> bool:
        """Whether any attack does."""
        return self.record.cell.attack.label not in self.doubtful


@dataclass(frozen=True)
class Risk:
    """How sure a leak is.

    Attributes:
        state: ``leak``, ``perhaps`` or ``none``.
        groups: names of the groups of rows that leak, if it is about these; () if about all rows.
    """

    state: Literal["leak", "perhaps", "none"]
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One sentence."""
        named = self.groups[:_NAMED]
        if (more := len(self.groups) - len(named)) > 0:
            named = (*named, several(more, "more group"))
        who = " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))
        if self.state == "leak":
            return f"The model leaks who {f'the members of {who}' if who else 'its members'} are."
        if self.state == "none":
            return "No leak was found, which does not prove that there is none."
        leaks = f"who the members of {who} are" if who else "some of its members"
        return f"The model may leak {leaks}: give more rows to be sure."


def risk(best: Strongest | None, groups: Subgroups | None) -> Risk:
    """Return how sure a leak is, of all rows or else of groups of them.

    Args:
        best: from ``strongest``.
        groups: of the strongest attack; None if they were not compared.
    """
    if best is None:
        return Risk("none")
    certain, likely = (
        tuple(one.name for one in groups.beyond_chance(error / best.of)) if groups else ()
        for error in (_CERTAIN, _UNLIKELY)
    )
    if best.leaks or certain:
        return Risk("leak", () if best.leaks else certain)
    if best.perhaps or likely:
        return Risk("perhaps", () if best.perhaps else likely)
    return Risk("none")


def strongest(records: Sequence[Record]) -> Strongest | None:
    """Return the membership result with the highest TPR at 1 % FPR, ties by AUC."""
    ran = [one for one in records if one.status == "ok" and one.cell.game == "membership"]
    if not ran:
        return None
    board = Leaderboard(records)
    known = {one.trial: _plain(board.doubtful.get(board.cell_of(one), "")) for one in ran}
    done = [one for one in ran if not known[one.trial]] or ran
    best = max(done, key=lambda one: (_value(one, TPR), _value(one, "auc")))
    lead = {one.trial: _value(one, "auc") - 0.5 for one in done}
    certain, rare = 2 * _CERTAIN / len(done), _UNLIKELY / len(done)  # a band is two-sided
    leaks = any(lead[one.trial] > auc_band(*_sizes(one), certain) for one in done)
    likely = any(lead[one.trial] > auc_band(*_sizes(one), rare) for one in done)
    low = best.metrics[TPR].low
    both = 2 * LEVEL / TESTS / len(done)  # a band is two-sided
    swapped = (one for one in done if -lead[one.trial] > auc_band(*_sizes(one), both))
    doubted = [one for one in ran if known[one.trial]]
    suspects = (one for one in doubted if _value(one, "auc") - 0.5 > auc_band(
        *_sizes(one), 2 * _UNLIKELY / len(doubted)))  # fmt: skip
    return Strongest(
        best, max(done, key=lambda one: _value(one, "auc")), len(done), leaks,
        perhaps=not leaks and (likely or (low is not None and low > CHANCE)),
        swapped=min(swapped, key=lambda one: lead[one.trial], default=None),
        doubtful={one.cell.attack.label: known[one.trial] for one in ran if known[one.trial]},
        suspect=max(suspects, key=lambda one: _value(one, "auc"), default=None),
    )  # fmt: skip


#: How the reason of a doubt names a thing -> how an audit does.
_PLAIN = {
    "on a victim that saw none of these samples": "on a network with random weights",
    ": the truth reaches the attack, or the samples differ": ", so the two sets differ",
    "on its null victims": "on such a network",
}


def _plain(why: str) -> str:
    for told, plain in _PLAIN.items():
        why = why.replace(told, plain)
    return why


def _sizes(record: Record) -> tuple[int, int]:
    return record.sizes["members"], record.sizes["nonmembers"]


def _value(record: Record, metric: str) -> float:
    return record.metrics[metric].value or 0.0


def guessed(record: Record) -> float:
    """The share of members that a guess finds where it may take 1 % of the nonmembers for members.

    More than 1 %, as the threshold is chosen on these nonmembers: 1.1 % with 1,000, 2 % with 100.
    """
    return true_fpr(_sizes(record)[1], CHANCE).mean


def exposed(columns: Columns, places: Mapping[tuple[int, int], int]) -> list[tuple[int, float]]:
    """Return the members, the most exposed first: (row in their file, exposure in [0, 1]).

    Args:
        columns: per-sample scores of a trial.
        places: key and class of a row -> its place in the members' file; -1 stands for no class.
    """
    member = columns["truth.member"].astype(bool)
    found = exposure(columns["victim.scores"], member)
    scores = columns["victim.scores"].astype(float)
    order = sorted(np.flatnonzero(member), key=lambda i: (-found[i], -scores[i]))
    known = [*zip(columns["row"].tolist(), columns["label"].tolist(), strict=True)]
    return [*dict.fromkeys((places[known[i]], float(found[i])) for i in order)]


@dataclass(frozen=True)
class Reached:
    """The first point of an ROC curve beyond 1 % of false alarms, where ties allow none before it.

    Attributes:
        tpr: share of members, with the interval of a fixed threshold.
        fpr: share of nonmembers, with the same.
    """

    tpr: Number
    fpr: Number


def reached(columns: Columns) -> Reached | None:
    """Return the first point that an attack can reach; None unless ties hide all that it finds.

    Many rows with one score, such as a confidence of exactly 1, are above a threshold together.
    """
    member = columns["truth.member"].astype(bool)
    scores = columns["victim.scores"].astype(float)
    outside = np.sort(scores[~member])[::-1]
    tolerated = math.floor(CHANCE * len(outside) + _ROUNDING)
    first = outside[tolerated]
    inside = scores[member]
    tied = (outside == first).sum() > 1 and (inside == first).any()
    if tolerated < 1 or not tied or (inside > first).any():
        return None
    return Reached(_rate(inside >= first), _rate(outside >= first))


def _rate(hits: NDArray[np.bool_]) -> Number:
    low, high = clopper_pearson(int(hits.sum()), len(hits))
    return Number(value=float(hits.mean()), low=low, high=high)


def summary(
    records: Sequence[Record],
    shift: Shift,
    rows: Sequence[tuple[int, float]],
    left_out: Mapping[str, str],
    *,
    first: Reached | None = None,
    no_verdict: str = "",
    groups: Subgroups | None = None,
    errors: Errors | None = None,
    copied: Mapping[int, int] = MappingProxyType({}),
) -> str:
    """Return what was found, in lines of words with numbers.

    Args:
        records: of all attacks.
        shift: between members and nonmembers.
        rows: from ``exposed``.
        left_out: attack -> why it did not run.
        first: what the strongest attack reaches, if ties hide it; from ``reached``.
        no_verdict: from ``no_verdict``.
        groups: from ``subgroups``; None without a verdict.
        errors: of a regression.
        copied: place in the members' file -> how many copies of the row are in it.
    """
    best = strongest(records)
    found = risk(best, groups)
    lines = _risk(best, first, no_verdict, found)
    if best and not (no_verdict or shift.found) and _is_below(best.by_auc):
        lines.insert(1, _BELOW)
    own = [one for one in records if "shadows own-recipe" in one.cell.adversary]
    if best and not no_verdict and not any(one.status == "ok" for one in own):
        advice = ADVICE if errors is None else ADVICE_ON_ERRORS
        encoder = errors is None and all(one.cell.access == "EMBEDDINGS" for one in records)
        lines.append(BOUND if own or encoder else f"{BOUND} {advice}")
    if best and not no_verdict and found.state != "none":
        lines += _rows(rows, _sizes(best.record)[1], copied)
    if groups is not None:
        lines.append(str(groups))
    lines += [_shift(shift), *_accuracy(records), *([] if errors is None else [str(errors)])]
    lines += [_attribute(one) for one in records if _is_attribute(one)]
    lines += [
        f"Failed: {one.cell.attack.label}: {shown(one.reason, 300)}."
        for one in records
        if one.status == "failed"
    ]
    return "\n".join([*lines, *_left_out(left_out)])


def _shift(shift: Shift) -> str:
    if shift.found_in_y and not shift.found_in_x:
        return (
            "WARNING: members and nonmembers differ in more than membership (in y, p = "
            f"{shift.p_value_of_y:.2g}). What attacks find may be this difference and not a leak, "
            "and it can hide a leak: draw nonmembers as the members were drawn."
        )
    if shift.auc is None:
        return "Members and nonmembers were not compared: only the model knows what rows hold."
    told = f"(a forest that never asks the model: AUC {shift.auc:.3f}, p = {shift.p_value:.2g})"
    if shift.found:
        return (
            f"WARNING: members and nonmembers differ in more than membership {told}. What attacks "
            "find may be this difference and not a leak, and it can hide a leak: use nonmembers "
            "from the same source."
        )
    return f"Members and nonmembers look alike {told}."


def _accuracy(records: Sequence[Record]) -> list[str]:
    """Return the accuracies of the model."""
    utility = next((one.utility for one in records if one.utility), None)
    if utility is None:
        return []
    inside, outside = utility["train_accuracy"], utility["test_accuracy"]
    return [f"Accuracy: {inside:.1%} on members, {outside:.1%} on nonmembers."]


def no_verdict(
    best: Strongest | None, shift: Shift, misfit: str, groups: Subgroups | None = None
) -> str:
    """Return why attacks say nothing about a leak, and what to check; "" if they do.

    Args:
        best: from ``strongest``.
        shift: between members and nonmembers.
        misfit: why the rows cannot be those that the model knows; from ``misfit.misfit``.
        groups: of the strongest attack.
    """
    if misfit or best is None:
        differ = "; or the two sets are of different sources, since their rows differ"
        return f"{misfit}{differ}" if misfit and shift.found else misfit
    if not best.counts:
        name = best.record.cell.attack.label
        return (
            f"no attack counts ({name}: {best.doubtful[name]}): use nonmembers from the same "
            "source, or name other attacks"
        )
    if best.swapped is not None and not best.leaks:
        told = (
            f"{best.swapped.cell.attack.label} takes nonmembers for members (AUC "
            f"{number(best.swapped.metrics['auc'])}): check that the files of members and "
            "nonmembers are not swapped"
        )
        return f"{told}, or of different sources" if shift.found else told
    if shift.found and risk(best, groups).state != "none":
        return (
            "attacks tell the two sets apart, and the sets differ: use nonmembers from the same "
            "source"
        )
    if best.suspect is not None and risk(best, groups).state == "none":
        name = best.suspect.cell.attack.label
        return (
            f"{name} tells the two sets apart (AUC {number(best.suspect.metrics['auc'])}) but does "
            f"not count ({best.doubtful[name]}), and no other attack finds a leak: use nonmembers "
            "from the same source"
        )
    return ""


def _risk(best: Strongest | None, first: Reached | None, no_verdict: str, found: Risk) -> list[str]:
    none = [f"No verdict: {no_verdict}."] if no_verdict else []
    if best is None:
        return [*none, "No attack on membership ran."]
    lines = [f"{none[0] if none else found} {_finds(best, first)}"]
    record = best.record
    other = best.by_auc
    if _value(other, "auc") > _value(record, "auc"):
        lines.append(
            f"By AUC the strongest is {other.cell.attack.label}: {number(other.metrics['auc'])}."
        )
    if best.swapped is not None and best.leaks:
        lines.append(
            f"WARNING: {best.swapped.cell.attack.label} takes nonmembers for members (AUC "
            f"{number(best.swapped.metrics['auc'])})."
        )
    if first is None and _value(record, TPR) > CHANCE and _sizes(record)[1] < _LEAST:
        lines.append(
            f"The lower end of that share's interval is 0 whatever an attack finds, as there are "
            f"{_sizes(record)[1]} nonmembers: give {_LEAST} or more."
        )
    lines += [f"Not counted: {name}: {shown(why, 300)}." for name, why in best.doubtful.items()]
    null = record.controls.get("null", {}).get("auc")
    if null is not None and null.value is not None:
        told = f"On a network with random weights, which saw no row, its AUC is {number(null)}."
        lines.append(told)
    return lines + [f"Note: {shown(_plain(flag), 300)}." for flag in record.flags]


def _is_below(record: Record) -> bool:
    high = record.metrics["auc"].high
    return high is not None and high < 1 / 2


def _finds(best: Strongest, first: Reached | None) -> str:
    """Return what the strongest attack finds, in a sentence or two."""
    tpr, auc = best.record.metrics[TPR], number(best.record.metrics["auc"])
    of = "The only attack" if best.of == 1 else f"The strongest of {best.of} attacks"
    name = f"{of}, {best.record.cell.attack.label}"
    if tpr.value is None:
        return f"{name}, has an AUC of {auc}. {_FEW}"
    finds = (
        f"finds {share(tpr)} of the members where it takes 1 % of the nonmembers for members "
        f"(chance: {guessed(best.record):.1%})"
    )
    if first is not None and first.fpr.value == 1:
        finds = "cannot be set to take 1 % of the nonmembers for members"
    elif first is not None:
        finds = (
            f"finds {share(first.tpr)} of the members at {share(first.fpr)} of false alarms "
            f"(chance: {first.fpr.value:.1%}; many rows have one score, so fewer are impossible)"
        )
    return f"{name}, {finds}; its AUC is {auc}."


def outstanding(rows: Sequence[tuple[int, float]], nonmembers: int) -> Sequence[tuple[int, float]]:
    """Return the rows that look more like members than 99 % of the nonmembers.

    None if chance puts as many there in one of 20 audits: the number of m alike rows above all but
    k of n others has a beta-binomial distribution.

    Args:
        rows: from ``exposed``, all members.
        nonmembers: number of the others.
    """
    from scipy.stats import betabinom

    found = [(row, share) for row, share in rows if share > 1 - CHANCE]
    above = max(1, math.ceil(CHANCE * nonmembers - _ROUNDING))
    by_chance = betabinom.sf(len(found) - 1, len(rows), above, nonmembers - above + 1)
    return found if by_chance < _UNLIKELY else []


def _rows(
    rows: Sequence[tuple[int, float]], nonmembers: int, copied: Mapping[int, int]
) -> list[str]:
    if found := outstanding(rows, nonmembers):
        listed = ", ".join(f"{row}{_copies(copied.get(row, 0))}" for row, _ in found[:_MOST])
        return [f"Most exposed rows of the members' file, counted from 0: {listed}."]
    if any(share > 1 - CHANCE for _, share in rows):
        why = "chance explains how many look more like members than 99 % of the nonmembers"
    else:
        why = "none looks more like a member than 99 % of the nonmembers"
    return [f"No single row stands out: {why}."]


def _copies(count: int) -> str:
    return f" (and {count} {'copy' if count == 1 else 'copies'})" if count else ""


def _is_attribute(record: Record) -> bool:
    return record.status == "ok" and record.cell.game == "attributes"


def _attribute(record: Record) -> str:
    majority = record.baselines.get("majority", {}).get("accuracy")
    beside = "" if majority is None else f" (the most common value: {share(majority)})"
    told = share(record.metrics["accuracy"])
    what = f"{record.cell.attack.label} infers {', '.join(record.cell.sensitive)}"
    return f"{what} of {told} of the rows that are no members{beside}."


#: How a reason to skip begins -> how an audit says it.
_REWORDED = {
    "needs rows of the adversary's own": "rows of the adversary's own are needed (shadow rows)",
    "needs models that it can train": "shadows are needed (a shadow recipe, or shadow rows)",
    "needs POSTERIORS": "it reads posteriors, and the model does not answer them",
    "needs LABELS": "it reads classes, and the model does not answer them",
    "needs EMBEDDINGS": "it reads embeddings, and the model does not answer them",
    "needs reference rows": "it learns from rows that the model has not seen: give shadow rows",
    "reads canaries that the defense plants": "only for models that privbench trains",
    "reads checkpoints that the target keeps": "only for models that privbench trains",
}


def reworded(attack: str, reason: str) -> str:
    """Return why an attack did not run, as an audit says it."""
    why = reason.removeprefix(f"{attack} ")
    return next((new for old, new in _REWORDED.items() if why.startswith(old)), why)


def _left_out(left_out: Mapping[str, str]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for attack, reason in left_out.items():
        reasons.setdefault(reworded(attack, reason), []).append(attack)
    return [f"Left out: {', '.join(names)}: {shown(why, 300)}." for why, names in reasons.items()]


def share(of: Number) -> str:
    """Return a share in percent, with its interval."""
    return number(of, "{:.1%}")


def number(of: Number, form: str = "{:.3f}") -> str:
    """Return a number with its interval, or why there is none."""
    if of.value is None:
        return f"unknown ({shown(of.refused or 'refused', 160)})"
    told = form.format(of.value)
    if of.low is None or of.high is None:
        return told
    return f"{told} (95 % interval {form.format(of.low)} to {form.format(of.high)})"
