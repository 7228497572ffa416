"""Trained models of a suite, for looking inside; and results as a notebook shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.unit.small_run import SUITE, SmallRun

import privbench
from privbench import BadInputError
from privbench.ground.errors import UnknownNameError
from privbench.measure.training.loop import Training

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kept(small_run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> privbench.Results:
    """The results; what they needed is in the store, and training anything else fails."""

    def refuse(*_given: Any) -> None:
        raise AssertionError("this model is in the store")

    monkeypatch.setenv("PRIVBENCH_CACHE", str(small_run.store))
    monkeypatch.setattr(Training, "run", refuse)
    return small_run.results


# ---- load ----------------------------------------------------------------------------------------


def test_data_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVBENCH_DATA", "absent-folder")
    with pytest.raises(BadInputError, match="absent-folder is not a directory"):
        privbench.load(SUITE, defense="none")


@pytest.mark.usefixtures("kept")
def test_the_victim_of_a_run_is_loaded_with_its_rows() -> None:
    victim = privbench.load(SUITE, defense="none", seed=1, device="cpu")
    assert [defense.name for defense in victim.cell.defenses] == ["none"]
    assert (victim.seed, victim.role, victim.world.origin) == (1, "victim", "victim")
    assert repr(victim).startswith("Loaded(victim of supervised")
    assert repr(victim).endswith("on digits, defense none, seed 1; 100 members)")
    index = torch.cat([victim.world.members.index, victim.nonmembers.index])
    assert len(set(index.tolist())) == len(index) == 500
    x = victim.nonmembers.x
    torch.testing.assert_close(
        victim.served.log_posteriors(x).float(),
        victim.model.logits(victim.model.encode(x)).log_softmax(-1), rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    assert not any(weight.requires_grad for weight in victim.model.parameters())
    masked = privbench.load(SUITE, defense="confidence-masking", seed=1, device="cpu")
    torch.testing.assert_close(masked.model.encode(x), victim.model.encode(x))
    assert not torch.allclose(masked.served.log_posteriors(x), victim.served.log_posteriors(x))


def test_the_loss_of_a_loaded_victim_is_what_the_attack_saw(kept: privbench.Results) -> None:
    (record,) = [r for r in kept if r.cell.attack.name == "metric-loss" and r.seed == 0
                 and r.cell.defense == "none"]  # fmt: skip
    victim = privbench.load(SUITE, defense="none", device="cpu")

    def right(rows: privbench.Examples) -> float:
        return float((victim.served.labels(rows.x) == rows.y).float().mean())

    assert right(victim.world.members) == pytest.approx(record.utility["train_accuracy"])
    assert right(victim.nonmembers) < right(victim.world.members)


@pytest.mark.usefixtures("kept")
def test_other_roles_are_loaded_too() -> None:
    null = privbench.load(SUITE, "null", defense="none", device="cpu")
    assert len(null.nonmembers) == 500
    first, second = (
        privbench.load(SUITE, f"shadow {i}", defense="none", device="cpu") for i in range(2)
    )
    assert first.world.origin == "offline"
    ours, others = first.model.state_dict(), second.model.state_dict()
    assert any(not torch.equal(ours[name], others[name]) for name in ours)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "2 different models with the role 'victim'.*defense: confidence-masking.*none"),
        ({"defense": "talos"}, "unknown defense of the suite 'talos'"),
        ({"defense": "none", "seed": 7}, "unknown seed of the suite '7'"),
        ({"defense": "none", "role": "shadow 2"}, "unknown role 'shadow 2'"),
        ({"defense": "none", "attack": "lira"}, "did you mean 'lira-offline'"),
    ],
)
def test_what_is_not_there_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        privbench.load(SUITE, device="cpu", **given)


def test_a_cell_that_cannot_run_says_why() -> None:
    suite = {**SUITE, "targets": ["simclr"], "defenses": ["dp-sgd"]}
    with pytest.raises(BadInputError, match=r"no such cell can run: .{9}"):
        privbench.load(suite, defense="dp-sgd", device="cpu")


# ---- notebooks -----------------------------------------------------------------------------------


def test_a_notebook_shows_the_front_and_the_matrix(kept: privbench.Results) -> None:
    html = kept._repr_html_()
    assert html.count("<svg") == 1
    (table,) = re.findall("<table.*?</table>", html, re.DOTALL)
    rows = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr>")[1:]]
    assert [row[0] for row in rows] == ["defense", "none", "confidence-masking (mask=fixed)"]
    assert rows[0][-1] == "test accuracy"
    assert "±" in rows[1][-1]
    assert "<script" not in html
    assert "8 trials of 4 cells (8 ok), 2 seeds" in html


def test_a_notebook_escapes_what_results_say(kept: privbench.Results) -> None:
    evil = "<img src=x onerror=alert(1)>\x1b[31m"
    made = privbench.Results(one.model_copy(deep=True) for one in kept)
    for one in made:
        method = one.cell.attack.model_copy(update={"label": evil, "name": evil})
        renamed = dict.fromkeys(("attack", "target", "dataset"), method)
        one.cell = one.cell.model_copy(update=renamed)
    html = privbench.Results(made[:2])._repr_html_()
    assert "<img" not in html
    assert "\x1b" not in html
    assert html.count("onerror") >= 3  # as text


def test_results_that_cannot_stand_on_one_board_say_so(kept: privbench.Results) -> None:
    twins = privbench.Results([*kept, kept[0].model_copy(update={"trial": "f" * 32})])
    assert "has two results" in twins._repr_html_()
    assert "0 trials" in privbench.Results()._repr_html_()


def test_plots_are_figures(kept: privbench.Results, tmp_path: Path) -> None:
    front, roc = kept.plot.front(), kept.plot.roc()
    assert front.axes[0].get_xlabel() == "test accuracy"
    legend: Any = roc.axes[0].get_legend()
    told = {text.get_text() for text in legend.get_texts()}
    assert told == {"lira-offline", "metric-loss", "chance"}
    assert roc.axes[0].get_xscale() == "log"
    assert roc._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    front.savefig(tmp_path / "front.pdf")
    (folder,) = kept.folders
    assert len(privbench.Results.read(folder).plot.roc().axes) == 1


def test_what_cannot_be_drawn_says_why(kept: privbench.Results) -> None:
    with pytest.raises(BadInputError, match="at least two defenses"):
        privbench.Results(kept[:1]).plot.front()
    with pytest.raises(BadInputError, match="per-sample scores"):
        privbench.Results(kept).plot.roc()  # it knows no folder
    with pytest.raises(UnknownNameError):
        privbench.load(SUITE, "loser", defense="none", device="cpu")
