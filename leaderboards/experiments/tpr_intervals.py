# ruff: noqa: INP001 - a script
"""Coverage of two intervals of the TPR at a fixed FPR, measured by simulation.

``uv run python leaderboards/experiments/tpr_intervals.py [DRAWS]`` prints the table that
``tpr_intervals.md`` holds. Each row draws scores of which the true TPR at the true FPR is known.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import numpy as np
from scipy import stats

from privbench.games.fixed_fpr import tpr_bootstrap
from privbench.games.metrics import Refused, tpr_at_fpr

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.games.metrics import Estimate

#: Name -> distribution of nonmembers; members of share `exposed` are shifted by `shift`.
CASES = {
    "binormal, no signal": (stats.norm(), 0.0, 1.0),
    "binormal, d' = 1": (stats.norm(), 1.0, 1.0),
    "binormal, d' = 2.5": (stats.norm(), 2.5, 1.0),
    "one member in ten shifted by 6": (stats.norm(), 6.0, 0.1),
    "Student t with 2 df, shift 5": (stats.t(2), 5.0, 1.0),
    "Student t with 2 df, shift 8": (stats.t(2), 8.0, 1.0),
}
SIZES = ((100, 400, 0.01), (1000, 10_000, 0.01), (1000, 10_000, 0.001))
METHODS: dict[str, Callable[..., Estimate | Refused]] = {
    "order statistics": tpr_at_fpr,
    "bootstrap": tpr_bootstrap,
}


def main(draws: int) -> None:
    """Print the table."""
    told = "".join(f" {name}: coverage | mean width |" for name in METHODS)
    click.echo(f"| scores | members / nonmembers | FPR | true TPR | mean TPR |{told}")
    click.echo("|" + "---|" * (5 + 2 * len(METHODS)))
    for members, others, fpr in SIZES:
        for name, (noise, shift, exposed) in CASES.items():
            rng = np.random.default_rng([members, others, int(1 / fpr)])
            threshold = noise.isf(fpr)
            truth = exposed * noise.sf(threshold - shift) + (1 - exposed) * fpr
            member = np.arange(members + others) < members
            held, width, value = (np.zeros((draws, len(METHODS))) for _ in range(3))
            for i in range(draws):
                scores = noise.rvs(member.size, random_state=rng)
                scores[:members] += shift * (rng.random(members) < exposed)
                for j, method in enumerate(METHODS.values()):
                    made = method(scores, member, fpr)
                    if isinstance(made, Refused):
                        raise SystemExit(made.reason)
                    held[i, j] = made.low <= truth <= made.high
                    width[i, j] = made.high - made.low
                    value[i, j] = made.value
            told = "".join(
                f" {h:.3f} | {w:.3f} |" for h, w in zip(held.mean(0), width.mean(0), strict=True)
            )
            click.echo(
                f"| {name} | {members:,} / {others:,} | {fpr:g} | {truth:.3f} | "
                f"{value.mean():.3f} |{told}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
