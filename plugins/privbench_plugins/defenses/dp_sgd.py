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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from privbench import (
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
from privbench.toolbox.private_training import (
    claimed,
    draws,
    group_normed,
    with_clipped_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Cell, DefenseContext, Model, Phase, World


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
    version: ClassVar[int] = 4
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
        return group_normed(model, ctx, self.name)

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Make every phase that sees members private."""
        private = draws(phases, world, self.batch)
        sigma = claimed(
            ctx, [run for _, run in private], epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier, delta=self.delta, accountant=self.accountant,
            clip=self.clip,
        )  # fmt: skip
        made = {}
        for phase, run in private:
            own = with_clipped_rows(
                self.name, phase, run, sigma=sigma, clip=self.clip,
                seed=ctx.salt("noise", phase.name), written_out=self.gradient_canaries,
            )  # fmt: skip
            if self.gradient_canaries:
                own = planted(own, model, ctx, keys=run.rows.keys, steps=run.steps, rate=run.rate)
            made[id(phase)] = own
        return [made.get(id(phase), phase) for phase in phases]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [DPSGD()]
