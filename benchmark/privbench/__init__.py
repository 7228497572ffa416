"""Which privacy attacks work against which defenses, on which models, at what cost in utility.

The public face of the core: a plugin needs nothing but ``from privbench import …``. Names are
loaded when first used, so that importing privbench does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privbench.machine import make_strict

if TYPE_CHECKING:
    from privbench.access import Access
    from privbench.answers import (
        AttributeQuestion,
        Attributes,
        Membership,
        MembershipQuestion,
        Reconstruction,
        ReconstructionQuestion,
    )
    from privbench.augmentation import Recipe, augment
    from privbench.context import AttackContext, DefenseContext, Shadow, TargetContext
    from privbench.contracts import (
        Adversary,
        Attack,
        AttributeAttack,
        CellCard,
        Dataset,
        Defense,
        MembershipAttack,
        ReconstructionAttack,
        Release,
        Shadows,
        Target,
    )
    from privbench.data import Card, Examples, as_float
    from privbench.errors import BadInputError, PrivbenchError
    from privbench.hookspecs import hookimpl
    from privbench.keyed import fold, row_keys, salt, uniform
    from privbench.method import Method, Paper
    from privbench.metrics import best_threshold
    from privbench.model import Model
    from privbench.nets import backbone, gradient_reversal, mlp
    from privbench.oracle import Oracle, Views
    from privbench.protocol import Part, Protocol
    from privbench.session import Results, run
    from privbench.split import World
    from privbench.training import (
        Batch,
        BatchSpec,
        Clock,
        Monitor,
        Optimizer,
        Outputs,
        Phase,
        Step,
        Stream,
        Training,
    )

_HOME = {
    "Access": "privbench.access",
    "Attributes": "privbench.answers",
    "AttributeQuestion": "privbench.answers",
    "Membership": "privbench.answers",
    "MembershipQuestion": "privbench.answers",
    "Reconstruction": "privbench.answers",
    "ReconstructionQuestion": "privbench.answers",
    "Recipe": "privbench.augmentation",
    "augment": "privbench.augmentation",
    "AttackContext": "privbench.context",
    "DefenseContext": "privbench.context",
    "Shadow": "privbench.context",
    "TargetContext": "privbench.context",
    "Adversary": "privbench.contracts",
    "Attack": "privbench.contracts",
    "AttributeAttack": "privbench.contracts",
    "CellCard": "privbench.contracts",
    "Dataset": "privbench.contracts",
    "Defense": "privbench.contracts",
    "MembershipAttack": "privbench.contracts",
    "ReconstructionAttack": "privbench.contracts",
    "Release": "privbench.contracts",
    "Shadows": "privbench.contracts",
    "Target": "privbench.contracts",
    "Card": "privbench.data",
    "Examples": "privbench.data",
    "as_float": "privbench.data",
    "BadInputError": "privbench.errors",
    "PrivbenchError": "privbench.errors",
    "hookimpl": "privbench.hookspecs",
    "fold": "privbench.keyed",
    "row_keys": "privbench.keyed",
    "salt": "privbench.keyed",
    "uniform": "privbench.keyed",
    "Method": "privbench.method",
    "Paper": "privbench.method",
    "best_threshold": "privbench.metrics",
    "Model": "privbench.model",
    "backbone": "privbench.nets",
    "gradient_reversal": "privbench.nets",
    "mlp": "privbench.nets",
    "Oracle": "privbench.oracle",
    "Views": "privbench.oracle",
    "Part": "privbench.protocol",
    "Protocol": "privbench.protocol",
    "Results": "privbench.session",
    "run": "privbench.session",
    "World": "privbench.split",
    "Batch": "privbench.training",
    "BatchSpec": "privbench.training",
    "Clock": "privbench.training",
    "Monitor": "privbench.training",
    "Optimizer": "privbench.training",
    "Outputs": "privbench.training",
    "Phase": "privbench.training",
    "Step": "privbench.training",
    "Stream": "privbench.training",
    "Training": "privbench.training",
}

__all__ = [
    "Access",
    "Adversary",
    "Attack",
    "AttackContext",
    "AttributeAttack",
    "AttributeQuestion",
    "Attributes",
    "BadInputError",
    "Batch",
    "BatchSpec",
    "Card",
    "CellCard",
    "Clock",
    "Dataset",
    "Defense",
    "DefenseContext",
    "Examples",
    "Membership",
    "MembershipAttack",
    "MembershipQuestion",
    "Method",
    "Model",
    "Monitor",
    "Optimizer",
    "Oracle",
    "Outputs",
    "Paper",
    "Part",
    "Phase",
    "PrivbenchError",
    "Protocol",
    "Recipe",
    "Reconstruction",
    "ReconstructionAttack",
    "ReconstructionQuestion",
    "Release",
    "Results",
    "Shadow",
    "Shadows",
    "Step",
    "Stream",
    "Target",
    "TargetContext",
    "Training",
    "Views",
    "World",
    "as_float",
    "augment",
    "backbone",
    "best_threshold",
    "fold",
    "gradient_reversal",
    "hookimpl",
    "mlp",
    "row_keys",
    "run",
    "salt",
    "uniform",
]
__version__ = "0.1.0"
make_strict()


def __getattr__(name: str) -> Any:
    """Load a public name from its module, the first time it is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'privbench' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names."""
    return __all__
