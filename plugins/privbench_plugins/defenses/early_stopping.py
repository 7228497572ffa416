"""Early stopping reduces the number of passes over the members.

There are two ways, and both act together:

- ``epochs``: the phase that trains the encoder ends after this many passes (EncoderMI, CCS 2021: a
  countermeasure for contrastive encoders, shown as a curve over epochs in figure 5; Song and
  Mittal, USENIX Security 2021, do the same for classifiers). No operating point is recommended:
  sweep 25, 50, 100, 200.
- ``patience``: phases that read labels stop when the cross-entropy on reference rows has not
  improved for this many passes, and the best state is restored. A contrastive encoder reads no
  labels, so only ``epochs`` reaches it.

What to expect: with fewer passes the model memorises less and learns less; the gap between members
and nonmembers closes only about as far as accuracy falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import Defense, Ge, Judge, Monitor, Paper, Strength, hookimpl
from privbench.toolbox.phases import note_reach, reads_members, sees_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Cell, DefenseContext, Model, Phase, World


@dataclass(frozen=True)
class EarlyStopping(Defense):
    """Stops after a number of epochs, and when the loss on reference rows no longer improves.

    Attributes:
        epochs: most passes of a phase that trains the encoder on members; None for no limit.
        patience: passes without a lower loss on reference rows before a phase that reads labels
            stops, if there are such rows; None to watch no loss.
    """

    name: ClassVar[str] = "early-stopping"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira",
            "Its shadows stop at the same epoch, so it looks for the gap that there is by then.",
        ),
        Judge(
            "lira-encoder",
            "The same for an encoder: shadows that stop early show what early members look like.",
            {"online": True},
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning",
        "Liu, Jia, Qu, Gong", "CCS 2021", "figure 5, early stopping",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "epochs", stronger="down", sweep=(200, 100, 50, 25)
    )
    version: ClassVar[int] = 2
    deviations: ClassVar[str] = (
        "100 epochs are ours, a quarter of the default SimCLR's (the paper shows a curve). A "
        "learning rate that falls along a cosine reaches zero at the last epoch that is left; "
        "going by patience on reference rows is not in the paper."
    )

    epochs: Annotated[int, Ge(1)] | None = 100
    patience: Annotated[int, Ge(1)] | None = 5

    @property
    def requires(self) -> tuple[str, ...]:
        """Require, for patience alone, losses on members' labels and rows to compare them on."""
        alone = self.epochs is None and self.patience is not None
        return ("reference-rows", "member-labels") if alone else ()

    def incompatible(self, cell: Cell) -> str | None:
        """Require, for epochs, an encoder that trains on members, unless patience can act."""
        if self.epochs is None and self.patience is None:
            return f"{self.name} has neither epochs nor patience: set one of them"
        trains = cell.target.trains_encoder
        if self.epochs is None or (trains and "members" in cell.protocol.encoder):
            return None
        if self.patience and self._can_watch(cell):
            return None
        if not trains:
            return (
                f"{self.name} shortens the encoder's training on members, and the encoder of "
                f"{cell.target.name} is frozen"
            )
        return (
            f"{self.name} shortens the encoder's training on members, and protocol "
            f"'{cell.protocol.name}' shows the encoder none"
        )

    def learns_from_reference(self, cell: Cell) -> bool:
        """Return whether patience can act: it stops by the loss on these rows."""
        return self.patience is not None and self._can_watch(cell)

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Shorten the encoder's phases; watch those that read labels."""
        del model
        if self.epochs is None:
            note_reach(self.name, phases, ctx)
        else:
            ends = [
                f"'{phase.name}' after {self.epochs} of {phase.epochs} epochs"
                for phase in phases
                if self._shortened(phase) is not phase
            ]
            ctx.note(**{self.name: "ends " + ", ".join(ends) if ends else "no phase is so long"})
        return [self._watched(self._shortened(phase), world, ctx) for phase in phases]

    def _can_watch(self, cell: Cell) -> bool:
        return bool(cell.protocol.parts()["reference"].count(cell.card)) and (
            cell.protocol.classifier == "members" or cell.target.labelled_encoder
        )

    def _shortened(self, phase: Phase) -> Phase:
        if self.epochs is None or not sees_members(phase) or not phase.trains("encoder"):
            return phase
        return replace(phase, epochs=self.epochs) if phase.epochs > self.epochs else phase

    def _watched(self, phase: Phase, world: World, ctx: DefenseContext) -> Phase:
        if self.patience is None or not reads_members(phase) or not len(world.reference):
            return phase
        watched = phase.monitor or Monitor({})
        rows = {**watched.rows, "reference": world.reference.to(ctx.device)}
        monitor = replace(watched, rows=rows, watch="reference.loss", patience=self.patience)
        return replace(phase, monitor=monitor)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [EarlyStopping()]
