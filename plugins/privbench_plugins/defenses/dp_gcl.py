"""DP-GCL contrasts the rows of a batch in small groups, and clips the gradient of each group.

Li, Gong, Lin, Wang, Xiao: Differentially Private Contrastive Learning via Bounding Group-level
Contribution. arXiv:2604.26467 ("BGC"). A contrastive loss ties every row of a batch to all others,
so that one row may change the gradient of all of them. Here a row meets the rows of its group only:

1. Draw a batch: each row by its own coin (Poisson sampling).
2. Each of its rows draws one of k groups, by an independent fair coin with k sides, where k is
   ``batch / group``, rounded, and at least 1.
3. The loss of a group is the target's own, on the rows of the group alone: all negatives are from
   there. Its gradient is clipped to L2 norm ``clip``.
4. Add up the groups, add noise once, and divide by k.

**Its sensitivity is 2 clip** for adding or removing one row, with all its views. Fix all coins. A
row is in one group; its coin moves no other row, so the other groups stay as they are. The clipped
gradient of its own group was one vector of length ``clip`` at most, and is another one: they are 2
``clip`` apart at most. No less would do: with a third row, two rows may part where they met, and a
search finds groups whose gradient turns round (``tests/oracles/test_dp_gcl.py``). This holds
whatever the loss is, if its gradients are finite (training ends otherwise) and a pass mixes no
rows: batch norm is replaced by group norm, and targets that keep outputs of rows (``moco``,
``dino``) are refused, as are layers that take anything but rows or their views.

**The claim** is (epsilon, delta) for all phases that see members together. Each step draws every
row with probability batch / n, so the books are those of Poisson sampling; number of rows, sample
rate and steps count as public. The linear classifier on the frozen encoder is trained by DP-SGD
(``row_clip``) with the same noise multiplier. Phases on public rows do not change, but for group
norm.

What to expect: a step passes every view once, a small part of what one of ``logit-dp`` does, and
takes the losses of groups one by one. The classifier is that of ``dp-sgd``, whose noise makes sense
from 300 members. A row that is alone in its group has nothing to be told from: in ``simclr`` and
``barlow-twins`` it adds nothing.
"""

from __future__ import annotations

import importlib.util
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import nn

from privbench import (
    BadInputError,
    Defense,
    Ge,
    Gt,
    Judge,
    Lt,
    Outputs,
    Paper,
    Strength,
    hookimpl,
)
from privbench.toolbox.noise import gaussian
from privbench.toolbox.private_training import (
    check_phase,
    claimed,
    draws,
    group_normed,
    with_clipped_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from privbench import (
        Batch,
        Cell,
        Clock,
        DefenseContext,
        Model,
        Phase,
        Training,
        World,
    )
    from privbench.toolbox.private_training import Draws


@dataclass(frozen=True)
class DPGCL(Defense):
    """Trains a contrastive encoder in groups, and its classifier, with differential privacy.

    Attributes:
        epsilon: target privacy budget, which determines the noise. Ignored if ``noise_multiplier``
            is given.
        noise_multiplier: noise in units of the sensitivity; None derives it from ``epsilon``.
        delta: delta of the claim; should be well below one over the number of members.
        group: expected rows of a group.
        clip: largest L2 norm of the gradient of one group's loss.
        row_clip: largest L2 norm of one row's gradient in the classifier.
        batch: expected rows per step; None for the target's own.
        accountant: accountant of Opacus: ``prv``, ``rdp`` or ``gdp``.
    """

    name: ClassVar[str] = "dp-gcl"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira-encoder",
            "Its shadows train with the same clipping and noise, and find what the encoder keeps.",
        ),
        Judge(
            "lira",
            "The same for the classifier, which sees labels and has a bound of its own.",
        ),
    )
    claims_epsilon: ClassVar[bool] = True
    paper: ClassVar[Paper] = Paper(
        "Differentially Private Contrastive Learning via Bounding Group-level Contribution",
        "Li, Gong, Lin, Wang, Xiao", "arXiv:2604.26467", "its abstract",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "noise_multiplier", stronger="up", sweep=(0.05, 0.1, 0.2, 0.5, 1.0)
    )
    deviations: ClassVar[str] = (
        "Only the paper's abstract was at hand: how groups are drawn, the sensitivity and its "
        "proof are derived here. Without the paper's further negative views within a group. "
        "Poisson sampling; the target's own optimizer; the classifier is trained by DP-SGD."
    )

    epsilon: Annotated[float, Gt(0)] = 8.0
    noise_multiplier: Annotated[float, Ge(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    group: Annotated[int, Ge(2)] = 4
    clip: Annotated[float, Gt(0)] = 1.0
    row_clip: Annotated[float, Gt(0)] = 1.0
    batch: Annotated[int, Ge(2)] | None = None
    accountant: Literal["prv", "rdp", "gdp"] = "prv"

    def incompatible(self, cell: Cell) -> str | None:
        """Require Opacus, and a loss that compares rows of one batch."""
        if importlib.util.find_spec("opacus") is None:
            return "dp-gcl needs Opacus, which is not installed: pip install 'privbench[dp]'"
        target = cell.target
        if not target.contrastive:
            return f"dp-gcl is for losses that compare rows: use dp-sgd for {target.name}"
        if {"queue", "teacher_temperature"} & target.hyperparameters().keys():
            return (
                "dp-gcl needs a loss that reads the rows of one batch only, and "
                f"{target.name} keeps outputs of earlier ones"
            )
        return None

    def on_build(self, model: Model, ctx: DefenseContext) -> Model:
        """Replace batch norm by group norm."""
        return group_normed(model, ctx, self.name)

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Make every phase that sees members private."""
        del model
        private = draws(phases, world, self.batch)
        sigma = claimed(
            ctx, [run for _, run in private], epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier, delta=self.delta, accountant=self.accountant,
            group=self.group, clip=self.clip, row_clip=self.row_clip,
            sensitivity=[self.row_clip if p.per_example else 2 * self.clip for p, _ in private],
        )  # fmt: skip
        made = {}
        for phase, run in private:
            noise = ctx.salt("noise", phase.name)
            if phase.per_example:
                made[id(phase)] = with_clipped_rows(
                    self.name, phase, run, sigma=sigma, clip=self.row_clip, seed=noise
                )
                continue
            check_phase(self.name, phase)
            made[id(phase)] = Grouped(
                phase, run, groups=max(1, round(run.spec.size / self.group)), clip=self.clip,
                noise=sigma * 2 * self.clip, seeds=(noise, ctx.salt("groups", phase.name)),
            ).private()  # fmt: skip
        return [made.get(id(phase), phase) for phase in phases]


class Grouped:
    """A contrastive phase whose rows are contrasted in groups.

    Attributes:
        phase: as the target declares it.
        run: how it draws its batches.
        groups: number of groups that a batch is cut into.
        clip: largest L2 norm of the gradient of a group's loss.
        noise: standard deviation of the noise on the sum of all groups.
        seeds: of the noise, and of the groups.
        of: (n,) group of each row of the latest batch.
        views: of each of its rows.
    """

    def __init__(
        self, phase: Phase, run: Draws, *, groups: int, clip: float, noise: float,
        seeds: tuple[int, int],
    ) -> None:  # fmt: skip
        """Take the phase; see the attributes."""
        self.phase, self.run, self.groups = phase, run, groups
        self.clip, self.noise, self.seeds = clip, noise, seeds
        self.of, self.views = torch.zeros(0, dtype=torch.long), 2
        self._coins = torch.Generator()
        ((self._name, self._step),) = phase.steps.items()

    def private(self) -> Phase:
        """Return the phase with the losses of groups, clipped, and with noise."""
        step = replace(self._step, loss=self._loss)
        return replace(self.phase, batch=self.run.spec, wrap=self._wrap, steps={self._name: step})

    def _loss(self, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """Return () the sum of the losses of all groups."""
        # A coin for every row of the phase: a row that is not drawn moves no other row's group.
        coins = torch.randint(
            self.groups, (len(self.run.rows),), generator=self._coins, device=batch.rows.device
        )
        of = self.of = coins[batch.rows]
        self.views, sizes = batch.views, of.bincount().tolist()
        return torch.stack([
            self._step.loss(Shown(out, at, len(of), self.views), _rows(batch, at), clock)
            for at in torch.split(of.argsort(stable=True), sizes) if len(at)
        ]).sum()  # fmt: skip

    @contextmanager
    def _wrap(self, training: Training) -> Iterator[None]:
        """Clip the gradients of groups, and add the noise, before every step of the optimizer."""
        ((parts, optimizer),) = training.optimizers.items()
        trained = nn.ModuleDict({part: training.model[part] for part in parts})
        trained.requires_grad_(True).train()
        hooks = self._hooks(trained)
        device = training.rows.device
        noise, self._coins = (torch.Generator(device=device).manual_seed(s) for s in self.seeds)
        training.generators |= {"noise": noise, "groups": self._coins}

        def private(*_: Any) -> None:
            if any(getattr(p, "_forward_counter", 0) for p in trained.parameters()):
                raise BadInputError(
                    f"dp-gcl cannot tell which views reached the loss of phase '{self.phase.name}':"
                    " a pass with gradients is not used; make it under torch.no_grad()"
                )
            of_views = {p: getattr(p, "grad_sample", None) for p in trained.parameters()}
            known = {p: views for p, views in of_views.items() if views is not None}
            if known and (lost := [p for p in of_views if p.grad is not None and p not in known]):
                raise BadInputError(
                    f"dp-gcl cannot clip {len(lost)} parameters of phase '{self.phase.name}': "
                    "their layers are not called themselves; call the module that holds the weights"
                )
            totals = dict(zip(known, self.clipped([*known.values()]), strict=True))
            for p in of_views:  # nothing but clipped gradients: not what backward() left in p.grad
                total = totals.get(p, torch.zeros_like(p))
                p.grad = (total + gaussian(p, noise) * self.noise) / self.groups
                p.grad_sample = None  # type: ignore[attr-defined]

        hook = optimizer.register_step_pre_hook(private)
        try:
            with warnings.catch_warnings():
                # The first layer's input is data and needs no gradient; its weights get theirs.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                yield
        finally:
            hook.remove()
            hooks.cleanup()

    def _hooks(self, trained: nn.Module) -> Any:
        """Return hooks after which ``grad_sample`` of a linear layer's weights is an ``Outer``.

        It holds the views of all passes. Some targets pass the first views, then the second ones,
        and Opacus would write out all gradients of a pass, to add them up row by row.
        """
        from privbench.toolbox.row_gradients import Outer, RowGradients

        grouped = self

        class Passes(RowGradients):  # type: ignore[misc, unused-ignore]
            def capture_backprops_hook(
                self, module: Any, forward_input: Any, forward_output: Any, loss_reduction: str,
                batch_first: bool,
            ) -> None:  # fmt: skip
                """Add the views of one pass."""
                _check(len(forward_output[0]), len(grouped.of), grouped.views)
                if not (self.hooks_enabled and _takes_vectors(module)):
                    super().capture_backprops_hook(
                        module, forward_input, forward_output, loss_reduction, batch_first
                    )
                    return
                (a,), g = self.rearrange_grad_samples(
                    module=module, backprops=forward_output[0].detach(),
                    loss_reduction=loss_reduction, batch_first=batch_first,
                )  # fmt: skip
                for name, p in module.named_parameters(recurse=False):
                    p._forward_counter -= 1  # noqa: SLF001 - Opacus's
                    if p.requires_grad and name == "bias":
                        of = g[:0] if p.grad_sample is None else p.grad_sample
                        p.grad_sample = torch.cat([of, g])
                    elif p.requires_grad:
                        of = p.grad_sample or Outer(g[:0], a[:0])
                        p.grad_sample = Outer(torch.cat([of.g, g]), torch.cat([of.a, a]))
                if not module.activations:
                    del module.max_batch_len

        return Passes(trained, loss_reduction="sum")

    def clipped(self, gradients: Sequence[Any]) -> list[Tensor]:
        """Return the sum over all groups of their clipped gradients, for each parameter.

        Args:
            gradients: of all parameters, for every view of the latest batch (v, *shape).
        """
        squares = torch.zeros(self.groups, dtype=torch.float64, device=self.of.device)
        for views in gradients:
            squares += _squares(views, self._of_views(views), self.groups)
        weights = clipped_share(squares.clamp(min=0).sqrt(), self.clip)
        return [_weighted(views, weights[self._of_views(views)]) for views in gradients]

    def _of_views(self, views: Any) -> Tensor:
        """Return the group (v,) of each view: in each pass all first views, then all second ones.

        A pass takes rows or all their views, or the hooks have ended training.
        """
        from privbench.toolbox.row_gradients import Outer

        count = len(views.g if isinstance(views, Outer) else views)
        return self.of.repeat(count // len(self.of))


def _takes_vectors(layer: Any) -> bool:
    """Whether it is a linear layer that took vectors (v, i) in all passes, its weights its own."""
    if type(layer) is not nn.Linear:
        return False
    passes: Any = layer.activations
    weights: list[Any] = [p for p in layer.parameters() if p.requires_grad]
    return all(a.dim() == 2 for (a,) in passes) and not any(  # noqa: PLR2004
        p._forward_counter != len(passes) or hasattr(p, "_current_grad_sample")  # noqa: SLF001 - Opacus's
        for p in weights
    )


class Shown(Outputs):
    """The outputs of the rows at (m,) of a batch of n with some views each, for a loss."""

    def __init__(self, out: Outputs, at: Tensor, n: int, views: int) -> None:
        """Take the outputs of the batch."""
        super().__init__()
        self._out, self._at, self._n, self._views = out, at, n, views

    def __getattr__(self, name: str) -> Tensor:
        """Return the output with that name, of these rows."""
        found = getattr(self._out, name)
        _check(len(found), self._n, self._views)
        return _of_rows(found, self._at, self._n)


def _rows(batch: Batch, at: Tensor) -> Batch:
    """Return the batch of the rows at these positions (m,)."""
    attributes = {name: column[at] for name, column in batch.attributes.items()}
    x = _of_rows(batch.x, at, len(batch.rows))
    return replace(batch, x=x, y=batch.y[at], attributes=attributes, rows=batch.rows[at])


def _of_rows(views: Tensor, at: Tensor, n: int) -> Tensor:
    """Return what belongs to the rows at (m,) of n rows, each of which has as many views.

    >>> _of_rows(torch.tensor([10, 11, 12, 20, 21, 22]), torch.tensor([2, 0]), 3).tolist()
    [12, 10, 22, 20]
    """
    return views.view(-1, n, *views.shape[1:])[:, at].flatten(0, 1)


def _check(count: int, rows: int, views: int) -> None:
    if count not in (rows, views * rows):
        raise BadInputError(
            f"dp-gcl is for networks that take rows or their views: {count} of something came from "
            f"{rows} rows with {views} views each"
        )


def clipped_share(norms: Tensor, clip: float) -> Tensor:
    """Return the share (k,) of each gradient that clipping leaves.

    >>> clipped_share(torch.tensor([0.0, 0.5, 4.0]), 1.0)
    tensor([1.0000, 1.0000, 0.2500])
    """
    return (clip / norms.clamp(min=clip)).float()


def _squares(views: Any, of: Tensor, groups: int) -> Tensor:
    """Return the squared norms (groups,) of the sums of views' gradients over groups (v,)."""
    from privbench.toolbox.row_gradients import Outer

    made = torch.zeros(groups, dtype=torch.float64, device=of.device)
    if isinstance(views, Outer):  # |sum of g aᵀ|² is the sum of all (g·g') (a·a')
        g, a = views.g.double(), views.a.double()
        inner = (g @ g.T) * (a @ a.T) * (of[:, None] == of)
        return made.index_add_(0, of, inner.sum(1))
    sums = views.new_zeros(groups, views[0].numel()).index_add_(0, of, views.flatten(1))
    squares: Tensor = sums.double().square().sum(1)
    return squares


def _weighted(views: Any, weights: Tensor) -> Tensor:
    """Return the sum of views' gradients with weights (v,)."""
    from privbench.toolbox.row_gradients import Outer

    if isinstance(views, Outer):
        return views.weighted(weights.to(views.g.dtype))
    total: Tensor = torch.tensordot(weights.to(views.dtype), views, dims=1)
    return total


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [DPGCL()]
