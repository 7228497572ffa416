"""Differentially private training: how batches are drawn, what that costs, and clipped rows.

Every step draws each row with its own coin (Poisson sampling), adds up clipped gradients, and adds
Gaussian noise. What a defense clips is its own affair; the books are the same: a noise multiplier
is the noise's standard deviation in units of the sum's sensitivity to adding or removing one row.
Opacus (``pip install 'privbench[dp]'``) keeps the books and computes gradients of single rows.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from privbench.ground.errors import BadInputError
from privbench.measure.training.phase import BatchSpec
from privbench.toolbox.noise import SIMULATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import World
    from privbench.measure.methods.context import DefenseContext
    from privbench.measure.training.loop import Training
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Batch, Clock, Outputs, Phase

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
class Draws:
    """How a private phase draws its batches.

    Attributes:
        rows: of the phase.
        spec: each row of a batch has its own coin; ``spec.size`` rows are expected.
        rate: probability with which a step uses a row, in (0, 1].
        steps: of the phase.
    """

    rows: Examples
    spec: BatchSpec
    rate: float
    steps: int


def draws(phases: Sequence[Phase], world: World, batch: int | None) -> list[tuple[Phase, Draws]]:
    """Return the phases that see members, and how each draws its batches.

    Args:
        phases: of a target.
        world: whose members they see.
        batch: expected rows of a step; None for the phase's own.

    Raises:
        BadInputError: if a phase of other rows reads members too, which no noise would hide.
    """
    made = []
    for phase in phases:
        if isinstance(phase.rows, str) and phase.rows != "members":
            _refuse_members(phase, world)
            continue
        rows = world.members
        if not isinstance(phase.rows, str):
            rows = rows.select(phase.rows)
        spec = BatchSpec(min(batch or phase.batch.size, len(rows)), "poisson")
        steps = phase.epochs * spec.steps(len(rows))
        made.append((phase, Draws(rows, spec, spec.size / len(rows), steps)))
    return made


def _refuse_members(phase: Phase, world: World) -> None:
    others = [stream.rows for step in phase.steps.values() for stream in step.streams.values()]
    others += phase.monitor.rows.values() if phase.monitor else []
    members = world.members.index
    if any(bool(torch.isin(rows.index.to(members.device), members).any()) for rows in others):
        raise BadInputError(
            f"phase '{phase.name}' trains on other rows, and reads members beside them: no noise "
            "would hide these"
        )


def claimed(
    ctx: DefenseContext, runs: Sequence[Draws], *, epsilon: float, noise_multiplier: float | None,
    delta: float, accountant: str, **terms: Any,
) -> float:  # fmt: skip
    """State the claim of all runs together and return their noise multiplier.

    Args:
        ctx: of the defense; gets the claim.
        runs: of all phases that see members.
        epsilon: that decides the noise, unless ``noise_multiplier`` is given.
        noise_multiplier: 0 or more; without noise nothing is claimed.
        delta: of the claim.
        accountant: of Opacus: ``prv``, ``rdp`` or ``gdp``.
        terms: further facts of the claim.
    """
    steps = tuple((run.rate, run.steps) for run in runs)
    sigma = noise_multiplier
    if sigma is None:
        sigma = least_noise(epsilon, delta, steps, accountant)
    terms = {
        "noise_multiplier": sigma, **terms, "accountant": accountant,
        "sample_rate": [q for q, _ in steps], "steps": [count for _, count in steps],
    }  # fmt: skip
    if not sigma:
        ctx.note(**terms, claim="without noise there is no epsilon")
        return sigma
    ctx.claim(
        epsilon=spent_epsilon(sigma, delta, steps, accountant), delta=delta,
        adjacency="add/remove",
        # Opacus: the gdp accountant is an approximation that can underestimate
        guarantee=accountant != "gdp", phase=ctx.protocol.phase,
        profile=profile(sigma, delta, steps, accountant), **terms,
    )  # fmt: skip
    ctx.note(noise=SIMULATED)
    return sigma


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
def least_noise(
    epsilon: float, delta: float, runs: tuple[tuple[float, int], ...], accountant: str
) -> float:
    """Return the smallest noise (to 1 %) with which all runs together stay within epsilon.

    Raises:
        BadInputError: if no noise up to 10,000 does.
    """
    # The RDP accountant is fast and close: slower accountants search around its result.
    high = 0.5 if accountant == "rdp" else least_noise(epsilon, delta, runs, "rdp")
    while spent_epsilon(high, delta, runs, accountant) > epsilon:
        high *= 2
        if high > _MOST:
            raise BadInputError(
                f"an epsilon of {epsilon:g} is below what noise of {_MOST:,.0f} reaches: "
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


def group_normed(model: Model, ctx: DefenseContext, name: str) -> Model:
    """Replace batch norm, which mixes the rows of a batch, by group norm.

    Of vectors all numbers are one group: in one of two numbers each would become 1 or -1, and in
    one of a single number 0.

    Args:
        model: is changed.
        ctx: of the defense; gets a note.
        name: of the defense.
    """
    from opacus.validators import ModuleValidator

    replaced = []
    for part_name, part in model.parts.items():
        fixed = ModuleValidator.fix(part)
        for at, norm in part.named_modules(remove_duplicate=False):
            if at and isinstance(norm, nn.BatchNorm1d) and norm.affine:
                one = nn.GroupNorm(1, norm.num_features, eps=norm.eps).to(norm.weight)
                fixed.set_submodule(at, one.requires_grad_(norm.weight.requires_grad))
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in part.modules()):  # noqa: SLF001
            replaced.append(part_name)
            if hasattr(part, "width"):
                fixed.width = part.width
            model.parts[part_name] = fixed
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in fixed.modules()):  # noqa: SLF001
            raise BadInputError(
                f"{name}: batch norm of '{part_name}' has no weights, so Opacus leaves it, and it "
                "mixes the rows of a batch: give it weights (affine=True)"
            )
    if replaced:
        said = f"batch norm of {', '.join(replaced)} replaced by group norm"
        logging.getLogger("privbench").warning("%s: %s", name, said)
        ctx.note(**{name: said})
    return model


def check_phase(name: str, phase: Phase) -> None:
    """Refuse phases in which no clipping would bound the influence of a row.

    Args:
        name: of the defense.
        phase: sees members.

    Raises:
        BadInputError: with the reason.
    """
    what = f"{name} cannot make phase '{phase.name}' private: "
    if any(step.streams for step in phase.steps.values()):
        raise BadInputError(what + "its loss reads further rows, which would be clipped together")
    if any(step.after for step in phase.steps.values()):
        raise BadInputError(what + "it keeps outputs of rows (`after`), to which no noise is added")
    if len(phase.steps) > 1 or len({repr(spec) for spec in phase.optimizers.values()}) > 1:
        raise BadInputError(what + "it has several kinds of steps or optimizers")
    if phase.wrap or phase.monitor:
        raise BadInputError(what + "another defense wraps or monitors it")


def with_clipped_rows(
    name: str, phase: Phase, run: Draws, *, sigma: float, clip: float, seed: int,
    written_out: bool = False,
) -> Phase:  # fmt: skip
    """Return the phase with DP-SGD: the gradient of each row is clipped.

    Args:
        name: of the defense.
        phase: whose loss is a mean over rows.
        run: how it draws its batches.
        sigma: noise multiplier.
        clip: largest L2 norm of a row's gradient.
        seed: of the noise.
        written_out: whether gradients of single rows are written out, for who changes them.

    Raises:
        BadInputError: if clipping would not bound the influence of a row.
    """
    if not phase.per_example:
        raise BadInputError(
            f"{name} cannot make phase '{phase.name}' private: its loss is not a sum over examples"
        )
    check_phase(name, phase)
    drawn = [0]
    wrap = partial(
        _clipping, sigma=sigma, clip=clip, size=run.spec.size, seed=seed, written_out=written_out,
        drawn=drawn,
    )  # fmt: skip
    prepare = phase.prepare and partial(_one_view, name, phase)
    steps = {
        of: replace(step, loss=partial(_counted, step.loss, drawn))
        for of, step in phase.steps.items()
    }
    return replace(phase, batch=run.spec, wrap=wrap, prepare=prepare, steps=steps)


def _counted(
    loss: Callable[[Outputs, Batch, Clock], Tensor], drawn: list[int], out: Outputs, batch: Batch,
    clock: Clock,
) -> Tensor:  # fmt: skip
    """Return the loss, and keep how many rows the step has drawn."""
    drawn[0] = len(batch.rows)
    return loss(out, batch, clock)


@contextmanager
def _clipping(
    training: Training, *, sigma: float, clip: float, size: int, seed: int, written_out: bool,
    drawn: list[int],
) -> Iterator[None]:  # fmt: skip
    """Use the optimizer of Opacus instead, with hooks that compute per-example gradients."""
    from privbench.toolbox.row_gradients import ClippingOptimizer, RowGradients, WrittenOut

    ((parts, plain),) = training.optimizers.items()
    trained = nn.ModuleDict({part: training.model[part] for part in parts})
    trained.requires_grad_(True).train()
    hooks = (WrittenOut if written_out else RowGradients)(trained)
    generator = torch.Generator(device=training.rows.device).manual_seed(seed)
    training.generators["noise"] = generator
    training.optimizers[parts] = ClippingOptimizer(
        plain, noise_multiplier=sigma, max_grad_norm=clip, expected_batch_size=size,
        generator=generator, drawn=drawn,
    )  # fmt: skip
    try:
        with warnings.catch_warnings():
            # The first layer's input is data and needs no gradient; its weights get theirs.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield
    finally:
        training.optimizers[parts] = plain
        hooks.cleanup()


def _one_view(name: str, phase: Phase, batch: Batch, uniforms: Callable[[int], Tensor]) -> Batch:
    """Prepare a batch of the phase.

    Raises:
        BadInputError: if a row then has several gradients, each of the length of the clip.
    """
    assert phase.prepare is not None  # noqa: S101 - see ``with_clipped_rows``
    made = phase.prepare(batch, uniforms)
    if len(made.x) != len(batch.x):
        raise BadInputError(
            f"{name} cannot make phase '{phase.name}' private: its loss reads several views of a "
            "row, which would be clipped one by one"
        )
    return made
