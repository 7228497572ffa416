"""Loss traces: the checkpoints, the losses and LT-IQR by hand, and what the attack finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.oracles.toy_cell import toy_cell

import privbench
from privbench import BadInputError
from privbench.api.own_model.words import reworded
from privbench.measure.games.metrics import auc_band
from privbench.testing import tiny_builder, tiny_spec, tiny_split
from privbench.toolbox.kept_checkpoints import PART, Checkpoints, due, losses, reopened
from privbench_plugins.attacks.loss_trace import LossTrace, iqr, resampled
from privbench_plugins.defenses.early_stopping import EarlyStopping
from privbench_plugins.targets.supervised import Supervised
from privbench_plugins.targets.supervised_checkpoints import SupervisedCheckpoints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from privbench import Defense, Model, Target

#: 3 checkpoints of 7 epochs, after 2, 4 and 6.
TARGET = SupervisedCheckpoints(checkpoints=3, epochs=7, batch=40)
SUITE: dict[str, Any] = {
    "name": "traces", "datasets": ["digits"], "targets": ["supervised-checkpoints"],
    "adversaries": ["white-box"], "attacks": ["loss-trace"], "seeds": 1,
}  # fmt: skip
#: For cells whose numbers do not matter.
SHORT = {**SUITE, "targets": [{"supervised-checkpoints": {"epochs": 3, "checkpoints": 2}}],
         "attacks": [{"loss-trace": {"k": 1}}]}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def trained(folder: Path, target: Target, *defenses: Defense) -> Any:
    return tiny_builder(str(folder)).victim(tiny_spec(target, defenses))


def kept(model: Model) -> Checkpoints:
    part = model[PART]
    assert isinstance(part, Checkpoints)
    return part


def same(state: Any, model: Model) -> bool:
    """Whether encoder and classifier have equal weights."""
    pairs = [(state[name].state_dict(), model[name].state_dict())
             for name in ("encoder", "classifier")]  # fmt: skip
    return all(torch.equal(one[key], other[key]) for one, other in pairs for key in other)


def test_lt_iqr_by_hand() -> None:
    """Quartiles of 0, 1, 2, 3, 10 are its 2nd and 4th number; of 1, 2, 4, 8 they lie between."""
    assert iqr(torch.tensor([[10.0, 0.0, 2.0, 1.0, 3.0]])).tolist() == [2.0]
    assert iqr(torch.tensor([[8.0, 1.0, 4.0, 2.0]])).tolist() == [5.0 - 1.75]
    assert iqr(torch.tensor([[3.0], [7.0]])).tolist() == [0.0, 0.0]
    traces = np.random.default_rng(0).exponential(size=(50, 20))
    high, low = np.percentile(traces, [75, 25], axis=1)
    assert iqr(torch.from_numpy(traces)).numpy() == pytest.approx(high - low)


def test_points_of_a_trace() -> None:
    traces = torch.rand(4, 20, dtype=torch.float64)
    assert torch.allclose(resampled(traces, 20), traces)
    assert resampled(traces[:, :1], 3).tolist() == traces[:, :1].expand(4, 3).tolist()


def test_checkpoints_are_the_models_of_shorter_trainings(tmp_path: Path) -> None:
    victim = trained(tmp_path, TARGET)
    checkpoints = kept(victim.model)
    assert checkpoints.epochs.tolist() == due(7, 3) == [2, 4, 6]
    for epochs, state in zip((2, 4, 6, 7), [*checkpoints.states, victim.model.parts], strict=True):
        shorter = trained(tmp_path, Supervised(epochs=epochs, batch=40))
        assert same(state, shorter.model), epochs


def test_a_trace_holds_the_losses_of_these_models(tmp_path: Path) -> None:
    victim, rows = trained(tmp_path, TARGET), tiny_split().candidates
    found = losses(victim.model, rows.x, rows.y)
    for column, epochs in enumerate((2, 4, 6)):
        log_p = trained(tmp_path, Supervised(epochs=epochs, batch=40)).log_posteriors(rows.x)
        want = -log_p.gather(1, rows.y[:, None]).squeeze(1)
        assert torch.allclose(found[:, column], want, atol=1e-5)
    assert found.shape == (len(rows), 3)


def test_weights_alone_bring_the_checkpoints_back(tmp_path: Path) -> None:
    victim, rows = trained(tmp_path, TARGET), tiny_split().candidates
    spec = tiny_spec(TARGET)
    builder = tiny_builder(str(tmp_path))
    opened = reopened(builder.fresh(spec, seed=5), victim.weights())
    assert torch.equal(losses(opened, rows.x, rows.y), losses(victim.model, rows.x, rows.y))
    with pytest.raises(BadInputError, match="the victim kept no checkpoint"):
        reopened(builder.fresh(spec, seed=5), builder.fresh(spec, seed=6).state_dict())
    other = tiny_spec(TARGET.replace(checkpoints=2))
    with pytest.raises(BadInputError, match="do not fit its target: a defense changed the layers"):
        reopened(builder.fresh(other, seed=5), victim.weights())


def test_too_few_epochs_keep_fewer(tmp_path: Path) -> None:
    victim = trained(tmp_path, TARGET.replace(epochs=3, checkpoints=5))
    assert kept(victim.model).epochs.tolist() == [1, 2, 0, 0, 0]
    rows = tiny_split().candidates
    assert losses(victim.model, rows.x, rows.y).shape[1] == 2


def test_early_stopping_keeps_what_comes_before_the_epoch_that_it_restores(tmp_path: Path) -> None:
    each = TARGET.replace(epochs=40, checkpoints=39, lr=1e-4)
    victim = trained(tmp_path, each, EarlyStopping(epochs=None, patience=3))
    found = kept(victim.model)
    (phase,) = victim.facts["phases"]
    best = phase["epochs"] - 3
    assert 1 < best < 37
    assert found.epochs.tolist() == [*range(1, best), *[0] * (40 - best)]


@pytest.mark.slow
def test_members_are_found_and_a_null_victim_shows_nothing(tmp_path: Path) -> None:
    made = privbench.run(SUITE, out=tmp_path / "out", device="cpu")
    (record,) = made
    assert record.status == "ok", record.reason
    band = auc_band(record.sizes["members"], record.sizes["nonmembers"])
    found, null = record.metrics["auc"].value, record.controls["null"]["auc"].value
    assert found is not None and null is not None  # noqa: PT018
    assert found > 0.5 + band
    assert abs(null - 0.5) < band
    assert record.notes["losses_of_a_trace"] == 20


def test_who_has_no_checkpoints_is_skipped_and_told_why(tmp_path: Path) -> None:
    asked = {**SHORT, "targets": [*SHORT["targets"], {"supervised": {"epochs": 1}}],
             "defenses": ["none", "confidence-masking"]}  # fmt: skip
    made = {(one.cell.target.name, one.cell.defense): one
            for one in privbench.run(asked, out=tmp_path / "o", device="cpu")}  # fmt: skip
    assert made["supervised-checkpoints", "none"].status == "ok"
    masked = made["supervised-checkpoints", "confidence-masking"]
    assert "needs WEIGHTS, which target supervised-checkpoints under" in masked.reason
    assert "use supervised-checkpoints" in made["supervised", "none"].reason
    with pytest.raises(BadInputError, match="loss-trace needs WEIGHTS"):
        privbench.run({**SHORT, "adversaries": ["adaptive"]}, out=tmp_path / "b", device="cpu")


def test_an_audit_of_ones_own_model_says_so_in_words() -> None:
    reason = LossTrace().incompatible(toy_cell(target=Supervised()))
    assert reason is not None
    assert reworded("loss-trace", reason) == "only for models that privbench trains"


def test_a_defense_that_replaces_the_steps_fails_with_that_reason(tmp_path: Path) -> None:
    asked = {**SHORT, "defenses": ["label-smoothing", "mist"]}
    made = {one.cell.defense: one for one in privbench.run(asked, out=tmp_path / "o", device="cpu")}
    assert made["label-smoothing"].status == "ok", made["label-smoothing"].reason
    assert made["mist"].status == "failed"
    assert "a defense replaced the steps of its training" in made["mist"].reason


def test_dp_sgd_keeps_checkpoints_of_its_noisy_training(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    from privbench_plugins.defenses.dp_sgd import DPSGD

    private = DPSGD(noise_multiplier=1.0, accountant="rdp", batch=40)
    victim = trained(tmp_path, TARGET, private)
    assert kept(victim.model).epochs.tolist() == [2, 4, 6]
    assert not any(same(state, victim.model) for state in kept(victim.model).states)


def test_only_the_classifier_trains_shadows() -> None:
    assert LossTrace(k=3).shadows.count == 3
    assert LossTrace(score="iqr").shadows.count == 0
