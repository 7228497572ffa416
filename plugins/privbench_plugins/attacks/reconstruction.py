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

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, MinLen
from torch import nn
from torch.nn import functional as F

from privbench import Access, Paper, Reconstruction, ReconstructionAttack, as_float, hookimpl, mlp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Card, Oracle, ReconstructionQuestion

PAPER = Paper(
    "Model Inversion Attacks Against Collaborative Inference", "He, Zhang, Lee", "ACSAC 2019",
    "sections 4 (rMLE) and 5 (inverse network)",
)  # fmt: skip
#: Rows per forward pass or gradient query.
ROWS = 1024


@dataclass(frozen=True)
class Decoder(ReconstructionAttack):
    """Trains a decoder on the adversary's own rows and their embeddings.

    Access: embeddings, and rows of the same kind. Cost: one query for each of these rows, none for
    each target row. If a defense acts at release, ``rows`` says how the adversary's rows are
    released; a naive adversary has its own rows without the release.

    The best of several decoders on a held-out tenth of the rows is used: ridge regression at
    several penalties (exact for a linear encoder, where a network trains slowly) and the paper's
    network.

    Attributes:
        rows: ``own`` sends the adversary's rows through its own copy of the release (own mask, own
            key: ARS as published); ``served`` sends them through the victim's, as anyone can if
            the release is served behind an interface.
        coordinates: ``quiet`` drops coordinates in which the released embeddings vary more than
            the adversary's own (a one-sided F-test at 1e-3): this estimates a mask. It needs clean
            own embeddings, which a ``naive`` adversary has; those of an adaptive adversary are
            noisy on a mask of their own, and coordinates hidden by both masks pass as quiet.
        penalties: of ridge regression, relative to the number of rows.
        epochs: passes over the rows.
        steps: minimum number of updates.
        batch: rows per update.
        lr: learning rate of Adam (with amsgrad and epsilon 1e-3, as in the authors' code).
        halve: number of epochs after which the learning rate is halved, repeatedly.
        hidden: neurons of the network's hidden layers.
    """

    name: ClassVar[str] = "reconstruction"
    paper: ClassVar[Paper] = PAPER
    deviations: ClassVar[str] = (
        "The embedding is standardised; ridge regression competes with the network; the output "
        "goes through a sigmoid, so that it stays in range; at least 3,000 updates. The network is "
        "an MLP for tables and images up to 8×8, else a linear layer and three convolutions with "
        "upsampling: the paper's decoders mirror early convolutional layers."
    )

    rows: Literal["own", "served"] = "own"
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
        """Decode each embedding with the decoder that is best on held-out rows."""
        asked = question.embeddings.float()
        h = (
            (oracle if self.rows == "served" else ctx.auxiliary_oracle)
            .embeddings(ctx.auxiliary)
            .float()
        )
        h = h.to(asked.device)
        x = as_float(ctx.auxiliary.x, ctx.auxiliary.scale).to(asked.device)
        kept = torch.ones(h.shape[1], dtype=torch.bool, device=h.device)
        if self.coordinates == "quiet":
            kept = quiet(h, asked)
        centre, spread = h.mean(0), h.std(0)
        # A coordinate that is constant in h may vary in asked: shift it, but do not scale it up.
        spread = torch.where(spread > 1e-6 * h.abs().amax(0), spread, 1)
        h, asked = (((part - centre) / spread)[:, kept] for part in (h, asked))
        held = (ctx.uniform(ctx.auxiliary, 1, "held out").squeeze(1) < 0.1).to(h.device)  # noqa: PLR2004
        if not held.any() or held.all():
            held = torch.arange(len(h), device=h.device) % 10 == 0
        tried = [
            (float(F.mse_loss(unit(judged), x[held])), label, guess)
            for label, judged, guess in self._decoders(h[~held], x[~held], h[held], asked, ctx)
        ]
        error, label, guess = min(tried, key=lambda one: one[0])
        notes: dict[str, float | str] = {
            "decoder": label, "held-out MSE": error, "coordinates": float(kept.sum()),
        }  # fmt: skip
        return Reconstruction(unit(guess), notes)

    def _decoders(
        self, h: Tensor, x: Tensor, held: Tensor, asked: Tensor, ctx: AttackContext
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield label, decoded held-out rows and decoded released embeddings of each decoder."""
        for penalty in self.penalties:
            decode = ridge(h, x.flatten(1), penalty)
            judged, guess = decode(held), decode(asked)
            yield (
                f"ridge regression, penalty {penalty:g}",
                judged.view(-1, *x.shape[1:]),
                guess.view(-1, *x.shape[1:]),
            )
        network = ctx.init(partial(decoder, h.shape[1], ctx.card, self.hidden), "decoder")
        self._fit(network, h, x, ctx.generator("batches"))
        with torch.no_grad():
            made = [torch.cat([network(p) for p in torch.split(z, ROWS)]) for z in (held, asked)]
        yield "network", made[0], made[1]

    def _fit(self, network: nn.Module, h: Tensor, x: Tensor, generator: torch.Generator) -> None:
        per_epoch = math.ceil(len(h) / self.batch)
        epochs = max(self.epochs, math.ceil(self.steps / per_epoch))
        halve = max(1, self.halve * epochs // self.epochs)
        descent = torch.optim.Adam(network.parameters(), self.lr, eps=1e-3, amsgrad=True)
        schedule = torch.optim.lr_scheduler.StepLR(descent, halve, 0.5)
        for _ in range(epochs):
            order = torch.randperm(len(h), generator=generator, device=h.device)
            for rows in torch.split(order, self.batch):
                loss = F.mse_loss(network(h[rows]), x[rows])
                descent.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                descent.step()
            schedule.step()
        network.eval()


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


def ridge(h: Tensor, x: Tensor, penalty: float) -> Any:
    """Fit the best linear map with intercept from h (n, d) to x (n, p), in float64.

    Args:
        h: inputs.
        x: outputs.
        penalty: on the squared weights, relative to n.

    Returns:
        A function from (m, d) to (m, p) float32.

    >>> decode = ridge(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[1.0], [3.0], [5.0]]), 1e-9)
    >>> decode(torch.tensor([[3.0]])).round(decimals=3).tolist()
    [[7.0]]
    """  # noqa: E501
    h, x = h.double(), x.double()
    mean_h, mean_x = h.mean(0), x.mean(0)
    a = h - mean_h
    gram = a.T @ a + penalty * len(h) * torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
    weights = torch.linalg.solve(gram, a.T @ (x - mean_x))
    return lambda new: ((new.double() - mean_h) @ weights + mean_x).float()


def unit(x: Tensor) -> Tensor:
    """Clip to the unit interval."""
    return x.clamp(0, 1)


def quiet(own: Tensor, asked: Tensor) -> Tensor:
    """Mark coordinates (d,) in which ``asked`` (m, d) does not vary more than ``own`` (n, d).

    A one-sided F-test at 1e-3 per coordinate; all coordinates are marked if none passes.
    """
    from scipy.stats import f

    ratio = asked.double().var(0) / own.double().var(0).clamp_min(1e-12)
    kept = ratio < float(f.isf(1e-3, len(asked) - 1, len(own) - 1))
    return kept if bool(kept.any()) else torch.ones_like(kept)


def total_variation(x: Tensor) -> Tensor:
    """Sum (n,) the absolute differences of neighbouring pixels in x (n, c, h, w); anisotropic.

    >>> total_variation(torch.eye(2)[None, None]).tolist()
    [4.0]
    """
    down = (x[:, :, 1:] - x[:, :, :-1]).abs().flatten(1).sum(1)
    across = (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().flatten(1).sum(1)
    return down + across


def decoder(width: int, card: Card, hidden: int) -> nn.Module:
    """Build untrained: embeddings (n, width) to inputs (n, *shape) in (0, 1)."""
    shape = card.shape
    if card.kind != "image" or max(shape[1:]) <= 8:  # noqa: PLR2004 - as backbones choose
        return nn.Sequential(
            mlp([width, hidden, hidden, math.prod(shape)]), nn.Sigmoid(), nn.Unflatten(1, shape)
        )
    c, h, w = shape
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
