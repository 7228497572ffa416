"""The hooks of a privbench plugin.

A plugin is a module that an entry point of group ``privbench`` names and that implements any of
these hooks with ``@privbench.hookimpl``. Each hook is called once, right after its plugin is
imported. Hooks return instances, never classes. They must do no work, read no file and draw no
random number.

>>> from privbench import hookimpl
>>> from privbench.testing import TinyImages
>>> @hookimpl
... def privbench_datasets():
...     return [TinyImages()]
>>> [dataset.name for dataset in privbench_datasets()]
['tiny-images']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.target import Target

hookspec = pluggy.HookspecMarker("privbench")
hookimpl = pluggy.HookimplMarker("privbench")


class Hooks:
    """The hook specifications; ``measure.methods`` defines the classes of the instances."""

    @hookspec
    def privbench_datasets(self) -> Sequence[Dataset]:
        """Return the datasets of this plugin.

        Called when plugins are loaded. ``Dataset.card`` must be cheap, since the planner calls it
        for every grid. ``Dataset.load`` returns all rows on the CPU, in an order that never
        changes.

        Returns:
            Instances with default hyperparameters, or []. If another plugin already uses a name,
            the conflict is listed and the later dataset is ignored.
        """

    @hookspec
    def privbench_targets(self) -> Sequence[Target]:
        """Return the targets of this plugin.

        ``Target.build`` maps a card to a model whose encoder maps (n, *shape) floats in [0, 1]
        to (n, d). ``Target.phases`` says how the model is trained in one world.

        Returns:
            Instances with default hyperparameters, or [].
        """

    @hookspec
    def privbench_defenses(self) -> Sequence[Defense]:
        """Return the defenses of this plugin.

        Stages that a defense does not override are shared with ``none``. A defense must never
        widen access, read candidates, or draw from a global generator.

        Returns:
            Instances with default hyperparameters, or [].
        """

    @hookspec
    def privbench_attacks(self) -> Sequence[Attack]:
        """Return the attacks of this plugin.

        ``Attack.answer`` gets an oracle limited to ``needs | wants``, a question and a context.
        It returns membership scores (higher = more likely a member), attribute distributions or
        reconstructions. It never computes its own metrics.

        Returns:
            Instances with default hyperparameters, or [].
        """
