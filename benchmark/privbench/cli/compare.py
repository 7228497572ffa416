"""``privbench compare OLD NEW``: which of two versions of a model leaks more."""

from __future__ import annotations

from pathlib import Path

import click

from privbench.cli.border import say


@click.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
def compare(old: Path, new: Path) -> None:
    """Say whether the NEW version of a model leaks more than the OLD one.

    Both are folders of `privbench audit`, of the same rows and attacks. The tests are paired by
    row, and corrected for the number of attacks.
    """
    from privbench.api.comparing import compare

    say(str(compare(old, new)))
