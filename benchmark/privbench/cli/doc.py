"""``privbench doc NAME``: a method, a protocol, a game or a name of the Python API explained."""

from __future__ import annotations

import contextlib
import inspect
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench.cli import completion
from privbench.cli.border import say
from privbench.ground.errors import BadInputError, UnknownNameError, nearest
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from privbench.measure.data.protocol import Protocol
    from privbench.measure.games.game import Game
    from privbench.measure.methods.method import Method
    from privbench.plugins.registry import Choice, Registry
    from privbench.plugins.variables import Variable

_WIDE = 98
#: Lines of a summary; `--full` prints all of it.
_SUMMARY = 6


@click.command()
@click.argument("name", shell_complete=completion.among(completion.explained))
@click.option("--full", is_flag=True, help="Print the whole text of a method, not its beginning.")
@click.option(
    "--data-root", type=click.Path(path_type=Path), envvar="PRIVBENCH_DATA", show_envvar=True,
    help="Directory of datasets, for one that only its files describe.",
)  # fmt: skip
@click.pass_obj
def doc(chosen: list[Choice], name: str, full: bool, data_root: Path | None) -> None:
    """Explain a method, a dataset, a protocol or a game on one screen.

    The card of a method: what it does, its paper, threat model, hyperparameters and deviations.

    Also what a plugin is written with: `privbench doc classifier_phase`, any other name of
    `from privbench import …`, the methods of its classes, `privbench doc on_phases` or
    `Defense.on_phases`, and the class variables of methods, `privbench doc protects`.
    """
    from privbench import HOME
    from privbench.measure.data.protocol import PROTOCOLS
    from privbench.measure.games.catalog import GAMES
    from privbench.plugins.registry import load
    from privbench.plugins.variables import VARIABLES

    registry = load(chosen)
    found = [*_all(registry, name, GAMES, PROTOCOLS, full=full, root=data_root)]
    public = name.removeprefix("privbench.")
    if public in HOME:
        found.append([*_public(public)])
    found += [[*_variable(one)] for one in VARIABLES if one.name == name]
    inside = _members()
    found += [[*_member(*one)] for one in inside if public in (one[0], one[0].partition(".")[2])]
    if not found:
        registry.blame("method", name)
        methods = {m.name for kind in ("attack", "defense", "target", "dataset")
                   for m in registry.all(kind)}  # fmt: skip
        own = {p for dataset in registry.all("dataset") for p in dataset.protocols}
        known = {*methods, *GAMES, *PROTOCOLS, *own, *HOME, *(one.name for one in VARIABLES)}
        known |= {whole if "." in name else whole.partition(".")[2] for whole, _ in inside}
        if nearest(name, sorted(known)) is None:  # hundreds of names do not help
            raise BadInputError(
                f"unknown name '{shown(name)}': `privbench list` "
                f"shows methods, `help(privbench)` public names{registry.hint}"
            )
        raise UnknownNameError("name", name, known, registry.hint)
    say("\n\n".join("\n".join(lines) for lines in found))


def _all(
    registry: Registry,
    name: str,
    games: Mapping[str, Game],
    protocols: Mapping[str, Protocol],
    *,
    full: bool,
    root: Path | None,
) -> Iterator[list[str]]:
    """Yield the lines of everything of that name."""
    for kind in ("attack", "defense", "target", "dataset"):
        for method in registry.all(kind):
            if method.name == name:
                yield [*_method(kind, method, registry, full=full, root=root)]
    if name in games:
        yield [*_game(games[name], registry)]
    if name in protocols:
        yield [*_protocol(protocols[name], "every dataset")]
    own = [d for d in registry.all("dataset") if name in d.protocols and name not in protocols]
    for first in own[:1]:
        yield [*_protocol(first.protocols[name], ", ".join(d.name for d in own))]


def _method(
    kind: str, method: Method, registry: Registry, *, full: bool, root: Path | None
) -> Iterator[str]:
    from privbench.plugins.about import about
    from privbench.plugins.hyperparameters import hyperparameters, short
    from privbench.plugins.variables import of

    told = about(kind, method, root)
    plugin = registry.owner(kind, method.name)
    origin = f"plugin {plugin.name} of {plugin.distribution} {plugin.version}".rstrip()
    if plugin.distribution == "file":
        origin = f"file {plugin.name}, {plugin.version}"
    yield f"{method.name}: {kind}, version {method.version}, from {origin}"
    yield ""
    if full:
        for text in told.texts:
            yield from (*text.splitlines(), "")
    else:
        yield from (*_summary(told.texts[0] if told.texts else ""), "")
    if told.paper:
        yield from _wrapped("Paper", told.paper)
    for name, text in told.facts.items():
        yield from _wrapped(name, text)
    known = hyperparameters(method)
    yield from ("", "Hyperparameters (default; values):" if known else "Hyperparameters: none")
    for name, values, default, meaning in known:
        text = f"{name} = {default} ({values})" + (f": {meaning}" if meaning else "")
        yield from textwrap.wrap(
            text, _WIDE, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
    own = [f"{name} = {value}" for name, value in of(method)]
    if own:
        yield from ("", *_wrapped("Class variables", "; ".join(own)))
    for preset, given in method.presets.items():
        listed = ", ".join(f"{name} {short(value)}" for name, value in given.items())
        yield from _wrapped(f"Preset {preset}", listed)
    if told.deviations:
        yield from ("", *_wrapped("Deviations", told.deviations))


def _game(game: Game, registry: Registry) -> Iterator[str]:
    yield f"{game.name}: game"
    yield ""
    yield from _summary(type(game).__doc__ or "")
    yield ""
    board = game.board
    stronger = "higher" if board.higher else "lower"
    yield from _wrapped("Headline", f"{board.columns[0].heading} ({stronger} is a stronger attack)")
    yield from _wrapped("Columns", ", ".join(column.heading for column in board.columns))
    yield from _wrapped("Controls", ", ".join(game.controls) or "none")
    attacks = [attack.name for attack in registry.all("attack") if attack.game == game.name]
    yield from _wrapped("Attacks", ", ".join(attacks) or "none")
    protecting = [d.name for d in registry.all("defense") if game.name in d.protects]
    yield from _wrapped("Claim to protect", ", ".join(protecting) or "none")


def _protocol(protocol: Protocol, datasets: str) -> Iterator[str]:
    yield f"{protocol.name}: protocol of {datasets}"
    yield ""
    for name, part in protocol.parts().items():
        if part.size:
            source = f" from {part.source}" if part.source else ""
            size = f"{part.size:.0%} of the rows" if isinstance(part.size, float) else part.size
            yield from _wrapped(name.capitalize(), f"{size}{source}")
    if isinstance(protocol.test, str):
        yield from _wrapped("Test", f"the {protocol.test}")
    yield from _wrapped("Encoder sees", ", then ".join(protocol.encoder))
    yield from _wrapped("Classifier sees", protocol.classifier)
    yield from _wrapped("The question is about", protocol.phase)
    for field in fields(protocol):
        value = getattr(protocol, field.name)
        if field.name in ("inclusion", "shadow", "canaries") and value not in (None, "size"):
            yield from _wrapped(field.name.capitalize(), str(value))


def _public(name: str) -> Iterator[str]:
    """Yield what ``help`` says of a public name, without what it inherits."""
    import privbench

    value = getattr(privbench, name)
    kind = "class" if inspect.isclass(value) else "function" if callable(value) else "object"
    yield f"{name}: {kind}, from privbench import {name}"
    yield ""
    with contextlib.suppress(TypeError, ValueError):  # an object, or a class without one
        yield from (*_signature(name, value), "")
    yield from str(inspect.getdoc(value)).splitlines()
    if inspect.isclass(value):
        for whole, member in _members([name]):
            yield ""
            yield from _member(whole, member)


def _members(names: Iterable[str] = ()) -> list[tuple[str, Callable[..., Any]]]:
    """Return ``Class.method`` and the method, of public classes (all by default), if documented."""
    import privbench

    classes = {name: getattr(privbench, name) for name in names or privbench.HOME}
    return [
        (f"{name}.{method}", member)
        for name, value in classes.items()
        if inspect.isclass(value)
        for method, member in vars(value).items()
        if inspect.isfunction(member) and not method.startswith("_") and inspect.getdoc(member)
    ]


def _member(whole: str, member: Callable[..., Any]) -> Iterator[str]:
    yield from _signature(whole, member)
    yield from textwrap.indent(str(inspect.getdoc(member)), "    ").splitlines()


def _signature(name: str, value: Callable[..., Any]) -> list[str]:
    """Return how to call it; types without the quotes in which Python keeps them."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{name}{inspect.signature(value)}")
    return textwrap.wrap(text, _WIDE, subsequent_indent="    ", break_on_hyphens=False)


def _variable(one: Variable) -> Iterator[str]:
    whose = "every method" if one.owner == "every method" else f"a {one.owner}"
    if one.owner == "attack":
        whose = "an attack"
    yield f"{one.name}: class variable of {whose}"
    yield ""
    yield from _wrapped("Meaning", one.meaning)
    yield from _wrapped("Values", one.allowed)
    yield from _wrapped("Default", one.default)


def _summary(text: str) -> Iterator[str]:
    """The text before the first section of a docstring, some lines of it."""
    body = inspect.cleandoc(text).partition("\n\nAttributes:")[0].replace("``", "")
    lines = [line for block in body.split("\n\n") for line in textwrap.wrap(block, _WIDE)]
    yield from lines[:_SUMMARY]
    if len(lines) > _SUMMARY:
        yield "[…]"


def _wrapped(name: str, text: Any) -> list[str]:
    return textwrap.wrap(
        f"{name}: {text}", _WIDE, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
