"""Training shadows by the user's own code: a function, or a clone of the audited estimator."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privbench.ground.errors import BadInputError
from privbench.ground.store.source import digest, names_used, source_digest, taken
from privbench.toolbox.asked_model import described
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.opened_model import RECIPE, Opened, as_array, as_columns, askable, recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The recipe that copies the audited estimator with its parameters.
CLONE = "clone"
_SEED, _WEIGHTS = "random_state", "class_weight"  # parameters of estimators


def named(given: str) -> str:
    """Return a recipe's name for messages and tables."""
    return "the given function" if given.startswith("given:") else plain(given)


def code_digest(given: str, model: Any) -> str:
    """Return a digest of the code of a recipe and of the parameters of what it clones.

    Of a function this is the module, which function of it, and what it was made with: arguments of
    a ``functools.partial``, variables of an enclosing function, the state of an object, and globals
    that its module's functions use (of those that cannot be pickled, the type).

    Args:
        given: ``clone``, ``module:function``, or a name from ``given_recipe``.
        model: the audited object.

    Raises:
        BadInputError: if it cannot train anything; one sentence that says what to do.
    """
    if given != CLONE:
        made = recipe(given)
        try:
            told = _made_with(made, frozenset())
        except Exception as error:
            if not given.startswith("given:"):
                return digest([source_digest(made), given])
            raise BadInputError(f"{RECIPE} {named(given)}: what it holds cannot be compared "
                                f"({one_line(error)}): write fit(x, y, seed) at the top of a file "
                                "and name it as module:fit") from error  # fmt: skip
        return digest([source_digest(made), told])
    import joblib

    fresh = _cloned(model, 0)
    parts = [fresh, *fresh.get_params(deep=True).values()]
    files = {_file(type(one)) for one in parts if hasattr(one, "get_params")}
    try:
        return digest([joblib.hash(fresh), sorted(filter(None, files))])
    except Exception as error:
        raise BadInputError(f"{RECIPE} {CLONE}: the parameters of the {_kind(model)} cannot be "
                            f"compared ({one_line(error)}): write fit(x, y, seed) and name it as "
                            "module:fit") from error  # fmt: skip


def trained(given: str, model: Any, x: Any, y: NDArray[Any], seed: int) -> Opened:
    """Train a model by a recipe; return how it is asked.

    Args:
        given: see ``code_digest``.
        model: the audited object, which only ``clone`` reads.
        x: rows in the user's units, a tensor (n, *shape), of which an estimator gets (n, columns);
            or rows as the user gave them.
        y: (n,) classes from 0, or the numbers that a regression is to answer.
        seed: from 0 to 2**31 - 1.

    Raises:
        BadInputError: if it fails, or returns nothing that can be asked.
    """
    told = f"{RECIPE} {named(given)}"
    try:
        if given == CLONE:
            made = as_columns(lambda rows: _cloned(model, seed).fit(rows, y), x)
        else:
            with torch.enable_grad():  # an attack may ask for the model while another answers
                made = recipe(given)(as_array(x), y, seed)
    except BadInputError:
        raise
    except Exception as error:
        raise BadInputError(f"{told} failed on {described(x)} ({one_line(error)}): "
                            "correct it") from error  # fmt: skip
    try:
        return askable(made, "what it returns")
    except BadInputError:
        raise BadInputError(f"{told} returned a {_kind(made)}, which cannot be asked: return a "
                            "torch module, an estimator with predict_proba, or a function of an "
                            "array") from None  # fmt: skip


def spread(answers: NDArray[np.float64], model: Any, width: int) -> NDArray[np.float64]:
    """Return posteriors (n, width) of an estimator whose rows lacked some classes.

    >>> from types import SimpleNamespace
    >>> spread(np.array([[0.25, 0.75]]), SimpleNamespace(classes_=np.array([0, 2])), 3).tolist()
    [[0.25, 0.0, 0.75]]
    """
    classes = np.asarray(getattr(model, "classes_", ()))
    if (
        answers.shape[1:] != classes.shape
        or len(classes) >= width
        or classes.dtype.kind not in "iu"
    ):
        return answers
    wide = np.zeros((len(answers), width))
    wide[:, classes] = answers
    return wide


def _cloned(model: Any, seed: int) -> Any:
    """Return an untrained copy of an estimator whose random states are that seed."""
    if inspect.isclass(model) or not (hasattr(model, "get_params") and hasattr(model, "fit")):
        raise BadInputError(f"{RECIPE} {CLONE}: the model is a {_kind(model)}, and only estimators "
                            "of scikit-learn can be cloned: write fit(x, y, seed) and name it as "
                            "module:fit")  # fmt: skip
    from sklearn.base import clone

    try:
        made = clone(model)
        seeds = [name for name in made.get_params(deep=True) if name.split("__")[-1] == _SEED]
        return made.set_params(**dict.fromkeys(seeds, seed), **_weights(made, model))
    except Exception as error:
        raise BadInputError(f"{RECIPE} {CLONE}: the {_kind(model)} cannot be cloned "
                            f"({one_line(error)}): write fit(x, y, seed) and name it as "
                            "module:fit") from error  # fmt: skip


def _weights(made: Any, model: Any) -> dict[str, Any]:
    """Return the weights of classes that an estimator is given by name, for classes from 0."""
    places = {one: i for i, one in enumerate(np.asarray(getattr(model, "classes_", ())).tolist())}
    return {
        name: {places.get(one, one): weight for one, weight in value.items()}
        for name, value in made.get_params(deep=True).items()
        if name.split("__")[-1] == _WEIGHTS
        and isinstance(value, dict)
        and value.keys() <= places.keys()  # a wrapped estimator may have other classes
    }


def _made_with(made: Any, seen: frozenset[int]) -> Any:
    """Return what tells a callable, or what one holds, from another of the same file."""
    if isinstance(made, (str, int, float, NoneType)):
        return repr(made)
    if id(made) in seen:  # a function that calls itself
        return None
    seen |= {id(made)}
    held: list[Any]
    match made:
        case functools.partial():
            told, held = "partial", [made.func, made.args, made.keywords]
        case MethodType():
            told, held = "method", [made.__func__, made.__self__]
        case FunctionType():
            told, held = _function(made, seen)
        case list() | tuple():
            told, held = "list", [*made]
        case dict():
            told, held = "dict", [*made.items()]
        case ModuleType():
            told, held = made.__name__, []
        case _:
            told, held = _object(made)
    return [told, [_made_with(one, seen) for one in held]]


def _object(made: Any) -> tuple[str, list[Any]]:
    """Return a digest of an object, or its type and what it holds: equal tensors pickle unlike."""
    import joblib

    kind: Any = type(made)
    if isinstance(made, torch.Tensor):
        whole = made.detach().cpu()
        whole = whole.float() if whole.dtype == torch.bfloat16 else whole
        return joblib.hash(whole.numpy()), [str(made.dtype)]
    if isinstance(getattr(made, "__wrapped__", None), FunctionType):
        return str(kind), [made.__wrapped__]
    pickled = ("__getstate__", "__reduce__", "__reduce_ex__")
    usual = all(getattr(kind, name) is getattr(object, name) for name in pickled)
    if isinstance(made, torch.nn.Module) or (
        usual and not isinstance(made, type) and hasattr(made, "__dict__")
    ):
        return str(kind), [made.__getstate__()]
    return joblib.hash(made), []


def _function(made: FunctionType, seen: frozenset[int]) -> tuple[str, list[Any]]:
    """Return the name of a function, with its code if the file holds several of that name."""
    code, space = made.__code__, made.__globals__
    local = _instructions(code) if "<" in code.co_qualname else ""
    used = {
        name: _global(space[name], made, seen) for name in sorted(names_used(code)) if name in space
    }
    return (
        f"{made.__module__}.{made.__qualname__} {code.co_qualname} {local}",
        [made.__defaults__, made.__kwdefaults__, *taken(made).values(), used],
    )


def _global(value: Any, user: FunctionType, seen: frozenset[int]) -> Any:
    """Return what counts of a global that a function uses: what it holds, or its name or type."""
    if isinstance(value, (type, ModuleType)):
        return value.__name__
    if isinstance(value, FunctionType) and value.__module__ != user.__module__:
        return f"{value.__module__}.{value.__qualname__}"
    try:
        return _made_with(value, seen)
    except Exception:  # noqa: BLE001 - a lock, an open file
        return str(type(value))


def _instructions(code: CodeType) -> list[Any]:
    """Return what code does, without its place in a file."""
    constants = [
        _instructions(one) if isinstance(one, CodeType)
        else sorted(map(repr, one)) if isinstance(one, frozenset)  # in another order each time
        else repr(one)
        for one in code.co_consts
    ]  # fmt: skip
    return [code.co_code.hex(), [*code.co_names], constants]


def _kind(thing: Any) -> str:
    return plain((thing if inspect.isclass(thing) else type(thing)).__name__)


def _file(kind: type) -> str:
    """Return a digest of the file that defines a class; "" if it has none."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
