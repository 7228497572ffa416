"""What people get wrong when they audit a model: each is one sentence that says what to do."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

import privbench
from privbench import BadInputError
from privbench.api.own_model import subgroups
from privbench.api.own_model.misfit import misfit
from privbench.api.own_model.scaling import in_unit_interval, loses
from privbench.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pd = pytest.importorskip("pandas", reason="tables of pandas need pandas")

N = 120
HERE = "user_of_audits"
_draw = np.random.default_rng(3)
X = _draw.random((2 * N, 4)).astype(np.float32)
Y = (3 * X[:, 0] + _draw.random(2 * N)).astype(int).clip(0, 2)
MEMBERS, NONMEMBERS = (X[:N], Y[:N]), (X[N:], Y[N:])
FOREST = RandomForestClassifier(10, random_state=0).fit(*MEMBERS)


class Session:
    """Asks the forest as a session of ONNX Runtime does."""

    def get_inputs(self) -> list[Any]:
        return [types.SimpleNamespace(name="x", shape=[None, 4], type="tensor(float)")]

    def run(self, names: None, feeds: dict[str, Any]) -> list[Any]:
        del names
        return [FOREST.predict_proba(feeds["x"])]


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType(HERE)

    def lacks() -> None:
        raise FileNotFoundError(2, "No such file", "weights.bin")

    vars(made).update(
        load=lambda: FOREST, lacks=lacks, path=lambda path: path, kind=RandomForestClassifier,
        makes_kind=lambda: RandomForestClassifier, rows=X, session=Session(),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, HERE, made)


def audit(tmp_path: Path, model: Any = FOREST, **options: Any) -> Any:
    given: dict[str, Any] = {
        "members": MEMBERS, "nonmembers": NONMEMBERS, "attacks": ["metric-confidence"],
        "out": tmp_path / "out",
    }  # fmt: skip
    return privbench.audit(model, **given | options)


def refusal(tmp_path: Path, **options: Any) -> str:
    with pytest.raises(BadInputError) as error:
        audit(tmp_path, **options)
    return str(error.value)


# ---- files --------------------------------------------------------------------------------------


def _plain(path: Path) -> None:
    pd.DataFrame(X[:N]).assign(y=Y[:N]).to_csv(path, index=False)


def _semicolons(path: Path) -> None:
    pd.DataFrame(X[:N], columns=list("abcd")).assign(y=Y[:N]).to_csv(path, index=False, sep=";")


def _quoted(path: Path) -> None:
    pd.DataFrame(X[:N, :2], columns=["a, b", "c, d"]).to_csv(path, index=False)


def _counted(path: Path) -> None:
    pd.DataFrame(np.c_[X, Y]).to_csv(path, index=False)


def _no_head(path: Path) -> None:
    pd.DataFrame(X[:N]).assign(y=Y[:N]).to_csv(path, index=False, header=False)


def _latin(path: Path) -> None:
    path.write_bytes("ort,y\nKöln,1\n".encode("latin-1"))


def _target(path: Path) -> None:
    columns = [f"c{i:02d}" for i in range(30)]
    pd.DataFrame(np.zeros((N, 30)), columns=columns).assign(target=1).to_csv(path, index=False)


@pytest.mark.parametrize(("name", "write", "label", "told"), [
    ("m.xlsx", _plain, "y", "ends in .xlsx, and rows are read from .npz, .csv, .tsv, .parquet"),
    ("m.csv.gz", _plain, "y", "ends in .gz, and rows are read from"),
    ("m.json", _plain, "y", "ends in .json, and rows are read from"),
    ("quoted.csv", _quoted, "y", "has no column y: name one of a, b, c, d as label"),
    ("m.tsv", _semicolons, "y", "its columns are separated by ';': write it with tabs"),
    ("M.CSV", _target, "y", "target as label"),
    ("counted.csv", _counted, "y", "has no column y: name one of 0, 1, 2, 3, 4 as label"),
    ("m.csv", _semicolons, "y", "its columns are separated by ';': write it with commas"),
    ("m.csv", _no_head, "y", "its first line holds numbers: write names of the columns above it"),
    ("m.csv", _latin, "y", "is not written in UTF-8: write it again so"),
    ("m.csv", _target, "y", "c11, …, c27, c28, c29, target as label"),
    ("m.csv", _target, "targte", "has no column targte: name one of target, c00, "),
])  # fmt: skip
def test_a_file_that_is_no_table(
    name: str, write: Callable[[Path], None], label: str, told: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    given = {"members": tmp_path / name, "nonmembers": tmp_path / name, "label": label}
    assert told in refusal(tmp_path, **given)


# ---- rows ---------------------------------------------------------------------------------------


def test_large_numbers_are_read(tmp_path: Path) -> None:
    large = X * np.array([1, 1, 1, 1.7e12])
    forest = RandomForestClassifier(10, random_state=0).fit(large[:N], Y[:N])
    found = audit(tmp_path, forest, members=(large[:N], Y[:N]), nonmembers=(large[N:], Y[N:]))
    right = (forest.predict(large[:N].astype(np.float32)) == Y[:N]).mean()
    assert found[0].utility["train_accuracy"] == pytest.approx(right)
    beyond = large.copy()
    beyond[7, 2] = 1e301
    told = refusal(tmp_path, members=(beyond[:N], Y[:N]))
    assert "x holds 1e+301, first beyond 1e+38 in row 7, and a model gets float32: scale" in told


@pytest.mark.parametrize("far", [2e6, -99_999, -1e7, 1e12])
def test_one_far_value_rounds_no_other(far: float, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((2 * N, 4))
    x[0, 0], x[N, 0] = far, far * 0.9
    forest = RandomForestClassifier(20, random_state=0).fit(x[:N], Y[:N])
    got: list[np.ndarray] = []

    def ask(rows: np.ndarray) -> np.ndarray:
        got.append(rows.copy())
        return np.asarray(forest.predict_proba(rows))

    found = audit(tmp_path, ask, members=(x[:N], Y[:N]), nonmembers=(x[N:], Y[N:]))
    assert found[0].utility["train_accuracy"] == 1
    asked = np.unique(np.concatenate(got), axis=0)
    distance = np.abs(x[:, None] - asked[None]).max(2).min(1)
    assert distance[np.abs(x[:, 0]) < 1].max() < 1e-6


def test_rows_that_a_far_value_moves_together_stay_different(tmp_path: Path) -> None:
    x = np.random.default_rng(1).lognormal(size=(2 * N, 1))
    x[0] = 1e7
    forest = RandomForestClassifier(20, random_state=0).fit(x[:N], Y[:N])
    for rows in (x, pd.DataFrame(x)):
        out = tmp_path / type(rows).__name__
        both = {"members": (rows[:N], Y[:N]), "nonmembers": (rows[N:], Y[N:])}
        found = audit(tmp_path, forest, **both, out=out)
        assert found[0].utility["train_accuracy"] > 0.9


@pytest.mark.parametrize(("y", "told"), [
    (Y + 1, "the model knows 3 classes, 0 to 2, and y has class 3, counted from 0: number"),
    (5 * Y, "0 to 2, and y has class 10, counted from 0: number the classes as the model does"),
    (np.eye(3)[Y], "y has 3 columns, of which one is 1 in each row: give the class of each row"),
])  # fmt: skip
def test_classes_that_the_model_does_not_know(y: Any, told: str, tmp_path: Path) -> None:
    ask = FOREST.predict_proba
    said = refusal(tmp_path, model=ask, members=(X[:N], y[:N]), nonmembers=(X[N:], y[N:]))
    assert told in said


def test_texts_of_another_order_are_named() -> None:
    y = np.arange(300) % 3
    both = {"members": y, "nonmembers": y}
    turned = {source: (one + 1) % 3 for source, one in both.items()}
    told = misfit(turned, both, ("cat", "dog", "owl"))
    assert "its class 1 is cat in y" in told
    assert "texts are numbered in sorted order, so give y as the numbers of the model's" in told
    assert "number y as the model does" in misfit(turned, both)


def test_targets_beyond_float32_are_refused(tmp_path: Path) -> None:
    y = np.linspace(0.5, 1.5, N)
    forest = RandomForestRegressor(5, random_state=0).fit(X[:N], y)
    huge = np.where(np.arange(N) == 4, 1e300, y)
    told = refusal(tmp_path, model=forest, members=(X[:N], huge), attacks=["squared-error"])
    assert "members: y is 1e+300 in row 4, and at most 1e+30 can be audited" in told


def test_frames_of_two_libraries_are_named(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars", reason="one of the frames is polars'")
    one, other = pd.DataFrame(X).assign(y=Y), pl.DataFrame({"a": X[:, 0], "y": Y})
    told = refusal(tmp_path, members=one, nonmembers=other)
    assert "its rows are a DataFrame of polars, those of the members a DataFrame of pandas" in told


def test_copies_of_a_member_are_told(tmp_path: Path) -> None:
    twice = (np.concatenate([X[:N], X[:30]]), np.concatenate([Y[:N], Y[:30]]))
    found = audit(tmp_path, members=twice)
    told = "30 members are equal to an earlier member; each row counts once: a model remembers"
    assert told in found.summary
    assert found[0].sizes["members"] == N
    assert sorted(row for row, _ in found.exposed) == [*range(N)]
    assert [one.metrics["auc"] for one in found] == [
        one.metrics["auc"] for one in audit(tmp_path, out=tmp_path / "plain")
    ]
    told = refusal(tmp_path, nonmembers=(np.repeat(X[N : N + 9], 9, 0), np.repeat(Y[N : N + 9], 9)))
    assert "nonmembers: 9 different rows (of 81) are too few: give at least 20" in told
    few = np.round(X[:, :2])  # rows of two bits are equal in both sets
    forest = RandomForestRegressor(5, random_state=0).fit(few[:N], X[:N, 2])
    said = audit(tmp_path, forest, members=(few[:N], X[:N, 2]), nonmembers=(few[N:], X[N:, 2]),
                 attacks=["squared-error"], out=tmp_path / "few").summary  # fmt: skip
    assert "equal to an earlier member" not in said


def test_a_date_that_is_the_same_in_all_rows(tmp_path: Path) -> None:
    table = pd.DataFrame(X, columns=list("abcd")).assign(when=pd.Timestamp("2026-01-01"), y=Y)

    def ask(rows: Any) -> Any:
        return FOREST.predict_proba(rows[list("abcd")].to_numpy(np.float32))

    found = audit(tmp_path, ask, members=table[:N], nonmembers=table[N:])
    assert "The only attack" in found.summary
    assert not any("when" in one.name for one in found.subgroups.tested)


@pytest.mark.parametrize("column", [
    1e6 + np.arange(40) / 100, pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(40), "s"),
    np.arange(40.0), pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(40), "D"),
])  # fmt: skip
def test_ranges_that_are_near_one_another_have_names_of_their_own(column: Any) -> None:
    groups: Any = subgroups._column("x", column)
    assert len(groups) == subgroups.RANGES
    assert (np.sum([*groups.values()], axis=0) == 1).all()


def test_rows_of_another_source_are_named(tmp_path: Path) -> None:
    moved = X[N:] + 5
    found = audit(tmp_path, nonmembers=(moved, (FOREST.predict(moved) + 1) % 3))
    assert "or the two sets are of different sources, since their rows differ" in found.no_verdict


def test_few_rows_have_an_auc_and_a_sentence(tmp_path: Path) -> None:
    few = {"members": (X[:80], Y[:80]), "nonmembers": (X[N : N + 80], Y[N : N + 80])}
    said = audit(tmp_path, **few).summary
    assert "has an AUC of 0." in said
    assert "is not known: that takes at least 100 nonmembers." in said
    assert "unknown" not in said
    assert "swapped" not in said
    turned = {"members": few["nonmembers"], "nonmembers": few["members"], "out": tmp_path / "two"}
    weak = RandomForestClassifier(20, min_samples_leaf=6, random_state=0).fit(X[:80], Y[:80])
    said = audit(tmp_path, weak, **turned).summary
    assert "chance in one of 40 audits; otherwise the files of members and nonmembers are s" in said


# ---- the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "told"), [
    ("./mm:load", "names a file: write the module: mm:load"),
    ("src/mm.py:load", "names a file: write the module: src.mm:load"),
    ("../mm.py:load", "names a file: write the module: mm:load, and run the command in .."),
    ("mm.py:load", "names a file: write the module: mm:load"),
    ("api.example.com/v1/m:predict", "is no model: write module:function, such as my_module:load"),
    ("src/absent:load", "is no model: write module:function"),
    ("127.0.0.1:8000/ok", "looks like an address: write it with http:// or https://"),
    ("localhost:8000", "looks like an address"),
    (f"{HERE}:lacks", "'weights.bin'): correct it"),
    (f"{HERE}:path", "missing 1 required positional argument: 'path'): write one that takes no"),
    (f"{HERE}:kind", "is the class RandomForestClassifier: give an instance of it that is train"),
    (f"{HERE}:makes_kind", "is the class RandomForestClassifier"),
    (f"{HERE}:rows", "is a ndarray, which cannot be asked: return a torch module"),
    (RandomForestClassifier(), "own-model: the given model failed on rows of shape"),
    (RandomForestClassifier, "the given model is the class RandomForestClassifier"),
    (lambda x: np.full((len(x), 2), 0.5 + 0j), "answered a ndarray of complex numbers: return p"),
    (lambda x: np.ma.masked_less(np.full((len(x), 2), 0.5), 0.6), "MaskedArray with masked values"),
    (lambda x: ["cat"] * len(x), "answered a list of texts, cat: return posteriors (n, k), numb"),
    (lambda x: x[:, :3] - 0.5, "metric-confidence: it reads posteriors, and the model does not"),
])  # fmt: skip
def test_a_model_that_is_none(
    model: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here/src").mkdir(parents=True)
    for file in ("mm.py", "here/mm.py", "here/src/mm.py"):
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path / "here")
    options = {"output": "embeddings"} if "reads posteriors" in told else {}
    said = refusal(tmp_path, model=model, **options)
    assert told in said
    assert "given:" not in said


def test_a_session_in_a_module_is_asked(tmp_path: Path) -> None:
    assert "AUC is" in audit(tmp_path, f"{HERE}:session").summary


def test_a_forest_of_several_outputs_is_refused(tmp_path: Path) -> None:
    several = RandomForestClassifier(5).fit(X[:N], np.stack([Y[:N], 1 - Y[:N] % 2], 1))
    assert "the given model answered" in refusal(tmp_path, model=several)


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "told"), [
    ({"out": None}, "out: it is a NoneType: give the path of a folder"),
    ({"coins": np.ones(3), "claim": (1, 1e-5)}, "coins: they are a ndarray: give the path of"),
    ({"shadow_recipe": FOREST}, "a RandomForestClassifier trains nothing: give clone, which cop"),
    ({"shadow_recipe": "clon"}, "unknown shadow recipe 'clon': did you mean 'clone'?"),
    ({"attacks": ["reconstruction"]}, "reconstruction: an audit asks about membership and attr"),
    ({"attacks": ["lira"]}, "no attack can run: lira: shadows are needed (a shadow recipe, or sh"),
    ({"attacks": "talos"}, "attack 'talos': it is a defense, not an attack: name another"),
    ({"defenses": ["lira"]}, "defense 'lira': it is an attack, not a defense: name another"),
    ({"settings": {"lirra": {"k": 3}}}, "unknown method 'lirra': did you mean 'lira'?"),
    ({"settings": {"lira": {"k": 3}}}, "settings` lira: this run has no lira: it has metric-conf"),
    ({"preset": "paper"}, "unknown preset 'paper': choose from cpu; no method of this run has an"),
    ({"output": "values"}, "output values: the model is a classifier: leave it out"),
])  # fmt: skip
def test_an_option_that_is_none(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    assert told in refusal(tmp_path, **options).replace("--set", "settings`")


def test_answers_with_columns_that_are_none(tmp_path: Path) -> None:
    answers = FOREST.predict_proba(X)
    with np.errstate(divide="ignore"):
        logs = np.log(answers)
    held = {"members": (logs[:N], Y[:N]), "nonmembers": (logs[N:], Y[N:])}
    said = refusal(tmp_path, model=None, **held)
    assert "members: an answer is NaN or infinite, first in row " in said
    assert "in place of logarithms give posteriors" in said
    wide = pd.DataFrame(answers, columns=list("012")).assign(id=range(2 * N), y=Y)
    said = refusal(tmp_path, model=None, members=wide[:N], nonmembers=wide[N:])
    assert "the answers have 4 columns, which hold no posteriors, and y has classes from 0" in said
    assert "give a column for each class and no other" in said


def test_coins_about_tables(tmp_path: Path) -> None:
    table = pd.DataFrame(X, columns=list("abcd"))
    with pytest.raises(BadInputError, match="rows: x is a table or a list: give an array"):
        privbench.coins(table, count=10, seed_file=tmp_path / "secret")
    with pytest.raises(BadInputError, match="count: 10 is no whole number: give how many rows"):
        privbench.coins({"x": X}, count="10", seed_file=tmp_path / "secret")  # type: ignore[arg-type]
    train = privbench.coins({"x": X}, count=100, seed_file=tmp_path / "secret")
    table = table.assign(y=Y)
    told = refusal(tmp_path, members=table[train], nonmembers=table[~train], claim=(1, 1e-5),
                   coins=tmp_path / "secret")  # fmt: skip
    assert "coins are about arrays of numbers, so give such members and nonmembers" in told


# ---- folders ------------------------------------------------------------------------------------


def test_compare_takes_audits_their_folders_and_their_documents(tmp_path: Path) -> None:
    one = audit(tmp_path, out=tmp_path / "one")
    other = RandomForestClassifier(10, random_state=1).fit(*MEMBERS)
    two = audit(tmp_path, other, out=tmp_path / "two")
    known = privbench.compare(tmp_path / "one", tmp_path / "two").verdict
    assert privbench.compare(one, two).verdict == known
    assert privbench.compare(tmp_path / "one/audit.json", two).verdict == known
    assert "alike" not in known
    assert privbench.compare(one, one).verdict.startswith("Both versions answered all rows alike.")
    for wrong, told in (
        (tmp_path / "none", "new: .*none does not exist: give the folder of an audit"),
        (3, "new: it is a int: give an audit or its folder"),
    ):
        with pytest.raises(BadInputError, match=told):
            privbench.compare(one, wrong)  # type: ignore[arg-type]
    # of another version of privbench, in the same folder: the later result counts
    provenance = {**two[0].provenance, "finished": "2020-01-01T00:00:00+00:00"}
    two[0].model_copy(update={"trial": "0" * 32, "samples": None, "provenance": provenance}).write(
        tmp_path / "two"
    )
    assert privbench.compare(one, two).verdict == known
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "one"), str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "none does not exist: give the folder of an audit" in done.output


def test_a_file_of_others_is_not_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/package.json").write_text("{}")
    told = refusal(tmp_path)
    assert "run the trial again, or move the file away" in told
    assert "remove" not in told


# ---- models that answer otherwise ---------------------------------------------------------------


def test_one_logit_stands_for_two_classes(tmp_path: Path) -> None:
    weights = np.array([4.0, 0.1, -0.1, 0.0]), -0.9
    x = X.copy()
    x[:N, 0] = 0.26 + 0.15 * x[:N, 0]  # all logits of the members lie in [0, 1]
    y = (x[:, 0] > 0.225).astype(int)

    def one(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows @ weights[0] + weights[1])[:, None]

    def two(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([0 * one(rows), one(rows)], 1)

    given = {"members": (x[:N], y[:N]), "nonmembers": (x[N:], y[N:])}
    mine = audit(tmp_path, one, **given, out=tmp_path / "one")
    theirs = audit(tmp_path, two, **given, output="logits", out=tmp_path / "two")
    assert mine[0].metrics["auc"] == theirs[0].metrics["auc"]
    assert mine[0].utility["train_accuracy"] == theirs[0].utility["train_accuracy"]
    assert "read as the logit of class 1" in str(mine)
    assert "read as the logit" not in str(theirs)


def test_logits_of_more_classes_than_the_rows_have(tmp_path: Path) -> None:
    wide = np.random.default_rng(0).normal(size=(4, 5))
    answers = X @ wide
    y = answers[:, :4].argmax(1)  # the fifth class has no row
    y[::9] = 0

    def model(rows: np.ndarray) -> np.ndarray:
        made = rows @ wide
        made[:, 4] -= 100
        return np.asarray(made)

    given = {"members": (X[:N], y[:N]), "nonmembers": (X[N:], y[N:]), "model": model}

    def fit(x: Any, y: Any, seed: int) -> Any:
        del x, y, seed
        return model

    for more in ({}, {"shadow_recipe": fit}):
        told = refusal(tmp_path, **given, **more)
        assert "answers 5 numbers for each row, and the largest is that of y for" in told
        assert told.endswith("name output logits, or embeddings")
    assert len(audit(tmp_path, **given, output="logits")) == 1


def test_classes_of_large_numbers(tmp_path: Path) -> None:
    codes = np.array([520, 1000, 3000])
    forest = RandomForestClassifier(10, random_state=0).fit(X[:N], codes[Y[:N]])
    usual = audit(tmp_path)[0].metrics["auc"]
    both = {"members": (X[:N], codes[Y[:N]]), "nonmembers": (X[N:], codes[Y[N:]])}
    told = refusal(tmp_path, model=forest, **both)
    assert "give the classes as texts, or name output posteriors or labels" in told
    named = audit(tmp_path, forest, **both, output="posteriors", out=tmp_path / "named")
    texts = {name: (x, y.astype(str)) for name, (x, y) in both.items()}
    as_texts = audit(tmp_path, forest, **texts, out=tmp_path / "texts")
    assert named[0].metrics["auc"] == as_texts[0].metrics["auc"] == usual


def test_a_regression_on_whole_numbers_is_none_of_classes(tmp_path: Path) -> None:
    ages = (X[:, 0] * 60).astype(int) + 20
    tree = DecisionTreeRegressor(random_state=0).fit(X[:N], ages[:N])
    both = {"members": (X[:N], ages[:N]), "nonmembers": (X[N:], ages[N:])}
    assert refusal(tmp_path, model=tree, **both) == "the model is a regression: name output values"


def test_answers_of_sets_with_other_classes_are_no_leak(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    n = 400
    y = np.concatenate([draw.random(n) < 0.8, draw.random(n) < 0.5]).astype(int)
    sure = np.where(y == 1, 0.95, 0.6) + draw.normal(scale=0.01, size=2 * n)
    p = np.where(y[:, None] == np.arange(2), sure[:, None], 1 - sure[:, None]).clip(0, 1)
    found = privbench.audit(
        members=(p[:n], y[:n]), nonmembers=(p[n:], y[n:]), attacks=["metric-entropy"], out=tmp_path
    )
    assert (found[0].metrics["auc"].value or 0) > 0.55
    assert found.shift.found
    assert "draw nonmembers with the members' shares" in found.summary
    assert "The model leaks" not in found.summary


def test_an_object_that_reads_pictures_gets_them(tmp_path: Path) -> None:
    class Reader:
        def predict_proba(self, rows: np.ndarray) -> np.ndarray:
            n, channels, high, wide = rows.shape
            return np.asarray(FOREST.predict_proba(rows.reshape(n, channels * high * wide)))

    pictures = X.reshape(-1, 1, 2, 2)
    both = {"members": (pictures[:N], Y[:N]), "nonmembers": (pictures[N:], Y[N:])}
    flat = audit(tmp_path)[0].metrics["auc"]
    assert audit(tmp_path, Reader(), **both, out=tmp_path / "p")[0].metrics["auc"] == flat


# ---- rows that do not fit together --------------------------------------------------------------


def test_shapes_that_are_no_pictures(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2 * N, 4, 8, 8))
    told = refusal(tmp_path, members=(x[:N], Y[:N]), nonmembers=(x[N:], Y[N:]))
    assert f"x has shape ({N}, 4, 8, 8): give images of 1 or 3 channels" in told
    pictures = np.random.default_rng(0).random((2 * N, 1, 2, 2))
    as_bytes = (255 * pictures[:N]).astype(np.uint8)
    told = refusal(tmp_path, members=(as_bytes, Y[:N]), nonmembers=(pictures[N:], Y[N:]))
    assert "members: its images hold bytes, and those of another file floats" in told


def test_columns_of_one_name(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abca"))
    told = refusal(tmp_path, members=(frame[:N], Y[:N]), nonmembers=(frame[N:], Y[N:]))
    assert "members: 2 columns are called a: rename one" in told
    labelled = frame.assign(y=Y)
    told = refusal(tmp_path, members=labelled[:N], nonmembers=labelled[N:])
    assert "2 columns are called a: rename one" in told


def test_a_column_that_is_empty_in_one_file(tmp_path: Path) -> None:
    members = pd.DataFrame(X[:N]).assign(note="", y=Y[:N])
    members.loc[3, "note"] = "late"
    nonmembers = pd.DataFrame(X[N:]).assign(note=np.nan, y=Y[N:])
    members.to_csv(tmp_path / "m.csv", index=False)
    nonmembers.to_csv(tmp_path / "n.csv", index=False)

    def model(rows: Any) -> np.ndarray:
        assert list(rows.columns) == ["0", "1", "2", "3", "note"]
        return np.asarray(FOREST.predict_proba(rows.iloc[:, :4].to_numpy(np.float32)))

    both = {"members": tmp_path / "m.csv", "nonmembers": tmp_path / "n.csv"}
    assert audit(tmp_path, model, **both)[0].utility["train_accuracy"] > 0.9


def test_a_claim_about_a_table_with_a_far_value(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2 * N, 4))
    x[0, 0] = -99_999
    train = privbench.coins({"x": x}, count=100, seed_file=tmp_path / "secret")
    found = audit(tmp_path, members=(x[train], Y[train]), nonmembers=(x[~train], Y[~train]),
                  claim=(2, 1e-5), coins=tmp_path / "secret")  # fmt: skip
    assert found.claim is not None
    told = refusal(tmp_path, members=(x[:N], Y[:N]), nonmembers=(x[N:], Y[N:]),
                   attacks=["label-lira"], shadow_recipe="clone")  # fmt: skip
    assert "numbers of the rows are missing or far from all others of their column" in told


def test_dense_values_are_not_far_ones() -> None:
    draw = np.random.default_rng(0)
    normal = draw.normal(size=(200_000, 3))
    assert not _lost(normal)
    assert not _lost(normal * np.exp(normal))
    assert not _lost(np.round(normal, 2) * 1e6)
    assert _lost(np.concatenate([draw.random((1000, 3)), [[0.5, -1e6, 0.5]]]))


def _lost(x: np.ndarray) -> bool:
    return loses(x, *in_unit_interval(x))


def test_one_logit_within_the_unit_interval(tmp_path: Path) -> None:
    y = (X[:, 0] > 0).astype(int)
    y[:5] = 0
    both = {"members": (X[:N], y[:N]), "nonmembers": (X[N:], y[N:])}
    found = audit(tmp_path, lambda rows: rows[:, :1] + 0.1, **both, output="logits")
    assert found[0].cell.target.fields["gives"] == "logits"
    assert found[0].utility["train_accuracy"] == pytest.approx(1 - 5 / N)


def test_a_regressor_may_be_what_the_user_says(tmp_path: Path) -> None:
    linear = LinearRegression().fit(X[:N], np.eye(3)[Y[:N]])
    assert audit(tmp_path, linear, output="logits")[0].status == "ok"


@pytest.mark.parametrize("codes", [[1000.0, 3000.0, 20_000.0], [0, 1, 2], [2, 10, 100]])
def test_numbers_as_texts_are_the_models_classes(codes: list[float], tmp_path: Path) -> None:
    known = np.array(codes)
    y = known[Y]
    forest = RandomForestClassifier(10, random_state=0).fit(X[:N], y[:N])
    texts = y.astype(int).astype(str)
    both = {"members": (X[:N], texts[:N]), "nonmembers": (X[N:], texts[N:])}
    found = audit(tmp_path, forest, **both)
    assert found[0].metrics["auc"] == audit(tmp_path, out=tmp_path / "usual")[0].metrics["auc"]


def test_more_classes_than_can_be_audited(tmp_path: Path) -> None:
    def model(rows: np.ndarray) -> np.ndarray:
        return np.full((len(rows), 1500), 1 / 1500)

    assert "there are 1,500 classes, and at most 1,000" in refusal(tmp_path, model=model)


def test_a_picture_model_that_fails_tells_both_reasons(tmp_path: Path) -> None:
    class Broken:
        def predict_proba(self, rows: np.ndarray) -> np.ndarray:
            raise RuntimeError("flat" if rows.ndim == 2 else "the weights are lost")

    pictures = X.reshape(-1, 1, 2, 2)
    both = {"members": (pictures[:N], Y[:N]), "nonmembers": (pictures[N:], Y[N:])}
    told = refusal(tmp_path, model=Broken(), **both)
    assert "as rows of columns: RuntimeError: flat; as pictures: RuntimeError: the weights" in told


def test_rows_are_refused_without_torch(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", x=100 * X[:N], y=Y[: N - 1])
    np.savez(tmp_path / "n.npz", x=100 * X[N:], y=Y[N:])
    script = (
        "import sys\nfrom privbench.api.own_model.rows import read_rows\n"
        "try:\n    read_rows('m.npz', 'n.npz')\nexcept Exception as error:\n"
        "    print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert "give one class or number for each row" in done.stdout
    assert done.stdout.rstrip().endswith("False")
