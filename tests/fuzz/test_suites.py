"""Hostile suites: a dry run refuses them in one sentence, or plans them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from privbench.grid.plan import plan
from privbench.grid.suite import Suite, read_suite, suite_from
from privbench.ground.errors import PrivbenchError

pytestmark = pytest.mark.timeout(0)  # each case has a limit of its own

PUBLISHED = sorted(Path(__file__).parents[2].glob("leaderboards/suites/*.yaml"))
BASES = (
    "attacks: [lira: {k: 3}]\n",
    """
name: a
datasets: [digits]
targets: [simclr: {epochs: 2, lr: 1e-3}]
attacks: [lira: {k: 2}]
defenses: [talos+memguard, none]
seeds: [0, 3]
baseline: false
preset: cpu
""",
    """
attacks: [attribute-inference]
sensitive: [slant]
set: {simclr: {epochs: 1, cosine: true}}
adversaries: [naive, white-box, {adaptive: true, target: supervised}]
seeds: 2
""",
    """
attacks: &a [metric-loss, shokri]
protocols:
- {name: p, members: 80, nonmembers: 80, pool: 400, reference: {size: 0.05}, test: 100,
   encoder: [members], inclusion: size}
- default
""",
    """
attacks: [encodermi-t]
targets: [simclr: {augmentation: {crop: [0.2, 1], flip: 0.5}}]
""",
)


@pytest.mark.parametrize("text", BASES, ids=range(len(BASES)))
def test_what_is_damaged_was_whole(text: str, tmp_path: Path, registry: Any) -> None:
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert plan(read_suite(tmp_path / "s.yaml"), registry, root=None, device="cpu")


#: Datasets that need files.
_OF_FILES = (
    "adult|celeba|cifar100|cifar10|fashion-mnist|location-30|mnist|purchase-100|stl10|texas-100|"
    "tiny-imagenet|utkface"
)


def test_suites(fuzz: Any, hostile: Any, tmp_path: Path) -> None:
    published = [re.sub(_OF_FILES, "digits", path.read_text("utf-8")) for path in PUBLISHED]
    published = [text for text in published if "dp-sgd" not in text]  # accounting takes minutes
    path = tmp_path / "s.yaml"
    for chance in fuzz.cases():
        text = chance.choice(published if chance.random() < 0.03 else BASES)
        if chance.random() < 0.5:
            text = hostile.text(text, chance)
        else:
            made = hostile.value(yaml.safe_load(text), chance)
            text = json.dumps(made) if chance.random() < 0.5 else yaml.safe_dump(made)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        fuzz.command(["run", "s.yaml", "--dry-run", "--data-root", "."], text)


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_SUITES = st.dictionaries(st.sampled_from(sorted(Suite.model_fields)), _VALUES, max_size=4)


def test_suites_of_any_values(fuzz: Any, registry: Any) -> None:
    @settings(max_examples=fuzz.count)
    @given(_SUITES)
    def check(values: dict[str, Any]) -> None:
        def call() -> str:
            try:
                suite = suite_from({"attacks": ["lira"], **values}, "here")
                plan(suite, registry, root=None, device="cpu")
            except PrivbenchError as error:
                return str(error)
            return ""

        said = fuzz.guarded(values, call) or ""
        assert said.isprintable(), ascii(said)

    check()
    assert not fuzz.found, fuzz.found
