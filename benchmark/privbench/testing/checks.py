"""The checks of the conformance kit, by kind of method."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privbench.data.split import cut
from privbench.errors import BadInputError
from privbench.games.access import Access
from privbench.games.attack import Attack
from privbench.games.attributes import AttributeQuestion
from privbench.games.catalog import GAMES
from privbench.games.membership import MembershipQuestion
from privbench.games.metrics import Refused
from privbench.games.reconstruction import ReconstructionQuestion
from privbench.method import Method, Paper
from privbench.methods.adversary import Adversary
from privbench.methods.cell import Cell
from privbench.methods.context import TargetContext, seeded
from privbench.methods.dataset import Dataset
from privbench.methods.defense import Defense
from privbench.methods.target import Target
from privbench.testing.fixtures import (
    CPU,
    AnyAttack,
    TinyTarget,
    _Copy,
    _planted,
    _Reveal,
    _Scramble,
    arena,
    auc_band,
    memoriser,
    rate_band,
    tiny_builder,
    tiny_spec,
    tiny_split,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from privbench.training.phase import Phase
    from privbench.victims.served import Victim


@dataclass(frozen=True)
class Check:
    """One requirement for a method; calling it raises AssertionError if it does not hold."""

    method: Method
    name: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Run the check."""
        self.run()

    def __str__(self) -> str:
        """Return the method's name and what is checked."""
        return f"{self.method.name}: {self.name}"


def checks(method: Method, *, root: Path | None = None, auc: float = 0.6) -> list[Check]:
    """Return all checks for a method, depending on its kind.

    Args:
        method: an instance with default hyperparameters.
        root: data folder, for datasets that read files.
        auc: AUC that a membership attack must exceed on the planted victim.
    """
    table: list[tuple[str, Callable[..., None]]] = [
        ("is frozen, printable and cloned by its fields", _is_frozen),
        ("says what it is", _is_described),
        ("refuses unknown hyperparameters", _refuses),
    ]
    if isinstance(method, Dataset):
        table += [
            ("card agrees with the data", partial(_card_agrees, root=root)),
            ("loads the same rows each time", partial(_loads_alike, root=root)),
            ("default protocol fits", partial(_protocol_fits, root=root)),
        ]
    if isinstance(method, Target):
        table += [
            ("shapes", _target_shapes),
            ("training is deterministic and blind to the global generator", _target_trains),
        ]
    if isinstance(method, Defense):
        table += [
            ("never widens access", _never_widens),
            ("untouched phases stay the same objects", _keeps_phases),
            ("defended training is deterministic, and release is row-wise", _defends),
        ]
    if isinstance(method, Attack):
        table += [
            ("answers well-formed, from declared access only", _answers),
            ("is deterministic and blind to the global generator", _deterministic),
            ("a permuted question gives a permuted answer", _equivariant),
            ("leaves its inputs as they were", _inputs_untouched),
            ("beats chance on a planted victim", partial(_beats_chance, auc=auc)),
            ("stays at chance on a null victim", _null_chance),
        ]
    return [Check(method, name, partial(check, method)) for name, check in table]


def _is_frozen(method: Method) -> None:
    decorated: bool = dataclasses.is_dataclass(type(method))
    assert decorated, "decorate it with @dataclass(frozen=True)"
    again = type(method)(**method.hyperparameters())
    assert again == method, "equal fields must make equal methods"
    assert hash(again) == hash(method)
    assert again.digest == method.digest
    for name in [*method.hyperparameters(), "anything"]:
        try:
            setattr(method, name, 0)
        except dataclasses.FrozenInstanceError:
            continue
        raise AssertionError(f"attribute {name} can be set: use @dataclass(frozen=True)")


def _is_described(method: Method) -> None:
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert method.name, "the method has no name: set `name`"
    assert set(method.name) <= allowed, (
        f"'{method.name}' is not kebab-case: use lower-case letters, digits and hyphens"
    )
    assert type(method).__dict__.get("__doc__"), "the class has no docstring: write one"
    assert not type(method).__doc__.startswith(f"{type(method).__name__}("), "write a docstring"  # type: ignore[union-attr]
    assert method.version >= 1
    assert method.paper is None or isinstance(method.paper, Paper)
    assert isinstance(method.deviations, str)
    assert type(method)().label == method.name, "every hyperparameter needs a default"


def _refuses(method: Method) -> None:
    try:
        method.replace(no_such_hyperparameter=1)
    except BadInputError:
        return
    raise AssertionError("replace() accepted an unknown hyperparameter: raise BadInputError")


def _card_agrees(data: Dataset, *, root: Path | None) -> None:
    card, rows = data.card(root), data.load(root)
    assert card.name == data.name
    assert tuple(rows.x.shape) == (card.rows, *card.shape)
    assert rows.scale == card.scale
    assert rows.x.device.type == "cpu"
    assert torch.bincount(rows.source, minlength=len(card.sources)).tolist() == list(
        card.sources.values()
    )
    if card.classes is not None:
        assert int(rows.y.max()) == card.classes - 1
        assert int(rows.y.min()) >= -1
    assert set(rows.attributes) == set(card.attributes)
    assert set(card.sensitive) <= set(card.attributes)
    for name, values in card.attributes.items():
        assert int(rows.attributes[name].max()) < values
        assert int(rows.attributes[name].min()) >= -1
    x = rows.x[:64].float() / card.scale
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1


def _loads_alike(data: Dataset, *, root: Path | None) -> None:
    first, second = data.load(root), data.load(root)
    names = tuple(first.attributes)
    assert first.digest(attributes=names) == second.digest(attributes=names)


def _protocol_fits(data: Dataset, *, root: Path | None) -> None:
    card, protocol = data.card(root), data.protocols["default"]
    parts = cut(data.load(root), card, protocol, 0)
    seen = [part.index for part in (parts.candidates, parts.pool, parts.reference, parts.public)]
    together = torch.cat(seen)
    assert len(set(together.tolist())) == len(together), "parts of the split overlap"


def _small(method: Any) -> Any:
    """Return the method with at most three epochs."""
    fields = {n: v for n, v in method.hyperparameters().items() if isinstance(v, int)}
    few = {name: min(value, 3) for name, value in fields.items() if name.endswith("epochs")}
    return method.replace(**few)


def _made(target: Target, defenses: tuple[Defense, ...] = (), noise: int = 0) -> Victim:
    import tempfile

    with tempfile.TemporaryDirectory() as tmp, torch.random.fork_rng(devices=[]):
        torch.manual_seed(noise)  # noqa: TID251 - to see that nothing depends on it
        return tiny_builder(tmp).victim(tiny_spec(target, defenses))


def _fits(method: Method, target: Target, defenses: tuple[Defense, ...] = ()) -> bool:
    """Return whether the method is compatible with the kit's cell."""
    split = tiny_split()
    card = Cell(
        split.card, split.protocol, target, defenses, Adversary(), AnyAttack(),
        split.card.sensitive,
    )  # fmt: skip
    return method.incompatible(card) is None


def _target_shapes(target: Target) -> None:
    split = tiny_split()
    if not _fits(target, target):
        return
    ctx = TargetContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="kit",
    )  # fmt: skip
    model = seeded(partial(target.build, split.card, ctx), 0).eval()
    h = model.encode(split.pool.x[:5])
    assert h.ndim == 2
    assert len(h) == 5
    assert model["encoder"].width == h.shape[1], "encoder.width must be the embedding's width"
    if "classifier" in model:
        assert model.logits(h).shape == (5, split.card.classes)
    phases = target.phases(model, split.victim(), ctx)
    names = [phase.name for phase in phases]
    assert len(set(names)) == len(names), "phases must have different names"
    for phase in phases:
        assert not isinstance(phase.rows, str) or phase.rows in split.victim().parts


def _target_trains(target: Target) -> None:
    if not _fits(target, target):
        return
    small = _small(target)
    before = tiny_split().candidates.x.clone()
    first, second = _made(small, noise=1), _made(small, noise=2)
    x = tiny_split().pool.x[:40]
    assert torch.equal(first.embeddings(x), second.embeddings(x)), "training is not deterministic"
    assert torch.equal(before, tiny_split().candidates.x), "training changed its data"
    assert not any(module.training for module in first.model.modules())
    assert first.key == second.key


def _never_widens(defense: Defense) -> None:
    kinds = list(Access)
    for n in range(len(kinds) + 1):
        for chosen in itertools.combinations(kinds, n):
            granted = Access.NONE
            for kind in chosen:
                granted |= kind
            assert defense.access(granted) & ~granted == Access.NONE, (
                f"access() grants more than the given {granted}: only remove access"
            )


def _keeps_phases(defense: Defense) -> None:
    phases, after = _phases(defense)
    if "phases" not in defense.stages():
        assert all(a is b for a, b in zip(phases, after, strict=True))
    for phase in after:
        assert phase in phases or phase.name


def _phases(defense: Defense) -> tuple[list[Phase], list[Phase]]:
    import tempfile

    with tempfile.TemporaryDirectory() as tmp:
        making = tiny_builder(tmp).draft(tiny_spec(TinyTarget()))
        ctx = tiny_builder(tmp)._context(tiny_spec(TinyTarget()), defense)  # noqa: SLF001
        after = defense.on_phases(making.phases, making.model, making.world, ctx)
        return making.phases, list(after)


def _defends(defense: Defense) -> None:
    target = TinyTarget()
    if not _fits(defense, target, (defense,)):
        return
    small = _small(defense)
    first, second = _made(target, (small,), noise=1), _made(target, (small,), noise=2)
    x = tiny_split().pool.x[:40]
    assert torch.equal(first.embeddings(x), second.embeddings(x)), (
        "training is not deterministic: draw from ctx, not from a global generator"
    )
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    if not any(release.fresh for release in first.releases):
        moved = first.log_posteriors(x[order])
        assert torch.allclose(moved, first.log_posteriors(x)[order], atol=1e-5), (
            "the released value of a row depends on other rows of the query"
        )
    assert first.grants & ~target.grants == Access.NONE
    changed = {release.of for release in first.releases}
    assert ("posterior" in changed) == small.masks_posteriors, (
        "masks_posteriors does not match the release: return True if it changes posteriors"
    )
    assert "embedding" in changed or not small.feeds_classifier, (
        "feeds_classifier is True without a release of embeddings: return False"
    )
    assert bool(changed) <= ("release" in small.stages()), (
        "stages() does not include 'release': add it"
    )


def _victims(attack: Attack) -> tuple[Victim, Victim]:
    """Return a planted victim, and one without any signal."""
    split = tiny_split()
    if attack.game == "membership":
        return memoriser(split.victim()), memoriser(split.null())
    if attack.game == "reconstruction":
        return _planted(_Copy()), _planted(_Scramble())
    return _planted(_Reveal()), _planted(_Scramble())


def _play(attack: Attack, served: Victim, order: Tensor | None = None) -> tuple[Any, Any]:
    """Return question and answer, with the question's rows in the given order."""
    split, game = tiny_split(), GAMES[attack.game]
    question, _ = game.pose(split, served, max_rows=None, sensitive=split.card.sensitive)
    if order is not None and isinstance(question, MembershipQuestion):
        question = MembershipQuestion(question.examples.select(order), question.phase)
    elif order is not None and isinstance(question, AttributeQuestion):
        question = AttributeQuestion(question.embeddings[order], question.values)
    elif order is not None:
        question = ReconstructionQuestion(question.embeddings[order])
    oracle, ctx = arena(attack, served)
    return question, attack.answer(oracle, question, ctx)


def _numbers(answer: Any) -> Tensor:
    """Return the numbers of an answer, one row per row of the question."""
    if hasattr(answer, "scores"):
        return torch.as_tensor(answer.scores).double()
    if hasattr(answer, "probabilities"):
        return torch.cat([p.double() for p in answer.probabilities.values()], dim=1)
    return answer.x.double().flatten(1)  # type: ignore[no-any-return]


def _answers(attack: Attack) -> None:
    question, answer = _play(attack, _victims(attack)[0])
    numbers = _numbers(answer)
    assert numbers.isfinite().all(), "the answer is not finite"
    n = len(question.examples if isinstance(question, MembershipQuestion) else question.embeddings)
    assert len(numbers) == n, f"the question has {n} rows, but the answer has {len(numbers)}"
    split = tiny_split()
    metrics = GAMES[attack.game].score(
        answer, GAMES[attack.game].pose(split, _victims(attack)[0], max_rows=None,
                                        sensitive=split.card.sensitive)[1],
    )  # fmt: skip
    assert GAMES[attack.game].headline in metrics


def _deterministic(attack: Attack) -> None:
    served = _victims(attack)[0]
    outcomes = []
    for noise in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)  # noqa: TID251 - to see that nothing depends on it
            np.random.seed(noise)  # noqa: NPY002, TID251
            outcomes.append(_numbers(_play(attack, served)[1]))
    assert torch.equal(*outcomes), "the attack draws from a global generator: use ctx.generator"


def _equivariant(attack: Attack) -> None:
    served = _victims(attack)[0]
    _, plain = _play(attack, served)
    numbers = _numbers(plain)
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(5))
    _, moved = _play(attack, served, order)
    assert torch.allclose(_numbers(moved), numbers[order], rtol=1e-4, atol=1e-4), (
        "key random numbers by row (ctx.uniform, ctx.views), not by position"
    )


def _inputs_untouched(attack: Attack) -> None:
    split = tiny_split()
    before = split.candidates.x.clone(), split.pool.x.clone()
    _play(attack, _victims(attack)[0])
    assert torch.equal(before[0], split.candidates.x)
    assert torch.equal(before[1], split.pool.x)


def _headline(attack: Attack, served: Victim) -> Any:
    split, game = tiny_split(), GAMES[attack.game]
    _, truth = game.pose(split, served, max_rows=None, sensitive=split.card.sensitive)
    return game.score(_play(attack, served)[1], truth)[game.headline]


def _mean_image() -> float:
    """Return the mean squared error of always answering the mean of the pool."""
    split, game = tiny_split(), GAMES["reconstruction"]
    question, truth = game.pose(split, _planted(_Copy()), max_rows=None, sensitive=())
    value = game.baselines(split, question, truth)["mean_image"]["mse"]
    assert not isinstance(value, Refused)
    return value.value


def _beats_chance(attack: Attack, *, auc: float) -> None:
    found = _headline(attack, _victims(attack)[0])
    if attack.game == "reconstruction":
        assert found.value < 0.5 * _mean_image(), (
            f"MSE {found.value:.4f} on a rotated image is not below half of the mean image's "
            f"{_mean_image():.4f}"
        )
        return
    floor = auc if attack.game == "membership" else 0.75
    assert found.value > floor, (
        f"only {found.value:.3f} on a planted victim: check the sign of the scores"
    )


def _null_chance(attack: Attack) -> None:
    found = _headline(attack, _victims(attack)[1])
    if attack.game == "reconstruction":
        assert found.value > 0.9 * _mean_image(), (
            f"MSE {found.value:.4f} on a victim without signal: x leaks into the attack"
        )
        return
    n = len(tiny_split().candidates)
    band = auc_band(n // 2, n // 2) if attack.game == "membership" else rate_band(n)
    assert abs(found.value - 0.5) <= band, (
        f"{found.value:.3f} on a victim without signal: the truth leaks into the attack "
        "(by chance, less than once in 10,000 runs)"
    )
