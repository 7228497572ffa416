"""Adversarial examples: projected gradient descent in a box around each row, many rows at once.

Madry, Makelov, Schmidt, Tsipras, Vladu: Towards Deep Learning Models Resistant to Adversarial
Attacks. ICLR 2018, section 2.1, in the L_inf norm. It starts from the row itself, or from a random
point of the box. Each step moves every value by the same amount along the sign of a gradient, then
projects it back into the box and into [0, 1].

The gradient is that of a class's log-odds, ``log p_y - log(1 - p_y)``. Cross-entropy is a
decreasing function of the log-odds, so its gradient has the opposite signs. But that gradient
rounds to 0 where a model is confident of the class, and an example would not move; the log-odds do
not have this problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from privbench.measure.data.examples import as_float
from privbench.toolbox.likelihood import scaled_logit

if TYPE_CHECKING:
    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle

#: Maps x (n, *shape) in [0, 1], y (n,) to the gradient (n, *shape) of each row's log-odds of y.
Gradient = Callable[[Tensor, Tensor], Tensor]

#: Approximate number of examples crafted at once.
ROWS = 1024


@dataclass(frozen=True)
class PGD:
    """Hyperparameters of attacks that read answers to adversarial examples.

    Attributes:
        eps: largest change of a value, in units of the range [0, 1] of inputs.
        step_size: change of every value per step, in the same unit.
        steps: number of steps per example; each takes one gradient.
        random_start: start at a random point of the box, keyed by the row's content, not at the
            row.
    """

    eps: Annotated[float, Ge(0), Le(1)] = 8 / 255
    step_size: Annotated[float, Gt(0), Le(1)] = 1 / 255
    steps: Annotated[int, Ge(0)] = 20
    random_start: bool = False

    def answers(
        self, ask: Callable[[Tensor], Tensor], rows: Examples, classes: Tensor,
        gradient: Gradient, ctx: AttackContext, *, targeted: bool,
    ) -> Tensor:  # fmt: skip
        """Craft m examples per row, one for each of its classes, and query their log-posteriors.

        Args:
            ask: inputs (b, *shape) in [0, 1] to log-posteriors (b, k).
            rows: n originals.
            classes: (n, m) classes, to which (targeted) or from which the examples lead.
            gradient: of the model that the examples are crafted on.
            ctx: draws the random starts.
            targeted: whether examples lead to the classes or away from them.

        Returns:
            (n, m, k), on the device of ``classes``.
        """
        n, m = classes.shape
        block = max(1, ROWS // m)
        answers = []
        for first in range(0, n, block):
            part = rows.select(slice(first, first + block))
            x = as_float(part.x, part.scale).to(classes.device).repeat_interleave(m, 0)
            u = None
            if self.random_start:
                u = ctx.uniform(part, m * x[0].numel(), "start").to(x.device).view_as(x)
            y = classes[first : first + block].flatten()
            made = pgd(
                x, y, gradient, eps=self.eps, step_size=self.step_size, steps=self.steps,
                targeted=targeted, u=u,
            )  # fmt: skip
            answers.append(ask(made))
        return torch.cat(answers).view(n, m, -1).to(classes.device)


def pgd(
    x: Tensor, y: Tensor, gradient: Gradient, *, eps: float, step_size: float, steps: int,
    targeted: bool, u: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Craft one adversarial example of every row.

    Args:
        x: (n, *shape) float in [0, 1].
        y: (n,) classes.
        gradient: of the log-odds of y.
        eps: half the width of the box.
        step_size: per value and step.
        steps: number of steps.
        targeted: raise the log-odds of y; else lower them.
        u: (n, *shape) numbers in [0, 1) that place the start in the box; None starts at x.

    Returns:
        (n, *shape) in [0, 1], no value further than eps from x's.

    >>> w = torch.tensor([[1.0, -2.0, 0.0]])
    >>> x = torch.tensor([[0.5, 0.5, 0.5]])
    >>> y = torch.tensor([0])
    >>> pgd(x, y, lambda x, y: w, eps=0.25, step_size=0.125, steps=9, targeted=True).tolist()
    [[0.75, 0.25, 0.5]]
    """
    way = step_size if targeted else -step_size
    low, high = (x - eps).clamp_min(0), (x + eps).clamp_max(1)
    made = x if u is None else (x + eps * (2 * u - 1)).clamp(low, high)
    for _ in range(steps):
        made = (made + way * gradient(made, y).sign()).clamp(low, high)
    return made


def of_oracle(oracle: Oracle) -> Gradient:
    """Return gradients served by the victim, one query per row."""

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        found = oracle.gradients(x, lambda served, x: scaled_logit(served.log_posteriors(x), y))
        return found.to(x.device)

    return gradient


def of_network(logits: Callable[[Tensor], Tensor]) -> Gradient:
    """Return gradients of a local network that maps inputs (n, *shape) to logits (n, k)."""

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(scaled_logit(logits(x), y).sum(), x)
        return found

    return gradient
