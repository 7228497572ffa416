"""A model of your own, as it is: a module, an estimator, a function or an HTTP endpoint.

``privbench audit`` runs it; see ``examples/audit``. The model is asked and never trained. It exists
before the run, so its members are rows that you name, and its protocol is ``trained_elsewhere``.
The shadows of attacks are of a target of this package that the adversary names.

What the model gets: rows (n, *shape) of float32 in the units of your files. A function or an
estimator gets a NumPy array (an estimator with one row of columns for each), a torch module a
tensor, an endpoint nested lists of JSON.

What it may answer, for n rows and k classes: posteriors (n, k), logits (n, k), classes (n,),
embeddings (n, d), or, as a regression, values (n,). No attack gets more than that: no gradients, no
weights, no embeddings of a classifier.

*The null victim* is a small network with random weights: nothing here can train your model on other
rows. What attacks find there is a difference between members and nonmembers, not a leak.

The key of a result holds a digest of what the model answered to the members and nonmembers of the
audit, and ``tag``, your name for the version. It holds no file, no weights and no address: what
answers in the same way is the same model, wherever it is and however it was saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from torch import nn

from privbench import Access, BadInputError, Ge, Gt, Lt, Model, Target, hookimpl
from privbench.toolbox.asked_model import GRANTS, Asked, Finite, Form, Gives
from privbench.toolbox.endpoint import Endpoint, redacted
from privbench.toolbox.messages import plain
from privbench.toolbox.opened_model import Opened, as_array, forget, given, opened_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench import Card, Cell, Phase, TargetContext, World

#: Fields that say how the model is reached, not what it answers.
_REACHED = (
    "model", "checkpoint", "ledger", "rate", "retries", "batch", "request_timeout", "deadline",
    "format", "request", "answer", "max_queries", "source",
)  # fmt: skip
_HIDDEN = 64  # of the null victim


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
        least: posteriors below it count as it; the answers of a forest are multiples of a number.
        width: of embeddings.
        source: name of the user's rows, if the model gets these; "" for numbers.
        ledger: file that keeps the answers of an endpoint; "" for none.
        rate: most requests to an endpoint per second; 0 for no limit.
        retries: how often a request that failed is repeated.
        batch: most rows of a request.
        request_timeout: seconds in which a request must be answered.
        deadline: seconds for all requests, from the first on; 0 for no limit.
        format: of requests and answers of an endpoint, from ``privbench.toolbox.endpoint_formats``.
        request: file of a template in place of the format's request; "" for none.
        answer: path in an answer in place of the format's; "" for none.
        max_queries: most rows that are sent to an endpoint; 0 for no limit.
    """

    name: ClassVar[str] = "own-model"
    labelled_encoder: ClassVar[bool] = True
    trains_encoder: ClassVar[bool] = False

    model: str = ""
    checkpoint: str = ""
    gives: Gives = "posteriors"
    tag: str = ""
    answered: str = ""
    low: tuple[Finite, ...] = ()
    high: tuple[Finite, ...] = ()
    least: Annotated[float, Ge(0), Lt(1)] = 0.0
    width: Annotated[int, Ge(0)] = 0
    source: str = ""
    ledger: str = ""
    rate: Annotated[float, Ge(0)] = 0.0
    retries: Annotated[int, Ge(0)] = 5
    batch: Annotated[int, Ge(1)] = 64
    request_timeout: Annotated[float, Gt(0)] = 60.0
    deadline: Annotated[float, Ge(0)] = 0.0
    format: str = "privbench"
    request: str = ""
    answer: str = ""
    max_queries: Annotated[int, Ge(0)] = 0

    @property
    def grants(self) -> Access:  # type: ignore[override]
        """What the model answers, and classes if it answers posteriors."""
        return GRANTS[self.gives]

    def holding(self, model: Any) -> OwnModel:
        """Return the target of a model in memory; it works in this process only."""
        return self.replace(model=given(model))

    def reopened(self) -> OwnModel:
        """Return the target after everything that this process keeps of models was forgotten."""
        forget()
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

    # ---- asking ----------------------------------------------------------------------------

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Return the model as it is, behind what puts rows back into the user's units."""
        del ctx
        return self._served(card, self.asked(card.classes or 0))

    def build_untrained(self, card: Card, ctx: TargetContext) -> Model:
        """Return a small network with random weights and outputs of the same kind."""
        del ctx
        inputs = int(np.prod(card.shape))
        width = {"embeddings": self.width, "values": 1}.get(self.gives, card.classes) or _HIDDEN
        layers = nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, width)
        return self._served(card, _Untrained(width, nn.Flatten(), *layers))

    def _served(self, card: Card, encoder: nn.Module) -> Model:
        parts = {"encoder": encoder}
        if Access.LABELS in self.grants:
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
        form = Form(
            self.gives, classes, self.low, self.high, self.least, self.source, self.width
        )  # fmt: skip
        named = "the given model" if self.model.startswith("given:") else redacted(self.model)
        told = f"own-model: {plain(named)}"
        if not self._remote:
            return Asked(opened_once(self.model, self.checkpoint), form, told)
        at = (
            self.model, self.tag, self.ledger, self.rate, self.retries, self.batch,
            self.request_timeout, self.deadline, self.format, self.request, self.answer,
            self.max_queries,
        )  # fmt: skip
        if at not in _ENDPOINTS:
            _ENDPOINTS[at] = Endpoint(*at)
        endpoint = _ENDPOINTS[at]
        return Asked(Opened(lambda x: endpoint(as_array(x))), form, told, endpoint)


class _Untrained(nn.Sequential):
    """Layers with random weights, whose outputs have a width."""

    def __init__(self, width: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.width = width


_ENDPOINTS: dict[Any, Endpoint] = {}


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [OwnModel()]
