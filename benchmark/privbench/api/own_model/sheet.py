"""The sheet of an audit, ``audit.html``: what a release engineer signs, on two printed pages.

It runs no script and fetches nothing. Every list on it has a longest length, and every text of
others a largest number of characters here and of lines in ``audit.css``, so that it stays on two
pages of A4 whatever was audited; ``audit.json`` has all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.api.own_model.advice import advice, meaning
from privbench.api.own_model.rows import FEWEST
from privbench.api.own_model.sums import content_digest
from privbench.api.own_model.words import TPR, guessed, outstanding, reached, risk
from privbench.boards.html.curves import has_scores, roc, smallest_rate
from privbench.boards.html.drawing import HEIGHT, WIDTH, frame
from privbench.boards.html.page import own, policy, template
from privbench.ground.text import shown
from privbench.results.sample_files import read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privbench.api.own_model.document import Document, Tried
    from privbench.api.own_model.rows import Rows
    from privbench.api.own_model.subgroups import Group
    from privbench.api.own_model.words import Audit, Reached, Strongest
    from privbench.results.record import Number
    from privbench.results.samples import Columns

_EXPOSED, _GROUPS, _RAN, _REASONS, _MORE = 6, 4, 6, 5, 3  # lines of a list
_NAME, _TEXT, _LINE = 70, 300, 120  # characters


@dataclass(frozen=True)
class Evidence:
    """What the sheet shows and the document does not hold.

    Attributes:
        best: from ``strongest``.
        columns: per-sample scores of the strongest attack; None if there are none.
        exposed: from ``exposed``.
        classes: of the members, as texts, by place in their file; y of a regression; empty without
            either.
        duplicates: members that are equal to an earlier member.
        content: digest over all other files of the audit.
    """

    best: Strongest | None
    columns: Columns | None
    exposed: Sequence[tuple[int, float]]
    classes: Mapping[int, str]
    duplicates: int
    content: str


def evidence(made: Audit, rows: Rows, best: Strongest | None, out: Path) -> Evidence:
    """Return it for an audit.

    Args:
        made: the audit.
        rows: of it.
        best: from ``strongest``.
        out: its folder, with all files but the sheet.
    """
    texts = _told(rows.labels if rows.targets is None else rows.targets, rows.of("members"))
    return Evidence(
        best, read_samples(best.record, [out]) if best else None, made.exposed,
        dict(zip(rows.places("members"), texts, strict=False)),
        rows.copies(), content_digest(out),
    )  # fmt: skip


def _told(y: NDArray[Any] | None, at: slice) -> list[str]:
    """Return classes or numbers of some rows as texts."""
    return (
        [] if y is None else [f"{one:g}" if isinstance(one, float) else str(one) for one in y[at]]
    )


def sheet(of: Document, shows: Evidence) -> str:
    """Return the page; equal audits have equal pages."""
    best, columns = shows.best, shows.columns
    first = None if columns is None else reached(columns)
    headline, rest = _verdict(of)
    style = own("audit.css")
    made: str = template("audit.html").render(
        policy=policy(style), style=style, state=_state(of, best),
        name=_named(of), headline=headline, rest=rest,
        tiles=_tiles(of, best, first), meaning=meaning(best, first),
        roc=_roc(columns), attack=_label(best), width=WIDTH, height=HEIGHT,
        exposed=_exposed(shows) if best and not of.no_verdict else [],
        stands_out=risk(best, of.subgroups).state != "none",
        groups=_groups(of), advice=advice(of, best, shows.duplicates),
        ran=(ran := _ran(of)), remarks=any(row[4] for row in ran),
        more_ran=max(0, sum(one.status == "ran" for one in of.attacks) - _RAN),
        not_run=_not_run(of), more=_more(of), limits=[shown(one, _TEXT) for one in of.limits],
        identity=_identity(of, best), content=shows.content, date=of.date, data=of.data,
        version=of.versions.get("privbench", "?"),
    )  # fmt: skip
    return made


def _verdict(of: Document) -> tuple[str, str]:
    """Return the first sentence of the verdict, and what follows in its line."""
    lines = [*of.words.splitlines(), ""]
    line = lines[1 if of.claim else 0]
    first, dot, rest = line.partition(". ")
    return shown(first + dot.strip(), 180), shown(rest, 420)


def _named(of: Document) -> str:
    """Return the model's name; one in memory has none."""
    if of.model.name.startswith("given:"):
        return "a model in memory"
    return shown(of.model.name, _NAME)


def _state(of: Document, best: Strongest | None) -> str:
    if of.no_verdict or best is None:
        return "unknown"
    return risk(best, of.subgroups).state


def _label(best: Strongest | None) -> str:
    return shown(best.record.cell.attack.label, _NAME) if best else ""


def _tiles(
    of: Document, best: Strongest | None, first: Reached | None
) -> list[tuple[str, str, str]]:
    """Return figure, what it is, and its interval, of each number in large print."""
    made = []
    if best is not None:
        found, wrong, chance = best.record.metrics[TPR], "1 %", f"{guessed(best.record):.1%}"
        if first is not None:
            found, wrong = first.tpr, _figure(first.fpr, "{:.1%}")
            chance = wrong
        made = [
            (_figure(found, "{:.1%}"), f"of the members found at {wrong} of false alarms",
             f"{_interval(found, '{:.1%}')}chance {chance}"),
            (_figure(best.record.metrics["auc"]), "AUC of the same attack",
             f"{_interval(best.record.metrics['auc'])}chance 0.5"),
        ]  # fmt: skip
    inside, outside = (of.utility.get(name) for name in ("train_accuracy", "test_accuracy"))
    if inside is not None and outside is not None:
        told = "accuracy on members, on nonmembers"
        made.append((f"{inside:.1%}, {outside:.1%}", told, "a gap is overfitting"))
    if of.errors is not None:
        told = "root mean squared error on members, on nonmembers"
        made.append((f"{of.errors.members:.3g}, {of.errors.nonmembers:.3g}", told,
                     "a gap is overfitting"))  # fmt: skip
    return made


def _figure(of: Number | None, form: str = "{:.3f}") -> str:
    return "–" if of is None or of.value is None else form.format(of.value)


def _interval(of: Number, form: str = "{:.3f}") -> str:
    if of.low is None or of.high is None:
        return ""
    return f"95 %: {form.format(of.low)} to {form.format(of.high)}; "


def _within(of: Number | None, form: str = "{:.3f}") -> str:
    """Return a figure with its interval in brackets."""
    if of is None or of.value is None or of.low is None or of.high is None:
        return _figure(of, form)
    return f"{form.format(of.value)} ({form.format(of.low)} to {form.format(of.high)})"


def _roc(columns: Columns | None) -> dict[str, Any] | None:
    if columns is None or not has_scores(columns):
        return None
    of = frame(smallest_rate(columns))
    return {"paths": of.roc(roc([columns])), "ticks": of.ticks}


def _exposed(shows: Evidence) -> list[tuple[int, str, str]]:
    """Return row, class, and share of nonmembers below it, of the most exposed members."""
    sizes = shows.best.record.sizes if shows.best else {"nonmembers": 0}
    found = outstanding(shows.exposed, sizes["nonmembers"])[:_EXPOSED]
    return [
        (row, shown(shows.classes[row], 20) if shows.classes else "", f"{share:.1%}")
        for row, share in found
    ]


def _groups(of: Document) -> dict[str, Any] | None:
    if of.subgroups is None:
        return None

    def line(one: Group) -> tuple[str, ...]:
        return (shown(one.name, 36), f"{one.members:,}, {one.nonmembers:,}", _within(one.auc),
                _figure(one.rest), f"{one.p_value:.2g}")  # fmt: skip

    more = of.subgroups.more
    out = [
        f"{shown(name, 30)}: {shown(why, _LINE + 30)}"
        for name, why in of.subgroups.left_out.items()
    ]
    return {
        "rows": [line(one) for one in more[:_GROUPS]], "more": max(0, len(more) - _GROUPS),
        "tested": len(of.subgroups.tested), "fewest": FEWEST,
        "left_out": shown("; ".join(out), _TEXT),
    }  # fmt: skip


def _ran(of: Document) -> list[tuple[str, ...]]:
    """Return attack, AUC, share found, AUC on the control, and a remark; the strongest first."""

    def value(one: Tried, name: str) -> float:
        found = one.metrics.get(name)
        return -1.0 if found is None or found.value is None else found.value

    ran = [one for one in of.attacks if one.status == "ran"]
    ran.sort(key=lambda one: (bool(one.doubtful), -value(one, TPR), -value(one, "auc")))
    seeds = len({one.seed for one in ran}) > 1
    return [
        (
            shown(one.attack, _NAME) + (f", seed {one.seed}" if seeds else ""),
            _within(one.metrics.get("auc")), _within(one.metrics.get(TPR), "{:.1%}"),
            _figure(one.null.get("auc")),
            f"not counted: {shown(one.doubtful, _NAME)}" if one.doubtful else
            "" if one.game == "membership" else
            f"infers attributes: accuracy {_figure(one.metrics.get('accuracy'))}",
        )
        for one in ran[:_RAN]
    ]  # fmt: skip


def _not_run(of: Document) -> list[tuple[str, str]]:
    """Return why attacks failed or did not run, and their names; failed ones first."""
    reasons: dict[str, dict[str, None]] = {}
    for one in sorted(of.attacks, key=lambda one: one.status != "failed"):
        if one.status != "ran":
            why = f"failed: {one.reason}" if one.status == "failed" else one.reason
            reasons.setdefault(why, {})[one.attack] = None
    lines = [(shown(why, _LINE), shown(", ".join(names), _TEXT)) for why, names in reasons.items()]
    if (more := len(lines) - _REASONS) > 0:
        lines = [*lines[:_REASONS], (f"{more} more reasons", "see audit.json")]
    return lines


def _more(of: Document) -> list[str]:
    """Return the outcome of claim, gate and defenses."""
    told = [str(of.claim)] if of.claim else []
    if of.gate is not None:
        told += [one.words for one in of.gate.thresholds]
    told += [one.words for one in of.defenses]
    if (more := len(told) - _MORE) > 0:
        told = [*told[:_MORE], f"{more} more: see audit.json"]
    return [shown(one, _TEXT) for one in told]


def _shadows(of: Document) -> list[tuple[str, str]]:
    if of.shadows is None:
        return []
    made_by = shown(of.shadows.trained_by, 100)
    told = [("Shadows", f"{of.shadows.most}, trained by {made_by}")]
    if of.shadows.code:
        told.append(("their recipe's code", f"digest {of.shadows.code}"))
    own, others = of.shadows.right_own, of.shadows.right_others
    if own is not None and others is not None:
        told.append(("their accuracy", f"{own:.1%} on their own rows, {others:.1%} on others"))
    return told


def _identity(of: Document, best: Strongest | None) -> list[tuple[str, str]]:
    model, data = of.model, of.data
    version = f", version {shown(model.version, 40)}" if model.version else ""
    size = f", {model.parameters:,} parameters" if model.parameters else ""
    packages = ", ".join(f"{name} {one}" for name, one in of.versions.items())
    shadow = f", {data.shadow:,} of the adversary" if data.shadow else ""
    return [
        ("Model", f"{shown(model.name, 100)}{version}, answers {model.gives}{size}"),
        ("its answers", f"sha256 {model.answers_sha256}"),
        ("Rows", f"{data.members:,} members, {data.nonmembers:,} nonmembers{shadow}"),
        ("their content", f"sha256 {data.rows_sha256}"),
        *_shadows(of),
        ("Code", f"commit {of.commit or 'unknown (an installed copy)'}"),
        ("all behind the strongest attack", f"trial {best.record.trial if best else '–'}"),
        ("Versions", shown(f"Python {of.python}, {packages}", 2 * _LINE)),
    ]  # fmt: skip
