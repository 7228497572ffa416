"""The lines of ``privbench doc`` about methods, games and protocols."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from privbench.ground.judges import judges_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from privbench.measure.data.protocol import Protocol
    from privbench.measure.games.game import Game
    from privbench.measure.methods.method import Method
    from privbench.plugins.registry import Registry

_WIDE = 98
#: Lines of a summary; `--full` prints all of it.
_SUMMARY = 6


def method_card(kind: str, method: Method, root: Path | None = None) -> Iterator[str]:
    """Yield the lines that follow what a method does: paper, facts, hyperparameters, deviations.

    Args:
        kind: of the method.
        method: of that kind.
        root: folder of datasets, for one that only its files describe.
    """
    from privbench.plugins.about import about
    from privbench.plugins.hyperparameters import hyperparameters, short
    from privbench.plugins.variables import of

    told = about(kind, method, root)
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
    if kind == "defense" and (judges := judges_of(method)):
        yield from ("", "Judged by (`attacks: strongest` in a suite runs these):")
        for judge in judges:
            yield from textwrap.wrap(
                f"{judge.label}: {judge.why}", _WIDE, initial_indent="  ",
                subsequent_indent="      ", break_on_hyphens=False,
            )  # fmt: skip
    if told.deviations:
        yield from ("", *_wrapped("Deviations", told.deviations))


def game_card(game: Game, registry: Registry) -> Iterator[str]:
    """Yield the lines about a game: its columns, controls, attacks and defenses."""
    yield f"{game.name}: game"
    yield ""
    yield from summary([type(game).__doc__ or ""])
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


def protocol_card(protocol: Protocol) -> Iterator[str]:
    """Yield the lines that follow the name of a protocol: its parts, and who sees what."""
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


def summary(texts: Sequence[str]) -> Iterator[str]:
    """Yield some lines of the first text, without the sections of a docstring."""
    body = inspect.cleandoc(next(iter(texts), "")).partition("\n\nAttributes:")[0].replace("``", "")
    lines = [line for block in body.split("\n\n") for line in textwrap.wrap(block, _WIDE)]
    yield from lines[:_SUMMARY]
    if len(lines) > _SUMMARY:
        yield "[…]"


def _wrapped(name: str, text: Any) -> list[str]:
    return textwrap.wrap(
        f"{name}: {text}", _WIDE, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
