"""De-censoring: undo a defense's changes to an embedding, then infer the attribute from the result.

Song, Shmatikov: Overlearning Reveals Sensitive Attributes. ICLR 2020, the de-censoring algorithm
(from memory: neither its pseudo-code nor the authors' code was available).

The adversary sees the released embeddings z* of the target rows (not the rows themselves), may
query the embeddings z of its own auxiliary rows x, and knows the attribute s of these. Steps, for
each attribute:

1. Train a model of the adversary's own, C∘E, to predict s from x. E is not censored.
2. Train a transform T from released embeddings to features of E: mean squared error between T(z)
   and E(x) over the auxiliary rows, each released several times if the release is random.
3. Train a classifier of s on T(z): the actual attack. The answer is its distribution on T(z*).

The attack is designed for encoders trained to hide s (Talos, Olympus). z may contain s in a form
that a classifier can hardly use. T learns to recover the features of E, which show s clearly.

Deviations: see the class. What to expect: the paper gains up to about 12 points of accuracy over
plain inference (second-hand figure), and only if T has enough rows. Without censoring it is no
better than ``attribute-inference``. T cannot recover what z does not contain.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from privbench import (
    AttributeAttack,
    Attributes,
    BadInputError,
    Ge,
    Gt,
    Le,
    Paper,
    as_float,
    backbone,
    hookimpl,
    mlp,
)
from privbench.toolbox.classifiers import fit, logits, standardised
from privbench.toolbox.phases import BackboneName, chosen_backbone, unfit_backbone
from privbench.toolbox.releases import released

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, AttributeQuestion, Cell, Oracle

    Guess = tuple[Tensor, Mapping[str, float | str]]


@dataclass(frozen=True)
class AttributeDecensoring(AttributeAttack):
    """Maps embeddings to the features of an uncensored model and classifies these features.

    Access: released embeddings, and auxiliary rows with a known attribute, which the victim embeds
    for the adversary. ``siblings`` queries per auxiliary row, one if all releases are equal; none
    per target row. No shadow; one small model of the adversary's own per attribute.

    Attributes:
        backbone: of the adversary's own model; ``auto`` is an MLP for tables and images up to
            8×8, else a small convolutional network.
        transform: neurons of each of T's two hidden layers.
        hidden: neurons of the classifier's hidden layers, the first and the second.
        epochs: passes over the auxiliary rows in each of the three trainings; a pass over c
            releases of each row counts as c.
        batch: rows per update.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
        steps: minimum number of updates of each training, so that few rows do not leave it
            undertrained.
        siblings: own copies of the release, each with its own masks and keys, to train on.
        served: weight of the victim's own answers about the auxiliary rows, in copies; 0 for a
            release that is not served to others.
    """

    name: ClassVar[str] = "attribute-decensoring"
    version: ClassVar[int] = 2
    paper: ClassVar[Paper] = Paper(
        "Overlearning Reveals Sensitive Attributes", "Song, Shmatikov", "ICLR 2020",
        "section 3, de-censoring (recalled)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Implemented from memory, without the paper's text. T is trained first and the classifier "
        "on it afterwards; the paper updates both on each batch. Embeddings and features are "
        "standardised by the auxiliary rows, and T learns from several releases of each. 256 and "
        "128 neurons and 50 epochs are second-hand; T, the adversary's backbone, batch size and "
        "learning rate are ours; at least 300 updates of each."
    )

    requires: ClassVar[tuple[str, ...]] = ("pool",)

    backbone: BackboneName = "auto"
    transform: Annotated[int, Ge(1)] = 256
    hidden: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] = (256, 128)
    epochs: Annotated[int, Ge(1)] = 50
    batch: Annotated[int, Ge(2)] = 128
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    steps: Annotated[int, Ge(0)] = 300
    siblings: Annotated[int, Ge(1), Le(1000)] = 24
    served: Annotated[int, Ge(0), Le(1000)] = 4

    def incompatible(self, cell: Cell) -> str | None:
        """Require inputs that the backbone can read."""
        return unfit_backbone(self.backbone, cell.card)

    def answer(self, oracle: Oracle, question: AttributeQuestion, ctx: AttackContext) -> Attributes:
        """Return a distribution (n, values) per attribute."""
        rows = ctx.auxiliary
        z = released(oracle, rows, ctx, self.siblings, self.served)
        x, asked = as_float(rows.x, rows.scale).to(z.device), question.embeddings.to(z.device)
        guesses: dict[str, Tensor] = {}
        notes: dict[str, float | str] = {}
        for name, values in question.values.items():
            s = rows.attributes.get(name, torch.full_like(rows.y, -1)).to(z.device)
            known = s >= 0
            if not known.any():
                raise BadInputError(
                    f"no auxiliary row of '{ctx.card.name}' has the attribute '{name}': "
                    "name another with --sensitive"
                )
            mine = Known(name, x[known], z[:, known], s[known], values)
            guess, said = self._guess(mine, asked, ctx)
            guesses[name] = guess.to(question.embeddings.device)
            notes |= {f"{name}: {key}": value for key, value in said.items()}
        return Attributes(guesses, notes)

    def _guess(self, known: Known, asked: Tensor, ctx: AttackContext) -> Guess:
        """Return probabilities (m, values) float64 for embeddings ``asked`` (m, d), and notes."""
        if (known.s == known.s[0]).all():
            only = F.one_hot(known.s[:1], known.values).double()
            return only.expand(len(asked), -1), {"model": "majority"}
        z, asked = standardised(known.z.flatten(0, 1), asked)
        features = self._features(known, ctx)
        widths = [z.shape[1], self.transform, self.transform, features.shape[1]]
        transform = ctx.init(partial(mlp, widths), "transform", known.name)
        copies = len(known.z)
        wanted, s = features.repeat(copies, 1), known.s.repeat(copies)
        regress(transform, z, wanted, **self._training("transform", known, ctx, copies))

        seen, guessed = logits(transform, z).float(), logits(transform, asked).float()
        widths = [features.shape[1], *self.hidden, known.values]
        classifier = ctx.init(partial(mlp, widths), "classifier", known.name)
        fit(classifier, seen, s, **self._training("classifier", known, ctx, copies))
        error = float(F.mse_loss(seen, wanted))
        return logits(classifier, guessed).softmax(-1), {"variance that T leaves": error}

    def _features(self, known: Known, ctx: AttackContext) -> Tensor:
        """Return features (n, d) float32 of the auxiliary rows by a model trained to predict s."""
        name = chosen_backbone(self.backbone, ctx.card)
        make = partial(_own_model, name, ctx.card.shape, known.values)
        own = ctx.init(make, "own", known.name)
        fit(own, known.x, known.s, **self._training("own", known, ctx))
        features = logits(own.get_submodule("features"), known.x).float()
        return standardised(features, features)[0]

    def _training(
        self, what: str, known: Known, ctx: AttackContext, copies: int = 1
    ) -> dict[str, Any]:
        """Return the settings of one of the three trainings, on that many copies of each row."""
        return {
            "epochs": math.ceil(self.epochs / copies), "steps": self.steps, "batch": self.batch,
            "lr": self.lr, "weight_decay": self.weight_decay,
            "generator": ctx.generator(what, known.name),
        }  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Auxiliary rows whose attribute is known.

    Attributes:
        name: of the attribute.
        x: (n, *shape) float in [0, 1].
        z: (c, n, d) float32, their embeddings, released in c ways.
        s: (n,) int64 values of the attribute, none missing.
        values: number of possible values.
    """

    name: str
    x: Tensor
    z: Tensor
    s: Tensor
    values: int


def _own_model(name: str, shape: tuple[int, ...], values: int) -> nn.Module:
    """C∘E: x (n, *shape) -> logits (n, values)."""
    features = backbone(name, shape)
    head = nn.Linear(features.width, values)
    return nn.Sequential(OrderedDict(features=features, head=head))


def regress(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    lr: float,
    batch: int,
    generator: torch.Generator,
    epochs: int = 0,
    steps: int = 0,
    weight_decay: float = 0.0,
) -> nn.Module:
    """Train in place by mean squared error on mini-batches with Adam; the last state is kept.

    Args:
        network: (b, ...) -> (b, d), without dropout.
        x: (n, ...) features.
        y: (n, d) targets of the regression.
        lr: learning rate of Adam (betas .9, .999).
        batch: rows per update; the last batch of an epoch may be smaller.
        generator: on the device of x; shuffles each epoch.
        epochs: passes over the rows.
        steps: minimum number of updates: with few rows there are more epochs, the last cut short.
        weight_decay: L2 penalty, added to the gradient.

    Returns:
        The network, in eval mode.
    """
    left = max(epochs * -(-len(x) // batch), steps)
    descent = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
    network.train()
    while left > 0:
        order = torch.randperm(len(x), generator=generator, device=x.device)
        for chosen in torch.split(order, batch)[:left]:
            loss = F.mse_loss(network(x[chosen]), y[chosen])
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
            left -= 1
    return network.eval()


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [AttributeDecensoring()]
