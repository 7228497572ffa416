"""A model of your own, as it is: a module, an estimator, a function or an HTTP endpoint.

``privbench audit`` runs it; see ``examples/audit``. The model is asked and never trained. It exists
before the run, so its members are rows that you name, and its protocol is ``trained_elsewhere``.
The shadows of attacks are of a target of this package that the adversary names.

What the model gets: rows (n, *shape) of float32 in the units of your files. A function or an
estimator gets a NumPy array (an estimator with one row of columns for each), a torch module a
tensor, an endpoint nested lists of JSON.

What it may answer, for n rows and k classes: posteriors (n, k), logits (n, k), classes (n,), or
embeddings (n, d). No attack gets more than that: no gradients, no weights, no embeddings of a
classifier.

*The null victim* is a small network with random weights: nothing here can train your model on other
rows. What attacks find there is a difference between members and nonmembers, not a leak.

The key of a result holds a digest of what the model answered to the members and nonmembers of the
audit, and ``tag``, your name for the version. It holds no file, no weights and no address: what
answers in the same way is the same model, wherever it is and however it was saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from privbench import Access, BadInputError, Ge, Gt, Model, Target, hookimpl
from privbench.toolbox.endpoint import Endpoint, redacted
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.opened_model import Opened, given, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privbench import Card, Cell, Phase, TargetContext, World

_GRANTS = {
    "posteriors": Access.LABELS | Access.POSTERIORS,
    "logits": Access.LABELS | Access.POSTERIORS,
    "labels": Access.LABELS,
    "embeddings": Access.EMBEDDINGS,
}
#: Fields that say how the model is reached, not what it answers.
_REACHED = (
    "model", "checkpoint", "ledger", "rate", "retries", "batch", "request_timeout", "deadline",
)  # fmt: skip
_HIDDEN = 64  # of the null victim
_SURE = 50.0  # logit of an answered class: the others get e^-50
_ROUNDING = 1e-6  # of a column's range
_CLASSES, _TABLE = 1, 2  # axes of an answer


@dataclass(frozen=True)
class OwnModel(Target):
    """Asks a model of your own; nothing is trained.

    Attributes:
        model: ``module:function``, or the address of an endpoint (http or https).
        checkpoint: path of weights for a torch module, safetensors or from ``torch.save``.
        gives: what it answers.
        tag: your name for the version of the model.
        answered: digest of what it answered in the audit, which is its identity.
        low: least value of each column, or of all; () for rows in [0, 1].
        high: largest value of each column, or of all; rows are put back between the two.
        ledger: file that keeps the answers of an endpoint; "" for none.
        rate: most requests to an endpoint per second; 0 for no limit.
        retries: how often a request that failed is repeated.
        batch: most rows of a request.
        request_timeout: seconds in which a request must be answered.
        deadline: seconds for all requests, from the first on; 0 for no limit.
    """

    name: ClassVar[str] = "own-model"
    labelled_encoder: ClassVar[bool] = True
    trains_encoder: ClassVar[bool] = False

    model: str = ""
    checkpoint: str = ""
    gives: Literal["posteriors", "logits", "labels", "embeddings"] = "posteriors"
    tag: str = ""
    answered: str = ""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    ledger: str = ""
    rate: Annotated[float, Ge(0)] = 0.0
    retries: Annotated[int, Ge(0)] = 5
    batch: Annotated[int, Ge(1)] = 64
    request_timeout: Annotated[float, Gt(0)] = 60.0
    deadline: Annotated[float, Ge(0)] = 0.0

    @property
    def grants(self) -> Access:  # type: ignore[override]
        """What the model answers, and classes if it answers posteriors."""
        return _GRANTS[self.gives]

    def holding(self, model: Any) -> OwnModel:
        """Return the target of a model in memory; it works in this process only."""
        return self.replace(model=given(model))

    def reopened(self) -> OwnModel:
        """Return the target after everything that this process keeps of models was forgotten."""
        _OPENED.clear()
        _ENDPOINTS.clear()
        return self

    # ---- checks ----------------------------------------------------------------------------

    def incompatible(self, cell: Cell) -> str | None:
        """Require a model with answers, and a protocol that knows its members."""
        if not (self.model and self.answered):
            return "own-model has no model: use `privbench audit --model my_module:load`"
        if not cell.protocol.trained_elsewhere:
            return (
                f"own-model has members of its own, and protocol '{cell.protocol.name}' draws "
                "others: use `privbench audit`"
            )
        return None

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values of the fields, for results: without the secrets of an address."""
        return {**super().hyperparameters(), "model": redacted(self.model)}

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the model answers, instead of where it is."""
        known = super().identity
        fields = {name: one for name, one in known["fields"].items() if name not in _REACHED}
        return {**known, "fields": fields}

    @property
    def label(self) -> str:
        """The model, your name for its version, and the first digits of its answers."""
        named = "" if self.model.startswith("given:") else plain(redacted(self.model))
        version = self.tag and f"version {plain(self.tag)}"
        told = ", ".join(filter(None, (named, version, self.answered[:8])))
        return f"{self.name}({told})" if told else self.name

    @property
    def _remote(self) -> bool:
        return self.model.startswith(("http://", "https://"))

    def _opened(self) -> Opened:
        """The model; this process opens it once."""
        weights = _stamp(self.checkpoint) if self.checkpoint else None
        at = (self.model, self.checkpoint, weights)
        if at not in _OPENED:
            _OPENED.clear()
            _OPENED[at] = opened(self.model, self.checkpoint)
        return _OPENED[at]

    # ---- asking ----------------------------------------------------------------------------

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Return the model as it is, behind what puts rows back into the user's units."""
        del ctx
        return self._served(card, self.asked(card.classes or 0))

    def build_untrained(self, card: Card, ctx: TargetContext) -> Model:
        """Return a small network with random weights and outputs of the same kind."""
        del ctx
        inputs = int(np.prod(card.shape))
        outputs = _HIDDEN if self.gives == "embeddings" else card.classes or _HIDDEN
        layers = nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, outputs)
        return self._served(card, nn.Sequential(nn.Flatten(), *layers))

    def _served(self, card: Card, encoder: nn.Module) -> Model:
        parts = {"encoder": encoder}
        if self.gives != "embeddings":
            parts["classifier"] = nn.Identity()
        return Model(card, parts, normalise=False)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train nothing.

        Raises:
            BadInputError: for a world of a shadow: the victim itself would stand for it.
        """
        del model
        if world.origin not in ("victim", "null"):
            raise BadInputError("own-model cannot be trained on other rows: give the adversary a "
                                "target (privbench audit --shadow-recipe)")  # fmt: skip
        ctx.note(model="as given; not trained here")
        return ()

    def asked(self, classes: int = 0) -> Asked:
        """Return the module that asks the model; ``classes`` is their number, if it is known."""
        if not self._remote:
            return Asked(self._opened(), self, classes)
        at = (
            self.model, self.tag, self.ledger, self.rate, self.retries, self.batch,
            self.request_timeout, self.deadline,
        )  # fmt: skip
        if at not in _ENDPOINTS:
            _ENDPOINTS[at] = Endpoint(*at)
        endpoint = _ENDPOINTS[at]
        return Asked(Opened(lambda x: endpoint(x.numpy())), self, classes, endpoint)


class Asked(nn.Module):
    """Answers rows in [0, 1]: logits (n, k) float32, or embeddings (n, d)."""

    def __init__(
        self, model: Opened, target: OwnModel, classes: int, endpoint: Endpoint | None = None
    ) -> None:
        """Take a model and the target that says what it answers; its endpoint, if it is one."""
        super().__init__()
        self._endpoint = endpoint
        self.classes = classes
        self.target, self.net = target, model.net
        self.place = nn.Parameter(torch.zeros(0))  # says on which device answers are wanted
        self._ask = model.ask
        self.low, self.high = (np.asarray(one, np.float64) for one in (target.low, target.high))

    def forward(self, x: Tensor) -> Tensor:
        """Return log-posteriors, logits or embeddings of x (n, *shape) float in [0, 1]."""
        raw, gives = self.raw(x), self.target.gives
        if gives == "labels":
            return self._certain(raw).to(self.place.device)
        made = torch.from_numpy(raw)
        if gives == "posteriors":
            made = made.clamp_min(torch.finfo(torch.float32).tiny).log()
        return made.float().to(self.place.device)

    def kept(self, x: Tensor) -> list[str]:
        """Return when an endpoint answered each of the rows (n, *shape) in [0, 1]; "" for never."""
        return self._endpoint.kept(self._in_units(x).numpy()) if self._endpoint else [""] * len(x)

    def again(self, x: Tensor) -> np.ndarray:
        """Return what ``raw`` does, of an endpoint that is asked now, whatever is kept."""
        endpoint = self._endpoint
        assert endpoint is not None  # noqa: S101 - nothing else keeps answers
        return self._read(x, lambda rows: endpoint.again(rows.numpy()))

    def raw(self, x: Tensor) -> np.ndarray:
        """Return the model's own answers (n, ...) float64 to rows (n, *shape) in [0, 1].

        Raises:
            BadInputError: if it fails, or answers something else than n rows of finite numbers.
        """
        return self._read(x, self._ask)

    def _read(self, x: Tensor, ask: Callable[[Tensor], Any]) -> np.ndarray:
        rows = self._in_units(x)
        rows = rows.to(x.device) if self.net is not None else rows.cpu()
        told = f"own-model: {plain(redacted(self.target.model))}"
        try:
            with torch.no_grad():
                answer = ask(rows)
        except BadInputError:
            raise
        except Exception as error:
            raise BadInputError(f"{told} failed on rows of shape {tuple(rows.shape)} "
                                f"({one_line(error)}): correct it, or give rows that it can "
                                "read") from error  # fmt: skip
        try:
            held = answer.detach().cpu().numpy() if isinstance(answer, Tensor) else answer
            made = np.asarray(held, np.float64)
        except (TypeError, ValueError):
            raise BadInputError(f"{told} answered a {plain(type(answer).__name__)} that is no "
                                "array of numbers: return posteriors (n, k), classes (n,) or "
                                "embeddings (n, d)") from None  # fmt: skip
        if made.ndim not in (_CLASSES, _TABLE) or len(made) != len(x) or not made.size:
            raise BadInputError(f"{told} answered {len(x)} rows with an array of shape "
                                f"{made.shape}: return posteriors (n, k), classes (n,) or "
                                "embeddings (n, d)")  # fmt: skip
        if not np.isfinite(made).all():
            row = int((~np.isfinite(made)).reshape(len(made), -1).any(1).argmax())
            raise BadInputError(f"{told} answered NaN or an infinite number, first for row {row} "
                                "of a query: correct the model or the row")  # fmt: skip
        return made

    def _certain(self, answered: np.ndarray) -> Tensor:
        """Return logits (n, k) that leave no doubt about classes (n,)."""
        labels = torch.from_numpy(answered).long()
        if answered.ndim != _CLASSES or not 0 <= int(labels.min()) <= int(labels.max()) < (
            self.classes
        ):
            raise BadInputError(f"own-model: {plain(redacted(self.target.model))} must answer one "
                                f"class from 0 to {self.classes - 1} for each row")  # fmt: skip
        return nn.functional.one_hot(labels, self.classes) * _SURE

    def _in_units(self, x: Tensor) -> Tensor:
        """Return rows in the user's units, float32; what is whole up to rounding is whole."""
        if not self.low.size:
            return x.float()
        wide = self.high - self.low
        values = x.double().cpu().numpy() * wide + self.low
        whole = np.round(values)
        exact = np.where(np.abs(values - whole) <= _ROUNDING * np.maximum(wide, 1), whole, values)
        return torch.from_numpy(exact.astype(np.float32))


_OPENED: dict[Any, Opened] = {}
_ENDPOINTS: dict[Any, Endpoint] = {}


def _stamp(path: str) -> tuple[int, ...]:
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return stat.st_size, stat.st_mtime_ns


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [OwnModel()]
