"""Disjoint parts of a dataset under one seed, and the worlds that trainings happen in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from privbench.data.examples import Card, Examples, join
from privbench.data.row_random import fold, salt, uniform
from privbench.store.source import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from privbench.data.protocol import Protocol

Origin = Literal["victim", "offline", "online", "null", "public"]
#: Seeds keep the words that 0.1.0 had for origins, so that its worlds stay what they were.
_SEED_WORDS = {"offline": "own", "online": "candidates"}


@dataclass(frozen=True)
class World:
    """All that one training may see. Victim and shadow are the same recipe in different worlds.

    Attributes:
        parts: members, reference, public, downstream -> rows (possibly none).
        origin: ``victim``; ``offline`` and ``null`` (drawn from the pool); ``online`` (drawn over
            the candidates); ``public`` for what is trained once for all worlds.
        index: which world of that origin.
        seed: of the split.
        branch: set where one training makes several (a defense's sub-models).
    """

    parts: Mapping[str, Examples]
    origin: Origin
    index: int
    seed: int
    branch: int = 0

    @property
    def members(self) -> Examples:
        """Rows whose membership is at stake."""
        return self.parts["members"]

    @property
    def reference(self) -> Examples:
        """Rows a defender may hold out; never members, candidates or pool of the victim."""
        return self.parts["reference"]

    def replace(self, **parts: Examples) -> World:
        """The same world with some parts exchanged, as ``Defense.on_data`` returns it."""
        return replace(self, parts={**self.parts, **parts})

    def contains(self, rows: Examples) -> Tensor:
        """Which rows are members here: (n,) bool."""
        return torch.isin(rows.index, self.members.index)

    def digest(self, attributes: Sequence[str] = ()) -> str:
        """Content of all parts with labels, and with these attributes."""
        return digest(
            {name: part.digest(attributes=attributes) for name, part in self.parts.items()}
        )

    def salt(self, *purpose: str | int) -> int:
        """A seed for one purpose in this world: never of hyperparameters or of the attack."""
        return salt(self.seed, _SEED_WORDS.get(self.origin, self.origin), self.index, self.branch,
                    *purpose)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """The parts of one dataset under one data seed; equal for every cell of that seed.

    Attributes:
        card: of the dataset.
        protocol: that cut it.
        seed: data seed.
        candidates: rows that the membership question is about, in canonical order.
        member: (n,) bool, the truth; only ``games`` reads it.
        public, downstream, reference, pool, test: see ``Protocol``.
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

    def hashes(self) -> dict[str, str]:
        """Content hash of each part, for the record."""
        names = ("candidates", "public", "downstream", "reference", "pool", "test")
        return {
            **{name: getattr(self, name).digest() for name in names},
            "members": self.candidates.select(self.member).digest(),
        }

    @cached_property
    def digest(self) -> str:
        """Identity of the split: everything in ``hashes``."""
        return digest(self.hashes())

    @property
    def size(self) -> int:
        """Members of every world but the victim's, where coins may have drawn a few more or less.

        Equal to the victim's where its size is fixed: what a coin drew is part of the truth.
        """
        if self.protocol.inclusion == "coin":
            return len(self.candidates) // 2
        return int(self.member.sum())

    @property
    def pairs(self) -> Tensor:
        """(n / 2, 2) positions of candidates; with inclusion by pairs one of each is a member."""
        order = _permutation(self.candidates, salt(self.seed, "pairs"))
        return order[: len(order) // 2 * 2].view(-1, 2)

    def victim(self) -> World:
        """The world of the victim."""
        return self._world(self.candidates.select(self.member), self.reference, "victim", 0)

    def offline(self, index: int) -> tuple[World, Examples]:
        """A world of the adversary's own pool, and as many nonmembers for it.

        Worlds 2i and 2i+1 are the two halves of one draw of twice the members (or of what the
        protocol says of shadows), each the other's
        nonmembers; so members and nonmembers balance over pairs, and more shadows never change
        the earlier ones.
        """
        order = self._draw("own", index // 2)
        n = self.protocol.shadow or self.size
        halves = self.pool.select(order[:n]), self.pool.select(order[n : 2 * n])
        members, others = halves if index % 2 == 0 else halves[::-1]
        spare = order[2 * n : 2 * n + len(self.reference)]
        return self._world(members, self.pool.select(spare), "offline", index), others

    def online(self, index: int) -> tuple[World, Examples]:
        """A world drawn over the candidates, independently of the victim's; and the rest of them.

        As many members as the victim has, so that shadow and victim train on equal sizes. The
        candidates are dealt into as many worlds as they fill, then shuffled and dealt again: two
        complementary halves each time where members and nonmembers are equally many. So a row is
        a member of as many worlds as any other (to one), and more worlds never change earlier
        ones. The victim's own draw is none of these, so the counts say nothing of it; among
        themselves they do (who is out of all others of a deal must be in the one left out).
        """
        n = self.size
        deal, place = divmod(index, len(self.candidates) // n)
        order = _permutation(self.candidates, salt(self.seed, "candidates", deal))
        inside = torch.zeros_like(self.member)
        inside[order[place * n : (place + 1) * n]] = True
        spare = self._draw("candidates-reference", index)[: len(self.reference)]
        rows = self.candidates.without_source()  # as the question has them
        world = self._world(rows.select(inside), self.pool.select(spare), "online", index)
        return world, rows.select(~inside)

    def null(self) -> World:
        """A spare world of the pool for the null victim: it holds no candidate."""
        order = self._draw("null", 0)
        n = self.size
        spare = self.pool.select(order[n : n + len(self.reference)])
        return self._world(self.pool.select(order[:n]), spare, "null", 0)

    def foreign(self, rows: Examples, card: Card) -> Split:
        """The split as an adversary has it whose pool comes from another dataset.

        Candidates stay. Public, downstream and reference parts are as large as here, the pool is
        all the rest.

        Args:
            rows: of the other dataset, in this one's shape and scale (see ``adopted``).
            card: of those rows.
        """
        rows = rows.renumbered(fold(rows.index, salt(self.seed, "foreign index")))
        order = _permutation(rows, salt(self.seed, "foreign"))
        cuts = [len(self.public), len(self.downstream), len(self.reference)]
        public, downstream, reference, pool = torch.tensor_split(
            order, torch.tensor(cuts).cumsum(0)
        )
        return replace(
            self, card=card, public=rows.select(public), downstream=rows.select(downstream),
            reference=rows.select(reference), pool=rows.select(pool),
        )  # fmt: skip

    def _draw(self, purpose: str, index: int) -> Tensor:
        return _permutation(self.pool, salt(self.seed, purpose, index))

    def _world(self, members: Examples, reference: Examples, origin: Origin, index: int) -> World:
        parts = {
            "members": members,
            "reference": reference,
            "public": self.public,
            "downstream": self.downstream,
        }
        return World(parts, origin, index, self.seed)


def cut(examples: Examples, card: Card, protocol: Protocol, seed: int) -> Split:
    """Cut a dataset by a protocol; every part is drawn at random and meets no other.

    Raises:
        BadInputError: naming all parts that do not fit.
    """
    sizes = protocol.sizes(card)
    order = _permutation(examples, salt(seed, "split"))
    source = examples.source[order]
    free = torch.ones(len(examples), dtype=torch.bool, device=examples.device)
    parts: dict[str, Examples] = {}
    # Parts that name a source draw first, so that those that do not cannot starve them.
    for name, part in sorted(protocol.parts().items(), key=lambda item: item[1].source is None):
        usable = free.clone()
        if part.source is not None:
            usable &= source == list(card.sources).index(part.source)
        taken = usable.nonzero().squeeze(1)[: sizes[name]]
        free[taken] = False
        rows = examples.select(order[taken])
        # A position tells the source of a row, and where members have one of their own, the truth.
        parts[name] = rows.renumbered(fold(rows.index, salt(seed, "index")))
    members, nonmembers = parts.pop("members"), parts.pop("nonmembers")
    parts.setdefault("test", nonmembers)
    candidates = join([members, nonmembers])
    # Canonical order: a keyed content hash, so that neither order nor ties carry the truth.
    canonical = _permutation(candidates, salt(seed, "candidates"))
    member = torch.arange(len(candidates), device=examples.device) < len(members)
    drawn = Split(
        card=card,
        protocol=protocol,
        seed=seed,
        candidates=candidates.select(canonical),
        member=member[canonical],
        **parts,
    )
    if protocol.inclusion == "size":
        return drawn
    member = _coins(drawn)
    if protocol.test == "nonmembers":
        drawn = replace(drawn, test=drawn.candidates.select(~member))
    return replace(drawn, member=member)


def _coins(split: Split) -> Tensor:
    """Members by a fair coin each, or by one for each pair: (n,) bool."""
    rows = split.candidates
    heads = uniform(fold(rows.keys ^ fold(rows.index, 1), salt(split.seed, "coin")), 1)[:, 0] < 0.5  # noqa: PLR2004
    if split.protocol.inclusion == "coin":
        return heads
    first, second = split.pairs.T
    heads[second] = ~heads[first]
    return heads


def _permutation(rows: Examples, seed: int) -> Tensor:
    """A random order of rows keyed by (content, position in the dataset, seed)."""
    keys = fold(rows.keys ^ fold(rows.index, 1), seed)
    # Canonicalise first, so that the order rows came in cannot show through equal keys.
    first = torch.argsort(rows.index, stable=True)
    return first[torch.argsort(keys[first], stable=True)]
