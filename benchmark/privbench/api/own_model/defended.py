"""Defenses tried on a model that exists already: those that change only what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privbench.api.own_model.choice import GAMES, uncalibrated, unsuited
from privbench.api.own_model.words import TPR, Defended, number, reworded, share, strongest
from privbench.grid.judging import installed
from privbench.grid.origins import origin_of
from privbench.ground.errors import BadInputError
from privbench.ground.text import several, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench.measure.methods.defense import Defense
    from privbench.plugins.registry import Registry
    from privbench.results.record import Record
    from privbench.toolbox.looked_up import Lookup

#: Of the records of an audit, those of the model as it is.
UNDEFENDED = "none"
#: What a defense changes -> what a model must answer for it.
_ANSWERS = {"posterior": ("posteriors", "logits"), "embedding": ("embeddings",)}
#: The verdict is about the model as it is.
ABOUT = "The verdict, the gate and the claim are about the model without these defenses."


def defenses_for(
    registry: Registry,
    names: Sequence[str] | str,
    preset: str,
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Defense]:
    """Return the defenses that are wanted.

    Args:
        registry: of all methods.
        names: of the defenses.
        preset: of all methods.
        settings: method -> hyperparameters.

    Raises:
        BadInputError: if a defense trains or changes the model.
    """
    made = []
    for name in dict.fromkeys([names] if isinstance(names, str) else names):
        one: Defense = registry.get("defense", name).preset(preset)
        one = one.replace(**settings.get(name, {}))
        if one.stages() - {"release"}:
            stages = ", ".join(sorted(one.stages() - {"release"}))
            raise BadInputError(f"defense {name}: it changes how a model is trained ({stages}), "
                                "and this one is finished: name a defense of the answers, such as "
                                "confidence-masking")  # fmt: skip
        if one.release_class is None:
            raise BadInputError(f"defense {name}: it changes nothing that the model answers: leave "
                                "it out")  # fmt: skip
        made.append(one)
    return made


def judge_names(registry: Registry, defenses: Sequence[Defense]) -> list[str]:
    """Return the attacks that judge the defenses and are installed."""
    known = (installed(judge, registry, origin_of(one)) for one in defenses
             for judge in one.judged_by)  # fmt: skip
    return [*dict.fromkeys(one.name for one in known if one is not None)]


def judges_for(
    registry: Registry,
    defenses: Sequence[Defense],
    gives: str,
    lookup: Lookup | None,
    *,
    shadow: bool,
) -> tuple[list[Any], dict[str, dict[str, str]]]:
    """Return the attacks that judge the defenses, as a suite lists them.

    Also returns defense -> judge -> why it cannot be asked about a finished model; "" if it can.

    Raises:
        BadInputError: if a defense changes what the model does not answer.
    """
    chosen: list[Any] = []
    told: dict[str, dict[str, str]] = {}
    for one in defenses:
        of = one.release_class.of if one.release_class else ""
        if gives not in _ANSWERS.get(of, ()):
            raise BadInputError(f"defense {one.name}: it changes {of}s, and this model answers "
                                f"{gives}: leave it out")  # fmt: skip
        reasons = told.setdefault(one.name, {})
        for judge in one.judged_by:
            attack = installed(judge, registry, origin_of(one))
            if attack is None:
                reasons[judge.label] = "it is not installed"
                continue
            why = unsuited(attack.name, lookup)
            if attack.game not in GAMES:
                why = f"its game, {attack.game}, is not asked about a finished model"
            reasons[judge.label] = why
            if not why:
                entry = uncalibrated(attack, shadow)
                known = entry[attack.name] if isinstance(entry, dict) else {}
                chosen.append({attack.name: {**judge.fields, **known}})
    return chosen, told


def compared(
    before: Sequence[Record],
    records: Sequence[Record],
    judges: Mapping[str, Mapping[str, str]],
    *,
    no_verdict: str,
) -> tuple[Defended, ...]:
    """Return what each defense changes.

    Args:
        before: records of the model as it is.
        records: of the defended model.
        judges: from ``judges_for``.
        no_verdict: why nothing can be said about a leak; "" if it can.
    """
    by: dict[str, list[Record]] = {}
    for one in records:
        by.setdefault(one.cell.defense, []).append(one)
    made = []
    for label, after in by.items():
        reasons = {name: why or _why(after, name.partition("(")[0])
                   for name, why in judges[after[0].cell.defenses[0].name].items()}  # fmt: skip
        words = _words(label, before, after, reasons, no_verdict)
        made.append(Defended(label, words, reasons, tuple(after)))
    return tuple(made)


def lines(defended: Sequence[Defended]) -> list[str]:
    """Return the words about defenses, in lines."""
    return [*(one.words for one in defended), *([ABOUT] if defended else [])]


def _why(records: Sequence[Record], attack: str) -> str:
    """Return why an attack did not run; "" if it did."""
    of = [one for one in records if one.cell.attack.name == attack]
    if any(one.status == "ok" for one in of):
        return ""
    return next((reworded(attack, one.reason) for one in of), "it was not planned")


def _words(
    label: str,
    before: Sequence[Record],
    after: Sequence[Record],
    judges: Mapping[str, str],
    no_verdict: str,
) -> str:
    broken = [one for one in after if one.status == "failed"]
    old, new = strongest(before), strongest(after)
    if new is None:
        why = reworded(after[0].cell.defenses[0].name, (broken or [*after])[0].reason)
        return f"With {label}: not tried: {shown(why, 300)}."
    if old is None or no_verdict:
        return f"With {label}: not compared, since there is no verdict on the model as it is."
    ends = [share(one.record.metrics[TPR]) for one in (old, new)]
    parts = [
        f"AUC {_auc(old.by_auc)} -> {_auc(new.by_auc)}",
        f"members found at 1 % of false alarms {' -> '.join(ends)}",
        *_accuracy(old.record, new.record),
    ]
    judged = {name.partition("(")[0] for name, why in judges.items() if not why}
    # As they ran: their settings may be weaker than those that the defense names.
    ran = [one.cell.attack.label for one in after
           if one.status == "ok" and one.cell.attack.name in judged]  # fmt: skip
    if ran:
        parts.append(f"judged by {', '.join(dict.fromkeys(ran))}")
    elif judges:
        parts.append("no attack that it names as its judge ran, so it may protect less")
    parts += [f"left out: {name}, {shown(why, 200)}" for name, why in judges.items() if why]
    if broken:
        told = f"{broken[0].cell.attack.label}: {shown(broken[0].reason, 200)}"
        parts.append(f"{several(len(broken), 'attack')} failed ({told})")
    return f"With {label}: {'; '.join(parts)}."


def _auc(record: Record) -> str:
    return f"{number(record.metrics['auc'])} by {record.cell.attack.label}"


def _accuracy(old: Record, new: Record) -> list[str]:
    if not (old.utility and new.utility):
        return []
    a, b = old.utility["test_accuracy"], new.utility["test_accuracy"]
    return [f"accuracy on nonmembers {a:.1%} -> {b:.1%}"]
