"""What GitHub, pre-commit and a devcontainer read names what exists, as pyproject.toml does."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def read(path: Path | str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def fault(command: str) -> str | None:
    """What a shell command names that does not exist."""
    words = [word for word in shlex.split(command) if word != "!"]
    if words[:2] == ["uv", "run"]:
        words, group = words[2:], "dev"
        if words[0] == "--group":
            group, words = words[1], words[2:]
        listed = {
            re.split(r"\W", one.replace("-", "_"))[0] for one in CONFIG["dependency-groups"][group]
        }
        installed = (Path(sys.executable).parent / words[0]).exists()
        if not installed and words[0].replace("-", "_") not in listed:
            return f"no command {words[0]}"
    elif not ((ROOT / words[0]).is_file() or shutil.which(words[0])):
        return f"no command {words[0]}"
    paths = [word for word in words if re.fullmatch(r"[\w.-]+/[\w./-]+|[\w-]+\.(py|toml|md)", word)]
    missing = [path for path in paths if not (ROOT / path).exists()]
    return f"no file {missing}" if missing else None


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            yield from ((path.name, step) for step in job["steps"])


def test_a_command_that_does_not_exist_is_found() -> None:
    assert fault("uv run pytest tests/packaging") is None
    assert fault("uv run pytest tests/package") == "no file ['tests/package']"
    assert fault("uv run pylint") == "no command pylint"
    assert fault("uv run --group docs pytset") == "no command pytset"
    assert fault(".ci/rnu") == "no command .ci/rnu"


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on the path")
def test_workflows_and_hooks_run_what_exists() -> None:
    assert {path.stem for path in WORKFLOWS} == {"release", "site", "tests", "weekly"}
    commands = [(name, line) for name, step in steps() for line in step.get("run", "").splitlines()]
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    commands += [("pre-commit", hook["entry"]) for hook in hooks]
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    commands += [("container", one) for one in container["postCreateCommand"].split("&&")]
    assert len(commands) > 15
    assert [(name, one, wrong) for name, one in commands if (wrong := fault(one))] == []


def test_actions_are_pinned_by_commit() -> None:
    used = [step["uses"] for _, step in steps() if "uses" in step]
    assert [one for one in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", one)] == []


def test_workflows_test_the_pythons_and_systems_that_the_package_names() -> None:
    matrix = read(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    classifiers = CONFIG["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    named = ["3." + one.removeprefix(prefix) for one in classifiers if one.startswith(prefix)]
    assert matrix["python"] == named
    assert CONFIG["project"]["requires-python"] == f">={named[0]}"
    systems = {"macos": "Operating System :: MacOS", "ubuntu": "Operating System :: POSIX :: Linux"}
    assert {systems[one.partition("-")[0]] for one in matrix["os"]} == {
        one for one in classifiers if one.startswith("Operating System")
    }


def test_the_citation_is_of_this_version() -> None:
    citation, project = read("CITATION.cff"), CONFIG["project"]
    for field in ("version", "license", "keywords"):
        assert citation[field] == project[field], field
    assert (citation["title"], citation["abstract"]) == (project["name"], project["description"])


def test_issue_forms_ask_for_what_github_can_show() -> None:
    assert [path.stem for path in FORMS] == ["bug", "new-method", "new-result"]
    for form in map(read, FORMS):
        assert {"name", "description", "body"} <= set(form)
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0
        shown = {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert {field["type"] for field in form["body"]} <= shown
