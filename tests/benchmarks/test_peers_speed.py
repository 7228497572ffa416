"""Our methods beside what the authors' codes and other tools do, in one run.

``uv run python tests/benchmarks/table.py`` runs these and writes leaderboards/speed.md. A group
holds ours and one rival; ``units`` says how much work one round did, so that a slow rival may do
less of it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privbench.ground.store.store import Store
from privbench.measure.data.augmentation import Augmentation, augment
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import Split, cut
from privbench.measure.training.leave_one_out import refit
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.testing import CPU
from privbench.toolbox.hopskipjump import boundary
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.datasets.published_tables import Location30
from privbench_plugins.datasets.torchvision_images import CIFAR10
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.defenses.memguard import Guard, MemGuard, phase_one
from privbench_plugins.defenses.weight_noise import draw, sample
from privbench_plugins.targets.simclr import SimCLR, nt_xent
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CIFAR = Augmentation(crop=(0.08, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
IMAGES = 2048
VIEWS = "two views of 3x32x32, exact HSV, all cores | PIL, torchvision, DataLoader, 2 workers | 5"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread on both sides, unless a benchmark says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _time(benchmark: Any, work: Callable[[], object], units: float, rounds: int = 3) -> None:
    benchmark.extra_info["units"] = units
    benchmark.pedantic(work, rounds=rounds, warmup_rounds=1)


# ---- two views of CIFAR-size images, exact HSV ---------------------------------------------------


@pytest.mark.benchmark(group=VIEWS)
def test_views_ours(benchmark: Any) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(IMAGES, 3, 32, 32, generator=g)

    def views() -> None:
        for _ in range(2):
            augment(x, CIFAR, torch.rand(IMAGES, CIFAR.uniforms, generator=g))

    torch.set_num_threads(os.cpu_count() or 1)
    _time(benchmark, views, 2 * IMAGES)


class _TwoViews(torch.utils.data.Dataset[Tensor]):
    """Two views of each PIL image, as in the authors' SimCLR codes."""

    def __init__(self) -> None:
        from PIL import Image
        from torchvision import transforms as t

        random = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
        self.images = [Image.fromarray(one) for one in random]
        jitter = t.RandomApply([t.ColorJitter(*CIFAR.jitter or ())], p=CIFAR.jitter_p)
        self.transform = t.Compose([
            t.RandomResizedCrop(32, scale=(0.08, 1.0)), t.RandomHorizontalFlip(), jitter,
            t.RandomGrayscale(CIFAR.grey), t.ToTensor(),
        ])  # fmt: skip

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, i: int) -> Tensor:
        return torch.stack([self.transform(self.images[i]) for _ in range(2)])


@pytest.mark.benchmark(group=VIEWS)
def test_views_torchvision(benchmark: Any) -> None:
    loader = torch.utils.data.DataLoader(
        _TwoViews(), batch_size=256, num_workers=2, persistent_workers=True
    )  # fmt: skip
    _time(benchmark, lambda: [batch.shape for batch in loader], 2 * IMAGES)


# ---- MemGuard, 1,000 posteriors of Location-30 ---------------------------------------------------


@cache
def _guarded() -> tuple[Guard, Tensor]:
    root = Path(os.environ.get("PRIVBENCH_DATA", "../shared/data"))
    data = Location30()
    if not (root / "location").exists():
        pytest.skip("needs Location-30 below PRIVBENCH_DATA")
    card = data.card(root)
    split = cut(data.load(root), card, data.protocols["default"], 0)
    with TemporaryDirectory() as folder:
        job = VictimSpec(card, split.protocol, split.victim(), Supervised(), (MemGuard(),), ())
        victim = Builder(Store(Path(folder)), CPU).victim(job)
    (guard,) = victim.releases
    assert isinstance(guard, Guard)
    rows = torch.cat([split.victim().members.x, split.pool.x])[:1000]
    return guard, victim.unreleased().log_posteriors(rows).exp()


MEMGUARD = "MemGuard, 1,000 posteriors of Location-30 | a loop, as in the authors' code | 60"


@pytest.mark.benchmark(group=MEMGUARD)
def test_memguard_ours(benchmark: Any) -> None:
    guard, p = _guarded()
    parts = torch.split(p, 256)  # as a served victim asks
    _time(benchmark, lambda: [phase_one(part, guard.log_odds, 300, 0) for part in parts], len(p))


@pytest.mark.benchmark(group=MEMGUARD)
def test_memguard_one_at_a_time(benchmark: Any) -> None:
    guard, p = _guarded()
    some = p[:: len(p) // 20][:20]
    _time(
        benchmark, lambda: [phase_one(one[None], guard.log_odds, 300, 0) for one in some],
        len(some), rounds=1,
    )  # fmt: skip


# ---- label-only boundary, equal queries, a victim of 64 units ------------------------------------

HOPSKIPJUMP = "label-only boundary, equal queries, 64-unit victim | ART's HopSkipJump | 20"


@cache
def _small() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
        x = torch.rand(250, 64)
    with torch.no_grad():
        return net, x, net(x).argmax(1)


@pytest.mark.benchmark(group=HOPSKIPJUMP)
def test_boundary_ours(benchmark: Any) -> None:
    net, x, y = _small()
    starts = torch.rand(100, 64, generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def decide(inputs: Tensor) -> Tensor:
        return torch.cat([net(part).argmax(1) for part in torch.split(inputs, 256)])

    def ours() -> Tensor:
        generator = torch.Generator().manual_seed(2)
        found = boundary(decide, x, y, starts, generator=generator, iterations=7)
        return found.queries

    _time(benchmark, ours, float(ours().sum()))


@pytest.mark.benchmark(group=HOPSKIPJUMP)
def test_boundary_art(benchmark: Any) -> None:
    pytest.importorskip("art.attacks.evasion")
    from art.attacks.evasion import HopSkipJump  # type: ignore[import-untyped]
    from art.estimators.classification import PyTorchClassifier  # type: ignore[import-untyped]

    net, x, y = _small()
    asked = [0]

    class Counting(PyTorchClassifier):  # type: ignore[misc]
        def predict(self, x: Any, **more: Any) -> Any:
            asked[0] += len(x)
            return super().predict(x.astype(np.float32), **more)

    model = Counting(
        net, loss=nn.CrossEntropyLoss(), input_shape=(64,), nb_classes=10, clip_values=(0, 1)
    )
    attack = HopSkipJump(
        model, targeted=False, max_iter=7, init_eval=100, max_eval=10_000, verbose=False
    )

    def theirs() -> None:
        asked[0] = 0
        attack.generate(x[:20].numpy(), y=y[:20].numpy())

    theirs()
    _time(benchmark, theirs, asked[0], rounds=1)


# ---- training ------------------------------------------------------------------------------------


@cache
def _digits() -> Split:
    data = Digits()
    return cut(data.load(None), data.card(None), data.protocols["default"], 0)


def _supervised(folder: Path) -> Training:
    split = _digits()
    spec = VictimSpec(split.card, split.protocol, split.victim(), Supervised(epochs=50), (), ())
    draft = Builder(Store(folder), CPU).draft(spec)
    return Training(draft.model, draft.phases[0], draft.rows(draft.phases[0]), 0)


LOOP = "the training loop on a small MLP | the same steps as a bare torch loop | 0.83"


@pytest.mark.benchmark(group=LOOP)
def test_loop_ours(benchmark: Any, tmp_path: Path) -> None:
    benchmark.extra_info["units"] = 1
    benchmark.pedantic(
        lambda run: run.run(), setup=lambda: ((_supervised(tmp_path),), {}), rounds=9,
    )  # fmt: skip


@pytest.mark.benchmark(group=LOOP)
def test_loop_bare(benchmark: Any, tmp_path: Path) -> None:
    run = _supervised(tmp_path)
    encoder, classifier = run.model["encoder"], run.model["classifier"]
    run.model.train().requires_grad_(True)
    x, y = run.rows.x.float() / _digits().card.scale, run.rows.y
    parameters = [*encoder.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def loop() -> None:
        for _ in range(50):
            order = torch.randperm(len(x))
            for rows in torch.split(order, 64):
                optimizer.zero_grad()
                logits = classifier(encoder(x[rows]))
                nn.functional.cross_entropy(logits, y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    benchmark.extra_info["units"] = 1
    benchmark.pedantic(loop, rounds=9, warmup_rounds=1)


# ---- SimCLR with the convnet, CIFAR-10, 4 steps of 128 rows --------------------------------------

SIMCLR_LOOP = "SimCLR, convnet, CIFAR-10, 4 steps of 128 rows | the same steps as a bare loop | 0.9"
SIMCLR_PEER = (
    "SimCLR, convnet, CIFAR-10, 4 steps of 128 rows, no blur | lightly's transform and loss | 2"
)


def _simclr(folder: Path) -> Training:
    root, data = Path(os.environ.get("PRIVBENCH_DATA", "../shared/data")), CIFAR10()
    if not (root / "cifar-10-batches-py").exists():
        pytest.skip("needs CIFAR-10 below PRIVBENCH_DATA")
    card, protocol = data.card(root), Protocol(members=512, nonmembers=512, pool=1024)
    split = cut(data.load(root), card, protocol, 0)
    target = SimCLR(batch=128, epochs=1, updates=0, augmentation=CIFAR, normalise=False)
    draft = Builder(Store(folder), CPU).draft(
        VictimSpec(card, protocol, split.victim(), target, (), ())
    )
    return Training(draft.model, draft.phases[0], split.victim().members, 0)


def _steps_ours(benchmark: Any, folder: Path) -> None:
    benchmark.extra_info["units"] = 1
    benchmark.pedantic(lambda run: run.run(), setup=lambda: ((_simclr(folder),), {}), rounds=7)


@pytest.mark.benchmark(group=SIMCLR_LOOP)
def test_simclr_ours(benchmark: Any, tmp_path: Path) -> None:
    _steps_ours(benchmark, tmp_path)


@pytest.mark.benchmark(group=SIMCLR_LOOP)
def test_simclr_bare(benchmark: Any, tmp_path: Path) -> None:
    run = _simclr(tmp_path)
    model = run.model
    model.train().requires_grad_(True)
    x = run.rows.x.float() / 255
    parts = [*model["encoder"].parameters(), *model["head"].parameters()]
    optimizer = torch.optim.Adam(parts, lr=1e-3, fused=True)

    def steps() -> None:
        for rows in torch.split(torch.randperm(len(x)), 128):
            views = [
                augment(x[rows], CIFAR, torch.rand(len(rows), CIFAR.uniforms)) for _ in range(2)
            ]
            optimizer.zero_grad()
            nt_xent(model["head"](model["encoder"](torch.cat(views))), 0.1).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    benchmark.extra_info["units"] = 1
    benchmark.pedantic(steps, rounds=7, warmup_rounds=1)


@pytest.mark.benchmark(group=SIMCLR_PEER)
def test_simclr_ours_again(benchmark: Any, tmp_path: Path) -> None:
    _steps_ours(benchmark, tmp_path)


@pytest.mark.benchmark(group=SIMCLR_PEER)
def test_simclr_lightly(benchmark: Any, tmp_path: Path) -> None:
    """Its transform in the process that trains: one core on both sides."""
    losses: Any = pytest.importorskip("lightly.loss")
    transforms: Any = pytest.importorskip("lightly.transforms")
    from PIL import Image

    run = _simclr(tmp_path)
    model = run.model
    model.train().requires_grad_(True)
    images = [Image.fromarray(one) for one in run.rows.x.permute(0, 2, 3, 1).numpy()]
    transform = transforms.SimCLRTransform(
        input_size=32, cj_strength=0.5, gaussian_blur=0.0, normalize=None, min_scale=0.08
    )
    loss = losses.NTXentLoss(temperature=0.1)
    parts = [*model["encoder"].parameters(), *model["head"].parameters()]
    optimizer = torch.optim.Adam(parts, lr=1e-3, fused=True)

    def steps() -> None:
        for rows in torch.split(torch.randperm(len(images)), 128):
            seen: list[Any] = [transform(images[row]) for row in rows.tolist()]
            views = torch.stack([view for pair in seen for view in pair])
            optimizer.zero_grad()
            z = model["head"](model["encoder"](views))
            loss(z[::2], z[1::2]).backward()
            optimizer.step()

    benchmark.extra_info["units"] = 1
    benchmark.pedantic(steps, rounds=3, warmup_rounds=1)


PRIVATE = "DP-SGD, 100 rows, two layers of 512 | Opacus, which writes out rows' gradients | 5"


def _private(folder: Path) -> Training:
    split = _digits()
    dp = DPSGD(noise_multiplier=1.0, accountant="rdp")
    target = Supervised(epochs=10)
    spec = VictimSpec(split.card, split.protocol, split.victim(), target, (dp,), ())
    draft = Builder(Store(folder), CPU).draft(spec)
    return Training(draft.model, draft.phases[0], draft.rows(draft.phases[0]), 0)


def _time_private(benchmark: Any, folder: Path) -> None:
    pytest.importorskip("opacus")
    _private(folder).run()
    benchmark.extra_info["units"] = 1
    benchmark.pedantic(
        lambda run: run.run(), setup=lambda: ((_private(folder),), {}), rounds=3,
    )  # fmt: skip


@pytest.mark.benchmark(group=PRIVATE)
def test_private_ours(benchmark: Any, tmp_path: Path) -> None:
    _time_private(benchmark, tmp_path)


@pytest.mark.benchmark(group=PRIVATE)
def test_private_opacus(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    from opacus import grad_sample, optimizers

    from privbench.toolbox import row_gradients

    monkeypatch.setattr(row_gradients, "RowGradients", grad_sample.GradSampleHooks)
    monkeypatch.setattr(row_gradients, "ClippingOptimizer", optimizers.DPOptimizer)
    _time_private(benchmark, tmp_path)


# ---- the sensitivity sampler ---------------------------------------------------------------------

SAMPLER = "sensitivity sampler, 500 pairs of 100 rows (1,000 refits) | a loop over the refits | 4"
REFITS = "refits, each without another row | a loop over them | 2"


@cache
def _classifier() -> tuple[Any, ...]:
    """Model, phase, embeddings and initial weights of a linear classifier on 100 embeddings."""
    split = _digits()
    spec = VictimSpec(split.card, split.protocol, split.victim(), SimCLR(epochs=1), (), ())
    with TemporaryDirectory() as folder:
        builder = Builder(Store(Path(folder)), CPU)
        draft = builder.draft(spec)
        for stage in draft.stages[:-1]:
            builder.make(draft, stage)
        draft.keep_initial()
        phase = draft.phases[-1]
        phase, rows = builder._embedded(draft, phase, draft.rows(phase))
    return draft.model, phase, rows, draft.initial


def _refitted(dropped: Tensor, exchanged: Tensor) -> Any:
    model, phase, rows, initial = _classifier()
    return refit(model, phase, rows, initial=initial, seed=0, dropped=dropped, exchanged=exchanged)


def _looped(dropped: Tensor) -> None:
    model, phase, rows, initial = _classifier()
    for i in dropped:
        model.load_state_dict({f"parts.{name}": tensor for name, tensor in initial.items()})
        Training(model, phase, rows.select(torch.arange(len(rows)) != i), 0).run()


@pytest.mark.benchmark(group=SAMPLER)
def test_sampler_ours(benchmark: Any) -> None:
    n = len(_classifier()[2])
    pairs = torch.Generator().manual_seed(0)
    _time(benchmark, lambda: sample(_refitted, n, 500, pairs, whole=True), 1000)


@pytest.mark.benchmark(group=SAMPLER)
def test_sampler_loop(benchmark: Any) -> None:
    n = len(_classifier()[2])
    dropped = draw(n, 15, torch.Generator().manual_seed(0)).flatten()
    _time(benchmark, lambda: _looped(dropped), len(dropped))


@pytest.mark.benchmark(group=REFITS)
def test_refits_ours(benchmark: Any) -> None:
    dropped = torch.arange(96)
    _time(benchmark, lambda: _refitted(dropped, torch.full_like(dropped, -1)), len(dropped))


@pytest.mark.benchmark(group=REFITS)
def test_refits_loop(benchmark: Any) -> None:
    dropped = torch.arange(30)
    _time(benchmark, lambda: _looped(dropped), len(dropped))
