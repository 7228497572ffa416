"""The models of the examples; ``privbench audit --model models:NAME`` calls one of these."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin
    from torch import nn


def _members(name: str) -> tuple[np.ndarray, np.ndarray]:
    folder = Path(os.environ.get("AUDIT_ROWS", "rows"))
    with np.load(folder / f"{name}-members.npz") as file:
        return file["x"].astype(np.float32), file["y"]


def forest() -> ClassifierMixin:
    """Fit a random forest to the members; its trees are grown to the end, as by default."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(100, random_state=0).fit(*_members("adult"))


def boosting() -> ClassifierMixin:
    """Fit gradient boosting to the members, with the defaults of scikit-learn."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0).fit(*_members("adult"))


def resnet() -> nn.Module:
    """Build the ResNet-18 of torchvision with ten outputs and random weights: give a checkpoint."""
    from torchvision.models import resnet18

    return resnet18(num_classes=10)
