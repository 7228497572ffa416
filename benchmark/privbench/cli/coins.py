"""``privbench coins``: which rows to train on, so that a claimed epsilon can be tested."""

from __future__ import annotations

from pathlib import Path

import click

from privbench.cli.border import Whole, say


@click.command()
@click.argument("rows", type=click.Path(path_type=Path))
@click.option("--count", type=Whole(min=1), metavar="N", required=True,
              help="Rows with a coin; the others are all trained on.")  # fmt: skip
@click.option("--seed-file", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="New file for the secret of the coins.")  # fmt: skip
def coins(rows: Path, count: int, seed_file: Path) -> None:
    """Toss a coin for each of N rows: train on it or not.

    ROWS is a .npz file; NAME-included.npz and NAME-excluded.npz are written beside it. Train on the
    first one; then `privbench audit --claim EPSILON,DELTA --coins FILE` tests the claim.
    """
    from privbench.api.own_model.claim import most
    from privbench.api.own_model.coins import coins_to_files

    inside, outside, included, excluded = coins_to_files(rows, count, seed_file)
    say(f"Train on {inside} ({included:,} rows), not on {outside} ({excluded:,} rows). Then audit "
        f"with --members {inside} --nonmembers {outside} --coins {seed_file} --claim "
        f"EPSILON,DELTA. Keep all three files secret. {count:,} coins can refute claims of ε "
        f"below {most(count):.1f}, if an attack is perfect.")  # fmt: skip
