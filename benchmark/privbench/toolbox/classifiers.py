"""Small classifiers for attacks: training and answers, as pure functions of tensors.

Everything stays on the device of the tensors; all randomness comes from the generator argument.
Networks end in logits, without an activation: several reference implementations have a ReLU there,
which stops the gradient of every negative logit.

One network may contain g independent classifiers (one per class, or one per fold):
``stacked_mlp`` builds it and ``fit(..., rows=...)`` trains all of them at once, each on its own
rows as if it were alone.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Rows per forward pass of ``logits``.
ROWS = 4096


def fit(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    lr: float,
    batch: int,
    generator: torch.Generator,
    epochs: int = 0,
    steps: int = 0,
    optimizer: Literal["adam", "sgd"] = "adam",
    weight_decay: float = 0.0,
    clip: float | None = None,
    rows: Tensor | None = None,
) -> nn.Module:
    """Train in place by mean cross-entropy on mini-batches; the last state is kept.

    Args:
        network: (b, ...) -> logits (b, k); with ``rows`` (g, b, ...) -> (g, b, k).
        x: (n, ...) features.
        y: (n,) int64 classes.
        lr: learning rate of Adam (betas .9, .999) or of plain SGD (no momentum).
        batch: rows per update; the last batch of an epoch may be smaller.
        generator: on the device of x; shuffles each epoch and seeds dropout.
        epochs: passes over the rows.
        steps: minimum number of updates: with few rows there are more epochs, the last cut short.
        optimizer: Adam or plain SGD.
        weight_decay: L2 penalty, added to the gradient.
        clip: largest norm of the gradient of all parameters together; None for no clipping.
        rows: (g, w) int64 positions in x: the rows that each of the g classifiers trains on (see
            ``rows_by``). Their losses are added, so each is trained as if alone.

    Returns:
        The network, in eval mode.
    """
    index = torch.arange(len(x), device=x.device) if rows is None else rows
    updates = max(epochs * -(-index.shape[-1] // batch), steps)
    parameters = list(network.parameters())
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    descent = make(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    stacked = 1 if rows is None else len(rows)
    network.train()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        # Dropout uses only the global generators: seeded here, restored afterwards.
        torch.manual_seed(_seed(generator))  # noqa: TID251
        for chosen in _batches(index, batch, updates, generator):
            logits = network(x[chosen])
            loss = F.cross_entropy(logits.flatten(0, -2), y[chosen].flatten()) * stacked
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            descent.step()
    return network.eval()


def fan_in_normal(network: nn.Module) -> nn.Module:
    """Draw the weights of all linear layers from N(0, 1 / fan-in) in place; biases become 0.

    Weights of ``nn.Linear``, from U(-1, 1) / sqrt(fan-in), have a third of that variance.

    Returns:
        The network.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)
    return network


def logits(network: nn.Module, x: Tensor) -> Tensor:
    """Return logits (n, k) float64 of x (n, ...) by a trained network, without gradients."""
    with torch.no_grad():
        return torch.cat([network(part).double() for part in torch.split(x, ROWS)])


def stacked_logits(network: nn.Module, x: Tensor) -> Tensor:
    """Return logits (g, n, k) float64 of all of x (n, d) by each of g stacked classifiers."""
    with torch.no_grad():
        return torch.cat(
            [network(part.unsqueeze(0)).double() for part in torch.split(x, ROWS)], dim=1
        )


def member_odds(
    network: nn.Module, inside: Tensor, outside: Tensor, asked: Tensor, **training: Any
) -> Tensor:
    """Train a network to tell members from nonmembers; return log-odds (n,) float64 of "member".

    Args:
        network: features (b, ...) -> logits (b, 2) of nonmember, member; it is changed.
        inside: (m, ...) features of a shadow's members.
        outside: (k, ...) features of its nonmembers.
        asked: (n, ...) features of the rows in question.
        training: further arguments of ``fit``.
    """
    x = torch.cat([inside, outside])
    y = (torch.arange(len(x), device=x.device) < len(inside)).long()
    return log_odds(logits(fit(network, x, y, **training), asked))


def scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (f,) of each column of x (n, f); 1 if it is constant.

    Members, nonmembers and the rows in question must share them: standardising each set separately
    would remove the differences between them.
    """
    spread = x.std(0, correction=0)
    return x.mean(0), torch.where(spread > 1e-6 * x.abs().amax(0), spread, 1)


def log_odds(two: Tensor) -> Tensor:
    """Return log-odds (...) of class 1 from logits (..., 2): the order of P(1), no ties at 1.

    >>> log_odds(torch.tensor([[0.0, 50.0], [0.0, 60.0]])).tolist()
    [50.0, 60.0]
    """
    return two[..., 1] - two[..., 0]


def rows_by(groups: Tensor) -> Tensor:
    """Return positions of each group's rows; smaller groups repeat theirs to the largest size.

    Args:
        groups: (n,) int64 in 0..g-1, each value at least once.

    Returns:
        (g, w) int64.

    >>> rows_by(torch.tensor([0, 1, 0, 0])).tolist()
    [[0, 2, 3], [1, 1, 1]]
    """
    order = groups.argsort(stable=True)
    sizes = groups.bincount()
    start = sizes.cumsum(0) - sizes
    slot = torch.arange(int(sizes.max()), device=groups.device)
    return order[start[:, None] + slot % sizes[:, None]]


def slots(y: Tensor, inside: Tensor, classes: int) -> Tensor:
    """Return which classifier scores the rows of each class: 0 is the one for all classes.

    A class has its own classifier if both members and nonmembers of it are known.

    Args:
        y: (n,) int64 classes, -1 where unknown.
        inside: (n,) int64 0 or 1.
        classes: number of classes.

    Returns:
        (classes + 1,) int64; the last entry, which y = -1 selects, is 0.

    >>> slots(torch.tensor([0, 2, 2, -1, -1]), torch.tensor([1, 0, 1, 0, 1]), 3).tolist()
    [0, 0, 1, 0]
    """
    known = y >= 0
    count = torch.zeros(2, classes + 1, dtype=torch.int64, device=y.device)
    count.index_put_((inside[known], y[known]), torch.ones_like(y[known]), accumulate=True)
    both = (count > 0).all(0)
    return both.cumsum(0) * both


def standardised(x: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise both by the mean and standard deviation of x; only shift constant dimensions.

    >>> x, asked = standardised(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[2.0, 6.0]]))
    >>> x.tolist(), asked.tolist()
    ([[-1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0]])
    """
    centre, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-6 * x.abs().amax(0), spread, 1)
    return (x - centre) / spread, (asked - centre) / spread


class StackedLinear(nn.Module):
    """g independent linear layers: (g, b, inputs) -> (g, b, outputs).

    An input (1, b, inputs) goes to all of them.
    """

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        """Draw the initial weights as ``nn.Linear`` does, from U(-1, 1) / sqrt(inputs)."""
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(groups, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each group's own layer to its rows."""
        return torch.matmul(x, self.weight) + self.bias


def stacked_mlp(
    groups: int, widths: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Build g independent networks, with the activation between layers and none after the last.

    Args:
        groups: g.
        widths: input width, hidden widths, output width; two for softmax regression.
        activation: builds the module between two layers.

    >>> stacked_mlp(3, [4, 2])(torch.zeros(3, 5, 4)).shape
    torch.Size([3, 5, 2])
    """
    layers = [(StackedLinear(groups, i, o), activation()) for i, o in pairwise(widths)]
    return nn.Sequential(*list(chain(*layers))[:-1])


def _batches(
    index: Tensor, batch: int, updates: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield ``updates`` batches of positions, (b,) or (g, b), reshuffled in every epoch."""
    done = 0
    while done < updates:
        keys = torch.rand(index.shape, generator=generator, device=index.device)
        shuffled = index.gather(-1, keys.argsort(dim=-1, stable=True))
        parts = torch.split(shuffled, batch, -1)[: updates - done]
        yield from parts
        done += len(parts)


def _seed(generator: torch.Generator) -> int:
    drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
    return int(drawn)
