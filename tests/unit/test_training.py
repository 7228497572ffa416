"""The one training loop: what changes when, at which rate, on which rows."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privbench.measure.data.examples import Card, Examples
from privbench.measure.training.loop import Training, _Best
from privbench.measure.training.model import Model
from privbench.measure.training.phase import (
    Batch,
    BatchSpec,
    Clock,
    Monitor,
    Optimizer,
    Outputs,
    Phase,
    Step,
    Stream,
    TrainingError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

CARD = Card(name="fake", kind="real", shape=(6,), classes=3, scale=1, sources={"all": 1})
ADAM = Optimizer("adam", 1e-2)


def _rows(n: int = 20, seed: int = 0) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=generator)
    return Examples.of(x, torch.arange(n) % 3, scale=1)


def _model(*, dropout: float = 0.0) -> Model:
    def linear(a: int, b: int, seed: int) -> nn.Linear:
        made = nn.Linear(a, b)
        with torch.no_grad():
            for p in made.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) / 3)
        return made

    encoder = nn.Sequential(linear(6, 5, 1), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout))
    return Model(
        CARD, {"encoder": encoder, "classifier": linear(5, 3, 2), "other": linear(5, 2, 3)}
    )


def _forward(model: Model, batch: Batch) -> Outputs:
    h = model.encode(batch.x)
    return Outputs(h=h, logits=lambda: model.logits(h), guess=lambda: model["other"](h.detach()))


def _loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
    del clock
    return F.cross_entropy(out.logits, batch.y)


def _phase(**changes: Any) -> Phase:
    fields: dict[str, Any] = {
        "name": "encoder", "rows": "members", "forward": _forward,
        "steps": {"train": Step(_loss, trains=("encoder", "classifier"))}, "epochs": 2,
        "batch": BatchSpec(8), "optimizers": {"encoder": ADAM, "classifier": ADAM},
    }  # fmt: skip
    return Phase(**{**fields, **changes})


def _state(model: Model, *parts: str) -> dict[str, Tensor]:
    return {
        f"{p}.{n}": t.clone()
        for p in parts or model.parts
        for n, t in model[p].state_dict().items()
    }


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


def _run(
    phase: Phase, model: Model | None = None, rows: Examples | None = None, seed: int = 0
) -> Model:
    model = model or _model()
    Training(model, phase, rows or _rows(), seed).run()
    return model


# ---- which parts ---------------------------------------------------------------------------------


def test_only_what_the_step_trains_changes_and_is_in_train_mode() -> None:
    seen: list[dict[str, tuple[bool, bool]]] = []

    def loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        seen.append({n: (m.training, all(p.requires_grad for p in m.parameters()))
                     for n, m in model.parts.items()})  # fmt: skip
        return F.cross_entropy(out.guess, batch.y % 2) + 0 * clock.step

    model = _model()
    steps = {"a": Step(loss, trains=("other",)),
             "b": Step(_loss, trains=("classifier",), live=("encoder",))}  # fmt: skip
    phase = _phase(
        steps=steps, schedule=lambda epoch, _: "a" if epoch == 1 else "b",
        optimizers={"other": ADAM, "classifier": ADAM},
    )  # fmt: skip
    before = _state(model, "encoder", "classifier")
    training = Training(model, replace(phase, epochs=1), _rows(), 0)
    training.run()
    assert _same(before, _state(model)), "batch norm of the encoder must not move either"
    assert seen[0] == {
        "encoder": (False, False), "classifier": (False, False), "other": (True, True),
    }  # fmt: skip
    assert not any(m.training for m in model.modules())
    assert not any(p.requires_grad for p in model.parameters())


def test_a_live_part_is_in_train_mode_without_gradients() -> None:
    model = _model()
    phase = _phase(
        steps={"train": Step(_loss, trains=("classifier",), live=("encoder",))},
        optimizers={"classifier": ADAM},
    )
    before = _state(model)
    _run(phase, model)
    after = _state(model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {n for n in moved if n.startswith("encoder")} == {
        "encoder.1.running_mean", "encoder.1.running_var", "encoder.1.num_batches_tracked",
    }  # fmt: skip
    assert "classifier.weight" in moved


def test_a_step_without_optimizer_and_steps_without_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="trains 'other', which has no optimizer"):
        _phase(steps={"train": Step(_loss, trains=("other",))})
    step = Step(_loss, trains=("encoder",))
    with pytest.raises(ValueError, match="set `schedule`"):
        _phase(steps={"a": step, "b": step})


# ---- one step by hand ----------------------------------------------------------------------------


def _plain(model: Model, rows: Examples, optimizer: torch.optim.Optimizer) -> Tensor:
    model.train()
    h = model["encoder"](rows.x)
    loss = F.cross_entropy(model["classifier"](h), rows.y)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_steps_equal_plain_torch(kind: Any) -> None:
    """In float64: Adam divides by small gradients, which magnifies float32's rounding."""
    spec = Optimizer(kind, 0.1, weight_decay=0.01, momentum=0.9 if kind == "sgd" else 0.0)
    rows, model, twin = _rows(7), _model().double(), _model().double()
    rows = replace(rows, x=rows.x.double())
    phase = _phase(batch=BatchSpec(64), epochs=3, optimizers={"encoder": spec, "classifier": spec})
    _run(phase, model, rows)
    used = [*twin["encoder"].parameters(), *twin["classifier"].parameters()]
    optimizer = (
        torch.optim.SGD(used, lr=0.1, momentum=0.9, weight_decay=0.01)
        if kind == "sgd" else torch.optim.Adam(used, lr=0.1, weight_decay=0.01)
    )  # fmt: skip
    for _ in range(3):
        _plain(twin, rows, optimizer)
    for name, tensor in _state(model).items():
        assert torch.allclose(tensor, _state(twin)[name], rtol=0, atol=1e-9), name


def test_grouped_optimizers_equal_separate_ones() -> None:
    grouped = Training(_model(), _phase(), _rows(), 0)
    assert list(grouped.optimizers) == [("encoder", "classifier")]
    apart = replace(ADAM, weight_decay=1e-30)  # another setting, the same numbers
    separate = Training(
        _model(), _phase(optimizers={"encoder": ADAM, "classifier": apart}), _rows(), 0
    )
    assert len(separate.optimizers) == 2
    grouped.run()
    separate.run()
    for name, tensor in _state(grouped.model).items():
        assert torch.allclose(tensor, _state(separate.model)[name], atol=1e-7), name


# ---- learning rates ------------------------------------------------------------------------------


def _rates(per: Any, schedule: Any = None, epochs: int = 4) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"encoder": [], "other": []}

    def note(part: str) -> Any:
        def loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
            (group,) = next(
                o for parts, o in training.optimizers.items() if part in parts
            ).param_groups
            found[part].append(group["lr"])
            return _loss(out, batch, clock) + out.guess.sum()

        return loss

    cosine = Optimizer("sgd", 0.1, schedule="cosine", per=per)
    phase = _phase(
        steps={"a": Step(note("encoder"), trains=("encoder",)),
               "b": Step(note("other"), trains=("other",))},
        schedule=schedule, optimizers={"encoder": cosine, "other": cosine}, epochs=epochs,
    )  # fmt: skip
    training = Training(_model(), phase, _rows(24), 0)
    training.run()
    return found


def test_cosine_per_step_counts_the_parts_own_updates() -> None:
    rates = _rates("step", lambda epoch, _: "a" if epoch % 2 else "b")
    want = [0.05 * (1 + math.cos(math.pi * i / 6)) for i in range(6)]  # 2 epochs of 3 steps
    assert rates["encoder"] == pytest.approx(want)
    assert rates["other"] == pytest.approx(want)


def test_cosine_per_epoch_stays_within_an_epoch() -> None:
    rates = _rates("epoch", lambda epoch, _: "b" if epoch == 2 else "a", epochs=5)
    levels = [0.05 * (1 + math.cos(math.pi * e / 4)) for e in range(4)]
    assert rates["encoder"] == pytest.approx([r for r in levels for _ in range(3)])
    assert rates["other"] == pytest.approx([0.1] * 3)


def test_schedules_within_an_epoch() -> None:
    rates = _rates("step", lambda _, i: "b" if i == 2 else "a", epochs=2)
    assert len(rates["encoder"]) == 4
    assert len(rates["other"]) == 2
    assert rates["other"][1] == pytest.approx(0.05)


# ---- batches -------------------------------------------------------------------------------------


def _batches(phase: Phase, rows: Examples, seed: int = 0) -> list[Tensor]:
    drawn: list[Tensor] = []

    def prepare(batch: Batch, uniforms: Any) -> Batch:
        del uniforms
        drawn.append(batch.rows)
        return batch

    _run(replace(phase, prepare=prepare), rows=rows, seed=seed)
    return drawn


def test_each_row_comes_once_per_epoch() -> None:
    drawn = _batches(_phase(epochs=2), _rows(20))
    assert [len(rows) for rows in drawn] == [8, 8, 4, 8, 8, 4]
    for epoch in (drawn[:3], drawn[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(20))
    assert not torch.equal(torch.cat(drawn[:3]), torch.cat(drawn[3:]))


def test_drop_last_leaves_out_the_smaller_batch_and_few_rows_make_one() -> None:
    assert [
        len(r) for r in _batches(_phase(batch=BatchSpec(8, drop_last=True), epochs=1), _rows())
    ] == [8, 8]
    few = _phase(batch=BatchSpec(64, drop_last=True), epochs=1)
    assert [len(r) for r in _batches(few, _rows(5))] == [5]
    assert BatchSpec(8, "poisson", drop_last=True).steps(20) == 3


def test_no_rows_are_an_error() -> None:
    with pytest.raises(TrainingError, match="no rows"):
        Training(_model(), _phase(), _rows().select(slice(0, 0)), 0)


def test_poisson_batches_vary_and_empty_ones_take_their_step() -> None:
    phase = _phase(
        steps={"train": Step(_loss, trains=("classifier",))}, optimizers={"classifier": ADAM},
        batch=BatchSpec(2, "poisson"), epochs=30,
    )  # fmt: skip
    drawn = _batches(phase, _rows())
    sizes = torch.tensor([len(rows) for rows in drawn]).double()
    assert len(drawn) < 300, "an empty batch is not prepared"
    mean = float(sizes.sum()) / 300
    assert 1.7 < mean < 2.3
    assert len(set(sizes.tolist())) > 3
    training = Training(_model(), phase, _rows(), 0)
    assert training.run()["updates"] == {"classifier": 300}
    assert all(bool(t.isfinite().all()) for t in _state(training.model).values())


# ---- streams -------------------------------------------------------------------------------------


def _streamed(**streams: Stream) -> list[dict[str, Batch]]:
    seen: list[dict[str, Batch]] = []

    def loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        assert set(out.streams) == set(streams)
        assert all(len(out.streams[n].h) == len(batch.streams[n].y) for n in streams)
        seen.append({"": batch, **batch.streams})
        return _loss(out, batch, clock)

    step = Step(loss, trains=("encoder", "classifier"), streams=streams)
    _run(_phase(steps={"train": step}, epochs=4))
    return seen


def test_a_stream_comes_in_shuffled_passes() -> None:
    seen = [b["ref"].rows for b in _streamed(ref=Stream(_rows(10, seed=5), size=5))]
    passes = [torch.cat(seen[i : i + 2]) for i in range(0, 12, 2)]
    assert all(sorted(p.tolist()) == list(range(10)) for p in passes)
    assert len({tuple(p.tolist()) for p in passes}) == 6
    assert [len(b["ref"].y) for b in _streamed(ref=Stream(_rows(10)))] == [8, 8, 4] * 4


def test_a_matched_stream_has_the_classes_of_the_batch() -> None:
    seen = _streamed(ref=Stream(_rows(30, seed=5), match="class"))
    assert all(torch.equal(b["ref"].y, b[""].y) for b in seen)
    assert len(set(torch.cat([b["ref"].rows for b in seen]).tolist())) > 20


def test_steps_may_have_different_streams_of_one_name() -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}

    def note(name: str) -> Any:
        def loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
            seen[name] += batch.streams["ref"].y.tolist()
            return _loss(out, batch, clock)

        return loss

    streams = {
        "a": Stream(_rows(9).with_y(torch.zeros(9, dtype=torch.long)), size=3),
        "b": Stream(_rows(4).with_y(torch.ones(4, dtype=torch.long)), size=2),
    }
    steps = {
        name: Step(note(name), trains=("encoder", "classifier"), streams={"ref": stream})
        for name, stream in streams.items()
    }
    _run(_phase(steps=steps, schedule=lambda _, i: "ab"[i % 2]))
    assert seen == {"a": [0] * 3 * 4, "b": [1] * 2 * 2}


# ---- between epochs ------------------------------------------------------------------------------


def test_early_stopping_brings_back_the_best_state() -> None:
    held = _rows(12, seed=9).with_y(torch.tensor([2, 1, 0] * 4))  # labels that training contradicts
    states: list[dict[str, Tensor]] = []
    losses: list[float] = []

    def note(model: Model, clock: Clock) -> None:
        if clock.step == 0 and clock.epoch > 1:
            losses.append(clock.metrics["held.loss"])
            states.append(_state(model))

    model = _model()
    fast = Optimizer("adam", 0.05)
    phase = _phase(
        steps={"train": Step(_loss, trains=("encoder", "classifier"), before=note)}, epochs=60,
        optimizers={"encoder": fast, "classifier": fast},
        monitor=Monitor({"held": held}, watch="held.loss", patience=3),
    )  # fmt: skip
    facts = Training(model, phase, _rows(), 0).run()
    assert facts["epochs"] < 60
    best = min(range(len(losses)), key=losses.__getitem__)
    assert facts["epochs"] == best + 1 + 3
    assert _same(states[best], _state(model))
    expected = F.cross_entropy(model.logits(model.encode(held.x)), held.y)
    assert losses[best] == pytest.approx(float(expected), rel=1e-5)


def test_without_patience_the_last_state_stays() -> None:
    plain = _run(_phase(epochs=5))
    watched = _run(_phase(epochs=5, monitor=Monitor({"reference": _rows(6, seed=3)})))
    assert _same(_state(plain), _state(watched))


def test_wrap_is_entered_and_left() -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def wrap(training: Training) -> Iterator[None]:
        events.append(f"in {training.updates['encoder']}")
        yield
        events.append(f"out {training.updates['encoder']}")

    _run(_phase(wrap=wrap))
    assert events == ["in 0", "out 6"]


def test_before_and_after_belong_to_the_step() -> None:
    events: list[str] = []
    step = Step(
        _loss, trains=("encoder", "classifier"),
        before=lambda _, clock: events.append(f"before {clock.step}"),
        after=lambda _, out: events.append(f"after {out.h.shape[0]}"),
    )  # fmt: skip
    _run(_phase(steps={"train": step}, epochs=1))
    assert events == ["before 0", "after 8", "before 1", "after 8", "before 2", "after 4"]


def test_weights_that_are_not_finite_raise() -> None:
    nan = Step(lambda out, b, c: _loss(out, b, c) * torch.nan, trains=("encoder", "classifier"))
    with pytest.raises(TrainingError, match=r"left parts\.encoder.*not finite"):
        _run(_phase(steps={"train": nan}))


# ---- randomness and precision --------------------------------------------------------------------


def test_the_seed_decides_and_the_global_generator_does_not() -> None:
    def run(noise: int, seed: int) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(noise)
            return _state(_run(_phase(), _model(dropout=0.5), seed=seed))

    assert _same(run(1, 0), run(2, 0))
    assert not _same(run(1, 0), run(1, 1))


def test_training_leaves_the_global_generator_alone() -> None:
    model = _model(dropout=0.5)
    before = torch.random.get_rng_state()
    _run(_phase(), model)
    assert torch.equal(before, torch.random.get_rng_state())


def test_views_are_drawn_from_the_phases_generator() -> None:
    def prepare(batch: Batch, uniforms: Any) -> Batch:
        drawn.append(uniforms(3))
        return batch

    drawn: list[Tensor] = []
    _run(_phase(prepare=prepare, epochs=1))
    first, drawn = drawn, []
    _run(_phase(prepare=prepare, epochs=1))
    assert all(torch.equal(a, b) for a, b in zip(first, drawn, strict=True))
    assert first[0].shape == (8, 3)
    assert not torch.equal(first[0], first[1])


def test_bfloat16_reaches_outputs_that_are_computed_late_and_losses_read_float32() -> None:
    kinds: list[torch.dtype] = []

    def forward(model: Model, batch: Batch) -> Outputs:
        h = model["encoder"][0](batch.x)  # type: ignore[index]

        def logits() -> Tensor:
            made: Tensor = model.logits(h)
            kinds.extend((h.dtype, made.dtype))
            return made

        return Outputs(h=h, logits=logits)

    def loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        assert out.h.dtype == out.logits.dtype == torch.float32
        assert model["other"](out.h).dtype == torch.float32  # an adversary inside a loss
        return _loss(out, batch, clock)

    model = _model()
    step = Step(loss, trains=("encoder", "classifier"))
    phase = _phase(steps={"train": step}, forward=forward)
    Training(model, phase, _rows(), 0, bf16=True).run()
    assert set(kinds) == {torch.bfloat16}


def test_outputs_name_what_there_is() -> None:
    with pytest.raises(AttributeError, match="outputs have no 'z': choose from h, logits"):
        _ = Outputs(h=torch.ones(1), logits=torch.ones(1)).z


def test_an_equal_measurement_is_no_improvement() -> None:
    """A loss that stands still ends training; the state of its first measurement is kept."""
    model = nn.Linear(1, 1)
    best = _Best(Monitor({}, watch="loss", patience=2))
    told = []
    for loss, weight in ((3.0, 0.0), (2.0, 1.0), (2.0, 2.0), (2.0, 3.0)):
        with torch.no_grad():
            model.weight.fill_(weight)
        told.append(best.stop(model, {"loss": loss}))  # type: ignore[arg-type]
    assert told == [False, False, False, True]
    best.restore(model)  # type: ignore[arg-type]
    assert model.weight.item() == 1.0
