"""The grid: from a suite to planned trials, and from trials to results on disk."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import TypeAdapter, ValidationError

from privbench import protocol as protocols
from privbench.access import BLACK_BOX, Access
from privbench.contracts import Adversary, CellCard, Defense
from privbench.errors import BadInputError, PluginError, PrivbenchError, UnknownNameError
from privbench.execute import Cell, Laboratory, Trial
from privbench.games import GAMES
from privbench.provenance import provenance
from privbench.records import Record, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from privbench.contracts import Attack, Dataset, Target
    from privbench.data import Card
    from privbench.method import Method
    from privbench.plugins import Registry
    from privbench.suite import AdversarySpec, Ref, Suite


@dataclass(frozen=True)
class Planned:
    """A trial, and why it is skipped if it is."""

    trial: Trial
    skip: str | None = None


class Executor(Protocol):
    """Runs trials somewhere: here, in processes, on a cluster. Order of results is free."""

    def run(self, trials: Sequence[Trial], work: Callable[[Trial], Record]) -> Iterator[Record]:
        """Yield a record for every trial as it is done."""


class Serial:
    """One after the other, in this process."""

    def run(self, trials: Sequence[Trial], work: Callable[[Trial], Record]) -> Iterator[Record]:
        """Yield a record for every trial, in order."""
        return map(work, trials)


def plan(suite: Suite, registry: Registry, *, root: Path | None, device: str) -> list[Planned]:
    """All trials of the grid, each with the reason if it cannot be; nothing is loaded or trained.

    Raises:
        UnknownNameError: for a name or hyperparameter that there is not.
        BadInputError: for a value out of range, or if no cell of the grid can run.
    """
    resolve = _Resolver(suite, registry)
    cells = list(resolve.cells(root))
    resolve.check_settings()
    planned: list[Planned] = []
    seen: set[str] = set()
    for seed in suite.seed_list:
        for cell in cells:
            trial = Trial(cell, seed, device)
            if trial.digest not in seen:  # naive equals adaptive where nothing is defended
                seen.add(trial.digest)
                planned.append(Planned(trial, _asked(cell.record().title, why_not, cell)))
    if all(p.skip for p in planned):
        reasons = sorted({p.skip for p in planned if p.skip})
        raise BadInputError(f"nothing in this grid can run: {'; '.join(reasons)}")
    return planned


def _asked(what: str, call: Callable[..., Any], *given: Any) -> Any:
    """Ask a plugin while planning; what it raises ends the plan with a sentence.

    Raises:
        PluginError: naming what was asked.
    """
    try:
        return call(*given)
    except PrivbenchError:
        raise
    except Exception as error:
        raise PluginError(
            f"{what}: a plugin raised {type(error).__name__} while the grid was planned "
            f"({' '.join(str(error).split())}): mend it, or leave its method out"
        ) from error


def why_not(cell: Cell) -> str | None:
    """The reason to skip a cell, or None. Pure: reads card, protocol and hyperparameters."""
    return next(_reasons(cell), None)


def _reasons(cell: Cell) -> Iterator[str]:
    """Reasons to skip, the first that holds first; each may rely on those before."""
    if cell.attack.game not in GAMES:
        yield f"{cell.attack.name} plays '{cell.attack.game}'; games are {', '.join(GAMES)}"
    try:
        cell.protocol.sizes(cell.card)
    except BadInputError as error:
        yield str(error)
    yield from _unfit_pool(cell)
    card = CellCard(
        cell.card, cell.protocol, cell.target, cell.defenses, cell.adversary, cell.attack,
        cell.sensitive, cell.access,
    )  # fmt: skip
    yield from _unstackable(cell)
    shadow_target = cell.adversary.target
    for method in (cell.dataset, cell.target, *cell.defenses, cell.attack):
        if reason := method.unfit(card):
            yield reason
    if shadow_target and (reason := shadow_target.unfit(replace(card, target=shadow_target))):
        yield f"shadows by {shadow_target.name}: {reason}"
    if cell.attack.game == "attributes" and not cell.sensitive:
        yield f"{cell.attack.name} guesses attributes, and of {cell.card.name} none is named"
    if reason := _ungranted(cell):
        yield reason


def _unstackable(cell: Cell) -> Iterator[str]:
    """Why these defenses cannot stand in one stack."""
    training = {"data", "build", "phases", "weights"}
    trainers = [d.name for d in cell.defenses if d.stages() & training]
    if len(trainers) > 1:
        yield (
            f"{' and '.join(trainers)} each change training, and one would undo or misread what "
            "the other does: stack one of them"
        )
    claims = [d.name for d in cell.defenses if d.claims]
    learn = [d.name for d in cell.defenses if d.learns and not d.claims and d.stages()]
    if claims and learn:
        yield f"the epsilon of {claims[0]} would not cover what {learn[0]} learns of members"
    masks = [d.name for d in cell.defenses if d.masks_posteriors]
    if len(masks) > 1:
        yield (
            f"{' and '.join(masks)} each change posteriors, and one learns from them as the model "
            "gives them: stack one of them"
        )
    inner = next((d.name for d in reversed(cell.defenses) if d.feeds_classifier), None)
    for defense in cell.defenses:
        if defense.feeds_classifier and defense.name == inner:
            break
        changes = "release" in defense.stages() and not defense.masks_posteriors
        if inner and changes and not defense.feeds_classifier:
            yield (
                f"the classifier trains on embeddings as {inner} releases them, before "
                f"{defense.name} changes them: name them {inner}+{defense.name}"
            )


def _unfit_pool(cell: Cell) -> Iterator[str]:
    """Why the pool of another dataset does not serve this cell."""
    dataset, pool, attack = cell.adversary.dataset, cell.pool, cell.attack
    if dataset is None or pool is None:
        return
    if dataset.name == cell.dataset.name:
        yield f"a pool from {dataset.name} itself would hold the victim's members"
    alike = [(card.kind, card.shape, card.scale) for card in (pool, cell.card)]
    if alike[0] != alike[1] and not pool.kind == cell.card.kind == "image":
        yield f"{pool.name} {pool.shape} cannot take the shape of {cell.card.name}"
    sizes = cell.protocol.sizes(cell.card)
    shadow = cell.protocol.shadow or sizes["members"]
    wanted = 2 * shadow + 2 * sizes["reference"] + sizes["public"] + sizes["downstream"]
    if pool.rows < wanted:
        yield f"shadows on {pool.name} need {wanted} rows, and it has {pool.rows}"
    if attack.game != "membership":
        yield f"{attack.name} learns from rows of {cell.card.name}, not of {pool.name}"
    if attack.needs & (Access.LABELS | Access.POSTERIORS) and pool.classes != cell.card.classes:
        yield (
            f"{attack.name} compares classes, and {pool.name} has {pool.classes} where "
            f"{cell.card.name} has {cell.card.classes}"
        )
    censors = [d.name for d in cell.defenses if d.uses_attributes]
    if censors and cell.adversary.adaptive and attack.shadows.count:
        yield f"{censors[0]} needs attributes, which shadows on {pool.name} do not have"


def _ungranted(cell: Cell) -> str | None:
    """What the attack needs and does not get, and from whom."""
    attack, shadow_target = cell.attack, cell.adversary.target
    missing, never = attack.needs & ~cell.access, attack.needs & ~cell.target.grants
    if never:
        return f"{attack.name} needs {missing}, which target {cell.target.name} does not grant"
    if missing & ~BLACK_BOX and not cell.adversary.white_box:
        return f"{attack.name} needs {missing}, which only a white-box adversary has"
    if missing:
        culprit = f"target {cell.target.name} under {cell.defense}"
        return f"{attack.name} needs {missing}, which {culprit} does not grant"
    if shadow_target and attack.shadows.count and attack.needs & ~shadow_target.grants:
        lacking = attack.needs & ~shadow_target.grants
        return f"{attack.name} needs {lacking}, which shadows by {shadow_target.name} do not grant"
    return None


def execute(
    planned: Sequence[Planned],
    laboratory: Laboratory,
    folder: Path,
    *,
    executor: Executor | None = None,
    watch: Callable[[Record, bool], None] | None = None,
) -> list[Record]:
    """Run what is not there yet; write each result as it is done.

    Args:
        planned: from ``plan``.
        laboratory: that runs trials.
        folder: of results; ok ones found there are kept, and skipped ones while the reason
            stands; failed ones run again.
        executor: where trials run; in this process by default.
        watch: called with each record and whether it was there before.

    Returns:
        All records, in the order planned.
    """
    records: dict[str, Record] = {}
    todo: list[Trial] = []
    for item in planned:
        old = _kept(item, folder)
        if old is None and item.skip:
            old = _skipped(item, laboratory)
            old.write(folder)
        if old is None:
            todo.append(item.trial)
            continue
        records[old.trial] = old
        if watch:
            watch(old, True)
    for record in (executor or Serial()).run(todo, laboratory.run):
        record.write(folder)
        records[record.trial] = record
        if watch:
            watch(record, False)
    return [records[item.trial.digest] for item in planned]


def done(item: Planned, folder: Path) -> bool:
    """Whether a result that will be kept is there."""
    return _kept(item, folder) is not None


def _kept(item: Planned, folder: Path) -> Record | None:
    """The result on disk, unless it failed or was skipped for what is no reason any more."""
    path = folder / f"{item.trial.digest}.json"
    if not path.exists():
        return None
    try:
        record = read(path)
    except BadInputError:
        return None  # an older schema or a damaged file is run again and overwritten
    if record.trial != item.trial.digest:  # somebody renamed a file
        return None
    still = record.status == "ok" or (record.status, record.reason) == ("skipped", item.skip)
    return record if still else None


def _skipped(item: Planned, laboratory: Laboratory) -> Record:
    trial = item.trial
    return Record(
        trial=trial.digest, cell=trial.cell.record(), seed=trial.seed, status="skipped",
        reason=item.skip or "", phase=trial.cell.protocol.phase,
        provenance=provenance(laboratory.device),
    )  # fmt: skip


class _Resolver:
    """Turns names into methods, sized by the preset and the settings."""

    def __init__(self, suite: Suite, registry: Registry) -> None:
        self.suite = suite
        self.registry = registry
        self.used: set[str] = set()
        self.presets: set[str] = {"quick"}

    def cells(self, root: Path | None) -> Iterator[Cell]:
        suite = self.suite
        datasets: list[Dataset] = [self._method("dataset", ref) for ref in suite.datasets]
        targets: list[Target] = [self._method("target", ref) for ref in suite.targets]
        stacks = self._stacks()
        attacks: list[Attack] = [self._method("attack", ref) for ref in suite.attacks]
        adversaries = [self._adversary(spec) for spec in suite.adversaries]
        if suite.preset not in self.presets:
            raise UnknownNameError("preset", suite.preset, self.presets)
        for dataset in datasets:
            card: Card = _asked(f"dataset '{dataset.name}'", dataset.card, root)
            sensitive = self._sensitive(card)
            for named in suite.protocols:
                protocol = self._protocol(named, dataset)
                for target in targets:
                    for stack in stacks:
                        for attack in attacks:
                            mine = _distinct(adversaries, dataset, target, stack, attack)
                            for adversary in mine:
                                yield Cell(
                                    dataset, protocol, target, stack, adversary, attack,
                                    sensitive, suite.preset, card, _pool(adversary, root),
                                )  # fmt: skip

    def check_settings(self) -> None:
        """Settings for a method that the grid does not use are a mistake."""
        for name in self.suite.set:
            if name not in self.used:
                raise UnknownNameError("method in --set", name, self.used)

    def _method(self, kind: str, ref: Ref) -> Any:
        if isinstance(ref, str):
            name, given = ref, dict[str, Any]()
        elif len(ref) == 1:
            ((name, given),) = ref.items()
        else:
            raise BadInputError(f"{kind} {ref}: write a name, or one name with its hyperparameters")
        method: Method = self.registry.get(kind, name)
        self.used.add(name)
        self.presets |= set(method.presets)
        return method.preset(self.suite.preset).replace(**{**self.suite.set.get(name, {}), **given})

    def _stacks(self) -> list[tuple[Defense, ...]]:
        stacks: list[tuple[Defense, ...]] = []
        if self.suite.baseline or not self.suite.defenses:
            stacks.append((self._method("defense", "none"),))
        for ref in self.suite.defenses:
            names = [name.strip() for name in ref.split("+")] if isinstance(ref, str) else [ref]
            stack = tuple(self._method("defense", name) for name in names)
            if len({d.name for d in stack}) < len(stack):
                raise BadInputError(f"defense '{ref}' stacks a method on itself: name it once")
            if len(stack) > 1 and "none" in names:
                raise BadInputError(f"defense '{ref}' stacks 'none', which does nothing: drop it")
            if stack not in stacks:
                stacks.append(stack)
        return stacks

    def _adversary(self, spec: str | AdversarySpec) -> Adversary:
        if isinstance(spec, str):
            return Adversary(adaptive=spec != "naive", white_box=spec == "white-box")
        target = self._method("target", spec.target) if spec.target is not None else None
        dataset = self._method("dataset", spec.dataset) if spec.dataset is not None else None
        return Adversary(spec.adaptive, target, dataset, spec.white_box)

    def _protocol(self, named: str | dict[str, Any], dataset: Dataset) -> protocols.Protocol:
        if isinstance(named, str):
            return protocols.protocol_named(named, dataset.protocols)
        where = f"protocol '{named.get('name', 'custom')}'"
        known = {field.name for field in fields(protocols.Protocol)}
        for key in named:
            if key not in known:
                raise UnknownNameError(f"part of {where}", key, known)
        try:
            made = TypeAdapter(protocols.Protocol).validate_python(named)
        except ValidationError as error:
            wrong = {str(e["loc"][0]): e["msg"].lower() for e in error.errors()}
            listed = "; ".join(f"{key}: {message}" for key, message in wrong.items())
            raise BadInputError(f"{where}: {listed}") from None
        negative = [f"{key} {part.size}" for key, part in made.parts().items() if part.size < 0]
        if negative:
            raise BadInputError(f"{where}: {', '.join(negative)}: no part has less than 0 rows")
        return made

    def _sensitive(self, card: Card) -> tuple[str, ...]:
        if self.suite.sensitive is None:
            return card.sensitive
        for name in self.suite.sensitive:
            if name not in card.attributes:
                raise UnknownNameError(f"sensitive attribute of {card.name}", name, card.attributes)
        return tuple(dict.fromkeys(self.suite.sensitive))


def _pool(adversary: Adversary, root: Path | None) -> Card | None:
    """Card of the dataset that the adversary's pool comes from, where it is another."""
    dataset = adversary.dataset
    return _asked(f"dataset '{dataset.name}'", dataset.card, root) if dataset else None


def _distinct(
    adversaries: Iterable[Adversary],
    dataset: Dataset,
    target: Target,
    stack: tuple[Defense, ...],
    attack: Attack,
) -> Iterator[Adversary]:
    """Adversaries that differ in this cell: naive equals adaptive where nothing is defended.

    Without shadows their recipe does not matter, and only a release stands between the adversary's
    own rows and what it sees. Gradients and weights matter to attacks that use them; naming the
    victim's own recipe and dataset says no more than leaving them out.
    """
    undefended = all(d.stages() == frozenset() for d in stack)
    releases = any("release" in d.stages() for d in stack)
    shadowless = attack.shadows.count == 0
    seen = set()
    for adversary in adversaries:
        kept = replace(
            adversary,
            adaptive=adversary.adaptive or undefended or (shadowless and not releases),
            target=None if shadowless or adversary.target == target else adversary.target,
            dataset=None if adversary.dataset == dataset else adversary.dataset,
            white_box=adversary.white_box and bool((attack.needs | attack.wants) & ~BLACK_BOX),
        )
        if kept not in seen:
            seen.add(kept)
            yield kept
