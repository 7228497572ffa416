"""The commands that show and clean the store."""

from __future__ import annotations

from typing import Any

import click

from privbench.cli.border import Finite, say


@click.group()
def cache() -> None:
    """Inspect and clean the store of artifacts."""


@cache.command()
@click.argument("digest")
def why(digest: str) -> None:
    """Explain an artifact: what it depends on, and why it had to be built."""
    say(str(_store().why(digest)))


@cache.command()
def ls() -> None:
    """List artifacts."""
    total, store = 0, _store()
    for row in store.list():
        if row.damaged:
            say(f"{row.digest[:16]}  {row.kind:<10} damaged: {row.damaged}")
            continue
        total += row.bytes
        seconds = "        –" if row.seconds is None else f"{row.seconds:>8.1f} s"
        held = f"{row.kind:<10} {row.bytes:>12,} bytes  {seconds:<10}"
        say(f"{row.digest[:16]}  {held}  {row.created}")
    where = f": {store.missing}" if store.missing else f" in {store.root}"
    say(f"{total:,} bytes in total{where}")


@cache.command()
@click.option(
    "--older-than",
    type=Finite(min=0),
    metavar="DAYS",
    help="Also remove artifacts unused for DAYS.",
)
def gc(older_than: float | None) -> None:
    """Remove leftovers of killed runs, damaged artifacts and, if asked, unused ones."""
    store = _store()
    where = f": {store.missing}" if store.missing else ""
    say(f"{store.gc(older_than):,} bytes freed{where}")


def _store() -> Any:
    from privbench.ground.store.store import Store, default_root

    return Store(default_root())
