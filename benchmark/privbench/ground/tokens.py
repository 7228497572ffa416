"""Secrets in text: hidden in addresses, and found in what is about to be published."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What stands for a secret.
HIDDEN = "***"

_TOKEN = re.compile(
    r"""
    (?<![A-Za-z0-9_-])(?:                        # as a word: never inside a digest or base64
        sk-(?:[A-Za-z0-9]{20,}|(?=[\w-]*\d)[\w-]{8,})
      | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,} | glpat-[\w-]{16,}
      | hf_[A-Za-z0-9]{16,}
      | (?<![+/])(?:A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9+/])|AIza[\w-]{35})
      | xox[a-z]-[\w-]{10,}
      | eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*       # a JSON web token
    )
    | \b(?i:bearer)\s+(?=\S*\d)[\w.~+/-]{8,}
    | (?i:api[_-]?key|access[_-]?token|client[_-]?secret|password)["']?\s*[=:]\s*["']?[^\s"'&,*]{4,}
    | [?&](?i:key|token|code|sig|secret)=[^\s&*]{4,}
    | ://[^/\s:@]+:[^/\s@*]+@                    # a password in an address
    | -----BEGIN[A-Z ]*PRIVATE\ KEY
    """,
    re.VERBOSE,
)
_HOLDERS = (dict, list, tuple, set, frozenset, BaseModel)
_PLAIN = frozenset({float, int, bool, type(None)})
_NUMBERS = re.compile(r"(?:[-+]?\d[\d.eE+-]*\s*,\s*){2,}[-+]?\d[\d.eE+-]*")
_USER = re.compile(r"(?<=://)[^/?#]*@")
_VALUE = re.compile(r"([?#&;])([^=?#&;]*=)?[^?#&;]+")


def redacted(address: str) -> str:
    """The address without name and password, the values of its query and its fragment.

    >>> redacted("https://me:pw@host/predict?api_key=abc&v=2#x")
    'https://***@host/predict?api_key=***&v=***#***'
    >>> redacted("my_module:load")
    'my_module:load'
    """
    if "://" not in address:
        return address
    shown = _VALUE.sub(rf"\1\g<2>{HIDDEN}", _USER.sub(f"{HIDDEN}@", address))
    return _TOKEN.sub(HIDDEN, shown)


def hidden(text: str, *secrets: str) -> str:
    """The text without these secrets, without what looks like a token and without rows of numbers.

    >>> hidden('{"password": "abcd1234", "x": [[0.1, 2e-3, 5]], "n": 3} of k7', "k7")
    '{"***", "x": [[…]], "n": 3} of ***'
    """
    for secret in filter(None, secrets):
        text = text.replace(secret, HIDDEN)
    return _NUMBERS.sub("…", _TOKEN.sub(HIDDEN, text))


def token_in(values: dict[str, Any] | BaseModel) -> str:
    """Where nested values hold what looks like a token, as names joined by dots; "" if none.

    >>> token_in({"cell": {"label": "x", "notes": ["Bearer abcdef0123456789"]}})
    'cell.notes.0'
    >>> token_in({"sha256": "0123456789abcdef" * 4, "api_key": "***"})
    ''
    """
    way = _way(values)
    return ".".join(way) if not way or way[-1] else f"a name in {'.'.join(way[:-1])}"


def _way(values: object) -> list[str]:
    """The names that lead to the token, with an empty one at the end if it is a name itself."""
    if isinstance(values, list | tuple | set | frozenset):
        inside: Iterable[tuple[Any, Any]] = enumerate(values)
    else:
        named = values if isinstance(values, dict) else vars(values)
        if _hold_token(tuple(named)):
            return [""]
        inside = named.items()
    for name, value in inside:
        if type(value) in _PLAIN:  # most are
            continue
        if isinstance(value, str):
            if _is_token(value, name):
                return [str(name)]
        elif isinstance(value, _HOLDERS):
            if value and (way := _way(value)):
                return [str(name), *way]
        elif _is_token(str(getattr(value, "value", value)), name):
            return [str(name)]
    return []


@lru_cache(10_000)  # results of a run share most of their names and texts
def _hold_token(names: tuple[str, ...]) -> bool:
    return any(_is_token("", name) for name in names)


@lru_cache(10_000)
def _is_token(text: str, name: str | int) -> bool:
    """Whether a text of that name, or the name, is a token."""
    return bool(_TOKEN.search(text) or _TOKEN.search(f"{name}={text}"))
