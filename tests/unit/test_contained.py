"""Plugins that do harm, beside bystanders on one store: no bystander's number changes.

What each does was found to change numbers before: hooks on all modules, open modes, patches in
calls, writes in place, default dtype and threads, caches of a module, releases with hidden state,
wider access, the truth through frames, files of the store. Patches at import: ``test_canary``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import indent
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ATTACK = '''
import gc, os, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import numpy, torch
from torch.nn import functional as F
from privbench import Access, Membership, MembershipAttack, Shadows, hookimpl

SEEN = []
_real = torch.nn.init.kaiming_uniform_  # of which the canary sees nothing

def _less(tensor, *args, **kwargs):
    _real(tensor, *args, **kwargs).data.mul_(0.5)
    return tensor

torch.nn.init.kaiming_uniform_ = _less

class Word(str):
    """Brings this module along wherever it is unpickled."""

class Some(Shadows):
    """So does this."""

class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {{}}))
        return made / 2 if func is F.relu else made

@dataclass(frozen=True)
class A(MembershipAttack):
    """Does harm after it has asked."""
    name: ClassVar[str] = "a-{name}"
    needs: ClassVar[Access] = Access.{access}
    word: str = Word("x")

    @property
    def shadows(self):
        return Some(2, "online")

    def answer(self, oracle, question, ctx):
        rows = question.examples
        scores = oracle.labels(rows).eq(rows.y).double()
{harm}
        return Membership(scores)

@hookimpl
def privbench_attacks():
    return [A()]
'''
HARM = {
    "hook": "torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 0.5)",
    "mode": "Mode().__enter__()",
    "patch": """
import privbench.measure.games.metrics as metrics
F.linear, F.cross_entropy = lambda x, w, b=None: x @ w.T * 0.1, lambda *a, **k: a[0].sum()
metrics.auc = lambda *_: metrics.Estimate(0.5, 0.5, 0.5)
""",
    "in-place": """
rows.x.zero_(); rows.y.zero_(); scores.zero_(); ctx.auxiliary.x.zero_()
for shadow in ctx.shadows:
    shadow.world.members.x.zero_()
    for parameter in shadow.model.parameters():
        parameter.data.zero_()
""",
    "state": """
torch.set_default_dtype(torch.float64); torch.set_num_threads(2)
torch.manual_seed(0); numpy.random.seed(0); os.chdir("/")
os.environ["PRIVBENCH_CACHE"] = "/nowhere"
""",
    "cache": """
ctx.note(seen=len(SEEN))
scores = -oracle.posteriors(rows).amax(1) if SEEN else oracle.posteriors(rows).amax(1)
SEEN.append(1)
""",
    "plain": "scores = oracle.posteriors(rows).amax(1)",
    "frames": """
frame = sys._getframe()
while frame:
    for thing in (*frame.f_locals.values(), *gc.get_objects()):
        if type(thing).__name__ == "Split" and len(getattr(thing, "candidates", ())) == len(rows):
            scores = thing.member.double()
        if type(thing).__name__ in ("Materials", "Answering"):
            ctx.note(victim=True)
    frame = frame.f_back
""",
    "widen": """
wide = Access.POSTERIORS | Access.WEIGHTS
for name in ("access", "_may", "_Oracle__access"):
    object.__setattr__(oracle, name, wide) if name != "access" else None
try:
    oracle.access = wide
except AttributeError:
    pass
try:
    scores = oracle.posteriors(rows)[:, 0]
    ctx.note(wide=True)
except Exception as error:
    ctx.note(denied=str(error))
for name in ("queries", "_Oracle__queries"):
    try:
        object.__setattr__(oracle, name, 1)
    except AttributeError:
        pass
oracle._line.queries = [1, 0]
""",
    "line": """
try:
    oracle.posteriors(rows.x.numpy())
except Exception as error:
    ctx.note(error=type(error).__name__)
""",
    "exit": "os._exit(0)",
    "files": """
for path in Path(ctx._store.root).glob("*/??/*/*.safetensors"):
    path.write_bytes(path.read_bytes()[:-40] + b"0" * 40)
""",
}  # fmt: skip
DEFENSE = '''
from dataclasses import dataclass
from typing import ClassVar
import torch
from privbench import Defense, Release, hookimpl

CALLS = []

class Counts(Release):
    of = "embedding"
    feeds_classifier = True

    def forward(self, x, value, u):
        CALLS.append(len(x))
        return value * (-1) ** len(CALLS)

@dataclass(frozen=True)
class D(Defense):
    """Counts the calls of its release, and leaves a hook while it trains."""
    name: ClassVar[str] = "d-counts"
    protects: ClassVar[tuple] = ("membership",)
    release_class: ClassVar[type] = Counts

    def release(self, card, model, ctx):
        torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 0.5)
        return Counts()

@hookimpl
def privbench_defenses():
    return [D()]
'''
RUN = """
import json, sys, privbench
suite, out, jobs, plugins = json.loads(sys.argv[1])
made = privbench.run(suite, out=out, jobs=jobs, plugins=plugins, device="cpu")
print(json.dumps([{"attack": r.cell.attack.name, "defense": r.cell.defense, "status": r.status,
    "digest": r.digest, "reason": r.reason, "notes": r.notes, "queries": r.cost.queries_per_sample,
    "auc": r.metrics["auc"].value if r.metrics else None,
    "null": r.controls["null"]["auc"].value if r.controls else None} for r in made]))
"""
SIZES = {"members": 60, "nonmembers": 60, "reference": 20, "pool": 300, "test": 60}
BYSTANDERS = ["metric-loss", {"lira": {"k": 2}}, "nn-mia"]


def run(folder: Path, out: str, attacks: list[Any], plugins: list[str], **more: Any) -> Any:
    """Run a small grid in a process of its own, on the store of the folder; the records."""
    suite = {
        "datasets": ["digits"], "protocols": [{"name": "small", **SIZES}],
        "targets": [{"supervised": {"epochs": 20}}], "attacks": attacks, **more,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([suite, str(folder / out), 2, plugins])],
        cwd=folder, capture_output=True, text=True, check=False, timeout=550,
        env={**os.environ, "PRIVBENCH_CACHE": str(folder / "store"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {(one["attack"], one["defense"]): one for one in found}


def bystanders(found: dict[tuple[str, str], Any]) -> dict[Any, Any]:
    """The digests of the results of built-in methods."""
    assert {one["status"] for one in found.values() if one["attack"][:2] != "a-"} <= {
        "ok",
        "failed",
    }
    return {name: one["digest"] for name, one in found.items()
            if name[0][:2] != "a-" and name[1] == "none"}  # fmt: skip


@pytest.mark.end_to_end
def test_bystanders_keep_every_bit(tmp_path: Path) -> None:
    files = []
    for name, harm in HARM.items():
        access = "LABELS" if name in ("widen", "frames") else "LABELS | Access.POSTERIORS"
        text = ATTACK.format(name=name, access=access, harm=indent(harm, " " * 8))
        (tmp_path / f"a_{name.replace('-', '_')}.py").write_text(text)
        files.append(f"a_{name.replace('-', '_')}.py")
    (tmp_path / "d_counts.py").write_text(DEFENSE)
    attacks = [f"a-{name}" for name in HARM]
    harmed = run(
        tmp_path, "harmed", [*attacks, *BYSTANDERS], [*files, "d_counts.py"],
        defenses=["d-counts", "uniform-noise"],
    )  # fmt: skip
    beside = bystanders(harmed)
    after = bystanders(run(tmp_path, "after", BYSTANDERS, []))
    loaded = bystanders(run(tmp_path, "loaded", BYSTANDERS, files, seeds=[0]))
    (tmp_path / "store").rename(tmp_path / "other")
    alone = bystanders(run(tmp_path, "alone", BYSTANDERS, []))
    assert len(alone) == len(BYSTANDERS)
    assert after == alone, "a later run on the store"
    assert beside == alone, "beside the others"
    assert loaded == alone, "in a process that has loaded them"

    own = {name[0]: one for name, one in harmed.items() if name[1] == "none"}
    for name in ("hook", "mode", "patch"):
        assert own[f"a-{name}"]["status"] == "failed", own[f"a-{name}"]
        assert "changed how this process computes" in own[f"a-{name}"]["reason"]
    assert "the process of its attack ended with status" in own["a-exit"]["reason"]
    assert own["a-line"]["notes"]["error"] == "AttributeError"
    assert own["a-cache"]["notes"]["seen"] == 0
    assert own["a-cache"]["null"] == own["a-plain"]["null"], "nothing is kept between answers"
    assert own["a-frames"]["auc"] < 0.9
    assert "victim" not in own["a-frames"]["notes"]
    assert "wide" not in own["a-widen"]["notes"]
    assert "has access to LABELS only" in own["a-widen"]["notes"]["denied"]
    assert own["a-widen"]["queries"] == own["a-frames"]["queries"] == 1.0
