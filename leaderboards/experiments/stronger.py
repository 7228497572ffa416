# ruff: noqa: INP001 - a script
"""Attackers that an evening's work built, beside ours on the same protocols.

Hostile readers wrote stronger attackers than the boards had, and six of seven defenses that looked
best fell. ``uv run python leaderboards/experiments/stronger.py --data-root ROOT --out FOLDER`` runs
our attackers of today on the same protocols, three seeds each, and writes
``leaderboards/experiments/stronger.md``: their figure beside ours. What is in FOLDER is not run
again; ``--only NAME`` runs one row. The numbers of all calls are kept in ``stronger.csv``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from kept_numbers import filled, kept

import privbench
from privbench import Results

HERE = Path(__file__).parent
PAGE = HERE / "stronger.md"
SEEDS = 3


@dataclass(frozen=True)
class Row:
    """A published figure, what hostile readers reached, and what to run.

    Attributes:
        what: data, question and defense.
        published: what the board said.
        theirs: their attacker and its figure.
        suite: whose data, protocol and targets are taken.
        attacks, defenses: of the run; without a defense runs too.
        changes: other keys of the suite.
        metric: name of the headline metric.
        lower: whether a lower number is a stronger attack.
    """

    what: str
    published: str
    theirs: str
    suite: str
    attacks: list[Any]
    defenses: list[Any]
    changes: dict[str, Any] = field(default_factory=dict)
    metric: str = "auc"
    lower: bool = False


OPERATING = {"sweep": [], "controls": False, "match_utility": None}
ROWS = {
    "memguard": Row(
        "Location-30, membership, memguard(distortion=1), AUC", ".872 to .725",
        "label-only-noise .858", "memguard-location", ["label-lira", "label-only-noise", "lira"],
        [{"memguard": {"distortion": 1.0}}], {"adversaries": ["adaptive"]},
    ),
    "masking": Row(
        "digits, membership, confidence-masking(mask=label), AUC", ".742 to .623",
        "label-only LiRA .740, .741, .792", "digits-operating-points",
        ["label-lira", "label-cmia"], [{"confidence-masking": {"mask": "label"}}],
        {**OPERATING, "targets": ["supervised"]},
    ),
    "slant": Row(
        "digits, slant, ars(bound=0.5), accuracy", ".841 to .550", "siblings .791",
        "digits-operating-points", ["attribute-inference", "attribute-decensoring"],
        [{"ars": {"bound": 0.5}}], {**OPERATING, "targets": ["supervised"]}, "accuracy",
    ),
    "adult": Row(
        "Adult, reconstruction, ars(bound=2), MSE", ".012 to .033", "served rows, ridge .0148",
        "ars-adult", ["reconstruction", {"reconstruction": {"rows": "own"}}],
        [{"ars": {"bound": 2.0, "parties": 1}}],
        {"targets": [{"autoencoder": {"layers": 4, "epochs": 20, "owners": 3,
                                      "classifier_epochs": 20}}]},
        "mse", lower=True,
    ),
    "alm": Row(
        "CIFAR-10, membership, laplace(epsilon=100, variant=as-published), AUC", ".662 to .626",
        "rmia .825 (none), .636", "alm-cifar10",
        ["rmia", "lira", "lira-head"], [{"laplace": {"epsilon": 100, "variant": "as-published"}}],
    ),
    "alm-flattened": Row(
        "CIFAR-10, membership, laplace(epsilon=100), AUC", ".662 to .587",
        "– (rmia .825, none)", "alm-cifar10", ["rmia", "lira", "lira-head"],
        [{"laplace": {"epsilon": 100}}],
    ),
    "mnist": Row(
        "MNIST, reconstruction, ars(bound=2), MSE", ".018 to .050",
        "wide decoder .0125 (none), .031 (served rows)", "ars-mnist",
        ["reconstruction", {"reconstruction": {"rows": "own"}}], [{"ars": {"bound": 2.0}}],
        {"controls": False}, "mse", lower=True,
    ),
    "talos": Row(
        "digits, membership, talos, AUC", ".548 and .602 with talos", "rmia .810 (none), .733",
        "talos-sweep", ["rmia", "lira", "lira-head", {"lira-encoder": {"online": True}}], ["talos"],
    ),
}  # fmt: skip
HEAD = """\
# Stronger attackers, an evening's and ours

Hostile readers built attackers in an evening that undid most of what the boards called protection.
Here are theirs beside ours, on the same protocols, mean of {seeds} seeds. Our attacks have their
defaults, of the version of their day (`reconstruction`: 5, but 4 for MNIST without a defense).
–: not measured yet. Encoders under `talos` differ by seed: `lira-head` finds .652 to .929.

    uv run python leaderboards/experiments/stronger.py --data-root ROOT --out FOLDER

| what | board then (none to defense) | their attacker | ours, no defense | ours, with the defense |
|---|---|---|---|---|
"""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--data-root", type=click.Path(path_type=Path), required=True)
@click.option("--only", type=click.Choice([*ROWS]), multiple=True)
def main(out: Path, data_root: Path, only: tuple[str, ...]) -> None:
    """Run what is missing, and write the page; exit status 1 if a trial failed."""
    bad = []
    for name in only or ROWS:
        results = privbench.run(suite(name), out=out / name, data_root=data_root)
        if lost := [one for one in results if one.status == "failed"]:
            click.echo(f"{name}: {len(lost)} of {len(results)} trials failed: {lost[0].reason}")
        bad += lost
        write(out)
    sys.exit(bool(bad))


def suite(name: str) -> dict[str, Any]:
    """Return the suite of a row."""
    row = ROWS[name]
    made = yaml.safe_load((HERE.parent / "suites" / f"{row.suite}.yaml").read_text("utf-8"))
    made |= {"attacks": row.attacks, "defenses": row.defenses, "seeds": SEEDS, **row.changes}
    return {key: value for key, value in made.items() if value is not None}


def write(out: Path) -> None:
    """Write the page from these results and those kept before."""
    measured: dict[tuple[str, ...], float] = {}
    for name, row in ROWS.items():
        for one in Results.read(out / name) if any((out / name).glob("*.json")) else []:
            value = one.metrics[row.metric].value if one.status == "ok" else None
            if value is not None:
                of = "none" if one.cell.defense == "none" else "defended"
                measured[name, of, one.cell.attack.label, str(one.seed)] = value
    heads = ("row", "victim", "attack", "seed")
    found = kept(PAGE.with_suffix(".csv"), heads, measured)
    rows = []
    for name, row in ROWS.items():
        told = []
        for victim in ("none", "defended"):
            of: dict[str, list[float]] = {}
            for (what, which, label, _), value in found.items():
                if (what, which) == (name, victim):
                    of.setdefault(label, []).append(value)
            whole = {label: values for label, values in of.items() if len(values) == SEEDS}
            means = sorted((fmean(values), label) for label, values in whole.items())
            means = means if row.lower else means[::-1]
            digits = 4 if row.lower else 3
            told.append(", ".join(f"{label} {mean:.{digits}f}" for mean, label in means) or "–")
        rows.append([row.what, row.published, row.theirs, *told])
    text = HEAD.format(seeds=SEEDS) + "\n".join(filled(rows, PAGE)) + "\n"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
