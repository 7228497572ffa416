"""A target: how a victim is built and trained."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privbench.measure.methods.access import BLACK_BOX, Access
from privbench.measure.methods.method import Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.measure.data.examples import Card
    from privbench.measure.data.protocol import Protocol
    from privbench.measure.data.split import World
    from privbench.measure.methods.context import TargetContext
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase


class Target(Method):
    """How a victim is built and trained.

    >>> from privbench.testing import TinyTarget
    >>> TinyTarget().contrastive, TinyTarget().trains_encoder
    (False, True)

    Attributes:
        grants: all access that its victims can give. What an attack gets also depends on the
            adversary, which is black-box by default: no gradients, no weights.
        contrastive: whether the encoder's loss is not a sum over examples. Defenses read it in
            ``incompatible``, before any phase exists; phases that train the encoder take
            ``per_example`` from it.
        labelled_encoder: whether the encoder's loss reads labels; these phases take
            ``reads_labels`` from it.
        trains_encoder: whether any phase trains the encoder; not so for a frozen public one.
    """

    grants: ClassVar[Access] = BLACK_BOX | Access.GRADIENTS | Access.WEIGHTS
    contrastive: ClassVar[bool] = False
    labelled_encoder: ClassVar[bool] = True
    trains_encoder: ClassVar[bool] = True

    def classifier_apart(self, protocol: Protocol) -> bool:
        """Return whether the classifier has its own phase, on embeddings of a frozen encoder."""
        del protocol
        return self.contrastive

    @abstractmethod
    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build the untrained model without reading data.

        Runs with torch's global generators seeded for this call.
        """

    def build_untrained(self, card: Card, ctx: TargetContext) -> Model:
        """Build the model without what it has learned elsewhere: by default that of ``build``.

        A target whose ``build`` loads trained weights returns random ones here. They stand for the
        untrained encoder of the controls, and for the encoder of a null victim where the question
        is about rows that the encoder was trained on. Runs as ``build`` does.
        """
        return self.build(card, ctx)

    @abstractmethod
    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Return the training phases for that world; () if the model is already trained.

        ``ctx.protocol`` says which rows the encoder and the classifier see.
        """
