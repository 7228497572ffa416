"""Two versions of a model: paired tests against exact cases, and what is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import kstest, norm

import privbench
from privbench import BadInputError
from privbench.cli.main import main
from privbench.measure.games.metrics import tpr_at_fpr
from privbench.results.paired import auc_change, tpr_change
from privbench.testing import rate_band

if TYPE_CHECKING:
    from pathlib import Path

DRAW = np.random.default_rng(0)
MEMBERS, OTHERS = (
    dict[str, Any]({"x": DRAW.random((100, 4), np.float32), "y": np.arange(100) % 2})
    for _ in range(2)
)


def careful(x: Any) -> Any:
    return np.full((len(x), 2), 0.5)


def careless(x: Any) -> Any:
    """Surer of half of the members."""
    known = (np.abs(x[:, None] - MEMBERS["x"][:50]).max(2) < 1e-3).any(1)
    return np.where(known[:, None], [0.9, 0.1], [0.5, 0.5])


def scores(draw: Any, n: int, lead: float) -> tuple[Any, Any, Any]:
    """Two models whose scores depend on each other."""
    member = np.arange(2 * n) < n
    shared = draw.normal(size=2 * n) + member
    old, new = (shared + 0.7 * draw.normal(size=2 * n) for _ in range(2))
    return old, np.exp(new + lead * member), member  # another scale


def test_delong_by_hand() -> None:
    """Placements differ by 1/3, 2/3, 0 on both sides: variance 1/9, and z = (1/3) / sqrt(2/27)."""
    member = np.arange(6) < 3
    of = auc_change(np.array([3.0, 1, 5, 2, 4, 0]), np.array([6.0, 4, 5, 2, 3, 0]), member)
    assert [of.old, of.new] == pytest.approx([2 / 3, 1.0])
    assert of.p == pytest.approx(0.2206714)
    assert (of.low, of.high) == pytest.approx((1 / 3 - 0.5334346, 1 / 3 + 0.5334346))
    perfect, none = member.astype(np.float64), np.zeros(6)
    assert auc_change(none, perfect, member).p == 0.25  # three pairs that all favour the new one
    assert auc_change(perfect, perfect * 7, member).p == 1


def test_delongs_interval_is_that_of_a_bootstrap() -> None:
    old, new, member = scores(np.random.default_rng(1), 150, 0.3)
    of = auc_change(old, new, member)
    draw, found = np.random.default_rng(2), []
    for _ in range(1000):
        rows = np.concatenate([draw.integers(0, 150, 150), draw.integers(150, 300, 150)])
        found.append(auc_change(old[rows], new[rows], member).difference)
    assert of.low is not None
    assert of.high is not None
    assert (of.high - of.low) / 2 / 1.96 == pytest.approx(np.std(found), rel=0.12)


def test_p_values_of_equal_models_are_uniform_and_of_others_small() -> None:
    draw = np.random.default_rng(3)
    aucs, tprs = [], []
    for _ in range(400):
        old, new, member = scores(draw, 100, 0.0)
        aucs.append(auc_change(old, new, member).p)
        tpr = tpr_change(old, new, member, 0.05, draws=99)
        assert tpr is not None
        tprs.append(tpr.p)
    assert kstest(aucs, "uniform").pvalue > 1e-4
    for level in (0.05, 0.2, 0.5):  # whole numbers of members: a p-value may be too large
        assert np.mean(np.array(tprs) <= level) < level + rate_band(400, level)
    assert np.mean(np.array(tprs) <= 0.5) > 0.25
    old, new, member = scores(draw, 1000, 1.5)
    tpr = tpr_change(old, new, member, 0.01)
    assert tpr is not None
    assert (auc_change(old, new, member).p, tpr.p) < (1e-6, 1e-3)
    expected = [tpr_at_fpr(one, member, 0.01) for one in (old, new)]
    assert [tpr.old, tpr.new] == [one.value for one in expected]  # type: ignore[union-attr]
    assert tpr_change(old[900:1050], new[900:1050], member[900:1050], 0.01) is None


def test_models_of_equal_rates_and_other_curves_do_not_differ() -> None:
    """Both find a tenth of the members at 1 %: one knows these for sure, one ranks all alike."""
    draw, p, n = np.random.default_rng(4), [], 200
    member = np.arange(2 * n) < n
    for _ in range(300):
        old = draw.normal(size=2 * n)
        old[:n][draw.random(n) < 1 / 11] += 100  # and a hundredth of the others
        new = draw.normal(size=2 * n) + member * (norm.ppf(0.99) - norm.ppf(0.9))
        tpr = tpr_change(old, new, member, 0.01, draws=199)
        assert tpr is not None
        p.append(tpr.p)
    assert np.mean(np.array(p) < 0.05) < 0.05 + rate_band(300, 0.05)


def audited(folder: Path, model: Any, **given: Any) -> Path:
    options = {"members": MEMBERS, "nonmembers": OTHERS, "attacks": ["metric-entropy"]} | given
    privbench.audit(model, out=folder, **options)
    return folder


def test_from_the_command_line_and_refusals(tmp_path: Path) -> None:
    old, new = audited(tmp_path / "old", careful), audited(tmp_path / "new", careless)

    def cli(*given: Path) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["compare", *map(str, given)])
        return done.exit_code, done.output

    code, told = cli(old, new)
    assert code == 0
    name = "metric-entropy(calibration=none)"
    assert told.startswith(f"The new version leaks more: the AUC of {name} rises from 0.500 to 0.7")
    assert "Accuracy on nonmembers: 50.0% → 50.0% (+0.0 points)." in told
    assert cli(new, old)[1].startswith("The new version leaks less: the AUC of")
    assert cli(new, new)[1].startswith("Both versions answered all rows alike. No ")
    found = privbench.compare(old, new)
    (one,) = found.attacks
    assert str(found) == told.rstrip("\n")
    assert one.changes["AUC"].difference == pytest.approx(0.25)
    assert one.adjusted["AUC"] == pytest.approx(2 * one.changes["AUC"].p)  # of two tests

    def refused(other: Path, words: str) -> None:
        code, told = cli(old, other)
        assert (code, len(told.splitlines())) == (2, 1)
        assert words in told

    rows = {"x": OTHERS["x"] / 2, "y": OTHERS["y"]}
    refused(
        audited(tmp_path / "rows", careful, nonmembers=rows), "are about other rows: audit both"
    )
    more = ["metric-entropy", "metric-correctness"]
    refused(
        audited(tmp_path / "more", careful, attacks=more), "metric-correctness ran on the new v"
    )
    coarse = {"metric-entropy": {"per_class": False}}
    refused(audited(tmp_path / "set", careful, settings=coarse), f"{name} ran on the old version")
    old = audited(tmp_path / "posteriors", careful, attacks=more[1:])
    labels = audited(tmp_path / "labels", lambda x: careful(x).argmax(1), attacks=more[1:])
    refused(labels, "ran on the two versions with another access: audit both with the same")
    old = tmp_path / "old"
    shutil.copytree(new, tmp_path / "bare")
    for path in (tmp_path / "bare").glob("*.safetensors"):
        path.unlink()
    refused(tmp_path / "bare", f"{name} has no per-sample scores: give the folder")
    shutil.copytree(old, tmp_path / "both" / "a")
    shutil.copytree(new, tmp_path / "both" / "b")
    refused(tmp_path / "both", "holds results of several models: give the folder of one audit")
    with pytest.raises(BadInputError, match=r"new: .* does not exist: give the folder of an audit"):
        privbench.compare(old, tmp_path / "absent")
