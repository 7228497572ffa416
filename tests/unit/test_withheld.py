"""A phase reads only the labels and attributes that it declares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

from privbench import Defense, Phase, Stream
from privbench.measure.training.leave_one_out import refit
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import TrainingError
from privbench.testing import TinyTarget, tiny_builder, tiny_spec, tiny_split

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor


def changed(change: Callable[[Phase], Phase]) -> Any:
    """Return the kit's target with its phase changed."""

    @dataclass(frozen=True)
    class Changed(TinyTarget):
        """Changed."""

        name: ClassVar[str] = "changed"

        def phases(self, model: Any, world: Any, ctx: Any) -> list[Phase]:
            return [change(phase) for phase in super().phases(model, world, ctx)]

    return Changed()


def with_loss(loss: Callable[[Any, Any, Any], Tensor], **fields: Any) -> Any:
    """Return the kit's target with another loss."""

    def change(phase: Phase) -> Phase:
        step = replace(phase.steps["train"], loss=loss)
        return replace(phase, steps={"train": step}, **fields)

    return changed(change)


def cross_entropy(out: Any, batch: Any, clock: Any) -> Tensor:
    del clock
    return F.cross_entropy(out.logits, batch.y)


READS = {
    "loss": cross_entropy,
    "comparison": lambda out, batch, _: (out.logits.sum(1) * (batch.y == 1)).sum(),
    "one by one": lambda out, batch, _: out.logits.sum() * int(batch.y[0]),
    "as numpy": lambda out, batch, _: out.logits.sum() * float(batch.y.numpy()[0]),
    "as a list": lambda out, batch, _: out.logits.sum() * batch.y.tolist()[0],
    "behind .data": lambda out, batch, _: out.logits.sum() * batch.y.data[0],
    "as float": lambda out, batch, _: (out.logits.sum(1) * batch.y.float()).sum(),
    "as an index": lambda out, batch, _: out.logits.gather(1, batch.y[:, None]).sum(),
}


@pytest.mark.parametrize("how", READS)
def test_labels_that_are_not_declared_cannot_be_read(how: str, tmp_path: Path) -> None:
    target = with_loss(READS[how], reads_labels=False)
    with pytest.raises(TrainingError, match=r"phase 'encoder' reads labels.*reads_labels=True"):
        tiny_builder(str(tmp_path)).victim(tiny_spec(target))
    tiny_builder(str(tmp_path)).victim(tiny_spec(with_loss(cross_entropy)))


def test_the_number_of_labels_may_be_read(tmp_path: Path) -> None:
    def loss(out: Any, batch: Any, clock: Any) -> Tensor:
        del clock
        assert len(batch.y) == len(batch.x) == batch.y.shape[0]
        assert batch.y.device == batch.x.device
        total: Tensor = out.logits.sum() / replace(batch, views=2).y.size(0)
        return total

    target = with_loss(loss, reads_labels=False, prepare=lambda batch, _: batch)
    tiny_builder(str(tmp_path)).victim(tiny_spec(target))


@dataclass(frozen=True)
class Flipped(Defense):
    """Trains on labels moved by one."""

    name: ClassVar[str] = "flipped"
    protects: ClassVar[tuple[str, ...]] = ()

    def on_data(self, world: Any, ctx: Any) -> Any:
        del ctx
        return world.replace(members=world.members.with_y((world.members.y + 1) % 10))


def test_a_defense_that_flips_labels_never_gets_the_undefended_model(tmp_path: Path) -> None:
    target, builder = with_loss(cross_entropy, reads_labels=False), tiny_builder(str(tmp_path))
    for defenses in [(), (Flipped(),)]:  # under 0.2.0 both got the model of the first
        with pytest.raises(TrainingError, match="reads labels"):
            builder.victim(tiny_spec(target, defenses))


def reads_bright(out: Any, batch: Any, clock: Any) -> Tensor:
    del clock
    bright: Tensor = out.h.sum() * batch.attributes["bright"].sum()
    return F.cross_entropy(out.logits, batch.y) + bright


def test_attributes_that_are_not_declared_cannot_be_read(tmp_path: Path) -> None:
    builder = tiny_builder(str(tmp_path))
    with pytest.raises(TrainingError, match=r"reads attribute 'bright'.*reads_attributes"):
        builder.victim(tiny_spec(with_loss(reads_bright)))
    builder.victim(tiny_spec(with_loss(reads_bright, reads_attributes=("bright",))))


@pytest.mark.parametrize("where", ["stream", "wrap", "prepare"])
def test_nor_from_elsewhere(where: str, tmp_path: Path) -> None:
    def of_stream(out: Any, batch: Any, clock: Any) -> Tensor:
        del clock
        theirs = out.streams["other"]
        return F.cross_entropy(theirs.logits, batch.streams["other"].y)

    def change(phase: Phase) -> Phase:
        step = replace(phase.steps["train"], loss=lambda out, *_: out.logits.sum())
        made = replace(phase, steps={"train": step}, reads_labels=False)
        if where == "wrap":
            return replace(made, wrap=lambda run: run.rows.y.sum())
        if where == "prepare":
            return replace(made, prepare=lambda batch, _: replace(batch, y=batch.y * 2))
        stream = Stream(tiny_split().reference)
        step = replace(step, loss=of_stream, streams={"other": stream})
        return replace(made, steps={"train": step})

    with pytest.raises(TrainingError, match="reads labels"):
        tiny_builder(str(tmp_path)).victim(tiny_spec(changed(change)))


def test_matching_a_stream_by_class_reads_labels() -> None:
    phase = _phase()
    stream = Stream(tiny_split().reference, match="class")
    step = replace(phase.steps["train"], streams={"other": stream})
    replace(phase, steps={"train": step})
    with pytest.raises(ValueError, match=r"matches stream 'other' by class.*reads_labels=True"):
        replace(phase, steps={"train": step}, reads_labels=False)


def test_trainings_without_single_rows_withhold_them_too() -> None:
    split = tiny_split()
    model = TinyTarget().build(split.card, None)  # type: ignore[arg-type]
    phase = replace(_phase(), reads="embeddings", reads_labels=False)
    rows = replace(split.reference, x=split.reference.x / 255)
    with pytest.raises(TrainingError, match="reads labels"):
        refit(
            model, phase, rows, initial=dict(model.state_dict()) | {
                name.removeprefix("parts."): value for name, value in model.state_dict().items()
            }, seed=0, dropped=torch.tensor([0]), exchanged=torch.tensor([1]),
        )  # fmt: skip


def test_a_monitor_measures_labels_without_giving_them_away() -> None:
    """Its rows' labels are part of the phase's key."""
    from privbench import Monitor

    split = tiny_split()
    phase = replace(
        _phase(), reads_labels=False, monitor=Monitor({"reference": split.reference}),
        steps={"train": replace(_phase().steps["train"], loss=lambda o, *_: o.logits.sum())},
    )  # fmt: skip
    model = TinyTarget().build(split.card, None)  # type: ignore[arg-type]
    run = Training(model, phase, split.victim().members, 0)
    run.run()
    assert "reference.accuracy" in run.metrics


def _phase() -> Phase:
    return TinyTarget().phases(None, None, SimpleNamespace(protocol=tiny_split().protocol))[0]  # type: ignore[arg-type]
