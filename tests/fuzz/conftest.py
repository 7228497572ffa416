"""Fuzzing: the same hostile cases in every run, each with ten seconds and four allowed statuses."""

from __future__ import annotations

import json
import random
import signal
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from privbench.cli.main import main
from privbench.plugins import registry as plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from privbench.plugins.registry import Registry

LIMIT = 10  # seconds of computing
WAIT = 60  # seconds on the clock
LONGEST = 2_000  # characters of a refusal; it may list several problems

#: Pieces of text that have broken programs like this one.
TOKENS = (
    "", " ", "\n", "\t", "\r\n", "\x00", "\x1b[31m", "\x85", "\u2028", "\u202e", "\ufeff", "\ud800",
    "é", "😀", "\\ud800", '"\\ud800"', '"\\UFFFFFFFF"', "'", '"', "`", "\\", "|", "\\|", "%", "@",
    "[", "]", "{", "}", "[[[[", "{{{{", "[" * 40, "- " * 40, ",", ":", ": ", "? ", "- ", "#", "&a",
    "*a", "&a [*a]", "&a [x, x]\nb: &b [*a, *a]", "<<: *a", "!!int ''", "!!binary '='", "!!set {a}",
    "!!python/object:os.system x", "!!timestamp x", "!!bool x", "!x y", "%YAML 1.1", "---", "...",
    "|\n", ">\n", "yes", "no", "on", "null", "~", "true", "1:30", "0x1F", "0o9", "010", "1_000",
    "-0", "-1", "0", "1", "1.0", "5", "'5'", "1e3", "1e999", ".inf", "-.inf", ".nan", "nan", "inf",
    "9" * 20, "9" * 310, "9" * 5000, "1" + "0" * 100, "1e300", "1e-320", "2026-13-41", "2026-01-01",
    "<script>alert(1)</script>", "![x](y)", ":smile:", "x" * 3000, "none", "none+none", "lira+none",
    "+", "++", "attacks", "seeds", "set", "simclr", "lira", "white-box", "adaptive", "members",
)  # fmt: skip
#: Values in the place of others.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 10**4, 10**7, 10**7 + 1, 2**31, 2**32, 2**63, 2**64, 10**100,
    10**400, 0.0, -0.0, 0.5, 1.0, 5.0, 1e300, -1e300, 1e-320, float("inf"), float("nan"), "", "x",
    "5", "none", "lira", "simclr", "digits", "default", "a+b", "none+none", "x" * 5000, "\ud800",
    "\x1b]0;t\x07", "\u202e", "<b>", [], {}, [[]], [{}], {"": {}}, {"x": 1}, [None], ["lira"] * 300,
    {"lira": {}}, {"lira": None}, {"lira": {"k": 2}}, {"a": {"b": {"c": {}}}}, [1, 2, 3],
    [[[[[1]]]]], {"size": 5}, {"size": 0.5, "source": "x"}, {"adaptive": False}, "skipped", "ok",
    "failed",
)  # fmt: skip


class _HangError(BaseException):
    """A case that took too long; no `except Exception` swallows it."""


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _HangError

    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, LIMIT), (signal.ITIMER_REAL, signal.SIGALRM, WAIT),
    )  # fmt: skip
    before = [signal.signal(number, stop) for _, number, _ in timers]
    for timer, _, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


class Fuzz:
    """Runs cases and collects what is wrong; one finding for each place in the code."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.case = 0
        self.found: dict[str, str] = {}
        self.statuses: dict[int, int] = {}

    def cases(self) -> Iterator[random.Random]:
        """Sources of random choices, the same in every run."""
        for case in range(self.count):
            self.case = case
            yield random.Random(f"{self.name} {case}")
        print(f"{self.name}: {self.count} cases, statuses {self.statuses}")
        assert not self.found, "\n\n".join(f"{k}\n{v}" for k, v in self.found.items())

    def guarded(self, what: object, call: Callable[[], Any]) -> Any:
        """Call; a hang and any exception that leaves it is a finding."""
        try:
            with _limited():
                return call()
        except _HangError:
            self.find(f"hang {len(self.found)}", what, traceback.format_exc(limit=-12))
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            place = traceback.format_exc(limit=-1).splitlines()[1].strip()
            told = "".join(traceback.format_exception(error, limit=-6))
            self.find(f"{type(error).__name__}: {place}", what, told)
        return None

    def command(self, args: Sequence[str], what: object = "") -> None:
        """Run privbench with these arguments."""

        def call() -> None:
            done = CliRunner().invoke(main, list(args))
            code = done.exit_code
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            self.statuses[code] = self.statuses.get(code, 0) + 1
            assert code in (0, 1, 2, 130), f"status {code}"
            said = done.stdout + done.stderr
            assert said.replace("\n", "").isprintable(), f"it prints {ascii(said)[:300]}"
            if code == 2 and not done.stderr.startswith("Usage: "):
                assert done.stderr.count("\n") == 1, f"many lines: {done.stderr[:500]}"
                assert len(done.stderr) < LONGEST, f"long: {done.stderr[:500]}"

        self.guarded((list(args), what), call)

    def find(self, kind: str, what: object, told: str) -> None:
        """Note a finding."""
        self.found.setdefault(kind, f"case {self.case}: {ascii(what)[:1500]}\n{told[-2500:]}")


def damaged_text(text: str, chance: random.Random) -> str:
    """The text after one to four edits."""
    for _ in range(chance.randint(1, 4)):
        a = chance.randint(0, len(text))
        b = min(len(text), a + chance.choice((0, 0, 1, 2, 5, 20)))
        edit = chance.randrange(4)
        if edit == 0:
            text = text[:a] + text[b:]
        elif edit == 1:
            text = text[:b] + text[a:b] * chance.choice((1, 2, 50)) + text[b:]
        else:
            text = text[:a] + chance.choice(TOKENS) + text[b:]
    return text


def damaged_value(value: Any, chance: random.Random) -> Any:
    """A copy of nested values after one to three edits."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 3)):
        spots = list(_spots(value))
        if not spots:
            return chance.choice(VALUES)
        parent, key = chance.choice(spots)
        edit = chance.randrange(6)
        if edit == 0:
            del parent[key]
        elif edit == 1 and isinstance(parent, dict):
            parent[chance.choice(TOKENS)] = parent.pop(key)
        elif edit == 2 and isinstance(parent, list):
            parent.extend([parent[key]] * chance.choice((1, 50)))
        elif edit == 3:
            parent[key] = [parent[key]]
        elif edit == 4:
            parent[key] = chance.choice(TOKENS)
        else:
            parent[key] = chance.choice(VALUES)
        value = json.loads(json.dumps(value))  # no value occurs twice
    return value


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where the nested values are: a list or mapping, and a place in it."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(places):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _spots(inner)


@pytest.fixture
def hostile() -> Any:
    """The mutators and what they put in."""
    from types import SimpleNamespace

    return SimpleNamespace(text=damaged_text, value=damaged_value, tokens=TOKENS, values=VALUES)


@pytest.fixture
def fuzz(
    request: pytest.FixtureRequest, registry: Registry, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Fuzz:  # fmt: skip
    """A collector named after the test, in an empty folder; plugins are loaded once."""
    real = plugins.load
    monkeypatch.setattr(plugins, "load", lambda off, **_: real(off) if off else registry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    CliRunner().invoke(main, ["run", "--attack", "lira", "--dry-run"])  # imports, digests of code
    return Fuzz(request.node.name, request.config.getoption("--fuzz"))
