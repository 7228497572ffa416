"""The hooks of a privbench plugin.

A plugin is a module named by an entry point of group ``privbench`` that implements any of these
with ``@privbench.hookimpl``. All four are called once, after every plugin is imported; they
return instances, never classes, do no work, read no file and draw no random number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.games.attack import Attack
    from privbench.methods.dataset import Dataset
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target

hookspec = pluggy.HookspecMarker("privbench")
hookimpl = pluggy.HookimplMarker("privbench")


class Hooks:
    """Specifications; see ``privbench.methods`` for what the instances must be."""

    @hookspec
    def privbench_datasets(self) -> Sequence[Dataset]:
        """Offer datasets.

        Called when names are looked up. ``Dataset.card`` must be cheap: the planner calls it for
        every cell; ``Dataset.load`` returns all rows on the CPU, in an order that never changes.

        Returns:
            Instances with default hyperparameters; [] offers none. A name that another plugin
            already took is listed as a clash, and the later one is left out.
        """

    @hookspec
    def privbench_targets(self) -> Sequence[Target]:
        """Offer targets.

        ``Target.build`` maps a card to a model whose encoder takes (n, *shape) floats in [0, 1]
        to (n, d); ``Target.phases`` says how it is trained in one world.

        Returns:
            Instances with default hyperparameters; [] offers none.
        """

    @hookspec
    def privbench_defenses(self) -> Sequence[Defense]:
        """Offer defenses.

        Stages that a defense does not override are shared with ``none``. A defense may never
        widen access, read candidates, or draw from a global generator.

        Returns:
            Instances with default hyperparameters; [] offers none.
        """

    @hookspec
    def privbench_attacks(self) -> Sequence[Attack]:
        """Offer attacks.

        ``Attack.answer`` gets an oracle narrowed to ``needs | wants``, a question and a context;
        it returns scores (higher = more likely a member), attribute distributions or
        reconstructions, and never a score of its own.

        Returns:
            Instances with default hyperparameters; [] offers none.
        """
