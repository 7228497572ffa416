"""The audit of a regression: what it finds, what its models get, and what it refuses."""

from __future__ import annotations

import functools
import json
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import RidgeClassifier

import privbench
from privbench import BadInputError
from privbench.api.own_model import words
from privbench.api.own_model.errors import Errors
from privbench.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

pd = pytest.importorskip("pandas", reason="tables of pandas need pandas")

N = 150
X, Y = make_friedman1(2 * N, noise=1.0, random_state=1)
X = X.astype(np.float32)
MEMBERS, NONMEMBERS = (X[:N], Y[:N]), (X[N:], Y[N:])
FEW = {"lira-residual": {"k": 8}}


@functools.cache
def forest(seed: int = 0) -> Any:
    return RandomForestRegressor(30, random_state=seed).fit(*MEMBERS)


def run(tmp_path: Path, model: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {
        "members": MEMBERS, "nonmembers": NONMEMBERS, "out": tmp_path / "out",
    }  # fmt: skip
    given |= {} if "attacks" in options else {"settings": FEW}
    return privbench.audit(model or forest(), **given | options)


def auc(found: Any, attack: str) -> float:
    (one,) = [one for one in found if one.cell.attack.name == attack]
    assert one.status == "ok", one.reason
    return float(one.metrics["auc"].value)


@pytest.mark.slow
def test_clones_find_what_the_error_alone_does_not(tmp_path: Path) -> None:
    found = run(tmp_path, shadow_recipe="clone")
    assert auc(found, "lira-residual") > auc(found, "squared-error") + 0.05 > 0.6
    inside, outside = (
        float(np.sqrt(np.square(forest().predict(x) - y).mean())) for x, y in (MEMBERS, NONMEMBERS)
    )
    assert (found.errors.members, found.errors.nonmembers) == pytest.approx((inside, outside))
    assert f"{inside:.4g} on members, {outside:.4g} on nonmembers" in found.summary
    assert "WARNING" not in found.summary
    assert {one.name.split(" < ")[0][:1] for one in found.subgroups.tested} >= {"y"}
    document = json.loads((tmp_path / "out/audit.json").read_text("utf-8"))
    assert document["model"]["gives"] == "values"
    assert document["errors"]["members"] == pytest.approx(inside)
    sheet = (tmp_path / "out/audit.html").read_text("utf-8")
    assert f"{inside:.3g}, {outside:.3g}" in sheet
    assert "The model&#39;s root mean squared error is" in sheet
    row, _ = found.exposed[0]
    assert f"{Y[row]:g}" in sheet


@pytest.mark.slow
def test_a_model_that_knows_no_row_leaks_nothing(tmp_path: Path) -> None:
    more, y = make_friedman1(N, noise=1.0, random_state=7)
    found = run(tmp_path, RandomForestRegressor(30, random_state=0).fit(more, y),
                shadow_recipe="clone")  # fmt: skip
    assert abs(auc(found, "lira-residual") - 0.5) < 0.12
    assert "No leak was found" in found.summary


@pytest.mark.slow
def test_the_unit_of_y_does_not_count(tmp_path: Path) -> None:
    """A forest splits in the same way whatever the unit; prices have a long tail."""
    one = run(tmp_path / "one", shadow_recipe="clone")
    model = RandomForestRegressor(30, random_state=0).fit(X[:N], 1024 * Y[:N] + 4096)
    other = run(tmp_path / "other", model, members=(X[:N], 1024 * Y[:N] + 4096),
                nonmembers=(X[N:], 1024 * Y[N:] + 4096), shadow_recipe="clone")  # fmt: skip
    for name in ("squared-error", "lira-residual"):
        assert auc(one, name) == pytest.approx(auc(other, name), abs=0.01)


def test_a_recipe_gets_rows_and_numbers_as_they_are(tmp_path: Path) -> None:
    got: list[tuple[Any, Any]] = []

    def fit(x: Any, y: Any, seed: int) -> Any:
        got.append((x, y))
        return RandomForestRegressor(5, random_state=seed).fit(x, y)

    run(tmp_path, shadow_recipe=fit, attacks=["lira-residual"], settings=FEW)
    assert len(got) == 8
    for x, y in got:
        assert x.dtype == np.float32
        places = [int(np.flatnonzero((row == X).all(1))[0]) for row in x]
        assert len(set(places)) == len(x) == N
        assert y.tolist() == Y[places].tolist()  # all digits


@pytest.mark.end_to_end
def test_tables_of_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame(X, columns=list("abcdefghij"))
    table["town"] = np.where(X[:, 0] > 0.5, "Bern", "Oslo")
    table["price"] = Y
    for name, part in (("members", table[:N]), ("nonmembers", table[N:])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "regression_mine.py").write_text(
        "import pandas as pd\n"
        "from sklearn.compose import ColumnTransformer\n"
        "from sklearn.ensemble import RandomForestRegressor\n"
        "from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import OneHotEncoder\n"
        "def load():\n"
        f"    table = pd.read_csv({str(tmp_path / 'members.csv')!r})\n"
        "    columns = ColumnTransformer([('town', OneHotEncoder(), ['town'])],\n"
        "                                remainder='passthrough')\n"
        "    model = make_pipeline(columns, RandomForestRegressor(20, random_state=0))\n"
        "    return model.fit(table.drop(columns='price'), table.price)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = ["audit", "--model", "regression_mine:load", "--members", "members.csv",
               "--nonmembers", "nonmembers.csv", "--label", "price", "--shadow-recipe", "clone",
               "--set", "lira-residual.k=4"]  # fmt: skip
    told = [CliRunner().invoke(main, [*command, "--jobs", jobs, "--out", f"out{jobs}"])
            for jobs in ("1", "2")]  # fmt: skip
    assert [one.exit_code for one in told] == [0, 0], told
    words = [(tmp_path / f"out{jobs}/audit.txt").read_text("utf-8") for jobs in "12"]
    assert words[0] == words[1]
    assert "The model leaks who its members are. The strongest of 2 attacks, lira-res" in words[0]


@pytest.mark.slow
def test_boosters_and_modules_need_no_adapter(tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    small = {"min_child_samples": 2, "verbose": -1, "n_jobs": 1}
    boosted = lightgbm.LGBMRegressor(**small).fit(*MEMBERS)
    trees = xgboost.XGBRegressor(n_jobs=1).fit(*MEMBERS)
    for i, model in enumerate((boosted, boosted.booster_, trees, trees.get_booster())):
        found = run(tmp_path / str(i), model)
        assert found.errors.members < found.errors.nonmembers
        assert auc(found, "squared-error") > 0.8
    net = torch.nn.Linear(10, 1)
    found = run(tmp_path / "net", net, attacks="squared-error")
    with torch.no_grad():
        answers = net(torch.from_numpy(X[:N]))[:, 0].numpy()
    assert found.errors.members == pytest.approx(np.sqrt(np.square(answers - Y[:N]).mean()))
    assert "WARNING: the mean of y is closer to y than the answers are" in found.summary


def test_answers_are_enough(tmp_path: Path) -> None:
    whole = run(tmp_path / "model", attacks="squared-error")
    parts = [(forest().predict(x), y) for x, y in (MEMBERS, NONMEMBERS)]
    bare = privbench.audit(members=parts[0], nonmembers=parts[1], out=tmp_path / "bare")
    assert auc(bare, "squared-error") == pytest.approx(auc(whole, "squared-error"))
    assert bare.errors == whole.errors
    assert words.ADVICE_ON_ERRORS in whole.summary.replace("\n", " ")


def test_pictures_come_as_they_do_to_classifiers(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (80, 6, 6, 3), dtype=np.uint8)
    y = x.mean((1, 2, 3)) / 255
    got = []

    def bright(pictures: Any) -> Any:
        got.append((pictures.shape[1:], pictures.dtype, float(pictures.max()) <= 1))
        return pictures.mean((1, 2, 3))

    found = run(tmp_path, bright, members=(x[:40], y[:40]), nonmembers=(x[40:], y[40:]))
    assert set(got) == {((3, 6, 6), np.dtype("float32"), True)}
    assert found.errors.members == pytest.approx(0, abs=1e-6)


def test_an_endpoint_answers_numbers(tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
            made = forest().predict(np.array(rows, np.float32)).tolist()
            text = json.dumps({"outputs": made}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/predict"
    options: dict[str, Any] = {"model_version": "1", "attacks": "squared-error"}
    first = run(tmp_path / "url", url, **options)
    again = run(tmp_path / "url", url, **options)
    server.shutdown()
    server.server_close()
    assert auc(first, "squared-error") == auc(
        run(tmp_path / "here", attacks="squared-error"), "squared-error"
    )
    assert "48 of 48 of these rows in the same way" in again.summary


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"output": "posteriors"}, r"y holds numbers that are not classes, such as .*: give"),
        ({"attacks": "lira"}, "lira: it does not attack regressions: name one that does, such as"),
        ({"shadow_recipe": "supervised"}, "shadow recipe: only your code trains shadows of a regr"),
        ({"shadow": (X[:40] + 2, Y[:40])}, "shadow rows and attributes: attacks on"),
        ({"attributes": {"sex": np.zeros(2 * N, int)}}, "shadow rows and attributes: att"),
        ({"defenses": "memguard"}, "memguard: it changes posteriors, and this model answ"),
        ({"members": (X[:N], [*Y[: N - 1], np.nan])}, "y is missing or infinite in row 149"),
        ({"members": (X[:N], Y[:N].astype(str)), "output": "values"}, "y holds texts such as"),
        ({"members": {"x": X[:N]}, "output": "values"}, "members: it has no y: give the numbers"),
        ({"members": (X[:N], np.round(Y[:N])), "nonmembers": (X[N:], np.round(Y[N:]))},
         "the model is a regression: name output values"),
        ({"members": (X[:N], np.round(Y[:N])), "nonmembers": (X[N:], np.round(Y[N:])),
          "model": lambda x: x[:, 0]},
         "one number for each row that is no class: .*, or name output values if it is a regress"),
        ({"model": lambda x: np.zeros((len(x), 2))}, r"shape \(150, 2\), and y holds a number"),
        ({"model": lambda x: np.full(len(x), np.inf)}, "answered NaN or an infinite number"),
        ({"members": (X[:N], np.arange(N).astype("M8[D]"))}, r"y holds datetime64\[D\]: give"),
        ({"members": (X[:N], [None, *Y[1:N]]), "output": "values"}, "y holds None in row 0, unl"),
        ({"members": (X[:N], -np.arange(N)), "nonmembers": (X[N:], -np.arange(N)),
          "model": lambda x: x[:, 0]},
         "y must hold classes from 0, or texts: .* or name output values if it is a regression"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, options: Any, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        run(tmp_path, **options)


def test_whole_numbers_are_a_regression_if_it_is_named(tmp_path: Path) -> None:
    y = np.round(Y)
    found = run(tmp_path, members=(X[:N], y[:N]), nonmembers=(X[N:], y[N:]), output="values")
    assert found.errors.spread == pytest.approx(y.std())
    y *= 1000
    prices = run(tmp_path / "large", members=(X[:N], y[:N]), nonmembers=(X[N:], y[N:]))
    assert prices.errors.spread == pytest.approx(y.std())


def test_a_classifier_is_told(tmp_path: Path) -> None:
    y = np.where(Y.mean() < Y, 1200, 1100)
    with pytest.raises(BadInputError, match="the model is a classifier: give the classes as texts"):
        run(tmp_path, RidgeClassifier().fit(X[:N], y[:N]), members=(X[:N], y[:N]),
            nonmembers=(X[N:], y[N:]))  # fmt: skip
    rich = Y.astype(int) % 2
    with pytest.raises(BadInputError, match="squared-error: it attacks regressions, and this mod"):
        run(tmp_path, RandomForestClassifier(5).fit(X[:N], rich[:N]), members=(X[:N], rich[:N]),
            nonmembers=(X[N:], rich[N:]), attacks="squared-error")  # fmt: skip


def test_swapped_files_get_no_verdict(tmp_path: Path) -> None:
    found = run(tmp_path, members=NONMEMBERS, nonmembers=MEMBERS, attacks="squared-error")
    assert "No verdict: the median error is " in found.summary


@pytest.mark.slow
def test_one_far_number_hides_nothing(tmp_path: Path) -> None:
    """Residuals are taken before numbers are rounded, and divided by the median error."""
    y = Y.copy()
    y[-1] = -1e12
    found = run(tmp_path, nonmembers=(X[N:], y[N:]), shadow_recipe="clone")
    assert auc(found, "squared-error") > 0.7
    known = dict(zip(map(bytes, X), Y, strict=True))
    exact = run(
        tmp_path / "exact", lambda x: np.array([known[bytes(one)] for one in x]),
        members=MEMBERS, nonmembers=(X[N:], y[N:] + 1e-6), attacks="squared-error",
    )  # fmt: skip
    assert auc(exact, "squared-error") == 1.0


def test_decimals_and_objects_are_numbers(tmp_path: Path) -> None:
    for kind in (float, Decimal):
        parts = [(x, np.array([kind(one) for one in y], object)) for x, y in (MEMBERS, NONMEMBERS)]
        found = run(tmp_path / kind.__name__, members=parts[0], nonmembers=parts[1])
        assert found.errors.spread == pytest.approx(Y.std())


def test_pictures_of_two_sources_are_told(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((120, 1, 4, 4))
    x[60:] += 0.5
    found = run(tmp_path, lambda x: x.mean((1, 2, 3)), members=(x[:60], x[:60].mean((1, 2, 3))),
                nonmembers=(x[60:], x[60:].mean((1, 2, 3)) + 0.1))  # fmt: skip
    assert found.shift.found


def test_rows_with_equal_x_differ_by_y(tmp_path: Path) -> None:
    """Repeated measurements: the same x, another y. The same x and y would be an overlap."""
    x = np.repeat(X[: N // 2], 2, 0)
    model = RandomForestRegressor(30, bootstrap=False, random_state=0).fit(x[::2], Y[:N:2])
    found = run(tmp_path, model, members=(x[::2], Y[:N:2]), nonmembers=(x[1::2], Y[1:N:2]))
    assert auc(found, "squared-error") > 0.95
    with pytest.raises(BadInputError, match="of its rows are also among the members"):
        run(tmp_path, model, members=(x[::2], Y[:N:2]), nonmembers=(x[::2], Y[:N:2]))


def test_coins_of_a_regression(tmp_path: Path) -> None:
    tossed = privbench.coins({"x": X, "y": Y}, count=200, seed_file=tmp_path / "secret")
    inside = np.asarray(tossed)
    model = RandomForestRegressor(30, bootstrap=False, random_state=0).fit(X[inside], Y[inside])
    found = run(
        tmp_path, model, members=(X[inside], Y[inside]), nonmembers=(X[~inside], Y[~inside]),
        claim=(0.5, 1e-5), coins=tmp_path / "secret", attacks="squared-error",
    )  # fmt: skip
    assert found.claim.refuted


@pytest.mark.end_to_end
def test_workers_read_what_a_loader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "regression_theirs.py").write_text(
        "import numpy as np\n"
        "from sklearn.datasets import make_friedman1\n"
        "from sklearn.ensemble import RandomForestRegressor\n"
        f"x, y = make_friedman1({2 * N}, noise=1.0, random_state=1)\n"
        "def rows(path):\n"
        f"    at = slice(0, {N}) if 'nonmembers' not in path else slice({N}, None)\n"
        "    return x[at].tolist(), y[at]\n"
        "def load():\n"
        f"    return RandomForestRegressor(20, random_state=0).fit(x[:{N}], y[:{N}])\n"
    )
    for name in ("members", "nonmembers"):
        (tmp_path / f"{name}.any").write_text(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = CliRunner().invoke(main, [
        "audit", "--model", "regression_theirs:load", "--members", "members.any",
        "--nonmembers", "nonmembers.any", "--rows", "regression_theirs:rows",
        "--shadow-recipe", "clone", "--jobs", "2", "--set", "lira-residual.k=4", "--out", "out",
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "The strongest of 2 attacks, lira-residual" in " ".join(done.output.split())


def test_an_attack_of_a_third_party_runs(tmp_path: Path) -> None:
    file = tmp_path / "absolute.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from privbench import Membership, Paper, hookimpl\n"
        "from privbench.toolbox.regressions import RegressionAttack, residuals\n"
        "@dataclass(frozen=True)\n"
        "class Absolute(RegressionAttack):\n"
        '    "Scores minus the absolute error."\n'
        "    name: ClassVar[str] = 'absolute'\n"
        "    paper: ClassVar[Paper] = Paper('None', 'Nobody', 'nowhere')\n"
        "    def answer(self, oracle, question, ctx):\n"
        "        return Membership(-residuals(oracle, question.examples).abs().mean(1))\n"
        "@hookimpl\n"
        "def privbench_attacks():\n"
        "    return [Absolute()]\n"
    )
    found = run(tmp_path, plugins=[file])
    assert auc(found, "absolute") == pytest.approx(auc(found, "squared-error"))


def test_a_suite_has_no_regression(tmp_path: Path) -> None:
    suite = {"name": "a", "attacks": ["squared-error"], "datasets": ["digits"], "targets": ["moco"]}
    with pytest.raises(BadInputError, match="squared-error attacks regressions: use `privbench au"):
        privbench.run(suite, out=tmp_path)


def test_errors_in_words() -> None:
    assert "WARNING" not in str(Errors(1.0, 2.0, 1.0))
    assert "WARNING" in str(Errors(1.1, 2.0, 1.0))
