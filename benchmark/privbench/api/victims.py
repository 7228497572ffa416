"""Published victims: trained models of a board that a release brings along."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from privbench.api.arguments import named_as_arguments
from privbench.api.load import chosen, loaded
from privbench.api.planning import Planning
from privbench.grid.keys import code_digest
from privbench.grid.suite import read_suite
from privbench.ground.errors import BadInputError
from privbench.ground.store import bundle
from privbench.ground.text import shown

if TYPE_CHECKING:
    from privbench.api.load import Loaded

#: The file of a release that names the checksums of the others, as ``sha256sum`` writes it.
SUMS = "SHA256SUMS"


@named_as_arguments
def victims(
    board: str,
    defense: str = "none",
    *,
    folder: str | Path,
    dataset: str | None = None,
    target: str | None = None,
    data_root: str | Path | None = None,
) -> list[Loaded]:
    """Return the published victims of a board, one for each seed, on the CPU; nothing is trained.

    A release has them in ``BOARD.zip`` and ``BOARD.yaml``, with their checksums in ``SHA256SUMS``.
    Download these into one folder. They come into the store, where runs of the same suite find
    them, too. They need the code and the version of torch that made them.

    >>> import privbench
    >>> privbench.victims("digits", "talos", folder="absent")
    Traceback (most recent call last):
    privbench.ground.errors.BadInputError: absent has no SHA256SUMS: ...

    Args:
        board: name of the board.
        defense: as the board names it; a stack is ``talos+memguard``.
        folder: with these three files.
        dataset: needed where the board has several; likewise ``target``.
        target: as the board names it.
        data_root: directory of datasets; None for the one that PRIVBENCH_DATA names, if any.

    Raises:
        UnknownNameError: if the board has no such cell.
        BadInputError: if a file is missing or damaged, several models are meant, or this code or
            this torch would train other victims.
    """
    place = Path(folder)
    suite, zipped = _checked(place, f"{board}.yaml"), _checked(place, f"{board}.zip")
    asked = read_suite(suite)
    # As release_victims.py plans them, so that the keys are the same.
    options = {"out": Path(), "data_root": Path(data_root) if data_root else None,
               "device": "cpu", "threads": 1, "precision": "float32"}  # fmt: skip
    planned = Planning(asked, [], options)
    wanted = {"dataset": dataset, "target": target, "defense": defense}
    chosen(planned.planned, wanted, asked.seed_list[0])  # names first: nothing is stored for a typo
    bundle.unpack(zipped, planned.runner.store)
    made_by = suite.read_text("utf-8").partition("\n")[0].lstrip("# ")
    refusal = (
        f"these victims of '{shown(board)}' are of another code or torch. {shown(made_by, 200)} "
        f"Here are code {code_digest()}, torch {torch.__version__}: install what made them"
    )
    return [loaded(planned, wanted, "victim", seed, refusal=refusal) for seed in asked.seed_list]


def _checked(folder: Path, name: str) -> Path:
    """A file of the release; its checksum is right.

    Raises:
        BadInputError: if it is missing or has changed.
    """
    sums, file = folder / SUMS, folder / name
    here = shown(str(folder), 200)
    try:
        text = sums.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise BadInputError(
            f"{here} has no {SUMS}: download it with BOARD.zip and BOARD.yaml of the release"
        ) from None
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    known = {one[1].lstrip("*"): one[0] for one in lines if len(one) == 2}  # noqa: PLR2004
    if name not in known:
        there = ", ".join(sorted(Path(one).stem for one in known if one.endswith(".zip")))
        raise BadInputError(f"{SUMS} in {here} does not name {shown(name)}: it has {there or '-'}")
    if not file.is_file():
        raise BadInputError(f"{here} has no {shown(name)}: download it from the release")
    if hashlib.sha256(file.read_bytes()).hexdigest() != known[name]:
        raise BadInputError(
            f"{shown(str(file), 200)} has not the checksum that {SUMS} names: download it again"
        )
    return file
