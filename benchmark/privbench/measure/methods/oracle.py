"""The oracle: gives an attack exactly the access it declared, and counts its queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from privbench.ground.errors import AccessDeniedError
from privbench.ground.store.source import computing_digest, digest
from privbench.ground.store.store import Key, Store
from privbench.measure.data.augmentation import Augmentation, augment
from privbench.measure.data.examples import Examples, as_float
from privbench.measure.data.row_random import fold, salt, uniform
from privbench.measure.methods.access import Access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from privbench.measure.data.examples import Card

#: An answer is kept if it takes at most this much: 512 numbers for each of 10 views of 20,000 rows,
#: EncoderMI at its published size, take 391 MiB. The shadows of an attack divide this among them.
KEPT_BYTES = 512 * 2**20
#: However many shadows there are, an answer of each is kept if it takes at most this much.
KEPT_BYTES_OF_EACH = 64 * 2**20


class Served(Protocol):
    """Anything that answers queries: a trained victim, a scikit-learn model, a remote endpoint.

    Attributes:
        card: card of the data it was trained for.
        grants: access that it gives.
        key: digest of everything that its answers depend on; None if unknown (no caching).
        fresh: optional; whether every query draws new noise (no caching).
        labels: optional; (n,) int64 classes of x, if they are cheaper than posteriors.
    """

    @property
    def card(self) -> Card: ...  # noqa: D102 - see the class
    @property
    def grants(self) -> Access: ...  # noqa: D102
    @property
    def key(self) -> str | None: ...  # noqa: D102

    def embeddings(self, x: Tensor) -> Tensor:
        """Return released embeddings (n, d) float32 of x (n, *shape), integer or in [0, 1]."""

    def log_posteriors(self, x: Tensor) -> Tensor:
        """Return the log of the released posteriors, (n, k) float64, without saturation."""

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Return the gradient of a summed loss with respect to x, (n, *shape)."""

    def weights(self) -> Mapping[str, Tensor]:
        """Return copies of the trained tensors by name."""


@dataclass(frozen=True)
class Views:
    """The n augmented views of every row, created lazily and fully determined by the seed.

    Each row's random parameters depend on its content, so permuting the rows permutes the views.

    >>> from privbench.testing import tiny_split
    >>> rows = tiny_split().candidates
    >>> Views(rows, Augmentation(shift=1), 4, seed=0).make(0, 2).shape  # 4 views of 2 rows
    torch.Size([8, 1, 8, 8])

    Attributes:
        rows: original rows.
        augmentation: how views vary.
        n: views per row.
        seed: seed of the views; independent of the attack, so that attacks share views.
    """

    rows: Examples
    augmentation: Augmentation
    n: int
    seed: int

    def make(self, start: int, stop: int) -> Tensor:
        """Return the views of rows start..stop: ((stop - start) * n, c, h, w) float, row by row."""
        rows = self.rows.select(slice(start, stop))
        x = as_float(rows.x, rows.scale).repeat_interleave(self.n, 0)
        which = torch.arange(self.n, device=x.device).repeat(len(rows))
        keys = fold(rows.keys.repeat_interleave(self.n) ^ fold(which, 1), self.seed)
        return augment(x, self.augmentation, uniform(keys, self.augmentation.uniforms))

    def digest(self) -> str:
        """Return a digest that identifies the views."""
        return digest([self.rows.digest(labels=False), self.augmentation, self.n, self.seed])


def views_seed(seed: int) -> int:
    """Return the seed of views, shared by all attacks of one data seed."""
    return salt(seed, "views")


class Oracle:
    """An attack's interface to the victim; it enforces the declared access and counts every row.

    Asking for more than was declared raises an error. A cached answer also counts as a query.

    Attacks that ask one model about the same rows or views share the answer through the store. If
    several ask at the same time, one computes and the others wait for it. The views themselves are
    not kept: a view of 3x32x32 takes 12 KB and longer to write than to make, but its embedding (512
    numbers) takes 2 KB and saves the forward pass too.

    >>> from privbench.testing import memoriser, tiny_split
    >>> split = tiny_split()
    >>> oracle = Oracle(memoriser(split.victim()), Access.POSTERIORS, asker="example")
    >>> oracle.posteriors(split.candidates).shape, oracle.queries
    (torch.Size([160, 10]), 160)
    >>> oracle.embeddings(split.candidates)
    Traceback (most recent call last):
        ...
    privbench.ground.errors.AccessDeniedError: ...

    """

    def __init__(
        self,
        served: Served,
        access: Access,
        *,
        asker: str,
        store: Store | None = None,
        rows_per_call: int = 4096,
        models: int = 1,
    ) -> None:
        """Restrict ``served`` to ``access``, as far as ``served`` grants it.

        ``models`` is how many such models are asked, for example shadows: the more there are, the
        less the store keeps of each.
        """
        self.__served = served
        self.__store = store
        self.__asker = asker
        self.__step = rows_per_call
        self.__most = max(KEPT_BYTES_OF_EACH, KEPT_BYTES // models)
        self.__access = access & served.grants
        self.__queries = 0
        self.__kept: list[Key] = []

    @property
    def access(self) -> Access:
        """Return the access that the attack may use."""
        return self.__access

    @property
    def queries(self) -> int:
        """Return the number of rows queried so far (each view is one)."""
        return self.__queries

    @property
    def card(self) -> Card:
        """Return the card of the data that the victim was trained for."""
        return self.__served.card

    def labels(self, x: Tensor | Examples | Views) -> Tensor:
        """Return predicted classes, (n,) int64; (n, views) for views."""
        self._allow(Access.LABELS)
        kind = "labels" if hasattr(self.__served, "labels") else "posteriors"
        answer = self._ask(kind, x)
        return answer if kind == "labels" else answer.argmax(-1)

    def posteriors(self, x: Tensor | Examples | Views) -> Tensor:
        """Return released posteriors, (n, k) float64, rows sum to 1; (n, views, k) for views."""
        return self.log_posteriors(x).exp()

    def log_posteriors(self, x: Tensor | Examples | Views) -> Tensor:
        """Return the log of the released posteriors, (n, k) float64; finite where p rounds to 1."""
        self._allow(Access.POSTERIORS)
        return self._ask("posteriors", x)

    def embeddings(self, x: Tensor | Examples | Views) -> Tensor:
        """Return released embeddings, (n, d) float32; (n, views, d) for views."""
        self._allow(Access.EMBEDDINGS)
        return self._ask("embeddings", x)

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Return the gradient of ``loss(served, x)`` (summed over rows) with respect to x."""
        self._allow(Access.GRADIENTS)
        self.__queries += len(x)
        return self.__served.gradients(x, loss)

    def weights(self) -> Mapping[str, Tensor]:
        """Return copies of the trained tensors by name."""
        self._allow(Access.WEIGHTS)
        return self.__served.weights()

    def _allow(self, kind: Access) -> None:
        if kind not in self.access:
            raise AccessDeniedError(
                f"attack '{self.__asker}' asked its oracle for {kind} but has access to "
                f"{self.access} only: add Access.{kind.name} to its `needs`"
            )

    def _ask(self, kind: str, x: Tensor | Examples | Views) -> Tensor:
        # With keys of what the rows hold now: the answer is kept for others under these keys.
        if isinstance(x, Views):
            self.__queries += len(x.rows) * x.n
            x = replace(x, rows=x.rows.rekeyed())
            rows_digest: Callable[[], str] = x.digest
        elif isinstance(x, Examples):
            self.__queries += len(x)
            x = x.rekeyed()
            rows_digest = partial(x.digest, labels=False)
        else:
            self.__queries += len(x)
            return self._compute(kind, x)
        served = self.__served
        if self.__store is None or served.key is None or getattr(served, "fresh", False):
            return self._compute(kind, x)
        code = computing_digest(__name__)
        key = Key("outputs", {"of": served.key, "kind": kind, "rows": rows_digest(), "code": code})
        answer = self._shared(self.__store, key, kind, x)
        return answer.to(x.rows.device if isinstance(x, Views) else x.device)

    def _shared(self, store: Store, key: Key, kind: str, x: Examples | Views) -> Tensor:
        """Return the answer from the store; if it is missing, compute it and keep it there.

        Its first part tells its size. If that is too large, other workers do not wait for the rest.
        """
        rest, first = self._parts(kind, x), []

        def build() -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
            first.append(next(rest))
            total = len(x.rows) if isinstance(x, Views) else len(x)
            if first[0].nbytes * total > self.__most * len(first[0]):
                raise _TooLargeError
            return {"answer": torch.cat([*first, *rest])}, {}

        self.__kept.append(key)
        try:
            return store.make(key, build).tensors["answer"]
        except _TooLargeError:
            return torch.cat([*first, *rest])

    def forget(self) -> None:
        """Delete from the store what was asked here: the model may have been another."""
        for key in self.__kept:
            if self.__store is not None:
                self.__store.remove(key)

    def _compute(self, kind: str, x: Tensor | Examples | Views) -> Tensor:
        return torch.cat([*self._parts(kind, x)])

    def _parts(self, kind: str, x: Tensor | Examples | Views) -> Iterator[Tensor]:
        """Yield the answers block by block: (rows, ...), or (rows, views, ...) for views."""
        name = "log_posteriors" if kind == "posteriors" else kind
        ask: Callable[[Tensor], Tensor] = getattr(self.__served, name)
        if not isinstance(x, Views):
            yield ask(x.x if isinstance(x, Examples) else x)
            return
        step = max(1, self.__step // x.n)
        for start in range(0, len(x.rows), step):
            answers = ask(x.make(start, start + step))
            yield answers.view(-1, x.n, *answers.shape[1:])


class _TooLargeError(Exception):
    """An answer takes more than the store should keep."""
