"""Digests of values (re-exported from `canonical`) and of code.

Source files are read instead of comparing versions, because authors forget to increase a version.
torch is not imported, so that `privbench cache` and `--help` stay fast.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from privbench.ground.store.canonical import canonical, digest, plain
from privbench.ground.store.texts import without_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["canonical", "computing_digest", "digest", "source_digest"]

#: The package whose modules count only if they are given explicitly.
CORE = "privbench"
#: Its package that computes. Code that plans, stores or shows results affects no number.
COMPUTING = "privbench.measure"
#: The package whose modules always count if they are imported.
IN_TREE = "privbench_plugins"
#: The modules of privbench that count if a plugin imports them, also by their public names.
TOOLBOX = "privbench.toolbox"
_STDLIB = sysconfig.get_path("stdlib")
#: Attributes of a class without source that may differ between processes with the same code.
_BOOKKEEPING = {"__dict__", "__weakref__", "__doc__", "__module__"}
_BOOKKEEPING |= {"__firstlineno__", "__static_attributes__"}
_BOOKKEEPING |= {"__annotations__", "__annotate_func__", "__annotations_cache__"}


def source_digest(*objects: Any) -> str:
    """Return a digest of the code behind modules, classes, functions or instances.

    Covers the modules that define the objects and all modules that these import, transitively and
    from anywhere in the file, if they belong to the same top-level package, to the in-tree plugins,
    or are next to a script. Of privbench itself, only the given modules count. Comments, formatting
    and what ``texts`` leaves out do not count. Code without source (a class in a notebook) counts
    by its bytecode, defaults, closure and the globals that it uses; of objects among those, only
    the type counts. A module is read at its first use here: call this before a long run, not after
    the file was edited.

    The order of the objects does not matter; the minor version of Python does.

    Raises:
        TypeError: for an object without code whose class has no code either.
    """
    parts: set[str] = set()
    for thing in objects:
        _add(thing, _Live(parts))
    return digest(parts)


@functools.cache
def computing_digest(*modules: str) -> str:
    """Return a digest of modules of privbench and of all computing modules that they import.

    These are found by import, so there is no list to maintain. A package counts with all its
    modules. Imports for type checkers do not count.

    >>> computing_digest("privbench.measure.victims") == computing_digest("privbench.measure.games")
    False
    """
    parts: set[str] = set()
    for name in modules:
        for spec in _package(name):
            _close(spec, parts, _computes)
    return digest(parts)


def _package(name: str) -> Iterator[ModuleSpec]:
    """The module with that name and, if it is a package, all modules in it."""
    spec = _find(name)
    if spec is None:
        raise TypeError(f"module {name} does not exist")
    yield spec
    for inner in pkgutil.iter_modules(spec.submodule_search_locations or ()):
        yield from _package(f"{name}.{inner.name}")


def _computes(name: str, importer: ModuleSpec) -> bool:
    del importer
    return f"{name}.".startswith(f"{COMPUTING}.")


class _Source(NamedTuple):
    digest: str
    imports: frozenset[str]  # absolute names; some are attributes, not modules
    defines: frozenset[str]


def _add(thing: Any, live: _Live) -> None:
    if isinstance(thing, ModuleType):
        spec = _spec(vars(thing))
        if spec is None or _read(spec) is None:
            raise TypeError(f"module {thing.__name__} has no source: give its classes instead")
        _close(spec, live.parts)
        return
    thing = thing.func if isinstance(thing, functools.partial) else thing
    thing = inspect.unwrap(thing.__func__ if isinstance(thing, MethodType) else thing)
    code = thing if isinstance(thing, (type, FunctionType)) else type(thing)
    if code.__module__ == "builtins":
        raise TypeError(f"{thing!r} has no source: give a module, a class or a function")
    spec = _spec(_namespace(code))
    source = _read(spec) if spec else None
    if spec and source:
        _close(spec, live.parts)
    if source is None or code.__qualname__.partition(".")[0] not in source.defines:
        live.parts.add(live.describe(code))


def _close(
    spec: ModuleSpec,
    parts: set[str],
    follows: Callable[[str, ModuleSpec], bool] | None = None,
) -> None:
    """Add the module and, transitively, the imported modules that `follows` accepts."""
    follows = follows or _follows
    todo = [spec]
    while todo:
        spec = todo.pop()
        source = _read(spec)
        part = f"{spec.name} {source.digest}" if source else ""
        if source is None or part in parts:
            continue
        parts.add(part)
        names = {_home_of(name) for name in source.imports}
        found = (_find(name) for name in names if follows(name, spec))
        todo += [one for one in found if one]


def _follows(name: str, importer: ModuleSpec) -> bool:
    top, own = _top(name), _top(importer.name)
    if _in_toolbox(name):
        return True
    if own == CORE:
        return False
    if top in {own, IN_TREE}:
        return True
    there = _find(top)
    if top == CORE or there is None or _installed(there):
        return False
    return _home(there) == _home(_find(own) or importer)  # a script's helper, in the same folder


def _in_toolbox(name: str) -> bool:
    return f"{name}.".startswith(f"{TOOLBOX}.")


def _home_of(name: str) -> str:
    """The module of the toolbox that holds a public name of privbench; any other name itself."""
    top, _, public = name.partition(".")
    home: str = vars(sys.modules[CORE])["HOME"].get(public, name) if top == CORE else name
    return home if _in_toolbox(home) else name


def _top(name: str) -> str:
    return name.partition(".")[0]


def _home(spec: ModuleSpec) -> str | None:
    inside = [*(spec.submodule_search_locations or ())] or [spec.origin or ""]
    return os.path.dirname(os.path.abspath(inside[0])) if spec.has_location else None  # noqa: PTH100, PTH120 - strings, maybe inside a zip


def _installed(spec: ModuleSpec) -> bool:
    home = _home(spec)
    return home is None or _holds_packages(home)


@functools.cache
def _holds_packages(folder: str) -> bool:
    path = PurePath(folder)
    installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return installed or path.is_relative_to(_STDLIB)


def _namespace(code: Any) -> dict[str, Any]:
    """Return the globals of the module of a class or function, even if it is not in sys.modules."""
    if code.__module__ in sys.modules:
        return vars(sys.modules[code.__module__])
    functions = [code, *vars(code).values()]
    spaces = [f.__globals__ for f in functions if isinstance(f, FunctionType)]
    return next((s for s in spaces if s.get("__name__") == code.__module__), {})


def _spec(space: Mapping[str, Any]) -> ModuleSpec | None:
    if space.get("__spec__") is None and space.get("__file__"):  # a script
        return _script(space["__name__"], space["__file__"])
    spec = space.get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


@functools.cache
def _script(name: str, file: str) -> ModuleSpec | None:
    return importlib.util.spec_from_file_location(name, file)


def _find(name: str) -> ModuleSpec | None:
    """Return the spec of a module without importing it; None if there is no such module."""
    module = sys.modules.get(name)
    if module is not None:
        return _spec(vars(module))
    parent, dot, _ = name.rpartition(".")
    if not dot:
        return _search(name, None)
    package = _find(parent)
    folders = package.submodule_search_locations if package else None
    return _search(name, tuple(folders)) if folders else None


@functools.cache
def _search(name: str, folders: tuple[str, ...] | None) -> ModuleSpec | None:
    return PathFinder.find_spec(name, folders)


#: By id of the spec, which importlib.reload replaces. Keeping the spec keeps its id valid.
_READ: dict[int, tuple[ModuleSpec, _Source | None]] = {}


def _read(spec: ModuleSpec) -> _Source | None:
    if id(spec) not in _READ:
        _READ[id(spec)] = spec, _parse(spec)
    return _READ[id(spec)][1]


def files_read() -> set[str]:
    """Return the files whose text is part of a digest made by this process."""
    return {spec.origin for spec, _ in _READ.values() if spec.origin}


def _parse(spec: ModuleSpec) -> _Source | None:
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is None and (spec.origin or "").endswith(".py"):  # pytest's loader
        get_source = SourceFileLoader(spec.name, str(spec.origin)).get_source
    try:
        text = get_source(spec.name) if get_source else None
        if text is None:  # an extension module, a .pyc
            if not (spec.has_location and spec.origin):
                return None
            with open(spec.origin, "rb") as file:  # noqa: PTH123
                content = hashlib.file_digest(file, "blake2b").hexdigest()
            return _Source(content, frozenset(), frozenset())
    except (ImportError, OSError):  # deleted in the meantime
        return None
    tree = ast.parse(text)
    imports: set[str] = set()
    defines: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # never runs
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defines.add(node.name)
        imports.update(_imported(node, spec))
    code = ast.dump(without_texts(tree))
    return _Source(digest(code), frozenset(imports), frozenset(defines))


def _imported(node: ast.AST, spec: ModuleSpec) -> set[str]:
    """The absolute names that a node imports, or reads as attributes of privbench."""
    if isinstance(node, ast.Attribute):
        ours = isinstance(node.value, ast.Name) and node.value.id == CORE
        return {f"{CORE}.{node.attr}"} if ours else set()
    if isinstance(node, ast.Import):
        names = set()
        for alias in node.names:
            words = alias.name.split(".")  # `import a.b` binds a, `import a.b as c` only a.b
            first = len(words) if alias.asname else 1
            names |= {".".join(words[:n]) for n in range(first, len(words) + 1)}
        return names
    if not isinstance(node, ast.ImportFrom):
        return set()
    base = node.module or ""
    if node.level:
        try:
            base = importlib.util.resolve_name("." * node.level + base, spec.parent or "")
        except ImportError:  # above the top-level package: this import would fail too
            return set()
    return {base} | {f"{base}.{alias.name}" for alias in node.names}


# ---- code without source -------------------------------------------------------------------------


class _Live:
    """Describes code by the objects that the interpreter holds for it."""

    def __init__(self, parts: set[str]) -> None:
        self.parts = parts  # collects the sources that the code refers to
        self.seen: dict[int, str] = {}  # digests of classes and functions; "" while in progress

    def describe(self, code: type | FunctionType) -> str:
        """Return the name with a digest; for a class that refers to itself only the name."""
        if id(code) not in self.seen:
            self.seen[id(code)] = ""
            held = self._class(code) if isinstance(code, type) else self._function(code)
            self.seen[id(code)] = digest(held)
        return f"{code.__module__}:{code.__qualname__} {self.seen[id(code)]}"

    def _class(self, cls: type) -> Any:
        names = sorted(set(vars(cls)) - _BOOKKEEPING)
        return [self._value([*cls.__bases__]), names, [self._value(vars(cls)[n]) for n in names]]

    def _function(self, function: FunctionType) -> Any:
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        cells = []
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                cells.append(cell.cell_contents)
        used = [function.__globals__.get(name) for name in sorted(names_used(function.__code__))]
        return self._value([function.__code__, defaults, cells, used])

    def _value(self, thing: Any) -> Any:
        if isinstance(thing, (type, FunctionType, ModuleType)):
            return self._refer(thing)
        if isinstance(thing, CodeType):
            held: Any = [thing.co_code.hex(), thing.co_consts, thing.co_names, thing.co_varnames]
        elif isinstance(thing, (staticmethod, classmethod)):
            held = [thing.__func__]
        elif isinstance(thing, property):
            held = [thing.fget, thing.fset, thing.fdel]
        elif isinstance(thing, (bytes, complex)) or thing is ...:
            return repr(thing)
        else:
            try:
                return plain(thing)
            except TypeError:
                if not isinstance(thing, (list, tuple, dict)):
                    return f"{type(thing).__module__}.{type(thing).__qualname__}"
                held = [*thing.items()] if isinstance(thing, dict) else thing
        return [self._value(one) for one in held]

    def _refer(self, thing: type | FunctionType | ModuleType) -> str:
        module = isinstance(thing, ModuleType)
        name = thing.__name__ if module else thing.__module__
        spec = _spec(vars(thing) if module else _namespace(thing))
        ours = _top(name) == IN_TREE or spec is None or not _installed(spec)
        if ours and _top(name) not in {CORE, "builtins"}:
            if spec is not None and _read(spec) is not None:
                _add(thing, self)
            elif not isinstance(thing, ModuleType):
                return self.describe(thing)
        return f"{name}:{getattr(thing, '__qualname__', '')}"


def taken(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function takes from functions around it, and their values.

    Those without a value yet are left out.

    >>> def around(k):
    ...     return lambda x: k * x
    >>> taken(around(3))
    {'k': 3}
    """
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def names_used(code: CodeType) -> set[str]:
    """Return the global names and attributes that code and the functions in it use."""
    inner = [names_used(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)
