"""An image encoder in Hugging Face's format, from a local folder, frozen.

transformers builds it (``pip install 'privbench[hf]'``); nothing is downloaded and no code of the
folder runs. ``--set hf.weights=FOLDER`` names a folder with ``config.json``,
``preprocessor_config.json`` and the weights as safetensors; pickled weights are not read. The model
must read pixels alone: for CLIP take the target ``clip``, or a folder of its vision model.

*Whose membership*: as for ``clip``. Under protocols whose encoder sees public rows only (``alm``),
the question is about the classifier. About the encoder it can be asked only if you name in
``trained_on`` the source of the dataset whose rows were in its training data, under ``two-sets``
(nonmembers collected elsewhere: the sets may differ in more than membership) or
``two-sets-matched``. Other cells whose encoder sees members are skipped.

What to expect: the test accuracy of a linear probe on that encoder; membership of the classifier's
rows leaks little where rows are many against the width of the embedding.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from privbench import BadInputError, hookimpl
from privbench.toolbox.public_encoder import RGB, Frozen, PublicEncoder, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privbench import Target

_PREPROCESSOR = "preprocessor_config.json"
_IMAGES = 4  # dimensions of a map of features
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True)
class HuggingFace(PublicEncoder):
    """Reads an encoder from a folder; trains a linear classifier on its embeddings.

    Attributes:
        pooling: embedding of a transformer: its first token (``cls``), or the ``mean`` of all. A
            map of features is always averaged over its places.
        weights: path of the folder; without one, no cell can run.
        trained_on: source of the dataset whose rows were, you say, in the training data of the
            encoder; nothing here can check it. None by default.
        mean: means of the encoder's inputs, one per channel in [0, 1];
            by default those of the folder.
        std: their deviations; likewise.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates; 0 for no such floor.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "hf"
    deviations: ClassVar[str] = (
        "Images are resized to the encoder's size at once, bicubically (the folder may say: to "
        "more, and cut, or by another interpolation); a pooler is not used."
    )
    _library: ClassVar[tuple[str, str]] = ("transformers", "transformers")

    pooling: Literal["cls", "mean"] = "cls"

    def _folder(self) -> Path:
        return Path(self.weights)

    def _files(self) -> Sequence[Path]:
        """Return configurations and weights."""
        folder = self._folder()
        if not folder.is_dir():
            raise self._bad("no such folder")
        found = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
        if not found:
            raise self._bad("it has no *.safetensors, and pickled weights are not read")
        return [folder / "config.json", folder / _PREPROCESSOR, *sorted(found)]

    def _random(self) -> Frozen:
        """Build the network of the folder's configuration."""
        library: Any = self._imported()
        try:
            config = library.AutoConfig.from_pretrained(self._folder(), **_LOCAL)
            net = library.AutoModel.from_config(config, trust_remote_code=False)
        except (ImportError, KeyError, OSError, TypeError, ValueError) as error:
            raise self._bad(str(error)) from None
        return self._frozen(net)

    def _trained(self) -> Frozen:
        """Read it, and refuse weights that leave any of its own out."""
        library: Any = self._imported()
        try:
            with _silent(library.utils.logging):
                net, told = library.AutoModel.from_pretrained(
                    self._folder(), use_safetensors=True, output_loading_info=True, **_LOCAL
                )
        except Exception as error:  # noqa: BLE001 - whatever the library raises on a bad folder
            raise self._bad(str(error)) from None
        lacking = sorted(key for key in told["missing_keys"] if not key.startswith("pooler."))
        if lacking:
            raise self._bad(f"the weights leave '{lacking[0]}' out")
        return self._frozen(net.float())

    def _frozen(self, net: Any) -> Frozen:
        if net.main_input_name != "pixel_values":
            raise self._bad(f"its model reads {net.main_input_name}, not images alone")
        size, mean, std = self._preprocessing()
        try:
            return Frozen(_Pooled(net, self.pooling), size, self.mean or mean, self.std or std)
        except (RuntimeError, TypeError, ValueError) as error:
            raise self._bad(str(error)) from None

    def _preprocessing(self) -> tuple[tuple[int, int], list[float], list[float]]:
        """Return size, mean and deviation of the inputs, from the folder."""
        try:
            return _inputs(json.loads((self._folder() / _PREPROCESSOR).read_text("utf-8")))
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            raise self._bad(
                f"{_PREPROCESSOR} does not say size, image_mean and image_std"
            ) from None

    def _bad(self, why: str) -> BadInputError:
        return unreadable(self.name, self._folder(), why)


def _inputs(held: Any) -> tuple[tuple[int, int], list[float], list[float]]:
    """Return size, mean and deviation of a preprocessor's configuration.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: if it does not say them.
    """
    box = held["crop_size"] if held.get("do_center_crop") else held["size"]
    if not isinstance(box, dict):
        box = {"shortest_edge": box}
    sides = [box.get(name) or box["shortest_edge"] for name in ("height", "width")]
    size = int(sides[0]), int(sides[1])
    mean, std = [0.0] * RGB, [1.0] * RGB
    if held.get("do_normalize", True):
        mean, std = ([float(v) for v in held[n]] for n in ("image_mean", "image_std"))
    if not len(mean) == len(std) == RGB or min(*size, *std) <= 0:
        raise ValueError("not three channels, or no positive size or deviation")
    return size, mean, std


@contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Draw no progress bars and say nothing about weights that are left out: `_trained` does."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class _Pooled(nn.Module):
    """One embedding per image of a network of transformers."""

    def __init__(self, net: nn.Module, pooling: str) -> None:
        super().__init__()
        self.net, self.pooling = net, pooling

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.net(pixel_values=x).last_hidden_state
        if h.ndim == _IMAGES:
            return h.mean((2, 3))
        return h[:, 0] if self.pooling == "cls" else h.mean(1)


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [HuggingFace()]
