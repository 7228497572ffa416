"""The sheet of an audit that is signed: what it says, harmless, on two pages, under the seal."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.test_audit_documents import GATE
from tests.unit.test_own_model import (
    MEMBERS,
    NONMEMBERS,
    files,
    forest,
    run,
)
from tests.unit.test_report_browser import BROWSER

from privbench import BadInputError
from privbench.api.own_model import printed
from privbench.api.own_model.advice import advice
from privbench.api.own_model.document import Document, Shadows
from privbench.api.own_model.sheet import Evidence, evidence, sheet
from privbench.api.own_model.shift import Shift
from privbench.api.own_model.subgroups import Group, Subgroups
from privbench.api.own_model.words import reached, strongest
from privbench.cli.audit import _status
from privbench.cli.main import main
from privbench.results.record import Number
from privbench.results.sample_files import read_samples

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTILE = (
    "</style><script>alert(1)</script><img src=x onerror=alert(1)> & \x1b[31m \u202e {{ 7 * 7 }}"
)
NUMBER = Number(value=0.9, low=0.8, high=0.95)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One audit with all attacks whose gate fails, and its folder; two members are equal."""
    folder = tmp_path_factory.mktemp("made")
    members = {name: np.concatenate([one, one[:1]]) for name, one in MEMBERS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVBENCH_CACHE", str(folder / "store"))
        found = run(folder, forest(members), members=members, attacks=(), fail_above=GATE)
    return folder / "out", found


@pytest.fixture(scope="module")
def parts(made: tuple[Path, Any]) -> tuple[Document, Evidence]:
    """The document, and what the sheet shows beside it."""
    from privbench.api.own_model.rows import Rows

    folder, found = made
    sizes = {"members": 100, "nonmembers": 100}
    rows = Rows(np.zeros((200, 1)), None, sizes, fingerprints=[*map(str, range(200))],
                labels=np.zeros(200, int), copied={0: 1})  # fmt: skip
    document = Document.model_validate_json((folder / "audit.json").read_text("utf-8"))
    return document, evidence(found, rows, strongest(found), folder)


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note them."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.texts.append(data)


# ---- what it says ----------------------------------------------------------------------------


def test_it_says_all_that_a_signer_needs(made: tuple[Path, Any]) -> None:
    folder, found = made
    html = (folder / "audit.html").read_text("utf-8")
    page = Page(html)
    told = Document.model_validate_json((folder / "audit.json").read_text("utf-8"))
    best = strongest(found)
    assert best is not None
    auc = best.record.metrics["auc"]
    first = reached(read_samples(best.record, [folder]) or {})
    assert first is not None  # ties hide what is found at 1 %
    tpr = first.tpr.value or 0
    assert tpr > 0.05
    verdict = found.summary.splitlines()[0]
    for text in (
        *verdict.split(". ", 1), f"{auc.value:.3f}", f"{auc.value:.3f} ({auc.low:.3f} to ",
        f"95 % interval {auc.low:.3f} to {auc.high:.3f}", f"95 %: {auc.low:.3f} to",
        f"it tells which is which in {100 * (auc.value or 0):.0f} of 100 cases",
        f"Of 1,000 members the attack names about {1000 * tpr:.0f},",
        told.date, f"privbench {told.versions['privbench']}", f"Python {told.python}",
        told.model.answers_sha256, told.data.rows_sha256, best.record.trial, *told.limits,
        "100 members, 100 nonmembers", "Overfitting The model is right about",
        "Duplicates 1 member is equal to another member", "No shadows This is a lower bound",
        "rests on 1 of the nonmembers", "auc=0.55 failed. Above it: ",
        "shadows are needed (a shadow recipe, or shadow rows) cmia",
    ):  # fmt: skip
        assert text in page.text, text
    assert "No single row stands out" in page.text  # nonmembers have the same scores
    for attack in ("metric-confidence(calibration=none)", "metric-correctness", "dual-head"):
        assert attack in page.text
    (curve,) = re.findall(r'class="curve" d="(M[^"]+)"', html)
    (band,) = re.findall(r'class="band" d="(M[^"]+Z)"', html)
    assert curve.count("L") > 5
    assert band.count("L") == 2 * curve.count("L") + 1
    assert stat.S_IMODE((folder / "audit.html").stat().st_mode) == 0o600


def test_it_runs_and_fetches_nothing(made: tuple[Path, Any]) -> None:
    html = (made[0] / "audit.html").read_text("utf-8")
    page = Page(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "a", "form", "base"}
    assert not page.attributes & {"src", "href", "style", "srcset", "action"}
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src &#39;none&#39;; style-src &#39;sha256-" in html
    assert "script-src" not in html


def test_text_of_others_is_escaped_everywhere(parts: tuple[Document, Evidence]) -> None:
    of, shows = parts
    group = Group(HOSTILE, 30, 30, NUMBER, NUMBER, 1e-6)
    tried = [one.model_copy(update={"attack": HOSTILE, "reason": HOSTILE, "doubtful": HOSTILE})
             for one in of.attacks]  # fmt: skip
    bad = of.model_copy(update={
        "words": HOSTILE, "attacks": tried, "limits": [HOSTILE], "date": HOSTILE,
        "subgroups": Subgroups(HOSTILE, (group,), {HOSTILE: HOSTILE}),
        "model": of.model.model_copy(update={"name": HOSTILE, "version": HOSTILE}),
        "versions": {HOSTILE: HOSTILE, "privbench": HOSTILE}, "commit": HOSTILE, "python": HOSTILE,
    })  # fmt: skip
    shows = replace(shows, classes=dict.fromkeys(range(101), HOSTILE), content=HOSTILE)
    for one in (bad, bad.model_copy(update={"no_verdict": HOSTILE})):
        html = sheet(one, shows)
        page = Page(html)
        assert not page.tags & {"script", "img"}
        assert html.count("<style>") == html.count("</style>") == 1
        assert set(html) - {"\n"} == {c for c in html if c.isprintable()}
        assert "<script>alert(1)" in page.text
        assert "{{ 7 *" in page.text


def test_class_names_of_an_audit_are_escaped(tmp_path: Path) -> None:
    members, nonmembers = (
        {"x": one["x"], "y": np.array(["<b>", "'\"><script>"])[one["y"]]}
        for one in (MEMBERS, NONMEMBERS)
    )

    def model(x: np.ndarray) -> np.ndarray:  # sure of its members
        at = np.abs(x[:, None] - members["x"]).max(2)
        y = (members["y"][at.argmin(1)] == "<b>").astype(float)
        p = np.where(at.min(1) < 1e-3, 0.98 * y + 0.01, 0.5)
        return np.stack([1 - p, p], 1)

    found = run(tmp_path, model, members=members, nonmembers=nonmembers)
    html = (tmp_path / "out" / "audit.html").read_text("utf-8")
    assert '<span class="c1">&lt;b&gt;</span>' in html
    for row, _ in found.exposed[:6]:
        assert f"<tr><td>{row}</td>" in html
    assert html.count("<td>100.0%</td>") == 6
    assert not Page(html).tags & {"b>", "script"}
    assert {one.name for one in found.subgroups.tested} == {"class <b>", "class '\"><script>"}


@pytest.mark.slow
def test_an_audit_without_a_verdict_says_only_that(parts: tuple[Document, Evidence]) -> None:
    of, shows = parts
    bad = of.model_copy(update={
        "no_verdict": "y is wrong", "words": "No verdict: y is wrong.", "subgroups": None,
    })  # fmt: skip
    page = Page(html := sheet(bad, shows))
    assert 'class="verdict unknown"' in html
    assert "Correct this first, then audit again: y is wrong." in page.text
    assert "no leak was found" not in page.text.lower()
    assert "Overfitting" not in page.text
    empty = Page(sheet(bad, replace(shows, best=None, columns=None)))
    assert "Correct this first" in empty.text
    assert "svg" not in empty.tags


def test_causes_and_what_to_do(parts: tuple[Document, Evidence]) -> None:
    of, shows = parts
    assert shows.best is not None
    big = of.data.model_copy(update={"members": 5000, "nonmembers": 5000})
    own = Shadows(trained_by="fit", code="0" * 32, most=16)
    calm = of.model_copy(update={
        "utility": {"train_accuracy": 0.9, "test_accuracy": 0.895}, "data": big, "shadows": own,
        "subgroups": None, "shift": None,
    })  # fmt: skip
    leaks = replace(shows.best, leaks=True, perhaps=False)
    none = replace(shows.best, leaks=False, perhaps=False)

    def causes(one: Document, best: Any = leaks, duplicates: int = 0) -> list[str]:
        return [cause for cause, _ in advice(one, best, duplicates)]

    assert causes(calm) == ["Confidence"]
    assert causes(calm, none) == ["No leak found"]
    assert causes(calm.model_copy(update={"utility": {}})) == []
    labels = of.model.model_copy(update={"gives": "labels"})
    assert causes(calm.model_copy(update={"model": labels})) == []
    ((_, more),) = [one for one in advice(calm, replace(none, perhaps=True), 0)
                    if one[0] == "Few rows"]  # fmt: skip
    assert "give 10,000 or more of each" in more
    assert causes(calm, duplicates=2) == ["Confidence", "Duplicates"]
    assert causes(calm, replace(none, perhaps=True)) == ["Confidence", "Few rows"]
    assert causes(calm.model_copy(update={"shadows": of.shadows})) == ["Confidence", "No shadows"]
    assert causes(calm.model_copy(update={"data": of.data})) == ["Confidence", "Few rows"]
    over = calm.model_copy(update={
        "utility": {"train_accuracy": 1.0, "test_accuracy": 0.9},
        "model": of.model.model_copy(update={"members_per_parameter": 0.01}),
    })  # fmt: skip
    ((cause, told),) = advice(over, leaks, 0)
    assert cause == "Overfitting"
    assert "100.0% of the members and 90.0% of the nonmembers. It has 100 parameters" in told
    assert causes(over, none) == ["No leak found"]
    leaky = Subgroups("a", (Group("sex = f", 30, 30, NUMBER, NUMBER, 1e-6),), {})
    assert causes(calm.model_copy(update={"subgroups": leaky})) == ["Confidence", "Groups"]
    grouped = calm.model_copy(update={"subgroups": leaky})
    assert causes(grouped, none) == ["Confidence", "Groups"]
    assert 'class="verdict leak"' in sheet(grouped, replace(shows, best=none))
    weak = Number(value=0.72, low=0.58, high=0.83)
    likely = Subgroups("a", (Group("sex = f", 30, 30, weak, NUMBER, 1e-3),), {})
    maybe = calm.model_copy(update={"subgroups": likely})
    assert 'class="verdict perhaps"' in sheet(maybe, replace(shows, best=none))
    assert "None is named, since no leak" not in sheet(maybe, replace(shows, best=none))


# ---- the seal --------------------------------------------------------------------------------


def test_the_seal_covers_the_sheet_and_the_sheet_all_else(made: tuple[Path, Any]) -> None:
    folder, found = made
    page = folder / "audit.html"
    html = page.read_text("utf-8")
    lines = (folder / "SHA256SUMS").read_text("utf-8").splitlines(keepends=True)
    rest = "".join(one for one in lines if not one.endswith("  audit.html\n"))
    assert len(lines) == rest.count("\n") + 1
    assert hashlib.sha256(rest.encode()).hexdigest() in html
    done = CliRunner().invoke(main, ["verify", str(folder), "--digest", found.digest])
    assert done.exit_code == 0, done.output
    try:
        page.write_text(html.replace("leaks", "keeps"), encoding="utf-8")
        done = CliRunner().invoke(main, ["verify", str(folder)])
        assert (done.exit_code, done.output.partition("was: ")[2]) == (1, "changed: audit.html.\n")
        page.unlink()
        assert "missing: audit.html" in CliRunner().invoke(main, ["verify", str(folder)]).output
    finally:
        page.write_text(html, encoding="utf-8")


# ---- printed ---------------------------------------------------------------------------------


@pytest.fixture
def chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Install a program of that name that runs these lines of shell."""

    def installed(lines: str) -> str:
        program = tmp_path / "bin" / "chromium"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return printed.browser()

    return installed


def test_without_chromium_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    given = ["audit", "--model", "a:b", *files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)]
    done = CliRunner().invoke(main, [*given, "--pdf", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert done.output == ("privbench: pdf: no chromium is installed here: install it, print "
                           "audit.html in a browser, or leave pdf out\n")  # fmt: skip
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInputError, match=r"^pdf: no chromium"):
        run(tmp_path, len, pdf=True)


def test_a_browser_that_hangs_is_stopped_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chromium: Callable[[str], str]
) -> None:
    monkeypatch.setattr(printed, "TIMEOUT", 0.5)
    command = chromium(f"sleep 60 & echo $! > {tmp_path / 'pid'}; sleep 60")
    began = time.monotonic()
    with pytest.raises(BadInputError, match=r"took more than 0 s and was stopped; the audit is"):
        printed.printed(tmp_path / "a.html", tmp_path / "a.pdf", command)
    assert time.monotonic() - began < 20
    assert not (tmp_path / "a.pdf").exists()
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    if child.parent.parent.is_dir():  # Linux; a zombie is dead
        for _ in range(100):
            if not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the child is alive")


def test_a_browser_that_fails_and_one_that_prints(
    tmp_path: Path, chromium: Callable[[str], str]
) -> None:
    broken = chromium("echo first >&2; printf 'no \\033 display\\n' >&2; exit 3")
    with pytest.raises(BadInputError, match=r"wrote no file \(no \\x1b display\); the audit is"):
        printed.printed(tmp_path / "a", tmp_path / "b", broken)
    chromium('for one in "$@"; do case $one in --print-to-pdf=*) '
             'echo "$@" > "${one#--print-to-pdf=}";; esac; done')  # fmt: skip
    found = run(tmp_path, forest(MEMBERS), pdf=True)
    pdf = tmp_path / "out" / "audit.pdf"
    assert pdf.read_text().strip().endswith((tmp_path / "out" / "audit.html").as_uri())
    assert stat.S_IMODE(pdf.stat().st_mode) == 0o600
    done = CliRunner().invoke(main, ["verify", str(tmp_path / "out"), "--digest", found.digest])
    assert done.exit_code == 0
    assert "not part of the audit: audit.pdf" in done.output


def test_a_page_that_cannot_be_printed_hides_no_verdict(
    tmp_path: Path, chromium: Callable[[str], str]
) -> None:
    chromium("echo 'no display' >&2; exit 3")
    with pytest.warns(RuntimeWarning, match=r"^pdf: chromium wrote no file \(no display\)"):
        found = run(tmp_path, forest(MEMBERS), pdf=True, fail_above={"auc": 0.55})
    assert found.gate is not None
    assert found.gate.outcome == "failed"
    assert _status(found) == 3
    found.gate, found.no_verdict = None, ""
    assert (_status(found), found.not_printed[:4]) == (2, "pdf:")


def pages(html: str, folder: Path) -> int:
    """Print it as it is printed for users, and count pages."""
    (folder / "a.html").write_text(html, encoding="utf-8")
    printed.printed(folder / "a.html", folder / "a.pdf", BROWSER)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", (folder / "a.pdf").read_bytes()))


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no chromium here, so no page was counted: apt-get install "
                    "chromium")  # fmt: skip
def test_it_fits_two_pages_whatever_was_audited(
    parts: tuple[Document, Evidence], tmp_path: Path
) -> None:
    of, shows = parts
    assert pages(sheet(of, shows), tmp_path) == 2
    wide, words = "W" * 2000, "all of these Words " * 200
    for long in (wide, words):
        group = Group(long, 10**6, 10**6, NUMBER, NUMBER, 1e-300)
        tried = [
            *(one.model_copy(update={"attack": f"{i}{long}", "doubtful": long, "status": "ran",
                                     "metrics": {"auc": NUMBER, "tpr_at_fpr_0.01": NUMBER}})
              for i, one in enumerate(of.attacks)),
            *(one.model_copy(update={"attack": long, "reason": f"{i}{long}", "status": "not run"})
              for i, one in enumerate(of.attacks)),
        ]  # fmt: skip
        assert of.gate is not None
        gate = replace(of.gate, thresholds=tuple(
            replace(one, words=long) for one in of.gate.thresholds * 3))  # fmt: skip
        bad = of.model_copy(update={
            "words": f"{long}. {long}", "attacks": tried, "gate": gate, "commit": long[:50],
            "subgroups": Subgroups(long, (group,) * 20, {long: long}),
            "model": of.model.model_copy(update={
                "name": long, "version": long, "parameters": 10**12,
                "members_per_parameter": 1e-9,
            }),
            "versions": {**of.versions, long: long}, "shift": Shift(0.9, 0.0),
        })  # fmt: skip
        assert shows.best is not None
        full = replace(
            shows, classes=dict.fromkeys(range(101), long), duplicates=10**6,
            exposed=[(i, 1.0) for i in range(50)],
            best=replace(shows.best, perhaps=True),
        )  # fmt: skip
        assert pages(sheet(bad, full), tmp_path) <= 2
