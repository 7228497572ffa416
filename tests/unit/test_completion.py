"""Names complete in a shell, without the import of any plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from privbench.cli.completion import games, names, protocols
from privbench.measure.data.protocol import PROTOCOLS
from privbench.testing.attack_checks import CORE_GAMES

if TYPE_CHECKING:
    from privbench.plugins.registry import Registry


@pytest.mark.parametrize("kind", ["attack", "defense", "target", "dataset"])
def test_all_names_of_a_kind_are_found(kind: str, registry: Registry) -> None:
    assert names(kind) == [method.name for method in registry.all(kind)]


QUIET = """
import sys
from privbench.cli.main import main
try:
    main(prog_name="privbench")
finally:
    assert not {"torch", "privbench_plugins.attacks.lira"} & set(sys.modules)
"""


def test_all_games_and_protocols_are_found() -> None:
    assert games() == sorted(CORE_GAMES)  # those of plugins are among `names`
    assert {*PROTOCOLS} <= {*protocols()} <= {*PROTOCOLS, "default"}


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (
            "run --attack li",
            {"lira", "lira-encoder", "lira-head", "lira-joint", "lira-offline", "lira-residual"},
        ),
        ("run --defense talos+mem", {"talos+memguard"}),
        (
            "audit --attack li",
            {"lira", "lira-encoder", "lira-head", "lira-joint", "lira-offline", "lira-residual"},
        ),
        ("audit --shadow-recipe simc", {"simclr"}),
        ("run --protocol quar", {"quarters"}),
        ("doc simc", {"simclr"}),
        ("doc prop", {"property", "property-inference"}),  # a game, and its attack
        (
            "check attack_lira",
            {"attack_lira", "attack_lira_encoder", "attack_lira_head", "attack_lira_joint"},
        ),
        ("list plu", {"plugins"}),
    ],
)
def test_a_shell_gets_names(words: str, completed: set[str]) -> None:
    *before, last = words.split()
    line = " ".join(["privbench", *before, last])
    told = {"_PRIVBENCH_COMPLETE": "bash_complete", "COMP_WORDS": line,
            "COMP_CWORD": str(len(before) + 1)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", QUIET], env={**os.environ, **told}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "AssertionError" not in done.stderr, done.stderr
    assert {one.partition(",")[2] for one in done.stdout.split()} == completed
