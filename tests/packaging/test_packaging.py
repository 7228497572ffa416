"""What is shipped, what starting up costs, and that strangers enter by the same door."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from privbench.results.files import read_all

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins" / "privbench_plugins"
KINDS = ("attacks", "datasets", "defenses", "targets")


def declared() -> dict[str, str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    points: dict[str, str] = config["project"]["entry-points"]["privbench"]
    return points


def test_every_plugin_file_has_one_entry_point_and_the_other_way_round() -> None:
    files = {
        f"{kind[:-1]}_{path.stem}": f"privbench_plugins.{kind}.{path.stem}"
        for kind in KINDS
        for path in (PLUGINS / kind).glob("*.py")
        if path.stem != "__init__"
    }
    assert files
    assert declared() == files


def test_entry_points_are_installed_as_declared() -> None:
    installed = {
        p.name: p.value
        for p in entry_points(group="privbench")
        if p.dist is not None and p.dist.name == "privbench"
    }
    assert installed == declared(), "run `uv sync`: the installed entry points are older"


@pytest.mark.parametrize("package", ["benchmark/privbench", "plugins/privbench_plugins"])
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


# ---- starting up ---------------------------------------------------------------------------------

QUIET = """
import sys
from privbench.cli.main import main

try:
    main({args!r}, standalone_mode=True)
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "sklearn", "torchvision", "privbench_plugins"}} & set(sys.modules)
assert not heavy, heavy
"""


def python(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; fail with what it said."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env={**os.environ, **env},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    assert "Usage:" in python(QUIET.format(args=["--help"]), tmp_path).stdout


@pytest.mark.parametrize("args", [["cache", "ls"], ["run", "--help"]])
def test_light_commands_import_nothing_heavy(tmp_path: Path, args: list[str]) -> None:
    python(QUIET.format(args=args), tmp_path)


# ---- a package of somebody else's ----------------------------------------------------------------

PLUGIN = '''
"""Loud: a stranger's attack and data."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt

from privbench import (
    Access, Card, Dataset, Examples, Membership, MembershipAttack, Protocol, Augmentation, hookimpl,
)


@dataclass(frozen=True)
class Loud(MembershipAttack):
    """Calls a member whatever the victim is sure of."""

    name: ClassVar[str] = "loud"
    needs: ClassVar[Access] = Access.POSTERIORS

    sharpness: Annotated[float, Gt(0)] = 1.0

    def answer(self, oracle, question, ctx):
        return Membership(self.sharpness * oracle.posteriors(question.examples).amax(1))


@dataclass(frozen=True)
class Stripes(Dataset):
    """Random stripes: two classes, by direction."""

    name: ClassVar[str] = "stripes"
    protocols: ClassVar = {
        "default": Protocol(
            name="default", members=40, nonmembers=40, reference=20, pool=200, test=40
        )
    }

    def card(self, root):
        return Card(
            name=self.name, kind="image", shape=(1, 8, 8), classes=2, scale=255,
            attributes={"bright": 2}, sensitive=("bright",), sources={"all": 400},
            limits=Augmentation(shift=1),
        )

    def load(self, root):
        generator = torch.Generator().manual_seed(7)
        line = torch.rand(400, 1, 1, 8, generator=generator)
        y = torch.randint(2, (400,), generator=generator)
        across = line.expand(400, 1, 8, 8)
        x = torch.where(y[:, None, None, None] == 0, across, across.mT)
        x = (x + 0.2 * torch.rand(400, 1, 8, 8, generator=generator)) / 1.2
        bright = (x.mean((1, 2, 3)) > 0.5).long()
        return Examples.of((255 * x).round().byte(), y, {"bright": bright}, scale=255)


@hookimpl
def privbench_attacks():
    return [Loud()]


@hookimpl
def privbench_datasets():
    return [Stripes()]
'''

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "privbench-loud"
version = "1.0"
dependencies = ["privbench"]

[project.entry-points.privbench]
loud = "privbench_loud"
"""

STRANGER = """
from click.testing import CliRunner

import torch

torch.set_num_threads(1)
from privbench.cli.main import main
from privbench.testing import checks
from privbench_loud import Loud, Stripes

for check in [*checks(Loud()), *checks(Stripes())]:
    check()

def invoke(*args, want=0):
    done = CliRunner().invoke(main, args)
    assert done.exit_code == want, (done.output, done.exception)
    return done.output

listed = invoke("list")
assert "privbench-loud 1.0: dataset stripes, attack loud" in listed, listed
assert "privbench-broken 1.0: import failed: RuntimeError: out of order" in listed, listed
assert "Calls a member" in invoke("doc", "loud")
grid = ("run", "--target", "supervised", "--set", "supervised.epochs=2", "--out", "results")
assert "2 trials, 0 failed" in invoke(
    *grid, "--dataset", "stripes", "--attack", "loud", "--attack", "nn-mia"
)
refused = invoke(*grid, "--attack", "broken", want=2)
why = "plugin 'broken' failed to load (import failed: RuntimeError: out of order)"
assert why in refused, refused
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")


def install(site: Path, project: str) -> None:
    """What an installer would write beside the module: metadata and entry points."""
    config = tomllib.loads(project)["project"]
    name, version = config["name"], config["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "\n".join(f"{k} = {v}" for k, v in config["entry-points"]["privbench"].items())
    write(info / "entry_points.txt", f"[privbench]\n{points}\n")


@pytest.mark.end_to_end
def test_strangers_take_part_and_a_broken_one_is_in_nobodys_way(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write(site / "privbench_loud.py", PLUGIN)
    write(site / "privbench_broken.py", "raise RuntimeError('out of\\n order')")
    install(site, PROJECT)
    install(site, PROJECT.replace("loud", "broken"))
    python(STRANGER, tmp_path, PYTHONPATH=str(site), PRIVBENCH_CACHE=str(tmp_path / "store"))
    records = read_all([tmp_path / "results"])
    assert {(r.cell.attack.name, r.cell.dataset.name, r.status) for r in records} == {
        ("loud", "stripes", "ok"), ("nn-mia", "stripes", "ok"),
    }  # fmt: skip

    # The board of what a stranger's plugin made needs neither it nor, once there is an index of
    # methods, torch.
    python(QUIET.format(args=["leaderboard", "results"]).replace("assert not heavy", "#"), tmp_path)
    board = python(QUIET.format(args=["leaderboard", "results"]), tmp_path)
    assert "Targets in full: supervised(epochs=2)." in board.stdout
    assert "## stripes, supervised, adaptive adversary" in board.stdout
    assert "| loud [posteriors] |" in board.stdout


# ---- the wheel -----------------------------------------------------------------------------------


def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [uv, "build", "--wheel", "--offline", "--out-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        pytest.skip(f"uv cannot build here: {done.stderr.splitlines()[-1:]}")
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "privbench", "privbench_plugins",
    }  # fmt: skip
    wanted = {"privbench/py.typed", "privbench_plugins/py.typed", "privbench/cli/main.py"}
    wanted |= {value.replace(".", "/") + ".py" for value in declared().values()}
    assert wanted <= names
