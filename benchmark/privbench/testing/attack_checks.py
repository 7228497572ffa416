"""Checks of attacks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privbench.measure.games.attributes import AttributeQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.membership import MembershipQuestion
from privbench.measure.games.metrics import Refused, auc_band
from privbench.measure.games.property import VICTIMS, PropertyQuestion
from privbench.measure.games.reconstruction import ReconstructionQuestion
from privbench.testing.fixtures import (
    _Copy,
    _planted,
    _Reveal,
    _Scramble,
    arena,
    memoriser,
    rate_band,
    remembering,
    stored_as_floats,
    tiny_split,
)
from privbench.testing.small import NotTriedError, copies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from privbench.measure.games.game import Game
    from privbench.measure.methods.attack import Attack
    from privbench.measure.victims.served import Victim


#: The games whose questions and planted victims the kit knows. An attack of another game is asked
#: about memorisers, and what it finds is compared with the baselines of its game.
CORE_GAMES = ("membership", "attributes", "reconstruction", "property")
#: Splits over which the AUC on null victims is averaged: 16 victims of one reach any AUC by chance.
_SPLITS = 4


def _victims(attack: Attack) -> tuple[Victim, Victim]:
    """Return a planted victim, and one without any signal."""
    split = tiny_split()
    if attack.game not in ("attributes", "reconstruction"):
        return memoriser(split.victim()), memoriser(split.null())
    if attack.game == "reconstruction":
        return _planted(_Copy()), _planted(_Scramble())
    return _planted(_Reveal()), _planted(_Scramble())


@dataclass(frozen=True)
class _Asked:
    """A question, the truth, the answer, and the arguments that the attack changed meanwhile."""

    question: Any
    truth: Any
    answer: Any
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plain:
    """An attack's answer about the planted victim, asked once for all checks that look at it.

    Attributes:
        attack: the attack.
    """

    attack: Attack

    @cached_property
    def asked(self) -> _Asked:
        """The question, its answer under a seed of the global generators, and the truth."""
        with _noise(1):
            return _play(self.attack, _victims(self.attack)[0])

    @cached_property
    def steady(self) -> bool:
        """Whether one answer has equal bits with other seeds, rows in another order, and floats.

        If not, or if it fails, each check changes one thing alone.
        """
        numbers = _numbers(self.attack, self.asked.answer)
        ordered = self.attack.game in CORE_GAMES
        order = _order(len(numbers)) if ordered else None
        try:
            with _noise(2), stored_as_floats():
                asked = _play(self.attack, _victims(self.attack)[0], order)
        except Exception:  # noqa: BLE001 - the single checks say of which change it is
            return False
        moved = _numbers(self.attack, asked.answer)
        return torch.equal(moved, numbers if order is None else numbers[order])


@contextmanager
def _noise(seed: int) -> Iterator[None]:
    """Seed the global generators of torch and numpy meanwhile."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251 - to see that nothing depends on it
        np.random.seed(seed)  # noqa: NPY002, TID251
        yield


def _order(n: int) -> Tensor:
    """Another order of n rows."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(5))


def _play(attack: Attack, served: Victim, order: Tensor | None = None) -> _Asked:
    """Ask the attack, with the question's rows in the given order."""
    split, game = tiny_split(), GAMES[attack.game]
    question, truth = game.pose(split, served, max_rows=None, sensitive=split.card.sensitive)
    if order is not None and isinstance(question, MembershipQuestion):
        question = MembershipQuestion(question.examples.select(order), question.phase)
    elif order is not None and isinstance(question, AttributeQuestion):
        question = AttributeQuestion(question.embeddings[order], question.values)
    elif order is not None and isinstance(question, ReconstructionQuestion):
        question = ReconstructionQuestion(question.embeddings[order])
    oracle, ctx = arena(attack, served)
    shadows = {f"shadow {i}'s members": s.world.members for i, s in enumerate(ctx.shadows)}
    given = {"the question": question, "ctx.auxiliary": ctx.auxiliary, **shadows}
    before = {what: copies(value) for what, value in given.items()}
    answer = attack.answer(oracle, question, ctx)
    changed = [
        what
        for what, value in given.items()
        if not all(map(torch.equal, before[what], copies(value)))
    ]
    return _Asked(question, truth, answer, tuple(changed))


def _numbers(attack: Attack, answer: Any) -> Tensor:
    """Return the numbers of an answer, one row per row of the question in a game of the core."""
    if attack.game not in CORE_GAMES:
        return torch.cat([t.double().flatten() for t in GAMES[attack.game].pack(answer).values()])
    if hasattr(answer, "scores"):
        return torch.as_tensor(answer.scores).double()
    if hasattr(answer, "probabilities"):
        return torch.cat([p.double() for p in answer.probabilities.values()], dim=1)
    return answer.x.double().flatten(1)  # type: ignore[no-any-return]


def answers(plain: Plain) -> None:
    """The answer is finite, has a row per row of the question, and can be scored.

    Tried: one question about a planted victim, with the access in ``needs`` alone; its score.
    """
    attack, asked = plain.attack, plain.asked
    game, question = GAMES[attack.game], asked.question
    numbers = _numbers(attack, asked.answer)
    assert numbers.isfinite().all(), "the answer is not finite"
    if isinstance(question, PropertyQuestion):
        game.pack(asked.answer)  # about one victim; all answers are scored together
        return
    if attack.game not in CORE_GAMES:
        _about_all(attack, null=False)
        return
    n = len(question.examples if isinstance(question, MembershipQuestion) else question.embeddings)
    assert len(numbers) == n, f"the question has {n} rows, but the answer has {len(numbers)}"
    headline = game.board.columns[0].name  # an answer without decisions leaves others empty
    assert headline in game.score(asked.answer, asked.truth), (
        f"the answer cannot be scored by {headline}"
    )


def fills_board(
    game: Game, scored: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> None:
    """Check that a game returns what its board names.

    Args:
        game: the game.
        scored: what its ``score`` returned.
        baselines: what its ``baselines`` returned.
    """
    parts = {"metrics": scored, **{f"controls.{name}": scored for name in game.controls},
             **{f"baselines.{name}": metrics for name, metrics in baselines.items()}}  # fmt: skip
    for column in game.board.columns:
        assert column.optional or column.name in parts.get(column.part, ()), (
            f"the column '{column.heading}' of the game's board shows '{column.name}' of "
            f"'{column.part}', which the game does not return: return it, or say optional=True"
        )
    constant = game.board.constant
    assert not constant or constant in baselines, (
        f"the game's board names the baseline '{constant}', which `baselines` does not return"
    )


def is_deterministic(plain: Plain) -> None:
    """The answer does not depend on a global generator.

    This, the order of the rows and the type of the images are changed together first
    (``Plain.steady``), and each alone only if a bit of the answer differs.

    Tried: the same question under two seeds of the global generators of torch and numpy.
    """
    if plain.steady:
        return
    attack = plain.attack
    first = _numbers(attack, plain.asked.answer)
    with _noise(2):
        second = _numbers(attack, _play(attack, _victims(attack)[0]).answer)
    assert torch.equal(first, second), "the attack draws from a global generator: use ctx.generator"


def is_equivariant(plain: Plain) -> None:
    """A permuted question gives a permuted answer.

    Tried: a question, and the same rows in another order.
    """
    if plain.steady:
        return
    attack = plain.attack
    numbers = _numbers(attack, plain.asked.answer)
    order = _order(len(numbers))
    moved = _play(attack, _victims(attack)[0], order).answer
    assert torch.allclose(_numbers(attack, moved), numbers[order], rtol=1e-4, atol=1e-4), (
        "key random numbers by row (ctx.uniform, ctx.views), not by position"
    )


def leaves_inputs(plain: Plain) -> None:
    """The attack does not change the question, nor the rows that it is given.

    Tried: the question, auxiliary rows and shadows' members, before and after the answer.
    """
    for what in plain.asked.changed:
        raise AssertionError(f"the attack changed {what} while it answered: work on copies")


def reads_floats(plain: Plain) -> None:
    """The answer is the same if the same images are stored as floats instead of whole numbers.

    Tried: the question on images of whole numbers, and of floats in [0, 1].
    """
    if plain.steady:
        return
    attack = plain.attack
    whole = _numbers(attack, plain.asked.answer)
    with stored_as_floats():
        real = _numbers(attack, _play(attack, _victims(attack)[0]).answer)
    assert torch.allclose(whole, real, rtol=1e-4, atol=1e-4), (
        "the answer changed when the same images were stored as floats in [0, 1] instead of whole "
        "numbers: read x through as_float(rows.x, rows.scale)"
    )


def _headline(attack: Attack, asked: _Asked) -> Any:
    game = GAMES[attack.game]
    return game.score(asked.answer, asked.truth)[game.board.columns[0].name]


def _about_all(attack: Attack, seed: int = 0, *, null: bool) -> tuple[Any, Any]:
    """Return the headline over memorisers of all victims, or null victims, and that of guesses."""
    split, game = tiny_split(seed), GAMES[attack.game]
    sensitive = split.card.sensitive
    worlds = (game.nulls if null else game.victims)(split, sensitive)
    victims = [remembering(game, world, split) for world in worlds]
    question, truth = game.pose(split, victims[0], max_rows=None, sensitive=sensitive)
    packed = []
    for served in victims:
        oracle, ctx = arena(attack, served, seed=seed)
        packed.append(game.pack(attack.answer(oracle, question, ctx)))
    joined = {name: torch.cat([one[name] for one in packed]) for name in packed[0]}
    column = game.board.columns[0]
    scored = game.score(game.unpack(joined), truth)
    baselines = game.baselines(split, question, truth)
    fills_board(game, scored, baselines)
    found = scored[column.name]
    assert not isinstance(found, Refused), f"{column.name} is refused: {found}"
    guesses = [
        guess.value
        for metrics in baselines.values()
        if not isinstance(guess := metrics.get(column.name, Refused("")), Refused)
    ]
    return found, guesses


def _property_auc(attack: Attack, seed: int, *, null: bool) -> float:
    """Return the AUC over memorisers of all victims, or null victims, of that split."""
    return float(_about_all(attack, seed, null=null)[0].value)


def _mean_image() -> float:
    """Return the mean squared error of always answering the mean of the pool."""
    split, game = tiny_split(), GAMES["reconstruction"]
    question, truth = game.pose(split, _planted(_Copy()), max_rows=None, sensitive=())
    value = game.baselines(split, question, truth)["mean_image"]["mse"]
    assert not isinstance(value, Refused)
    return value.value


def beats_chance(plain: Plain, *, auc: float) -> None:
    """The attack finds what a planted victim leaks.

    Tried: a victim that remembers its members, or whose embeddings hold the attribute or image.
    """
    attack = plain.attack
    if attack.game not in CORE_GAMES:
        _beats_guesses(attack)
        return
    if attack.game == "property":
        found = _property_auc(attack, 0, null=False)
        assert found > auc, f"only {found:.3f} on memorisers of both shares: check the sign"
        return
    found = _headline(attack, plain.asked)
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


def stays_at_chance(plain: Plain) -> None:
    """The attack finds nothing in a victim without signal.

    Tried: a victim that saw no candidate, or whose embeddings hold no attribute and no image.
    """
    attack = plain.attack
    if attack.game not in CORE_GAMES:
        _is_a_guess(attack)
        return
    if attack.game == "property":
        mean = sum(_property_auc(attack, seed, null=True) for seed in range(_SPLITS)) / _SPLITS
        band = auc_band(VICTIMS // 2, VICTIMS // 2) / _SPLITS**0.5
        assert abs(mean - 0.5) <= band, (
            f"AUC {mean:.3f} on victims at the population's share: the truth leaks into the attack "
            "(by chance, less than once in 10,000 runs)"
        )
        return
    found = _headline(attack, _play(attack, _victims(attack)[1]))
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


def _beats_guesses(attack: Attack) -> None:
    """Assert that it finds more in memorisers than the baselines of its game do."""
    found, guesses = _about_all(attack, null=False)
    if not guesses:
        raise NotTriedError(f"the game {attack.game} has no baseline to compare with")
    higher = GAMES[attack.game].board.higher
    best = max(guesses) if higher else min(guesses)
    beaten = found.low > best if higher else found.high < best
    assert beaten, (
        f"its headline is {found.value:.3f} [{found.low:.3f}, {found.high:.3f}] on a planted "
        f"victim, and that of a guess is {best:.3f}: check the sign of the scores"
    )


def _is_a_guess(attack: Attack) -> None:
    """Assert that a null victim tells it no more than the baselines of its game tell.

    Twice a 95 % interval is left less than once in 10,000 runs.
    """
    if "null" not in GAMES[attack.game].controls:
        raise NotTriedError(f"the game {attack.game} has no null victim")
    found, guesses = _about_all(attack, null=True)
    if not guesses:
        raise NotTriedError(f"the game {attack.game} has no baseline to compare with")
    low = min(guesses) - 2 * (found.high - found.value)
    high = max(guesses) + 2 * (found.value - found.low)
    assert low <= found.value <= high, (
        f"its headline is {found.value:.3f} on a victim that saw none of the samples, and that of "
        f"a guess is {min(guesses):.3f}: the truth leaks into the attack "
        "(by chance, less than once in 10,000 runs)"
    )
