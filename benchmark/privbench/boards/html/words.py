"""Numbers of the csv file in words, and their ranges: headings of the game, and one table."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.ground.columns import Column

#: Names that no column has; all others are themselves, with spaces.
_WORDS = {
    "gap": "training minus test accuracy",
    "train_accuracy": "training accuracy",
    "probe_accuracy": "accuracy of a linear probe",
    "untrained_accuracy": "accuracy of a linear probe, untrained encoder",
    "probe_p_value": "p of the probe against the untrained encoder",
    "probe_wins": "rows that only the trained encoder's probe gets right",
    "probe_losses": "rows that only the untrained encoder's probe gets right",
    "cost seconds": "seconds of the attack",
    "cost seconds_training": "seconds of training, victim and shadows",
    "cost seconds_victim": "seconds of training, victim",
    "cost seconds_per_query": "seconds per query",
    "cost queries_per_sample": "queries per sample",
    "cost queries_own": "queries about rows of its own",
    "cost peak_bytes": "peak memory in bytes",
    "minus none": "minus no defense",
    "minus none, p": "p of the difference to no defense",
    "differs from none": "differs from no defense",
    "minus null": "minus the null victim",
    "audit_coins": "coins of the audit",
    "audit_made": "guesses of the audit",
    "audit_right": "right guesses of the audit",
    "audit_made_most": "guesses of the audit, larger share",
    "audit_right_most": "right guesses of the audit, larger share",
    "epsilon_regret": "regret of the claimed ε",
    "mu_regret": "regret of the claimed μ",
    "auc": "AUC",
    "pixels": "raw pixels",
    "untrained": "untrained encoder",
}
_RATE = re.compile(r"tpr_at_fpr_(0?\.\d+)")
#: Metrics that are shares of something.
_SHARE = re.compile(r"(.*_)?(accuracy|auc|precision|recall)|.*tpr_at_fpr_.*")


def words(name: str, columns: Sequence[Column]) -> str:
    """Return a number's name in the csv file in words.

    >>> words("null tpr_at_fpr_0.001", ()), words("majority balanced_accuracy[slant]", ())
    ('null TPR at 0.1 % FPR', 'majority balanced accuracy of slant')

    Args:
        name: a metric, a control or baseline with its metric, a utility or a cost.
        columns: of the game's table, whose headings name metrics.
    """
    if name in _WORDS:
        return _WORDS[name]
    if name.startswith("updates "):
        return f"updates of {name.removeprefix('updates ')}"
    before, metric, attribute = _parts(name)
    headings = {one.name: one.heading for one in columns if one.part == "metrics"}
    rate = _RATE.fullmatch(metric)
    told = headings.get(metric) or (
        f"TPR at {100 * float(rate[1]):g} % FPR" if rate else _spaced(metric)
    )
    return " ".join(filter(None, (_spaced(before), told, f"of {attribute}" if attribute else "")))


def ends(name: str, columns: Sequence[Column]) -> tuple[float, float]:
    """Return the range of a number: that of the game's column, [0, 1] for other shares.

    >>> ends("null recall", ()), ends("minus none", ())
    ((0.0, 1.0), (-inf, inf))
    """
    _, metric, _ = _parts(name)
    for one in columns:
        if one.name == metric:
            return (
                -math.inf if one.low is None else one.low,
                math.inf if one.high is None else one.high,
            )
    return (0.0, 1.0) if _SHARE.fullmatch(metric) else (-math.inf, math.inf)


def spaced(name: str) -> str:
    """Return a name with spaces.

    >>> spaced("public_fraction")
    'public fraction'
    """
    return name.replace("_", " ")


def _spaced(name: str) -> str:
    return _WORDS.get(name) or spaced(name)


def _parts(name: str) -> tuple[str, str, str]:
    """Control or baseline, metric, and attribute that is guessed; "" for none.

    >>> _parts("label_only accuracy[slant]")
    ('label_only', 'accuracy', 'slant')
    """
    of, _, attribute = (
        name.removesuffix("]").partition("[") if name.endswith("]") else (name, 0, "")
    )
    before, _, metric = of.rpartition(" ")
    return before, metric, attribute
