"""A served victim narrowed to exactly what an attack declared, counting its queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from privbench.data.augmentation import Augmentation, augment
from privbench.data.examples import Examples, as_float
from privbench.data.row_random import fold, salt, uniform
from privbench.errors import AccessDeniedError
from privbench.games.access import Access
from privbench.store.source import computing_digest, digest
from privbench.store.store import Key, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from privbench.data.examples import Card

#: Cached outputs larger than this are computed again instead of stored.
STORED_BYTES = 64 * 2**20


class Served(Protocol):
    """Anything that answers queries: a trained victim, a scikit-learn model, a remote endpoint.

    Attributes:
        card: of the data it was trained for.
        grants: what it answers.
        key: digest of all that its answers depend on; None if that is not known (no caching).
        fresh: may be left out; whether asking twice draws twice (no caching).
        labels: may be left out; (n,) int64 classes of x, where they cost less than posteriors.
    """

    @property
    def card(self) -> Card: ...  # noqa: D102 - see the class
    @property
    def grants(self) -> Access: ...  # noqa: D102
    @property
    def key(self) -> str | None: ...  # noqa: D102

    def embeddings(self, x: Tensor) -> Tensor:
        """Released embeddings (n, d) float32 of x (n, *shape), integer or float in [0, 1]."""

    def log_posteriors(self, x: Tensor) -> Tensor:
        """Log of the released posteriors, (n, k) float64, without saturation."""

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Gradient of a summed loss with respect to x, (n, *shape)."""

    def weights(self) -> Mapping[str, Tensor]:
        """Copies of the trained tensors by name."""


@dataclass(frozen=True)
class Views:
    """n augmented views of every row, made lazily, the same for whoever asks with the same seed.

    Each row's random parameters come from its content, so a permuted question has permuted views.

    Attributes:
        rows: the originals.
        augmentation: how views vary.
        n: views per row.
        seed: of the views; not of the attack, so that attacks share them.
    """

    rows: Examples
    augmentation: Augmentation
    n: int
    seed: int

    def make(self, start: int, stop: int) -> Tensor:
        """Views of rows start..stop: ((stop - start) * n, c, h, w) float, row after row."""
        rows = self.rows.select(slice(start, stop))
        x = as_float(rows.x, rows.scale).repeat_interleave(self.n, 0)
        which = torch.arange(self.n, device=x.device).repeat(len(rows))
        keys = fold(rows.keys.repeat_interleave(self.n) ^ fold(which, 1), self.seed)
        return augment(x, self.augmentation, uniform(keys, self.augmentation.uniforms))

    def digest(self) -> str:
        """Identity of the views."""
        return digest([self.rows.digest(labels=False), self.augmentation, self.n, self.seed])


def views_seed(seed: int) -> int:
    """The seed that all attacks of one data seed draw their views with."""
    return salt(seed, "views")


class Oracle:
    """What an attack holds. Asking for more than was declared raises, and every row is counted.

    The counter sits above the cache: a cached answer costs a query all the same.

    Attributes:
        access: what may be asked.
        queries: rows asked so far (each view is one).
    """

    def __init__(
        self,
        served: Served,
        access: Access,
        *,
        asker: str,
        store: Store | None = None,
        rows_per_call: int = 4096,
    ) -> None:
        """Narrow ``served`` to ``access``, which must be within what it grants."""
        self.__served = served
        self.__store = store
        self.__asker = asker
        self.__step = rows_per_call
        self.access = access & served.grants
        self.queries = 0

    @property
    def card(self) -> Card:
        """Card of the data that the victim was trained for."""
        return self.__served.card

    def labels(self, x: Tensor | Examples | Views) -> Tensor:
        """Predicted classes, (n,) int64; (n, views) for views."""
        self._allow(Access.LABELS)
        kind = "labels" if hasattr(self.__served, "labels") else "posteriors"
        answer = self._ask(kind, x)
        return answer if kind == "labels" else answer.argmax(-1)

    def posteriors(self, x: Tensor | Examples | Views) -> Tensor:
        """Released posteriors, (n, k) float64, rows summing to 1; (n, views, k) for views."""
        return self.log_posteriors(x).exp()

    def log_posteriors(self, x: Tensor | Examples | Views) -> Tensor:
        """Log of the released posteriors, (n, k) float64; finite where p rounds to 1."""
        self._allow(Access.POSTERIORS)
        return self._ask("posteriors", x)

    def embeddings(self, x: Tensor | Examples | Views) -> Tensor:
        """Released embeddings, (n, d) float32; (n, views, d) for views."""
        self._allow(Access.EMBEDDINGS)
        return self._ask("embeddings", x)

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Gradient of ``loss(served, x)`` (summed over rows) with respect to x."""
        self._allow(Access.GRADIENTS)
        self.queries += len(x)
        return self.__served.gradients(x, loss)

    def weights(self) -> Mapping[str, Tensor]:
        """Copies of the trained tensors by name."""
        self._allow(Access.WEIGHTS)
        return self.__served.weights()

    def _allow(self, kind: Access) -> None:
        if kind not in self.access:
            raise AccessDeniedError(
                f"attack '{self.__asker}' asked its oracle for {kind} but was given "
                f"{self.access}: add Access.{kind.name} to its `needs`"
            )

    def _ask(self, kind: str, x: Tensor | Examples | Views) -> Tensor:
        if isinstance(x, Views):
            self.queries += len(x.rows) * x.n
            rows_digest: Callable[[], str] = x.digest
        elif isinstance(x, Examples):
            self.queries += len(x)
            rows_digest = lambda: x.digest(labels=False)  # noqa: E731 - one word is enough
        else:
            self.queries += len(x)
            return self._compute(kind, x)
        served = self.__served
        if self.__store is None or served.key is None or getattr(served, "fresh", False):
            return self._compute(kind, x)
        code = computing_digest(__name__)
        key = Key("outputs", {"of": served.key, "kind": kind, "rows": rows_digest(), "code": code})
        held = self.__store.find(key)
        if held is None:
            answer = self._compute(kind, x)
            if answer.nbytes <= STORED_BYTES:
                self.__store.keep(key, {"answer": answer.contiguous()}, {})
            return answer
        device = x.rows.device if isinstance(x, Views) else x.device
        return held.tensors["answer"].to(device)

    def _compute(self, kind: str, x: Tensor | Examples | Views) -> Tensor:
        name = "log_posteriors" if kind == "posteriors" else kind
        ask: Callable[[Tensor], Tensor] = getattr(self.__served, name)
        if isinstance(x, Views):
            step = max(1, self.__step // x.n)
            parts = [ask(x.make(i, i + step)) for i in range(0, len(x.rows), step)]
            answers = torch.cat(parts)
            return answers.view(len(x.rows), x.n, *answers.shape[1:])
        return ask(x.x if isinstance(x, Examples) else x)
