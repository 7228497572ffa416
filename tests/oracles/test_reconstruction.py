"""Reconstruction: exact metrics, exact decoders, and who reads which coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import nn

from privbench import Access, Card, Model, Reconstruction, ReconstructionQuestion, Release
from privbench.measure.games.metrics import Estimate, Refused
from privbench.measure.games.reconstruction import PSNR_CAP, ReconstructionGame, ReconstructionTruth
from privbench.measure.victims.served import Victim
from privbench.testing import TinyImages, arena, tiny_split
from privbench_plugins.attacks.reconstruction import (
    RMLE,
    Decoder,
    Lesson,
    as_noisy,
    decoded,
    decoders,
    loud,
    mixture,
    ridge,
    total_variation,
)

if TYPE_CHECKING:
    from torch import Tensor

GAME = ReconstructionGame()
FAST = Decoder(rows="own", epochs=1, steps=50, hidden=16)
SERVED = FAST.replace(rows="served")


def _truth(x: Tensor) -> ReconstructionTruth:
    card = Card(name="x", kind="image", shape=tuple(x.shape[1:]), classes=None, scale=1,
                sources={"all": len(x)})  # fmt: skip
    return ReconstructionTruth(x, card)


def _value(metric: Estimate | Refused) -> float:
    assert isinstance(metric, Estimate)
    return metric.value


def test_a_uniform_error_of_a_tenth_is_twenty_decibels() -> None:
    x = torch.full((3, 1, 8, 8), 0.5)
    made = GAME.score(Reconstruction(x + 0.1), _truth(x))
    assert _value(made["mse"]) == pytest.approx(0.01, abs=1e-8)
    assert _value(made["psnr"]) == pytest.approx(20.0, abs=1e-4)
    # constant images of .5 and .6: the variance terms cancel
    assert _value(made["ssim"]) == pytest.approx(0.98360924, abs=1e-5)


def test_a_copy_is_perfect_and_its_psnr_capped() -> None:
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    made = GAME.score(Reconstruction(x.clone()), _truth(x))
    assert (_value(made["mse"]), _value(made["psnr"])) == (0.0, PSNR_CAP)
    assert _value(made["ssim"]) == pytest.approx(1.0, abs=1e-6)


def test_ssim_is_that_of_scipys_filters() -> None:
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    a, b = rng.random((2, 20, 16))

    def blur(image: Any) -> Any:  # radius 5 = int(3.5 * 1.5 + .5), mirrored without the edge
        return gaussian_filter(image, 1.5, mode="mirror", truncate=3.5)

    ma, mb = blur(a), blur(b)
    va, vb, cov = blur(a * a) - ma**2, blur(b * b) - mb**2, blur(a * b) - ma * mb
    whole = (2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    x, truth = (torch.from_numpy(i).float()[None, None] for i in (a, b))
    made = _value(GAME.score(Reconstruction(x), _truth(truth))["ssim"])
    assert made == pytest.approx(whole.mean(), abs=1e-5)


def test_psnr_is_the_mean_over_rows_not_of_the_mean_error() -> None:
    x = torch.zeros(2, 1, 8, 8)
    given_x = torch.stack([x[0] + 0.1, x[1] + 0.01])
    assert _value(GAME.score(Reconstruction(given_x), _truth(x))["psnr"]) == pytest.approx(30.0)


def test_tables_are_scored_by_bits_and_columns() -> None:
    x = torch.tensor([[1.0, 0, 0, 0, 1], [0, 1, 0, 1, 0]])
    card = Card(name="t", kind="binary", shape=(5,), classes=2, scale=1, sources={"all": 2},
                groups=((0, 3), (3, 5)))  # fmt: skip
    answer = torch.tensor([[0.9, 0.2, 0.1, 0.7, 0.5], [0.8, 0.3, 0.1, 0.6, 0.1]])
    made = GAME.score(Reconstruction(answer), ReconstructionTruth(x, card))
    assert set(made) == {"mse", "bits", "columns"}
    assert _value(made["bits"]) == pytest.approx(7 / 10)
    assert _value(made["columns"]) == pytest.approx(1 / 2)
    truth = ReconstructionTruth(x, card)
    halves = torch.tensor([[0.9, 0, 0, 0, 0.6], [0, 0, 0.9, 1, 0]])  # both of a row, one of a row
    assert GAME.per_sample(Reconstruction(halves), truth)["columns"].tolist() == [1.0, 0.5]


def test_intervals_end_where_each_number_does() -> None:
    ends = {c.name: (c.low, c.high) for c in GAME.board.columns if c.part == "metrics"}
    assert ends == {
        "mse": (0, 1), "psnr": (0, None), "ssim": (-1, 1), "bits": (0, 1), "columns": (0, 1),
    }  # fmt: skip


def test_images_smaller_than_the_window_have_no_ssim() -> None:
    x = torch.zeros(2, 1, 4, 4)
    assert isinstance(GAME.score(Reconstruction(x), _truth(x))["ssim"], Refused)


def test_total_variation_of_a_step_is_its_length() -> None:
    step = torch.zeros(2, 1, 7, 7)
    step[1, :, :, 3:] = 1
    assert total_variation(step).tolist() == [0.0, 7.0]


def test_ridge_inverts_a_linear_encoder() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(50, 6, generator=generator)
    matrix = torch.randn(6, 6, generator=generator)
    decode = ridge((x @ matrix)[None], x, 1e-12)
    new = torch.rand(9, 6, generator=generator)
    assert torch.allclose(decode(new @ matrix), new, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 30, 18)], ids=str)
def test_a_decoder_has_the_shape_of_the_data(shape: tuple[int, ...]) -> None:
    card = Card(name="x", kind="image", shape=shape, classes=None, scale=1, sources={"all": 1})
    known = decoders(5, card, 8)
    assert [*known] == (["MLP"] if shape == (1, 8, 8) else ["MLP", "convolutions"])
    for build in known.values():
        assert build()(torch.zeros(2, 5)).shape == (2, *shape)


class _Flat(nn.Module):
    """Pixels through a rotation, 64 coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 64
        turn = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
        self.register_buffer("turn", torch.linalg.qr(turn).Q)

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = x.flatten(1) @ self.get_buffer("turn")
        return turned


class _Masked(Release):
    """Noise on the half of the coordinates that its owner drew."""

    of = "embedding"
    uniforms = 64

    def __init__(self, seed: int, noise: float = 2.0) -> None:
        super().__init__()
        self.noise = noise
        self.mask = torch.rand(64, generator=torch.Generator().manual_seed(seed)) < 0.5

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        del x
        return value + self.noise * (u.to(value.dtype) - 0.5).sign() * self.mask

    def sibling(self, seed: int) -> Release:
        return _Masked(seed, self.noise)


def _rotated(grants: Access, *releases: Release) -> Victim:
    model = Model(TinyImages().card(None), {"encoder": _Flat()})
    model.register_parameter("anchor", nn.Parameter(torch.zeros(1)))
    return Victim(TinyImages().card(None), model, key="rotated", grants=grants, releases=releases)


@dataclass(frozen=True)
class _Play:
    served: Victim

    def mse(self, attack: Any, own: list[Victim] | None = None) -> float:
        question, truth = GAME.pose(tiny_split(), self.served, max_rows=150, sensitive=())
        oracle, ctx = arena(attack, self.served)
        if own is not None:  # instead of copies of the release
            oracles = tuple(arena(attack, one)[0] for one in own)
            ctx.auxiliary_oracle, ctx._siblings = oracles[0], lambda n: oracles[:n]
        return _value(GAME.score(attack.answer(oracle, question, ctx), truth)["mse"])


def test_rmle_inverts_an_invertible_linear_encoder() -> None:
    play = _Play(_rotated(Access.EMBEDDINGS | Access.GRADIENTS))
    assert play.mse(RMLE(smoothness=0.0, iterations=600)) < 1e-6


def test_rmle_s_gradients_do_not_depend_on_the_blocks_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones: later, rounding decides the signs that total variation sees."""
    from privbench_plugins.attacks import reconstruction

    attack, served = RMLE(iterations=1), _rotated(Access.EMBEDDINGS | Access.GRADIENTS)
    question, _ = GAME.pose(tiny_split(), served, max_rows=5, sensitive=())
    strength = torch.tensor([1.0, 1.0, 5.0, 5.0, 0.2])[:, None]
    oracle, ctx = arena(attack, served)
    ask = oracle.gradients
    seen: list[Tensor] = []

    def spy(x: Tensor, loss: Any) -> Tensor:
        seen.append(ask(x, loss))
        return seen[-1]

    oracle.gradients = spy  # type: ignore[method-assign]
    for rows in (1024, 2):
        monkeypatch.setattr(reconstruction, "ROWS", rows)
        attack.answer(oracle, ReconstructionQuestion(question.embeddings * strength), ctx)
    whole, *parts = seen
    assert [len(part) for part in parts] == [2, 2, 1]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_a_mask_that_is_not_secret_does_not_hide() -> None:
    served = _rotated(Access.EMBEDDINGS, _Masked(3))
    play = _Play(served)
    mine = play.mse(FAST)
    estimated = play.mse(FAST.replace(coordinates="quiet"), own=[served.unreleased()])
    true = play.mse(SERVED)
    clean = _Play(_rotated(Access.EMBEDDINGS)).mse(FAST)
    # Copies with other masks show each coordinate without noise.
    composed = play.mse(FAST.replace(coordinates="quiet"))
    assert composed == pytest.approx(estimated, rel=0.05)
    assert clean < 1e-6
    assert true < estimated * 1.5
    assert estimated < 0.5 * mine


def _mean_image(served: Victim) -> float:
    split = tiny_split()
    question, truth = GAME.pose(split, served, max_rows=150, sensitive=())
    return _value(GAME.baselines(split, question, truth)["mean_image"]["mse"])


class _Flipped(_Masked):
    """Flips the coordinates that its owner drew: a decoder for other coordinates misleads."""

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        del x, u
        return torch.where(self.mask, -5 * value, value)

    def sibling(self, seed: int) -> Release:
        return _Flipped(seed)


class _OneMask(_Masked):
    """All owners have one mask."""

    def sibling(self, seed: int) -> Release:
        del seed
        return _OneMask(3, self.noise)


@pytest.mark.parametrize("attack", [FAST, FAST.replace(siblings=1)], ids=str)
def test_an_attack_under_other_masks_is_no_worse_than_a_constant(attack: Decoder) -> None:
    served = _rotated(Access.EMBEDDINGS, _Flipped(3))
    play, mean = _Play(served), _mean_image(served)
    assert play.mse(attack) < 1.02 * mean  # all rows give the mean; it learns from nine tenths
    assert play.mse(attack, own=[served.unreleased()]) < 1.02 * mean
    assert play.mse(attack.replace(rows="served")) < 0.1 * mean


def _note(attack: Decoder, served: Victim) -> tuple[str, float]:
    """Which decoder was best, and how many copies of the release it learned from."""
    oracle, ctx = arena(attack, served)
    question, _ = GAME.pose(tiny_split(), served, max_rows=150, sensitive=())
    notes = attack.answer(oracle, question, ctx).notes
    return str(notes["decoder"]), float(notes["copies of the release"])


def test_the_victims_answers_and_own_copies_teach_and_the_better_ones_are_used() -> None:
    """One mask for all owners: many copies average its noise. One for each: only the victim's."""
    shared = _rotated(Access.EMBEDDINGS, _OneMask(3, noise=0.6))
    own = _rotated(Access.EMBEDDINGS, _Flipped(3))
    assert _note(SERVED, own)[0].endswith(", served rows")
    assert _note(SERVED, own)[1] == 1
    assert _Play(own).mse(SERVED) < 0.1 * _Play(own).mse(FAST)
    label, copies = _note(SERVED, shared)
    assert (label.rpartition(", ")[2], copies) == ("own copies", 16)


def test_without_a_release_served_and_own_rows_are_one() -> None:
    served = _rotated(Access.EMBEDDINGS)
    oracle, ctx = arena(SERVED, served)
    question, _ = GAME.pose(tiny_split(), served, max_rows=150, sensitive=())
    answers = [one.answer(oracle, question, ctx) for one in (SERVED, FAST)]
    assert torch.equal(*(torch.as_tensor(one.x) for one in answers))
    assert not any("rows" in str(one.notes["decoder"]) for one in answers)


def test_many_masks_teach_more_than_one() -> None:
    served = _rotated(Access.EMBEDDINGS, _Masked(3, noise=0.6))
    play = _Play(served)
    assert play.mse(FAST.replace(siblings=16)) < 0.9 * play.mse(FAST.replace(siblings=1))


def test_decoders_are_judged_under_masks_that_they_were_not_trained_on() -> None:
    served = _rotated(Access.EMBEDDINGS, _Flipped(3))
    question, _ = GAME.pose(tiny_split(), served, max_rows=150, sensitive=())
    oracle, ctx = arena(FAST, served)
    made = FAST.replace(siblings=3, judges=2)
    held = torch.arange(len(ctx.auxiliary)) % 10 == 0
    ((_, h, judged),) = made._released(oracle, held, question.embeddings, ctx)
    own = torch.stack([one.embeddings(ctx.auxiliary) for one in ctx.siblings(5)])
    assert torch.equal(h, own[:3])
    assert torch.equal(judged, own[3:, held])
    assert len({one.numpy().tobytes() for one in own}) == 5


def test_a_victim_without_release_is_asked_once() -> None:
    play = _Play(_rotated(Access.EMBEDDINGS))
    oracle, ctx = arena(FAST, play.served)
    question, _ = GAME.pose(tiny_split(), play.served, max_rows=150, sensitive=())
    answer = FAST.answer(oracle, question, ctx)
    assert answer.notes["copies of the release"] == 1
    assert ctx.auxiliary_oracle.queries == len(ctx.auxiliary)
    assert ctx.siblings(7) == (ctx.auxiliary_oracle,)


def test_more_epochs_halve_the_learning_rate_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    of_torch = torch.optim.lr_scheduler.StepLR

    def spy(*given: Any) -> Any:
        made.append(of_torch(*given))
        return made[-1]

    monkeypatch.setattr(torch.optim.lr_scheduler, "StepLR", spy)
    g = torch.Generator().manual_seed(0)
    h, x = torch.randn(1, 16, 3, generator=g), torch.rand(16, 4, generator=g)
    for steps, epochs in [(0, 5), (40, 20)]:  # of two updates each
        attack = Decoder(epochs=5, steps=steps, batch=8, halve=2)
        attack._fit(nn.Linear(3, 4), Lesson(h, x, h[0], x), g, g)
        assert made[-1].last_epoch == epochs
        assert made[-1].get_last_lr() == [attack.lr / 4]


def test_a_network_stops_where_held_out_rows_want() -> None:
    """Of rows that only noise tells apart, more training remembers more and knows less."""
    draw = torch.Generator().manual_seed(0)
    h, x = torch.randn(1, 40, 6, generator=draw), torch.rand(40, 5, generator=draw)
    judged, truth = torch.randn(200, 6, generator=draw), torch.rand(200, 5, generator=draw)
    attack, errors = Decoder(epochs=200, steps=0, batch=8, lr=1e-2, halve=200), []
    for lesson in (Lesson(h, x, judged, truth), Lesson(h, x, h[0], x)):
        with torch.random.fork_rng():
            network = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 5))
        g = torch.Generator().manual_seed(0)
        attack._fit(network, lesson, g, g)
        errors.append(float(torch.nn.functional.mse_loss(decoded(network, judged), truth)))
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize("seed", range(5))
def test_a_mixture_is_at_least_as_good_as_each_part_and_their_mean(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    truth = torch.rand(50, 7, generator=draw)
    parts = [truth + s * torch.randn(50, 7, generator=draw) for s in (0.1, 0.2, 0.2, 2.0)]
    parts += [truth.mean(0).expand(50, 7), parts[0], torch.zeros(50, 7)]
    weights = mixture(parts, truth)
    assert min(weights) >= 0
    made = torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum(0)
    mean = torch.stack(parts[:3]).mean(0)
    error = torch.nn.functional.mse_loss
    assert error(made, truth) <= min(error(one, truth) for one in [*parts, mean]) + 1e-7
    known, _ = nnls(torch.stack([p.flatten() for p in parts], 1).numpy(),
                                   truth.flatten().numpy())  # fmt: skip
    same = torch.stack([w * part for w, part in zip(known, parts, strict=True)]).sum(0)
    torch.testing.assert_close(made, same, atol=1e-3, rtol=0)


def test_loud_coordinates_are_those_with_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    own, asked = (torch.randn(n, 40, generator=generator) for n in (800, 500))
    noisy, moved = torch.arange(40) < 20, torch.arange(40) > 30
    asked[:, noisy] += torch.randn(500, 20, generator=generator)
    asked[:, moved] += 1  # noise of one sign
    assert torch.equal(loud(own, asked, 1e-3), noisy | moved)
    assert not loud(torch.ones(9, 2), torch.ones(7, 2), 1e-3).any()


def test_noise_is_added_where_and_as_far_as_the_released_embeddings_are_louder() -> None:
    generator = torch.Generator().manual_seed(0)
    own, asked = (torch.randn(4000, 6, generator=generator) for _ in range(2))
    assert torch.equal(as_noisy(own, asked, generator), own)
    asked[:, 0] *= 3
    asked[:, 1] *= 0.5
    noisy = as_noisy(own, asked, generator)
    assert torch.equal(noisy[:, 1:], own[:, 1:])
    assert float(noisy[:, 0].std()) == pytest.approx(3, rel=0.1)


def test_ridge_over_copies_is_ridge_over_all_their_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    h, x = torch.randn(3, 20, 4, generator=generator), torch.rand(20, 5, generator=generator)
    new = torch.randn(7, 4, generator=generator)
    together = ridge(h.view(1, 60, 4), x.repeat(3, 1), 0.1)(new)
    torch.testing.assert_close(ridge(h, x, 0.1)(new), together)


@given(st.integers(0, 2**32))
def test_a_better_reconstruction_has_a_better_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.random((3, 1, 8, 8))).float()
    off = torch.from_numpy(rng.normal(0, 0.2, (3, 1, 8, 8))).float()
    near, far = (GAME.score(Reconstruction(x + s * off), _truth(x)) for s in (0.3, 1.0))
    assert _value(near["mse"]) <= _value(far["mse"])
    assert _value(near["psnr"]) >= _value(far["psnr"])


def test_the_question_holds_no_pictures() -> None:
    question, _ = GAME.pose(tiny_split(), _rotated(Access.EMBEDDINGS), max_rows=5, sensitive=())
    assert isinstance(question, ReconstructionQuestion)
    assert set(vars(question)) == {"embeddings"}


def test_a_network_learns_what_no_linear_map_says() -> None:
    """Its loss is a mean over pixels, so its gradients are tiny: the optimiser must not mind."""
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(1, 600, 4, generator=draw)
    folded = (h[0] @ torch.randn(4, 100, generator=draw)).sin()
    x = (0.5 + 0.4 * folded).view(-1, 1, 10, 10)
    decode = ridge(h[:, :500], x[:500].flatten(1), 1e-6)
    linear = torch.nn.functional.mse_loss(decode(h[0, 500:]).view(-1, 1, 10, 10), x[500:])
    attack = Decoder(epochs=1, steps=1500, hidden=128)
    build = decoders(4, _truth(x).card, 128)["MLP"]
    with torch.random.fork_rng():
        network = build()
    attack._fit(network, Lesson(h[:, :500], x[:500], h[0, 500:], x[500:]), draw, draw)
    assert torch.nn.functional.mse_loss(network(h[0, 500:]), x[500:]) < linear / 2
