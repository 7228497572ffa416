"""Public encoders: weights from a local path, frozen; see ``PublicEncoder``."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional as F

from privbench.ground.errors import BadInputError
from privbench.measure.methods.target import Target
from privbench.measure.training.model import Model
from privbench.toolbox.phases import classifier_phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from privbench.measure.data.examples import Card
    from privbench.measure.data.split import World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import TargetContext
    from privbench.measure.training.phase import Phase

RGB = 3
Colour = tuple[float, float, float]
Positive = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class PublicEncoder(Target):
    """A frozen encoder that others trained; only a linear classifier is trained on its embeddings.

    A subclass says which library builds the encoder and which files hold the weights. What they
    contain is part of every key; where they lie is not.

    Attributes:
        weights: path of the weights; "" for none, and then no cell can run.
        trained_on: source of the dataset whose rows were, you say, in the training data of the
            encoder; "" if none were. Nothing here can check it.
        mean: of the encoder's inputs, one number per channel; None for the library's.
        std: their deviations, above 0; None for the library's.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates; 0 for no such floor.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    requires: ClassVar[tuple[str, ...]] = ("images",)
    labelled_encoder: ClassVar[bool] = False
    trains_encoder: ClassVar[bool] = False
    #: Module and distribution of the library; the extra has the name of the target.
    _library: ClassVar[tuple[str, str]]

    weights: str = ""
    trained_on: str = ""
    mean: Colour | None = None
    std: tuple[Positive, Positive, Positive] | None = None
    classifier_epochs: Annotated[int, Ge(1)] = 100
    classifier_updates: Annotated[int, Ge(0)] = 0
    classifier_lr: Annotated[float, Gt(0)] = 1e-2
    classifier_weight_decay: Annotated[float, Ge(0)] = 1e-4

    # ---- what a subclass says --------------------------------------------------------------

    @abstractmethod
    def _files(self) -> Sequence[Path]:
        """Return the files that say what the encoder computes, in an order that never changes."""

    @abstractmethod
    def _random(self) -> Frozen:
        """Build the encoder with random weights, from torch's default generator."""

    @abstractmethod
    def _trained(self) -> Frozen:
        """Build the encoder with the weights.

        Raises:
            BadInputError: if the weights do not fit.
        """

    # ---- checks ----------------------------------------------------------------------------

    def __post_init__(self) -> None:
        """Check fields, library, files and weights, so that nothing runs in vain.

        Raises:
            BadInputError: one sentence that says what is missing or wrong.
        """
        super().__post_init__()
        if not self.weights:
            return
        module, _ = self._library
        if importlib.util.find_spec(module) is None:
            raise BadInputError(
                f"{self.name} needs {module}, which is not installed: "
                f"pip install 'privbench[{self.name}]'"
            )
        self._loaded()

    def incompatible(self, cell: Cell) -> str | None:
        """Require weights, and members of which training data say that they are."""
        if not self.weights:
            return f"{self.name} reads its encoder from a local path: set {self.name}.weights"
        if cell.card.shape[0] not in (1, RGB):
            return f"{self.name} reads grey or RGB images, and {cell.card.name} has others"
        if "members" not in cell.protocol.encoder:
            return None
        return self._no_members(cell)

    def _no_members(self, cell: Cell) -> str | None:
        """Return why the encoder's members are not those of the protocol, or None."""
        protocol, source = cell.protocol, self.trained_on
        if not source:
            return (
                f"the encoder of {self.name} was trained elsewhere, so it has no members here: use "
                "a protocol whose encoder sees public rows only (alm), or name the source of its "
                f"training data in {self.name}.trained_on"
            )
        parts = protocol.parts()
        drawn = parts["members"].source, parts["nonmembers"].source
        if drawn[0] != source or drawn[1] in (None, source) or protocol.canaries:
            return (
                f"the encoder of {self.name} was trained on source '{source}', and protocol "
                f"'{protocol.name}' does not draw members from it and nonmembers from another: "
                "use two-sets, or a protocol of your own"
            )
        if cell.attack.game == "property":
            return f"{cell.attack.name} asks about victims on other rows: {self.name} has one"
        if cell.attack.shadows.count and not (cell.adversary.target or self).trains_encoder:
            return (
                f"{cell.attack.name} learns from shadows, and the encoder of {self.name} cannot be "
                "trained on theirs: give the adversary a target (adversaries: [{target: moco}])"
            )
        return None

    # ---- identity --------------------------------------------------------------------------

    @cached_property
    def _content(self) -> str:
        """Digest of the content of the files; "" without weights."""
        return _content(self.name, self._files()) if self.weights else ""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The content of the weights and the library's version, instead of the path."""
        known = super().identity
        fields = {name: value for name, value in known["fields"].items() if name != "weights"}
        version = importlib.metadata.version(self._library[1]) if self.weights else ""
        return {**known, "fields": fields, "weights": self._content, "library": version}

    @property
    def label(self) -> str:
        """Name with the fields that differ from the defaults; weights by their content."""
        plain = type(self)().hyperparameters()
        shown = {**self.hyperparameters(), **self.identity["fields"], "weights": self._content[:8]}
        changed = [f"{name}={value}" for name, value in shown.items() if value != plain[name]]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    # ---- building --------------------------------------------------------------------------

    def classifier_apart(self, protocol: Any) -> bool:
        """Return True: the encoder is frozen."""
        del protocol
        return True

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build a linear classifier, if there is a task, behind the trained encoder."""
        del ctx
        return _model(card, copy.deepcopy(self._loaded()))

    def build_untrained(self, card: Card, ctx: TargetContext) -> Model:
        """Build the same with random weights of the encoder."""
        del ctx
        return _model(card, self._random())

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train the classifier on embeddings of its rows in the protocol; nothing else."""
        told = f"frozen, weights {self._content[:16]}, trained elsewhere"
        if self.trained_on:
            told += f"; on source '{self.trained_on}', as the user says (not checked)"
        ctx.note(encoder=told)
        if "classifier" not in model:
            return ()
        return [
            classifier_phase(
                world, ctx, epochs=self.classifier_epochs, updates=self.classifier_updates,
                lr=self.classifier_lr, weight_decay=self.classifier_weight_decay, batch=512,
            )
        ]  # fmt: skip

    def _loaded(self) -> Frozen:
        """The trained encoder; this process keeps the last one, which must not be changed."""
        apart = ("weights", "trained_on", "classifier")
        fields = {n: v for n, v in self.hyperparameters().items() if not n.startswith(apart)}
        at = f"{self.name} {fields} {self._content}"
        if at not in _LOADED:
            _LOADED.clear()
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)  # of parts that nothing uses, a pooler's
                made = self._trained().eval().requires_grad_(requires_grad=False)
            if _content(self.name, self._files()) != self._content:
                raise BadInputError(
                    f"{self.name}: {self.weights!r} changed since the run began: run it again"
                )
            _LOADED[at] = made
        return _LOADED[at]

    def _imported(self) -> Any:
        """The library."""
        return importlib.import_module(self._library[0])


_LOADED: dict[str, Frozen] = {}


def _model(card: Card, encoder: Frozen) -> Model:
    """Put a new classifier behind an encoder, which normalises its inputs itself."""
    parts: dict[str, nn.Module] = {"encoder": encoder}
    if card.classes is not None:
        parts["classifier"] = nn.Linear(encoder.width, card.classes)
    return Model(card, parts, normalise=False)


class Frozen(nn.Module):
    """An encoder with its preprocessing: float (n, c, h, w) in [0, 1] to (n, width).

    Grey images become RGB. Images are resized (bicubic, antialiased) until the encoder's size fits
    in, cut to its centre, and normalised.

    Attributes:
        width: d, the number of features.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, net: nn.Module, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        """Take a network from normalised (n, 3, *size) to (n, width)."""
        super().__init__()
        self.net, self.size = net, size
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        training = net.training
        with torch.no_grad():
            self.width = int(net.eval()(torch.zeros(1, RGB, *size)).flatten(1).shape[1])
        net.train(training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, width) of images in [0, 1] of any size."""
        x = (fitted(x, self.size) - self.mean) / self.std
        h: Tensor = self.net(x)
        return h.flatten(1)


def fitted(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return images (n, c, h, w) in [0, 1] as (n, 3, *size): resized, then cut to the centre.

    >>> fitted(torch.zeros(2, 1, 10, 20), (5, 5)).shape
    torch.Size([2, 3, 5, 5])
    """
    x = x.expand(-1, RGB, -1, -1)
    share = max(size[0] / x.shape[2], size[1] / x.shape[3])
    if share != 1:
        wanted = [max(s, round(share * old)) for s, old in zip(size, x.shape[2:], strict=True)]
        x = F.interpolate(x, wanted, mode="bicubic", antialias=True).clamp(0, 1)
    top, left = (x.shape[2] - size[0]) // 2, (x.shape[3] - size[1]) // 2
    return x[..., top : top + size[0], left : left + size[1]]


# ---- files -----------------------------------------------------------------------------------


def _content(name: str, files: Sequence[Path]) -> str:
    """Digest of what the files hold.

    Raises:
        BadInputError: if one cannot be read.
    """
    parts = []
    for path in files:
        try:
            with path.open("rb") as file:
                parts.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path of a file"
            raise unreadable(name, path, why) from None
    if len(parts) == 1:
        return parts[0].split()[-1]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def tensors_of(name: str, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of one that ``torch.save`` wrote.

    The latter is read with ``weights_only``, so that no code of the file runs. Training leaves
    ``state_dict`` or ``model`` around the tensors, and ``module.`` before their names; both go.

    Raises:
        BadInputError: if the file holds anything else.
    """
    try:
        held: Any = _tensors(path)
    except Exception:  # noqa: BLE001 - whatever a file that is none raises
        raise unreadable(
            name, path, "neither safetensors nor tensors that torch.save wrote"
        ) from None
    for outer in ("state_dict", "model"):
        if isinstance(held, dict) and isinstance(held.get(outer), dict):
            held = held[outer]
    if not isinstance(held, dict) or not all(isinstance(one, Tensor) for one in held.values()):
        raise unreadable(name, path, "it does not hold tensors by name")
    wrapped = all(str(key).startswith("module.") for key in held)
    return {str(key).removeprefix("module.") if wrapped else str(key): held[key] for key in held}


def _tensors(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)


def filled(name: str, net: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Load all tensors of a network.

    Raises:
        BadInputError: naming the first that is missing, not expected, or of another shape.
    """
    own = net.state_dict()
    for key in [*own, *tensors]:
        if key not in tensors:
            problem = f"'{key}' is missing"
        elif key not in own:
            problem = f"it has no '{key}'"
        elif own[key].shape != tensors[key].shape:
            here, there = tuple(own[key].shape), tuple(tensors[key].shape)
            problem = f"'{key}' has shape {there}, not {here}"
        else:
            continue
        raise BadInputError(f"{name}: the weights are not those of {what}: {problem[:150]}: give "
                            "weights that this network saved")  # fmt: skip
    net.load_state_dict(dict(tensors))


def unreadable(name: str, path: Path, why: str) -> BadInputError:
    """Return the error that weights at this path cannot be read, as one short line."""
    told = " ".join(why.split())[:200]
    return BadInputError(
        f"{name}: cannot read {str(path)[:150]!r} ({told}): give the path of another file"
    )
