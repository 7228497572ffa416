"""The notebooks of examples/ run from the first cell to the last, and show pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def pictures(notebook: nbformat.NotebookNode) -> int:
    """How many outputs are pictures."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    return sum("image/png" in one.get("data", {}) for one in outputs)


def test_there_are_three_and_their_pages_show_what_a_run_showed() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["attack", "figure", "forest"]
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        nbformat.validate(notebook)
        assert pictures(notebook) >= 1, path.name
        counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
        assert counts == [*range(1, len(counts) + 1)], f"{path.name}: run all of it, in order"


@pytest.mark.end_to_end
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    shown = pictures(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    assert pictures(notebook) == shown
