"""The plugin registry: finds plugins and isolates broken ones from the rest.

torch is imported only to load plugins.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import traceback
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from privbench.ground.errors import BadInputError, PluginError, UnknownNameError, nearest
from privbench.plugins.interface import STATED, source_of, stated_in, unsuited
from privbench.plugins.plugin_file import PluginFile, read_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


GROUP = "privbench"
#: Modules of the plugins that come with privbench.
_IN_TREE = "privbench_plugins."
#: How these state the names of their methods.
_NAMED = re.compile(r'^ +name: ClassVar\[str\] = "([^"]+)"$', re.MULTILINE)
#: What a method can be.
KINDS = ("dataset", "target", "defense", "attack")
#: Plugins of other packages and files that this process has imported, whole or in part.
imported: set[str] = set()
#: Module of a plugin that comes with privbench -> kinds and methods: asked once in a process.
_ours: dict[str, list[tuple[str, Any]]] = {}
#: What chooses plugins: the name of one to disable, or the path of a file to load.
Choice = str | Path


@dataclass
class Plugin:
    """One entry point, or one file, and the result of loading it.

    Attributes:
        name: name of the entry point, or of the file.
        module: module that the entry point names.
        distribution: package that provides it; ``file`` for a file.
        version: of the distribution; the begin of a file's SHA-256.
        status: ``ok``, ``broken`` or ``disabled``.
        problems: one sentence per problem; an ``ok`` plugin may list name conflicts here.
        trace: traceback of the failure, if there is one.
        methods: kind and name of each method it provides.
        games: names of the games that it provides.
        path: of a file, as `--plugin` takes it here.
    """

    name: str
    module: str
    distribution: str
    version: str = ""
    status: Literal["ok", "broken", "disabled"] = "ok"
    problems: list[str] = field(default_factory=list)
    trace: str = ""
    methods: list[str] = field(default_factory=list)
    games: list[str] = field(default_factory=list)
    path: str = ""

    @property
    def offers(self) -> list[str]:
        """What it provides, each with its kind."""
        return [*(f"game {name}" for name in self.games), *self.methods]

    def broke(self, problem: str, trace: str = "") -> None:
        """Mark the plugin as broken."""
        self.status = "broken"
        self.problems.append(" ".join(problem.split()))  # one line in any listing
        self.trace = trace


class Registry:
    """Methods by kind and name, with the plugins that provide them."""

    def __init__(self) -> None:
        """Create an empty registry."""
        self.plugins: list[Plugin] = []
        self._methods: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._owner: dict[tuple[str, str], Plugin] = {}

    def all(self, kind: str) -> list[Any]:
        """Return all methods of one kind, sorted by name."""
        return [method for _, method in sorted(self._methods[kind].items())]

    def get(self, kind: str, name: str) -> Any:
        """Return a method by kind and name.

        Raises:
            PluginError: if a broken or disabled plugin probably provides it.
            UnknownNameError: if nothing has that name; suggests the nearest name and lists broken
                plugins.
        """
        if name in self._methods[kind]:
            return self._methods[kind][name]
        if other := next((one for one in KINDS if name in self._methods[one]), None):
            raise BadInputError(f"{kind} '{name}': it is {_a(other)}, not {_a(kind)}: name another")
        self.blame(kind, name)
        raise UnknownNameError(kind, name, self._methods[kind], self.hint)

    def owner(self, kind: str, name: str) -> Plugin:
        """Return the plugin that provides a method that is here."""
        return self._owner[kind, name]

    def find(self, name: str) -> list[tuple[str, Any]]:
        """Return the kind and method of everything with that name.

        Raises:
            PrivbenchError: as ``get`` does.
        """
        found = [(kind, held[name]) for kind, held in self._methods.items() if name in held]
        if not found:
            self.blame("method", name)
            known = {known for held in self._methods.values() for known in held}
            raise UnknownNameError("method", name, known, self.hint)
        return found

    def blame(self, kind: str, name: str) -> None:
        """Raise an error if an unavailable plugin probably provides the method.

        Raises:
            PluginError: if a broken or disabled plugin has a similar name.
        """
        for plugin in self.plugins:
            if plugin.status == "ok" or not _alike(name, plugin):
                continue
            if plugin.status == "disabled":
                raise PluginError(
                    f"{kind} '{name}' is unavailable: plugin '{plugin.name}' is disabled; remove "
                    "its `-p no:` option, or remove it from PRIVBENCH_DISABLE_PLUGINS"
                )
            raise PluginError(
                f"{kind} '{name}' is unavailable: plugin '{plugin.name}' failed to load "
                f"({plugin.problems[0]}); fix it, or see `privbench list plugins --errors`"
            )

    def refuse_broken_files(self) -> None:
        """Raise an error if a plugin file, which was asked for, does not offer all that it should.

        Raises:
            BadInputError: naming the first such file, and why.
        """
        for plugin in self.plugins:
            if plugin.distribution == "file" and plugin.problems:
                raise BadInputError(
                    f"plugin file {plugin.name}: {plugin.problems[0]}; see `privbench --plugin "
                    f"{plugin.path} list plugins --errors`"
                )

    def offers(self, wanted: Iterable[tuple[str, str]]) -> bool:
        """Whether there is a method of each kind and name; "" for any kind."""
        return all(
            any(name in self._methods[one] for one in ([kind] if kind else KINDS))
            for kind, name in wanted
        )

    @property
    def hint(self) -> str:
        """Return the names of broken plugins, as a hint for a missing method."""
        broken = [p.name for p in self.plugins if p.status == "broken"]
        return f" (broken plugins: {', '.join(broken)})" if broken else ""

    def add(self, kind: str, method: Any, plugin: Plugin) -> None:
        """Add a method and its plugin; of two with one name keep the first and report the other."""
        if all(plugin is not one for one in self.plugins):
            self.plugins.append(plugin)
        taken = self._owner.get((kind, method.name))
        if taken is not None:
            other = "" if taken is plugin else f", or leave the other one out by -p no:{taken.name}"
            plugin.problems.append(
                f"{kind} '{method.name}' is already offered by plugin '{taken.name}'; "
                f"this one is ignored: rename it{other}"
            )
            return
        self._methods[kind][method.name] = method
        self._owner[kind, method.name] = plugin
        plugin.methods.append(f"{kind} {method.name}")


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _alike(name: str, plugin: Plugin) -> bool:
    """Return whether the names are similar, such as ``foo-v`` and ``attack_foo``."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    wanted, words = plain(name), 4
    module = plain(plugin.module.partition(":")[0].rpartition(".")[2])
    if len(wanted) < words:
        return wanted in (plain(plugin.name), module)
    return (
        wanted in plain(plugin.name)
        or wanted in module
        or (len(module) >= words and module in wanted)
    )


def load(
    chosen: Iterable[Choice] = (),
    entry_points: Iterable[Any] | None = None,
    *,
    wanted: Iterable[tuple[str, str]] | None = None,
) -> Registry:
    """Import plugins, each in isolation, and collect their methods.

    Args:
        chosen: names of plugins to disable, in addition to the comma-separated names in
            PRIVBENCH_DISABLE_PLUGINS, and paths of plugin files to load.
        entry_points: for tests; by default the entry points of group ``privbench``.
        wanted: kinds and names of methods, "" for any kind: once all of them are found, no other
            package is imported. None for all plugins.

    Raises:
        UnknownNameError: if a plugin to disable does not exist.
        BadInputError: if a file cannot be read.
    """
    chosen = list(chosen)
    files = read_plugins([one for one in chosen if isinstance(one, Path)])
    points = list(importlib.metadata.entry_points(group=GROUP) if entry_points is None
                  else entry_points)  # fmt: skip
    off = _disabled(chosen)
    known = {point.name for point in points}
    for name in sorted(off - known):
        raise UnknownNameError("plugin to disable", name, known)
    from privbench.plugins import canary

    canary.remember()  # before any code of others runs
    registry, stated = Registry(), dict[int, list[str | None]]()
    ours = sorted((one for one in points if _in_tree(one)), key=_name)
    others = sorted((one for one in points if not _in_tree(one)), key=_name)
    for i, point in enumerate([*ours, *files, *others]):
        if i >= len(ours) + len(files) and wanted is not None and registry.offers(wanted):
            break
        plugin = _described(point, stated)
        registry.plugins.append(plugin)
        if plugin.name in off:
            plugin.status = "disabled"
        else:
            _load(point, plugin, registry)
    return registry


def others(chosen: Iterable[Choice]) -> list[str]:
    """Return the names of all plugins that do not come with privbench and are not disabled."""
    chosen = list(chosen)
    off = _disabled(chosen)
    points = importlib.metadata.entry_points(group=GROUP)
    names = [point.name for point in points if not _in_tree(point)]
    return [
        *(name for name in names if name not in off),
        *(one.name for one in chosen if isinstance(one, Path)),
    ]


@functools.cache
def names_in_tree() -> frozenset[tuple[str, str]]:
    """Return kind and name of the methods that come with privbench, from the text of their files.

    Nothing is imported. A method that states its name otherwise is left out.
    """
    spec = find_spec(_IN_TREE.rstrip("."))
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return frozenset(
        (kind, name) for folder in folders for kind in KINDS
        for file in Path(folder, f"{kind}s").glob("*.py")
        for name in _NAMED.findall(file.read_text("utf-8"))
    )  # fmt: skip


def _disabled(chosen: Iterable[Choice]) -> set[str]:
    """The names of plugins that are switched off."""
    listed = os.environ.get("PRIVBENCH_DISABLE_PLUGINS", "").split(",")
    names = (*(one for one in chosen if isinstance(one, str)), *listed)
    return {name.strip() for name in names if name.strip()}


def _described(point: Any, stated: dict[int, list[str | None]]) -> Plugin:
    """A plugin that is not loaded yet; ``stated`` keeps name and version of its distribution."""
    if isinstance(point, PluginFile):
        digest, path = f"sha256 {point.sha256[:12]}", os.path.relpath(point.path)
        return Plugin(point.name, point.module, "file", digest, path=path)
    if id(point.dist) not in stated:  # each access reads its file
        stated[id(point.dist)] = [getattr(point.dist, of, None) for of in ("name", "version")]
    name, version = stated[id(point.dist)]
    return Plugin(point.name, point.value, name or "unknown", version or "")


def _load(point: Any, plugin: Plugin, registry: Registry) -> None:
    """Import a plugin and add what it offers, or note why it is broken; undo what it changes."""
    from privbench.measure.training.process_state import restored

    if plugin.module in _ours:
        _add(_ours[plugin.module], plugin.module, plugin, registry)
        return
    with restored():
        _taken(point, plugin, registry)
    if not plugin.module.startswith(_IN_TREE):
        imported.add(plugin.name)
        from privbench.plugins.canary import refuse_changed

        try:
            refuse_changed(f"plugin '{plugin.name}'")
        except PluginError as error:
            plugin.broke(str(error))


def _taken(point: Any, plugin: Plugin, registry: Registry) -> None:
    module = _guarded(plugin, "import failed:", point.load)
    if plugin.status == "broken":
        source = point.text if isinstance(point, PluginFile) else source_of(point)
        if why := unsuited(stated_in(source)):  # often the reason, and it says what to do
            plugin.problems.insert(0, why)
        return
    if why := unsuited(getattr(module, STATED, None)):
        plugin.broke(why)
        return
    collect = partial(_collect, module, plugin)
    offered = _guarded(plugin, "its hooks failed:", collect) or []
    _add(offered, getattr(module, "__name__", ""), plugin, registry)
    if plugin.status == "ok" and plugin.module.startswith(_IN_TREE):
        _ours[plugin.module] = offered


def _add(offered: list[tuple[str, Any]], module: str, plugin: Plugin, registry: Registry) -> None:
    """Add a plugin's methods, and note the games of its module."""
    from privbench.measure.games.catalog import GAMES

    for kind, method in offered:
        registry.add(kind, method, plugin)
    if plugin.status == "ok":
        plugin.games = sorted(n for n, game in GAMES.items() if type(game).__module__ == module)


def _guarded(plugin: Plugin, what: str, call: Callable[[], Any]) -> Any:
    """Call plugin code; if it raises anything, even SystemExit, mark the plugin as broken."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        plugin.broke(f"{what} {type(error).__name__}: {error}", traceback.format_exc())
        return None


def _in_tree(point: Any) -> bool:
    """Whether a plugin comes with privbench: those win conflicts of names."""
    return bool(point.value.startswith(_IN_TREE))


def _name(point: Any) -> str:
    return str(point.name)


def _collect(module: Any, plugin: Plugin) -> list[tuple[str, Any]]:
    """Call one plugin's hooks with a separate plugin manager, isolated from other plugins."""
    from privbench.plugins.hookspecs import Hooks
    from privbench.plugins.valid import misfit

    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        plugin.broke(f"invalid hook: {_shortened(error)}", traceback.format_exc())
        return []
    callers = [caller.name for caller in manager.get_hookcallers(module) or ()]
    if not callers:
        plugin.broke("it implements no privbench hook: decorate one with @privbench.hookimpl")
        return []
    offered: list[tuple[str, Any]] = []
    for kind in KINDS:
        hook = f"privbench_{kind}s"
        if hook not in callers:
            continue
        lists = _guarded(plugin, f"{hook} raised", getattr(manager.hook, hook))
        if plugin.status == "broken":
            return []
        if not lists or not isinstance(lists[0], list | tuple):
            given = "None" if not lists else f"a {type(lists[0]).__name__}"
            plugin.broke(f"{hook} returned {given}: return a list of instances")
            return []
        offered += [(kind, method) for method in lists[0]]
    wrong = [problem for kind, method in offered if (problem := misfit(kind, method))]
    if wrong:
        plugin.broke("; ".join(wrong))
        return []
    return offered


def _shortened(error: pluggy.PluginValidationError) -> str:
    """Shorten pluggy's message and suggest the hook that was probably meant."""
    text = str(error)
    for name in dir(error.plugin):
        near = nearest(name, [f"privbench_{kind}s" for kind in KINDS])
        if f"unknown hook {name!r}" in text:
            return f"unknown hook '{name}'" + (f": did you mean '{near}'?" if near else "")
    return text
