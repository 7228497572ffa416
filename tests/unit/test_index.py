"""Listing, explaining and refusing need no torch: the index of methods knows what plugins offer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from privbench.cli.index import index
from privbench.cli.listed import Listed, listed
from privbench.ground.errors import PrivbenchError
from privbench.plugins.registry import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.plugins.registry import Registry

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "sklearn", "pandas", "torchvision", "scipy", "matplotlib")
SCRIPT = f"""
import sys
from privbench.cli.main import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split(), prog_name="privbench")
    except SystemExit as end:
        print("status", end.code, [name for name in {HEAVY} if name in sys.modules], flush=True)
"""

#: A value of each kind that JSON and YAML have, and some beyond.
VALUES = [
    None, True, "x", "", -1, 0, 1, 1.5, -0.5, 10**7, 1e300, float("nan"), [], [1], [1.5, 2], ["a"],
    [-1, -1], {}, {"crop": [2]}, {"nope": 1}, {"flip": "x"}, 10**400, "\ud800", ..., (1, 2),
]  # fmt: skip


def ask(method: Any, field: str, value: object) -> str:
    try:
        method.replace(**{field: value})
    except PrivbenchError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_index_and_class_say_the_same_of_every_value(registry: Registry) -> None:
    apart = {}
    for kind in KINDS:
        for method in registry.all(kind):
            known = listed(kind, method, [])
            for field, form in known.fields.items():
                assert form is not None, f"{method.name}.{field}"
                for value in VALUES:
                    live, ours = (ask(one, field, value) for one in (method, known))
                    if live != ours:
                        apart[f"{method.name}.{field}"] = value
    # Whether a file is there is known to the class alone.
    assert apart == dict.fromkeys(
        ["csv.path", "imagefolder.path", "npz.path", "clip.weights", "hf.weights", "timm.weights"],
        "x",
    )  # fmt: skip


def test_index_and_class_say_the_same_of_unknown_names(registry: Registry) -> None:
    simclr = registry.get("target", "simclr")
    told = ask(listed("target", simclr, []), "epoch", 3)
    assert told == ask(simclr, "epoch", 3) == (
        "unknown hyperparameter of simclr 'epoch': did you mean 'epochs'?"
    )  # fmt: skip


class Cli:
    """The program in processes of its own, with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PRIVBENCH_CACHE": str(folder / "store")}

    def __call__(self, *args: str, light: bool = True) -> str:
        """What a command prints; with ``light``, nothing heavy may be imported."""
        (told,) = self.each([" ".join(args)], light=light)
        return told

    def each(self, lines: list[str], *, light: bool = True) -> list[str]:
        """What commands print, one after another in one process."""
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=self.environment, cwd=self.folder,
            input="\n".join(lines), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert "Traceback" not in done.stdout, done.stdout
        found = re.findall(r"(.*?)^status (\d) (\[.*?\])\n", done.stdout, re.DOTALL | re.MULTILINE)
        assert len(found) == len(lines), done.stdout
        self.statuses = [int(status) for _, status, _ in found]
        for line, (_, _, heavy) in zip(lines, found, strict=True):
            assert (heavy == "[]") == light, (line, heavy)
        return [told for told, _, _ in found]

    @property
    def kept(self) -> list[Path]:
        return sorted((self.folder / "store" / "methods").glob("*.json"))


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The program with an index of the built-in methods."""
    made = Cli(tmp_path_factory.mktemp("index"))
    assert "lira" in made("list", light=False)
    return made


FILE = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar

from privbench import Access, Ge, MembershipAttack, hookimpl


@dataclass(frozen=True)
class Mine(MembershipAttack):
    """Guesses."""

    name: ClassVar[str] = "mine"
    needs: ClassVar[Access] = Access.LABELS
    tries: Annotated[int, Ge(2)] = 3

    def answer(self, oracle, question, ctx):
        return None


@hookimpl
def privbench_attacks():
    return [Mine()]
'''


#: Command -> what it says.
LISTINGS = {
    "list attacks": "\n  lira  ", "list defenses": "\n  talos  ", "list targets": "\n  simclr  ",
    "list datasets": "\n  digits  ", "list plugins": "\n  attack_lira  ", "list": "\n  lira  ",
    "doc simclr": "simclr: target, version", "doc --full lira": "IEEE S&P 2022",
    "doc membership": "membership: game", "doc quarters": "quarters: protocol of every dataset",
    "--help": "Usage", "run --help": "Usage", "doc --help": "Usage",
}  # fmt: skip
REFUSALS = {
    "doc lirra": "unknown name 'lirra': did you mean 'lira'?",
    "check lirra": "unknown method 'lirra': did you mean 'lira'?",
    "lisst": "unknown command 'lisst': did you mean 'list'?",
    "list atacks": "unknown kind 'atacks': did you mean 'attacks'?",
    "run": "nothing to run",
    "run nowhere.yaml": "no suite at nowhere.yaml",
    "run broken.yaml": "suite broken.yaml, line 2",
    "run value.yaml": "talos.adversarial_factor: give a number, not 'many'",
    "run unknown.yaml": "unknown attack 'lirra': did you mean 'lira'?",
    "run sweep.yaml": "sweep 'talos': the sweep of adversarial_factor",
    "run protocol.yaml": "unknown part of protocol 'mine' 'membrs': did you mean 'members'?",
    "run --attack lirra": "unknown attack 'lirra': did you mean 'lira'?",
    "run --attack lira --dataset digitz": "unknown dataset 'digitz': did you mean 'digits'?",
    "run --attack lira --set simclr.epoch=3": "unknown hyperparameter of simclr 'epoch'",
    "run --attack lira --set simclr.epochs=-3": "simclr.epochs: give 0 or more, not -3",
    "run --attack lira --set simclr.epochs=many": "simclr.epochs: give a whole number, not 'many'",
    "run --attack lira --set moco.epochs=3": "--set moco: this run has no moco: it has ",
    "run --attack rmia --set lira.k=8": "--set lira: this run has no lira: it has ",
    "run --attack lira --preset huge": "unknown preset 'huge'",
    "run --attack lira --protocol nope": "unknown protocol 'nope'",
    "run --attack lira --sensitive slnt": "attribute of digits 'slnt': did you mean 'slant'?",
    "run --attack lira --sweep none": "this defense has one setting only",
    "run --attack lira --defense talos+talos": "stacks a method on itself",
    "run --attack lira --device tpu": "unknown device 'tpu'",
    "run --attack lira --jobs many": "--jobs many: give a whole number",
    "run --attack lira --shard 3/2": "--shard 3/2: write I/N",
    "run --attack lira --data-root nowhere": "nowhere is not a directory",
    "run --attack lira --out broken.yaml": "is a file: choose a directory",
    "run --attack lira --seeds 0": "Invalid value for '--seeds'",
    "run --dry-run --attack lira --set simclr.epochs=-3": "simclr.epochs: give 0 or more, not -3",
    "--plugin nowhere.py list": "no plugin file at",
    "-p no:nowhere list": "unknown plugin to disable 'nowhere'",
    "new attack lira": "attack 'lira' exists already",
    "show nowhere.json": "no result at nowhere.json",
    "report nowhere": "no results folder at nowhere",
    "score nowhere": "no results folder at nowhere",
    "audit --model m:f --members nowhere.npz --nonmembers n.npz": "cannot be read",
    "audit --model http://h/ --members n.npz --nonmembers n.npz --format kserv": "mean 'kserve'?",
    "audit --model m:f --members n.npz --nonmembers n.npz --attack lirra": "mean 'lira'?",
    "check-submission nowhere.jsonl": "no submission at nowhere.jsonl",
    "reproduce nowhere.json": "no result at nowhere.json",
}
SUITES = {
    "broken": "attacks: [lira\n",
    "value": "attacks: [lira]\ndefenses: [{talos: {adversarial_factor: many}}]\n",
    "unknown": "attacks: [lirra]\n",
    "sweep": "attacks: [lira]\nsweep: [{talos: {adversarial_factor: [2, 1]}}]\n",
    "protocol": "attacks: [lira]\nprotocols: [{name: mine, membrs: 10}]\n",
}


@pytest.mark.slow
def test_listings_and_refusals_import_nothing_heavy(cli: Cli) -> None:
    for name, text in SUITES.items():
        (cli.folder / f"{name}.yaml").write_text(text)
    for commands, status in ((LISTINGS, 0), (REFUSALS, 2)):
        for (line, wanted), told in zip(commands.items(), cli.each([*commands]), strict=True):
            assert wanted in told, (line, told)
        assert set(cli.statuses) == {status}, dict(zip(commands, cli.statuses, strict=True))


@pytest.mark.end_to_end
def test_a_plugin_file_has_an_index_of_its_text(cli: Cli) -> None:
    file = cli.folder / "mine.py"
    file.write_text(FILE)
    assert "  mine  " in cli("--plugin", "mine.py", "list", light=False)
    assert "  mine  " in cli("--plugin", "mine.py", "list")
    assert "tries = 3 (int ≥ 2)" in cli("--plugin", "mine.py", "doc", "mine")
    assert "  mine  " not in cli("list")


@pytest.mark.end_to_end
def test_a_changed_plugin_file_is_read_again(cli: Cli) -> None:
    file = cli.folder / "changes.py"
    for name in ("first", "second"):
        file.write_text(FILE.replace('"mine"', f'"{name}"'))
        assert f"  {name}  " in cli("--plugin", "changes.py", "list", light=False)
        assert f"  {name}  " in cli("--plugin", "changes.py", "list")


@pytest.mark.end_to_end
def test_an_installed_package_has_an_index_that_follows_its_files(tmp_path: Path) -> None:
    """A distribution on the path is found, read again when a file changes, and gone when it is."""
    name = "privbench-norm-attack"
    package = name.replace("-", "_")
    (tmp_path / "site" / package).mkdir(parents=True)
    for file in (ROOT / "examples" / name / package).glob("*.py"):
        (tmp_path / "site" / package / file.name).write_text(file.read_text())
    cli = Cli(tmp_path)
    cli.environment["PYTHONPATH"] = str(tmp_path / "site")
    assert package not in cli("list", "plugins", light=False)

    module = max((tmp_path / "site" / package).glob("*.py"), key=lambda one: one.stat().st_size)
    points = f"[privbench]\nstranger = {package}.{module.stem}\n"
    information = tmp_path / "site" / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(points)
    assert f"stranger                   ok        {name} 1.0" in cli("list", "plugins", light=False)
    assert "stranger" in cli("list", "plugins")

    module.write_text(module.read_text() + "\n# changed\n")
    assert "stranger" in cli("list", "plugins", light=False)
    assert "stranger" in cli("list", "plugins")
    information.rename(information.with_name(f"{package}-1.1.dist-info"))
    cli("list", "plugins", light=False)
    assert "unavailable" not in cli("list")


@pytest.mark.end_to_end
def test_a_broken_plugin_is_never_kept(cli: Cli) -> None:
    """What would mend it is not known."""
    (cli.folder / "broken.py").write_text("import nowhere_to_be_found\n")
    before = cli.kept
    for _ in range(2):
        assert "broken.py                  broken" in cli(
            "--plugin", "broken.py", "list", "plugins", light=False
        )
    assert cli.kept == before


DAMAGES: list[Callable[[Any], str]] = [
    lambda _: "", lambda _: "{", lambda _: "[" * 100_000, lambda _: "[]",
    lambda held: json.dumps({**held, "methods": [["attack", 0, {"name": "evil"}]]}),
    lambda held: json.dumps({**held, "methods": [["attack", 10**9, held["methods"][0][2]]]}),
    lambda held: json.dumps({**held, "games": {"membership": "text"}}),
    lambda held: json.dumps({**held, "plugins": [{**held["plugins"][0], "status": "fine"}]}),
    lambda held: json.dumps({**held, "files": {}}),
    lambda held: json.dumps({**held, "files": {"/": None}}),
]  # fmt: skip


def test_an_index_in_another_form_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench.ground.store import stamps

    monkeypatch.setattr(stamps, "_STARTED", 2**63)  # whatever is edited while tests run
    made = index([])
    (path,) = (tmp_path / "store" / "methods").glob("*.json")
    text = path.read_text()
    assert json.loads(text)["games"] == made.games
    for damage in DAMAGES:
        path.write_text(damaged := damage(json.loads(text)))
        again = [one.name for one in index([]).all("attack")]
        assert again == [m.name for m in made.all("attack")], damaged[:80]
        assert path.read_text() == text, damaged[:80]


def test_hostile_annotations_run_nothing() -> None:
    from privbench.cli.annotations import read

    forms: list[Any] = [
        ["type", "eval"], ["type", "__import__"], ["fields", "x", {"a=print(1)": ["none"]}, []],
        ["fields", "x\n", {}, []], ["bounded", ["type", "int"], [["__class__", 1]]], ["choice", []],
        ["choice", [[]]], ["tuple"], "none", None, {}, ["bounded", ["type", "int"], [["Ge", "x"]]],
    ]  # fmt: skip
    for form in forms:
        with pytest.raises(ValueError, match=r"is no|Field names"):
            read(form)
    method = Listed("a", 1, "", {"x": ["type", "eval"]}, [], [], [])
    assert method.replace(x=1).given == {"x": 1}  # left to the class
