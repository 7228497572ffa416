"""What comes from the command line and what goes to the terminal."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench.ground.text import shown, terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def data_root_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option for the directory of datasets, with that help."""
    return click.option(
        "--data-root", type=click.Path(path_type=Path), envvar="PRIVBENCH_DATA", show_envvar=True,
        help=text,
    )  # fmt: skip


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Send what plugins print, here and in processes that start here, to standard error."""
    if sys.stdout is None:  # it is closed
        yield
        return
    sys.stdout.flush()
    before = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what C code printed
        os.dup2(before, 1)
        os.close(before)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of users and plugins as text: the border to the terminal."""
    click.echo(terminal(text), err=err, nl=nl)
