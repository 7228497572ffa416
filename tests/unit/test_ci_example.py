"""The files of examples/ci: their shell steps run, as a runner would run them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash") or "/bin/bash"
CI = ROOT / "examples" / "ci"
MODEL = """
import numpy as np
from sklearn.ensemble import RandomForestClassifier

draw = np.random.default_rng(0)
x = draw.normal(size=(200, 6)).astype(np.float32)
y = (x[:, 0] + 1.5 * draw.normal(size=200) > 0).astype(int)

def load():
    return RandomForestClassifier(20, bootstrap=False, random_state=0).fit(x[:100], y[:100])

if __name__ == "__main__":
    np.savez("members.npz", x=x[:100], y=y[:100])
    np.savez("nonmembers.npz", x=x[100:], y=y[100:])
"""


def read(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text(encoding="utf-8"))


def filled(text: str, inputs: dict[str, str]) -> str:
    """The text with the expressions ``${{ inputs.NAME }}`` replaced; others must not be there."""
    made = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
    assert "${{" not in made
    return made


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A checkout with a model, and the environment of a runner; its pip installs nothing."""
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "bin").mkdir()
    scripts = {
        "python": f'case "$*" in "-m pip install "*) echo "$*" >> pip.txt;; '
        f'*) exec {shlex.quote(sys.executable)} "$@";; esac',
        "privbench": f'exec {shlex.quote(sys.executable)} -m privbench "$@"',
    }
    for name, body in scripts.items():
        (script := tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        script.chmod(0o755)
    env = {
        **os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PRIVBENCH_CACHE": str(tmp_path / "store"), "GITHUB_OUTPUT": str(tmp_path / "output.txt"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }  # fmt: skip
    return tmp_path, env


def steps_run(folder: Path, env: dict[str, str], given: dict[str, str]) -> int:
    """The status of the first shell step of the action that ends with one, or 0."""
    action = read("action.yml")
    inputs = {name: one.get("default", "") for name, one in action["inputs"].items()} | given
    assert set(given) <= set(action["inputs"])
    for step in action["runs"]["steps"]:
        if "run" not in step:
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]  # an input in a script could be a command
        named = {name: filled(text, inputs) for name, text in step.get("env", {}).items()}
        (script := folder / "step.sh").write_text(step["run"])
        done = subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=folder, env={**env, **named}, check=False, timeout=300,
        )  # fmt: skip
        if done.returncode:
            return done.returncode
    return 0


@pytest.mark.end_to_end
def test_the_shell_steps_of_the_action_run(place: tuple[Path, dict[str, str]]) -> None:
    folder, env = place
    workflow = read("workflow.yml")
    *_, make, use = workflow["jobs"]["audit"]["steps"]
    subprocess.run(shlex.split(make["run"], comments=True), cwd=folder, env=env, check=True)
    assert use["uses"] == "./.github/actions/privbench"
    assert steps_run(folder, env, use["with"]) == 3
    assert (folder / "pip.txt").read_text() == "-m pip install privbench\n"
    assert (folder / "output.txt").read_text() == "status=3\n"
    assert "The model leaks who its members are." in (folder / "summary.md").read_text()
    found = json.loads((folder / "audit" / "audit.json").read_text())
    assert [one["figure"] for one in found["gate"]["thresholds"]] == ["auc", "tpr@1%"]
    ran = {one["attack"] for one in found["attacks"] if one["status"] == "ran"}
    assert "lira" in ran  # with the clones of the workflow
    kept = next(one for one in read("action.yml")["runs"]["steps"]
                if one.get("uses", "").startswith("actions/upload-artifact"))  # fmt: skip
    paths = filled(kept["with"]["path"], {"out": "audit"}).split()
    assert all((folder / path).is_file() for path in paths)
    assert not [path for path in paths if path.endswith(".safetensors")]
    cases = list(ET.parse(folder / "audit" / "junit.xml").iter("testcase"))  # noqa: S314 - our own
    assert len(cases) > len(found["attacks"])
    loose = {**use["with"], "fail-above": "\nauc=.9999\n", "shadow-recipe": "", "out": "loose"}
    assert steps_run(folder, env, loose) in (0, 4)
    odd = {**use["with"], "fail-above": "auc=.6; touch hacked", "out": "odd"}
    assert steps_run(folder, env, odd) == 2
    assert not (folder / "hacked").exists()


@pytest.mark.end_to_end
def test_the_hook_before_a_push_runs(place: tuple[Path, dict[str, str]]) -> None:
    folder, env = place
    subprocess.run([sys.executable, "my_model.py"], cwd=folder, env=env, check=True)
    ((hook,),) = (repo["hooks"] for repo in read("pre-commit-config.yaml")["repos"])
    done = subprocess.run(shlex.split(hook["entry"]), cwd=folder, env=env, capture_output=True,
                          text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "The gate failed.\nauc=0.6 failed." in done.stdout
    assert re.fullmatch(hook["files"], "my_model.py")
