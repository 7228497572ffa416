"""The index of methods: what plugins offer, known without importing them.

It is made when plugins are imported, and kept in the user's cache folder, one file for each choice
of plugins in each environment. It counts as long as no file that was imported and no installed
distribution has changed. It is JSON: nothing in it runs. A file in another form is made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import types
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from privbench.cli.border import say
from privbench.cli.listed import Listed
from privbench.ground.errors import WriteError
from privbench.ground.judges import Wanted
from privbench.ground.store.files import write
from privbench.ground.store.stamps import edited_since_start, imported_files, stamps
from privbench.ground.store.store import INDEX, default_root
from privbench.plugins.plugin_file import read_plugins
from privbench.plugins.registry import KINDS, Plugin, Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from privbench.plugins.registry import Choice

#: Seconds after which a terminal is told what takes so long.
_PATIENCE = 2.0
#: Files that are kept: each choice of plugin files has one, and each version of such a file.
_MOST = 64


class Index(Registry):
    """A registry of ``Listed``, with the cards of games.

    Attributes:
        games: name -> lines of ``privbench doc``.
        judging: defense -> the attacks that judge it, see ``grid.judging``.
        whole: whether all that is offered could be imported and described.
    """

    def __init__(self) -> None:
        """Create an empty index."""
        super().__init__()
        self.games: dict[str, list[str]] = {}
        self.judging: dict[str, list[Wanted]] = {}
        self.whole = True


def index(chosen: Iterable[Choice]) -> Index:
    """Return the index: the kept one, or one that is made of the plugins, which are imported.

    Raises:
        PrivbenchError: as ``registry.load`` does.
    """
    chosen = list(chosen)
    if (found := kept_index(chosen)) is not None:
        return found
    with _patience():
        made = _made(chosen)
    if made.whole:
        _keep(_path(chosen), made)
    return made


def kept_index(chosen: Sequence[Choice]) -> Index | None:
    """Return the kept index, or None if there is none that counts.

    Raises:
        BadInputError: if a plugin file cannot be read.
    """
    path = _path(chosen)
    try:
        return _kept(path)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None  # there is none, it is older than a file, or it is damaged


def _path(chosen: Iterable[Choice]) -> Path:
    """The file for this environment and this choice of plugins."""
    from privbench.ground.store.canonical import digest

    files = read_plugins([one for one in chosen if isinstance(one, Path)])
    off = [one for one in chosen if isinstance(one, str)]
    off += os.environ.get("PRIVBENCH_DISABLE_PLUGINS", "").split(",")
    names = sorted({name.strip() for name in off})
    here = [sys.version, sys.path, [[file.path, file.sha256] for file in files], names]
    return default_root() / INDEX / f"{digest(here)}.json"


def _distributions() -> str:
    """Digest of the names and versions of what is installed, and of its entry points."""
    from privbench.ground.store.canonical import digest

    found: list[str] = []
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as inside:
            found += [one.path for one in inside if one.name.endswith((".dist-info", ".egg-info"))]
    points = stamps(f"{one}/entry_points.txt" for one in found)
    return digest([sorted(found), sorted([path, *stamp] for path, stamp in points.items())])


def _made(chosen: list[Choice]) -> Index:
    """Import the plugins and describe what they offer."""
    from privbench.cli.cards import game_card, method_card
    from privbench.cli.listed import listed, undescribed
    from privbench.plugins import registry

    live = registry.load(chosen)
    from privbench.grid.judging import judging
    from privbench.measure.games.catalog import GAMES

    made = Index()
    copies = {id(plugin): replace(plugin, methods=[]) for plugin in live.plugins}
    made.plugins = list(copies.values())
    made.whole = all(one.status != "broken" for one in made.plugins)  # its fix may be anywhere
    for kind in KINDS:
        for method in live.all(kind):
            owner = live.owner(kind, method.name)
            try:
                one = listed(kind, method, [*method_card(kind, method)])
            except Exception as error:  # noqa: BLE001 - of a plugin, which is listed all the same
                made.whole = False
                one = undescribed(method, error)
            made.add(kind, one, copies[id(owner)])
    made.judging = judging(live)
    made.games = {name: [*game_card(game, live)] for name, game in sorted(GAMES.items())}
    return made


def _keep(path: Path, made: Index) -> None:
    """Write an index; where that is impossible, it is made again next time."""
    files = imported_files()
    if edited_since_start(files):
        return
    held = {
        "files": files, "distributions": _distributions(),
        "plugins": [{**asdict(one), "methods": []} for one in made.plugins],
        "methods": [[kind, made.plugins.index(made.owner(kind, one.name)), asdict(one)]
                    for kind in KINDS for one in made.all(kind)],
        "games": made.games,
        "judging": {name: [*map(asdict, of)] for name, of in made.judging.items()},
    }  # fmt: skip
    with contextlib.suppress(WriteError, OSError):
        write(path, json.dumps(held))
        others = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for old in others[:-_MOST]:
            old.unlink(missing_ok=True)


def _kept(path: Path) -> Index:
    """Read an index.

    Raises:
        OSError, ValueError, TypeError, KeyError, RecursionError: if there is none that counts.
    """
    held = json.loads(path.read_bytes())
    files = {file: tuple(stamp) for file, stamp in held["files"].items()}
    if not files or stamps(files) != files or held["distributions"] != _distributions():
        raise ValueError("it is older than a file")
    found = Index()
    hints, of_plugins = get_type_hints(Listed), get_type_hints(Plugin)
    found.plugins = [_shaped(Plugin, of_plugins, one) for one in held["plugins"]]
    for kind, at, one in held["methods"]:
        found.add(kind, _shaped(Listed, hints, one), found.plugins[at])
    found.games = held["games"]
    if not _fits(found.games, dict[str, list[str]]):
        raise ValueError("games")
    wanted = get_type_hints(Wanted)
    found.judging = {name: [_shaped(Wanted, wanted, one) for one in of]
                     for name, of in held["judging"].items()}  # fmt: skip
    return found


def _shaped(cls: Any, hints: Mapping[str, Any], value: Any) -> Any:
    """An object of a dataclass whose fields have values of their types.

    Raises:
        ValueError, TypeError, KeyError: if they have others.
    """
    for name, hint in hints.items():
        if not _fits(value[name], hint):
            raise ValueError(name)
    return cls(**value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of JSON has a type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, args[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, args[1]) for one in value.values())
    if origin is types.UnionType:
        return any(_fits(value, one) for one in args)
    if origin is Literal:
        return value in args
    return hint is Any or type(value) is hint


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Tell a terminal what takes so long."""
    told = threading.Timer(
        _PATIENCE, say, ["privbench: reading all plugins, once …"], {"err": True}
    )
    told.daemon = True
    if sys.stderr.isatty():
        told.start()
    try:
        yield
    finally:
        told.cancel()
