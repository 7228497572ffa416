"""What a model thinks of a row, from labels alone: the classes that its noisy copies get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from privbench.measure.data.examples import as_float
from privbench.toolbox.copies import BLOCK, noisy
from privbench.toolbox.duals import Duals, of_logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle
    from privbench.toolbox.likelihood import Ask


def votes(
    oracle: Oracle, rows: Examples, ctx: AttackContext, levels: Sequence[float], queries: int
) -> Tensor:
    """Return how many copies of each row get each class: (n, levels, classes) float64.

    Args:
        oracle: answers with labels.
        rows: n.
        ctx: of the attack; all models get the same noise.
        levels: see ``noisy``.
        queries: copies of a row, over all levels.
    """
    copies = max(1, queries // len(levels))
    at, x = noisy(ctx, copies), as_float(rows.x, rows.scale)
    step = max(1, BLOCK // (x.element_size() * copies * x[0].numel()))

    def counted(level: float, part: Tensor) -> Tensor:
        labels = oracle.labels(at(level)(part).flatten(0, 1)).view(len(part), copies)
        none = labels.new_zeros(len(part), ctx.card.classes or 0)
        return none.scatter_add_(1, labels, torch.ones_like(labels))

    parts = torch.split(x, step)
    found = [torch.cat([counted(level, part) for part in parts]) for level in levels]
    return torch.stack(found, dim=1).double()


def of_labels(ctx: AttackContext, rows: Examples, levels: Sequence[float], queries: int) -> Ask:
    """Return what asks a model for the signals (n, 21) of rows: ``of_logits``, and their odds.

    In place of log-posteriors there is the mean over levels of the logarithm of each class's share
    of the copies, half a copy added to each. The last signal is that of ``kept``.

    Args:
        ctx: of the attack.
        rows: all that are in question. Signals of one without a label are NaN.
        levels: of the noise, see ``noisy``.
        queries: copies of a row, over all levels.
    """
    duals, classes = Duals.of(rows), ctx.card.classes or 0
    said = torch.stack([F.one_hot(one.oracle.labels(rows), classes) for one in ctx.shadows])
    usual = (said.sum(0).double() + 1 / classes) / (len(said) + 1)
    y = rows.y.to(usual.device)
    truth = F.one_hot(y.clamp_min(0), classes)
    pull = F.normalize(truth - usual, dim=1).masked_fill((y < 0).unsqueeze(1), torch.nan)

    def ask(oracle: Oracle, rows: Examples) -> Tensor:
        count = votes(oracle, rows, ctx, levels, queries)
        copies = count.sum(-1)
        own = (count * truth.unsqueeze(1)).sum(-1)
        odds = ((own + 0.5).log() - (copies - own + 0.5).log()).mean(1, keepdim=True)
        log_p = (count + 0.5).log().mean(1).log_softmax(1)
        added = of_logits(duals, log_p, y, pull).to(odds.device)
        return torch.cat([added, odds], dim=1).masked_fill((y < 0).unsqueeze(1), torch.nan)

    return ask
