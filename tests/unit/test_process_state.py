"""What a plugin changes of the process changes nothing for the others."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

from privbench import Access, Membership, MembershipAttack
from privbench.boards.checks import refuse_unfit
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import BadInputError
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.numerics import Numerics
from privbench.measure.training.process_state import known, restored, threads
from privbench.plugins.registry import load
from privbench.testing import CPU, TinyImages, TinyTarget

if TYPE_CHECKING:
    from pathlib import Path

MEDDLING = {
    "torch.get_default_dtype()": "torch.set_default_dtype(torch.float64)",
    "str(torch.get_default_device())": "torch.set_default_device('meta')",
    "torch.is_grad_enabled()": "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "torch.get_num_threads()": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "torch.get_float32_matmul_precision()": "torch.set_float32_matmul_precision('medium')",
    "torch.are_deterministic_algorithms_enabled()": (
        "torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())"
    ),
    "torch.default_generator.get_state().tolist()": "torch.rand(3)",
    "np.random.get_state()[1].tolist()": "np.random.rand(700)",
    "random.getstate()": "random.random()",
    "os.getcwd()": "os.chdir('/')",
    "os.environ.get('MEDDLED')": "os.environ['MEDDLED'] = 'yes'",
    "'PATH' in os.environ": "del os.environ['PATH']",
    "list(warnings.filters)": "warnings.filterwarnings('ignore', 'xyzzy')",
    "id(sys.stdout)": "sys.stdout = sys.stderr",
}
_SPACE = {"np": np, "os": os, "random": random, "sys": sys, "torch": torch, "warnings": warnings}


@pytest.mark.parametrize(("look", "change"), MEDDLING.items(), ids=list(MEDDLING.values()))
def test_changes_are_undone(look: str, change: str) -> None:
    before = eval(look, _SPACE)  # noqa: S307
    with contextlib.suppress(KeyError), restored():
        exec(change, _SPACE)  # noqa: S102
        assert eval(look, _SPACE) != before, "this test meddles with nothing"  # noqa: S307
        raise KeyError
    assert eval(look, _SPACE) == before  # noqa: S307
    torch.set_default_device(None)  # one that is set, also "cpu", slows all later tests by a fifth


def test_code_finds_a_known_state() -> None:
    with restored():
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        drawn = []
        for _ in range(2):
            np.random.rand(5)  # noqa: NPY002
            with known(7):
                assert torch.get_default_dtype() == torch.float32
                assert torch.is_grad_enabled()
                drawn.append((torch.rand(2).tolist(), np.random.rand(), random.random()))  # noqa: NPY002
        assert drawn[0] == drawn[1]


def test_a_deleted_folder_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with restored():
        os.chdir(tmp_path)


@dataclass(frozen=True)
class Meddler(MembershipAttack):
    """Changes all that it can, and reports what it found."""

    name: ClassVar[str] = "meddler"
    needs: ClassVar[Access] = Access.POSTERIORS
    meddles: bool = True

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        """Score by a network that it trains; then change the process."""
        found = [eval(look, _SPACE) for look in MEDDLING if "filters" not in look]  # noqa: S307
        ctx.note(found=[str(one)[:200] for one in found], threads=torch.get_num_threads())
        noise = torch.rand(len(question.examples)) + float(np.random.rand())  # noqa: NPY002
        scores = oracle.posteriors(question.examples).amax(1) + 0.1 * noise
        if self.meddles:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(3)
            os.environ["MEDDLED"] = "yes"
            sys.stdout = sys.stderr
            warnings.simplefilter("error")
            torch.set_grad_enabled(False)
        again = oracle.posteriors(question.examples.x).amax(1)
        assert again.dtype == torch.float64
        return Membership(scores.double())


def _trial(attack: Any, thread_count: int = 1, **more: Any) -> Trial:
    data = TinyImages()
    card = data.card(None)
    cell = Cell(card, data.protocols["default"], TinyTarget(), (), Adversary(), attack,
                card.sensitive, data)  # fmt: skip
    return Trial(cell, 0, numerics=Numerics(thread_count), **more)


def _run(folder: Path, *attacks: Any, thread_count: int = 1) -> list[Any]:
    runner = TrialRunner(Store(folder), CPU, numerics=Numerics(thread_count))
    records = [runner.run(_trial(attack, thread_count)) for attack in attacks]
    assert all(record.status == "ok" for record in records), records[0].traceback
    return records


def test_a_meddling_attack_leaves_no_trace(tmp_path: Path) -> None:
    before = torch.get_num_threads(), sys.stdout
    (alone,) = _run(tmp_path / "a", Meddler(meddles=False))
    _, after = _run(tmp_path / "b", Meddler(), Meddler(meddles=False))
    left_out = {"cost", "provenance"}
    assert after.model_dump(exclude=left_out) == alone.model_dump(exclude=left_out)
    assert (torch.get_num_threads(), sys.stdout) == before
    assert "MEDDLED" not in os.environ
    assert torch.get_default_dtype() == torch.float32


def test_the_number_of_threads_is_part_of_every_key(tmp_path: Path) -> None:
    (one,) = _run(tmp_path, Meddler(meddles=False))
    (two,) = _run(tmp_path, Meddler(meddles=False), thread_count=2)
    assert one.trial != two.trial
    for record, count in ((one, 1), (two, 2)):
        assert record.notes["threads"] == count
        assert record.provenance["machine"]["threads"] == count
        assert [made["threads"] for made in record.provenance["made_on"]] == [count]
    kinds: dict[str, int] = {}
    for row in Store(tmp_path).list():
        kinds[row.kind] = kinds.get(row.kind, 0) + 1
    assert kinds["phase"] == 4, "victim and null, each with one thread and with two"
    assert all(count % 2 == 0 for count in kinds.values()), kinds


def test_the_precision_is_part_of_every_key(tmp_path: Path) -> None:
    """Weights of bf16 differ from those of float32 by more than rounding of float32."""
    shared = Store(tmp_path)
    attack, models = Meddler(meddles=False), []
    for precision in ("float32", "bf16"):
        numerics = Numerics(precision=precision)
        runner = TrialRunner(shared, CPU, numerics=numerics)
        trial = replace(_trial(attack), numerics=numerics)
        record = runner.run(trial)
        assert record.status == "ok", record.traceback
        assert record.provenance["precision"] == precision
        (victim,) = runner.materials.needed(trial.cell, 0).victims()
        models.append((record, runner.materials.victim(victim).model.state_dict()))
    (one, exact), (two, coarse) = models
    assert one.trial != two.trial
    gaps = [float((exact[name].float() - coarse[name].float()).abs().max()) for name in exact]
    assert max(gaps) > 1e-4
    two.seed = 1
    with pytest.raises(BadInputError, match=r"--precision \(bf16, float32\): put the results of e"):
        refuse_unfit([one, two])
    for name, option, other in (("threads", "--threads", 2), ("compiled", "--compile", True)):
        two.provenance = {**one.provenance, name: other}
        with pytest.raises(BadInputError, match=rf"different {option} \({one.provenance[name]}, "):
            refuse_unfit([one, two])


def test_threads_are_set_and_restored() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_a_plugin_that_sets_the_dtype_at_import_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meddles_at_import.py").write_text(
        "import torch, privbench\ntorch.set_default_dtype(torch.float64)\n"
        "torch.set_num_threads(7)\n"
        "@privbench.hookimpl\ndef privbench_attacks():\n"
        "    torch.set_grad_enabled(False)\n    return []\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = torch.get_num_threads()
    (plugin,) = load(entry_points=[EntryPoint("meddles", "meddles_at_import", "privbench")]).plugins
    assert plugin.status == "ok"
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == before
    assert torch.is_grad_enabled()


@dataclass(frozen=True)
class Surrogate(MembershipAttack):
    """Fails with text that UTF-8 cannot encode."""

    name: ClassVar[str] = "surrogate"
    needs: ClassVar[Access] = Access.NONE

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        """Raise it."""
        del oracle, question, ctx
        raise ValueError("half of a pair: \udc80")


def test_text_that_cannot_be_encoded_is_escaped(tmp_path: Path) -> None:
    record = TrialRunner(Store(tmp_path), CPU).run(_trial(Surrogate()))
    assert record.status == "failed"
    assert "half of a pair: \\udc80" in record.reason
    assert record.path(tmp_path) == record.write(tmp_path)


THREAD = """
import threading, time, sys
from dataclasses import dataclass
from typing import ClassVar
import privbench
from privbench import Access, Membership, MembershipAttack
from privbench.cli.main import main
from privbench.plugins import registry

@dataclass(frozen=True)
class Lingers(MembershipAttack):
    '''Leaves a thread behind.'''
    name: ClassVar[str] = "lingers"
    needs: ClassVar[Access] = Access.NONE

    def answer(self, oracle, question, ctx):
        threading.Thread(target=time.sleep, args=(600,)).start()
        return Membership(question.examples.keys.double())

loaded = registry.load()
loaded.add("attack", Lingers(), registry.Plugin("lingers", "lingers", "lingers"))
registry.load = lambda *_, **__: loaded
main(["run", "--attack", "lingers", "--target", "supervised", "--set", "supervised.epochs=1",
      "--out", sys.argv[1]])
"""


@pytest.mark.slow
def test_a_thread_that_never_ends_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREAD, str(tmp_path / "out")], timeout=120, check=False,
        env={**os.environ, "PRIVBENCH_CACHE": str(tmp_path / "store")}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 trial, 0 failed" in done.stdout
