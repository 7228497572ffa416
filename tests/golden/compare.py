"""Run one grid under two commits and compare every trained weight and every score, bit for bit.

    uv run python tests/golden/compare.py COMMIT [COMMIT]

Each commit is checked out beside the repository with an environment of its own and runs the same
small grid: every target, a stack of each kind, three attacks. The second commit is the working
tree by default. Bits differ between machines, so nothing is kept: run both on one.

What is compared: the tensors of the artifacts of trained phases, weights, releases and answers in
the two stores, and the metrics in the two sets of results. Keys may differ; content may not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("phase", "trained", "release", "answer")
SUITE: dict[str, Any] = {
    "datasets": ["digits"],
    "protocols": [
        {"name": "golden", "members": 60, "nonmembers": 60, "reference": 40, "public": 60,
         "pool": 400, "test": 60}
    ],
    "targets": ["supervised", "simclr", "moco", "autoencoder"],
    "defenses": [
        "talos", {"talos": {"schedule": "simultaneous"}}, "memguard", "talos+memguard", "ars",
        "olympus", "alm", "dp-sgd", "selena", "hamp", "early-stopping",
    ],
    "attacks": ["nn-mia", {"lira": {"k": 2}}, "attribute-inference"],
    "seeds": [0],
}  # fmt: skip
#: Small enough for minutes; a field that one of the commits lacks is left out.
SMALL: dict[str, dict[str, Any]] = {
    "supervised": {"epochs": 3},
    "simclr": {"epochs": 3, "classifier_epochs": 3},
    "moco": {"epochs": 3, "classifier_epochs": 3, "queue": 64},
    "autoencoder": {"epochs": 3, "classifier_epochs": 3},
    "alm": {"pairs": 8},
    "olympus": {"epochs": 3},
    "ars": {"epochs": 3, "updates": 20},
    "selena": {"models": 4, "held_out": 2},
    "attribute-inference": {"updates": [20], "penalties": [0.1], "neighbours": [5]},
    "nn-mia": {"epochs": 3, "steps": 20},
    "memguard": {"epochs": 3, "updates": 20, "iterations": 20},
    "hamp": {"noises": 50},
}


def main(commits: list[str]) -> int:
    """Compare; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            _run(Path(folder) / f"commit-{i}", commit)
            for i, commit in enumerate([*commits, None][:2])
        ]
    before, after = found
    differing = sorted(key for key in before.keys() | after.keys()
                       if before.get(key) != after.get(key))  # fmt: skip
    for key in differing:
        print(f"differs: {key}: {before.get(key)} against {after.get(key)}")
    same = len(before.keys() & after.keys()) - len(
        [key for key in differing if key in before and key in after]
    )
    print(f"{same} equal, {len(differing)} different")
    return 1 if differing else 0


def _run(folder: Path, commit: str | None) -> dict[str, str]:
    """Content by name: of tensors how often each occurs, of trials their metrics."""
    tree = ROOT
    folder.mkdir()
    if commit is not None:
        tree = folder / "tree"
        _call("git", "worktree", "add", "--detach", str(tree), commit, at=ROOT)
    try:
        _call("uv", "sync", "--quiet", at=tree)
        suite = folder / "golden.yaml"
        known = _fields(tree)
        small = {
            name: {f: v for f, v in fields.items() if f in known.get(name, ())}
            for name, fields in SMALL.items()
        }
        suite.write_text(json.dumps({**SUITE, "set": small}), encoding="utf-8")
        environment = {**os.environ, "PRIVBENCH_CACHE": str(folder / "store"),
                       "OMP_NUM_THREADS": "1"}  # fmt: skip
        out = folder / "results"
        _call(
            "uv", "run", "--quiet", "privbench", "run", str(suite), "--out", str(out),
            at=tree, environment=environment, status=(0, 1),
        )  # fmt: skip
        return _tensors(folder / "store") | _metrics(out)
    finally:
        if commit is not None:
            _call("git", "worktree", "remove", "--force", str(tree), at=ROOT)
            shutil.rmtree(tree, ignore_errors=True)


def _fields(tree: Path) -> dict[str, list[str]]:
    """Hyperparameters of every method of that commit."""
    words = subprocess.run(
        ["uv", "run", "--quiet", "privbench", "list"],  # noqa: S607
        cwd=tree, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    found = {}
    for name in SMALL:
        if name in words:
            card = subprocess.run(
                ["uv", "run", "--quiet", "privbench", "doc", name],  # noqa: S607
                cwd=tree, capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            block = card.partition("\nHyperparameters")[2].partition("\n\n")[0]
            found[name] = re.findall(r"^  (\w+) = ", block, re.MULTILINE)
    return found


def _tensors(store: Path) -> dict[str, str]:
    from safetensors.numpy import load_file

    found: dict[str, str] = {}
    for kind in KINDS:
        for file in store.glob(f"{kind}/*/*/tensors.safetensors"):
            for name, tensor in load_file(file).items():
                content = hashlib.blake2b(tensor.tobytes(), digest_size=12).hexdigest()
                found[f"{kind} {name} {tensor.shape} {content}"] = "there"
    return found


def _metrics(results: Path) -> dict[str, str]:
    found = {}
    for file in results.glob("*.json"):
        told = json.loads(file.read_text(encoding="utf-8"))
        cell = told["cell"]
        named = [cell["target"]["label"], *(d["label"] for d in cell["defenses"])]
        name = f"trial {named} {cell['attack']['label']} {cell['adversary']} seed {told['seed']}"
        keys = ("metrics", "controls", "baselines", "utility", "updates")
        content = json.dumps(
            [told["status"], *(_without_words(told[key]) for key in keys)], sort_keys=True
        )
        found[name] = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
    return found


def _without_words(value: Any) -> Any:
    """Numbers as they are; of a refused metric that it was refused, not in which words."""
    if isinstance(value, dict):
        return {k: bool(v) if k == "refused" else _without_words(v) for k, v in value.items()}
    return value


def _call(
    *command: str,
    at: Path,
    environment: dict[str, str] | None = None,
    status: tuple[int, ...] = (0,),
) -> None:
    done = subprocess.run(command, cwd=at, env=environment, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in status:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
