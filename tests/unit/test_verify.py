"""``privbench verify``: what changed in the folder of an audit is named, whatever is in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from privbench.api.own_model import sums
from privbench.cli.main import main

DATE = "2026-01-02T03:04:05+00:00"
CONTENT = {
    "0a.json": b"{}", "0a.safetensors": b"\0" * 9, "answers.npy": b"npy", "queries.ndjson": b"{}\n",
    "audit.txt": b"No leak was found.", "audit.json": json.dumps({"date": DATE}).encode(),
    "leaderboard.md": b"# Board", "leaderboard.csv": b"a,b",
}  # fmt: skip


@pytest.fixture
def audit(tmp_path: Path) -> tuple[Path, str]:
    """A folder with all kinds of files of an audit, and its digest."""
    folder = tmp_path / "audit"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder, sums.seal(folder)


def verify(folder: Path, *options: str) -> tuple[int, str]:
    """Exit status and the one sentence."""
    done = CliRunner().invoke(main, ["verify", str(folder), *options])
    assert len(done.output.strip().splitlines()) == 1, done.output
    assert len(done.output) < 2000
    return done.exit_code, done.output.strip()


def test_nothing_has_changed(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    told = f"Nothing in {folder} has changed since {DATE}: 8 files, digest sha256 {digest}"
    assert verify(folder) == verify(folder, "--digest", digest.upper()) == (0, f"{told}.")
    (folder / "report.html").touch()
    (folder / ".hidden.json").touch()
    assert verify(folder) == (0, f"{told}; not part of the audit: .hidden.json, report.html.")
    assert sums.seal(folder) == digest
    subprocess.run(["sha256sum", "--check", "--strict", sums.SUMS], cwd=folder, check=True)  # noqa: S607


@pytest.mark.parametrize("name", sorted(CONTENT))
def test_a_changed_byte_and_a_missing_file_are_named(audit: tuple[Path, str], name: str) -> None:
    folder, digest = audit
    changed = bytearray(CONTENT[name])
    changed[-1] ^= 1
    (folder / name).write_bytes(changed)
    told = f"{folder} is not the audit that it was: "
    for options in ((), ("--digest", digest)):
        assert verify(folder, *options) == (1, f"{told}changed: {name}.")
    (folder / name).unlink()
    assert verify(folder) == (1, f"{told}missing: {name}.")
    (folder / name).symlink_to(folder / "elsewhere")
    assert verify(folder) == (1, f"{told}changed: {name}.")


def test_new_results_are_named_and_many_are_counted(audit: tuple[Path, str]) -> None:
    folder, _ = audit
    (folder / "more").mkdir()
    for name in ("more/1.json", "2.jsonl", "3.safetensors"):
        (folder / name).touch()
    (folder / "audit.txt").write_text("The model leaks.")
    told = "changed: audit.txt; new: 2.jsonl, 3.safetensors, more/1.json."
    status, sentence = verify(folder)
    assert (status, sentence.partition("was: ")[2]) == (1, told)
    for i in range(2000):
        (folder / f"{i:05}.json").touch()
    assert verify(folder)[1].endswith("00009.json and 1,993 more.")


def test_a_rewritten_list_is_found_by_the_digest_alone(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    (folder / "audit.txt").write_text("All is well.")
    now = sums.seal(folder)
    assert verify(folder)[0] == 0
    assert verify(folder, "--digest", digest) == (
        1, (f"{folder} is not the audit that it was: changed: SHA256SUMS (its digest is sha256 "
            f"{now}, not {digest})."),
    )  # fmt: skip
    for wrong in ("", "x", f"{digest[1:]}x"):
        status, told = verify(folder, "--digest", wrong)
        assert status == 2
        assert "give the 64 hexadecimal digits" in told


def test_every_byte_of_the_list_counts(audit: tuple[Path, str]) -> None:
    folder, digest = audit
    held = (folder / sums.SUMS).read_bytes()
    for place in range(0, len(held), 7):
        (folder / sums.SUMS).write_bytes(
            held[:place] + bytes([held[place] ^ 1]) + held[place + 1 :]
        )
        assert not sums.verified(folder).unchanged
        assert "changed: " in (told := sums.verified(folder, digest).words)
        assert sums.SUMS in told
    for content in (b"", held + held, b"\xff" * 99, f"{'0' * 64}  ../../secret\n".encode()):
        (folder / sums.SUMS).write_bytes(content)
        assert verify(folder) == (1, f"{folder} is not the audit that it was: changed: SHA256SUMS.")


def test_a_hostile_folder_gets_one_sentence(
    audit: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = audit
    os.mkfifo(folder / "1.json")
    (folder / "2.json").symlink_to("/dev/zero")
    (folder / "loop").symlink_to(folder)
    (folder / "\x1b[31m\n.json").touch()
    told = verify(folder)
    assert told[0] == 1
    assert "new: \\x1b[31m\\n.json, 1.json, 2.json." in told[1]
    sealed = sums.seal(folder)  # nor does an audit stop at its end
    assert verify(folder, "--digest", sealed)[0] == 1
    (folder / "audit.txt").unlink()
    os.mkfifo(folder / "audit.txt")
    assert "changed: audit.txt; new: " in verify(folder)[1]
    monkeypatch.setattr(sums, "_MOST_FILES", 5)
    assert verify(folder) == (
        2, f"privbench: {folder} holds more than 5 files: give the folder of one audit",
    )  # fmt: skip
    monkeypatch.undo()
    monkeypatch.setattr(sums, "_MOST_BYTES", 100)
    assert "has more than 100 bytes" in verify(folder)[1]
    for make in (lambda at: at.symlink_to("/dev/zero"), os.mkfifo, lambda _: None, Path.mkdir):
        (folder / sums.SUMS).unlink(missing_ok=True)
        make(folder / sums.SUMS)
        status, sentence = verify(folder)
        assert status == 2
        assert sentence.startswith("privbench: ")
        assert sums.SUMS in sentence
    assert verify(folder / "0a.json")[0] == verify(folder / "none")[0] == 2
