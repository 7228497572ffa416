"""What comes from the command line and what goes to the terminal."""

from __future__ import annotations

import math
from typing import Any

import click

from privbench.ground.text import shown, terminal


class Whole(click.IntRange):
    """A whole number within limits."""

    name = "whole number"


class Finite(click.FloatRange):
    """A number that is neither NaN nor infinite."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Refuse what no comparison refuses."""
        made = super().convert(value, param, ctx)
        if not math.isfinite(made):
            self.fail(f"{shown(value)} is not a finite number.", param, ctx)
        return made


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of users and plugins as text: the border to the terminal."""
    click.echo(terminal(text), err=err, nl=nl)
