"""Tables of experiments: what attacks find of a planted leak, and beside others' attackers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.scripts import script
from tests.unit.test_rows import record

from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.plugins import registry as plugins

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def power() -> Any:
    return script("experiments/power.py")


def test_the_share_of_a_leak_by_hand(power: Any, tmp_path: Path, monkeypatch: Any) -> None:
    for n, leak, found in ((100, 0.6, (0.55, 0.53)), (100, 0.9, (0.9, 0.7)), (1000, 0.6, (0.6,))):
        for seed, auc in enumerate(found):
            one = record("loud", "planted-leak", seed, auc=auc, trial=f"{n}-{leak}-{seed}")
            planted = one.cell.defenses[0].model_copy(update={"fields": {"auc": leak}})
            one.cell = one.cell.model_copy(update={"defenses": [planted]})
            one.write(tmp_path / f"{n}-loud")
    monkeypatch.setattr(power, "PAGE", tmp_path / "power.md")
    power.write(tmp_path)
    lines = (tmp_path / "power.md").read_text("utf-8").splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    heads, row = table[0], next(one for one in table if one[0] == "`loud`")
    told = dict(zip(heads, row, strict=True))
    assert told.pop("attack") == "`loud`"
    assert {head: text for head, text in told.items() if text != "–"} == {
        "100 rows, 0.60": "0.40",  # .54, within 1.96 × .058 / sqrt(2) = .080
        "100 rows, 0.90": "**0.75**", "1,000 rows, 0.60": "**1.00**",
    }  # fmt: skip
    assert power.beyond_chance(100, 4) == pytest.approx(1.96 * math.sqrt(101 / 30_000) / 2, 1e-3)


def test_numbers_of_earlier_calls_are_kept(power: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    first = power.kept(path, ("attack", "rows"), {("b", "10"): 0.1, ("a", "9"): 1 / 3})
    both = power.kept(path, ("attack", "rows"), {("b", "10"): 0.2, ("b", "9"): 0.5})
    assert both == first | {("b", "10"): 0.2, ("b", "9"): 0.5}
    assert path.read_text("utf-8").splitlines() == [
        "attack,rows,value", f"a,9,{1 / 3!r}", "b,10,0.2", "b,9,0.5",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["power", "stronger"])
def test_a_call_that_measured_nothing_leaves_the_page_as_it_is(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    experiment = script(f"experiments/{name}.py")
    before = experiment.PAGE.read_text("utf-8")
    page = tmp_path / "page.md"
    page.write_text(before, encoding="utf-8")
    monkeypatch.setattr(experiment, "PAGE", page)
    (tmp_path / "out").mkdir()
    experiment.write(tmp_path / "out")
    there = page.read_text("utf-8").splitlines()
    assert set(before.splitlines()) <= set(there)  # new attacks may have rows of dashes
    assert all(
        set(row.split(" | ")[1:]) <= {"–", "– |"} for row in {*there} - {*before.splitlines()}
    )


def test_all_attacks_that_a_leak_reaches_take_part(power: Any, registry: Any) -> None:
    known = power.attacks()
    out = {one.name for one in registry.all("attack")
           if one.game == "membership" and one.name not in known}  # fmt: skip
    assert out == {"encodermi-baseline-b", "encodermi-baseline-c", "gradient-canary",
                   "label-only-transfer", "lira-residual", "loss-trace", "order-lira", "partcrop",
                   "squared-error"}  # fmt: skip
    for name, n in (("lira", 100), ("encodermi-t", 1000), ("rmia", 10_000)):
        planned = plan(suite_from(power.suite(name, n), "the test"), plugins.load([power.DATA]),
                       root=None, device="cpu")  # fmt: skip
        assert len(planned) == 4 * power.SEEDS[n]
        assert all(item.skip is None for item in planned), planned[0].skip
        assert {item.trial.cell.protocol.parts()["members"].size for item in planned} == {n // 2}


def test_every_row_of_the_evenings_attackers_can_run(registry: Any) -> None:
    stronger = script("experiments/stronger.py")
    for name in stronger.ROWS:
        suite = suite_from(stronger.suite(name), name)
        attacks = {next(iter(one)) if isinstance(one, dict) else one for one in suite.attacks}
        assert {registry.get("attack", one).game for one in attacks} <= {
            "membership", "attributes", "reconstruction",
        }  # fmt: skip
        assert suite.seeds == 3
        assert not suite.sweep
