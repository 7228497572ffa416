"""Reconstruction: what was the input of a released embedding?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from privbench.ground.columns import Board, Column
from privbench.measure.data.examples import Card, as_float
from privbench.measure.games import metrics
from privbench.measure.games.attributes import strangers
from privbench.measure.games.game import BadAnswerError, Game, Metrics, new_game, real
from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Attack

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.data.split import Split
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle, Served


class ReconstructionAttack(Attack):
    """An attack that reconstructs inputs from released embeddings.

    >>> class Grey(ReconstructionAttack):
    ...     name = "grey"
    ...     def answer(self, oracle, question, ctx):
    ...         return Reconstruction(torch.full((len(question.embeddings), *ctx.card.shape), 0.5))
    >>> str(Grey.needs)
    'EMBEDDINGS'
    """

    game: ClassVar[str] = "reconstruction"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    @abstractmethod
    def answer(
        self, oracle: Oracle, question: ReconstructionQuestion, ctx: AttackContext
    ) -> Reconstruction:
        """Return an input in [0, 1] for each embedding."""


@dataclass(frozen=True)
class ReconstructionQuestion:
    """The question: what were the inputs of these released embeddings?

    >>> ReconstructionQuestion(torch.zeros(3, 8)).embeddings.shape
    torch.Size([3, 8])

    Attributes:
        embeddings: (n, d) float32, as released.
    """

    embeddings: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """The answer: inputs in the unit interval.

    >>> Reconstruction(torch.full((3, 1, 8, 8), 0.5)).x.shape
    torch.Size([3, 1, 8, 8])

    Attributes:
        x: (n, *shape) float in [0, 1].
        notes: facts to record with the metrics.
    """

    x: Tensor
    notes: Mapping[str, float | str] = field(default_factory=dict)


#: Maximum PSNR per row in decibels; the PSNR of an exact copy would be infinite.
PSNR_CAP = 100.0


_ROWS = 512


#: Smallest image side for SSIM: torchmetrics mirrors the border by half the window of 11.
_SMALLEST = 6


@dataclass(frozen=True)
class ReconstructionTruth:
    """The truth of the question.

    Attributes:
        x: (n, *shape) float in [0, 1].
        card: card of the dataset.
    """

    x: Tensor
    card: Card


@new_game
class ReconstructionGame(Game):
    """Reconstruction of rows that no phase trained on: the nonmembers and the test part."""

    name: ClassVar[str] = "reconstruction"
    board: ClassVar[Board] = Board(
        (
            Column("MSE", "metrics", "mse"),
            Column("PSNR", "metrics", "psnr", high=None),
            Column("SSIM", "metrics", "ssim", low=-1.0),
            Column("right bits", "metrics", "bits"),
            Column("right columns", "metrics", "columns"),
            Column("mean image MSE", "baselines.mean_image", "mse"),
            Column("mean image SSIM", "baselines.mean_image", "ssim", low=-1.0),
            Column("raw pixels MSE", "controls.pixels", "mse"),
            Column("untrained encoder MSE", "controls.untrained", "mse"),
        ),
        higher=False,
        constant="mean_image",
        place=2,
    )
    controls: ClassVar[tuple[str, ...]] = ("pixels", "untrained")

    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[ReconstructionQuestion, ReconstructionTruth]:
        """Ask about released embeddings, without x, since x is the answer."""
        rows = self.asked(split, max_rows=max_rows, sensitive=sensitive)
        question = ReconstructionQuestion(served.embeddings(rows.x))
        return question, ReconstructionTruth(as_float(rows.x, rows.scale), split.card)

    def asked(self, split: Split, *, max_rows: int | None, sensitive: tuple[str, ...]) -> Examples:
        """Return the first rows that no phase trained on."""
        del sensitive
        return strangers(split).select(slice(0, max_rows))

    def pack(self, answer: Reconstruction) -> dict[str, Tensor]:
        """Return the reconstructed inputs (n, *shape)."""
        if not isinstance(answer, Reconstruction):
            raise BadAnswerError(f"the answer is a {type(answer).__name__}: return Reconstruction")
        return {"x": real(answer.x, "values of x")}

    def unpack(self, tensors: Mapping[str, Tensor]) -> Reconstruction:
        """Return an answer with these inputs."""
        return Reconstruction(tensors["x"])

    def score(self, answer: Reconstruction, truth: ReconstructionTruth) -> Metrics:
        """Return the mean squared error, and metrics for the kind of data.

        Images: PSNR and SSIM. Tables: share of correct bits or columns. All use x in [0, 1] before
        any normalisation, so the data range is 1. Each metric is a mean over rows; PSNR is computed
        per row, not from the mean error.
        """
        made = self.measure({}, self.per_sample(answer, truth))
        if truth.card.kind == "image" and "ssim" not in made:
            made["ssim"] = metrics.Refused(
                f"SSIM needs images of at least {_SMALLEST} pixels per side"
            )
        return made

    def per_sample(
        self, answer: Reconstruction, truth: ReconstructionTruth
    ) -> dict[str, NDArray[np.generic]]:
        """Return metric -> (n,) float64, its value for each row; the images are not kept."""
        given = real(answer.x, "values of x").detach()
        if given.shape != truth.x.shape:
            raise BadAnswerError(
                f"x has shape {tuple(given.shape)}: return shape {tuple(truth.x.shape)}"
            )
        if not bool(given.isfinite().all()):
            raise BadAnswerError("x is not finite: return finite numbers only")
        return _per_row(given.float().to(truth.x.device).clamp(0, 1), truth)

    def per_sample_truth(self, truth: ReconstructionTruth) -> dict[str, NDArray[np.generic]]:
        """Return nothing: the columns of an answer are errors already."""
        del truth
        return {}

    def measure(
        self,
        truth: Mapping[str, NDArray[np.generic]],
        answer: Mapping[str, NDArray[np.generic]],
    ) -> Metrics:
        """Return the mean of each column."""
        del truth
        return {name: metrics.mean(values) for name, values in answer.items()}

    def baselines(
        self, split: Split, question: ReconstructionQuestion, truth: ReconstructionTruth
    ) -> Mapping[str, Metrics]:
        """Score the mean of the adversary's rows as the answer to every embedding."""
        del question
        mean = as_float(split.pool.x, split.pool.scale).mean(0, keepdim=True)
        answer = Reconstruction(mean.to(truth.x.device).expand_as(truth.x))
        return {"mean_image": self.score(answer, truth)}

    def sizes(self, truth: ReconstructionTruth) -> dict[str, int]:
        """Return the number of rows asked about."""
        return {"rows": len(truth.x)}


def _per_row(x: Tensor, truth: ReconstructionTruth) -> dict[str, NDArray[np.generic]]:
    mse = (x.double() - truth.x.double()).square().flatten(1).mean(1)
    made = {"mse": mse}
    if truth.card.kind == "image":
        made["psnr"] = (-10 * mse.log10()).clamp(max=PSNR_CAP)
        if min(truth.x.shape[-2:]) >= _SMALLEST:
            made["ssim"] = _ssim(x, truth.x)
    if truth.card.kind == "binary":
        right = (x >= 0.5) == (truth.x >= 0.5)  # noqa: PLR2004
        made["bits"] = right.double().flatten(1).mean(1)
    if truth.card.groups:
        same = [x[:, a:b].argmax(1) == truth.x[:, a:b].argmax(1) for a, b in truth.card.groups]
        made["columns"] = torch.stack(same, 1).double().mean(1)
    return {name: values.double().cpu().numpy() for name, values in made.items()}


def _ssim(x: Tensor, truth: Tensor) -> Tensor:
    """Return the SSIM of each row (Gaussian window of 11, sigma 1.5, K1 .01, K2 .03, range 1).

    It is the mean over the whole image, mirrored at its border; scikit-image leaves out the border.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure as ssim

    parts = [
        ssim(a, b, sigma=1.5, data_range=1.0, reduction="none")
        for a, b in zip(torch.split(x, _ROWS), torch.split(truth.float(), _ROWS), strict=True)
    ]
    return torch.cat([torch.as_tensor(p).flatten() for p in parts])
