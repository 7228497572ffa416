# ruff: noqa: INP001 - a script
"""AUC of EncoderMI against passes and members, from the boards that measured it.

``uv run python leaderboards/experiments/encodermi_curve.py`` reads the results of
``encodermi-passes`` and ``encodermi-members`` and writes ``encodermi_curve.md`` and ``.svg``. It
runs nothing: ``grow.py`` measures both boards. One line for each attack and backbone; the star is
the paper's point, a balanced accuracy of EncoderMI-V (ResNet-18, 1,600 passes, 10,000 members).
"""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import click
from matplotlib import rc_context

from privbench.boards.front import FAINT, INK, coloured
from privbench.boards.picture import Picture
from privbench.results.files import read_all

if TYPE_CHECKING:
    from privbench.results.record import Record

HERE = Path(__file__).parent
#: Balanced accuracy of EncoderMI-V, passes and members (published.yaml).
PAPER, PAPERS = 0.914, {"passes": 1600, "members": 10_000}
COLOURS = {"encodermi-v": "#3b76c4", "encodermi-s": "#d1603d", "encodermi-t": "#3f8f5f"}
HEAD = """\
# EncoderMI against passes, members and backbone

AUC of EncoderMI on MoCo encoders of CIFAR-10, mean over seeds.
{boards}
The star is the paper's point: not an AUC, but a balanced accuracy of .914, of EncoderMI-V with
ResNet-18 and 1,600 passes over 10,000 members (second hand).

    uv run python leaderboards/experiments/encodermi_curve.py

![AUC of EncoderMI](encodermi_curve.svg)

"""
BOARDS = {
    "encodermi-passes": (
        "passes",
        "[encodermi-passes](../encodermi-passes.md) trains on the same 500 images for longer.",
    ),
    "encodermi-members": (
        "members",
        (
            "[encodermi-members](../encodermi-members.md) trains on more images for 800 passes "
            "each: so there are also more updates and more rows from which V and S learn, and the "
            "queue of 256 keys holds a smaller share of them; T's AUC needs no shadow."
        ),
    ),
}


@dataclass(frozen=True)
class Curve:
    """What one board measured.

    Attributes:
        board: its name.
        along: what differs between its victims: ``passes`` or ``members``.
        means: (attack, backbone) -> number of passes or members -> mean AUC over seeds.
        seeds: fewest seeds of a point.
    """

    board: str
    along: str
    means: dict[tuple[str, str], dict[int, float]]
    seeds: int


def curve(board: str, along: str, records: list[Record]) -> Curve:
    """Return the AUC of each attack and backbone along passes or members."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in records:
        auc = one.metrics["auc"].value if one.status == "ok" else None
        if auc is not None:
            fields = one.cell.target.fields
            at = one.sizes["members"] if along == "members" else fields["epochs"]
            key = one.cell.attack.name, fields["backbone"]
            found[key][at].append(auc)
    means = {k: {at: fmean(of) for at, of in sorted(v.items())} for k, v in sorted(found.items())}
    return Curve(board, along, means, min(len(of) for v in found.values() for of in v.values()))


def table(of: Curve) -> str:
    """Return the numbers of a curve as markdown."""
    columns = sorted({at for line in of.means.values() for at in line})
    rows = [["attack", "backbone", *(f"{at:,} {of.along}" for at in columns)]]
    rows.append(["---"] * len(rows[0]))
    rows += [
        [*key, *(f"{line[at]:.3f}" if at in line else "–" for at in columns)]
        for key, line in of.means.items()
    ]
    seeds = f"{of.seeds} seed{'s' if of.seeds > 1 else ''}"
    return f"## {of.board}, {seeds}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def figure(curves: list[Curve]) -> str:
    """Return the curves side by side, as SVG."""
    with rc_context({"svg.hashsalt": "privbench", "svg.fonttype": "none", "text.color": INK,
                     "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK,
                     "ytick.color": INK, "font.size": 9, "axes.titlesize": 9}):  # fmt: skip
        made = Picture(figsize=(8.3, 3.8), layout="constrained")
        for axis, of in zip(made.subplots(1, len(curves), sharey=True, squeeze=False)[0], curves,
                            strict=True):  # fmt: skip
            for (attack, backbone), line in of.means.items():
                dashed = "--" if backbone == "mlp" else "-"
                axis.plot([*line], [*line.values()], dashed, color=COLOURS[attack], marker="o",
                          markersize=3, linewidth=1, label=f"{attack}, {backbone}")  # fmt: skip
            axis.plot(
                [PAPERS[of.along]],
                [PAPER],
                "*",
                color=INK,
                markersize=9,
                label="paper, balanced accuracy",
            )
            axis.axhline(0.5, color=FAINT, linewidth=0.8)
            axis.set_xscale("log")
            ticks = sorted({at for line in of.means.values() for at in line} | {PAPERS[of.along]})
            axis.set_xticks(ticks, [f"{at:,}" for at in ticks], rotation=45)
            axis.minorticks_off()
            axis.set_xlabel(of.along)
            axis.spines[["top", "right"]].set_visible(False)
        made.axes[0].set_ylabel("AUC")
        made.axes[0].legend(fontsize=7, frameon=False, loc="upper left")
        file = io.BytesIO()
        made.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return coloured(file.getvalue())


@click.command(help=__doc__)
def main() -> None:
    """Write the page and the figure."""
    found = {
        board: curve(board, along, read_all([path]))
        for board, (along, _) in BOARDS.items()
        if (path := HERE.parent / "results" / f"{board}.jsonl").exists()
    }
    if not found:
        raise click.ClickException("neither board is measured yet: run leaderboards/grow.py")
    told = HEAD.format(boards="\n".join(BOARDS[board][1] for board in found))
    page = told + "\n\n".join(map(table, found.values())) + "\n"
    (HERE / "encodermi_curve.md").write_text(page, encoding="utf-8")
    (HERE / "encodermi_curve.svg").write_text(figure([*found.values()]), encoding="utf-8")


if __name__ == "__main__":
    main()
