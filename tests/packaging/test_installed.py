"""What is built works as it is installed: not editable, from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from tests.environment import HERE, clean_environment

ROOT = Path(__file__).parents[2]
MAIN = "from privbench.cli.main import main; main()"
PACKAGES = ("benchmark/privbench", "plugins/privbench_plugins")

pytestmark = pytest.mark.end_to_end


def call(*command: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout


def files(*folders: str) -> set[str]:
    """The files below folders of the checkout, relative to it, without what running leaves."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


class Built(NamedTuple):
    python: str
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An environment that sees the libraries here, a source archive, and the wheel made of it."""
    made = tmp_path_factory.mktemp("built")
    python = clean_environment(made / "venv")
    uv = str(shutil.which("uv"))
    call(uv, "build", *HERE, python, "--out-dir", str(made / "dist"), str(ROOT), cwd=made)
    (sdist,) = (made / "dist").glob("*.tar.gz")
    (wheel,) = (made / "dist").glob("*.whl")  # uv builds it from the sdist
    return Built(python, sdist, wheel)


def test_the_sdist_holds_what_its_tests_read_and_nothing_else(built: Built) -> None:
    with tarfile.open(built.sdist) as opened:
        names = {one.name.partition("/")[2] for one in opened.getmembers() if one.isfile()}
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sdist = config["tool"]["hatch"]["build"]["targets"]["sdist"]
    listed = [path.strip("/") for path in sdist["include"]]
    single = {path for path in listed if (ROOT / path).is_file()}
    assert {"leaderboards", "mkdocs.yml", ".ci", "tests", "docs", "examples"} <= set(listed)
    made = files(*(path for path in listed if path not in single)) | single
    assert names - made <= {"PKG-INFO", "pyproject.toml", ".gitignore"}
    assert made - names == set()
    assert not {name for name in names if name.endswith((".lock", ".pyc", ".safetensors"))}


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(built: Built) -> None:
    names = {n for n in zipfile.ZipFile(built.wheel).namelist() if ".dist-info/" not in n}
    boards = {
        f"privbench/published/{one.name}" for one in ROOT.glob("leaderboards/results/*.jsonl")
    }
    assert len(boards) > 20
    assert names == {path.partition("/")[2] for path in files(*PACKAGES)} | boards
    assert "privbench/boards/html/templates/report.js" in names


def test_the_wheel_runs_from_another_folder(built: Built, tmp_path: Path) -> None:
    python = built.python
    uv = str(shutil.which("uv"))
    call(uv, "pip", "install", "--python", python, "--no-deps", str(built.wheel), cwd=tmp_path)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    where = call(python, "-c", "import privbench; print(privbench.__file__)", cwd=elsewhere)
    assert where.startswith(str(Path(python).parents[1]))
    told = call(python, "-c", "import privbench; print(len(privbench.published('digits')))",
                cwd=elsewhere)  # fmt: skip
    assert told == "80\n"
    assert "wrote" in call(python, "-c", MAIN, "new", "dataset", "mine", cwd=elsewhere)
    file = elsewhere / "privbench-mine" / "privbench_mine" / "mine.py"
    assert "6 checks, 0 failed" in call(python, "-c", MAIN, "check", str(file), cwd=elsewhere)
    run = ("--plugin", str(file), "run", "--attack", "metric-loss", "--target", "supervised",
           "--dataset", "mine", "--set", "supervised.epochs=1")  # fmt: skip
    assert "1 trial, 0 failed" in call(python, "-c", MAIN, *run, cwd=elsewhere)
    assert (elsewhere / "results" / "leaderboard.md").is_file()


#: The model of a user, in a folder of theirs.
LOAD = """
import joblib

def load():
    return joblib.load("forest.joblib")
"""


EXTRAS = """
import fastapi, opacus, ray, uvicorn
import privbench
assert len(privbench.Results.read("results").to_dataframe()) == 1
"""


def test_uv_tool_install_works_with_the_dependencies_that_the_wheel_names(
    built: Built, tmp_path: Path
) -> None:
    """Nothing of this environment is seen: what ``dependencies`` forgets is missing here."""
    uv = str(shutil.which("uv"))
    own = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
           "PRIVBENCH_CACHE": str(tmp_path / "store"), "PYTHONPATH": "",
           "UV_COMPILE_BYTECODE": "0"}  # fmt: skip
    install = [uv, "tool", "install", "--python", sys.executable, str(built.wheel)]
    done = subprocess.run(
        install, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True,
        check=False, timeout=500,
    )  # fmt: skip
    if done.returncode != 0 and "connect" in done.stderr:
        pytest.skip("no registry: the dependencies could not be installed")
    assert done.returncode == 0, done.stderr
    privbench = str(tmp_path / "bin" / "privbench")
    run = "run --attack metric-loss --target supervised --set supervised.epochs=1"
    assert "1 trial, 0 failed" in call(privbench, *run.split(), cwd=tmp_path, **own)
    call(privbench, "report", "results", "-o", "report.html", cwd=tmp_path, **own)
    assert "metric-loss" in (tmp_path / "report.html").read_text(encoding="utf-8")
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    forest = RandomForestClassifier(20, random_state=0).fit(x[:400] / 16, y[:400])
    joblib.dump(forest, tmp_path / "forest.joblib")
    (tmp_path / "mine.py").write_text(LOAD)
    for name, rows in (("members", slice(400)), ("nonmembers", slice(400, 800))):
        np.savez(tmp_path / f"{name}.npz", x=(x[rows] / 16).astype("float32"), y=y[rows])
    audit = "audit --model mine:load --members members.npz --nonmembers nonmembers.npz"
    assert "The model leaks who its members are." in " ".join(
        call(privbench, *audit.split(), cwd=tmp_path, **own).split()
    )
    call(privbench, "report", "audit", "-o", "audit.html", cwd=tmp_path, **own)
    assert "Audit of" in (tmp_path / "audit.html").read_text(encoding="utf-8")
    # The extras bring what they are for.
    extras = f"privbench[audit,dp,ray,report] @ {built.wheel.as_uri()}"
    (python,) = (tmp_path / "tools").glob("privbench/bin/python")
    call(uv, "pip", "install", "--python", str(python), extras, cwd=tmp_path, **own)
    call(str(python), "-c", EXTRAS, cwd=tmp_path, **own)
    run = "run --attack metric-loss --target supervised --set supervised.epochs=1 --defense dp-sgd"
    made = call(privbench, *run.split(), "--out", "defended", cwd=tmp_path, **own)
    assert "2 trials, 0 failed" in made
