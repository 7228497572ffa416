"""A defense: changes to a victim's data, training, weights or released outputs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor, nn

from privbench.measure.methods.access import Access
from privbench.measure.methods.method import Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.ground.judges import Judge
    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.data.split import World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import DefenseContext
    from privbench.measure.methods.strength import Strength
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase


class Release(nn.Module):
    """A change to a model's outputs before anyone outside sees them; its state dict is stored.

    >>> import torch
    >>> class Halved(Release):
    ...     of = "embedding"
    ...     def forward(self, x, value, u):
    ...         return value / 2
    >>> Halved()(torch.zeros(1, 3), torch.ones(1, 2), torch.zeros(1, 0))
    tensor([[0.5000, 0.5000]])

    Attributes:
        of: which output it changes.
        feeds_classifier: whether phases that read embeddings read the ones it releases.
        keeps_labels: whether the arg-max of the posteriors never changes.
        fresh: whether every query draws new noise; if not, the noise is a function of the row.
        uniforms: random numbers per row that ``forward`` needs.
        place: position among the victim's releases, set by the core; part of the key of the noise.
    """

    of: ClassVar[Literal["embedding", "posterior"]]
    feeds_classifier: ClassVar[bool] = False
    keeps_labels: bool = False
    fresh: bool = False
    uniforms: int = 0
    place: int = 0

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Learn what the release needs, from the defender's world only.

        The embeddings of ``model`` already pass through the embedding releases fitted before this
        one.
        """

    @abstractmethod
    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Change the released value, row by row and without side effects.

        Args:
            x: (n, *shape) queried inputs in [0, 1].
            value: (n, d) float32 embeddings, or (n, k) float64 posteriors.
            u: (n, uniforms) in [0, 1), keyed by victim and row (and by query if ``fresh``).

        Returns:
            The value to release, of the same shape. Posteriors are rows of numbers from 0 to 1
            that sum to 1.
        """

    def sibling(self, seed: int) -> Release:
        """Return this release with another party's mask and key; by default the same object."""
        del seed
        return self


class Defense(Method):
    """A change to a victim at some stages: data, labels, build, phases, weights, release.

    By default every stage changes nothing; override the stages that the defense uses. A stage that
    is not overridden shares its artifacts with the defense ``none``.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Nothing(Defense):
    ...     name = "nothing"
    ...     protects = ("membership",)
    ...     def on_trained(self, model, phases, world, ctx):
    ...         return model
    >>> sorted(Nothing().stages())
    ['weights']

    Attributes:
        protects: names of the games that it claims to protect against; a tuple.
        judged_by: attacks that it must meet before a board ranks it, beside the strongest ones of
            each game that it protects.
        uses_attributes: whether it reads sensitive attributes.
        control: whether it is a positive control, which attacks must break; boards never rank it.
        claims_epsilon: whether it claims an epsilon (``ctx.claim``).
        uses_training_data: whether it reads training rows beyond training itself. With a claimed
            epsilon, use only defenses that do not.
        strength: the hyperparameter that trades utility for protection; None if there is no such.
        family: defenses of one family share seeds, and so the results of ``once``; "" for no
            sharing. Not a family of settings on boards.
    """

    protects: ClassVar[tuple[str, ...]]
    judged_by: ClassVar[tuple[Judge, ...]] = ()
    uses_attributes: ClassVar[bool] = False
    control: ClassVar[bool] = False
    claims_epsilon: ClassVar[bool] = False
    uses_training_data: ClassVar[bool] = True
    strength: ClassVar[Strength | None] = None
    family: ClassVar[str] = ""

    @property
    def release_class(self) -> type[Release] | None:
        """Return the class of what ``release`` returns; None if it returns None.

        What the release changes is read from this class before any model exists.
        """
        return None

    def stages(self) -> frozenset[str]:
        """Return the stages that it changes.

        By default these are ``release``, if it has a ``release_class``, and the stages whose
        methods it overrides: data, labels, build, phases, weights. Override this if the stages
        depend on hyperparameters.
        """
        hooks = {
            "data": "on_data", "labels": "relabel", "build": "on_build", "phases": "on_phases",
            "weights": "on_trained",
        }  # fmt: skip
        acting = {
            stage
            for stage, hook in hooks.items()
            if getattr(type(self), hook) is not getattr(Defense, hook)
        }
        return frozenset(acting | ({"release"} if self.release_class else set()))

    def learns_from_reference(self, cell: Cell) -> bool:
        """Return whether it learns from the reference rows in that cell, where there are any.

        Boards then say that the victim's accuracy on these rows is optimistic. By default it does
        if it requires them. Override this if they are optional.
        """
        del cell
        return "reference-rows" in self.requires

    def access(self, granted: Access) -> Access:
        """Return the access that remains under this defense, never more than ``granted``.

        By default, a defense with a release hides gradients and weights, because an attack could
        use them to bypass the release. Override this if your defense does not need that.
        """
        if "release" in self.stages():
            return granted & ~(Access.GRADIENTS | Access.WEIGHTS)
        return granted

    def on_data(self, world: World, ctx: DefenseContext) -> World:
        """Change the rows that the model trains on."""
        del ctx
        return world

    def inner_worlds(self, world: World, ctx: DefenseContext) -> Sequence[World | None]:
        """Return worlds to train undefended models in, for use by ``relabel``; () for none.

        A world's place decides the seeds of its model. Where members decide whether a world has any
        rows, put None in the place of one that has none: the others keep their seeds.
        """
        del world, ctx
        return ()

    def relabel(self, members: Examples, models: Sequence[Model], ctx: DefenseContext) -> Tensor:
        """Return new labels of the members, (n,) hard or (n, k) soft, from the inner models.

        Runs after all models of the inner worlds are trained; ``models`` has none for a None among
        the worlds. Its result is stored.
        """
        del models, ctx
        return members.y

    def on_build(self, model: Model, ctx: DefenseContext) -> Model:
        """Change the untrained model without reading data."""
        del ctx
        return model

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Edit, add or drop phases; return an unchanged phase as the same object."""
        del model, world, ctx
        return phases

    def on_trained(
        self, model: Model, phases: Sequence[Phase], world: World, ctx: DefenseContext
    ) -> Model:
        """Change the trained weights."""
        del phases, world, ctx
        return model

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release | None:
        """Build the release without reading data, so that a stored state can be loaded into it."""
        del card, model, ctx
        return None
