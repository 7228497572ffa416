"""Models of other libraries that are asked in a way of their own: ONNX Runtime, Boosters."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.toolbox.messages import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Type of an input of ONNX -> of NumPy.
_TYPES = {"float": "float32", "double": "float64", "float16": "float16", "string": "object"}
_MATRIX = 2  # axes


def asker(model: Any) -> Callable[[Any], Any] | None:
    """Return how rows are put to a model of one of these libraries; None for other models.

    Rows are a tensor (n, *shape), a DataFrame, an array or a list.
    """
    if hasattr(model, "get_inputs") and hasattr(model, "run"):
        return lambda x: _of_session(model, x)
    library = type(model).__module__.split(".")[0]
    if type(model).__name__ != "Booster" or library not in ("lightgbm", "xgboost"):
        return None
    binary = _objective(model, library).startswith("binary")
    predict = _by_lightgbm if library == "lightgbm" else _by_xgboost
    return lambda x: predict(model, x).reshape(len(x), 1) if binary else predict(model, x)


def session(file: Path) -> Any:
    """Open a file of ONNX.

    Raises:
        BadInputError: if it cannot be opened, or ONNX Runtime is missing.
    """
    if not file.is_file():
        raise BadInputError(f"own-model: {plain(file)} does not exist: name a file of ONNX")
    try:
        import onnxruntime
    except ImportError:
        raise BadInputError(f"own-model: {plain(file)} needs ONNX Runtime, which is not installed: "
                            "pip install onnxruntime") from None  # fmt: skip
    try:
        return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadInputError(f"own-model: {plain(file)} cannot be opened by ONNX Runtime "
                            f"({one_line(error)}): export it again") from error  # fmt: skip


def classes(model: Any) -> np.ndarray | None:
    """Return the classes of an estimator in its own order, if they are not 0 to k - 1."""
    known = getattr(model, "classes_", None)
    if known is None or not hasattr(known, "__len__") or any(np.ndim(one) for one in known):
        return None
    known = np.asarray(known)
    if known.dtype.kind == "O" and all(isinstance(one, str) for one in known):
        known = known.astype(str)
    if known.dtype.kind not in "biufU":
        return None
    return None if known.dtype.kind != "U" and (known == np.arange(len(known))).all() else known


def numbered(answers: Any, known: np.ndarray | None) -> Any:
    """Return answered classes (n,) as places in those of the model.

    >>> numbered(np.array(["no", "yes"]), np.array(["no", "yes"])).tolist()
    [0, 1]
    """
    if known is None or np.ndim(answers) != 1:
        return answers
    return (np.asarray(answers)[:, None] == known).argmax(1)


def _objective(model: Any, library: str) -> str:
    """Return what a Booster was trained for, such as ``binary``."""
    if library == "lightgbm":
        return str(model.dump_model(num_iteration=1).get("objective", ""))
    return str(json.loads(model.save_config())["learner"]["objective"]["name"])


def _by_lightgbm(model: Any, x: Any) -> Any:
    return model.predict(x if hasattr(x, "columns") else _array(x).reshape(len(x), -1))


def _by_xgboost(model: Any, x: Any) -> Any:
    import xgboost

    named = hasattr(x, "columns")
    rows = x if named else _array(x).reshape(len(x), -1)
    return model.predict(xgboost.DMatrix(rows, enable_categorical=named), validate_features=named)


def _array(x: Any) -> np.ndarray:
    return x.cpu().numpy() if hasattr(x, "cpu") else np.asarray(x)


def _of_session(model: Any, x: Any) -> np.ndarray:
    """Return the posteriors, logits or embeddings of a session of ONNX Runtime.

    A session with several inputs gets a column of a table for each, by name; another one all
    columns as a matrix. Of several outputs the last one is read, as scikit-learn's exports have
    posteriors there, after the classes.
    """
    wanted = model.get_inputs()
    size = wanted[0].shape[0] if wanted[0].shape else None
    size = size if isinstance(size, int) and size > 0 else len(x)  # an export may have a fixed one
    made = []
    for start in range(0, len(x), size):
        part = x[start : start + size]
        n = len(part)
        feeds = {one.name: _feed(one, part, alone=len(wanted) == 1) for one in wanted}
        if n < size:
            feeds = {name: _padded(array, size) for name, array in feeds.items()}
        answer = model.run(None, feeds)[-1]
        if isinstance(answer, list):  # for each row a mapping from class to posterior
            answer = [[row[name] for name in sorted(row)] for row in answer]
        made.append(np.asarray(answer)[:n])
    return np.concatenate(made)


def _feed(wanted: Any, x: Any, *, alone: bool) -> np.ndarray:
    """Return one input of a session, of the type that it wants."""
    inner = wanted.type.removeprefix("tensor(").removesuffix(")")
    if hasattr(x, "columns"):
        # exports write names of columns with letters, digits and _ only
        named = {re.sub(r"\W", "_", str(name)): name for name in x.columns}
        column = wanted.name if wanted.name in x.columns else named.get(wanted.name)
        if not alone and column is None:
            raise BadInputError(f"own-model: the session has an input {plain(wanted.name)}, and "
                                "the table no such column: name the columns as its "
                                "inputs")  # fmt: skip
        held = x.to_numpy() if alone else x[column].to_numpy().reshape(-1, 1)
    else:
        held = _array(x)
    rank = len(wanted.shape or ())
    if rank == _MATRIX:
        held = held.reshape(len(held), -1)
    return np.asarray(held, _TYPES.get(inner, inner))


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), 0)])
