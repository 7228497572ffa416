"""What cannot stand on one board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.ground.tokens import token_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.results.record import Record

#: What rounds otherwise everywhere -> the option.
_TRAINED_WITH = {"precision": "--precision", "threads": "--threads", "compiled": "--compile"}


def refuse_unfit(records: Sequence[Record]) -> None:
    """Refuse results that cannot stand on one board.

    Raises:
        BadInputError: if results of different presets, precisions or numbers of threads are mixed,
            or of compiled models and others, if a cell has two results for one seed (from different
            code, torch versions or devices), or if no board shows a game.
    """
    presets = sorted({record.cell.preset for record in records})
    if len(presets) > 1:
        raise BadInputError(
            f"these results mix presets {shown(', '.join(presets))}: "
            "put the results of each preset into a separate folder"
        )
    for name, option in _TRAINED_WITH.items():
        found = {shown(record.provenance.get(name, "")) for record in records} - {""}
        if len(found) > 1:
            raise BadInputError(
                f"these results were trained with different {option} ({', '.join(sorted(found))}): "
                "put the results of each into a separate folder"
            )
    refuse_twins(records)
    _refuse_unknown_games(records)


def refuse_tokens(records: Iterable[Record], texts: Mapping[str, object]) -> None:
    """Refuse to publish what looks like a token or a password.

    Args:
        records: that are published.
        texts: what is written beside them -> its text.

    Raises:
        BadInputError: naming the result and the field.
    """
    if where := token_in({name: text if isinstance(text, list) else str(text)
                          for name, text in texts.items()}):  # fmt: skip
        raise BadInputError(f"{shown(where)} holds what looks like a token or password: leave it "
                            "out, and revoke it if others could read it")  # fmt: skip
    for record in records:
        if where := token_in(vars(record) | {"roc": None}):
            raise BadInputError(
                f"result {shown(record.trial)}: {shown(where)} holds what looks like a token or "
                "password: remove this result and run it again without (a token for an endpoint "
                "goes into PRIVBENCH_ENDPOINT_TOKEN), and revoke it if others could read it"
            )


def refuse_twins(records: Iterable[Record]) -> None:
    """Refuse two results of one cell and seed.

    Raises:
        BadInputError: naming them.
    """
    seen: dict[tuple[str, int], str] = {}
    for record in records:
        if record.status != "ok":
            continue
        twin = seen.setdefault((record.cell.model_dump_json(), record.seed), record.trial)
        if twin != record.trial:
            first, second = sorted((twin, record.trial))
            raise BadInputError(
                f"{shown(record.cell.title, 200)}, seed {record.seed} has two results, from "
                "different code, torch versions, devices or threads: "
                f"remove {shown(first)}.json or {shown(second)}.json, or give one board alone"
            )


def _refuse_unknown_games(records: Iterable[Record]) -> None:
    for record in records:
        game = record.cell.game
        if record.status == "ok" and record.board is None:
            raise BadInputError(
                f"{shown(record.cell.title, 200)} plays '{shown(game)}', and its result does not "
                f"say how a board shows that: remove {shown(record.trial)}.json, or run it again"
            )
