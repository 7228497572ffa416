"""The command audits a server of each format, and says what it says of the model itself."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.test_own_model import files, rows

from privbench.cli.main import main
from privbench.toolbox.endpoint_formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
EMBEDDED = [
    "--attack", "attribute-inference", "--set", "attribute-inference.updates=[20]",
    "--set", "attribute-inference.neighbours=[5]", "--set", "attribute-inference.penalties=[1.0]",
]  # fmt: skip
pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    for needed in ("uvicorn", "fastapi"):
        pytest.importorskip(needed)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "uvicorn", "tests.unit.serving:app", "--port", str(port)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL) as server:  # fmt: skip
        try:
            for _ in range(600):
                assert server.poll() is None, "the server ended"
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def audit(tmp_path: Path, out: str, model: str, *words: str) -> str:
    command = ["audit", "--model", model, "--out", str(tmp_path / out), *words]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    return (tmp_path / out / "audit.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FORMATS)
def test_a_server_is_audited_like_the_model(tmp_path: Path, url: str, name: str) -> None:
    sets: dict[str, Any] = {"members": rows(100, 0), "nonmembers": rows(100, 1)}
    model, given = "tests.unit.serving:model", ["--attack", "metric-confidence"]
    if name == "openai-embeddings":
        sets["shadow"] = rows(100, 2)
        sets = {of: {**one, "x": (one["x"] * 10).round()} for of, one in sets.items()}
        every = np.concatenate([one["x"] for one in sets.values()])
        sets["attributes"] = {"sex": (every[:, 3] > 0).astype(int)}
        model, given = "tests.unit.serving:encoder", EMBEDDED
    given += files(tmp_path, **sets)
    asked = ["--format", name, "--model-version", "my-encoder", "--max-queries", "400"]
    assert audit(tmp_path, "by_url", f"{url}/{name}", *given, *asked) == audit(
        tmp_path, "by_model", model, *given
    )
