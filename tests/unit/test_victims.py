"""Published victims: a release is made from a board, and loaded where nothing was trained."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from tests.unit.small_run import SUITE, SmallRun

import privbench
from privbench import BadInputError
from privbench.api.victims import SUMS
from privbench.cli.main import main as privbench_command
from privbench.ground.errors import UnknownNameError
from privbench.measure.training.loop import Training

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
release: Callable[..., str] = runpy.run_path(str(ROOT / "leaderboards" / "release_victims.py"))[
    "release"
]


@pytest.fixture
def boards(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as leaderboards/, with one board."""
    monkeypatch.setenv("PRIVBENCH_CACHE", str(small_run.store))
    folder = tmp_path / "boards"
    (folder / "suites").mkdir(parents=True)
    (folder / "results").mkdir()
    (folder / "suites" / "small.yaml").write_text(yaml.safe_dump({"name": "small", **SUITE}))
    results = folder / "results" / "small.jsonl"
    privbench_command(
        ["merge", str(small_run.folder), "--out", str(results)], standalone_mode=False
    )
    return folder


@pytest.fixture
def released(boards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The release, and an empty store in which nothing may be trained."""

    def refuse(*_given: Any) -> None:
        raise AssertionError("a published victim is trained")

    told = release(boards, "small", tmp_path / "release")
    assert "small, seeds [0, 1]" in told
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(Training, "run", refuse)
    return tmp_path / "release"


def test_published_victims_are_those_of_the_results(released: Path, small_run: SmallRun) -> None:
    found = privbench.victims("small", "confidence-masking", folder=released)
    assert [one.seed for one in found] == [0, 1]
    for one in found:
        records = [
            record for record in small_run.results
            if (record.seed, record.cell.defense) == (one.seed, "confidence-masking")
        ]  # fmt: skip
        held = one.world.members
        hits = one.served.labels(held.x) == held.y
        told = records[0].utility["train_accuracy"]
        assert hits.float().mean().item() == pytest.approx(told, abs=1e-6)
    plain = privbench.victims("small", folder=released)
    for ours, theirs in zip(plain, found, strict=True):  # masking changes answers, not weights
        torch.testing.assert_close(ours.model.state_dict(), theirs.model.state_dict())


def test_a_changed_file_is_refused(released: Path) -> None:
    with pytest.raises(UnknownNameError, match="talos"):
        privbench.victims("small", "talos", folder=released)
    assert not [*(released.parent / "empty").rglob("*.safetensors")]  # nothing for a typo
    with pytest.raises(
        BadInputError, match=f"{SUMS} in .* does not name digits.yaml: it has small"
    ):
        privbench.victims("digits", folder=released)
    file = released / "small.zip"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(BadInputError, match=r"has not the checksum .*: download it again"):
        privbench.victims("small", folder=released)
    file.unlink()
    with pytest.raises(BadInputError, match=r"has no small.zip: download it"):
        privbench.victims("small", folder=released)


def test_keys_do_not_depend_on_the_device_of_the_reader(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert len(privbench.victims("small", folder=released)) == 2
    monkeypatch.setattr(torch, "__version__", "99.0")
    with pytest.raises(BadInputError, match=r"torch 99\.0: install what made them"):
        privbench.victims("small", folder=released)


def test_sums_that_are_no_text_are_refused(released: Path) -> None:
    (released / SUMS).write_bytes("x".encode("utf-16"))
    with pytest.raises(BadInputError, match="has no SHA256SUMS: download it with"):
        privbench.victims("small", folder=released)


def test_victims_of_other_code_are_not_trained_instead(released: Path) -> None:
    suite, sums = released / "small.yaml", released / SUMS
    before = hashlib.sha256(suite.read_bytes()).hexdigest()
    suite.write_text(suite.read_text().replace("epochs: 3", "epochs: 4"))  # other victims
    after = hashlib.sha256(suite.read_bytes()).hexdigest()
    sums.write_text(sums.read_text().replace(before, after))
    with pytest.raises(
        BadInputError, match=r"of another code or torch\. Trained by code .* Here are code .*torch"
    ):
        privbench.victims("small", folder=released)


def test_a_release_is_refused_if_it_is_too_large_or_of_other_code(
    boards: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=r"more than 0.1: give fewer --seeds"):
        release(boards, "small", tmp_path / "release", max_mib=0.1)
    told = release(boards, "small", tmp_path / "release", seeds=1)
    assert "seeds [0]" in told
    told = release(boards, "small", tmp_path / "release", defenses=["confidence-masking"])
    assert "seeds [0, 1]" in told
    assert len(privbench.victims("small", "confidence-masking", folder=tmp_path / "release")) == 2
    with pytest.raises(BadInputError, match=r"has no defense talos: it has confidence-masking"):
        release(boards, "small", tmp_path / "release", defenses=["talos"])
    suite = boards / "suites" / "small.yaml"
    suite.write_text(suite.read_text().replace("epochs: 3", "epochs: 4"))
    with pytest.raises(BadInputError, match="other code or another suite"):
        release(boards, "small", tmp_path / "release")
    with pytest.raises(BadInputError, match=r"there is no .*absent.yaml"):
        release(boards, "absent", tmp_path / "release")


@pytest.mark.slow
def test_a_student_is_released_without_its_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    for name in ("suites", "results"):
        (tmp_path / name).mkdir()
    suite = {"name": "taught", "attacks": ["metric-loss"], "defenses": ["dmp"],
             "targets": [{"supervised": {"epochs": 2}}]}  # fmt: skip
    (tmp_path / "suites" / "taught.yaml").write_text(yaml.safe_dump(suite))
    privbench.run(suite, out=tmp_path / "run", device="cpu")
    results = str(tmp_path / "results" / "taught.jsonl")
    privbench_command(["merge", str(tmp_path / "run"), "--out", results], standalone_mode=False)
    told = release(tmp_path, "taught", tmp_path / "release")
    assert told.startswith("3 artifacts")  # the victim of none, labels, the student
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(Training, "run", None)
    assert len(privbench.victims("taught", "dmp", folder=tmp_path / "release")) == 1
