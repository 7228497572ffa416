"""The suite of an audit: which attacks suit what the model answers and which rows there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.api.own_model import KINDS
from privbench.api.own_model.rows import ORIGIN
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.toolbox.asked_model import sums_to_one
from privbench.toolbox.regressions import RegressionAttack
from privbench.toolbox.shadow_recipe import CLONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privbench.api.own_model.rows import Rows
    from privbench.measure.methods.attack import Attack
    from privbench.plugins.registry import Registry
    from privbench.toolbox.looked_up import Lookup

#: Games whose question can be about a model that exists already.
GAMES = ("membership", "attributes")
_VECTORS = 2  # axes of answers that are no classes
_TINY = 1e-6  # a negative posterior that is a rounding error
#: What `union` weighs where no attack asks many queries for each row.
_QUICK_UNION = {"union": {"components": ["lira", "rmia", "metric-modified-entropy"]}}
#: Attacks that ask about changed rows.
CHANGES = {
    "label-cmia", "label-lira", "label-only-boundary", "label-only-noise", "order-lira",
    "adversarial-mia", "adversarial-mia-targeted",
}  # fmt: skip
#: Attacks that train more shadows once they have asked the model.
_TRAINS_MORE = {"cmia", "label-cmia", "dual-cmia", "dual-cmia-encoder", "dual-cmia-head"}
#: Attacks that take a model for a network.
_NETWORKS = {
    "dual-lira", "dual-encoder", "dual-head", "dual-cmia", "dual-cmia-encoder", "dual-cmia-head",
}  # fmt: skip
#: Attacks that train models on the rows' numbers.
_LEARNS = {"quantile", "imia", "label-only-transfer"}


def kind_of(answers: NDArray[np.float64], classes: int, wanted: str = "auto") -> str:
    """Return what a model answers, from its answers (n,) or (n, k) to the rows.

    Whole numbers (n,) are classes. Rows of nonnegative numbers that sum to 1 are posteriors; other
    ones are logits if there are as many as classes, and otherwise embeddings.

    Raises:
        BadInputError: if the answers are not of the kind that is wanted, or do not fit the classes.
    """
    if wanted not in ("auto", *KINDS):
        raise UnknownNameError("output", wanted, ("auto", *KINDS))
    answers = without_rounding(answers)
    found = _guess(answers, classes)
    if wanted == "auto" and found == "logits" and answers.min() >= 0:
        raise BadInputError(f"the model's answers: {_no_posteriors(answers)}")
    if wanted == "auto":
        wanted = found
    elif wanted == "posteriors" and found in ("logits", "embeddings"):
        raise BadInputError(f"output posteriors: {_no_posteriors(answers)}")
    elif (wanted == "labels") != (found == "labels") or (
        wanted == "logits" and found == "posteriors"
    ):
        raise BadInputError(f"output {wanted}: the model answers {found}: give output {found}, "
                            "or leave it out")  # fmt: skip
    if wanted == "embeddings":
        return wanted
    if not classes:
        raise BadInputError(f"the model answers {wanted}, and the rows have no y: give the class "
                            "of each row as y")  # fmt: skip
    if wanted != "labels" and (width := answers.shape[1]) < classes:
        raise BadInputError(f"the model knows {width} classes, 0 to {width - 1}, and y has class "
                            f"{classes - 1}, counted from 0: number the classes as the model "
                            "does")  # fmt: skip
    return wanted


def without_rounding(answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return answers without negative numbers that are rounding errors of posteriors.

    Such as of 1 minus a sum of posteriors; whatever is left is 0.
    """
    if answers.ndim < _VECTORS or not -_TINY <= answers.min() < 0:
        return answers
    cut = answers.clip(0)
    return cut if sums_to_one(cut) else answers


def _guess(answers: NDArray[np.float64], classes: int) -> str:
    if answers.ndim < _VECTORS:
        if (answers == np.round(answers)).all() and answers.min() >= 0:
            return "labels"
        raise BadInputError("the model answers one number for each row that is no class: return "
                            "the posteriors of all classes, (n, k), or name output values if it is "
                            "a regression")  # fmt: skip
    if sums_to_one(answers):
        return "posteriors"
    return "logits" if answers.shape[1] == classes else "embeddings"


def _no_posteriors(answers: NDArray[np.float64]) -> str:
    """Return why answers (n, k) are not posteriors, and what to do."""
    if answers.min() < 0:
        row = int((answers < 0).any(1).argmax())
        return (f"row {row} holds {answers[row].min():g}, so they are not posteriors: name output "
                "logits, or give their softmax")  # fmt: skip
    if sums_to_one(answers / 100):
        return "the numbers of each row sum to 100, so they are percentages: divide them by 100"
    sums = answers.sum(1)
    row = int(np.abs(sums - 1).argmax())
    return (f"the numbers of row {row} sum to {sums[row]:g}, and posteriors sum to 1: "
            "divide them by their sum, or name output logits or embeddings")  # fmt: skip


def least_of(answers: NDArray[np.float64], gives: str) -> float:
    """Return the posterior that 0 counts as: half the smallest other one; 0 if no answer is 0.

    >>> least_of(np.array([[1.0, 0.0], [0.98, 0.02]]), "posteriors")
    0.01
    """
    if gives != "posteriors" or (answers > 0).all():
        return 0.0
    return float(answers[answers > 0].min()) / 2


def is_code(recipe: Any) -> bool:
    """Return whether a recipe is code of the user's, and not the name of a target."""
    return callable(recipe) or (isinstance(recipe, str) and (recipe == CLONE or ":" in recipe))


def suite_of(
    rows: Rows,
    file: Path,
    target: Mapping[str, Any],
    *,
    attacks: Sequence[Any],
    defenses: Sequence[str] = (),
    recipe: str | Mapping[str, Any] | None,
    seeds: int,
    preset: str,
    settings: Mapping[str, Mapping[str, Any]],
    reference: bool = False,
) -> dict[str, Any]:
    """Return the suite that asks about these rows; see ``grid.suite.Suite``.

    Args:
        rows: of the audit.
        file: that holds them.
        target: hyperparameters of ``own-model``.
        attacks: from ``attacks_for``.
        defenses: names of those that are tried beside none.
        recipe: target of the shadows, or its name with hyperparameters; None if attacks train none.
        seeds: number of seeds of attacks and shadows.
        preset: of all methods.
        settings: method -> hyperparameters.
        reference: whether a defense learns from rows of its own: a quarter of the shadow rows.
    """
    parts: dict[str, Any] = {name: {"size": n, "source": name} for name, n in rows.sizes.items()}
    pool = parts.pop("shadow", {"size": 0})
    held = pool["size"] // 4 if reference else 0
    if held:
        parts["reference"] = {**pool, "size": held}
        pool = {**pool, "size": pool["size"] - held}
    protocol = {"name": "own-model", **parts, "pool": pool, "trained_elsewhere": True}
    if pool["size"]:  # shadows have reference rows too
        protocol["shadow"] = max(1, min(rows.sizes["members"], (pool["size"] - held) // 2))
    read: dict[str, Any] = {"path": str(file), "origins": ORIGIN}
    if rows.x.dtype == np.uint8:
        read["scale"] = 255.0
    return {
        "name": "audit", "datasets": [{"npz": read}], "protocols": [protocol],
        "targets": [{"own-model": dict(target)}], "attacks": list(attacks),
        "defenses": list(defenses),
        "adversaries": [{"target": recipe} if recipe else "adaptive"],
        "seeds": seeds, "preset": preset, "set": {k: dict(v) for k, v in settings.items()},
    }  # fmt: skip


def attacks_for(
    registry: Registry,
    named: Sequence[str],
    *,
    attributes: bool,
    shadow: bool,
    own: bool = False,
    lookup: Lookup | None = None,
    gives: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[list[Any], dict[str, str]]:
    """Return the attacks of an audit as a suite lists them, and why others are left out.

    All are listed whose game can be asked about such a model; the planner leaves out those whose
    access or rows are lacking. Without rows for shadows, an attack that only calibrates with them
    runs uncalibrated: it ranks rows and decides nothing. With shadows by the user's ``own`` code,
    ``union`` weighs the attacks that ask a row once, and ``lira-encoder`` is online. ``union`` also
    does so if the model gets the user's rows, which cannot be changed. A regression has attacks of
    its own.

    Raises:
        BadInputError: if an attack is named, or shadows are wanted, that such rows do not allow.
    """
    if shadow and not own and lookup and not lookup.features:
        raise BadInputError("shadow: networks learn nothing from such rows, so shadows need your "
                            "code: give a shadow recipe, a function fit(x, y, seed)")  # fmt: skip
    set_by_user = (settings or {}).get("lira-encoder", {})
    online = own and "online" not in set_by_user  # the user's code trains on the candidates
    if named:
        wanted = [_allowed(registry.get("attack", name), lookup, gives) for name in named]
        return [_reference(one, shadow=shadow, online=online, quick=lookup is not None)
                for one in wanted], {}  # fmt: skip
    chosen, left = [], {}
    attack: Attack
    for attack in registry.all("attack"):
        asked = attack.game in GAMES and (attributes or attack.game != "attributes")
        if not asked or isinstance(attack, RegressionAttack) != (gives == "values"):
            continue
        if why := unsuited(attack.name, lookup):
            left[attack.name] = why
            continue
        if attack.name in _TRAINS_MORE and (shadow or own):
            left[attack.name] = "it trains up to 96 more shadows: name it to run it"
            continue
        if attack.name in _NETWORKS:
            left[attack.name] = "it takes the model for a network: name it to run it"
            continue
        quick = own or lookup is not None
        limited = attack.max_rows is not None and not (quick and attack.name == "union")
        if attack.game == "membership" and limited:
            left[attack.name] = "it asks many queries for each row: name it to run it"
            continue
        chosen.append(_reference(attack, shadow=shadow, online=online, quick=quick))
    return chosen, left


def _reference(attack: Attack, *, shadow: bool, online: bool, quick: bool) -> Any:
    """Return how a suite names the attack, with what an audit changes in it."""
    if quick and attack.name == "union":
        return _QUICK_UNION
    if online and attack.name == "lira-encoder":
        return {"lira-encoder": {"online": True}}
    return uncalibrated(attack, shadow)


def _allowed(attack: Attack, lookup: Lookup | None, gives: str) -> Attack:
    """Return an attack that is named; refuse one that cannot be made."""
    if gives == "values" and not isinstance(attack, RegressionAttack):
        raise BadInputError(f"{attack.name}: it does not attack regressions: name one that does, "
                            "such as lira-residual")  # fmt: skip
    why = unsuited(attack.name, lookup)
    if attack.game not in GAMES:
        why = f"an audit asks about {' and '.join(GAMES)}, and it plays {attack.game}"
    if gives != "values" and isinstance(attack, RegressionAttack):
        why = f"it attacks regressions, and this model answers {gives}"
    if why:
        raise BadInputError(f"{attack.name}: {why}: leave it out")
    return attack


def unsuited(attack: str, lookup: Lookup | None) -> str:
    """Return why an attack cannot be made on rows that the model gets as they are; "" if it can."""
    if lookup is None:
        return ""
    if attack in CHANGES and getattr(getattr(lookup.rows, "dtype", None), "kind", "") == "f":
        return ("it asks about changed rows, and numbers of the rows are missing or far from all "
                "others of their column, so that they cannot be changed: fill them in, or clip "
                "them")  # fmt: skip
    if attack in CHANGES:
        return "it asks about changed rows, and only numbers in arrays can be changed"
    if attack in _LEARNS | _NETWORKS and not lookup.features:
        return "it learns from what rows hold, and nothing is known of objects of this kind"
    return ""


def uncalibrated(attack: Attack, shadow: bool) -> Any:
    """Return a reference to the attack; to one that ranks rows without shadows if need be."""
    if not shadow and attack.hyperparameters().get("calibration") == "shadow":
        try:
            attack.replace(calibration="none")
        except BadInputError:
            return attack.name
        return {attack.name: {"calibration": "none"}}
    return attack.name
