"""``privbench doc NAME``: a method, a protocol, a game or a word of the glossary explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from privbench.cli import completion
from privbench.cli.border import data_root_option, say
from privbench.cli.glossary import glossary
from privbench.ground.errors import BadInputError, UnknownNameError, nearest
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from privbench.cli.index import Index
    from privbench.cli.listed import Listed
    from privbench.plugins.registry import Choice


@click.command()
@click.argument("name", shell_complete=completion.among(completion.explained))
@click.option("--full", is_flag=True, help="Print the whole text of a method.")
@data_root_option("Directory of datasets, for a dataset that its files describe.")
@click.pass_obj
def doc(chosen: list[Choice], name: str, full: bool, data_root: Path | None) -> None:
    """Explain a method, a dataset, a protocol, a game or a word of the glossary on one screen.

    The card of a method says what it does, its paper, threat model, hyperparameters and deviations.
    Python explains the names that a plugin imports: `python -m pydoc privbench.Defense`.
    """
    from privbench.cli.index import index

    known = index(chosen)
    found: list[list[str]] = []
    for kind in ("attack", "defense", "target", "dataset"):
        for method in known.all(kind):
            if method.name == name:
                card = method.card
                if method.of_files and data_root is not None:
                    card = _of_files(chosen, name, data_root)
                found.append([*_method(kind, method, known, card, full=full)])
    if name in known.games:
        found.append(known.games[name])
    found += [[f"{name}: protocol of {whose}", "", *card] for whose, card in _protocol(known, name)]
    words = glossary()
    if name.lower() in words:
        found.append(words[name.lower()])
    if not found:
        raise _unknown(known, name)
    say("\n\n".join("\n".join(lines) for lines in found))


def _method(
    kind: str, method: Listed, known: Index, card: list[str], *, full: bool
) -> Iterator[str]:
    from privbench.cli.cards import summary

    plugin = known.owner(kind, method.name)
    origin = f"plugin {plugin.name} of {plugin.distribution} {plugin.version}".rstrip()
    if plugin.distribution == "file":
        origin = f"file {plugin.name}, {plugin.version}"
    yield f"{method.name}: {kind}, version {method.version}, from {origin}"
    yield ""
    if full:
        for text in method.texts:
            yield from (*text.splitlines(), "")
    else:
        yield from (*summary(method.texts), "")
    yield from card


def _of_files(chosen: list[Choice], name: str, root: Path) -> list[str]:
    """The card of a dataset that its files describe."""
    from privbench.cli.cards import method_card
    from privbench.plugins.registry import load

    return [*method_card("dataset", load(chosen).get("dataset", name), root)]


def _protocol(known: Index, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield whose protocol has that name, and its card."""
    from privbench.cli.cards import protocol_card
    from privbench.measure.data.protocol import PROTOCOLS

    if name in PROTOCOLS:
        yield "every dataset", [*protocol_card(PROTOCOLS[name])]
        return
    own = [one for one in known.all("dataset") if name in one.protocols]
    if own:
        yield ", ".join(one.name for one in own), own[0].protocols[name]


def _unknown(known: Index, name: str) -> BadInputError:
    from privbench.measure.data.protocol import PROTOCOLS

    known.blame("method", name)
    kinds = ("attack", "defense", "target", "dataset")
    names = {method.name for kind in kinds for method in known.all(kind)}
    names |= {own for dataset in known.all("dataset") for own in dataset.protocols}
    names |= {*known.games, *PROTOCOLS, *glossary()}
    if nearest(name, sorted(names)) is None:  # a hundred names do not help
        return BadInputError(
            f"unknown name '{shown(name)}': `privbench list` shows methods, "
            f"`python -m pydoc privbench` public names{known.hint}"
        )
    return UnknownNameError("name", name, names, known.hint)
