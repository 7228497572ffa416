"""Shadows by the user's own code: they find what thresholds cannot, and are trained once."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

import privbench
from privbench import BadInputError
from privbench.api.own_model.choice import least_of
from privbench.api.own_model.sums import SHEET
from privbench.api.own_model.words import BOUND
from privbench.cli.main import main
from privbench.testing import auc_band
from privbench.toolbox.opened_model import given_recipe
from privbench.toolbox.shadow_recipe import code_digest, trained

Arrays = dict[str, Any]
HERE = "tests.unit.test_own_recipe"
SHADOWS = 16


def rows(n: int, seed: int) -> Arrays:
    """Two clouds, columns of different units; a fifth of the rows has the other cloud's class."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(n, 4)), draw.integers(0, 2, n)
    x[:, 0] += 20 * (y ^ (draw.random(n) < 0.2))
    return {"x": (x * [1, 10, 100, 1]).astype(np.float32), "y": y}


MEMBERS, NONMEMBERS, OTHERS = rows(100, 0), rows(100, 1), rows(100, 2)
SEEDS = "SEEDS_OF_FIT"  # names the file of the seeds that `fit` got, in whatever process
STOP = "STOP_FIT_AT"


@pytest.fixture
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that gets a line for each call of `fit`."""
    monkeypatch.setenv(SEEDS, str(tmp_path / "seeds"))
    return tmp_path / "seeds"


# ---- models and recipes, by the names that the command line gives ------------------------------


def load() -> KNeighborsClassifier:
    """A model that knows its members by heart, and is as sure of any other row."""
    return KNeighborsClassifier(1).fit(*MEMBERS.values())


def predict() -> Any:
    return load().predict_proba


def fit(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    if SEEDS in os.environ:
        with open(os.environ[SEEDS], "a+") as file:  # noqa: PTH123
            file.write(f"{seed} {len(x)}\n")
            file.seek(0)
            if len(file.readlines()) == int(os.environ.get(STOP, "0")):
                raise KeyboardInterrupt
    return KNeighborsClassifier(1).fit(x, y)


def ended(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    made = fit(x, y, seed)
    if len(Path(os.environ[SEEDS]).read_text().splitlines()) == 6:
        os.kill(os.getpid(), signal.SIGTERM)
    return made


def linear(x: np.ndarray, y: np.ndarray, seed: int) -> nn.Module:
    """A linear model of torch, after three steps."""
    if SEEDS in os.environ:
        with open(os.environ[SEEDS], "a") as file:  # noqa: PTH123
            file.write(f"{seed} {len(x)}\n")
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].size, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def fit_labels(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    return fit(x, y, seed).predict


def fails(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    del x, seed
    raise RuntimeError(f"no luck\nwith {len(y)}")


def nothing(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    del x, y, seed


def wide(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    del x, y, seed
    return lambda rows: np.full((len(rows), 3), 1 / 3)


def numbers(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    del x, y, seed
    return lambda rows: np.full((len(rows), 2), 3.0)


def soft() -> Any:
    return GaussianNB().fit(*MEMBERS.values())


def deaf_to_rows(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    del x, y, seed
    return GaussianNB().fit(*OTHERS.values())


def unknown(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    del x, y, seed
    return lambda rows: np.full((len(rows), 2), np.nan)


def always_the_members(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """Trains, by chance, but not on what it gets."""
    del x, y
    return smooth(**MEMBERS, seed=seed)


def smooth(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    return RandomForestClassifier(20, min_samples_leaf=2, random_state=seed).fit(x, y)


class Asking(nn.Module):
    """A torch module that answers as an estimator does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.model.predict_proba(x.numpy()))


def deaf() -> None:
    """No function of x, y and seed."""


def run(tmp_path: Path, model: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"members": MEMBERS, "nonmembers": NONMEMBERS, "out": tmp_path / "out"}
    return privbench.audit(load() if model is None else model, **(given | options))


def calls(seeds: Path) -> list[str]:
    return seeds.read_text().splitlines()


def found(results: Any) -> dict[str, Any]:
    return {one.cell.attack.name: one.metrics for one in results if one.status == "ok"}


def share(metrics: Any) -> float:
    value: float = metrics["tpr_at_fpr_0.01"].value
    return value


# ---- what they find -----------------------------------------------------------------------------


@pytest.mark.slow
def test_clones_find_what_no_threshold_finds(tmp_path: Path) -> None:
    """A row tells by its own class alone, if the nearest others all have another class."""
    alone = run(tmp_path)
    assert all(share(metrics) == 0 for metrics in found(alone).values())
    assert BOUND in alone.summary
    shadowed = run(tmp_path / "clone", shadow_recipe="clone")
    assert {"lira", "union"} <= set(found(shadowed))
    assert BOUND not in shadowed.summary
    x = np.concatenate([MEMBERS["x"], NONMEMBERS["x"]]).astype(float)
    y = np.concatenate([MEMBERS["y"], NONMEMBERS["y"]])
    apart = np.square(x[:, None] - x).sum(2) + np.diag(np.full(len(x), np.inf))
    near = apart.argsort(1)[:100, :5]  # in a shadow without the row, one of these decides
    alone_there = float((y[near] != MEMBERS["y"][:, None]).all(1).mean())
    assert alone_there > 0.05
    for attack in ("lira", "union"):
        assert share(found(shadowed)[attack]) >= alone_there


def test_shadows_that_are_not_trained_as_the_model_are_named(tmp_path: Path) -> None:
    def poor(x: Any, y: Any, seed: int) -> Any:
        wrong = np.random.default_rng(seed).random(len(y)) < 0.3
        return RandomForestClassifier(20, random_state=seed).fit(x, np.where(wrong, 1 - y, y))

    forest = RandomForestClassifier(20, random_state=0).fit(*MEMBERS.values())
    # The third audit finds everything in the store.
    for recipe, far in (("clone", False), (poor, True), (poor, True)):
        made = run(tmp_path / str(far), forest, shadow_recipe=recipe, attacks=["lira"])
        fit = made.shadow_fit
        assert fit is not None
        assert fit.far == far
        assert ("they are not trained as the model was" in made.summary) == far
        told = json.loads((tmp_path / str(far) / "out" / "audit.json").read_text())
        assert told["shadows"]["far"] == far
        assert told["shadows"]["right_own"] == fit.own
        assert any("were not trained as this model was" in one for one in told["limits"]) == far
        sheet = (tmp_path / str(far) / "out" / SHEET).read_text()
        assert f"{fit.own:.1%} on their own rows" in sheet
        assert ("Other shadows" in sheet) == far


@pytest.mark.slow
def test_posteriors_of_zero_do_not_hide_members(tmp_path: Path) -> None:
    """A forest of 20 trees answers 0 and 1: with infinite logits LiRA would see only these."""
    forest = RandomForestClassifier(20, random_state=0).fit(*MEMBERS.values())
    results = run(tmp_path, forest, shadow_recipe="clone", attacks=["lira"])
    assert found(results)["lira"]["auc"].value > 0.75  # 0.61 with such logits


def test_clones_find_nothing_in_a_model_of_other_rows(tmp_path: Path) -> None:
    """By chance once in 10,000 runs."""
    other = KNeighborsClassifier(1).fit(*OTHERS.values())
    results = run(tmp_path, other, shadow_recipe="clone", attacks=["lira"])
    assert abs(found(results)["lira"]["auc"].value - 0.5) < auc_band(100, 100)


@pytest.mark.end_to_end
def test_shadows_are_kept_and_an_interrupted_audit_goes_on(
    tmp_path: Path, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STOP, "6")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, shadow_recipe=fit)
    assert len(calls(seeds)) == 6
    monkeypatch.delenv(STOP)
    first = run(tmp_path, shadow_recipe=fit)
    assert len(calls(seeds)) == SHADOWS + 1
    assert len(set(calls(seeds))) == SHADOWS  # the sixth was called twice
    assert all(call.endswith(" 100") for call in calls(seeds))
    again = run(tmp_path / "again", shadow_recipe=fit, attacks=["lira"])
    assert len(calls(seeds)) == SHADOWS + 1
    assert found(again)["lira"] == found(first)["lira"]


@pytest.mark.slow
def test_a_terminated_audit_says_that_it_can_go_on(tmp_path: Path, seeds: Path) -> None:
    """Batch systems send SIGTERM."""
    for name, arrays in (("in", MEMBERS), ("out", NONMEMBERS)):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    command = ["audit", "--model", f"{HERE}:load", "--members", str(tmp_path / "in.npz"),
               "--nonmembers", str(tmp_path / "out.npz"), "--attack", "lira",
               "--shadow-recipe", f"{HERE}:ended", "--out", str(tmp_path / "audit")]  # fmt: skip
    stopped = CliRunner().invoke(main, command)
    assert stopped.exit_code == 130, stopped.output
    assert "run the same command to resume" in stopped.stderr
    assert len(calls(seeds)) == 6


@pytest.mark.slow
def test_one_process_and_two_find_the_same(
    tmp_path: Path, seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"model": f"{HERE}:load", "shadow_recipe": f"{HERE}:fit", "attacks": ["lira"]}
    one = run(tmp_path / "one", **given)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "another store"))
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # workers get its environment
    two = run(tmp_path / "two", jobs=2, **given)
    assert sorted(calls(seeds)) == sorted(2 * [*set(calls(seeds))])
    assert found(one)["lira"] == found(two)["lira"]
    assert one.summary == two.summary


@pytest.mark.slow
def test_rows_that_were_not_asked_before_train_a_shadow_once_more(
    tmp_path: Path, seeds: Path
) -> None:
    settings = {"label-lira": {"k": 4, "queries": 10}}
    results = run(tmp_path, load().predict, shadow_recipe=fit_labels, attacks=["label-lira"],
                  shadow=OTHERS, settings=settings)  # fmt: skip
    assert "auc" in found(results)["label-lira"]
    assert sorted(calls(seeds)) == sorted(2 * [*set(calls(seeds))])
    assert len(calls(seeds)) == 8


@pytest.mark.slow
def test_other_pictures_than_mirror_images_train_a_network_once_more(
    tmp_path: Path, seeds: Path
) -> None:
    """It is trained while another model answers, without gradients."""
    x = np.random.default_rng(0).random((120, 3, 8, 8), dtype=np.float32)
    sets = [(x[part], np.arange(60) % 2) for part in (slice(60), slice(60, 120))]
    model, count = linear(*sets[0], 0), []
    for views in (1, 2):
        results = privbench.audit(
            model, members=sets[0], nonmembers=sets[1], shadow_recipe=linear, attacks=["lira"],
            settings={"lira": {"k": 4, "views": views}}, out=tmp_path / f"out{views}",
        )  # fmt: skip
        assert "auc" in found(results)["lira"]
        count.append(len(calls(seeds)))
    assert count == [1 + 4, 1 + 4 + 4]


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["logits", "module"])
def test_shadows_answer_as_the_model_does(answers: str, tmp_path: Path) -> None:
    def ask(model: Any) -> Any:
        if answers == "logits":
            return lambda x: np.log(model.predict_proba(x) + 0.01) + 3
        return Asking(model)

    def recipe(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
        del seed
        return ask(KNeighborsClassifier(1).fit(x, y))

    results = run(tmp_path, ask(load()), shadow_recipe=recipe, attacks=["lira"])
    assert found(results)["lira"]["auc"].value > 0.6


def test_shadows_of_an_encoder_are_online(tmp_path: Path) -> None:
    """They are what its strongest attack needs, and a recipe alone is enough."""
    draw = np.random.default_rng(0)

    def encoder(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
        """An encoder that turns what lies close to a row that it knows into one direction."""
        del y, seed
        known = torch.from_numpy(x).flatten(1)

        def ask(x: np.ndarray) -> np.ndarray:
            flat = torch.from_numpy(x).flatten(1)
            close = torch.cdist(flat, known).amin(1) < 1
            return np.where(close[:, None], np.eye(1, flat.shape[1]), flat - 0.5)

        return ask

    colours = draw.random((80, 3, 1, 1), np.float32)
    x, y = np.repeat(np.repeat(colours, 8, 2), 8, 3), np.arange(40) % 2
    model = encoder(x[:40], y, 0)

    def asked(shape: tuple[int, ...]) -> Any:
        members, nonmembers = ((part.reshape(40, *shape), y) for part in (x[:40], x[40:]))
        return privbench.audit(model, members=members, nonmembers=nonmembers, device="cpu",
                               shadow_recipe=encoder, out=tmp_path / str(len(shape)))  # fmt: skip

    for shape in ((3, 8, 8), (192,)):  # pictures, and a table
        results = asked(shape)
        ran = [one.cell.attack.label for one in results if one.status == "ok"]
        assert ran == ["lira-encoder(online=True)", "rmia-encoder"]
        for attack in ("lira-encoder", "rmia-encoder"):
            assert found(results)[attack]["auc"].value > 0.6


def test_shadows_that_do_not_know_their_rows_are_told(tmp_path: Path) -> None:
    options = {"attacks": ["lira"], "settings": {"lira": {"k": 4}}, "fail_above": {"auc": 0.99}}
    model = smooth(**MEMBERS, seed=0)
    same = run(tmp_path, model, shadow_recipe=always_the_members, **options)
    told = (
        r"shadows are no surer of rows that they were trained on than of others \(p = 0\.\d+\), and"
    )
    assert re.search(rf"(No verdict|WARNING): {told} the model is surer", same.summary)
    assert (same.gate.outcome, same.gate.thresholds[0].outcome) == ("undecided", "undecided")
    right = run(tmp_path / "right", model, shadow_recipe=smooth, **options)
    assert "no surer" not in right.summary
    assert right.gate.outcome == "passed"
    other = smooth(**OTHERS, seed=0)  # it is as sure of nonmembers
    calm = run(tmp_path / "calm", other, shadow_recipe=always_the_members, **options)
    assert "no surer" not in calm.summary


def test_a_recipe_that_ignores_its_rows_gives_no_verdict(tmp_path: Path) -> None:
    model = soft()
    results = run(tmp_path, model, shadow_recipe=deaf_to_rows, attacks=["lira"])
    assert "every row has one score by lira" in results.no_verdict
    assert results.summary.startswith("No verdict: every row has one score")
    sure = run(
        tmp_path / "sure", load(), shadow_recipe=deaf_to_rows, attacks=["metric-confidence", "lira"]
    )
    assert not sure.no_verdict
    assert "WARNING: every row has one score" in sure.summary
    assert not run(tmp_path / "well", model, shadow_recipe="clone", attacks=["lira"]).no_verdict


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "recipe", "told"), [
    ("load", "fails", "failed on rows of shape (100, 4) (RuntimeError: no luck with 100): correct"),
    ("load", "nothing", "returned a NoneType, which cannot be asked: return a torch module"),
    ("load", "wide", "its model answered with an array of shape (200, 3), and the audited model"),
    ("load", "numbers", "answers posteriors (200, 2): return a model that answers alike"),
    ("load", "unknown", "its model answered NaN or an infinite number"),
    ("load", "deaf", "is no function of x, y and seed: write fit(x, y, seed)"),
    ("load", "absent", f"{HERE} has no absent: write a function that returns a trained model"),
    ("load", "no_such_module:fit", "there is no module no_such_module"),
    ("load", f"{HERE}.py:fit", "there is no module"),
    ("predict", "clone", "the model is a method, and only estimators of scikit-learn can be clone"),
    ("load", "supervized", "did you mean 'supervised'?"),
])  # fmt: skip
def test_a_recipe_that_does_not_work_is_one_sentence(
    model: str, recipe: str, told: str, tmp_path: Path
) -> None:
    for name, arrays in (("in", MEMBERS), ("out", NONMEMBERS)):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    whole = recipe if ":" in recipe or recipe in ("clone", "supervized") else f"{HERE}:{recipe}"
    done = CliRunner().invoke(main, [
        "audit", "--model", f"{HERE}:{model}", "--members", str(tmp_path / "in.npz"),
        "--nonmembers", str(tmp_path / "out.npz"), "--shadow-recipe", whole, "--attack", "lira",
        "--out", str(tmp_path / "audit"),
    ])  # fmt: skip
    assert done.exit_code == 2, done.output
    last = done.output.strip().splitlines()[-1]
    assert told in last
    assert recipe == "supervized" or "shadow recipe" in last


def test_an_endpoint_and_code_in_memory_have_limits(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="a shadow recipe in memory stays in its process"):
        run(tmp_path, f"{HERE}:load", shadow_recipe=fit, jobs=2)
    target = privbench.plugins.registry.load().get("target", "own-recipe")
    with pytest.raises(BadInputError, match="an endpoint cannot be cloned"):
        target.using("clone", model="https://host/predict")


# ---- parts --------------------------------------------------------------------------------------


def made_with(depth: int, hidden: Any = None) -> Any:
    def local(x: Any, y: Any, seed: int) -> Any:
        return RandomForestClassifier(max_depth=depth, random_state=seed).fit(x, y), hidden

    return local


DEPTH = 3
LOCK = threading.Lock()


def deep(x: Any, y: Any, seed: int) -> Any:
    with LOCK:
        return by_global(x, y, seed)


def by_global(x: Any, y: Any, seed: int) -> Any:
    return made_with(DEPTH)(x, y, seed)


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*given: Any) -> Any:
        return function(*given)

    return wrapper


def counted(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*given: Any) -> Any:
        return function(*given), 1

    return wrapper


class Recipe:
    """A recipe with a state."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __call__(self, x: Any, y: Any, seed: int) -> Any:
        return made_with(self.depth)(x, y, seed)

    def fit(self, x: Any, y: Any, seed: int) -> Any:
        return self(x, y, seed)


class Cached:
    """As joblib's memory does: an object in the place of a function."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.lock = threading.Lock()

    def __call__(self, *given: Any) -> Any:
        return self.__wrapped__(*given)  # type: ignore[attr-defined]


@Cached
def cached(x: Any, y: Any, seed: int) -> Any:
    return made_with(1)(x, y, seed)


def with_depth(x: Any, y: Any, seed: int, depth: int = 1) -> Any:
    return made_with(depth)(x, y, seed)


def test_two_recipes_of_one_file_are_two() -> None:
    """Otherwise the shadows of one would answer for the other."""
    by_depth: list[Any] = [
        made_with, lambda depth: made_with(1, hidden=np.arange(depth)),
        lambda depth: made_with(1, hidden=[torch.full((2, 2), depth)]),
        lambda depth: made_with(1, hidden={"a": made_with(depth)}),
        Recipe, lambda depth: Recipe(depth).fit, lambda depth: logged(made_with(depth)),
        lambda depth: functools.partial(with_depth, depth=depth),
        lambda depth: made_with(1, hidden=nn.Sequential(nn.ReLU(), nn.Dropout(depth / 9))),
    ]  # fmt: skip
    several: list[Any] = [fit, linear, logged(fit), counted(fit), cached]
    several += [lambda *given: fit(*given, *()), lambda *given: linear(*given, *())]
    several += [make(depth) for make in by_depth for depth in (3, 4)]
    digests = [code_digest(given_recipe(one), None) for one in several]
    assert len({*digests}) == len(digests)
    again = [code_digest(given_recipe(make(3)), None) for make in by_depth]
    assert again == digests[-2 * len(by_depth) :: 2]


@pytest.mark.slow
def test_a_recipe_has_one_digest_in_every_process() -> None:
    """Else a resumed audit trains everything again."""
    code = f"""
import torch, sys
from {HERE} import *
def local(x, y, seed): return x if y in {{"mean", "median", "mode", "sum"}} else DEEP
class Held:
    def __init__(self): self.weights = [torch.arange(5.0), nn.LSTM(2, 2).requires_grad_(False)]
    def fit(self, x, y, seed): return self.weights
held = Held()
for one in held.weights[1].parameters(): one.zero_()
recipes = [made_with(3), Recipe(3).fit, lambda x, y, seed: local(x, y, seed), held.fit, cached]
print([code_digest(given_recipe(one), None) for one in recipes])
"""
    found = [
        subprocess.run([sys.executable, "-c", f"DEEP = {depth}{code}"], check=True, text=True,
                       capture_output=True, env={**os.environ, "PYTHONHASHSEED": hashes}).stdout
        for hashes, depth in (("1", 1), ("2", 1), ("2", 2))
    ]  # fmt: skip
    assert found[0] == found[1]
    same, other = (ast.literal_eval(one) for one in found[1:])
    assert [one == another for one, another in zip(same, other, strict=True)] == [
        True, True, False, True, True]  # fmt: skip


def test_a_recipe_follows_the_globals_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    here, before = (
        sys.modules[HERE],
        [code_digest(f"{HERE}:{name}", None) for name in ("deep", "fit")],
    )
    monkeypatch.setattr(here, "DEPTH", 7)
    after = [code_digest(f"{HERE}:{name}", None) for name in ("deep", "fit")]
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_a_recipe_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"cannot be compared .*: write fit\(x, y"):
        code_digest(given_recipe(made_with(1, hidden=threading.Lock())), None)


def test_a_recipe_gets_no_shadows_of_another_of_its_file(tmp_path: Path) -> None:
    """With one store, in both orders."""
    found: list[float | None] = []
    codes: list[str] = []
    for depth in (1, 9, 1):
        recipe = functools.partial(with_forest, depth=depth)
        out = tmp_path / f"{depth} {len(found)}"
        results = privbench.audit(
            predict(), members=MEMBERS, nonmembers=NONMEMBERS, shadow_recipe=recipe,
            attacks=["lira"], out=out, device="cpu",
        )  # fmt: skip
        found.append(results[0].metrics["auc"].value)
        told = json.loads((out / "audit.json").read_text("utf-8"))["shadows"]
        codes.append(told.pop("code"))
        most = results[0].cell.attack.fields["k"]
        assert (told["trained_by"], told["most"]) == ("the given function", most)
        page = (out / "audit.html").read_text("utf-8")
        assert codes[-1] in page
        assert f"{most}, trained by the given function" in page
        assert re.fullmatch("[0-9a-f]{32}", codes[-1])
    assert found[0] == found[2] != found[1]
    assert codes[0] == codes[2] != codes[1]


def with_forest(x: Any, y: Any, seed: int, depth: int) -> Any:
    return RandomForestClassifier(3, max_depth=depth, random_state=seed).fit(x, y)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_clone_weighs_classes_as_the_model_does(scaled: bool) -> None:
    """Shadows get classes from 0, whatever the model calls them."""
    x, y = OTHERS.values()
    named, plain = (
        RandomForestClassifier(3, random_state=1, class_weight={first: 1.0, second: 30.0})
        for first, second in ((3, 9), (0, 1))
    )
    model, same = (
        make_pipeline(StandardScaler(), one) if scaled else one for one in (named, plain)
    )
    model.fit(x, np.array([3, 9])[y])
    made = trained("clone", model, torch.from_numpy(x), y, 1).model
    assert np.array_equal(made.predict_proba(x), same.fit(x, y).predict_proba(x))


def test_a_digest_of_a_recipe_follows_its_code_and_parameters() -> None:
    forest = RandomForestClassifier(20, random_state=0)
    same = RandomForestClassifier(20, random_state=5).fit(*MEMBERS.values())
    assert code_digest("clone", forest) == code_digest("clone", same)  # shadows have other seeds
    assert code_digest("clone", forest) != code_digest("clone", forest.set_params(max_depth=3))
    assert code_digest(f"{HERE}:fit", None) != code_digest("clone", forest)
    odd = make_pipeline(FunctionTransformer(lambda x: x), GaussianNB())
    with pytest.raises(BadInputError, match="parameters of the Pipeline cannot be compared"):
        code_digest("clone", odd)


def test_a_clone_gets_its_seed_wherever_it_is() -> None:
    pipe = make_pipeline(StandardScaler(), RandomForestClassifier(5, max_depth=2)).fit(
        *MEMBERS.values()
    )
    x, y = MEMBERS["x"], MEMBERS["y"]
    one, same, other = (trained("clone", pipe, x, y, seed).model for seed in (3, 3, 4))
    assert one is not pipe
    assert one[-1].random_state == 3
    assert one[-1].max_depth == 2
    p = [made.predict_proba(NONMEMBERS["x"]) for made in (one, same, other)]
    assert np.array_equal(p[0], p[1])
    assert not np.array_equal(p[0], p[2])


def test_only_answers_of_exactly_zero_are_moved() -> None:
    coarse = np.array([[1.0, 0.0], [0.98, 0.02], [0.5, 0.5]])
    assert least_of(coarse, "posteriors") == 0.01
    assert least_of(coarse[1:], "posteriors") == 0
    assert least_of(coarse, "logits") == 0
