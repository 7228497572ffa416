"""The commands of examples/clip, with a model that is trained for two epochs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "clip"
MAIN = "from privbench.cli.main import main; main()"


@pytest.mark.end_to_end
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    text = (EXAMPLE / "train.py").read_text()
    (tmp_path / "train.py").write_text(
        text.replace("EPOCHS, BATCH, LR = 200", "EPOCHS, BATCH, LR = 2")
    )
    assert (tmp_path / "train.py").read_text() != text
    (tmp_path / "suite.yaml").write_text((EXAMPLE / "suite.yaml").read_text())

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "COLUMNS": "150"}, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout + done.stderr)
        return done.stdout

    blocks = re.findall(r"```\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    train, run, audit = (one.replace("\\\n", " ").split() for one in blocks)
    assert train[0] == "python"
    python(*train[1:])
    assert run[0] == audit[0] == "privbench"
    small = ("simclr.epochs=1", "simclr.updates=0", "encodermi-t.n=2", "encodermi-s.n=2")
    told = python("-c", MAIN, *run[1:], *(word for one in small for word in ("--set", one)))
    assert "3 trials, 0 failed" in told
    assert "model=clip.json" in told
    short = ("--attack", "lira", "--shadow-recipe", "train:fit", "--set", "lira.k=2")
    told = python("-c", MAIN, *audit[1:], *short)
    assert "Accuracy: " in told
    assert "left out" not in told.lower()
