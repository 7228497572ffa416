"""``privbench audit`` of a model of one's own, with ``coins``, ``compare`` and ``verify``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench.api.own_model import KINDS
from privbench.cli import completion
from privbench.cli.border import Finite, Whole, say

if TYPE_CHECKING:
    from privbench.api.own_model.words import Audit
    from privbench.plugins.registry import Choice

#: Exit statuses; 1 is that an attack failed. A refuted claim is a failed gate.
_FAILED_GATE, _NO_VERDICT = 3, 4


@click.command("audit")
@click.option(
    "--model", default="", metavar="MODULE:FUNCTION|FILE.onnx|URL",
    help="Function that returns the model, a file of ONNX, or the address of an endpoint.",
)  # fmt: skip
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), default=None,
    help="Weights for a torch module: safetensors, or tensors that torch.save wrote.",
)  # fmt: skip
@click.option(
    "--members", required=True, type=click.Path(path_type=Path),
    help="Rows that the model was trained on: .npz with x and y, csv, parquet or JSON lines.",
)  # fmt: skip
@click.option(
    "--nonmembers", required=True, type=click.Path(path_type=Path),
    help="Rows from the same source that it was not trained on.",
)  # fmt: skip
@click.option(
    "--shadow", type=click.Path(path_type=Path),
    help="The adversary's own rows, from which it trains shadows.",
)  # fmt: skip
@click.option("--shadow-recipe", metavar="clone|MODULE:FUNCTION|TARGET",
              shell_complete=completion.of("target"),
              help="What trains shadows: clone copies a scikit-learn estimator, a function "
              "fit(x, y, seed) returns a model [supervised, with --shadow].")  # fmt: skip
@click.option("--answers", is_flag=True,
              help="The files hold what the model answered, a column for each class; no model is "
              "asked.")  # fmt: skip
@click.option("--label", default="y", show_default=True, metavar="COLUMN",
              help="Column of a table with the class, or with what a regression is to "
              "answer.")  # fmt: skip
@click.option("--column", default="", metavar="COLUMN",
              help="The model gets this column of a table, such as texts, as a list.")  # fmt: skip
@click.option("--rows", "loader", default="", metavar="MODULE:FUNCTION",
              help="What reads the files: a function from a path to rows and classes.")  # fmt: skip
@click.option(
    "--attributes", type=click.Path(path_type=Path),
    help="Sensitive attributes: .npz, one array each, for members, nonmembers, shadow rows.",
)  # fmt: skip
@click.option("--claim", metavar="EPSILON,DELTA",
              help="Test this claim of differential privacy; needs --coins.")  # fmt: skip
@click.option("--coins", type=click.Path(path_type=Path), metavar="FILE",
              help="Seed file of `privbench coins`, tossed before training.")  # fmt: skip
@click.option(
    "--output", type=click.Choice(["auto", *KINDS]), default="auto", show_default=True,
    help="What the model answers; values: numbers, as a regression does.",
)  # fmt: skip
@click.option("--attack", "attacks", multiple=True, metavar="NAME",
              shell_complete=completion.of("attack"),
              help="Attack (repeatable) [all that access and rows allow].")  # fmt: skip
@click.option("--defense", "defenses", multiple=True, metavar="NAME",
              shell_complete=completion.of("defense"),
              help="Also try a defense that changes only answers (repeatable).")  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("audit"), show_default=True,
    help="Directory for results and for the ledger of an endpoint.",
)  # fmt: skip
@click.option("--model-version", default="", metavar="TEXT",
              help="Your name for the model's version; another name asks it again.")  # fmt: skip
@click.option("--rate", type=Finite(min=0, max=1e6), default=0.0,
              help="Most requests to an endpoint per second [no limit].")  # fmt: skip
@click.option("--retries", type=Whole(0, 100), metavar="N", default=5, show_default=True,
              help="Most repetitions of a failed request; pauses grow.")  # fmt: skip
@click.option("--batch", type=Whole(1, 100_000), metavar="N", default=64, show_default=True,
              help="Most rows of a request.")  # fmt: skip
@click.option("--request-timeout", type=Finite(min=0, max=86_400, min_open=True), default=60.0,
              show_default=True, metavar="SECONDS",
              help="Time in which a request must be answered.")  # fmt: skip
@click.option("--deadline", type=Finite(min=0, max=1e9), default=0.0, metavar="SECONDS",
              help="Time for all requests to an endpoint [no limit].")  # fmt: skip
@click.option("--format", default="", metavar="NAME",
              help="How an endpoint is asked: privbench, kserve, tf-serving, hf, torchserve, "
              "sagemaker, sagemaker-csv or openai-embeddings [privbench].")  # fmt: skip
@click.option("--request", type=click.Path(), default="",
              help='JSON to send instead, with "$rows" or "$row" where the rows go.')  # fmt: skip
@click.option("--answer", default="", metavar="PATH",
              help="Where the answers are in what comes back, such as "
              "predictions[*].scores.")  # fmt: skip
@click.option("--max-queries", type=Whole(0, 10**12), metavar="N", default=0,
              help="Most rows that are sent to an endpoint [no limit].")  # fmt: skip
@click.option("--seeds", type=Whole(1, 1000), metavar="N", default=1, show_default=True,
              help="Number of seeds of attacks and shadows.")  # fmt: skip
@click.option("--preset", default="cpu", show_default=True, metavar="NAME",
              help="cpu for small sizes, paper for the published sizes.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="METHOD.FIELD=VALUE",
              help="Hyperparameter, for example supervised.epochs=50 (repeatable).")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@click.option("--jobs", default="1", show_default=True, metavar="N",
              help="Worker processes that train shadows; auto: one per core.")  # fmt: skip
@click.option("--fail-above", "fail_above", multiple=True, metavar="FIGURE=NUMBER",
              help="Gate: status 3 if an attack's auc, tpr@1%, tpr@0.1%, balanced_accuracy or "
              "epsilon is above, 4 if too few rows decide (repeatable).")  # fmt: skip
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE.xml",
              help="Write thresholds and attacks as test cases of JUnit.")  # fmt: skip
@click.option("--sarif", type=click.Path(path_type=Path), metavar="FILE.sarif",
              help="Write thresholds that did not pass as SARIF 2.1.0.")  # fmt: skip
@click.option("--pdf", is_flag=True,
              help="Also print the sheet to sign, audit.html, to audit.pdf; needs "
              "chromium.")  # fmt: skip
@click.pass_obj
def audit(chosen: list[Choice], /, **options: Any) -> None:
    """Attack a model of your own and say what leaks.

    Exit status: 0 if every attack that suits it ran and the gate passed, 1 if an attack failed, 2
    for bad input, or if nothing failed but the print of the sheet, 3 if the gate failed or the
    claim is refuted, 4 if the gate is undecided, or if there is no verdict, since the rows or their
    classes cannot be right.
    """
    from privbench.api.own_model import formats
    from privbench.api.own_model.answers import as_given, read_answers
    from privbench.api.own_model.claim import claimed
    from privbench.api.own_model.gate import written
    from privbench.api.own_model.printed import browser
    from privbench.api.own_model.reach import Asking
    from privbench.api.own_model.rows import read_rows
    from privbench.cli.index import kept_index
    from privbench.grid.suite import parse_settings
    from privbench.ground.errors import BadInputError
    from privbench.toolbox.row_files import Reading

    options["settings"] = parse_settings(list(options["settings"]))
    options["fail_above"] = written(options["fail_above"], "--fail-above")
    for kind in ("junit", "sarif"):
        formats.refuse(f"--{kind}", kind, options[kind])
    options["chromium"] = browser() if options.pop("pdf") else ""
    options["checkpoint"] = options["checkpoint"] or ""
    options["asking"] = Asking(*(options.pop(of) for of in Asking.__match_args__))
    options["asking"].refuse(options["model"], options["model_version"])
    if known := kept_index(chosen):
        for name in options["attacks"]:
            known.get("attack", name)
        for name in options["defenses"]:
            known.get("defense", name)
    files = (options.pop(of) for of in ("members", "nonmembers", "shadow", "attributes"))
    reading = Reading(*(options.pop(name) for name in ("label", "column", "loader")))
    # what is wrong with names or rows is said before torch is imported
    members, nonmembers, shadow, attributes = files
    model: Any = options.pop("model")
    if options.pop("answers"):
        if model or attributes:
            raise BadInputError("answers: no model is asked: leave out the model and attributes")
        recipe = options["shadow_recipe"]
        rows = read_answers(members, nonmembers, reading, shadow=shadow, recipe=recipe,
                            output=options["output"])  # fmt: skip
        model = as_given
    elif not model:
        raise BadInputError("name a model, or give what it answered (--answers)")
    else:
        rows = read_rows(members, nonmembers, shadow, attributes, reading, output=options["output"])
    options["claim"] = claimed(options["claim"], options.pop("coins"), rows)

    from privbench.api import auditing
    from privbench.api.console import terminal_console
    from privbench.api.own_model.sums import SHEET, WORDS

    out = options["out"]
    made = auditing.audited(model, rows, **options, chosen=chosen, console=terminal_console())
    say(f"\n{made.summary}\n\nThese words: {out / WORDS}. To print and sign: {out / SHEET}. All "
        f"numbers on one page: privbench report {out} -o {out / 'report.html'}")  # fmt: skip
    if made.gate:
        say(f"\n{made.gate.words}")
    say(f"\nDigest of this audit: sha256 {made.digest} (privbench verify {out})")
    if made.not_printed:
        say(f"privbench: {made.not_printed}", err=True)
    sys.exit(_status(made))


def _status(made: Audit) -> int:
    if made.claim and made.claim.refuted:
        return _FAILED_GATE
    if made.gate and made.gate.outcome != "passed":
        return _FAILED_GATE if made.gate.outcome == "failed" else _NO_VERDICT
    if made.no_verdict:
        return _NO_VERDICT
    tried = (one for of in made.defended for one in of.records)
    if any(one.status == "failed" for one in (*made, *tried)):
        return 1
    return 2 if made.not_printed else 0


@click.command()
@click.argument("rows", type=click.Path(path_type=Path))
@click.option("--count", type=Whole(min=1), metavar="N", required=True,
              help="Rows with a coin; the others are all trained on.")  # fmt: skip
@click.option("--seed-file", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="New file for the secret of the coins.")  # fmt: skip
def coins(rows: Path, count: int, seed_file: Path) -> None:
    """Toss a coin for each of N rows: train on it or not.

    ROWS is a .npz file; NAME-included.npz and NAME-excluded.npz are written beside it. Train on the
    first one; then `privbench audit --claim EPSILON,DELTA --coins FILE` tests the claim.
    """
    from privbench.api.own_model.claim import most
    from privbench.api.own_model.coins import coins_to_files

    inside, outside, included, excluded = coins_to_files(rows, count, seed_file)
    say(f"Train on {inside} ({included:,} rows), not on {outside} ({excluded:,} rows). Then audit "
        f"with --members {inside} --nonmembers {outside} --coins {seed_file} --claim "
        f"EPSILON,DELTA. Keep all three files secret. {count:,} coins can refute claims of ε "
        f"below {most(count):.1f}, if an attack is perfect.")  # fmt: skip


@click.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
def compare(old: Path, new: Path) -> None:
    """Say whether the NEW version of a model leaks more than the OLD one.

    Both are folders of `privbench audit`, of the same rows and attacks. The tests are paired by
    row, and corrected for the number of attacks.
    """
    from privbench.api.comparing import compare

    say(str(compare(old, new)))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--digest", metavar="HEX",
              help="Digest that the audit printed, kept elsewhere.")  # fmt: skip
def verify(folder: Path, digest: str | None) -> None:
    """Say whether anything in the FOLDER of an audit has changed since.

    Without --digest it finds damage, but no one who also wrote SHA256SUMS anew. Exit status: 0 if
    nothing has changed, 1 if files changed, are missing or are new, 2 if there is no audit.
    """
    from privbench.api.own_model.sums import verified

    made = verified(folder, digest)
    say(made.words)
    sys.exit(int(not made.unchanged))
