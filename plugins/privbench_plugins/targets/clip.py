"""CLIP's image encoder with weights from a local path, frozen.

Radford, Kim and others: Learning Transferable Visual Models From Natural Language Supervision.
ICML 2021. open_clip builds the encoder (``pip install 'privbench[clip]'``); nothing is downloaded.
``--set clip.weights=PATH`` names a file of the whole model, of which the image encoder is read
(``visual.*``): ``.safetensors``, or what ``torch.save`` wrote (read with ``weights_only``). The
archives of OpenAI are TorchScript, which is code, and are not read: save their state dict, and set
``model`` to ``ViT-B-32-quickgelu``. An architecture of your own is a file of JSON as open_clip has
them; examples/clip trains one.

*Whose membership.* The encoder was trained elsewhere. So there are two questions:

- Was a row in the training of the *classifier*? Protocols whose encoder sees public rows only
  (``alm``). Members and nonmembers are then equally likely to be known to the encoder.
- Was a row in the training data of the *encoder*? Members are what you say they are: name in
  ``trained_on`` the source of the dataset whose rows were there. ``two-sets`` is the protocol of
  EncoderMI (CCS 2021, section 6): members from that source, nonmembers collected elsewhere. Such
  sets differ in more than membership, and an attack may find only that. The null victim (the same
  network with random weights) and the blind classifier show how much. ``two-sets-matched`` takes
  nonmembers held out from where the training data come from: Gomez (Rethinking Membership Inference
  Attacks for CLIP, AAAI 2026) reports an AUC of about .51 there for all published attacks.

Shadows of this encoder cannot be trained; attacks that learn from shadows need another target for
them, as in EncoderMI: ``adversaries: [{target: moco}]``, perhaps with a ``dataset``. Under any
other protocol that shows its encoder the members, a cell is skipped.

Deviations: see the class. What to expect: EncoderMI reports that its attack finds the members of
CLIP in its two sets; how much of that is distribution shift, the null victim tells.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from privbench import BadInputError, Paper, hookimpl
from privbench.toolbox.messages import one_line
from privbench.toolbox.public_encoder import Frozen, PublicEncoder, filled, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench import Target

#: Of the text encoder, which is thrown away.
_NO_TEXT = {"context_length": 1, "vocab_size": 1, "width": 1, "heads": 1, "layers": 1}


@dataclass(frozen=True)
class CLIP(PublicEncoder):
    """Reads CLIP's image encoder from a file; trains a linear classifier on its embeddings.

    Attributes:
        model: architecture, a name of open_clip or the path of a file ``.json`` in its form;
            EncoderMI's is ViT-B/32.
        weights: path of the file; without one, no cell can run.
        trained_on: source of the dataset whose rows were, you say, in the training data of the
            encoder; nothing here can check it. None by default.
        mean: means of the encoder's inputs, one per channel in [0, 1];
            by default those of OpenAI.
        std: their deviations; likewise.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates; 0 for no such floor.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "clip"
    paper: ClassVar[Paper] = Paper(
        "Learning Transferable Visual Models From Natural Language Supervision",
        "Radford, Kim and others", "ICML 2021",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Images are resized as tensors, not by PIL; the text encoder is not read. The rows of both "
        "of EncoderMI's sets are the user's."
    )
    _library: ClassVar[tuple[str, str]] = ("open_clip", "open_clip_torch")

    model: str = "ViT-B-32"

    @property
    def identity(self) -> Mapping[str, Any]:
        """The content of the files, and not where they lie."""
        known = super().identity
        return {**known, "fields": {**known["fields"], "model": Path(self.model).name}}

    def _files(self) -> Sequence[Path]:
        """Return the file of the weights, and that of the architecture if there is one."""
        own = (Path(self.model),) if self.model.endswith(".json") else ()
        return (Path(self.weights), *own)

    def _random(self) -> Frozen:
        """Build the image encoder; its text encoder, of one number, goes."""
        library: Any = self._imported()
        config = self._config(library)
        try:
            vision = {
                **config["vision_cfg"], "timm_model_pretrained": False, "output_tokens": False
            }  # fmt: skip
            net = library.CLIP(
                config["embed_dim"], vision, _NO_TEXT, quick_gelu=config.get("quick_gelu", False)
            ).visual
        except Exception as error:
            raise BadInputError(
                f"clip: open_clip cannot build the architecture of {self.model[:100]!r} "
                f"({one_line(error)}): set clip.model to a file in open_clip's form"
            ) from error
        side = net.image_size
        size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
        return Frozen(
            net, size, self.mean or library.OPENAI_DATASET_MEAN,
            self.std or library.OPENAI_DATASET_STD,
        )  # fmt: skip

    def _config(self, library: Any) -> Any:
        """Return the architecture."""
        if self.model.endswith(".json"):
            try:
                return json.loads(Path(self.model).read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise BadInputError(
                    f"clip: cannot read the architecture {self.model[:150]!r} ({one_line(error)}): "
                    "set clip.model to a file of JSON"
                ) from None
        if self.model not in library.list_models():
            raise BadInputError(
                f"clip: open_clip has no model {self.model[:100]!r}: set clip.model to one of "
                "open_clip.list_models(), or to a file .json in its form"
            )
        return library.get_model_config(self.model)

    def _trained(self) -> Frozen:
        """Fill it from the part ``visual`` of the file."""
        encoder, (path, *_) = self._random(), self._files()
        held = tensors_of(self.name, path)
        prefix = "visual."
        visual = {k.removeprefix(prefix): v for k, v in held.items() if k.startswith(prefix)}
        filled(self.name, encoder.net, visual, self.model)
        return encoder


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [CLIP()]
