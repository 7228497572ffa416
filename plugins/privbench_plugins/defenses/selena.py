"""SELENA: an ensemble that answers for each member without having seen it, distilled into one.

Tang, Mahloujifar, Song, Shejwalkar, Nasr, Houmansadr, Mittal: Mitigating Membership Inference
Attacks by Self-Distillation Through a Novel Ensemble Architecture. USENIX Security 2022, section 4.

1. Split-AI: ``models`` sub-models train as the undefended target does, every member withheld from
   exactly ``held_out`` of them. The members' soft labels are the mean posteriors of the models
   that did not see them.
2. Self-distillation: the victim trains on the members with those soft labels.

Which models a row is withheld from is a function of its content, so that equal rows are withheld
together. An adaptive adversary's shadows run their own Split-AI.

What to expect: members are answered much as nonmembers are, at the cost of ``models`` more
trainings per victim and shadow. But the student fits each member's soft label, and what a row adds
to it has a size: on the 100 members of ``digits`` (five seeds) ``dual-head`` has an AUC of .804
(none .879), ``lira`` .604 (.794). And near-duplicates defeat the exclusion. Exact copies do not,
with whatever labels: they are withheld together, while the authors' code draws for each row by
itself (Aerni and others, CCS 2024, break that by pairs of one picture with two labels). A
contrastive encoder that trains on members reads no labels and would see them undistilled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import BadInputError, Defense, Ge, Judge, Le, Paper, Strength, hookimpl
from privbench.toolbox.undefended import posteriors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privbench import Cell, DefenseContext, Examples, Model, World


@dataclass(frozen=True)
class Selena(Defense):
    """Soft labels of members, by models that did not see them.

    Attributes:
        models: K sub-models.
        held_out: L of them that each member is withheld from; below K.
    """

    name: ClassVar[str] = "selena"
    requires: ClassVar[tuple[str, ...]] = ("classes",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge("lira", "Its shadows run Split-AI of their own, so it knows what exclusion leaves."),
        Judge("dual-head", "What a row adds to the student has a size, whatever its soft label."),
        Judge(
            "label-lira",
            "Near-duplicates defeat the exclusion, and show in labels.",
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "Mitigating Membership Inference Attacks by Self-Distillation Through a Novel Ensemble "
        "Architecture", "Tang, Mahloujifar, Song, Shejwalkar, Nasr, Houmansadr, Mittal",
        "USENIX Security 2022", "section 4",
    )  # fmt: skip
    # Neither `models` nor `held_out` trades utility for protection: no member is ever answered by a
    # model that saw it, and both only decide how good those models are.
    strength: ClassVar[Strength | None] = None
    deviations: ClassVar[str] = (
        "Sub-models and victim train for the target's own epochs and the last state counts; the "
        "authors' code picks the best epoch on test rows. Equal rows are withheld from the same "
        "sub-models; the authors' code draws for each row by itself."
    )

    models: Annotated[int, Ge(2), Le(1000)] = 25
    held_out: Annotated[int, Ge(1)] = 10

    def __post_init__(self) -> None:
        """Check that every member is left to train on.

        Raises:
            BadInputError: if a member is withheld from all sub-models.
        """
        super().__post_init__()
        if self.held_out >= self.models:
            raise BadInputError(
                f"{self.name}.held_out {self.held_out} must be below its models {self.models}"
            )

    def incompatible(self, cell: Cell) -> str | None:
        """Require that no phase sees members without their labels."""
        if not cell.target.labelled_encoder and "members" in cell.protocol.encoder:
            return (
                f"{self.name} protects by soft labels, and the encoder of {cell.target.name} sees "
                f"members without labels under protocol '{cell.protocol.name}'"
            )
        return None

    def inner_worlds(self, world: World, ctx: DefenseContext) -> list[World]:
        """The world of each sub-model: the members that are not withheld from it."""
        members = world.members
        out = self._withheld(members, ctx)
        return [world.replace(members=members.select(~column)) for column in out.T]

    def relabel(self, members: Examples, models: Sequence[Model], ctx: DefenseContext) -> Tensor:
        """Mean posteriors (n, k) of the sub-models that did not see a member."""
        ctx.note(trainings=self.models + 1)
        p = torch.stack([posteriors(model, members) for model in models])
        return out_mean(p, self._withheld(members, ctx))

    def _withheld(self, members: Examples, ctx: DefenseContext) -> Tensor:
        return withheld(ctx.uniform(members, self.models, "withheld"), self.held_out)


def withheld(uniforms: Tensor, count: int) -> Tensor:
    """Which models each row is withheld from: those of its ``count`` smallest uniforms.

    Args:
        uniforms: (n, models) in [0, 1).
        count: models per row.

    Returns:
        (n, models) bool, ``count`` of them true in each row.

    >>> withheld(torch.tensor([[0.5, 0.1, 0.9]]), 1).tolist()
    [[False, True, False]]
    """
    chosen = uniforms.argsort(dim=1, stable=True)[:, :count]
    return torch.zeros_like(uniforms, dtype=torch.bool).scatter(1, chosen, value=True)


def out_mean(p: Tensor, out: Tensor) -> Tensor:
    """Mean posteriors (n, k) float32 over the models that did not see a row.

    Args:
        p: (models, n, k) float64 posteriors.
        out: (n, models) bool.
    """
    weights = out.to(p) / out.sum(1, keepdim=True)
    return torch.einsum("mnk,nm->nk", p, weights).float()


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [Selena()]
