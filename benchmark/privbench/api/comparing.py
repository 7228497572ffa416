"""Two versions of a model, audited alike: which one leaks more."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.api.own_model.words import Audit
from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.results.files import AUDIT, located
from privbench.results.paired import VersionChange, auc_change, tpr_change
from privbench.results.sample_files import read_samples
from privbench.results.statistics import ERROR, holm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from privbench.results.record import Record

_FPR = 0.01
_ALIKE = "Both versions answered all rows alike. "
_AUC, _TPR = "AUC", "TPR at 1 % FPR"
#: An attack with its settings, and a seed.
_Key = tuple[str, int]


@dataclass(frozen=True)
class Compared:
    """What one attack finds in both versions.

    Attributes:
        attack: its label, with the seed if that is not 0.
        changes: ``AUC`` and ``TPR at 1 % FPR`` -> old and new; the second only if there are at
            least 100 nonmembers.
        adjusted: the same -> p-value, corrected for all attacks and both metrics (Holm).
    """

    attack: str
    changes: Mapping[str, VersionChange]
    adjusted: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Two versions of a model, compared by row; ``print`` shows the verdict and a table.

    >>> import privbench
    >>> privbench.Comparison("No difference was found.", (), {}).attacks
    ()

    Attributes:
        verdict: one sentence.
        attacks: what each attack finds.
        accuracy: ``members`` and ``nonmembers`` -> (old, new), from 0 to 1; {} without classes.
    """

    verdict: str
    attacks: tuple[Compared, ...]
    accuracy: Mapping[str, tuple[float, float]]

    def __str__(self) -> str:
        """The verdict, a table of attacks, and the accuracies."""
        head = ("attack", "metric", "old", "new", "change", "p", "corrected")
        lines = [head]
        for one in self.attacks:
            for metric, of in one.changes.items():
                change = f"{of.difference:+.3f}"
                if of.low is not None and of.high is not None:
                    change += f" [{of.low:+.3f}, {of.high:+.3f}]"
                lines.append((one.attack, metric, f"{of.old:.3f}", f"{of.new:.3f}", change,
                              f"{of.p:.2g}", f"{one.adjusted[metric]:.2g}"))  # fmt: skip
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        told = [f"Accuracy on {rows}: {old:.1%} → {new:.1%} ({100 * (new - old):+.1f} points)."
                for rows, (old, new) in self.accuracy.items()]  # fmt: skip
        return "\n".join([self.verdict, "", *table, *([""] if told else []), *told])


def compare(old: str | Path | Audit, new: str | Path | Audit) -> Comparison:
    """Say whether a new version of a model leaks more than the old one.

    Both are audited on the same members and nonmembers, by the same attacks with the same settings
    and seeds; shadows may be trained by a recipe of each version's own. Rows are paired: DeLong's
    test for the AUC, a paired bootstrap for the TPR at 1 % FPR.

    >>> import numpy as np, privbench, tempfile
    >>> draw = np.random.default_rng(0)
    >>> members, others = (
    ...     {"x": draw.random((100, 4), np.float32), "y": np.arange(100) % 2} for _ in range(2))
    >>> def careful(x):
    ...     return np.full((len(x), 2), 0.5)
    >>> def careless(x):  # its posteriors tell some members
    ...     known = (np.abs(x[:, None] - members["x"][:50]).max(2) < 1e-3).any(1)
    ...     return np.where(known[:, None], [0.9, 0.1], [0.5, 0.5])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, model in (("old", careful), ("new", careless)):
    ...         audit = privbench.audit(model, members=members, nonmembers=others,
    ...                                 attacks=["metric-entropy"], out=f"{folder}/{name}")
    ...     found = privbench.compare(f"{folder}/old", f"{folder}/new")
    >>> print(found.verdict)
    The new version leaks more: the AUC of metric-entropy(calibration=none) rises from ...

    Args:
        old: an audit, its folder, or a file of results with per-sample scores (``.jsonl``).
        new: likewise.

    Raises:
        BadInputError: if they cannot be compared; one sentence that says why.
    """
    held = {which: _read(_folder(one, which), which) for which, one in (("old", old), ("new", new))}
    _refuse_other_attacks(held)
    changes: dict[_Key, dict[str, VersionChange]] = {}
    for key in held["old"]:
        (before, member, rows), (after, *same) = (_scores(held[which][key], key) for which in held)
        if not (np.array_equal(rows, same[1]) and np.array_equal(member, same[0])):
            raise BadInputError(f"{_named(key)}: the old and the new audit are about other rows: "
                                "audit both on the same rows, by one version")  # fmt: skip
        found = {_AUC: auc_change(before, after, member)}
        tpr = tpr_change(before, after, member, _FPR)
        changes[key] = found | ({} if tpr is None else {_TPR: tpr})
    adjusted = holm(
        {(k, metric): of.p for k, made in changes.items() for metric, of in made.items()}
    )
    attacks = tuple(
        Compared(_named(key), made, {metric: adjusted[key, metric] for metric in made})
        for key, made in changes.items()
    )
    records = [next(iter(one.values()))[0] for one in held.values()]
    first, second = (one.cell.target.fields.get("answered") for one in records)
    told = _ALIKE if first == second and first is not None else ""
    return Comparison(f"{told}{_verdict(attacks)}", attacks, _accuracy(*records))


#: A result and its folders, by attack and seed.
_Held = dict[_Key, tuple["Record", list[Path]]]


def _folder(given: Any, which: str) -> Path:
    """Return the folder of an audit, or a file of results."""
    if isinstance(given, Audit):
        return given.folders[0]
    if not isinstance(given, (str, PathLike)):
        raise BadInputError(f"{which}: it is a {type(given).__name__}: give an audit or its folder")
    path = Path(given)
    if path.name == AUDIT:
        return path.parent
    if not path.exists():
        raise BadInputError(f"{which}: {shown(str(path), 200)} does not exist: give the folder of "
                            "an audit")  # fmt: skip
    return path


def _read(path: Path, which: str) -> _Held:
    held: _Held = {}
    for record, places in located([path], scores=True):
        if record.status != "ok" or record.cell.game != "membership":
            continue
        if record.cell.of_audit and record.cell.defense != "none":
            continue  # an audit is about the model without a defense
        key = (record.cell.attack.label, record.seed)
        if key in held and held[key][0].cell == record.cell:  # an audit that ran twice
            held[key] = max(held[key], (record, places), key=_finished)
            continue
        if key in held:
            raise BadInputError(f"{which}: {shown(str(path), 200)} holds results of several "
                                "models: give the folder of one audit")  # fmt: skip
        held[key] = (record, places)
    if not held:
        raise BadInputError(f"{which}: {shown(str(path), 200)} holds no attack on membership that "
                            "ran: give the folder of an audit")  # fmt: skip
    return held


def _finished(held: tuple[Record, list[Path]]) -> str:
    return str(held[0].provenance.get("finished", ""))


def _refuse_other_attacks(held: Mapping[str, _Held]) -> None:
    for which, other in (("old", "new"), ("new", "old")):
        for key in held[which]:
            if key not in held[other]:
                raise BadInputError(f"{_named(key)} ran on the {which} version only: audit both "
                                    "with the same attacks, settings and seeds")  # fmt: skip
    for key, (record, _) in held["old"].items():
        apart = _differing(_settings(record), _settings(held["new"][key][0]))
        if apart:
            raise BadInputError(f"{_named(key)} ran on the two versions with another {apart}: "
                                "audit both with the same settings, by one privbench")  # fmt: skip


def _settings(record: Record) -> dict[str, Any]:
    cell, shadows = record.cell, record.cell.knows.target
    return {
        "version": cell.attack.version, "preset": cell.preset, "access": cell.access,
        "set of hyperparameters": cell.attack.fields,
        "kind of shadows": (shadows and shadows.name, cell.knows.adaptive, cell.knows.dataset),
    }  # fmt: skip


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return next((name for name in one if one[name] != other[name]), "")


def _scores(
    held: tuple[Record, list[Path]], key: _Key
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    """Return scores, truths and keys of the rows, all (n,), ordered by key and truth."""
    record, places = held
    columns = read_samples(record, places)
    if columns is None:
        raise BadInputError(f"{_named(key)} has no per-sample scores: give the folder of the "
                            "audit, or a file of `privbench merge --scores`")  # fmt: skip
    rows, member = columns["row"].astype(np.int64), columns["truth.member"].astype(bool)
    order = np.lexsort((member, rows))
    return columns["victim.scores"].astype(np.float64)[order], member[order], rows[order]


def _named(key: _Key) -> str:
    attack, seed = key
    return f"{attack}, seed {seed}" if seed else attack


def _accuracy(old: Record, new: Record) -> dict[str, tuple[float, float]]:
    names = {"members": "train_accuracy", "nonmembers": "test_accuracy"}
    return {
        rows: (float(old.utility[name]), float(new.utility[name]))
        for rows, name in names.items() if name in old.utility and name in new.utility
    }  # fmt: skip


def _verdict(attacks: tuple[Compared, ...]) -> str:
    every = [(one.adjusted[metric], one.attack, metric, of)
             for one in attacks for metric, of in one.changes.items()]  # fmt: skip
    sure = sorted((one for one in every if one[0] < ERROR), key=lambda one: one[0])
    more = [_change(*one) for one in sure if one[3].difference > 0]
    less = [_change(*one) for one in sure if one[3].difference < 0]
    if more and less:
        return (
            f"The new version leaks more by one measure and less by another: {more[0]}; {less[0]}."
        )
    if more or less:
        return f"The new version leaks {'more' if more else 'less'}: {(more or less)[0]}."
    least = min(p for p, *_ in every)
    return (
        f"No difference was found, which does not prove that there is none (the smallest corrected "
        f"p-value is {least:.2g})."
    )


def _change(p: float, attack: str, metric: str, of: VersionChange) -> str:
    verb = "rises" if of.difference > 0 else "falls"
    return (
        f"the {metric} of {attack} {verb} from {of.old:.3f} to {of.new:.3f} (corrected p = {p:.2g})"
    )
