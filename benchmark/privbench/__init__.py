"""Which privacy attacks work against which defenses, on which models, at what cost in utility.

Ask for help on one name, as in ``help(privbench.run)``: on all of them it is thousands of lines.

- Run and look: ``run``, ``load``, ``audit``, ``Results``, ``Plot``, ``Audit``, ``Loaded``.
- Write an attack: ``MembershipAttack``, ``AttributeAttack``, ``ReconstructionAttack``,
  ``PropertyAttack``; it gets an ``Oracle``, a question and an ``AttackContext``, and may declare
  ``Shadows`` and ``Access``. Helpers: ``likelihood_ratio``, ``scaled_logit``, ``best_threshold``.
- Write a defense: ``Defense``, ``Release``, ``Strength``, ``DefenseContext``.
- Write a target: ``Target``, ``Model``, ``Phase``, ``Step``, ``Optimizer``, ``BatchSpec``,
  ``TargetContext``. Helpers: ``supervised_phase``, ``classifier_phase``, ``backbone``, ``mlp``.
- Write a dataset: ``Dataset``, ``Card``, ``Examples``, ``CsvFile``, ``Protocol``, ``Part``.
- Write a game: ``Game``, ``new_game``, ``Board``, ``Column``, ``Estimate``, ``Refused``.
- Every plugin: ``hookimpl``, ``Paper``, ``BadInputError``; ranges: ``Ge``, ``Gt``, ``Le``, ``Lt``.

The public face of the core: a plugin needs nothing but ``from privbench import …``. Names are
loaded when first used, so that importing privbench does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privbench.ground.store.machine import make_strict
from privbench.plugins.interface import API_VERSION

if TYPE_CHECKING:
    from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf

    from privbench.api.auditing import audit
    from privbench.api.load import Loaded, load
    from privbench.api.own_model.words import Audit
    from privbench.api.results import Results
    from privbench.api.session import run
    from privbench.boards.html.plot import Plot
    from privbench.ground.columns import Board, Column
    from privbench.ground.errors import BadInputError, PrivbenchError
    from privbench.ground.store.content import file_digest
    from privbench.measure.data.augmentation import Augmentation, augment
    from privbench.measure.data.examples import Card, Examples, as_float
    from privbench.measure.data.protocol import Part, Protocol
    from privbench.measure.data.row_random import fold, row_keys, salt, uniform
    from privbench.measure.data.split import World
    from privbench.measure.games.attributes import AttributeAttack, AttributeQuestion, Attributes
    from privbench.measure.games.game import BadAnswerError, Game, new_game
    from privbench.measure.games.membership import Membership, MembershipAttack, MembershipQuestion
    from privbench.measure.games.metrics import (
        Estimate,
        Refused,
        accuracy,
        auc,
        best_threshold,
        tpr_at_fpr,
    )
    from privbench.measure.games.property import Property, PropertyAttack, PropertyQuestion
    from privbench.measure.games.reconstruction import (
        Reconstruction,
        ReconstructionAttack,
        ReconstructionQuestion,
    )
    from privbench.measure.methods.access import Access
    from privbench.measure.methods.adversary import Adversary
    from privbench.measure.methods.attack import Attack, Shadows
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import (
        AttackContext,
        DefenseContext,
        Shadow,
        TargetContext,
    )
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.defense import Defense, Release
    from privbench.measure.methods.method import Method, Paper
    from privbench.measure.methods.oracle import Oracle, Views
    from privbench.measure.methods.strength import Strength
    from privbench.measure.methods.target import Target
    from privbench.measure.training.loop import Training
    from privbench.measure.training.model import Model
    from privbench.measure.training.nets import backbone, backbone_misfit, gradient_reversal, mlp
    from privbench.measure.training.phase import (
        Batch,
        BatchSpec,
        Clock,
        Monitor,
        Optimizer,
        Outputs,
        Phase,
        Step,
        Stream,
    )
    from privbench.plugins.hookspecs import hookimpl
    from privbench.toolbox.likelihood import hinge, log_confidence, scaled_logit
    from privbench.toolbox.likelihood_ratio import likelihood_ratio
    from privbench.toolbox.phases import (
        classifier_phase,
        cross_entropy,
        reads_members,
        sees_members,
        supervised_phase,
    )
    from privbench.toolbox.tables import CsvFile

#: Public name -> the module that holds it.
HOME = {
    "Ge": "annotated_types",
    "Gt": "annotated_types",
    "Le": "annotated_types",
    "Lt": "annotated_types",
    "MaxLen": "annotated_types",
    "MinLen": "annotated_types",
    "MultipleOf": "annotated_types",
    "Access": "privbench.measure.methods.access",
    "Attributes": "privbench.measure.games.attributes",
    "AttributeQuestion": "privbench.measure.games.attributes",
    "Membership": "privbench.measure.games.membership",
    "MembershipQuestion": "privbench.measure.games.membership",
    "Property": "privbench.measure.games.property",
    "PropertyAttack": "privbench.measure.games.property",
    "PropertyQuestion": "privbench.measure.games.property",
    "Reconstruction": "privbench.measure.games.reconstruction",
    "ReconstructionQuestion": "privbench.measure.games.reconstruction",
    "Augmentation": "privbench.measure.data.augmentation",
    "augment": "privbench.measure.data.augmentation",
    "AttackContext": "privbench.measure.methods.context",
    "DefenseContext": "privbench.measure.methods.context",
    "Shadow": "privbench.measure.methods.context",
    "TargetContext": "privbench.measure.methods.context",
    "Adversary": "privbench.measure.methods.adversary",
    "Attack": "privbench.measure.methods.attack",
    "AttributeAttack": "privbench.measure.games.attributes",
    "Cell": "privbench.measure.methods.cell",
    "Dataset": "privbench.measure.methods.dataset",
    "Defense": "privbench.measure.methods.defense",
    "MembershipAttack": "privbench.measure.games.membership",
    "ReconstructionAttack": "privbench.measure.games.reconstruction",
    "Release": "privbench.measure.methods.defense",
    "Shadows": "privbench.measure.methods.attack",
    "Target": "privbench.measure.methods.target",
    "Card": "privbench.measure.data.examples",
    "Examples": "privbench.measure.data.examples",
    "as_float": "privbench.measure.data.examples",
    "BadInputError": "privbench.ground.errors",
    "PrivbenchError": "privbench.ground.errors",
    "hookimpl": "privbench.plugins.hookspecs",
    "Strength": "privbench.measure.methods.strength",
    "fold": "privbench.measure.data.row_random",
    "file_digest": "privbench.ground.store.content",
    "row_keys": "privbench.measure.data.row_random",
    "salt": "privbench.measure.data.row_random",
    "uniform": "privbench.measure.data.row_random",
    "Method": "privbench.measure.methods.method",
    "Paper": "privbench.measure.methods.method",
    "BadAnswerError": "privbench.measure.games.game",
    "Board": "privbench.ground.columns",
    "Column": "privbench.ground.columns",
    "Game": "privbench.measure.games.game",
    "new_game": "privbench.measure.games.game",
    "Estimate": "privbench.measure.games.metrics",
    "Refused": "privbench.measure.games.metrics",
    "accuracy": "privbench.measure.games.metrics",
    "auc": "privbench.measure.games.metrics",
    "best_threshold": "privbench.measure.games.metrics",
    "tpr_at_fpr": "privbench.measure.games.metrics",
    "Model": "privbench.measure.training.model",
    "backbone": "privbench.measure.training.nets",
    "backbone_misfit": "privbench.measure.training.nets",
    "gradient_reversal": "privbench.measure.training.nets",
    "mlp": "privbench.measure.training.nets",
    "Oracle": "privbench.measure.methods.oracle",
    "Views": "privbench.measure.methods.oracle",
    "Part": "privbench.measure.data.protocol",
    "Protocol": "privbench.measure.data.protocol",
    "Results": "privbench.api.results",
    "Plot": "privbench.boards.html.plot",
    "Audit": "privbench.api.own_model.words",
    "Loaded": "privbench.api.load",
    "load": "privbench.api.load",
    "audit": "privbench.api.auditing",
    "run": "privbench.api.session",
    "World": "privbench.measure.data.split",
    "Batch": "privbench.measure.training.phase",
    "BatchSpec": "privbench.measure.training.phase",
    "Clock": "privbench.measure.training.phase",
    "Monitor": "privbench.measure.training.phase",
    "Optimizer": "privbench.measure.training.phase",
    "Outputs": "privbench.measure.training.phase",
    "Phase": "privbench.measure.training.phase",
    "Step": "privbench.measure.training.phase",
    "Stream": "privbench.measure.training.phase",
    "CsvFile": "privbench.toolbox.tables",
    "classifier_phase": "privbench.toolbox.phases",
    "cross_entropy": "privbench.toolbox.phases",
    "hinge": "privbench.toolbox.likelihood",
    "likelihood_ratio": "privbench.toolbox.likelihood_ratio",
    "log_confidence": "privbench.toolbox.likelihood",
    "reads_members": "privbench.toolbox.phases",
    "scaled_logit": "privbench.toolbox.likelihood",
    "sees_members": "privbench.toolbox.phases",
    "supervised_phase": "privbench.toolbox.phases",
    "Training": "privbench.measure.training.loop",
}

__all__ = [
    "API_VERSION",
    "Access",
    "Adversary",
    "Attack",
    "AttackContext",
    "AttributeAttack",
    "AttributeQuestion",
    "Attributes",
    "Audit",
    "Augmentation",
    "BadAnswerError",
    "BadInputError",
    "Batch",
    "BatchSpec",
    "Board",
    "Card",
    "Cell",
    "Clock",
    "Column",
    "CsvFile",
    "Dataset",
    "Defense",
    "DefenseContext",
    "Estimate",
    "Examples",
    "Game",
    "Ge",
    "Gt",
    "Le",
    "Loaded",
    "Lt",
    "MaxLen",
    "Membership",
    "MembershipAttack",
    "MembershipQuestion",
    "Method",
    "MinLen",
    "Model",
    "Monitor",
    "MultipleOf",
    "Optimizer",
    "Oracle",
    "Outputs",
    "Paper",
    "Part",
    "Phase",
    "Plot",
    "PrivbenchError",
    "Property",
    "PropertyAttack",
    "PropertyQuestion",
    "Protocol",
    "Reconstruction",
    "ReconstructionAttack",
    "ReconstructionQuestion",
    "Refused",
    "Release",
    "Results",
    "Shadow",
    "Shadows",
    "Step",
    "Stream",
    "Strength",
    "Target",
    "TargetContext",
    "Training",
    "Views",
    "World",
    "accuracy",
    "as_float",
    "auc",
    "audit",
    "augment",
    "backbone",
    "backbone_misfit",
    "best_threshold",
    "classifier_phase",
    "cross_entropy",
    "file_digest",
    "fold",
    "gradient_reversal",
    "hinge",
    "hookimpl",
    "likelihood_ratio",
    "load",
    "log_confidence",
    "mlp",
    "new_game",
    "reads_members",
    "row_keys",
    "run",
    "salt",
    "scaled_logit",
    "sees_members",
    "supervised_phase",
    "tpr_at_fpr",
    "uniform",
]
__version__ = "0.2.0"
make_strict()


def __getattr__(name: str) -> Any:
    """Load a public name from its module, the first time it is asked for."""
    if name not in HOME:
        raise AttributeError(f"module 'privbench' has no attribute '{name}'")
    value = getattr(importlib.import_module(HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names."""
    return __all__
