"""The protocol: how a dataset is split into parts, and which training phase sees which part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.measure.data.canaries import Canaries  # noqa: TC001 - suites are checked against it

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.measure.data.examples import Card

Visible = Literal["members", "public", "downstream"]
Inclusion = Literal["size", "coin", "pairs"]


@dataclass(frozen=True)
class Part:
    """One part of a split: how many rows, and from which source.

    >>> Part(0.25), Part(1000, "train").source
    (Part(size=0.25, source=None), 'train')

    Attributes:
        size: a count, or a fraction of the rows of the source (of all rows if there is no source).
        source: a name in ``Card.sources``; None takes from the remaining rows of all sources.
    """

    size: Annotated[int, Ge(0)] | Annotated[float, Ge(0.0)] = 0
    source: str | None = None

    def count(self, card: Card) -> int:
        """Return how many rows of that dataset this part needs."""
        if isinstance(self.size, int):
            return self.size
        whole = card.rows if self.source is None else card.sources.get(self.source, 0)
        return int(self.size * whole + 1e-9)  # .29 of 100 is 28.999999999999996


PartLike = Part | int | float
_PARTS = ("members", "nonmembers", "reference", "public", "downstream", "pool", "test")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The sizes of the disjoint parts, and which parts each training phase sees.

    >>> halves = Protocol(name="halves", members=0.25, nonmembers=0.25, pool=0.5)
    >>> halves.phase, halves.inclusion
    ('encoder+classifier', 'size')

    Attributes:
        name: name shown in tables.
        members: rows that the victim trains on and that the membership question is about.
        nonmembers: rows of the membership question that no phase trains on.
        reference: the defender's held-out rows (shadows draw a reference of this size from the
            pool).
        public: public rows for pre-training; the membership question is not about them.
        downstream: labelled rows that only the classifier phase sees.
        pool: the adversary's rows.
        test: rows to measure utility; ``"nonmembers"`` measures it on the nonmembers. The null
            victim's members come from the test part and from rows in no part. Where these are fewer
            than the members, they come from the pool, and decisions on the null victim are refused.
        encoder: parts that the encoder phases see, in order.
        classifier: part that the classifier phase sees.
        inclusion: how candidates become members: ``size`` draws a fixed number; ``coin`` flips a
            fair coin for each, so that the number of members is only right on average; ``pairs``
            picks one of each random pair. An audit of an epsilon needs one of the last two.
        canaries: rows made to be remembered, in place of that many of the nonmembers (see
            ``Canaries``). Then the question is about the canaries only: ``inclusion`` decides which
            of them are members (``size``: half of them), the ``members`` are members in every world
            drawn over the candidates, and the other nonmembers are in none.
        shadow: number of members of each world drawn from the adversary's pool; None for as many as
            the victim's.
        trained_elsewhere: whether the victim exists already and saw exactly the members. Then its
            target trains no shadow (the adversary names one that does), the pool may be small or
            empty, and no rows are kept for a null victim.
    """

    name: str = "custom"
    members: PartLike
    nonmembers: PartLike
    reference: PartLike = 0
    public: PartLike = 0
    downstream: PartLike = 0
    pool: PartLike
    test: PartLike | Literal["nonmembers"] = "nonmembers"
    encoder: tuple[Visible, ...] = ("members",)
    classifier: Visible = "members"
    inclusion: Inclusion = "size"
    shadow: Annotated[int, Ge(1)] | None = None
    canaries: Canaries | None = None
    trained_elsewhere: bool = False

    def __post_init__(self) -> None:
        """Convert plain sizes to parts and check the phases."""
        for name in _PARTS:
            value = getattr(self, name)
            if not isinstance(value, Part | str):
                object.__setattr__(self, name, Part(value))
        if not self.encoder:
            raise BadInputError(
                f"protocol '{self.name}': encoder is empty; name at least one part in encoder"
            )
        if "members" not in (*self.encoder, self.classifier):
            raise BadInputError(
                f"protocol '{self.name}': no phase sees the members, so membership inference is "
                "impossible; name 'members' in encoder or classifier"
            )
        for part in ("public", "downstream"):
            given = self.parts()[part].size > 0
            if part in (*self.encoder, self.classifier) and not given:
                raise BadInputError(
                    f"protocol '{self.name}': a phase sees {part}, but {part} has no size; set it"
                )

    def parts(self) -> Mapping[str, Part]:
        """Return parts by name; ``test`` is absent if it is the nonmembers."""
        named = {name: getattr(self, name) for name in _PARTS}
        return {name: part for name, part in named.items() if isinstance(part, Part)}

    @property
    def phase(self) -> str:
        """Return the phases that see the members, which the membership question is about.

        >>> Protocol(members=1, nonmembers=1, pool=2).phase
        'encoder+classifier'
        """
        seen = {"encoder": "members" in self.encoder, "classifier": self.classifier == "members"}
        return "+".join(name for name, sees in seen.items() if sees)

    def sizes(self, card: Card) -> dict[str, int]:
        """Return the number of rows of each part on that dataset.

        Raises:
            BadInputError: if parts do not fit; names *all* of them, not only the first.
        """
        parts = self.parts()
        wrong = [
            f"{name} needs source '{part.source}', which is not in {', '.join(card.sources)}"
            for name, part in parts.items()
            if part.source is not None and part.source not in card.sources
        ]
        sizes = {name: part.count(card) for name, part in parts.items()}
        wrong += [f"{name} has size {size}" for name, size in sizes.items() if size < 0]
        wrong += [f"{name} is empty" for name in ("members", "nonmembers") if not sizes[name]]
        if self.canaries:
            wrong += self._misplaced(self.canaries, sizes["nonmembers"], card)
        elif self.inclusion != "size" and (
            sizes["members"] != sizes["nonmembers"]
            or parts["members"].source != parts["nonmembers"].source
        ):
            wrong.append(
                f"inclusion by {self.inclusion} needs as many members as nonmembers, "
                "from one source"
            )
        for source, held in card.sources.items():
            drawn = {n: sizes[n] for n, part in parts.items() if part.source == source}
            if sum(drawn.values()) > held:
                wrong.append(f"{_listed(drawn)} exceed the {held} rows of source '{source}'")
        wanted = {n: size for n, size in sizes.items() if size}
        if not wrong and sum(sizes.values()) > card.rows:
            wrong.append(f"{_listed(wanted)} exceed the {card.rows} rows of the dataset")
        wrong += self._lacking(sizes, card)
        if wrong:
            raise BadInputError(
                f"protocol '{self.name}' does not fit dataset '{card.name}': {'; '.join(wrong)}"
            )
        return sizes

    def _lacking(self, sizes: Mapping[str, int], card: Card) -> list[str]:
        """Return why there are too few rows for shadows or the null victim."""
        if self.trained_elsewhere:
            return []
        wrong = []
        whole = sizes["members"] + (self.canaries.count // 2 if self.canaries else 0)
        mine = whole if self.shadow is None else self.shadow
        if sizes["pool"] < 2 * mine:
            wrong.append(
                f"pool {sizes['pool']} is less than twice the members {mine}, "
                "which a shadow and its nonmembers need"
            )
        elif sizes["pool"] < 2 * mine + sizes["reference"]:
            wrong.append(
                f"pool {sizes['pool']} is too small for a shadow with {mine} members, as many "
                f"nonmembers and a reference of {sizes['reference']}"
            )
        outside = card.rows - sum(sizes.values()) + sizes.get("test", 0)
        if max(outside, sizes["pool"]) < whole:
            wrong.append(
                f"the null victim needs {whole} members, and neither the pool "
                f"({sizes['pool']}) nor test and unused rows ({outside}) have as many"
            )
        return wrong

    def _misplaced(self, canaries: Canaries, nonmembers: int, card: Card) -> list[str]:
        """Return why these canaries cannot be planted."""
        wrong = []
        if canaries.count > nonmembers:
            wrong.append(f"{canaries.count} canaries replace {nonmembers} nonmembers, too few")
        if canaries.count == nonmembers and self.test == "nonmembers":
            wrong.append("canaries replace all nonmembers, which are the test rows: set test")
        if canaries.kind != "noise" and (card.classes or 0) < 2:  # noqa: PLR2004
            wrong.append(f"{canaries.kind} canaries need at least two classes")
        return wrong


def _listed(sizes: Mapping[str, int]) -> str:
    return " + ".join(f"{name} {size}" for name, size in sizes.items())


#: Protocols available for every dataset; an error says why one does not fit. Datasets may add more.
PROTOCOLS: Mapping[str, Protocol] = {
    # Talos (CCS'21, section 3.1): four equal quarters, with no rows left for a reference or test.
    "quarters": Protocol(name="quarters", members=0.25, nonmembers=0.25, pool=0.5),
    # Talos with public pre-training on a fifth of the same dataset (the paper uses STL-10).
    "talos": Protocol(
        name="talos",
        members=0.2,
        nonmembers=0.2,
        pool=0.4,
        public=0.2,
        encoder=("public", "members"),
    ),  # fmt: skip
    # EncoderMI (CCS'21, section 5.1): members and shadow set from train, nonmembers from test, and
    # a third disjoint set for the downstream classifier.
    "encodermi": Protocol(
        name="encodermi",
        members=Part(10_000, "train"),
        nonmembers=Part(10_000, "test"),
        pool=Part(20_000, "train"),
        downstream=Part(10_000, "train"),
        classifier="downstream",
    ),  # fmt: skip
    # The same sizes, with members and nonmembers both from train: no distribution shift.
    "encodermi-matched": Protocol(
        name="encodermi-matched",
        members=Part(10_000, "train"),
        nonmembers=Part(10_000, "train"),
        pool=Part(20_000, "train"),
        downstream=Part(10_000, "train"),
        test=Part(10_000, "test"),
        classifier="downstream",
    ),  # fmt: skip
    # For a frozen public encoder, after EncoderMI's two sets for CLIP (CCS'21): members
    # from its training data, nonmembers collected elsewhere. The sets may differ in more than
    # membership: read the result beside the null victim's and the blind classifier's.
    "two-sets": Protocol(
        name="two-sets",
        members=Part(1000, "train"),
        nonmembers=Part(1000, "elsewhere"),
        pool=2000,
        downstream=1000,
        classifier="downstream",
    ),  # fmt: skip
    # The same sizes, with nonmembers held out from where the training data come from: no
    # distribution shift (Gomez, AAAI'26, takes both from one pool).
    "two-sets-matched": Protocol(
        name="two-sets-matched",
        members=Part(1000, "train"),
        nonmembers=Part(1000, "test"),
        pool=2000,
        downstream=1000,
        classifier="downstream",
    ),  # fmt: skip
    # ALM (2022): the encoder sees public rows only, the classifier the members.
    "alm": Protocol(
        name="alm",
        members=0.1,
        nonmembers=0.1,
        pool=0.2,
        public=0.4,
        test=0.1,
        encoder=("public",),
        classifier="members",
    ),  # fmt: skip
    # For audited epsilons: a fair coin per candidate, or one member per pair.
    "audit": Protocol(
        name="audit", members=0.15, nonmembers=0.15, reference=0.05, pool=0.4, test=0.2,
        inclusion="coin",
    ),
    "audit-pairs": Protocol(
        name="audit-pairs", members=0.15, nonmembers=0.15, reference=0.05, pool=0.4, test=0.2,
        inclusion="pairs",
    ),
}  # fmt: skip


def protocol_named(name: str, own: Mapping[str, Protocol]) -> Protocol:
    """Return the dataset's own protocol of that name, or the built-in one.

    Raises:
        UnknownNameError: if there is none; suggests the nearest name.
    """
    known = {**PROTOCOLS, **own}
    if name not in known:
        raise UnknownNameError("protocol", name, known)
    return known[name]
