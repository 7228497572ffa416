"""The report: a board with everything behind it, as one web page that needs nothing else.

Equal results give identical bytes. Texts of results are hostile: the template escapes all of them,
and a content security policy lets only the page's own style and script run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from privbench.boards import csv_table, matrix, notes
from privbench.boards import page as pages
from privbench.boards.checks import refuse_unfit
from privbench.boards.findings import findings
from privbench.boards.front import drawable, front
from privbench.boards.html import drawing
from privbench.boards.html.cards import cards
from privbench.boards.html.cells import cells
from privbench.boards.html.evidence import evidence
from privbench.boards.html.heat import SHADES, heat
from privbench.boards.html.markup import block, figure, inline
from privbench.boards.single_rows import ROWS_TEXT
from privbench.ground.text import several, terminal
from privbench.results import audits
from privbench.results.one_file import lines
from privbench.results.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from privbench.boards.board import Leaderboard
    from privbench.boards.html.cells import PageCell
    from privbench.boards.panel import Panel
    from privbench.plugins.registry import Registry
    from privbench.results.record import Record
    from privbench.results.samples import Columns

#: Cells with details, those of the matrices first; all others are in the table alone.
MOST_DETAILS = 1_000


def report(
    board: Leaderboard,
    title: str,
    *,
    again: Sequence[str] = (),
    samples: Callable[[Record], Columns | None] = lambda _: None,
    registry: Registry | None = None,
    words: str = "",
) -> str:
    """Render results as one HTML page.

    Args:
        board: with results of any status.
        title: of the board.
        again: what ``privbench run`` is given to make the results; empty for unknown.
        samples: result -> its per-sample scores; None if there are none.
        registry: of installed methods, which say what they are; None for none.
        words: what an audit says of its results, in lines; they stand in place of the board's.

    Raises:
        BadInputError: if the results cannot stand on one board, or per-sample scores are damaged.
    """
    refuse_unfit(board.records)
    every, found = board.panels, board.foremost
    known = cells(board)
    detailed = _detailed(known, every)
    shown = {one.anchor for one in detailed}
    anchors = {r.trial: one.anchor for one in known if one.anchor in shown for r in one.records}
    seen = evidence([one.records for one in detailed], samples)
    by_anchor = dict(zip((one.anchor for one in detailed), seen.cells, strict=True))
    ran = [panel for panel in every if panel.own]  # the others would be empty tables
    first = {id(panel) for panel in found}
    sections = [_section(panel, anchors) for panel in ran if id(panel) in first]
    aside = [_section(panel, anchors) for panel in ran if id(panel) not in first]
    style, script = own("report.css"), own("report.js")
    made: str = template("report.html").render(
        title=title, policy=policy(style, script), style=style, script=script,
        words=words.splitlines(),
        findings="" if words else block("\n".join(f"- {line}" for line in findings(found))),
        protocol=block("\n".join(pages.protocol(board))),
        counted=counted(board), fronts=fronts(found), sections=sections, aside=aside,
        legend=inline(matrix.LEGEND),
        ranked=inline(matrix.RANKED) if any(of["ranking"] for of in [*sections, *aside]) else "",
        claims=inline(audits.LEGEND) if any(map(matrix.claims_epsilon, every)) else "",
        shades=range(SHADES), controls=block("\n".join(notes.controls(board))),
        troubles=block("\n".join(notes.troubles(board))),
        reproduce=block("\n".join(notes.reproduce(board, again, ""))),
        cells=sorted(known, key=_rank), linked=shown,
        details=[(one, by_anchor[one.anchor]) for one in detailed],
        frame=seen.frame, width=drawing.WIDTH, height=drawing.HEIGHT,
        left_out=seen.left_out, any_rows=any(seen.cells),
        exposure=inline(" ".join(ROWS_TEXT.split())),
        cards=cards(board.records, registry),
        downloads=[
            _download("results.csv", "text/csv", [csv_table.written(one.row for one in known)]),
            _download("results.jsonl", "application/x-ndjson", lines(board.records)),
        ],
    )  # fmt: skip
    return made


@dataclass(frozen=True)
class Download:
    """A compressed file in the page: the script unpacks it; without one it is saved as gzip."""

    name: str
    kind: str
    href: str
    size: str


def _detailed(known: Sequence[PageCell], every: Iterable[Panel]) -> list[PageCell]:
    """The cells with details, those of matrices first."""
    shown = {
        record.trial
        for panel in every for line in panel.rows for spot in line.spots.values()
        for record in spot.records
    }  # fmt: skip

    def place(cell: PageCell) -> tuple[bool, int]:
        return all(record.trial not in shown for record in cell.records), _rank(cell)

    chosen = sorted(known, key=place)[:MOST_DETAILS]
    kept = {one.anchor for one in chosen}
    return [one for one in known if one.anchor in kept]


def _rank(cell: PageCell) -> int:
    """Cells with a number first, then those that failed."""
    found = {record.status for record in cell.records}
    return min(("ok", "failed", "skipped").index(status) for status in found)


def _section(panel: Panel, anchors: dict[str, str]) -> dict[str, Any]:
    ranking = matrix.ranking(panel)
    return {
        "heat": heat(panel, anchors),
        "remarks": block(notes.remarks(panel)),
        "ranking": None if ranking is None else {
            "heads": [inline(head) for head in ranking.heads],
            "rows": [[inline(text) for text in row] for row in ranking.body],
            "note": ranking.note,
        },
    }  # fmt: skip


def fronts(found: Sequence[Panel]) -> list[Markup]:
    """Pictures of the front, one for each panel and aim, so that a phone shows them, too."""
    made: list[Markup] = []
    for panel, aims in drawable(found):
        for aim in aims:
            mine = replace(panel, attacks=[one for one in panel.attacks if one.aim == aim])
            label = f"Worst-case leak against utility: {panel.title}, {matrix.aim_text(aim)}"
            made.append(figure(front([mine]), f"front-{len(made)}", label))
    return made


def counted(board: Leaderboard) -> str:
    """Return how many trials, cells and seeds there are, in words."""
    records = board.records
    seeds = len({record.seed for record in records})
    states = {name: sum(r.status == name for r in records) for name in ("ok", "skipped", "failed")}
    told = ", ".join(f"{count:,} {name}" for name, count in states.items() if count)
    draft = f" (a draft: a board needs {FEWEST_SEEDS})" if seeds < FEWEST_SEEDS else ""
    cells = f"{len(board.cells):,} cells ({told})"
    return f"{len(records):,} trials of {cells}, {several(seeds, 'seed')}{draft}"


def _download(name: str, kind: str, texts: Iterable[str]) -> Download:
    packed, size = io.BytesIO(), 0
    with gzip.GzipFile("", "wb", 6, packed, mtime=0) as file:
        for text in texts:
            size += file.write(text.encode())
    href = f"data:application/gzip;base64,{base64.b64encode(packed.getvalue()).decode()}"
    return Download(name, kind, href, _size(size))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"  # noqa: PLR2004


def policy(style: str, script: str = "") -> str:
    """Return a content security policy that lets these run and nothing else; "" is no script."""

    def hashed(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    scripts = f"script-src 'sha256-{hashed(script)}'; " if script else ""
    return (
        f"default-src 'none'; style-src 'sha256-{hashed(style)}'; "
        f"{scripts}base-uri 'none'; form-action 'none'"
    )


def own(name: str) -> Markup:
    """Return a file of the templates as it is."""
    text = resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - a file of ours


def template(name: str) -> Any:
    """Return a template of a page; it escapes every text and neutralises control characters."""

    def neutral(value: Any) -> Any:
        return (
            terminal(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        )

    made = Environment(
        loader=PackageLoader("privbench.boards.html"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=neutral,
    )  # fmt: skip
    return made.get_template(name)
