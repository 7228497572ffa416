# ruff: noqa: INP001 - a hook of MkDocs, not a module of a package
"""The published boards as pages, and their numbers for the explorer, from `leaderboards/`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File
from scipy.special import stdtrit

from privbench.boards.matrix import aim_text
from privbench.results.statistics import FEWEST_TESTED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

    from privbench.results.record import Record
    from privbench.results.seeds import Seeds, Series

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "leaderboards"
#: Digits of the numbers that the explorer gets.
_DIGITS = 5
KINDS = ("attack", "defense", "target", "dataset")
#: Parts of a cell in which two compared defenses may differ.
_OF_DEFENSE = {"defense", "defenses", "protects", "access"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each board with its files, the front page, and the explorer's numbers."""
    import privbench

    names = privbench.published()
    cells = [cell for name in names for cell in cells_of(name, privbench.published(name))]
    config.extra["measured"] = {kind: {one for cell in cells for one in cell[f"{kind}s"]}
                                for kind in KINDS}  # fmt: skip
    asked: dict[str, list[float]] = {}
    for cell in cells:
        if cell["queries"] is not None:
            asked.setdefault(cell["attacks"][0], []).append(cell["queries"])
    config.extra["queries"] = {name: median(of) for name, of in asked.items()}
    made: dict[str, str | bytes] = {"explorer/results.js": script(cells)}
    made["boards/index.md"] = linked((HERE / "README.md").read_text("utf-8"), names)
    for name in names:
        told = f"[Explore these numbers](../explorer.md#board={name}){{ .md-button }}"
        title, _, rest = linked((HERE / f"{name}.md").read_text("utf-8"), names).partition("\n")
        made[f"boards/{name}.md"] = f"{title}\n\n{told}\n{rest}"
        for file in (HERE / f"{name}.svg", HERE / f"{name}.csv"):
            if file.exists():
                made[f"boards/{file.name}"] = file.read_bytes()
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def linked(text: str, boards: Collection[str]) -> str:
    """Let links lead to pages of the site; what lies outside is named by its path.

    Args:
        text: of a page in ``leaderboards/``.
        boards: names of all boards.
    """

    def leads(found: re.Match[str]) -> str:
        told, place = found[1], found[2]
        stem, _, end = place.partition(".")
        if stem in boards and end in {"md", "csv", "svg"}:
            return found[0]
        if place.startswith("../docs/") and place.endswith(".md"):
            return f"[{told}]({place.replace('../docs/', '../')})"
        path = (HERE / place).resolve().relative_to(ROOT)
        return f"`{path}`" if Path(told).name == path.name else f"{told} (`{path}`)"

    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", leads, text)


# ---- what the explorer reads ---------------------------------------------------------------------


def cells_of(board: str, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield what the explorer shows of each cell of a board that has numbers, but controls.

    Args:
        board: its name.
        records: its results.
    """
    from privbench.boards.board import Leaderboard

    made = Leaderboard(records)
    for at, of in made.with_numbers.items():
        first, headline = of.first, of.headline
        if first.board is None or not headline.numbers:
            continue
        cell, column = first.cell, first.board.columns[0]
        whole = cell.model_dump(mode="json")
        apart = {name: whole[name] for name in whole if name not in _OF_DEFENSE}
        guessed = ", ".join(cell.sensitive) if "sensitive" in first.board.tells else ""
        interval = headline.within(column.low, column.high)
        minus, known = made.minus_none.get(at), of.number("utility", "test_accuracy").by_seed
        enough = len(headline.seeds) >= FEWEST_TESTED
        yield {
            "board": board, "dataset": cell.dataset.label, "target": cell.target.label,
            "protocol": cell.protocol.get("name", "default"), "adversary": cell.adversary,
            "defense": cell.defense, "attack": cell.attack.label,
            "access": cell.needs.lower().replace("+", ", "), "game": cell.game,
            "aim": aim_text((cell.game, guessed)), "metric": column.heading,
            "mark": made.mark(first) + ("°" if of.outside else ""),
            "place": json.dumps([board, apart], sort_keys=True),
            "higher": first.board.higher,
            "seeds": list(headline.seeds), "values": rounded(headline.numbers),
            "low": rounded(interval.low) if interval and enough else None,
            "high": rounded(interval.high) if interval and enough else None,
            "null": mean(of.null),
            "accuracies": [rounded(known.get(seed)) for seed in headline.seeds],
            "accuracy": mean(of.number("utility", "test_accuracy")),
            "minus": rounded(minus.mean) if minus else None,
            "certain": at in made.certain,
            "tpr": mean(of.number("metrics", "tpr_at_fpr_0.01")),
            "rare": mean(of.number("metrics", "tpr_at_fpr_0.001")),
            "queries": mean(of.number("cost", "queries_per_sample")),
            "rates": rates(of), "decided": decided(of),
            "attacks": [cell.attack.name], "targets": [cell.target.name],
            "datasets": [cell.dataset.name],
            "defenses": [one.name for one in cell.defenses] or ["none"],
        }  # fmt: skip


def rates(of: Seeds) -> list[list[float]]:
    """Return what results keep of a ROC curve: means over seeds of TPR at fixed FPR.

    Results that were published from per-sample scores have a curve, older ones two rates.
    """
    curves = [dict(one.roc) for one in of.ok if one.roc]
    common = set.intersection(*map(set, curves)) if len(curves) == len(of.ok) else set[float]()
    if common:
        return rounded([[r, sum(c[r] for c in curves) / len(curves)] for r in sorted(common)])
    return [
        [rate, value]
        for rate in (0.001, 0.01)
        if (value := mean(of.number("metrics", f"tpr_at_fpr_{rate}"))) is not None
    ]


def decided(of: Seeds) -> list[float] | None:
    """Return FPR and TPR of an attack's own decisions, means over seeds; None if not measured.

    Balanced accuracy is (TPR + 1 - FPR) / 2.
    """
    found = mean(of.number("metrics", "recall"))
    balanced = mean(of.number("metrics", "balanced_accuracy"))
    if found is None or balanced is None:
        return None
    return [rounded(max(0.0, found + 1 - 2 * balanced)), found]


def mean(found: Series) -> float | None:
    """Mean over seeds; None where a seed was refused or nothing was measured."""
    return rounded(found.mean) if found.numbers and not found.refused else None


def rounded(value: Any) -> Any:
    """Numbers with as many digits as can be told from noise; None stays."""
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def script(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the numbers as a script, so that the page also works without a server.

    A list for each name. Texts are places in a list of their own; `student` are quantiles of
    Student's distribution for two-sided 95 % intervals of 2, 3, … seeds.
    """
    columns: dict[str, Any] = {}
    for name in cells[0] if cells else ():
        found = [cell[name] for cell in cells]
        if isinstance(found[0], str):
            texts = sorted(set(found))
            places = {text: i for i, text in enumerate(texts)}
            columns[name] = {"texts": texts, "at": [places[text] for text in found]}
        else:
            columns[name] = found
    columns["place"].pop("texts")
    student = rounded([float(stdtrit(n, 0.975)) for n in range(1, 50)])
    told = {"rows": len(cells), "student": student, "columns": columns}
    return f"window.privbench = {json.dumps(told, separators=(',', ':'))};\n"
