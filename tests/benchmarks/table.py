"""Runs the benchmarks and writes leaderboards/speed.md.

``uv run python tests/benchmarks/table.py``; takes about 20 minutes, and needs idle cores.
Ratios are within one run on one machine. A group is named ``work | against | at least``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ("test_peers_speed.py", "test_grid_speed.py")


def measured() -> dict[str, Any]:
    """What pytest-benchmark found."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "pytest", "--benchmark-only", "-n0", "-q", "-p",
             "no:cacheprovider",
             f"--benchmark-json={report}", *(str(HERE / name) for name in FILES)],
            check=True, cwd=ROOT,
        )  # fmt: skip
        return dict(json.loads(report.read_text()))


def table(found: dict[str, Any]) -> str:
    """The report as markdown."""
    groups: dict[str, list[float]] = defaultdict(list)
    for one in found["benchmarks"]:
        groups[one["group"]].append(one["stats"]["median"] / one["extra_info"]["units"])
    ratios = ["| work | against | times faster | at least |", "|---|---|---|---|"]
    costs = ["| work | takes |", "|---|---|"]
    for group, seconds in groups.items():
        if len(seconds) == 1:
            costs.append(f"| {group} | {seconds[0] * 1e3:.2f} ms |")
        else:
            work, against, least = group.split(" | ")
            ratios.append(f"| {work} | {against} | {seconds[1] / seconds[0]:.3g} | {least} |")
    machine = found["machine_info"]
    cpu = machine.get("cpu", {})
    where = f"{cpu.get('brand_raw', machine['processor'])}, {cpu.get('count', '?')} cores"
    commit = found["commit_info"]["id"][:12]
    return "\n".join([
        "# Speed", "",
        "How fast privbench is, as ratios within one run.",
        "`uv run python tests/benchmarks/table.py` measures it and writes this file.",
        "", f"Measured at commit {commit} on {where}, Python {machine['python_version']}.", "",
        *ratios, "", *costs, "",
    ])  # fmt: skip


if __name__ == "__main__":
    (ROOT / "leaderboards" / "speed.md").write_text(table(measured()), encoding="utf-8")
