"""Per-sample scores: kept beside results, carried along, checked, and scored again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save

from privbench import Access, Attributes, Membership, Reconstruction
from privbench.check.rescore import read_scored
from privbench.cli.main import main
from privbench.measure.data.split import cut
from privbench.measure.games.attributes import AttributeAttack, strangers
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.membership import MembershipAttack
from privbench.measure.games.metrics import Refused, tpr_at_fpr
from privbench.measure.games.reconstruction import ReconstructionAttack
from privbench.plugins import registry as plugins
from privbench.results import samples
from privbench.results.files import read_all
from privbench.results.record import Number, Record
from privbench.results.sample_files import read_samples
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

DATA = TinyImages()


@dataclass(frozen=True)
class Darker(MembershipAttack):
    """Calls dark images members; the scores of one in ten are infinite."""

    name: ClassVar[str] = "darker"
    needs: ClassVar[Access] = Access.LABELS

    def answer(self, _oracle: Any, question: Any, _ctx: Any) -> Membership:
        scores = -question.examples.x.double().mean((1, 2, 3))
        scores[::10] = float("inf")
        return Membership(scores, scores > scores[scores.isfinite()].mean())


@dataclass(frozen=True)
class Coin(AttributeAttack):
    """Guesses from the embedding's first number."""

    name: ClassVar[str] = "coin"

    def answer(self, _oracle: Any, question: Any, _ctx: Any) -> Attributes:
        p = question.embeddings[:, :1].sigmoid()
        return Attributes({name: torch.cat([1 - p, p], 1) for name in question.values})


@dataclass(frozen=True)
class Grey(ReconstructionAttack):
    """Answers with grey images."""

    name: ClassVar[str] = "grey"

    def answer(self, _oracle: Any, question: Any, _ctx: Any) -> Reconstruction:
        return Reconstruction(torch.full((len(question.embeddings), 1, 8, 8), 0.5))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Invoke privbench in an empty folder, with a tiny victim and three quick attacks."""
    own, kit = plugins.Registry(), plugins.Plugin("kit", "privbench.testing", "privbench")
    (none,) = (m for kind, m in plugins.load().find("none") if kind == "defense")
    own.add("dataset", DATA, kit)
    own.add("target", TinyTarget(), kit)
    own.add("defense", none, kit)
    for attack in (Darker(), Coin(), Grey()):
        own.add("attack", attack, kit)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: own)
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, [str(arg) for arg in args])


RUN = ("run", "--dataset", "tiny-images", "--target", "tiny-target", "--device", "cpu")
ALL = (*RUN, "--attack", "darker", "--attack", "coin", "--attack", "grey", "--seeds", 2)
ONE = (*RUN, "--attack", "darker")


def done(result: Result, status: int = 0) -> Result:
    assert result.exit_code == status, (result.output, result.exception)
    return result


def record_of(folder: str, game: str = "membership", seed: int = 0) -> Record:
    (found,) = (
        r for r in read_all([Path(folder)]) if r.cell.game == game and r.seed == seed
    )  # fmt: skip
    return found


# ---- what is kept --------------------------------------------------------------------------------


def test_columns_are_the_rows_the_truth_and_the_answers(run: Any) -> None:
    done(run(*ALL))
    split = cut(DATA.load(None), DATA.card(None), DATA.protocols["default"], 0)
    kept = read_samples(record_of("results"), [Path("results")])
    assert kept is not None
    assert set(kept) == {
        "row", "label", "attribute.bright", "truth.member", "victim.scores", "victim.decisions",
        "null.scores", "null.decisions",
    }  # fmt: skip
    rows = split.candidates
    np.testing.assert_array_equal(kept["row"], rows.keys.numpy())
    np.testing.assert_array_equal(kept["label"], rows.y.numpy())
    np.testing.assert_array_equal(kept["attribute.bright"], rows.attributes["bright"].numpy())
    np.testing.assert_array_equal(kept["truth.member"], split.member.numpy())
    assert np.isinf(kept["victim.scores"]).sum() == 16
    kept = read_samples(record_of("results", "attributes"), [Path("results")])
    assert kept is not None
    outside = strangers(split)
    np.testing.assert_array_equal(kept["row"], outside.keys.numpy())
    np.testing.assert_array_equal(kept["truth.bright"], outside.attributes["bright"].numpy())
    assert {"victim.bright", "pixels.bright", "untrained.bright"} <= set(kept)
    kept = read_samples(record_of("results", "reconstruction"), [Path("results")])
    assert kept is not None
    x = outside.x.double() / 255
    error = (x - 0.5).square().flatten(1).mean(1)
    np.testing.assert_allclose(kept["victim.mse"].astype(float), error.numpy(), rtol=1e-6)


def test_every_metric_is_recomputed_exactly(run: Any) -> None:
    done(run(*ALL))
    before = {record.trial: record for record in read_all([Path("results")])}
    shown = done(run("score", "results", "--out", "again", "--by", "bright", "--rows")).stdout
    after = {record.trial: record for record in read_all([Path("again")])}
    assert set(before) == set(after)
    assert len(before) == 6
    for trial, record in after.items():
        assert record.metrics == before[trial].metrics
        assert record.controls == before[trial].controls
        assert record.samples == before[trial].samples
        assert "rescored" in record.provenance
    for text in ("| auc |", "| precision |", "accuracy[bright]", "psnr", "bright 1", "exposure"):
        assert text in shown
    assert done(run("score", "again")).stdout == done(run("score", "results")).stdout
    board = [Path(name, "b.md") for name in ("results", "again")]
    for path in board:
        done(run("leaderboard", path.parent, "-o", path))
    assert board[0].read_text() == board[1].read_text()


def test_what_a_run_refused_stays_refused(run: Any) -> None:
    done(run(*ONE))
    record = record_of("results")
    why = "null members are among the rows that decisions are learned from"
    record.controls["null"]["balanced_accuracy"] = Number(refused=why)
    record.metrics["auc"] = Number(refused="no")
    record.write(Path("results"))
    shown = done(run("score", "results", "--out", "again", "--by", "label")).stdout
    after = record_of("again")
    assert after.controls == record.controls
    assert after.metrics == record.metrics
    assert after.controls["null"]["balanced_accuracy"].refused == why
    head, _, row = ([*map(str.strip, line.split("|"))] for line in shown.splitlines()[2:5])
    assert row[head.index("auc")] == "refused"


def test_games_of_plugins_are_scored_and_unknown_ones_left_out(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(run(*ONE))
    known = record_of("results")
    other = known.model_copy(deep=True)
    other.trial = "other"
    other.cell = known.cell.model_copy(update={"game": "own"})
    other.attach(known.samples_path(Path("results")).read_bytes())
    other.write(Path("results"))
    left_out = done(run("score", "results", "--out", "again"))
    assert "## Membership" in left_out.stdout
    assert "## Own" not in left_out.stdout
    assert left_out.stderr.count("1 results play a game that no plugin here knows (own)") == 1
    assert [one.trial for one in read_all([Path("again")])] == [known.trial]
    alone = Path("alone")
    alone.mkdir()
    for path in (other.path(alone), other.samples_path(alone)):
        path.write_bytes(Path("results", path.name).read_bytes())
    assert "(own) and are left out: install its plugin" in done(run("score", "alone"), 2).stderr

    registry = plugins.load()

    def load(*_: Any) -> plugins.Registry:
        """Stand for the import of a plugin, which registers its game."""
        monkeypatch.setitem(GAMES, "own", GAMES["membership"])
        return registry

    monkeypatch.setattr(plugins, "load", load)
    scored = done(run("score", "alone", "--out", "scored"))
    assert "## Own" in scored.stdout
    assert not scored.stderr
    assert record_of("scored", "own").metrics == known.metrics


def test_slices_are_the_metrics_of_their_rows(run: Any) -> None:
    done(run(*ALL))
    (one,) = (
        s for s in read_scored([Path("results")])[0]
        if s.record.cell.game == "attributes" and s.record.seed == 0
    )  # fmt: skip
    truth = one.columns["truth.bright"]
    right = one.columns["victim.bright"].argmax(1) == truth
    slices = dict(one.slices("bright"))
    assert list(slices) == ["bright 0", "bright 1"]
    for value, chosen in enumerate(slices.values()):
        got = one.metrics(chosen)["accuracy"].value
        assert got == pytest.approx(right[truth == value].mean())
    assert len(dict(one.slices("label"))) == 10


# ---- carried along -------------------------------------------------------------------------------


@pytest.mark.skipif(
    "PRIVBENCH_TEST_ROUNDING" in os.environ, reason="workers do not inject rounding errors"
)
@pytest.mark.slow
def test_workers_and_shards_write_what_a_serial_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("run", "--target", "supervised", "--set", "supervised.epochs=1", "--attack",
               "metric-loss", "--attack", "metric-entropy")  # fmt: skip

    def files(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(folder).glob("*.safetensors")}

    run = CliRunner()
    done(run.invoke(main, [*command, "--out", "serial"]))
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "other"))
    done(run.invoke(main, [*command, "--out", "jobs", "--jobs", "2"]))
    for i in (1, 2):
        done(run.invoke(main, [*command, "--out", f"part-{i}", "--shard", f"{i}/2"]))
    done(run.invoke(main, ["merge", "part-1", "part-2", "--out", "merged"]))
    serial = files("serial")
    assert len(serial) == 2
    assert serial == files("jobs") == files("merged")


def test_a_lost_or_damaged_file_is_made_again(run: Any) -> None:
    done(run(*ONE))
    record = record_of("results")
    path = record.samples_path(Path("results"))
    content = path.read_bytes()
    path.unlink()
    assert "(kept)" not in done(run(*ONE)).stdout
    assert path.read_bytes() == content
    assert "(kept)" in done(run(*ONE)).stdout
    path.write_bytes(content[:-1] + b"\x55")
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is damaged \(it has changed since"):
        assert "(kept)" not in done(run(*ONE)).stdout
    assert path.read_bytes() == content
    assert record_of("results").digest == record.digest


def test_merge_carries_the_file_and_says_where_it_lacks(run: Any) -> None:
    done(run(*ONE))
    record = record_of("results")
    path = record.samples_path(Path("results"))
    assert "without the file" not in done(run("merge", "results", "--out", "all")).stdout
    assert record.samples_path(Path("all")).read_bytes() == path.read_bytes()
    bare = Path("bare")
    bare.mkdir()
    (bare / record.path(bare).name).write_bytes(record.path(Path("results")).read_bytes())
    assert "1 of them without the file" in done(run("merge", "bare", "--out", "few")).stdout
    assert "has per-sample scores: copy" in done(run("score", "few"), 2).stderr
    # the same result from two places: whichever has the file
    done(run("merge", "bare", "results", "--out", "both"))
    assert record.samples_path(Path("both")).exists()
    path.write_bytes(b"x" * path.stat().st_size)
    assert f"{path} is not" in done(run("merge", "results", "--out", "never"), 2).stderr


@pytest.mark.slow
def test_published_results_keep_the_curve_of_their_scores(run: Any) -> None:
    done(run(*ALL))
    done(run("merge", "results", "--out", "one.jsonl"))
    record, whole = record_of("one.jsonl"), record_of("results")
    columns = read_samples(whole, [Path("results")])
    assert columns is not None
    assert record.samples is None
    assert record.roc
    assert [fpr for fpr, _ in record.roc] == sorted({fpr for fpr, _ in record.roc})
    scores, member = columns["victim.scores"], columns["truth.member"].astype(bool)
    for fpr, tpr in record.roc:
        found = tpr_at_fpr(scores, member, fpr)
        assert not isinstance(found, Refused)
        assert tpr == pytest.approx(found.value, abs=1e-5)
    assert {record_of("one.jsonl", game).roc for game in ("attributes", "reconstruction")} == {None}
    assert record.model_copy(update={"roc": None}).digest == record.digest
    done(run("merge", "one.jsonl", "--out", "two.jsonl"))  # the scores are gone, the curve stays
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()


# ---- hostile and damaged files -------------------------------------------------------------------

ROW = np.arange(4)
GOOD = {"row": ROW, "label": ROW, "truth.member": ROW > 1, "victim.scores": ROW * 1.0,
        "null.scores": ROW * 1.0}  # fmt: skip


def header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


HOSTILE = {
    "empty": (b"", "not safetensors"),
    "pickle": (b"\x80\x04\x95cos\nsystem\n", "not safetensors"),
    "long header": ((2**62).to_bytes(8, "little") + b"{}", "not safetensors"),
    "deep header": (header("[" * 100_000), "not safetensors"),
    "no columns": (header("{}"), "columns are not those"),
    "huge shape": (header(json.dumps({"row": {
        "dtype": "I64", "shape": [2**60], "data_offsets": [0, 8],
    }})) + b"\0" * 8, "not safetensors"),
    "unequal": (save({**GOOD, "label": np.arange(3)}), "unequal lengths"),
    "no rows": (save({"row": np.arange(0)}), "unequal lengths or no rows"),
    "no ids": (save({"label": ROW}), "no column `row`"),
    "ids are floats": (save({**GOOD, "row": ROW * 1.0}), "no column `row`"),
    "three axes": (save({**GOOD, "x": np.zeros((4, 1, 1))}), "unequal lengths or no rows"),
    "labels in pairs": (save({**GOOD, "label": np.zeros((4, 2), int)}), "not whole numbers"),
    "labels are floats": (save({**GOOD, "label": ROW * np.nan}), "not whole numbers"),
    "halves": (save({**GOOD, "x": np.zeros(4, np.float16)}), "types other than"),
    "a name to obey": (save({**GOOD, "a\x1b[2J": ROW}), "columns are not those"),
    "no truth": (save({k: v for k, v in GOOD.items() if k[0] != "t"}), "do not fit the game"),
    "no scores": (save({"row": ROW, "truth.member": ROW > 1}), "do not fit the game"),
    "NaN": (save({**GOOD, "victim.scores": ROW * np.nan}), "do not fit the game"),
    "one side": (save({**GOOD, "truth.member": ROW > 9}), "do not fit the game"),
    "members of 7": (save({**GOOD, "truth.member": ROW * 7}), "do not fit the game"),
    "flat scores": (save({**GOOD, "victim.scores": np.zeros((4, 2))}), "do not fit the game"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_named_in_one_sentence(run: Any, tmp_path: Path, name: str) -> None:
    content, why = HOSTILE[name]
    made = record_like("membership")
    made.attach(content or b"x")
    made.write(tmp_path / "r")
    path = made.samples_path(tmp_path / "r")
    path.write_bytes(content)
    if not content:
        why = "changed since it was written"
    line = done(run("score", tmp_path / "r", "--rows", "--agreement", "--by", "label"), 2).stderr
    assert path.name in line
    assert why in line
    assert len(line.splitlines()) == 1
    assert len(line) < 700


def record_like(game: str) -> Record:
    from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord

    one = MethodRecord(name="m", label="m", version=1, fields={})
    cell = CellRecord(
        dataset=one, protocol={}, target=one, defenses=[one],
        knows=AdversaryRecord(), adversary="adaptive", attack=one,
        game=game, sensitive=[], preset="cpu", access="", protects=[],
    )  # fmt: skip
    return Record(trial="t", cell=cell, seed=0, status="ok")


def test_a_good_file_of_a_result_is_scored(run: Any, tmp_path: Path) -> None:
    """The hostile files differ from this one in one thing each."""
    made = record_like("membership")
    made.attach(save(GOOD))
    made.write(tmp_path / "r")
    shown = done(run("score", tmp_path / "r", "--rows", "--agreement", "--by", "label")).stdout
    assert "| 1.000 |" in shown


def test_a_file_too_large_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_BYTES", 10)
    path = tmp_path / "x"
    path.write_bytes(b"x" * 11)
    with pytest.raises(samples.BadSamplesError, match="more than 10 bytes"):
        samples.load_checked(path, 11, samples.checksum(b"x" * 11))


def test_an_unknown_slice_names_the_known_ones(run: Any) -> None:
    done(run(*ONE))
    assert "did you mean 'bright'" in done(run("score", "results", "--by", "brigth"), 2).stderr


def test_nothing_is_left_of_a_result_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench.ground.errors import WriteError
    from privbench.ground.store import files

    made, real = record_like("membership"), files.write
    made.attach(save(GOOD))

    def full(path: Path, content: Any, **_: object) -> None:
        if path.suffix == ".json":
            raise WriteError(28, "no space", str(path))
        real(path, content)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(WriteError):
        made.write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_equal_columns_are_equal_bytes() -> None:
    back = samples.unpack(samples.pack(GOOD))
    assert samples.pack(dict(reversed(back.items()))) == samples.pack(GOOD)
    for name, column in GOOD.items():
        np.testing.assert_array_equal(back[name], column)
        assert back[name].dtype == column.dtype


def test_true_values_out_of_range_are_no_traceback(run: Any, tmp_path: Path) -> None:
    """An attribute of value 9 was never among the two answers: nobody gets it right."""
    columns = {"row": ROW, "truth.sex": ROW * 3, "victim.sex": np.eye(4)[:, :2].copy()}
    for i, trial in enumerate("ab"):
        made = record_like("attributes")
        made.trial = trial
        attack = made.cell.attack.model_copy(update={"name": trial, "label": trial})
        made.cell = made.cell.model_copy(update={"attack": attack})
        made.attach(save({**columns, "label": ROW + i}))
        made.write(tmp_path / "r")
    shown = done(run("score", tmp_path / "r", "--rows", "--agreement", "--by", "label")).stdout
    assert "No two attacks were asked the same question." in shown
