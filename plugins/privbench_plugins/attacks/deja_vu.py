"""Déjà Vu, a game: which class does a training picture show, of which only a corner is known?

Meehan, Bordes, Vincent, Chaudhuri, Guo: Do SSL Models Have Déjà Vu? A Case of Unintended
Memorization in Self-supervised Learning. NeurIPS 2023, arXiv 2304.13850. The paper's text was not
available: what follows is from a summary of its method.

An encoder that learns without labels should not know what a training picture shows from a piece of
its background. What the background itself tells, such as water for a ship, an encoder that never
saw the picture knows as well. So the memory is the difference: accuracy on the victim minus that on
the *null* victim, which is trained in the same way on other rows. Boards show it as "minus null".

- *Question*: for each member (at most ``max_rows``), one of its four corners of ``SIDE`` of its
  height and width, drawn by the harness, resized to the whole picture; and the number of classes.
- *Answer*: a distribution over the classes for each corner.
- *Scores*: accuracy of the most likely class, of all corners and of the fifth of which the answer
  is surest, by the entropy of its distribution.
- *Baseline*: the most frequent class among the adversary's rows.

Deviations from the paper: its pictures are those of ImageNet, whose boxes say where the object is,
and its crops the largest ones without it. Our datasets have no boxes, so a corner may show a piece
of the object. The null victim gets the same corners, so this does not count as memory. The public
rows are the adversary's, which are few. A null victim that was trained on them is refused.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn
from torch.nn.functional import interpolate, normalize, one_hot

from privbench import (
    Access,
    Attack,
    BadAnswerError,
    BadInputError,
    Board,
    Column,
    Examples,
    Game,
    Ge,
    Paper,
    Refused,
    Target,
    accuracy,
    as_float,
    fold,
    hookimpl,
    new_game,
    salt,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from privbench import AttackContext, Cell, Estimate, Oracle, World

    Metrics = dict[str, Estimate | Refused]

#: Side of a corner as a share of that of the picture.
SIDE = 0.4
#: Share of the corners whose answers are surest.
SUREST = 0.2


class DejaVuAttack(Attack):
    """Base class of the attacks that play the game."""

    game: ClassVar[str] = "deja-vu"
    needs: ClassVar[Access] = Access.EMBEDDINGS
    requires: ClassVar[tuple[str, ...]] = ("images", "classes")

    @abstractmethod
    def answer(self, oracle: Oracle, question: DejaVuQuestion, ctx: AttackContext) -> DejaVu:
        """Return a distribution over the classes for each corner."""

    def incompatible(self, cell: Cell) -> str | None:
        """Require an encoder that saw the pictures, and a null victim trained like it."""
        if "members" not in cell.protocol.encoder:
            return f"no encoder phase of protocol '{cell.protocol.name}' sees the members"
        if type(cell.target).build_untrained is not Target.build_untrained:
            return (
                f"the null victim of {cell.target.name} has random weights, so what it answers "
                "worse is no memory"
            )
        return None


@dataclass(frozen=True)
class DejaVuQuestion:
    """Corners of training pictures.

    Attributes:
        corners: n rows without classes; x (n, channels, height, width) as large as a picture.
        classes: number of classes.
        phase: the phase that trained on the pictures.
    """

    corners: Examples
    classes: int
    phase: str


@dataclass(frozen=True)
class DejaVu:
    """The answer.

    Attributes:
        probabilities: (n, classes), at least 0.
        notes: facts to record with the metrics.
    """

    probabilities: Tensor
    notes: Mapping[str, float | str] = field(default_factory=dict)


@new_game
class DejaVuGame(Game):
    """What a training picture shows, from a corner of it."""

    name: ClassVar[str] = "deja-vu"
    board: ClassVar[Board] = Board(
        (
            Column("accuracy", "metrics", "accuracy"),
            Column("accuracy of the surest fifth", "metrics", "accuracy_surest"),
            Column("null accuracy", "controls.null", "accuracy"),
            Column("null, surest fifth", "controls.null", "accuracy_surest", terminal="wide"),
            Column("majority", "baselines.majority", "accuracy", terminal="never"),
        ),
        tells=("phase",),
        place=4,
    )
    controls: ClassVar[tuple[str, ...]] = ("null",)

    def pose(
        self, split: Any, served: Any, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[DejaVuQuestion, NDArray[np.int64]]:
        """Return the corners of the members whose class is known, and these classes (n,)."""
        del served, sensitive
        members = split.candidates.select(split.member)
        members = members.select(members.y >= 0).select(slice(0, max_rows))
        drawn = uniform(fold(members.keys, salt(split.seed, "corners")), 1)[:, 0]
        x = corners(as_float(members.x, members.scale), drawn)
        unknown = torch.full_like(members.y, -1)
        asked = Examples.of(x, unknown, scale=members.scale)
        question = DejaVuQuestion(asked, split.card.classes or 0, split.protocol.phase)
        return question, members.y.cpu().numpy()

    def pack(self, answer: DejaVu) -> dict[str, Tensor]:
        """Return the probabilities as float64."""
        if not isinstance(answer, DejaVu):
            raise BadAnswerError(f"the answer is a {type(answer).__name__}: return a DejaVu")
        return {"probabilities": torch.as_tensor(answer.probabilities).double()}

    def unpack(self, tensors: Mapping[str, Tensor]) -> DejaVu:
        """Return an answer with these probabilities."""
        return DejaVu(tensors["probabilities"])

    def score(self, answer: DejaVu, truth: NDArray[np.int64]) -> Metrics:
        """Return accuracy, of all and of the surest fifth; equal ones in the rows' order."""
        given = answer.probabilities.double().cpu()
        if given.ndim != 2 or len(given) != len(truth):  # noqa: PLR2004 - rows by classes
            raise BadAnswerError(
                f"probabilities have shape {tuple(given.shape)}: return ({len(truth)}, classes)"
            )
        if not bool((given.isfinite() & (given >= 0)).all()) or not bool((given.sum(1) > 0).all()):
            raise BadAnswerError("a probability is negative or not finite, or all of a row are 0")
        shares = given / given.sum(1, keepdim=True)
        entropy = -torch.xlogy(shares, shares).sum(1)
        surest = entropy.argsort(stable=True)[: math.ceil(SUREST * len(entropy))].numpy()
        guess = given.argmax(1).numpy()
        return {
            "accuracy": accuracy(guess, truth),
            "accuracy_surest": accuracy(guess[surest], truth[surest]),
        }

    def controlled(self, control: str, scored: Metrics, split: Any) -> Metrics:
        """Refuse a null victim whose members are the public pictures."""
        if control != "null" or split.null_apart:
            return scored
        refused = Refused(
            "the protocol leaves too few rows outside the pool for the null victim, so it is "
            "trained on the public pictures"
        )
        return dict.fromkeys(scored, refused)

    def planted(self, world: World, split: Any) -> nn.Module:
        """Return an encoder that knows public pictures, and its members by any corner."""
        return _Remembers(world.members, split.pool)

    def baselines(
        self, split: Any, question: DejaVuQuestion, truth: NDArray[np.int64]
    ) -> Mapping[str, Metrics]:
        """Score the most frequent class of the adversary's rows."""
        known = split.pool.y[split.pool.y >= 0]
        counts = known.bincount(minlength=question.classes).float()
        return {"majority": self.score(DejaVu(counts.expand(len(truth), -1)), truth)}

    def sizes(self, truth: NDArray[np.int64]) -> dict[str, int]:
        """Return the number of pictures."""
        return {"rows": len(truth)}


def corners(x: Tensor, drawn: Tensor) -> Tensor:
    """Return a corner of each picture, resized to the whole, bilinear.

    >>> import torch
    >>> x = torch.zeros(4, 1, 10, 10)
    >>> x[..., :4, 6:] = 1.0  # the upper right corner
    >>> corners(x, torch.tensor([0.1, 0.3, 0.6, 0.9])).mean((1, 2, 3)).tolist()
    [0.0, 1.0, 0.0, 0.0]

    Args:
        x: (n, channels, height, width) float.
        drawn: (n,) in [0, 1): which of the corners: upper left, upper right, lower left, right.
    """
    height, width = x.shape[2:]
    tall, wide = (max(1, round(SIDE * side)) for side in (height, width))
    made = torch.empty_like(x)
    for at in range(4):
        rows = (drawn * 4).long() == at
        top, left = (height - tall) * (at // 2), (width - wide) * (at % 2)
        piece = x[rows, :, top : top + tall, left : left + wide]
        if len(piece):
            made[rows] = interpolate(piece, (height, width), mode="bilinear", align_corners=False)
    return made


class _Remembers(nn.Module):
    """Embeds what it has seen by its class, (n, classes), and all else at random."""

    seen: Tensor
    classes: Tensor
    width: int

    def __init__(self, members: Examples, pool: Examples) -> None:
        super().__init__()
        x = as_float(members.x, members.scale)
        four = [
            corners(x, torch.full((len(x),), at, device=x.device)) for at in (0.1, 0.3, 0.6, 0.9)
        ]
        seen = torch.cat([*four, as_float(pool.x, pool.scale)])
        classes = torch.cat([*([members.y] * 4), pool.y]).clamp_min(0)
        self.width = int(classes.max()) + 1
        self.register_buffer("seen", seen.flatten(1))
        self.register_buffer("classes", one_hot(classes, self.width).float())

    def forward(self, x: Tensor) -> Tensor:
        far, nearest = torch.cdist(x.flatten(1), self.seen).min(1)
        noise = (50 * x.flatten(1)[:, : self.width]).sin().abs()
        return torch.where((far < 0.02)[:, None], self.classes[nearest], noise)  # noqa: PLR2004


@dataclass(frozen=True)
class DejaVuNeighbours(DejaVuAttack):
    """Asks the labelled public pictures whose embeddings are nearest to that of the corner.

    The paper's attack: the classes of the ``k`` nearest, counted, are the answer. Access:
    embeddings; one query for each corner, and one for each of the adversary's rows. No shadows.

    What to expect: memory needs a large network and many passes. A convnet of four layers has none
    (CIFAR-10, 1,000 members, one seed; guessing: .1): SimCLR after 400 epochs has accuracy .251,
    null .246; after 50 epochs .198, .200; ``barlow-twins`` after 400 epochs .210, .210. UTKFace
    likewise: .586, .575.

    Attributes:
        k: neighbours that are counted; at most a tenth of the adversary's rows are.
    """

    name: ClassVar[str] = "deja-vu"
    paper: ClassVar[Paper] = Paper(
        "Do SSL Models Have Déjà Vu? A Case of Unintended Memorization in Self-supervised Learning",
        "Meehan, Bordes, Vincent, Chaudhuri, Guo", "NeurIPS 2023", "section 3 (from a summary)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "From a summary, without the paper's text. Similarity is the cosine. No more than a tenth "
        "of the public rows are neighbours: the paper's 100 come from hundreds of thousands."
    )

    k: Annotated[int, Ge(1)] = 100

    def answer(self, oracle: Oracle, question: DejaVuQuestion, ctx: AttackContext) -> DejaVu:
        """Return the shares (n, classes) of the classes among the nearest."""
        known = ctx.auxiliary.select(ctx.auxiliary.y >= 0)
        if not len(known):
            raise BadInputError(
                "deja-vu needs labelled rows of the adversary: use another protocol"
            )
        public = normalize(ctx.auxiliary_oracle.embeddings(known), dim=1)
        asked = normalize(oracle.embeddings(question.corners), dim=1)
        k = min(self.k, max(1, len(known) // 10))
        nearest = (asked @ public.T).topk(k, dim=1).indices
        votes = torch.zeros(len(asked), question.classes, dtype=torch.float64, device=asked.device)
        voted = known.y.to(asked.device)[nearest]
        votes.scatter_add_(1, voted, torch.ones_like(voted, dtype=torch.float64))
        return DejaVu(votes / k, {"k": float(k)})


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack; privbench knows the game once this file is imported."""
    return [DejaVuNeighbours()]
