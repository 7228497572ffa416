"""MoCo v1 contrasts a query with a queue of keys from a slowly moving encoder.

He, Fan, Wu, Xie, Girshick: Momentum Contrast for Unsupervised Visual Representation Learning.
CVPR 2020, section 3, equations 1 and 2, algorithm 1. Values are those of the authors' CIFAR-10
notebook, which EncoderMI uses (temperature .1, momentum .99, SGD .06, one linear head), not the
ImageNet values. Queue (4,096) and eight-way split batch norm are those of the preset ``paper``;
without it the queue holds 256 keys, and batch norm sees the whole batch.

Steps: move the key encoder towards the query encoder; embed the query view with gradients and the
key view without; compute InfoNCE of the positive pair against the keys of other rows in the queue;
push the new keys to the queue. Afterwards a linear classifier is trained on the frozen query
encoder.

Deviations: see the class. What to expect: with 10,000 members and 1,600 epochs EncoderMI reaches
about 91 % accuracy in its paper; short runs stay near 50 %.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from privbench import (
    Augmentation,
    Batch,
    Ge,
    Gt,
    Le,
    Model,
    Optimizer,
    Outputs,
    Paper,
    Phase,
    Step,
    Target,
    backbone,
    hookimpl,
)
from privbench.toolbox.phases import (
    chosen_backbone,
    follow,
)
from privbench.toolbox.self_supervised import SelfSupervised, task_head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from privbench import Card, Clock, TargetContext, World


COLAB_VIEWS = Augmentation(crop=(0.08, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)


class Queue(nn.Module):
    """Holds the last keys (size, p) of unit length, and whose they are; starts at random.

    ``rows`` (size,) are positions in the phase's rows, -1 for the random directions of the start.
    """

    keys: Tensor
    rows: Tensor
    at: Tensor

    def __init__(self, size: int, width: int) -> None:
        """Fill with random unit vectors."""
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, width), dim=1))
        self.register_buffer("rows", torch.full((size,), -1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def push(self, keys: Tensor, rows: Tensor) -> None:
        """Overwrite the oldest keys with ``keys`` (n, p) of rows (n,); n need not divide size."""
        size = len(self.keys)
        keys = keys[-size:].to(self.keys.dtype)
        where = (self.at + torch.arange(len(keys), device=keys.device)) % size
        self.keys[where], self.rows[where] = keys, rows[-size:]
        self.at.copy_((self.at + len(keys)) % size)


@dataclass(frozen=True)
class MoCo(SelfSupervised):
    """Trains with MoCo v1, then a linear classifier on the frozen query encoder.

    Attributes:
        backbone: backbone of both encoders; ``auto`` follows the data (an MLP up to 8×8, otherwise
            a convnet).
        epochs: passes of the contrastive phase (EncoderMI: 1,600).
        updates: least number of updates of the contrastive phase; with few rows there are more
            epochs until it is reached. 0 for no such floor.
        batch: rows per step; a smaller last batch is dropped. All rows if there are fewer, and
            then an epoch is one update.
        temperature: temperature of InfoNCE.
        queue: number of keys that are kept: negatives of all rows but their own.
        momentum: momentum of the key encoder's moving average.
        splits: number of parts of the batch that batch norm sees separately, as on that many
            devices; a batch that they do not divide is not split.
        lr: learning rate of SGD, falling to zero along a half cosine, epoch by epoch.
        weight_decay: L2 penalty.
        projection: width of the linear head; 128 in the paper (section 3.3) and in the code of
            EncoderMI.
        augmentation: augmentation of both views, narrowed to what the dataset allows.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "moco"
    version: ClassVar[int] = 2
    paper: ClassVar[Paper] = Paper(
        "Momentum Contrast for Unsupervised Visual Representation Learning",
        "He, Fan, Wu, Xie, Girshick", "CVPR 2020", "section 3, algorithm 1; CIFAR-10 notebook",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Older keys of a row are no negatives of it. The authors' code does not tell them: of "
        "10,000 rows one query in ten meets one, of 100 rows each query meets two or three, and "
        "most of its loss would be about them. Shuffling batch norm takes one fixed interleaving "
        "of the (already random) batch instead of a fresh permutation, so that every part of the "
        "key batch holds equally many rows of each part of the query batch; without `splits` "
        "there is none. Jitter operations come in fixed order."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "backbone": "resnet18",
            "epochs": 1600,
            "updates": 1000,
            "queue": 4096,
            "splits": 8,
            "lr": 0.06,
        },
    }

    epochs: Annotated[int, Ge(0)] = 1000
    temperature: Annotated[float, Gt(0)] = 0.1
    queue: Annotated[int, Ge(1)] = 256
    momentum: Annotated[float, Ge(0), Le(1)] = 0.99
    splits: Annotated[int, Ge(1)] = 1
    lr: Annotated[float, Gt(0)] = 0.06
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    projection: Annotated[int, Ge(1), Le(10_000)] = 128
    augmentation: Augmentation = COLAB_VIEWS

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build query encoder and head, their slow copies, the queue, and a linear classifier."""
        del ctx
        encoder = backbone(chosen_backbone(self.backbone, card), card.shape, splits=self.splits)
        head = nn.Linear(encoder.width, self.projection)
        parts: dict[str, nn.Module] = {
            "encoder": encoder,
            "head": head,
            "key_encoder": copy.deepcopy(encoder),
            "key_head": copy.deepcopy(head),
            "queue": Queue(self.queue, self.projection),
            **task_head(encoder.width, card),
        }
        return Model(card, parts)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train contrastively on the encoder's rows in the protocol, then train the classifier."""
        spec = Optimizer(
            "sgd", self.lr, self.weight_decay, momentum=0.9, schedule="cosine", per="epoch"
        )
        step = Step(
            self._loss,
            trains=("encoder", "head"),
            live=("key_encoder", "key_head", "queue"),
            before=self._follow,
            after=lambda model, out: _queue(model).push(out.k, out.rows),
        )
        return self.pair_phases(
            model, world, ctx, forward=self._forward, step=step, drop_last=True,
            optimizers={"encoder": spec, "head": spec},
        )  # fmt: skip

    def _follow(self, model: Model, clock: Clock) -> None:
        """Equation 2: move key parameters towards the query's. Batch-norm buffers stay separate."""
        del clock
        follow(model, {"encoder": "key_encoder", "head": "key_head"}, self.momentum)

    def _forward(self, model: Model, batch: Batch) -> Outputs:
        """Return h (n, d) of query views; z, k (n, p) unit projections; negatives (size, p).

        And rows (n,), and own (n, size), which of the negatives are of the row itself.
        """
        n, queue = len(batch.y), _queue(model)
        query, key = batch.x[:n], batch.x[n:]
        h = model.encode(query)

        def keys() -> Tensor:
            with torch.no_grad():
                order = _interleaved(n, self.splits, key.device)
                out = model["key_encoder"](model.inputs(key[order]))
                projected = F.normalize(model["key_head"](out).float(), dim=1)
                return torch.empty_like(projected).index_copy_(0, order, projected)

        return Outputs(
            h=h,
            z=lambda: F.normalize(model["head"](h).float(), dim=1),
            k=keys,
            negatives=queue.keys.clone,
            rows=batch.rows,
            own=lambda: batch.rows[:, None] == queue.rows,
        )

    def _loss(self, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        del batch, clock
        return info_nce(out.z, out.k, out.negatives, out.own, self.temperature)


def _queue(model: Model) -> Queue:
    queue = model["queue"]
    assert isinstance(queue, Queue)  # noqa: S101 - for the type checker
    return queue


def _interleaved(n: int, splits: int, device: torch.device) -> Tensor:
    """Return an order in which each part of the key batch meets all parts of the query batch.

    >>> _interleaved(4, 2, torch.device("cpu")).tolist()
    [0, 2, 1, 3]
    """
    order = torch.arange(n, device=device)
    return order if splits == 1 or n % splits else order.view(-1, splits).T.reshape(-1)


def info_nce(z: Tensor, keys: Tensor, negatives: Tensor, own: Tensor, temperature: float) -> Tensor:
    """Equation 1: return InfoNCE, mean over queries, in nats.

    Args:
        z: (n, p) unit query projections.
        keys: (n, p) unit projections of the matching key views.
        negatives: (size, p) unit projections in the queue.
        own: (n, size) bool, which of these are of the query's row: they do not count.
        temperature: above 0.

    >>> one, own = torch.tensor([[1.0, 0.0]]), torch.tensor([[False, True]])
    >>> negatives = torch.cat([-one, one])
    >>> round(float(info_nce(one, one, negatives, own, 1.0)), 4)  # -log(e / (e + 1/e))
    0.1269
    """
    positive = (z * keys).sum(1, keepdim=True)
    others = (z @ negatives.T).masked_fill(own, -torch.inf)
    logits = torch.cat([positive, others], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [MoCo()]
