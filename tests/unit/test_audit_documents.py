"""The documents of an audit: audit.json, JUnit's XML and SARIF, also of a gate that failed."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.test_own_model import (
    MEMBERS,
    NONMEMBERS,
    files,
    forest,
    run,
)
from torch import nn

import privbench
from privbench import BadInputError
from privbench.api.own_model import formats
from privbench.api.own_model.document import Document, dumped
from privbench.cli.main import main

if TYPE_CHECKING:
    from privbench.ground.columns import Board

COMMITTED = Path(__file__).parents[2] / "docs" / "audit.schema.json"
GATE = {"auc": 0.55, "tpr@1%": 0.9999, "balanced_accuracy": 0.9}
HOSTILE = "\x1b[31m ]]> <failure> & \ud800 \ufffe"


def only(**fields: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {"type": "object", "properties": fields, "additionalProperties": False}


TEXT, WHOLE = {"type": "string"}, {"type": "integer", "minimum": 0}
MESSAGE = {**only(text=TEXT), "required": ["text"]}
#: The part of the schema of SARIF 2.1.0 (OASIS) that names what we write.
SARIF = {
    **only(
        **{"$schema": {"type": "string", "format": "uri"}, "version": {"const": "2.1.0"}},
        runs={"type": "array", "items": {
            **only(
                tool={**only(driver={
                    **only(name=TEXT, version=TEXT, rules={
                        "type": "array", "uniqueItems": True, "items": {
                            **only(id=TEXT, shortDescription=MESSAGE, help=MESSAGE),
                            "required": ["id"],
                        },
                    }), "required": ["name"],
                }), "required": ["driver"]},
                invocations={"type": "array", "items": {
                    **only(executionSuccessful={"type": "boolean"},
                           endTimeUtc={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT.*Z$"}),
                    "required": ["executionSuccessful"],
                }},
                results={"type": "array", "items": {
                    **only(
                        ruleId=TEXT, ruleIndex=WHOLE, message=MESSAGE,
                        kind={"enum": ["notApplicable", "pass", "fail", "review", "open",
                                       "informational"]},
                        level={"enum": ["none", "note", "warning", "error"]},
                        locations={"type": "array", "items": only(physicalLocation=only(
                            artifactLocation=only(uri={"type": "string", "pattern": r"^\S+$"}),
                            region=only(startLine={"type": "integer", "minimum": 1}),
                        ))},
                        partialFingerprints={"type": "object", "additionalProperties": TEXT},
                        properties={"type": "object"},
                    ), "required": ["message"],
                }},
            ), "required": ["tool"],
        }},
    ), "required": ["version", "runs"],
}  # fmt: skip


def sarif_results(text: str) -> list[dict[str, Any]]:
    """The results of a file that is checked as far as the standard rules what we write."""
    made = json.loads(text)
    jsonschema.validate(made, SARIF)
    (run_,) = made["runs"]
    results: list[dict[str, Any]] = run_["results"]
    for one in results:  # 3.27.10: what is no failure has no level; 3.27.6: the index is the rule's
        assert one["kind"] == "fail" or one["level"] == "none"
        assert run_["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"]
    return results


def cases(text: str) -> dict[str, str]:
    """Test case -> how it ended, of a file whose counts are right."""
    root = ET.fromstring(text)  # noqa: S314 - our own
    for part in (root, *root.findall("testsuite")):
        assert int(part.attrib["tests"]) == len(list(part.iter("testcase")))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(part.attrib[name]) == len(list(part.iter(tag)))
    found = {}
    for case in root.iter("testcase"):
        ended = [one.tag for one in case if one.tag != "system-out"]
        assert len(ended) < 2
        name = f"{case.attrib['classname'].removeprefix('privbench.')} {case.attrib['name']}"
        found[name] = ended[0] if ended else "passed"
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One audit with all attacks whose gate fails, and its folder."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVBENCH_CACHE", str(folder / "store"))
        found = run(folder, forest(MEMBERS), attacks=(), fail_above=GATE,
                    junit=folder / "new" / "audit.xml", sarif=folder / "audit.sarif")  # fmt: skip
    return folder, found


def test_a_failed_gate_writes_all_documents_for_the_user_alone(made: tuple[Path, Any]) -> None:
    folder, found = made
    assert found.gate.outcome == "failed"
    for name in ("out/audit.json", "out/SHA256SUMS", "new/audit.xml", "audit.sarif"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name


def test_the_document_holds_what_an_annex_needs(made: tuple[Path, Any]) -> None:
    folder, found = made
    text = (folder / "out" / "audit.json").read_text(encoding="utf-8")
    told = json.loads(text)
    jsonschema.validate(told, json.loads(COMMITTED.read_text(encoding="utf-8")))
    assert Document.model_validate_json(text).gate == found.gate
    record = next(one for one in found if one.status == "ok")
    assert told["model"]["answers_sha256"] == record.cell.target.fields["answered"]
    assert told["data"] == {
        "members": 100, "nonmembers": 100, "shadow": 0,
        "rows_sha256": record.cell.dataset.fields["sha256"],
    }  # fmt: skip
    assert told["words"] == found.summary
    assert told["version"] == 1
    assert told["model"]["parameters"] is told["model"]["members_per_parameter"] is None
    limits = " ".join(told["limits"])
    assert f"{len(found.left_out)} attacks did not run" in limits
    assert "No attack had shadows" in limits
    assert "the model's posteriors only" in limits
    assert {"privbench", "torch", "scikit-learn"} <= set(told["versions"])
    assert told["date"].endswith("+00:00")
    attacks = {one["attack"]: one for one in told["attacks"]}
    assert len(attacks) == len(told["attacks"]) >= len(found)
    ran = attacks["metric-confidence(calibration=none)"]
    assert (ran["status"], ran["reads"], ran["seed"]) == ("ran", "POSTERIORS", 0)
    assert ran["metrics"]["auc"]["low"] > 0.7
    assert ran["null"]["auc"]["value"] < 0.7
    assert attacks["label-lira"]["status"] == attacks["lira"]["status"] == "not run"
    assert attacks["lira"]["reason"] == "shadows are needed (a shadow recipe, or shadow rows)"
    assert "--" not in attacks["shokri"]["reason"]


def test_parameters_are_counted_and_sets_of_objects_are_not_compared(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2), nn.Softmax(1))
    run(tmp_path, net)
    told = json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))
    assert told["model"]["parameters"] == 6 * 4 + 4 + 4 * 2 + 2
    assert told["model"]["members_per_parameter"] == 100 / 38
    other = tmp_path / "other"
    sets = {name: ([Path(name, str(i)) for i in range(40)], np.arange(40) % 2)
            for name in ("members", "nonmembers")}  # fmt: skip
    run(other, lambda x: np.full((len(x), 2), 0.5), **sets)
    text = (other / "out" / "audit.json").read_text("utf-8")
    jsonschema.validate(json.loads(text), json.loads(COMMITTED.read_text("utf-8")))
    document = Document.model_validate_json(text)
    assert document.shift is not None
    assert (document.shift.auc, document.shift.p_value_of_y) == (None, 1.0)
    assert any("were not compared" in one for one in document.limits)


def test_a_report_has_the_annex_and_says_what_changed(
    made: tuple[Path, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made[0] / "out", folder)
    page = tmp_path / "report.html"

    def rendered() -> str:
        done = CliRunner().invoke(main, ["report", str(folder), "-o", str(page)])
        assert done.exit_code == 0, done.output
        return page.read_text(encoding="utf-8")

    told = json.loads((folder / "audit.json").read_text("utf-8"))
    whole = rendered()
    for text in (told["date"], told["model"]["answers_sha256"], told["limits"][-1]):
        assert text in whole
    assert "has changed since" in whole
    assert f"digest sha256 {hashlib.sha256((folder / 'SHA256SUMS').read_bytes()).hexdigest()}" in (
        whole
    )
    (folder / "audit.json").write_text("no document")
    assert "is not the audit that it was: changed: audit.json." in rendered()
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").symlink_to(folder / "audit.txt")
    assert "It cannot be verified: " in rendered()


def test_the_digest_covers_all_files_and_stays_in_an_equal_run(
    made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = made
    sums = (folder / "out" / "SHA256SUMS").read_bytes()
    assert found.digest == hashlib.sha256(sums).hexdigest()
    lines = [line.split("  ") for line in sums.decode().splitlines()]
    files_ = {path.name: path for path in (folder / "out").iterdir()}
    assert {name for _, name in lines} == files_.keys() - {"SHA256SUMS"}
    assert {"audit.json", "audit.txt", "answers.npy"} < files_.keys()
    for digest, name in lines:
        assert hashlib.sha256(files_[name].read_bytes()).hexdigest() == digest
    date = json.loads(files_["audit.json"].read_text("utf-8"))["date"]
    done = CliRunner().invoke(main, ["verify", str(folder / "out"), "--digest", found.digest])
    assert done.exit_code == 0, done.output
    assert f" has changed since {date}: {len(lines)} files, digest" in done.output

    class Later(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Later:
            return cls(2100, 1, 1, tzinfo=tz)

    monkeypatch.setattr("privbench.api.own_model.document.dt.datetime", Later)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(folder / "store"))
    again = run(folder, forest(MEMBERS), attacks=(), fail_above=GATE)
    assert again.digest == found.digest
    assert run(folder, forest(MEMBERS), attacks=()).digest != found.digest  # it has no gate
    assert "2100-01-01" in files_["audit.json"].read_text("utf-8")
    run(folder, forest(MEMBERS), attacks=(), fail_above=GATE)


def test_the_document_is_no_result(made: tuple[Path, Any]) -> None:
    folder, found = made
    read = privbench.Results.read(folder / "out")
    assert {one.trial for one in read} == {one.trial for one in found}
    board = CliRunner().invoke(main, ["leaderboard", str(folder / "out")])
    assert board.exit_code == 0, board.output


def test_junit_has_a_case_for_each_threshold_and_attack(made: tuple[Path, Any]) -> None:
    folder, _ = made
    text = (folder / "new" / "audit.xml").read_text(encoding="utf-8")
    found = cases(text)
    assert found["gate auc=0.55"] == "failure"
    assert found["gate tpr@1%=0.9999"] == "error"
    assert found["gate balanced_accuracy=0.9"] == "passed"
    assert found["attacks metric-confidence(calibration=none)"] == "passed"
    assert found["attacks lira"] == found["attacks label-lira"] == "skipped"
    assert "auc=0.55 failed. Above it: " in text
    document = Document.model_validate_json((folder / "out" / "audit.json").read_text("utf-8"))
    assert len(found) == 3 + len(document.attacks)


def test_sarif_has_a_result_for_each_threshold_that_did_not_pass(made: tuple[Path, Any]) -> None:
    folder, found = made
    results = sarif_results((folder / "audit.sarif").read_text(encoding="utf-8"))
    assert [(one["ruleId"], one["kind"], one["level"]) for one in results] == [
        ("privbench/auc", "fail", "error"), ("privbench/tpr@1%", "open", "none"),
    ]  # fmt: skip
    assert results[0]["message"]["text"] == found.gate.thresholds[0].words
    (place,) = results[0]["locations"]
    uri = place["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == (folder / "out" / "audit.json").as_uri()


def test_text_of_others_and_missing_verdicts(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Document.model_validate_json((made[0] / "out" / "audit.json").read_text("utf-8"))
    broken = whole.attacks[0].model_copy(
        update={"attack": HOSTILE, "status": "failed", "reason": HOSTILE}
    )
    seeds = [whole.attacks[-1].model_copy(update={"attack": "two", "seed": seed, "status": "ran"})
             for seed in (0, 1)]  # fmt: skip
    bad = whole.model_copy(
        update={"gate": None, "no_verdict": HOSTILE, "attacks": [broken, *seeds]}
    )
    text = formats.junit(bad)
    assert text.isprintable() or set(text) - set("\n") == {c for c in text if c.isprintable()}
    found = cases(text)
    assert found.pop("gate verdict") == "error"
    assert found.pop("attacks two, seed 1") == found.pop("attacks two, seed 0") == "passed"
    ((name, ended),) = found.items()
    assert ended == "error"
    assert "]]> <failure> &" in name
    assert sarif_results(formats.sarif(bad, Path("audit.json"))) == []
    monkeypatch.chdir(tmp_path)
    (one, *_) = sarif_results(formats.sarif(whole, Path("my audit") / "audit.json"))
    uri = one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "my%20audit/audit.json"


def test_the_committed_schema_of_the_document_is_that_of_the_code() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == dumped(), (
        "run: uv run python -m privbench.api.own_model.document > docs/audit.schema.json"
    )
    found = json.loads(dumped())
    for part in (found, *found["$defs"].values()):
        assert part["description"]
        assert all(len(one["description"]) > 5 for one in part["properties"].values())


def test_a_wrong_name_of_a_document_is_refused_before_anything_runs(tmp_path: Path) -> None:
    given = ["audit", "--model", "a:b", *files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)]
    wrong = {
        ("--junit", str(tmp_path)): "is a folder: name a file in it",
        ("--junit", "a.json"): "the name of this file ends in .xml",
        ("--sarif", "audit/a.json"): "the name of this file ends in .sarif",
    }
    for option, sentence in wrong.items():
        done = CliRunner().invoke(main, [*given, *option])
        assert done.exit_code == 2
        assert done.output.startswith(f"privbench: {option[0]} {option[1]}")
        assert sentence in done.output
    with pytest.raises(BadInputError, match=r"^sarif a\.json: the name"):
        run(tmp_path, len, sarif="a.json")


def test_a_column_of_every_figure_is_one_of_the_boards() -> None:
    """A gate names nothing that a board does not show, but the epsilon of the ROC."""
    from privbench.measure.games.membership import MembershipGame
    from privbench.results.intervals import FIGURES

    board: Board = MembershipGame.board
    names = {column.name for column in board.columns}
    renamed = {"tpr@1%": "tpr_at_fpr_0.01", "tpr@0.1%": "tpr_at_fpr_0.001"}
    assert {renamed.get(one, one) for one in FIGURES} - names == {"epsilon"}
