"""Sealed splits: nobody can cut them beforehand, and anyone can afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from click.testing import CliRunner

from privbench.boards.records import read_all
from privbench.cli.main import main
from privbench.data.split import cut
from privbench.grid.seal import commitment, new_nonce, reveal, revealed
from privbench.testing import TinyImages

if TYPE_CHECKING:
    import pytest

    from privbench.boards.records import Record

DATA = TinyImages()
RUN = ("run", "--target", "supervised", "--set", "supervised.epochs=1", "--attack", "metric-loss")


def _cut(nonce: str = "") -> Any:
    return cut(DATA.load(None), DATA.card(None), DATA.protocols["default"], 0, nonce)


def test_a_nonce_decides_the_split() -> None:
    one, two = new_nonce(), new_nonce()
    assert one != two
    assert _cut(one).digest == _cut(one).digest
    assert len({_cut(one).digest, _cut(two).digest, _cut().digest}) == 3
    rows = DATA.load(None)
    open_, sealed = _cut(), _cut(one)
    members = torch.isin(rows.keys, open_.candidates.keys[open_.member])
    guessed = members[torch.isin(rows.keys, sealed.candidates.keys)].double().mean()
    assert guessed < 0.5, "who cuts by the seed alone finds no more members than by chance"


def test_a_commitment_tells_nothing_and_binds() -> None:
    nonce = new_nonce()
    assert commitment(nonce) == commitment(nonce) != commitment(new_nonce())
    assert nonce not in commitment(nonce)
    assert commitment("") == ""


def _run(*more: str, status: int = 0) -> str:
    done = CliRunner().invoke(main, [*RUN, *more])
    assert done.exit_code == status, done.output
    return done.output


def _records(folder: str) -> list[Record]:
    return read_all([Path(folder)])


def test_a_sealed_run_reveals_its_nonce_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run("--sealed", "--out", "sealed")
    (first,) = _records("sealed")
    assert first.seal["commitment"] == commitment(first.seal["nonce"])
    assert revealed(tmp_path / "sealed") == [first.seal["nonce"]]
    _run("--nonce", first.seal["nonce"], "--out", "again")
    (again,) = _records("again")
    assert again.digest == first.digest
    _run("--out", "open")
    (open_,) = _records("open")
    assert open_.seal == {}
    assert open_.split["members"] != first.split["members"]
    assert open_.trial != first.trial
    told = _run("--sealed", "--out", "sealed")
    assert "ok (kept)" in told, "what is finished is kept, under the nonce that it reveals"
    assert len(_records("sealed")) == 1


def test_a_result_whose_nonce_was_never_revealed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run("--sealed", "--out", "out")
    (record,) = _records("out")
    nonce = record.seal.pop("nonce")
    record.write(tmp_path / "out")
    assert revealed(tmp_path / "out") == []
    told = _run("--sealed", "--out", "out", "--dry-run")
    assert "would run" in told
    reveal(tmp_path / "out", new_nonce())
    assert revealed(tmp_path / "out") == []
    reveal(tmp_path / "out", nonce)
    assert revealed(tmp_path / "out") == [nonce]
    assert json.loads(record.path(tmp_path / "out").read_text())["checksum"]


def test_an_interrupted_run_reveals_what_it_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench.grid import run

    monkeypatch.chdir(tmp_path)
    execute = run.execute

    def interrupted(*given: Any, **named: Any) -> Any:
        execute(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "execute", interrupted)
    _run("--sealed", "--out", "out", status=130)
    assert len(revealed(tmp_path / "out")) == 1
