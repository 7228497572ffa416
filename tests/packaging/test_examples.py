"""The example packages work as they are installed: from their wheels, in a clean environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.environment import HERE, clean_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("privbench-*"))
MAIN = "from privbench.cli.main import main; main()"
RUN = (
    "run", "--attack", "norm-attack", "--attack", "metric-loss", "--defense", "quantise",
    "--target", "supervised", "--set", "supervised.epochs=2",
)  # fmt: skip


def call(*command: str, cwd: Path, store: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PRIVBENCH_CACHE": str(store)},
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout


@pytest.mark.end_to_end
def test_examples_work_from_their_wheels(tmp_path: Path) -> None:
    assert [example.name for example in EXAMPLES] == ["privbench-norm-attack", "privbench-quantise"]
    python = clean_environment(tmp_path / "venv")
    uv, store = str(shutil.which("uv")), tmp_path / "store"
    for example in EXAMPLES:
        source = shutil.copytree(example, tmp_path / example.name)
        call(uv, "build", *HERE, python, "--out-dir", str(tmp_path / "dist"), cwd=source,
             store=store)  # fmt: skip
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    for wheel, example in zip(wheels, EXAMPLES, strict=True):
        module = example.name.replace("-", "_")
        held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
        stem = module.removeprefix("privbench_")
        assert held == {f"{module}/__init__.py", f"{module}/{stem}.py"}
        call(uv, "pip", "install", "--python", python, "--no-deps", str(wheel), cwd=tmp_path,
             store=store)  # fmt: skip
    listed = call(python, "-c", MAIN, "list", "plugins", cwd=tmp_path, store=store)
    assert "privbench-norm-attack 0.1.0: attack norm-attack" in listed
    assert "privbench-quantise 0.1.0: defense quantise" in listed
    for example in EXAMPLES:  # its own tests, of what is installed
        tests = str(tmp_path / example.name / "tests")
        call(python, "-m", "pytest", "-q", "--import-mode=importlib", tests,
             cwd=tmp_path / "venv", store=store)  # fmt: skip
    said = call(python, "-c", MAIN, *RUN, cwd=tmp_path, store=store)
    assert "4 trials, 0 failed" in said
