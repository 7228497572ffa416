"""Every committed board is what its committed results give, byte for byte."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.unit.scripts import ROOT
from tests.unit.scripts import script as loaded
from tests.unit.test_rows import record

from privbench import Results
from privbench.check.submission import check
from privbench.cli import index
from privbench.cli.main import _suite as suite_of
from privbench.cli.main import main, run
from privbench.grid import judging
from privbench.grid.resolver import Resolver
from privbench.grid.suite import read_suite
from privbench.grid.trial import plain
from privbench.ground.judges import EVERY, Wanted
from privbench.ground.judges import judges as judges_of
from privbench.results.record import MethodRecord
from privbench.results.statistics import Difference

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.results.record import Record


def script() -> Any:
    return loaded("regenerate.py")


@pytest.mark.slow
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


Judges = dict[str, list[Wanted]]


def wanted(attack: str, **fields: Any) -> Wanted:
    return Wanted(attack, attack, 1, "membership", fields)


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Judges:
    """Attacks by which boards judge defenses; `loud` judges all."""
    known = {EVERY: [wanted("loud")]}
    monkeypatch.setattr(judging, "judging", lambda _: known)
    monkeypatch.setattr(index, "index", lambda _: SimpleNamespace(judging=known))
    return known


@pytest.fixture
def checkout(tmp_path: Path, judges: Judges) -> Path:
    """A checkout with one suite, its results as `merge` writes them, and its board."""
    assert judges
    folder, root = tmp_path / "run", tmp_path / "checkout"
    folder.mkdir()
    for seed in range(5):
        unsure = 0.08 * (seed % 2)  # 3.2 points, and perhaps 8.6
        for defense, auc, cost in (
            ("none", 0.8, 0.0), ("talos", 0.6, 0.0), ("hamp", 0.55, unsure), ("noise", 0.5, 0.4)
        ):  # fmt: skip
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
        # not noise: 40 points; nor hamp: perhaps more than 5
        ["digits", "membership", "simclr", "simclr: AUC 0.820 by loud ([tiny](tiny.md))",
         "simclr: talos, 0.820 to 0.622 ([tiny](tiny.md))", "0.0 ± 0.0 points"],
        ["[tiny](tiny.md)", "simclr on digits", "1", "3", "5"],
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


def test_a_submission_has_a_page_and_stands_apart(checkout: Path) -> None:
    before = findings((checkout / FRONT).read_text(encoding="utf-8"))
    file = checkout / "leaderboards" / "submissions" / "theirs.jsonl"
    file.parent.mkdir()
    merged([record("theirs", "none", seed, auc=0.99) for seed in range(5)], file)
    page = "leaderboards/submissions/theirs"
    assert script().stale(checkout) == [f"{page}.md", f"{page}.csv", FRONT]
    script().write(checkout)
    assert script().stale(checkout) == []
    front = (checkout / FRONT).read_text(encoding="utf-8")
    assert findings(front) == before
    assert "0.99" not in front
    (row,) = [line for line in front.splitlines() if "theirs" in line]
    assert row.startswith("| [submissions/theirs](submissions/theirs.md) | simclr on digits | 1 |")
    own = (checkout / f"{page}.md").read_text(encoding="utf-8")
    assert own.startswith("# Submitted: theirs\n")
    assert "0.99" in own


def fewer_seeds(checkout: Path, seeds: int) -> None:
    file = checkout / "leaderboards" / "results" / "tiny.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(True)
    few = [line for line in lines if any(f'"seed":{seed},' in line for seed in range(seeds))]
    file.write_text("".join(few), encoding="utf-8")


def best_of(checkout: Path, *more: Record) -> str:
    """What the front page says of the best defense, with another board of these results."""
    folder = checkout / "leaderboards"
    if more:
        merged(more, folder / "results" / "more.jsonl")
        suite = "name: More\nattacks: [lira]\nseeds: 5\n"
        (folder / "suites" / "more.yaml").write_text(suite, encoding="utf-8")
    _, text = script().front_page(checkout)
    return next(row[4] for row in findings(text) if row[:3] == ["digits", "membership", "simclr"])


MISSING = "none yet: talos leaks least and met 1 of its 2 judges at full strength ([tiny](tiny.md))"


def test_no_defense_is_best_that_an_attack_which_judges_all_has_not_met(
    checkout: Path, judges: Judges
) -> None:
    judges[EVERY].append(wanted("shy"))
    assert best_of(checkout) == MISSING


def test_no_defense_is_best_that_an_attack_which_judges_it_has_not_met(
    checkout: Path, judges: Judges
) -> None:
    judges |= {"talos": [wanted("sly"), wanted("loud")], "noise": [wanted("shy")]}
    assert best_of(checkout) == MISSING


def test_an_attack_of_another_game_is_not_missed(checkout: Path, judges: Judges) -> None:
    judges["talos"] = [Wanted("guess", "guess", 1, "attributes", {})]
    assert best_of(checkout).startswith("simclr: talos, 0.820 to 0.622")
    judges["talos"] = [Wanted("gone", "gone", 0, "", {})]  # not installed: its game is unknown
    assert best_of(checkout) == MISSING


@pytest.mark.parametrize("version", [1, 2])
def test_a_weaker_or_older_attack_does_not_count(
    version: int, checkout: Path, judges: Judges
) -> None:
    judges[EVERY][:] = [
        Wanted("loud", "loud", version, "membership", {"k": 8} if version == 1 else {})
    ]
    assert "talos leaks least and met 0 of its 1 judge" in best_of(checkout)


def test_a_board_of_few_seeds_is_a_draft_and_names_no_best(checkout: Path) -> None:
    results = checkout / "leaderboards" / "results"
    shutil.copy(results / "tiny.jsonl", results / "more.jsonl")
    fewer_seeds(checkout, 4)
    _, text = script().front_page(checkout)
    certain, _, drafts = text.partition("### Drafts")
    assert "simclr: talos, 0.820 to 0.622 ([more](more.md))" in certain
    assert "tiny.md" not in certain
    assert "more.md" not in drafts
    assert findings(drafts) == [
        ["digits", "membership", "simclr", "simclr: AUC 0.815 by loud ([tiny](tiny.md))"],
        ["[tiny](tiny.md)", "simclr on digits", "1", "3", "4"],
    ]


def test_five_points_are_not_too_dear_but_perhaps_more_are() -> None:
    def too_dear(mean: float, low: float | None, high: float | None) -> bool:
        return bool(script().too_dear(SimpleNamespace(loss=Difference(mean, low, high, None, 5))))

    assert not script().too_dear(SimpleNamespace(loss=None))
    assert not too_dear(0.05 + 1e-16, None, None)  # five equal seeds have no interval
    assert not too_dear(0.02, -0.01, 0.05)
    assert too_dear(0.02, -0.02, 0.06)


def test_a_defense_that_few_seeds_met_is_not_the_best(checkout: Path, judges: Judges) -> None:
    judges.clear()  # a judge would need five seeds itself
    file = checkout / "leaderboards" / "results" / "tiny.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(True)
    kept = [one for one in lines if not ('"seed":4,' in one and '"label":"talos"' in one)]
    assert len(kept) == len(lines) - 1
    file.write_text("".join(kept), encoding="utf-8")
    assert best_of(checkout) == "talos: 4 seeds only ([tiny](tiny.md))"


def retold(checkout: Path, made: Sequence[Record]) -> str:
    """What the front page says of the best defense if these are the results."""
    file = checkout / "leaderboards" / "results" / "tiny.jsonl"
    file.unlink()
    merged(made, file)
    return best_of(checkout)


NOT_SHOWN = "talos: that it lowers the leak is not shown ([tiny](tiny.md))"


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
    assert retold(checkout, made) == NOT_SHOWN


def test_an_attack_on_one_seed_has_not_met_the_defense(checkout: Path, judges: Judges) -> None:
    judges[EVERY].append(wanted("best"))
    more = [asked("best", "none", seed, 0.9 + seed / 100) for seed in range(5)]
    file = checkout / "leaderboards" / "results" / "tiny.jsonl"
    merged([*Results.read(file), *more, asked("best", "talos", 0, 0.5)], file)
    told = best_of(checkout)
    assert told == MISSING


def test_a_stronger_attack_that_has_not_met_the_best_defense_is_named(checkout: Path) -> None:
    told = "simclr: talos, 0.820 to 0.622"
    same = [asked("loud", "none", seed, 0.95 + seed / 100) for seed in range(5)]
    assert best_of(checkout, *same) == f"{told} ([tiny](tiny.md))"
    (checkout / "leaderboards" / "results" / "more.jsonl").unlink()
    more = [asked("best", "none", seed, 0.95 + seed / 100) for seed in range(5)]
    shutil.rmtree(checkout / "run-more")
    assert best_of(checkout, *more) == f"{told}; not met by best ([tiny](tiny.md))"


def test_what_a_defense_does_not_release_is_not_held_against_it(
    checkout: Path, judges: Judges
) -> None:
    judges[EVERY].append(wanted("shy"))
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


@pytest.mark.slow
def test_what_judges_a_defense_is_in_its_suite_or_the_page_says_so(registry: Any) -> None:
    known = judging.judging(registry)
    for path in sorted(ROOT.glob("leaderboards/results/*.jsonl")):
        suite = read_suite(ROOT / "leaderboards" / "suites" / f"{path.stem}.yaml")
        asked = Resolver(suite, registry)
        shown = {one.cell.defense for one in Results.read(path) if one.status == "ok"} - {"none"}
        stacks = [[one.name for one in stack] for stack in asked.stacks
                  if "+".join(one.label for one in stack) in shown]  # fmt: skip
        assert stacks or not shown
        page = (ROOT / "leaderboards" / f"{path.stem}.md").read_text("utf-8")
        left_out = " ".join(re.findall(r"No setting costs little enough: [^.]*", page))
        stacks = [names for names in stacks if f" {'+'.join(names)} " not in left_out]
        ran = [MethodRecord(name=one.name, label=one.label, version=one.version,
                            fields={name: plain(v) for name, v in one.hyperparameters().items()})
               for one in asked.attacks]  # fmt: skip
        missing = {
            judge.label
            for stack in stacks
            for game in {one.game for one in asked.attacks}
            for judge in judges_of(known, stack, game)
            if not any(judge.is_met_by(one, "privbench") for one in ran)
        }
        told = " ".join(re.findall(r"Not ranked \(‖\).*", page))
        assert {judge for judge in missing if judge not in told} == set(), path.stem


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


@pytest.mark.slow
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
