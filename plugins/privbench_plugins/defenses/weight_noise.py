"""Weight noise is added to the classifier once after training: logistic (ALM), Laplace or Gaussian.

Additive Logistic Mechanism for privacy-preserving self-supervised learning (2022), sections 4 and
5, algorithms 1 and 2. The encoder comes from public rows. The classifier is trained on private rows
and released with noise on every weight and bias, so any number of queries has the same privacy
cost.

- ``alm``: Logistic(0, s), s = L1 sensitivity / epsilon. |d log density| < 1 / s, so delta is 0.
- ``laplace``: Laplace(0, b), b = L1 sensitivity / epsilon.
- ``gaussian``: N(0, sigma²), sigma from the L2 sensitivity by Balle & Wang's exact calibration; the
  classical formula is available within its range, epsilon up to 1.

The sensitivity is *sampled*: the largest distance between classifiers trained without one row and
without another, over ``pairs`` random pairs of the same private set (``sample``). This only
samples a local sensitivity, so the epsilon in the record is nominal and guarantees nothing. It
covers the classifier only; if members trained the encoder too, ``encodermi-*`` and other attacks
detect them there.

``variant="as-published"`` uses the norms that the paper's table suggests (largest column sum and
spectral norm of the weight matrix, instead of norms of all weights as one vector) and the classical
Gaussian beyond its range: use it only to reproduce the paper's curves. At equal epsilon the
logistic noise has 1.645 times the variance of the Laplace noise: compare mechanisms at equal
utility.

What to expect: a classifier that leaks little without noise does not leak less with it; noise that
stops ``posterior-label-mia`` costs accuracy, and leaves more to ``lira-head`` than to ``lira``
(CIFAR-10, 3 seeds, ``laplace`` at epsilon 100: AUC .676 and .558, without noise .866 and .825;
leaderboards/experiments/stronger.md).

Epsilon 10 is the largest that the paper calls reasonable, and noise for it destroys a classifier of
100 rows: on ``digits`` (``simclr``, 2 seeds; none .90) test accuracy is .15 (``alm``), .17
(``laplace``) and .29 (``gaussian``). It is .49, .58 and .84 at epsilon 100, and .89 to .90 at 1,000
(seed 0; none .92). A classifier whose sensitivity falls with one over the rows therefore makes
sense at epsilon 10 from about 10,000 rows, with ``gaussian`` from 1,000
(``privbench run --defense alm --set alm.epsilon=1000 --attack metric-loss``). With fewer, use
``dp-features``, or ``dp-sgd`` on a public encoder.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from privbench import BadInputError, Defense, Ge, Gt, Judge, Lt, Paper, Strength, hookimpl
from privbench.toolbox import noise
from privbench.toolbox.vision_transformer import VisionTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Cell, DefenseContext, Model, Phase, World

Variant = Literal["flattened", "as-published"]
#: Largest epsilon for which the classical Gaussian mechanism has a proof.
CLASSICAL = 1.0
NO_GUARANTEE = (
    "sampled local sensitivity of one private set: no guarantee, and no gamma of random privacy"
)


@dataclass(frozen=True)
class _WeightNoise(Defense):
    """Shared base of the three mechanisms; subclasses define norm, scale and distribution.

    Attributes:
        epsilon: nominal epsilon; the noise scale is the L1 sensitivity divided by it.
        pairs: number of pairs of left-out rows that the sensitivity sampler draws.
        variant: ``flattened`` norms, or the ``as-published`` matrix norms.
    """

    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira",
            "Its shadows carry noise of the same scale: a likelihood that knows the noise.",
        ),
        Judge(
            "lira-head",
            "Members move weights where few embeddings lie; noise moves them everywhere alike.",
        ),
        Judge(
            "rmia",
            "The same noise in every shadow leaves the order of rows that the population gives.",
        ),
    )
    claims_epsilon: ClassVar[bool] = True
    family: ClassVar[str] = "weight-noise"
    requires: ClassVar[tuple[str, ...]] = ("classes",)
    order: ClassVar[int]  #: order of the norm that the noise is calibrated to
    strength: ClassVar[Strength | None] = Strength(
        "epsilon", stronger="down", sweep=(10_000.0, 1_000.0, 100.0, 10.0)
    )

    epsilon: Annotated[float, Gt(0)] = 10.0
    pairs: Annotated[int, Ge(1)] = 250
    variant: Variant = "flattened"

    def incompatible(self, cell: Cell) -> str | None:
        """Require a classifier that is trained separately, and is nothing but weights."""
        if isinstance(cell.target, VisionTarget):
            return (
                f"{self.name} is noise on weights, and the classifier of {cell.target.name} also "
                "keeps means of members' embeddings"
            )
        if not cell.target.classifier_apart(cell.protocol):
            return (
                f"{self.name} is noise on a classifier trained on a frozen encoder, and "
                f"{cell.target.name} trains both at once"
            )
        return None

    def on_trained(
        self, model: Model, phases: Sequence[Phase], world: World, ctx: DefenseContext
    ) -> Model:
        """Sample the sensitivity, then add the noise."""
        phase = next(p for p in reversed(phases) if p.reads == "embeddings")
        parts = sorted({part for step in phase.steps.values() for part in step.trains})
        if any(b.is_floating_point() for part in parts for b in model[part].buffers()):
            raise BadInputError(
                f"{self.name} adds noise to weights, and '{', '.join(parts)}' also keeps means of "
                "members' embeddings (batch norm), which get none: choose another target"
            )
        rows = phase.rows
        n = len(world.parts[rows]) if isinstance(rows, str) else int(rows.sum())
        refit = partial(ctx.refit, phase)

        def sampled() -> Mapping[str, Tensor]:
            pairs = ctx.generator("pairs")
            return sample(refit, n, self.pairs, pairs, whole=phase.batch.size >= n)

        norm = f"l{self.order}" if self.variant == "flattened" else f"matrix-{self.order}"
        found = ctx.once("sensitivity", sampled, pairs=self.pairs)
        sensitivity = float(found[norm].max())
        scale = self.scale(sensitivity)
        named = [p for part in parts for _, p in sorted(model[part].named_parameters())]
        with torch.no_grad():
            for i, tensor in enumerate(named):
                u = torch.rand(
                    tensor.shape, generator=ctx.generator("noise", i), device=tensor.device,
                    dtype=torch.float64,
                )  # fmt: skip
                tensor.add_(self.noise(u, scale).to(tensor.dtype))
        facts = {
            "sensitivity": sensitivity, "norm": norm, "pairs": self.pairs, "scale": scale,
            "mechanism": self.mechanism,
        }  # fmt: skip
        ctx.note(
            **facts, sampled=NO_GUARANTEE, noise=noise.SIMULATED,
            **{self.name: "touches the classifier only"},
        )  # fmt: skip
        ctx.claim(
            epsilon=self.epsilon, delta=getattr(self, "delta", 0.0), adjacency="replace-one",
            phase=phase.name, guarantee=False, **facts,
        )  # fmt: skip
        return model

    @property
    def mechanism(self) -> str:
        """Name of the mechanism in words."""
        return self.name if self.variant == "flattened" else f"{self.name} as published"

    def scale(self, sensitivity: float) -> float:
        """Return the scale of the noise."""
        return sensitivity / self.epsilon

    @abstractmethod
    def noise(self, u: Tensor, scale: float) -> Tensor:
        """Return noise from uniform numbers u, of the same shape."""


_PAPER = Paper(
    "Additive Logistic Mechanism for Privacy-Preserving Self-Supervised Learning",
    "Yang, Gohari, Topcu", "arXiv 2022", "sections 4-5, algorithms 1-2",
)  # fmt: skip
_DEVIATIONS = (
    "Norms are those of all weights and biases as one vector (`variant='as-published'` has matrix "
    "norms); pairs are never a row with itself; the two trainings of a "
    "pair share initial weights, and all batches but for one slot."
)


@dataclass(frozen=True)
class AdditiveLogistic(_WeightNoise):
    """Adds logistic noise to the classifier's weights.

    Attributes:
        epsilon: nominal epsilon; the noise scale is the L1 sensitivity divided by it.
        pairs: number of pairs of left-out rows that the sensitivity sampler draws.
        variant: ``flattened`` norms, or the ``as-published`` matrix norms.
    """

    name: ClassVar[str] = "alm"
    paper: ClassVar[Paper] = _PAPER
    deviations: ClassVar[str] = _DEVIATIONS
    order: ClassVar[int] = 1

    def noise(self, u: Tensor, scale: float) -> Tensor:
        """Return logistic noise."""
        return noise.logistic(u, scale)


@dataclass(frozen=True)
class LaplaceNoise(_WeightNoise):
    """Adds Laplace noise to the classifier's weights.

    Attributes:
        epsilon: nominal epsilon; the noise scale is the L1 sensitivity divided by it.
        pairs: number of pairs of left-out rows that the sensitivity sampler draws.
        variant: ``flattened`` norms, or the ``as-published`` matrix norms.
    """

    name: ClassVar[str] = "laplace"
    paper: ClassVar[Paper] = _PAPER
    deviations: ClassVar[str] = _DEVIATIONS
    order: ClassVar[int] = 1

    def noise(self, u: Tensor, scale: float) -> Tensor:
        """Return Laplace noise."""
        return noise.laplace(u, scale)


@dataclass(frozen=True)
class GaussianNoise(_WeightNoise):
    """Adds Gaussian noise to the classifier's weights.

    Attributes:
        epsilon: nominal epsilon.
        delta: nominal delta.
        calibration: ``analytic`` (exact, any epsilon) or ``classical`` (epsilon up to 1; beyond
            that only with ``variant="as-published"``, where it proves nothing).
        pairs: number of pairs of left-out rows that the sensitivity sampler draws.
        variant: ``flattened`` norms, or the ``as-published`` matrix norms with the classical
            calibration.
    """

    name: ClassVar[str] = "gaussian"
    paper: ClassVar[Paper] = _PAPER
    deviations: ClassVar[str] = (
        _DEVIATIONS + " The exact calibration of Balle & Wang (ICML 2018) instead of the classical."
    )
    order: ClassVar[int] = 2

    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    calibration: Literal["analytic", "classical"] = "analytic"

    def __post_init__(self) -> None:
        """Check the range of the classical calibration.

        Raises:
            BadInputError: if epsilon is beyond that range.
        """
        super().__post_init__()
        if (self.calibration, self.variant) == ("classical", "flattened") and (
            self.epsilon > CLASSICAL
        ):
            raise BadInputError(
                f"gaussian.epsilon: {self.epsilon:g} is beyond {CLASSICAL:g}, where the classical "
                "calibration is not proved: use calibration='analytic'"
            )

    @property
    def mechanism(self) -> str:
        """Name of the mechanism in words, with its calibration."""
        classical = self.calibration == "classical" or self.variant == "as-published"
        beyond = ", beyond its range" if classical and self.epsilon > CLASSICAL else ""
        return f"{super().mechanism}, {'classical' if classical else 'analytic'}{beyond}"

    def scale(self, sensitivity: float) -> float:
        """Return the standard deviation."""
        classical = self.calibration == "classical" or self.variant == "as-published"
        sigma = noise.classical_sigma if classical else noise.analytic_sigma
        return sigma(sensitivity, self.epsilon, self.delta)

    def noise(self, u: Tensor, scale: float) -> Tensor:
        """Return Gaussian noise."""
        return noise.normal(u, scale)


def sample(
    refit: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
    n: int,
    m: int,
    generator: torch.Generator,
    *,
    whole: bool = False,
) -> dict[str, Tensor]:
    """Measure distances between classifiers trained without one row and without another.

    Algorithm 2, after Rubinstein and Alda (ICML 2017), whose confidence (their gamma) needs fresh
    rows in every draw and does not apply. All trainings run at once from the same initial weights.
    The two of a pair use the same batches except for one slot, where one has the first row and the
    other the second. If a batch holds all rows, their order does not matter, and each row is left
    out only once, however many pairs it is in.

    Args:
        refit: maps (r,) dropped positions and (r,) positions exchanged for them, or -1, to
            name -> (r, ...) trained tensors, as ``DefenseContext.refit`` does.
        n: private rows.
        m: number of pairs to draw.
        generator: on the device of the tensors.
        whole: whether every batch holds all rows.

    Returns:
        ``pairs`` (m, 2) int64, never a row with itself; and (m,) float64 distances: ``l1`` and
        ``l2`` of all weights and biases as one vector, ``matrix-1`` (largest column sum) and
        ``matrix-2`` (spectral norm) of the weight matrices alone, summed over matrices. Matrices
        are (inputs, outputs), as in the paper's framework, not as torch stores them.
    """
    pairs = draw(n, m, generator)
    if whole:
        dropped, at = torch.unique(pairs, return_inverse=True)
        exchanged = torch.full_like(dropped, -1)
    else:  # without i; then without j, and i in its slot
        dropped = pairs[:, :1].expand(-1, 2).flatten()
        exchanged = torch.stack([torch.full_like(pairs[:, 1], -1), pairs[:, 1]], dim=1).flatten()
        at = torch.arange(2 * m, device=pairs.device).view(-1, 2)
    trained = {name: tensor.double() for name, tensor in refit(dropped, exchanged).items()}
    flat = torch.cat([tensor.flatten(1) for _, tensor in sorted(trained.items())], dim=1)
    apart = flat[at[:, 0]] - flat[at[:, 1]]
    matrices = [(t[at[:, 0]] - t[at[:, 1]]).mT for t in trained.values() if t.ndim == 3]  # noqa: PLR2004
    none = torch.zeros(m, dtype=torch.float64, device=flat.device)
    return {
        "pairs": pairs,
        "l1": apart.abs().sum(1),
        "l2": apart.norm(dim=1),
        "matrix-1": sum((torch.linalg.matrix_norm(d, 1) for d in matrices), start=none),
        "matrix-2": sum((torch.linalg.matrix_norm(d, 2) for d in matrices), start=none),
    }


def draw(n: int, m: int, generator: torch.Generator) -> Tensor:
    """Draw random pairs (m, 2) of different positions below n, n at least 2.

    >>> pairs = draw(2, 100, torch.Generator().manual_seed(0))
    >>> sorted(set(map(tuple, pairs.tolist())))
    [(0, 1), (1, 0)]
    """
    device = generator.device
    first = torch.randint(n, (m,), generator=generator, device=device)
    step = torch.randint(1, n, (m,), generator=generator, device=device)
    return torch.stack([first, (first + step) % n], dim=1)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the three mechanisms."""
    return [AdditiveLogistic(), LaplaceNoise(), GaussianNoise()]
