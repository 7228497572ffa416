"""What an adversary learns of a release at random: its own rows, released again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle


def released(
    oracle: Oracle, rows: Examples, ctx: AttackContext, siblings: int, served: int
) -> Tensor:
    """Return embeddings of the adversary's own rows as they are released in several ways.

    A defense that acts at release draws masks, keys or noise. Whoever trains on rows that were
    released once learns that draw, too; the target rows had another one.

    Args:
        oracle: the victim's, as it answers everyone.
        rows: n rows of the adversary.
        ctx: has the adversary's own copies of the release.
        siblings: number of these copies, each with its own draw; at least 1.
        served: how often the victim's own answer is repeated beside them; 0 does not ask for it.

    Returns:
        (c, n, d) float32: ``served`` times the victim's answer, then ``siblings`` copies. A single
        copy if all are equal: no release changes embeddings, or the adversary is naive and has its
        rows without the release.
    """
    own = [one.embeddings(rows) for one in ctx.siblings(min(siblings, 2))]
    if siblings > 1 and (len(own) == 1 or torch.equal(*own)):
        return own[0][None]
    own += [one.embeddings(rows) for one in ctx.siblings(siblings)[len(own) :]]
    asked = [oracle.embeddings(rows).to(own[0].device)] * served if served else []
    return torch.stack([*asked, *own])
