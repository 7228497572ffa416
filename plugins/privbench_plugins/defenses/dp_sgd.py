"""DP-SGD clips the gradient of each example and adds noise, in every phase that sees members.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy.
CCS 2016, algorithm 1; implemented with Opacus (``pip install 'privbench[dp]'``), which also does
the privacy accounting. Gradients of single rows in linear layers are never written out
(``privbench.toolbox.row_gradients``): the same numbers up to rounding, many times faster.

Each step samples every row with probability batch / n, clips each row's gradient over all
parameters to L2 norm ``clip``, adds N(0, (noise_multiplier clip)²) to the sum and divides by the
expected batch size. The claim is (epsilon, delta) for adding or removing one member, for all phases
that see members together; phases on public rows do not change. Sample rate and number of steps
follow from the true number of members, as in every accountant of this kind: this number counts as
public.

A contrastive loss is not a sum over examples (every row is a negative of every other row; MoCo's
queue and moving average carry rows on to later steps). Clipping does not bound the influence of
any row there, so these phases are refused. With an encoder from public rows (protocols ``alm``, and
``public-encoder`` of ``digits``), only the classifier is private, and that works. Batch norm mixes
the rows of a batch and is replaced by group norm.

What to expect: ``lira`` falls to chance long before its bound does, and accuracy falls steeply when
there are few rows: noise for epsilon 8 on the 100 members of ``digits`` leaves ``supervised`` at an
accuracy of .16 (none .88), so no default can be usable there. A classifier on a public encoder
makes sense from the 300 members of protocol ``public-encoder-pairs``: .92 at epsilon 2 and 8 (none
.94; seed 0, ``privbench run --protocol public-encoder-pairs --target supervised --defense dp-sgd
--attack nn-mia``); there the classifier starts from its training on public rows. Choosing
hyperparameters by private results costs privacy that is not counted here.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from privbench import (
    BadInputError,
    BatchSpec,
    Defense,
    Ge,
    Gt,
    Judge,
    Lt,
    Paper,
    Strength,
    hookimpl,
)
from privbench.toolbox.gradient_canaries import planted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from privbench import Batch, Cell, DefenseContext, Model, Phase, Training, World

#: Deltas of the privacy profile in the claim, and the epsilon beyond which there is none: no audit
#: reaches it, and the PRV accountant is slow there.
_DELTAS = (1e-8, 1e-5, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7)
_VACUOUS = 50.0
#: Relative precision of the search for the noise multiplier.
_TOLERANCE = 0.01
#: Noise multiplier at which the search ends: no target epsilon is that large.
_LEAST = 0.01
#: Noise multiplier at which the search gives up: accountants have a smallest epsilon.
_MOST = 1e4


#: Epsilon above which the RDP accountant's bound is taken: nothing is promised there, and the
#: PRV accountant takes minutes and gigabytes at such noise.
_LOOSE = 500.0


@dataclass(frozen=True)
class DPSGD(Defense):
    """Trains everything that sees members with differential privacy.

    Attributes:
        epsilon: target privacy budget, which determines the noise. Ignored if ``noise_multiplier``
            is given.
        noise_multiplier: noise in units of ``clip``; None derives it from ``epsilon``.
        delta: delta of the claim; should be well below one over the number of members.
        clip: largest L2 norm of one example's gradient.
        batch: expected rows per step; None for the target's own.
        accountant: accountant of Opacus: ``prv``, ``rdp`` or ``gdp``.
        gradient_canaries: whether canaries take the place of members' gradients, and the noisy
            steps are kept with the model. Only for an audit by the attack ``gradient-canary``: the
            model is of no use.
    """

    name: ClassVar[str] = "dp-sgd"
    version: ClassVar[int] = 3
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "gradient-canary",
            "It is the adversary of the proof: it chooses gradients and sees every noisy step.",
        ),
        Judge(
            "lira",
            "Its shadows train with the same clipping and noise, and find what is left.",
        ),
    )
    claims_epsilon: ClassVar[bool] = True
    paper: ClassVar[Paper] = Paper(
        "Deep Learning with Differential Privacy",
        "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang", "CCS 2016", "algorithm 1",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "noise_multiplier", stronger="up", sweep=(0.05, 0.1, 0.2, 0.5, 1.0)
    )
    deviations: ClassVar[str] = (
        "The target's own optimizer and learning rate (the paper: SGD); the accountant is Opacus's "
        "PRV by default (the paper's moments accountant is `rdp`), and RDP where that gives more "
        "than 500."
    )

    epsilon: Annotated[float, Gt(0)] = 8.0
    noise_multiplier: Annotated[float, Ge(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    clip: Annotated[float, Gt(0)] = 1.0
    batch: Annotated[int, Ge(1)] | None = None
    accountant: Literal["prv", "rdp", "gdp"] = "prv"
    gradient_canaries: bool = False

    def incompatible(self, cell: Cell) -> str | None:
        """Require Opacus, and losses that are sums over examples."""
        if importlib.util.find_spec("opacus") is None:
            return "dp-sgd needs Opacus, which is not installed: pip install 'privbench[dp]'"
        if self.gradient_canaries and cell.attack.name != "gradient-canary":
            return (
                "dp-sgd with gradient_canaries trains a model that is of no use: only "
                "gradient-canary may attack it"
            )
        if cell.target.contrastive and "members" in cell.protocol.encoder:
            return (
                f"dp-sgd clips gradients of single examples, and the contrastive loss of "
                f"{cell.target.name} is not a sum over examples"
            )
        return None

    def on_build(self, model: Model, ctx: DefenseContext) -> Model:
        """Replace batch norm by group norm."""
        from opacus.validators import ModuleValidator

        replaced = []
        for name, part in model.parts.items():
            fixed = ModuleValidator.fix(part)
            if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in part.modules()):  # noqa: SLF001
                replaced.append(name)
                if hasattr(part, "width"):
                    fixed.width = part.width
                model.parts[name] = fixed
        if replaced:
            said = f"batch norm of {', '.join(replaced)} replaced by group norm"
            logging.getLogger("privbench").warning("dp-sgd: %s", said)
            ctx.note(**{"dp-sgd": said})
        return model

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Make every phase that sees members private."""
        private = [p for p in phases if not isinstance(p.rows, str) or p.rows == "members"]
        for phase in private:
            _check(phase)
        runs = []
        seen = {
            id(p): world.members if isinstance(p.rows, str) else world.members.select(p.rows)
            for p in private
        }
        for phase in private:
            n = len(seen[id(phase)])
            size = min(self.batch or phase.batch.size, n)
            spec = BatchSpec(size, "poisson")
            runs.append((spec, size / n, phase.epochs * spec.steps(n)))
        steps = tuple((q, count) for _, q, count in runs)
        sigma = self.noise_multiplier
        if sigma is None:
            sigma = noise_multiplier(self.epsilon, self.delta, steps, self.accountant)
        spent = spent_epsilon(sigma, self.delta, steps, self.accountant) if sigma else None
        terms = {
            "noise_multiplier": sigma, "clip": self.clip, "accountant": self.accountant,
            "sample_rate": [q for q, _ in steps], "steps": [count for _, count in steps],
        }  # fmt: skip
        if spent is None:
            ctx.note(**terms, claim="without noise there is no epsilon")
        else:
            ctx.claim(
                epsilon=spent, delta=self.delta, adjacency="add/remove",
                # Opacus: the gdp accountant is an approximation that can underestimate
                guarantee=self.accountant != "gdp", phase=ctx.protocol.phase,
                profile=profile(sigma, self.delta, steps, self.accountant), **terms,
            )  # fmt: skip
            ctx.note(noise="keyed by the seed: keep real ones secret")
        made = {}
        for phase, (spec, rate, count) in zip(private, runs, strict=True):
            seed = ctx.salt("noise", phase.name)
            wrap = partial(self._privately, sigma=sigma, size=spec.size, seed=seed)
            prepare = phase.prepare and partial(_one_view, phase)
            own = replace(phase, batch=spec, wrap=wrap, prepare=prepare)
            if self.gradient_canaries:
                keys = seen[id(phase)].keys
                own = planted(own, model, ctx, keys=keys, steps=count, rate=rate)
            made[id(phase)] = own
        return [made.get(id(phase), phase) for phase in phases]

    @contextmanager
    def _privately(
        self, training: Training, *, sigma: float, size: int, seed: int
    ) -> Iterator[None]:
        """Use the optimizer of Opacus instead, with hooks that compute per-example gradients."""
        from opacus.grad_sample import GradSampleHooks

        from privbench.toolbox.row_gradients import ClippingOptimizer, RowGradients

        ((parts, plain),) = training.optimizers.items()
        trained = nn.ModuleDict({part: training.model[part] for part in parts})
        trained.requires_grad_(True).train()
        # Canaries take the place of gradients that are written out.
        hooks = (GradSampleHooks if self.gradient_canaries else RowGradients)(trained)
        generator = torch.Generator(device=training.rows.device).manual_seed(seed)
        training.generators["noise"] = generator
        training.optimizers[parts] = ClippingOptimizer(
            plain, noise_multiplier=sigma, max_grad_norm=self.clip, expected_batch_size=size,
            generator=generator,
        )  # fmt: skip
        try:
            with warnings.catch_warnings():
                # The first layer's input is data and needs no gradient; its weights get theirs.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                yield
        finally:
            training.optimizers[parts] = plain
            hooks.cleanup()


def _check(phase: Phase) -> None:
    """Refuse phases in which clipping would not bound the influence of a row.

    Raises:
        BadInputError: with the reason.
    """
    what = f"dp-sgd cannot make phase '{phase.name}' private: "
    if not phase.per_example:
        raise BadInputError(what + "its loss is not a sum over examples")
    if any(step.streams for step in phase.steps.values()):
        raise BadInputError(what + "its loss reads further rows, which would be clipped together")
    if any(step.after for step in phase.steps.values()):
        raise BadInputError(what + "it keeps outputs of rows (`after`), to which no noise is added")
    if len(phase.steps) > 1 or len({repr(spec) for spec in phase.optimizers.values()}) > 1:
        raise BadInputError(what + "it has several kinds of steps or optimizers")
    if phase.wrap or phase.monitor:
        raise BadInputError(what + "another defense wraps or monitors it")


def _one_view(phase: Phase, batch: Batch, uniforms: Callable[[int], Tensor]) -> Batch:
    """Prepare a batch of the phase.

    Raises:
        BadInputError: if a row then has several gradients, each of the length of the clip.
    """
    assert phase.prepare is not None  # noqa: S101 - see ``on_phases``
    made = phase.prepare(batch, uniforms)
    if len(made.x) != len(batch.x):
        raise BadInputError(
            f"dp-sgd cannot make phase '{phase.name}' private: its loss reads several views of a "
            "row, which would be clipped one by one"
        )
    return made


@cache
def spent_epsilon(
    sigma: float, delta: float, runs: tuple[tuple[float, int], ...], accountant: str
) -> float:
    """Return the epsilon of all these runs together.

    Args:
        sigma: noise multiplier of all runs.
        delta: delta of the claim.
        runs: (sample rate, steps) of each run.
        accountant: Opacus's name of the accountant.
    """
    from opacus.accountants import create_accountant

    if accountant == "prv":
        bound = spent_epsilon(sigma, delta, runs, "rdp")
        if bound > _LOOSE:
            return bound
    books = create_accountant(accountant)
    books.history = [(sigma, q, count) for q, count in runs if count]
    with warnings.catch_warnings(), np.errstate(divide="ignore"):  # of log(1 - q) at q = 1
        # A bound at the edge of the accountant's orders is loose, but still a bound.
        warnings.filterwarnings("ignore", "Optimal order is")
        return float(books.get_epsilon(delta)) if books.history else 0.0


def profile(
    sigma: float, delta: float, runs: tuple[tuple[float, int], ...], accountant: str
) -> list[tuple[float, float]]:
    """Return pairs (epsilon, delta) that hold at once; none if epsilon is above 50 at ``delta``.

    Only pairs with epsilon > 0: an accountant that gives 0 says that delta is larger than needed.
    None of the accountant ``gdp``, which gives no bound.
    """
    if accountant == "gdp" or spent_epsilon(sigma, delta, runs, accountant) > _VACUOUS:
        return []
    deltas = sorted({delta, *_DELTAS})
    pairs = [(spent_epsilon(sigma, d, runs, accountant), d) for d in deltas]
    return [(epsilon, d) for epsilon, d in pairs if epsilon > 0]


@cache
def noise_multiplier(
    epsilon: float, delta: float, runs: tuple[tuple[float, int], ...], accountant: str
) -> float:
    """Return the smallest noise (to 1 %) with which all runs together stay within epsilon."""
    # The RDP accountant is fast and close: slower accountants search around its result.
    high = 0.5 if accountant == "rdp" else noise_multiplier(epsilon, delta, runs, "rdp")
    while spent_epsilon(high, delta, runs, accountant) > epsilon:
        high *= 2
        if high > _MOST:
            raise BadInputError(
                f"dp-sgd.epsilon {epsilon:g} is below what noise of {_MOST:,.0f} reaches: "
                "give a larger one"
            )
    low = high / 1.3
    while spent_epsilon(low, delta, runs, accountant) <= epsilon and low > _LEAST:
        high, low = low, low / 1.3
    while high / low > 1 + _TOLERANCE:
        middle = (high * low) ** 0.5
        if spent_epsilon(middle, delta, runs, accountant) > epsilon:
            low = middle
        else:
            high = middle
    return high


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [DPSGD()]
