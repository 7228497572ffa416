"""Hostile command lines, and hostile arguments of ``privbench.run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from privbench.api.session import Session
from privbench.cli.main import main
from privbench.grid.suite import suite_from
from privbench.ground.errors import PrivbenchError

pytestmark = pytest.mark.timeout(0)  # each case has a limit of its own

WORDS = (
    "lira", "encodermi-t", "talos", "talos+memguard", "simclr", "supervised", "digits", "default",
    "quarters", "adaptive", "naive", "white-box", "slant", "2", "cpu", "paper", "auto", "serial",
    "processes", "1/2", "3/2", "0/0", "s.yaml", "results", "results/0.json", "none.json", ".", "..",
    "/dev/null", "/dev/null/x", "x" * 300, "simclr.epochs=2", "lira.k=2", "simclr.lr=.inf", "a.b=",
    "no:digits", "no:dataset_digits", "attacks", "plugins", "cuda", "cuda:99", "cpu:1", "cpu:-1",
    "meta", "mps", "0,1", "0,", "*", "ab", "0" * 64, "../../etc", "--", "-h", "--help", "-", "-p",
)  # fmt: skip


def _can_be_given(word: str) -> bool:
    """Whether a shell can hand this word to a program."""
    try:
        return "\x00" not in word and bool(word.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False


def test_command_lines(fuzz: Any, hostile: Any, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("attacks: [lira]\n", encoding="utf-8")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "0.json").write_text("{}", encoding="utf-8")
    words = [*WORDS, "\udcff", *(token for token in hostile.tokens if _can_be_given(token))]
    options = {
        name: [option for p in command.params for option in p.opts if option.startswith("-")]
        for name, command in main.commands.items()
    }
    options["cache"] = ["ls", "why", "gc", "--older-than"]
    for chance in fuzz.cases():
        name = chance.choice(("run", "run", "run", *options))
        args = ["run", "--attack", "lira"] if name == "run" and chance.random() < 0.7 else [name]
        for _ in range(chance.randint(0, 4)):
            if chance.random() < 0.8:
                args.append(chance.choice([*options[name], "--data-root"]))
            word = chance.choice(words)
            other = hostile.text(word, chance)
            args.append(other if chance.random() < 0.3 and _can_be_given(other) else word)
        if chance.random() < 0.1:
            args = [chance.choice(words), *args]
        if "run" in args and "ray" not in args:
            args.insert(args.index("run") + 1, "--dry-run")
        fuzz.command(args)


def test_arguments_of_run(fuzz: Any, hostile: Any, tmp_path: Path) -> None:
    suite = suite_from({"attacks": ["lira"]}, "here")
    names = ("data_root", "device", "jobs", "timeout", "executor", "address")
    usual = {"out": tmp_path / "o", "data_root": None, "device": "cpu", "compiled": False,
             "jobs": 1, "timeout": None, "executor": None, "address": None}  # fmt: skip
    values = [v for v in (*hostile.values, *WORDS) if v != "ray"]
    for chance in fuzz.cases():
        options: dict[str, Any] = dict(usual)
        for name in chance.sample(names, chance.randint(1, 3)):
            value = chance.choice(values)
            options[name] = Path(str(value)) if name == "data_root" else value

        def call(options: dict[str, Any] = options) -> str:
            try:
                Session.of(suite, (), options, console=Console(quiet=True))
            except PrivbenchError as error:
                return str(error)
            return ""

        said = fuzz.guarded({k: ascii(v) for k, v in options.items()}, call) or ""
        assert said.isprintable(), ascii(said)
        assert len(said) < 500, said
