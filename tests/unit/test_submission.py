"""Submissions: every metric is recomputed, each difference is named, hostile files are refused."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest
from tests.unit.test_samples import ALL, done, run  # noqa: F401 - a fixture

from privbench.ground.store.canonical import checksum
from privbench.results.samples import checksum as sum_of
from privbench.results.samples import pack, unpack
from privbench.results.schema import schema

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path("all.jsonl")
#: The lines of a submission; the first test that wants them runs its trials.
LINES: list[str] = []


@pytest.fixture
def sent(run: Any) -> list[dict[str, Any]]:  # noqa: F811
    """A submission of three games and two seeds, and the values of its lines."""
    if not LINES:
        done(run(*ALL))
        done(run("merge", "results", "--scores", "--out", FILE))
        LINES.extend(FILE.read_text(encoding="utf-8").splitlines(keepends=True))
    FILE.write_text("".join(LINES), encoding="utf-8")
    return [json.loads(line) for line in LINES]


def write(lines: list[dict[str, Any]]) -> None:
    """Write the lines under checksums that fit."""
    texts = []
    for given in lines:
        values = {name: value for name, value in given.items() if name != "checksum"}
        scores = values.get("samples", {}).get("base64")
        plain = {**values}
        if scores is not None:
            plain["samples"] = {k: v for k, v in values["samples"].items() if k != "base64"}
        signed = {**values, "checksum": checksum(plain)}
        texts.append(json.dumps(signed, sort_keys=True, separators=(",", ":")) + "\n")
    FILE.write_text("".join(texts), encoding="utf-8")


def membership(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return next(line for line in lines if line["cell"]["game"] == "membership")


def with_columns(line: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the columns of a line, and name the new file."""
    columns = unpack(b64decode(line["samples"]["base64"]))
    change(columns)
    line["samples"] = named(pack(columns))


def named(content: bytes) -> dict[str, Any]:
    return {
        "base64": b64encode(content).decode(), "bytes": len(content), "blake2b": sum_of(content),
    }  # fmt: skip


# ---- what is as it should be ---------------------------------------------------------------------


def test_an_honest_submission_passes(run: Any, sent: Any) -> None:  # noqa: F811
    write(sent)  # the checksums of the test are those of the program
    said = done(run("check-submission", FILE)).stdout
    assert said.splitlines()[-1] == "6 results, all metrics as their scores say"
    assert "blind auc" in said
    assert all(len(line["samples"]["base64"]) > 100 for line in sent)
    for line in sent:
        jsonschema.validate(line, schema())


@pytest.mark.slow
def test_a_submission_is_read_as_any_results(run: Any) -> None:  # noqa: F811
    done(run(*ALL))
    done(run("merge", "results", "--scores", "--out", FILE))
    assert done(run("score", FILE)).stdout == done(run("score", "results")).stdout
    assert done(run("leaderboard", FILE)).stdout == done(run("leaderboard", "results")).stdout
    done(run("merge", FILE, "--out", "plain.jsonl"))
    assert "base64" not in Path("plain.jsonl").read_text(encoding="utf-8")
    done(run("merge", FILE, "--out", "folder"))
    for path in Path("results").glob("*.safetensors"):
        assert Path("folder", path.name).read_bytes() == path.read_bytes()
    done(run("merge", "plain.jsonl", FILE, "--scores", "--out", "again.jsonl"))
    assert Path("again.jsonl").read_bytes() == FILE.read_bytes()


def test_methods_of_others_are_never_looked_up(run: Any, sent: Any) -> None:  # noqa: F811
    for line in sent:
        line["cell"]["attack"] |= {"name": "os.system", "label": "__import__('os')\x1b[31m"}
    write(sent)
    assert done(run("check-submission", FILE)).stdout.count("\x1b") == 0


def test_scores_that_are_lost_are_said(run: Any) -> None:  # noqa: F811
    done(run(*ALL))
    next(Path("results").glob("*.safetensors")).unlink()
    said = done(run("merge", "results", "--scores", "--out", FILE)).stdout
    assert "1 of them without per-sample scores" in said
    assert "it has no per-sample scores" in done(run("check-submission", FILE), 1).stdout
    assert "--scores is for" in done(run("merge", "results", "--scores", "--out", "x"), 2).stderr


# ---- what differs --------------------------------------------------------------------------------


def metric(name: str, **number: Any) -> Any:
    return lambda line: line["metrics"].update({name: number})


def flip(column: str) -> Any:
    def change(columns: dict[str, Any]) -> None:
        columns[column] = -columns[column]

    return lambda line: with_columns(line, change)


def lied(columns: dict[str, Any]) -> None:
    columns["truth.member"] = ~columns["truth.member"]


def cut(columns: dict[str, Any]) -> None:
    columns |= {name: column[5:] for name, column in columns.items()}


def without_null(columns: dict[str, Any]) -> None:
    for name in [name for name in columns if name.startswith("null.")]:
        del columns[name]


def without(name: str) -> Any:
    return lambda line: with_columns(line, lambda columns: columns.pop(name, None))


DIFFERENT = {
    "metric": (metric("auc", value=0.99, low=0.9, high=1.0), "auc is 0.99 [0.9, 1], and 0."),
    "interval": (
        lambda line: line["metrics"]["auc"].update(low=line["metrics"]["auc"]["value"]),
        "auc is 0.",
    ),
    "refused": (metric("auc", refused="no"), "auc is refused, and 0."),
    "unrefused": (
        metric("tpr_at_fpr_0.001", value=1.0, low=1.0, high=1.0),
        "tpr_at_fpr_0.001 is 1, and refused from its scores",
    ),
    "missing": (lambda line: line["metrics"].pop("auc"), "auc is missing, and 0."),
    "null": (
        lambda line: line["controls"]["null"].update(auc={"value": 0.5, "low": 0.4, "high": 0.6}),
        "null auc is 0.5 [0.4, 0.6], and",
    ),
    "null refused": (
        lambda line: line["controls"]["null"].update(auc={"refused": "no"}), "null auc is refused",
    ),
    "no null": (lambda line: line.pop("controls"), "the control null or its scores are missing"),
    "no scores of null": (
        lambda line: with_columns(line, without_null), "the control null or its scores are missing",
    ),
    "no scores": (lambda line: line.pop("samples"), "it has no per-sample scores"),
    "scores": (flip("victim.scores"), "auc is 0."),
    "scores of null": (flip("null.scores"), "null auc is 0."),
    "truth": (lambda line: with_columns(line, lied), "auc is 0."),
    "rows": (
        lambda line: with_columns(line, cut), "rows were asked about, and has scores of",
    ),
    "members": (
        lambda line: line["sizes"].update(members=line["sizes"]["members"] - 1,
                                          nonmembers=line["sizes"]["nonmembers"] + 1),
        "rows were members, and its truth has",
    ),
    "board": (
        lambda line: line["board"]["columns"][0].update(heading="AUC of another"),
        "it says otherwise than its game how boards show it",
    ),
    "decisions that are lost": (
        lambda line: (without("victim.decisions")(line), line["metrics"].update(
            balanced_accuracy={"value": 0.99, "low": 0.9, "high": 1.0})),
        "balanced_accuracy is 0.99 [0.9, 1], and its scores do not tell it",
    ),
    "decisions of null that are lost": (
        lambda line: (without("null.decisions")(line), line["controls"]["null"].update(
            recall={"value": 0.5, "low": 0.4, "high": 0.6})),
        "null recall is 0.5 [0.4, 0.6], and its scores do not tell it",
    ),
    "curve": (
        lambda line: line.update(roc=[[0.01, 1.0], [0.1, 1.0]]), "its ROC curve is not that of",
    ),
    "status": (lambda line: line.update(status="skipped"), "it skipped, and has numbers"),
    "game": (lambda line: line["cell"].update(game="own\x1b"), "plays 'own\\x1b', which no plugin"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_difference_is_named(name: str, run: Any, sent: Any) -> None:  # noqa: F811
    change, told = DIFFERENT[name]
    line = membership(sent)
    change(line)
    write(sent)
    said = done(run("check-submission", FILE), 1).stdout
    where = f"line {sent.index(line) + 1} ("
    named_lines = [text for text in said.splitlines() if told in text]
    assert named_lines, said
    assert all(text.startswith(where) for text in named_lines)
    assert "6 results, " in said.splitlines()[-1]


def test_truth_that_is_lost_is_a_difference(run: Any, sent: Any) -> None:  # noqa: F811
    line = next(line for line in sent if line["cell"]["game"] == "attributes")
    (truth,) = (name for name in unpack(b64decode(line["samples"]["base64"]))
                if name.startswith("truth."))  # fmt: skip
    without(truth)(line)
    line["metrics"]["accuracy"] = {"value": 0.99, "low": 0.98, "high": 1.0}
    write(sent)
    said = done(run("check-submission", FILE), 1).stdout
    assert "accuracy is 0.99 [0.98, 1], and its scores do not tell it" in said
    assert "its scores tell no metric" in said


def test_a_null_victim_may_refuse_decisions(run: Any, sent: Any) -> None:  # noqa: F811
    line = membership(sent)
    line["controls"]["null"]["precision"] = {"refused": "its members are in the pool"}
    write(sent)
    done(run("check-submission", FILE))
    line["metrics"]["precision"] = {"refused": "its members are in the pool"}
    write(sent)
    assert "precision is refused" in done(run("check-submission", FILE), 1).stdout


# ---- what is damaged -----------------------------------------------------------------------------


def content(given: bytes) -> Any:
    return lambda lines: membership(lines).update(samples=named(given))


def column(name: str, values: Any) -> Any:
    def change(columns: dict[str, Any]) -> None:
        columns[name] = values(columns[name])

    return lambda lines: with_columns(membership(lines), change)


DAMAGED = {
    "changed": (
        lambda lines: membership(lines)["samples"].update(base64="QUJD"),
        "its per-sample scores have changed",
    ),
    "half a byte": (
        lambda lines: membership(lines)["samples"].update(base64="A"), "its scores are no base64",
    ),
    "pickle": (content(pickle.dumps(print)), "it is not safetensors"),
    "no columns": (content(pack({"x": np.zeros(3)})), "it has no column `row`"),
    "objects": (content(pack({"row": np.zeros(3, np.float16)})), "it holds types other than"),
    "lengths": (
        column("victim.scores", lambda old: old[1:]), "its columns have unequal lengths",
    ),
    "nan": (column("victim.scores", lambda old: old * np.nan), "its columns do not fit the game"),
    "two dimensions": (
        column("victim.scores", lambda old: np.stack([old, old], 1)), "do not fit the game",
    ),
    "too large": (
        content(pack({"row": np.zeros(2**21 + 100, np.int64)})),
        "it has more than 16,777,216 bytes of per-sample scores",
    ),
    "much too large": (content(bytes(2**25)), "it has more than 4,194,304 bytes"),
    "no base64": (
        lambda lines: membership(lines)["samples"].update(base64="*"), "samples.base64: extra",
    ),
    "twice": (lambda lines: lines.append(lines[0]), "line 7: line 1 is of the same trial"),
    "twin": (lambda lines: lines.append({**lines[0], "trial": "x"}), "line 7: line 1 is of"),
    "path": (lambda lines: lines[0].update(trial="../x"), "trial ../x is no name of a file"),
    "empty": (lambda lines: lines.clear(), "it is empty"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_submission_is_refused(name: str, run: Any, sent: Any) -> None:  # noqa: F811
    change, told = DAMAGED[name]
    change(sent)
    write(sent)
    refused = done(run("check-submission", FILE), 2)
    assert told in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert len(refused.stderr) < 400


def test_a_seed_that_is_there_twice_is_scored_in_no_mean(run: Any, sent: Any) -> None:  # noqa: F811
    write([*sent, {**sent[0], "trial": "other"}])
    assert "has two results" in done(run("score", FILE), 2).stderr


def test_other_files_are_refused(run: Any) -> None:  # noqa: F811
    Path("own.json").write_text("{}", encoding="utf-8")
    with Path("huge.jsonl").open("wb") as file:
        file.truncate(2**31 + 1)
    for name, told in (
        ("own.json", "give a .jsonl file"), ("none.jsonl", "no submission at none.jsonl"),
        ("huge.jsonl", "it has more than 2,147,483,648 bytes"),
    ):  # fmt: skip
        assert told in done(run("check-submission", name), 2).stderr
