# ruff: noqa: INP001 - a script
"""How much of a leak of known size each membership attack finds, from how many rows.

``uv run python leaderboards/experiments/power.py --out FOLDER`` runs every membership attack
against victims with a planted leak of AUC .55, .60, .70 and .90 (``planted-leak`` and
``planted-leak-embeddings``, parameter ``auc``) and writes ``leaderboards/power.md``. What is in
FOLDER is not run again; ``--seconds`` stops after that time, and the next call goes on. The numbers
of all calls are kept in ``leaderboards/power.csv``.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))
from kept_numbers import filled, kept

import privbench
from privbench import Access, Results
from privbench.plugins import registry
from privbench.testing import auc_band

#: The data and the victim, as a plugin.
DATA = Path(__file__).with_name("smooth_images.py")
PAGE = Path(__file__).parents[1] / "power.md"
LEAKS = (0.55, 0.6, 0.7, 0.9)
#: Rows, half of them members -> seeds.
SEEDS = {100: 5, 1000: 2, 10_000: 1}
ROWS = (*SEEDS,)
#: Attacks of which a cell with more rows takes more than five minutes of a core.
MOST = {"label-lira": 100, "label-cmia": 100, "union": 100, "label-only-boundary": 1000,
        "label-only-noise": 1000, "encodermi-s": 1000, "adversarial-mia": 1000,
        "adversarial-mia-targeted": 1000}  # fmt: skip
HEADS = ("attack", "rows", "leak", "seed")
HEAD = """\
# Power of the membership attacks

How much of a leak of known size each attack finds. A share of the members is answered as if
memorised, all other rows alike, so that no attack can have a larger AUC than the leak, but by
chance. A cell is (AUC of the attack - .5) / (AUC of the leak - .5), mean over seeds: 1 is all of
the leak, 0 nothing. **Bold**: the AUC is beyond what chance gives in 5 % of cases. Attacks have
their defaults; the leak is in posteriors and labels, or in embeddings. Only the rows themselves
leak (and eight views of each embedding), not copies with noise, so `label-lira` sees little of
it. –: not measured; a cell of {slow} takes more than five
minutes of a core with 1,000 rows, and of most others that lack with 10,000. Seeds: {seeds}.

    uv run python leaderboards/experiments/power.py --out FOLDER

The smallest AUC that is beyond chance, as a mean over these seeds: {limits}.

A cell of a small leak is not sure. By chance alone (one standard error) a cell of {least} moves by
{errors}; one of {most} by an eighth of
that.
"""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--rows", type=click.Choice([str(n) for n in ROWS]), multiple=True)
@click.option("--attack", "only", multiple=True, help="Only these.")
@click.option("--seconds", default=float("inf"), help="Start no attack after that time.")
def main(out: Path, rows: tuple[str, ...], only: tuple[str, ...], seconds: float) -> None:
    """Run what is missing, and write the page."""
    until = time.monotonic() + seconds
    for n in map(int, rows or map(str, ROWS)):
        for name in sorted(only or attacks()):
            if time.monotonic() < until and n <= MOST.get(name, n):
                privbench.run(suite(name, n), out=out / f"{n}-{name}", plugins=[DATA])
        write(out)


def attacks() -> dict[str, str]:
    """Return every membership attack that a planted leak can reach -> its control."""
    found = {}
    for attack in registry.load().all("attack"):
        if attack.game == "membership" and not attack.misses_planted and attack.needs:
            embeddings = attack.needs == Access.EMBEDDINGS
            found[attack.name] = "planted-leak-embeddings" if embeddings else "planted-leak"
    elsewhere = {"gradient-canary", "loss-trace", "lira-residual"}
    return {name: control for name, control in found.items() if name not in elsewhere}


def suite(name: str, n: int) -> dict[str, Any]:
    """Return the suite of one attack with n rows."""
    control = attacks()[name]
    views = 8 if control == "planted-leak-embeddings" else 0
    return {
        "name": "power", "datasets": ["smooth-images"],
        "protocols": ["default" if n == ROWS[0] else f"n{n}"],
        "targets": ["tiny-target"], "attacks": [name], "controls": False, "baseline": False,
        "defenses": [{control: {"auc": leak, "views": views}} for leak in LEAKS],
        "seeds": SEEDS[n],
    }  # fmt: skip


def write(out: Path) -> None:
    """Write the page from these results and those kept before."""
    measured: dict[tuple[str, ...], float] = {}
    for folder in sorted({path.parent for path in out.glob("*/*.json")}):
        n = int(folder.name.partition("-")[0])
        for record in Results.read(folder):
            auc = record.metrics["auc"].value if record.status == "ok" else None
            if auc is not None and record.seed < SEEDS[n]:
                leak = record.cell.defenses[0].fields["auc"]
                measured[record.cell.attack.name, str(n), str(leak), str(record.seed)] = auc
    found: dict[str, dict[tuple[int, float], list[float]]] = {}
    for (name, n, leak, _), auc in kept(PAGE.with_suffix(".csv"), HEADS, measured).items():
        found.setdefault(name, {}).setdefault((int(n), float(leak)), []).append(auc)
    heads = [(n, leak) for n in ROWS for leak in LEAKS]
    seeds = ", ".join(f"{k} with {n:,} rows" for n, k in SEEDS.items())
    limits = ", ".join(f"{0.5 + beyond_chance(n, k):.3f} with {n:,} rows" for n, k in SEEDS.items())
    errors = ", ".join(
        f"{beyond_chance(n, k) / 1.96 / (LEAKS[0] - 0.5):.2f} with {n:,} rows"
        for n, k in SEEDS.items()
    )
    listed = ", ".join(f"`{name}`" for name, most in MOST.items() if most < ROWS[1])
    lines = [
        HEAD.format(
            seeds=seeds,
            limits=limits,
            slow=listed,
            errors=errors,
            least=f"{LEAKS[0]:.2f}",
            most=f"{LEAKS[-1]:.2f}",
        ),
        "| attack | " + " | ".join(f"{n:,} rows, {leak:.2f}" for n, leak in heads) + " |",
        "|---" * (1 + len(heads)) + "|",
    ]
    rows = [
        [f"`{name}`", *(share(found.get(name, {}).get(head, []), *head) for head in heads)]
        for name in sorted({*found, *attacks()})
    ]
    lines += filled(rows, PAGE)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def beyond_chance(n: int, seeds: int) -> float:
    """Return how far from .5 a mean AUC must lie."""
    return auc_band(n // 2, n // 2, 0.05) / math.sqrt(seeds)


def share(found: list[float], n: int, leak: float) -> str:
    """Return the share of the leak that was found."""
    if not found:
        return "–"
    auc = fmean(found)
    told = f"{(auc - 0.5) / (leak - 0.5):.2f}"
    return f"**{told}**" if auc - 0.5 > beyond_chance(n, len(found)) else told


if __name__ == "__main__":
    main()
