"""Plugins that are single files, in every process of a run; the interface that plugins state."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

import privbench
from privbench.cli.main import main
from privbench.measure.games.catalog import GAMES
from privbench.plugins import registry as plugins
from privbench.plugins.plugin_file import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGIN = '''
"""Loud: an attack in one file."""

from dataclasses import dataclass
from typing import ClassVar

from privbench import Access, Membership, MembershipAttack, hookimpl


@dataclass(frozen=True)
class Loud(MembershipAttack):
    """Calls a member whatever the victim is sure of."""

    name: ClassVar[str] = "loud-file"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        return Membership(oracle.posteriors(question.examples).amax(1))


@hookimpl
def privbench_attacks():
    return [Loud()]
'''
DATA = (files("privbench.cli") / "templates" / "dataset.py.txt").read_text("utf-8")
DATA = Template(DATA).substitute({"class": "Mine", "name": "mine", "api": privbench.API_VERSION})
MISSING = """        import privbench

        if root is None:
            raise privbench.BadInputError("give --data-root")
        return Card("""
RUN = ("run", "--attack", "loud-file", "--target", "supervised", "--set", "supervised.epochs=1")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Work in an empty folder with the plugin; forget the modules that are made from files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.delenv("PRIVBENCH_DATA", raising=False)
    file = tmp_path / "loud.py"
    file.write_text(PLUGIN)
    yield file
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


def invoke(*args: str, want: int = 0) -> str:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == want, (done.output, done.exception)
    return " ".join(done.output.split())


def results(folder: Path) -> dict[str, Any]:
    found = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return {one["trial"]: one for one in found if one["cell"]["attack"]["name"] == "loud-file"}


@pytest.mark.end_to_end
def test_a_file_takes_part_and_its_hash_is_in_the_result(path: Path, tmp_path: Path) -> None:
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"loud.py ok file sha256 {sha[:12]}: attack loud-file" in invoke(
        "--plugin", "loud.py", "list", "plugins"
    )
    assert "Calls a member whatever" in invoke("-p", "loud.py", "doc", "loud-file")
    invoke("--plugin", "loud.py", *RUN)
    (first,) = results(tmp_path / "results").values()
    named = first["provenance"]["plugins"]["attack loud-file"]
    assert (named["distribution"], named["version"]) == ("loud.py", f"sha256:{sha}")
    invoke("--plugin", str(path), *RUN)
    assert [*results(tmp_path / "results")] == [first["trial"]]  # the same wherever it is
    path.write_text(PLUGIN.replace(".amax(1)", ".amin(1)"))
    invoke("--plugin", "loud.py", *RUN)
    made = results(tmp_path / "results")
    assert len(made) == 2  # other code is another trial
    sources = {r["provenance"]["plugins"]["attack loud-file"]["source"] for r in made.values()}
    assert len(sources) == 2


def test_a_file_is_checked_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.py").write_text(DATA)
    assert "6 checks, 0 failed" in invoke("check", "sub/data.py")
    (tmp_path / "sub" / "data.py").write_text(DATA + "\nno")
    why = "plugin file data.py: import failed: NameError"
    assert why in invoke("check", "sub/data.py", want=2)


def test_data_that_only_their_files_describe_are_still_explained(tmp_path: Path) -> None:
    text = DATA.replace("        del root\n        return Card(", MISSING)
    assert text != DATA
    (tmp_path / "data.py").write_text(text)
    told = invoke("-p", "data.py", "doc", "mine")
    assert "Data: give --data-root" in told
    assert "from file data.py, sha256 " in told


def test_a_game_of_a_file_is_the_one_that_was_read_last(tmp_path: Path) -> None:
    assert "wrote" in invoke("new", "game", "my-game")
    file = tmp_path / "privbench-my-game" / "privbench_my_game" / "my_game.py"
    games = dict(GAMES)
    try:
        told = invoke("-p", str(file), "list", "plugins")
        assert "my_game.py ok file sha256" in told
        assert "game my-game, attack my-game-confidence" in told
        text = file.read_text()
        assert "Members against nonmembers, in pairs." in text
        file.write_text(text.replace("in pairs.", "two by two."))
        assert "Members against nonmembers, two by two." in invoke(
            "-p", str(file), "doc", "my-game"
        )
    finally:
        GAMES.clear()
        GAMES.update(games)


@pytest.mark.end_to_end
def test_python_takes_files_too(path: Path, tmp_path: Path) -> None:
    suite = {"attacks": ["loud-file"], "targets": ["supervised"], "baseline": True,
             "set": {"supervised": {"epochs": 1}}}  # fmt: skip
    made = privbench.run(suite, out=tmp_path / "out", plugins=[path])
    assert [record.status for record in made] == ["ok"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["-p", "missing.py", "list"], "no plugin file at"),
        (["--plugin", "loud.txt", "list"], "write -p FILE.py to load a plugin that is one file"),
        (["-p", "other/folder.py", "list"], "cannot read the plugin file"),
        (["-p", "binary.py", "list"], "it is not UTF-8 text"),
        (["-p", "loud.py", "-p", "other/loud.py", "list"], "two plugin files are called loud.py"),
        ([*RUN, "--plugin", "loud.py"], "write --plugin before the command"),
        (["-p", "bad.py", *RUN], "plugin file bad.py: import failed: NameError: name 'no' is"),
        (["-p", "taken.py", *RUN], "attack 'lira' is already offered by plugin 'attack_lira'"),
        (["-p", "newer.py", *RUN], "version 99.0 of the plugin interface, and this privbench has"),
    ],
)
def test_what_cannot_be_loaded_is_refused(args: list[str], why: str, tmp_path: Path) -> None:
    (tmp_path / "other" / "folder.py").mkdir(parents=True)
    (tmp_path / "binary.py").write_bytes(b"\xff\x00")
    (tmp_path / "other" / "loud.py").write_text("")
    (tmp_path / "bad.py").write_text("no")
    (tmp_path / "taken.py").write_text(PLUGIN.replace("loud-file", "lira"))
    newer = 'PRIVBENCH_API = "99.0"\nfrom privbench import something_of_then\n'
    (tmp_path / "newer.py").write_text(newer)
    assert why in invoke(*args, want=2)


def load(monkeypatch: pytest.MonkeyPatch, stated: object) -> plugins.Plugin:
    module = SimpleNamespace(__name__="theirs", PRIVBENCH_API=stated)
    monkeypatch.setattr(plugins, "_collect", lambda *_: [])
    monkeypatch.setattr(plugins, "source_of", lambda _: "")
    dist = SimpleNamespace(name="privbench-theirs", version="3.1")
    point = SimpleNamespace(name="attack_theirs", value="theirs", module="theirs", dist=dist,
                            load=lambda: module)  # fmt: skip
    (plugin,) = plugins.load(entry_points=[point]).plugins
    return plugin


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        (None, ""),
        (privbench.API_VERSION, ""),
        ("1.999", "install a newer privbench"),
        ("2.0", "install a newer privbench"),
        ("0.9", "install a newer version of the plugin"),
        (1.0, "PRIVBENCH_API is 1.0: write PRIVBENCH_API = "),
        ("one", "PRIVBENCH_API is 'one'"),
    ],
)
def test_a_plugin_for_another_interface_does_not_load(
    monkeypatch: pytest.MonkeyPatch, stated: object, why: str
) -> None:
    plugin = load(monkeypatch, stated)
    assert plugin.status == ("broken" if why else "ok")
    assert why in "; ".join(plugin.problems)
    assert (plugin.distribution, plugin.version) == ("privbench-theirs", "3.1")


def test_an_audit_runs_a_plugin_beside_a_model_in_memory(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(PLUGIN)
    draw = np.random.default_rng(0)
    rows = [{"x": draw.random((60, 4), np.float32), "y": np.arange(60) % 2} for _ in range(2)]

    def model(x: Any) -> Any:
        known = (np.abs(x[:, None] - rows[0]["x"]).max(2) < 1e-3).any(1)
        return np.stack([np.where(known, 0.9, 0.5), np.where(known, 0.1, 0.5)], 1)

    found = privbench.audit(
        model, members=rows[0], nonmembers=rows[1], out=tmp_path / "out",
        attacks=["loud-file"], plugins=[tmp_path / "loud.py"],
    )  # fmt: skip
    assert found[0].metrics["auc"].value == 1.0


WORKERS = """
import sys, privbench
suite = {"attacks": ["loud-file"], "targets": ["supervised"], "set": {"supervised": {"epochs": 1}},
         "seeds": 2}
given = {"serial": {}, "jobs": {"jobs": 2}, "isolate": {"isolate": True}}
made = privbench.run(suite, out=sys.argv[1], plugins=["loud.py"], **given[sys.argv[1]])
assert [r.status for r in made] == ["ok", "ok"], [r.reason for r in made]
print(sorted((r.trial, r.metrics["auc"].value) for r in made))
"""


@pytest.mark.end_to_end
def test_every_kind_of_worker_loads_the_file(tmp_path: Path) -> None:
    """Those of a cluster: test_cluster."""
    printed = set()
    for how in ("serial", "jobs", "isolate"):
        done = subprocess.run(
            [sys.executable, "-c", WORKERS, how], cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=600,
            env={**os.environ, "PRIVBENCH_CACHE": str(tmp_path / f"store-{how}")},
        )  # fmt: skip
        assert done.returncode == 0, (how, done.stdout + done.stderr)
        printed.add(done.stdout.splitlines()[-1])
    assert len(printed) == 1


TABLE = '''
"""A dataset: people in a csv file."""
from dataclasses import dataclass
from typing import ClassVar
from privbench import BadInputError, CsvFile, Dataset, Protocol, hookimpl

@dataclass(frozen=True)
class People(Dataset):
    """People."""

    name: ClassVar[str] = "people"
    protocols: ClassVar[dict] = {"default": Protocol(
        name="default", members=20, nonmembers=20, reference=10, pool=60, test=20)}

    def card(self, root):
        return self._file(root).card(self.name)

    def load(self, root):
        return self._file(root).load()

    def _file(self, root):
        if root is None:
            raise BadInputError("people: give --data-root, the folder of deep/people.csv")
        return CsvFile(root / "deep" / "people.csv", "rich", sensitive=("sex",))

@hookimpl
def privbench_datasets():
    return [People()]
'''


def people(folder: Path, shift: int) -> None:
    lines = [f"{(i * 7 + shift) % 50},{i % 2},{i // 2 % 2}" for i in range(140)]
    file = folder / "data" / "deep" / "people.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["age,rich,sex", *lines]) + "\n")


@pytest.mark.end_to_end
def test_rows_of_an_edited_csv_file_are_new_trials(tmp_path: Path) -> None:
    (tmp_path / "people.py").write_text(TABLE)
    command = ("-p", "people.py", "run", "--dataset", "people", "--attack", "metric-correctness",
               "--target", "supervised", "--set", "supervised.epochs=1", "--device", "cpu",
               "--data-root", "data", "--out", "results")  # fmt: skip
    made = []
    for shift in (0, 1):
        people(tmp_path, shift)
        invoke(*command)
        made.append({file.name for file in (tmp_path / "results").glob("*.json")})
    assert len(made[0]) == 1
    assert made[0] < made[1]
    assert "(kept)" in invoke(*command)


@pytest.mark.filterwarnings("default")
def test_a_note_for_users_is_one_line_without_a_path(tmp_path: Path) -> None:
    (tmp_path / "people.py").write_text(TABLE)
    people(tmp_path, 0)
    file = tmp_path / "data" / "deep" / "people.csv"
    file.write_text(file.read_text().replace(",0\n", ",m\n").replace(",1\n", ",f\n"))
    told = invoke("-p", "people.py", "doc", "people", "--data-root", "data")
    said = f"privbench: sex of {Path('data/deep/people.csv')}: numbered in sorted order: f is 0, m"
    assert said in told
    assert "UserWarning" not in told
    assert "tables.py" not in told


def test_data_are_explained_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people.py").write_text(TABLE)
    people(tmp_path, 0)
    assert "give --data-root" in invoke("-p", "people.py", "doc", "people")
    assert "140 rows" in invoke("-p", "people.py", "doc", "people", "--data-root", "data")
    monkeypatch.setenv("PRIVBENCH_DATA", "data")
    assert "140 rows" in invoke("-p", "people.py", "doc", "people")


def test_a_check_of_data_that_are_not_there_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "people.py").write_text(TABLE)
    told = invoke("-p", "people.py", "check", "people", want=2)
    assert told.endswith("privbench: people: give --data-root, the folder of deep/people.csv")
    people(tmp_path, 0)
    assert "6 checks, 0 failed" in invoke("check", "people.py", "--data-root", "data")


def test_what_has_its_data_is_checked_all_the_same(path: Path, tmp_path: Path) -> None:
    both = TABLE + PLUGIN.replace("from __future__", "# ")
    (tmp_path / "both.py").write_text(both)
    told = invoke("check", "both.py", want=2)
    assert "not checked: people: give --data-root" in told
    assert "loud-file: ok" in told
    assert told.endswith("privbench: people: give --data-root, the folder of deep/people.csv")
    assert path.exists()


def test_a_check_of_a_name_that_is_taken_is_bad_input(path: Path) -> None:
    path.write_text(PLUGIN.replace('"loud-file"', '"metric-loss"'))
    told = invoke("check", "loud.py", want=2)
    assert "attack 'metric-loss' is already offered by plugin 'attack_metric'" in told
    assert "rename it" in told


def test_a_check_says_one_fault_once_and_where_it_is(path: Path) -> None:
    path.write_text(PLUGIN.replace(".amax(1)", ".nothing(1)"))
    told = invoke("check", "loud.py", want=1)
    assert told.count("has no attribute 'nothing'") == 1
    line = 1 + PLUGIN[: PLUGIN.index(".amax(1)")].count("\n")
    assert f"it raised AttributeError in loud.py, line {line}: " in told
    assert told.count('as for "answers well-formed, from declared access only"') == 6


def test_an_audit_and_a_loaded_model_know_plugins(path: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in ("members", "nonmembers"):
        np.savez(tmp_path / f"{name}.npz", x=draw.random((60, 3)), y=np.arange(60) % 2)
    sets = {name: tmp_path / f"{name}.npz" for name in ("members", "nonmembers")}
    given = [part for name, file in sets.items() for part in (f"--{name}", str(file))]
    (tmp_path / "flat.py").write_text(
        "import numpy as np\ndef load():\n    return lambda x: np.full((len(x), 2), 0.5)\n"
    )
    audit = ("audit", "--model", "flat:load", *given, "--out")
    assert "loud-file" in invoke("-p", "loud.py", *audit, "one", "--attack", "loud-file")
    off = ("-p", "no:attack_metric", *audit, "two", "--attack", "metric-loss")
    assert "plugin 'attack_metric' is disabled" in invoke(*off, want=2)
    found = privbench.audit(
        "flat:load", members=sets["members"], nonmembers=sets["nonmembers"],
        attacks=["loud-file"], plugins=[path], out=tmp_path / "three",
    )  # fmt: skip
    assert [one.status for one in found] == ["ok"]
    suite = {"attacks": ["loud-file"], "targets": [{"supervised": {"epochs": 1}}]}
    assert privbench.load(suite, plugins=[path], device="cpu").role == "victim"
