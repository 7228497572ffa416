"""The commands that show and clean the store, and carry artifacts from one to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench.cli.border import Finite, Whole, data_root_option, say
from privbench.cli.refusal import refuse
from privbench.ground.errors import BadInputError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from privbench.plugins.registry import Choice

_MIB = 2**20


@click.group()
def cache() -> None:
    """Inspect and clean the store of artifacts, or carry some to another store."""


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


@cache.command("export")
@click.argument("suite", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@data_root_option("Directory of datasets.")
@click.option("--device", default="auto", show_default=True, help="That of the run.")
@click.option("--threads", type=Whole(min=1), default=1, show_default=True, metavar="N",
              help="Those of the run.")  # fmt: skip
@click.option("--precision", type=click.Choice(["auto", "float32", "bf16"]), default="auto",
              show_default=True, help="That of the run.")  # fmt: skip
@click.option("--compile", "compiled", is_flag=True, help="If the run had it.")
@click.option(
    "--max-mib", type=Finite(min=0), default=64, show_default=True, metavar="MIB",
    help="Largest size of what is exported.",
)  # fmt: skip
@click.pass_obj
def export(
    chosen: list[Choice], /, suite: Path, file: Path, max_mib: float, **options: Any
) -> None:
    """Write the stored victims and shadows of a SUITE into FILE, for `cache import` elsewhere."""
    from privbench.grid.suite import read_suite

    asked = read_suite(suite)
    refuse(asked, chosen)
    from privbench.api.planning import Planning
    from privbench.ground.store import bundle

    options |= {"out": Path("results"), "jobs": "1", "executor": None}
    stored, missing = Planning(asked, chosen, options).artifacts()
    of = shown(str(suite), 200)
    if not stored:
        raise BadInputError(f"the store holds no victim or shadow of {of}: run it first, or give "
                            "the --device, --threads, --precision and --compile of its "
                            "run")  # fmt: skip
    total = bundle.size(stored)
    if total > max_mib * _MIB:
        raise BadInputError(
            f"the {len(stored)} artifacts of {of} have {total / _MIB:,.1f} MiB, more than "
            f"{max_mib:g}: give --max-mib {total // _MIB + 1}, or a suite with fewer seeds"
        )
    bundle.pack(stored, file)
    less = f"; {missing} more are not in the store" if missing else ""
    say(f"{len(stored)} artifacts, {total / _MIB:,.1f} MiB, in {file}{less}")


@cache.command("import")
@click.argument("file", type=click.Path(path_type=Path))
def import_(file: Path) -> None:
    """Add the artifacts of FILE, of `cache export`, to the store.

    Every checksum is checked first; if one is wrong, nothing is added. Results of these artifacts
    are as trustworthy as who made FILE.
    """
    from privbench.ground.store.bundle import unpack

    added, there = unpack(file, _store())
    say(f"{added} artifacts added, {there} were there")


def _store() -> Any:
    from privbench.ground.store.store import Store, default_root

    return Store(default_root())
