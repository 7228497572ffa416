"""``privbench verify FOLDER``: whether an audit is still as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from privbench.cli.border import say


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--digest", metavar="HEX",
              help="Digest that the audit printed, kept elsewhere.")  # fmt: skip
def verify(folder: Path, digest: str | None) -> None:
    """Say whether anything in the FOLDER of an audit has changed since.

    Without --digest it finds damage, but no one who also wrote SHA256SUMS anew. Exit status: 0 if
    nothing has changed, 1 if files changed, are missing or are new, 2 if there is no audit.
    """
    from privbench.api.own_model.sums import verified

    made = verified(folder, digest)
    say(made.words)
    sys.exit(int(not made.unchanged))
