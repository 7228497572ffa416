"""Networks: backbones by name, and the layers that methods build from."""

from privbench.nets.backbones import BACKBONES, backbone
from privbench.nets.layers import Backbone, SplitBatchNorm, gradient_reversal, mlp

__all__ = ["BACKBONES", "Backbone", "SplitBatchNorm", "backbone", "gradient_reversal", "mlp"]
