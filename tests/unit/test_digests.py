"""Texts of values; digests of source code."""

import functools
import importlib
import importlib.util
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, Flag, StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from privbench.grid import keys
from privbench.ground.store.source import canonical, digest, source_digest
from privbench.measure.training.numerics import Numerics


class Access(Flag):
    LABELS = 1
    POSTERIORS = 2


class Mode(StrEnum):
    FAST = "quick"


@dataclass(frozen=True)
class Crop:
    scale: tuple[float, float] = (0.2, 1.0)


@dataclass
class Loose:
    scale: float = 1.0


# ---- values --------------------------------------------------------------------------------------


def test_text_of_every_kind_of_value() -> None:
    value = {
        "enum": Mode.FAST,
        "flags": Access.LABELS | Access.POSTERIORS,
        "none": Access(0),
        "crop": Crop(),
        "set": {3, 1, 2},
        "nan": float("nan"),
        "number": np.float64(0.1),
        Mode.FAST: None,
    }
    assert canonical(value) == (
        '{"FAST":null,"crop":{"$type":"Crop","scale":[0.2,1.0]},"enum":"FAST",'
        '"flags":"LABELS|POSTERIORS","nan":{"$float":"nan"},"none":"0","number":0.1,"set":[1,2,3]}'
    )


def test_digest_is_the_same_on_every_machine() -> None:
    assert digest({"a": [1, 1.0, None, "ü"]}) == "045489a00d03a2f968ddbc0011d08ef4"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, {"b": Path("x")}]}, r"'a\[1\]\.b' is a PosixPath: a path does not identify"),
        ({"a": {"x.y": object()}}, r"""'a\["x\.y"\]' is a object"""),
        ({"crop": Loose()}, r"'crop' is a Loose: make it a @dataclass\(frozen=True\)"),
        ({"a": {1: 2}}, r"'a' has the key 1, a int: keys must be text"),
        ({Mode.FAST: 1, "FAST": 2}, r"the value has two keys called 'FAST'"),
        (b"", r"the value is a bytes"),
        ({"a": np.int64(1)}, r"'a' is a int64"),
        ({"of": Crop}, r"'of' is a type"),
    ],
)
def test_what_has_no_text_is_refused_by_path(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        canonical(value)


# ---- code ----------------------------------------------------------------------------------------

PLUGIN = {
    "__init__": "from . import unrelated\n",
    "_shared/__init__": "",
    "_shared/views": "from ._deep import DEPTH\ndef crop(x):\n    return x * DEPTH\n",
    "_shared/_deep": "DEPTH = 3\n",
    "_shared/late": "EPS = 1\n",
    "_shared/unused": "A = 1\n",
    "unrelated": "B = 1\n",
    "attack": (
        '"""Docs."""\n'
        "import json\n"
        "from ._shared import views\n"
        "SIGN = -1\n"
        "class Attack:\n"
        '    """An attack."""\n'
        "    rate: float = 0.1\n"
        '    """Of false positives."""\n'
        "    def answer(self, x, k=1):\n"
        "        from ._shared.late import EPS\n"
        "        return SIGN * views.crop(x) + k + EPS  # a comment\n"
    ),
}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a plugin package of that text, with changes, from a folder of its own."""
    count = iter(range(100))
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if name.startswith(("plug", "privbench_plugins.fake")):
                del sys.modules[name]

    def imported(package: str = "plugx", *, zipped: bool = False, **changes: str) -> Any:
        forget()
        root = tmp_path / str(next(count))
        for name, text in (
            PLUGIN | {k.replace("__", "/", 1): v for k, v in changes.items()}
        ).items():
            path = root / package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if zipped:
            with zipfile.ZipFile(root / "all.zip", "w") as archive:
                for path in root.rglob("*.py"):
                    archive.write(path, path.relative_to(root))
                    path.unlink()
            root /= "all.zip"
        with monkeypatch.context() as patch:
            patch.syspath_prepend(root)
            return importlib.import_module(f"{package}.attack")

    yield imported
    forget()


def attack_with(old: str, new: str) -> str:
    assert old in PLUGIN["attack"]
    return PLUGIN["attack"].replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# another, longer comment"),
        ('"""An attack."""', '"""One attack."""'),
        ('"""Docs."""', ""),
        ('"""Of false positives."""', '"""False positives allowed."""'),
        ("SIGN * views", "SIGN  *  views"),
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(load: Any, old: str, new: str) -> None:
    first = source_digest(load().Attack)
    assert source_digest(load(attack=attack_with(old, new)).Attack) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIGN = -1", "SIGN = 1"),
        ("rate: float = 0.1", "rate: float = 0.01"),
        ("k=1", "k=2"),
        ("+ k", "- k"),
        ("import json", "import ast"),
    ],
)
def test_constants_signs_and_defaults_count(load: Any, old: str, new: str) -> None:
    first = source_digest(load().Attack)
    assert source_digest(load(attack=attack_with(old, new)).Attack) != first


@pytest.mark.parametrize(
    ("module", "text", "counts"),
    [
        ("_shared__views", PLUGIN["_shared/views"].replace("*", "+"), True),
        ("_shared___deep", "DEPTH = 4\n", True),  # a constant, two imports away
        ("_shared__late", "EPS = 2\n", True),  # imported inside a function
        ("_shared__unused", "A = 2\n", False),
        ("unrelated", "B = 2\n", False),  # imported only by the package itself
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_helpers_of_the_same_package_count(
    load: Any, module: str, text: str, counts: bool, zipped: bool
) -> None:
    first = source_digest(load(zipped=zipped).Attack)
    changed = source_digest(load(zipped=zipped, **{module: text}).Attack)
    assert (changed != first) is counts


def test_the_loader_does_not_count(load: Any) -> None:
    """Pytest imports modules with docstrings to test by a loader that gives no source."""
    first = source_digest(load().Attack)
    made = load()
    made.__spec__.loader = object()
    assert source_digest(made.Attack) == first


def test_module_class_function_and_instance_are_the_same_code(load: Any) -> None:
    module = load()
    first = source_digest(module)
    bound = module.Attack().answer
    for one in (module.Attack, module.Attack(), bound, functools.partial(bound, 1)):
        assert source_digest(one) == first
    assert source_digest(module, module.Attack) == first


def test_what_is_needed_but_not_yet_imported_is_not_imported(load: Any) -> None:
    source_digest(load().Attack)
    assert "plugx._shared.late" not in sys.modules


def test_order_of_objects_is_irrelevant_and_each_counts(load: Any) -> None:
    attack = load().Attack
    assert source_digest(attack, digest) == source_digest(digest, attack)
    assert len({source_digest(attack, digest), source_digest(attack), source_digest(digest)}) == 3


def test_of_privbench_only_named_modules_count() -> None:
    from privbench.ground.store import canonical as values
    from privbench.ground.store import source as digests

    assert source_digest(digests) != source_digest(digests, values)


def test_a_plugin_does_not_depend_on_privbench_itself(load: Any) -> None:
    text = "from privbench.ground.store.source import digest\n" + PLUGIN["attack"]
    parts = set[str]()
    from privbench.ground.store.source import _add, _Live

    _add(load(attack=text), _Live(parts))
    assert {part.split()[0] for part in parts} == {
        "plugx._shared",
        "plugx._shared._deep",
        "plugx._shared.late",
        "plugx._shared.views",
        "plugx.attack",
    }


def from_file(path: Path, text: str) -> types.ModuleType:
    """Load a file under a name that is never registered."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("lonely", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_modules_loaded_from_files(tmp_path: Path) -> None:
    text = "RATE = 1\nclass A:\n    def f(self):\n        return RATE\n"
    first = from_file(tmp_path / "a.py", text)
    same = from_file(tmp_path / "b.py", text + "# the end\n")
    other = from_file(tmp_path / "c.py", text.replace("1", "2"))
    assert source_digest(first.A) == source_digest(same.A) == source_digest(first)
    assert source_digest(first.A) != source_digest(other.A)
    # two modules of one name both count
    assert source_digest(first.A, other.A) not in {source_digest(first.A), source_digest(other.A)}


def test_a_reloaded_module_is_read_again(load: Any) -> None:
    module = load()
    first = source_digest(module.Attack)
    Path(module.__file__).write_text(attack_with("SIGN = -1", "SIGN = 123"))
    assert source_digest(module.Attack) == first  # what runs is still the old code
    assert source_digest(importlib.reload(module).Attack) != first


def test_helpers_beside_a_script_count(tmp_path: Path) -> None:
    script = "import helpers, json\nfrom privbench.ground.store.source import source_digest\n"
    script += "class A:\n    pass\nprint(source_digest(A))\n"
    (tmp_path / "run.py").write_text(script)
    seen = []
    for text in ("X = 1\n", "X = 2\n", "X = 2  # two\n"):
        (tmp_path / "helpers.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-B", tmp_path / "run.py"], capture_output=True, text=True, check=True
        )
        seen.append(done.stdout)
    assert seen[0] != seen[1]
    assert seen[1] == seen[2]


INTERACTIVE = """
import json
STEP = 2
def helper(x):
    return x + 1
class Base:
    def g(self):
        return 0
class Attack(Base):
    rate = 0.5
    again: "Attack"
    def answer(self, x, k=3):
        '''Doc.'''
        return [helper(y) * STEP - json.loads("1") for y in x] + [self.g(), Attack]
    @property
    def p(self):
        return lambda: 7
"""


def interactive(text: str) -> Any:
    space: dict[str, Any] = {"__name__": "notebook"}
    exec(text, space)  # noqa: S102
    return space["Attack"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + 1", "x - 1"),
        ("STEP = 2", "STEP = 3"),
        ("rate = 0.5", "rate = 0.6"),
        ("k=3", "k=4"),
        ("return 0", "return 1"),
        ("lambda: 7", "lambda: 8"),
        ("class Attack(Base)", "class Attack"),
    ],
)
def test_code_without_source_counts_by_what_it_does(old: str, new: str) -> None:
    assert old in INTERACTIVE
    first = source_digest(interactive(INTERACTIVE))
    assert source_digest(interactive(INTERACTIVE)) == first
    assert source_digest(interactive("\n\n# moved\n" + INTERACTIVE)) == first
    assert source_digest(interactive(INTERACTIVE.replace(old, new))) != first


def test_closures_of_code_without_source_count() -> None:
    text = "def factory(n):\n    class Inner:\n        f = lambda self: n\n    return Inner\n"
    text += "Attack = factory"
    factory = interactive(text)
    assert source_digest(factory(1)) == source_digest(factory(1)) != source_digest(factory(2))


def test_classes_made_by_a_call_count_by_what_they_hold() -> None:
    one, other = (type("Made", (), {"rate": rate, "f": lambda _: 0}) for rate in (1, 2))
    assert source_digest(one) != source_digest(other)


@pytest.mark.parametrize("thing", [3, "privbench", len, int])
def test_what_has_no_code_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"has no source: give a module, a class or a function"):
        source_digest(thing)


def test_an_enum_of_this_very_file_has_source() -> None:
    assert source_digest(Enum) != source_digest(Mode)


# ---- what enters the keys of a grid --------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    content: str
    classes: int = 2


def test_the_fields_of_keys_of_the_grid_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "code_digest", lambda: "code")
    monkeypatch.setattr(keys, "source_digest", lambda of: f"rules of {of.__name__}")
    monkeypatch.setattr(torch, "__version__", "torch")

    def method(name: str) -> Any:
        return SimpleNamespace(digest=name)

    cell: Any = SimpleNamespace(
        card=Card("card"), pool=Card("pool"), protocol="protocol", target=method("target"),
        defenses=(method("d1"), method("d2")), dataset=method("dataset"), access="labels",
        adversary=SimpleNamespace(
            adaptive=True, white_box=False, target=method("t2"), dataset=method("s2")
        ),
        attack=SimpleNamespace(digest="attack", game="membership", max_rows=7),
        sensitive=("age",), preset="cpu",
    )  # fmt: skip
    split: Any = SimpleNamespace(digest="split", seed=3)
    models: Any = SimpleNamespace(cell=cell, split=split, pool=method("pool"))
    answer, readable = keys.of_answer(
        models, "served", "own", ["s0", "s1"], device="cpu", numerics=Numerics(2)
    )
    # Other digests here mean that everything is computed again, whoever has it in a store.
    assert keys.of_trial(cell, 3, "cpu", Numerics(2, compiled=True)) == (
        "7208f23b927003f07f7bf22dc6e47b45"
    )
    assert answer.digest == "46384cf370b31030014c5271926a84f5"
    assert readable == "fd820c9ba3cef50e7755b0f89c5ca639"
    assert keys.of_baselines(cell, split, device="cpu", threads=2).digest == (
        "d27ec1e537cb9de8ae2230f2254530c4"
    )
    assert keys.of_utility("victim", split).digest == "074166201dfd7201381aae0c1dfd79d1"
    assert keys.of_probe("encoder", split).digest == "55fbeb8234d858274405febf9fdf8337"
    assert keys.of_split(cell, 3) == "0d3955e290432051a6e274dae46d852e"
    assert keys.of_pool(split, cell.adversary.dataset) == "2e7e064a8e4bb6a7ee69b1856205c0c1"
