"""Finding plugins, and keeping one broken plugin from breaking the rest."""

from __future__ import annotations

import importlib.metadata
import os
import traceback
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from privbench.errors import PluginError, UnknownNameError, nearest
from privbench.games.attack import Attack
from privbench.methods.dataset import Dataset
from privbench.methods.defense import Defense
from privbench.methods.hookspecs import Hooks
from privbench.methods.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from privbench.method import Method

GROUP = "privbench"
KINDS: Mapping[str, type[Method]] = {
    "dataset": Dataset,
    "target": Target,
    "defense": Defense,
    "attack": Attack,
}
#: Class attributes that the planner reads, beside ``name``.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "dataset": ("protocols",),
    "target": (),
    "defense": ("protects",),
    "attack": ("game", "needs"),
}


@dataclass
class Plugin:
    """One entry point and how it fared.

    Attributes:
        name: of the entry point.
        module: that it names.
        distribution: the package that brought it.
        status: ``ok``, ``broken`` or ``disabled``.
        problems: one sentence each; a plugin may be ok and still have lost a method to a clash.
        trace: traceback of the import, where that failed.
        methods: kind and name of what it offers.
    """

    name: str
    module: str
    distribution: str
    status: Literal["ok", "broken", "disabled"] = "ok"
    problems: list[str] = field(default_factory=list)
    trace: str = ""
    methods: list[str] = field(default_factory=list)

    def broke(self, problem: str, trace: str = "") -> None:
        """Mark as broken."""
        self.status = "broken"
        self.problems.append(" ".join(problem.split()))  # one line in any listing
        self.trace = trace


class Registry:
    """Methods by kind and name, and the plugins that they came from."""

    def __init__(self) -> None:
        """Start empty."""
        self.plugins: list[Plugin] = []
        self._methods: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._owner: dict[tuple[str, str], Plugin] = {}

    def all(self, kind: str) -> list[Any]:
        """Methods of one kind, by name."""
        return [method for _, method in sorted(self._methods[kind].items())]

    def get(self, kind: str, name: str) -> Any:
        """Method by name.

        Raises:
            UnknownNameError: suggesting the nearest, and naming broken plugins that might have
                brought it.
        """
        if name in self._methods[kind]:
            return self._methods[kind][name]
        self.blame(kind, name)
        raise UnknownNameError(kind, name, self._methods[kind], self.hint)

    def find(self, name: str) -> list[tuple[str, Any]]:
        """Kind and method of everything that goes by that name.

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
        """Look for a plugin that would have brought it.

        Raises:
            PluginError: if one that is broken or switched off is named alike.
        """
        for plugin in self.plugins:
            if plugin.status == "ok" or not _alike(name, plugin):
                continue
            if plugin.status == "disabled":
                raise PluginError(
                    f"{kind} '{name}' is not there because plugin '{plugin.name}' is switched "
                    "off: leave out its -p no:, or take it from PRIVBENCH_DISABLE_PLUGINS"
                )
            raise PluginError(
                f"{kind} '{name}' is not there because plugin '{plugin.name}' is broken "
                f"({plugin.problems[0]}): mend it, or see `privbench list plugins --errors`"
            )

    @property
    def hint(self) -> str:
        """Names of broken plugins, which may have brought what is missing."""
        broken = [p.name for p in self.plugins if p.status == "broken"]
        return f" (broken plugins: {', '.join(broken)})" if broken else ""

    def add(self, kind: str, method: Method, plugin: Plugin) -> None:
        """Take a method in; a clash of names leaves the first and notes the second."""
        taken = self._owner.get((kind, method.name))
        if taken is not None:
            plugin.problems.append(
                f"{kind} '{method.name}' is already offered by plugin '{taken.name}'; "
                "this one is left out"
            )
            return
        self._methods[kind][method.name] = method
        self._owner[kind, method.name] = plugin
        plugin.methods.append(f"{kind} {method.name}")


def _alike(name: str, plugin: Plugin) -> bool:
    """Whether it sounds as if that plugin brought that method: ``foo-v`` and ``attack_foo``."""

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


def load(disable: Iterable[str] = (), entry_points: Iterable[Any] | None = None) -> Registry:
    """Import every plugin, each in isolation, and collect what they offer.

    Args:
        disable: names of plugins to leave out, beside PRIVBENCH_DISABLE_PLUGINS (commas).
        entry_points: for tests; by default those of group ``privbench``.

    Raises:
        UnknownNameError: if a plugin to leave out does not exist.
    """
    points = list(importlib.metadata.entry_points(group=GROUP) if entry_points is None
                  else entry_points)  # fmt: skip
    listed = os.environ.get("PRIVBENCH_DISABLE_PLUGINS", "").split(",")
    off = {name.strip() for name in (*disable, *listed) if name.strip()}
    known = {point.name for point in points}
    for name in sorted(off - known):
        raise UnknownNameError("plugin to switch off", name, known)
    registry = Registry()
    for point in sorted(points, key=_in_tree_first):
        distribution = point.dist.name if point.dist else None
        plugin = Plugin(point.name, point.value, distribution or "unknown")
        registry.plugins.append(plugin)
        if point.name in off:
            plugin.status = "disabled"
            continue
        module = _guarded(plugin, "import failed:", point.load)
        if plugin.status == "ok":
            collect = partial(_collect, module, plugin)
            for kind, method in _guarded(plugin, "its hooks failed:", collect) or ():
                registry.add(kind, method, plugin)
    return registry


def _guarded(plugin: Plugin, what: str, call: Callable[[], Any]) -> Any:
    """Call what may raise anything, even SystemExit; the plugin is broken if it does."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        plugin.broke(f"{what} {type(error).__name__}: {error}", traceback.format_exc())
        return None


def _in_tree_first(point: Any) -> tuple[bool, str]:
    """Our own first, so that a stranger who takes one of our names is the one left out."""
    return (not point.value.startswith("privbench_plugins."), point.name)


def _collect(module: Any, plugin: Plugin) -> list[tuple[str, Any]]:
    """Call one plugin's hooks on a manager of its own, so that nothing spills over."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        plugin.broke(f"hook does not fit: {_shortened(error)}", traceback.format_exc())
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
    wrong = [problem for kind, method in offered if (problem := _misfit(kind, method))]
    if wrong:
        plugin.broke("; ".join(wrong))
        return []
    return offered


def _shortened(error: pluggy.PluginValidationError) -> str:
    """Pluggy's message without the plugin's repr, with the hook that was probably meant."""
    text = str(error)
    for name in dir(error.plugin):
        near = nearest(name, [f"privbench_{kind}s" for kind in KINDS])
        if f"unknown hook {name!r}" in text:
            return f"unknown hook '{name}'" + (f": did you mean '{near}'?" if near else "")
    return text


def _misfit(kind: str, method: Any) -> str | None:
    """Why that object cannot take part, in words for its author."""
    wanted, hook = KINDS[kind], f"privbench_{kind}s"
    if isinstance(method, type):
        return f"{hook} returned the class {method.__name__}: return an instance"
    if not isinstance(method, wanted):
        return f"{hook} returned {method!r}, which is no {wanted.__name__}"
    return _incomplete(kind, method)


def _incomplete(kind: str, method: Any) -> str | None:
    """What a method of the right class lacks."""
    name = type(method).__name__
    if "__dataclass_fields__" not in vars(type(method)):
        return f"{name} is no dataclass of its own: decorate it with @dataclass(frozen=True)"
    if not isinstance(getattr(method, "name", None), str):
        return f"{name} has no name: set `name: ClassVar[str]`"
    for wanted in _REQUIRED[kind]:
        if not hasattr(method, wanted):
            return f"{name} has no {wanted}: set `{wanted}: ClassVar`, see {KINDS[kind].__name__}"
    if kind == "dataset" and "default" not in method.protocols:
        return f"{name} has no protocol 'default': add it to `protocols`"
    return None
