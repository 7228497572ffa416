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

from privbench.store.machine import make_strict

if TYPE_CHECKING:
    from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf

    from privbench.api.auditing import audit
    from privbench.api.load import Loaded, load
    from privbench.api.own_model.words import Audit
    from privbench.api.results import Results
    from privbench.api.session import run
    from privbench.boards.html.plot import Plot
    from privbench.data.augmentation import Augmentation, augment
    from privbench.data.examples import Card, Examples, as_float
    from privbench.data.protocol import Part, Protocol
    from privbench.data.row_random import fold, row_keys, salt, uniform
    from privbench.data.split import World
    from privbench.errors import BadInputError, PrivbenchError
    from privbench.games.access import Access
    from privbench.games.attack import Attack, Shadows
    from privbench.games.attributes import AttributeAttack, AttributeQuestion, Attributes
    from privbench.games.board import Board, Column
    from privbench.games.game import BadAnswerError, Game, new_game
    from privbench.games.membership import Membership, MembershipAttack, MembershipQuestion
    from privbench.games.metrics import (
        Estimate,
        Refused,
        accuracy,
        auc,
        best_threshold,
        tpr_at_fpr,
    )
    from privbench.games.oracle import Oracle, Views
    from privbench.games.property import Property, PropertyAttack, PropertyQuestion
    from privbench.games.reconstruction import (
        Reconstruction,
        ReconstructionAttack,
        ReconstructionQuestion,
    )
    from privbench.method import Method, Paper
    from privbench.methods.adversary import Adversary
    from privbench.methods.cell import Cell
    from privbench.methods.context import AttackContext, DefenseContext, Shadow, TargetContext
    from privbench.methods.dataset import Dataset
    from privbench.methods.defense import Defense, Release
    from privbench.methods.hookspecs import hookimpl
    from privbench.methods.strength import Strength
    from privbench.methods.target import Target
    from privbench.store.content import file_digest
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
    from privbench.training.loop import Training
    from privbench.training.model import Model
    from privbench.training.nets import backbone, backbone_misfit, gradient_reversal, mlp
    from privbench.training.phase import (
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

#: The version of the plugin interface, "MAJOR.MINOR". A plugin may state the one that it is
#: written for as ``PRIVBENCH_API``. MINOR grows when something is added, MAJOR when plugins must
#: change.
API_VERSION = "1.0"

#: Public name -> the module that holds it.
HOME = {
    "Ge": "annotated_types",
    "Gt": "annotated_types",
    "Le": "annotated_types",
    "Lt": "annotated_types",
    "MaxLen": "annotated_types",
    "MinLen": "annotated_types",
    "MultipleOf": "annotated_types",
    "Access": "privbench.games.access",
    "Attributes": "privbench.games.attributes",
    "AttributeQuestion": "privbench.games.attributes",
    "Membership": "privbench.games.membership",
    "MembershipQuestion": "privbench.games.membership",
    "Property": "privbench.games.property",
    "PropertyAttack": "privbench.games.property",
    "PropertyQuestion": "privbench.games.property",
    "Reconstruction": "privbench.games.reconstruction",
    "ReconstructionQuestion": "privbench.games.reconstruction",
    "Augmentation": "privbench.data.augmentation",
    "augment": "privbench.data.augmentation",
    "AttackContext": "privbench.methods.context",
    "DefenseContext": "privbench.methods.context",
    "Shadow": "privbench.methods.context",
    "TargetContext": "privbench.methods.context",
    "Adversary": "privbench.methods.adversary",
    "Attack": "privbench.games.attack",
    "AttributeAttack": "privbench.games.attributes",
    "Cell": "privbench.methods.cell",
    "Dataset": "privbench.methods.dataset",
    "Defense": "privbench.methods.defense",
    "MembershipAttack": "privbench.games.membership",
    "ReconstructionAttack": "privbench.games.reconstruction",
    "Release": "privbench.methods.defense",
    "Shadows": "privbench.games.attack",
    "Target": "privbench.methods.target",
    "Card": "privbench.data.examples",
    "Examples": "privbench.data.examples",
    "as_float": "privbench.data.examples",
    "BadInputError": "privbench.errors",
    "PrivbenchError": "privbench.errors",
    "hookimpl": "privbench.methods.hookspecs",
    "Strength": "privbench.methods.strength",
    "fold": "privbench.data.row_random",
    "file_digest": "privbench.store.content",
    "row_keys": "privbench.data.row_random",
    "salt": "privbench.data.row_random",
    "uniform": "privbench.data.row_random",
    "Method": "privbench.method",
    "Paper": "privbench.method",
    "BadAnswerError": "privbench.games.game",
    "Board": "privbench.games.board",
    "Column": "privbench.games.board",
    "Game": "privbench.games.game",
    "new_game": "privbench.games.game",
    "Estimate": "privbench.games.metrics",
    "Refused": "privbench.games.metrics",
    "accuracy": "privbench.games.metrics",
    "auc": "privbench.games.metrics",
    "best_threshold": "privbench.games.metrics",
    "tpr_at_fpr": "privbench.games.metrics",
    "Model": "privbench.training.model",
    "backbone": "privbench.training.nets",
    "backbone_misfit": "privbench.training.nets",
    "gradient_reversal": "privbench.training.nets",
    "mlp": "privbench.training.nets",
    "Oracle": "privbench.games.oracle",
    "Views": "privbench.games.oracle",
    "Part": "privbench.data.protocol",
    "Protocol": "privbench.data.protocol",
    "Results": "privbench.api.results",
    "Plot": "privbench.boards.html.plot",
    "Audit": "privbench.api.own_model.words",
    "Loaded": "privbench.api.load",
    "load": "privbench.api.load",
    "audit": "privbench.api.auditing",
    "run": "privbench.api.session",
    "World": "privbench.data.split",
    "Batch": "privbench.training.phase",
    "BatchSpec": "privbench.training.phase",
    "Clock": "privbench.training.phase",
    "Monitor": "privbench.training.phase",
    "Optimizer": "privbench.training.phase",
    "Outputs": "privbench.training.phase",
    "Phase": "privbench.training.phase",
    "Step": "privbench.training.phase",
    "Stream": "privbench.training.phase",
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
    "Training": "privbench.training.loop",
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
