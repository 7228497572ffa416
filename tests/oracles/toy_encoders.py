"""Encoders that place their members elsewhere, or put their views close together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from privbench import Augmentation, Examples, MembershipQuestion
from privbench.measure.games.metrics import auc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

N, WIDTH, CLASSES = 400, 48, 4


class Placed:
    """An encoder of a table that moves members by chance, or along an axis of their label."""

    def __init__(
        self, held: Tensor, y: Tensor, draw: torch.Generator, *, far: float = 0.0, near: float = 0.0
    ) -> None:
        away = torch.randn(N, WIDTH, generator=draw).double()
        axes = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draw).double())[0][y]
        self.x: Tensor = torch.randn(N, WIDTH, generator=draw).double()
        self.x += held.double().unsqueeze(1) * (far * away + near * axes)

    def embeddings(self, rows: Examples) -> Tensor:
        del rows
        return self.x


class Close:
    """Members' views lie closer together by ``close``; their posteriors are higher by ``sure``."""

    def __init__(
        self, held: Tensor, draw: torch.Generator, *, close: float, sure: float = 0.0
    ) -> None:
        spread = (1.0 - close * held.double() + 0.3 * torch.rand(N, generator=draw)) / 10
        turned = spread * torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
        self.views = torch.stack([turned.cos(), turned.sin()], dim=2).transpose(0, 1)
        self.plain = torch.randn(N, 2, generator=draw).double()
        logits = torch.randn(N, CLASSES, generator=draw).double()
        logits[:, 0] += sure * held.double()
        self.log_p: Tensor = logits.log_softmax(1)

    def embeddings(self, rows: Any) -> Tensor:
        return self.views if rows == "views" else self.plain

    def log_posteriors(self, rows: Examples) -> Tensor:
        del rows
        return self.log_p

    def posteriors(self, rows: Examples) -> Tensor:
        return self.log_posteriors(rows).exp()


def hands(k: int, members: int, draw: torch.Generator) -> list[Tensor]:
    """Return who is a member of the victim and of k shadows, dealt as rounds of cards."""
    sets = [torch.randperm(N, generator=draw) < members]
    while len(sets) <= k:
        hand = torch.randperm(N, generator=draw) // members
        sets += [hand == player for player in range(N // members)]
    return sets[: k + 1]


def answered(
    attack: Any, made: Sequence[Any], sets: Sequence[Tensor], y: Tensor, *, images: bool = False
) -> Any:
    """Return what an attack answers on the first encoder, with the others as shadows."""
    worlds = [SimpleNamespace(contains=lambda _, held=held: held) for held in sets]
    shadows = [SimpleNamespace(oracle=one, world=world)
               for one, world in zip(made[1:], worlds[1:], strict=True)]  # fmt: skip
    card = SimpleNamespace(kind="image" if images else "table", limits=Augmentation(),
                           classes=CLASSES)  # fmt: skip
    ctx: Any = SimpleNamespace(shadows=shadows, card=card, views=lambda *_: "views")
    rows = Examples.of(torch.zeros(N, 1), y, scale=1.0)
    return attack.answer(made[0], MembershipQuestion(rows, "encoder"), ctx)


def area(answer: Any, member: Tensor) -> float:
    """Return the AUC of an answer."""
    found = auc(answer.scores.numpy(), member.numpy()).value
    assert found is not None
    return found


def placed(
    attack: Any, k: int = 16, members: int = N // 2, *, labelled: bool = True, seed: int = 8,
    **leak: float,
) -> tuple[Any, Tensor]:  # fmt: skip
    """Return the answer of an attack with k shadows on ``Placed``, and which rows are members."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (N,), generator=draw)
    sets = hands(k, members, draw)
    made = [Placed(held, y, draw, **leak) for held in sets]
    return answered(attack, made, sets, y if labelled else torch.full_like(y, -1)), sets[0]
