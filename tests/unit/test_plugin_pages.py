"""The pages about plugins name what exists: helpers, messages, other pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import privbench

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "plugins").glob("*.md"))


def test_every_helper_is_public() -> None:
    table = re.findall(r"^\| [\w, ]+ \| (.+?) \|", _text("helpers"), re.MULTILINE)
    names = {name for cell in table for name in re.findall(r"`(\w+)", cell)}
    assert len(names) > 25
    assert names <= set(privbench.__all__)


def test_every_path_in_the_repository_exists() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:benchmark|plugins|tests|docs)/[\w./]+)`", text):
            assert (ROOT / path).exists(), (page.name, path)


def test_every_message_is_one_of_the_code() -> None:
    texts = [
        text
        for file in (ROOT / "benchmark").rglob("*.py")
        for text in _texts(ast.parse(file.read_text(encoding="utf-8")))
    ]
    quoted = re.findall(r"^\| (`.+?) \|", _text("errors"), re.MULTILINE)
    messages = [message for cell in quoted for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 20
    missing = [one for one in messages if not any(one in text for text in texts)]
    assert not missing


#: Pages that are made from files of the package.
MADE = {ROOT / "docs" / "glossary.md": ROOT / "benchmark" / "privbench" / "cli" / "glossary.md"}


@pytest.mark.parametrize("page", [*PAGES, *MADE], ids=lambda p: p.stem)
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", MADE.get(page, page).read_text(encoding="utf-8")):
        file, _, heading = link.partition("#")
        there = (page.parent / file).resolve() if file else page
        there = MADE.get(there, there)
        assert there.is_file(), link
        if heading:
            heads = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {_anchor(head) for head in heads}, link


def _text(page: str) -> str:
    return (ROOT / "docs" / "plugins" / f"{page}.md").read_text(encoding="utf-8")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _texts(tree: ast.AST) -> list[str]:
    """All texts of a module; in an f-string, `…` stands for what is put in."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
            found.append("".join(map(str, parts)))
    return found
