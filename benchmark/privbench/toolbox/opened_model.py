"""Opening a model of the user: a module, an object in memory, weights that run no code."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import io
import itertools
import re
import secrets
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from privbench.ground.errors import BadInputError
from privbench.ground.tokens import redacted
from privbench.toolbox import foreign_model as foreign
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.public_encoder import filled, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "own-model"
#: How messages about a recipe begin.
RECIPE = "shadow recipe"
_TABLE = 2  # axes
#: Objects that a notebook handed over, by the name under which a target finds them.
_GIVEN: dict[str, Any] = {}


@dataclass(frozen=True)
class Opened:
    """A model that answers.

    Attributes:
        ask: answers (n, ...), an array or a tensor, to rows: a tensor (n, *shape) float32 in the
            user's own units, or what the user gave (``privbench.toolbox.looked_up``).
        net: the module, if it is one of torch.
        model: the object itself; None for an endpoint.
    """

    ask: Callable[[Any], Any]
    net: nn.Module | None = None
    model: Any = None


_OPENED: dict[Any, Opened] = {}


def given(model: Any) -> str:
    """Keep a model in memory; return the name under which ``opened`` finds it in this process.

    Raises:
        BadInputError: if it cannot be asked.
    """
    model = _copied(model) if isinstance(model, nn.Module) else model
    _asker(model, "the given model")
    name = f"given:{secrets.token_hex(8)}"
    _GIVEN[name] = model
    return name


def opened(model: str, checkpoint: str) -> Opened:
    """Import a model and load its weights.

    Args:
        model: ``module:function``, where the function takes no argument and returns the model; a
            file of ONNX; or a name from ``given``.
        checkpoint: path of weights for a module of torch; "" for none. A safetensors file, or one
            that ``torch.save`` wrote, which is read with ``weights_only``: no code of it runs.

    Raises:
        BadInputError: one sentence that says what is missing or wrong.
    """
    if model.endswith(".onnx"):
        made: Any = foreign.session(Path(model))
    elif model.startswith("given:"):
        if model not in _GIVEN:
            raise BadInputError(f"{NAME}: {plain(model)} was given to another process: name it as "
                                "module:function")  # fmt: skip
        made = _GIVEN[model]
    else:
        made = _imported(model)
    what = "the given model" if model.startswith("given:") else f"the model of {plain(model)}"
    if checkpoint:
        if not isinstance(made, nn.Module):
            raise BadInputError(f"{NAME}: {what} is no torch module, so it cannot take weights: "
                                "leave out the checkpoint")  # fmt: skip
        made = _copied(made) if model.startswith("given:") else made
        filled(NAME, made, _weights(Path(checkpoint)), what)
    return askable(made, what)


def opened_once(model: str, checkpoint: str) -> Opened:
    """Return what ``opened`` does; this process opens a model once."""
    at = (model, checkpoint, _stamp(checkpoint) if checkpoint else ())
    if at not in _OPENED:
        _OPENED.clear()
        _OPENED[at] = opened(model, checkpoint)
    return _OPENED[at]


def forget() -> None:
    """Forget which models this process opened."""
    _OPENED.clear()


def _stamp(path: str) -> tuple[int, ...]:
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return stat.st_size, stat.st_mtime_ns


def askable(made: Any, what: str) -> Opened:
    """Return how a model is asked; ``what`` is its name for messages.

    Raises:
        BadInputError: if it cannot be asked.
    """
    net = made.eval() if isinstance(made, nn.Module) else None
    return Opened(_asker(made, what), net, made)


def recipe(name: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names, or that ``given_recipe`` kept.

    Raises:
        BadInputError: if there is none.
    """
    made: Any = _GIVEN.get(name) if name.startswith("given:") else _attribute(name, _RECIPE)
    if not callable(made) or _takes_nothing(made):
        raise BadInputError(f"{RECIPE}: {plain(name)} is no function of x, y and seed: write "
                            "fit(x, y, seed), which returns the trained model")  # fmt: skip
    return cast("Callable[..., Any]", made)


def loader(name: str) -> Callable[[str], Any]:
    """Return the function that ``module:function`` names, which reads rows from a path.

    Raises:
        BadInputError: if there is none.
    """
    made: Any = _attribute(name, _LOADER)
    if not callable(made) or _takes_nothing(made):
        raise BadInputError(f"rows: {plain(name)} is not a function of a path: write load(path), "
                            "which returns rows and their classes")  # fmt: skip
    return cast("Callable[[str], Any]", made)


def given_recipe(made: Callable[..., Any]) -> str:
    """Keep a recipe in memory; return the name under which ``recipe`` finds it in this process."""
    name = f"given:{secrets.token_hex(8)}"
    _GIVEN[name] = made
    return name


def _imported(model: str) -> Any:
    """Return what the function of ``module:function`` returns."""
    made = _attribute(model, _MODEL)
    network = inspect.isclass(made) and issubclass(made, nn.Module)
    asked = isinstance(made, nn.Module) or (hasattr(made, "predict") and not network)
    if asked or not callable(made):
        return made
    try:
        return made()
    except (Exception, SystemExit) as error:
        advice = "write one that takes no argument" if _takes_more(made) else "correct it"
        raise BadInputError(f"{NAME}: {plain(model)}() failed ({one_line(error)}): "
                            f"{advice}") from error  # fmt: skip


@dataclass(frozen=True)
class _Wanted:
    """What ``module:function`` stands for, in messages."""

    name: str
    noun: str
    such_as: str
    returns: str


_MODEL = _Wanted(NAME, "model", "my_module:load, or the address of an endpoint", "the model")
_LOADER = _Wanted("rows", "loader", "my_module:load", "rows and their classes")
_RECIPE = _Wanted(RECIPE, "recipe", "my_module:fit, or clone", "a trained model")


def _attribute(named: str, wanted: _Wanted) -> Any:
    """Import the module of ``module:function`` and return the function."""
    module, colon, function = named.partition(":")
    told = wanted.name
    if wanted is _MODEL and re.match(r"(\[[0-9a-f:]+\]|[\w.-]+):\d+([/?]|$)", named):
        raise BadInputError(f"{told}: {plain(redacted(named))} looks like an address: write it "
                            "with http:// or https://")  # fmt: skip
    file = Path(module if module.endswith(".py") else f"{module}.py")
    whole = colon and module and function.isidentifier()
    if whole and "/" in module and file.is_file():
        raise _is_file(told, named, file, function)
    if not whole or "/" in module:
        raise BadInputError(f"{told}: {plain(redacted(named))} is no {wanted.noun}: write "
                            f"module:function, such as {wanted.such_as}")  # fmt: skip
    sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.invalidate_caches()
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if module.endswith(".py") and file.is_file():
            raise _is_file(told, named, file, function) from None
        raise BadInputError(f"{told}: there is no module {plain(error.name)}, which "
                            f"{plain(named)} needs: run the command in the folder that has it, or "
                            "install it") from None  # fmt: skip
    except (Exception, SystemExit) as error:
        raise BadInputError(f"{told}: {plain(module)} cannot be imported ({one_line(error)}): "
                            "correct it") from error  # fmt: skip
    finally:
        sys.path.remove(str(Path.cwd()))
    if not hasattr(found, function):
        raise BadInputError(f"{told}: {plain(module)} has no {plain(function)}: write a function "
                            f"that returns {wanted.returns}, or name another one")  # fmt: skip
    return getattr(found, function)


def _is_file(told: str, named: str, file: Path, function: str) -> BadInputError:
    """Return that a file is named, and how its module is."""
    inside = not file.is_absolute() and ".." not in file.parts
    module = ".".join(file.with_suffix("").parts) if inside else file.stem
    where = "" if inside else f", and run the command in {plain(file.parent)}"
    return BadInputError(f"{told}: {plain(redacted(named))} names a file: write the module: "
                         f"{plain(module)}:{function}{where}")  # fmt: skip


def _weights(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():  # a device may never end, and a pipe may never begin
        there = "is not a regular file" if path.exists() else "does not exist"
        raise BadInputError(f"{NAME}: the checkpoint {plain(path)} {there}: name a file of weights")
    try:
        return tensors_of(NAME, path)
    except BadInputError:
        raise BadInputError(
            f"{NAME}: {plain(path)} holds no plain tensors by name, neither as safetensors nor "
            "from torch.save: save the state_dict of the module; nothing else is unpickled, since "
            "that could run code"
        ) from None


def _asker(model: Any, what: str) -> Callable[[Any], Any]:
    """Return how rows are put to a model: a tensor (n, *shape), or rows as the user has them."""
    if inspect.isclass(model):
        raise BadInputError(f"{NAME}: {what} is the class {plain(model.__name__)}: give an "
                            "instance of it that is trained")  # fmt: skip
    if isinstance(model, nn.Module):
        return lambda x: _widened(model(_as_tensor(x, model)))
    if (ask := foreign.asker(model)) is not None:
        return ask
    for method in ("predict_proba", "predict"):
        if hasattr(model, method):
            ask = getattr(model, method)
            known = foreign.classes(model) if method == "predict" else None
            return lambda x: foreign.numbered(as_columns(partial(_quiet, ask), x), known)
    if callable(model):
        if _takes_nothing(model):
            raise BadInputError(f"{NAME}: {what} is a function without an argument: give what it "
                                "returns")  # fmt: skip
        return lambda x: model(as_array(x))
    raise BadInputError(f"{NAME}: {what} is a {plain(type(model).__name__)}, which cannot be "
                        "asked: return a torch module, an estimator with predict_proba, or a "
                        "function of an array")  # fmt: skip


def _copied(model: nn.Module) -> nn.Module:
    if not isinstance(model, torch.jit.ScriptModule):
        return copy.deepcopy(model)
    held = io.BytesIO()  # the weights of a deep copy are no leaves: their gradients stay on
    torch.jit.save(model, held)
    held.seek(0)
    loaded: nn.Module = torch.jit.load(held)  # type: ignore[no-untyped-call]
    return loaded


def as_array(x: Any, *, flat: bool = False) -> Any:
    """Return a tensor as an array, (n, columns) if ``flat``; other rows as they are."""
    if not isinstance(x, torch.Tensor):
        return x
    return (x.flatten(1) if flat else x).cpu().numpy()


def as_columns(use: Callable[[Any], Any], x: Any) -> Any:
    """Return what an estimator makes of rows: (n, columns), and pictures if it reads only these."""
    try:
        return use(as_array(x, flat=True))
    except Exception as flat:
        if not isinstance(x, torch.Tensor) or x.ndim <= _TABLE:
            raise
        try:
            return use(as_array(x))
        except Exception as error:  # noqa: BLE001 - both are told
            raise RuntimeError(f"as rows of columns: {one_line(flat)}; as pictures: "
                               f"{one_line(error)}") from flat  # fmt: skip


def _as_tensor(x: Any, model: nn.Module) -> Any:
    """Return what a module gets: a tensor of its precision; lists and other objects stay."""
    if hasattr(x, "to_numpy"):  # a DataFrame
        try:
            x = x.to_numpy().astype("float64")
        except (TypeError, ValueError) as error:
            raise BadInputError(f"{NAME}: a torch module reads numbers, and the table holds others "
                                f"({one_line(error)}): give a function that encodes the "
                                "table")  from error  # fmt: skip
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(np.array(x))
    if not isinstance(x, torch.Tensor):
        return x
    place = next(itertools.chain(model.parameters(), model.buffers()), x).device
    return x.to(place, _dtype(model))


def _dtype(model: nn.Module) -> torch.dtype:
    """Return the type of the first weights that are no whole numbers; float32 without any."""
    held = itertools.chain(model.parameters(), model.buffers())
    return next((one.dtype for one in held if one.is_floating_point()), torch.float32)


def _widened(answer: Any) -> Any:
    """Return an answer of half precision as float32, since NumPy has no bfloat16."""
    half = isinstance(answer, torch.Tensor) and answer.dtype in (torch.float16, torch.bfloat16)
    return answer.float() if half else answer


def _takes_nothing(model: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(model).parameters
    except (TypeError, ValueError):  # of C
        return False


def _takes_more(made: Callable[..., Any]) -> bool:
    """Whether a function has arguments without a default."""
    try:
        inspect.signature(made).bind()
    except TypeError:
        return True
    except ValueError:  # of C
        return False
    return False


def _quiet(ask: Callable[[Any], Any], x: Any) -> Any:
    """Ask an estimator that may have been fitted with names of columns, or without."""
    with warnings.catch_warnings():
        for message in ("X does not have valid feature names", "X has feature names"):
            warnings.filterwarnings("ignore", message=message)
        return ask(x)
