"""ARS shares embeddings with noise that misleads decoders; a secret mask selects the coordinates.

Chen, Qiang, Ruan: Adversarial Representation Sharing: A Quantitative and Secure Collaborative
Learning Framework. arXiv:2203.14299, sections 4 and 6.1, algorithm 1. The formulas are missing in
our copy of the text; this module implements what its sentences imply.

Rows belong to ``parties``, by a hash of their content. Each party trains its own decoder D on the
embeddings of its members, and draws a mask m of zeros and ones that it keeps secret. It then shares
z + d instead of z:

1. Ten times, z' moves by bound / 10 along m times the sign of the gradient of |x - D(z')|² (masked
   I-FGSM; the error is measured from x, not from D(z), where the gradient would be 0). d0 = z' - z.
2. ``ars-attributes`` also takes one step of length bound for each sensitive attribute. The step
   goes along m times the sign that moves the party's attribute classifier towards a fixed value,
   whatever the row's true value is: d1, d2, ... Then d is the mean of d0, d1, d2, ... with weights
   that sum to 1.

No coordinate moves by more than the bound, in units of the embeddings' standard deviation over the
members. The record notes the absolute bound and the length of the noise relative to the embedding.
Where the encoder has an owner for every block of columns (``autoencoder`` with ``owners``), each
owner's noise depends only on its own block, decoder and unit.

An adversary that releases its own rows uses a mask of its own (``overlap`` sets how similar it is)
and the decoders of the parties, which is more than the adversary of the paper has. The classifier
is trained on released embeddings where the target trains it on embeddings.

What to expect: hardly any protection. The paper's adversary learns from its own rows under one mask
of its own, and misjudges other masks: its errors in the paper (.119 and .179 on MNIST, table 6) are
those of an attack that is worse than the mean image (.067, if pixels lie in [0, 1]). They measure
how far the attack is misled, not what an embedding reveals. An adversary that trains under many
masks of its own (``reconstruction(rows=own)``) does not need to know the owner's: on ``digits``
(``simclr``, bound 1, seed 0) its error is .014, where the mean image is at .074 and embeddings
without noise at .008; the paper's adversary is at .152. A mask does not stay secret either, because
coordinates without noise vary less (``coordinates=quiet``: .019), and rows of the adversary can be
sent through it if the release is served (``reconstruction`` as it is: .011).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from privbench import (
    Defense,
    Ge,
    Gt,
    Judge,
    Le,
    Paper,
    Release,
    Strength,
    as_float,
    fold,
    hookimpl,
    row_keys,
    salt,
    uniform,
)
from privbench.toolbox.classifiers import fit, stacked_mlp
from privbench.toolbox.undefended import ROWS, embeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Card, Cell, DefenseContext, Examples, Model, World

    Span = tuple[int, int]
    Block = tuple[Span, Span]


class Shared(Release):
    """Holds the masks, decoders and classifiers of all parties.

    Attributes:
        masks: (parties, d) bool.
        centre: (d,) mean of the embeddings.
        unit: (d,) standard deviation of the embeddings, one for each block.
    """

    of = "embedding"
    feeds_classifier = True
    masks: Tensor
    centre: Tensor
    unit: Tensor

    def __init__(
        self,
        settings: Ars,
        blocks: Sequence[Block],
        scale: float,
        values: Mapping[str, int],
        seed: int,
    ) -> None:
        """Draw masks; networks are untrained.

        Args:
            settings: the settings of the defense.
            blocks: for each owner of columns, the span of its columns and of its coordinates.
            scale: the scale of the dataset card.
            values: attribute -> number of values, for the attributes to hide.
            seed: determines which party owns which row, the masks, and the fixed values.
        """
        super().__init__()
        self.settings, self.blocks, self.scale, self.seed = settings, tuple(blocks), scale, seed
        self.fixed = {name: salt(seed, "fixed", name) % v for name, v in values.items()}
        parties, inner = settings.parties, [settings.hidden] * 2
        spans = [at for _, at in self.blocks]
        width = spans[-1][1]
        ones = torch.ones(parties, width, dtype=torch.bool)
        drawn = random_masks(seed, parties, spans) if settings.masked else ones
        self.register_buffer("masks", drawn)
        self.register_buffer("centre", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("unit", torch.ones(width, dtype=torch.float64))
        # In float64: ten gradient signs would amplify a rounding error into a different answer.
        self.decoders = torch.nn.ModuleList(
            stacked_mlp(parties, [last - first, *inner, stop - start]).double()
            for (start, stop), (first, last) in self.blocks
        )
        self.classifiers = torch.nn.ModuleDict({
            name: torch.nn.ModuleList(
                stacked_mlp(parties, [last - first, 64, 64, v]).double() for first, last in spans
            )
            for name, v in values.items()
        })  # fmt: skip

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Train the networks of every party on its members.

        The noise does not matter to them: all strengths of a sweep share them.
        """
        rows = world.members
        z = embeddings(model, rows)
        x = as_float(rows.x.to(z.device), rows.scale).flatten(1)
        self.centre.copy_(z.mean(0))
        for _, (first, last) in self.blocks:
            spread = z[:, first:last].var(0, correction=0).mean().sqrt()
            self.unit[first:last] = spread.clamp_min(1e-12)
        self._learn(z, x, rows, ctx)
        self._note(ctx, x, z)

    def _learn(self, z: Tensor, x: Tensor, rows: Examples, ctx: DefenseContext) -> None:
        """Train decoders and classifiers on embeddings z (n, d) of rows x (n, p) in [0, 1]."""
        chosen = self.settings
        networks = nn.ModuleDict({"decoders": self.decoders, "classifiers": self.classifiers})
        read = ((z - self.centre) / self.unit).float()

        def trained() -> Mapping[str, Tensor]:
            owner = self.owner(as_float(rows.x.to(z.device), rows.scale))
            mine = shares(owner, chosen.parties)
            for i, ((start, stop), (first, last)) in enumerate(self.blocks):
                single = copy.deepcopy(self.decoders[i]).float()
                learn_to_decode(
                    single, read[:, first:last], x[:, start:stop], mine, chosen,
                    generator=ctx.generator("decoder", i),
                )  # fmt: skip
                self.decoders[i].load_state_dict(single.state_dict())
            for name in self.classifiers:
                truth = rows.attributes[name].to(z.device)
                known = (truth >= 0).nonzero().squeeze(1)
                if len(known):
                    theirs = known[shares(owner[known], chosen.parties)]
                    self._learn_attribute(name, read, truth, theirs, ctx)
            return networks.state_dict()

        networks.load_state_dict(ctx.once(
            "networks", trained, parties=chosen.parties, hidden=chosen.hidden,
            epochs=chosen.epochs, updates=chosen.updates, batch=chosen.batch, lr=chosen.lr,
            attributes=sorted(self.classifiers),
        ))  # fmt: skip

    def _learn_attribute(
        self, name: str, read: Tensor, truth: Tensor, theirs: Tensor, ctx: DefenseContext
    ) -> None:
        """Train the classifiers of an attribute, each on the positions ``theirs`` of its party."""
        chosen, networks = self.settings, self.classifiers[name]
        for i, (_, (first, last)) in enumerate(self.blocks):
            single = copy.deepcopy(networks[i]).float()  # type: ignore[index]
            fit(
                single, read[:, first:last], truth, rows=theirs, epochs=chosen.epochs,
                steps=chosen.updates, batch=chosen.batch, lr=chosen.lr,
                generator=ctx.generator("classifier", name, i),
            )  # fmt: skip
            networks[i].load_state_dict(single.state_dict())  # type: ignore[index]

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Add the noise of each row, from the decoder and the mask of its party."""
        del u
        return (value.double() + self.noise(x, value.double())).to(value.dtype)

    def noise(self, x: Tensor, z: Tensor) -> Tensor:
        """Return noise (n, d) for embeddings z (n, d), both float64, of x (n, *shape) in [0, 1]."""
        owner = self.owner(x)
        slot, slots = places(owner, self.settings.parties)

        def packed(rows: Tensor) -> Tensor:
            """Turn (n, k) into (parties, slots, k), with zeros where a party has no more rows."""
            room = rows.new_zeros(self.settings.parties, slots, rows.shape[1])
            room[owner, slot] = rows
            return room

        z, x = packed(z), packed(x.flatten(1).double())
        masks = self.masks[:, None].double()
        made = torch.zeros_like(z)
        for i, ((start, stop), (first, last)) in enumerate(self.blocks):
            mask, at = masks[..., first:last], z[..., first:last]
            bound = self.settings.bound * float(self.unit[first])
            wanted = x[..., start:stop]
            noises = [
                against_decoder(
                    at, wanted, self._decoder(i), mask, bound, iterations=self.settings.iterations
                )
            ]
            for name in self.classifiers:
                guess = self._classifier(name, i)
                noises.append(against_classifier(at, self.fixed[name], guess, mask, bound))
            made[..., first:last] = combined(noises, self.settings.share())
        return made[owner, slot]

    def owner(self, x: Tensor) -> Tensor:
        """Return the party (n,) that each row of x (n, *shape) in [0, 1] belongs to."""
        keys = fold(row_keys(x, self.scale), self.seed)
        return (uniform(keys, 1).squeeze(1) * self.settings.parties).long()

    def sibling(self, seed: int) -> Release:
        """Return the same decoders with the masks of another party."""
        other = copy.deepcopy(self)
        if self.settings.overlap is not None:
            other.masks.copy_(alike(self.masks, self.settings.overlap, seed))
        elif self.settings.masked:
            other.masks.copy_(random_masks(seed, 1, [at for _, at in self.blocks]))
        return other

    def _decoder(self, i: int) -> Callable[[Tensor], Tensor]:
        return lambda z: self.decoders[i](self._read(z, i)).sigmoid()

    def _classifier(self, name: str, i: int) -> Callable[[Tensor], Tensor]:
        networks: Any = self.classifiers[name]
        return lambda z: networks[i](self._read(z, i))

    def _read(self, z: Tensor, i: int) -> Tensor:
        """Return the coordinates of a block, standardised as networks read them."""
        first, last = self.blocks[i][1]
        return (z - self.centre[first:last]) / self.unit[first:last]

    def _note(self, ctx: DefenseContext, x: Tensor, z: Tensor) -> None:
        """Record how large the noise is on the members, and how often attributes look fixed."""
        name = "ars-attributes" if self.fixed else "ars"
        both = zip(torch.split(x, ROWS), torch.split(z, ROWS), strict=True)
        noise = torch.cat([self.noise(*part) for part in both])
        units = [float(self.unit[first]) for _, (first, _) in self.blocks]
        relative = noise.norm(dim=1).mean() / z.norm(dim=1).mean().clamp_min(1e-12)
        ctx.note(**{
            f"{name}: absolute bound": [self.settings.bound * unit for unit in units],
            f"{name}: relative L2": float(relative),
        })  # fmt: skip
        with torch.no_grad():
            for attribute in self.fixed:
                equal = [self._fixed_share(attribute, i, x, z + noise) for i in range(len(units))]
                ctx.note(**{
                    f"{name}: predictions of {attribute} that equal the fixed value": (
                        sum(equal) / len(equal)
                    )
                })  # fmt: skip

    def _fixed_share(self, attribute: str, i: int, x: Tensor, z: Tensor) -> float:
        first, last = self.blocks[i][1]
        logits = self._classifier(attribute, i)(z[None, :, first:last])
        own = logits[self.owner(x), torch.arange(len(z), device=z.device)]
        return float((own.argmax(1) == self.fixed[attribute]).double().mean())


@dataclass(frozen=True)
class Ars(Defense):
    """Adds masked adversarial noise to embeddings, against decoders.

    Attributes:
        bound: largest shift of a coordinate, in standard deviations of the embeddings. It is a
            utility budget, not an epsilon of differential privacy.
        iterations: steps of I-FGSM.
        parties: number of parties that the rows are divided among, each with its own decoder and
            mask.
        masked: whether there are masks; without masks, every coordinate moves.
        overlap: share of coordinates in which an adversary's mask agrees with the owner's; None
            draws the mask at random.
        hidden: neurons of each of the two hidden layers of a decoder.
        epochs: training epochs of the decoders.
        updates: minimum number of updates of the decoders.
        batch: rows per update, of each party.
        lr: learning rate of the decoders, with Adam.
    """

    name: ClassVar[str] = "ars"
    protects: ClassVar[tuple[str, ...]] = ("reconstruction",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "reconstruction",
            "Whoever may ask for a release of rows of his own learns under the owner's masks.",
        ),
        Judge(
            "reconstruction",
            "A mask shows: the coordinates that it covers vary more.",
            {"rows": "own", "coordinates": "quiet"},
        ),
    )
    release_class: ClassVar[type[Release]] = Shared
    paper: ClassVar[Paper] = Paper(
        "Adversarial Representation Sharing: A Quantitative and Secure Collaborative Learning "
        "Framework", "Chen, Qiang, Ruan", "arXiv:2203.14299", "sections 4 and 6.1, algorithm 1",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "bound", stronger="up", sweep=(0.125, 0.25, 0.5, 1.0)
    )
    deviations: ClassVar[str] = (
        "The bound limits the largest coordinate, in standard deviations: the paper's norm and "
        "scale are lost. The content of a row decides which party owns it. Decoders are fully "
        "connected for all data, read standardised embeddings and end in a sigmoid. An adversary "
        "that releases rows itself has the parties' decoders, and only its masks are its own; it "
        "may draw any number of them, where the paper's draws one and ends up worse than the mean "
        "image."
    )

    bound: Annotated[float, Ge(0)] = 1.0
    iterations: Annotated[int, Ge(1)] = 10
    parties: Annotated[int, Ge(1), Le(1000)] = 5
    masked: bool = True
    overlap: Annotated[float, Ge(0), Le(1)] | None = None
    hidden: Annotated[int, Ge(1), Le(10_000)] = 128
    epochs: Annotated[int, Ge(1)] = 50
    updates: Annotated[int, Ge(0)] = 500
    batch: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3

    def incompatible(self, cell: Cell) -> str | None:
        """Refuse an overlap of masks without masks."""
        del cell
        if self.overlap is not None and not self.masked:
            return f"{self.name} with an overlap of masks needs masked=True"
        return None

    def share(self) -> float:
        """Return the weight of all attributes together."""
        return 0.0

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release."""
        encoder = model["encoder"]
        width, columns = int(encoder.width), math.prod(card.shape)  # type: ignore[arg-type]
        blocks: Any = getattr(encoder, "blocks", None)
        if not isinstance(blocks, tuple):
            blocks = (((0, columns), (0, width)),)
        values = {name: card.attributes[name] for name in ctx.sensitive} if self.share() else {}
        return Shared(self, blocks, card.scale, values, ctx.salt("parties"))


@dataclass(frozen=True)
class ArsAttributes(Ars):
    """Adds masked adversarial noise to embeddings, against decoders and attribute classifiers.

    Attributes:
        attribute_weight: weight of the noise against classifiers, divided equally among all
            sensitive attributes; the rest is the weight of the noise against decoders.
    """

    name: ClassVar[str] = "ars-attributes"
    protects: ClassVar[tuple[str, ...]] = ("attributes", "reconstruction")
    judged_by: ClassVar[tuple[Judge, ...]] = (
        *Ars.judged_by,
        Judge(
            "attribute-inference",
            "One release teaches it one mask; it learns from 24 of each row and from served ones.",
        ),
        Judge(
            "attribute-decensoring",
            "Learns from as many releases to map embeddings back to features without noise.",
        ),
    )
    uses_attributes: ClassVar[bool] = True
    deviations: ClassVar[str] = (
        Ars.deviations + " The fixed vector of an attribute is one of its values, drawn at random; "
        "the noise descends towards it, as the paper's text says, but not as its loss is written."
    )

    attribute_weight: Annotated[float, Gt(0), Le(1)] = 0.5

    def share(self) -> float:
        """Return the weight of all attributes together."""
        return self.attribute_weight


def random_masks(seed: int, parties: int, spans: Sequence[Span]) -> Tensor:
    """Return fair random masks (parties, d) bool; masks with an empty span are drawn again."""
    width, attempt = spans[-1][1], 0
    parties_keys = torch.arange(parties)
    masks = torch.zeros(parties, width, dtype=torch.bool)
    while True:
        empty = torch.stack([~masks[:, first:last].any(1) for first, last in spans]).any(0)
        if not empty.any():
            return masks
        bits = uniform(fold(parties_keys, salt(seed, "mask", attempt)), width) < 0.5  # noqa: PLR2004
        masks = torch.where(empty[:, None], bits, masks)
        attempt += 1


def alike(masks: Tensor, overlap: float, seed: int) -> Tensor:
    """Return masks (parties, d) that agree with given ones in exactly that share of coordinates.

    >>> given = torch.zeros(2, 8, dtype=torch.bool)
    >>> (alike(given, 0.75, 1) == given).sum(1).tolist()
    [6, 6]
    """
    parties, width = masks.shape
    keys = fold(torch.arange(parties), salt(seed, "alike")).to(masks.device)
    rank = uniform(keys, width).argsort(dim=1, stable=True).argsort(1)
    return masks ^ (rank < round((1 - overlap) * width))


def places(owner: Tensor, parties: int) -> tuple[Tensor, int]:
    """Return the place (n,) of each row within its party, and the size of the largest party.

    >>> places(torch.tensor([1, 0, 1]), 3)
    (tensor([0, 0, 1]), 2)
    """
    order = owner.argsort(stable=True)
    sizes = owner.bincount(minlength=parties)
    start = sizes.cumsum(0) - sizes
    place = torch.empty_like(owner)
    place[order] = torch.arange(len(owner), device=owner.device) - start[owner[order]]
    return place, int(sizes.max())


def shares(owner: Tensor, parties: int) -> Tensor:
    """Return positions (parties, w) of the rows of each party, where w is the largest party's size.

    Rows of smaller parties are repeated; a party without rows gets any rows.

    >>> shares(torch.tensor([1, 0, 1]), 3).tolist()
    [[1, 1], [0, 2], [1, 0]]
    """
    order = owner.argsort(stable=True)
    sizes = owner.bincount(minlength=parties)
    start = (sizes.cumsum(0) - sizes).where(sizes > 0, 0)
    held = sizes.where(sizes > 0, len(owner))
    slot = torch.arange(int(sizes.max()), device=owner.device)
    return order[start[:, None] + slot % held[:, None]]


def learn_to_decode(
    network: nn.Module,
    z: Tensor,
    x: Tensor,
    rows: Tensor,
    settings: Ars,
    *,
    generator: torch.Generator,
) -> None:
    """Train all decoders at once by mean squared error, each on its own rows as if trained alone.

    Args:
        network: (g, b, d) to (g, b, p), before a sigmoid.
        z: (n, d) standardised embeddings.
        x: (n, p) inputs in [0, 1].
        rows: (g, w) positions that each of g decoders trains on.
        settings: epochs, updates, batch and learning rate.
        generator: random generator for batches.
    """
    parties, held = rows.shape
    steps = max(settings.updates, settings.epochs * -(-held // settings.batch))
    descent = torch.optim.Adam(network.parameters(), lr=settings.lr, fused=True)
    done = 0
    while done < steps:
        keys = torch.rand(rows.shape, generator=generator, device=rows.device)
        shuffled = rows.gather(1, keys.argsort(dim=1, stable=True))
        for part in torch.split(shuffled, settings.batch, 1)[: steps - done]:
            loss = F.mse_loss(network(z[part]).sigmoid(), x[part]) * parties
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
            done += 1


def against_decoder(
    z: Tensor,
    x: Tensor,
    decode: Callable[[Tensor], Tensor],
    mask: Tensor,
    bound: float,
    *,
    iterations: int,
) -> Tensor:
    """Masked I-FGSM: return noise that moves decoded embeddings away from x.

    Signs are counted instead of adding up steps, so that rounding cannot exceed the bound.

    Args:
        z: (..., d) embeddings.
        x: (..., p) inputs.
        decode: (..., d) to (..., p), row by row.
        mask: (..., d) of zeros and ones.
        bound: largest shift of a coordinate.
        iterations: steps of length bound / iterations.

    >>> z, x = torch.tensor([0.5, -0.2, 0.1]), torch.tensor([0.0, 0.0, 0.1])
    >>> against_decoder(z, x, lambda z: z, torch.ones(3), 1.0, iterations=10).tolist()
    [1.0, -1.0, 0.0]
    """
    z, count = z.detach(), torch.zeros_like(z)
    for _ in range(iterations):
        moved = (z + bound * (count / iterations)).requires_grad_()
        with torch.enable_grad():
            error = (x - decode(moved)).square().sum()
        (gradient,) = torch.autograd.grad(error, moved)
        count = count + mask * gradient.sign()
    return bound * (count / iterations)


def against_classifier(
    z: Tensor, fixed: int, classify: Callable[[Tensor], Tensor], mask: Tensor, bound: float
) -> Tensor:
    """One masked step of FGSM: return noise that moves predictions towards a fixed value.

    Args:
        z: (..., d) embeddings.
        fixed: the fixed value.
        classify: (..., d) to logits (..., v), row by row.
        mask: (..., d) of zeros and ones.
        bound: how far each coordinate moves.
    """
    moved = z.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = -classify(moved).log_softmax(-1)[..., fixed].sum()
    (gradient,) = torch.autograd.grad(loss, moved)
    return -bound * mask * gradient.sign()


def combined(noises: Sequence[Tensor], weight: float) -> Tensor:
    """Return the mean of all noises; the others share that weight equally, the first has the rest.

    >>> combined([torch.tensor([1.0]), torch.tensor([-1.0]), torch.tensor([0.0])], 0.5).tolist()
    [0.25]
    """
    first, *others = noises
    if not others:
        return first
    return (1 - weight) * first + weight * torch.stack(others).mean(0)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer both defenses."""
    return [Ars(), ArsAttributes()]
