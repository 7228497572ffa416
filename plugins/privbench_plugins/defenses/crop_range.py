"""A narrower range of crops: the encoder's training views show areas of nearly one size.

Zhu, Zha, Li, Wang: A Unified Membership Inference Method for Visual Self-supervised Encoder via
Part-aware Capability. CCS 2024, arXiv:2404.02462: "shrinking crop scale range", proposed against
PartCrop. An encoder learns to relate parts to wholes because its views are crops of many sizes; the
defense shrinks the range of sizes from which training draws the area of a crop.

What to expect: views that differ less are easier to match, so utility may fall with the leak. The
dataset's own limits still apply: where they forbid small crops (digits: at least .8 of the area),
little is left to shrink.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from privbench import Augmentation, Defense, Ge, Judge, Le, Paper, Strength, hookimpl
from privbench.toolbox.phases import Views, sees_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Cell, DefenseContext, Model, Phase, World


@dataclass(frozen=True)
class CropRange(Defense):
    """Shrinks the range of the area that training crops take of an image.

    Attributes:
        shrink: share of the range that is taken away, of what the dataset's limits leave: 0 changes
            nothing, 1 leaves one size.
        towards: where in the range the rest lies: 0 for the smallest crops, 1 for the largest.
    """

    name: ClassVar[str] = "crop-range"
    requires: ClassVar[tuple[str, ...]] = ("images",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira-encoder",
            "Its shadows train on the same narrow crops as the victim.",
            {"online": True},
        ),
        Judge("partcrop", "The defense was proposed against it."),
        Judge(
            "encodermi-v",
            "Learns from a shadow which similarities of views members have under this range.",
        ),
    )
    uses_training_data: ClassVar[bool] = False
    paper: ClassVar[Paper] = Paper(
        "A Unified Membership Inference Method for Visual Self-supervised Encoder via Part-aware "
        "Capability", "Zhu, Zha, Li, Wang", "CCS 2024", "arXiv:2404.02462, defenses",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The ranges that the paper uses could not be checked: how much is taken away, and from "
        "which end, are parameters, and their defaults are ours."
    )

    strength: ClassVar[Strength | None] = Strength(
        "shrink", stronger="up", sweep=(0.25, 0.5, 0.75, 1.0)
    )

    shrink: Annotated[float, Ge(0), Le(1)] = 0.75
    towards: Annotated[float, Ge(0), Le(1)] = 0.0

    def incompatible(self, cell: Cell) -> str | None:
        """Require crops of members that training draws from a range."""
        if "members" not in cell.protocol.encoder:
            return (
                f"{self.name} changes the encoder's views of members, and protocol "
                f"'{cell.protocol.name}' shows the encoder none"
            )
        views = getattr(cell.target, "augmentation", None)
        if not isinstance(views, Augmentation):
            return f"{self.name} narrows crops of training views, and {cell.target.name} has none"
        crop = views.within(cell.card.limits or Augmentation()).crop
        if crop is None or crop[0] == crop[1]:
            return f"{self.name} narrows a range of crops, and {cell.card.name} allows none"
        return None

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Narrow the crops of phases that train the encoder on members."""
        del model, world
        return [self._narrowed(phase, ctx) for phase in phases]

    def _narrowed(self, phase: Phase, ctx: DefenseContext) -> Phase:
        views = phase.prepare
        if not isinstance(views, Views) or not phase.trains("encoder") or not sees_members(phase):
            return phase
        allowed = views.augmentation.within(views.card.limits or Augmentation())
        if allowed.crop is None or not self.shrink:
            return phase
        crop = narrowed(allowed.crop, self.shrink, self.towards)
        ctx.note(**{self.name: f"crops {crop[0]:.3g} to {crop[1]:.3g} of the area"})
        changed: dict[str, Any] = {"augmentation": replace(allowed, crop=crop)}
        if small := getattr(views, "small", None):  # of further views, as DINO's
            less = replace(allowed, crop=small).within(views.card.limits or Augmentation())
            changed["small"] = narrowed(less.crop or small, self.shrink, self.towards)
        return replace(phase, prepare=replace(views, **changed))


def narrowed(crop: tuple[float, float], shrink: float, towards: float) -> tuple[float, float]:
    """Return the range without a share ``shrink`` of it; the rest lies at ``towards`` (0 to 1).

    >>> narrowed((0.2, 1.0), 0.75, 0.0)
    (0.2, 0.4)
    """
    low, high = crop
    width = (1 - shrink) * (high - low)
    low = min(low + towards * (high - low - width), high)
    return low, min(low + width, high)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [CropRange()]
