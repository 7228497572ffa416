"""Secrets of an address reach no file and no message; what looks like a token is not published."""

from __future__ import annotations

import shutil
import stat
import urllib.request
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.unit.test_own_model import (
    MEMBERS,
    NONMEMBERS,
    Server,
    files,
    run,
    server,
    told,
)

from privbench.api.console import summarise
from privbench.boards.board import Leaderboard
from privbench.cli.main import main
from privbench.ground.tokens import redacted, token_in
from privbench.results.files import read_all

if TYPE_CHECKING:
    from tests.unit.small_run import SmallRun

__all__ = ["server"]  # a fixture
SECRET = "s3cr3tV4lue"  # noqa: S105 - of no one

TOKENS = [
    "sk-proj-abcDEF1234567890", "ghp_" + "aB3" * 12, "github_pat_" + "aB3_" * 9, "hf_" + "aB" * 17,
    "AKIAIOSFODNN7EXAMPLE", "xoxb-1234567890-abcdef", "Authorization: Bearer abcdef0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "https://host/p?api_key=abcd1234", "https://host/p?v=2&code=abcd1234", "https://me:pw12@host/",
    '{"api_key": "abcd1234"}', "-----BEGIN RSA PRIVATE KEY-----",
]  # fmt: skip
NO_TOKENS = [
    "0123456789abcdef" * 4, "sha256:" + "e3b0c442" * 8, "QUtJQUlPU0ZPRE5ON0VYQU1QTEU=" * 20,
    "x" * 50 + "AKIAIOSFODNN7EXAMPLE" + "x" * 50, "https://***@host/p?api_key=***&v=***",
    "own-model(https://host/predict?api_key=***, version 2)", "task-1-risk-2-of-desk-3-and-more",
    "rmia(token=cls, k=4)", "bearer of all rows", "https://host:8000/predict", "metric-loss", "",
]  # fmt: skip


@pytest.mark.parametrize("text", TOKENS)
def test_a_token_is_found(text: str) -> None:
    assert token_in({"cell": {"fields": [1, {"note": f"see {text}, please"}]}}) == (
        "cell.fields.1.note"
    )
    assert token_in({"notes": {text: 1}}) == "a name in notes"


@pytest.mark.parametrize("text", NO_TOKENS)
def test_digests_base64_and_labels_are_no_tokens(text: str) -> None:
    assert not token_in({"note": f"see {text}, please", "digest": text})


def test_an_address_is_redacted_once() -> None:
    shown = redacted("https://me:pw@host:80/a?key=one&two;v=2#three")
    assert shown == redacted(shown) == "https://***@host:80/a?key=***&***;v=***#***"
    assert redacted("https://host/hf_" + "aB" * 17) == "https://host/***"


def test_an_audit_writes_no_secret_of_its_address(
    tmp_path: Path, server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, url = server
    sent: list[str] = []
    opened = urllib.request.Request

    def request(url: str, *given: Any) -> Any:
        sent.append(url)
        return opened(url, *given)

    monkeypatch.setattr("urllib.request.Request", request)
    run(tmp_path, f"{url}?api_key={SECRET}")
    assert set(sent) == {f"{url}?api_key={SECRET}"}
    found = run(tmp_path, f"{url}?api_key={SECRET}2")  # a new key: 48 rows are asked again
    assert SECRET not in f"{found.summary} {found!r} {found.to_records()}"
    assert len(counted.rows) == 264 + 48
    assert "?api_key=*** gave at" in found.summary
    out = tmp_path / "out"
    made = CliRunner().invoke(main, ["report", str(out), "-o", str(out / "report.html")])
    assert made.exit_code == 0, made.output
    held = {path.name: path.read_bytes() for path in out.iterdir()}
    assert not [name for name, content in held.items() if SECRET.encode() in content]
    assert b"?api_key=***" in held["report.html"]
    counted.states = [404]
    given = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    sentence = told(["--model", f"{url}?api_key={SECRET}", *given, "--out", str(out)])
    assert SECRET not in sentence
    assert f"the endpoint {url}?api_key=***: it refuses" in sentence


@pytest.mark.parametrize(
    "url", ["http://me:{}@127.0.0.1:9/", "HTTP://me:{}@h/", "http://h/?key={} x", "http://[?k={}"]
)
def test_a_refused_address_is_not_repeated(tmp_path: Path, url: str) -> None:
    given = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    assert SECRET not in told(["--model", url.format(SECRET), *given])


def test_only_the_user_reads_an_audit(tmp_path: Path, server: tuple[Server, str]) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    run(tmp_path, server[1])
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    read = {path.name for path, mode in modes.items() if mode != 0o600}
    assert read == {path.name for path in modes if path.stem == "leaderboard"}
    assert {path.suffix for path in modes} >= {".json", ".safetensors", ".ndjson", ".npy", ".txt"}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


@pytest.fixture
def leaky(small_run: SmallRun, tmp_path: Path) -> Path:
    """Results of which one holds a token in a note."""
    records = read_all([small_run.folder])
    records[0].notes["source"] = "https://host/model?api_key=abcd1234"
    shutil.copytree(small_run.folder, tmp_path / "leaky")
    records[0].write(tmp_path / "leaky")
    return tmp_path / "leaky"


PUBLISHING = [
    ["merge", "--out", "NEW.jsonl"], ["merge", "--out", "NEW"], ["leaderboard"],
    ["leaderboard", "-o", "NEW.md"], ["leaderboard", "--json"], ["report", "-o", "NEW.html"],
    ["score", "-o", "NEW.txt"],
]  # fmt: skip


@pytest.mark.parametrize("command", PUBLISHING, ids=" ".join)
def test_a_token_is_not_published(
    leaky: Path, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [command[0], str(leaky), *command[1:]])
    assert done.exit_code == 2, done.output
    trial = min(path.stem for path in leaky.glob("*.json"))
    assert f"result {trial}: notes.source holds what looks like a token or password: " in (
        done.output
    )
    assert done.output.count("\n") == 1
    assert "abcd1234" not in done.output
    assert not list(tmp_path.glob("NEW*"))


def test_a_run_writes_no_board_with_a_token(leaky: Path, tmp_path: Path) -> None:
    console, out = Console(file=StringIO(), width=200), tmp_path / "run"
    problem = summarise(console, Leaderboard(read_all([leaky])), out, "own", trained=0)
    assert "notes.source holds what looks like a token or password" in problem
    assert not out.exists()


def test_a_title_is_not_published_with_a_token(small_run: SmallRun) -> None:
    done = CliRunner().invoke(main, ["leaderboard", str(small_run.folder), "--title", TOKENS[0]])
    assert done.exit_code == 2, done.output
    assert "the title holds what looks like a token" in done.output


def test_a_submission_with_a_token_is_not_accepted(leaky: Path, tmp_path: Path) -> None:
    from privbench.results.one_file import dumped

    sent = tmp_path / "sent.jsonl"
    sent.write_text(dumped(read_all([leaky])))
    done = CliRunner().invoke(main, ["check-submission", str(sent)])
    assert done.exit_code == 1
    assert "notes.source holds what looks like a token or password" in done.output


class Held(Enum):
    """A value that is a token."""

    ONE = "sk-1234567890abcdefghij"


def test_a_token_is_found_in_whatever_holds_it() -> None:
    token = Held.ONE.value
    held: list[Any] = [{token}, frozenset([token]), (1, (token,)), Path(token), Held.ONE]
    for one in held:
        assert token_in({"notes": {"x": one}}).startswith("notes.x"), one
    assert token_in({"notes": {"x": [1, 2.5, None, True, Path("leaderboards")]}}) == ""
