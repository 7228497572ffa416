"""What the results of a board say about each other: differences, doubts, controls, code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from privbench.boards import game_columns
from privbench.ground.text import several, shown
from privbench.results.seeds import headline, null
from privbench.results.statistics import ERROR, FEWEST_SEEDS, holm, null_p, paired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from privbench.results.record import Number, Record
    from privbench.results.seeds import Seeds, Series
    from privbench.results.statistics import Difference

    Cells = Mapping[str, Seeds]

#: Ending of a commit's name if the checkout had other changes.
DIRTY = "-dirty"


# ---- differences ---------------------------------------------------------------------------------


def none_cells(cells: Cells) -> Cells:
    """Return cell -> the same cell without a defense, for those that have one.

    That of a naive adversary may be the adaptive one's: without a defense they are the same.

    Args:
        cells: that have numbers, without positive controls.
    """
    nones = {_counterpart(of.first): of for of in cells.values() if of.first.cell.undefended}
    made = {}
    for cell, of in cells.items():
        if of.first.cell.undefended:
            continue
        none = nones.get(_counterpart(of.first))
        if none is None and (knows := as_adaptive(of.first.cell.adversary)):
            none = nones.get(_counterpart(of.first, knows))
        if none is not None:
            made[cell] = none
    return made


def minus_none(
    cells: Cells, nones: Cells, read: Callable[[Seeds], Series]
) -> dict[str, Difference]:
    """Return cell -> its number minus that of another cell, paired by seed.

    Args:
        cells: as text -> results.
        nones: cell -> results of what it is compared with.
        read: results of a cell -> the number.
    """
    found = {
        cell: paired(read(cells[cell]).by_seed, read(none).by_seed) for cell, none in nones.items()
    }
    return {cell: one for cell, one in found.items() if one is not None}


def as_adaptive(adversary: str) -> str:
    """Return the label of the adaptive adversary with what a naive one has; "" of another.

    >>> as_adaptive("naive, pool stl10"), as_adaptive("adaptive")
    ('adaptive, pool stl10', '')
    """
    return adversary.replace("naive", "adaptive", 1) if adversary.startswith("naive") else ""


def _counterpart(record: Record, adversary: str | None = None) -> str:
    """What a cell shares with the same cell under another defense."""
    cell = record.cell
    return cell.model_copy(
        update={"defenses": [], "protects": [], "access": "",
                "adversary": adversary or cell.adversary}
    ).model_dump_json()  # fmt: skip


# ---- doubts --------------------------------------------------------------------------------------


def doubtful(cells: Cells) -> dict[str, str]:
    """Return cell -> why it is not ranked, for all cells that are not.

    A result is flagged by its own game, the AUC on the null victims excludes 0.5 after Holm's
    correction for all cells of the board, or the encoder learnt nothing (``idle_encoder``).

    Args:
        cells: of a board that have numbers, without positive controls.
    """
    told: dict[str, list[str]] = {}
    tested = {}
    for cell, of in cells.items():
        flags = [*dict.fromkeys(flag for record in of.ok for flag in record.flags)]
        flags += [idle] if (idle := idle_encoder(of)) else []
        if flags:
            told[cell] = flags
        nulls = [
            (number.value, record.sizes["members"], record.sizes["nonmembers"])
            for record in of.ok
            if (number := null(record)) is not None
            and number.value is not None
            and record.sizes.get("members")
            and record.sizes.get("nonmembers")
        ]
        if nulls:
            tested[cell] = null_p(nulls)
    for cell, p in holm(tested).items():
        if p < ERROR:
            why = f"the AUC on its null victims is not 0.5 (p = {p:.2g} after Holm)"
            told.setdefault(cell, []).append(why)
    return {cell: "; ".join(why) for cell, why in told.items()}


def idle_encoder(of: Seeds) -> str:
    """Return why the encoder of a contrastive victim seems to have learnt nothing, or "".

    What attacks find in such an encoder says nothing about such targets. A linear probe tells
    labels from the trained embedding and from the untrained one. The trained one must be ahead:
    one-sided Student test of the difference by seed at .05. Rows of several seeds are not added
    up: they are rows of one dataset, and the encoders of a seed are right or wrong together. Too
    few seeds, which are a draft, must show it ahead on average.
    """
    counted = of.number("utility", "probe_wins").by_seed
    trained, untrained = (
        {seed: n for seed, n in of.number("utility", name).by_seed.items() if seed in counted}
        for name in ("probe_accuracy", "untrained_accuracy")
    )
    found = paired(trained, untrained)
    if found is None:
        return ""
    ahead = found.mean > 0
    p = 1.0 if found.p is None else found.p / 2 if ahead else 1 - found.p / 2
    if ahead and (p < ERROR or found.seeds < FEWEST_SEEDS or found.p is None):
        return ""
    means = [sum(one.values()) / len(one) for one in (trained, untrained)]
    return (
        f"its encoder is not shown to tell more than an untrained one (p = {p:.2g} over "
        f"{several(found.seeds, 'seed')}): a linear probe has accuracy {means[0]:.3f} on it and "
        f"{means[1]:.3f} untrained; train it for more updates"
    )


@dataclass(frozen=True)
class Range:
    """Mean, smallest and largest of some results' numbers; how many, and of how many seeds."""

    mean: float
    low: float
    high: float
    count: int
    seeds: int


def _range(found: Iterable[tuple[int, Number | None]]) -> Range | None:
    known = [(seed, one.value) for seed, one in found if one is not None and one.value is not None]
    if not known:
        return None
    values = [value for _, value in known]
    seeds = {seed for seed, _ in known}
    return Range(math.fsum(values) / len(values), min(values), max(values), len(values), len(seeds))


def nulls(records: Sequence[Record]) -> list[tuple[str, Range]]:
    """Return name of the headline and what attacks reach on null victims, for each game.

    Args:
        records: results with numbers, without positive controls.
    """
    made = []
    for game in game_columns.games(records):
        mine = [record for record in records if record.cell.game == game]
        if found := _range((record.seed, null(record)) for record in mine):
            made.append((game_columns.headline_column(game, mine)[0].heading, found))
    return made


def input_only(records: Iterable[Record]) -> Range | None:
    """Return what classifiers of inputs alone reach; None if there are none."""
    return _range((one.seed, one.baselines.get("blind", {}).get("auc")) for one in records)


def probes(records: Iterable[Record]) -> dict[str, tuple[float, float]]:
    """Return victim without a defense -> mean accuracy of a linear probe, and of an untrained."""
    names = "probe_accuracy", "untrained_accuracy"
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for record in records:
        cell = record.cell
        if cell.undefended and all(name in record.utility for name in names):
            measured = tuple(record.utility[name] for name in names)
            found.setdefault(f"{cell.target.label} on {cell.data}", {})[record.seed] = measured
    made = {}
    for victim, by_seed in found.items():
        pairs = [by_seed[seed] for seed in sorted(by_seed)]
        trained, untrained = (sum(of) / len(pairs) for of in zip(*pairs, strict=True))
        made[victim] = trained, untrained
    return made


# ---- positive controls ---------------------------------------------------------------------------


def finds(records: Iterable[Record]) -> bool | None:
    """Return whether an attack found the planted leak: in every seed, beyond its own interval.

    That is an AUC whose 95 % interval lies above 0.5, an accuracy whose interval lies above both
    guesses without the victim, or an MSE whose interval lies below that of the mean image.

    Returns:
        None if no result tells.
    """
    told = [found for record in records if (found := _found(record)) is not None]
    return all(told) if told else None


def _found(record: Record) -> bool | None:
    if record.board is None:
        return None
    name, higher = record.board.columns[0].name, record.board.higher
    number = headline(record)
    if number is None or number.low is None or number.high is None:
        return None
    guesses = [
        guess.value
        for metrics in record.baselines.values()
        if (guess := metrics.get(name)) is not None and guess.value is not None
    ]
    if name == "auc":
        guesses = [0.5]  # the blind classifier learns from the truth, so it is not a guess
    if not guesses:
        return None
    return number.low > max(guesses) if higher else number.high < min(guesses)


def victim_of(record: Record) -> tuple[str, ...]:
    """Return what a positive control shares with the cells that it is the control of."""
    cell = record.cell
    return (
        record.cell.data,
        cell.target.label,
        cell.adversary,
        cell.game,
        ", ".join(cell.sensitive),
    )


def planted_found(controls: Iterable[Seeds]) -> dict[tuple[str, ...], dict[str, bool]]:
    """Return victim -> label of an attack -> whether it found the planted leak.

    Args:
        controls: positive controls that have numbers.
    """
    made: dict[tuple[str, ...], dict[str, bool]] = {}
    for found in controls:
        told = finds(found.ok)
        if told is not None:
            of = made.setdefault(victim_of(found.first), {})
            label = found.first.cell.attack.label
            of[label] = of.get(label, True) and told
    return made


def missed_planted(record: Record, planted: Mapping[tuple[str, ...], Mapping[str, bool]]) -> bool:
    """Return whether the attack missed the planted leak of such a victim.

    Where no control met the naive adversary, that of the adaptive one counts, which knows more.

    Args:
        record: of the attack.
        planted: from ``planted_found``.
    """
    own, label = victim_of(record), record.cell.attack.label
    told = planted.get(own, {}).get(label)
    if told is None and (knows := as_adaptive(record.cell.adversary)):
        dataset, target, _, *rest = own
        told = planted.get((dataset, target, knows, *rest), {}).get(label)
    return told is False


class Counted(Protocol):
    """What the lines on controls need of a ``Leaderboard``."""

    @property
    def cells(self) -> Mapping[str, Seeds]:
        """See ``Leaderboard``."""

    def seeds(self, records: Iterable[Record]) -> Seeds:
        """See ``Leaderboard``."""


def control_lines(board: Counted) -> list[str]:
    """Return one line for each victim with a planted leak: who found it, and who did not."""
    groups: dict[tuple[str, ...], dict[str, list[Seeds]]] = {}
    for of in board.cells.values():
        if of.first.cell.control:
            attacks = groups.setdefault(victim_of(of.first), {})
            attacks.setdefault(of.first.cell.attack.label, []).append(of)
    lines = []
    for victim, attacks in sorted(groups.items()):
        words: dict[str, list[str]] = {"found": [], "NOT found": [], "not measured": []}
        for attack, cells in sorted(attacks.items()):
            found = board.seeds(record for of in cells for record in of.records)
            told = finds(found.records)
            how = "not measured" if told is None else "found" if told else "NOT found"
            mean = f" ({found.headline.mean:.3f})" if found.headline.numbers else ""
            words[how].append(f"{attack}{mean}")
        dataset, target, adversary, game, sensitive = victim
        asked = f"{game} [{sensitive}]" if game == "attributes" else game
        line = "; ".join(f"{how} by {', '.join(names)}" for how, names in words.items() if names)
        lines.append(f"{dataset}, {target}, {adversary} adversary, {asked}: {line}")
    return lines


# ---- code ----------------------------------------------------------------------------------------


def codes(records: Iterable[Record]) -> list[tuple[str, str, int]]:
    """Return the code that made the results, ordered by commit.

    Results of equal digests come from equal code, whatever their commits.

    Returns:
        Commit, digest and number of results of each code. Of several commits it is the first clean
        one; "" if none is known. The digest is "" if results do not name it.
    """
    found: dict[str, list[str]] = {}
    for record in records:
        commit, digest = (record.provenance.get(name) for name in ("commit", "code"))
        at = commit if isinstance(commit, str) else ""
        code = f" {digest}" if isinstance(digest, str) and digest else at
        found.setdefault(code, []).append(at)
    made = []
    for code, commits in found.items():
        one = min(commits, key=lambda name: (not name, name.endswith(DIRTY), name))
        made.append((one, code[1:13] if code.startswith(" ") else "", len(commits)))
    return sorted(made)


def code_lines(records: Iterable[Record]) -> list[str]:
    """Return which code made the results; a warning if it is not known or not committed."""
    found = codes(records)
    unknown = sum(count for commit, _, count in found if not commit)

    def listed(dirty: bool) -> str:
        return ", ".join(
            f"{shown(commit.removesuffix(DIRTY))}"
            f"{digest and f', digest {shown(digest)}'} ({count} results)"
            for commit, digest, count in found
            if commit and commit.endswith(DIRTY) == dirty
        )

    lines = []
    if clean := listed(dirty=False):
        lines.append(f"Code: clean checkout of commit {clean}.")
    if dirty := listed(dirty=True):
        lines.append(f"WARNING: code that was never committed, on top of commit {dirty}.")
    if unknown:
        lines.append(
            f"WARNING: unknown code: {unknown} results name no commit; runs from a git checkout "
            "name theirs."
        )
    return lines
