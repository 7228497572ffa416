"""MIST trains sub-models on disjoint members, makes them agree on rows that one saw, and averages.

Li, Li, Ribeiro: MIST: Defending Against Membership Inference Attacks Through Membership-Invariant
Subspace Training. USENIX Security 2024.

Training goes in rounds. In each round the members are dealt again to ``models`` disjoint subsets,
one for each sub-model, and all sub-models start from the same weights.

1. ``local``: one pass in which each sub-model minimises its cross-entropy on its own subset.
2. ``cross``: ``cross`` passes in which each sub-model minimises, on its own subset, how far its
   posteriors are from those of the others, which did not see these rows (the cross-difference).
   The others count as constants.
3. The weights of all sub-models are averaged. Every one of them starts the next round from there.

A row that is predicted well without having been seen pulls its sub-model nowhere in step 2. One
that is predicted well only because it was seen is unlearned. Sub-model 0 is the model itself; the
others are further parts of it, and are equal to it in the end.

What to expect: about the accuracy of plain training, for ``models`` times the cost and more. On the
100 members of ``digits`` these defaults do not protect: on ``supervised`` (five seeds) ``lira`` has
an AUC of .780 (none .794), and ``lira-head`` finds more than without it, .869 (.843; measured while
equal rows were dealt apart). On a
contrastive target only the classifier reads labels.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch.nn import functional as F

from privbench import (
    BadInputError,
    Defense,
    Ge,
    Gt,
    Judge,
    Le,
    Outputs,
    Paper,
    Step,
    Strength,
    hookimpl,
)
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Batch, Clock, DefenseContext, Examples, Model, Phase, World


@dataclass(frozen=True)
class MIST(Defense):
    """Averages sub-models that agree on what only one of them saw.

    Attributes:
        models: number of sub-models, and of subsets of the members.
        cross: passes that minimise the cross-difference, for each pass of local training.
        weight: factor of the cross-difference, which is in [0, 2].
    """

    name: ClassVar[str] = "mist"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("member-labels",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge("rmia", "Members agree with submodels without them on average, and not row by row."),
        Judge(
            "label-lira",
            "Training evens out posteriors; robustness of labels is not in its loss.",
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "MIST: Defending Against Membership Inference Attacks Through Membership-Invariant "
        "Subspace Training", "Li, Li, Ribeiro", "USENIX Security 2024",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Only the paper's abstract and a third party's code could be read. After that code, the "
        "cross-difference is the L1 distance of posteriors (a sum over classes, of which that code "
        "takes the mean), mean over the other sub-models; equal rows stay in one subset; "
        "numbers of sub-models and passes are ours. As many local passes over the members as "
        "without the defense, with the target's optimizer, whose moments each sub-model keeps; a "
        "batch is shared by the sub-models, and batch norm, where there is any, reads all of it."
    )

    strength: ClassVar[Strength | None] = Strength(
        "weight", stronger="up", sweep=(0.3, 1.0, 3.0, 10.0)
    )

    models: Annotated[int, Ge(1), Le(64)] = 4
    cross: Annotated[int, Ge(0), Le(100)] = 1
    weight: Annotated[float, Gt(0)] = 1.0

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Train sub-models in every phase whose loss reads labels of members."""
        note_reach(self.name, phases, ctx)
        return [self._split(p, model, world, ctx) if reads_members(p) else p for p in phases]

    def _split(self, phase: Phase, model: Model, world: World, ctx: DefenseContext) -> Phase:
        if len(phase.steps) > 1:
            raise BadInputError(
                f"{self.name} alternates updates of phase '{phase.name}', and another defense "
                "does so already: leave one of them out"
            )
        (base,) = phase.steps.values()
        copies = [
            {part: f"{self.name}-{i}-{part}" for part in base.trains} for i in range(1, self.models)
        ]
        for names in copies:
            for part, name in names.items():
                ctx.module(model, name, partial(copy.deepcopy, model[part]))
        members = world.members if isinstance(phase.rows, str) else world.members.select(phase.rows)
        own = subsets(self._drawn(members, phase, ctx), self.models).to(ctx.device)
        local, cross = (partial(self._loss, kind, own) for kind in ("local", "cross"))
        trains = (*base.trains, *(name for names in copies for name in names.values()))
        start = partial(_start, base.trains, copies)
        steps = {
            "local": Step(local, trains, before=start),
            "cross": Step(cross, trains),
            "join": Step(
                cross if self.cross else local, trains, before=start,
                after=lambda made, _: average(made, base.trains, copies),
            ),
        }  # fmt: skip
        last = phase.batch.steps(len(members)) - 1
        optimizers = {
            name: phase.optimizers[part] for names in copies for part, name in names.items()
        }
        monitor = phase.monitor
        if monitor:
            monitor = replace(monitor, every=monitor.every * (1 + self.cross))
        return replace(
            phase, steps=steps, forward=partial(_forward, phase.forward, copies),
            epochs=phase.epochs * (1 + self.cross), monitor=monitor, per_example=False,
            optimizers={**phase.optimizers, **optimizers},
            schedule=lambda epoch, i: self.kind(epoch, end=i == last),
        )  # fmt: skip

    def kind(self, epoch: int, *, end: bool) -> str:
        """Return which step runs in an epoch, counted from 1; ``end`` for the last step in it.

        >>> [MIST(cross=1).kind(epoch, end=end) for epoch in (1, 2) for end in (False, True)]
        ['local', 'local', 'cross', 'join']
        """
        place = (epoch - 1) % (1 + self.cross)
        if end and place == self.cross:
            return "join"
        return "cross" if place else "local"

    def _drawn(self, members: Examples, phase: Phase, ctx: DefenseContext) -> Tensor:
        return ctx.uniform(members, max(1, phase.epochs), "subsets", phase.name)

    def _loss(self, kind: str, own: Tensor, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """Return the sum over sub-models of their losses on their own rows."""
        mine = own[batch.rows, (clock.epoch - 1) // (1 + self.cross)]
        each = (mine[None] == torch.arange(self.models, device=mine.device)[:, None]).float()
        logits = out.all.float()
        if kind == "local":
            rows = torch.stack([F.cross_entropy(one, batch.y, reduction="none") for one in logits])
        else:
            rows = self.weight * cross_difference(logits.softmax(2))
        return ((rows * each).sum(1) / each.sum(1).clamp_min(1)).sum()


def subsets(uniforms: Tensor, count: int) -> Tensor:
    """Deal rows to subsets of equal size in each column: (n, rounds) -> (n, rounds) int64.

    Equal rows have equal numbers and stay together, but for those at the end of a subset: no other
    sub-model then has seen what is to be unlearned.

    >>> subsets(torch.tensor([[0.9], [0.1], [0.5], [0.1]]), 2).flatten().tolist()
    [1, 0, 1, 0]
    """
    ranks: Tensor = uniforms.argsort(dim=0, stable=True).argsort(dim=0)
    return ranks * count // len(ranks)


def cross_difference(p: Tensor) -> Tensor:
    """Return the L1 distance of each sub-model's posteriors to the others', mean over the others.

    Gradients flow to the sub-model itself only.

    Args:
        p: (models, n, k) posteriors.

    Returns:
        (models, n) in [0, 2]; 0 if there is one sub-model.

    >>> cross_difference(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]])).tolist()
    [[1.0], [1.0]]
    """
    apart = (p[:, None] - p.detach()[None]).abs().sum(3)  # (itself, other, n); 0 to itself
    return apart.sum(1) / max(1, len(p) - 1)


def _forward(
    base: Callable[[Model, Batch], Outputs],
    copies: Sequence[Mapping[str, str]],
    model: Model,
    batch: Batch,
) -> Outputs:
    """Return the logits of the model, and ``all`` (models, n, k) of the sub-models."""
    answers = [base(model, batch).logits]
    for names in copies:
        kept = {part: model[part] for part in names}
        model.parts.update({part: model[name] for part, name in names.items()})
        answers.append(base(model, batch).logits)
        model.parts.update(kept)
    return Outputs(logits=answers[0], all=lambda: torch.stack(answers))


def _start(
    parts: Sequence[str], copies: Sequence[Mapping[str, str]], model: Model, clock: Clock
) -> None:
    """Give all sub-models the model's weights before the first step."""
    if (clock.epoch, clock.step) == (1, 0):
        for names in copies:
            for part in parts:
                model[names[part]].load_state_dict(model[part].state_dict())


def average(model: Model, parts: Sequence[str], copies: Sequence[Mapping[str, str]]) -> None:
    """Set the weights and statistics of all sub-models to their mean; counters stay as they are."""
    for part in parts:
        same = [model[part], *(model[names[part]] for names in copies)]
        states = [module.state_dict() for module in same]
        mean = {
            name: torch.stack([state[name] for state in states]).mean(0)
            for name, tensor in states[0].items()
            if tensor.is_floating_point()
        }
        for module in same:
            module.load_state_dict(mean, strict=False)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [MIST()]
