"""De-censoring: undo what a defense did to an embedding, then guess the attribute from that.

Song, Shmatikov: Overlearning Reveals Sensitive Attributes. ICLR 2020, the de-censoring algorithm
(recalled: neither its pseudo-code nor the authors' code was at hand).

The adversary sees the released embeddings z* of the victims' rows (not the rows), may ask for the
embeddings z of auxiliary rows x of its own, and knows the attribute s of those. Steps, for each
attribute:

1. A model of its own, C∘E, trained to tell s from x: E knows nothing of any censoring.
2. A transform T from released embeddings to features of E: mean squared error between T(z) and
   E(x) over the auxiliary rows.
3. A classifier of s on T(z), the attack proper; its distribution on T(z*) is the answer.

It is meant for encoders trained to hide s (Talos, Olympus): z may hold s in a form in which a
classifier finds it hard to see, and T is told where to look by E, whose features say s plainly.

Deviations: see the class. What to expect: the paper gains up to some 12 points of accuracy over
plain inference (second-hand), and only where T has rows enough; without censoring it is no better
than ``attribute-inference``, and what z does not hold T cannot bring back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import nn
from torch.nn import functional as F

from privbench import (
    AttributeAttack,
    Attributes,
    BadInputError,
    Paper,
    as_float,
    backbone,
    hookimpl,
    mlp,
)
from privbench_plugins._shared.classifiers import fit, logits
from privbench_plugins._shared.phases import BackboneName, chosen_backbone, unfit_backbone
from privbench_plugins._shared.regression import regress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, AttributeQuestion, Cell, Oracle

    Guess = tuple[Tensor, Mapping[str, float | str]]


@dataclass(frozen=True)
class AttributeDecensoring(AttributeAttack):
    """A transform to the features of an uncensored model, and a classifier on what it gives.

    Access: released embeddings, and auxiliary rows with the attribute that the victim embeds for
    the adversary. One query per auxiliary row, none per row asked about. No shadow; one small
    model of the adversary's own per attribute.

    Attributes:
        backbone: of the adversary's own model; ``auto`` is an MLP for tables and images up to
            8×8, else a small convolutional network.
        transform: neurons of each of T's two hidden layers.
        hidden: neurons of the classifier's hidden layers, the first and the second.
        epochs: passes over the auxiliary rows, of each of the three trainings.
        batch: rows per update.
        lr: Adam's.
        weight_decay: L2 penalty.
        steps: updates of each training at least, so that few rows do not leave it untrained.
    """

    name: ClassVar[str] = "attribute-decensoring"
    paper: ClassVar[Paper] = Paper(
        "Overlearning Reveals Sensitive Attributes", "Song, Shmatikov", "ICLR 2020",
        "section 3, de-censoring (recalled)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Recalled, not read. T is trained first and the classifier on it afterwards; the paper "
        "updates both on each batch. Embeddings and features are standardised by the auxiliary "
        "rows. 256 and 128 neurons and 50 epochs are second-hand; T, the adversary's backbone, "
        "batch and rate are ours; at least 300 updates of each."
    )

    backbone: BackboneName = "auto"
    transform: Annotated[int, Ge(1)] = 256
    hidden: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] = (256, 128)
    epochs: Annotated[int, Ge(1)] = 50
    batch: Annotated[int, Ge(2)] = 128
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    steps: Annotated[int, Ge(0)] = 300

    def incompatible(self, cell: Cell) -> str | None:
        """There must be something to guess, and x that the backbone can read."""
        if not cell.sensitive:
            return f"{self.name} guesses a sensitive attribute, and the cell names none"
        missing = [name for name in cell.sensitive if name not in cell.card.attributes]
        if missing:
            have = ", ".join(cell.card.attributes) or "none"
            return f"{cell.card.name} has no attribute '{missing[0]}' to guess (it has: {have})"
        return unfit_backbone(self.backbone, cell.card)

    def answer(self, oracle: Oracle, question: AttributeQuestion, ctx: AttackContext) -> Attributes:
        """Give a distribution (n, values) per attribute."""
        del oracle  # the victim answers the adversary's rows through ctx.auxiliary_oracle
        rows = ctx.auxiliary
        z = ctx.auxiliary_oracle.embeddings(rows)
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
            mine = Known(name, x[known], z[known], s[known], values)
            guess, said = self._guess(mine, asked, ctx)
            guesses[name] = guess.to(question.embeddings.device)
            notes |= {f"{name}: {key}": value for key, value in said.items()}
        return Attributes(guesses, notes)

    def _guess(self, known: Known, asked: Tensor, ctx: AttackContext) -> Guess:
        """Probabilities (m, values) float64 for embeddings ``asked`` (m, d), and notes."""
        if (known.s == known.s[0]).all():
            only = F.one_hot(known.s[:1], known.values).double()
            return only.expand(len(asked), -1), {"model": "majority"}
        z, asked = standardised(known.z, asked)
        features = self._features(known, ctx)
        widths = [z.shape[1], self.transform, self.transform, features.shape[1]]
        transform = ctx.init(partial(mlp, widths), "transform", known.name)
        regress(transform, z, features, **self._training("transform", known, ctx))

        seen, guessed = logits(transform, z).float(), logits(transform, asked).float()
        widths = [features.shape[1], *self.hidden, known.values]
        classifier = ctx.init(partial(mlp, widths), "classifier", known.name)
        fit(classifier, seen, known.s, **self._training("classifier", known, ctx))
        error = float(F.mse_loss(seen, features))
        return logits(classifier, guessed).softmax(-1), {"variance that T leaves": error}

    def _features(self, known: Known, ctx: AttackContext) -> Tensor:
        """Features (n, d) float32 of the auxiliary rows by a model that tells s from x."""
        name = chosen_backbone(self.backbone, ctx.card)
        make = partial(_own_model, name, ctx.card.shape, known.values)
        own = ctx.init(make, "own", known.name)
        fit(own, known.x, known.s, **self._training("own", known, ctx))
        features = logits(own.get_submodule("features"), known.x).float()
        return standardised(features, features)[0]

    def _training(self, what: str, known: Known, ctx: AttackContext) -> dict[str, Any]:
        """How each of the three is trained."""
        return {
            "epochs": self.epochs, "steps": self.steps, "batch": self.batch, "lr": self.lr,
            "weight_decay": self.weight_decay, "generator": ctx.generator(what, known.name),
        }  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Auxiliary rows whose attribute is known.

    Attributes:
        name: of the attribute.
        x: (n, *shape) float in [0, 1].
        z: (n, d) float32, their released embeddings.
        s: (n,) int64 values of the attribute, none missing.
        values: how many there may be.
    """

    name: str
    x: Tensor
    z: Tensor
    s: Tensor
    values: int


def standardised(x: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Both less the mean of x, over its deviation; a constant dimension is only shifted.

    >>> x, asked = standardised(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[2.0, 6.0]]))
    >>> x.tolist(), asked.tolist()
    ([[-1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0]])
    """
    centre, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-6 * x.abs().amax(0), spread, 1)
    return (x - centre) / spread, (asked - centre) / spread


def _own_model(name: str, shape: tuple[int, ...], values: int) -> nn.Module:
    """C∘E: x (n, *shape) -> logits (n, values)."""
    features = backbone(name, shape)
    head = nn.Linear(features.width, values)
    return nn.Sequential(OrderedDict(features=features, head=head))


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [AttributeDecensoring()]
