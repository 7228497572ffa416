"""Reconstruction: what was the input behind a released embedding?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from privbench.data.examples import Card, as_float
from privbench.games import metrics
from privbench.games.access import Access
from privbench.games.attack import Attack
from privbench.games.attributes import strangers
from privbench.games.game import BadAnswerError, Game, Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench.data.examples import Card, Examples
    from privbench.data.split import Split
    from privbench.games.oracle import Oracle, Served
    from privbench.methods.context import AttackContext


class ReconstructionAttack(Attack):
    """Rebuilds inputs from released embeddings."""

    game: ClassVar[str] = "reconstruction"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    @abstractmethod
    def answer(
        self, oracle: Oracle, question: ReconstructionQuestion, ctx: AttackContext
    ) -> Reconstruction:
        """Give an input in [0, 1] for each embedding."""


@dataclass(frozen=True)
class ReconstructionQuestion:
    """What was the input behind these released embeddings?

    Attributes:
        embeddings: (n, d) float32, as released.
    """

    embeddings: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """Inputs in the unit interval.

    Attributes:
        x: (n, *shape) float in [0, 1].
        notes: facts worth keeping beside the numbers.
    """

    x: Tensor
    notes: Mapping[str, float | str] = field(default_factory=dict)


#: PSNR of an exact copy is infinite; each row counts for at most so many decibels.
PSNR_CAP = 100.0


_ROWS = 512


#: torchmetrics reflects the image at its border by half the window of 11.
_SMALLEST = 6


@dataclass(frozen=True)
class ReconstructionTruth:
    """What stands behind the question.

    Attributes:
        x: (n, *shape) float in [0, 1].
        card: of the dataset.
    """

    x: Tensor
    card: Card


class ReconstructionGame(Game):
    """Inputs of rows that no phase trained on: the nonmembers and the test part."""

    name: ClassVar[str] = "reconstruction"
    headline: ClassVar[str] = "mse"
    controls: ClassVar[tuple[str, ...]] = ("pixels", "untrained")

    def pose(
        self, split: Split, served: Served, *, max_rows: int | None, sensitive: tuple[str, ...]
    ) -> tuple[ReconstructionQuestion, ReconstructionTruth]:
        """Ask about released embeddings, without x: there x is the answer."""
        del sensitive
        rows = strangers(split).select(slice(0, max_rows))
        question = ReconstructionQuestion(served.embeddings(rows.x))
        return question, ReconstructionTruth(as_float(rows.x, rows.scale), split.card)

    def auxiliary(self, split: Split) -> Examples:
        """The adversary's pool."""
        return split.pool

    def pack(self, answer: Reconstruction) -> dict[str, Tensor]:
        """Inputs (n, *shape)."""
        return {"x": answer.x}

    def unpack(self, tensors: Mapping[str, Tensor]) -> Reconstruction:
        """Inputs."""
        return Reconstruction(tensors["x"])

    def score(self, answer: Reconstruction, truth: ReconstructionTruth) -> Metrics:
        """Mean squared error; PSNR and SSIM of images; right bits or columns of tables.

        All on x in [0, 1] before any normalisation, so the data range is 1. Each is the mean over
        rows: PSNR is that of every row, not of the mean error.
        """
        given = answer.x.detach()
        if given.shape != truth.x.shape:
            raise BadAnswerError(f"x has shape {tuple(given.shape)}, not {tuple(truth.x.shape)}")
        if not bool(given.isfinite().all()):
            raise BadAnswerError("x is not finite")
        return _metrics(given.float().to(truth.x.device).clamp(0, 1), truth)

    def baselines(
        self, split: Split, question: ReconstructionQuestion, truth: ReconstructionTruth
    ) -> Mapping[str, Metrics]:
        """The mean of the adversary's rows, whatever the embedding says."""
        del question
        mean = as_float(split.pool.x, split.pool.scale).mean(0, keepdim=True)
        return {"mean_image": _metrics(mean.to(truth.x.device).expand_as(truth.x), truth)}

    def sizes(self, truth: ReconstructionTruth) -> dict[str, int]:
        """Rows asked about."""
        return {"rows": len(truth.x)}


def _metrics(x: Tensor, truth: ReconstructionTruth) -> Metrics:
    mse = (x.double() - truth.x.double()).square().flatten(1).mean(1)
    made: Metrics = {"mse": metrics.mean(mse.cpu().numpy())}
    if truth.card.kind == "image":
        psnr = (-10 * mse.log10()).clamp(max=PSNR_CAP)
        made["psnr"] = metrics.mean(psnr.cpu().numpy())
        made["ssim"] = _ssim(x, truth.x)
    if truth.card.kind == "binary":
        right = ((x >= 0.5) == (truth.x >= 0.5)).double().flatten(1).mean(1)  # noqa: PLR2004
        made["bits"] = metrics.mean(right.cpu().numpy())
    if truth.card.groups:
        same = [x[:, a:b].argmax(1) == truth.x[:, a:b].argmax(1) for a, b in truth.card.groups]
        made["columns"] = metrics.mean(torch.stack(same, 1).double().mean(1).cpu().numpy())
    return made


def _ssim(x: Tensor, truth: Tensor) -> metrics.Estimate | metrics.Refused:
    """SSIM of each row (Gaussian window of 11, sigma 1.5, K1 .01, K2 .03, data range 1).

    The mean is over the whole image, mirrored at its border; scikit-image leaves the border out.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure as ssim

    if min(truth.shape[-2:]) < _SMALLEST:
        return metrics.Refused(f"SSIM's window needs images of {_SMALLEST} pixels a side")
    parts = [
        ssim(a, b, sigma=1.5, data_range=1.0, reduction="none")
        for a, b in zip(torch.split(x, _ROWS), torch.split(truth.float(), _ROWS), strict=True)
    ]
    return metrics.mean(torch.cat([torch.as_tensor(p).flatten() for p in parts]).cpu().numpy())
