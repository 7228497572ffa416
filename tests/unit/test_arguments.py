"""What Python's functions refuse names their arguments, not the options of the command."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import privbench
from privbench import BadInputError
from privbench.api.arguments import as_arguments
from privbench.ground.errors import PrivbenchError

if TYPE_CHECKING:
    from pathlib import Path

SUITE = {"attacks": ["metric-loss"], "targets": [{"supervised": {"epochs": 1}}]}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"threads": 0}, ["threads"]),
        ({"data_root": "/no/such/place"}, ["data_root"]),
        ({"jobs": 0}, ["jobs"]),
        ({"timeout": -1}, ["timeout"]),
        ({"address": "a:1"}, ["address", "executor"]),
        ({"executor": "serial", "timeout": 9}, ["executor", "jobs", "timeout", "isolate"]),
        ({"device": "cuda:99"}, ["device"]),
    ],
    ids=" ".join,
)
def test_a_refused_run_names_its_arguments(
    tmp_path: Path, given: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(BadInputError) as caught:
        privbench.run(SUITE, out=tmp_path / "out", **given)
    told = str(caught.value)
    assert "--" not in told.replace("--devices", "")  # of the command only
    quoted = re.findall(r"`(\w+)`", told)
    assert set(named) <= set(quoted)
    assert {*quoted} <= {*inspect.signature(privbench.run).parameters}


def test_load_and_audit_too(tmp_path: Path) -> None:
    with pytest.raises(PrivbenchError, match="`data_root`"):
        privbench.load(SUITE, data_root=tmp_path / "none")
    members, others = ({"x": [[first + i / 99] for i in range(40)], "y": [0, 1] * 20}
                       for first in (0.0, 5.0))  # fmt: skip
    with pytest.raises(PrivbenchError, match="`device` cuda:99"):
        privbench.audit(lambda x: np.hstack([x, 1 - x]), members=members, nonmembers=others,
                        out=tmp_path / "audit", device="cuda:99")  # fmt: skip


@pytest.mark.parametrize("given", [[{"lira": {"k": 2}}], {"lira": {"k": 2}}, 5, None])
@pytest.mark.parametrize("what", ["attacks", "defenses"])
def test_methods_of_an_audit_are_names(tmp_path: Path, what: str, given: Any) -> None:
    x, y = np.linspace(0, 1, 40)[:, None], np.arange(40) % 2
    options: dict[str, Any] = {what: given}
    with pytest.raises(BadInputError, match=f"{what}: .* is no name: give a list of names, and"):
        privbench.audit(lambda x: np.hstack([x, 1 - x]), members=(x, y), nonmembers=(x + 2, y),
                        out=tmp_path, **options)  # fmt: skip


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("an em--dash and a -- b stay", "an em--dash and a -- b stay"),
        ("see `privbench merge --scores`", "see `privbench merge --scores`"),
        ("--max-queries 3, --defense", "`max_queries` 3, `defenses`"),
        ("no folder at /data/x --old/run", "no folder at /data/x --old/run"),
        ("--nothing here", "--nothing here"),
    ],
)
def test_only_options_that_are_arguments_are_rewritten(message: str, expected: str) -> None:
    assert as_arguments(message, ["max_queries", "defenses"]) == expected


def test_a_key_of_the_suite_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"`attacks` of the suite and `defenses` of the suite"):
        privbench.run("nosuite.yaml", out=tmp_path)
