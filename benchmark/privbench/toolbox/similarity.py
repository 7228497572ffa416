"""How close an encoder puts the views of a row: closer if it was trained on the row.

Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy Defenses are Misleading. CCS 2024,
the adaptive attack on self-supervised learning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from privbench.measure.data.augmentation import Augmentation

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Card

#: The same as EncoderMI's, so that attacks share the answers.
VIEWS = Augmentation(crop=(0.2, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
#: Smallest distance of a cosine from 1 or -1 that is used (float64 cosines are exact to 1e-16).
NEAREST = 1e-12


def has_views(card: Card) -> bool:
    """Whether rows are images that may be augmented."""
    return card.kind == "image" and card.limits is not None


def similarity(embeddings: Tensor) -> Tensor:
    """Return the mean over pairs of views of ``log((1 + c) / (1 - c))``, where c is their cosine.

    Args:
        embeddings: (rows, n, d).

    Returns:
        (rows,) float64, within ±28.4, so finite for equal views.

    >>> similarity(torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [3.0, 4.0]]]))
    tensor([0.0000, 1.3863], dtype=torch.float64)
    """
    unit = F.normalize(embeddings.double(), dim=-1)
    n = unit.shape[1]
    first, second = torch.triu_indices(n, n, offset=1, device=unit.device)
    cosines = (unit @ unit.transpose(1, 2))[:, first, second]
    near, far = (1 + cosines).clamp_min(NEAREST), (1 - cosines).clamp_min(NEAREST)
    return (near.log() - far.log()).mean(1)
