"""AttriGuard adds noise to embeddings, within a budget, to mislead an attribute classifier.

Jia, Gong: AttriGuard: A Practical Defense Against Attribute Inference Attacks via Adversarial
Machine Learning. USENIX Security 2018, section 4; applied to embeddings as in He, Zhang (Talos, CCS
2021, section 5.2).

The defender trains a classifier C of the attribute on the embeddings of its members. For every
query:

1. Phase I: for each value v of the attribute, find the smallest noise r_v under which C predicts v;
   the value that C predicts anyway needs no noise. Noise that does not reach v is used all the
   same.
2. Phase II: of all mechanisms M that pick v with probability M_v and whose expected distortion is
   within the budget, sum of M_v d_v <= ``distortion``, take the one closest to the aim p: smallest
   KL(p|M). One v is picked, and embedding + r_v is released.

The pick is a function of the row, so the same row always gets the same answer.

Search methods of phase I, and d_v:
- ``cw``: Carlini and Wagner's attack in the L-infinity norm; d_v is that norm. An embedding has no
  natural unit, so the budget counts standard deviations of the members' embeddings (one number:
  the root of the mean variance of the coordinates); the record has the absolute value.
- ``modify-exist``, ``add-new``, ``modify-add``: the paper's greedy policies for vectors in [0, 1],
  which set one coordinate after another to 1 or 0; d_v is the number of coordinates changed.

The task classifier is trained on embeddings without noise.

What to expect: C itself falls to chance, but an attacker trained on released embeddings loses
almost nothing (digits, ``supervised``, seed 0, leaderboards/digits-operating-points.md: .84 before,
.82 after; in the Talos paper too, only a few points). Utility hardly changes. Each query costs a
search: about 0.3 ms with two values and 512 dimensions on one core, multiplied by the number of
other values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch.nn import functional as F

from privbench import (
    BadInputError,
    Defense,
    Ge,
    Gt,
    Judge,
    Le,
    Paper,
    Release,
    Strength,
    as_float,
    hookimpl,
    mlp,
)
from privbench.toolbox.classifiers import fit, logits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from privbench import Card, DefenseContext, Model, World

    Guess = Callable[[Tensor], Tensor]

Search = Literal["cw", "modify-exist", "add-new", "modify-add"]
#: Start of `cw` and its step length, in units of the noise that flips a linear classifier.
START = 1.001
LENGTH = 0.05
#: After each success, the bound on the noise becomes this share of the noise's norm.
SHRINK = 0.95
#: Steps without a success after which a row's search ends or, if it never had one, c doubles.
PATIENCE = 5


class Mechanism(Release):
    """Holds the defender's classifier and runs both phases."""

    of = "embedding"
    uniforms = 1
    aim: Tensor
    centre: Tensor
    unit: Tensor

    def __init__(self, settings: AttriGuard, attribute: str, width: int, values: int) -> None:
        """Set up for embeddings of that width and an attribute with that many values."""
        super().__init__()
        self.settings = settings
        self.attribute = attribute
        # In float64: tens of steps would amplify a rounding error into a different answer.
        self.classifier = mlp([width, settings.hidden, settings.hidden, values]).double()
        self.register_buffer("aim", torch.full((values,), 1 / values).double())
        self.register_buffer("centre", torch.zeros(width).double())
        self.register_buffer("unit", torch.ones(()).double())

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Train C on the members whose value is known.

        The noise does not matter to C: all strengths of a sweep share it.
        """
        chosen = self.settings
        h, s = self._known(model, world, "members")
        if not len(s):
            raise BadInputError(f"attriguard: '{self.attribute}' of every member is missing")
        self.centre.copy_(h.mean(0))
        self.unit.copy_((h - self.centre).square().mean().sqrt().clamp_min(1e-12))
        if chosen.aim == "prior":
            counts = s.bincount(minlength=len(self.aim)) + 1
            self.aim.copy_(counts / counts.sum())

        def trained() -> Mapping[str, Tensor]:
            fit(
                self.classifier, self.standard(h), s, epochs=chosen.epochs, steps=chosen.updates,
                batch=chosen.batch, lr=chosen.lr, weight_decay=chosen.weight_decay,
                generator=ctx.generator("classifier"),
            )  # fmt: skip
            return self.classifier.state_dict()

        self.classifier.load_state_dict(ctx.once(
            "classifier", trained, attribute=self.attribute, hidden=chosen.hidden,
            epochs=chosen.epochs, updates=chosen.updates, batch=chosen.batch, lr=chosen.lr,
            weight_decay=chosen.weight_decay,
        ))  # fmt: skip
        norm = "L-infinity, in standard deviations" if chosen.search == "cw" else "L0"
        ctx.note(**{"attriguard: norm": norm})
        if chosen.search == "cw":
            absolute = chosen.distortion * self.unit.item()
            ctx.note(**{"attriguard: absolute distortion": absolute})
        held, truth = self._known(model, world, "reference")
        if len(truth):
            right = logits(self.classifier, self.standard(held)).argmax(1) == truth
            ctx.note(**{"attriguard: classifier's accuracy": right.double().mean().item()})

    def _known(self, model: Model, world: World, part: str) -> tuple[Tensor, Tensor]:
        """Return embeddings (n, d) float64 and values (n,), for rows of a part with known value."""
        rows = world.parts[part].to(self.centre.device)
        s = rows.attributes[self.attribute]
        with torch.no_grad():
            h = [
                model.encode(as_float(x, rows.scale)).double()
                for x in torch.split(rows.x[s >= 0], 256)
            ]
        return torch.cat(h) if h else self.centre[:0, None], s[s >= 0]

    def standard(self, h: Tensor) -> Tensor:
        """Return what C reads: embeddings (n, d), centred, in standard deviations."""
        return (h - self.centre) / self.unit

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Add the noise that u (n, 1) picks."""
        del x
        h, u = value.double(), u[:, 0].double()
        now = self.classifier(self.standard(h)).argmax(1)
        # The value that C predicts costs nothing, so M picks it at least as often as p does. It
        # comes first, and where u is within its share of p, no search is needed.
        asked = (u >= self.aim[now]).nonzero().squeeze(1)
        if not len(asked):
            return value
        with torch.enable_grad():
            noise, d = self.noises(h[asked], now[asked])
        picked = pick(mechanism(self.aim, d, self.settings.distortion), now[asked], u[asked])
        chosen = noise[torch.arange(len(asked), device=h.device), picked]
        moved = torch.zeros_like(h)
        moved[asked] = chosen
        # Rows without noise stay exactly the same.
        return torch.where(moved.any(1, keepdim=True), (h + moved).to(value.dtype), value)

    def noises(self, h: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        """Phase I: return the noise (n, V, d) and its distortion (n, V).

        Args:
            h: (n, d) float64 embeddings.
            now: (n,) values that C predicts.
        """
        (n, width), values = h.shape, len(self.aim)
        everyone = torch.arange(n, device=h.device)
        targets = torch.arange(values, device=h.device).expand(n, -1)
        others = targets != now[:, None]  # all pairs of a row and another value
        rows, target = everyone[:, None].expand(-1, values)[others], targets[others]
        noise, d = h.new_zeros(n, values, width), h.new_zeros(n, values)
        limit = self.settings.iterations
        if self.settings.search == "cw":
            made = carlini_wagner(self.standard(h)[rows], target, self.classifier, limit)
            noise[others], d[others] = made * self.unit, made.abs().amax(1)
        else:

            def guess(x: Tensor) -> Tensor:
                answer: Tensor = self.classifier(self.standard(x))
                return answer

            made = greedy(h[rows], target, guess, limit, self.settings.search)
            noise[others], d[others] = made, (made != 0).sum(1).to(d)
        return noise, d


@dataclass(frozen=True)
class AttriGuard(Defense):
    """Adds noise to the embedding of each query, within a budget on the expected distortion.

    Attributes:
        distortion: largest expected distortion of an embedding: for ``cw`` in the L-infinity norm
            and in standard deviations of the members' embeddings, otherwise in coordinates changed.
            It is a utility budget, not an epsilon of differential privacy.
        aim: p, the target distribution of the predictions: ``uniform``, or ``prior`` for the
            members' shares of the values (each counted once more than it occurs).
        search: search method of phase I.
        iterations: maximum number of steps of phase I, for each value.
        hidden: neurons of each of the two hidden layers of the defender's classifier.
        epochs: training epochs of that classifier.
        updates: minimum number of its updates.
        batch: rows per update.
        lr: its learning rate, with Adam.
        weight_decay: its weight decay.
    """

    name: ClassVar[str] = "attriguard"
    requires: ClassVar[tuple[str, ...]] = ("one-attribute",)
    protects: ClassVar[tuple[str, ...]] = ("attributes",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "attribute-inference",
            "The noise misleads the defender's classifier, not one that learns from releases.",
        ),
        Judge(
            "attribute-decensoring",
            "Maps noisy embeddings to features of a model without noise.",
        ),
    )
    release_class: ClassVar[type[Release]] = Mechanism
    uses_attributes: ClassVar[bool] = True
    paper: ClassVar[Paper] = Paper(
        "AttriGuard: A Practical Defense Against Attribute Inference Attacks via Adversarial "
        "Machine Learning", "Jia, Gong", "USENIX Security 2018", "section 4",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "distortion", stronger="up", sweep=(0.1, 0.2, 0.5, 1.0, 2.0)
    )
    deviations: ClassVar[str] = (
        "Embeddings instead of public data, and the classifier of the Talos paper (two hidden "
        "layers of 64). `cw` starts from the noise that would suffice for a linear classifier and "
        "descends by signs of the gradient, so tens of steps suffice. The budget of `cw` counts "
        "standard deviations; neither paper gives one. The greedy policies stop where no "
        "coordinate raises the value's logit, and after 60 coordinates (`iterations`; the authors' "
        "code after 100). The authors solve phase II by CVXOPT; here it has a closed form."
    )

    distortion: Annotated[float, Ge(0)] = 0.2
    aim: Literal["uniform", "prior"] = "uniform"
    search: Search = "cw"
    iterations: Annotated[int, Ge(1)] = 60
    hidden: Annotated[int, Ge(1), Le(10_000)] = 64
    epochs: Annotated[int, Ge(1)] = 100
    updates: Annotated[int, Ge(0)] = 1000
    batch: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-4

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release."""
        (attribute,) = ctx.sensitive
        width = int(model["encoder"].width)  # type: ignore[arg-type]
        return Mechanism(self, attribute, width, card.attributes[attribute])


def carlini_wagner(x: Tensor, target: Tensor, guess: Guess, iterations: int) -> Tensor:
    """Return noise (n, d) of small L-infinity norm under which ``guess`` predicts ``target``.

    The loss is Carlini and Wagner's: c max(0, largest other logit - target's) + sum of
    max(0, |noise| - tau). It is minimised in units of the noise that would be enough if logits were
    linear. After every success, tau shrinks to 0.95 of the noise's norm. The search for a row ends
    when it no longer succeeds. Rows without any success keep their last noise; for these, c doubles
    every few steps.

    Args:
        x: (n, d) float64.
        target: (n,) classes.
        guess: logits (n, V).
        iterations: maximum number of steps.
    """
    first, gradient = _margin(x, target, guess)
    scale = first.clamp_min(0) / gradient.abs().sum(1).clamp_min(1e-300)
    scale = torch.where(scale.isfinite() & (gradient != 0).any(1), scale, 0.0)[:, None]
    noise = -START * scale * gradient.sign()
    found = torch.zeros_like(noise)
    success = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    tau = torch.full((len(x), 1), torch.inf, dtype=x.dtype, device=x.device)
    c = torch.ones_like(tau)
    idle = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for step in range(iterations + 1):
        margin, gradient = _margin(x[rows] + noise, target[rows], guess)
        norm = noise.abs().amax(1, keepdim=True)
        better = (margin < 0) & (norm <= tau)[:, 0]
        found[rows[better]], success[rows[better]] = noise[better], True
        tau = torch.where(better[:, None], SHRINK * norm, tau)
        idle = torch.where(better, 0, idle + 1)
        stuck = idle >= PATIENCE
        leaves = (success[rows] & stuck) | (scale[rows] == 0)[:, 0]
        if step == iterations or bool(leaves.all()):
            break
        c = torch.where((stuck & ~leaves)[:, None], 2 * c, c)
        idle = torch.where(stuck, 0, idle)
        # Mean instead of sum over coordinates, as absolute gradients sum to one: c has no unit.
        share = gradient / gradient.abs().sum(1, keepdim=True).clamp_min(1e-300)
        descent = torch.where((margin >= 0)[:, None], c * share, 0.0)
        descent += (noise.abs() > tau) * noise.sign() / noise.shape[1]
        noise = noise - LENGTH * scale[rows] * descent.sign()
        stays = ~leaves
        last = rows[leaves & ~success[rows]]
        found[last] = noise[leaves & ~success[rows]]
        rows, noise, tau, c, idle = (held[stays] for held in (rows, noise, tau, c, idle))
    late = ~success[rows]
    found[rows[late]] = noise[late]
    return found


def _margin(x: Tensor, target: Tensor, guess: Guess) -> tuple[Tensor, Tensor]:
    """Return the largest other logit minus the target's (n,), and its gradient (n, d)."""
    x = x.detach().requires_grad_()
    z = guess(x)
    own = target[:, None]
    margin = z.scatter(1, own, -torch.inf).amax(1) - z.gather(1, own).squeeze(1)
    (gradient,) = torch.autograd.grad(margin.sum(), x)
    return margin.detach(), gradient


def greedy(x: Tensor, target: Tensor, guess: Guess, iterations: int, policy: Search) -> Tensor:
    """Return noise (n, d) that sets few coordinates to 1 or 0, until ``guess`` predicts ``target``.

    Every step sets the coordinate with the largest gain, by the gradient of the target's logit.

    Args:
        x: (n, d) float64.
        target: (n,) classes.
        guess: logits (n, V).
        iterations: maximum number of steps.
        policy: ``modify-exist`` changes coordinates that are not 0, ``add-new`` those that are 0,
            ``modify-add`` both.
    """
    moved, rows = x.clone(), torch.arange(len(x), device=x.device)
    for _ in range(iterations):
        here = moved[rows].requires_grad_()
        z = guess(here)
        (gradient,) = torch.autograd.grad(z.gather(1, target[rows, None]).sum(), here)
        here, barred = here.detach(), torch.zeros_like(here, dtype=torch.bool)
        if policy != "modify-add":
            barred = (x[rows] == 0) == (policy == "modify-exist")
        up, down = (1 - here) * gradient, -here * gradient
        gain, at = torch.maximum(up, down).masked_fill(barred, -torch.inf).max(1)
        goes = (z.argmax(1) != target[rows]) & (gain > 0)
        rows, at = rows[goes], at[goes]
        if not len(rows):
            break
        one = up[goes].gather(1, at[:, None]) >= down[goes].gather(1, at[:, None])
        moved[rows, at] = one.squeeze(1).to(moved)
    return moved - x


def mechanism(p: Tensor, d: Tensor, budget: float) -> Tensor:
    """Phase II: return M (n, V), the closest to p (V,) with expected distortion within the budget.

    M_v = p_v / (1 + mu (d_v - budget)), with mu >= 0 the root at which the expected distortion
    equals the budget, or p itself if its expected distortion is within the budget. If the budget
    equals the smallest distortion, M is the limit: p over the values with the smallest distortion.

    Args:
        p: positive, with sum 1.
        d: (n, V) float64 distortions of each value; the smallest is within the budget.
        budget: largest expected distortion.

    >>> p, d = torch.tensor([0.3, 0.7]).double(), torch.tensor([[0.0, 4.0]]).double()
    >>> [round(m, 9) for m in mechanism(p, d, 1.0)[0].tolist()]
    [0.75, 0.25]
    """
    p = p.expand_as(d)
    least = d.amin(1, keepdim=True)
    room = budget - least
    # mu = t / room; for t in (0, 1), the sum of p (d - budget) / (1 + mu (d - budget)) falls.
    over = (d - budget) / room.clamp_min(1e-300)
    low, high = torch.zeros_like(least), torch.ones_like(least)
    for _ in range(60):
        middle = (low + high) / 2
        above = (p * over / (1 + middle * over)).sum(1, keepdim=True) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    inner = p / (1 + high * over).clamp_min(1e-300)
    cheapest = p * (d == least)
    made = torch.where(room > 0, inner, cheapest)
    made = torch.where((p * d).sum(1, keepdim=True) <= budget, p, made)
    return made / made.sum(1, keepdim=True)


def pick(chances: Tensor, now: Tensor, u: Tensor) -> Tensor:
    """Return values (n,) drawn by u (n,): the present value comes first, the others in order.

    >>> chances = torch.tensor([[0.25, 0.75]] * 3)
    >>> pick(chances, torch.tensor([1, 1, 0]), torch.tensor([0.7, 0.8, 0.2])).tolist()
    [1, 0, 0]
    """
    values = chances.shape[1]
    rank = torch.arange(values, device=chances.device).expand_as(chances)
    rank = rank.masked_fill(F.one_hot(now, values).bool(), -1)
    order = rank.argsort(dim=1)
    cumulated = chances.gather(1, order).cumsum(1)
    at = (u[:, None] >= cumulated).sum(1).clamp_max(values - 1)
    return order.gather(1, at[:, None]).squeeze(1)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [AttriGuard()]
