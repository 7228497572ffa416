"""Logit-DP clips the gradients of pairs' similarities, so that a contrastive loss can be private.

Kong, Muñoz Medina, Ribero: Differentially Private Optimization for Non-Decomposable Objective
Functions. ICLR 2025, arXiv:2310.03104. A contrastive loss is no sum over examples, but it is a
function of similarities, and each of these belongs to one pair of views. So its gradient is
``sum over pairs (a, b) of dL/dS_ab * grad S_ab`` (the paper's lemma 4.1). Each ``grad S_ab`` is
clipped to L2 norm ``clip``, the clipped ones are recombined with the unclipped ``dL/dS_ab``, and
noise is added once, in units of the sum's sensitivity.

**The loss** is NT-Xent of SimCLR: v = 2n views of n rows with unit projections, similarities
``S_ab = cos(z_a, z_b)`` and, with t = 1 / temperature, p_ab = softmax over b ≠ a of t S_ab. With
a' the other view of a's row, the sum over anchors a has the derivatives

    dL/dS_ab = t (c_ab + c_ba),  c_ab = p_ab - [b = a'].

**Its sensitivity is derived here** (the paper's theorem 4.2 is of the form (G1 + G2 + n L) clip
and is for one view as anchor and the other views as candidates; NT-Xent has all views on both
sides). Adding one row, views x and x', to n rows with N = 2n views, changes the recombined sum by
at most

    D = t clip (4 (1 - p) + 2 M),   p = 1 / (1 + N e^2t),   M = N G / (G + N r),
    G = 2 e^(t/4),   r = (N - 1) / (N - 1 + e^2t).

1. The new anchors x and x' add vectors of length ``clip`` with weights c, and
   sum_b |c_xb| = 2 (1 - p_xx'), where p_xx' >= p since cosines are in [-1, 1].
2. An old anchor a gives a share m_a of its softmax to x and x', and each p_ab becomes
   p_ab (1 - m_a). So its part moves by at most 2 m_a ``clip``. It remains to bound sum_a m_a by M.
3. Lemma: sum_a e^(t a·x) / sum_b e^(t a·b) <= e^(t |x|²/4), over a, b in any finite set of vectors,
   b = a included. Proof: let y = x/2, k_a = e^(t a·y), K_ab = e^(t (a-y)·(b-y)). Then the left side
   is e^(t |y|²) W with W = sum_a k_a u_a and u_a = 1 / sum_b K_ab k_b. K - 1 1ᵀ is positive
   semidefinite (powers of a Gram matrix), so W² <= sum_ab k_a u_a K_ab k_b u_b; with
   u_a u_b <= (u_a² + u_b²) / 2 that is <= sum_a k_a u_a² / u_a = W. Hence W <= 1.
4. m_a = A / (A + R) with A = e^(t a·x) + e^(t a·x') and R the sum over old b ≠ a. Let E be a's own
   term, f_a = A / (E + R): by the lemma sum_a f_a <= G. And R / (E + R) >= r, as E <= e^t and each
   term of R is >= e^-t. So m_a = f_a / (f_a + R / (E + R)) <= f_a / (f_a + r), which is concave in
   f_a: the sum is at most N (G/N) / (G/N + r) = M.

A search by gradient ascent over views finds changes of .80 to .97 of D at temperature 1, of .51 to
.99 at .5, of .35 to 1 at .1 (n = 1 to 32). The noise is for the largest D over all batches that can
be drawn. D stays bounded for n → ∞: 9.1 clip at temperature 1; but at temperature .1 it grows with
n up to thousands of rows (about e^t views), so that a target needs a temperature of .5 or more.

**The claim** is (epsilon, delta) for adding or removing one row, with both its views, for all
phases that see members together. Each step draws every row with probability batch / n, so the books
are those of Poisson sampling; number of rows, sample rate and steps count as public. The sum is
divided by the expected number of views. The linear classifier on the frozen encoder is trained by
DP-SGD (``row_clip``) with the same noise multiplier. Phases on public rows do not change.

Views may be related by nothing but the loss: batch norm is replaced by group norm, and losses with
a queue or a moving average (``moco``, ``byol``) are refused, as is every loss that is not NT-Xent
(it is asked for its value on chosen projections).

What to expect: a step costs a backward pass over 2n (2n - 1) views, so ``batch`` is 32 by default;
gradients of convolutions are written out, which makes a large network slow. The classifier is that
of ``dp-sgd``, whose noise makes sense from 300 members. How many rows the encoder needs is not
measured: on ``digits`` a linear classifier on an untrained encoder is as good as on a trained one.
An encoder on public rows (protocol ``public-encoder``) and ``dp-sgd`` cost far less.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from privbench import (
    BadInputError,
    Batch,
    Clock,
    Defense,
    Ge,
    Gt,
    Judge,
    Lt,
    Outputs,
    Paper,
    Strength,
    hookimpl,
)
from privbench.toolbox.noise import gaussian
from privbench.toolbox.private_training import (
    Draws,
    check_phase,
    claimed,
    draws,
    group_normed,
    with_clipped_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from privbench import Cell, DefenseContext, Model, Phase, Training, World

#: Numbers of written-out gradients that are kept at once, 1 GiB; linear layers write out none.
_NUMBERS = 2**28
#: Pairs whose gradients are computed at once, at most.
_PAIRS = 4096
#: Temperature below which a row may move the sum so far that little but noise is left.
COLD = 0.5
#: Largest exponent: beyond it, a term of the sensitivity is at its limit.
_LARGEST = 700.0


@dataclass(frozen=True)
class LogitDP(Defense):
    """Trains a contrastive encoder and its classifier with differential privacy.

    Attributes:
        epsilon: target privacy budget, which determines the noise. Ignored if ``noise_multiplier``
            is given.
        noise_multiplier: noise in units of the sensitivity; None derives it from ``epsilon``.
        delta: delta of the claim; should be well below one over the number of members.
        clip: largest L2 norm of the gradient of one pair's cosine similarity.
        row_clip: largest L2 norm of one row's gradient in the classifier.
        batch: expected rows per step; None for the target's own.
        accountant: accountant of Opacus: ``prv``, ``rdp`` or ``gdp``.
    """

    name: ClassVar[str] = "logit-dp"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira-encoder",
            "Its shadows train with the same clipping and noise, and find what the encoder keeps.",
        ),
        Judge(
            "lira",
            "The same for the classifier, which sees labels and has a bound of its own.",
        ),
    )
    claims_epsilon: ClassVar[bool] = True
    paper: ClassVar[Paper] = Paper(
        "Differentially Private Optimization for Non-Decomposable Objective Functions",
        "Kong, Muñoz Medina, Ribero", "ICLR 2025", "algorithm 1, theorem 4.2",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "noise_multiplier", stronger="up", sweep=(0.05, 0.1, 0.2, 0.5, 1.0)
    )
    deviations: ClassVar[str] = (
        "NT-Xent over all views (the paper: one view against the other views), so the sensitivity "
        "is derived here, by a bound that uses that similarities are cosines; Poisson sampling; "
        "the target's own optimizer; the classifier is trained by DP-SGD."
    )

    epsilon: Annotated[float, Gt(0)] = 8.0
    noise_multiplier: Annotated[float, Ge(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    clip: Annotated[float, Gt(0)] = 0.1
    row_clip: Annotated[float, Gt(0)] = 1.0
    batch: Annotated[int, Ge(2)] | None = 32
    accountant: Literal["prv", "rdp", "gdp"] = "prv"

    def incompatible(self, cell: Cell) -> str | None:
        """Require Opacus, and NT-Xent with negatives from the batch."""
        if importlib.util.find_spec("opacus") is None:
            return "logit-dp needs Opacus, which is not installed: pip install 'privbench[dp]'"
        target = cell.target
        settings = target.hyperparameters()
        if not target.contrastive:
            return f"logit-dp is for contrastive losses: use dp-sgd for {target.name}"
        if "temperature" not in settings or {"queue", "teacher_temperature"} & settings.keys():
            return (
                "logit-dp bounds NT-Xent with negatives from the batch, as of simclr, and the loss "
                f"of {target.name} is another one"
            )
        return None

    def on_build(self, model: Model, ctx: DefenseContext) -> Model:
        """Replace batch norm by group norm."""
        return group_normed(model, ctx, self.name)

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Make every phase that sees members private."""
        del model
        private = draws(phases, world, self.batch)
        heat = {id(p): temperature(p) for p, _ in private if not p.per_example}
        units = {
            id(p): sensitivity(self.clip, heat[id(p)], len(run.rows))
            for p, run in private
            if id(p) in heat
        }
        cold = [(units[id(p)], len(run.rows)) for p, run in private if heat.get(id(p), 1) < COLD]
        if cold:
            times = max(unit / sensitivity(self.clip, 1.0, rows) for unit, rows in cold)
            ctx.note(**{self.name: f"a row may move the sum {times:,.0f} times as far as at "
                        "temperature 1, and the noise is larger by as much: give the target a "
                        f"temperature of {COLD:g} or more"})  # fmt: skip
        sigma = claimed(
            ctx, [run for _, run in private], epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier, delta=self.delta, accountant=self.accountant,
            clip=self.clip, row_clip=self.row_clip,
            sensitivity=[units.get(id(p), self.row_clip) for p, _ in private],
        )  # fmt: skip
        made = {}
        for phase, run in private:
            seed = ctx.salt("noise", phase.name)
            if id(phase) in heat:
                pairs = Pairs(
                    phase, run, temperature=heat[id(phase)], clip=self.clip,
                    noise=sigma * units[id(phase)], seed=seed,
                )  # fmt: skip
                made[id(phase)] = pairs.private()
            else:
                made[id(phase)] = with_clipped_rows(
                    self.name, phase, run, sigma=sigma, clip=self.row_clip, seed=seed
                )
        return [made.get(id(phase), phase) for phase in phases]


class Pairs:
    """A contrastive phase whose pairs are clipped.

    Attributes:
        phase: as the target declares it.
        run: how it draws its batches.
        temperature: of its loss.
        clip: largest L2 norm of the gradient of a pair's cosine.
        noise: standard deviation of the noise on the recombined sum.
        seed: of the noise.
    """

    def __init__(
        self, phase: Phase, run: Draws, *, temperature: float, clip: float, noise: float, seed: int
    ) -> None:
        """Take the phase; see the attributes."""
        self.phase, self.run, self.temperature = phase, run, temperature
        self.clip, self.noise, self.seed = clip, noise, seed
        self._hooks: Any = None
        self._parameters: list[nn.Parameter] = []

    def private(self) -> Phase:
        """Return the phase with a loss whose gradient is the recombined one, and with noise."""
        ((name, step),) = self.phase.steps.items()
        return replace(
            self.phase, batch=self.run.spec, forward=self._forward, wrap=self._wrap,
            steps={name: replace(step, loss=_recombined)},
        )  # fmt: skip

    def _forward(self, model: Model, batch: Batch) -> Outputs:
        return Outputs(recombined=lambda: self.recombined(model, batch))

    def recombined(self, model: Model, batch: Batch) -> Tensor:
        """Return () whose gradient is the sum of all pairs' clipped ones over the expected views.

        Args:
            model: is trained.
            batch: of two views.
        """
        if batch.views != 2:  # noqa: PLR2004 - of a row
            raise BadInputError(f"logit-dp is for two views of each row, not {batch.views}: use "
                                "a target such as simclr")  # fmt: skip
        with torch.autocast(batch.x.device.type, enabled=False):
            z = self._projected(model, batch.x)
            first, second = torch.triu_indices(len(z), len(z), 1, device=z.device)
            shares = clipped_share(self.norms(model, batch.x, first, second), self.clip)
            unit = F.normalize(z, dim=1)
            weights = derivatives(unit.detach() @ unit.detach().T, self.temperature)
            cosines = (unit[first] * unit[second]).sum(1)
            total: Tensor = (weights[first, second] * shares * cosines).sum()
        return total / (2 * self.run.spec.size)

    def norms(self, model: Model, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the L2 norms (m,) of the gradients of cos(z_first, z_second) in all parameters.

        Args:
            model: is trained.
            x: (v, ...) views.
            first: (m,) positions of one view of each pair.
            second: (m,) positions of the other one.
        """
        found = [x.new_zeros(0, dtype=torch.float64)]
        self._hooks.enable_hooks()
        for pairs in torch.stack([first, second]).split(self._at_once, dim=1):  # type: ignore[no-untyped-call]
            views = x[pairs.flatten()].requires_grad_()
            u, v = F.normalize(self._projected(model, views), dim=1).chunk(2)
            # The hooks need what reaches each layer, not the sum over pairs for its weights.
            torch.autograd.grad((u * v).sum(), views)
            squares = torch.zeros(pairs.shape[1], dtype=torch.float64, device=x.device)
            for p in self._parameters:
                squares += _squares(p.grad_sample)  # type: ignore[attr-defined]
                p.grad_sample = None  # type: ignore[attr-defined]
            found.append(squares.clamp(min=0).sqrt())
        self._hooks.disable_hooks()
        return torch.cat(found)

    def _projected(self, model: Model, x: Tensor) -> Tensor:
        """Return projections (v, p) of views (v, ...), as the target's loss reads them."""
        n = len(x) // 2
        rows = torch.arange(n, device=x.device)
        return self.phase.forward(model, Batch(x, torch.zeros_like(rows), {}, rows, views=2)).z

    @contextmanager
    def _wrap(self, training: Training) -> Iterator[None]:
        """Keep gradients of pairs, and add the noise before every step of the optimizer."""
        from privbench.toolbox.row_gradients import RowGradients

        ((parts, optimizer),) = training.optimizers.items()
        trained = nn.ModuleDict({part: training.model[part] for part in parts})
        trained.requires_grad_(True).train()
        if any(one.p for one in trained.modules() if isinstance(one, _DropoutNd)):
            raise BadInputError("logit-dp clips gradients of another pass than that of the step, "
                                "and dropout makes them differ: set it to 0")  # fmt: skip
        self._parameters = list(trained.parameters())
        written = sum(
            p.numel()
            for module in trained.modules()
            if type(module) is not nn.Linear
            for p in module.parameters(recurse=False)
        )
        self._at_once = max(1, min(_PAIRS, _NUMBERS // (2 * max(written, 1))))
        self._hooks = RowGradients(trained, loss_reduction="sum")
        self._hooks.disable_hooks()
        device = training.rows.device
        generator = torch.Generator(device=device).manual_seed(self.seed)
        training.generators["noise"] = generator
        scale = self.noise / (2 * self.run.spec.size)

        def noisy(*_: Any) -> None:
            for p in self._parameters:
                drawn = gaussian(p, generator) * scale
                p.grad = drawn if p.grad is None else p.grad + drawn

        hook = optimizer.register_step_pre_hook(noisy)
        try:
            with warnings.catch_warnings():
                # The first layer's input is data and needs no gradient; its weights get theirs.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                yield
        finally:
            hook.remove()
            self._hooks.cleanup()


def _recombined(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
    del batch, clock
    return out.recombined


def derivatives(cosines: Tensor, temperature: float) -> Tensor:
    """Return the derivatives (v, v) of the summed NT-Xent in the cosine of each pair.

    Args:
        cosines: (v, v) of first views and then second ones.
        temperature: above 0.

    >>> derivatives(torch.eye(2), 1.0).tolist()  # two views of one row: nothing to tell apart
    [[0.0, 0.0], [0.0, 0.0]]
    """
    v = len(cosines)
    own = torch.eye(v, dtype=torch.bool, device=cosines.device)
    share = (cosines / temperature).masked_fill(own, -torch.inf).softmax(1)
    c = share - own.roll(v // 2, 1).to(share.dtype)
    return (c + c.T) / temperature


def clipped_share(norms: Tensor, clip: float) -> Tensor:
    """Return the share (m,) of each gradient that clipping leaves.

    >>> clipped_share(torch.tensor([0.0, 0.5, 4.0]), 1.0)
    tensor([1.0000, 1.0000, 0.2500])
    """
    return (clip / norms.clamp(min=clip)).float()


def sensitivity(clip: float, temperature: float, rows: int) -> float:
    """Return how much one more row can move the recombined sum, in L2 norm.

    Args:
        clip: of a pair's gradient.
        temperature: above 0.
        rows: most rows that a batch holds beside the one that is added.

    It grows with the number of rows up to a limit; a lone row moves nothing.

    >>> [round(sensitivity(1.0, 1.0, rows), 2) for rows in (0, 1, 4, 1000)]
    [0.0, 7.41, 10.29, 10.32]
    """
    t = 1 / temperature
    spread, most = math.exp(min(2 * t, _LARGEST)), 2 * math.exp(min(t / 4, _LARGEST))
    worst = 0.0
    for n in range(1, rows + 1):
        v = 2 * n
        least = (v - 1) / (v - 1 + spread)
        shifted = v * most / (most + v * least)
        worst = max(worst, 4 * (1 - 1 / (1 + v * spread)) + 2 * shifted)
    return t * clip * worst


def temperature(phase: Phase) -> float:
    """Return the temperature of a phase's NT-Xent, as its own values on chosen projections say.

    It has five digits. The private sum is computed with it, so its sensitivity is exact.

    Raises:
        BadInputError: if its loss is another one, or if clipping would not bound a row's influence.
    """
    check_phase("logit-dp", phase)
    (step,) = phase.steps.values()
    wrong = BadInputError(
        f"logit-dp cannot make phase '{phase.name}' private: its loss is not NT-Xent over two "
        "views of each row of a batch"
    )
    if step.before or step.live or phase.reads != "inputs" or phase.reads_labels:
        raise wrong

    def asked(z: Tensor) -> float:
        rows = torch.arange(len(z) // 2)
        batch = Batch(z, torch.zeros_like(rows), {}, rows, views=2)
        try:
            return float(step.loss(Outputs(z=z), batch, Clock(1, 0, 1, 1)))
        except Exception as error:  # another loss may read anything, and fail in any way
            raise wrong from error

    # Opposite views, and other rows at right angles: log(1 + 2 e^t) for each anchor.
    value = asked(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    t = value + math.log1p(-math.exp(-value)) - math.log(2) if value > math.log(3) else 0.0
    if not 0 < t < math.inf:
        raise wrong
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 5):
        z = torch.randn(2 * n, 6, generator=generator)
        unit = F.normalize(z, dim=1)
        scores = (unit @ unit.T * t).fill_diagonal_(-torch.inf)
        meant = float(F.cross_entropy(scores, torch.arange(2 * n).roll(n)))
        if not math.isclose(asked(z), meant, rel_tol=1e-3, abs_tol=1e-4):
            raise wrong
    return float(f"{1 / t:.5g}")


def _squares(rows: Any) -> Tensor:
    """Return the squared norms (m,) of pairs' gradients from those of their 2m views."""
    from privbench.toolbox.row_gradients import Outer

    if isinstance(rows, Outer):
        (g, h), (a, b) = rows.g.chunk(2), rows.a.chunk(2)
        return _dot(g, g) * _dot(a, a) + _dot(h, h) * _dot(b, b) + 2 * _dot(g, h) * _dot(a, b)
    first, second = rows.flatten(1).chunk(2)
    return _dot(first + second, first + second)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product (m,) of each row of x and y (m, d), as float64."""
    products: Tensor = torch.linalg.vecdot(x.double(), y.double())  # the sum of three may cancel
    return products


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [LogitDP()]
