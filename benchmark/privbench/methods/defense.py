"""A defense: what changes a victim, and what stands between it and the outside."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor, nn

from privbench.games.access import Access
from privbench.method import Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.data.examples import Card, Examples
    from privbench.data.split import World
    from privbench.methods.context import DefenseContext
    from privbench.training.model import Model
    from privbench.training.phase import Phase


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
    claims_epsilon: ClassVar[bool] = False
    uses_training_data: ClassVar[bool] = True
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
            "data": "on_data", "labels": "relabel", "build": "on_build", "phases": "on_phases",
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

    def inner_worlds(self, world: World, ctx: DefenseContext) -> Sequence[World]:
        """Worlds in which undefended models are trained first, for ``relabel``; () for none."""
        del world, ctx
        return ()

    def relabel(self, members: Examples, models: Sequence[Model], ctx: DefenseContext) -> Tensor:
        """New labels of the members, (n,) hard or (n, k) soft, by the models of the inner worlds.

        Runs once all inner models are trained; its result is stored.
        """
        del models, ctx
        return members.y

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
