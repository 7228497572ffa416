"""Early stopping reduces the number of passes over the members.

There are two modes:

- ``epochs``: the phase that trains the encoder ends after this many passes (EncoderMI, CCS 2021,
  section 6: a countermeasure for contrastive encoders, shown as a curve over epochs; Song and
  Mittal, USENIX Security 2021, do the same for classifiers). No operating point is recommended.
- ``patience``, if ``epochs`` is None: phases that read labels stop when the cross-entropy on
  reference rows has not improved for this many passes, and the best state is restored.

What to expect: with fewer passes the model memorises less and learns less; the gap between members
and nonmembers closes only about as far as accuracy falls. Patience does nothing for a contrastive
encoder, which reads no labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge

from privbench import Defense, Monitor, Paper, Strength, hookimpl
from privbench_plugins._shared.label_losses import note_reach
from privbench_plugins._shared.phases import sees_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Cell, DefenseContext, Model, Phase, World


@dataclass(frozen=True)
class EarlyStopping(Defense):
    """Stops after a number of epochs, or when the loss on reference rows no longer improves.

    Attributes:
        epochs: passes of the phase that trains the encoder on members; None to use ``patience``.
        patience: passes without a lower loss on reference rows before a phase stops.
    """

    name: ClassVar[str] = "early-stopping"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    paper: ClassVar[Paper] = Paper(
        "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning",
        "Liu, Jia, Qu, Gong", "CCS 2021", "section 6, early stopping",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "epochs", stronger="down", sweep=(200, 100, 50, 25)
    )
    deviations: ClassVar[str] = (
        "A learning rate that falls along a cosine reaches zero at the last epoch that is left; "
        "going by patience on reference rows is not in the paper."
    )

    epochs: Annotated[int, Ge(1)] | None = None
    patience: Annotated[int, Ge(1)] = 5

    @property
    def requires(self) -> tuple[str, ...]:
        """Require, for patience, losses on members' labels and rows to compare them on."""
        return ("reference-rows", "member-labels") if self.epochs is None else ()

    def incompatible(self, cell: Cell) -> str | None:
        """Require, for fixed epochs, an encoder that trains on members."""
        if self.epochs is None or "members" in cell.protocol.encoder:
            return None
        return (
            f"{self.name} shortens the encoder's training on members, and protocol "
            f"'{cell.protocol.name}' shows the encoder none"
        )

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Shorten phases, or monitor them."""
        del model
        if self.epochs is not None:
            return [self._shortened(phase, self.epochs) for phase in phases]
        note_reach(self.name, phases, ctx)
        return [self._watched(p, world, ctx) if p.reads_labels else p for p in phases]

    def _shortened(self, phase: Phase, epochs: int) -> Phase:
        if not sees_members(phase) or not phase.trains("encoder") or phase.epochs <= epochs:
            return phase
        return replace(phase, epochs=epochs)

    def _watched(self, phase: Phase, world: World, ctx: DefenseContext) -> Phase:
        if not sees_members(phase):
            return phase
        watched = phase.monitor or Monitor({})
        rows = {**watched.rows, "reference": world.reference.to(ctx.device)}
        monitor = replace(watched, rows=rows, watch="reference.loss", patience=self.patience)
        return replace(phase, monitor=monitor)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [EarlyStopping()]
