"""Defenses tried in an audit: leak and accuracy before and after, on a model that is finished."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.test_own_model import (
    MEMBERS,
    NONMEMBERS,
    SHADOW,
    auc,
    files,
    forest,
    run,
)

import privbench
from privbench import BadInputError
from privbench.api.own_model.document import schema
from privbench.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def test_masks_hide_confidence_and_not_labels(tmp_path: Path) -> None:
    found = run(
        tmp_path, forest(MEMBERS), defenses=["confidence-masking", "memguard"],
        fail_above={"auc": 0.72},
    )  # fmt: skip
    masked, guarded = found.defended
    # an attack on labels meets no defense; one on confidence falls back to it
    assert auc(masked.records, "metric-correctness") == auc(found, "metric-correctness") > 0.6
    assert auc(masked.records) == auc(masked.records, "metric-correctness") < auc(found) - 0.1
    words = masked.words
    assert f"AUC {auc(found):.3f} (95 % interval " in words
    assert f"-> {auc(masked.records):.3f} (95 % interval " in words
    assert "accuracy on nonmembers 66.0% -> 66.0%" in words
    assert "no attack that it names as its judge ran, so it may protect less" in words
    assert "left out: label-lira, rows of the adversary's own are needed" in words
    assert guarded.words == (
        "With memguard: not tried: it learns from rows that the model has not seen: give shadow "
        "rows."
    )
    assert f"\n{masked.words}\n{guarded.words}\n" in found.summary
    # the verdict and the gate are about the model as it is
    assert {one.cell.defense for one in found} == {"none"}
    assert "leaks who its members are" in found.summary
    assert found.gate.outcome == "failed"
    assert all("masking" not in one.attack for one in found.gate.thresholds[0].found)
    told = json.loads((tmp_path / "out" / "audit.json").read_bytes())
    jsonschema.validate(told, schema())
    first, second = told["defenses"]
    assert first["defense"] == "confidence-masking"
    assert first["words"] == masked.words
    assert first["judges"].keys() == {"label-lira"}
    assert {one["status"] for one in first["attacks"]} == {"ran", "not run"}
    assert {one["status"] for one in second["attacks"]} == {"not run"}
    same = privbench.compare(tmp_path / "out", tmp_path / "out")
    ran = {one.cell.attack.label for one in found if one.status == "ok"}
    assert {one.attack for one in same.attacks} == ran


@pytest.mark.slow
def test_a_judge_with_shadows_runs(tmp_path: Path) -> None:
    found = run(
        tmp_path, forest(MEMBERS), attacks=["metric-confidence"], defenses="confidence-masking",
        shadow=SHADOW, shadow_recipe="clone", settings={"label-lira": {"k": 2, "queries": 8}},
    )  # fmt: skip
    (masked,) = found.defended
    assert masked.judges == {"label-lira": ""}
    assert "judged by label-lira(k=2, queries=8)" in masked.words  # weaker than at full strength
    assert auc(masked.records, "label-lira") == auc(found, "label-lira")


@pytest.mark.slow
def test_a_defense_has_a_quarter_of_the_shadow_rows(tmp_path: Path) -> None:
    found = run(
        tmp_path, forest(MEMBERS), attacks=["metric-confidence"], defenses="memguard",
        shadow=SHADOW, shadow_recipe="clone",
        settings={
            "label-lira": {"k": 2, "queries": 8, "rows": 100},
            "memguard": {"epochs": 5, "updates": 1000},
        },
    )  # fmt: skip
    (guarded,) = found.defended
    assert guarded.judges == {"label-lira": "", "nn-mia": "", "metric-modified-entropy": ""}
    protocol = found[0].cell.protocol
    n = len(SHADOW["x"])
    assert (protocol["reference"], protocol["pool"]) == (n // 4, n - n // 4)
    assert auc(guarded.records, "metric-confidence") < auc(found, "metric-confidence") - 0.1
    assert guarded.records[0].utility["test_accuracy"] == found[0].utility["test_accuracy"]


def test_noise_on_the_embeddings_of_an_encoder(tmp_path: Path) -> None:
    """The encoder gives members away by one coordinate, and noise hides that."""

    def fit(x: Any, _: Any, seed: int) -> Any:
        known = {row.tobytes() for row in np.round(x, 3)}

        def encoder(rows: Any) -> Any:
            seen = np.array([row.tobytes() in known for row in np.round(rows, 3)], float)
            return np.stack([seen, *np.random.default_rng(seed).random((2, len(rows)))], 1)

        return encoder

    members = np.asarray(MEMBERS["x"], np.float32)
    settings = {"uniform-noise": {"bound": 12.0}, "encoder-feature": {"epochs": 10, "steps": 200}}
    found = run(
        tmp_path, fit(members, None, 0), attacks=["encoder-feature"], defenses="uniform-noise",
        shadow=SHADOW, shadow_recipe=fit, settings=settings,
    )  # fmt: skip
    (noisy,) = found.defended
    assert auc(found, "encoder-feature") > 0.9
    assert auc(noisy.records, "encoder-feature") < 0.8
    assert noisy.judges == {"reconstruction": "its game, reconstruction, is not asked about a "
                            "finished model"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dp-sgd", r"changes how a model is trained \(build, phases\), and this one is finished"),
        ("hamp", r"changes how a model is trained \(phases\)"),
        ("uniform-noise", "it changes embeddings, and this model answers posteriors: leave it out"),
        ("none", "changes nothing that the model answers"),
        ("confidance-masking", "did you mean 'confidence-masking'"),
    ],
)
def test_what_cannot_be_tried_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        run(tmp_path, forest(MEMBERS), defenses=name)


def test_a_defense_that_trains_is_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    def ask(x: object) -> object:
        raise AssertionError(x)

    with pytest.raises(BadInputError, match="this one is finished"):
        run(tmp_path, ask, defenses="dp-sgd")


def test_the_command_refuses_and_tries(tmp_path: Path) -> None:
    sets = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    command = ["audit", "--model", "tests.unit.test_own_model:overfit", *sets,
               "--out", str(tmp_path / "out"), "--attack", "metric-confidence"]  # fmt: skip
    refused = CliRunner().invoke(main, [*command, "--defense", "dp-sgd"])
    assert refused.exit_code == 2, refused.output
    assert "this one is finished" in refused.output
    tried = CliRunner().invoke(main, [*command, "--defense", "hamp", "--set", "hamp.part=testing"])
    assert tried.exit_code == 0, tried.output
    assert "With hamp(part=testing): AUC " in tried.output
