"""Code of others in this process: what it makes is found by no process without that code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import privbench
from privbench.plugins import plugin_file

if TYPE_CHECKING:
    from pathlib import Path

#: It also changes how every network begins, as a user's own experiments may.
PLUGIN = '''
from typing import ClassVar
import torch
from dataclasses import dataclass
from privbench import Access, Membership, MembershipAttack, hookimpl

def flat(self):
    torch.nn.init.trunc_normal_(self.weight, std=0.02)
    torch.nn.init.zeros_(self.bias)

torch.nn.Linear.reset_parameters = flat

@dataclass(frozen=True)
class Sure(MembershipAttack):
    """Certainty.

    It asks once.
    """
    name: ClassVar[str] = "sure"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        return Membership(oracle.posteriors(question.examples).amax(1))

@hookimpl
def privbench_attacks():
    return [Sure()]
'''


@pytest.mark.parametrize("how", ["run", "load", "loaded"])
def test_serial_runs_with_a_plugin_leave_nothing_to_others(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = torch.nn.Linear.reset_parameters
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", usual)  # undone in the end
    file = tmp_path / "sure.py"
    file.write_text(PLUGIN)
    suite: dict[str, Any] = {
        "attacks": ["metric-loss"], "targets": [{"supervised": {"epochs": 3}}],
        "defenses": ["none"],
    }  # fmt: skip

    def clean(store: str) -> dict[str, Any]:
        monkeypatch.setattr(torch.nn.Linear, "reset_parameters", usual)
        monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / store))
        (made,) = privbench.run(suite, out=tmp_path / f"{store} {how}", device="cpu")
        return {name: one.value for name, one in made.metrics.items()}

    first = clean("alone")
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "shared"))
    both = {**suite, "attacks": ["metric-loss", "sure"]}
    if how == "loaded":  # no method of it runs
        with monkeypatch.context() as patch:
            patch.setattr("privbench.grid.origins.loaded_files", plugin_file.loaded_files)
            privbench.load(both, attack="sure", device="cpu", plugins=[file])
            privbench.run(suite, out=tmp_path / "both", device="cpu", executor="serial")
    elif how == "run":
        privbench.run(both, out=tmp_path / "both", device="cpu", executor="serial", plugins=[file])
    else:
        privbench.load(both, attack="metric-loss", device="cpu", plugins=[file])
    assert torch.nn.Linear.reset_parameters is not usual
    assert clean("shared") == first
