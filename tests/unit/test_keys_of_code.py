"""Which artifacts become stale when a line of a module of the core changes."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest

import privbench
from privbench.grid.cell import CODE as RESULTS
from privbench.ground.store import source
from privbench.measure.victims.plan import CODE as VICTIMS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOTS = {"outputs": ("privbench.measure.methods.oracle",), "victims": VICTIMS, "results": RESULTS}
MODULES = sorted(m.name for m in walk_packages(privbench.__path__, "privbench."))

#: Packages and modules -> what a change of a line there makes stale; the longest name that fits.
STALE = {
    "privbench": set(),  # orchestration: cli, grid, boards, store, testing, errors, method
    "privbench.measure.data": {"victims", "results"},
    "privbench.measure.data.augmentation": {"outputs", "victims", "results"},
    "privbench.measure.data.examples": {"outputs", "victims", "results"},
    "privbench.measure.data.row_random": {"outputs", "victims", "results"},
    "privbench.measure.training": {"victims", "results"},
    "privbench.measure.victims": {"results"},
    "privbench.measure.victims.build": {"victims", "results"},
    "privbench.measure.victims.obeyed": {"victims", "results"},
    "privbench.measure.victims.plan": {"victims", "results"},
    "privbench.measure.victims.reloaded": {"victims", "results"},
    "privbench.measure.victims.served": {"victims", "results"},
    "privbench.measure.victims.spec": {"victims", "results"},
    "privbench.measure.victims.stages": {"victims", "results"},
    "privbench.measure.games": {"results"},
    "privbench.measure.methods.access": {"outputs", "victims", "results"},
    "privbench.measure.methods.oracle": {"outputs", "victims", "results"},
    "privbench.measure.methods": set(),
    "privbench.measure.methods.cell": {"results"},
    "privbench.measure.methods.context": {"victims", "results"},
    "privbench.measure.methods.defense": {"victims", "results"},
    "privbench.measure.methods.target": {"victims", "results"},
}


@pytest.fixture
def mutated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Name modules here, and their source gets one more line."""
    named: list[str] = []
    parse = source._parse

    def read(spec: ModuleSpec) -> source._Source | None:
        found = parse(spec)
        if found is not None and spec.name in named:
            return found._replace(digest=source.digest([found.digest, "one more line"]))
        return found

    monkeypatch.setattr(source, "_READ", {})
    monkeypatch.setattr(source, "_parse", read)
    yield named
    source.computing_digest.cache_clear()


def _digests() -> dict[str, str]:
    source._READ.clear()
    source.computing_digest.cache_clear()
    return {name: source.computing_digest(*modules) for name, modules in ROOTS.items()}


@pytest.mark.end_to_end
def test_every_module_makes_stale_what_it_computes_and_nothing_else(mutated: list[str]) -> None:
    assert {*STALE} - {"privbench"} <= {*MODULES}, "the table names modules that are gone"
    before = _digests()
    wrong = {}
    for module in MODULES:
        mutated[:] = [module]
        after = _digests()
        stale = {name for name in ROOTS if after[name] != before[name]}
        fitting = max((p for p in STALE if f"{module}.".startswith(f"{p}.")), key=len)
        if stale != STALE[fitting]:
            wrong[module] = stale
    assert not wrong


def test_a_comment_or_docstring_makes_nothing_stale() -> None:
    spec = source._find("privbench.measure.data.split")
    assert spec is not None
    text = spec.loader.get_source(spec.name)  # type: ignore[union-attr]

    class Loader:
        def __init__(self, more: str) -> None:
            self.more = more

        def get_source(self, name: str) -> str:
            del name
            return f"{text}\n{self.more}\n"

    digests = []
    for more in ("", "# a remark", '"""Text."""', "changed = 1"):
        other = ModuleSpec(spec.name, Loader(more))  # type: ignore[arg-type]
        found = source._parse(other)
        assert found is not None
        digests.append(found.digest)
    assert digests[0] == digests[1] == digests[2] != digests[3]


BY_PUBLIC_NAME = """
import privbench
from privbench import classifier_phase

def signal(log_p, y):
    return privbench.scaled_logit(log_p, y)
"""


def test_a_method_depends_on_what_it_imports_of_the_toolbox(
    mutated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench.plugins.plugin_file import PluginFile
    from privbench_plugins.attacks import lira, metric
    from privbench_plugins.targets import supervised

    theirs = PluginFile("/nowhere/by_public_name.py", BY_PUBLIC_NAME).load()
    monkeypatch.delitem(sys.modules, theirs.__name__)  # its globals are all that is needed
    modules = {"lira": lira, "metric": metric, "supervised": supervised, "theirs": theirs}

    def stale(*changed: str) -> set[str]:
        digests = []
        for names in ((), changed):
            mutated[:] = list(names)
            source._READ.clear()
            digests.append({name: source.source_digest(of) for name, of in modules.items()})
        return {name for name in modules if digests[0][name] != digests[1][name]}

    assert stale("privbench.toolbox.likelihood_ratio") == {"lira"}
    assert stale("privbench.toolbox.likelihood") == {"lira", "theirs"}
    assert stale("privbench.toolbox.phases") == {"supervised", "theirs"}
    assert stale("privbench.measure.games.metrics") == set()
