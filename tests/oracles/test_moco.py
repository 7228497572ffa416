from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from privbench import Batch
from privbench.measure.training.loop import Training
from privbench.testing import tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench_plugins.targets.moco import MoCo, Queue, _interleaved, info_nce


def test_info_nce_by_hand() -> None:
    g = torch.Generator().manual_seed(0)
    z, k, queue = (F.normalize(torch.randn(n, 3, generator=g), dim=1) for n in (4, 4, 6))
    own = torch.zeros(4, 6, dtype=torch.bool)
    own[2, 5] = own[3, 0] = own[3, 1] = True
    total = 0.0
    for i in range(4):
        positive = math.exp(float(z[i] @ k[i]) / 0.1)
        negatives = sum(math.exp(float(z[i] @ q) / 0.1) for j, q in enumerate(queue)
                        if not own[i, j])  # fmt: skip
        total += -math.log(positive / (positive + negatives))
    assert float(info_nce(z, k, queue, own, 0.1)) == pytest.approx(total / 4, rel=1e-5)


def test_queue_overwrites_the_oldest_and_wraps() -> None:
    queue = Queue(4, 2)
    for value in (1.0, 2.0):
        queue.push(torch.full((3, 2), value), torch.arange(3) + int(10 * value))
    assert queue.rows.tolist() == [21, 22, 12, 20]
    assert queue.keys[:, 0].tolist() == [2.0, 2.0, 1.0, 2.0]
    assert int(queue.at) == 2


def test_key_batch_parts_meet_every_query_part() -> None:
    order = _interleaved(32, 4, torch.device("cpu"))
    assert sorted(order.tolist()) == list(range(32))
    query_part = torch.arange(32) % 4  # split batch norm: part j holds rows j, j + 4, ...
    for part in range(4):
        assert torch.bincount(query_part[order[part::4]], minlength=4).tolist() == [2, 2, 2, 2]


def _training(tmp_path: Any, **fields: Any) -> Training:
    target = MoCo(**{"backbone": "convnet", "epochs": 1, "batch": 40, "queue": 64, **fields})
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(target))
    return Training(making.model, making.phases[0], tiny_split().victim().members, 0)


def test_key_encoder_is_the_moving_average_and_gets_no_gradient(tmp_path: Any) -> None:
    run = _training(tmp_path, momentum=0.9)
    model = run.model
    slow = [p.clone() for p in model["key_encoder"].parameters()]
    fast = [p.clone() for p in model["encoder"].parameters()]
    seen: list[list[torch.Tensor]] = []
    step = run.phase.steps["train"]
    push = step.after

    def spy(m: Any, out: Any) -> None:
        seen.append([p.clone() for p in m["key_encoder"].parameters()])
        assert push is not None
        push(m, out)

    object.__setattr__(step, "after", spy)
    run.run()
    assert len(seen) == 2
    for before, query, after in zip(slow, fast, seen[0], strict=True):
        assert torch.allclose(after, 0.9 * before + 0.1 * query, atol=1e-6)
    assert all(p.grad is None for p in model["key_encoder"].parameters())
    assert run.updates == {"encoder": 2, "head": 2}


def test_queue_holds_keys_of_the_last_batches(tmp_path: Any) -> None:
    run = _training(tmp_path)
    before = run.model["queue"].keys.clone()  # type: ignore[operator]
    run.run()
    after = run.model["queue"].keys
    assert not torch.equal(before, after)  # type: ignore[arg-type]
    assert torch.allclose(after.norm(dim=1), torch.ones(64), atol=1e-5)  # type: ignore[operator]
    assert int(run.model["queue"].at) == 80 % 64  # type: ignore[arg-type]


def test_older_keys_of_a_row_are_no_negatives_of_it(tmp_path: Any) -> None:
    run = _training(tmp_path, epochs=2, queue=80)  # of 80 rows, in two batches
    seen: list[torch.Tensor] = []
    step = run.phase.steps["train"]
    push = step.after

    def spy(m: Any, out: Any) -> None:
        seen.append(out.own)
        assert push is not None
        push(m, out)

    object.__setattr__(step, "after", spy)
    run.run()
    assert not seen[0].any()
    assert not seen[1].any()
    assert seen[2].sum(1).tolist() == [1] * 40


def test_the_key_of_a_row_is_its_own(tmp_path: Any) -> None:
    """32 rows in 4 parts: the interleaving is not its own inverse."""
    run = _training(tmp_path, splits=4)
    model = run.model.eval()  # now batch norm reads no other row
    x = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = Batch(x, torch.zeros(32).long(), {}, torch.arange(32), views=2)
    found = MoCo(splits=4)._forward(model, batch).k
    with torch.no_grad():
        own = model["key_head"](model["key_encoder"](model.inputs(x[32:])))
    torch.testing.assert_close(found, F.normalize(own, dim=1))
