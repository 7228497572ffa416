"""A served victim: a trained model that answers queries through its releases."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from privbench.ground.errors import PluginError
from privbench.ground.store.source import digest
from privbench.measure.data.examples import as_float
from privbench.measure.data.row_random import fold, row_keys, salt, uniform
from privbench.measure.training.model import Model
from privbench.measure.training.process_state import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Card
    from privbench.measure.methods.access import Access
    from privbench.measure.methods.defense import Release
    from privbench.measure.methods.oracle import Served

#: Rows per forward pass of a served victim. Fixed, and the last pass is filled up: a row's answer
#: differs in the last bits between batch sizes, and must not depend on the other rows of a query.
ROWS_PER_PASS = 256
#: How far from 1 released posteriors may sum.
_OFF = 1e-3


class Victim:
    """A trained model that answers queries: in eval mode, without gradients, through its releases.

    Attributes:
        model: the raw model.
        key: digest of everything that the answers depend on.
        grants: access that it gives.
        releases: the releases that change its answers, in order.
        facts: what was recorded when it was built: seconds, phases, notes, claims.
    """

    def __init__(
        self,
        card: Card,
        trained: Model,
        *,
        key: str,
        grants: Access,
        releases: Sequence[Release] = (),
        seed: int = 0,
        facts: Mapping[str, Any] | None = None,
        asker: str = "",
    ) -> None:
        """``seed`` seeds the releases; ``asker`` also those with new noise for every query."""
        self.card = card
        self.model = trained.eval().requires_grad_(False)
        self.key = key
        self.grants = grants
        self.facts = dict(facts or {})
        self.releases = tuple(releases)
        self._seed = seed
        self._asker = asker
        self._asked = 0

    def embeddings(self, x: Tensor) -> Tensor:
        """Released embeddings (n, d) float32 of x (n, *shape), integer or float in [0, 1]."""
        return self._passes(x, self._embed)

    def log_posteriors(self, x: Tensor) -> Tensor:
        """Log of the released posteriors, (n, k) float64."""
        return self._passes(x, self._log_posteriors)

    def labels(self, x: Tensor) -> Tensor:
        """Released classes (n,) int64; releases of posteriors that keep labels are skipped."""
        kept = all(r.keeps_labels for r in self.releases if r.of == "posterior")
        ask = self._undefended_log_posteriors if kept else self._log_posteriors
        return self._passes(x, lambda rows: ask(rows).argmax(-1))

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Gradient of the summed loss with respect to x (n, *shape), as float in [0, 1]."""
        device = next(self.model.parameters()).device
        x = as_float(x.to(device), self.card.scale).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(_Differentiable(self), x).sum(), x)
        return gradient

    def weights(self) -> Mapping[str, Tensor]:
        """Copies of the trained tensors by name."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def sibling(self, seed: int) -> Victim:
        """The same model with releases that another party owns."""
        return Victim(
            self.card,
            self.model,
            key=sibling_key(self.key, seed),
            grants=self.grants,
            releases=[release.sibling(seed) for release in self.releases],
            seed=salt(self._seed, "sibling", seed),
            facts=self.facts,
        )

    @property
    def fresh(self) -> bool:
        """Whether every query draws new noise, so that answers must not be cached."""
        return any(release.fresh for release in self.releases)

    def session(self, asker: str) -> Victim:
        """The same victim for one attack, with its own count of queries.

        The noise of fresh releases depends on the attack and the count. With a shared count, it
        would depend on earlier attacks too.
        """
        return Victim(
            self.card, self.model, key=self.key, grants=self.grants, releases=self.releases,
            seed=self._seed, facts=self.facts, asker=asker,
        )  # fmt: skip

    def unreleased(self) -> Victim:
        """The same model without releases: how a naive adversary sees its own rows."""
        return Victim(self.card, self.model, key=unreleased_key(self.key), grants=self.grants)

    def _passes(self, x: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        device = next(self.model.parameters()).device
        parts = []
        with serving(), _exact(device):
            for start in range(0, len(x), ROWS_PER_PASS):
                rows = x[start : start + ROWS_PER_PASS].to(device)
                held = len(rows)
                if held < ROWS_PER_PASS:
                    filler = rows[:1].expand(ROWS_PER_PASS - held, *rows.shape[1:])
                    rows = torch.cat([rows, filler])
                parts.append(ask(as_float(rows, self.card.scale))[:held])
        self._asked += 1
        return torch.cat(parts)

    def _embed(self, x: Tensor) -> Tensor:
        return self._released("embedding", x, self.model.encode(x).float())

    def _log_posteriors(self, x: Tensor) -> Tensor:
        log_p = self._undefended_log_posteriors(x)
        if not any(release.of == "posterior" for release in self.releases):
            return log_p
        released = self._released("posterior", x, log_p.exp())
        return released.clamp_min(torch.finfo(released.dtype).tiny).log()

    def _undefended_log_posteriors(self, x: Tensor) -> Tensor:
        """Log posteriors of released embeddings, before any release of posteriors."""
        return self.model.logits(self._embed(x)).double().log_softmax(-1)

    def _released(self, of: str, x: Tensor, value: Tensor) -> Tensor:
        for release in self.releases:
            if release.of == of:
                keys = fold(row_keys(x, self.card.scale), salt(self._seed, release.place))
                if release.fresh:
                    keys = fold(keys, salt(self._seed, "asked", self._asker, self._asked))
                before, value = value, release(x, value, uniform(keys, release.uniforms))
                if of == "posterior":
                    wrong = no_posteriors(value)
                    if not wrong and release.keeps_labels and has_moved(before, value):
                        wrong = "says keeps_labels and changed the most likely class: set it False"
                    if wrong:
                        raise PluginError(f"release {type(release).__name__} {wrong}")
        return value


def has_moved(before: Tensor, after: Tensor) -> bool:
    """Whether the most likely class of any row (n, k) is less likely than another afterwards.

    >>> p = torch.tensor([[0.5, 0.3, 0.2]])
    >>> has_moved(p, torch.tensor([[0.4, 0.4, 0.2]])), has_moved(p, torch.tensor([[0.3, 0.5, 0.2]]))
    (False, True)
    """
    own = after.gather(-1, before.argmax(-1, keepdim=True)).squeeze(-1)
    return bool((own < after.max(-1).values).any())


def no_posteriors(p: Tensor) -> str:
    """Return why p (n, k) are not posteriors, and what to do; "" if they are.

    >>> no_posteriors(torch.tensor([[0.5, 0.5], [0.7, 0.2]]))
    'returned posteriors that sum to 0.9: return rows of numbers from 0 to 1 that sum to 1'
    """
    do = "return rows of numbers from 0 to 1 that sum to 1"
    if not bool(p.isfinite().all()):
        return f"returned posteriors that are not finite: {do}"
    if bool((p < 0).any()):
        return f"returned negative posteriors: {do}"
    off = (p.sum(-1) - 1).abs()
    if bool((off > _OFF).any()):
        return f"returned posteriors that sum to {float(p.sum(-1)[off.argmax()]):.3g}: {do}"
    return ""


def sibling_key(key: str, seed: int) -> str:
    """Return the key of ``Victim.sibling``."""
    return digest([key, "sibling", seed])


def unreleased_key(key: str) -> str:
    """Return the key of ``Victim.unreleased``."""
    return digest([key, "unreleased"])


class Behind(Model):
    """A model whose embeddings pass through earlier releases; a later release learns from it."""

    def __init__(self, victim: Victim) -> None:
        """Take a victim that serves embeddings."""
        nn.Module.__init__(self)
        self.parts = victim.model.parts
        self.scale = victim.model.scale
        self._victim = victim

    def encode(self, x: Tensor) -> Tensor:
        """Released embeddings (n, d) of x (n, *shape)."""
        return self._victim.embeddings(x)


class _Differentiable:
    """The victim, with gradients from its answers to x."""

    def __init__(self, victim: Victim) -> None:
        self.card = victim.card
        self.grants = victim.grants
        self.key = None
        self.embeddings = victim._embed  # noqa: SLF001 - one class in two roles
        self.log_posteriors = victim._log_posteriors  # noqa: SLF001
        self.gradients = victim.gradients
        self.weights = victim.weights


def _exact(device: torch.device) -> Any:
    """Compute in full float32: with TF32, answers would depend on the kind of GPU."""
    if device.type == "cuda":
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return nullcontext()
