"""Every committed board is what its committed results give, byte for byte."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.unit.scripts import ROOT
from tests.unit.scripts import script as loaded
from tests.unit.test_rows import record

from privbench import Results
from privbench.check.submission import check
from privbench.cli.main import _suite as suite_of
from privbench.cli.main import main, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.results.record import Record


def script() -> Any:
    return loaded("regenerate.py")


def test_committed_boards_are_those_of_their_results() -> None:
    assert script().stale() == [], "run: uv run python leaderboards/regenerate.py"


def test_committed_submissions_are_as_their_scores_say(registry: Any) -> None:
    del registry  # it knows the games of plugins
    for path in sorted(ROOT.glob("leaderboards/submissions/*.jsonl")):
        assert check(path).differences == [], path.name


def asked(
    attack: str, defense: str, seed: int, auc: float, *, needs: str = "POSTERIORS",
    target: str = "simclr",
) -> Record:  # fmt: skip
    made = record(attack, defense, seed, auc=auc, trial=f"{attack}-{defense}-{seed}-{target}")
    victim = made.cell.target.model_copy(update={"name": target, "label": target})
    made.cell = made.cell.model_copy(update={"needs": needs, "target": victim})
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one suite, its results as `merge` writes them, and its board."""
    folder, root = tmp_path / "run", tmp_path / "checkout"
    folder.mkdir()
    for seed in range(5):
        for defense, auc, cost in (("none", 0.8, 0.0), ("talos", 0.6, 0.0), ("noise", 0.5, 0.4)):
            made = record(
                "loud", defense, seed, auc=auc + seed / (100 if defense == "none" else 90)
            )
            made.utility["test_accuracy"] -= cost
            made.write(folder)
    results = root / "leaderboards" / "results"
    results.mkdir(parents=True)
    suites = root / "leaderboards" / "suites"
    suites.mkdir()
    (suites / "tiny.yaml").write_text("name: Tiny\nattacks: [lira]\nseeds: 5\n", encoding="utf-8")
    out = str(results / "tiny.jsonl")
    assert CliRunner().invoke(main, ["merge", str(folder), "--out", out]).exit_code == 0
    (root / "leaderboards" / "README.md").write_text(
        "# Boards\n<!-- boards -->\nold\n<!-- end of boards -->\nEnd.\n", encoding="utf-8"
    )
    script().write(root)
    return root


FILES = ["leaderboards/tiny.md", "leaderboards/tiny.csv", "leaderboards/tiny.svg"]
FRONT = "leaderboards/README.md"


def findings(page: str) -> list[list[str]]:
    rows = [[one.strip() for one in line.split("|")[1:-1]] for line in page.splitlines()]
    return [
        row for row in rows if row and row[0] in ("digits", "[tiny](tiny.md)", "[more](more.md)")
    ]


def test_the_front_page_says_what_each_board_found(checkout: Path) -> None:
    page = (checkout / FRONT).read_text(encoding="utf-8")
    assert page.startswith("# Boards\n<!-- boards -->\n\n| data | ")
    assert page.endswith("|\n\n<!-- end of boards -->\nEnd.\n")
    assert findings(page) == [
        ["digits", "membership", "simclr", "simclr: AUC 0.820 by loud ([tiny](tiny.md))",
         "simclr: talos, 0.820 to 0.622 ([tiny](tiny.md))", "0.0 points"],  # not noise: 40 points
        ["[tiny](tiny.md)", "simclr on digits", "1", "2", "5"],
    ]  # fmt: skip
    (checkout / FRONT).write_text(page.replace("0.820", "0.720"), encoding="utf-8")
    assert script().stale(checkout) == [FRONT]


def merged(records: Sequence[Record], file: Path) -> None:
    """Write results as `merge` does."""
    folder = file.parents[2] / f"run-{file.stem}"
    folder.mkdir()
    for one in records:
        one.write(folder)
    done = CliRunner().invoke(main, ["merge", str(folder), "--out", str(file)])
    assert done.exit_code == 0, done.output


def best_of(checkout: Path, *more: Record, seeds: int = 5) -> str:
    """What the front page says of the best defense, with another board of these results."""
    folder = checkout / "leaderboards"
    lines = (folder / "results" / "tiny.jsonl").read_text(encoding="utf-8").splitlines(True)
    few = [line for line in lines if any(f'"seed":{seed},' in line for seed in range(seeds))]
    (folder / "results" / "tiny.jsonl").write_text("".join(few), encoding="utf-8")
    if more:
        merged(more, folder / "results" / "more.jsonl")
        suite = "name: More\nattacks: [lira]\nseeds: 5\n"
        (folder / "suites" / "more.yaml").write_text(suite, encoding="utf-8")
    _, text = script().front_page(checkout)
    return next(row[4] for row in findings(text) if row[:3] == ["digits", "membership", "simclr"])


MISSING = "talos met 1 of the 2 attacks that we have; missing: {} ([tiny](tiny.md))"


def test_no_defense_is_best_that_missed_the_strongest_attack_of_an_access(checkout: Path) -> None:
    told = best_of(checkout, *(asked("shy", "none", s, 0.7, needs="LABELS") for s in range(5)))
    assert told == MISSING.format("labels (shy)")


def test_the_strongest_attack_of_an_access_is_that_of_all_boards(checkout: Path) -> None:
    known = ("best", 0.95), ("weak", 0.6)
    more = [asked(attack, "none", seed, auc) for attack, auc in known for seed in range(5)]
    told = best_of(checkout, *more)  # `loud` leads on the board itself
    assert told == MISSING.format("posteriors (best)")


def test_an_attack_that_leads_against_a_defense_judges_it_on_every_board(checkout: Path) -> None:
    """On another victim, and there weaker without the defense than the attack that leads."""
    more = [asked(a, d, s, v, target="moco") for s in range(5) for a, d, v in (
        ("loud", "none", 0.8), ("sly", "none", 0.7), ("loud", "talos", 0.6), ("sly", "talos", 0.7),
    )]  # fmt: skip
    told = best_of(checkout, *more)
    assert told == MISSING.format("posteriors (sly)")


def test_few_seeds_name_no_best(checkout: Path) -> None:
    told = best_of(checkout, seeds=4)
    assert (
        told == "talos met 1 of the 1 attacks that we have; 4 seeds only ([tiny](tiny.md), a draft)"
    )


def retold(checkout: Path, made: Sequence[Record]) -> str:
    """What the front page says of the best defense if these are the results."""
    file = checkout / "leaderboards" / "results" / "tiny.jsonl"
    file.unlink()
    merged(made, file)
    return best_of(checkout)


NOT_SHOWN = (
    "talos met 1 of the 1 attacks that we have; that it lowers the leak is not shown "
    "([tiny](tiny.md))"
)


@pytest.mark.parametrize("auc", [
    [(0.8, 0.7), (0.7, 0.8), (0.75, 0.7), (0.7, 0.71), (0.72, 0.7)],
    [(0.7, 0.9), (0.71, 0.9), (0.7, 0.91), (0.69, 0.9), (0.7, 0.9)],
], ids=["chance", "raised"])  # fmt: skip
def test_a_defense_that_is_not_shown_to_lower_the_leak_is_not_the_best(
    checkout: Path, auc: list[tuple[float, float]]
) -> None:
    made = [asked("loud", d, s, v) for s, (a, b) in enumerate(auc)
            for d, v in (("none", a), ("talos", b))]  # fmt: skip
    assert retold(checkout, made) == NOT_SHOWN


def test_a_defense_against_one_attack_that_helps_another_is_not_the_best(checkout: Path) -> None:
    made = [
        asked(attack, defense, seed, auc + seed / (100 if defense == "none" else 90))
        for seed in range(5)
        for attack, defense, auc in (
            ("loud", "none", 0.8), ("loud", "talos", 0.6), ("sly", "none", 0.55),
            ("sly", "talos", 0.79 + seed % 2 / 20),
        )
    ]  # fmt: skip
    told = retold(checkout, made)
    assert told == NOT_SHOWN.replace("1 of the 1", "2 of the 2")


def test_an_attack_on_one_seed_has_not_met_the_defense(checkout: Path) -> None:
    more = [asked("best", "none", seed, 0.9 + seed / 100) for seed in range(5)]
    file = checkout / "leaderboards" / "results" / "tiny.jsonl"
    merged([*Results.read(file), *more, asked("best", "talos", 0, 0.5)], file)
    told = best_of(checkout)
    assert told == MISSING.format("posteriors (best)")


def test_what_a_defense_does_not_release_is_not_held_against_it(checkout: Path) -> None:
    made = []
    for seed in range(5):
        made += [asked("loud", "none", seed, 0.9 + seed / 100),
                 asked("shy", "none", seed, 0.8 + seed / 100, needs="LABELS"),
                 asked("shy", "talos", seed, 0.6 + seed / 90, needs="LABELS")]  # fmt: skip
        hidden = asked("loud", "talos", seed, 0.5)
        hidden.status, hidden.metrics, hidden.board = "skipped", {}, None
        hidden.reason = "loud needs POSTERIORS, which target simclr under talos does not grant"
        made.append(hidden)
    told = retold(checkout, made)
    assert told == "simclr: talos, 0.920 to 0.622 ([tiny](tiny.md))"


def test_settings_of_a_defense_share_their_judges(checkout: Path) -> None:
    more = []
    for seed in range(5):
        for attack, defense, auc in (("loud", "none", 0.8), ("sly", "none", 0.7),
                                     ("loud", "talos", 0.6), ("sly", "talos", 0.7)):  # fmt: skip
            one = asked(attack, defense, seed, auc, target="moco")
            if defense == "talos":
                other = one.cell.defenses[0].model_copy(update={"label": "talos(depth=2)"})
                one.cell = one.cell.model_copy(update={"defenses": [other]})
            more.append(one)
    told = best_of(checkout, *more)
    assert told.startswith("talos met 1 of the 2 attacks that we have; missing: posteriors (sly)")


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("leaderboards/results/*.jsonl")), ids=lambda p: p.stem
)
def test_the_command_of_a_page_runs_what_it_shows(path: Path) -> None:
    page = (ROOT / "leaderboards" / f"{path.stem}.md").read_text(encoding="utf-8")
    (line,) = (one for one in page.splitlines() if one.startswith("uv run privbench run "))
    context = run.make_context("run", shlex.split(line)[4:])
    given = dict(context.params)
    with contextlib.chdir(ROOT):
        suite = suite_of(given.pop("suite"), given)
    shown = Results.read(path)
    assert {*suite.seed_list} == {one.seed for one in shown}
    names = {one if isinstance(one, str) else next(iter(one)) for one in suite.targets}
    assert names == {one.cell.target.name for one in shown}
    names = {one if isinstance(one, str) else next(iter(one)) for one in suite.datasets}
    assert names == {one.cell.dataset.name for one in shown}


def test_a_board_that_was_just_written_is_right(checkout: Path) -> None:
    assert script().stale(checkout) == []
    page = (checkout / "leaderboards" / "tiny.md").read_text(encoding="utf-8")
    assert page.startswith("# Tiny\n")
    assert "privbench run leaderboards/suites/tiny.yaml" in page
    assert str(checkout) not in page
    before = {name: (checkout / name).read_bytes() for name in FILES}
    script().write(checkout)
    assert before == {name: (checkout / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_differs_is_named(name: str, checkout: Path) -> None:
    content = (checkout / name).read_bytes()
    (checkout / name).write_bytes(content + b"\n")
    assert script().stale(checkout) == [name]
    (checkout / name).unlink()
    assert script().stale(checkout) == [name]


def test_other_results_or_another_suite_make_a_board_stale(checkout: Path) -> None:
    suite = checkout / "leaderboards" / "suites" / "tiny.yaml"
    suite.write_text("name: Other\nattacks: [lira]\nseeds: 5\n", encoding="utf-8")
    assert script().stale(checkout) == ["leaderboards/tiny.md"]
    script().write(checkout)
    results = checkout / "leaderboards" / "results"
    lines = (results / "tiny.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (results / "tiny.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    assert script().stale(checkout)[:2] == FILES[:2]
    assert FRONT in script().stale(checkout)


def test_a_figure_that_nothing_draws_is_stale_and_removed(checkout: Path) -> None:
    folder = checkout / "leaderboards"
    lines = (folder / "results" / "tiny.jsonl").read_text(encoding="utf-8").splitlines(True)
    few = [line for line in lines if '"defenses":[{"fields":{},"label":"none"' in line]
    assert 0 < len(few) < len(lines)
    (folder / "results" / "tiny.jsonl").write_text("".join(few), encoding="utf-8")
    shutil.copy(folder / "tiny.svg", folder / "tiny.old")
    assert FILES[2] in script().stale(checkout)
    script().write(checkout)
    assert not (folder / "tiny.svg").exists()
    assert script().stale(checkout) == []
