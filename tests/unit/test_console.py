"""What is printed while a grid runs, where no terminal can draw bars."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from privbench.cli.console import Watcher

if TYPE_CHECKING:
    import pytest


def test_lines_say_what_trains_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("privbench.cli.console.time.monotonic", lambda: now)
    text = io.StringIO()
    with Watcher(Console(file=text), total=3) as watcher:
        watcher.epoch("encoder", 0.0, 4, 50)
        now = 20.0
        watcher.epoch("encoder", 2.0, 4, 50)
        watcher.left(754.0)
        now = 40.0
        watcher.epoch("encoder", 4.0, 4, 50)
    assert text.getvalue().splitlines() == [
        "  [0/3] encoder: epoch 2.0/4, 5 rows/s",
        "  [0/3, about 13 min left] encoder: epoch 4.0/4, 5 rows/s",
    ]
