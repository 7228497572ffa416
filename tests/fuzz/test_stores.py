"""Damaged stores and results folders: every command says so in one sentence, or goes on."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from privbench.cli.main import main
from privbench.plugins import registry as plugins
from privbench.plugins.registry import Plugin, Registry
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    import random
    from pathlib import Path

pytestmark = pytest.mark.timeout(0)  # each case has a limit of its own

RUN = ("run", "--dataset", "tiny-images", "--target", "tiny-target", "--attack", "metric-loss")


@pytest.fixture
def tiny(fuzz: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fuzzer with a small data set and target beside the real plugins."""
    both, real, kit = Registry(), Plugin("real", "real", "tests"), Plugin("tiny", "tiny", "tests")
    for kind in ("attack", "defense"):
        for method in registry.all(kind):
            both.add(kind, method, real)
    both.add("dataset", TinyImages(), kit)
    both.add("target", TinyTarget(), kit)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: both)
    return fuzz


def damage(root: Path, chance: random.Random, hostile: Any) -> str:
    """Damage one file or folder; say how."""
    paths = [path for path in sorted(root.rglob("*")) if path.exists()]
    if not paths:
        return "nothing left"
    path = chance.choice(paths)
    if path.is_dir() and chance.random() < 0.7:
        path = chance.choice([one for one in sorted(path.rglob("*")) if one.is_file()] or [path])
    raw = path.read_bytes() if path.is_file() else b""
    edit = chance.randrange(8)
    if raw and edit == 0:
        flipped = bytearray(raw)
        for _ in range(chance.choice((1, 1, 5, 50))):
            flipped[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
    elif raw and edit == 1:
        path.write_bytes(raw[: chance.randrange(len(raw))])
    elif raw and edit in (2, 3):
        text = hostile.text(raw.decode("utf-8", "replace"), chance)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if edit == 4:
            path.mkdir()
        elif edit == 5:
            path.symlink_to(chance.choice((".", "..", path.name, "/dev/null", "none")))
        elif edit == 6:
            path.write_bytes(b"")
    return f"{edit}: {path.relative_to(root)}"


@pytest.mark.slow
def test_stores(tiny: Any, hostile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "whole" / "store"))
    (tmp_path / "whole").mkdir()
    made = CliRunner().invoke(main, [*RUN, "--out", str(tmp_path / "whole" / "results")])
    assert made.exit_code == 0, made.output
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "now" / "store"))
    names = sorted(p.name for p in (tmp_path / "whole" / "results").glob("*.json"))
    for chance in tiny.cases():
        now = tmp_path / "now"
        for old in (now, *now.rglob("*")):
            if old.is_dir() and not old.is_symlink():
                os.chmod(old, 0o700)  # noqa: PTH101
        shutil.rmtree(now, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", now)
        how = [damage(now, chance, hostile) for _ in range(chance.randint(1, 3))]
        result = f"now/results/{chance.choice(names)}"
        for args in (
            ["cache", "ls"], ["cache", "why", chance.choice("0123456789abcdef")], ["show", result],
            ["leaderboard", "now/results"], [*RUN, "--out", "now/results", "--dry-run"],
            ["cache", "gc"], ["cache", "gc", "--older-than", "0"], ["cache", "ls"],
        ):  # fmt: skip
            tiny.command(args, how)
