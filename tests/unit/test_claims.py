"""A claimed epsilon of one's own model: coins before training, a verdict afterwards."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import norm

import privbench
from privbench import BadInputError
from privbench.api.auditing import _fit
from privbench.api.own_model.claim import ERROR, SHARES, Claim, lower, most
from privbench.api.own_model.coins import read_coins, toss
from privbench.api.own_model.rows import read_rows
from privbench.cli.main import main
from privbench.measure.games.audit import Guesses
from privbench.testing import rate_band

N, COUNT = 300, 240
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 4)).astype(np.float32)
ROWS: dict[str, Any] = {"x": X, "y": np.arange(N) % 2}
CLAIM_FAILED = ".//testcase[@name='claim']/failure"
QUICK = ["metric-confidence", "metric-correctness"]


class Memory:
    """A model that is sure of the rows that it was trained on."""

    def __init__(self, x: Any, y: Any) -> None:
        self.known = {row.tobytes(): int(one) for row, one in zip(x, y, strict=True)}

    def __call__(self, x: Any) -> Any:
        sure = [self.known.get(np.round(row, 3).astype(np.float32).tobytes()) for row in x]
        one = np.array([0.5 if y is None else 0.01 + 0.98 * y for y in sure])
        return np.stack([1 - one, one], 1)


def memory_of(train: Any) -> Memory:
    return Memory(np.round(X[train], 3).astype(np.float32), ROWS["y"][train])


def constant(x: Any) -> Any:
    return np.full((len(x), 2), 0.5)


def sides(train: Any) -> dict[str, Any]:
    return {"members": {k: v[train] for k, v in ROWS.items()},
            "nonmembers": {k: v[~train] for k, v in ROWS.items()}}  # fmt: skip


# ---- the test of a claim -------------------------------------------------------------------------


def test_a_perfect_attack_gives_the_bound_in_closed_form() -> None:
    """All of m guesses right: q^m = error, with q = e^epsilon / (1 + e^epsilon)."""
    for m, error in ((40, 0.05), (500, 0.001)):
        q = error ** (1 / m)
        assert lower(Guesses(m, m, m), error, 0.0) == pytest.approx(math.log(q / (1 - q)))
    included = np.arange(40) % 2 == 0
    of = Claim(2, 1e-12, np.arange(40), included).tested({"a": included * 1.0, "b": np.zeros(40)})
    q = (ERROR / 2 / len(SHARES)) ** (1 / 40)
    assert of.lower == of.ceiling == pytest.approx(math.log(q / (1 - q)))
    assert (of.attack, of.guesses) == ("a", Guesses(40, 40, 40))
    assert of.p_value == pytest.approx(2 * len(SHARES) * (1 + math.exp(-2)) ** -40)
    assert of.refuted == (of.lower > 2) == (of.p_value < ERROR)


def test_words() -> None:
    heads = np.arange(500) % 2 == 0
    cases = ((2, heads * 1.0), (2, np.zeros(500)), (8.5, heads * 1.0))
    told = [
        str(Claim(epsilon, 1e-5, np.arange(500), heads).tested({"lira": scores}))
        for epsilon, scores in cases
    ]
    assert told[0] == (
        "The claim (ε = 2, δ = 1e-5) is refuted: with 95 % confidence ε is at least 4.65 (lira is "
        "right in 500 of 500 guesses on 500 coins)."
    )
    assert told[1].startswith(
        "The claim (ε = 2, δ = 1e-5) is not refuted (the lower bound is ε ≥ 0.00); not refuted is "
        "not proven (lira is right in "
    )
    assert told[2].endswith(
        " With 500 coins nothing can refute it: a perfect attack would show ε ≥ 4.65."
    )
    assert most(500) == pytest.approx(4.68, abs=0.02)


def test_a_true_claim_falls_in_one_of_20_audits_at_most_and_a_false_one_always() -> None:
    """Randomised response of each coin is epsilon-DP, and the largest of what theorem 5.2 bounds.

    Three attacks guess, two of them from noisier copies of the answers.
    """
    draw, epsilon, runs = np.random.default_rng(1), 1.0, 100
    fell = {0.3: 0, 1.0: 0}
    for run in range(runs):
        heads = draw.random(400) < 0.5
        kept = draw.random(400) < 1 / (1 + math.exp(-epsilon))
        answer = np.where(kept, heads, ~heads) * 1.0
        scores: dict[str, Any] = {str(i): answer + i / 2 * draw.normal(size=400) for i in range(3)}
        for claim in (1.0, 0.3) if run < 10 else (1.0,):
            fell[claim] += Claim(claim, 1e-9, np.arange(400), heads).tested(scores).refuted
    assert fell[1.0] / runs < ERROR + rate_band(runs, ERROR)
    assert fell[0.3] == 10


def test_scores_that_know_nothing_refute_nothing_however_they_tie() -> None:
    """Members come first in the files, so ties in their order would tell everything."""
    draw = np.random.default_rng(2)
    for values in (1, 2):
        heads = draw.random(400) < 0.5
        scores = draw.integers(0, values, 400).astype(np.float64)
        of = Claim(0.5, 1e-5, np.arange(400), heads).tested({"a": scores})
        assert not of.refuted


# ---- coins ---------------------------------------------------------------------------------------


def test_coins_are_fair_and_say_which_rows_to_train_on(tmp_path: Path) -> None:
    train = privbench.coins(ROWS, count=COUNT, seed_file=tmp_path / "secret")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    tossed = read_coins(tmp_path / "secret")
    assert len(tossed.candidates) == COUNT
    assert train.sum() == N - COUNT + tossed.included.sum()
    again = privbench.coins(ROWS, count=COUNT, seed_file=tmp_path / "other")
    assert 0 < (train != again).mean() < 0.7  # another secret, other coins
    many = [toss([f"{i}"], 1).included[0] for i in range(2000)]
    assert abs(np.mean(many) - 0.5) < rate_band(2000)
    chosen = [one for _ in range(500) for one in toss(["a", "b", "b", "c", "d"], 1).candidates]
    assert set(chosen) == {"a", "c", "d"}  # never a row that occurs twice
    assert abs(chosen.count("a") / 500 - 1 / 3) < rate_band(500, 1 / 3)


def cli(*given: Any) -> Any:
    return CliRunner().invoke(main, [str(one) for one in given])


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", **ROWS, extra=np.arange(N))
    done = cli("coins", "rows.npz", "--count", COUNT, "--seed-file", "secret")
    assert done.exit_code == 0, done.output
    assert "rows-included.npz" in done.output
    assert "claims of ε below 3.9" in done.output
    inside, outside = np.load("rows-included.npz"), np.load("rows-excluded.npz")
    both = np.concatenate([inside["extra"], outside["extra"]])
    assert sorted(both) == list(range(N))
    assert np.array_equal(X[inside["extra"]], inside["x"])
    assert stat.S_IMODE(Path("rows-excluded.npz").stat().st_mode) == 0o600
    Path("mine.py").write_text(
        "import numpy as np\nfrom tests.unit.test_claims import memory_of, constant\n"
        f"def leaky(): return memory_of(np.isin(np.arange({N}), np.load('rows-included.npz')"
        "['extra']))\n"
        "def blind(): return constant\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = ["--members", "rows-included.npz", "--nonmembers", "rows-excluded.npz", "--claim",
             "2,1e-5", "--coins", "secret", "--attack", QUICK[0], "--attack", QUICK[1]]  # fmt: skip
    found = cli("audit", "--model", "mine:leaky", *asked, "--out", "a", "--junit", "a.xml",
                "--sarif", "a.sarif")  # fmt: skip
    assert found.exit_code == 3, found.output
    assert "The claim (ε = 2, δ = 1e-5) is refuted: with 95 % confidence ε is at least " in (
        Path("a/audit.txt").read_text()
    )
    assert ET.parse("a.xml").find(CLAIM_FAILED) is not None  # noqa: S314
    (result,) = json.loads(Path("a.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("privbench/claim", "error")
    found = cli("audit", "--model", "mine:blind", *asked, "--out", "b", "--junit", "b.xml",
                "--sarif", "b.sarif")  # fmt: skip
    assert found.exit_code == 0, found.output
    assert ET.parse("b.xml").find(CLAIM_FAILED) is None  # noqa: S314
    assert json.loads(Path("b.sarif").read_text())["runs"][0]["results"] == []
    assert Path("b/audit.txt").read_text().startswith("The claim (ε = 2, δ = 1e-5) is not refuted")


def test_in_python_with_other_rows_in_another_order(tmp_path: Path) -> None:
    """Files may hold more rows, in any order and precision; the rows of the coins are found."""
    train = privbench.coins(ROWS, count=COUNT, seed_file=tmp_path / "secret")
    given = sides(train)
    order = np.random.default_rng(3).permutation(int(train.sum()))
    given["members"] = {k: v[order] for k, v in given["members"].items()}
    more = {"x": X + 7, "y": ROWS["y"]}
    given["nonmembers"] = {k: np.concatenate([more[k], v]).astype("f8" if k == "x" else "i8")
                           for k, v in given["nonmembers"].items()}  # fmt: skip
    found = privbench.audit(memory_of(train), **given, attacks=QUICK, out=tmp_path / "out",
                            claim=(2, 1e-5), coins=tmp_path / "secret")  # fmt: skip
    assert found.claim is not None
    assert found.claim.refuted
    assert found.claim.guesses == Guesses(COUNT, COUNT, COUNT) or found.claim.lower > 3
    assert found.claim.attacks == 2
    assert found.summary.startswith(str(found.claim))
    written = json.loads((tmp_path / "out" / "audit.json").read_text())["claim"]
    assert written["refuted"]
    assert written["lower"] == pytest.approx(found.claim.lower)


def test_an_attack_that_leaves_rows_out_does_not_count(tmp_path: Path) -> None:
    """It asks about the first rows: a candidate is more likely to be asked about if it is out."""
    train = privbench.coins(ROWS, count=COUNT, seed_file=tmp_path / "secret")
    given: dict[str, Any] = {**sides(train), "claim": (2, 1e-5), "coins": tmp_path / "secret"}
    boundary = {"rows": 20, "iterations": 0, "starts": 1}
    few: dict[str, Any] = {"settings": {"label-only-boundary": boundary}}
    few |= {"shadow": {"x": X - 9, "y": ROWS["y"]}, "attacks": ["label-only-boundary"]}
    with pytest.raises(BadInputError, match=r"^claim: no attack scored all 240 candidates: name "):
        privbench.audit(constant, **given, **few, out=tmp_path / "a")


# ---- refusals ------------------------------------------------------------------------------------


def test_canaries_may_have_wrong_classes() -> None:
    """As many nonmembers as there are, if all rows of the coins are canaries."""
    y = np.arange(N) % 2
    wrong = np.where(np.arange(N) < 120, y, 1 - y)
    members, others = slice(0, 200), slice(200, N)
    rows = read_rows({"x": X[members], "y": wrong[members]}, {"x": X[others], "y": wrong[others]})
    says = np.where(np.arange(N) < 200, wrong, y)  # it remembers its members only
    answers = np.eye(2)[says]
    claim = Claim(2, 1e-5, np.arange(120, N), np.arange(120, N) < 200)
    assert "numbered in another way" in _fit(rows, answers, "posteriors", None)[0]
    assert _fit(rows, answers, "posteriors", claim) == ("", "")
    assert "numbered in" in _fit(rows, np.eye(2)[1 - says], "posteriors", claim)[0]


def test_bad_coins_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", **ROWS)
    np.savez("odd.npz", **ROWS, extra=np.arange(3))

    def refused(*given: Any, words: str) -> None:
        before = sorted(Path().iterdir())
        done = cli("coins", *given)
        assert done.exit_code == 2, done.output
        assert words in done.output
        assert len(done.output.splitlines()) == 1
        assert sorted(Path().iterdir()) == before

    refused("rows.npz", "--count", N + 1, "--seed-file", "s",
            words="count: 301 candidates among 300 rows: give a number from 1 to 300")  # fmt: skip
    refused("odd.npz", "--count", 9, "--seed-file", "s", words="extra has shape (3,), and x 300")
    refused("absent.npz", "--count", 9, "--seed-file", "s", words="rows absent.npz cannot be read")
    refused("rows.npz", "--count", 9, "--seed-file", "no/s", words="cannot write no/s")
    Path("mine").write_text("keep")
    refused("rows.npz", "--count", 9, "--seed-file", "mine", words="mine exists already: coins ")
    assert Path("mine").read_text() == "keep"
    with pytest.raises(BadInputError, match="mine exists already"):
        privbench.coins(ROWS, count=9, seed_file="mine")
    Path("rows-excluded.npz").write_text("keep")
    refused("rows.npz", "--count", 9, "--seed-file", "s", words="rows-excluded.npz exists already")


@pytest.mark.parametrize(("claim", "words"), [
    ("2", "it is not a pair of numbers: give epsilon and delta, such as 2,1e-5"),
    ("2,1e-5,3", "it is not a pair"), ("two,1e-5", "it is not a pair"),
    ("nan,1e-5", "it is not a pair"),
    ("2,0", "delta is 0, which"), ("2,1", "delta must be between 0 and 1"),
    ("2,-1e-5", "delta must be"), ("0,1e-5", "epsilon must be above 0"), (5.0, "it is not a pair"),
])  # fmt: skip
def test_bad_claims_are_refused(tmp_path: Path, claim: Any, words: str) -> None:
    train = privbench.coins(ROWS, count=COUNT, seed_file=tmp_path / "secret")
    with pytest.raises(BadInputError, match=r"^claim ") as told:
        privbench.audit(constant, **sides(train), claim=claim, coins=tmp_path / "secret")
    assert words in str(told.value)


def test_coins_of_other_rows_are_refused(tmp_path: Path) -> None:
    secret, other, junk = (tmp_path / name for name in ("secret", "other", "junk"))
    train = privbench.coins(ROWS, count=COUNT, seed_file=secret)
    privbench.coins({"x": X + 1}, count=COUNT, seed_file=other)
    junk.write_text(json.dumps({"privbench": "coins", "seed": "ab", "candidates": ["x"]}))
    given = sides(train)

    def refused(words: str, coins: Any = secret, claim: Any = (2, 1e-5), **of: Any) -> None:
        with pytest.raises(BadInputError) as told:
            privbench.audit(constant, **{**given, **of}, claim=claim, coins=coins)
        assert words in str(told.value)

    def but(side: str, rows: slice) -> dict[str, Any]:
        return {side: {k: v[rows] for k, v in given[side].items()}}

    refused("they are about other rows: none of their 240 candidates is among", other)
    refused("it was not written by `privbench coins`", junk)
    refused("there is no such file", tmp_path / "absent")
    refused("claim: it is tested by coins", None)
    refused("coins: they test a claim", secret, None)
    candidates = set(np.flatnonzero(~train))
    refused(f"nonmembers: 1 of the {len(candidates)} rows that the coins exclude are not among "
            "them: give the two files", **but("nonmembers", slice(1, None)))  # fmt: skip
    refused("rows that the coins include are not among them: give", **but("members", slice(60)))
    swapped = {"members": given["nonmembers"], "nonmembers": given["members"]}
    refused("of them are among the nonmembers", **swapped)


# ---- a training that keeps its claim -------------------------------------------------------------


@pytest.mark.slow
def test_gaussian_noise_keeps_its_claim() -> None:
    """One release of each coin with the noise of (1, 1e-2): its profile allows no more guesses."""
    sigma, epsilon = 2.0, 1.0
    delta = norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(
        -0.5 / sigma - epsilon * sigma
    )
    draw, fell, runs = np.random.default_rng(4), 0, 300
    for _ in range(runs):
        heads = draw.random(1000) < 0.5
        scores = heads + sigma * draw.normal(size=1000)
        fell += Claim(epsilon, delta, np.arange(1000), heads).tested({"a": scores}).refuted
    assert fell / runs < ERROR + rate_band(runs, ERROR)
