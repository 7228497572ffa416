"""What is built works as it is installed: not editable, from another folder."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.environment import HERE, clean_environment

ROOT = Path(__file__).parents[2]
MAIN = "from privbench.cli.main import main; main()"


def call(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout


@pytest.mark.end_to_end
def test_the_wheel_of_the_sdist_is_installed_and_runs_from_another_folder(tmp_path: Path) -> None:
    python = clean_environment(tmp_path / "venv")
    uv = str(shutil.which("uv"))
    call(uv, "build", *HERE, python, "--out-dir", str(tmp_path / "dist"), str(ROOT), cwd=tmp_path)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for wanted in ("README.md", "LICENSE", "docs/plugins/tutorial.md", "tests/conftest.py",
                   "examples/privbench-quantise/pyproject.toml",
                   "benchmark/privbench/cli/templates/game.py.txt",
                   "plugins/privbench_plugins/attacks/lira.py"):  # fmt: skip
        assert wanted in names
    assert not {name for name in names if name.endswith((".lock", ".pyc", ".safetensors"))}
    (wheel,) = (tmp_path / "dist").glob("*.whl")  # uv builds it from the sdist
    call(uv, "pip", "install", "--python", python, "--no-deps", str(wheel), cwd=tmp_path)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    where = call(python, "-c", "import privbench; print(privbench.__file__)", cwd=elsewhere)
    assert where.startswith(str(tmp_path / "venv"))
    assert "wrote" in call(python, "-c", MAIN, "new", "dataset", "mine", cwd=elsewhere)
    file = elsewhere / "privbench-mine" / "privbench_mine" / "mine.py"
    assert "6 checks, 0 failed" in call(python, "-c", MAIN, "check", str(file), cwd=elsewhere)
    run = ("--plugin", str(file), "run", "--attack", "metric-loss", "--target", "supervised",
           "--dataset", "mine", "--set", "supervised.epochs=1")  # fmt: skip
    assert "1 trial, 0 failed" in call(python, "-c", MAIN, *run, cwd=elsewhere)
    assert (elsewhere / "results" / "leaderboard.md").is_file()
