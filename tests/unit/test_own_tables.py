"""The audit of models on rows as people have them: tables, texts and objects of any kind."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.sparse
import torch
from click.testing import CliRunner
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC

import privbench
from privbench import BadInputError
from privbench.api.own_model.choice import attacks_for
from privbench.api.own_model.rows import read_rows
from privbench.api.own_model.shift import shift
from privbench.cli.main import main
from privbench.toolbox import looked_up
from privbench.toolbox.looked_up import Lookup, Sparse
from privbench.toolbox.opened_model import askable
from privbench.toolbox.row_files import Reading

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.plugins.registry import Registry

pd = pytest.importorskip("pandas", reason="tables of pandas need pandas")
pl = pytest.importorskip("polars", reason="tables of polars need polars")

QUICK = ["metric-confidence", "metric-correctness"]
TOWNS = ["Bern", "Oslo", "Rome"]


def people(n: int, seed: int) -> Any:
    """A table of all kinds of columns, with missing values, and a class of texts."""
    draw = np.random.default_rng(seed)
    town = np.array([*TOWNS, None], object)[draw.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])]
    age = draw.normal(40, 12, n)
    age[draw.random(n) < 0.1] = np.nan
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, n), "D")
    rich = draw.random(n) < 0.3 + 0.3 * (town == "Oslo")
    return pd.DataFrame({
        "age": age,
        "town": pd.Series(town, dtype=object),
        "size": pd.Categorical.from_codes(draw.integers(0, 3, n), ["S", "M", "L"], ordered=True),
        "since": day,
        "visits": pd.array(draw.integers(0, 9, n), dtype="Int64"),
        "member": draw.random(n) < 0.5,
        "note": [f"note {i} of {seed}" for i in draw.integers(0, 10**6, n)],
        "rich": np.where(rich, "yes", "no"),
    })  # fmt: skip


MEMBERS, NONMEMBERS = people(150, 0), people(150, 1)


def pipeline(table: Any = MEMBERS) -> Any:
    """A forest on columns that are chosen by name."""
    texts = OneHotEncoder(handle_unknown="ignore")
    columns = [("texts", texts, ["town", "size"]), ("numbers", "passthrough", ["age", "visits"])]
    forest = RandomForestClassifier(20, bootstrap=False, random_state=0)
    made = make_pipeline(ColumnTransformer(columns), forest)
    return made.fit(table.drop(columns="rich"), table.rich)


def run(tmp_path: Path, model: Any, **options: Any) -> Any:
    given: dict[str, Any] = {
        "members": MEMBERS, "nonmembers": NONMEMBERS, "label": "rich", "attacks": QUICK,
    }  # fmt: skip
    return privbench.audit(model, out=tmp_path / "out", **given | options)


def auc(results: Any, attack: str = "metric-confidence") -> float:
    record = next(one for one in results if one.cell.attack.name == attack)
    assert record.status == "ok", record.reason
    value: float = record.metrics["auc"].value
    return value


# ---- a model gets the rows as they are ----------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_model_gets_the_table_as_it_is(tmp_path: Path, library: str) -> None:
    whole = [MEMBERS, NONMEMBERS]
    if library == "polars":
        whole = [pl.DataFrame({n: one[n].to_list() for n in one}) for one in whole]
    both = pd.concat(whole) if library == "pandas" else pl.concat(whole)
    types = [str(both[name].dtype) for name in both.columns[:-1]]
    known = {repr(row) for row in looked_up._each(both[list(both.columns[:-1])])}
    seen: set[str] = set()

    def model(table: Any) -> Any:
        assert type(table) is type(both)
        assert list(table.columns) == list(both.columns[:-1])
        assert [str(table[name].dtype) for name in table.columns] == types
        seen.update(repr(row) for row in looked_up._each(table))
        return np.full((len(table), 2), 0.5)

    found = run(tmp_path, model, members=whole[0], nonmembers=whole[1])
    assert seen == known
    assert found.shift.p_value > 1e-4
    assert found.summary.startswith("No leak was found")


@pytest.mark.slow
def test_a_pipeline_is_audited_and_cloned(tmp_path: Path) -> None:
    found = run(tmp_path, pipeline(), attacks=[*QUICK, "lira"], shadow_recipe="clone")
    assert auc(found) > 0.7
    assert auc(found, "lira") > 0.7
    pair = (MEMBERS.drop(columns="rich"), MEMBERS.rich)
    again = run(tmp_path / "pair", pipeline(), members=pair)
    assert auc(again) == auc(found)


@pytest.mark.slow
def test_a_recipe_gets_the_table(tmp_path: Path) -> None:
    def fit(table: Any, y: Any, seed: int) -> Any:
        assert seed >= 0
        assert list(table.columns) == list(MEMBERS.columns[:-1])
        assert set(y.tolist()) == {0, 1}
        return pipeline(table.assign(rich=y))

    assert auc(run(tmp_path, pipeline(), attacks=["lira"], shadow_recipe=fit), "lira") > 0.7


def written(folder: Path, kind: str) -> list[str]:
    arguments = []
    for name, whole in {"members": MEMBERS, "nonmembers": NONMEMBERS}.items():
        file = folder / f"{name}.{kind}"
        table = whole.astype({"size": "str"})
        if kind == "csv":
            table.to_csv(file, index=False)
        elif kind == "parquet":
            table.to_parquet(file)
        else:
            table.to_json(file, orient="records", lines=True, date_format="iso")
        arguments += [f"--{name}", str(file)]
    return arguments


MODULE = """
import pandas as pd
from sklearn.pipeline import make_pipeline
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import OneHotEncoder

def load():
    table = pd.read_csv("members.csv")
    columns = [("texts", OneHotEncoder(handle_unknown="ignore"), ["town", "size"]),
               ("numbers", "passthrough", ["age", "visits"])]
    forest = RandomForestClassifier(20, bootstrap=False, random_state=0)
    made = make_pipeline(ColumnTransformer(columns), forest)
    return made.fit(table.drop(columns="rich"), table.rich)

def words():
    return lambda texts: [[.5, .5] if isinstance(one, str) else None for one in texts]

def rows(path):
    table = pd.read_csv(path)
    return [(row.note, row.age) for row in table.itertuples()], table.rich
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tables.py").write_text(MODULE)
    yield "my_tables"
    sys.modules.pop("my_tables", None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_files_of_tables_on_the_command_line(tmp_path: Path, module: str, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    written(tmp_path, "csv")
    arguments = ["audit", "--model", f"{module}:load", *written(tmp_path, kind), "--label", "rich",
                 "--attack", "metric-confidence"]  # fmt: skip
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "The model leaks who its members are" in done.output
    assert "Accuracy: 100.0% on members" in done.output
    source = next(iter(looked_up._REGISTERED))
    source = [name for name in looked_up._REGISTERED if f"members.{kind}" in name][-1]
    worker = looked_up._read(source)  # as another process reads them
    assert worker.x.tolist() == looked_up.looked_up(source).x.tolist()
    (tmp_path / f"members.{kind}").write_bytes(b"other")
    looked_up._read.cache_clear()
    with pytest.raises(BadInputError, match="it changed since the run began"):
        looked_up._read(source)


def test_a_column_of_texts_and_a_loader_on_the_command_line(tmp_path: Path, module: str) -> None:
    arguments = [*written(tmp_path, "jsonl"), "--label", "rich", "--attack", "metric-confidence"]
    model = ["audit", "--model", f"{module}:words", *arguments]
    done = CliRunner().invoke(main, [*model, "--column", "note", "--out", "texts"])
    assert done.exit_code == 0, done.output
    written(tmp_path, "csv")
    files = [one.replace(".jsonl", ".csv") for one in arguments]
    (tmp_path / "my_tables.py").write_text(MODULE.replace("isinstance(one, str)", "len(one) == 2"))
    loader = ["--rows", f"{module}:rows", "--out", "loaded"]
    sys.modules.pop("my_tables")
    done = CliRunner().invoke(main, ["audit", "--model", f"{module}:words", *files, *loader])
    assert done.exit_code == 0, done.output
    assert "were not compared: only the model knows what rows hold" in done.output


# ---- texts and objects ---------------------------------------------------------------------------


def texts(n: int, seed: int, words: str = "red green blue one two three four five six") -> Any:
    draw = np.random.default_rng(seed)
    some = [f"{' '.join(draw.choice(words.split(), 12))} {draw.integers(10**9)}" for _ in range(n)]
    return some, np.array(["spam" if draw.random() < 0.5 else "ham" for _ in some])


@pytest.mark.slow
def test_a_text_classifier_is_audited(tmp_path: Path) -> None:
    members, nonmembers = texts(120, 0), texts(120, 1)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(C=1000)).fit(*members)
    found = run(tmp_path, model, members=members, nonmembers=nonmembers)
    assert auc(found) > 0.9
    assert not found.shift.found
    other = texts(120, 1, "cat dog bird")
    assert run(tmp_path / "other", model, members=members, nonmembers=other).shift.found


class Sound:
    """An object of a user's own."""

    def __init__(self, wave: np.ndarray) -> None:
        self.wave = wave


@pytest.mark.parametrize("form", [pytest.param("csr_matrix", marks=pytest.mark.slow), "coo_matrix"])
def test_a_sparse_matrix_is_audited_and_cloned_as_a_dense_one(tmp_path: Path, form: str) -> None:
    """Counts of words. Which rows a shadow gets depends on their keys, so `lira` differs."""
    draw = np.random.default_rng(0)
    dense = (draw.random((240, 400)) < 0.05) * draw.integers(1, 4, (240, 400))
    y = draw.integers(0, 2, 240)
    model = LogisticRegression(C=100.0).fit(dense[:120], y[:120])
    found = []
    made: list[Any] = [getattr(scipy.sparse, form), np.asarray]
    for i, of in enumerate(made):
        results = privbench.audit(
            model, members=(of(dense[:120]), y[:120]), nonmembers=(of(dense[120:]), y[120:]),
            shadow_recipe="clone", attacks=["metric-modified-entropy", "lira"],
            out=tmp_path / str(i), device="cpu",
        )  # fmt: skip
        names = ("metric-modified-entropy", "lira")
        found.append({attack: auc(results, attack) for attack in names})
    thin, same = found
    assert thin["metric-modified-entropy"] == pytest.approx(same["metric-modified-entropy"])
    assert min(thin["lira"], same["lira"]) > 0.7


def test_a_worker_reads_sparse_rows_by_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this process does, so a row is found again."""
    module = tmp_path / "loads_sparse.py"
    module.write_text(
        "import pathlib, scipy.sparse\n"
        "def rows(path):\n"
        "    n = int(pathlib.Path(path).read_text())\n"
        "    return scipy.sparse.eye_array(60, format='coo').tocsr()[n : n + 30], [0, 1] * 15\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, n in (("members", 0), ("nonmembers", 30)):
        (tmp_path / name).write_text(str(n))
    how = Reading(loader="loads_sparse:rows")
    mine = read_rows(tmp_path / "members", tmp_path / "nonmembers", reading=how)
    theirs = looked_up._read.__wrapped__(mine.source)
    assert mine.lookup is not None
    assert theirs.content == mine.lookup.content
    assert np.array_equal(theirs.x, mine.x)


def test_sparse_rows_that_cannot_be_used() -> None:
    rows: Any = scipy.sparse.eye_array(40, 50, format="csr")
    for given, told in (
        (rows[:, :0], "members: x is a sparse array of float64 with shape (40, 0): give a table"),
        (rows[:, :40], "nonmembers: it has 50 columns, and the members 40: give the same columns"),
        (scipy.sparse.coo_array(np.ones(40)), "with shape (40,): give a table"),
    ):
        with pytest.raises(BadInputError, match=re.escape(told)):
            read_rows((given, np.zeros(40, int)), (2 * rows, np.zeros(40, int)))
    wider: Any = scipy.sparse.eye_array(40, 60, format="csr")
    assert Lookup(Sparse(rows)).content != Lookup(Sparse(wider)).content


def test_rows_of_a_sparse_matrix_are_told_apart() -> None:
    """Equal rows are one, also where zeros are stored or columns are in another order."""
    rows: Any = scipy.sparse.csr_array(
        ([1.0, 2.0, 2.0, 1.0, 0.0, 1.0], [0, 300, 300, 0, 7, 44], [0, 2, 5, 6]), shape=(3, 400)
    )
    found = Lookup(Sparse(rows))
    assert found.prints[0] == found.prints[1] != found.prints[2]
    assert found.x.shape[1] <= 256 + 4
    asked = found(torch.from_numpy(found.x[[2, 0]]))
    assert scipy.sparse.issparse(asked)
    assert (asked != rows[[2, 0]]).nnz == 0


def test_objects_of_any_kind(tmp_path: Path, registry: Registry) -> None:
    draw = np.random.default_rng(0)
    sounds = [Sound(draw.normal(size=draw.integers(50, 90))) for _ in range(120)]
    y = np.arange(60) % 2
    inside = {one.wave.tobytes() for one in sounds[:60]}

    def model(rows: list[Sound]) -> Any:  # sure of what it has seen
        classes = {one.wave.tobytes(): c for one, c in zip(sounds, [*y, *y], strict=True)}
        sure = [0.99 if one.wave.tobytes() in inside else 0.6 for one in rows]
        return [[p, 1 - p] if classes[one.wave.tobytes()] == 0 else [1 - p, p]
                for p, one in zip(sure, rows, strict=True)]  # fmt: skip

    found = run(tmp_path, model, members=(sounds[:60], y), nonmembers=(sounds[60:], y))
    assert auc(found) == 1
    assert "were not compared: only the model knows what rows hold" in found.summary
    with pytest.raises(BadInputError, match="label-lira: it asks about changed rows"):
        run(tmp_path, model, members=(sounds[:60], y), nonmembers=(sounds[60:], y),
            attacks=["label-lira"])  # fmt: skip
    opaque, table = Lookup(sounds), Lookup(MEMBERS)
    for rows, shadow in ((opaque, True), (table, False)):
        _, left = attacks_for(registry, [], attributes=False, shadow=True, own=True, lookup=rows)
        assert ("quantile" in left) == shadow
        assert "label-only-noise" in left
    with pytest.raises(BadInputError, match="shadows need your code"):
        run(tmp_path, model, members=(sounds[:60], y), nonmembers=(sounds[60:], y),
            shadow=([Sound(one.wave + 1) for one in sounds[:60]], y))  # fmt: skip


def test_a_changed_row_is_no_row() -> None:
    rows = Lookup(["one", "two", "three"])
    assert rows(torch.from_numpy(rows.x[[2, 0]])) == ["three", "one"]
    with pytest.raises(BadInputError, match="a changed row was asked"):
        rows(torch.from_numpy(rows.x + 0.25))


def test_rows_with_equal_numbers_are_told_apart() -> None:
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    times = [day + dt.timedelta(microseconds=i) for i in range(3)]
    table = pd.DataFrame({"t": [*times, day.replace(year=1980), times[0]]})
    rows = Lookup(table)
    assert rows.x.shape[1] == rows.features + 4
    assert len(set(looked_up.keys(rows.x))) == 4
    assert rows(torch.from_numpy(rows.x[[1]])).t.tolist() == [times[1]]


def test_columns_become_numbers() -> None:
    table = pd.DataFrame({"n": [1.0, np.nan, 3.0], "c": ["b", None, "a"], "d": pd.NaT})
    made = looked_up.encoded(table)
    assert made[:, :2].tolist() == [[0, 0], [0, 1], [1, 0]]
    assert made[:, 2:4].tolist() == [[0, 1], [0, 0], [1, 0]]


def test_missing_numbers_in_arrays_reach_the_model(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 4))
    x[::3, 1] = np.nan
    y = draw.integers(0, 2, 200)
    model = RandomForestClassifier(20, bootstrap=False, random_state=0).fit(x[:100], y[:100])
    assert (
        auc(run(tmp_path, model, members=(x[:100], y[:100]), nonmembers=(x[100:], y[100:]))) > 0.8
    )


# ---- classes -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("names", [["low", "mid", "top"], [-1, 0, 1], [3, 5, 9], [0, 1, 2]])
@pytest.mark.parametrize("probability", [True, False])
def test_classes_are_those_of_the_model_also_without_rows(
    tmp_path: Path, names: list[Any], *, probability: bool
) -> None:
    """The second class has no row among those of the audit."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3))
    y = np.array(names)[draw.choice([0, 2], 200)]
    more = np.concatenate([x[:100], draw.normal(size=(20, 3))]), np.append(y[:100], [names[1]] * 20)
    model: Any = (
        RandomForestClassifier(20, bootstrap=False, random_state=0)
        if probability
        else SVC(C=1e6, gamma=9)
    )
    rows = {"members": (x[:100], y[:100]), "nonmembers": (x[100:], y[100:])}
    found = run(tmp_path, model.fit(*more), **rows, attacks=["metric-correctness"])
    assert auc(found, "metric-correctness") > 0.6
    assert "Accuracy: 100.0% on members" in found.summary


def test_clones_know_classes_without_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = pd.DataFrame(draw.normal(size=(200, 3)), columns=list("abc"))
    y = np.array(["a", "b"])[draw.integers(0, 2, 200)]
    more = pd.concat([x[:100], x[:5] + 1]), np.append(y[:100], ["c"] * 5)
    model = RandomForestClassifier(10, bootstrap=False, random_state=0).fit(*more)
    found = run(tmp_path, model, members=(x[:100], y[:100]), nonmembers=(x[100:], y[100:]),
                attacks=["lira"], shadow_recipe="clone", settings={"lira": {"k": 4}})  # fmt: skip
    assert auc(found, "lira") > 0.8


# ---- models of other libraries -------------------------------------------------------------------


def numbers(n: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    x = pd.DataFrame(draw.normal(size=(n, 4)), columns=list("abcd"))
    x["town"] = pd.Categorical.from_codes(draw.integers(0, 3, n), TOWNS)
    return x, (draw.random(n) < 0.5).astype(int)


@pytest.mark.parametrize("sort", ["classifier", "booster"])
def test_lightgbm_takes_a_table(tmp_path: Path, sort: str) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="needs lightgbm")
    members, nonmembers = numbers(150, 0), numbers(150, 1)
    model = lightgbm.LGBMClassifier(min_child_samples=2, verbose=-1, n_jobs=1).fit(*members)
    found = run(tmp_path, model if sort == "classifier" else model.booster_, members=members,
                nonmembers=nonmembers)  # fmt: skip
    assert auc(found) > 0.8


@pytest.mark.parametrize("sort", ["classifier", "booster"])
def test_xgboost_takes_a_table(tmp_path: Path, sort: str) -> None:
    xgboost = pytest.importorskip("xgboost", reason="needs xgboost")
    members, nonmembers = numbers(150, 0), numbers(150, 1)
    model = xgboost.XGBClassifier(enable_categorical=True, n_jobs=1).fit(*members)
    found = run(tmp_path, model if sort == "classifier" else model.get_booster(), members=members,
                nonmembers=nonmembers)  # fmt: skip
    assert auc(found) > 0.8
    arrays = [(x[list("abcd")].to_numpy("float32"), y) for x, y in (members, nonmembers)]
    plain = xgboost.XGBClassifier(n_jobs=1).fit(*arrays[0])
    asked = askable(plain.get_booster(), "the model").ask(torch.tensor(arrays[1][0]))[:, 0]
    assert asked == pytest.approx(plain.predict_proba(arrays[1][0])[:, 1], rel=1e-5)


def test_onnx_takes_a_table_by_column() -> None:
    skl2onnx = pytest.importorskip("skl2onnx", reason="needs skl2onnx")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    kinds = skl2onnx.common.data_types
    table = MEMBERS[["age", "town"]].dropna().rename(columns={"age": "the-age"})
    columns = [
        ("t", OneHotEncoder(handle_unknown="ignore"), ["town"]),
        ("n", "passthrough", ["the-age"]),
    ]
    model = make_pipeline(ColumnTransformer(columns), RandomForestClassifier(10, random_state=0))
    model.fit(table, MEMBERS.rich[table.index])
    inputs = [
        ("the-age", kinds.FloatTensorType([None, 1])),
        ("town", kinds.StringTensorType([None, 1])),
    ]
    for zipmap in (True, False):
        made = skl2onnx.to_onnx(model, initial_types=inputs, options={"zipmap": zipmap})
        session = runtime.InferenceSession(made.SerializeToString())
        asked = askable(session, "the model").ask(table)
        assert asked == pytest.approx(model.predict_proba(table), abs=1e-3)


def test_an_onnx_file_with_a_fixed_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    w = draw.normal(size=(4, 2)).astype(np.float32)
    floats, make = onnx.TensorProto.FLOAT, onnx.helper
    graph = make.make_graph(
        [make.make_node("MatMul", ["x", "w"], ["logits"])], "net",
        [make.make_tensor_value_info("x", floats, [7, 4])],
        [make.make_tensor_value_info("logits", floats, [7, 2])],
        [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    opsets = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=9), "net.onnx")
    (x, y), (other, z) = (
        (a[list("abcd")].to_numpy("float32"), b) for a, b in (numbers(50, 0), numbers(50, 1))
    )
    rows = {"members": (x, y), "nonmembers": (other, z)}
    found = run(tmp_path, "net.onnx", **rows)
    same = run(tmp_path / "same", lambda rows: rows @ w, **rows)
    assert auc(found) == pytest.approx(auc(same), abs=1e-9)
    (tmp_path / "bad.onnx").write_bytes(b"none")
    with pytest.raises(BadInputError, match=r"bad\.onnx cannot be opened by ONNX Runtime"):
        run(tmp_path, "bad.onnx", **rows)


def test_torch_reads_tables_of_numbers_only(tmp_path: Path) -> None:
    torch.manual_seed(0)  # noqa: TID251
    net = torch.nn.Linear(4, 2)
    (x, y), (other, z) = numbers(50, 0), numbers(50, 1)
    assert len(
        run(tmp_path, net, members=(x[list("abcd")], y), nonmembers=(other[list("abcd")], z))
    )
    with pytest.raises(BadInputError, match="a torch module reads numbers, and the table holds"):
        run(tmp_path / "b", net, members=(x, y), nonmembers=(other, z))


# ---- answers without a model ---------------------------------------------------------------------


def answered(model: Any, table: Any) -> Any:
    made = model.predict_proba(table.drop(columns="rich"))
    return pd.DataFrame(made, columns=model.classes_).assign(rich=table.rich)


def test_answers_need_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = pipeline()
    sets = {"members": answered(model, MEMBERS), "nonmembers": answered(model, NONMEMBERS)}
    asked = run(tmp_path / "asked", model, attacks=[])
    for name, table in sets.items():
        order = ["yes", "rich", "no"] if name == "members" else ["no", "yes", "rich"]
        table[order].to_csv(f"{name}.csv", index=False)
    files = ["--answers", "--members", "members.csv", "--nonmembers", "nonmembers.csv"]
    done = CliRunner().invoke(main, ["audit", *files, "--label", "rich", "--out", "out"])
    assert done.exit_code == 0, done.output
    assert "were not compared" in done.output
    told = privbench.Results.read(tmp_path / "out")
    for attack in ("metric-confidence", "metric-entropy", "metric-correctness"):
        assert auc(told, attack) == pytest.approx(auc(asked, attack), abs=1e-6)
    assert {one.cell.attack.name for one in told if one.status == "ok"} == {
        one.cell.attack.name for one in asked if one.status == "ok"
    }
    one = {name: (table[["yes"]].to_numpy(), table.rich) for name, table in sets.items()}
    again = run(tmp_path / "one", None, **one)
    assert auc(again) == pytest.approx(auc(asked), abs=1e-6)
    for more, sentence in (
        (["--shadow-recipe", "clone"], "there are none: leave them out"),
        (["--model", "m:f"], "no model is asked: leave out the model"),
    ):
        done = CliRunner().invoke(main, ["audit", *files, "--label", "rich", *more])
        assert done.exit_code == 2
        assert sentence in done.stderr
    done = CliRunner().invoke(main, ["audit", *files[1:]])
    assert "name a model, or give what it answered (--answers)" in done.stderr


P = answered(pipeline(), MEMBERS)[["no", "yes"]]
LOGITS = np.log(P.clip(0.01, 0.99)).to_numpy()


@pytest.mark.parametrize(
    ("answers", "output", "sentence"),
    [
        (P * 100, "auto", "the numbers of each row sum to 100, so they are percentages: divide th"),
        (P * 100, "posteriors", "output posteriors: the numbers of each row sum to 100"),
        (P * [1, 0.5], "auto", r"the numbers of row \d+ sum to 0\.5\d*, and posteriors sum to 1"),
        (LOGITS, "posteriors", r"row 0 holds -\d.*, so they are not posteriors: name output"),
        (P, "logits", "output logits: the model answers posteriors"),
        (P.assign(no="none"), "auto", "members: column no holds no numbers"),
        (P.rename(columns={"no": "maybe"}), "auto", "y holds no, and the model knows maybe, yes"),
        (P[:9], "auto", "members: 9 rows are too few"),
        (P.to_numpy()[:, 0], "auto", r"answers have shape \(150,\): give \(n, k\)"),
        (P.assign(more=0.0), "auto", "nonmembers: it has not as many columns as the members"),
    ],
)
def test_answers_that_cannot_be_used(
    tmp_path: Path, answers: Any, output: str, sentence: str
) -> None:
    scale = 1 if answers.shape != P.shape or answers is LOGITS else answers.to_numpy()
    other = (P if isinstance(scale, int) or scale.dtype == object else answers, Y)
    if answers is LOGITS:
        other = (LOGITS, Y)
    with pytest.raises(BadInputError, match=sentence):
        run(tmp_path, None, members=(answers, Y), nonmembers=other, output=output)


# ---- what cannot be used -------------------------------------------------------------------------


X, Y = MEMBERS.drop(columns="rich"), MEMBERS.rich.to_numpy()
OTHER = (NONMEMBERS.drop(columns="rich"), NONMEMBERS.rich)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ((X, np.zeros((150, 3))), "members: y has 3 columns, and multi-label targets are not supp"),
        ((X, np.zeros((150, 3)) + 0.5), "members: y has 3 columns, and multi-label targets are"),
        ((X, [*Y[:-1], None]), "y holds None in row 149, unlike others: give texts, or numbers"),
        ((X, [*np.zeros(149), np.nan]), "y is missing or infinite in row 149"),
        ((X, Y[:-1]), r"y has shape \(149,\), and x 150 rows"),
        ((X.drop(columns="age"), Y), "nonmembers: it has age, which members lack"),
        ((X.assign(age="old"), Y), "column age is float64, and (str|object) in the members"),
        ((X.assign(size=X["size"].cat.add_categories("XL")), Y), "size has other categories"),
        ((X.to_dict("records"), Y), "nonmembers: its rows are a DataFrame of pandas, those of the"),
        ((pd.concat([X[:-1], OTHER[0][:1]]), Y), "1 of its rows are also among the members"),
        (MEMBERS.rename(columns={"rich": "class"}), "members has no column rich: name one of age,"),
        ((X[:9], Y[:9]), "members: 9 rows are too few"),
        ((5, Y), "members: x is a int: give an array, a DataFrame or a list"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used(members: Any, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        read_rows(members, OTHER, reading=Reading("rich"))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_table_that_is_larger_than_it_may_be_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In parquet one value that comes 40,000 times takes a few bytes of the file."""
    table = pd.DataFrame({"x": np.full(40_000, 0.25), "y": np.zeros(40_000, int)})
    file = tmp_path / f"rows.{kind}"
    table.to_parquet(file) if kind == "parquet" else table.to_csv(file, index=False)
    size = 640_000 if kind == "parquet" else file.stat().st_size
    monkeypatch.setenv("PRIVBENCH_MOST_ARRAY_BYTES", str(size - 1))
    with pytest.raises(BadInputError, match=rf"rows.{kind} holds {size:,} bytes when unpacked, mo"):
        read_rows(file, file)
    assert kind == "csv" or file.stat().st_size < 20_000
    monkeypatch.setenv("PRIVBENCH_MOST_ARRAY_BYTES", str(size))
    with pytest.raises(BadInputError, match="of its rows are also among the members"):
        read_rows(file, file)


def test_what_the_model_does_not_know(tmp_path: Path) -> None:
    y = np.where(np.arange(150) % 7 == 0, "perhaps", Y)
    with pytest.raises(BadInputError, match="y holds perhaps, and the model knows no, yes"):
        run(tmp_path, pipeline(), members=(X, y))
    with pytest.raises(BadInputError, match="jobs: rows in memory stay in their process"):
        run(tmp_path, "no_module:load", jobs=2)
    with pytest.raises(BadInputError, match=r"failed on a table with the columns age, town.*note"):
        run(tmp_path, lambda table: table[["absent"]])
    with pytest.raises(BadInputError, match="an endpoint gets arrays of numbers"):
        run(tmp_path, "http://127.0.0.1:9/predict")


def test_files_of_tables_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = written(tmp_path, "csv")[1]

    def told(file: str, **how: str) -> str:
        with pytest.raises(BadInputError) as refused:
            read_rows(tmp_path / file, good, reading=Reading("rich", **how))
        return str(refused.value)

    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "bad.jsonl").write_text(json.dumps({"a": 1})[:-1])
    (tmp_path / "bad.csv").write_text('a,rich\n"1,no')
    for kind in ("jsonl", "csv"):
        assert f"bad.{kind} cannot be read as a {kind} file" in told(f"bad.{kind}")
    assert "absent.csv cannot be read (no such file)" in told("absent.csv")
    assert "has no column words: name one of" in told("members.csv", column="words")
    for name in ("pyarrow", "pyarrow.parquet", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'privbench[tables]'" in told("bad.parquet")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "is read by pandas, which is not installed: pip install" in told("members.csv")


def test_texts_are_compared_by_their_words() -> None:
    sets = [Lookup(texts(100, seed)[0]).x for seed in (0, 1)]
    assert sets[0].shape == (100, 256)
    assert shift(*sets).p_value > 1e-4


# ---- what was said and not done ------------------------------------------------------------------


def test_the_label_of_an_archive_counts(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, right = draw.random((80, 3)), draw.integers(0, 2, 80)
    wrong = np.full(80, 7)
    for name, at in (("m", slice(0, 40)), ("n", slice(40, 80))):
        np.savez(tmp_path / f"{name}.npz", x=x[at], y=wrong[at], target=right[at])
    parts = tmp_path / "m.npz", tmp_path / "n.npz"
    rows = read_rows(parts[0], parts[1], reading=Reading("target"))
    assert rows.labels is not None
    assert rows.labels.tolist() == right.tolist()
    with pytest.raises(BadInputError, match="members: it has no array targte: name"):
        read_rows(parts[0], parts[1], reading=Reading("targte"))
    with pytest.raises(BadInputError, match="an archive has no columns with names: leave out the"):
        read_rows(parts[0], parts[1], reading=Reading("target", column="a"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"settings": {"lira.k": 8}},
            "no mapping of methods: give one such as {'lira': {'k'",
        ),
        ({"settings": "lira.k=8"}, "settings: lira.k=8 is no mapping of methods"),
        ({"fail_above": 0.6}, r"fail_above: 0.6 names no figure: give a mapping, such as"),
        ({"fail_above": "auc=.6"}, "fail_above: auc=.6 names no figure"),
    ],
)
def test_what_is_written_as_on_the_command_line(
    tmp_path: Path, options: Any, sentence: str
) -> None:
    with pytest.raises(BadInputError, match=sentence):
        run(tmp_path, pipeline(), **options)


def test_a_module_that_ends_the_process_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_in_load.py").write_text("import sys\ndef load():\n    sys.exit('bye')\n")
    (tmp_path / "ends_at_once.py").write_text("import sys\nsys.exit('bye')\n")
    monkeypatch.chdir(tmp_path)
    for name, told in (("ends_in_load", "failed"), ("ends_at_once", "cannot be imported")):
        with pytest.raises(BadInputError, match=f"{told} .*bye"):
            run(tmp_path, f"{name}:load")
