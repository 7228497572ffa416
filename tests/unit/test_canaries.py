"""Canaries: what they are made of, and that only the coin decides about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from privbench.grid.plan import plan
from privbench.grid.suite import Suite
from privbench.ground.errors import BadInputError
from privbench.measure.data.canaries import Canaries
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import Split, cut
from privbench.plugins import registry
from privbench.testing import TinyImages

if TYPE_CHECKING:
    from pathlib import Path

DATA = TinyImages()


def split(canaries: Canaries | None = None, *, seed: int = 0, **fields: Any) -> Split:
    canaries = canaries or Canaries(kind="mislabelled", count=40)
    protocol = Protocol(
        members=60, nonmembers=60, reference=20, pool=300, test=60, canaries=canaries, **fields
    )
    return cut(DATA.load(None), DATA.card(None), protocol, seed)


@pytest.mark.parametrize("inclusion", ["size", "coin", "pairs"])
def test_the_question_is_about_canaries_and_all_others_stay(inclusion: Any) -> None:
    made = split(inclusion=inclusion)
    assert made.always is not None
    assert (len(made.candidates), len(made.always), len(made.test)) == (40, 60, 60)
    worlds = [made.victim(), *(made.online(i)[0] for i in range(6))]
    for world in worlds:
        assert world.contains(made.always).all()
        assert not world.contains(made.test).any()
    assert torch.equal(worlds[0].contains(made.candidates), made.member)
    assert {len(world.members) for world in worlds[1:]} == {80}  # the draw does not show in sizes
    assert made.size == len(made.null().members) == len(made.offline(0)[0].members) == 80
    assert not made.null().contains(made.candidates).any()
    # in each round, a canary is in one of two halves
    inside = torch.stack([world.contains(made.candidates) for world in worlds[1:]])
    assert torch.equal(inside.view(3, 2, 40).sum(1), torch.ones(3, 40, dtype=torch.long))
    if inclusion == "pairs":
        first, second = made.pairs.T
        assert torch.equal(made.member[first], ~made.member[second])


def test_coins_of_canaries_are_fair_and_rows_do_not_depend_on_them() -> None:
    counts = [int(split(seed=seed, inclusion="coin").member.sum()) for seed in range(40)]
    assert len(set(counts)) > 5
    assert abs(np.mean(counts) - 20) < 4 * np.sqrt(10 / 40)
    coin, half = split(inclusion="coin"), split()
    assert torch.equal(coin.candidates.x, half.candidates.x)
    assert torch.equal(coin.candidates.y, half.candidates.y)
    assert int(half.member.sum()) == 20


def test_mislabelled_canaries_have_every_other_class_and_never_their_own() -> None:
    examples, card = DATA.load(None), DATA.card(None)
    own = {row.numpy().tobytes(): int(y) for row, y in zip(examples.x, examples.y, strict=True)}
    steps = []
    for seed in range(10):
        made = split(seed=seed).candidates
        steps += [
            (int(y) - own[row.numpy().tobytes()]) % (card.classes or 0)
            for row, y in zip(made.x, made.y, strict=True)
        ]
    assert 0 not in steps
    assert set(steps) == set(range(1, card.classes or 0))


def test_noise_canaries_are_values_of_the_dataset() -> None:
    made, plain = split(Canaries(kind="noise", count=40)).candidates, split().candidates
    assert made.x.dtype == plain.x.dtype
    assert made.x.shape == plain.x.shape
    x = made.x.double() / made.scale
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert abs(float(x.mean()) - 0.5) < 4 * float(x.std()) / x.numel() ** 0.5
    assert set(made.y.tolist()) <= set(range(DATA.card(None).classes or 0))
    assert all((column == -1).all() for column in made.attributes.values())


@pytest.mark.parametrize("scale", [2, 3])
def test_all_values_of_noise_are_equally_likely(scale: int) -> None:
    rows = replace(split().candidates, scale=scale)
    made = Canaries(kind="noise", count=40).made(rows, replace(DATA.card(None), scale=scale), 3)
    counts = torch.bincount(made.x.flatten().long())
    assert len(counts) == scale + 1
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_noise_keeps_one_hot_groups() -> None:
    card, rows = DATA.card(None), split().candidates
    flat = replace(rows, x=rows.x.flatten(1)[:, :6].float() / 255)
    table = replace(card, kind="real", shape=(6,), groups=((1, 4),), scale=2**20)
    made = Canaries(kind="noise", count=40).made(flat, table, 3)
    assert torch.equal(made.x[:, 1:4].sum(1), torch.ones(40))
    assert len(set(made.x[:, 0].tolist())) == 40


def test_a_users_own_canaries(tmp_path: Path) -> None:
    card = DATA.card(None)
    x = np.random.default_rng(0).integers(0, int(card.scale) + 1, (50, *card.shape))
    y = np.arange(50) % (card.classes or 1)
    path = tmp_path / "mine.npz"
    np.savez(path, x=x, y=y)
    canaries = Canaries(kind="file", count=40, path=str(path))
    made = split(canaries).candidates
    assert np.array_equal(made.x.numpy(), x[:40].astype(np.uint8))
    assert made.y.tolist() == y[:40].tolist()
    np.savez(path, x=x / card.scale, y=y)  # the same rows as floats, another file
    with pytest.raises(BadInputError, match="changed since the run began"):
        split(canaries)
    again = Canaries(kind="file", count=40, path=str(path))
    assert again.sha256 != canaries.sha256
    assert torch.equal(split(again).candidates.x, made.x)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((40, 2))}, "arrays x and y"),
        ({"x": np.zeros((40, 2, 2)), "y": np.zeros(40, int)}, "x has shape"),
        ({"x": None, "y": np.zeros(39, int)}, "40 rows with a class each"),
        ({"x": None, "y": np.zeros(40)}, "whole numbers as classes"),
        ({"x": None, "y": np.full(40, 99)}, "y must lie between"),
        ({"x": 2.0, "y": np.zeros(40, int)}, "x must lie between"),
    ],
)
def test_archives_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    path, given = tmp_path / "bad.npz", dict(arrays)
    if not isinstance(given["x"], np.ndarray):
        given["x"] = np.full((40, *DATA.card(None).shape), given["x"] or 0.0)
    np.savez(path, **given)
    with pytest.raises(BadInputError, match=said):
        split(Canaries(kind="file", count=40, path=str(path)))


@pytest.mark.parametrize(
    ("canaries", "said"),
    [
        ({"kind": "odd", "count": 10}, "canaries"),
        ({"kind": "file", "count": 10}, "name the archive"),
        ({"kind": "file", "count": 10, "path": "/none.npz"}, "cannot read"),
        ({"kind": "noise", "count": 10, "path": "a.npz"}, "give none otherwise"),
        ({"kind": "noise", "count": 1}, "4 or more"),
        ({"kind": "noise"}, "canaries"),
        ({"kind": "noise", "count": 10, "more": 1}, "canaries"),
    ],
)
def test_bad_canaries_in_a_suite(canaries: dict[str, Any], said: str) -> None:
    protocol = {"members": 100, "nonmembers": 100, "pool": 500, "canaries": canaries}
    suite = Suite(protocols=[protocol], targets=["supervised"], attacks=["metric-loss"])
    with pytest.raises(BadInputError, match=said):
        plan(suite, registry.load(), root=None, device="cpu")


def test_sizes_that_cannot_hold_the_canaries() -> None:
    with pytest.raises(BadInputError, match="70 canaries replace 60 nonmembers, too few"):
        split(Canaries(kind="noise", count=70))
    protocol = Protocol(
        members=60, nonmembers=40, pool=300, canaries=Canaries(kind="noise", count=40)
    )
    with pytest.raises(BadInputError, match="which are the test rows"):
        protocol.sizes(DATA.card(None))
    with pytest.raises(BadInputError, match="less than twice the members 80"):
        replace(protocol, pool=150, nonmembers=60).sizes(DATA.card(None))
