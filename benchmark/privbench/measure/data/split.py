"""Splits: the disjoint parts of a dataset under one seed, and the worlds that models train in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from privbench.ground.store.source import digest
from privbench.measure.data.examples import Card, Examples, Unread, join
from privbench.measure.data.row_random import fold, salt, uniform
from privbench.measure.data.strata import dealt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from privbench.measure.data.canaries import Canaries
    from privbench.measure.data.protocol import Protocol

Origin = Literal["victim", "offline", "online", "null", "public"]
#: Words of the origins in seeds: others would draw other worlds.
_SEED_WORDS = {"offline": "own", "online": "candidates"}


@dataclass(frozen=True)
class World:
    """All data that one training may see; victim and shadow are one target in different worlds.

    >>> from privbench.testing import tiny_split
    >>> world = tiny_split().victim()
    >>> len(world.members), bool(world.contains(world.members).all())
    (80, True)

    Attributes:
        parts: members, reference, public, downstream -> rows (possibly none).
        origin: ``victim``; ``offline`` (drawn from the pool); ``null`` (from rows outside the pool,
            where there are enough); ``online`` (drawn over the candidates); ``public`` for training
            shared by all worlds.
        index: number of the world within its origin.
        seed: seed of the split.
        branch: number of the sub-model, where a defense trains several.
    """

    parts: Mapping[str, Examples]
    origin: Origin
    index: int
    seed: int
    branch: int = 0

    @property
    def members(self) -> Examples:
        """Return the rows that are members in this world."""
        return self.parts["members"]

    @property
    def reference(self) -> Examples:
        """Return the defender's held-out rows.

        For the victim they are never members, candidates or pool.
        """
        return self.parts["reference"]

    def replace(self, **parts: Examples) -> World:
        """Return the same world with some parts replaced, for ``Defense.on_data``."""
        return replace(self, parts={**self.parts, **parts})

    def private(self) -> World:
        """Return the same world with rows of its own, for code that might write into them.

        A part is copied when it is first read.
        """
        return replace(self, parts=_Copied(self.parts))

    def rekeyed(self) -> World:
        """Return the same world with keys of what its rows hold now."""
        parts = {name: part.rekeyed() for name, part in self.parts.items()}
        return replace(self, parts=parts)

    def contains(self, rows: Examples) -> Tensor:
        """Return which rows are members in this world: (n,) bool."""
        return torch.isin(rows.index, self.members.index)

    def digest(self, attributes: Sequence[str] = ()) -> str:
        """Return a digest of the content of all parts, with labels and these attributes."""
        return digest(
            {name: part.digest(attributes=attributes) for name, part in self.parts.items()}
        )

    def salt(self, *purpose: str | int) -> int:
        """Return a seed for one purpose in this world; hyperparameters and attack do not count."""
        return salt(self.seed, _SEED_WORDS.get(self.origin, self.origin), self.index, self.branch,
                    *purpose)  # fmt: skip


class _Copied(Mapping[str, Examples]):
    """Copies of rows, each made when it is first read."""

    def __init__(self, parts: Mapping[str, Examples]) -> None:
        self._parts = parts
        self._copies: dict[str, Examples] = {}

    def __getitem__(self, name: str) -> Examples:
        if name not in self._copies:
            self._copies[name] = self._parts[name].private()
        return self._copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@dataclass(frozen=True)
class Split:
    """The parts of one dataset under one data seed; the same for every cell of that seed.

    Every part and every world holds each class as often as the rows that it is drawn from, within
    one row. Only coins that draw members (see ``Protocol.inclusion``) ignore classes.

    Attributes:
        card: card of the dataset.
        protocol: how the dataset was split.
        seed: data seed.
        candidates: rows that the membership question is about, in canonical order.
        member: (n,) bool, the truth; only ``games`` reads it.
        public, downstream, reference, pool, test: see ``Protocol``.
        spare: rows in none of these parts; read when a world draws them.
        always: with canaries, the rows that are members in every world over the candidates.
    """

    card: Card
    protocol: Protocol
    seed: int
    candidates: Examples
    member: Tensor
    public: Examples
    downstream: Examples
    reference: Examples
    pool: Examples
    test: Examples
    spare: Unread
    always: Examples | None = None

    def hashes(self) -> dict[str, str]:
        """Return the content hash of each part, for the record."""
        names = ("candidates", "public", "downstream", "reference", "pool", "test", "spare")
        return {
            **{name: getattr(self, name).digest() for name in names},
            "members": self.candidates.select(self.member).digest(),
            **({} if self.always is None else {"always": self.always.digest()}),
        }

    @cached_property
    def digest(self) -> str:
        """Return a digest that identifies the split, from everything in ``hashes``."""
        return digest(self.hashes())

    @property
    def size(self) -> int:
        """Return the number of members of every world except the victim's.

        It equals the victim's number if that is fixed. If coins drew the victim's members, it is
        half the candidates, because the number that coins drew is part of the truth.
        """
        return self._drawn_members + (0 if self.always is None else len(self.always))

    @property
    def _drawn_members(self) -> int:
        """Return how many candidates are members of a world that is drawn over them."""
        if self.protocol.inclusion == "coin":
            return len(self.candidates) // 2
        return int(self.member.sum())

    def _and_always(self, members: Examples) -> Examples:
        return members if self.always is None else join([self.always, members])

    @property
    def pairs(self) -> Tensor:
        """Return (n / 2, 2) positions of candidates; inclusion by pairs makes one a member."""
        order = _permutation(self.candidates, salt(self.seed, "pairs"))
        return order[: len(order) // 2 * 2].view(-1, 2)

    def victim(self) -> World:
        """Return the world of the victim."""
        members = self._and_always(self.candidates.select(self.member))
        return self._world(members, self.reference, "victim", 0)

    def offline(self, index: int) -> tuple[World, Examples]:
        """Return a world drawn from the adversary's pool, and as many nonmembers for it.

        Worlds 2i and 2i+1 are the two halves of one draw; each half is the other's nonmembers. A
        half has as many members as the victim, or as many as ``Protocol.shadow`` says, and at most
        half of the pool. Members and
        nonmembers therefore balance over pairs, and more shadows never change the earlier ones.
        """
        n = min(self.protocol.shadow or self.size, len(self.pool) // 2)
        *halves, reference = _drawn(
            self.pool, [n, n, len(self.reference)], salt(self.seed, "own", index // 2)
        )
        members, others = halves if index % 2 == 0 else halves[::-1]
        return self._world(members, reference, "offline", index), others

    def online(self, index: int) -> tuple[World, Examples]:
        """Return a world drawn over the candidates, and the remaining candidates.

        The draw is independent of the victim's. A world has as many members as the victim, so that
        shadow and victim train on equal sizes. The candidates are shuffled and divided into as many
        worlds as they fill, then shuffled and divided again. If there are as many members as
        nonmembers, each round gives two complementary halves. Every row is therefore a member of
        the same number of worlds (within one), and more worlds never change earlier ones. The
        victim's draw is not one of these worlds, so the counts reveal nothing about it. Within one
        round they do reveal membership: a row outside all other worlds of the round must be in the
        last one.
        """
        n = self._drawn_members
        deal, place = divmod(index, len(self.candidates) // n)
        hands = [n] * (len(self.candidates) // n)
        mine = _hands(self.candidates, hands, salt(self.seed, "candidates", deal))[place]
        inside = torch.zeros_like(self.member)
        inside[mine] = True
        spare = salt(self.seed, "candidates-reference", index)
        (reference,) = _drawn(self.pool, [len(self.reference)], spare)
        rows = self.candidates.without_source()  # as in the question
        members = self._and_always(rows.select(inside))
        return self._world(members, reference, "online", index), rows.select(~inside)

    @property
    def null_apart(self) -> bool:
        """Return whether the null victim's members lie outside the adversary's pool."""
        return len(self._outside) >= self.size

    def null(self) -> World:
        """Return the world of the null victim, which contains no candidate.

        Its members are rows that no attack on membership ever holds: those in no part, and those of
        the test part. They have labels if all candidates have. If they are too few, its members are
        drawn from the pool. Its reference rows are the victim's.
        """
        rows = self._outside if self.null_apart else self.pool.without_x()
        (hand,) = _hands(rows, [min(self.size, len(rows))], salt(self.seed, "null", 0))
        members = self._from_outside(hand) if self.null_apart else self.pool.select(hand)
        return self._world(members, self.reference, "null", 0)

    @cached_property
    def _outside(self) -> Examples:
        """Rows that are in no part, then those of the test part alone; without x."""
        return join([self._spare.columns, self._tested.without_x()])

    @cached_property
    def _spare(self) -> Unread:
        """Rows in no part."""
        return self.spare.those(self._as_labelled(self.spare.columns))

    @cached_property
    def _tested(self) -> Examples:
        """Test rows that are no candidates."""
        apart = ~torch.isin(self.test.index, self.candidates.index)
        return self.test.select(apart & self._as_labelled(self.test))

    def _as_labelled(self, rows: Examples) -> Tensor:
        """Which rows may stand for candidates: if all candidates have labels, those that have."""
        return (rows.y >= 0) | bool((self.candidates.y < 0).any())

    def _from_outside(self, hand: Tensor) -> Examples:
        """Read rows of ``_outside`` by position, in that order."""
        first = hand < len(self._spare)
        read = join([
            self._spare.select(hand[first]), self._tested.select(hand[~first] - len(self._spare)),
        ])  # fmt: skip
        order = torch.cat([first.nonzero(), (~first).nonzero()]).squeeze(1)
        return read.select(order.argsort())

    def foreign(self, rows: Examples, card: Card) -> Split:
        """Return the split of an adversary whose pool comes from another dataset.

        The candidates do not change. The public, downstream and reference parts keep their sizes;
        the pool is the rest, or as large as it was if that dataset is memory-mapped.

        Args:
            rows: rows of the other dataset, in this one's shape and scale (see ``adopted``).
            card: card of those rows.
        """
        rows = rows.renumbered(fold(rows.index, salt(self.seed, "foreign index")))
        sizes = [len(self.public), len(self.downstream), len(self.reference)]
        left = len(rows) - sum(sizes)
        most = left if rows.mapped is None else min(left, len(self.pool))
        drawn = _drawn(rows, [*sizes, most], salt(self.seed, "foreign"))
        device = self.candidates.device
        public, downstream, reference, pool = (part.to(device) for part in drawn)
        return replace(
            self, card=card, public=public, downstream=downstream, reference=reference, pool=pool
        )

    def _world(self, members: Examples, reference: Examples, origin: Origin, index: int) -> World:
        parts = {
            "members": members,
            "reference": reference,
            "public": self.public,
            "downstream": self.downstream,
        }
        return World(parts, origin, index, self.seed)


def cut(
    examples: Examples,
    card: Card,
    protocol: Protocol,
    seed: int,
    *,
    device: torch.device | None = None,
) -> Split:
    """Split a dataset by a protocol into disjoint random parts.

    Only rows of the parts are read, so that of a memory-mapped dataset the others need no memory.

    Args:
        examples: all rows.
        card: card of the dataset.
        protocol: how to split.
        seed: data seed.
        device: of the parts; None for that of the examples.

    Raises:
        BadInputError: if parts do not fit; names all of them.
    """
    device = device or examples.device
    positions, rest = _dealt_parts(examples.without_x(), card, protocol, salt(seed, "split"))
    # Renumber the rows: a position can reveal a row's source and thereby its membership.
    examples = examples.renumbered(fold(examples.index, salt(seed, "index")))
    parts = {name: examples.select(at).to(device) for name, at in positions.items()}
    spare = examples.unread(rest).to(device)
    members, nonmembers = parts.pop("members"), parts.pop("nonmembers")
    parts.setdefault("test", nonmembers)
    candidates = join([members, nonmembers])
    # Canonical order: a keyed content hash, so that neither order nor ties reveal the truth.
    canonical = _permutation(candidates, salt(seed, "candidates"))
    member = torch.arange(len(candidates), device=device) < len(members)
    drawn = Split(
        card=card,
        protocol=protocol,
        seed=seed,
        candidates=candidates.select(canonical),
        member=member[canonical],
        spare=spare,
        **parts,
    )
    if protocol.canaries:
        drawn = _planted(drawn, protocol.canaries, seed)
    if protocol.inclusion == "size":
        return drawn
    member = _coins(drawn, seed)
    if protocol.test == "nonmembers" and not protocol.canaries:
        drawn = replace(drawn, test=drawn.candidates.select(~member))
    return replace(drawn, member=member)


def _dealt_parts(
    rows: Examples, card: Card, protocol: Protocol, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return part -> positions of its rows, and those of the rows in no part, in random order.

    Raises:
        BadInputError: if parts do not fit.
    """
    sizes, asked = protocol.sizes(card), protocol.parts()
    free = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    positions: dict[str, Tensor] = {}
    # Parts that name a source draw first, so that the other parts cannot take their rows.
    for source in (*card.sources, None):
        names = [name for name, part in asked.items() if part.source == source]
        usable = free.clone()
        if source is not None:
            usable &= rows.source == list(card.sources).index(source)
        at = usable.nonzero().squeeze(1)
        hands = _hands(rows.select(at), [sizes[name] for name in names], seed)
        for name, hand in zip(names, hands, strict=True):
            positions[name] = at[hand]
            free[at[hand]] = False
    rest = free.nonzero().squeeze(1)
    return positions, rest[_permutation(rows.select(rest), seed)]


def _planted(split: Split, canaries: Canaries, seed: int) -> Split:
    """Return the split with canaries as candidates, half of them members; see ``Protocol``."""
    others = split.candidates.select(~split.member)
    rows = others.select(slice(0, canaries.count))
    made = canaries.made(rows, split.card, salt(seed, "canaries"))
    member = torch.zeros(len(made), dtype=torch.bool, device=made.device)
    member[_permutation(made, salt(seed, "canaries included"))[: len(made) // 2]] = True
    test = split.test
    if split.protocol.test == "nonmembers":
        test = others.select(slice(canaries.count, None))
    always = split.candidates.select(split.member)
    return replace(split, candidates=made, member=member, always=always, test=test)


def _coins(split: Split, seed: int) -> Tensor:
    """Draw members by one fair coin per row, or one per pair: (n,) bool."""
    rows = split.candidates
    heads = uniform(fold(rows.keys ^ fold(rows.index, 1), salt(seed, "coin")), 1)[:, 0] < 0.5  # noqa: PLR2004
    if split.protocol.inclusion == "coin":
        return heads
    first, second = split.pairs.T
    heads[second] = ~heads[first]
    return heads


def _drawn(rows: Examples, sizes: Sequence[int], seed: int) -> list[Examples]:
    """Return random disjoint parts of the rows, each in random order; see ``_hands``."""
    return [rows.select(hand) for hand in _hands(rows, sizes, seed)]


def _hands(rows: Examples, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Return positions of rows: random parts of these sizes, in which each class has its share."""
    order = _permutation(rows, seed)
    return [order[hand] for hand in dealt(rows.y[order], sizes, salt(seed, "shares"))]


def _permutation(rows: Examples, seed: int) -> Tensor:
    """Return a random order of rows, keyed by (content, position in the dataset, seed)."""
    keys = fold(rows.keys ^ fold(rows.index, 1), seed)
    # Sort by position first, so that rows with equal keys do not reveal their original order.
    first = torch.argsort(rows.index, stable=True)
    return first[torch.argsort(keys[first], stable=True)]
