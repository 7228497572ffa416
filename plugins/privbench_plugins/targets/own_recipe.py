"""Shadows of a model of your own, trained by your own code.

``privbench audit --shadow-recipe my_module:fit`` calls ``fit(x, y, seed)`` for each shadow, which
returns a trained model, as ``--model`` takes them. ``--shadow-recipe clone`` needs no code: a
scikit-learn estimator is copied with its parameters, gets another ``random_state`` and is fitted.

*Rows*: x (n, *shape) float32 in the units of your files, (n, columns) for an estimator; y (n,)
classes from 0, or the numbers that a regression is to answer.

*What is kept*: a shadow's answers to all rows of the audit, and to the mirror images of colour
pictures, as numbers. No model is stored, so nothing is unpickled. An attack that asks other rows,
such as copies with noise, trains the shadow once more, in memory.

The key of a shadow holds its rows, its seed, a digest of your code and of the parameters that are
cloned, and the rows that it is asked.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from privbench import (
    Access,
    BadInputError,
    BatchSpec,
    Ge,
    Lt,
    Model,
    Optimizer,
    Outputs,
    Phase,
    Step,
    Target,
    as_float,
    hookimpl,
)
from privbench.toolbox.asked_model import GRANTS, Asked, Finite, Form, Gives, sums_to_one
from privbench.toolbox.looked_up import keys
from privbench.toolbox.opened_model import RECIPE, given_recipe, opened_once
from privbench.toolbox.shadow_recipe import CLONE, code_digest, named, spread, trained

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench import Batch, Card, Cell, Clock, TargetContext, World
    from privbench.toolbox.opened_model import Opened

#: Fields that say where things are, not what they hold.
_PLACES = ("recipe", "model", "checkpoint", "rows", "source")
_HIDDEN = 64  # of the untrained network
_BYTES = 255.0
_SEEDS = 2**31
_BLOCK = 512  # rows of a query
_PICTURES, _COLOURS = 4, 3  # axes of pictures; channels of those that are asked mirrored


@dataclass(frozen=True)
class OwnRecipe(Target):
    """Trains shadows by your own code.

    Attributes:
        recipe: ``clone``, or ``module:function`` of a function of x, y and seed.
        model: the audited model, which ``clone`` copies.
        checkpoint: its weights.
        code: digest of the recipe's code and parameters, which is its identity.
        rows: file of the rows that a shadow is asked, named after its content.
        gives: what the audited model answers; shadows must answer alike.
        width: numbers in an answer.
        source: name of the user's rows, if models get these; "" for numbers.
        content: their digest.
        low: least value of each column, or of all; () for rows in [0, 1].
        high: largest value of each column, or of all.
        least: posteriors below it count as it.
    """

    name: ClassVar[str] = "own-recipe"

    recipe: str = ""
    model: str = ""
    checkpoint: str = ""
    code: str = ""
    rows: str = ""
    gives: Gives = "posteriors"
    width: Annotated[int, Ge(0)] = 0
    low: tuple[Finite, ...] = ()
    high: tuple[Finite, ...] = ()
    least: Annotated[float, Ge(0), Lt(1)] = 0.0
    source: str = ""
    content: str = ""

    @property
    def grants(self) -> Access:  # type: ignore[override]
        """What the audited model grants."""
        return GRANTS[self.gives]

    def using(self, recipe: Any, **fields: Any) -> OwnRecipe:
        """Return the target of a recipe, or of a function in memory, with the digest of its code.

        Raises:
            BadInputError: if it cannot train anything.
        """
        if recipe == CLONE and "://" in fields["model"]:
            raise BadInputError(f"{RECIPE} {CLONE}: an endpoint cannot be cloned: write "
                                "fit(x, y, seed) and name it as module:fit")  # fmt: skip
        made = self.replace(
            recipe=recipe if isinstance(recipe, str) else given_recipe(recipe), **fields
        )
        return made.replace(code=code_digest(made.recipe, made.audited()))

    def incompatible(self, cell: Cell) -> str | None:
        """Require a recipe, and a model that was trained elsewhere."""
        if not (self.recipe and self.code and self.rows and cell.protocol.trained_elsewhere):
            return "own-recipe has no recipe: use `privbench audit --shadow-recipe my_module:fit`"
        return None

    @property
    def identity(self) -> Mapping[str, Any]:
        """What is trained and asked, instead of where it is."""
        known = super().identity
        fields = {name: one for name, one in known["fields"].items() if name not in _PLACES}
        return {**known, "fields": {**fields, "asked": Path(self.rows).stem}}

    @property
    def label(self) -> str:
        """The recipe."""
        return f"{self.name}({named(self.recipe)})" if self.recipe else self.name

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Return a model without answers."""
        del ctx
        parts: dict[str, nn.Module] = {"encoder": Shadow(self, card.classes or 0)}
        if Access.LABELS in self.grants:
            parts["classifier"] = _Same()
        return Model(card, parts, normalise=False)

    def build_untrained(self, card: Card, ctx: TargetContext) -> Model:
        """Return a small network with random weights, for attacks that train it themselves."""
        del ctx
        outputs = self.width or card.classes or _HIDDEN
        layers = nn.Linear(int(np.prod(card.shape)), _HIDDEN), nn.ReLU()
        parts = {"encoder": nn.Sequential(nn.Flatten(), *layers)}
        if Access.LABELS not in self.grants:
            parts["encoder"].append(nn.Linear(_HIDDEN, outputs))
            return Model(card, parts, normalise=False)
        return Model(card, {**parts, "classifier": nn.Linear(_HIDDEN, outputs)}, normalise=False)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train by the recipe, in one step on all rows."""
        rows = ctx.protocol.encoder[-1]
        _shadow(model).fit = _Fit(self, world, rows, ctx.salt("fit") % _SEEDS)
        parts = ("encoder", "classifier") if "classifier" in model else ("encoder",)
        return [Phase(
            name=f"shadow {world.index + 1}", rows=rows, forward=_forward, epochs=1,
            steps={"fit": Step(_loss, trains=parts, before=_learn)},
            batch=BatchSpec(max(1, len(world.parts[rows]))),
            optimizers=dict.fromkeys(parts, Optimizer("sgd", 1.0)),
        )]  # fmt: skip

    def form(self, classes: int = 0) -> Form:
        """Return what models read and answer; ``classes`` is their number, if it is known."""
        return Form(self.gives, classes, self.low, self.high, self.least, self.source)

    def audited(self) -> Any:
        """Return the audited object, if it is cloned."""
        return opened_once(self.model, self.checkpoint).model if self.recipe == CLONE else None


# ---- a phase that trains by the recipe: its only step has no gradient ---------------------------


def _learn(model: Model, clock: Clock) -> None:
    del clock
    _shadow(model).learn()


def _forward(model: Model, batch: Batch) -> Outputs:
    del batch
    return Outputs(nothing=torch.stack([0 * one.sum() for one in model.parameters()]).sum())


def _loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
    del batch, clock
    return out.nothing


# ---- a shadow -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """How a shadow is trained; copies of a shadow share it."""

    target: OwnRecipe
    world: World
    part: str
    seed: int

    def __deepcopy__(self, memo: dict[int, Any]) -> _Fit:
        """Return itself: nothing in it changes."""
        return self

    def trained(self) -> Opened:
        """Train the model."""
        target, rows = self.target, self.world.parts[self.part]
        form, numbers = target.form(), as_float(rows.x.cpu(), rows.scale)
        y = form.truth(numbers) if target.gives == "values" else rows.y.cpu().numpy()
        return trained(target.recipe, target.audited(), form.read(numbers), y, self.seed)

    @functools.cached_property
    def again(self) -> Opened:
        """The model once more, for rows that were not asked when it was trained."""
        return self.trained()


class Shadow(nn.Module):
    """A shadow: its answers to all rows of the audit.

    Attributes:
        fit: how it is trained.
        answers: (rows that are asked, width) log-posteriors, logits, embeddings or values.
    """

    answers: Tensor

    def __init__(self, target: OwnRecipe, classes: int) -> None:
        """Begin without answers."""
        super().__init__()
        self.fit: _Fit | None = None
        self.place = nn.Parameter(torch.zeros(1))  # says on which device answers are wanted
        self._target, self.width = target, target.width
        self._form = target.form(classes)
        rows, _ = _asked(target.rows)
        self.register_buffer("answers", torch.zeros(len(rows), target.width))

    def learn(self) -> None:
        """Train the model and keep its answers."""
        assert self.fit is not None  # noqa: S101 - set with the phase
        model, (rows, _) = self.fit.trained(), _asked(self._target.rows)
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            self.answers[block] = self._ask(model, rows[block])

    def forward(self, x: Tensor) -> Tensor:
        """Return the answers to x (n, *shape) float in [0, 1]."""
        _, places = _asked(self._target.rows)
        at = torch.tensor([places.get(key, -1) for key in _keys(x)], device=self.place.device)
        made = self.answers[at.clamp_min(0)]
        if (at < 0).any():
            assert self.fit is not None  # noqa: S101
            made[at < 0] = self._ask(self.fit.again, x[at < 0])
        return made

    def _ask(self, model: Opened, x: Tensor) -> Tensor:
        """Ask a trained model; refuse answers that are not as the audited model's."""
        told = f"{RECIPE} {named(self._target.recipe)}: its model"
        asked = Asked(model, self._form, told).to(self.place.device)
        made = asked.answers(x.to(self.place.device))
        gives, width = self._form.gives, self._target.width
        if gives == "posteriors":
            made = spread(made, model.model, width)
        wide = () if gives == "labels" else (width,)
        if made.shape[1:] != wide or (gives == "posteriors" and not sums_to_one(made)):
            raise BadInputError(f"{told} answered with an array of shape {made.shape}, and the "
                                f"audited model answers {gives} {(len(x), *wide)}: return a model "
                                "that answers alike")  # fmt: skip
        return asked.outputs(made, x)


class _Same(nn.Identity):
    """The classifier: a shadow's answers are its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1))  # a phase trains no part without weights


def _shadow(model: Model) -> Shadow:
    shadow = model["encoder"]
    assert isinstance(shadow, Shadow)  # noqa: S101 - from `build`
    return shadow


@functools.lru_cache(maxsize=2)
def _asked(path: str) -> tuple[Tensor, dict[bytes, int]]:
    """Return what shadows are asked, float in [0, 1], and where each row is by its key.

    It is the rows of the audit, and the mirror images of colour pictures, which attacks ask too.
    """
    if not path:
        return torch.zeros(0, 1), {}
    with np.load(path, allow_pickle=False) as file:
        x = as_float(torch.from_numpy(file["x"]), _BYTES)
    if x.ndim == _PICTURES and x.shape[1] == _COLOURS:
        x = torch.cat([x, x.flip(-1)])
    return x, {key: i for i, key in enumerate(_keys(x))}


def _keys(x: Tensor) -> list[bytes]:
    return keys(x.detach().cpu().numpy())


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [OwnRecipe()]
