"""Parts never meet, worlds are drawn as promised, and no order carries the truth."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench.measure.data.examples import Card, Examples, join
from privbench.measure.data.protocol import PROTOCOLS, Part, Protocol
from privbench.measure.data.split import Split, cut
from privbench.measure.data.strata import rounded

if TYPE_CHECKING:
    from torch import Tensor


def _card(**sources: int) -> Card:
    return Card(name="fake", kind="image", shape=(2,), classes=2, scale=255, sources=sources)


@cache
def _rows(*sizes: int) -> Examples:
    """Rows of few values, so that many are equal; sources one after the other."""
    n = sum(sizes)
    generator = torch.Generator().manual_seed(n)
    x = torch.randint(20, (n, 2), generator=generator, dtype=torch.uint8)
    source = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Examples.of(x, torch.zeros(n, dtype=torch.long), scale=255, source=source)


def _split(seed: int, n: int = 400, members: int = 40, nonmembers: int = 60) -> Split:
    protocol = Protocol(members=members, nonmembers=nonmembers, reference=15, pool=200, test=30)
    return cut(_rows(n), _card(all=n), protocol, seed)


def _set(rows: Examples) -> set[int]:
    return set(rows.index.tolist())


protocols = st.builds(
    lambda m, n, r, p, d, extra, test: Protocol(
        members=m, nonmembers=n, reference=r, public=p, downstream=d, pool=2 * m + r + extra,
        test=test, classifier="downstream" if d else "members",
    ),
    st.integers(1, 30), st.integers(1, 30), st.integers(0, 10), st.integers(0, 20),
    st.integers(0, 20), st.integers(0, 20), st.one_of(st.just("nonmembers"), st.integers(0, 20)),
)  # fmt: skip
seeds = st.integers(0, 2**40)


@given(protocol=protocols, seed=seeds)
def test_parts_are_disjoint_and_of_the_promised_sizes(protocol: Protocol, seed: int) -> None:
    split = cut(_rows(300), _card(all=300), protocol, seed)
    sizes = protocol.sizes(split.card)
    assert int(split.member.sum()) == sizes["members"]
    assert int((~split.member).sum()) == sizes["nonmembers"]
    parts = [split.candidates]
    for name in ("public", "downstream", "reference", "pool"):
        part = getattr(split, name)
        assert len(part) == sizes[name]
        parts.append(part)
    if protocol.test == "nonmembers":
        assert _set(split.test) == _set(split.candidates.select(~split.member))
    else:
        assert len(split.test) == sizes["test"]
        parts.append(split.test)
    together = torch.cat([part.index for part in parts])
    assert len(set(together.tolist())) == len(together)


@given(seed=seeds)
def test_named_sources_give_the_rows(seed: int) -> None:
    card = _card(train=500, test=100)
    small = {"members": 100, "nonmembers": 100, "pool": 200, "downstream": 100}
    whole = PROTOCOLS["encodermi"]
    parts = {n: part for n, part in whole.parts().items() if part.source}
    protocol = Protocol(
        name="small", classifier="downstream",
        **{n: type(part)(small[n], part.source) for n, part in parts.items()},  # type: ignore[arg-type]
    )  # fmt: skip
    split = cut(_rows(500, 100), card, protocol, seed)
    assert set(split.candidates.select(split.member).source.tolist()) == {0}
    assert set(split.candidates.select(~split.member).source.tolist()) == {1}
    world, others = split.online(0)  # handed to attacks: the source would tell members
    assert set(world.members.source.tolist()) | set(others.source.tolist()) == {0}
    assert set(split.pool.source.tolist()) | set(split.downstream.source.tolist()) == {0}


def test_encodermi_takes_each_part_from_its_source() -> None:
    split = cut(_rows(50_000, 10_000), _card(train=50_000, test=10_000), PROTOCOLS["encodermi"], 3)
    members = split.candidates.select(split.member)
    assert len(members) == len(split.downstream) == 10_000
    assert len(split.pool) == 20_000
    assert int(members.source.max()) == int(split.pool.source.max()) == 0
    assert int(split.candidates.select(~split.member).source.min()) == 1
    order = split.candidates.source.double()
    assert abs(_correlation(order, torch.arange(20_000).double())) < 0.03


def test_parts_without_a_source_do_not_starve_those_with_one() -> None:
    protocol = Protocol(
        members=40, nonmembers=40, pool=100, test=PROTOCOLS["encodermi"].parts()["nonmembers"]
    )
    small = Protocol(
        members=40, nonmembers=40, pool=100, test=type(protocol.parts()["test"])(20, "test")
    )
    split = cut(_rows(180, 20), _card(train=180, test=20), small, 0)
    assert set(split.test.source.tolist()) == {1}


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


def test_canonical_order_carries_neither_truth_nor_position() -> None:
    truth, position = [], []
    for seed in range(200):
        split = _split(seed)
        place = torch.arange(100)
        truth.append(_correlation(split.member, place))
        position.append(_correlation(split.candidates.index, place))
    for found in (truth, position):
        mean, sd = torch.tensor(found).mean(), torch.tensor(found).std()
        assert abs(float(mean)) < 4 * float(sd) / 200**0.5
        assert 0.05 < float(sd) < 0.2  # 1 / sqrt(100) for independent orders


@given(seed=seeds)
def test_row_order_of_the_examples_does_not_matter(seed: int) -> None:
    rows, card = _rows(400), _card(all=400)
    shuffled = rows.select(torch.randperm(400, generator=torch.Generator().manual_seed(1)))
    protocol = Protocol(members=40, nonmembers=60, reference=15, pool=200, test=30)
    one, other = cut(rows, card, protocol, seed), cut(shuffled, card, protocol, seed)
    assert torch.equal(one.candidates.index, other.candidates.index)
    assert torch.equal(one.member, other.member)
    assert torch.equal(one.pool.index, other.pool.index)
    assert one.digest == other.digest


@given(seed=seeds, pair=st.integers(0, 1000))
def test_own_worlds_come_in_complementary_halves(seed: int, pair: int) -> None:
    split = _split(seed)
    (first, out_first), (second, out_second) = split.offline(2 * pair), split.offline(2 * pair + 1)
    assert torch.equal(first.members.index, out_second.index)
    assert torch.equal(second.members.index, out_first.index)
    assert not _set(first.members) & _set(second.members)
    for world, out in ((first, out_first), (second, out_second)):
        assert len(world.members) == len(out) == 40
        assert len(world.reference) == 15
        used = _set(world.members) | _set(out)
        assert used <= _set(split.pool)
        assert not used & _set(split.candidates)
        assert not used & _set(world.reference)
        assert not _set(world.reference) & _set(split.reference)
        assert not world.contains(split.candidates).any()
        assert bool(world.contains(world.members).all())
        assert not world.contains(out).any()


@given(seed=seeds)
def test_own_worlds_differ_and_depend_on_nothing_but_their_index(seed: int) -> None:
    split = _split(seed)
    again = [split.offline(i)[0].digest() for i in (3, 0, 7)]
    assert again == [split.offline(i)[0].digest() for i in (3, 0, 7)]
    assert len({tuple(split.offline(i)[0].members.index.tolist()) for i in range(8)}) == 8
    assert (
        split.offline(0)[0].salt("x") != split.offline(1)[0].salt("x") != split.victim().salt("x")
    )


@given(seed=seeds, index=st.integers(0, 1000))
def test_candidate_worlds_have_equal_sizes(seed: int, index: int) -> None:
    split = _split(seed)
    world, out = split.online(index)
    assert len(world.members) == len(split.victim().members)
    assert len(out) == len(split.candidates) - len(world.members)
    assert _set(world.members) | _set(out) == _set(split.candidates)
    assert len(world.reference) == len(split.reference)
    assert not _set(world.reference) & (_set(split.candidates) | _set(split.reference))


@given(seed=seeds)
def test_each_candidate_world_draws_its_own_reference_rows(seed: int) -> None:
    split = _split(seed)
    drawn = [_set(split.online(i)[0].reference) for i in range(4)]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))


def test_candidate_worlds_are_independent_of_the_victims_draw() -> None:
    for seed in range(3):
        split = _split(seed, members=50, nonmembers=50)
        drawn = torch.stack(
            [split.online(i)[0].contains(split.candidates) for i in range(401)]
        ).double()
        with_truth = torch.tensor([_correlation(row, split.member) for row in drawn[::2]])
        assert abs(float(with_truth.mean())) < 4 * 0.1 / 200**0.5
        assert 0.07 < float(with_truth.std()) < 0.14
        # no counting over the worlds tells members: an odd number leaves one deal half done
        assert abs(_correlation(drawn.sum(0), split.member)) < 0.4
        deals = torch.tensor([_correlation(drawn[i], drawn[i + 2]) for i in range(0, 399, 2)])
        assert abs(float(deals.mean())) < 4 * 0.1 / 200**0.5


@given(seed=seeds, worlds=st.integers(1, 40))
def test_candidates_are_members_of_equally_many_worlds(seed: int, worlds: int) -> None:
    split = _split(seed, members=20, nonmembers=60)
    drawn = [split.online(i)[0].contains(split.candidates) for i in range(worlds)]
    times = torch.stack(drawn).sum(0)
    assert int(times.min()) >= worlds // 4
    assert int(times.max()) <= -(-worlds // 4)


@given(seed=seeds, test=st.sampled_from([0, 39, 40, 84, "nonmembers"]), rows=st.integers(315, 360))
def test_the_null_victims_rows_are_in_no_attackers_hands(seed: int, test: Any, rows: int) -> None:
    protocol = Protocol(members=40, nonmembers=60, reference=15, pool=200, test=test)
    if rows < sum(part.size for part in protocol.parts().values()):
        rows = 400
    split = cut(_rows(rows), _card(all=rows), protocol, seed)
    null = split.null()
    asked = _set(split.candidates)
    unused = rows - len(asked) - len(split.reference) - len(split.pool)
    assert split.null_apart == (unused >= 40)
    assert len(_set(null.members)) == len(split.victim().members)
    assert not _set(null.members) & (asked | _set(split.reference))
    if split.null_apart:
        assert not _set(null.members) & _set(split.pool)
    else:
        assert _set(null.members) <= _set(split.pool)
    assert _set(null.reference) == _set(split.reference)
    assert null.digest() not in {split.offline(0)[0].digest(), split.offline(1)[0].digest()}


CLASSES = 7


@cache
def _classes(skew: float, n: int = 600) -> Examples:
    """Rows of classes of very different sizes, ordered by class; one class is of one row."""
    generator = torch.Generator().manual_seed(3)
    y = ((torch.rand(n, generator=generator) ** skew) * (CLASSES - 1)).long().sort().values
    y[-1] = CLASSES - 1
    x = torch.randint(256, (n, 2), generator=generator, dtype=torch.uint8)
    source = (torch.arange(n) % 3 == 0).long()
    return Examples.of(x, y, scale=255, source=source)


def _shares(part: Examples, whole: Examples) -> float:
    """How far the count of any class in a part is from its share of the whole."""
    have = torch.bincount(part.y, minlength=CLASSES).double()
    share = torch.bincount(whole.y, minlength=CLASSES).double() * len(part) / len(whole)
    return float((have - share).abs().max())


@given(seed=seeds, skew=st.sampled_from([0.3, 1.0, 3.0]), world=st.integers(0, 5))
def test_every_part_and_world_has_each_class_as_often_as_it_should(
    seed: int, skew: float, world: int
) -> None:
    rows = _classes(skew)
    card = replace(_card(all=600), classes=CLASSES)
    protocol = Protocol(members=50, nonmembers=75, reference=33, pool=220, public=20, test=90)
    split = cut(rows, card, protocol, seed)
    members = split.candidates.select(split.member)
    nonmembers = split.candidates.select(~split.member)
    for part in (members, nonmembers, split.reference, split.pool, split.public, split.test):
        assert _shares(part, rows) < 1
    own, others = split.offline(world)
    for part in (own.members, others, own.reference):
        assert _shares(part, split.pool) < 1
    over, _ = split.online(world)
    assert _shares(over.members, split.candidates) < 1
    assert _shares(over.reference, split.pool) < 1
    assert _shares(split.null().members, join([split.spare.read(), split.test])) < 1


@given(seed=seeds)
def test_parts_of_one_source_have_the_classes_of_that_source(seed: int) -> None:
    rows = _classes(1.0)
    card = replace(_card(train=400, test=200), classes=CLASSES)
    protocol = Protocol(
        members=Part(50, "train"), nonmembers=Part(50, "test"), pool=120, reference=Part(7, "train")
    )
    split = cut(rows, card, protocol, seed)
    train, test = (rows.select(rows.source == number) for number in (0, 1))
    assert _shares(split.candidates.select(split.member), train) < 1
    assert _shares(split.candidates.select(~split.member), test) < 1
    assert _shares(split.reference, train) < 1
    assert len(split.pool) == 120


def test_coins_stay_coins() -> None:
    """Members by coin are counted per class as coins fall, not as shares.

    Over 200 seeds the count in the largest class deviates as a binomial's does: the ratio of the
    variances is a chi-square of 200 over 200, outside [.6, 1.5] less than once in 10,000.
    """
    rows, card = _classes(0.3), replace(_card(all=600), classes=CLASSES)
    protocol = Protocol(members=100, nonmembers=100, pool=220, inclusion="coin")
    z = []
    for seed in range(200):
        split = cut(rows, card, protocol, seed)
        largest = split.candidates.y == rows.y.mode().values
        n = int(largest.sum())
        z.append((float(split.member[largest].sum()) - n / 2) / (n / 4) ** 0.5)
    assert 0.6 < float(torch.tensor(z).square().mean()) < 1.5


@given(
    columns=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    seed=seeds,
)
def test_rounding_keeps_margins(columns: list[int], cuts: list[float], seed: int) -> None:
    n = sum(columns)
    stops = sorted(int(cut * n) for cut in cuts)
    rows = [b - a for a, b in itertools.pairwise([0, *stops, n])]
    table = rounded(rows, columns, seed)
    assert [sum(row) for row in table] == rows
    assert [sum(column) for column in zip(*table, strict=True)] == columns
    for row, line in zip(rows, table, strict=True):
        for column, entry in zip(columns, line, strict=True):
            assert abs(entry * n - row * column) < max(n, 1)


def test_rounding_is_unbiased() -> None:
    """Each of the 9 means of 4,000 tables is within 4.5 standard errors: 7e-6 x 9 by chance."""
    rows, columns, times = [3, 4, 5], [5, 6, 1], 4000
    mean = torch.tensor([rounded(rows, columns, seed) for seed in range(times)]).double().mean(0)
    want = torch.outer(torch.tensor(rows), torch.tensor(columns)).double() / 12
    share = want % 1
    error = (share * (1 - share) / times).sqrt()
    assert bool(((mean - want).abs() <= 4.5 * error + 1e-12).all())


@given(seed=seeds)
def test_the_victims_world_holds_just_the_members(seed: int) -> None:
    split = _split(seed)
    world = split.victim()
    assert torch.equal(world.contains(split.candidates), split.member)
    assert _set(world.reference) == _set(split.reference)


def test_random_numbers_of_a_world_depend_on_all_that_names_it() -> None:
    split, other = _split(0), _split(1)
    worlds = [
        split.victim(), other.victim(), replace(split.victim(), branch=1), split.null(),
        split.offline(0)[0], split.offline(1)[0], split.online(0)[0],
    ]  # fmt: skip
    salts = [world.salt(purpose) for world in worlds for purpose in ("noise", "batches")]
    assert len(set(salts)) == len(salts)
