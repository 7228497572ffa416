"""Names for the completion of a shell, found in the text of plugins: none is imported.

``eval "$(_PRIVBENCH_COMPLETE=bash_source privbench)"`` switches it on in bash; ``zsh_source`` and
``fish_source`` in other shells.
"""

from __future__ import annotations

import contextlib
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem

from privbench.cli.glossary import glossary

if TYPE_CHECKING:
    from collections.abc import Callable

    import click

_HOOK = re.compile(r"^def privbench_(attack|defense|target|dataset)s\(", re.MULTILINE)
_NAME = re.compile(r'^    name(?:: [\w\[\]]+)? = "([a-z0-9-]+)"$', re.MULTILINE)
_GAMES = Path(__file__).parents[1] / "measure" / "games"


def names(kind: str = "") -> list[str]:
    """Return names of methods of a kind, or of all kinds: those that a class writes as text."""
    found: set[str] = set()
    for point in entry_points(group="privbench"):
        with contextlib.suppress(Exception):  # what is broken completes to nothing
            spec = find_spec(point.module)
            text = Path(str(spec and spec.origin)).read_text("utf-8")
            if not kind or kind in _HOOK.findall(text):
                found.update(_NAME.findall(text))
    return sorted(found)


def games() -> list[str]:
    """Return names of the games of the core."""
    texts = (path.read_text("utf-8") for path in _GAMES.glob("*.py"))
    return sorted(name for text in texts for name in _NAME.findall(text))


def protocols() -> list[str]:
    """Return names of the protocols that every dataset has."""
    from privbench.measure.data.protocol import PROTOCOLS

    return sorted({"default", *PROTOCOLS})


def explained() -> list[str]:
    """Return what ``privbench doc`` explains: methods, games, protocols, words of the glossary."""
    words = {word for word in glossary() if " " not in word}
    return sorted({*names(), *games(), *protocols(), *words})


def checked() -> list[str]:
    """Return what ``privbench check`` tries: methods, plugins and the attacks of games."""
    return sorted({*names(), *games(), *(point.name for point in entry_points(group="privbench"))})


def among(source: Callable[[], list[str]]) -> Callable[..., list[Any]]:
    """Return what completes the names of a source; in a stack, a+b, the last one."""

    def complete(ctx: click.Context, param: click.Parameter, given: str) -> list[Any]:
        del ctx, param
        before, plus, last = given.rpartition("+")
        return [CompletionItem(before + plus + name) for name in source() if name.startswith(last)]

    return complete


def files(ctx: click.Context, param: click.Parameter, given: str) -> list[Any]:
    """Complete the path of a file, by the shell."""
    del ctx, param
    return [CompletionItem(given, type="file")]


def of(kind: str = "") -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Return what completes the names of methods of a kind."""
    return among(lambda: names(kind))
