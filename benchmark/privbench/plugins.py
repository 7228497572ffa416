"""Finding plugins, and keeping one broken plugin from breaking the rest."""

from __future__ import annotations

import importlib.metadata
import os
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from privbench.contracts import Attack, Dataset, Defense, Target
from privbench.errors import BadInputError, PluginError, UnknownNameError
from privbench.hookspecs import Hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.method import Method

GROUP = "privbench"
KINDS: Mapping[str, type[Method]] = {
    "dataset": Dataset,
    "target": Target,
    "defense": Defense,
    "attack": Attack,
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
        self.problems.append(problem)
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
        culprits = [p for p in self.plugins if p.status == "broken" and _alike(name, p)]
        if culprits:
            bad = culprits[0]
            raise PluginError(
                f"{kind} '{name}' is not there because plugin '{bad.name}' is broken "
                f"({bad.problems[0]}): mend it, or see `privbench list plugins --errors`"
            )
        broken = [p.name for p in self.plugins if p.status == "broken"]
        hint = f" (broken plugins: {', '.join(broken)})" if broken else ""
        raise UnknownNameError(kind, name, self._methods[kind], hint)

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
    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    wanted = plain(name)
    return wanted in plain(plugin.name) or wanted in plain(plugin.module.rpartition(".")[2])


def load(disable: Iterable[str] = (), entry_points: Iterable[Any] | None = None) -> Registry:
    """Import every plugin, each in isolation, and collect what they offer.

    Args:
        disable: names of plugins to leave out, beside PRIVBENCH_DISABLE_PLUGINS (commas).
        entry_points: for tests; by default those of group ``privbench``.

    Raises:
        BadInputError: if a plugin to leave out does not exist.
    """
    points = list(importlib.metadata.entry_points(group=GROUP) if entry_points is None
                  else entry_points)  # fmt: skip
    listed = os.environ.get("PRIVBENCH_DISABLE_PLUGINS", "").split(",")
    off = {name.strip() for name in (*disable, *listed) if name.strip()}
    unknown = off - {point.name for point in points}
    if unknown:
        raise BadInputError(
            f"cannot switch off unknown plugin {', '.join(sorted(unknown))}: "
            "see `privbench list plugins`"
        )
    registry = Registry()
    for point in sorted(points, key=_in_tree_first):
        distribution = point.dist.name if point.dist else "unknown"
        plugin = Plugin(point.name, point.value, distribution)
        registry.plugins.append(plugin)
        if point.name in off:
            plugin.status = "disabled"
            continue
        try:
            module = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, even SystemExit
            plugin.broke(f"import failed: {type(error).__name__}: {error}", traceback.format_exc())
            continue
        _collect(module, plugin, registry)
    return registry


def _in_tree_first(point: Any) -> tuple[bool, str]:
    """Our own first, so that a stranger who takes one of our names is the one left out."""
    return (not point.value.startswith("privbench_plugins."), point.name)


def _collect(module: Any, plugin: Plugin, registry: Registry) -> None:
    """Call one plugin's hooks on a manager of its own, so that nothing spills over."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        plugin.broke(f"hook does not fit: {' '.join(str(error).split())}", traceback.format_exc())
        return
    if not manager.get_hookcallers(module):
        plugin.broke("it implements no privbench hook: decorate one with @privbench.hookimpl")
        return
    offered: list[tuple[str, Any]] = []
    for kind in KINDS:
        try:
            lists: Sequence[Any] = getattr(manager.hook, f"privbench_{kind}s")()
            offered += [(kind, method) for methods in lists for method in methods]
        except Exception as error:  # noqa: BLE001 - see above
            plugin.broke(
                f"privbench_{kind}s raised {type(error).__name__}: {error}", traceback.format_exc()
            )
            return
    wrong = [_misfit(kind, method) for kind, method in offered]
    if any(wrong):
        plugin.broke("; ".join(problem for problem in wrong if problem))
        return
    for kind, method in offered:
        registry.add(kind, method, plugin)


def _misfit(kind: str, method: Any) -> str | None:
    wanted = KINDS[kind]
    if isinstance(method, type):
        return f"privbench_{kind}s returned the class {method.__name__}: return an instance"
    if not isinstance(method, wanted):
        return f"privbench_{kind}s returned {method!r}, which is no {wanted.__name__}"
    if not isinstance(getattr(method, "name", None), str):
        return f"{type(method).__name__} has no name: set `name: ClassVar[str]`"
    return None
