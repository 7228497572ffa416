"""What the results of a board say about each other: differences, doubts, controls, code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.boards import shown as show
from privbench.ground.text import several, shown
from privbench.results.statistics import (
    ERROR,
    FEWEST_SEEDS,
    Difference,
    accuracy_interval,
    holm,
    null_p,
    paired,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from privbench.results.record import Number, Record

#: Ending of a commit's name if the checkout had other changes.
DIRTY = "-dirty"


def is_control(record: Record) -> bool:
    """Whether a leak was planted in its victim."""
    return record.cell.control


def cell_of(record: Record) -> str:
    """Return the cell as text; seeds of one cell have the same."""
    return record.cell.model_dump_json()


def by_cell(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the results of each cell, in the order of seeds."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(cell_of(record), []).append(record)
    return {cell: sorted(found, key=lambda r: r.seed) for cell, found in cells.items()}


def headline(records: Iterable[Record]) -> dict[int, float]:
    """Return seed -> main number of the game, for results that have it."""
    found = {}
    for record in records:
        if record.status == "ok" and record.board is not None:
            number = show.number(record, record.board.columns[0])
            if number is not None and number.value is not None:
                found[record.seed] = number.value
    return found


# ---- utility -------------------------------------------------------------------------------------


def tested(records: Iterable[Record]) -> str:
    """Mean test accuracy over seeds, each counted once, with its interval.

    One seed has the binomial interval of its test rows, in braces. ``several`` if results of one
    seed differ.
    """
    by_seed: dict[int, set[float]] = {}
    rows: set[float] = set()
    for record in records:
        if "test_accuracy" in record.utility:
            by_seed.setdefault(record.seed, set()).add(record.utility["test_accuracy"])
            rows.add(record.utility.get("test_rows", 0.0))
    if any(len(found) > 1 for found in by_seed.values()):
        return "several"
    values = [value for _, found in sorted(by_seed.items()) for value in found]
    if not values:
        return "–"
    made = accuracy_interval(values, int(min(rows)))
    if made is None:
        return f"{values[0]:.3f}"
    form = "{:.3f} {{{:.3f}, {:.3f}}}" if len(values) == 1 else "{:.3f} [{:.3f}, {:.3f}]"
    return form.format(made.value, made.low, made.high)


# ---- differences ---------------------------------------------------------------------------------


def accuracy(records: Iterable[Record]) -> dict[int, float]:
    """Return seed -> test accuracy of the victim."""
    key = "test_accuracy"
    return {record.seed: record.utility[key] for record in records if key in record.utility}


def to_undefended(
    records: Sequence[Record],
    read: Callable[[Iterable[Record]], Mapping[int, float]] = headline,
) -> dict[str, Difference]:
    """Return cell -> its number minus that of the same cell without a defense, paired by seed.

    Cells without a counterpart are left out. A naive adversary's counterpart may be the adaptive
    one: without a defense they are the same.

    Args:
        records: of any status.
        read: results of a cell -> number by seed, by default the main number of the game.
    """
    cells = by_cell(r for r in records if r.status == "ok")
    bases = {
        _counterpart(found[0]): read(found) for found in cells.values() if _undefended(found[0])
    }
    made = {}
    for cell, found in cells.items():
        first = found[0]
        if _undefended(first):
            continue
        base = bases.get(_counterpart(first))
        if base is None and (knows := as_adaptive(first.cell.adversary)):
            base = bases.get(_counterpart(first, knows))
        difference = paired(read(found), base or {})
        if difference is not None:
            made[cell] = difference
    return made


def as_adaptive(adversary: str) -> str:
    """Return the label of the adaptive adversary with what a naive one has; "" of another.

    >>> as_adaptive("naive, pool stl10"), as_adaptive("adaptive")
    ('adaptive, pool stl10', '')
    """
    return adversary.replace("naive", "adaptive", 1) if adversary.startswith("naive") else ""


def to_null(records: Iterable[Record]) -> Difference | None:
    """Return the main number of a cell minus that on its null victim, by seed."""
    found = list(records)
    nulls = {r.seed: n.value for r in found if (n := null(r)) is not None and n.value is not None}
    return paired(headline(found), nulls)


def significant(differences: Mapping[str, Difference]) -> set[str]:
    """Return the cells whose difference is not 0 after Holm's correction for all of them."""
    tested = {cell: one.p for cell, one in differences.items() if one.p is not None}
    return {cell for cell, p in holm(tested).items() if p < ERROR}


def _undefended(record: Record) -> bool:
    return all(defense.name == "none" for defense in record.cell.defenses)


def _counterpart(record: Record, adversary: str | None = None) -> str:
    """What a cell shares with the same cell under another defense."""
    cell = record.cell
    return cell.model_copy(
        update={"defenses": [], "protects": [], "access": "",
                "adversary": adversary or cell.adversary}
    ).model_dump_json()  # fmt: skip


# ---- doubts --------------------------------------------------------------------------------------


def doubtful(records: Sequence[Record]) -> dict[str, str]:
    """Return cell -> why it is not ranked, for all cells that are not.

    A result is flagged by its own game, the AUC on the null victims excludes 0.5 after Holm's
    correction for all cells of the board, or the encoder learnt nothing (``idle_encoder``).
    """
    cells = by_cell(r for r in records if r.status == "ok" and not is_control(r))
    told = {}
    for cell, found in cells.items():
        flags = list(dict.fromkeys(flag for record in found for flag in record.flags))
        if idle := idle_encoder(found):
            flags.append(idle)
        if flags:
            told[cell] = "; ".join(flags)
    tested = {}
    for cell, found in cells.items():
        nulls = [
            (number.value, record.sizes["members"], record.sizes["nonmembers"])
            for record in found
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
            told[cell] = f"{told[cell]}; {why}" if cell in told else why
    return told


def idle_encoder(records: Iterable[Record]) -> str:
    """Return why the encoder of a contrastive victim seems to have learnt nothing, or "".

    What attacks find in such an encoder says nothing about such targets. A linear probe tells
    labels from the trained embedding and from the untrained one. The trained one must be ahead:
    one-sided Student test of the difference by seed at .05. Rows of several seeds are not added
    up: they are rows of one dataset, and the encoders of a seed are right or wrong together. Too
    few seeds, which are a draft, must show it ahead on average.
    """
    names = "probe_accuracy", "untrained_accuracy"
    counted = {r.seed: [r.utility[name] for name in names]
               for r in records if "probe_wins" in r.utility}  # fmt: skip
    trained, untrained = ({seed: of[i] for seed, of in counted.items()} for i in range(2))
    found = paired(trained, untrained)
    if found is None:
        return ""
    ahead = found.mean > 0
    p = 1.0 if found.p is None else found.p / 2 if ahead else 1 - found.p / 2
    if ahead and (p < ERROR or found.seeds < FEWEST_SEEDS or found.p is None):
        return ""
    means = [sum(of.values()) / len(of) for of in (trained, untrained)]
    return (
        f"its encoder tells no more than an untrained one (p = {p:.2g} over "
        f"{several(found.seeds, 'seed')}): a linear probe has accuracy {means[0]:.3f} on it and "
        f"{means[1]:.3f} untrained; train it for more updates"
    )


def main(record: Record) -> Number | None:
    """Return the main number of the game; None if it was not measured."""
    return None if record.board is None else record.metrics.get(record.board.columns[0].name)


def null(record: Record) -> Number | None:
    """Return the main number of the game on the null victim; None if it was not measured."""
    if record.board is None:
        return None
    return record.controls.get("null", {}).get(record.board.columns[0].name)


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
    number = show.number(record, record.board.columns[0])
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
    protocol = str(cell.protocol.get("name", "default"))
    dataset = cell.dataset.label + ("" if protocol == "default" else f" ({protocol})")
    return dataset, cell.target.label, cell.adversary, cell.game, ", ".join(cell.sensitive)


def leaks_found(records: Sequence[Record]) -> dict[tuple[str, ...], dict[str, bool]]:
    """Return victim -> label of an attack -> whether it found the planted leak."""
    made: dict[tuple[str, ...], dict[str, bool]] = {}
    for found in by_cell(r for r in records if r.status == "ok" and is_control(r)).values():
        told = finds(found)
        if told is not None:
            of = made.setdefault(victim_of(found[0]), {})
            label = found[0].cell.attack.label
            of[label] = of.get(label, True) and told
    return made


@dataclass(frozen=True)
class Judged:
    """What does not count when attacks are compared; ``judged`` finds it for a whole board.

    Attributes:
        doubtful: cells that cannot be trusted, with all their seeds.
        leaks: victim -> label of an attack -> whether it found the planted leak.
    """

    doubtful: frozenset[str]
    leaks: Mapping[tuple[str, ...], Mapping[str, bool]]

    def mark(self, record: Record) -> str:
        """Return why a result does not count, as boards mark it: ``‡``, ``¶``, or ""."""
        if cell_of(record) in self.doubtful:
            return "‡"
        return "¶" if self.blind(record) else ""

    def blind(self, record: Record) -> bool:
        """Whether the attack missed the planted leak of such a victim.

        Where no control met the naive adversary, that of the adaptive one counts, which knows more.
        """
        own, label = victim_of(record), record.cell.attack.label
        told = self.leaks.get(own, {}).get(label)
        if told is None and (knows := as_adaptive(record.cell.adversary)):
            dataset, target, _, *rest = own
            told = self.leaks.get((dataset, target, knows, *rest), {}).get(label)
        return told is False


def judged(records: Sequence[Record]) -> Judged:
    """Return what does not count.

    Args:
        records: all of a board, with its positive controls.
    """
    return Judged(frozenset(doubtful(records)), leaks_found(records))


def control_lines(records: Sequence[Record]) -> list[str]:
    """Return one line for each victim with a planted leak: who found it, and who did not."""
    groups: dict[tuple[str, ...], dict[str, list[Record]]] = {}
    for record in records:
        if is_control(record):
            attacks = groups.setdefault(victim_of(record), {})
            attacks.setdefault(record.cell.attack.label, []).append(record)
    lines = []
    for victim, attacks in sorted(groups.items()):
        words: dict[str, list[str]] = {"found": [], "NOT found": [], "not measured": []}
        for attack, found in sorted(attacks.items()):
            told = finds(found)
            how = "not measured" if told is None else "found" if told else "NOT found"
            values = headline(found).values()
            mean = f" ({sum(values) / len(values):.3f})" if values else ""
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
