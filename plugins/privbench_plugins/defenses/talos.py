"""Talos trains the encoder against an adversary that reads sensitive attributes from it.

He, Zhang: Quantifying and Mitigating Privacy Risks of Contrastive Learning. CCS 2021, section 5.1,
equations 7 and 8, algorithm 1; and its first version, arXiv:2102.04140v1.

The adversarial classifier C reads the encoder's output h of every augmented view (not the
projection) and learns the attribute. The encoder minimises its own loss minus
``adversarial_factor`` times the loss of C, through gradient reversal. The projection head gets no
adversarial gradient, because C branches off before it. The classification stage does not change.

Schedules:
- ``alternating`` (CCS, algorithm 1): odd epochs, counted from 1, update only C; even epochs update
  encoder and head. An odd epoch does not change encoder, head or batch-norm statistics.
- ``simultaneous`` (arXiv v1): every batch updates C, head and encoder.

Equal budget: alternating by epoch would halve the encoder's updates, so the phase runs twice as
many epochs, and ``none`` and ``talos`` are compared at equal encoder updates.

C learns at the encoder's rate, as in the authors' code, which has one for both. After training, the
accuracy of C is noted in the record: on members, which it has seen, and on reference rows, held
out, beside the share of their most frequent value. A C that knows its members by heart censors
little that a new attacker could use.

Deviations: see the class. What to expect: an under-trained attacker is fooled more than a
well-trained one; that is why the board shows both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from privbench import (
    Batch,
    Defense,
    Ge,
    Gt,
    Judge,
    Le,
    Optimizer,
    Outputs,
    Paper,
    Phase,
    Step,
    Strength,
    gradient_reversal,
    hookimpl,
    mlp,
)
from privbench.toolbox.phases import known_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privbench import Clock, DefenseContext, Model, World


@dataclass(frozen=True)
class Talos(Defense):
    """Trains the encoder adversarially against attribute inference.

    Attributes:
        adversarial_factor: λ of equation 8; documented sweep 0..10 (CCS: 2 or 3 nearly best).
        schedule: ``alternating`` by epoch (CCS) or ``simultaneous`` (arXiv v1).
        hidden: neurons of each of C's two hidden layers.
        lr: learning rate of C, with Adam; None for the encoder's own optimizer.
        weight_decay: weight decay of C.
    """

    name: ClassVar[str] = "talos"
    protects: ClassVar[tuple[str, ...]] = ("attributes",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "attribute-inference",
            "Censoring fools an undertrained classifier more than a well-trained one.",
        ),
        Judge(
            "attribute-decensoring",
            "Maps censored embeddings to features of a model that was never censored.",
        ),
        Judge(
            "rmia",
            "Talos censors the encoder; the classifier on it remembers its members as before.",
        ),
        Judge(
            "lira-encoder",
            "It hides attributes; whether it hides members is another question.",
            {"online": True},
        ),
    )
    requires: ClassVar[tuple[str, ...]] = ("trained-encoder",)
    uses_attributes: ClassVar[bool] = True
    version: ClassVar[int] = 2
    paper: ClassVar[Paper] = Paper(
        "Quantifying and Mitigating Privacy Risks of Contrastive Learning", "He, Zhang",
        "CCS 2021", "section 5.1, equations 7-8, algorithm 1",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "adversarial_factor", stronger="up", sweep=(1.0, 2.0, 3.0, 5.0, 10.0)
    )
    deviations: ClassVar[str] = (
        "The alternating schedule runs twice the epochs, so that the encoder gets as many updates "
        "as without the defense; no ReLU on C's logits (the authors' code has one); several "
        "sensitive attributes add up, one C each; rows whose attribute is missing do not count."
    )

    adversarial_factor: Annotated[float, Ge(0)] = 3.0
    schedule: Literal["alternating", "simultaneous"] = "alternating"
    hidden: Annotated[int, Ge(1), Le(10_000)] = 64
    lr: Annotated[float, Gt(0)] | None = None
    weight_decay: Annotated[float, Ge(0)] = 1e-4

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Edit the last phase that trains the encoder."""
        del world
        at = max(i for i, phase in enumerate(phases) if phase.trains("encoder"))
        edited = list(phases)
        edited[at] = self._censored(phases[at], model, ctx)
        return edited

    def _censored(self, phase: Phase, model: Model, ctx: DefenseContext) -> Phase:
        width = int(model["encoder"].width)  # type: ignore[arg-type]
        names = {f"adversary-{name}": name for name in ctx.sensitive}
        for part, name in names.items():
            values = ctx.card.attributes[name]
            ctx.module(model, part, lambda v=values: mlp([width, self.hidden, self.hidden, v]))  # type: ignore[misc]

        def guess(h: Tensor, batch: Batch) -> Tensor:
            """Equation 7: return the cross-entropy of C on all views, summed over attributes."""
            views = len(h) // len(batch.y)
            losses = [
                known_cross_entropy(model[part](h), batch.attributes[name].repeat(views))
                for part, name in names.items()
            ]
            return sum(losses[1:], losses[0])

        (base,) = phase.steps.values()
        spec = self._optimizer(phase.optimizers["encoder"])
        phase = replace(
            phase,
            optimizers={**phase.optimizers, **dict.fromkeys(names, spec)},
            reads_attributes=tuple(ctx.sensitive),
        )
        if self.schedule == "simultaneous":
            step = replace(
                base,
                loss=lambda out, batch, clock: (
                    base.loss(out, batch, clock)
                    + guess(gradient_reversal(out.h, self.adversarial_factor), batch)
                ),
                trains=(*base.trains, *names),
            )
            return replace(phase, steps={"train": step})
        ctx.note(schedule="alternating by epoch, epochs doubled: equal encoder updates")
        censor = Step(lambda out, batch, _: guess(out.h.detach(), batch), trains=tuple(names))
        encode = replace(base, loss=self._against(base, guess))
        return replace(
            phase,
            steps={"censor": censor, "encode": encode},
            schedule=lambda epoch, _: "censor" if epoch % 2 else "encode",
            epochs=2 * phase.epochs,
        )

    def _optimizer(self, encoder: Optimizer) -> Optimizer:
        """Return how C is updated: as the encoder is, unless there is a rate of its own."""
        if self.lr is not None:
            return Optimizer("adam", self.lr, self.weight_decay)
        return replace(encoder, weight_decay=self.weight_decay)

    def on_trained(
        self, model: Model, phases: Sequence[Phase], world: World, ctx: DefenseContext
    ) -> Model:
        """Note the accuracy of C on members and on reference rows; change nothing."""
        del phases
        for name in ctx.sensitive:
            told = {}
            for where, rows in (("members", world.members), ("held out", world.reference)):
                known = rows.select(rows.attributes[name] >= 0)
                if not len(known):
                    continue
                s = known.attributes[name]
                guess = _guessed(model, f"adversary-{name}", known.x)
                told[where] = float((guess == s).double().mean())
                told[f"{where}, most frequent"] = float(s.bincount().max() / len(s))
            ctx.note(**{f"accuracy of C for {name}": told})
        return model

    def _against(self, base: Step, guess: _Guess) -> _Loss:
        """Equation 8: return a loss, the phase's own loss minus λ times the loss of C."""

        def loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
            return base.loss(out, batch, clock) - self.adversarial_factor * guess(out.h, batch)

        return loss


def _guessed(model: Model, part: str, x: Tensor) -> Tensor:
    """Return the values (n,) that C takes for those of inputs x (n, *shape)."""
    with torch.no_grad():
        return torch.cat(
            [model[part](model.encode(rows)).argmax(1) for rows in torch.split(x, 1024)]
        )


if TYPE_CHECKING:
    from collections.abc import Callable

    _Guess = Callable[[Tensor, Batch], Tensor]
    _Loss = Callable[[Outputs, Batch, Clock], Tensor]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [Talos()]
