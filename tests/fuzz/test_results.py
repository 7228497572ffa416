"""Hostile result files: a board and a card refuse them in one sentence, or show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(0)  # each case has a limit of its own

PUBLISHED = Path(__file__).parents[2] / "leaderboards" / "results"


def test_results(fuzz: Any, hostile: Any, tmp_path: Path) -> None:
    bases = []
    for folder in sorted(PUBLISHED.iterdir()):
        paths = sorted(folder.glob("**/*.json"))
        bases.append([path.read_text("utf-8") for path in paths[:: max(1, len(paths) // 8)]])
    for chance in fuzz.cases():
        results = tmp_path / "results"
        results.mkdir(exist_ok=True)
        for old in results.iterdir():
            old.unlink()
        for i, text in enumerate(chance.sample(chance.choice(bases), chance.randint(1, 3))):
            edit = chance.random()
            if edit < 0.3:
                text = hostile.text(text, chance)  # noqa: PLW2901
            elif edit < 0.9:
                text = json.dumps(hostile.value(json.loads(text), chance))  # noqa: PLW2901
            (results / f"{i}.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        fuzz.command(["leaderboard", "results", "--title", chance.choice(hostile.tokens)])
        fuzz.command(["show", "results/0.json"])
        if chance.random() < 0.3:
            given = ["--title", chance.choice(hostile.tokens), "-o", "report.html"]
            fuzz.command(["report", "results", *given])
        if chance.random() < 0.1:
            fuzz.command(["merge", "results", "--out", "joined"])
