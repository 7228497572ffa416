"""Networks: backbones by name, and the layers that methods build from."""

from privbench.measure.training.nets.backbones import BACKBONES, backbone, backbone_misfit
from privbench.measure.training.nets.layers import Backbone, SplitBatchNorm, gradient_reversal, mlp

__all__ = [
    "BACKBONES",
    "Backbone",
    "SplitBatchNorm",
    "backbone",
    "backbone_misfit",
    "gradient_reversal",
    "mlp",
]
