"""Reconstruction: recover the input behind a released embedding.

He, Zhang, Lee: Model Inversion Attacks Against Collaborative Inference. ACSAC 2019, sections 4
and 5; the decoder is as in ARS, where a participant inverts what the others share.

The adversary sees the released embeddings of the target rows, not the rows themselves. There are
two attacks. ``reconstruction`` (black-box) has rows of its own:

1. Query the embeddings of the adversary's own rows.
2. Train a decoder from embedding to input, by mean squared error.
3. Decode the released embeddings.

``reconstruction-rmle`` (white-box) has gradients of the encoder instead:

1. Start from a grey input.
2. Optimise it so that its embedding approaches the released one and the image stays smooth.

Deviations: see each class. What to expect: compare the error with that of the mean image, which
uses no embedding at all, and with the errors on raw pixels and on an untrained encoder under the
same attack. An embedding after global pooling keeps far less than the early layers at which the
paper splits.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privbench import (
    Access,
    Ge,
    Gt,
    Le,
    MinLen,
    Paper,
    Reconstruction,
    ReconstructionAttack,
    as_float,
    hookimpl,
    mlp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from privbench import Attack, AttackContext, Card, Oracle, ReconstructionQuestion

PAPER = Paper(
    "Model Inversion Attacks Against Collaborative Inference", "He, Zhang, Lee", "ACSAC 2019",
    "sections 4 (rMLE) and 5 (inverse network)",
)  # fmt: skip
#: Rows per forward pass or gradient query.
ROWS = 1024
#: How often a network is judged while it trains.
CHECKS = 10
#: Added to the scale of answers that are mixed, relative to it: equal ones share a weight.
RIDGE = 1e-9


class Lesson(NamedTuple):
    """What decoders learn from, and what judges them.

    Attributes:
        h: (s, n, d) embeddings, s of every row.
        x: (n, ...) the rows.
        judged: (m, d) embeddings of held-out rows.
        truth: (m, ...) these.
    """

    h: Tensor
    x: Tensor
    judged: Tensor
    truth: Tensor


class Tried(NamedTuple):
    """What gave an answer, the answer for held-out rows and for the target rows."""

    label: str
    held: Tensor
    guess: Tensor
    facts: dict[str, float]


@dataclass(frozen=True)
class Decoder(ReconstructionAttack):
    """Trains decoders on the adversary's own rows and their embeddings, and mixes them.

    Access: embeddings, and rows of the same kind. Cost: at most ``siblings`` + ``judges`` queries
    for each of these rows, none for each target row. If a defense acts at release, ``rows`` says
    how the adversary's rows are released; a naive adversary has its own rows without the release.

    Several answers are mixed, with the weights (at least 0) that are best on a held-out tenth of
    the rows; if these were not released by the victim, the best answer is used alone. Answers come
    from ridge regression at several penalties (exact for a linear encoder, where a network trains
    slowly), from networks (an MLP, and for images larger than 8×8 also the paper's convolutions),
    each as it was after the tenth of its training that is best on held-out rows, and from the mean
    of the adversary's rows, which needs no embedding. With ``rows="served"`` each of them learns
    twice where the release is random: from the victim's answers to the adversary's rows, and from
    many own copies of the release; the victim's answers to held-out rows judge both. With
    ``rows="own"`` held-out rows are released with masks that no decoder was trained on. If the
    adversary then has only one release of its rows, they get noise instead: as much as the released
    embeddings vary more than its own.

    Attributes:
        rows: ``served`` also sends the adversary's rows through the victim's release, as anyone can
            who may ask; ``own`` sends them through its own copies of the release only (own masks,
            own keys).
        siblings: own copies of the release to train on; each update draws one for every row. 1 is
            ARS as published.
        judges: further copies, to judge decoders by, with ``rows="own"``.
        coordinates: ``quiet`` drops coordinates in which the released embeddings vary more than
            the adversary's own (a one-sided test at 1e-3): this estimates a mask, if all target
            rows share one. The own embedding takes each coordinate from the copy of the release in
            which it varies least.
        penalties: of ridge regression, relative to the number of rows.
        epochs: passes over the rows.
        steps: minimum number of updates.
        batch: rows per update.
        lr: learning rate of Adam (with amsgrad, as in the authors' code).
        halve: number of epochs after which the learning rate is halved, repeatedly.
        hidden: neurons of the network's hidden layers.
    """

    name: ClassVar[str] = "reconstruction"
    version: ClassVar[int] = 5
    paper: ClassVar[Paper] = PAPER
    deviations: ClassVar[str] = (
        "The embedding is standardised; ridge regression, an MLP and the mean image are mixed with "
        "the paper's network; networks stop where held-out rows want; under a release, training "
        "takes several copies of it, each with its own mask, or the victim's own (ARS trains on "
        "one; its errors of .119 and .179 on MNIST "
        "exceed the mean image's .067 if pixels lie in [0, 1]); the output goes through a sigmoid, "
        "so that it stays in range; at least 3,000 updates. Adam's epsilon is 1e-8; the authors' "
        "code has 1e-3, more than the gradients of a mean over pixels, with which an MLP had an "
        "error of .0353 on embeddings of MNIST in 3,000 updates, and without it .0126. The paper's "
        "network is a linear layer and three convolutions with upsampling: its decoders mirror "
        "early convolutional layers."
    )

    rows: Literal["served", "own"] = "served"
    siblings: Annotated[int, Ge(1), Le(1000)] = 16
    judges: Annotated[int, Ge(1), Le(1000)] = 4
    coordinates: Literal["all", "quiet"] = "all"
    penalties: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] = (1e-6, 1e-3, 1e-1)
    epochs: Annotated[int, Ge(1)] = 50
    steps: Annotated[int, Ge(0)] = 3000
    batch: Annotated[int, Ge(1)] = 32
    lr: Annotated[float, Gt(0)] = 1e-3
    halve: Annotated[int, Ge(1)] = 20
    hidden: Annotated[int, Ge(1)] = 512

    def answer(
        self, oracle: Oracle, question: ReconstructionQuestion, ctx: AttackContext
    ) -> Reconstruction:
        """Decode each embedding with the mixture of decoders that is best on held-out rows."""
        asked = question.embeddings.float()
        x = as_float(ctx.auxiliary.x, ctx.auxiliary.scale).to(asked.device)
        held = (ctx.uniform(ctx.auxiliary, 1, "held out").squeeze(1) < 0.1).to(asked.device)  # noqa: PLR2004
        if not held.any() or held.all():
            held = torch.arange(len(x), device=asked.device) % 10 == 0
        tried: list[Tried] = []
        sources = [*self._released(oracle, held, asked, ctx)]
        truth = x[held].repeat(len(sources[0][2]), *[1] * (x.dim() - 1))
        for source, h, judged in sources:
            kept = torch.ones(h.shape[2], dtype=torch.bool, device=h.device)
            if self.coordinates == "quiet":
                kept = ~loud(h[0], asked, 1e-3)
            centre, spread = h.mean((0, 1)), h.flatten(0, 1).std(0)
            # A coordinate that is constant in h may vary in asked: shift it, do not scale it up.
            spread = torch.where(spread > 1e-6 * h.abs().amax((0, 1)), spread, 1)
            mine, to_judge, wanted = (
                ((p - centre) / spread)[..., kept] for p in (h, judged, asked)
            )
            lesson = Lesson(mine[:, ~held], x[~held], to_judge.flatten(0, 1), truth)
            facts = {"coordinates": float(kept.sum()), "copies of the release": float(len(h))}
            tried += [
                Tried(f"{label}{source}", unit(made), unit(guess), facts)
                for label, made, guess in self._decoders(lesson, wanted, ctx)
            ]
        best = min(tried, key=lambda one: float(F.mse_loss(one.held, truth)))
        weights = [float(one is best) for one in tried]
        if torch.equal(sources[0][1][0, held], sources[0][2][0]):  # judged as the victim releases
            weights = mixture([one.held for one in tried], truth)
        made, guess = (
            unit(torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum(0))
            for parts in ([one.held for one in tried], [one.guess for one in tried])
        )
        told = sorted(zip(weights, (one.label for one in tried), strict=True), reverse=True)
        notes: dict[str, float | str] = {
            "decoder": best.label, "held-out MSE": float(F.mse_loss(made, truth)),
            "held-out MSE of the best decoder": float(F.mse_loss(best.held, truth)),
            "held-out MSE of the mean image": float(F.mse_loss(tried[0].held, truth)),
            "weights": "; ".join(f"{w:.2f} {label}" for w, label in told if w >= 0.005),  # noqa: PLR2004
            **best.facts,
        }  # fmt: skip
        return Reconstruction(guess, notes)

    def _released(
        self, oracle: Oracle, held: Tensor, asked: Tensor, ctx: AttackContext
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield what decoders learn from, and by what they are judged, each with a label.

        That is, the adversary's rows as released s times (s, n, d), and the held-out ones as
        released j times (j, m, d), the same j for all.
        """
        asking = ctx.siblings(self.siblings + self.judges)
        h = torch.stack([one.embeddings(ctx.auxiliary).float() for one in asking]).to(asked.device)
        if self.rows == "served":
            served = oracle.embeddings(ctx.auxiliary).float().to(asked.device)[None]
            random = not bool((h == served).all())
            yield ", served rows" if random else "", served, served[:, held]
            if random and self.coordinates == "all":
                yield ", own copies", h[: self.siblings], served[:, held]
            return
        if (h == h[:1]).all():  # no release changes embeddings
            h = h[:1]
        if self.coordinates == "all" and len(h) > 1:
            yield "", h[: self.siblings], h[self.siblings :, held]
            return
        least = h.var(1).argmin(0)  # of each coordinate
        own = h.gather(0, least.expand(1, *h.shape[1:]))
        yield "", own, as_noisy(own[0], asked, ctx.generator("noise"))[held][None]

    def _decoders(
        self, lesson: Lesson, asked: Tensor, ctx: AttackContext
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield label, decoded held-out rows and decoded released embeddings of each answer."""
        h, x, judged, _ = lesson
        mean = x.mean(0)
        yield (
            "mean image",
            mean.expand(len(judged), *mean.shape),
            mean.expand(len(asked), *mean.shape),
        )
        if not h.shape[2]:
            return
        for penalty in self.penalties:
            decode = ridge(h, x.flatten(1), penalty)
            made, guess = (decode(z).view(-1, *mean.shape) for z in (judged, asked))
            yield f"ridge regression, penalty {penalty:g}", made, guess
        for label, build in decoders(h.shape[2], ctx.card, self.hidden).items():
            network = ctx.init(build, "decoder")
            self._fit(network, lesson, ctx.generator("batches"), ctx.generator("copies"))
            yield label, decoded(network, judged), decoded(network, asked)

    def _fit(
        self, network: nn.Module, lesson: Lesson, batches: torch.Generator, copies: torch.Generator
    ) -> None:
        """Train a network; leave it as it was after the tenth of the epochs with least error."""
        h, x, judged, truth = lesson
        per_epoch = math.ceil(len(x) / self.batch)
        epochs = max(self.epochs, math.ceil(self.steps / per_epoch))
        halve = max(1, self.halve * epochs // self.epochs)
        descent = torch.optim.Adam(network.parameters(), self.lr, amsgrad=True)
        schedule = torch.optim.lr_scheduler.StepLR(descent, halve, 0.5)
        least, best = math.inf, network.state_dict()
        for epoch in range(1, epochs + 1):
            order = torch.randperm(len(x), generator=batches, device=h.device)
            which = torch.randint(len(h), (len(x),), generator=copies, device=h.device)
            for rows in torch.split(order, self.batch):
                loss = F.mse_loss(network(h[which[rows], rows]), x[rows])
                descent.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                descent.step()
            schedule.step()
            if epoch % math.ceil(epochs / CHECKS) == 0 or epoch == epochs:
                error = float(F.mse_loss(decoded(network, judged), truth))
                if error < least:
                    least, best = error, copy.deepcopy(network.state_dict())
        network.load_state_dict(best)


@dataclass(frozen=True)
class RMLE(ReconstructionAttack):
    """Regularised maximum likelihood: finds an input whose embedding matches the released one.

    Access: embeddings and gradients of the encoder, so a white-box adversary and no defense at
    release; no rows. Cost: ``iterations`` gradient queries per target row.

    Attributes:
        iterations: steps of Adam; the paper uses 500 for shallow splits, 5,000 for deep ones.
        lr: learning rate of Adam; 1e-2 for shallow splits, 1e-3 for deep ones.
        smoothness: weight of the total variation; the paper uses 10 for CIFAR-10's later layers,
            whose features are far larger than an embedding's.
        limit: maximum number of target rows.
    """

    name: ClassVar[str] = "reconstruction-rmle"
    needs: ClassVar[Access] = Access.EMBEDDINGS | Access.GRADIENTS
    paper: ClassVar[Paper] = PAPER
    deviations: ClassVar[str] = (
        "The input is kept in [0, 1] after every step; the squared distance of embeddings is "
        "divided by their mean square over the question, so that one weight of the total variation "
        "serves encoders of any scale; tables have no total variation."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"iterations": 5000, "lr": 1e-3}}

    iterations: Annotated[int, Ge(1)] = 500
    lr: Annotated[float, Gt(0)] = 1e-2
    smoothness: Annotated[float, Ge(0)] = 1e-3
    limit: Annotated[int, Ge(1)] = 200

    @property
    def max_rows(self) -> int | None:
        """Limit the question to ``limit`` rows: each costs hundreds of gradients."""
        return self.limit

    def answer(
        self, oracle: Oracle, question: ReconstructionQuestion, ctx: AttackContext
    ) -> Reconstruction:
        """Invert all embeddings together; rows share only the scale of the distance."""
        asked = question.embeddings
        made = [self._invert(oracle, part, asked, ctx.card) for part in torch.split(asked, ROWS)]
        return Reconstruction(torch.cat(made))

    def _invert(self, oracle: Oracle, wanted: Tensor, every: Tensor, card: Card) -> Tensor:
        scale = float(every.double().square().sum(1).mean().clamp_min(1e-12))
        x = torch.full((len(wanted), *card.shape), 0.5, device=wanted.device)
        descent = torch.optim.Adam([x], self.lr)

        def loss(served: Any, x: Tensor) -> Tensor:
            far = (served.embeddings(x) - wanted).square().sum(1) / scale
            rough = total_variation(x) if card.kind == "image" else 0.0
            return far + self.smoothness * rough  # type: ignore[no-any-return]

        for _ in range(self.iterations):
            x.grad = oracle.gradients(x, loss)
            descent.step()
            x.data.clamp_(0, 1)
        return x


@torch.no_grad()
def decoded(network: nn.Module, h: Tensor) -> Tensor:
    """Return what a network makes of embeddings (n, d): (n, ...)."""
    return torch.cat([network(part) for part in torch.split(h, ROWS)])


def mixture(answers: Sequence[Tensor], truth: Tensor) -> list[float]:
    """Return the weights, at least 0, of the sum of answers with the least squared error.

    Args:
        answers: (n, ...) each.
        truth: (n, ...).

    >>> truth = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> flat = torch.ones(2, 2)
    >>> [round(w, 3) for w in mixture([flat, truth / 2 - 0.5 * flat, -truth], truth)]
    [1.0, 2.0, 0.0]
    """
    from scipy.optimize import nnls

    size = len(answers)
    gram, cross = torch.zeros(size, size).double(), torch.zeros(size).double()
    for start in range(0, len(truth), ROWS):
        rows = slice(start, start + ROWS)
        a = torch.stack([one[rows].flatten().double() for one in answers])
        gram += (a @ a.T).cpu()
        cross += (a @ truth[rows].flatten().double()).cpu()
    ground = RIDGE * gram.diagonal().mean().clamp_min(RIDGE)
    root = torch.linalg.cholesky(gram + ground * torch.eye(size).double())
    right = torch.linalg.solve_triangular(root, cross[:, None], upper=False)[:, 0]
    weights: list[float] = nnls(root.T.numpy(), right.numpy())[0].tolist()
    return weights


def ridge(h: Tensor, x: Tensor, penalty: float) -> Any:
    """Fit the best linear map with intercept from embeddings to inputs, in float64.

    Args:
        h: (s, n, d) embeddings, s of every row.
        x: (n, p) inputs.
        penalty: on the squared weights, relative to the number of embeddings.

    Returns:
        A function from embeddings (m, d) to inputs (m, p) float32.

    >>> h, x = torch.tensor([[[0.0], [1.0], [2.0]]]), torch.tensor([[1.0], [3.0], [5.0]])
    >>> ridge(h, x, 1e-9)(torch.tensor([[3.0]])).round(decimals=3).tolist()
    [[7.0]]
    """
    x, mean_h, mean_x = x.double(), h.double().mean((0, 1)), x.double().mean(0)
    count, width = len(h) * len(x), h.shape[2]
    gram = penalty * count * torch.eye(width, dtype=x.dtype, device=x.device)
    cross = torch.zeros(width, x.shape[1], dtype=x.dtype, device=x.device)
    for one in h:  # one at a time: all of them in float64 may not fit into memory
        a = one.double() - mean_h
        gram += a.T @ a
        cross += a.T @ (x - mean_x)
    weights = torch.linalg.solve(gram, cross)
    return lambda new: ((new.double() - mean_h) @ weights + mean_x).float()


def unit(x: Tensor) -> Tensor:
    """Clip to the unit interval."""
    return x.clamp(0, 1)


def loud(own: Tensor, asked: Tensor, level: float) -> Tensor:
    """Mark coordinates (d,) in which ``asked`` (m, d) varies more than ``own`` (n, d).

    A one-sided Welch test per coordinate at that level, of squares around the mean of ``own``:
    features of a network are not normal, so an F-test would mark too many.
    """
    from scipy.stats import ttest_ind

    squares = [_squares(own, rows).cpu().numpy() for rows in (asked, own)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # coordinates that never vary are not loud
        p = ttest_ind(*squares, equal_var=False, alternative="greater").pvalue
    return torch.from_numpy(p < level).to(own.device)


def as_noisy(own: Tensor, asked: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``own`` (n, d) with Gaussian noise where ``asked`` (m, d) is louder.

    Then both vary alike in each coordinate. ``own`` is returned unchanged if no coordinate is
    louder at the level of 1e-3, corrected for the number of coordinates.
    """
    more = _squares(own, asked).mean(0) - _squares(own, own).mean(0)
    more = torch.where(loud(own, asked, 1e-3 / own.shape[1]), more, 0)
    drawn = torch.randn(own.shape, generator=generator, device=own.device)
    return own + more.sqrt().float() * drawn


def _squares(own: Tensor, rows: Tensor) -> Tensor:
    """Return squares (m, d) of rows (m, d) around the mean of ``own``, in float64."""
    return (rows.double() - own.double().mean(0)).square()


def total_variation(x: Tensor) -> Tensor:
    """Sum (n,) the absolute differences of neighbouring pixels in x (n, c, h, w); anisotropic.

    >>> total_variation(torch.eye(2)[None, None]).tolist()
    [4.0]
    """
    down = (x[:, :, 1:] - x[:, :, :-1]).abs().flatten(1).sum(1)
    across = (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().flatten(1).sum(1)
    return down + across


def decoders(width: int, card: Card, hidden: int) -> dict[str, Callable[[], nn.Module]]:
    """Return how to build the networks from embeddings (n, width) to inputs (n, *shape) in (0, 1).

    Images up to 8×8 are too small for convolutions, as for backbones.
    """
    made: dict[str, Callable[[], nn.Module]] = {"MLP": partial(flat, width, card, hidden)}
    if card.kind == "image" and max(card.shape[1:]) > 8:  # noqa: PLR2004
        made["convolutions"] = partial(convolutional, width, card)
    return made


def flat(width: int, card: Card, hidden: int) -> nn.Module:
    """Build an MLP with two hidden layers, untrained."""
    return nn.Sequential(
        mlp([width, hidden, hidden, math.prod(card.shape)]), nn.Sigmoid(),
        nn.Unflatten(1, card.shape),
    )  # fmt: skip


def convolutional(width: int, card: Card) -> nn.Module:
    """Build a linear layer and three convolutions with upsampling, untrained."""
    c, h, w = card.shape
    small = (64, math.ceil(h / 4), math.ceil(w / 4))
    return nn.Sequential(
        nn.Linear(width, math.prod(small)), nn.ReLU(), nn.Unflatten(1, small),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(),
        nn.Upsample(size=(h, w), mode="bilinear"), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, c, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both attacks."""
    return [Decoder(), RMLE()]
