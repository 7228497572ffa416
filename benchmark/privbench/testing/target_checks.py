"""Checks of targets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import cut
from privbench.measure.methods.context import TargetContext, seeded
from privbench.measure.training.phase import Batch, Clock
from privbench.measure.training.withheld import Declared, visible
from privbench.measure.victims.obeyed import disobedience
from privbench.testing.fixtures import (
    CPU,
    TinyImages,
    tiny_spec,
    tiny_split,
)
from privbench.testing.small import (
    Small,
    compatible,
    interrupted,
    needs_compatible,
    shortened,
    trained,
    untouched,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import Split
    from privbench.measure.methods.target import Target
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase, Step
    from privbench.measure.victims.spec import VictimSpec


def shapes(target: Target) -> None:
    """Embeddings, logits and phases have the shapes and names that the core expects.

    Tried: the model as built, on 5 images.
    """
    split = tiny_split()
    needs_compatible(target, target)
    model, phases = _planned(target)
    h = model.encode(split.pool.x[:5])
    assert h.ndim == 2, f"the encoder maps 5 images to {tuple(h.shape)}: return (5, d)"
    assert len(h) == 5, f"the encoder maps 5 images to {len(h)} rows: return one per image"
    width = model["encoder"].width
    assert width == h.shape[1], (
        f"encoder.width is {width}, but embeddings have {h.shape[1]} numbers: make them agree"
    )
    if "classifier" in model:
        shape = tuple(model.logits(h).shape)
        assert shape == (5, split.card.classes), (
            f"logits of 5 embeddings have shape {shape}: return (5, {split.card.classes})"
        )
    names = [phase.name for phase in phases]
    assert len(set(names)) == len(names), f"phases are named {names}: give each its own name"


def facts_agree(target: Target) -> None:
    """The planner's facts about the encoder's loss are those of the phases that train it.

    Tried: ``contrastive`` and ``labelled_encoder`` against the planned phases.
    """
    needs_compatible(target, target)
    _, phases = _planned(target)
    phases = [phase for phase in phases if phase.trains("encoder")]
    if not phases:
        return
    assert target.contrastive == any(not phase.per_example for phase in phases), (
        f"contrastive is {target.contrastive}, but a phase of the encoder says otherwise: "
        "write per_example=not self.contrastive there"
    )
    assert target.labelled_encoder == any(phase.reads_labels for phase in phases), (
        f"labelled_encoder is {target.labelled_encoder}, but a phase of the encoder says "
        "otherwise: write reads_labels=self.labelled_encoder there"
    )


def means_agree(target: Target) -> None:
    """A loss that is ``per_example`` is the mean of what each row adds by itself.

    Tried: the loss of 8 rows against the mean of the losses of each alone, in eval mode.
    """
    needs_compatible(target, target)
    model, phases = _planned(target)
    members = tiny_split().victim().members.select(slice(0, 8))
    for phase in phases:
        rows = members
        if phase.reads == "embeddings":
            rows = replace(rows, x=model.encode(rows.x).detach())
        for step in phase.steps.values():
            if not phase.per_example or step.streams or phase.monitor or phase.wrap:
                continue  # the loss says that it is no such mean, or dp-sgd refuses the phase
            whole = _loss(model, phase, step, rows)
            alone = [_loss(model, phase, step, rows.select(slice(i, i + 1))) for i in range(8)]
            assert abs(whole - sum(alone) / 8) <= 1e-3 * max(map(abs, alone)) + 1e-6, (
                f"phase '{phase.name}' says that it is per_example, but its loss of 8 rows is "
                f"{whole:.4g}, and the mean of their losses is {sum(alone) / 8:.4g}: make it a "
                "mean over rows, or write per_example=False, since dp-sgd clips what each row adds"
            )


def _loss(model: Model, phase: Phase, step: Step, rows: Examples) -> float:
    """Return the loss of a batch of these rows before training."""
    n, rows = len(rows), visible(rows, phase)
    batch = Batch(rows.x, rows.y, Declared.of(rows), torch.arange(n))
    if phase.prepare:
        batch = phase.prepare(batch, lambda m: torch.full((n, m), 0.5))
    with torch.no_grad():
        return float(step.loss(phase.forward(model, batch), batch, Clock(1, 0, phase.epochs, 1)))


def apart_agrees(target: Target) -> None:
    """``classifier_apart`` says whether the classifier has a phase on a frozen encoder.

    Tried: three protocols, in which encoder and classifier see different rows.
    """
    for protocol in _protocols():
        data = TinyImages()
        split = cut(data.load(None), data.card(None), protocol, 0)
        if not compatible(target, target, split=split):
            continue
        _, phases = _planned(target, split)
        apart = any(p.trains("classifier") and p.reads == "embeddings" for p in phases)
        assert target.classifier_apart(protocol) == apart, (
            f"under a protocol with {_told(protocol)}, classifier_apart() is {not apart}, but the "
            f"phases say {apart}: override it, since defenses on a classifier ask for it"
        )


def obeys(target: Target) -> None:
    """Under each protocol, encoder and classifier train on the rows that it says.

    Tried: three protocols, in which encoder and classifier see different rows.
    """
    for protocol in _protocols():
        data = TinyImages()
        split = cut(data.load(None), data.card(None), protocol, 0)
        if compatible(target, target, split=split):
            problem = disobedience(*_planned(target, split), protocol)
            assert problem is None, f"under a protocol with {_told(protocol)}, {problem}"


def _protocols() -> list[Protocol]:
    """Protocols under which encoder and classifier see different rows."""
    sizes: dict[str, Any] = {"members": 80, "nonmembers": 80, "reference": 40, "pool": 400}
    pretrained: dict[str, Any] = {**sizes, "public": 60, "downstream": 40}
    return [
        Protocol(**sizes, name="default"),
        Protocol(
            **pretrained, name="pretrained", encoder=("public", "members"), classifier="downstream"
        ),
        Protocol(**pretrained, name="public", encoder=("public",), classifier="members"),
    ]


def _told(protocol: Protocol) -> str:
    return f"encoder={protocol.encoder} and classifier='{protocol.classifier}'"


def small(target: Target) -> Small:
    """Return the kit's victim of that target."""

    def plan() -> VictimSpec:
        needs_compatible(target, target)
        return tiny_spec(shortened(target))

    return Small(target, plan)


def reads_declared(small: Small) -> None:
    """Labels and attributes that no phase of the encoder declares do not change the encoder.

    Tried: trainings in which rows exchanged their labels, or their attributes.
    """
    needs_compatible(small.method, small.method)
    _, phases = _planned(small.method)
    phases = [phase for phase in phases if phase.trains("encoder")]
    untold: dict[str, Callable[[Examples], Examples]] = {}
    if not any(phase.reads_labels for phase in phases):
        untold["labels"] = _with_other_labels
    if not any(phase.reads_attributes for phase in phases):
        untold["attributes"] = _with_other_attributes
    if not untold or _same_encoder(small, *untold.values()):
        return
    for what, exchanged in untold.items():
        assert _same_encoder(small, exchanged), (
            f"the encoder changed when the {what} of its rows were exchanged, but no phase says "
            f"that it reads {what}: declare reads_{what}, and read them from the batch, not from "
            "the world"
        )
    raise AssertionError(
        "the encoder changed when labels and attributes of its rows were exchanged together: "
        "declare reads_labels and reads_attributes"
    )


def _with_other_labels(rows: Examples) -> Examples:
    return rows.with_y(rows.y.flip(0))


def _with_other_attributes(rows: Examples) -> Examples:
    return replace(rows, attributes={n: a.flip(0) for n, a in rows.attributes.items()})


def _same_encoder(small: Small, *changes: Callable[[Examples], Examples]) -> bool:
    """Whether the victim's embeddings are the same after these changes of its members."""
    spec = small.plan()
    members = spec.world.members
    for change in changes:
        members = change(members)
    other = trained(replace(spec, world=spec.world.replace(members=members)))
    return torch.equal(small.made[1]["embeddings"], other.embeddings(tiny_split().pool.x[:40]))


def reloads(small: Small) -> None:
    """Its victims answer the same from the store, and if x is stored as floats.

    Tried: a small victim as trained, as read from a store, and trained on floats.
    """
    needs_compatible(small.method, small.method)
    small.same_when_stored()


def _planned(target: Target, split: Split | None = None) -> tuple[Model, Sequence[Phase]]:
    """Return the untrained model and its phases in the victim's world of a split."""
    split = split or tiny_split()
    ctx = TargetContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="kit",
    )  # fmt: skip
    model = seeded(partial(target.build, split.card, ctx), 0).eval()
    return model, target.phases(model, split.victim(), ctx)


def leaves_world(target: Target) -> None:
    """Planning phases writes into no row.

    Tried: ``phases`` on rows compared before and after.
    """
    split = tiny_split()
    needs_compatible(target, target)
    ctx = TargetContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="kit",
    )  # fmt: skip
    model = seeded(partial(target.build, split.card, ctx), 0).eval()
    untouched(split.victim(), lambda world: target.phases(model, world, ctx), "phases()")


def trains_alike(small: Small) -> None:
    """Training is deterministic, ignores the global generator and leaves its data as they were.

    It can be interrupted: what goes on from a checkpoint ends the same.

    Tried: two trainings under two seeds of the global generator, the second one interrupted in
    every phase.
    """
    needs_compatible(small.method, small.method)
    first, before = small.victim, tiny_split().candidates.x.clone()
    second = interrupted(small.plan(), noise=2)
    x = tiny_split().pool.x[:40]
    if not torch.equal(first.embeddings(x), second.embeddings(x)):
        third = trained(small.plan(), noise=2)
        assert torch.equal(first.embeddings(x), third.embeddings(x)), (
            "two trainings gave different embeddings under different seeds of the global "
            "generator: draw from ctx.generator, or in `prepare` from its uniforms"
        )
    small.same_when_resumed(second)
    assert torch.equal(before, tiny_split().candidates.x), (
        "training changed the rows that it was given: work on copies"
    )
    assert not any(module.training for module in first.model.modules()), (
        "the trained model is in train mode: leave the modes to the training loop"
    )
    assert first.key == second.key, (
        "two plans of one victim have different keys: build and phases must not draw at random"
    )
