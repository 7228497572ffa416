"""Whether rows are those that the model knows, and shadows those of a recipe that trains.

Swapped files, wrong classes and recipes that ignore their rows are told.

An audit of wrong rows finds no leak, which would read as good news. So three things are tested that
do not happen with the right rows: the classes of members, those of nonmembers, and which of the two
the model knows better. Each has a quarter of ``LEVEL``; the fourth quarter is for attacks that take
nonmembers for members (``words.strongest``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from privbench.ground.text import shown
from privbench.results.sample_files import read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privbench.plugins.registry import Registry
    from privbench.results.record import Record

#: Share of the audits with the right rows that get no verdict, at most.
LEVEL = 1e-4
#: Tests that share the level: classes of members, classes of nonmembers, accuracies, attacks.
TESTS = 4
_TWO = 2  # sets
_NAMED = 3  # classes in a sentence
_DRAWS, _UNLIKELY = 999, 0.01  # permutations of y, and the share of them that does as well


def misfit(
    predicted: Mapping[str, NDArray[np.int64]],
    y: Mapping[str, NDArray[np.int64]],
    texts: Sequence[str] = (),
) -> str:
    """Return why the rows cannot be those that the model knows, and what to check; "" if they can.

    Args:
        predicted: members, and nonmembers if there are enough, -> the model's classes (n,), from 0.
        y: the same -> the user's classes (n,).
        texts: the user's classes in the order of their numbers, if they are texts and the model
            names none.
    """
    from scipy.stats import fisher_exact

    for source in predicted:
        if told := _renumbered(predicted[source], y[source], source, texts):
            return told
    right = {source: predicted[source] == y[source] for source in y}
    if len(right) < _TWO:
        return ""
    counts = np.array([(one.sum(), (~one).sum()) for one in right.values()])
    if fisher_exact(counts, alternative="less").pvalue > LEVEL / TESTS:
        return ""
    share = {source: f"{one.mean():.1%} of the {source}" for source, one in right.items()}
    return (
        f"the model is right about {share['members']} and {share['nonmembers']}: check that the "
        "files of members and nonmembers are not swapped, and that y of the members is right"
    )


def swapped(members: NDArray[np.float64], nonmembers: NDArray[np.float64]) -> str:
    """Return that a regression knows the nonmembers better, by its absolute errors; "" if not."""
    from scipy.stats import mannwhitneyu

    if mannwhitneyu(members, nonmembers, alternative="greater").pvalue > LEVEL / TESTS:
        return ""
    return (
        f"the median error is {np.median(members):.4g} on members and {np.median(nonmembers):.4g} "
        "on nonmembers: check that their files are not swapped, and that y of the members is right"
    )


def _renumbered(
    predicted: NDArray[np.int64], y: NDArray[np.int64], source: str, texts: Sequence[str]
) -> str:
    """Return that another numbering of y suits the answers better, if it clearly does.

    With more than two classes, one half of the rows chooses the numbering and the other one tests
    it; of two classes there is only one other numbering. Each row has the weight of one in the
    number of rows of its class, so that a model that prefers one class passes. If y is right, the
    differences between the numberings are as often for it as against it, or more often. Then their
    sum exceeds ``z`` times the root of the sum of their squares at most in a share of exp(-z^2 / 2)
    of the audits (Efron: Student's t-Test under Symmetry Conditions. JASA 1969).
    """
    from scipy.optimize import linear_sum_assignment

    k = int(max(predicted.max(), y.max())) + 1
    weight = 1 / np.bincount(y, minlength=k)[y]
    test = np.ones(len(y), bool)
    other = np.arange(k)[::-1]  # class of y -> class of the model
    if k > 2:  # noqa: PLR2004
        test = np.random.default_rng(0).permutation(len(y)) % 2 == 0
        seen = np.zeros((k, k))
        np.add.at(seen, (y[~test], predicted[~test]), weight[~test])
        other = linear_sum_assignment(-seen)[1]
    now, then = (predicted == y)[test], (predicted == other[y])[test]
    gain = weight[test] * (then.astype(float) - now.astype(float))
    if gain.sum() <= math.sqrt(2 * math.log(TESTS / LEVEL)) * math.sqrt((gain**2).sum()):
        return ""
    own = [shown(texts[c]) if c < len(texts) else str(c) for c in range(k)]
    moved = [f"its class {other[c]} is {own[c]} in y" for c in range(k) if other[c] != c]
    advice = (
        "texts are numbered in sorted order, so give y as the numbers of the model's classes"
        if len(texts) else "number y as the model does"
    )  # fmt: skip
    named = ", ".join(moved[:_NAMED]) + (", …" if len(moved) > _NAMED else "")
    return (
        f"the model is right about {now.mean():.1%} of the {source}, and about {then.mean():.1%} "
        f"if their classes are numbered in another way ({named}): {advice}"
    )


def strange(predicted: NDArray[np.int64], y: NDArray[np.int64]) -> str:
    """Return a warning if the model is right about its members no more often than chance; else "".

    Chance is y in random order. A model that always says the same, and rows of one class, are
    warned of too, so this is no reason to give no verdict.
    """
    if len(np.unique(y)) == 1:
        return ("WARNING: all members have one class, so no row can tell whether the model knows "
                "them: check y, or audit rows of all classes.")  # fmt: skip
    if len(np.unique(predicted)) == 1:
        return (f"WARNING: the model answers class {predicted[0]}, counted from 0, to all members: "
                "if it should know them, check that x has the units of its training.")  # fmt: skip
    right, draw = (predicted == y).mean(), np.random.default_rng(0)
    chance = np.array([(predicted == draw.permutation(y)).mean() for _ in range(_DRAWS)])
    p = (1 + (chance >= right).sum()) / (_DRAWS + 1)
    if p <= _UNLIKELY:
        return ""
    return (
        f"WARNING: the model is right about {right:.1%} of its own members, and by chance about "
        f"{chance.mean():.1%} (p = {p:.2g}): if it should know them, check that x has the units of "
        "its training, and y its class numbers."
    )


def deaf(records: Sequence[Record], registry: Registry, out: Path) -> str:
    """Return why shadows by the user's code say nothing, if they tell no row from another; or "".

    Args:
        records: of an audit with such shadows, of the model without a defense.
        registry: of their attacks.
        out: folder of the audit.
    """
    told = {
        one.cell.attack.label: samples["victim.scores"]
        for one in records
        if one.status == "ok" and one.cell.game == "membership"
        and registry.get("attack", one.cell.attack.name).shadows is not None
        and one.cell.attack.fields.get("calibration") != "none"
        and (samples := read_samples(one, [out])) is not None
    }  # fmt: skip
    if not told or any(np.ptp(scores) for scores in told.values()):
        return ""
    return (
        f"every row has one score by {', '.join(told)}, so shadows answer alike with a row and "
        "without it: check that the shadow recipe trains on x and y"
    )
