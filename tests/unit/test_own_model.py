"""The audit of a user's own model: what leaks is found, no code runs, no row is asked twice."""

from __future__ import annotations

import contextlib
import html
import json
import os
import pickle
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import privbench
from privbench import BadInputError
from privbench.api.own_model import identity, words
from privbench.api.own_model.choice import attacks_for, kind_of
from privbench.api.own_model.misfit import misfit, strange
from privbench.api.own_model.rows import read_rows
from privbench.api.own_model.shift import Shift, separating, shift, shift_of_y
from privbench.api.own_model.words import outstanding
from privbench.boards import verdicts
from privbench.cli.main import main
from privbench.measure.games.metrics import Estimate, tpr_at_fpr
from privbench.results.record import Number
from privbench.toolbox.asked_model import Form
from privbench.toolbox.endpoint import Endpoint
from privbench.toolbox.messages import plain
from privbench.toolbox.opened_model import given, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench.plugins.registry import Registry

Arrays = dict[str, Any]
QUICK = ["metric-confidence", "metric-correctness"]


def rows(n: int, seed: int, *, shifted: float = 0.0) -> Arrays:
    """Noisy labels on columns of different units."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 6)) + shifted
    y = (x[:, 0] + 1.5 * draw.normal(size=n) > shifted).astype(np.int64)
    return {"x": (x * [1, 10, 100, 1, 1, 1]).astype(np.float32), "y": y}


MEMBERS, NONMEMBERS, SHADOW = rows(100, 0), rows(100, 1), rows(100, 2)


def forest(data: Arrays) -> RandomForestClassifier:
    return RandomForestClassifier(20, random_state=0).fit(data["x"], data["y"])


def overfit() -> RandomForestClassifier:
    """A model of the command line: right about all members."""
    return RandomForestClassifier(20, bootstrap=False, random_state=0).fit(*MEMBERS.values())


def run(tmp_path: Path, model: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"members": MEMBERS, "nonmembers": NONMEMBERS, "attacks": QUICK}
    given |= options
    return privbench.audit(model, out=tmp_path / "out", **given)


def auc(results: Any, attack: str = "metric-confidence") -> float:
    record = next(one for one in results if one.cell.attack.name == attack)
    assert record.status == "ok", record.reason
    value: float = record.metrics["auc"].value
    return value


# ---- what leaks is found, and nothing else ------------------------------------------------------


def test_an_overfit_forest_is_found(tmp_path: Path) -> None:
    results = run(tmp_path, forest(MEMBERS))
    assert auc(results) > 0.85
    assert "leaks who its members are" in results.summary
    assert (tmp_path / "out" / "audit.txt").read_text().strip() == results.summary
    assert abs(results[0].controls["null"]["auc"].value - 0.5) < 0.15


def test_swapped_files_and_wrong_classes_get_no_verdict(tmp_path: Path) -> None:
    def ended(model: str, members: Arrays, nonmembers: Arrays, out: str) -> str:
        given = files(tmp_path, members=members, nonmembers=nonmembers)
        attack = ("--attack", "metric-confidence", "--out", str(tmp_path / out))
        done = CliRunner().invoke(main, ["audit", "--model", model, *given, *attack])
        assert done.exit_code == (4 if "No verdict: " in done.output else 0), done.output
        return (tmp_path / out / "audit.txt").read_text()

    def upside_down(data: Arrays) -> Arrays:
        return {**data, "y": 1 - data["y"]}

    model = "tests.unit.test_own_model:overfit"
    swapped = ended(model, NONMEMBERS, MEMBERS, "swapped")
    assert re.match(r"No verdict: the model is right about \d+\.\d% of the members and 100.0% of "
                    "the nonmembers: check that the files of members and nonmembers are not",
                    swapped)  # fmt: skip
    wrong = ended(model, upside_down(MEMBERS), upside_down(NONMEMBERS), "wrong")
    assert wrong.startswith(
        "No verdict: the model is right about 0.0% of the members, and about 100.0% if their "
        "classes are numbered in another way (its class 1 is 0 in y, its class 0 is 1 in y): "
        "number y as the model does."
    )
    assert ended(model, MEMBERS, NONMEMBERS, "right").startswith("The model leaks")


def test_attacks_that_take_nonmembers_for_members_get_no_verdict(tmp_path: Path) -> None:
    """The model is as often right about both sets, but surer about nonmembers."""

    def ask(x: np.ndarray) -> np.ndarray:
        inside = np.isclose(x[:, None], MEMBERS["x"], rtol=1e-3, atol=1e-3).all(2).any(1)
        p = np.where(inside, 0.6, 0.9) + 0.05 * np.tanh(x[:, 2] / 100)
        p = np.where(x[:, 0] > 0, p, 1 - p)
        return np.stack([1 - p, p], 1)

    found = run(tmp_path, ask, attacks="metric-entropy")
    assert "takes nonmembers for members (AUC 0.000" in found.no_verdict
    assert found.no_verdict.endswith(": check that the files of members and nonmembers are not "
                                     "swapped")  # fmt: skip
    assert found.summary.startswith(f"No verdict: {found.no_verdict}. The only attack")


def test_a_function_of_c_whose_arguments_nobody_knows_is_asked() -> None:
    assert opened(given(max), "").ask(torch.tensor([0.0, 2.0, 1.0])) == 2


def test_right_rows_of_odd_models_fit() -> None:
    """One that prefers a rare class, one that knows nothing, one that always says the same."""
    draw = np.random.default_rng(0)
    y = (draw.random(400) < 0.05).astype(int)
    eager = np.where(y == 1, 1, draw.random(400) < 0.8).astype(int)  # right about a quarter
    y10 = draw.integers(0, 10, 400)
    odd = ((y, eager), (y10, draw.integers(0, 10, 400)), (y10, np.zeros(400, int)))
    for truth, said in odd:
        both = {"members": said[:200], "nonmembers": said[200:]}
        assert not misfit(both, {"members": truth[:200], "nonmembers": truth[200:]})


def test_classes_in_another_order_do_not_fit() -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 10, 200)
    said = np.where(draw.random(200) < 0.6, (y + 3) % 10, draw.integers(0, 10, 200))
    told = misfit({"members": said, "nonmembers": said}, {"members": y, "nonmembers": y})
    assert "its class 3 is 0 in y, its class 4 is 1 in y, its class 5 is 2 in y, …" in told
    right = (y + 3) % 10  # only of the nonmembers are they wrong, which would be a very large leak
    told = misfit({"members": said, "nonmembers": said}, {"members": right, "nonmembers": y})
    assert re.search(r"right about \d+\.\d% of the nonmembers, and about \d+\.\d% if", told)


def test_classes_that_the_model_does_not_know_are_warned_of(tmp_path: Path) -> None:
    mixed = {**MEMBERS, "y": np.random.default_rng(0).permutation(MEMBERS["y"])}
    told = run(tmp_path, forest(MEMBERS), members=mixed).summary
    assert re.search(r"WARNING: the model is right about \d+\.\d% of its own members, and by "
                     r"chance about [45]\d\.\d% \(p = 0\.\d+\)", told)  # fmt: skip
    assert "by chance" not in run(tmp_path / "right", forest(MEMBERS)).summary
    y = np.arange(1000) % 100
    weak = np.where(np.arange(1000) < 300, y, 0)  # wrong about most, but far above chance
    assert not strange(weak, y)
    assert strange(y, 0 * y).startswith("WARNING: all members have one class, so no row can tell")
    assert strange(0 * y + 3, y).startswith(
        "WARNING: the model answers class 3, counted from 0, to"
    )


def test_right_rows_get_no_verdict_rarely() -> None:
    """Of 2,000 audits of a model that knows nothing, at most 3: more, once in 17,000 tests."""
    draw = np.random.default_rng(1)
    told = 0
    for k in (2, 3):
        for _ in range(1000):
            y, said = (
                {source: draw.integers(0, k, 60) for source in ("members", "nonmembers")}
                for _ in range(2)
            )
            told += bool(misfit(said, y))
    assert told <= 3


def test_sets_that_differ_get_no_verdict(tmp_path: Path) -> None:
    told = run(tmp_path, forest(MEMBERS), nonmembers=rows(100, 1, shifted=3.0)).summary
    assert "differ in more than membership" in told
    assert told.startswith("No verdict: attacks tell the two sets apart, and the sets differ: use")
    assert "leaks who" not in told


def test_of_tied_scores_the_first_point_of_the_curve_is_told(tmp_path: Path) -> None:
    """30 of 100 members and 12 of 100 nonmembers get a confidence of 1: no threshold is at 1 %."""
    certain = np.concatenate([MEMBERS["x"][:30], NONMEMBERS["x"][:12]])
    right = np.concatenate([MEMBERS["y"][:30], NONMEMBERS["y"][:12]])

    def ask(x: np.ndarray) -> np.ndarray:
        near = np.isclose(x[:, None], certain, rtol=1e-3, atol=1e-3).all(2)
        p = np.where(near.any(1), right[near.argmax(1)], 0.3 + 0.4 * (x[:, 0] > 0))
        return np.stack([1 - p, p], 1)

    told = run(tmp_path, ask, attacks="metric-confidence").summary
    told = " ".join(told.split())
    assert re.search(r"finds 30\.0% \(95 % interval 21\.\d% to 40\.0%\) of the members at 12", told)
    assert re.search(r"\(95 % interval 6\.4% to 20\.0%\) of false alarms \(chance: 12\.0%;", told)
    assert "finds 0.0%" not in told
    alone = run(tmp_path / "labels", forest(MEMBERS), attacks="metric-correctness").summary
    assert "finds 100.0% (95 % interval" in alone
    same = run(tmp_path / "same", lambda x: np.full((len(x), 2), 0.5)).summary
    assert "cannot be set to take 1 % of the nonmembers for members" in same


def test_ties_are_told_only_where_they_hide_members() -> None:
    member = np.repeat([True, False], [10, 200])

    def of(inside: list[float], outside: list[float]) -> Any:
        columns = {"truth.member": member, "victim.scores": np.array([*inside, *outside])}
        return words.reached(columns)

    rest = list(np.linspace(0, 0.5, 150))
    tied = of([1.0] * 4 + [0.1] * 6, [2.0, *[1.0] * 49, *rest])
    assert tied is not None
    assert (tied.tpr.value, tied.fpr.value) == (0.4, 0.25)  # 50 of 200 reach the threshold
    assert of([3.0] + [0.1] * 9, [2.0, *[1.0] * 49, *rest]) is None  # one is found before
    assert of([0.1] * 10, [2.0, *np.linspace(0.6, 1, 49), *rest]) is None  # no ties: none is found
    assert of([0.1] * 10, [2.0, *[1.0] * 49, *rest]) is None  # no member there


def test_attacks_that_do_not_count_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = run(tmp_path, forest(MEMBERS))
    best = words.strongest(made)
    assert best is not None
    assert not best.doubtful
    why = {best.record.cell.model_dump_json(): "its null excludes 0.5"}
    monkeypatch.setattr(verdicts, "doubtful", lambda _: why)
    other = words.strongest(made)
    assert other is not None
    assert other.record.trial != best.record.trial
    assert other.doubtful == {best.record.cell.attack.label: "its null excludes 0.5"}
    told = words.summary(made, made.shift, [], {})
    assert f"Not counted: {best.record.cell.attack.label}: its null excludes 0.5." in told


def test_a_forest_that_never_saw_the_members_is_not(tmp_path: Path) -> None:
    results = run(tmp_path, forest(SHADOW))
    assert abs(auc(results) - 0.5) < 0.1
    assert "No leak was found" in results.summary
    assert "exposed" not in results.summary


def test_the_nearest_neighbour_needs_only_labels(tmp_path: Path) -> None:
    near = KNeighborsClassifier(1).fit(MEMBERS["x"], MEMBERS["y"])

    def labels(x: np.ndarray) -> np.ndarray:
        return np.asarray(near.predict(x))

    results = run(tmp_path, labels, attacks=())
    assert [one.cell.attack.name for one in results if one.status == "ok"] == ["metric-correctness"]
    balanced = next(o for o in results if o.status == "ok").metrics["balanced_accuracy"].value
    right = (near.predict(NONMEMBERS["x"]) == NONMEMBERS["y"]).mean()
    assert balanced == pytest.approx((1 + 1 - right) / 2)
    assert "POSTERIORS" in results.left_out["metric-entropy"]


def test_the_model_gets_the_rows_in_their_own_units(tmp_path: Path) -> None:
    seen: list[np.ndarray] = []

    def ask(x: np.ndarray) -> np.ndarray:
        seen.append(x)
        p = np.where(x[:, 0] > 0, 0.75, 0.25)
        return np.stack([1 - p, p], 1)

    run(tmp_path, ask)
    asked = np.concatenate(seen)
    wanted = np.concatenate([MEMBERS["x"], NONMEMBERS["x"]])
    np.testing.assert_allclose(asked[: len(wanted)], wanted, rtol=1e-5, atol=1e-4)


def test_rows_stand_out_if_more_do_than_by_chance() -> None:
    """Where members are as nonmembers, rows are named in one of 20 audits at most."""
    draw, named, audits = np.random.default_rng(0), 0, 300
    for _ in range(audits):
        inside, outside = draw.random(400), np.sort(draw.random(100))
        below = np.searchsorted(outside, inside) / 100
        named += bool(outstanding([*enumerate(below.tolist())], 100))
    assert 0 < named <= 25  # 15 are expected; more than 25 once in 200
    rows = [(row, 1.0 if row < 40 else 0.5) for row in range(400)]
    assert outstanding(rows, 1000) == rows[:40]
    assert outstanding(rows[:8] + rows[40:], 100) == outstanding([], 100) == []


def test_a_model_that_answers_differently_each_time_is_told(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    model = forest(MEMBERS)

    def noisy(x: np.ndarray) -> np.ndarray:
        made = model.predict_proba(x) + 0.2 * draw.random((len(x), 2))
        return np.asarray(made / made.sum(1, keepdims=True))

    told = r"WARNING: asked again, the model answered \d\d of 48 rows differently\."
    assert re.search(told, run(tmp_path, noisy).summary)
    with pytest.raises(BadInputError, match="of one that answers differently each time"):
        run(tmp_path, noisy)
    assert "asked again" not in run(tmp_path / "same", model).summary


def test_a_model_that_reads_the_rows_of_a_batch_is_told() -> None:
    """As a network in training mode does; rounding also depends on the batch, and may."""
    x = torch.from_numpy(np.random.default_rng(0).random((200, 6)).astype(np.float32))

    def told(share: float) -> str:
        def raw(of: torch.Tensor) -> np.ndarray:
            p = torch.sigmoid(4 * (of[:, 0] - 0.5 + share * of[:, 1].mean())).double().numpy()
            return np.stack([1 - p, p], 1)

        return identity.unsteady(SimpleNamespace(endpoint=None, raw=raw), x, raw(x))

    assert re.match(
        r"WARNING: asked again beside other rows, the model answered \d+ of 48", told(1)
    )
    assert told(0.01) == told(0) == ""


def test_the_most_exposed_rows_are_places_in_the_members_file(tmp_path: Path) -> None:
    planted = {3, 77, 90}
    marked = {MEMBERS["x"][i].round(3).tobytes() for i in planted}

    def ask(x: np.ndarray) -> np.ndarray:
        sure = [one.round(3).tobytes() in marked for one in x]
        p = np.where(sure, 0.999, 0.6)
        y = MEMBERS["y"][sorted(planted)][0]
        both = [1 - p, p] if y else [p, 1 - p]
        return np.stack(both, 1)

    chosen = [i for i in planted if MEMBERS["y"][i] == MEMBERS["y"][3]]
    results = run(tmp_path, ask)
    first = [row for row, _ in results.exposed[: len(chosen)]]
    assert sorted(first) == sorted(chosen)


def test_a_row_with_copies_is_named_once() -> None:
    """Copies lie anywhere in the files; a table keeps its columns beside the right rows."""
    order = np.random.default_rng(0).permutation(400)
    many = {name: np.repeat(one, 4, 0)[order] for name, one in MEMBERS.items()}
    held = read_rows(many, NONMEMBERS)
    places = held.places("members")
    assert len({*held.fingerprints[:100]}) == 100
    assert held.copies() == 300
    assert held.copied == dict.fromkeys(places, 3)
    assert held.y is not None
    np.testing.assert_array_equal(many["y"][places], held.y[:100])
    assert read_rows(MEMBERS, NONMEMBERS).kept is None
    other = {"x": np.repeat(MEMBERS["x"], 2, 0), "y": np.tile([0, 1], 100)}
    assert read_rows(other, NONMEMBERS).copies() == 0  # another class is another row
    member = np.arange(200) < 100
    columns = {"truth.member": member, "victim.scores": 2.0 * member, "row": np.arange(200),
               "label": np.zeros(200, int)}  # fmt: skip
    named = words.exposed(columns, {(i, 0): place for i, place in enumerate(places)})
    assert words._rows(named, 100, held.copied) == [
        "Most exposed rows of the members' file, counted from 0: "
        + ", ".join(f"{row} (and 3 copies)" for row in places[:10]) + "."
    ]  # fmt: skip


def test_an_audit_is_drawn_and_printed_on_a_screen(tmp_path: Path) -> None:
    found = run(tmp_path, forest(MEMBERS), attacks=())
    figure = found.plot.roc()
    curves = figure.axes[0].get_legend().get_texts()
    assert len(curves) == 6  # and chance
    drawn = found.plot.exposure().axes[0]
    x, y = drawn.lines[1].get_data()
    assert len(x) == len(MEMBERS["y"]) == len(found.exposed)
    assert list(y) == [value for _, value in found.exposed] == sorted(y, reverse=True)
    assert found.subgroups is not None
    names = [one.get_text() for one in found.plot.subgroups().axes[0].get_yticklabels()]
    assert names == [group.name for group in reversed(found.subgroups.tested)]
    assert 0 < len(names) <= 20
    found.exposed, found.subgroups = (), None
    for draw in (found.plot.exposure, found.plot.subgroups):
        with pytest.raises(BadInputError, match="to draw: no"):
            draw()
    record = str(next(one for one in found if one.status == "ok"))
    assert record.startswith("ok: ")
    assert "auc " in record
    assert len(record.splitlines()) < 30
    found.summary += "\nAnd more words that nobody reads." * 60
    lines = str(found).splitlines()
    assert lines[0].startswith("The model leaks")
    assert len(lines) < 30
    assert max(map(len, lines)) <= 100


def _net(seed: int = 0) -> nn.Sequential:
    draw = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    for weights in net[1:].parameters():
        nn.init.normal_(weights, generator=draw)
    net(torch.from_numpy(MEMBERS["x"]))  # the norm learns the units of the columns
    return net.eval()


SORTS: dict[str, Any] = {
    "scripted": torch.jit.script,
    "traced": lambda net: torch.jit.trace(net, torch.zeros(2, 6)),  # type: ignore[no-untyped-call]
    "frozen": lambda net: torch.jit.freeze(torch.jit.script(net)),
    "float16": lambda net: net.half(),
    "bfloat16": lambda net: net.bfloat16(),
    "float64": lambda net: net.double(),
    "scripted float16": lambda net: torch.jit.script(net.half()),
}


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.slow
def test_torchscript_and_other_precisions_answer_like_the_module(tmp_path: Path, sort: str) -> None:
    plain = run(tmp_path / "plain", _net(), attacks="metric-confidence")
    other = run(tmp_path / "other", SORTS[sort](_net()), attacks="metric-confidence")
    assert auc(other) == pytest.approx(auc(plain), abs=0.01)


# ---- access and rows choose the attacks ---------------------------------------------------------


def test_without_shadow_rows_only_attacks_that_need_none_run(tmp_path: Path) -> None:
    results = run(tmp_path, forest(MEMBERS), attacks=())
    ran = {one.cell.attack.name for one in results if one.status == "ok"}
    assert ran == {
        "metric-confidence", "metric-correctness", "metric-entropy", "metric-loss",
        "metric-modified-entropy",
    }  # fmt: skip
    assert not [one for one in results if one.status == "failed"]
    assert "rows of the adversary's own" in results.left_out["shokri"]
    assert "many queries" in results.left_out["label-only-boundary"]
    assert "rows of the adversary's own are needed (shadow rows)" in results.summary


def test_shadow_rows_let_attacks_train_shadows(tmp_path: Path) -> None:
    settings = {
        "supervised": {"epochs": 2, "updates": 0}, "lira": {"k": 2},
        "quantile": {"epochs": 1, "hidden": 16},
    }  # fmt: skip
    results = run(
        tmp_path, forest(MEMBERS), shadow=SHADOW, settings=settings,
        attacks=["metric-confidence", "quantile", "label-only-transfer", "lira"],
    )  # fmt: skip
    assert {one.status for one in results} == {"ok"}, [one.reason for one in results]
    assert auc(results) > 0.85
    calibrated = next(one for one in results if one.cell.attack.name == "metric-confidence")
    assert "balanced_accuracy" in calibrated.metrics
    knows = {one.cell.attack.name: one.cell.knows.target for one in results}
    assert knows["quantile"] is None
    assert knows["label-only-transfer"].name == knows["lira"].name == "supervised"


def test_candidates_alone_allow_online_shadows(tmp_path: Path) -> None:
    results = run(
        tmp_path, forest(MEMBERS), shadow_recipe="supervised",
        attacks=["lira", "shokri", "metric-loss"],
        settings={"supervised": {"epochs": 1, "updates": 0}, "lira": {"k": 2}},
    )  # fmt: skip
    assert {one.cell.attack.name: one.status for one in results} == {
        "lira": "ok", "shokri": "skipped", "metric-loss": "ok",
    }  # fmt: skip


def test_no_attack_trains_the_model_itself(registry: Registry) -> None:
    """The victim would stand for a shadow of the adversary."""
    target = registry.get("target", "own-model")
    world = type("World", (), {"origin": "offline"})()
    with pytest.raises(BadInputError, match="cannot be trained"):
        target.phases(None, world, None)


def test_embeddings_and_attributes(tmp_path: Path) -> None:
    net = nn.Linear(6, 4)
    with torch.no_grad():
        net.weight.copy_(torch.eye(6)[2:])
    every = np.concatenate([MEMBERS["x"], NONMEMBERS["x"], SHADOW["x"]])
    sex = (every[:, 3] > 0).astype(int)
    results = run(
        tmp_path, net, shadow=SHADOW, attributes={"sex": sex}, output="embeddings",
        attacks=["attribute-inference"],
        settings={
            "attribute-inference": {"updates": [20], "neighbours": [5], "penalties": [1.0]},
        },
    )  # fmt: skip
    (record,) = results
    assert record.status == "ok", record.reason
    assert record.metrics["accuracy"].value > 0.6
    assert "infers sex of" in results.summary


def test_an_encoder_of_a_table_is_not_told_of_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attack on it has a use for one."""
    monkeypatch.setattr(verdicts, "doubtful", lambda _: {})
    settings = {"encoder-feature": {"epochs": 1, "steps": 5}, "supervised": {"hidden": [3]}}
    given: dict[str, Any] = {"shadow": SHADOW, "attacks": ["encoder-feature"]}
    results = run(tmp_path, lambda x: x[:, :3] * 7, settings=settings, **given)
    assert words.BOUND in results.summary.replace("\n", " ")
    assert "shadow recipe" not in results.summary


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (np.array([[0.2, 0.8], [1, 0]]), "posteriors"),
        (np.array([[-2.0, 0.8], [1, 0]]), "logits"),
        (np.array([[0.2, 0.9, 3], [1, 0, 2]]), "embeddings"),
        (np.array([0.0, 1.0]), "labels"),
    ],
)
def test_the_kind_of_answers(answers: np.ndarray, kind: str) -> None:
    assert kind_of(answers, 2) == kind


def test_rounding_below_zero_is_no_logit() -> None:
    p = np.array([[0.25, 0.75 + 1e-9, -1e-9], [0.5, 0.25, 0.25]])
    assert kind_of(p, 3) == kind_of(p, 3, "posteriors") == "posteriors"
    assert kind_of(p - [0, 0, 1e-3], 3) == "logits"
    assert kind_of(np.array([[-1e-7, 5.0, 2.0]]), 3) == "logits"


def test_calibration_is_dropped_only_without_shadows(registry: Registry) -> None:
    bare, _ = attacks_for(registry, ["metric-loss"], attributes=False, shadow=False)
    full, _ = attacks_for(registry, ["metric-loss"], attributes=False, shadow=True)
    assert bare == [{"metric-loss": {"calibration": "none"}}]
    assert full == ["metric-loss"]


# ---- shift ---------------------------------------------------------------------------------------


def test_shift_warns_of_shifted_sets_only(tmp_path: Path) -> None:
    results = run(tmp_path, forest(MEMBERS), nonmembers=rows(100, 1, shifted=1.0))
    assert results.shift.found
    assert "WARNING: members and nonmembers differ" in results.summary
    assert "may be this difference and not a leak, and it can hide a leak: use" in results.summary
    assert not run(tmp_path / "plain", forest(MEMBERS)).shift.found


def test_the_column_that_tells_the_sets_apart_is_named(tmp_path: Path) -> None:
    numbered = [{**one, "x": np.c_[one["x"], np.arange(100) + 100 * i].astype(np.float32)}
                for i, one in enumerate((MEMBERS, NONMEMBERS))]  # fmt: skip
    given = {"members": numbered[0], "nonmembers": numbered[1]}
    told = "What tells members from nonmembers by itself: column 6 (AUC 1.000). Leave out"
    assert told in run(tmp_path, lambda x: forest(MEMBERS).predict_proba(x[:, :6]), **given).summary
    table = {name: one["x"] for name, one in (("a", MEMBERS), ("b", NONMEMBERS))}
    columns = {f"n{i}": np.concatenate([table["a"], table["b"]])[:, [i]] for i in range(6)}
    assert separating(columns, slice(100), slice(100, 200)) == ""
    assert separating({}, slice(100), slice(100, 200)) == ""


def test_few_forests_find_the_columns_that_tell_the_sets_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw, asked = np.random.default_rng(0), []

    def counted(*sides: Any) -> Any:
        asked.append(sides)
        return shift(*sides)

    x = draw.normal(size=(200, 64)).astype(np.float32)
    x[:100, 40] += 4
    x[:100, 60] *= 9  # another width, the same middle
    monkeypatch.setattr("privbench.api.own_model.shift.shift", counted)
    told = separating({f"n{i}": x[:, [i]] for i in range(64)}, slice(100), slice(100, 200))
    assert re.match(r"What tells .* by itself: n40 \(AUC 0\.9\d+\), n60 \(AUC 0\.\d+\)\.", told)
    assert len(asked) == 5


@pytest.mark.slow
def test_shift_has_its_level() -> None:
    """Of 8 pairs of equal sets, at most one is said to differ (expected: at most .08 of them)."""
    draw = np.random.default_rng(5)
    found = [shift(draw.normal(size=(60, 3)), draw.normal(size=(60, 3)), seed=i).found
             for i in range(8)]  # fmt: skip
    assert sum(found) <= 1


def test_shift_sees_no_rounding() -> None:
    """Columns of few words have few directions; the rest of 64 components tells a row's place."""
    draw = np.random.default_rng(3)
    for seed in range(4):
        words = draw.random((12, 256)) < 0.05
        x = words[draw.integers(0, 12, 400)].astype(np.float32)
        assert shift(x[:200], x[200:], seed=seed).p_value > 0.01


def test_shift_asks_copies_once(tmp_path: Path) -> None:
    """Half of the members are copies: a forest would know them again in the other half."""
    twice = {name: np.concatenate([one, one[:50]]) for name, one in MEMBERS.items()}
    found = run(tmp_path, forest(MEMBERS), members=twice).shift
    assert found == run(tmp_path / "plain", forest(MEMBERS)).shift
    one = np.zeros((1, 3), np.float32)
    assert not shift(one, one + 1).found


def of_other_shares() -> dict[str, Arrays]:
    """Sets of equal x whose classes have other shares."""
    x = np.random.default_rng(0).random((600, 6)).astype(np.float32)
    return {
        "members": {"x": x[:300], "y": np.repeat([0, 1], [50, 250])},
        "nonmembers": {"x": x[300:], "y": np.repeat([0, 1], [160, 140])},
    }


def test_a_model_that_knows_no_row_is_no_leak_where_classes_are_shared_otherwise(
    tmp_path: Path,
) -> None:
    """It always answers the class that is common among the members."""
    found = run(tmp_path, lambda x: np.tile([[0.15, 0.85]], (len(x), 1)), **of_other_shares())
    assert found.no_verdict
    assert "leaks who" not in found.summary
    assert (found.shift.found_in_x, found.shift.p_value_of_y) == (False, 0.0001)
    assert "(in y, p = 0.0001)." in found.summary
    assert "Class 0 is 16.7% of the members and 53.3% of the nonmembers: draw" in found.summary


def test_a_difference_of_the_sets_can_hide_a_leak_from_a_gate(tmp_path: Path) -> None:
    found = run(tmp_path, lambda x: np.tile([[0.49, 0.51]], (len(x), 1)), attacks="metric-entropy",
                fail_above={"auc": 0.95}, **of_other_shares())  # fmt: skip
    assert not found.no_verdict
    assert found.gate is not None
    assert found.gate.outcome == "undecided"
    assert "No verdict: the two sets differ in more than membership, which can feign" in (
        found.gate.words
    )


def test_shares_of_classes_differ_rarely_by_chance() -> None:
    """At a level of .05, in 5 % of 200 pairs of sets; more than 24 of them once in 10,000."""
    draw = np.random.default_rng(0)
    for k in (2, 10):
        pairs = (draw.integers(0, k, (2, 60)) for _ in range(200))
        assert sum(shift_of_y(*pair) < 0.05 for pair in pairs) <= 24
    assert shift_of_y(draw.normal(size=90), draw.normal(1, 1, 90)) < 0.01
    assert Shift(0.5, 0.006, 0.5).found is Shift(None, 1.0, 0.02).found is False
    assert Shift(0.5, 0.006).found
    assert Shift(None, 1.0, 0.006).found


def test_no_verdict_if_no_attack_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = run(tmp_path, forest(MEMBERS))
    flag = ("its AUC is 0.659 on a victim that saw none of these samples, and chance reaches 0.5 ± "
            "0.092: the truth reaches the attack, or the samples differ")  # fmt: skip
    cells = {one.cell.model_dump_json(): flag for one in made}
    monkeypatch.setattr(verdicts, "doubtful", lambda _: cells)
    best = words.strongest(made)
    assert best is not None
    assert len(best.doubtful) == len(made)
    why = words.no_verdict(best, made.shift, "")
    assert why == (
        f"no attack counts ({best.record.cell.attack.label}: its AUC is 0.659 on a network with "
        "random weights, and chance reaches 0.5 ± 0.092, so the two sets differ): use nonmembers "
        "from the same source, or name other attacks"
    )


def test_no_verdict_if_only_an_attack_that_does_not_count_finds_something(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, nothing = (one.model_copy(deep=True) for one in run(tmp_path, forest(MEMBERS)))
    for one, value in ((found, 0.7), (nothing, 0.5)):
        for name in ("auc", words.TPR):
            one.metrics[name] = Number(value=value if name == "auc" else 0.01)
    both = [found, nothing]
    shift_ = Shift(0.5, 0.5)

    def why(doubt: Any) -> str:
        monkeypatch.setattr(verdicts, "doubtful", lambda _: {doubt.cell.model_dump_json(): "odd"})
        return words.no_verdict(words.strongest(both), shift_, "")

    name = found.cell.attack.label
    assert why(found).startswith(
        f"{name} tells the two sets apart (AUC 0.700) but does not count (odd), and no other"
    )
    assert why(nothing) == ""
    found.metrics["auc"] = Number(value=0.52)
    assert why(found) == ""


@pytest.mark.parametrize(("of_halves", "p"), [((0.3, 0.004), 0.008), ((0.9, 0.7), 1.0)])
def test_the_p_of_shift_is_corrected_for_two_halves(
    of_halves: tuple[float, float], p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(of_halves)

    def told(*_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(statistic=0.0, pvalue=left.pop())

    monkeypatch.setattr("scipy.stats.mannwhitneyu", told)
    found = shift(MEMBERS["x"], NONMEMBERS["x"])
    assert found.p_value == pytest.approx(p)
    assert left == []


# ---- an endpoint ---------------------------------------------------------------------------------


class Server:
    """Answers from a forest; counts rows, and breaks as told."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.states: list[int] = []  # of the next answers; then 200
        self.retry_after: list[str] = []  # headers of the next answers that are not 200
        self.stop_after: int | None = None
        self.answer: Any = None
        self.labels, self.noise = False, 0.0  # answers classes; relative errors up to this
        self.model = forest(MEMBERS)

    def serve(self) -> HTTPServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inputs = np.array(json.loads(body)["inputs"], np.float32)
                state = outer.states.pop(0) if outer.states else 200
                if outer.stop_after is not None and len(outer.rows) >= outer.stop_after:
                    state = 403
                if state == 200:
                    outer.rows += [one.tobytes() for one in inputs]
                made = outer.model.predict_proba(inputs)
                made = made * np.random.default_rng(0).uniform(1, 1 + outer.noise, made.shape)
                made = made.argmax(1) if outer.labels else made
                out = outer.answer or {"outputs": made.tolist()}
                text = json.dumps(out).encode()
                self.send_response(state)
                if state != 200 and outer.retry_after:
                    self.send_header("Retry-After", outer.retry_after.pop(0))
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        return HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    made = Server()
    http = made.serve()
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made, f"http://127.0.0.1:{http.server_address[1]}/predict"
    http.shutdown()
    http.server_close()


@pytest.mark.slow
def test_an_endpoint_is_asked_each_row_once_and_resumes(
    tmp_path: Path, server: tuple[Server, str], clock: Clock
) -> None:
    counted, url = server
    counted.stop_after = 60
    with pytest.raises(BadInputError, match="refuses"):
        run(tmp_path, url, batch=20)
    kept = len(counted.rows)
    assert kept == 60
    ledger = tmp_path / "out" / "queries.ndjson"
    whole = ledger.read_text()
    ledger.write_text(whole + '{"row": "half a li')  # interrupted while it wrote
    counted.stop_after = None
    counted.states = [503, 429]
    results = run(tmp_path, url, batch=20)
    assert clock.slept == [0.5, 1.0]
    assert auc(results) > 0.85
    assert len(set(counted.rows)) == 200 + 64
    assert len(counted.rows) == 264 + 48  # of the 60 that were kept, asked again
    assert re.search(rf"Kept answers: 60, which {url} gave at 20\S+ \S+ UTC", results.summary)
    known = (one for one in (tmp_path / "out").glob("*.json") if one.name != "audit.json")
    before = {path: path.read_bytes() for path in known}
    again = run(tmp_path, url, batch=20)
    assert len(counted.rows) == 264 + 2 * 48
    assert len(ledger.read_text().splitlines()) == 1 + len(counted.rows)
    assert {path: path.read_bytes() for path in before} == before
    assert f"Kept answers: 264, which {url} gave at " in again.summary
    assert "it answers 48 of 48 of these rows in the same way." in again.summary
    direct = privbench.audit(
        counted.model, members=MEMBERS, nonmembers=NONMEMBERS, attacks=QUICK, out=tmp_path / "d"
    )
    assert auc(results) == auc(direct)
    read = privbench.Results.read(tmp_path / "out")  # the ledger is no result
    assert len(read) == len(QUICK)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.slow
def test_a_retrained_endpoint_keeps_no_verdict(
    tmp_path: Path, server: tuple[Server, str], labels: bool
) -> None:
    counted, url = server
    counted.labels = labels
    run(tmp_path, url)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    counted.model = forest(SHADOW)
    with pytest.raises(BadInputError) as error:
        run(tmp_path, url)
    assert re.search(rf"{url} answers differently than at 20\S+ \S+ UTC.*, \d+ of 48 rows that "
                     "were asked again: .* choose another directory", str(error.value))  # fmt: skip
    assert "\n" not in str(error.value)
    after = {path: path.read_bytes() for path in before}
    ledger = tmp_path / "out" / "queries.ndjson"
    assert after.pop(ledger).startswith(before.pop(ledger))
    assert after == before
    counted.model = forest(MEMBERS)  # the old one is back: what was kept counts
    assert "Kept answers: 264" in run(tmp_path, url).summary


def test_an_endpoint_that_is_gone_keeps_no_verdict(
    tmp_path: Path, server: tuple[Server, str]
) -> None:
    counted, url = server
    run(tmp_path, url)
    counted.states = [404]
    given = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    sentence = told(["--model", url, *given, "--out", str(tmp_path / "out")])
    assert "it refuses (404 Not Found)" in sentence
    assert re.search(r"its 264 answers of 20\S+ \S+ UTC.* stay in \S+, and count once", sentence)
    assert "Kept answers: 264" in run(tmp_path, url).summary


def test_a_server_may_round_and_batch(tmp_path: Path, server: tuple[Server, str]) -> None:
    counted, url = server
    run(tmp_path, url)
    counted.noise = 0.02
    assert "Kept answers: 264" in run(tmp_path, url).summary


def test_twenty_rows_of_each_sort_are_enough(tmp_path: Path) -> None:
    few = {"members": rows(20, 0), "nonmembers": rows(20, 1)}
    assert auc(run(tmp_path, forest(few["members"]), **few)) > 0.7


class Clock:
    """A clock that moves only by sleeping, and by what a request takes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("privbench.toolbox.endpoint.time", made)
    return made


def test_requests_keep_to_the_rate(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four a second: requests of .1 s wait for .15 s more, and one of 2 s lets the next go."""
    took = [0.1, 0.1, 2.0, 0.1]
    sent: list[float] = []

    def answers(*_: object) -> bytes:
        sent.append(clock.now)
        clock.now += took[len(sent) - 1]
        return b'{"outputs": [[1.0, 0.0]]}'

    monkeypatch.setattr(Endpoint, "_sent", answers)
    asked = Endpoint("http://127.0.0.1:9/none", rate=4.0, batch=1)
    assert asked(np.arange(4.0).reshape(4, 1)).shape == (4, 2)
    assert clock.slept == [0, 0.15, 0.15, 0]
    assert np.diff(sent) == pytest.approx([0.25, 0.25, 2.0])


def test_a_server_that_says_when_to_come_again_is_believed_within_a_minute(
    clock: Clock, server: tuple[Server, str]
) -> None:
    counted, url = server
    counted.states = [429, 503, 429]
    counted.retry_after = ["7", "no time", "Wed, 21 Oct 2015 07:28:00 GMT"]
    asked = Endpoint(url, batch=100)
    with pytest.warns(UserWarning, match=r"it is busy \(429\): request 1 is repeated in 7 s"):
        assert len(asked(MEMBERS["x"][:5])) == 5
    assert clock.slept == [7, 1, 0]  # no time: the second pause of its own; a date that is over
    assert asked.requests == 4


@pytest.mark.parametrize("wanted", ["999", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_longer_pause_than_a_minute_is_said_and_not_slept(
    clock: Clock, server: tuple[Server, str], wanted: str
) -> None:
    counted, url = server
    counted.states, counted.retry_after = [503], [wanted]
    with pytest.raises(
        BadInputError, match=r"busy \(503\) and asks for a pause of \d+ s .*more th"
    ):
        Endpoint(url)(MEMBERS["x"][:5])
    assert clock.slept == []


def test_all_requests_share_a_deadline(clock: Clock, server: tuple[Server, str]) -> None:
    counted, url = server
    counted.states = [503] * 9
    with pytest.raises(
        BadInputError, match=r"its deadline of 3 s for all requests is over: run th"
    ):
        Endpoint(url, deadline=3.0)(MEMBERS["x"][:5])
    assert clock.slept == [0.5, 1.0]  # and not 2 more


def test_a_server_that_sends_a_byte_now_and_then_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privbench.toolbox.endpoint._QUIET", 0.2)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as client:
                while not stop.wait(0.05):
                    client.sendall(b"H")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        begun = time.monotonic()
        with (
            pytest.warns(UserWarning, match="request 1 has no answer yet: waiting at most 1 s"),
            pytest.raises(BadInputError, match=r"cannot be reached \(no whole answer in 1 s\)"),
        ):
            Endpoint(url, retries=0, request_timeout=1.0)(MEMBERS["x"][:5])
        assert 0.9 < time.monotonic() - begun < 20
        stop.set()
        thread.join()


def test_a_long_name_is_cut_to_200_characters() -> None:
    assert plain("x" * 200) == "x" * 200
    assert plain("x" * 201) == "x" * 199 + "…"


def test_an_answer_nested_too_deeply_is_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "_sent", lambda *_: b"[" * 100_000)
    with pytest.raises(BadInputError, match="its answer is no JSON"):
        Endpoint("http://127.0.0.1:9/none")(MEMBERS["x"][:1])


@pytest.mark.filterwarnings("ignore:.*is repeated in")
def test_a_server_is_asked_again_after_what_may_pass_and_after_nothing_else(
    clock: Clock, server: tuple[Server, str]
) -> None:
    counted, url = server
    counted.states = [408, 425, 429, 500, 502, 503, 504]
    asked = Endpoint(url, batch=100, retries=7)
    assert len(asked(MEMBERS["x"][:5])) == 5
    assert (asked.requests, len(clock.slept)) == (8, 7)
    counted.states = [409]
    with pytest.raises(BadInputError, match=r"refuses \(409"):
        asked.again(MEMBERS["x"][:5])


def test_a_ledger_of_another_version_is_not_used(
    tmp_path: Path, server: tuple[Server, str]
) -> None:
    _, url = server
    run(tmp_path, url, model_version="1")
    with pytest.raises(BadInputError, match=r"version '1', not of .* version '2'"):
        run(tmp_path, url, model_version="2")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"outputs": [[float("nan"), 1.0]] * 64}, "not finite"),
        ({"outputs": [[0.5, 0.5]]}, "its answer holds 1 answers, not 64"),
        (
            {"error": "no"},
            r"has no 'outputs' at its top; it answers \{.error.: .no.\}, and was sent \{.inputs.:",
        ),
        ({"outputs": [["a", "b"]] * 64}, "not numbers"),
        ({"outputs": [["0.5", "0.5"]] * 64}, r"texts, not numbers: send 0\.5 without quotes"),
        ({"outputs": [[0.5, "0.5"]] * 64}, "texts, not numbers"),
        ({"outputs": [[10**400, 1]] * 64}, "not numbers"),
    ],
)
def test_bad_answers_of_an_endpoint(
    tmp_path: Path, server: tuple[Server, str], answer: Any, told: str
) -> None:
    counted, url = server
    counted.answer = answer
    with pytest.raises(BadInputError, match=told):
        run(tmp_path, url)
    assert not (tmp_path / "out" / "queries.ndjson").exists()


def test_a_password_in_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="PRIVBENCH_ENDPOINT_TOKEN"):
        run(tmp_path, "http://me:secret@127.0.0.1:9/none")


@pytest.mark.parametrize("url", ["http://[", "http://", "http://h:port/", "http://h/?key=***"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInputError, match="this is no whole address: write it as"):
        run(tmp_path, url)


def test_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be reached"):
        run(tmp_path, "http://127.0.0.1:9/none", retries=0)


# ---- checkpoints ---------------------------------------------------------------------------------


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


NETWORK = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 2))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_net.py").write_text(NETWORK)
    yield "my_own_net:load"
    sys.modules.pop("my_own_net", None)


@pytest.mark.parametrize("name", ["w.pt", "w.pkl", "w.safetensors"])
@pytest.mark.parametrize("by", ["pickle", "torch"])
def test_a_checkpoint_with_a_payload_runs_nothing(
    tmp_path: Path, module: str, name: str, by: str
) -> None:
    mark = tmp_path / "executed"
    weights = {"0.weight": torch.zeros(2, 6), "0.bias": Payload(mark)}
    path = tmp_path / name
    if by == "pickle":
        path.write_bytes(pickle.dumps(weights))
    else:
        torch.save(weights, path)
    with pytest.raises(BadInputError, match="nothing else is unpickled"):
        run(tmp_path, module, checkpoint=path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(mark)))  # noqa: S301 - it would have
    assert mark.exists()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.slow
def test_a_torchscript_file_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    torch.jit.save(torch.jit.script(_net()), tmp_path / "net.pt")
    (tmp_path / "my_script.py").write_text(
        "import torch\n\n\ndef load():\n    return torch.jit.load('net.pt')\n"
    )
    monkeypatch.chdir(tmp_path)
    found = run(tmp_path / "as_it_is", "my_script:load")
    assert auc(found) == pytest.approx(auc(run(tmp_path / "plain", _net())), abs=0.01)
    save_file(_net(1).state_dict(), tmp_path / "w.safetensors")
    filled = run(tmp_path / "filled", "my_script:load", checkpoint="w.safetensors")
    assert auc(filled) == pytest.approx(auc(run(tmp_path / "other", _net(1))), abs=0.01)
    assert abs(auc(filled) - auc(found)) > 0.01
    sys.modules.pop("my_script")


@pytest.mark.slow
def test_weights_change_the_key(tmp_path: Path, module: str) -> None:
    from safetensors.torch import save_file

    trials = {run(tmp_path / "bare", module)[0].trial}
    savers: list[Any] = [save_file, torch.save]
    for i, save in enumerate(savers):
        path = tmp_path / f"w{i}.{'pt' if i else 'safetensors'}"
        save({"0.weight": torch.full((2, 6), float(i)), "0.bias": torch.tensor([-1.0, 1.0])}, path)
        trials.add(run(tmp_path / str(i), module, checkpoint=path)[0].trial)
    assert len(trials) == 3


# ---- the answers are the identity ----------------------------------------------------------------


@pytest.mark.slow
def test_a_pickled_forest_is_itself_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that joblib loads a forest, other bytes fill the gaps of its nodes."""
    import joblib

    joblib.dump(forest(MEMBERS), tmp_path / "forest.joblib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_forest.py").write_text(
        "import joblib\n\n\ndef load():\n    return joblib.load('forest.joblib')\n"
    )
    given = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    words_ = ["audit", "--model", "my_forest:load", *given, "--attack", QUICK[0], "--out", "out"]
    first = CliRunner().invoke(main, words_)
    assert first.exit_code == 0, first.output
    before = sorted((tmp_path / "out").glob("*.json"))
    again = CliRunner().invoke(main, words_)
    assert again.exit_code == 0, again.output
    assert "kept" in again.output
    assert sorted((tmp_path / "out").glob("*.json")) == before
    (tmp_path / "my_forest.py").write_text(  # another file, the same model
        "import joblib\n\n\ndef load():\n    return joblib.load('forest.joblib').predict_proba\n"
    )
    sys.modules.pop("my_forest")
    assert "kept" in CliRunner().invoke(main, words_).output
    joblib.dump(forest(NONMEMBERS), tmp_path / "forest.joblib")
    other = CliRunner().invoke(main, words_)
    assert other.exit_code == 2
    assert "out holds the audit of another model" in other.output
    assert "--out" not in other.output
    sys.modules.pop("my_forest")


def test_answers_agree_up_to_rounding(tmp_path: Path) -> None:
    """A model that answers 1e-5 more is the same; one that answers a row otherwise is another."""
    one = forest(MEMBERS)
    first = run(tmp_path, one)

    def rounds(x: np.ndarray) -> np.ndarray:
        return np.asarray(one.predict_proba(x)) * (1 + 1e-5)

    assert [o.trial for o in run(tmp_path, rounds)] == [o.trial for o in first]

    def differs(x: np.ndarray) -> np.ndarray:
        made = np.asarray(one.predict_proba(x))
        made[np.isclose(x, MEMBERS["x"][3], rtol=1e-3).all(1)] = 0.5
        return made

    with pytest.raises(BadInputError, match="another model"):
        run(tmp_path, differs)


def test_models_that_are_alike_on_the_rows_only_are_two(tmp_path: Path) -> None:
    """An attack that asks about changed rows would find the answers of the other one."""
    known = np.concatenate([MEMBERS["x"], NONMEMBERS["x"]])

    def answers(elsewhere: float) -> Any:
        def ask(x: np.ndarray) -> np.ndarray:
            away = np.abs(x[:, None] - known).max(2).min(1) > 1e-3
            p = np.where(away, elsewhere, 0.3 + 0.4 * (x[:, 0] > 0))
            return np.stack([1 - p, p], 1)

        return ask

    first = run(tmp_path, answers(0.5))
    assert [one.trial for one in run(tmp_path, answers(0.5))] == [one.trial for one in first]
    with pytest.raises(BadInputError, match="another model"):
        run(tmp_path, answers(0.6))


def test_changed_rows_are_other_rows_and_whole_numbers_stay_whole() -> None:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(np.c_[draw.random((200, 3)), draw.integers(0, 9, (200, 3)) / 8]).float()

    def asked(source: str) -> Any:
        return SimpleNamespace(form=Form("labels", low=(0.0,), high=(8.0,), source=source))

    made = identity.changed(asked(""), x)
    assert made.shape == (64, 6)
    assert (8 * made[:, 3:] == (8 * made[:, 3:]).round()).all()
    assert ((made[:, None] - x).abs().amax(2).amin(1) > 1e-4).all()
    assert identity.changed(asked(""), x[:20]).shape == (20, 6)
    assert not len(identity.changed(asked("given:1"), x))
    halves = identity.changed(asked(""), x.reshape(200, 1, 2, 3))
    assert torch.equal(halves.flatten(1), made)


@pytest.mark.parametrize(
    ("one", "other", "rows_"),
    [
        ([0.0, 1.0, 2.0], [0.0, 2.0, 2.0], [1]),  # classes
        ([[0.999, 0.001], [0.5, 0.5]], [[0.9992, 0.0008], [0.50001, 0.49999]], [0]),
        ([[1.0, 1e-9], [1.0, 1e-5]], [[1.0, 3e-9], [1.0, 3e-5]], [1]),
        ([[-8.0, 0.0], [8.0, -1.0]], [[-8.0, 1e-4], [8.0, -1.01]], [1]),  # logits
    ],
)
def test_rows_that_differ(one: Any, other: Any, rows_: list[int]) -> None:
    made = identity.differing(np.array(one), np.array(other))
    assert np.flatnonzero(made).tolist() == rows_


def test_the_answers_are_the_key_not_the_place(registry: Registry) -> None:
    target = registry.get("target", "own-model").replace(answered="a")
    one, same = target.holding(forest(MEMBERS)), target.holding(len)
    assert one.digest == same.digest == target.replace(model="http://here/predict").digest
    assert one.digest != one.replace(answered="b").digest
    url = target.replace(model="http://here/predict")
    assert url.digest != url.replace(tag="2").digest
    assert url.label != url.replace(tag="2").label
    assert url.digest == url.replace(rate=3.0, ledger="elsewhere", deadline=9.0).digest


# ---- bad input -----------------------------------------------------------------------------------


def files(tmp_path: Path, **sets: Arrays) -> list[str]:
    made = []
    for name, arrays in sets.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        made += [f"--{name}", str(tmp_path / f"{name}.npz")]
    return made


def told(arguments: list[str]) -> str:
    """The one sentence of a command that is refused."""
    result = CliRunner().invoke(main, ["audit", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("no_such_module_at_all:load", "there is no module no_such_module_at_all"),
        ("my_own_net:missing", "has no missing"),
        ("my_own_net", "write module:function"),
        ("my_own_net:torch", "is a module, which cannot be asked"),
    ],
)
def test_models_that_cannot_be_opened(
    tmp_path: Path, module: str, model: str, sentence: str
) -> None:
    del module
    given = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    assert sentence in told(["--model", model, *given])


@pytest.mark.parametrize(
    ("members", "nonmembers", "sentence"),
    [
        (MEMBERS, {**NONMEMBERS, "x": NONMEMBERS["x"][:, :5]}, "rows have shape"),
        (MEMBERS, rows(10, 4), "too few"),
        ({"y": MEMBERS["y"]}, NONMEMBERS, "give an archive with x"),
        (MEMBERS, {"x": NONMEMBERS["x"]}, "it has no y"),
        (MEMBERS, {**NONMEMBERS, "y": NONMEMBERS["y"].astype(str)}, "y of another file numbers"),
        (
            MEMBERS,
            {**NONMEMBERS, "y": NONMEMBERS["y"] * 3},
            "2 numbers for each row are logits, name output logits, and number y from 0 to 1",
        ),
        (MEMBERS, {**NONMEMBERS, "x": NONMEMBERS["x"] * [np.nan, 1, 1, 1, 1, 1]}, "NaN"),
        ({**MEMBERS, "y": MEMBERS["y"][:5]}, NONMEMBERS, "one class or number for each row"),
    ],
)
def test_rows_that_cannot_be_used(
    tmp_path: Path, module: str, members: Arrays, nonmembers: Arrays, sentence: str
) -> None:
    given = files(tmp_path, members=members, nonmembers=nonmembers)
    assert sentence in told(["--model", module, *given])


def test_rows_in_both_sets_are_named(tmp_path: Path, module: str) -> None:
    both = {name: np.concatenate([NONMEMBERS[name], MEMBERS[name][7:9]]) for name in MEMBERS}
    given = files(tmp_path, members=MEMBERS, nonmembers=both)
    sentence = told(["--model", module, *given])
    assert "2 of its rows are also among the members, first row 100, which is row 7" in sentence


def test_files_that_are_none(tmp_path: Path, module: str) -> None:
    (tmp_path / "bad.npz").write_bytes(pickle.dumps([1]))
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    np.save(tmp_path / "x.npy", MEMBERS["x"])
    good = files(tmp_path, nonmembers=NONMEMBERS)
    whole = files(tmp_path, members=MEMBERS)[1]
    Path(tmp_path / "cut.npz").write_bytes(Path(whole).read_bytes()[:-100])
    for bad in ("bad.npz", "x.csv", "x.npy", "cut.npz", "absent.npz"):
        sentence = told(["--model", module, "--members", str(tmp_path / bad), *good])
        want = "is no whole .npz file: write it by"
        others = {
            "absent.npz": "cannot be read",
            "x.csv": "has no column y",
            "x.npy": "ends in .npy",
        }
        want = others.get(bad, want)
        assert f"{bad} {want}" in sentence


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda x: np.full((len(x), 2), np.nan), "answered NaN"),
        (lambda x: np.zeros((len(x) - 1, 2)), "with an array of shape"),
        (lambda x: np.zeros((len(x), 2, 2)), "with an array of shape"),
        (lambda x: np.full(len(x), 0.5), "one number for each row"),
        (lambda x: {"p": x}, "no array of numbers"),
        (lambda x: x[:, 99], "failed on rows"),
    ],
)
def test_answers_that_cannot_be_used(tmp_path: Path, answer: Any, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        run(tmp_path, answer)


# ---- the command and the notebook ----------------------------------------------------------------


def test_the_command_equals_the_notebook(tmp_path: Path, module: str) -> None:
    given = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    named = [part for one in QUICK for part in ("--attack", one)]
    out = tmp_path / "by_command"
    done = CliRunner().invoke(main, ["audit", "--model", module, *given, *named, "--out", str(out)])
    assert done.exit_code == 0, done.output
    told = privbench.audit(
        module, members=tmp_path / "members.npz", nonmembers=tmp_path / "nonmembers.npz",
        attacks=QUICK, out=tmp_path / "by_notebook",
    )  # fmt: skip
    assert told.summary in done.output
    read = privbench.Results.read(out)
    assert {one.trial for one in read} == {one.trial for one in told}
    assert {one.trial: one.metrics for one in read} == {one.trial: one.metrics for one in told}
    page = tmp_path / "page.html"
    made = CliRunner().invoke(main, ["report", str(out), "-o", str(page)])
    assert made.exit_code == 0, made.output
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert f"<h1>Audit of {read[0].cell.target.label}</h1>" in text
    shown = html.unescape(told._repr_html_())
    assert all(f"<li>{line}</li>" in text for line in told.summary.splitlines())
    assert all(f"<p>{line}</p>" in shown for line in told.summary.splitlines())
    assert "Ordered by the <strong>worst case" not in text  # nothing is ranked
    board = CliRunner().invoke(main, ["leaderboard", str(out)])
    assert board.exit_code == 0, board.output


@pytest.mark.end_to_end
def test_several_workers_give_the_same_numbers(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "members": MEMBERS, "nonmembers": NONMEMBERS, "shadow": rows(300, 2),
        "attacks": ["shokri"], "settings": {"supervised": {"epochs": 3}},
    }  # fmt: skip
    (one,) = privbench.audit(module, out=tmp_path / "one", **given)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    (two,) = privbench.audit(module, out=tmp_path / "two", jobs=2, **given)
    assert one.status == two.status == "ok"
    assert one.metrics == two.metrics


@pytest.mark.parametrize(
    ("model", "words"), [(len, "a model in memory"), ("http://127.0.0.1:9/", "an endpoint")]
)
def test_what_cannot_go_to_workers(tmp_path: Path, model: Any, words: str) -> None:
    with pytest.raises(BadInputError, match=f"^jobs: {words} .*leave out jobs"):
        privbench.audit(model, members=MEMBERS, nonmembers=NONMEMBERS, out=tmp_path / "out", jobs=2)


def test_an_attack_that_fails_is_status_1(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("it broke")

    monkeypatch.setattr("privbench_plugins.attacks.metric.MetricEntropy.answer", fails)
    given = files(tmp_path, members=rows(80, 1), nonmembers=rows(80, 2))
    named = ["--attack", "metric-confidence", "--attack", "metric-entropy"]
    words = ["audit", "--model", module, *given, *named]
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1, done.output
    assert "it broke" in done.output


def test_listing_imports_no_model(module: str) -> None:
    assert CliRunner().invoke(main, ["list", "targets"]).exit_code == 0
    assert "my_own_net" not in sys.modules
    del module


def test_images_keep_their_bytes() -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    y = np.arange(60) % 2
    made = read_rows({"x": x[:30], "y": y[:30]}, {"x": x[30:], "y": y[30:]})
    assert made.x.dtype == np.uint8
    assert made.x.shape == (60, 3, 8, 8)
    assert made.unit().max() <= 1


def test_embeddings_without_shadows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="or a shadow recipe; if the 3 numbers"):
        run(tmp_path, lambda x: x[:, :3] * 7, attacks=())


def test_a_model_that_fails_later_is_told(tmp_path: Path) -> None:
    """It answers the 200 rows of the first look, and no attack."""
    asked: list[int] = []

    def tired(x: np.ndarray) -> np.ndarray:
        asked.append(len(x))
        if sum(asked) > 200:
            raise ValueError("tired")
        return np.stack([x[:, 0] > 0, x[:, 0] <= 0], 1).astype(float)

    with pytest.raises(BadInputError, match=r"every attack failed: .*tired"):
        run(tmp_path, tired)


def test_a_directory_with_another_audit_is_refused(tmp_path: Path) -> None:
    run(tmp_path, forest(MEMBERS))
    run(tmp_path, forest(MEMBERS))  # the same again
    (tmp_path / "out" / "audit.txt").unlink()  # as if it was interrupted before its end
    before = sorted((tmp_path / "out").iterdir())
    for other in ({"model": forest(SHADOW)}, {"members": rows(90, 7)}):
        with pytest.raises(BadInputError, match="of other rows, or of rows whose copies counted"):
            run(tmp_path, **{"model": forest(MEMBERS), **other})
    assert sorted((tmp_path / "out").iterdir()) == before


def test_an_attack_that_reads_planted_canaries_is_left_out_in_words(tmp_path: Path) -> None:
    told = run(tmp_path, forest(MEMBERS), attacks=()).summary
    assert "gradient-canary: only for models that privbench trains." in told


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": {"x": MEMBERS["x"]}}, {"nonmembers": {"y": MEMBERS["y"]}}, {"shadow": MEMBERS},
        {"members": rows(5, 0)}, {"members": "absent.npz"}, {"attributes": {"sex": [1]}},
        {"output": "labels"}, {"jobs": 2},
    ],
)  # fmt: skip
def test_messages_in_python_name_no_flags_of_the_command(tmp_path: Path, wrong: Arrays) -> None:
    with pytest.raises(BadInputError) as error:
        run(tmp_path, forest(MEMBERS), **wrong)
    assert "--" not in str(error.value)


def test_what_one_writes_in_a_notebook_by_mistake(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"it is a int: give .* such as \(x, y\)"):
        run(tmp_path, forest(MEMBERS), members=5)
    with pytest.raises(BadInputError, match="a function without an argument: give what it returns"):
        run(tmp_path, lambda: forest(MEMBERS))
    with pytest.raises(BadInputError, match="there is no module lr"):
        run(tmp_path, "lr.py:load")
    assert len(run(tmp_path, forest(MEMBERS), attacks="metric-confidence")) == 1


def test_the_words_name_the_attack_with_the_highest_auc_too(tmp_path: Path) -> None:
    found = run(tmp_path, forest(MEMBERS))
    strong = words.strongest(found)
    assert strong is not None
    named = f"By AUC the strongest is {strong.by_auc.cell.attack.label}: "
    by_auc, best = auc([strong.by_auc], strong.by_auc.cell.attack.name), strong.record
    assert (named in found.summary) == (by_auc > auc([best], best.cell.attack.name))
    low, high = (one.model_copy(deep=True) for one in found)
    for one, tpr, auc_ in ((low, 0.2, 0.6), (high, 0.1, 0.7)):
        for name, value in ((words.TPR, tpr), ("auc", auc_)):
            one.metrics[name] = one.metrics[name].model_copy(update={"value": value})
    told = words.summary([low, high], found.shift, (), {})
    assert f"By AUC the strongest is {high.cell.attack.label}: 0.700" in told
    assert "is 0 whatever an attack finds, as there are 100 nonmembers: give 437 or more." in told


def test_too_few_nonmembers_bound_no_share() -> None:
    """Not even the highest of 436 is surely below the threshold of 1 %; .99^437 is below .0125."""
    few, enough = (
        tpr_at_fpr(np.arange(n + 50), np.arange(n + 50) >= n, 0.01)
        for n in (words._LEAST - 1, words._LEAST)
    )
    assert isinstance(few, Estimate)
    assert isinstance(enough, Estimate)
    assert few.low == 0 < enough.low
