"""Runs that are killed in the middle of a phase: how many seconds are lost, and are bits equal?

``uv run python tests/benchmarks/kills.py --kills 50`` kills one run after the other, with SIGKILL
and SIGTERM in turns, at a random moment of its first phase. It runs each again to its end, and
compares the digests of results, of the kept phases, and of answers with those of a run that nobody
killed. *Lost* is the time from the newest checkpoint to the signal: it is trained twice. Another
start of Python and torch comes on top. SIGKILL leaves the last checkpoint (here one a second, five
minutes by default); SIGTERM writes one first.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click

from privbench.measure.training import checkpoint

RUN = """
import json, pathlib, sys, privbench
from privbench.measure.training.loop import Training
plain, folder = Training.run, pathlib.Path(sys.argv[3]).parent
def run(self, *given):
    (folder / "began").touch()
    told = plain(self, *given)
    with (folder / "phases").open("a") as file:
        print(told["seconds"], file=file)
    return told
Training.run = run
made = privbench.run({"attacks": ["metric-loss"], "targets": [json.loads(sys.argv[1])],
                      "defenses": [json.loads(sys.argv[2])],
                      "controls": False},
                     out=sys.argv[3], jobs=1, device="cpu", executor="serial")
print(json.dumps([[r.digest, r.status, r.reason, r.metrics] for r in made]))
"""
#: Target and defense; epochs for some seconds of training.
VICTIMS = (
    ({"supervised": {"epochs": 800}}, "none"), ({"supervised": {"epochs": 300}}, "mixup-mmd"),
    ({"supervised": {"epochs": 80}}, "adversarial-regularization"),
    ({"supervised": {"epochs": 100}}, "dp-sgd"), ({"supervised": {"epochs": 400}}, "hamp"),
    ({"simclr": {"epochs": 400}}, "none"), ({"simclr": {"epochs": 100}}, "talos"),
    ({"byol": {"epochs": 250}}, "none"), ({"moco": {"epochs": 400}}, "crop-range"),
    ({"barlow-twins": {"epochs": 400}}, "none"), ({"mae": {"epochs": 60}}, "none"),
    ({"dino": {"epochs": 15}}, "none"), ({"autoencoder": {"epochs": 600}}, "none"),
)  # fmt: skip


def started(victim: tuple[object, str], store: Path, seconds: float) -> subprocess.Popen[str]:
    """A run in a process of its own, with a store of its own."""
    store.mkdir(exist_ok=True)
    given = [json.dumps(one) for one in victim]
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *given, str(store / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PRIVBENCH_CACHE": str(store), checkpoint.SECONDS: str(seconds)},
    )  # fmt: skip


def ended(run: subprocess.Popen[str], store: Path) -> tuple[str, list[str]]:
    """What a run printed, and the names of the phases that its store keeps."""
    said, _ = run.communicate()
    assert run.returncode == 0
    assert all(status == "ok" for _, status, *_ in json.loads(said))
    return said, sorted(path.name for path in store.glob("phase/??/*"))


def unfinished(store: Path) -> list[Path]:
    """The checkpoints in a store."""
    return [*store.glob("phase/??/.unfinished-*")]


def killed(
    victim: tuple[object, str], store: Path, number: signal.Signals, share: float, phase: float
) -> float | None:
    """Kill a run after a share of its first phase; return the seconds lost.

    None if the phase had ended; without a checkpoint all of it is lost.
    """
    run = started(victim, store, 1 if number == signal.SIGKILL else 300)
    while not (store / "began").exists() and run.poll() is None:
        time.sleep(0.02)
    time.sleep(share * phase)
    at = time.time()
    run.send_signal(number)
    run.wait()
    if run.returncode == 0 or (store / "phases").exists():
        return None
    kept = [*unfinished(store), store / "began"]
    return max(0.0, at - max(path.stat().st_mtime for path in kept))


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(kills: int, seed: int) -> None:
    """Kill runs, and print a table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    draw, wrong = random.Random(seed), 0
    lost: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
    wholes: dict[int, tuple[tuple[str, list[str]], float]] = {}
    print("| target, defense | signal | after | seconds lost | bits |\n|---|---|---|---|---|")
    turns = itertools.cycle(itertools.product(lost, range(len(VICTIMS))))
    with tempfile.TemporaryDirectory() as folder:
        while sum(map(len, lost.values())) < kills:
            number, which = next(turns)
            victim, share = VICTIMS[which], draw.uniform(0.2, 0.9)
            if which not in wholes:
                store = Path(folder) / f"whole-{which}"
                made = ended(started(victim, store, 300), store)
                wholes[which] = made, float((store / "phases").read_text().split()[0])
            made, seconds = wholes[which]
            store = Path(folder) / f"{which}-{number.name}-{share}"
            again = killed(victim, store, number, share, seconds)
            if again is None:
                continue
            equal = ended(started(victim, store, 300), store) == made and not unfinished(store)
            wrong += not equal
            lost[number].append(again)
            name = f"{json.dumps(victim[0])}, {victim[1]}".translate({34: None})
            told = "equal" if equal else "OTHER"
            when = f"{share:.0%} of {seconds:.1f} s"
            print(f"| {name} | {number.name} | {when} | {again:.2f} | {told} |", flush=True)
    for number, each in lost.items():
        print(f"{number.name}: {len(each)} kills, {median(each):.2f} s lost (median), "
              f"{max(each):.2f} at most")  # fmt: skip
    print(f"{wrong} of {kills} ended with other bits")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
