"""A target: how a victim is built and trained."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privbench.games.access import BLACK_BOX, Access
from privbench.method import Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.data.examples import Card
    from privbench.data.protocol import Protocol
    from privbench.data.split import World
    from privbench.methods.context import TargetContext
    from privbench.training.model import Model
    from privbench.training.phase import Phase


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
