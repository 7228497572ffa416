"""The tutorial's files and commands do what it says."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner
from tests.environment import HERE, clean_environment

from privbench.cli.main import main
from privbench.plugins import registry as plugins
from privbench.plugins.plugin_file import PREFIX
from privbench.testing import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "plugins" / "tutorial.md"
#: Kinds whose checks train nothing.
QUICK = {"attack", "dataset"}
#: What a test cannot run: it would publish a package.
NOT_RUN = {"uv publish"}


class Block(NamedTuple):
    """A fenced block: the file that it is, or "" for commands; its text."""

    file: str
    text: str


def blocks() -> list[Block]:
    text = TUTORIAL.read_text(encoding="utf-8")
    found = re.findall(
        r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    assert {kind for kind, _, _ in found} == {"python", "console"}
    return [Block(file, body) for _, file, body in found]


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block with the lines that it prints."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").split("\n")
        yield command, printed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


def test_the_example_packages_hold_the_files_of_the_tutorial() -> None:
    by_name = {block.file: block.text for block in blocks() if block.file}
    for name, module in (("norm-attack", "norm_attack"), ("quantise", "quantise")):
        file = ROOT / "examples" / f"privbench-{name}" / f"privbench_{module}" / f"{module}.py"
        assert file.read_text(encoding="utf-8") == by_name[f"{module}.py"]


def test_every_file_loads_and_passes_what_trains_nothing(folder: Path) -> None:
    files = [block for block in blocks() if block.file]
    for block in files:
        (folder / block.file).write_text(block.text)
    runpy.run_path("make_tumours.py")
    given = [folder / block.file for block in files if "hookimpl" in block.text]
    registry = plugins.load(given)
    mine = [plugin for plugin in registry.plugins if plugin.distribution == "file"]
    assert [plugin.problems for plugin in mine] == [[]] * 6
    kinds = [offer.split() for plugin in mine for offer in plugin.offers]
    assert sorted(kind for kind, _ in kinds) == [
        "attack", "attack", "dataset", "defense", "defense", "target",
    ]  # fmt: skip
    for kind, name in kinds:
        if kind in QUICK:
            for check in checks(registry.get(kind, name), root=folder):
                check()


@pytest.mark.end_to_end
def test_every_command_does_what_the_tutorial_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = clean_environment(folder / "venv")
    for block in blocks():
        if block.file:
            Path(block.file).write_text(block.text)
            continue
        for command, printed in commands(block):
            words = shlex.split(command)
            if words[0] == "cd":
                monkeypatch.chdir(words[1])
            elif words[0] == "mkdir":
                Path(words[1]).mkdir()
            elif command not in NOT_RUN:
                said = _run(words, python)
                for line in printed:
                    assert line in said.splitlines(), (command, line, said)


def _run(words: list[str], python: str) -> str:
    if words[0] == "privbench" and "--plugin" in words:
        here = CliRunner().invoke(main, words[1:])
        assert here.exit_code == 0, (words, here.output, here.exception)
        return here.output
    uv = str(shutil.which("uv"))
    given = {
        "privbench": [python, "-c", "from privbench.cli.main import main; main()", *words[1:]],
        "python": [python, *words[1:]],
        "pytest": [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words[1:]],
        "pip": [uv, "pip", "install", *HERE, python, "--no-deps", "-e", "."],
        "uv": [uv, *words[1:], *HERE, python],
        "cp": words,
    }[words[0]]
    done = subprocess.run(given, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (words, done.stdout + done.stderr)
    return done.stdout + done.stderr
