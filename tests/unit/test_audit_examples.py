"""The audits of examples/audit run as its README says, on fewer rows of the same files."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from privbench.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "audit"
ROWS = {"adult": 300, "cifar10": 50}

pytestmark = [pytest.mark.end_to_end, pytest.mark.realdata]


class Example:
    """A copy of the folder, with rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "AUDIT_ROWS": "rows", "PRIVBENCH_CACHE": str(folder / "store")}

    def python(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.env, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout + done.stderr)
        return done.stdout

    def privbench(self, *words: str) -> None:
        """Run a command in this process, which has imported torch, as if it stood in the folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.syspath_prepend(str(self.folder))
            for name in ("AUDIT_ROWS", "PRIVBENCH_CACHE"):
                patch.setenv(name, self.env[name])
            done = CliRunner().invoke(main, list(words))
            for name in ("models", "tables"):
                sys.modules.pop(name, None)
        assert done.exit_code == 0, (words, done.output, done.exception)

    def audit(self, model: str, rows: str, out: str, *more: str) -> str:
        """Audit a model by the command of the README, and return the words."""
        files = (f"--members=rows/{rows}-members.npz", f"--nonmembers=rows/{rows}-nonmembers.npz")
        self.privbench("audit", "--model", model, *files, "--out", out, *more)
        return (self.folder / out / "audit.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    if not os.environ.get("PRIVBENCH_DATA"):
        pytest.skip("needs PRIVBENCH_DATA with adult/ and cifar-10-batches-py/")
    folder = tmp_path_factory.mktemp("example") / "audit"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    made = Example(folder)
    made.python("rows.py", "rows")
    for path in (folder / "rows").glob("*.npz"):
        with np.load(path) as file:
            n = ROWS[path.name.split("-")[0]]
            cut = {name: file[name][:n] for name in file.files}
        np.savez(path, **cut)
    return made


def test_rows_are_disjoint(example: Example) -> None:
    for name, n in ROWS.items():
        sets = []
        for part in ("members", "nonmembers", "shadow"):
            with np.load(example.folder / "rows" / f"{name}-{part}.npz") as file:
                sets.append({row.tobytes() for row in file["x"]})
        assert len(set.union(*sets)) == sum(map(len, sets)) == 3 * n


def test_the_endpoint_says_what_the_forest_says(example: Example) -> None:
    forest = example.audit("models:forest", "adult", "forest")
    assert "The model leaks who its members are." in forest
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = [sys.executable, "-m", "uvicorn", "serve:app", "--port", str(port)]
    with subprocess.Popen(serving, cwd=example.folder, env=example.env, stderr=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL) as server:  # fmt: skip
        try:
            _until_it_listens(port, server)
            url = f"http://127.0.0.1:{port}/predict"
            asked = example.audit(url, "adult", "endpoint", "--rate", "20", "--batch", "100")
            again = example.audit(url, "adult", "endpoint", "--rate", "20", "--batch", "100")
        finally:
            server.terminate()
    assert asked == forest
    ledger = example.folder / "endpoint" / "queries.ndjson"
    lines = ledger.read_text(encoding="utf-8").splitlines()
    changed = len(lines) - (1 + 2 * ROWS["adult"] + 48)  # a head, each row once, some again
    assert 60 <= changed <= 64  # few of them are rows of the audit
    assert again.startswith(forest)
    assert f"Kept answers: {2 * ROWS['adult'] + changed}, which {url} gave at" in again
    with pytest.raises(AssertionError, match="stay in endpoint, and count once it gives"):
        example.audit(url, "adult", "endpoint", "--retries", "0")
    assert (example.folder / "endpoint" / "audit.txt").read_text(encoding="utf-8") == again


def _until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the server did not come up within a minute")


def test_clones_of_the_forest_find_more(example: Example) -> None:
    words = example.audit("models:forest", "adult", "clones", "--shadow-recipe", "clone")
    told = re.search(r"strongest of 8 attacks, (union|lira).*; its AUC is ([\d.]+) ", words)
    assert told is not None
    assert float(told[2]) > 0.8


def test_a_pipeline_on_a_table(example: Example) -> None:
    pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    pd = pytest.importorskip("pandas", reason="tables.py needs pandas")
    example.python("tables.py", "rows")
    for path in (example.folder / "rows").glob("*.parquet"):
        pd.read_parquet(path)[:600].to_parquet(path, index=False)
    files = (f"--{name}=rows/people-{name}.parquet" for name in ("members", "nonmembers"))
    command = ("audit", "--model", "tables:pipeline", *files, "--label", "income")
    clones = ("--shadow-recipe", "clone", "--attack", "lira", "--set", "lira.k=4")
    example.privbench(*command, *clones, "--out", "table")
    words = (example.folder / "table" / "audit.txt").read_text("utf-8")
    told = re.search(r"The only attack, lira.*; its AUC is ([\d.]+) ", words)
    assert told is not None
    assert float(told[1]) > 0.7
    files = (f"--{name}=rows/people-{name}.parquet" for name in ("members", "nonmembers"))
    ages = ("--model", "tables:ages", "--label", "age", "--output", "values", "--out", "ages")
    few = ("--shadow-recipe", "clone", "--set", "lira-residual.k=4")
    example.privbench("audit", *files, *ages, *few)
    words = (example.folder / "ages" / "audit.txt").read_text("utf-8")
    told = re.search(r"strongest of 2 attacks, lira-residual.*; its AUC is ([\d.]+) ", words)
    assert told is not None
    assert float(told[1]) > 0.75


def test_boosting_with_shadows(example: Example) -> None:
    more = "--shadow rows/adult-shadow.npz --attack metric-confidence --attack shokri"
    words = example.audit("models:boosting", "adult", "boosting", *more.split())
    assert re.search(r"strongest of 2 attacks, (shokri|metric-confidence),", words)
    told = re.search(r"Accuracy: ([\d.]+)% on members, ([\d.]+)% on nonmembers", words)
    assert told is not None
    assert float(told[1]) > float(told[2]) + 5


def test_a_resnet_from_a_checkpoint_and_its_page(example: Example) -> None:
    said = example.python("train_resnet.py", "rows/cifar10-members.npz", "resnet.safetensors")
    assert "epoch 15: loss" in said
    weights = ("--checkpoint", "resnet.safetensors")
    words = example.audit("models:resnet", "cifar10", "resnet", *weights)
    assert "Members and nonmembers look alike" in words
    example.privbench("report", "resnet", "-o", "resnet/report.html")
    assert words.splitlines()[0] in (example.folder / "resnet" / "report.html").read_text("utf-8")
