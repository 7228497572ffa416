"""Refusals of a suite from the index of methods, before torch is imported."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.grid.suite import Suite
    from privbench.plugins.registry import Choice


def refuse(suite: Suite, chosen: Sequence[Choice], *, make: bool = True) -> None:
    """Refuse names and values that the index knows to be wrong; planning checks all again.

    Args:
        suite: what is to run.
        chosen: plugins.
        make: whether the index is made if none is kept, which imports all plugins.

    Raises:
        PrivbenchError: as planning the suite would.
    """
    from privbench.cli.index import index, kept_index
    from privbench.cli.listed import UnlistedError
    from privbench.grid.resolver import Resolver

    known = index(chosen) if make else kept_index(chosen)
    if known is None:
        return
    known.refuse_broken_files()
    with contextlib.suppress(UnlistedError):
        resolver = Resolver(suite, known)
        for dataset in resolver.datasets:
            listed = known.get("dataset", dataset.name)
            plain = listed == dataset and suite.preset == "cpu"  # not another setting of it
            if plain and listed.attributes is not None:
                resolver.refuse_sensitive(dataset.name, listed.attributes)
            for named in suite.protocols:
                resolver.protocol(named, dataset)
