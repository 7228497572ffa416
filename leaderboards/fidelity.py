# ruff: noqa: INP001 - a script
"""Compares published numbers and findings with ours: writes fidelity.md and fidelity.csv.

    uv run python leaderboards/fidelity.py

What no committed result measures is listed with the reason, without a number of ours. A selection
that finds no result in a suite that has been run, or several cells, is an error.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean as mean
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict

from privbench.ground.text import markdown, several
from privbench.measure.games.metrics import Estimate
from privbench.results.files import read_all
from privbench.results.statistics import (
    ERROR,
    Difference,
    accuracy_interval,
    holm,
    mean_over_seeds,
    paired,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.results.record import Record

HERE = Path(__file__).parent
#: What a selection may name.
PARTS = ("dataset", "target", "attack", "defense", "adversary")
CERTAINTY = {
    "text": "", "digitised": " (digitised)", "secondary": " (second hand)",
    "recalled": " (recalled)", "unclear": " (label lost)",
}  # fmt: skip
#: A difference that is zero but for rounding.
ROUNDING = 1e-9
#: A number is equal to a published one if its whole interval is no further away.
MARGIN = 0.03
#: What an attack reaches that knows nothing.
CHANCE = {
    "metrics.balanced_accuracy": 0.5, "metrics.auc": 0.5, "metrics.precision": 0.5,
    "metrics.recall": 0.5, "metrics.tpr_at_fpr_0.001": 0.001, "metrics.tpr_at_fpr_0.01": 0.01,
}  # fmt: skip


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(_Strict):
    """A paper: its short name in tables, and how it is cited."""

    short: str
    cite: str


class Line(_Strict):
    """Values of one row of a table, one for each column."""

    values: list[float]
    cell: dict[str, str] = {}
    title: str = ""
    why: str = ""
    quoted: bool = False


class Table(_Strict):
    """Numbers of one table or figure of a paper; see published.yaml.

    `attacker` says in what ours is another one than the paper's; `margin` is how far equal numbers
    may be apart, MARGIN where they are shares.
    """

    paper: str
    where: str
    certainty: str
    quantity: str
    protocol: str
    columns: list[dict[str, str]]
    rows: list[Line]
    number: str = ""
    suite: str = ""
    difference: str = ""
    why: str = ""
    cell: dict[str, str] = {}
    missing: dict[str, str] = {}
    attacker: str = ""
    margin: float = MARGIN

    @property
    def ours(self) -> str:
        """In what ours differs."""
        return "; ".join(filter(None, [self.attacker, self.difference]))


class Finding(_Strict):
    """A statement of a paper: one selection has a larger number than another, or an equal one.

    Selections are paired by all parts that neither names, and by what `by` names: a hyperparameter
    of the defenses, or `attack` for the attack's name; or they are compared where the number `at`
    is equal. `equal` is how far equal numbers may be apart.
    """

    paper: str
    text: str
    suites: list[str]
    number: str
    more: dict[str, str]
    less: dict[str, str]
    attacks: list[str] = []
    equal: float | None = None
    by: str = ""
    at: str = ""


class Quote(_Strict):
    """What papers only quote from others."""

    paper: str
    what: str


class Published(_Strict):
    """All that published.yaml holds."""

    papers: dict[str, Paper]
    tables: list[Table]
    quoted: list[Quote]
    findings: list[Finding]


@dataclass(frozen=True)
class Value:
    """One published value, and ours where a result measures it; else the reason."""

    table: Table
    what: str
    published: float
    ours: Estimate | None = None
    seeds: int = 0
    why: str = ""
    quoted: bool = False
    number: str = ""
    auc: float | None = None
    chance: float | None = None
    sign: int = 1

    @property
    def apart(self) -> float:
        """Ours minus theirs; 0 if it is not measured."""
        return 0.0 if self.ours is None else self.ours.value - self.published

    @property
    def verdict(self) -> str:
        """Whether ours agrees: an equivalence, so a wide interval never does."""
        if self.ours is None or not _spread(self.ours):
            return "open: no interval"
        margin, half = self.table.margin, (self.ours.high - self.ours.low) / 2
        low, high = self.published - margin, self.published + margin
        if self.ours.low > high or self.ours.high < low:
            return "differs"
        if low <= self.ours.low and self.ours.high <= high:
            return "agrees"
        return f"open: ± {half:.2g}" if half > margin else "open"

    @property
    def section(self) -> str:
        """The heading that it stands under."""
        if self.number.startswith("utility."):
            return UTILITY
        if self.table.attacker:
            return OTHERS
        if self.table.certainty == "unclear":
            return UNCLEAR
        both = (self.published, self.published if self.ours is None else self.ours.value)
        nothing = self.chance is not None and all(
            self.sign * (one - self.chance) <= self.table.margin for one in both
        )
        return AT_CHANCE if nothing else LEAKS


LEAKS = "Leaks, by the paper's attacker"
OTHERS = "Leaks, by another attacker than the paper's"
UNCLEAR = "Leaks, of rows whose label is lost"
AT_CHANCE = "Nothing found, there and here"
UTILITY = "Utility"
SECTIONS = {
    LEAKS: "",
    OTHERS: "Agreement here would be a coincidence.",
    UNCLEAR: "The text that we have does not say which setting a row is of, so one measurement "
             "of ours stands beside several of theirs.",
    AT_CHANCE: "Both within the margin of what an attack reaches that knows nothing. Two attacks "
               "that find nothing agree whatever they are.",
    UTILITY: "Accuracies and gaps say how comparable the victims are, and nothing of the attacks.",
}  # fmt: skip


Suites = dict[str, list["Record"]]


def load(root: Path = HERE) -> tuple[Published, Suites]:
    """Read published.yaml, and the results of the suites that it names and that have been run."""
    text = (root / "published.yaml").read_text("utf-8")
    published = Published.model_validate(yaml.safe_load(text))
    named = {table.suite for table in published.tables if table.suite}
    named |= {suite for finding in published.findings for suite in finding.suites}
    files = {name: root / "results" / f"{name}.jsonl" for name in sorted(named)}
    results = {name: read_all([path]) for name, path in files.items() if path.exists()}
    return published, {
        name: [one for one in records if one.status == "ok"] for name, records in results.items()
    }


def values(published: Published, suites: Suites) -> list[Value]:
    """All published values with ours."""
    return [
        _value(table, line, column, value, suites)
        for table in published.tables
        for line in table.rows
        for column, value in zip(table.columns, line.values, strict=True)
    ]


def _value(
    table: Table, line: Line, column: Mapping[str, str], value: float, suites: Suites
) -> Value:
    chosen = {**table.cell, **line.cell, **column}
    quantity = chosen.pop("quantity", "")
    number = chosen.pop("number", table.number)
    why = chosen.pop("why", "") or line.why or table.why
    why = why or table.missing.get(chosen.get("dataset", ""), "")
    parts = [chosen[part] for part in ("attack", "defense", "target", "dataset") if part in chosen]
    what = ", ".join(filter(None, [line.title, " × ".join(parts), quantity]))
    if not why and table.suite not in suites:
        why = f"suite {table.suite} has not been run"
    if why or line.quoted:
        return Value(table, what, value, why=why, quoted=line.quoted)
    found = select(suites[table.suite], chosen)
    if not found:
        raise LookupError(f"{table.paper}, {table.where}: no result of {table.suite} is {chosen}")
    if len({one.cell.model_dump_json() for one in found}) > 1:
        raise LookupError(f"{table.paper}, {table.where}: several cells are {chosen}")
    numbers = [read for one in found if (read := _number(one, number)) is not None]
    if not numbers:
        return Value(table, what, value, why="the number is refused: too few rows")
    areas = [read for one in found if (read := _number(one, "metrics.auc")) is not None]
    auc = mean(areas) if areas and number == "metrics.balanced_accuracy" else None
    ours = _alone(found[0], number) if len(numbers) == 1 else mean_over_seeds(numbers)
    board = found[0].board
    lower = board is not None and not board.higher and f"metrics.{board.columns[0].name}" == number
    return Value(
        table, what, value, ours, len(numbers), number=number, auc=auc,
        chance=_chance(found, number), sign=-1 if lower else 1,
    )  # fmt: skip


def _chance(found: Sequence[Record], number: str) -> float | None:
    """What an attack reaches that knows nothing; None where that is not known."""
    name = number.removeprefix("metrics.")
    guesses = [
        guess.value
        for record in found
        for baseline in ("majority", "mean_image")
        if (guess := record.baselines.get(baseline, {}).get(name)) and guess.value is not None
    ]
    return CHANCE.get(number, mean(guesses) if guesses else None)


def select(records: Sequence[Record], chosen: Mapping[str, str]) -> list[Record]:
    """The results whose parts match: labels first, or names if no label matches.

    A pattern may be several, with `` | `` between them.
    """
    found = list(records)
    for part, pattern in chosen.items():
        any_of = [_plain(one) for one in pattern.split(" | ")]
        by_label = [one for one in found
                    if any(fnmatchcase(_labels(one)[part], like) for like in any_of)]  # fmt: skip
        found = by_label or [one for one in found if _names(one)[part] == pattern]
    return found


def _plain(pattern: str) -> str:
    """A pattern in which brackets are themselves."""
    return pattern.replace("[", "[[]")


def _labels(record: Record) -> dict[str, str]:
    cell = record.cell
    found = (cell.dataset.label, cell.target.label, cell.attack.label, cell.defense, cell.adversary)
    return dict(zip(PARTS, found, strict=True))


def _names(record: Record) -> dict[str, str]:
    cell = record.cell
    stack = "+".join(defense.name for defense in cell.defenses)
    found = (cell.dataset.name, cell.target.name, cell.attack.name, stack, cell.adversary)
    return dict(zip(PARTS, found, strict=True))


def _number(record: Record, path: str) -> float | None:
    group, _, name = path.partition(".")
    if group == "metrics":
        found = record.metrics.get(name)
        return found.value if found else None
    return record.utility.get(name)


def _alone(record: Record, path: str) -> Estimate:
    """The number of one seed, with its interval over rows if it has one."""
    group, _, name = path.partition(".")
    if group == "metrics":
        found = record.metrics[name]
        if found.value is not None and found.low is not None and found.high is not None:
            return Estimate(found.value, found.low, found.high)
    value = _number(record, path)
    if value is None:
        raise LookupError(f"{record.trial} has no {path}")
    rows = int(record.utility.get("test_rows") or 0)
    over_rows = accuracy_interval([value], rows) if rows and name == "test_accuracy" else None
    return over_rows or Estimate(value, value, value)


def _spread(number: Estimate) -> bool:
    """Whether a number has an interval."""
    return number.low < number.high


@dataclass(frozen=True)
class Tested:
    """A finding on one dataset of one suite.

    Attributes:
        p: of the difference, corrected for all findings that are tested; None before.
    """

    finding: Finding
    suite: str
    dataset: str
    attacks: tuple[str, ...]
    difference: Difference
    pairs: int
    p: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the interval of the difference bears the finding out, after the correction."""
        d, margin = self.difference, self.finding.equal
        if margin == 0:
            return "borne out" if abs(d.mean) <= ROUNDING else "contradicted"
        if d.low is None or d.high is None or d.p is None:
            return "undecided: too few seeds"
        if margin is not None:
            if -margin <= d.low and d.high <= margin:
                return "borne out"
            return "contradicted" if d.low > margin or d.high < -margin else "undecided"
        told = "undecided"
        if d.low > 0 or d.high < 0:
            told = "borne out" if d.low > 0 else "contradicted"
            told = "undecided, by Holm's correction" if (self.p or 0) >= ERROR else told
        return told


def tests(finding: Finding, suites: Suites) -> list[Tested]:
    """Test a finding on every dataset of the suites that have been run."""
    found = []
    for suite in finding.suites:
        records = suites.get(suite, [])
        for dataset in sorted({one.cell.dataset.label for one in records}):
            tested = _test(finding, [one for one in records if one.cell.dataset.label == dataset])
            if tested is not None:
                found.append(Tested(finding, suite, dataset, *tested))
        if records and not any(one.suite == suite for one in found):
            raise LookupError(f"no results of {suite} are compared by: {finding.text}")
    return found


def corrected(tested: Sequence[Tested]) -> list[Tested]:
    """Correct the p-values of all findings that name a larger side (Holm)."""
    known = {i: one.difference.p for i, one in enumerate(tested) if one.finding.equal is None}
    p = holm({i: value for i, value in known.items() if value is not None})
    return [replace(one, p=p.get(i)) for i, one in enumerate(tested)]


def _test(
    finding: Finding, records: Sequence[Record]
) -> tuple[tuple[str, ...], Difference, int] | None:
    if finding.attacks:
        records = [one for name in finding.attacks for one in select(records, {"attack": name})]
    compare = _at_equal if finding.at else _by_pairs
    more, less, pairs = compare(finding, records)
    difference = paired(more, less)
    known = tuple(dict.fromkeys(one.cell.attack.name for one in records))
    return None if difference is None else (known, difference, pairs)


def _key(finding: Finding, record: Record) -> tuple[Any, ...]:
    varied = {*finding.more, *finding.less}
    labels = _labels(record)
    by: list[Any]
    if finding.by == "attack":
        by = [record.cell.attack.name]
    else:
        by = [one.fields.get(finding.by) for one in record.cell.defenses if finding.by]
    sensitive = "+".join(record.cell.sensitive)
    return (*(labels[part] for part in PARTS if part not in varied), sensitive, *map(str, by))


def _by_pairs(
    finding: Finding, records: Sequence[Record]
) -> tuple[dict[int, float], dict[int, float], int]:
    """Means by seed over the pairs that differ in nothing but what the finding names."""
    sides: list[dict[tuple[Any, ...], dict[int, list[float]]]] = []
    for chosen in (finding.more, finding.less):
        side: dict[tuple[Any, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in select(records, chosen):
            value = _number(one, finding.number)
            if value is not None:
                side[_key(finding, one)][one.seed].append(value)
        sides.append(side)
    more, less = sides
    both: tuple[dict[int, list[float]], ...] = (defaultdict(list), defaultdict(list))
    keys = sorted(set(more) & set(less))
    for key in keys:
        for seed in sorted(set(more[key]) & set(less[key])):
            for side, means in zip((more, less), both, strict=True):
                means[seed].append(float(np.mean(side[key][seed])))
    first, second = ({seed: float(np.mean(v)) for seed, v in side.items()} for side in both)
    return first, second, len(keys)


def _at_equal(
    finding: Finding, records: Sequence[Record]
) -> tuple[dict[int, float], dict[int, float], int]:
    """Means by seed of both curves where they have the same number `at`, between their points."""
    curves = []
    for chosen in (finding.more, finding.less):
        points: dict[int, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in select(records, chosen):
            at, value = _number(one, finding.at), _number(one, finding.number)
            if at is not None and value is not None:
                points[one.seed][at].append(value)
        curves.append(points)
    more, less = curves
    means: tuple[dict[int, float], dict[int, float]] = ({}, {})
    pairs = 0
    for seed in sorted(set(more) & set(less)):
        xs, ys = zip(*((at, np.mean(v)) for at, v in sorted(more[seed].items())), strict=True)
        shared = {at: v for at, v in less[seed].items() if xs[0] <= at <= xs[-1]}
        if shared:
            means[0][seed] = float(np.mean(np.interp(sorted(shared), xs, ys)))
            means[1][seed] = float(np.mean([np.mean(shared[at]) for at in sorted(shared)]))
            pairs = max(pairs, len(shared))
    return *means, pairs


def page(published: Published, suites: Suites) -> str:
    """The page fidelity.md."""
    everything = values(published, suites)
    measured = [one for one in everything if one.ours is not None]
    tested = corrected([one for finding in published.findings for one in tests(finding, suites)])
    untested = [one for one in published.findings if all(t.finding is not one for t in tested)]
    quoted = [one for one in everything if one.quoted]
    rest = [one for one in everything if one.ours is None and not one.quoted]
    leaks = [one.verdict for one in measured if one.section == LEAKS]
    tables = {(one.table.paper, one.table.where) for one in measured
              if one.section == LEAKS and one.verdict == "agrees"}  # fmt: skip
    of = f" (of {several(len(tables), 'table')})" if tables else ""
    verdicts = [one.verdict for one in tested]
    parts = [
        "# Fidelity: what papers published, and what is measured here",
        (
            f"{len(everything)} published numbers of {len(published.papers)} papers. "
            f"{len(measured)} are measured here. {len(leaks)} of these are leaks by the paper's "
            f"attacker: {(n := leaks.count('agrees'))} agree{'s' * (n == 1)}{of}, "
            f"{leaks.count('differs')} differ, the others are open. {len(rest)} are not measured, "
            f"{len(quoted)} are quotations. Of {len(tested)} tests of findings "
            f"{verdicts.count('borne out')} bear the finding out, "
            f"{verdicts.count('contradicted')} contradict it, the others do not decide. "
            "Sizes here are those of a CPU: a difference says first of all how far size matters."
        ),
        (
            f"A number *agrees* if our whole 95 % interval is within {MARGIN:g} of it (another "
            "margin stands in published.yaml); it *differs* if our whole interval is further away; "
            "else it is *open*."
        ),
        (
            "Intervals are of the mean over seeds (Student), of one seed over its rows, and not "
            "corrected for their number; findings are (Holm). *Digitised*: read from a vector "
            "figure. *Recalled*: from memory. *Label lost*: of a row or column in the text that we "
            "have."
        ),
        (
            "Written by `uv run python leaderboards/fidelity.py` from "
            "[published.yaml](published.yaml) and the results in [results/](results)."
        ),
        *(
            part
            for name, told in SECTIONS.items()
            for part in _numbers(published, name, told, measured)
        ),
        "## Findings",
        *_findings(published, tested, untested),
        "## Not measured",
        *_rest(published, rest),
        "## Quoted by a paper from others",
        *_quotes(published, quoted),
        "## Papers",
        "\n".join(f"- {one.short}: {one.cite}." for one in published.papers.values()),
    ]
    return "\n\n".join(parts) + "\n"


def _numbers(published: Published, name: str, told: str, measured: Iterable[Value]) -> list[str]:
    """A section of numbers, the closest first."""
    mine = [one for one in measured if one.section == name]
    with_auc = any(one.auc is not None for one in mine)
    rows = []
    for one in sorted(mine, key=lambda one: abs(one.apart)):
        table, ours = one.table, one.ours
        assert ours is not None  # noqa: S101 - for the type checker
        auc = "–" if one.auc is None else f"{one.auc:.3f}"
        rows.append([
            f"{published.papers[table.paper].short}, {table.where}",
            f"{table.quantity}: {one.what}",
            _digits(one.published) + CERTAINTY[table.certainty],
            f"{ours.value:.3f}" + (f" [{ours.low:.3f}, {ours.high:.3f}]" if _spread(ours) else ""),
            *([auc] if with_auc else []),
            f"{one.apart:+.3f}",
            one.verdict,
            str(one.seeds),
            table.protocol,
            table.ours,
        ])  # fmt: skip
    heads = ["source", "what", "published", "ours", *(["our AUC"] if with_auc else []),
             "difference", "verdict", "seeds", "theirs is", "ours is"]  # fmt: skip
    return [f"## {name}", *filter(None, [told]), _table(heads, rows) if rows else "None yet."]


def _findings(
    published: Published, tested: Iterable[Tested], untested: Iterable[Finding]
) -> list[str]:
    rows = []
    for one in tested:
        d = one.difference
        interval = "" if d.low is None or d.high is None else f" [{d.low:+.3f}, {d.high:+.3f}]"
        name = one.finding.number.partition(".")[2].replace("_", " ")
        if name != "test accuracy" and one.finding.attacks:
            name += f" of {', '.join(one.attacks)}"
        on = one.suite if one.suite.startswith(one.dataset) else f"{one.suite} ({one.dataset})"
        rows.append([
            published.papers[one.finding.paper].short, one.finding.text,
            on, name, f"{d.mean:+.3f}{interval}",
            str(one.pairs), str(d.seeds), one.verdict,
        ])  # fmt: skip
    heads = ["paper", "finding", "tested on", "number", "difference", "pairs", "seeds", "verdict"]
    told = [_table(heads, rows)] if rows else []
    told.append(
        "The difference is of the two sides that the finding names, the one that it calls larger "
        "first: the mean over pairs of cells that differ in nothing else, paired by seed."
    )
    if rest := list(untested):
        told.append("Not tested yet, for want of results:")
        told.append("\n".join(f"- {published.papers[o.paper].short}: {o.text}" for o in rest))
    return told


def _rest(published: Published, rest: Iterable[Value]) -> list[str]:
    by_source: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in rest:
        paper = published.papers[one.table.paper].short
        by_source[f"{paper}, {one.table.where}", one.table.quantity, one.why] += 1
    if not by_source:
        return ["Nothing."]
    rows = [[*key[:2], str(count), key[2]] for key, count in by_source.items()]
    return [
        "How many numbers of each source; [fidelity.csv](fidelity.csv) has all of them.",
        _table(["source", "what", "numbers", "why"], rows),
    ]


def table(published: Published, suites: Suites) -> str:
    """The file fidelity.csv: every published number, with ours where there is one."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([
        "paper", "where", "certainty", "quantity", "what", "theirs", "published", "ours", "low",
        "high", "our auc", "seeds", "difference", "section", "verdict", "ours differs in",
        "why not measured", "quoted",
    ])  # fmt: skip
    for one in values(published, suites):
        of, ours = one.table, one.ours
        measured = (
            [""] * 8
            if ours is None
            else [
                f"{ours.value:.6g}",
                *(f"{x:.6g}" if _spread(ours) else "" for x in (ours.low, ours.high)),
                "" if one.auc is None else f"{one.auc:.6g}",
                one.seeds,
                f"{one.apart:.6g}",
                one.section,
                one.verdict,
            ]
        )
        out.writerow([
            published.papers[of.paper].short, of.where, of.certainty, of.quantity, one.what,
            of.protocol, _digits(one.published), *measured,
            "" if ours is None else of.ours, one.why, "yes" if one.quoted else "",
        ])  # fmt: skip
    return text.getvalue()


def _quotes(published: Published, quoted: Iterable[Value]) -> list[str]:
    told = [
        f"- {published.papers[one.table.paper].short}: {one.what} {_digits(one.published)}"
        f"{CERTAINTY[one.table.certainty]}"
        for one in quoted
    ]
    told += [f"- {published.papers[one.paper].short}: {one.what}." for one in published.quoted]
    return ["\n".join(told)]


def _digits(value: float) -> str:
    return f"{value:.10g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([markdown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def committed(root: Path = HERE) -> dict[str, str]:
    """The files of the committed results: name -> text."""
    found = load(root)
    return {"fidelity.md": page(*found), "fidelity.csv": table(*found)}


def write(root: Path = HERE) -> None:
    """Write both files."""
    for name, text in committed(root).items():
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
