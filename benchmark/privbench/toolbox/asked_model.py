"""Asking a model of the user: rows go to it in the user's units, its answers become logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from privbench.ground.errors import BadInputError
from privbench.measure.methods.access import Access
from privbench.toolbox.looked_up import in_units, looked_up
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.opened_model import as_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.toolbox.endpoint import Endpoint
    from privbench.toolbox.opened_model import Opened

#: A number of the user's rows, which a model gets as float32.
Finite = Annotated[float, Ge(-1e38), Le(1e38)]
#: What a model may answer.
Gives = Literal["posteriors", "logits", "labels", "embeddings", "values"]
#: Access that each of them gives.
GRANTS = {
    "posteriors": Access.LABELS | Access.POSTERIORS,
    "logits": Access.LABELS | Access.POSTERIORS,
    "labels": Access.LABELS,
    "embeddings": Access.EMBEDDINGS,
    "values": Access.EMBEDDINGS,
}
_SURE = 50.0  # logit of an answered class: the others get e^-50
#: Sums of posteriors of float16, or rounded to three digits.
_ROUNDED = 2e-3
_CLASSES, _TABLE = 1, 2  # axes of an answer
_TWO = 2  # classes
_FAR = 1e30  # a residual that float32 holds


@dataclass(frozen=True)
class Form:
    """What a model reads and answers.

    Attributes:
        gives: what it answers.
        classes: their number, if it is known; else 0.
        low, high: least and largest value of each column, or of all; () for rows in [0, 1].
        source: name of the user's rows, if a model gets these (``looked_up``); "" for numbers.
        least: posteriors below it count as it. A forest of 100 trees answers 0 or 1 where it is
            sure, and the logit of these is nothing that a Gaussian fits.
        width: of embeddings, if it is known; else 0.
    """

    gives: Gives
    classes: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    least: float = 0.0
    source: str = ""
    width: int = 0

    def read(self, x: Tensor) -> Any:
        """Return what the model gets for x (n, *shape) in [0, 1]: a tensor, or the user's rows."""
        return looked_up(self.source)(x) if self.source else self.in_units(x)

    def truth(self, x: Tensor) -> np.ndarray:
        """Return the numbers (n,) that a regression is to answer for x (n, d) in [0, 1]."""
        return looked_up(self.source).truth(x)

    def in_units(self, x: Tensor) -> Tensor:
        """Return rows in the user's units, float32; what is whole up to rounding is whole."""
        if not self.low:
            return x.float()
        return torch.from_numpy(in_units(x.float().cpu().numpy(), self.low, self.high))


class Asked(nn.Module):
    """Answers rows in [0, 1]: logits (n, k) float32, or embeddings (n, d).

    The embedding (n, 1) of a regression is its residual: the answer minus the truth, which whoever
    asks knows. It is taken before numbers are rounded to float32.
    """

    def __init__(
        self, model: Opened, form: Form, told: str, endpoint: Endpoint | None = None
    ) -> None:
        """Take a model, its form, its name for messages, and its endpoint, if it is one."""
        super().__init__()
        self.endpoint = endpoint
        self.form, self.told, self.net, self.width = form, told, model.net, form.width
        self.place = nn.Parameter(torch.zeros(0))  # says on which device answers are wanted
        self._ask = model.ask

    def forward(self, x: Tensor) -> Tensor:
        """Return log-posteriors, logits or embeddings of x (n, *shape) float in [0, 1]."""
        return self.outputs(self.answers(x), x)

    def outputs(self, answers: np.ndarray, x: Tensor) -> Tensor:
        """Return log-posteriors, logits or embeddings of ``answers`` to x."""
        gives = self.form.gives
        if gives == "labels":
            return self._certain(answers).to(self.place.device)
        made = torch.from_numpy(answers)
        if gives == "posteriors":
            least = max(self.form.least, torch.finfo(torch.float32).tiny)
            made = made.clamp_min(least).log()
        if gives == "values":
            made = (made - torch.from_numpy(self.form.truth(x))[:, None]).clamp(-_FAR, _FAR)
        return made.float().to(self.place.device)

    def kept(self, x: Tensor) -> list[str]:
        """Return when an endpoint answered each of the rows (n, *shape) in [0, 1]; "" for never."""
        return self.endpoint.kept(as_array(self.form.read(x))) if self.endpoint else [""] * len(x)

    def again(self, x: Tensor) -> np.ndarray:
        """Return what ``raw`` does, of an endpoint that is asked now, whatever is kept."""
        endpoint = self.endpoint
        assert endpoint is not None  # noqa: S101 - nothing else keeps answers
        return self._read(x, lambda rows: endpoint.again(as_array(rows)))

    def answers(self, x: Tensor) -> np.ndarray:
        """Return what ``raw`` does; of one number for two classes, (n, 1), both, (n, 2)."""
        raw = self.raw(x)
        if self.form.classes == _TWO and raw.shape[1:] == (1,):
            return of_both(raw, self.form.gives)
        return raw

    def raw(self, x: Tensor) -> np.ndarray:
        """Return the model's own answers (n, ...) float64 to rows (n, *shape) in [0, 1].

        Raises:
            BadInputError: if it fails, or answers something else than n rows of finite numbers.
        """
        return self._read(x, self._ask)

    def _read(self, x: Tensor, ask: Callable[[Tensor], Any]) -> np.ndarray:
        rows = self.form.read(x)
        if isinstance(rows, Tensor):
            rows = rows.to(x.device) if self.net is not None else rows.cpu()
        told = self.told
        try:
            with torch.no_grad():
                answer = ask(rows)
        except BadInputError:
            raise
        except Exception as error:
            raise BadInputError(f"{told} failed on {described(rows)} "
                                f"({one_line(error)}): correct it, or give rows that it can "
                                "read") from error  # fmt: skip
        try:
            held = answer.detach().cpu().numpy() if isinstance(answer, Tensor) else answer
            made = _real(held)
        except (TypeError, ValueError):
            kind = _kind_of(answer)
            raise BadInputError(f"{told} answered a {plain(type(answer).__name__)} {kind}: return "
                                "posteriors (n, k), numbers of classes (n,), or embeddings "
                                "(n, d)") from None  # fmt: skip
        if self.form.gives == "values":
            return self._values(made, len(x))
        if made.ndim not in (_CLASSES, _TABLE) or len(made) != len(x) or not made.size:
            raise BadInputError(f"{told} answered {len(x)} rows with an array of shape "
                                f"{made.shape}: return posteriors (n, k), classes (n,) or "
                                "embeddings (n, d)")  # fmt: skip
        return self._finite(made)

    def _values(self, made: np.ndarray, n: int) -> np.ndarray:
        """Return what a regression answered as (n, 1)."""
        if made.shape not in ((n,), (n, 1)):
            raise BadInputError(f"{self.told} answered {n} rows with an array of shape "
                                f"{made.shape}, and y holds a number for each row: return one "
                                "number for each row, (n,); of several quantiles audit one; give "
                                "classes as texts; for an encoder leave out y")  # fmt: skip
        return self._finite(made.reshape(n, 1))

    def _finite(self, made: np.ndarray) -> np.ndarray:
        if not np.isfinite(made).all():
            row = int((~np.isfinite(made)).reshape(len(made), -1).any(1).argmax())
            raise BadInputError(f"{self.told} answered NaN or an infinite number, first for row "
                                f"{row} of a query: correct the model or the row")  # fmt: skip
        return made

    def _certain(self, answered: np.ndarray) -> Tensor:
        """Return logits (n, k) that leave no doubt about classes (n,)."""
        labels = torch.from_numpy(answered).long()
        if answered.ndim != _CLASSES or not 0 <= int(labels.min()) <= int(labels.max()) < (
            self.form.classes
        ):
            raise BadInputError(f"{self.told} must answer one class from 0 to "
                                f"{self.form.classes - 1} for each row")  # fmt: skip
        return nn.functional.one_hot(labels, self.form.classes) * _SURE


def _real(answer: Any) -> np.ndarray:
    if kind := _unreal(answer):
        raise TypeError(kind)
    return np.asarray(answer, np.float64)


def _unreal(answer: Any) -> str:
    """Return why numpy would lose something of an answer, as words of a sentence; "" if not."""
    if np.ma.is_masked(answer):
        return "with masked values"
    complexes = isinstance(answer, np.ndarray) and answer.dtype.kind == "c"
    return "of complex numbers" if complexes else ""


def _kind_of(answer: Any) -> str:
    """Return what an answer that is no array of numbers holds."""
    if isinstance(answer, list | tuple) and isinstance(answer[0], str):
        return f"of texts, {plain(answer[0])}"
    if isinstance(answer, np.ndarray) and answer.size and isinstance(answer.flat[0], str):
        return f"of texts, {plain(answer.flat[0])}"
    return _unreal(answer) or "that is no array of numbers"


def of_both(second: np.ndarray, gives: str) -> np.ndarray:
    """Return answers for two classes (n, 2), of what a model answers for the second one (n, 1).

    >>> of_both(np.array([[0.25]]), "posteriors"), of_both(np.array([[-2.0]]), "logits")
    (array([[0.75, 0.25]]), array([[ 0., -2.]]))
    """
    first = {"logits": np.zeros_like(second), "posteriors": 1 - second}.get(gives)
    return second if first is None else np.concatenate([first, second], 1)


def described(rows: Any) -> str:
    """Return what rows are, for messages.

    >>> described(np.zeros((3, 2))), described(["a text"])
    ('rows of shape (3, 2)', 'rows given as list of str')
    """
    if hasattr(rows, "columns"):
        return f"a table with the columns {plain(', '.join(map(str, rows.columns)))}"
    if hasattr(rows, "shape"):
        return f"rows of shape {tuple(rows.shape)}"
    return f"rows given as list of {plain(type(rows[0]).__name__)}"


def sums_to_one(answers: np.ndarray) -> bool:
    """Return whether answers (n, k) are posteriors, up to rounding to three digits.

    >>> sums_to_one(np.array([[0.25, 0.75]])), sums_to_one(np.array([[1.5, -0.5]]))
    (True, False)
    """
    return bool((answers >= 0).all() and np.abs(answers.sum(1) - 1).max() < _ROUNDED)
