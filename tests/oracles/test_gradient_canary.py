"""Gradient canaries: what DP-SGD's adversary sees, by hand, and what the attack makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import privbench
from privbench import BadInputError
from privbench.measure.games.metrics import auc_band

pytest.importorskip("opacus")

from privbench.toolbox import gradient_canaries
from privbench.toolbox.gradient_canaries import LENGTH, PART, directions
from privbench_plugins.attacks.gradient_canary import GradientCanary, log_ratios

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITE: dict[str, Any] = {
    "name": "canaries", "datasets": ["digits"],
    "protocols": [{
        "name": "canaries", "members": 100, "nonmembers": 100, "pool": 200, "test": 50,
        "inclusion": "coin",
    }],
    "targets": [{"supervised": {"epochs": 2}}], "adversaries": ["white-box"],
    "attacks": ["gradient-canary"], "seeds": 1,
    "defenses": [{"dp-sgd": {"noise_multiplier": 0.4, "accountant": "rdp", "batch": 20,
                             "gradient_canaries": True}}],
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def trained(cache: None) -> Any:
    del cache
    return privbench.load(SUITE, defense="dp-sgd", device="cpu")


def test_a_score_is_the_likelihood_ratio_of_a_sampled_row() -> None:
    z = np.array([[0.3, 1.2], [-0.5, 0.1]])
    q, sigma = 0.2, 0.7
    out, inside = norm.pdf(z, 0, sigma), norm.pdf(z, 1, sigma)
    want = np.log(((1 - q) * out + q * inside) / out).sum(1)
    assert log_ratios(torch.from_numpy(z), q, sigma).numpy() == pytest.approx(want)
    extreme = torch.full((1, 3), 1e4)
    assert log_ratios(extreme, 1.0, 0.1).isfinite().all()
    assert log_ratios(extreme, 0.5, 0.0).isfinite().all()


def test_canaries_are_unit_vectors_of_their_rows_and_nearly_orthogonal() -> None:
    keys = torch.arange(200)
    made = directions(keys, 4096)
    assert torch.allclose(made.norm(dim=1), torch.ones(200))
    assert torch.equal(directions(keys[[7, 3]], 4096), made[[7, 3]])
    products = (made @ made.T)[~torch.eye(200, dtype=torch.bool)]
    assert abs(products.std() * 64 - 1) < 0.05
    assert products.abs().max() < 7 / 64


def test_the_steps_hold_the_canaries_of_members_and_the_noise(trained: Any) -> None:
    (phase,) = (name for name in trained.model.parts if name.startswith(PART))
    kept = trained.model[phase]
    members = trained.world.members
    n = len(members)
    assert float(kept.rate) == pytest.approx(20 / n)
    assert float(kept.noise) == pytest.approx(0.4)
    assert float(kept.batch) == pytest.approx(20)  # rows of a step, on average
    steps = 2 * -(-n // 20)
    assert kept.steps.shape == (steps, 4096)
    z = directions(members.keys, 4096) @ kept.steps.T  # 1 where the step used the row, plus noise
    used = z.mean()
    spread = np.sqrt(0.4**2 + 20 / n + 20 / 4096)
    assert abs(used - 20 / n) < 5 * spread / np.sqrt(n * steps)
    outside = directions(torch.arange(1000), 4096) @ kept.steps.T
    wide = np.sqrt(0.4**2 + 20 / 4096)  # the noise, and canaries that are not quite orthogonal
    assert abs(outside.std() / wide - 1) < 0.05


def test_every_gradient_is_cut_to_clip(trained: Any) -> None:
    """The squared length of a step is about the rows that it used, and the noise."""
    steps = trained.model[next(n for n in trained.model.parts if n.startswith(PART))].steps
    squared = float((steps**2).sum(1).mean())
    assert squared == pytest.approx(20 + 0.16 * 4096, rel=0.03)
    assert LENGTH > 1


def test_members_are_found_and_a_null_victim_shows_nothing(tmp_path: Any) -> None:
    made = privbench.run(SUITE, out=tmp_path / "out", device="cpu")
    assert {one.status for one in made if one.cell.defense == "none"} == {"skipped"}
    (record,) = (one for one in made if one.cell.defense != "none")
    n = record.sizes["members"], record.sizes["nonmembers"]
    assert record.status == "ok", record.reason
    found, null = record.metrics["auc"].value, record.controls["null"]["auc"].value
    right = record.metrics["balanced_accuracy"].value
    assert found is not None and null is not None and right is not None  # noqa: PT018
    assert found > 0.9
    assert abs(null - 0.5) < auc_band(*n)
    assert right > 0.8  # the sign of the score is a decision
    assert record.notes["canary_phases"] == 1


def test_without_canaries_the_cell_is_skipped_with_a_reason(tmp_path: Any) -> None:
    plain = {**SUITE, "defenses": ["dp-sgd", "none"]}
    with pytest.raises(BadInputError, match="use dp-sgd with gradient_canaries: true"):
        privbench.run(plain, out=tmp_path / "o", device="cpu")


def test_no_other_attack_meets_a_model_of_canaries(tmp_path: Any) -> None:
    asked = {**SUITE, "attacks": ["nn-mia"]}
    made = privbench.run(asked, out=tmp_path / "o", device="cpu")
    (record,) = (one for one in made if one.cell.defense != "none")
    assert record.status == "skipped"
    assert "only gradient-canary may attack it" in record.reason


def test_a_black_box_adversary_reads_no_steps(tmp_path: Any) -> None:
    asked = {**SUITE, "adversaries": ["adaptive"]}
    with pytest.raises(BadInputError, match="gradient-canary needs WEIGHTS"):
        privbench.run(asked, out=tmp_path / "o", device="cpu")


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(gradient_canaries, "_MOST", 4096 * 3)
    longer = {**SUITE, "targets": [{"supervised": {"epochs": 3}}]}  # not in the store
    made = privbench.run(longer, out=tmp_path / "o", device="cpu")
    (record,) = (one for one in made if one.cell.defense != "none")
    assert record.status == "failed"
    assert "train for at most 3 steps" in record.reason


def test_the_defense_without_canaries_keeps_nothing() -> None:
    plain = {**SUITE, "defenses": [{"dp-sgd": {"noise_multiplier": 0.5, "accountant": "rdp"}}],
             "attacks": ["nn-mia"]}  # fmt: skip
    made = privbench.load(plain, defense="dp-sgd", device="cpu")
    assert not any(name.startswith(PART) for name in made.model.parts)


def test_other_canaries_are_noise_too_by_hand() -> None:
    """Canaries are nearly orthogonal: each of a batch adds a variance of 1 / length to others."""
    keys, length, batch = torch.arange(6), 64, 48.0
    steps = torch.randn(5, length, generator=torch.Generator().manual_seed(0))
    held = {f"{PART}x.steps": steps, f"{PART}x.noise": torch.tensor(0.5),
            f"{PART}x.rate": torch.tensor(0.2), f"{PART}x.batch": torch.tensor(batch)}  # fmt: skip
    answer = GradientCanary().answer(
        SimpleNamespace(weights=lambda: held),  # type: ignore[arg-type]
        SimpleNamespace(examples=SimpleNamespace(keys=keys)),  # type: ignore[arg-type]
        SimpleNamespace(note=lambda **_: None),  # type: ignore[arg-type]
    )
    spread = (0.5**2 + batch / length) ** 0.5
    want = log_ratios(directions(keys, length) @ steps.T, 0.2, spread)
    torch.testing.assert_close(answer.scores, want)
    assert (want - log_ratios(directions(keys, length) @ steps.T, 0.2, 0.5)).abs().min() > 1e-3
