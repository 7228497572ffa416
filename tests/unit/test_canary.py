"""A plugin that changes how the process computes costs its cells, and no other method's numbers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from privbench.ground.errors import PluginError
from privbench.measure.games import metrics
from privbench.plugins import canary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(canary, "_known", {})
    monkeypatch.setattr(canary, "_blamed", [])
    canary.remember()
    yield
    torch.nn.modules.module._global_forward_hooks.clear()


def test_a_process_that_computes_as_before_passes_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    for _ in range(3):
        assert canary.changed() == []
        canary.refuse_changed("anyone")
    assert torch.equal(torch.get_rng_state(), before)


class Halved(torch.overrides.TorchFunctionMode):
    """Halves what every function of torch returns."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and halve its result."""
        made = func(*args, **(kwargs or {}))
        return made / 2 if func is F.relu else made


def hook(_: Any) -> None:
    halved: Any = lambda _, __, out: out * 0.5 if torch.is_tensor(out) else out  # noqa: E731
    torch.nn.modules.module.register_module_forward_hook(halved)


CHANGES = {
    "hook": hook,
    "linear": lambda patch: patch.setattr(F, "linear", lambda x, w, *_: x @ w.T),
    "loss": lambda patch: patch.setattr(F, "cross_entropy", F.multi_margin_loss),
    "auc": lambda patch: patch.setattr(metrics, "auc", lambda *_: metrics.Estimate(0.5, 0.5, 0.5)),
    "relu": lambda patch: patch.setattr(F, "relu", lambda x: x),
    "generator": lambda patch: patch.setattr(torch, "rand", lambda *_, **__: torch.zeros(3)),
    "numpy": lambda patch: patch.setattr(np, "mean", lambda *_: 0.0),
    "gone": lambda patch: patch.delattr(torch.optim, "Adam"),
}  # fmt: skip


@pytest.mark.parametrize("how", CHANGES)
def test_what_a_plugin_changes_is_seen(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHANGES[how](monkeypatch)  # type: ignore[no-untyped-call]
    with pytest.raises(PluginError, match="plugin 'loud' changed how this process computes"):
        canary.refuse_changed("plugin 'loud'")
    with pytest.raises(PluginError, match="plugin 'loud' changed how"):
        canary.refuse_changed()  # a later cell


def test_an_open_mode_is_seen() -> None:
    with Halved():
        assert "linear layer" in canary.changed()
    assert canary.changed() == []


PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

from privbench import Access, Membership, MembershipAttack, hookimpl
{at_import}

@dataclass(frozen=True)
class Loud(MembershipAttack):
    """Answers, and changes the process."""

    name: ClassVar[str] = "a-loud"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        scores = oracle.posteriors(question.examples).amax(1)
        {in_answer}
        return Membership(scores)


@hookimpl
def privbench_attacks():
    return [Loud()]
'''
HOOK = (
    "torch.nn.modules.module.register_module_forward_hook("
    "lambda m, i, o: o * 0.5 if torch.is_tensor(o) else o)"
)
MAIN = "from privbench.cli.main import main; main(prog_name='privbench')"
RUN = ["run", "--dataset", "digits", "--target", "supervised", "--set", "supervised.epochs=20"]


def run(folder: Path, plugin: str, *more: str) -> str:
    """Run a grid in a process of its own, without the results of an earlier one; what it prints."""
    (folder / "loud.py").write_text(plugin)
    shutil.rmtree(folder / "results", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "--plugin", "loud.py", *RUN, *more],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.mark.end_to_end
def test_bystanders_keep_their_numbers(tmp_path: Path) -> None:
    """What runs later in that process fails; run again, it has the numbers of a clean store.

    With two jobs: test_contained.
    """
    harmless = PLUGIN.format(at_import="", in_answer="pass")
    told = {"alone": run(tmp_path, harmless, "--attack", "metric-loss")}
    for how in ((), ("--isolate",)):
        (tmp_path / "store").rename(tmp_path / f"store-{len(told)}")
        attacks = ("--attack", "a-loud", "--attack", "metric-loss", *how)
        harmed = run(tmp_path, PLUGIN.format(at_import="", in_answer=HOOK), *attacks)
        assert "a-loud × none × supervised(epochs=20) × digits, adaptive, seed 0: FAILED" in harmed
        assert "a-loud changed how this process computes" in harmed
        later = "metric-loss × none × supervised(epochs=20) × digits, adaptive, seed 0: "
        assert f"{later}ok" in harmed  # in another process
        told[f"after {how}"] = run(tmp_path, harmless, "--attack", "metric-loss")
    rows = {
        how: [line for line in text.splitlines() if "│ metric-loss" in line]
        for how, text in told.items()
    }
    assert all(of == rows["alone"] != [] for of in rows.values()), rows


@pytest.mark.end_to_end
def test_a_patch_at_import_breaks_the_plugin(tmp_path: Path) -> None:
    patch = "_real = F.cross_entropy\nF.cross_entropy = lambda *a, **k: _real(*a, **k) * 0.1\n"
    told = run(
        tmp_path, PLUGIN.format(at_import=patch, in_answer="pass"), "--attack", "metric-loss"
    )
    assert "plugin 'loud.py' changed how this process computes (loss, gradient" in told
