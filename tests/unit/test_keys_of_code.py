"""Which keys change when a line of code changes: those of what it computes, and none for a text."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest

import privbench
import privbench_plugins
from privbench.ground.store import source
from privbench.measure.victims.plan import CODE as VICTIMS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOTS = {
    "outputs": ("privbench.measure.methods.oracle",),
    "victims": VICTIMS,
    "results": (source.COMPUTING,),
}
MODULES = sorted(m.name for m in walk_packages(privbench.__path__, "privbench."))
PLUGINS = sorted(m.name for m in walk_packages(privbench_plugins.__path__, "privbench_plugins."))
POINTS = sorted({point.module for point in entry_points(group="privbench")})

#: Packages and modules -> what a change of a line there makes stale; the longest name that fits.
STALE = {
    "privbench": set(),  # whatever does not measure
    "privbench.measure": {"results"},
    "privbench.measure.data": {"victims", "results"},
    "privbench.measure.data.augmentation": {"outputs", "victims", "results"},
    "privbench.measure.data.examples": {"outputs", "victims", "results"},
    "privbench.measure.data.row_random": {"outputs", "victims", "results"},
    "privbench.measure.training": {"victims", "results"},
    "privbench.measure.victims.build": {"victims", "results"},
    "privbench.measure.victims.obeyed": {"victims", "results"},
    "privbench.measure.victims.plan": {"victims", "results"},
    "privbench.measure.victims.reloaded": {"victims", "results"},
    "privbench.measure.victims.served": {"victims", "results"},
    "privbench.measure.victims.spec": {"victims", "results"},
    "privbench.measure.victims.stages": {"victims", "results"},
    "privbench.measure.methods.access": {"outputs", "victims", "results"},
    "privbench.measure.methods.context": {"victims", "results"},
    "privbench.measure.methods.defense": {"victims", "results"},
    "privbench.measure.methods.method": {"victims", "results"},
    "privbench.measure.methods.oracle": {"outputs", "victims", "results"},
    "privbench.measure.methods.target": {"victims", "results"},
}

Texts = dict[str, str]  # module -> its text, instead of what its file holds


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Texts]:
    """What modules hold instead of the text of their file."""
    changed: Texts = {}
    parse = source._parse

    class Loader:
        def __init__(self, text: str) -> None:
            self.text = text

        def get_source(self, name: str) -> str:
            del name
            return self.text

    def read(spec: ModuleSpec) -> source._Source | None:
        if spec.name not in changed:
            return parse(spec)
        loader = Loader(changed[spec.name])
        inside = spec.submodule_search_locations is not None
        other = ModuleSpec(spec.name, loader, is_package=inside)  # type: ignore[arg-type]
        return parse(other)

    monkeypatch.setattr(source, "_READ", {})
    monkeypatch.setattr(source, "_parse", read)
    yield changed
    source.computing_digest.cache_clear()


def _text(module: str) -> str:
    spec = source._find(module)
    assert spec is not None
    return str(spec.loader.get_source(module))  # type: ignore[union-attr]


def _with(texts: Texts, module: str, text: str | None) -> None:
    """Let a module hold a text; None for that of its file."""
    texts.pop(module, None)
    if text is not None:
        texts[module] = text
    spec = source._find(module)
    source._READ.pop(id(spec), None)
    source.computing_digest.cache_clear()


def _digests() -> dict[str, str]:
    return {name: source.computing_digest(*modules) for name, modules in ROOTS.items()}


def _covered(modules: tuple[str, ...]) -> set[str]:
    """The modules that a digest covers."""
    parts: set[str] = set()
    for name in modules:
        for spec in source._package(name):
            source._close(spec, parts, source._computes)
    return {part.partition(" ")[0] for part in parts}


def test_every_module_makes_stale_what_it_computes_and_nothing_else() -> None:
    assert {*STALE} - {"privbench"} <= {*MODULES}, "the table names modules that are gone"
    covered = {name: _covered(modules) for name, modules in ROOTS.items()}
    wrong = {}
    for module in MODULES:
        stale = {name for name in ROOTS if module in covered[name]}
        fitting = max((p for p in STALE if f"{module}.".startswith(f"{p}.")), key=len)
        if stale != STALE[fitting]:
            wrong[module] = stale
    assert not wrong


# ---- mutations -----------------------------------------------------------------------------------


class _Words(ast.NodeTransformer):
    """Says everything else in other words: docstrings, messages, headings."""

    def __init__(self) -> None:
        self.count = 0

    def _other(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.JoinedStr):
            node.values = [self._other(one) for one in node.values]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.count += 1
            return ast.Constant(f"{node.value} In other words.")
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        node.value = self._other(node.value)
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        made = node.exc
        if isinstance(made, ast.Call) and ast.unparse(made.func).rpartition(".")[2][0].isupper():
            made.args = [self._other(one) for one in made.args]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) in {"warnings.warn", "Column"}:
            node.args[:1] = [self._other(one) for one in node.args[:1]]
        return self.generic_visit(node)


def _other_words(text: str) -> tuple[str, int]:
    """The text with other words and without comments, and how many texts changed."""
    words = _Words()
    return f"# A remark.\n{ast.unparse(words.visit(ast.parse(text)))}\n", words.count


_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.Lt, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def _mutable(tree: ast.AST) -> list[ast.AST]:
    """Numbers, operators and returned values in bodies of functions, outside of messages."""
    said = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Assert)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in {"warnings.warn", "Board"})
        for inside in ast.walk(node)
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    bodies = {id(n): n for f in functions for one in f.body for n in ast.walk(one)}
    return [node for at, node in bodies.items() if at not in said and _changed(node)]


def _changed(node: ast.AST, change: bool = False) -> bool:
    """Whether a node can be changed; if asked for, it is."""
    made: tuple[str, object] | None = None
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            made = "value", value + 1
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _OPERATORS:
            made = "op", _OPERATORS[type(op)]()
        case ast.Compare(ops=[op, *more]) if type(op) in _OPERATORS:
            made = "ops", [_OPERATORS[type(op)](), *more]
        case ast.Return(value=ast.expr() as value):
            made = "value", ast.Tuple([value], ast.Load())
        case _:
            pass
    if made and change:
        setattr(node, *made)
    return made is not None


def _mutants(text: str, most: int = 2) -> list[str]:
    """The text with one change each, evenly spread over those that are possible."""
    count = len(_mutable(ast.parse(text)))
    made = []
    for i in sorted({j * count // most for j in range(most)} if count else ()):
        tree = ast.parse(text)
        _changed(_mutable(tree)[i], change=True)
        made.append(ast.unparse(tree))
    return made or [f"{text}\nadded = 1\n"]  # nothing but declarations


def test_words_in_measure_change_no_key_and_computing_lines_do(texts: Texts) -> None:
    before, counted = _digests(), 0
    for module in [name for name in MODULES if name.startswith("privbench.measure.")]:
        text = _text(module)
        other, count = _other_words(text)
        counted += count
        _with(texts, module, other)
        assert _digests() == before, f"{module}: words are in a key"
        for mutant in _mutants(text):
            _with(texts, module, mutant)
            after = source.computing_digest(source.COMPUTING)
            assert after != before["results"], f"{module}: not in a key:\n{mutant}"
        _with(texts, module, None)
    assert counted > 500


@pytest.mark.slow
def test_words_of_methods_change_no_key_and_computing_lines_do(texts: Texts) -> None:
    methods = {name: import_module(name) for name in POINTS}
    toolbox = [name for name in MODULES if name.startswith("privbench.toolbox.")]
    held: dict[str, list[str]] = {}  # module -> methods whose digest covers it
    for name in methods:
        spec = source._find(name)
        assert spec is not None
        parts: set[str] = set()
        source._close(spec, parts)
        for part in parts:
            held.setdefault(part.partition(" ")[0], []).append(name)
    wanted = [*PLUGINS, *toolbox]
    packages = {name for name in wanted if source._find(name).submodule_search_locations}  # type: ignore[union-attr]
    assert {*wanted} - packages <= {*held}, "no method's digest covers it"
    for module in sorted({*wanted} - packages):
        text, users = _text(module), [methods[name] for name in held[module][:1]]
        before = [source.source_digest(one) for one in users]
        _with(texts, module, _other_words(text)[0])
        after = [source.source_digest(one) for one in users]
        assert after == before, f"{module}: words are in a key"
        for mutant in _mutants(text):
            _with(texts, module, mutant)
            after = [source.source_digest(one) for one in users]
            assert all(a != b for a, b in zip(after, before, strict=True)), f"{module}:\n{mutant}"
        _with(texts, module, None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("raise ValueError('x')", "raise ValueError('y')", True),
        ("raise ValueError('x' + name)", "raise ValueError('y' + name)", False),
        ("raise ValueError('x' 'z')", "raise ValueError(f'y {name} {len(name)}')", True),
        ("raise ValueError(f'{x:.3f}')", "raise ValueError(f'{x} {\", \".join(y)}')", True),
        ("raise ValueError(f'x {take()}')", "raise ValueError(f'y {take()}')", True),
        ("raise ValueError(f'{take()}')", "raise ValueError(f'{drop()}')", False),
        ("raise ValueError(f'{(x := 1)}')", "raise ValueError('')", False),
        ("raise ValueError(take('x'))", "raise ValueError(take('y'))", False),
        ("raise ValueError(1)", "raise ValueError(2)", False),
        ("raise ValueError('x')", "raise TypeError('x')", False),
        ("raise errors['x']", "raise errors['y']", False),
        ("raise made('x')", "raise made('y')", False),
        ("assert x, 'no'", "assert x, f'{x} is not'", True),
        ("assert x, 'no'", "assert y, 'no'", False),
        ("warnings.warn('x', stacklevel=2)", "warnings.warn(f'y {x}', stacklevel=2)", True),
        ("warnings.warn('x', Bad)", "warnings.warn('x', Worse)", False),
        ("warned('x')", "warned('y')", False),
        ("from privbench import Column\nColumn('x', 'm')",
         "from privbench import Column\nColumn('y', 'm')", True),
        ("import privbench\nprivbench.Board(())", "import privbench\nprivbench.Board((1,))", True),
        ("from mine import Column\nColumn('x')", "from mine import Column\nColumn('y')", False),
        ("x = 'a'", "x = 'b'", False),
        ("class C:\n    judged_by = (1,)\n    y = 1", "class C:\n    y = 1", True),
        ("class C:\n    judged_by: X = (1,)\n    y = 1", "class C:\n    y = 1", True),
        ("judged_by = 1", "judged_by = 2", False),
        ("class C:\n    def f(self):\n        judged_by = 1\n        return judged_by",
         "class C:\n    def f(self):\n        judged_by = 2\n        return judged_by", False),
        ("from privbench import Ge, Judge", "from privbench import Ge", True),
        ("from privbench import Judge as Ge", "from privbench import Judge as Gt", False),
        ("def f():\n    'a'\n    return 1", "def f():\n    'b'\n    return 1  # c", True),
        ("def f():\n    'a'\n    return 1", "def f():\n    'a'\n    return 2", False),
        ("class C:\n    x: int\n    'a'", "class C:\n    x: int\n    'b'", True),
    ],
)  # fmt: skip
def test_what_is_text(one: str, other: str, same: bool, texts: Texts) -> None:
    digests = []
    for text in (one, other):
        _with(texts, "privbench.measure.data.split", text)
        spec = source._find("privbench.measure.data.split")
        assert spec is not None
        found = source._read(spec)
        assert found is not None
        digests.append(found.digest)
    assert (digests[0] == digests[1]) is same


BY_PUBLIC_NAME = """
import privbench
from privbench import classifier_phase

def signal(log_p, y):
    return privbench.scaled_logit(log_p, y)
"""


def test_a_method_depends_on_what_it_imports_of_the_toolbox(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench.plugins.plugin_file import PluginFile
    from privbench_plugins.attacks import lira, metric
    from privbench_plugins.targets import supervised

    theirs = PluginFile("/nowhere/by_public_name.py", BY_PUBLIC_NAME).load()
    monkeypatch.delitem(sys.modules, theirs.__name__)  # its globals are all that is needed
    modules = {"lira": lira, "metric": metric, "supervised": supervised, "theirs": theirs}

    def stale(changed: str) -> set[str]:
        digests = []
        for text in (None, f"{_text(changed)}\nadded = 1\n"):
            _with(texts, changed, text)
            digests.append({name: source.source_digest(of) for name, of in modules.items()})
        _with(texts, changed, None)
        return {name for name in modules if digests[0][name] != digests[1][name]}

    assert stale("privbench.toolbox.likelihood_ratio") == {"lira"}
    assert stale("privbench.toolbox.likelihood") == {"lira", "theirs"}
    assert stale("privbench.toolbox.phases") == {"supervised", "theirs"}
    assert stale("privbench.measure.games.metrics") == set()
