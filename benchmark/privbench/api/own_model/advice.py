"""What an audit means for a reader without statistics, and what to do next, by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.api.own_model.words import BOUND, CHANCE, TPR, guessed, risk
from privbench.ground.text import several, shown

if TYPE_CHECKING:
    from privbench.api.own_model.document import Document
    from privbench.api.own_model.words import Reached, Strongest

#: Nonmembers below which the share found at 1 % of false alarms says little.
_MANY = 1000
_GAP = 0.01  # difference of accuracies, or share of the error, that is called overfitting
_NAMED = 3  # groups in a sentence
_QUESTION = (
    "The question: somebody who holds a row and may ask the model wants to know whether the row "
    "was in its training data. Being in it may itself be the secret."
)
_INTERVALS = (
    "The intervals: of 100 such audits with other rows of the same kind, 95 have an interval that "
    "holds the true figure of an attack named before. The strongest of several looks a little "
    "stronger than it is; whether there is a leak is said with that in mind."
)
_LIMIT = "Attacks can show that something leaks. They cannot show that nothing does."
_CONFIDENCE = (
    "The model is about as often right on both sets, so how sure it is tells them apart. Answer "
    "classes only, or coarser numbers (the defense confidence-masking shows what that changes), or "
    "train with differential privacy."
)
_KEEP = (
    "Keep this sheet with the model. Audit every new version on the same rows, and compare: "
    "privbench compare OLD NEW."
)


def meaning(best: Strongest | None, first: Reached | None) -> list[str]:
    """Return what the figures of the strongest attack mean, a sentence or two each.

    Args:
        best: from ``strongest``.
        first: from ``reached``.
    """
    told = [_QUESTION]
    if best is None:
        return told
    tpr, auc, wrong = best.record.metrics[TPR].value, best.record.metrics["auc"].value, CHANCE
    if first is not None and first.tpr.value is not None and first.fpr.value is not None:
        tpr, wrong = first.tpr.value, first.fpr.value
    if tpr is not None:
        chance = guessed(best.record) if first is None else wrong
        told.append(
            f"Of 1,000 members the attack names about {1000 * tpr:.0f}, if it may also name "
            f"{1000 * wrong:.0f} of 1,000 rows that were not in the data. By guessing it would "
            f"name {1000 * chance:.0f}."
        )
    if auc is not None:
        told.append(
            f"The AUC: shown a member and a nonmember, it tells which is which in {100 * auc:.0f} "
            "of 100 cases. Tossing a coin does so in 50."
        )
    return [*told, _INTERVALS, _LIMIT]


def advice(of: Document, best: Strongest | None, duplicates: int) -> list[tuple[str, str]]:
    """Return causes and what to do about each, the most important first.

    Args:
        of: the audit.
        best: from ``strongest``.
        duplicates: members that are equal to an earlier member.
    """
    if of.no_verdict or best is None:
        why = of.no_verdict or "no attack on membership ran"
        return [("No verdict", f"Correct this first, then audit again: {shown(why, 400)}.")]
    leak = risk(best, of.subgroups).state != "none"
    made = {"Overfitting": _overfitting(of) if leak else ""}
    made["Confidence"] = _CONFIDENCE if leak and _equally_right(of) else ""
    if duplicates:
        made["Duplicates"] = (
            f"{several(duplicates, 'member')} {'is' if duplicates == 1 else 'are'} equal to "
            "another member. Rows that a model sees several times are remembered best: drop the "
            "copies and train again."
        )
    if of.subgroups is not None and (more := of.subgroups.more):
        named = ", ".join(shown(one.name, 36) for one in more[:_NAMED])
        made["Groups"] = (
            f"{named}: look for few or odd rows there; collect more of them, or decide by the "
            "figures of the group, not by the average."
        )
    few = min(of.data.members, of.data.nonmembers) < _MANY
    if few or best.perhaps:
        need = _MANY if few else 2 * min(of.data.members, of.data.nonmembers)
        made["Few rows"] = (
            f"There are {of.data.members:,} members and {of.data.nonmembers:,} nonmembers. The "
            f"share found at 1 % of false alarms rests on {int(CHANCE * of.data.nonmembers)} "
            f"of the nonmembers: give {need:,} or more of each before you decide by it."
        )
    if of.shadows is None or not of.shadows.code:
        made["No shadows"] = (
            f"{BOUND} Give a shadow recipe: clone, or a function fit(x, y, seed) that trains it."
        )
    elif of.shadows.far:
        made["Other shadows"] = (
            "The shadows are not right as often as the model, on their own rows or on others: "
            "give all training rows as members, or correct the shadow recipe, so that it trains as "
            "the model was trained."
        )
    if of.shift is not None and of.shift.found:
        made["Other source"] = (
            "Members and nonmembers differ in more than membership: take nonmembers from the "
            "same source and time."
        )
    made["No leak found"] = "" if leak or "Groups" in made else _KEEP
    return [(cause, what) for cause, what in made.items() if what]


def _equally_right(of: Document) -> bool:
    """Whether a model that answers more than a class is as often right on both sets."""
    inside, outside = (of.utility.get(name) for name in ("train_accuracy", "test_accuracy"))
    known = inside is not None and outside is not None and inside - outside <= _GAP
    return known and of.model.gives in {"posteriors", "logits"}


def _overfitting(of: Document) -> str:
    """Return what to do if the model is better on its members; "" if it is not."""
    if not (gap := _gap(of)):
        return ""
    few = of.model.members_per_parameter
    beside = f" It has {1 / few:,.0f} parameters for each member." if few and few < 1 else ""
    return (
        f"{gap}{beside} Stop earlier, regularise more (larger leaves, weight decay), use a "
        "smaller model or more rows, or train with differential privacy."
    )


def _gap(of: Document) -> str:
    """Return how much better a model is on its members, in a sentence; "" if it is not."""
    if of.errors is not None:
        inside, outside = of.errors.members, of.errors.nonmembers
        told = f"The model's root mean squared error is {inside:.4g} on members, {outside:.4g} on "
        return f"{told}nonmembers." if inside < (1 - _GAP) * outside else ""
    right, rest = (of.utility.get(name) for name in ("train_accuracy", "test_accuracy"))
    if right is None or rest is None or right - rest <= _GAP:
        return ""
    return f"The model is right about {right:.1%} of the members and {rest:.1%} of the nonmembers."
