# ruff: noqa: INP001 - a hook of MkDocs, not a module of a package
"""Pages that are made from the code: cards of methods, exit statuses, the API, the design's figure.

The navigation lists ``PAGES`` that exist; other pages in ``docs/`` come after them, by folder, so
that a new page needs no entry.
"""

from __future__ import annotations

import html
import posixpath
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
#: Title -> pages, in the order of the navigation.
PAGES: dict[str, list[str]] = {
    "Start": ["index.md", "usage.md", "own-data.md", "audit.md", "boards.md", "python.md"],
    "Concepts": [
        "threat-models.md", "protocols.md", "reproducibility.md", "claims.md", "glossary.md",
    ],
    "Boards": ["boards/index.md", "explorer.md"],
    "Running": ["scale.md", "exit-status.md", "how-far-it-goes.md"],
    "Methods": ["methods/attacks.md", "methods/defenses.md", "methods/targets.md",
                "methods/datasets.md"],
    "Extending": ["plugins/index.md", "plugins/tutorial.md", "challenge.md",
                  "plugins/class-variables.md", "plugins/helpers.md", "plugins/errors.md",
                  "plugins/keys.md", "plugins/rules.md"],
    "Design": ["design.md", "api/index.md"],
}  # fmt: skip
#: Folder of pages -> where those that are not listed come: a section, and a part of it or "".
FOLDERS = {
    "plugins": ("Extending", ""), "audit": ("Start", ""), "boards": ("Boards", "All boards"),
    "api": ("Design", "API by room"),
    **{f"methods/{kind}": ("Methods", f"All {kind}")
       for kind in ("attacks", "defenses", "targets", "datasets")},
}  # fmt: skip
KINDS = {
    "attacks": "Every attack, with what it needs and where it comes from. *Shadows* are "
    "trainings as expensive as the victim's; queries are the median over our boards. "
    "`privbench doc NAME` prints the same card.",
    "defenses": "Every defense, with the stages it acts at and what it claims to protect.",
    "targets": "How victims are built and trained.",
    "datasets": "Every dataset, with its parts and protocols, and where data and licence are from. "
    "Nothing is redistributed: `digits` is embedded in scikit-learn, and all others are downloaded "
    "from their publishers or read from your files.",
}
#: Room of a public name (a package or a module in one) -> heading of the API page.
HEADINGS = {
    "api": "Run, load, audit, results", "boards": "Results as pages",
    "methods": "Methods", "plugins": "Methods", "judges": "Methods",
    "games": "Games", "columns": "Games", "training": "Models and training", "data": "Data",
    "store": "Data", "toolbox": "Toolbox: what many plugins do", "errors": "Errors",
}  # fmt: skip
#: Board results that the front page draws.
FRONT = "leaderboards/results/digits-defenses-supervised.jsonl"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and the navigation."""
    glossary = (ROOT / "benchmark/privbench/cli/glossary.md").read_text("utf-8")
    measured, queries = config.extra["measured"], config.extra["queries"]  # by boards.py, before
    made = {**dict(_cards(measured, queries)), **dict(_api()), "glossary.md": glossary}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    config.nav = _nav({file.src_uri for file in files.documentation_pages()})
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Draw the figures that a page asks for; name what lies outside the site by its path."""
    for name, draw in (("<!-- design -->", _design), ("<!-- front -->", _front)):
        if name in markdown:
            markdown = markdown.replace(name, draw())
    folder = posixpath.dirname(page.file.src_uri)

    def leads(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, found[1]))
        return f"`{place.removeprefix('../')}`" if place.startswith("../") else found[0]

    return re.sub(r"\[[^\]]+\]\((\.\./[^)]+)\)", leads, markdown)


def _nav(there: set[str]) -> list[dict[str, list[Any]]]:
    listed = {path for paths in PAGES.values() for path in paths}
    nav: dict[str, list[Any]] = {
        title: [path for path in paths if path in there] for title, paths in PAGES.items()
    }
    parts: dict[tuple[str, str], list[str]] = {}
    for path in sorted(there - listed):
        title, part = FOLDERS.get(posixpath.dirname(path) or ".", ("More", ""))
        if part and (title, part) not in parts:
            nav[title].append({part: parts.setdefault((title, part), [])})
        parts.get((title, part), nav.setdefault(title, [])).append(path)
    return [{title: paths} for title, paths in nav.items() if paths]


# ---- cards ---------------------------------------------------------------------------------------


#: Kind -> columns of its table, besides the name and what it does.
_COLUMNS: dict[str, dict[str, Callable[[Any], str]]] = {
    "attacks": {
        "game": lambda one: one.game,
        "access": lambda one: str(one.needs).lower().replace("+", ", "),
        "shadows": lambda one: (
            f"{one.shadows.count}, {one.shadows.origin}" if one.shadows.count else ""
        ),
    },
    "defenses": {
        "acts at": lambda one: ", ".join(sorted(one.stages())),
        "claims to protect": lambda one: ", ".join(one.protects),
    },
    "targets": {"grants": lambda one: str(one.grants).lower().replace("+", ", ")},
    "datasets": {},
}  # fmt: skip


def _cards(
    measured: Mapping[str, set[str]], queries: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield path and text of a table for each kind of method, and of a page for each method.

    Args:
        measured: kind -> names of methods that boards have numbers of.
        queries: attack -> queries for each row, median over the cells of boards.
    """
    from privbench.plugins import registry
    from privbench.plugins.about import about

    known = registry.load()
    for kinds, intro in KINDS.items():
        kind = kinds[:-1]
        columns = _COLUMNS[kinds]
        cost = ["queries a row"] if kind == "attack" else []
        heads = ["name", *columns, *cost, "what it does", "paper"]
        lines = [
            f"# {kinds.capitalize()}",
            "",
            intro,
            "",
            _line(heads),
            _line(["---"] * len(heads)),
        ]
        for one in known.all(kind):
            told = about(kind, one)
            first = next(iter(told.texts), "").split("\n\n")[0]
            paper = one.paper
            source = f"{paper.authors}: {paper.title}. {paper.venue}" if paper else ""
            lines.append(_line([
                f"[`{one.name}`]({kinds}/{one.name}.md)",
                *(_inline(column(one)) for column in columns.values()),
                *(f"{queries[one.name]:,.0f}" if one.name in queries else "–" for _ in cost),
                _inline(" ".join(first.split())), _inline(source),
            ]))  # fmt: skip
            card = _card(one, told, f"{kind}={one.name}" if one.name in measured[kind] else "")
            yield f"methods/{kinds}/{one.name}.md", card
        yield f"methods/{kinds}.md", "\n".join(lines) + "\n"


def _card(one: Any, told: Any, view: str) -> str:
    """The page of a method, which is found before others; `lira` before `label-lira`.

    Args:
        one: the method.
        told: what it says about itself.
        view: of the explorer, with its numbers; "" for none.
    """
    boost = 8 / len(one.name.split("-"))
    lines = ["---", "search:", f"  boost: {boost:g}", "---", "", f"# {one.name}", ""]
    for text in told.texts:
        lines += [_prose(text), ""]
    lines += [f"**Paper.** {_inline(told.paper)}", ""] if told.paper else []
    where = f"[all boards](../../explorer.md#{view})" if view else "on no published board yet"
    facts = {name: _inline(text) for name, text in told.facts.items()}
    facts |= {"Version": str(one.version), "Numbers": where}
    lines += [*(f"- {name}: {text}" for name, text in facts.items()), ""]
    fields, meanings = one.hyperparameters(), _meanings("\n\n".join(told.texts))
    lines += ["| hyperparameter | default | meaning |", "|---|---|---|"] if fields else []
    lines += [
        f"| `{name}` | `{_cell(value)}` | {_inline(meanings.get(name, ''))} |"
        for name, value in fields.items()
    ]
    if told.deviations:
        lines += ["", f"**Deviations.** {_inline(told.deviations)}", ""]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


_ITEM = re.compile(r"^([-*]|[0-9]+\.) ")


def _prose(text: str) -> str:
    """A docstring as markdown, without the table of its attributes."""
    blocks = [one for one in text.split("\n\n") if not one.startswith("Attributes:")]
    return "\n\n".join(map(_block, blocks))


def _block(text: str) -> str:
    """A paragraph, perhaps with a list after it; or an example, whose lines stay as they are."""
    if re.match(r"\s+\S|>>>", text):
        return f"```text\n{textwrap.dedent(text)}\n```"
    pieces = re.split(r"\n(?=[-*] |[0-9]+\. )", text)
    made: list[str] = []
    for piece in pieces:
        found = _ITEM.match(piece)
        mark = found[0] if found else ""
        if mark and not made:
            made.append("")
        made.append(mark + _inline(" ".join(piece[len(mark) :].split())))
        if not mark:
            made.append("")
    return "\n".join(made).strip()


def _meanings(text: str) -> dict[str, str]:
    """Name -> what it is, of the attributes that a docstring lists."""
    _, _, listed = text.partition("Attributes:\n")
    listed = listed.partition("\n\n")[0]
    found = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return {
        name.strip(): " ".join(told.split()) for names, told in found for name in names.split(",")
    }


def _inline(text: str) -> str:
    """Text of a docstring, in which code and emphasis are the only markup."""
    parts = re.split(r"(``?[^`\n]+``?|(?<!\w)\*\w[^*\n]*\w\*(?!\w))", text)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"([\\*_{}\[\]<>|#])", r"\\\1", part)
        elif part.startswith("`"):
            parts[i] = f"`{part.strip('`')}`"
    return "".join(parts)


def _cell(value: Any) -> str:
    return (str(value) or '""').replace("|", "\\|").replace("`", "'")


# ---- API -----------------------------------------------------------------------------------------


_API = (
    "All of these are names of `privbench`: `from privbench import run`. [Python](python.md) shows "
    "how they are used. `Ge`, `Gt`, `Le`, `Lt`, `MaxLen`, `MinLen` and `MultipleOf`, which say the "
    "ranges of hyperparameters, are those of annotated-types."
)


def _api() -> Iterator[tuple[str, str]]:
    """Yield path and text of a table of all public names, and of a page for each room."""
    import privbench

    groups: dict[str, dict[str, str]] = {heading: {} for heading in HEADINGS.values()}
    for name, home in sorted(privbench.HOME.items()):
        package, *inside = home.split(".")
        if package == "privbench":
            heading = next(HEADINGS[part] for part in inside if part in HEADINGS)
            groups[heading][name] = f"{home}.{name}"
    lines = ["# API reference", "", _API]
    for heading, names in groups.items():
        path = re.sub(r"\W+", "-", heading.lower()) + ".md"
        lines += ["", f"## [{heading}]({path})", ""]
        lines.append(", ".join(f"[`{name}`]({path}#{home})" for name, home in names.items()))
        yield (
            f"api/{path}",
            "\n\n".join([f"# {heading}", *(f"::: {home}" for home in names.values())]),
        )
    yield "api/index.md", "\n".join(lines) + "\n"


# ---- figures -------------------------------------------------------------------------------------


def _front() -> str:
    """The front of published results on membership, in the colours of the page."""
    from privbench.api.results import Results
    from privbench.boards.html.markup import figure

    found = Results.read(ROOT / FRONT)
    results = Results(record for record in found if record.cell.game == "membership")
    label = "Worst-case AUC of membership attacks against test accuracy, a point for each defense"
    return f'<div class="wide front">{figure(results.front(), "front", label)}</div>'


#: Size of a box, and the room between two of them.
_WIDE, _HIGH, _GAP, _SIDE = 720, 44, 10, 70


def _design() -> str:
    """The rooms of the core as an SVG figure, from the contracts of imports."""
    facts = runpy.run_path(str(ROOT / "tests" / "imports.py"))["structure"](ROOT)
    rows = [_row(layer, i) for i, layer in enumerate(facts.layers)]
    height = len(rows) * (_HIGH + _GAP) + 8
    arrow = (
        f'<path d="M{_SIDE - 40} 10V{height - 16}" class="line"/>'
        f'<path d="M{_SIDE - 46} {height - 28}l6 14l6 -14z" class="head"/>'
        f'<text x="{_SIDE - 56}" y="{height / 2}" class="small" text-anchor="middle" '
        f'transform="rotate(-90 {_SIDE - 56} {height / 2})">imports</text>'
    )
    label = f"Rooms of the core from top to bottom: {', '.join(map(' and '.join, facts.layers))}"
    figure = (
        f'<div class="wide"><svg class="design" role="img" aria-label="{html.escape(label)}" '
        f'viewBox="0 0 {_SIDE + _WIDE + 8} {height}">{arrow}{"".join(rows)}</svg></div>'
    )
    told = (
        f"{facts.modules} modules in {len(facts.packages)} rooms; {len(facts.arrows)} arrows "
        f"between rooms, {len(facts.upward)} of them upward."
    )
    return f"{figure}\n\n{told}"


def _row(layer: Iterable[str], place: int) -> str:
    boxes = [name.removeprefix("privbench.") for name in layer]
    wide = (_WIDE - _GAP * (len(boxes) - 1)) / len(boxes)
    made = []
    for i, name in enumerate(boxes):
        x, y = _SIDE + i * (wide + _GAP), place * (_HIGH + _GAP) + 4
        made.append(f'<rect x="{x:g}" y="{y}" width="{wide:g}" height="{_HIGH}" rx="6"/>')
        if len(boxes) > 1:
            made.append(_text(x + wide / 2, y + _HIGH / 2 + 6, name, "middle"))
        else:
            made.append(_text(x + 16, y + _HIGH / 2 + 6, name))
            made.append(_text(x + 120, y + _HIGH / 2 + 5, _purpose(name), style="small"))
    return "".join(made)


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "name") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{style}">'
        f"{html.escape(text)}</text>"
    )


def _purpose(name: str) -> str:
    """The first sentence of what a package says about itself."""
    __import__(f"privbench.{name}")
    text = sys.modules[f"privbench.{name}"].__doc__ or ""
    return re.split(r"(?<=[.;])\s", " ".join(text.split()))[0].rstrip(".;")
