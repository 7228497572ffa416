"""MemGuard adds noise to posteriors to mislead a membership classifier; labels never change.

Jia, Salem, Backes, Zhang, Gong: MemGuard: Defending against Black-Box Membership Inference Attacks
via Adversarial Examples. CCS 2019, sections 4 and 5, algorithm 1.

The defender trains its own membership classifier g, on the posteriors of its members against those
of its reference rows; h is its log-odds. For every query with posteriors s and logits z:

1. Phase I searches for the smallest noise e on the logits that reverses the guess of g and keeps
   the label. It minimises |h| + 10 max(0, largest other logit - label's) + c3 |softmax(z + e) - s|
   in steps of length 0.1 until it succeeds. c3 starts at 0.1 and grows tenfold as long as the
   search succeeds; the last success counts. r = softmax(z + e) - s.
2. Phase II adds r with probability min(distortion / |r|, 1), and never where g would be more
   confident than before: the *expected* L1 distortion of an answer is within the budget.

The random choice is a function of the row, so the same row always gets the same answer.

All depends on how steep g is. If h is worth less than .1 times the length of the noise that turns
it, the search gives up, and the true posteriors are released: so it was when g started from torch's
own weights, which SGD hardly moves in 400 epochs. A g that Adam trains is so steep that a whole
step often ends where it is surer than before, where phase II rejects it (``bisections`` shorten
that step), or no step reverses it. Measured, layer by layer, against the predictions of the
authors' code: ``leaderboards/memguard-location-30.md``.

What to expect: attacks that read confidences without the label lose most. Attacks that read the
label or its correctness lose nothing, since labels never change (``metric-correctness``,
``label-only-*``). Test it with adaptive attacks: published attacks trained on undefended shadow
models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from privbench import Defense, Ge, Gt, Judge, Paper, Release, Strength, hookimpl, mlp
from privbench.toolbox.classifiers import fit
from privbench.toolbox.undefended import posteriors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from privbench import Card, DefenseContext, Model, World

#: Weight of the label loss, and the range of c3: 0.1, 1, ... 100,000.
LABEL = 10.0
FIRST, LAST = 0.1, 1e5
#: Length of each step of phase I, in logits.
LENGTH = 0.1
#: Phase I works on whole blocks of this many rows.
BLOCK = 64
#: Queries get no noise if g's probability of membership is this close to 1/2.
UNDECIDED = 1e-5


class Guard(Release):
    """Holds the defender's classifier and runs both phases."""

    of = "posterior"
    keeps_labels = True
    uniforms = 1

    def __init__(self, settings: MemGuard, classes: int) -> None:
        """Set up for posteriors with that many classes."""
        super().__init__()
        self.settings = settings
        self.classifier = MembershipClassifier(classes)

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Train g on sorted posteriors of members (1) against reference rows (0).

        It depends on neither the budget nor phase I: all strengths of a sweep share it.
        """
        chosen = self.settings

        def trained() -> Mapping[str, Tensor]:
            sides = [posteriors(model, rows) for rows in (world.reference, world.members)]
            small, large = sorted(sides, key=len)
            repeated = small.repeat(-(-len(large) // len(small)), 1)[: len(large)]
            sides = [repeated if side is small else side for side in sides]
            x = torch.cat(sides).sort(1, descending=True).values
            y = (torch.arange(len(x), device=x.device) >= len(sides[0])).long()
            self.classifier.to(x.device)
            fit(
                self.classifier, x, y, epochs=chosen.epochs, steps=chosen.updates,
                batch=chosen.batch, lr=chosen.lr, optimizer=chosen.optimizer,
                generator=ctx.generator("classifier"),
            )  # fmt: skip
            return self.classifier.state_dict()

        self.classifier.load_state_dict(ctx.once(
            "classifier", trained, epochs=chosen.epochs, updates=chosen.updates,
            batch=chosen.batch, lr=chosen.lr, optimizer=chosen.optimizer,
        ))  # fmt: skip

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Add the noise of phase I to the rows that phase II selects with u (n, 1)."""
        del x
        if not self.settings.distortion:
            return value
        with torch.enable_grad():
            noise = phase_one(
                value, self.log_odds, self.settings.iterations, self.settings.bisections
            )
        before, after = self.log_odds(value), self.log_odds(value + noise)
        kept = probability(noise.abs().sum(1), before, after, self.settings.distortion)
        return torch.where(u.to(value.dtype) < kept[:, None], value + noise, value)

    def log_odds(self, p: Tensor) -> Tensor:
        """Return h, g's log-odds (n,) float64 of "member"; posteriors may be in any order."""
        sorted_p = p.sort(1, descending=True).values
        layers: Tensor = self.classifier(sorted_p)
        return layers[:, 1]


@dataclass(frozen=True)
class MemGuard(Defense):
    """Adds noise to the posteriors of each query, within an expected L1 budget.

    Attributes:
        distortion: largest expected L1 distance between released and true posteriors, in [0, 2].
            It is a utility budget, not an epsilon of differential privacy.
        iterations: maximum number of steps of phase I, for each c3.
        bisections: times that the last step of phase I is halved, to end just behind the boundary
            of a steep classifier; 0 as in the paper.
        epochs: training epochs of the defender's classifier.
        batch: rows per update of that classifier.
        lr: learning rate of its optimizer.
        optimizer: its optimizer: the paper's plain ``sgd``, or ``adam``.
        updates: minimum number of its updates.
    """

    name: ClassVar[str] = "memguard"
    version: ClassVar[int] = 3
    requires: ClassVar[tuple[str, ...]] = ("reference-rows",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "label-lira",
            "MemGuard never changes a label, so an attack on labels meets no defense at all.",
        ),
        Judge(
            "nn-mia",
            "Its noise misleads one classifier; this one learns from shadows behind the defense.",
        ),
        Judge(
            "metric-modified-entropy",
            "Its noise misleads one classifier, and an entropy is none of its kind.",
        ),
    )
    release_class: ClassVar[type[Release]] = Guard
    paper: ClassVar[Paper] = Paper(
        "MemGuard: Defending against Black-Box Membership Inference Attacks via Adversarial "
        "Examples", "Jia, Salem, Backes, Zhang, Gong", "CCS 2019", "sections 4-5, algorithm 1",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "distortion", stronger="up", sweep=(0.1, 0.3, 0.5, 0.7, 1.0)
    )
    deviations: ClassVar[str] = (
        "At least 12,500 updates of the defender's classifier, as many as 400 epochs of the "
        "paper's 2,000 rows; rows of the smaller side are repeated, so that both count alike. "
        "Noisy posteriors are sorted again before the classifier reads them; the authors' phase I "
        "does not, and ends at noise that leaves 5 % of Location's nonmembers with their verdict."
    )

    distortion: Annotated[float, Ge(0)] = 1.0
    iterations: Annotated[int, Ge(1)] = 300
    bisections: Annotated[int, Ge(0)] = 0
    epochs: Annotated[int, Ge(1)] = 400
    batch: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3
    updates: Annotated[int, Ge(0)] = 12_500
    optimizer: Literal["adam", "sgd"] = "sgd"

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release."""
        del model
        ctx.note(**{self.name: "touches the classifier's posteriors only, not embeddings"})
        return Guard(self, card.classes or 0)


class MembershipClassifier(nn.Module):
    """Maps sorted posteriors (n, classes) to logits (n, 2) of nonmember (0) and member (h)."""

    def __init__(self, classes: int) -> None:
        """Build three hidden ReLU layers, with 256, 128 and 64 neurons, as the authors draw them.

        Torch's own weights are half as large from the second layer on. From them plain SGD hardly
        moves h in 12,500 updates, and then no gain in h is worth the length of its noise.
        """
        super().__init__()
        # In float64: hundreds of steps would amplify a rounding error into a different answer.
        self.layers = mlp([classes, 256, 128, 64, 1]).double()
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, p: Tensor) -> Tensor:
        """Return logits whose cross-entropy is that of a sigmoid of h."""
        h: Tensor = self.layers(p)
        return torch.cat([torch.zeros_like(h), h], dim=1)


def phase_one(
    p: Tensor, log_odds: Callable[[Tensor], Tensor], iterations: int, bisections: int
) -> Tensor:
    """Return noise r (n, classes) that reverses the guess of g; 0 for rows where none was found.

    All rows are searched at once, each with its own c3: one that succeeds starts again with a
    larger c3 at the next step, and one that fails leaves.

    Args:
        p: (n, classes) float64 posteriors.
        log_odds: h, from posteriors (n, classes) to (n,).
        iterations: steps for each c3.
        bisections: times that the last step of the noise that counts is halved.
    """
    p, order = p.detach().sort(dim=1, descending=True, stable=True)  # the label comes first
    h = log_odds(p).detach()
    search = _Search(p, h.sign(), log_odds)
    search.keep(((h.sigmoid() - 0.5).abs() > UNDECIDED).nonzero().squeeze(1))
    while len(search.rows):
        search.step(iterations)
    noise = search.shortened(bisections)
    return torch.zeros_like(p).scatter(1, order, noise)  # back to the order of classes


class _Search:
    """Searches for noise on the logits of many rows at once.

    Attributes:
        rows: (m,) rows that are still searched.
        e: (m, classes) their noise now; filled up to whole blocks, like ``c3`` (m,) and the number
            of ``steps`` (m,) under that c3.
        before: (m, classes) their noise one step earlier.
        best: (2, n, classes) the last success of every row, as noise on the logits: before its
            last step, and after it.
        found: (n,) whether there was one.
    """

    def __init__(self, p: Tensor, sign: Tensor, log_odds: Callable[[Tensor], Tensor]) -> None:
        """Start from sorted posteriors p (n, classes), where h has that sign (n,)."""
        self.log_odds = log_odds
        self.all = p.clamp_min(torch.finfo(p.dtype).tiny).log(), p, sign
        self.best = torch.zeros_like(p).expand(2, *p.shape).clone()
        self.found = torch.zeros_like(p[:, 0], dtype=torch.bool)
        self.rows = torch.arange(len(p), device=p.device)
        self.e = self.before = torch.zeros_like(p)
        self.c3 = torch.full_like(p[:, 0], FIRST)
        self.steps = torch.zeros_like(self.rows)

    def keep(self, at: Tensor) -> None:
        """Keep only the rows at these positions."""
        self.rows = self.rows[at]
        padded = _whole_blocks(at)
        self.e, self.before = self.e[padded], self.before[padded]
        self.c3, self.steps = self.c3[padded], self.steps[padded]
        filled = _whole_blocks(self.rows)
        self.z, self.p, self.sign = (each[filled] for each in self.all)

    def step(self, iterations: int) -> None:
        """Record the rows where the last step succeeded, then take one more step with every row."""
        e = self.e.requires_grad_()
        noisy, now, behind = self._at(self.z + e)
        loss = now.abs() + LABEL * F.relu(behind) + self.c3 * (noisy - self.p).abs().sum(1)
        (gradient,) = torch.autograd.grad(loss.sum(), e)
        m = len(self.rows)
        won = (behind <= 0) & (now.sign() != self.sign) & (self.steps > 0)
        won = won[:m].nonzero().squeeze(1)
        over = (self.steps >= iterations)[:m]
        length = gradient.norm(dim=1, keepdim=True).clamp_min(1e-300)
        before, self.before = self.before, e.detach()
        self.e = (e - LENGTH * gradient / length).detach()
        self.steps += 1
        if len(won):
            self.best[:, self.rows[won]] = torch.stack([before[won], self.before[won]])
            self.found[self.rows[won]] = True
            self.e[won], self.steps[won] = 0.0, 0
            self.c3[won] *= 10
            over[won] = self.c3[won] > LAST
        if bool(over.any()):
            self.keep((~over).nonzero().squeeze(1))

    def shortened(self, bisections: int) -> Tensor:
        """Return the noise (n, classes) on the posteriors, its last step halved so many times.

        Of each half, the part is kept at whose end the guess of g is still reversed.
        """
        found = self.found.nonzero().squeeze(1)
        rows = _whole_blocks(found)
        z, p, sign = (each[rows] for each in self.all)
        outside, inside = self.best[:, rows]
        for _ in range(bisections):
            middle = (outside + inside) / 2
            _, now, behind = self._at(z + middle)
            reverses = ((behind <= 0) & (now.sign() != sign))[:, None]
            outside, inside = (
                torch.where(reverses, outside, middle), torch.where(reverses, middle, inside),
            )  # fmt: skip
        noise = torch.zeros_like(self.all[1])
        noise[found] = ((z + inside).softmax(1) - p)[: len(found)]
        return noise

    def _at(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Posteriors, h, and by how much another logit is above the label's."""
        noisy = logits.softmax(1)
        return noisy, self.log_odds(noisy), logits[:, 1:].amax(1) - logits[:, 0]


def _whole_blocks(at: Tensor) -> Tensor:
    """Fill up with the first: a row's rounding must not depend on how many others there are."""
    return torch.cat([at, at[:1].expand(-len(at) % BLOCK)])


def probability(d: Tensor, before: Tensor, after: Tensor, distortion: float) -> Tensor:
    """Return the probability (n,) of adding noise of L1 length d (n,).

    Args:
        d: L1 lengths.
        before: h without the noise.
        after: h with the noise.
        distortion: the budget.

    >>> one = torch.ones(1).double()
    >>> probability(0.8 * one, 2 * one, -one, 0.3).item()
    0.375
    >>> probability(0.8 * one, one, -2 * one, 0.3).item()
    0.0
    """
    surer = (before.sigmoid() - 0.5).abs() <= (after.sigmoid() - 0.5).abs()
    return (distortion / d.clamp_min(1e-300)).clamp(max=1).masked_fill(surer, 0.0)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [MemGuard()]
