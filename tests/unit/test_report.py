"""The report: the board's numbers and all behind them, as a page in which nothing hostile acts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import random
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.test_neutral_output import ACTIVE, HOSTILE
from tests.unit.test_pages import everything, method, number, record, seeds, tables

from privbench.api.results import Results
from privbench.boards import csv_table
from privbench.boards import page as board
from privbench.boards.board import Leaderboard
from privbench.boards.findings import findings
from privbench.boards.html import evidence, page
from privbench.boards.html.cells import cells
from privbench.boards.html.curves import BARS, has_scores, histogram, roc
from privbench.boards.html.drawing import HEIGHT, WIDTH, Frame, bars, frame
from privbench.boards.html.heat import SHADES, heat
from privbench.boards.html.page import report
from privbench.boards.html.pictures import figures
from privbench.cli.main import main
from privbench.measure.games.metrics import tpr_at_fpr
from privbench.results.files import read_all
from privbench.results.one_file import dumped
from privbench.results.record import Record, SampleFile
from privbench.results.samples import pack

if TYPE_CHECKING:
    from pathlib import Path

VOID = {"meta", "br", "input", "hr"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps what is there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len({*names}) == len(names), (tag, names)
        self.tags.append((tag, tuple(names)))
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "table":
            kind = dict(attrs).get("id") or dict(attrs).get("class") or ""
            self._rows = self.tables.setdefault(f"{kind} {len(self.tables)}", [])
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & {*self.open}:
            self._rows[-1][-1] += data

    @property
    def heats(self) -> list[list[list[str]]]:
        return [rows for name, rows in self.tables.items() if name.startswith("heat")]


def scored(members: int = 20, nonmembers: int = 40, seed: int = 0) -> dict[str, Any]:
    """Per-sample scores of one trial."""
    rng = np.random.default_rng(seed)
    member = np.arange(members + nonmembers) < members
    scores = rng.normal(size=member.size) + member
    return {"row": np.arange(member.size), "label": np.zeros(member.size, np.int64),
            "truth.member": member, "victim.scores": scores}  # fmt: skip


def with_samples(records: list[Record]) -> Any:
    """Give all membership results per-sample scores, and return what reads them."""
    for one in records:
        if one.status == "ok" and one.cell.game == "membership":
            one.samples = SampleFile(bytes=1, blake2b="0" * 32)
    return lambda one: scored(seed=one.seed) if one.cell.game == "membership" else None


# ---- what it says --------------------------------------------------------------------------------


def plain(markdown: str) -> str:
    """The text that markdown of a table shows."""
    return re.sub(r"\\(.)|\*\*|`", r"\1", markdown).replace("&lt;", "<").replace("&amp;", "&")


def test_the_matrix_is_the_boards() -> None:
    made = everything()
    wanted = tables(board.page(Leaderboard(made), "t"))["digits, simclr, adaptive adversary"]
    (got, *_) = Reader(report(Leaderboard(made), "t")).heats
    assert got == [[plain(cell) for cell in row] for row in wanted]
    assert len(got) > 2
    assert any("±" in cell for row in got for cell in row)


def inside(text: str) -> bool:
    return 0 <= float(text) <= 1


def test_all_numbers_of_the_csv_file_are_in_the_details() -> None:
    made = everything()
    text = report(Leaderboard(made), "t")
    details = text.split('id="all-details"')[1].split('id="methods"')[0]
    for cell, row in csv_table.rows(Leaderboard(made)).items():
        del cell
        for name, of in row.items():
            value, end = of, name.endswith((", low", ", high")) and not name.startswith("minus")
            if end:
                assert isinstance(value, float)
                value = min(max(value, 0.0), 1.0)
            shown = csv_table.text(value)
            if name not in csv_table.FIRST:
                assert f">{shown}<" in details, (name, value)
    seen = Reader(text)
    lines = next(rows for name, rows in seen.tables.items() if name.startswith("table"))
    assert len(lines) == 1 + len(csv_table.rows(Leaderboard(made)))


def test_findings_controls_and_legends_are_the_boards() -> None:
    made = everything()
    text = (
        re.sub("<[^>]*>", "", report(Leaderboard(made), "t"))
        .replace("&#39;", "'")
        .replace("&quot;", '"')
    )
    found = Leaderboard(made).foremost
    assert findings(found)
    for line in findings(found):
        assert plain(line) in text
    assert "Draft: 3 seeds where a board needs 5." in text
    assert "AUC on null victims 0.500 on average" in text
    assert "ValueError: first second" in text


@pytest.mark.slow
def test_order_of_results_does_not_matter() -> None:
    made = everything()
    samples = with_samples(made)
    want = report(Leaderboard(made), "t", samples=samples)
    assert want == report(Leaderboard(made), "t", samples=samples)
    for seed in range(3):
        random.Random(seed).shuffle(made)
        assert report(Leaderboard(made), "t", samples=samples) == want


def test_a_failure_is_told_with_its_traceback() -> None:
    made = [*seeds("loud", "none", [0.6, 0.7]), record("bad", status="failed", reason="Oops: x<y")]
    made[-1].traceback = "Traceback <here>\n  line 1\nOops: x<y"
    text = report(Leaderboard(made), "t")
    assert '<pre tabindex="0">Traceback &lt;here&gt;\n  line 1\nOops: x&lt;y</pre>' in text
    long = "x" * 9_000 + "the end"
    made[-1].traceback = long
    text = report(Leaderboard(made), "t")
    assert long not in text
    assert "xthe end</pre>" in text


def test_one_seed_has_intervals_over_rows_and_several_over_seeds() -> None:
    one = report(Leaderboard([record(value=0.7)]), "t")
    assert "one seed, over its rows" in one
    assert ">AUC</th><td>0.7</td><td>0.65</td><td>0.75</td>" in one
    three = report(Leaderboard(seeds("loud", "none", [0.6, 0.7, 0.8])), "t")
    # Student's t of two degrees of freedom: 4.303 x .1 / sqrt(3)
    assert ">AUC</th><td>0.7</td><td>0.451586</td><td>0.948414</td>" in three
    assert "0.700 [0.650, 0.750]" in three  # the second seed alone


def details(text: str) -> list[list[list[str]]]:
    """The tables of all cells."""
    return [rows for name, rows in Reader(text).tables.items() if name.startswith("lined")]


def test_numbers_of_cells_have_words_and_each_its_own() -> None:
    made = [*everything(), record("draw", game="reconstruction", value=0.1)]
    for one in made:
        if one.status != "ok":
            continue
        one.metrics |= {"tpr_at_fpr_0.001": number(0.3), "balanced_accuracy[slant]": number(0.6),
                        "loo_auc": number(0.6), "audit_made_most": number(0.5)}  # fmt: skip
        one.baselines = {"label_only": {"accuracy": number(0.5)}, "odd_one": {"a_b": number(0.5)}}
        one.utility |= {"probe_p_value": 0.5, "reference_accuracy": 0.8}
        one.cost.seconds_per_query = 0.1
        one.updates = {"encoder": 3}
        one.sizes |= {"public_rows": 3}
        one.claims = [{"epsilon": 2.0, "sampling_rate": 0.5}]
    text = report(Leaderboard(made), "t")
    names = [[row[0] for row in rows[1:]] for rows in details(text)]
    raw = {name for row in csv_table.rows(Leaderboard(made)).values() for name in row} - {
        *csv_table.FIRST
    }
    same = {"accuracy", "precision", "recall"}
    for shown in names:
        assert len({*shown}) == len(shown)
        assert not [name for name in shown if name in raw - same or "_" in name or "[" in name]
    every = {name for shown in names for name in shown}
    assert {"AUC", "null AUC", "MSE", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "canaries' AUC",
            "balanced accuracy of slant", "label only accuracy", "odd one a b", "seconds per query",
            "training minus test accuracy", "updates of encoder", "minus no defense",
            "reference accuracy", "guesses of the audit, larger share"} <= every  # fmt: skip
    facts = " ".join(re.findall("<dd>(.*?)</dd>", text))
    assert "public rows 3" in facts
    assert "sampling rate 0.5" in facts
    assert not re.search("public_rows|sampling_rate", text.split('id="methods"')[0])


@pytest.mark.parametrize("board", ["digits-attacks", "digits-audit-gradients", "ars-adult"])
def test_published_cells_have_words(board: str) -> None:
    found = cells(Leaderboard(Results.read(f"leaderboards/results/{board}.jsonl")))
    ran = [cell for cell in found if any(one.status == "ok" for one in cell.records)]
    assert len(ran) > 3
    for cell in ran:
        shown = [row[0] for row in cell.numbers.rows]
        assert len({*shown}) == len(shown) > 10
        assert not [name for name in shown if re.search(r"[_\[]", name)]


def test_intervals_of_shares_stay_within_0_and_1() -> None:
    made = seeds("loud", "none", [0.5, 0.9, 0.99], tpr=0.9)
    one = record("alone", value=0.99)
    one.metrics["recall"] = number(0.01)
    draws = [record("draw", game="reconstruction", seed=seed, value=0.4) for seed in range(2)]
    for seed, of in enumerate(draws):
        of.metrics["psnr"] = number(15.0 + seed)  # no share
        of.utility["gap"] = seed - 0.5
    text = report(Leaderboard([*made, one, *draws]), "t")
    found = {(row[0], row[1]): row[2:] for rows in details(text) for row in rows[1:]}
    assert csv_table.rows(Leaderboard(made)).popitem()[1]["auc, high"] == pytest.approx(
        1.44461, abs=1e-5
    )
    assert found["AUC", "0.796667"] == ["0.148724", "1"]
    assert found["AUC", "0.99"] == ["0.94", "1"]
    assert found["recall", "0.01"] == ["0", "0.06"]
    assert "0.990 [0.940, 1.000]" in text  # that seed in the table of seeds
    assert "1.040" not in text
    assert found["PSNR", "15.5"] == ["9.1469", "21.8531"]
    assert found["training minus test accuracy", "0"] == ["-6.3531", "6.3531"]
    for (name, _), ends in found.items():
        if re.search("AUC|accuracy$|TPR", name) and "minus" not in name:
            assert all(inside(end) for end in ends if end), (name, ends)


def test_a_table_in_which_nothing_stands_is_left_out() -> None:
    made = [record("a", status="skipped", reason="no"), record("b", status="skipped", reason="no")]
    seen = Reader(report(Leaderboard(made), "t"))
    assert seen.heats == []
    assert "No attack ran." in report(Leaderboard(made), "t")
    assert "<table" not in Results(made)._repr_html_()
    heads = [rows[0] for rows in details(report(Leaderboard(made), "t"))]
    assert heads == [["seed", "number [over rows]", "code", "trial"]] * 2  # no empty columns
    assert len(Reader(report(Leaderboard([*made, record("c")]), "t")).heats) == 1


def test_downloads_are_the_files(tmp_path: Path) -> None:
    made = everything()
    links = re.findall(r'base64,([^"]*)" download="(.*?)\.gz"', report(Leaderboard(made), "t"))
    files = {name: gzip.decompress(base64.b64decode(packed)).decode() for packed, name in links}
    assert files["results.csv"] == csv_table.table(Leaderboard(made))
    assert files["results.jsonl"] == dumped(made)
    path = tmp_path / "again.jsonl"
    path.write_text(files["results.jsonl"], encoding="utf-8")
    assert len(read_all([path])) == len(made)


def test_cards_say_what_methods_are(registry: Any) -> None:
    made = [record("lira", value=0.8), record("lira", "talos", value=0.7, version=7),
            record("own-attack")]  # fmt: skip
    text = report(Leaderboard(made), "t", registry=registry)
    (lira,) = (one for one in registry.all("attack") if one.name == "lira")
    assert lira.paper.title in text
    assert "Not installed here" in text
    assert f"The text is of version {lira.version}, which is installed here." in text
    assert lira.paper.title not in report(Leaderboard(made), "t")


# ---- matrix and cells ----------------------------------------------------------------------------


def test_shades_by_hand() -> None:
    made = [record("a", "none", value=1.0), record("a", "half", value=0.75),
            record("a", "shut", value=0.4), record("a", "mid", value=0.55)]  # fmt: skip
    (panel,) = Leaderboard(made).panels
    got = {str(head): boxes[0].shade for head, boxes in heat(panel, {}).rows}
    assert got == {"none": SHADES - 1, "half": SHADES // 2, "shut": 0, "mid": 1}
    errors = [record("r", d, value=v, game="reconstruction")
              for d, v in (("none", 0.01), ("good", 0.21), ("mid", 0.11))]  # fmt: skip
    (panel,) = Leaderboard(errors).panels
    shown = heat(panel, {})
    got = {str(head): boxes[0].shade for head, boxes in shown.rows}
    assert (got["none"], got["good"]) == (SHADES - 1, 0)  # a lower error is more leak
    assert got["mid"] in (4, 5)
    assert "MSE from 0.21 (pale) to 0.01 (strong)" in shown.scale


def test_equal_numbers_have_no_shade() -> None:
    made = [record("r", d, value=0.1, game="reconstruction") for d in ("none", "x")]
    (panel,) = Leaderboard(made).panels
    shown = heat(panel, {})
    assert shown.scale == ""
    assert {boxes[0].shade for _, boxes in shown.rows} == {None}
    assert (
        ">0.100<" in dict(figures(Leaderboard(made), "svg"))["matrix-1-reconstruction.svg"].decode()
    )


def test_more_attacks_than_defenses_are_rows() -> None:
    made = [record(f"a{i}", value=0.5 + i / 20) for i in range(9)]
    made += [record("a1", "mask", value=0.51)]
    (panel,) = Leaderboard(made).panels
    shown = heat(panel, {})
    assert shown.corner == "attack"
    assert [str(one) for one in shown.heads] == ["none", "mask"]
    assert len(shown.rows) == 10  # and the accuracy
    (wanted,) = (
        rows for name, rows in tables(board.page(Leaderboard(made), "t")).items() if name[0] == "d"
    )
    (got,) = Reader(report(Leaderboard(made), "t")).heats
    assert [row[1:] for row in got] == [[plain(c) for c in row[1:]] for row in wanted]
    assert got[1][0].startswith("a8 (AUC)")  # the strongest is first


def test_links_lead_to_details_and_ids_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (1_000, 2):
        monkeypatch.setattr(page, "MOST_DETAILS", most)
        made = everything()
        text = report(Leaderboard(made), "t", samples=with_samples(made))
        seen = Reader(text)
        ids = [value for name, value in seen.attributes if name == "id"]
        assert len({*ids}) == len(ids)
        links = {v.removeprefix("#") for name, v in seen.attributes
                 if name == "href" and v.startswith("#")}  # fmt: skip
        assert links <= {*ids}
        cells = [one for one in ids if re.fullmatch(r"cell-\d+", one)]
        assert len(cells) == min(most, len(csv_table.rows(Leaderboard(made))))
        assert ("all others are in the table" in text) == (most == 2)


# ---- curves --------------------------------------------------------------------------------------


def test_a_roc_curve_has_the_rates_of_the_metric() -> None:
    columns = scored(200, 400)
    one = roc([columns])
    assert one.fpr[0] == pytest.approx(1 / 400)
    assert len(one.fpr) > 12
    for rate, *got in zip(one.fpr, one.tpr, one.low, one.high, strict=True):
        want: Any = tpr_at_fpr(columns["victim.scores"], columns["truth.member"], rate)
        assert got == [want.value, want.low, want.high]
    three = roc([scored(200, 400, seed) for seed in range(3)])
    alone = [roc([scored(200, 400, seed)]).tpr for seed in range(3)]
    np.testing.assert_allclose(three.tpr, np.mean(alone, 0))
    assert (np.diff([three.low, three.tpr, three.high], axis=0) >= 0).all()
    assert min(three.low) >= 0
    assert max(three.high) <= 1


def test_a_histogram_by_hand() -> None:
    member = np.array([True, True, False, False, False, False])
    of = histogram({"victim.scores": np.array([1.0, np.inf, 0.0, 0.0, 0.5, -np.inf]),
                    "truth.member": member})  # fmt: skip
    assert len(of.members) == len(of.nonmembers) == BARS
    assert of.members[-1] == 1.0  # both are at the upper end
    assert of.nonmembers[0] == 0.75
    assert sum(of.nonmembers) == pytest.approx(1)
    equal = histogram({"victim.scores": np.zeros(6), "truth.member": member})
    assert (equal.low, equal.high) == (-0.5, 0.5)
    huge = histogram({"victim.scores": np.array([1e308, -1e308] * 3), "truth.member": member})
    assert sum(huge.members) == pytest.approx(1)


def test_posteriors_are_drawn_as_logits() -> None:
    """Most of the bars of raw posteriors would be empty."""
    columns = scored(2_000, 2_000)
    columns["victim.scores"] = 1 / (1 + np.exp(-6 * columns["victim.scores"]))
    of = histogram(columns)
    assert of.logits
    assert sum(share > 0.01 for share in of.members) > BARS / 2
    assert (of.low, of.high) == pytest.approx((-14.5, 19.0), abs=2)  # 6 x (-2.6, 3.4) or so
    columns["victim.scores"][:40] = 1.0  # infinite logits are in the outer bar
    assert histogram(columns).members[-1] > 0.02
    for raw in ([0.0, 1.0] * 2_000, [0.5, 1.5] * 2_000, [-0.5, 0.5] * 2_000):
        assert not histogram({**columns, "victim.scores": np.array(raw)}).logits


def test_the_figure_says_whether_it_shows_logits() -> None:
    made = [record()]
    with_samples(made)
    plain_ = report(Leaderboard(made), "t", samples=lambda _: scored())
    columns = scored()
    columns["victim.scores"] = 1 / (1 + np.exp(-columns["victim.scores"]))
    logits = report(Leaderboard(made), "t", samples=lambda _: columns)
    assert "logit of the score</text>" in logits
    assert "as logits, log(s / (1 - s)), because all lie between 0 and 1" in logits
    assert "logit" not in plain_.split('id="all-details"')[1].split('id="methods"')[0]
    assert ">score</text>" in plain_


def test_only_scores_of_both_sides_are_drawn() -> None:
    good = scored()
    assert has_scores(good)
    for name in good:
        assert not has_scores({other: column for other, column in good.items() if other != name})
    assert not has_scores({**good, "truth.member": np.ones(60, bool)})
    assert not has_scores({**good, "victim.scores": np.full(60, np.nan)})
    assert not has_scores({**good, "victim.scores": np.zeros((60, 2))})


def test_paths_by_hand() -> None:
    from privbench.boards.html.curves import Histogram, Roc

    axes = frame(1 / 100)
    assert axes == Frame(2)
    paths = axes.roc(Roc([0.01, 0.1], [0.0, 0.1], [0.0, 0.01], [0.1, 1.0], 1))
    assert paths.curve == f"M0 {HEIGHT:g}L{WIDTH / 2:g} {HEIGHT / 2:g}L{WIDTH:g} 0"
    assert paths.band.startswith(f"M0 {HEIGHT / 2:g}L{WIDTH / 2:g} 0L{WIDTH:g} 0L")
    drawn = bars(Histogram(0, 1, [1.0, 0.0], [0.5, 0.5]))
    assert drawn.members == (
        f"M0 {HEIGHT:g}L0 0L{WIDTH / 2:g} 0L{WIDTH / 2:g} {HEIGHT:g}L{WIDTH:g} {HEIGHT:g}"
        f"L{WIDTH:g} {HEIGHT:g}Z"
    )
    assert f"L{WIDTH:g} {HEIGHT / 2:g}" in drawn.nonmembers


def test_pictures_are_drawn_where_there_are_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    made = everything()
    assert 'class="curve"' not in report(Leaderboard(made), "t")
    samples = with_samples(made)
    text = report(Leaderboard(made), "t", samples=samples)
    cells = {one.cell.title for one in made if one.samples is not None}
    assert text.count('class="curve"') == len(cells) > 2
    assert text.count(">Most exposed rows<") == len(cells)
    assert "<b>exposure</b>" in text.replace("strong>", "b>")
    monkeypatch.setattr(evidence, "MOST_DRAWN", 1)
    text = report(Leaderboard(made), "t", samples=samples)
    assert text.count('class="curve"') == 1
    assert f"single rows of {len(cells) - 1} more cells are left out" in text


# ---- nothing acts --------------------------------------------------------------------------------


def hostile(text: str) -> list[Record]:
    made = []
    for defense, value in (("none", 0.8), ("d", 0.6)):
        for seed in range(2):
            one = record("a", defense, seed, value, flags=(f"flag {text}",), commit=text)
            name = "none" if defense == "none" else f"d{text}"
            one.cell = one.cell.model_copy(update={
                "attack": method(f"a{text}"), "target": method(f"t{text}"),
                "dataset": method(f"s{text}"), "defenses": [method(name, power=text)],
                "adversary": f"v{text}", "protocol": {"name": f"p{text}", text: {text: text}},
                "needs": f"N{text}", "access": f"C{text}", "preset": f"q{text}",
                "decides_at": f"e{text}", "sensitive": [text],
            })  # fmt: skip
            one.phase, one.notes, one.claims = f"h{text}", {text: [text]}, [{text: text}]
            one.metrics[f"m{text}"] = number(0.5)
            one.sizes |= {f"z{text}": 3}
            one.utility |= {f"u{text}": 1.0}
            made.append(one)
    made.append(record("bad", status="failed", reason=f"why {text}"))
    made[-1].cell = made[0].cell.model_copy(update={"attack": method(f"b{text}")})
    made[-1].traceback = f"first\n{text}"
    return made


#: More of these are tried by `.ci/run` only.
MORE = [*HOSTILE, "</style><b>", "'-x-'", "</title><b>", "{{ 7 * 7 }}", "]]><b>",
        "[a](javascript:x)"]  # fmt: skip


@pytest.mark.parametrize("text", ["</script><b>", '" onload="x',
                                  *(pytest.param(text, marks=pytest.mark.slow) for text in MORE)],
                         ids=ascii)  # fmt: skip
def test_hostile_text_is_text(text: str) -> None:
    made = hostile(text)
    got = report(Leaderboard(made), f"T {text}", again=[f"s{text}"], samples=with_samples(made))
    tame = hostile("tame")
    want = report(Leaderboard(tame), "T tame", again=["stame"], samples=with_samples(tame))
    seen, plain_ = Reader(got), Reader(want)
    assert not {*got} & {*ACTIVE} - {"\n"}
    assert seen.tags == plain_.tags
    for name, value in seen.attributes:
        assert not name.startswith("on")
        assert name != "style"
        if name in ("href", "src", "action"):
            assert re.match("#[a-z]|data:application/gzip;base64,[A-Za-z0-9+/=]*$", value)
    assert "T 49" not in got


def test_the_policy_allows_only_the_own_style_and_script() -> None:
    text = report(Leaderboard(everything()), "t")
    policy = re.findall('Content-Security-Policy" content="(.*?)"', text)[0].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (own,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        wanted = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{wanted}'" in policy
    assert "http://" not in re.sub('xmlns[^ ]*="[^"]*"', "", text)
    assert "unsafe" not in policy


# ---- command and figures -------------------------------------------------------------------------


def stored(folder: Path) -> list[Record]:
    made = everything()
    for i, one in enumerate(made):
        one.trial = f"{i:04}"
        if one.status == "ok" and one.cell.game == "membership":
            one.attach(pack(scored(seed=one.seed)))
        one.write(folder)
    return made


@pytest.mark.slow
def test_the_command_writes_a_page_and_figures(tmp_path: Path) -> None:
    folder, out = tmp_path / "r", tmp_path / "r.html"
    folder.mkdir()
    made = stored(folder)
    given = ["report", str(folder), "-o", str(out), "--title", "Mine"]
    given += ["--svg", str(tmp_path / "svg"), "--png", str(tmp_path / "png")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    assert f"report of {len(made)} results in" in done.output
    text = out.read_text(encoding="utf-8")
    assert "<title>Mine</title>" in text
    assert 'class="curve"' in text
    names = {"front-1-attributes-of-slant", "front-1-membership", "matrix-1-attributes-of-slant",
             "matrix-1-membership", "roc-1-membership"}  # fmt: skip
    assert {one.name for one in (tmp_path / "svg").iterdir()} == {f"{n}.svg" for n in names}
    assert {one.name for one in (tmp_path / "png").iterdir()} == {f"{n}.png" for n in names}
    for one in (tmp_path / "svg").iterdir():
        assert ET.fromstring(one.read_text(encoding="utf-8")).tag.endswith("svg")  # noqa: S314
    for one in (tmp_path / "png").iterdir():
        assert one.read_bytes().startswith(b"\x89PNG")
    first = out.read_bytes()
    assert CliRunner().invoke(main, given).exit_code == 0
    assert out.read_bytes() == first


def test_a_report_is_an_html_file(tmp_path: Path) -> None:
    record().write(tmp_path)
    done = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "r.md")])
    assert done.exit_code == 2
    assert "the name of a report ends in .html" in done.output


@pytest.mark.slow
def test_figures_have_the_same_bytes_whatever_the_order() -> None:
    made = everything()
    samples = with_samples(made)
    for form in ("svg", "png"):
        want = dict(figures(Leaderboard(made), form, samples=samples))
        shuffled = random.Random(1).sample(made, len(made))
        assert dict(figures(Leaderboard(shuffled), form, samples=samples)) == want
        assert len(want) == 5
    matrix = dict(figures(Leaderboard(made), "svg"))["matrix-1-membership.svg"].decode()
    assert {"0.700", "loud", "talos"} <= {*re.findall(">([^<>]*)</text>", matrix)}


def test_texts_of_cards_flow_and_lists_keep_their_lines() -> None:
    from privbench.boards.html.cards import MethodCard
    from privbench.plugins.about import About

    told = About(("One\nline of ``code``.\n\nSteps:\n\n1. first\n2. second", "a:\n  b"), "", {}, "")
    card = MethodCard("attack", "x", "1", told, "", {}, [], 0)
    assert card.paragraphs == [
        ("One line of code.", False), ("Steps:", False), ("1. first\n2. second", True),
        ("a:\n  b", True),
    ]  # fmt: skip


def test_cells_with_a_number_come_first() -> None:
    made = [record("a", status="skipped", reason="no"), record("b", status="failed", reason="no"),
            record("c")]  # fmt: skip
    lines = next(rows for name, rows in Reader(report(Leaderboard(made), "t")).tables.items()
                 if name.startswith("table"))  # fmt: skip
    assert [row[0] for row in lines[1:]] == ["c", "b", "a"]


def test_roc_figures_show_the_strongest_attacks() -> None:
    made = [record(f"a{i}", value=0.5 + i / 20) for i in range(9)]
    drawn = dict(figures(Leaderboard(made), "svg", samples=with_samples(made)))[
        "roc-1-membership.svg"
    ].decode()
    names = [text for text in re.findall(">([^<>]*)</text>", drawn) if text.startswith("a")]
    assert names == ["a8", "a7", "a6", "a5", "a4", "a3"]


def test_damaged_scores_are_named(tmp_path: Path) -> None:
    made = record("loud")
    made.trial = "0001"
    made.attach(pack(scored()))
    made.write(tmp_path)
    made.samples_path(tmp_path).write_bytes(b"x")
    done = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 2
    assert "0001.safetensors is not a privbench result: it has changed" in done.output
    assert not (tmp_path / "r.html").exists()
