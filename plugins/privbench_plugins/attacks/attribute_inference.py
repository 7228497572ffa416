"""Attribute inference: predict from embeddings an attribute that the encoder was not trained for.

Song, Shmatikov: Overlearning Reveals Sensitive Attributes. ICLR 2020; as in He, Zhang: Quantifying
and Mitigating Privacy Risks of Contrastive Learning. CCS 2021, section 4.

The adversary sees the released embeddings of the target rows (not the rows themselves), may query
the embeddings of its own auxiliary rows, and knows the attribute of these. Steps:

1. Query the embeddings of the auxiliary rows. If a defense draws noise or masks at release,
   ``attribute-inference`` queries them many times, each with another draw.
2. Train one classifier per attribute, from embedding to attribute.
3. Predict the attribute's distribution for each released embedding.

There are two versions: ``attribute-inference`` is trained well; ``attribute-inference-paper`` is
the attacker of the Talos paper. A defense that lowers only the second has only defeated an
undertrained attacker, so compare the two.

Deviations: see each class. What to expect: compare the accuracy with the majority, raw-pixel and
untrained-encoder baselines, since much of what an embedding reveals was never learned. With
``embeddings=raw`` and few updates the paper's attacker stays near the majority baseline where
embeddings hardly vary.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch.nn import functional as F

from privbench import (
    AttributeAttack,
    Attributes,
    BadInputError,
    Ge,
    Gt,
    Le,
    MinLen,
    Paper,
    hookimpl,
    mlp,
)
from privbench.toolbox.classifiers import (
    ROWS,
    fan_in_normal,
    fit,
    logits,
    rows_by,
    stacked_logits,
    stacked_mlp,
    standardised,
)
from privbench.toolbox.releases import released

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, AttributeQuestion, Examples, Oracle

    Guess = tuple[Tensor, Mapping[str, float | str]]
    Proposals = Iterator[tuple[str, Tensor]]


#: Folds of the cross-validation.
FOLDS = 4


@dataclass(frozen=True)
class Known:
    """Auxiliary embeddings and the attribute values behind them.

    Attributes:
        name: of the attribute.
        x: (c * n, d) float32 embeddings: c copies of n rows, one copy after the other.
        s: (c * n,) int64 values of the attribute, none missing.
        values: number of possible values.
        copies: c.
    """

    name: str
    x: Tensor
    s: Tensor
    values: int
    copies: int = 1

    def select(self, rows: Tensor) -> Known:
        """Rows by position."""
        return replace(self, x=self.x[rows], s=self.s[rows])


@dataclass(frozen=True)
class _AttributeInference(AttributeAttack):
    """Base of both versions: auxiliary embeddings, one classifier per attribute.

    Attributes:
        share: fraction of the auxiliary rows that the adversary has, in (0, 1]; the paper sweeps .1
            to .9. A smaller share is a subset of a larger one.
    """

    requires: ClassVar[tuple[str, ...]] = ("pool",)

    share: Annotated[float, Gt(0), Le(1)] = 1.0

    def answer(self, oracle: Oracle, question: AttributeQuestion, ctx: AttackContext) -> Attributes:
        """Return a distribution (n, values) per attribute, learned from auxiliary embeddings."""
        rows = _share(ctx.auxiliary, self.share, ctx)
        copies = self._copies(oracle, rows, ctx)
        guesses: dict[str, Tensor] = {}
        notes: dict[str, float | str] = {}
        for name, values in question.values.items():
            s = _known(rows, name, ctx).to(copies.device)
            x = copies[:, s >= 0]
            known = Known(name, x.flatten(0, 1), s[s >= 0].repeat(len(x)), values, len(x))
            guess, said = self._guess(known, question.embeddings.to(x.device), ctx)
            guesses[name] = guess.to(question.embeddings.device)
            notes |= {f"{name}: {key}": value for key, value in said.items()}
        return Attributes(guesses, notes)

    def _copies(self, oracle: Oracle, rows: Examples, ctx: AttackContext) -> Tensor:
        """Return embeddings (1, n, d) of the adversary's rows, as it releases them itself."""
        del oracle
        return ctx.auxiliary_oracle.embeddings(rows)[None]

    @abstractmethod
    def _guess(self, known: Known, asked: Tensor, ctx: AttackContext) -> Guess:
        """Return probabilities (m, values) float64 for embeddings ``asked`` (m, d), and notes."""


@dataclass(frozen=True)
class AttributeInference(_AttributeInference):
    """The well-trained attacker: uses the best of several kinds of classifier.

    Embeddings are standardised by the mean and standard deviation of the auxiliary rows. The
    classifiers are logistic regression, a network with two hidden layers (Adam, early stopping),
    and nearest neighbours. Four-fold cross-validation over the auxiliary rows (stratified by the
    attribute; each row is held out once) selects the one with the best accuracy, which is what the
    game measures. Of many auxiliary rows, a random ``selection`` takes part in that. Log loss only
    breaks ties, because by log loss an over-confident network loses to a worse classifier. The
    selected classifier is trained again on all auxiliary rows.

    If a defense acts at release, the classifiers are trained on many releases of the same rows, so
    that they learn the attribute and not one draw of the defense. A row is held out with all its
    releases. Cost: ``siblings`` queries for each auxiliary row, one if all releases are equal.

    Attributes:
        penalties: inverse strengths C of the L2 penalty of logistic regression.
        neighbours: numbers of nearest neighbours, in Euclidean distance.
        updates: numbers of updates at which the network may stop; Adam's state is reset at each.
        hidden: neurons of each of its hidden layers.
        batch: rows per update.
        lr: learning rate of Adam.
        weight_decay: L2 penalty of the network.
        selection: maximum number of auxiliary rows in the cross-validation.
        siblings: own copies of the release, each with its own masks and keys, to train on.
        served: weight of the victim's own answers about the auxiliary rows, in copies; 0 for a
            release that is not served to others.
    """

    name: ClassVar[str] = "attribute-inference"
    version: ClassVar[int] = 3
    paper: ClassVar[Paper] = Paper(
        "Overlearning Reveals Sensitive Attributes", "Song, Shmatikov", "ICLR 2020",
        "inference from a representation",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The paper trains one network; here several kinds of classifier compete on held-out "
        "auxiliary rows, on standardised embeddings, and learn from several releases of each row. "
        "No de-censoring (the paper's second attack). `paper` has more updates to choose from; the "
        "numbers are ours."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"updates": (300, 1000, 3000, 10000)}
    }

    penalties: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] = (0.001, 0.01, 0.1, 1.0)
    neighbours: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 5, 15, 45)
    updates: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (100, 300, 1000)
    hidden: Annotated[int, Ge(1)] = 128
    batch: Annotated[int, Ge(1)] = 128
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    selection: Annotated[int, Ge(2 * FOLDS)] = 2000
    siblings: Annotated[int, Ge(1), Le(1000)] = 24
    served: Annotated[int, Ge(0), Le(1000)] = 4

    def _copies(self, oracle: Oracle, rows: Examples, ctx: AttackContext) -> Tensor:
        """Return embeddings (c, n, d) of the adversary's rows, released in c ways."""
        return released(oracle, rows, ctx, self.siblings, self.served)

    def _guess(self, known: Known, asked: Tensor, ctx: AttackContext) -> Guess:
        if len(known.s) < 2 * FOLDS or (known.s == known.s[0]).all():
            return prior(known.s, known.values).expand(len(asked), -1), {"model": "majority"}
        x, asked = standardised(known.x, asked)
        known = replace(known, x=x)
        every = torch.arange(len(x), device=x.device)
        n = len(x) // known.copies
        some = known.select(every[every % n < self.selection])  # the order of rows is random
        if (some.s == some.s[0]).all():
            some = known
        fold = folds(some.s[: len(some.s) // known.copies]).repeat(known.copies)
        of_some = every[: len(some.s)]
        kinds = (self._logistic, self._neighbours, self._network)
        tried = {
            (label, kind): guess[fold, of_some]  # for each row, by the model not trained on it
            for kind in kinds
            for label, guess in kind(some, training_rows(fold), some.x, ctx)
        }
        label, kind = max(tried, key=lambda which: _quality(tried[which], some.s))
        again = kind(known, every[None], asked, ctx)
        (guess,) = next(guess for name, guess in again if name == label)
        accuracy, _ = _quality(tried[label, kind], some.s)
        return guess, {"model": label, "held-out accuracy": accuracy}

    # Kinds of classifier. Each trains g models on the rows (g, w) of ``known`` and yields, for
    # every setting, its label and the probabilities (g, m, values) float64 of the m embeddings.

    def _logistic(self, known: Known, rows: Tensor, asked: Tensor, ctx: AttackContext) -> Proposals:
        del ctx
        for c in self.penalties:
            guesses = [_logistic(known.select(r), asked, c) for r in rows]
            yield f"logistic regression, C={c:g}", torch.stack(guesses)

    def _neighbours(
        self, known: Known, rows: Tensor, asked: Tensor, ctx: AttackContext
    ) -> Proposals:
        del ctx
        k_most = max(self.neighbours)
        near = torch.stack([r[_nearest(known.x[r], asked, k_most)] for r in rows])
        votes = F.one_hot(known.s, known.values)[near].cumsum(2)
        for k in self.neighbours:
            kept = min(k, votes.shape[2])
            yield (
                f"{k} nearest neighbours",
                (votes[:, :, kept - 1].double() + 1) / (kept + known.values),
            )

    def _network(self, known: Known, rows: Tensor, asked: Tensor, ctx: AttackContext) -> Proposals:
        widths = [known.x.shape[1], self.hidden, self.hidden, known.values]
        network = ctx.init(partial(stacked_mlp, len(rows), widths), "network", known.name)
        generator = ctx.generator("batches", known.name)
        done = 0
        for updates in sorted(self.updates):
            fit(
                network, known.x, known.s, steps=updates - done, batch=self.batch, lr=self.lr,
                weight_decay=self.weight_decay, rows=rows, generator=generator,
            )  # fmt: skip
            done = updates
            yield f"network, {updates} updates", stacked_logits(network, asked).softmax(-1)


@dataclass(frozen=True)
class AttributeInferencePaper(_AttributeInference):
    """The attacker of the Talos paper: a small network and plain SGD.

    SGD at a fixed learning rate depends on the scale of its inputs, and the paper's embeddings (the
    features of a ResNet after average pooling) have a standard deviation of about 1.

    Attributes:
        embeddings: ``scaled`` divides all embeddings by one number, the overall standard deviation
            of the auxiliary ones, so that they vary as much as the paper's; ``raw`` leaves them as
            they are released.
        depth: linear layers; the paper has 3 and sweeps 3 to 6, the authors' code has 4.
        hidden: neurons of each hidden layer.
        epochs: passes over the auxiliary rows.
        steps: minimum number of updates, so that few rows do not leave the network undertrained.
        batch: rows per update.
        lr: learning rate of SGD without momentum.
    """

    name: ClassVar[str] = "attribute-inference-paper"
    version: ClassVar[int] = 2
    paper: ClassVar[Paper] = Paper(
        "Quantifying and Mitigating Privacy Risks of Contrastive Learning", "He, Zhang",
        "CCS 2021", "section 4",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "No ReLU on the logits and three linear layers, as the text says (the authors' code has a "
        "ReLU there, and four). Batch 512, no momentum and the initial weights, from N(0, 1 / "
        "fan-in) with zero biases, are from the code. Embeddings are divided by one number unless "
        "embeddings=raw. At least 1,200 updates: 100 epochs are that many on the 5,926 auxiliary "
        "rows of UTKFace, but 200 on 900 rows. The auxiliary rows are not what the victim trained "
        "on."
    )

    embeddings: Literal["scaled", "raw"] = "scaled"
    depth: Annotated[int, Ge(1)] = 3
    hidden: Annotated[int, Ge(1)] = 128
    epochs: Annotated[int, Ge(1)] = 100
    steps: Annotated[int, Ge(0)] = 1200
    batch: Annotated[int, Ge(1)] = 512
    lr: Annotated[float, Gt(0)] = 0.01

    def _guess(self, known: Known, asked: Tensor, ctx: AttackContext) -> Guess:
        x, deviation = known.x, float(known.x.std(correction=0))
        if self.embeddings == "scaled" and deviation > 0:
            x, asked = x / deviation, asked / deviation
        widths = [x.shape[1], *[self.hidden] * (self.depth - 1), known.values]
        network = fit(
            ctx.init(lambda: fan_in_normal(mlp(widths)), "network", known.name), x, known.s,
            epochs=self.epochs, steps=self.steps, batch=self.batch, lr=self.lr, optimizer="sgd",
            generator=ctx.generator("batches", known.name),
        )  # fmt: skip
        return logits(network, asked).softmax(-1), {"standard deviation": deviation}


def prior(s: Tensor, values: int) -> Tensor:
    """Return the frequencies (values,) float64 of the values in s (n,), with add-one smoothing.

    >>> prior(torch.tensor([1, 1]), 2).tolist()
    [0.25, 0.75]
    """
    counts = s.bincount(minlength=values).double() + 1
    return counts / counts.sum()


def folds(s: Tensor) -> Tensor:
    """Assign each row (n,) a fold 0..3: each value is spread evenly over the folds, in row order.

    >>> folds(torch.tensor([0, 0, 1, 0, 1, 0])).tolist()
    [0, 1, 0, 2, 1, 3]
    """
    fold = torch.empty_like(s)
    fold[s.argsort(stable=True)] = torch.arange(len(s), device=s.device) % FOLDS
    return fold


def training_rows(fold: Tensor) -> Tensor:
    """Return rows (4, w) outside each fold; smaller sets repeat a row or two to equal sizes."""
    outside = fold != torch.arange(FOLDS, device=fold.device)[:, None]
    which, row = outside.nonzero(as_tuple=True)
    return row[rows_by(which)]


def _share(rows: Examples, share: float, ctx: AttackContext) -> Examples:
    """Select that share of the rows, in an order that depends only on their content."""
    order = ctx.uniform(rows, 1, "share").squeeze(1).argsort(stable=True)
    return rows.select(order[: math.ceil(share * len(rows))])


def _known(rows: Examples, name: str, ctx: AttackContext) -> Tensor:
    if name not in rows.attributes or not (rows.attributes[name] >= 0).any():
        raise BadInputError(
            f"no auxiliary row of '{ctx.card.name}' has the attribute '{name}': "
            "name another with --sensitive"
        )
    return rows.attributes[name]


def _quality(guess: Tensor, s: Tensor) -> tuple[float, float]:
    """Return the accuracy and minus the log loss; higher is better for both."""
    right = guess.gather(1, s[:, None]).clamp_min(1e-12).log().mean()
    return float((guess.argmax(1) == s).double().mean()), float(right)


def _logistic(known: Known, asked: Tensor, c: float) -> Tensor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    seen = known.s.bincount(minlength=known.values) > 0
    if int(seen.sum()) == 1:
        return prior(known.s, known.values).expand(len(asked), -1)
    model = LogisticRegression(C=c, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is judged on held-out rows anyway
        model.fit(known.x.double().cpu().numpy(), known.s.cpu().numpy())
    found = torch.from_numpy(model.predict_proba(asked.double().cpu().numpy()))
    guess = torch.zeros(len(asked), known.values, dtype=torch.float64, device=asked.device)
    guess[:, seen] = found.to(asked.device)
    return guess


def _nearest(x: Tensor, asked: Tensor, k: int) -> Tensor:
    """Return positions (m, k) of the nearest rows of x, nearest first; fewer if x has fewer."""
    parts = [
        torch.cdist(p, x).topk(min(k, len(x)), largest=False) for p in torch.split(asked, ROWS)
    ]
    return torch.cat([part.indices for part in parts])


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both versions."""
    return [AttributeInference(), AttributeInferencePaper()]
