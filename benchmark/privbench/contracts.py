"""What a plugin is: datasets, targets, defenses and attacks.

Everything the planner needs (``unfit``, access, shadows, protocols) is a pure function of card,
protocol and hyperparameters: the grid is known before anything is loaded or trained.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from privbench.access import BLACK_BOX, Access
from privbench.method import Method

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from privbench.answers import (
        Answer,
        AttributeQuestion,
        Attributes,
        Membership,
        MembershipQuestion,
        Reconstruction,
        ReconstructionQuestion,
    )
    from privbench.context import AttackContext, DefenseContext, TargetContext
    from privbench.data import Card, Examples
    from privbench.model import Model
    from privbench.oracle import Oracle
    from privbench.protocol import Protocol
    from privbench.split import World
    from privbench.training import Phase


class Dataset(Method):
    """A named, versioned source of examples."""

    protocols: ClassVar[Mapping[str, Protocol]]  #: its own, among them "default"

    @abstractmethod
    def card(self, root: Path | None) -> Card:
        """Describe it. Cheap: the planner calls it; nothing is downloaded or decoded."""

    @abstractmethod
    def load(self, root: Path | None) -> Examples:
        """Load all rows on the CPU, integers as stored, in an order that never changes.

        Args:
            root: folder of ``--data-root`` or PRIVBENCH_DATA; None means: download if it can.

        Raises:
            BadInputError: if the data are not there, saying which file is expected where.
        """


class Target(Method):
    """The recipe of a victim.

    Attributes:
        grants: what its victims can answer at all. What an attack gets of it depends on the
            adversary, who is a black-box one by default: no gradients, no weights.
        contrastive: whether the encoder's loss is not a sum over examples.
        labelled_encoder: whether the encoder's loss reads labels.
    """

    grants: ClassVar[Access] = BLACK_BOX | Access.GRADIENTS | Access.WEIGHTS
    contrastive: ClassVar[bool] = False
    labelled_encoder: ClassVar[bool] = True

    def classifier_apart(self, protocol: Protocol) -> bool:
        """Whether the classifier has a phase of its own, on embeddings of a frozen encoder."""
        del protocol
        return self.contrastive

    @abstractmethod
    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Make the untrained model. Data-free; runs under a seeded generator of its own."""

    @abstractmethod
    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Say how it is trained in that world; () if it comes trained.

        ``ctx.protocol`` says which rows the encoder and the classifier see.
        """


class Release(nn.Module):
    """What a defense puts between a model and the outside; its state dict is stored.

    Attributes:
        of: what it changes.
        keeps_labels: whether the arg-max of posteriors never changes.
        fresh: whether asking twice draws twice; else the draw is a function of the row.
        uniforms: random numbers per row that ``forward`` wants.
    """

    of: Literal["embedding", "posterior"]
    keeps_labels: bool = False
    fresh: bool = False
    uniforms: int = 0
    place: int = 0  #: among the releases of a victim, kept by the core; its draws are keyed by it

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Learn what the release needs, from the defender's world only.

        ``model`` encodes as it is served behind the releases of embeddings that learned before.
        """

    @abstractmethod
    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Change the released value. Row-wise and pure.

        Args:
            x: (n, *shape) queried inputs in [0, 1].
            value: (n, d) float32 embeddings, or (n, k) float64 posteriors.
            u: (n, uniforms) in [0, 1), keyed by victim and row (and by query where ``fresh``).

        Returns:
            The value that is released, of the same shape.
        """

    def sibling(self, seed: int) -> Release:
        """The release as another party owns it (own mask, own key); by default the same."""
        del seed
        return self


class Defense(Method):
    """Changes a victim at one or more of four stages: data, training, weights, release.

    Every stage is the identity by default; override those that the defense acts at. A stage that
    is not overridden is shared with ``none``, artifacts and all.
    """

    protects: ClassVar[tuple[str, ...]]  #: names of games that it claims to protect
    uses_attributes: ClassVar[bool] = False
    #: Whether it claims an epsilon; beside it only what learns nothing from rows can stand.
    claims: ClassVar[bool] = False
    learns: ClassVar[bool] = True
    #: Defenses of one family share seeds, and so what they compute once; by default each its own.
    family: ClassVar[str] = ""

    @property
    def feeds_classifier(self) -> bool:
        """Whether it releases embeddings, and phases that read embeddings read those."""
        return False

    @property
    def masks_posteriors(self) -> bool:
        """Whether it changes released posteriors; a stack has one such."""
        return False

    def stages(self) -> frozenset[str]:
        """Stages that it acts at: those of data, build, phases, weights, release it overrides.

        Where hyperparameters decide, override this.
        """
        hooks = {
            "data": "on_data", "build": "on_build", "phases": "on_phases",
            "weights": "on_trained", "release": "release",
        }  # fmt: skip
        return frozenset(
            stage
            for stage, hook in hooks.items()
            if getattr(type(self), hook) is not getattr(Defense, hook)
        )

    def access(self, granted: Access) -> Access:
        """What is still granted under it; never more than ``granted``.

        A defense that releases something hides gradients and weights, since with them an attack
        would walk around the release; one that does not need that says so by overriding this.
        """
        if "release" in self.stages():
            return granted & ~(Access.GRADIENTS | Access.WEIGHTS)
        return granted

    def on_data(self, world: World, ctx: DefenseContext) -> World:
        """Change the rows that training sees."""
        del ctx
        return world

    def on_build(self, model: Model, ctx: DefenseContext) -> Model:
        """Change the untrained model; data-free."""
        del ctx
        return model

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Edit, add or drop phases; return unchanged ones as they are (the same object)."""
        del model, world, ctx
        return phases

    def on_trained(
        self, model: Model, phases: Sequence[Phase], world: World, ctx: DefenseContext
    ) -> Model:
        """Change the trained weights."""
        del phases, world, ctx
        return model

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release | None:
        """Architecture of the release, data-free, so that a stored state can be loaded."""
        del card, model, ctx
        return None


@dataclass(frozen=True)
class Shadows:
    """What an attack wants trained for it.

    Attributes:
        count: how many shadows.
        origin: worlds of its ``own`` pool (they hold no candidate), or drawn over the
            ``candidates`` (online attacks), independently of the victim's. Worlds of an origin
            are the same for all attacks of a seed, the first ones of any longer list.
    """

    count: int = 0
    origin: Literal["own", "candidates"] = "own"


class Attack(Method):
    """A strategy for one game. It never sees the truth and never scores itself.

    Subclass ``MembershipAttack``, ``AttributeAttack`` or ``ReconstructionAttack``.
    """

    game: ClassVar[str]
    needs: ClassVar[Access]  #: without these a cell is skipped
    wants: ClassVar[Access] = Access.NONE  #: used where granted

    @property
    def shadows(self) -> Shadows:
        """Shadows that it wants; may depend on hyperparameters."""
        return Shadows()

    @property
    def asks(self) -> int | None:
        """How many rows it can afford to be asked about; None for all."""
        return None

    @abstractmethod
    def answer(self, oracle: Oracle, question: Any, ctx: AttackContext) -> Answer:
        """Answer the question with what the oracle and the context give."""


class MembershipAttack(Attack):
    """Tells members from nonmembers."""

    game: ClassVar[str] = "membership"

    @abstractmethod
    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score each row of ``question.examples``; higher means more likely a member."""


class AttributeAttack(Attack):
    """Guesses sensitive attributes behind released embeddings."""

    game: ClassVar[str] = "attributes"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    @abstractmethod
    def answer(self, oracle: Oracle, question: AttributeQuestion, ctx: AttackContext) -> Attributes:
        """Give a distribution over the values of each attribute for each embedding."""


class ReconstructionAttack(Attack):
    """Rebuilds inputs from released embeddings."""

    game: ClassVar[str] = "reconstruction"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    @abstractmethod
    def answer(
        self, oracle: Oracle, question: ReconstructionQuestion, ctx: AttackContext
    ) -> Reconstruction:
        """Give an input in [0, 1] for each embedding."""


@dataclass(frozen=True)
class Adversary:
    """What the attacker knows of the victim's making.

    Attributes:
        adaptive: its shadows and its own rows go through the same defense, with its own
            randomness; otherwise (naive) through none.
        target: recipe of its shadows; None for the victim's own.
        dataset: where its pool comes from, brought to the victim's shape; None for the victim's
            own dataset.
        white_box: whether it has gradients and weights, where target and defense leave them.
    """

    adaptive: bool = True
    target: Target | None = None
    dataset: Dataset | None = None
    white_box: bool = False

    @property
    def label(self) -> str:
        """Name in tables."""
        words = ["adaptive" if self.adaptive else "naive"]
        if self.white_box:
            words.append("white-box")
        if self.target:
            words.append(f"shadows {self.target.label}")
        if self.dataset:
            words.append(f"pool {self.dataset.label}")
        return ", ".join(words)


@dataclass(frozen=True)
class CellCard:
    """What ``unfit`` may look at: a cell before anything is loaded."""

    card: Card
    protocol: Protocol
    target: Target
    defenses: tuple[Defense, ...]
    adversary: Adversary
    attack: Attack
    sensitive: tuple[str, ...]
    access: Access
