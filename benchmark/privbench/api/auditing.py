"""The audit of a model that exists already: what the command and a notebook call."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from rich.console import Console
from torch.nn.parameter import UninitializedParameter

from privbench.api.arguments import named_as_arguments
from privbench.api.own_model import formats, identity, reach
from privbench.api.own_model import gate as gates
from privbench.api.own_model.answers import as_given, read_answers
from privbench.api.own_model.choice import attacks_for, is_code, kind_of, least_of, suite_of
from privbench.api.own_model.claim import claimed
from privbench.api.own_model.defended import UNDEFENDED, defenses_for, judge_names, judges_for
from privbench.api.own_model.errors import errors
from privbench.api.own_model.misfit import deaf, misfit, strange, swapped
from privbench.api.own_model.printed import browser
from privbench.api.own_model.rows import FEWEST, read_rows
from privbench.api.own_model.shadow_fit import shadow_fit, unheard
from privbench.api.own_model.sums import LEDGER
from privbench.api.own_model.telling import documented, told
from privbench.api.own_model.words import reworded
from privbench.api.planning import Planning
from privbench.api.session import Session
from privbench.grid.plan import NothingRunsError
from privbench.grid.suite import suite_from
from privbench.grid.trial import cell_record
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.store.store import default_root
from privbench.ground.text import several, shown
from privbench.plugins import registry as registries
from privbench.results.files import AUDIT, read_all
from privbench.toolbox.asked_model import of_both
from privbench.toolbox.foreign_model import classes as named_classes
from privbench.toolbox.opened_model import RECIPE, opened_once
from privbench.toolbox.row_files import Reading
from privbench.toolbox.shadow_recipe import CLONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from privbench.api.own_model.claim import Claim
    from privbench.api.own_model.rows import Given, Rows
    from privbench.api.own_model.words import Audit
    from privbench.measure.methods.cell import Cell
    from privbench.plugins.registry import Choice, Registry

_BLOCK = 256  # rows of the first query
_TWO = 2  # classes, and sets
_CLASSIFIES = {"labels", "posteriors", "logits"}
_TAKEN = "The model's answers were taken for {}."
_CLEARLY = 0.1  # by so much logits are right more often than the largest class
_LOGIT = ("The model answers one number for each row, which is read as the logit of class 1. If it "
          "is a regression, name output values.")  # fmt: skip


@named_as_arguments
def audit(
    model: Any = None,
    *,
    members: Given,
    nonmembers: Given,
    shadow: Given | None = None,
    shadow_recipe: str | Callable[..., Any] | None = None,
    attributes: Given | None = None,
    claim: str | Sequence[float] | None = None,
    coins: str | Path | None = None,
    label: str = "y",
    checkpoint: str | Path = "",
    output: str = "auto",
    attacks: Sequence[str] | str = (),
    defenses: Sequence[str] | str = (),
    out: str | Path = "audit",
    model_version: str = "",
    rate: float = 0.0,
    retries: int = 5,
    batch: int = 64,
    request_timeout: float = 60.0,
    deadline: float = 0.0,
    format: str = "",  # noqa: A002 - the option's name
    request: str | Path = "",
    answer: str = "",
    max_queries: int = 0,
    seeds: int = 1,
    preset: str = "cpu",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "auto",
    jobs: int | str = 1,
    fail_above: Mapping[str, float] | None = None,
    junit: str | Path | None = None,
    sarif: str | Path | None = None,
    pdf: bool = False,
    plugins: Sequence[str | Path] = (),
    console: Console | None = None,
) -> Audit:
    """Attack a model that exists already, and say what leaks.

    >>> import numpy as np, privbench, tempfile
    >>> draw = np.random.default_rng(0)
    >>> members, others = (
    ...     {"x": draw.random((200, 4), np.float32), "y": np.arange(200) % 2} for _ in range(2))
    >>> def model(x):  # sure of rows that it has seen
    ...     near = np.abs(x[:, None] - members["x"]).max(2)
    ...     sure = np.where(near.min(1) < 1e-3, 0.99, 0.5)
    ...     one = np.where(members["y"][near.argmin(1)] == 1, sure, 1 - sure)
    ...     return np.stack([1 - one, one], 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = privbench.audit(model, members=members, nonmembers=others, out=folder,
    ...                             attacks=["metric-confidence"])
    >>> found[0].metrics["auc"].value
    1.0

    Args:
        model: a torch module, an estimator with ``predict_proba`` (or ``predict``), a session of
            ONNX Runtime, a function from an array (n, *shape) float32 to answers (n, k) or (n,);
            ``"module:function"``, where the function takes no argument and returns one of these; a
            file of ONNX; or the address of an endpoint. None if the rows are what it answered: x is
            (n, k), or a table with a column for each class.
        members: rows that the model was trained on, and their classes, or the numbers that a
            regression is to answer: a file (``.npz``, csv, parquet, JSON lines), a mapping of ``x``
            and ``y``, a pair (x, y), or a DataFrame of pandas or polars. x is an array (n, *shape),
            a DataFrame, or a list of any objects, such as texts. A model gets an array of numbers
            as float32, anything else as it is.
        nonmembers: rows from the same source that it was not trained on, none of them a member.
        shadow: the adversary's own rows, none of them in the other two. A defense that learns from
            rows of its own, such as ``memguard``, has a quarter of them.
        shadow_recipe: what trains shadows: ``"clone"`` copies an estimator of scikit-learn with its
            parameters; a function ``fit(x, y, seed)``, or ``"module:function"``, returns a trained
            model; or the name of a target. By default ``supervised`` if there are shadow rows,
            otherwise none. Without such rows shadows are trained on halves of members and
            nonmembers.
        attributes: arrays of sensitive attributes, with a value for each row of members, then of
            nonmembers, then of shadow rows.
        claim: (epsilon, delta) that training claims, for adding or removing one row. Coins test it:
            see ``claim`` of the result.
        coins: seed file of ``privbench.coins``, which decided what the model was trained on.
        label: column of a DataFrame or a table file that holds y.
        checkpoint: weights for a torch module: safetensors, or a file of ``torch.save``, which is
            read with ``weights_only``. Nothing else is unpickled.
        output: what the model answers: ``posteriors``, ``logits``, ``labels``, ``embeddings``, or
            ``values`` for a regression; ``auto`` tells it from y and the answers.
        attacks: names; by default all that the access and the rows allow.
        defenses: names of defenses that change only what the model answers. Each is tried on it, by
            these attacks and by those that it names as judges: see ``defended`` of the result.
        out: directory for results, for the ledger of an endpoint and for the words. An audit of
            another model or of other rows needs another one.
        model_version: your name for the version of the model, where its content does not tell.
        rate: most requests to an endpoint per second; 0 for no limit.
        retries: how often a failed request is repeated, with growing pauses.
        batch: most rows of a request.
        request_timeout: seconds in which a request must be answered.
        deadline: seconds for all requests to an endpoint, from the first on; 0 for no limit.
        format: how an endpoint is asked: ``privbench`` (``{"inputs": rows}`` and ``{"outputs":
            answers}``, the default), ``kserve``, ``tf-serving``, ``hf``, ``torchserve``,
            ``sagemaker``, ``sagemaker-csv`` or ``openai-embeddings``.
        request: file of JSON in place of the format's request, with ``"$rows"`` or ``"$row"`` where
            the rows go.
        answer: path in an endpoint's answer in place of the format's: names with dots, ``[0]`` and
            ``[*]``, such as ``predictions[*].scores``.
        max_queries: most rows that are sent to an endpoint; 0 for no limit.
        seeds: number of seeds of attacks and shadows.
        preset: of all methods.
        settings: method -> hyperparameters.
        device: ``cpu``, ``cuda`` or ``auto``.
        jobs: number of worker processes, which train shadows at the same time; ``auto`` for one per
            core. One only for a model or recipe in memory and for an endpoint.
        fail_above: figure -> threshold, for ``.gate`` of the result: ``auc``, ``tpr@1%``,
            ``tpr@0.1%``, ``balanced_accuracy`` or ``epsilon``.
        junit: file for JUnit's XML: a test case for each threshold and each attack.
        sarif: file for SARIF 2.1.0: a result for each threshold that did not pass.
        pdf: whether ``audit.html`` in ``out``, the sheet to sign, is also printed to ``audit.pdf``;
            that takes a chromium on this machine.
        plugins: paths of plugins that are single files.
        console: where progress and board are shown; by default nowhere.

    Raises:
        BadInputError: if the model or the rows cannot be used; one sentence that says what to do.
    """
    _refuse_types(settings, fail_above, out)
    wanted = gates.thresholds((fail_above or {}).items(), "fail_above")
    formats.refuse("junit", "junit", junit)
    formats.refuse("sarif", "sarif", sarif)
    chromium = browser() if pdf else ""
    if model is None:
        rows = read_answers(
            members, nonmembers, Reading(label), shadow=shadow, recipe=shadow_recipe, output=output
        )
        model = as_given
    else:
        rows = read_rows(members, nonmembers, shadow, attributes, Reading(label), output=output)
    made = audited(
        model, rows, claim=claimed(claim, coins, rows), shadow_recipe=shadow_recipe,
        checkpoint=checkpoint, output=output, attacks=attacks,
        defenses=defenses, out=out,
        model_version=model_version, seeds=seeds, preset=preset, settings=settings, device=device,
        jobs=jobs, fail_above=wanted, junit=junit, sarif=sarif, chromium=chromium,
        asking=reach.Asking(format, str(request), answer, max_queries, rate, retries, batch,
                            request_timeout, deadline),
        chosen=[Path(one).absolute() for one in plugins], console=console,
    )  # fmt: skip
    if made.not_printed:
        warnings.warn(made.not_printed, RuntimeWarning, stacklevel=3)
    return made


def audited(
    model: Any, rows: Rows, *, claim: Claim | None, shadow_recipe: str | Callable[..., Any] | None,
    checkpoint: str | Path, output: str,
    attacks: Sequence[str] | str, defenses: Sequence[str] | str, out: str | Path,
    model_version: str, seeds: int, preset: str,
    settings: Mapping[str, Mapping[str, Any]] | None, device: str, jobs: int | str,
    fail_above: Mapping[str, float], junit: str | Path | None, sarif: str | Path | None,
    chromium: str, asking: reach.Asking, chosen: Sequence[Choice], console: Console | None,
) -> Audit:  # fmt: skip
    """Return what ``audit`` returns, with plugins as the command line chooses them.

    ``chromium`` prints the sheet to sign; "" if it is not printed.
    """
    attacks, defenses = _names("attacks", attacks), _names("defenses", defenses)
    asking.refuse(model, model_version)
    shadow = "shadow" in rows.sizes
    registry = registries.load(chosen)
    shadow_recipe = _recipe_for(rows, shadow_recipe, registry)
    target, tried = (
        registry.get("target", "own-model"),
        defenses_for(registry, defenses, preset, settings or {}),
    )
    own, alone = is_code(shadow_recipe), model is as_given
    if str(jobs) != "1":
        _refuse_workers(model, shadow_recipe, rows)
    if not isinstance(model, str):
        model = target.holding(model).model
    given = {
        "model": model, "checkpoint": _absolute(checkpoint), "tag": model_version, "low": rows.low,
        "high": rows.high, "source": rows.source,
        "gives": "posteriors" if rows.targets is None else "values",
    }  # fmt: skip
    if model.startswith(reach.ADDRESSES):
        given |= _reached(asking, checkpoint, Path(out))
    target = target.replace(**given).reopened()
    rows = _as_numbered(rows, target, output)
    asked = target.asked(rows.classes)
    candidates = torch.from_numpy(rows.unit()[: rows.of("nonmembers").stop])
    changed = identity.changed(asked, candidates)
    if asked.endpoint is not None:
        named = [registry.get("attack", name).preset(preset)
                 for name in (*attacks, *judge_names(registry, tried))]  # fmt: skip
        more = reach.more_queries(named, settings or {}, len(candidates),
                                  rows.sizes.get("shadow", 0))  # fmt: skip
        reach.announce(asked, candidates, changed, more, console)
    kept = identity.confirmed(asked, torch.cat([candidates, changed]), model, Path(out))
    whole, note = _of_both(_answers(asked, rows, changed), rows, output)
    whole = identity.identified(whole, Path(out), endpoint=asked.endpoint is not None)
    given["answered"], answers = identity.digest(whole), whole[: len(candidates)]
    given["gives"] = _kind(rows, answers, output, alone=alone)
    rows = rows.knowing(answers, given["gives"])
    if given["gives"] == "embeddings" and shadow_recipe is None and not (attacks or shadow):
        _refuse_no_shadows(answers.shape[1])
    given |= {"least": least_of(answers, given["gives"]),
              "width": answers.shape[1] if given["gives"] == "embeddings" else 0}  # fmt: skip
    wanted, left_out = attacks_for(
        registry, attacks, attributes=bool(rows.attributes), shadow=shadow, own=own,
        lookup=rows.lookup, gives=given["gives"], settings=settings,
    )  # fmt: skip
    judging, judges = judges_for(registry, tried, given["gives"], rows.lookup, shadow=shadow)
    file = rows.write(default_root() / "audits")
    recipe: Any = shadow_recipe
    if own:
        recipe = _recipe(registry, shadow_recipe, rows, given, answers=answers, rows=str(file))
    suite = suite_of(
        rows, file, given, attacks=[*wanted, *judging],
        defenses=[*judges], recipe=recipe, seeds=seeds, preset=preset,
        settings=settings or {}, reference=any("reference-rows" in one.requires for one in tried),
    )  # fmt: skip
    options = {"out": Path(out), "data_root": None, "device": device,
               "jobs": jobs, "executor": "serial" if str(jobs) == "1" else None}  # fmt: skip
    session = _session(suite, chosen, options, console or Console(quiet=True))
    _refuse_other_audit(session, Path(out))
    identity.keep(whole, Path(out))
    session.counts_models = own
    session.run()
    _refuse_recipe(session)
    doubt, warning = _fit(rows, answers, given["gives"], claim)
    keys = _keys(session)
    silent = _silent(
        session, rows, answers, given["gives"], registry=registry, out=Path(out)
    ) if own else ""  # fmt: skip
    return documented(
        told(
            session.records, rows, keys, left_out, Path(out),
            judges=judges, claim=claim, doubt=doubt, errors=errors(answers, rows),
            fit=shadow_fit(session) if own and given["gives"] in _CLASSIFIES else None,
            deaf=silent,
            notes=(warning, identity.unsteady(asked, candidates, answers), _copies(rows, own=own),
                   note or (_TAKEN.format(given["gives"]) if output == "auto" else ""), kept),
        ),
        Path(out), fail_above, rows, keys, deaf=silent, junit=junit, sarif=sarif,
        chromium=chromium, parameters=_parameters(target),
    )  # fmt: skip


def _session(
    suite: Mapping[str, Any], chosen: Sequence[Choice], options: Mapping[str, Any], console: Console
) -> Session:
    """Plan in this process: it holds a model in memory, and the answers of an endpoint."""
    made = suite_from(dict(suite), "the audit")
    try:
        planned = Planning(made, chosen, options)
    except NothingRunsError as error:
        told = {f"{attack}: {reworded(attack, why)}" for why, attack in error.reasons.items()}
        raise BadInputError(f"no attack can run: {'; '.join(sorted(told))}") from None
    return Session(planned, options, console, name=made.name)


def _cell(session: Session) -> Cell:
    """Return a cell; all have the same dataset, target and rows."""
    return cast("Planning", session.planned).planned[0].trial.cell


def _keys(session: Session) -> list[int]:
    """Return the keys of all rows, members first."""
    dataset = _cell(session).dataset
    assert dataset is not None  # noqa: S101 - the suite names one
    keys: list[int] = dataset.load(None).keys.tolist()
    return keys


def _parameters(target: Any) -> int | None:
    """Return the number of parameters of a torch module; None of anything else."""
    if target.model.startswith(reach.ADDRESSES):
        return None
    model = opened_once(target.model, target.checkpoint).model
    if not isinstance(model, torch.nn.Module):
        return None
    known = (one for one in model.parameters() if not isinstance(one, UninitializedParameter))
    return sum(one.numel() for one in known) or None


def _refuse_other_audit(session: Session, out: Path) -> None:
    """Refuse a directory with results of another model or other rows: its page would mix them."""
    if all(path.name == AUDIT for path in out.glob("*.json")):
        return
    cell = cell_record(_cell(session))
    for record in read_all([out]):
        same = (record.cell.target.label, record.cell.dataset.label)
        if same != (cell.target.label, cell.dataset.label):
            raise BadInputError(f"{shown(str(out), 200)} holds the audit of another model, of one "
                                "that answers differently each time, of other rows, or of rows "
                                "whose copies counted: choose another directory")  # fmt: skip


def _refuse_recipe(session: Session) -> None:
    """Refuse a recipe that failed, whatever other attacks found."""
    reasons = (one.reason for one in session.records if one.status == "failed")
    if why := next((one for one in reasons if one.startswith(RECIPE)), None):
        raise BadInputError(why)


def _refuse_types(settings: Any, fail_above: Any, out: Any) -> None:
    """Refuse what is written as on the command line, and a folder that is none."""
    if not isinstance(out, str | PathLike):
        raise BadInputError(f"out: it is a {type(out).__name__}: give the path of a folder")
    if fail_above is not None and not isinstance(fail_above, Mapping):
        raise BadInputError(f"fail_above: {shown(fail_above)} names no figure: give a mapping, "
                            "such as {'auc': 0.55}")  # fmt: skip
    parts = settings.values() if isinstance(settings, Mapping) else [settings or {}]
    if not isinstance(settings or {}, Mapping) or not all(isinstance(p, Mapping) for p in parts):
        raise BadInputError(f"settings: {shown(settings)} is no mapping of methods: give one such "
                            "as {'lira': {'k': 8}}")  # fmt: skip


def _names(what: str, given: Any) -> list[str]:
    """Return a name, or names, as a list."""
    several = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
    named: list[Any] = list(given) if several else [given]
    if other := [one for one in named if not isinstance(one, str)]:
        raise BadInputError(f"{what}: {shown(other[0])} is no name: give a list of names, and "
                            "hyperparameters as settings")  # fmt: skip
    return named


def _refuse_workers(model: Any, recipe: Any, rows: Rows) -> None:
    if rows.source.startswith("given:"):
        raise BadInputError("jobs: rows in memory stay in their process, and pictures of a "
                            "regression do: give paths of files, or leave out jobs")  # fmt: skip
    for what, held in (("model", model), ("shadow recipe", recipe)):
        if held is not None and not isinstance(held, str):
            raise BadInputError(f"jobs: a {what} in memory stays in its process: give it as "
                                "'module:function', or leave out jobs")  # fmt: skip
    if model.startswith(reach.ADDRESSES):
        raise BadInputError("jobs: an endpoint is asked by one process, which keeps its answers: "
                            "leave out jobs")  # fmt: skip


def _recipe_for(rows: Rows, recipe: Any, registry: Registry) -> Any:
    """Return what trains shadows; None if nothing does."""
    if recipe is not None and not isinstance(recipe, str | Mapping) and not callable(recipe):
        raise BadInputError(f"shadow recipe: a {type(recipe).__name__} trains nothing: give clone, "
                            "which copies the model, a function fit(x, y, seed), or a "
                            "target")  # fmt: skip
    if isinstance(recipe, str) and not is_code(recipe):
        known = [one.name for one in registry.all("target")]
        if recipe not in known:
            registry.blame("target", recipe)
            raise UnknownNameError("shadow recipe", recipe, [*known, CLONE])
    if rows.targets is None:
        return "supervised" if recipe is None and "shadow" in rows.sizes else recipe
    if "shadow" in rows.sizes or rows.attributes:
        raise BadInputError("shadow rows and attributes: attacks on regressions use neither: leave "
                            "them out, and give a shadow recipe")  # fmt: skip
    if recipe is not None and not is_code(recipe):
        raise BadInputError("shadow recipe: only your code trains shadows of a regression: give "
                            "clone or a function fit(x, y, seed)")  # fmt: skip
    return recipe


def _recipe(
    registry: Any, recipe: Any, of: Rows, given: Mapping[str, Any], *,
    answers: NDArray[np.float64], **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the target that trains shadows by the user's code, as a suite names it."""
    same = ("model", "checkpoint", "gives", "low", "high", "least", "source")
    fields |= {name: given[name] for name in same}
    fields["width"] = of.classes if given["gives"] == "labels" else answers.shape[1]
    content = of.lookup.content if of.lookup else ""
    made = registry.get("target", "own-recipe").using(recipe, content=content, **fields)
    return {made.name: made.hyperparameters()}


def _as_numbered(rows: Rows, target: Any, output: str) -> Rows:
    """Return the rows with classes as a model numbers them; an endpoint does not say."""
    if not target.model.startswith(reach.ADDRESSES):
        model = opened_once(target.model, target.checkpoint).model
        if rows.targets is not None and hasattr(model, "classes_"):
            if output == "values":
                raise BadInputError("output values: the model is a classifier: leave it out")
            raise BadInputError("y holds numbers that are not classes, and the model is a "
                                "classifier: give the classes as texts, or name output "
                                "posteriors or labels")  # fmt: skip
        classifies = output == "auto" and rows.labels is not None and rows.targets is None
        if classifies and _is_regressor(model):
            raise BadInputError("the model is a regression: name output values")
        return rows.numbered(named_classes(model))
    if rows.source and not rows.finite_numbers:
        raise BadInputError("an endpoint gets arrays of numbers: give a function that sends your "
                            "rows to it as the model")  # fmt: skip
    return rows.numbered(None)


def _is_regressor(model: Any) -> bool:
    from sklearn.base import BaseEstimator, is_regressor

    return isinstance(model, BaseEstimator) and is_regressor(model)


def _copies(rows: Rows, *, own: bool) -> str:
    """Return a note about rows that occur twice, with advice if members do so far more often."""
    counts = {one: rows.copies(one) for one in ("members", "nonmembers")}
    parts = [
        f"{several(count, (one := source[:-1]))} {'is' if count == 1 else 'are'} equal to an "
        f"earlier {one}"
        for source, count in counts.items() if count
    ]  # fmt: skip
    if not parts:
        return ""
    told = f"{' and '.join(parts)}; each row counts once"
    told += ", and shadows are trained without copies" if own else ""
    inside, outside = (count / rows.sizes[source] for source, count in counts.items())
    more = ": a model remembers members with copies best, so drop these and train again"
    return f"{told}{more if inside > 2 * outside else ''}."


def _kind(rows: Rows, answers: NDArray[np.float64], output: str, *, alone: bool) -> str:
    """Return what the model answers; ``alone`` if the answers are all that there is."""
    if rows.targets is not None:
        return "values"
    found = kind_of(answers, rows.classes, output)
    if found == "embeddings" != output and rows.y is not None:
        _refuse_logits(answers, rows.y[: len(answers)])
    if alone and found == "embeddings":
        wide = several(answers.shape[1], "column")
        raise BadInputError(f"the answers have {wide}, which hold no posteriors, and y has classes "
                            f"from 0 to {rows.classes - 1}: give a column for each class and no "
                            "other, or name output logits if the model knows more")  # fmt: skip
    return found


def _refuse_logits(answers: NDArray[np.float64], y: NDArray[np.int64]) -> None:
    """Refuse answers (n, k) that look like logits, of more classes than the rows have."""
    right, usual = (answers.argmax(1) == y).mean(), np.bincount(y).max() / len(y)
    if answers.shape[1] > y.max() and right > usual + _CLEARLY:
        raise BadInputError(f"the model answers {answers.shape[1]} numbers for each row, and the "
                            f"largest is that of y for {right:.0%} of the rows: name output "
                            "logits, or embeddings")  # fmt: skip


def _reached(asking: reach.Asking, checkpoint: str | Path, out: Path) -> dict[str, Any]:
    """Return the fields of ``own-model`` that say how an endpoint is reached."""
    if checkpoint:
        raise BadInputError("checkpoint: an endpoint has its own weights: leave it out")
    return {"ledger": str((out / LEDGER).absolute()), **asking.fields()}


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute()) if path else ""


def _refuse_no_shadows(width: int) -> None:
    """Refuse embeddings of ``width`` numbers without shadows: no attack is for them."""
    raise BadInputError("attacks on embeddings learn from shadows: give shadow rows, or a shadow "
                        f"recipe; if the {width} numbers for each row are logits, name output "
                        f"logits, and number y from 0 to {width - 1}")  # fmt: skip


def _answers(asked: Any, rows: Rows, changed: Tensor) -> NDArray[np.float64]:
    """Return the model's answers to members, nonmembers and changed rows: (n,) or (n, k)."""
    unit, made = rows.unit(), []
    for source in ("members", "nonmembers"):
        x = torch.from_numpy(unit[rows.of(source)])
        for start in range(0, len(x), _BLOCK):
            block = x[start : start + _BLOCK]
            try:
                made.append(asked.raw(block))
            except BadInputError as error:
                at = f"asked about rows {start} to {start + len(block) - 1} of the {source}"
                raise BadInputError(f"{error} ({at})") from error
    widths = {one.shape[1:] for one in made}
    if len(widths) > 1:
        raise BadInputError("the model's answers differ in width: return as many numbers for each "
                            "row")  # fmt: skip
    first = torch.from_numpy(unit[:1])
    return np.concatenate([*made, identity.beside(asked, changed, first, made[0])])


def _of_both(
    answers: NDArray[np.float64], rows: Rows, output: str
) -> tuple[NDArray[np.float64], str]:
    """Return answers for both of two classes, if a model answers for the second one; and a note."""
    if answers.shape[1:] != (1,) or rows.classes != _TWO or output == "embeddings":
        return answers, ""
    if output != "logits" and answers.min() >= 0 and answers.max() <= 1:
        return of_both(answers, "posteriors"), ""
    return of_both(answers, "logits"), _LOGIT


def _silent(
    session: Session, rows: Rows, answers: NDArray[np.float64], gives: str, *,
    registry: Registry, out: Path,
) -> str:  # fmt: skip
    """Return that shadows by the user's code do not know the rows that they got; "" if they do."""
    undefended = [one for one in session.records if one.cell.defense == UNDEFENDED]
    return deaf(undefended, registry, out) or unheard(session, rows, answers, gives)


def _fit(
    rows: Rows, answers: NDArray[np.float64], gives: str, claim: Claim | None
) -> tuple[str, str]:
    """Return why the rows cannot be those that the model knows, and a warning; "" for none.

    Rows of a claim's coins are left out: they may be canaries, whose classes are wrong on purpose.
    """
    own = np.ones(len(answers), bool)
    if claim is not None:
        own[claim.places] = False
    places = np.arange(len(answers))
    both = {source: places[rows.of(source)][own[rows.of(source)]]
            for source in ("members", "nonmembers")}  # fmt: skip
    both = {source: at for source, at in both.items() if len(at) >= FEWEST}
    if rows.targets is not None:
        apart = np.abs(answers[:, 0] - rows.targets[: len(answers)])
        return swapped(*(apart[at] for at in both.values())) if len(both) == _TWO else "", ""
    if rows.y is None or gives == "embeddings" or "members" not in both:
        return "", ""
    classes = answers.astype(np.int64) if gives == "labels" else answers.argmax(1)
    predicted = {source: classes[at] for source, at in both.items()}
    y = {source: rows.y[at] for source, at in both.items()}
    return misfit(predicted, y, rows.texts), strange(predicted["members"], y["members"])
