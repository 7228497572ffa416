"""`privbench reproduce`: any trial from its result alone, and what is said where it differs."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.unit.test_suites import SUITES, planned_of

from privbench import Access, Membership, MembershipAttack
from privbench.check.numbers import SameNumber, compared, same, table, unlike, within_intervals
from privbench.check.repeat import differences, suite_of
from privbench.cli.main import main
from privbench.grid.outcome import new_record
from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.store.canonical import checksum
from privbench.measure.training.loop import Training
from privbench.plugins import registry as plugins
from privbench.results.files import parsed, read, read_all
from privbench.results.one_file import dumped
from privbench.results.record import Number, Record
from privbench.results.samples import checksum as sum_of
from privbench.results.samples import pack, unpack
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from privbench.grid.trial import Trial

CPU = torch.device("cpu")


# ---- the trial from its result -------------------------------------------------------------------


def published(trial: Trial) -> Record:
    """The result of a trial as a line of a published file holds it."""
    text = dumped([new_record(trial, CPU)]).encode()
    return parsed(text, Path("line"))


def again(record: Record, registry: Any) -> Trial:
    (item,) = plan(suite_of(record, registry), registry, root=None, device="cpu")
    return item.trial


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_every_suite_has_cells_that_follow_from_their_results(path: Path, registry: Any) -> None:
    items = planned_of(path, registry)
    for item in random.Random(path.stem).sample(items, min(4, len(items))):
        if item.skip is None:
            record = published(item.trial)
            found = again(record, registry)
            assert found.digest == item.trial.digest, record.cell.title
            assert differences(record, found, CPU) == []


#: Everything of which a suite can be made.
ALL_KINDS: dict[str, Any] = {
    "datasets": ["digits", "utkface"],
    "targets": [
        {"simclr": {"epochs": 3, "augmentation": {"crop": [1 / 3, 1.0], "flip": 0.25}}},
        "supervised",
    ],
    "protocols": [
        "default",
        {"name": "own", "members": 50, "nonmembers": 0.0512345678, "pool": 400, "reference": 20,
         "test": 100, "encoder": ["public", "members"], "public": {"size": 30, "source": None},
         "shadow": 40},
        {"name": "planted", "members": 50, "nonmembers": 120, "pool": 600, "test": 200,
         "inclusion": "coin", "canaries": {"kind": "mislabelled", "count": 60}},
    ],
    "defenses": [
        {"talos": {"adversarial_factor": 2 / 3}}, "talos+memguard", "label-smoothing+uniform-noise",
    ],
    "sweep": [{"confidence-masking": {"mask": ["top", "label"]}}],
    "attacks": ["encodermi-t", "metric-loss", {"attribute-decensoring": {"hidden": [64, 32]}}],
    "adversaries": [
        "naive", "white-box",
        {"target": {"moco": {"epochs": 2}}, "adaptive": False},
        {"dataset": "mnist", "target": "simclr", "white_box": True},
    ],
    "set": {"talos": {"schedule": "simultaneous"}, "memguard": {"epochs": 7}},
    "controls": True,
}  # fmt: skip


def test_every_part_of_a_cell_follows_from_its_result(registry: Any) -> None:
    items = []
    nothing: list[str] = []
    for sensitive in (None, nothing):
        suite = suite_from({**ALL_KINDS, "seeds": [2**32 - 1], "sensitive": sensitive}, "all")
        items += plan(suite, registry, root=None, device="cpu")
    chosen = random.Random(1).sample([item for item in items if not item.skip], 60)
    for item in chosen:
        record = published(item.trial)
        assert again(record, registry).digest == item.trial.digest, record.model_dump_json()
    cells = [item.trial.cell for item in chosen]
    assert any(len(cell.defenses) == 2 for cell in cells)
    assert any(cell.defenses[0].control for cell in cells)
    assert any(cell.adversary.target and cell.adversary.dataset for cell in cells)
    assert any(cell.adversary.target and not cell.adversary.adaptive for cell in cells)
    assert {cell.protocol.name for cell in cells} == {"default", "own", "planted"}


def first(registry: Any, **values: Any) -> Record:
    suite = suite_from({"attacks": ["encodermi-t"], **values}, "test")
    return published(plan(suite, registry, root=None, device="cpu")[0].trial)


def test_what_differs_is_said(registry: Any) -> None:
    record = first(registry)
    trial = again(record, registry)
    assert differences(record, trial, CPU) == []
    record.trial = "other"
    record.provenance["code"] = "0" * 32
    record.provenance["commit"] = "abc\x1b[31m"
    record.provenance["threads"] = 7
    record.provenance["machine"]["torch"] = "1.0"
    record.provenance["plugins"]["attack encodermi-t"]["source"] = "0"
    attack = record.cell.attack
    old = attack.model_copy(update={"version": 99, "fields": {**attack.fields, "gone": 1}})
    target = record.cell.target.model_copy(update={"label": "moco"})
    record.cell = record.cell.model_copy(
        update={"attack": old, "target": target, "sensitive": ["x"]}
    )
    told = differences(record, trial, CPU)
    for clause in (
        "threads 7 there, 1 here",
        "torch 1.0 there",
        "source code of attack encodermi-t",
        "attack encodermi-t, version 99 there",
        "gone 1 there, absent here",
        "target simclr, its label moco there, simclr here",
        "sensitive ['x'] there",
        "code (commit abc\\x1b[31m there",
    ):
        assert sum(clause in one for one in told) == 1, (clause, told)
    assert len(told) == 8


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"attack": {"name": "os.system"}}, UnknownNameError, "os.system"),
        ({"attack": {"fields": {"__class__": 1}}}, UnknownNameError, "__class__"),
        ({"attack": {"fields": {"n": 10**9}}}, BadInputError, "encodermi-t.n: give"),
        ({"attack": {"fields": {"n": "__import__('os')"}}}, BadInputError, "n: give a"),
        ({"preset": "huge"}, UnknownNameError, "huge"),
        ({"protocol": {"name": "own"}}, BadInputError, "members: give a number"),
        ({"protocol": {"name": "own", "sources": 3}}, BadInputError, "sources of a protocol"),
        ({"protocol": {"name": "own", "rows": 3}}, UnknownNameError, "rows"),
        ({"sensitive": ["height"]}, UnknownNameError, "height"),
        ({"defenses": []}, BadInputError, "defense"),
    ],
    ids=range(10),
)  # fmt: skip
def test_values_are_checked_as_those_of_a_suite(
    changes: dict[str, Any], error: type[Exception], told: str, registry: Any
) -> None:
    record = first(registry)
    values = json.loads(record.cell.model_dump_json())
    for name, value in changes.items():
        values[name] = values[name] | value if name == "attack" else value
    record.cell = type(record.cell).model_validate(values)
    with pytest.raises(error) as raised:
        again(record, registry)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "mine", "agree", "equal"),
    [
        ((0.7, 0.6, 0.8), (0.7000001, 0.6, 0.8), True, True),
        ((0.7, 0.6, 0.8), (0.61, 0.3, 0.65), True, False),
        ((0.7, 0.68, 0.72), (0.6, 0.5, 0.75), True, False),
        ((0.95, 0.0, 1.0), (0.6, 0.5, 0.7), False, False),  # wide enough for anything
        ((0.64, 0.56, 0.72), (0.6, 0.55, 0.63), False, False),
        ((0.64, 0.59, 0.7), (0.6, 0.55, 0.63), True, False),
        ((0.7, 0.6, 0.8), (0.59, 0.5, 0.69), False, False),
        ((1.0, 1.0, 1.0), (0.999, 0.99, 1.0), True, False),
        ((1.0, None, None), (0.999, None, None), False, False),
        ((None, None, None), (0.7, 0.6, 0.8), False, False),
        ((0.7, 0.6, 0.8), (None, None, None), False, False),
        ((None, None, None), (None, None, None), True, True),
    ],
)
def test_when_numbers_agree(theirs: Any, mine: Any, agree: bool, equal: bool) -> None:
    def number(value: Any, low: Any, high: Any) -> Number:
        refused = "no" if value is None else None
        return Number(value=value, low=low, high=high, refused=refused)

    assert within_intervals(number(*theirs), number(*mine)) == agree
    assert same(number(*theirs), number(*mine)) == equal


def test_a_number_that_is_missing_differs(registry: Any) -> None:
    """One that is new does, too, in the same trial: other code may have more of them."""
    one, other = first(registry), first(registry)
    one.metrics = {"auc": Number(value=0.5)}
    one.controls = {"null": {"auc": Number(value=0.5)}}
    one.utility = {"test_accuracy": 0.9, "test_rows": 100.0}
    other.metrics = {"auc": Number(value=0.5), "new": Number(value=1.0)}
    other.utility = {"test_accuracy": 0.85, "test_rows": 100.0}
    made = {row.name: row.agrees for row in compared(one, other, within_intervals)}
    assert made == {"auc": True, "null auc": False, "test accuracy": True, "new": False}
    one.trial = "of other code"
    made = {row.name: row.agrees for row in compared(one, other, within_intervals)}
    assert made == {"auc": True, "null auc": False, "test accuracy": True}
    one.metrics = {}
    made = {row.name: row.agrees for row in compared(one, other, within_intervals)}
    assert made == {"auc": False, "null auc": False, "test accuracy": True}


def test_accuracies_are_compared_over_our_rows(registry: Any) -> None:
    one, other = first(registry), first(registry)
    one.utility = {"test_accuracy": 0.9, "test_rows": 1.0, "probe_accuracy": 0.9,
                   "reference_accuracy": 1.5}  # fmt: skip
    other.utility = {"test_accuracy": 0.6, "test_rows": 300.0, "probe_accuracy": 0.88,
                     "reference_accuracy": 1.0}  # fmt: skip
    made = {row.name: row.agrees for row in compared(one, other, within_intervals)}
    assert made == {"test accuracy": False, "probe accuracy": True, "reference accuracy": False}


def test_what_a_result_says_of_itself(registry: Any) -> None:
    one, other = first(registry), first(registry)
    for each in (one, other):
        each.sizes, each.claims = {"members": 100}, [{"epsilon": 1.23456789, "scale": 0.1}]
    assert unlike(one, other) == []
    one.claims = [{"epsilon": 1.23457, "scale": 0.2}]  # as published files round; it was sampled
    assert unlike(one, other) == []
    attack = one.cell.attack.model_copy(update={"label": "lira"})
    one.cell = one.cell.model_copy(update={"attack": attack, "protects": ["all"]})
    one.sizes, one.claims = {"members": 9999}, [{"epsilon": 0.01}]
    assert unlike(one, other) == [
        "cell.attack.label", "cell.protects", "claims[0].epsilon", "sizes.members",
    ]  # fmt: skip


def test_a_name_stays_on_its_line_of_the_table() -> None:
    number = Number(value=0.5)
    made = table([SameNumber("auc\nnull \x1b[31mauc", number, number, True)])
    assert [line.split() for line in made.splitlines()] == [
        ["number", "published", "ours"],
        ["auc\\nnull", "\\x1b[31mauc", "0.5", "0.5", "agrees"],
    ]


# ---- the command ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brighter(MembershipAttack):
    """Scores by brightness."""

    name: ClassVar[str] = "brighter"
    needs: ClassVar[Access] = Access.LABELS
    power: float = 1.0

    def answer(self, _oracle: Any, question: Any, _ctx: Any) -> Membership:
        return Membership(self.power * question.examples.x.double().mean((1, 2, 3)))


RUN = ("run", "--dataset", "tiny-images", "--target", "tiny-target", "--device", "cpu",
       "--attack", "brighter", "--seeds", 2)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Invoke privbench in an empty folder with a tiny victim."""
    own, kit = plugins.Registry(), plugins.Plugin("kit", "privbench.testing", "privbench")
    (none,) = (m for kind, m in plugins.load().find("none") if kind == "defense")
    for kind, method in (("dataset", TinyImages()), ("target", TinyTarget()), ("defense", none),
                         ("attack", Brighter())):  # fmt: skip
        own.add(kind, method, kit)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: own)
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, [str(arg) for arg in args])


def done(result: Result, status: int = 0) -> Result:
    assert result.exit_code == status, (result.output, result.exception)
    return result


def signed(path: Path, **changes: Any) -> Path:
    """The same file with other values, under a checksum that fits."""
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    values = {name: value for name, value in values.items() if name != "checksum"}
    text = json.dumps(values | {"checksum": checksum(values)})
    other = path.with_name("forged.json")
    other.write_text(text, encoding="utf-8")
    return other


def test_a_result_is_reproduced(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done(run(*RUN))
    one, two = sorted(Path("results").glob("*.json"))
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "empty"))
    said = done(run("reproduce", one, "--out", "new")).stdout
    assert f"the same trial here: {one.stem}" in said
    assert "auc" in said
    assert "differs" not in said
    assert said.splitlines()[-1].endswith("numbers agree")
    assert all(len(line) <= 80 for line in said.splitlines() if line.endswith("agrees"))
    assert read(Path("new", one.name)).digest == read(one).digest
    done(run("merge", "results", "--out", "all.jsonl"))
    said = done(run("reproduce", "all.jsonl", "--trial", two.stem[:12])).stdout
    assert f"the same trial here: {two.stem}" in said
    assert not Path("privbench").exists()


def test_what_a_store_holds_is_not_believed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that changed the process left its numbers in the store under the right keys."""
    done(run(*RUN))
    path = min(Path("results").glob("*.json"))
    trained, real = [], Training.run

    def counted(self: Training, *given: Any) -> Any:
        trained.append(self)
        return real(self, *given)

    monkeypatch.setattr(Training, "run", counted)
    before = {one: one.stat().st_mtime_ns for one in (tmp_path / "store").rglob("*")}
    assert before
    done(run("reproduce", path))
    assert trained
    after = {one: one.stat().st_mtime_ns for one in (tmp_path / "store").rglob("*")}
    assert after == before


def test_other_numbers_differ(run: Any) -> None:
    done(run(*RUN))
    path = min(Path("results").glob("*.json"))
    record = read(path)
    metrics = json.loads(record.model_dump_json())["metrics"]
    metrics["auc"] = {"value": 0.99, "low": 0.98, "high": 1.0}
    said = done(run("reproduce", signed(path, metrics=metrics)), 1).stdout
    assert [line.split()[0] for line in said.splitlines() if "differs" in line] == ["auc"]
    assert said.splitlines()[-1].startswith("1 of ")
    split = {**record.split, "members": "0" * 32}
    said = done(run("reproduce", signed(path, split=split)), 1).stdout
    assert "other rows were drawn for: members; scores were not compared" in said
    assert "it has the same split: the file says another one" in said
    said = done(run("reproduce", signed(path, sizes={**record.sizes, "members": 9999})), 1).stdout
    assert said.splitlines()[-1].endswith("otherwise of itself: sizes.members")


def test_a_truth_that_is_not_that_of_the_split(run: Any) -> None:
    done(run(*RUN))
    path = min(Path("results").glob("*.json"))
    beside = path.with_suffix(".safetensors")
    columns = unpack(beside.read_bytes())
    done(run("reproduce", path))
    member = columns["truth.member"].copy()
    swapped = [int(np.flatnonzero(member == side)[0]) for side in (True, False)]
    member[swapped] = member[swapped[::-1]]
    for name, values in (("truth.member", member), ("row", columns["row"][::-1])):
        content = pack({**columns, name: np.ascontiguousarray(values)})
        beside.write_bytes(content)
        named = {"bytes": len(content), "blake2b": sum_of(content)}
        forged = signed(path, samples=named)
        said = done(run("reproduce", forged), 1).stdout
        assert "with another truth, than its split has" in said
        assert "differs" not in said
        done(run("merge", forged, "--scores", "--out", "all.jsonl"))
        assert "with another truth" in done(run("reproduce", "all.jsonl"), 1).stdout


def test_a_trial_that_fails_here(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done(run(*RUN))
    path = min(Path("results").glob("*.json"))
    monkeypatch.setenv("PRIVBENCH_CACHE", str(Path("empty").absolute()))

    def broken(*_: Any) -> Any:
        raise ValueError("it\x1b[31m broke")

    monkeypatch.setattr(Brighter, "answer", broken)
    said = done(run("reproduce", path), 1).stdout
    assert "here the trial failed: ValueError: it\\x1b[31m broke" in said


def test_bad_input(run: Any) -> None:
    done(run(*RUN))
    done(run("merge", "results", "--out", "all.jsonl"))
    path = min(Path("results").glob("*.json"))
    cases: list[tuple[list[Any], str]] = [
        (["nothing.json"], "no result at nothing.json"),
        (["results"], "no result at results"),
        (["all.jsonl"], "has several such trials"),
        (["all.jsonl", "--trial", "\x1bx"], "has no trial that begins with '\\x1bx'"),
        ([path, "--trial", "x"], "leave out --trial"),
        ([path, "--out", "results"], "holds a result of this trial already"),
        ([path, "--device", "abacus"], "unknown device 'abacus'"),
    ]
    for args, told in cases:
        said = done(run("reproduce", *args), 2).stderr
        assert told in said
        assert said.count("\n") == 1
    for changes, told in (
        ({"status": "skipped"}, "has status skipped and no numbers"),
        ({"seed": 2**40}, "seeds must be"),
        ({"provenance": {"threads": "many"}}, "--threads many"),
    ):
        said = done(run("reproduce", signed(path, **changes)), 2).stderr
        assert told in said
        assert said.count("\n") == 1
    assert len(read_all([Path("results")])) == 2
