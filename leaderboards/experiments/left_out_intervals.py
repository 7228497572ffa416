# ruff: noqa: INP001 - a script
"""Coverage of the intervals of leave-one-out attacks on canaries, measured by simulation.

``uv run python leaderboards/experiments/left_out_intervals.py [DRAWS]`` prints the table that
``left_out_intervals.md`` holds. A canary has a difficulty and a gain of its own, equal in all
worlds; its score is ``difficulty + gain × member + noise``, all of them normal. So the pooled
scores of members and of nonmembers are normal too, and the true AUC and TPR are known.
"""

from __future__ import annotations

import sys

import click
import numpy as np
from scipy.stats import norm

from privbench.measure.games.left_out import RATES, left_out
from privbench.measure.games.metrics import Refused

WORLDS = 16
#: Canaries, standard deviation of the difficulty, mean gain; the gain's deviation is half its mean.
CASES = ((100, 0.0, 0.0), (100, 1.0, 1.0), (100, 3.0, 2.0), (250, 0.0, 0.0), (250, 1.0, 1.0),
         (250, 3.0, 2.0))  # fmt: skip


def truth(difficulty: float, gain: float) -> dict[str, float]:
    """Return the value of each measure over infinitely many canaries."""
    outside = np.sqrt(difficulty**2 + 1)
    inside = np.sqrt(difficulty**2 + (gain / 2) ** 2 + 1)
    made = {"loo_auc": float(norm.cdf(gain / np.hypot(inside, outside)))}
    for rate in RATES:
        made[f"loo_tpr_at_fpr_{rate:g}"] = float(
            norm.sf((outside * norm.isf(rate) - gain) / inside)
        )
    return made


def main(draws: int) -> None:
    """Print the table."""
    click.echo(f"{WORLDS} worlds, {draws:,} draws a row\n")
    click.echo("| canaries | difficulty | gain | measure | truth | mean | coverage | mean width |")
    click.echo("|" + "---|" * 8)
    for canaries, difficulty, gain in CASES:
        rng = np.random.default_rng([canaries, int(10 * difficulty), int(10 * gain)])
        wanted = truth(difficulty, gain)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in wanted}
        for _ in range(draws):
            half = rng.random((WORLDS // 2, canaries)) < 0.5  # noqa: PLR2004
            member = np.stack([half, ~half], 1).reshape(WORLDS, canaries)
            hard = difficulty * rng.normal(size=canaries)
            gains = gain + gain / 2 * rng.normal(size=canaries)
            scores = hard + gains * member + rng.normal(size=member.shape)
            for name, made in left_out(scores, member).items():
                if not isinstance(made, Refused):
                    found[name].append((made.value, made.low, made.high))
        for name, values in found.items():
            if not values:
                continue
            value, low, high = np.array(values).T
            held = ((low <= wanted[name]) & (wanted[name] <= high)).mean()
            click.echo(
                f"| {canaries} | {difficulty:g} | {gain:g} | {name} | {wanted[name]:.3f} | "
                f"{value.mean():.3f} | {held:.3f} | {(high - low).mean():.3f} |"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
