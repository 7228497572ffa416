"""Confidence masking hides how confident the model is, but never changes its label.

Four masks that papers compare against or call by other names:

- ``top``: only the k largest posteriors are released, the remaining mass is spread evenly (Shokri
  and others, IEEE S&P 2017, section VIII; k = 1 releases the label and its confidence);
- ``rounding``: posteriors rounded to a number of decimals (the same section);
- ``label``: the label only;
- ``fixed``: 1/k + 0.001 on the label and the rest spread evenly over the other classes, whatever
  the model predicts (k classes). Several implementations of label-only attacks (Choquette-Choo and
  others, ICML 2021; Li and Zhang, CCS 2021) call this MemGuard. It is not MemGuard: it has no
  budget and no membership classifier. This is the default: posteriors can still be asked for, and
  tell the label and nothing else, whereas ``top`` with k = 1 still tells its confidence.

What to expect: attacks that read confidence fall back to the correctness of the label
(``metric-correctness``), and label-only attacks work as well as without the defense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from privbench import Access, Defense, Ge, Judge, Paper, Release, Strength, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Card, DefenseContext, Model

Mask = Literal["top", "rounding", "label", "fixed"]
#: What the fixed mask adds to an even share for the label, as in those implementations.
MARGIN = 1e-3


class Masked(Release):
    """Masks posteriors."""

    of = "posterior"
    keeps_labels = True

    def __init__(self, mask: Mask, k: int, decimals: int) -> None:
        """Keep the settings; see ``ConfidenceMasking``."""
        super().__init__()
        self.mask, self.k, self.decimals = mask, k, decimals

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Mask posteriors (n, classes)."""
        del x, u
        if self.mask == "top":
            return top(value, self.k)
        if self.mask == "rounding":
            return rounded(value, self.decimals)
        classes = value.shape[1]
        own, other = (1.0, 0.0)
        if self.mask == "fixed" and classes > 1:
            own, other = 1 / classes + MARGIN, 1 / classes - MARGIN / (classes - 1)
        masked = torch.full_like(value, other)
        return masked.scatter(1, value.argmax(1, keepdim=True), own)


@dataclass(frozen=True)
class ConfidenceMasking(Defense):
    """Releases posteriors with the label and little more; labels and embeddings do not change.

    Attributes:
        mask: which of the four masks; ``label`` withdraws posteriors altogether. Preset
            ``paper`` is ``top`` with k = 1, which releases the confidence of the label.
        k: number of posteriors that ``top`` releases.
        decimals: number of decimals that ``rounding`` keeps.
    """

    name: ClassVar[str] = "confidence-masking"
    version: ClassVar[int] = 2
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "label-lira",
            "Every mask keeps the label, and labels alone give away as much as posteriors did.",
        ),
    )
    release_class: ClassVar[type[Release]] = Masked
    uses_training_data: ClassVar[bool] = False
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks Against Machine Learning Models",
        "Shokri, Stronati, Song, Shmatikov", "IEEE S&P 2017", "section VIII, mitigation",
    )  # fmt: skip
    # `rounding` is left out: neither it nor `top` tells less than the other in every case.
    strength: ClassVar[Strength | None] = Strength(
        "mask", stronger="listed", sweep=("top", "fixed", "label")
    )
    deviations: ClassVar[str] = (
        "What is released is a distribution: hidden mass is spread evenly over hidden classes, "
        "rounded posteriors are divided by their sum, and where rounding ties the label with "
        "another class, the label gets one unit of the last decimal more."
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"mask": "top", "k": 1}}

    mask: Mask = "fixed"
    k: Annotated[int, Ge(1)] = 1
    decimals: Annotated[int, Ge(0)] = 1

    def access(self, granted: Access) -> Access:
        """Grant no gradients or weights; with ``label``, no posteriors either."""
        hidden = Access.POSTERIORS if self.mask == "label" else Access.NONE
        return super().access(granted) & ~hidden

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release, which needs no training."""
        del card, model
        ctx.note(**{self.name: "touches the classifier's posteriors only, not embeddings"})
        return Masked(self.mask, self.k, self.decimals)


def top(p: Tensor, k: int) -> Tensor:
    """Keep the k largest posteriors of each row and spread the rest evenly over the others.

    >>> top(torch.tensor([[0.5, 0.25, 0.125, 0.125]]), 1).tolist()
    [[0.5, 0.1666666716337204, 0.1666666716337204, 0.1666666716337204]]
    """
    classes = p.shape[1]
    told, at = p.sort(dim=1, descending=True, stable=True)  # ties: the first, as in arg-max
    rest = told[:, k:].sum(1, keepdim=True) / max(1, classes - k)
    # For near ties, a rounding error could raise the mean up to the label.
    rest = torch.minimum(rest, told[:, :k].amin(1, keepdim=True) * (1 - torch.finfo(p.dtype).eps))
    return rest.expand_as(p).scatter(1, at[:, :k], told[:, :k])


def rounded(p: Tensor, decimals: int) -> Tensor:
    """Round posteriors to that many decimals and normalise; the label stays the only maximum.

    >>> rounded(torch.tensor([[0.46, 0.54], [0.19, 0.81]]).double(), 1)
    tensor([[0.4545, 0.5455],
            [0.2000, 0.8000]], dtype=torch.float64)
    """
    unit = 10.0**-decimals
    label = p.argmax(1, keepdim=True)
    kept = (p / unit).round()
    others = kept.scatter(1, label, -1.0).amax(1, keepdim=True)
    kept = kept.scatter(1, label, torch.maximum(kept.gather(1, label), others + 1))
    return kept / kept.sum(1, keepdim=True)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [ConfidenceMasking()]
