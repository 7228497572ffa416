"""Which privacy attacks work against which defenses, on which models, at what cost in utility.

Ask for help on one name, as in ``help(privbench.run)``: on all of them it is thousands of lines.

- Run and look: ``run``, ``load``, ``audit``, ``coins``, ``compare``; ``Results``, ``Plot``,
  ``Loaded``, ``Audit``, ``Gate``, ``Comparison``.
- Write an attack: ``MembershipAttack``, ``AttributeAttack``, ``ReconstructionAttack``,
  ``PropertyAttack``; it gets an ``Oracle``, a question and an ``AttackContext``, and may declare
  ``Shadows`` and ``Access``. Helpers: ``likelihood_ratio``, ``scaled_logit``, ``best_threshold``.
- Write a defense: ``Defense``, ``Release``, ``Strength``, ``Judge``, ``DefenseContext``.
- Write a target: ``Target``, ``Model``, ``Phase``, ``Step``, ``Optimizer``, ``BatchSpec``,
  ``TargetContext``. Helpers: ``supervised_phase``, ``classifier_phase``, ``backbone``, ``mlp``.
- Write a dataset: ``Dataset``, ``Card``, ``Examples``, ``CsvFile``, ``Protocol``, ``Part``.
- Write a game: ``Game``, ``new_game``, ``Board``, ``Column``, ``Estimate``, ``Refused``.
- Every plugin: ``hookimpl``, ``Paper``, ``BadInputError``; ranges: ``Ge``, ``Gt``, ``Le``, ``Lt``.

The public face of the core: a plugin needs nothing but ``from privbench import …``. Names are
loaded when first used, so that importing privbench does not import torch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench.ground.store.machine import make_strict
from privbench.plugins.interface import API_VERSION as API_VERSION

if TYPE_CHECKING:  # the public names, one a line, and nothing else: `HOME` is read from here
    from annotated_types import Ge as Ge
    from annotated_types import Gt as Gt
    from annotated_types import Le as Le
    from annotated_types import Lt as Lt
    from annotated_types import MaxLen as MaxLen
    from annotated_types import MinLen as MinLen
    from annotated_types import MultipleOf as MultipleOf

    from privbench.api.auditing import audit as audit
    from privbench.api.comparing import Comparison as Comparison
    from privbench.api.comparing import compare as compare
    from privbench.api.load import Loaded as Loaded
    from privbench.api.load import load as load
    from privbench.api.own_model.coins import coins as coins
    from privbench.api.own_model.gate import Gate as Gate
    from privbench.api.own_model.words import Audit as Audit
    from privbench.api.published import published as published
    from privbench.api.results import Results as Results
    from privbench.api.session import run as run
    from privbench.api.victims import victims as victims
    from privbench.boards.html.plot import Plot as Plot
    from privbench.ground.columns import Board as Board
    from privbench.ground.columns import Column as Column
    from privbench.ground.errors import BadInputError as BadInputError
    from privbench.ground.errors import PrivbenchError as PrivbenchError
    from privbench.ground.judges import Judge as Judge
    from privbench.ground.store.content import file_digest as file_digest
    from privbench.measure.data.augmentation import Augmentation as Augmentation
    from privbench.measure.data.augmentation import augment as augment
    from privbench.measure.data.examples import Card as Card
    from privbench.measure.data.examples import Examples as Examples
    from privbench.measure.data.examples import as_float as as_float
    from privbench.measure.data.protocol import Part as Part
    from privbench.measure.data.protocol import Protocol as Protocol
    from privbench.measure.data.row_random import fold as fold
    from privbench.measure.data.row_random import row_keys as row_keys
    from privbench.measure.data.row_random import salt as salt
    from privbench.measure.data.row_random import uniform as uniform
    from privbench.measure.data.split import World as World
    from privbench.measure.games.attributes import AttributeAttack as AttributeAttack
    from privbench.measure.games.attributes import AttributeQuestion as AttributeQuestion
    from privbench.measure.games.attributes import Attributes as Attributes
    from privbench.measure.games.game import BadAnswerError as BadAnswerError
    from privbench.measure.games.game import Game as Game
    from privbench.measure.games.game import new_game as new_game
    from privbench.measure.games.membership import Membership as Membership
    from privbench.measure.games.membership import MembershipAttack as MembershipAttack
    from privbench.measure.games.membership import MembershipQuestion as MembershipQuestion
    from privbench.measure.games.metrics import Estimate as Estimate
    from privbench.measure.games.metrics import Refused as Refused
    from privbench.measure.games.metrics import accuracy as accuracy
    from privbench.measure.games.metrics import auc as auc
    from privbench.measure.games.metrics import best_threshold as best_threshold
    from privbench.measure.games.metrics import tpr_at_fpr as tpr_at_fpr
    from privbench.measure.games.property import Property as Property
    from privbench.measure.games.property import PropertyAttack as PropertyAttack
    from privbench.measure.games.property import PropertyQuestion as PropertyQuestion
    from privbench.measure.games.reconstruction import Reconstruction as Reconstruction
    from privbench.measure.games.reconstruction import ReconstructionAttack as ReconstructionAttack
    from privbench.measure.games.reconstruction import (
        ReconstructionQuestion as ReconstructionQuestion,
    )
    from privbench.measure.methods.access import Access as Access
    from privbench.measure.methods.adversary import Adversary as Adversary
    from privbench.measure.methods.attack import Attack as Attack
    from privbench.measure.methods.attack import Shadows as Shadows
    from privbench.measure.methods.cell import Cell as Cell
    from privbench.measure.methods.context import AttackContext as AttackContext
    from privbench.measure.methods.context import DefenseContext as DefenseContext
    from privbench.measure.methods.context import Shadow as Shadow
    from privbench.measure.methods.context import TargetContext as TargetContext
    from privbench.measure.methods.dataset import Dataset as Dataset
    from privbench.measure.methods.defense import Defense as Defense
    from privbench.measure.methods.defense import Release as Release
    from privbench.measure.methods.method import Method as Method
    from privbench.measure.methods.method import Paper as Paper
    from privbench.measure.methods.oracle import Oracle as Oracle
    from privbench.measure.methods.oracle import Views as Views
    from privbench.measure.methods.strength import Strength as Strength
    from privbench.measure.methods.target import Target as Target
    from privbench.measure.training.loop import Training as Training
    from privbench.measure.training.model import Model as Model
    from privbench.measure.training.nets import backbone as backbone
    from privbench.measure.training.nets import backbone_misfit as backbone_misfit
    from privbench.measure.training.nets import gradient_reversal as gradient_reversal
    from privbench.measure.training.nets import mlp as mlp
    from privbench.measure.training.phase import Batch as Batch
    from privbench.measure.training.phase import BatchSpec as BatchSpec
    from privbench.measure.training.phase import Clock as Clock
    from privbench.measure.training.phase import Monitor as Monitor
    from privbench.measure.training.phase import Optimizer as Optimizer
    from privbench.measure.training.phase import Outputs as Outputs
    from privbench.measure.training.phase import Phase as Phase
    from privbench.measure.training.phase import Step as Step
    from privbench.measure.training.phase import Stream as Stream
    from privbench.plugins.hookspecs import hookimpl as hookimpl
    from privbench.toolbox.likelihood import hinge as hinge
    from privbench.toolbox.likelihood import log_confidence as log_confidence
    from privbench.toolbox.likelihood import scaled_logit as scaled_logit
    from privbench.toolbox.likelihood_ratio import likelihood_ratio as likelihood_ratio
    from privbench.toolbox.phases import classifier_phase as classifier_phase
    from privbench.toolbox.phases import cross_entropy as cross_entropy
    from privbench.toolbox.phases import reads_members as reads_members
    from privbench.toolbox.phases import sees_members as sees_members
    from privbench.toolbox.phases import supervised_phase as supervised_phase
    from privbench.toolbox.tables import CsvFile as CsvFile

__version__ = "0.2.0"


def _homes() -> dict[str, str]:
    """Public name -> the module that holds it: the imports above, which do not run."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    block = next(node.body for node in tree.body if isinstance(node, ast.If))
    imports = (node for node in block if isinstance(node, ast.ImportFrom))
    return {node.names[0].name: str(node.module) for node in imports}


HOME = _homes()
__all__ = ["API_VERSION", *sorted(HOME)]  # noqa: PLE0604 - all of them are
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
