"""Any image encoder of timm with weights from a local path, frozen.

timm builds the network without its classifier (``pip install 'privbench[timm]'``); nothing is
downloaded. ``--set timm.model=NAME --set timm.weights=PATH`` names the architecture and a
checkpoint: ``.safetensors``, or what ``torch.save`` wrote (read with ``weights_only``). A
classifier in the checkpoint is left out.

*Whose membership*: as for ``clip``. Under protocols whose encoder sees public rows only (``alm``),
the question is about the classifier. About the encoder it can be asked only if you name in
``trained_on`` the source of the dataset whose rows were in its training data, under ``two-sets``
(nonmembers collected elsewhere: the sets may differ in more than membership) or
``two-sets-matched``; a checkpoint trained on all of CIFAR-10's training rows suits the latter.
Other cells whose encoder sees members are skipped.

What to expect: the test accuracy of a linear probe on that encoder; membership of the classifier's
rows leaks little where rows are many against the width of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from privbench import BadInputError, Ge, Le, hookimpl
from privbench.toolbox.public_encoder import Frozen, PublicEncoder, filled, tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Target


@dataclass(frozen=True)
class Timm(PublicEncoder):
    """Reads an encoder of timm from a file; trains a linear classifier on its embeddings.

    Attributes:
        model: architecture, a name of timm.
        size: side of the images that it gets, in pixels; 0 for the library's.
        weights: path of the checkpoint; without one, no cell can run.
        trained_on: source of the dataset whose rows were, you say, in the training data of the
            encoder; nothing here can check it. None by default.
        mean: means of the encoder's inputs, one per channel in [0, 1];
            by default timm's for the architecture.
        std: their deviations; likewise.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates; 0 for no such floor.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "timm"
    deviations: ClassVar[str] = (
        "Images are resized to the encoder's size at once, bicubically (timm may resize to more "
        "and cut, and by another interpolation)."
    )
    _library: ClassVar[tuple[str, str]] = ("timm", "timm")

    model: str = "resnet50"
    size: Annotated[int, Ge(0), Le(4096)] = 0

    def _files(self) -> Sequence[Path]:
        """Return the checkpoint."""
        return (Path(self.weights),)

    def _random(self) -> Frozen:
        """Build the network up to its pooled features."""
        library: Any = self._imported()
        if not library.is_model(self.model):
            raise BadInputError(
                f"timm: there is no model {self.model[:100]!r}: set timm.model to one of "
                "timm.list_models()"
            )
        net = library.create_model(self.model, pretrained=False, num_classes=0)
        config = library.data.resolve_model_data_config(net)
        size = (self.size, self.size) if self.size else tuple(config["input_size"][1:])
        try:
            return Frozen(net, size, self.mean or config["mean"], self.std or config["std"])
        except (AssertionError, RuntimeError, ValueError) as error:
            raise BadInputError(
                f"timm: {self.model} cannot read images of {size[0]}x{size[1]} pixels "
                f"({str(error)[:100]}): set timm.size"
            ) from None

    def _trained(self) -> Frozen:
        """Fill it from the checkpoint, but for a classifier."""
        encoder, (path,) = self._random(), self._files()
        named = getattr(encoder.net, "pretrained_cfg", {}).get("classifier") or ()
        heads = tuple(f"{one}." for one in ([named] if isinstance(named, str) else named))
        held = tensors_of(self.name, path)
        body = {key: tensor for key, tensor in held.items() if not key.startswith(heads)}
        filled(self.name, encoder.net, body, self.model)
        return encoder


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [Timm()]
