"""Runs that name plugins of others: the process that schedules and writes imports none of them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privbench.grid import apart
from privbench.grid.apart import PlannedApart, is_planned_apart
from privbench.grid.messages import Done, Node, Packed, Role, Setup
from privbench.grid.planned import Item
from privbench.grid.suite import suite_from
from privbench.ground.errors import BadInputError, PluginError, UnknownNameError
from privbench.ground.judges import Wanted
from privbench.plugins.plugin_file import PluginFile

PLUGIN = '''
import os
from dataclasses import dataclass
from typing import ClassVar
from privbench import Access, Membership, MembershipAttack, hookimpl

with open("imported", "a") as file:
    file.write(str(os.getpid()) + "\\n")
{more}

@dataclass(frozen=True)
class A(MembershipAttack):
    """Confidence."""
    name: ClassVar[str] = "a-loud"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        return Membership(oracle.posteriors(question.examples).amax(1))

@hookimpl
def privbench_attacks():
    return [A()]
'''
#: The fork keeps the pipe open.
FORKS = "os.fork() or (__import__('time').sleep(20), os._exit(0)); os._exit(3)"
SUITE = {
    "datasets": ["digits"], "targets": [{"supervised": {"epochs": 2}}],
    "protocols": [{"name": "small", "members": 40, "nonmembers": 40, "reference": 20, "pool": 200,
                   "test": 40}],
    "attacks": ["a-loud", "metric-loss"],
}  # fmt: skip
RUN = """
import json, os, sys, privbench
suite, executor = json.loads(sys.argv[1])
made = privbench.run(
    suite, out=f"out-{executor}", plugins=["loud.py"], device="cpu", executor=executor
)
mine = [name for name in sys.modules if name == "torch" or name.startswith("privbench_file_")]
print(json.dumps([os.getpid(), mine, [[r.status, r.digest] for r in made]]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "loud.py").write_text(PLUGIN.format(more=""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    return tmp_path


def python(code: str, *args: str) -> Any:
    """Run code in a process of its own; the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False,
        timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.end_to_end
def test_the_process_that_writes_imports_neither_plugin_nor_torch(folder: Path) -> None:
    pid, mine, found = python(RUN, json.dumps([SUITE, None]))
    assert mine == []
    importers = (folder / "imported").read_text().split()
    assert importers
    assert str(pid) not in importers
    (folder / "store").rename(folder / "other")
    pid, mine, here = python(RUN, json.dumps([SUITE, "serial"]))
    assert str(pid) in (folder / "imported").read_text().split(), "this one was asked to"
    assert mine
    assert found == here
    assert [status for status, _ in found] == ["ok", "ok"]


def planned(folder: Path, **more: Any) -> PlannedApart:
    suite = suite_from({**SUITE, **more}, "the suite")
    options = {"out": folder / "out", "data_root": None, "device": "cpu", "store": folder / "s"}
    given = suite, [folder / "loud.py"], options
    return PlannedApart(1, "privbench.api.planning:Planning", *given)


@pytest.mark.slow
def test_a_plan_apart_is_the_plan_here(folder: Path) -> None:
    from privbench.api.planning import Planning
    from privbench.api.session import _PLANNING
    from privbench.grid.server import named_function

    assert named_function(_PLANNING) is Planning
    plan = planned(folder, seeds=2)
    suite = suite_from({**SUITE, "seeds": 2}, "the suite")
    options = {"out": folder / "out", "data_root": None, "device": "cpu", "store": folder / "s"}
    here = Planning(suite, [folder / "loud.py"], options)
    assert plan.items == here.items
    assert plan.setup == here.setup
    todo = [item.digest for item in plan.items]
    nodes = plan.nodes(todo)
    assert nodes == here.nodes(todo)
    loud = next(node for node in nodes.values() if node.kind == "attack a-loud")
    quiet = next(node for node in nodes.values() if node.kind == "attack metric-loss")
    assert (plan.packed(loud.name).apart, plan.packed(quiet.name).apart) == (True, False)
    assert plan.packed(quiet.name).code == ""
    assert json.loads(plan.blank(todo[0]))["trial"] == todo[0]
    assert plan.ask("judging") == here.judging
    with pytest.raises(RuntimeError, match="KeyError: 'nobody'"):
        plan.blank("nobody")
    plan.close()
    with pytest.raises(PluginError, match="the process that plans ended"):
        plan.blank(todo[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "changes", "kind", "told"),
    [
        ("", {"attacks": ["a-lod"]}, UnknownNameError, "attack 'a-lod': did you mean 'a-loud'"),
        ("", {"seeds": [0], "attacks": [{"a-loud": {"k": 1}}]}, BadInputError, "a-loud"),
        ("os._exit(7)", {}, PluginError, "ended with status 7: a plugin ended it"),
        ("1 / 0", {}, BadInputError, "plugin file loud.py: import failed: ZeroDivisionError"),
        ("import warnings; warnings.warn('look here', FutureWarning)", {}, None, "look here"),
        (FORKS, {}, PluginError, "ended with status 3"),
    ],
)  # fmt: skip
def test_what_goes_wrong_there_is_said_here(
    folder: Path, more: str, changes: Any, kind: Any, told: str
) -> None:
    (folder / "loud.py").write_text(PLUGIN.format(more=more))
    with (
        pytest.warns(FutureWarning, match=told) if kind is None else pytest.raises(kind, match=told)
    ):
        planned(folder, **changes).close()


def test_only_plain_values_are_read() -> None:
    node = Node("n", "t", Role("victim"), "k", {"a"})
    setup = Setup(Path("store"), "cpu", None, plugins=(PluginFile("/x.py", "text"),))
    sent = [Item("a", None, ("x", "y")), node, Packed(b"", "c"), {"a": [1, 2.5, None, b""]}, setup,
            Wanted("lira", "lira", 1, "membership", {"k": (1, 2)})]  # fmt: skip
    read = apart._Unpickler(BytesIO(pickle.dumps(apart._plain(sent)))).load()
    assert apart._made(read) == sent
    for value in (Fraction(1), Done(), print, Setup, node):
        with pytest.raises(PluginError, match="which is no plain value"):
            apart._Unpickler(BytesIO(pickle.dumps(value))).load()


def test_text_of_a_class_of_others_is_text() -> None:
    class Word(str):
        __slots__ = ()

    assert type(apart._plain(Word("x"))) is str


def test_which_runs_are_planned_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    ours = frozenset({("attack", "lira"), ("", "talos")})
    theirs = frozenset({("attack", "lira"), ("attack", "theirs")})
    assert not is_planned_apart(theirs, [], None), "nothing else is there"
    assert is_planned_apart(ours, [file], None), "files are imported whatever is named"
    assert is_planned_apart(None, [file], "processes"), "all are needed"
    assert not is_planned_apart(theirs, [file], "serial")
    point = SimpleNamespace(name="theirs", value="theirs.plugin")
    monkeypatch.setattr(
        "privbench.plugins.registry.importlib.metadata.entry_points", lambda **_: [point]
    )
    assert is_planned_apart(theirs, [], None)
    assert is_planned_apart(frozenset({("attack", "talos")}), [], None), "talos is a defense"
    assert not is_planned_apart(ours, [], None)
    assert is_planned_apart(ours, ["attack_lira"], None), "theirs may stand in"
    assert not is_planned_apart(theirs, ["theirs"], None), "it is switched off"
    monkeypatch.setenv("PRIVBENCH_DISABLE_PLUGINS", "x, theirs")
    assert not is_planned_apart(theirs, [], None)


def test_the_names_in_tree_are_those_of_the_registry(registry: Any) -> None:
    from privbench.plugins.registry import KINDS, names_in_tree

    ours = {(kind, method.name) for kind in KINDS for method in registry.all(kind)
            if registry.owner(kind, method.name).distribution == "privbench"}  # fmt: skip
    assert names_in_tree() == ours
