"""Hostile result files: board, card and checks refuse them in one sentence, or show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from privbench.api import session
from privbench.ground.store.canonical import checksum
from privbench.results.record import Record

if TYPE_CHECKING:
    import random

pytestmark = pytest.mark.timeout(0)  # each case has a limit of its own

PUBLISHED = Path(__file__).parents[2] / "leaderboards" / "results"


@pytest.fixture(scope="module")
def published() -> list[list[str]]:
    """Some results of each published suite, as text."""
    made = []
    for place in sorted(PUBLISHED.iterdir()):
        if place.is_dir():
            texts = [path.read_text("utf-8") for path in sorted(place.glob("**/*.json"))]
        else:
            texts = place.read_text("utf-8").splitlines()
        made.append(texts[:: max(1, len(texts) // 8)])
    return [texts for texts in made if texts]


def edited(text: str, hostile: Any, chance: random.Random) -> str:
    edit = chance.random()
    if edit < 0.3:
        return str(hostile.text(text, chance))
    values = json.loads(text)
    if edit < 0.9:
        values = hostile.value(values, chance)
    if chance.random() < 0.7 and isinstance(values, dict):  # a forger knows the checksum
        values.pop("checksum", None)
        try:
            values["checksum"] = checksum(values)
        except (ValueError, RecursionError):
            return json.dumps(values)
    return json.dumps(values)


def test_results(fuzz: Any, hostile: Any, published: Any, tmp_path: Path) -> None:
    for chance in fuzz.cases():
        results = tmp_path / "results"
        results.mkdir(exist_ok=True)
        for old in results.iterdir():
            old.unlink()
        for i, text in enumerate(chance.sample(chance.choice(published), chance.randint(1, 3))):
            content = edited(text, hostile, chance).encode("utf-8", "surrogatepass")
            (results / f"{i}.json").write_bytes(content)
        fuzz.command(["leaderboard", "results", "--title", chance.choice(hostile.tokens)])
        fuzz.command(["show", "results/0.json"])
        if chance.random() < 0.3:
            given = ["--title", chance.choice(hostile.tokens), "-o", "report.html"]
            fuzz.command(["report", "results", *given])
        if chance.random() < 0.1:
            fuzz.command(["merge", "results", "--out", "joined"])


def test_checks_of_results(
    fuzz: Any, hostile: Any, published: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def planned(self: session.Session) -> int:
        """Stand for the run: everything up to it has read the result."""
        blanks = [self.planned.blank(item.digest) for item in self.planned.items]
        self.records = [Record.model_validate_json(one) for one in blanks]
        return 0

    monkeypatch.setattr(session.Session, "run", planned)
    for chance in fuzz.cases():
        texts = chance.sample(chance.choice(published), chance.randint(1, 3))
        lines = [" ".join(edited(text, hostile, chance).split("\n")) for text in texts]
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
        (tmp_path / "all.jsonl").write_bytes(content)
        (tmp_path / "one.json").write_bytes(lines[0].encode("utf-8", "surrogatepass"))
        fuzz.command(["check-submission", "all.jsonl"])
        fuzz.command(["leaderboard", "all.jsonl"])
        fuzz.command(["reproduce", "one.json"])
        fuzz.command(["reproduce", "all.jsonl", "--trial", chance.choice(hostile.tokens)])
