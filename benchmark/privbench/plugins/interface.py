"""Whether a plugin is written for the plugin interface that is installed.

A plugin may state the version that it is written for: ``PRIVBENCH_API = "1.0"`` in its module. A
higher second number only adds, so a plugin works with its own and all later ones. With another
first number it would fail somewhere, or measure something else, so it does not load.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
from typing import Any

#: The version of the plugin interface, "MAJOR.MINOR". A plugin may state the one that it is
#: written for as ``PRIVBENCH_API``. MINOR grows when something is added, MAJOR when plugins must
#: change.
API_VERSION = "1.0"
STATED = "PRIVBENCH_API"
_INSTALL = "install a newer privbench (pip install -U privbench)"


def unsuited(stated: object) -> str | None:
    """Explain why a plugin that states this version cannot be loaded, and what to do.

    Args:
        stated: value of ``PRIVBENCH_API``; None if the plugin states nothing, which is allowed.

    >>> unsuited("1.0")
    >>> unsuited("9.0").split(":")[0]
    'it is written for version 9.0 of the plugin interface, and this privbench has 1.0'
    """
    if stated is None:
        return None
    if not (isinstance(stated, str) and re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", stated)):
        return f'{STATED} is {stated!r}: write {STATED} = "{API_VERSION}"'
    wants, has = _numbers(stated), _numbers(API_VERSION)
    if wants[0] == has[0] and wants <= has:
        return None
    todo = _INSTALL
    if wants < has:
        todo = "install a newer version of the plugin, or the privbench that it was written for"
    return (
        f"it is written for version {stated} of the plugin interface, and this privbench has "
        f"{API_VERSION}: {todo}"
    )


def stated_in(source: str) -> object:
    """Return the version that a module's source states, without running it; None for none."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and [*map(ast.unparse, node.targets)] == [STATED]:
                return ast.literal_eval(node.value)
    return None


def source_of(point: Any) -> str:
    """Return the source of the module that an entry point names; "" if it cannot be found."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(point.module)
        loader: Any = spec.loader if spec else None
        return loader.get_source(point.module) or ""
    return ""


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor)
