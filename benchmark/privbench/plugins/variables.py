"""The class variables of plugins: what each says, which values it may have, and its default.

``privbench doc NAME`` shows those of one method. ``docs/plugins/class-variables.md`` lists all of
them: after a change, write it by ``python -m privbench.plugins.variables``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Attack
from privbench.measure.methods.dataset import Dataset
from privbench.measure.methods.defense import Defense, Release
from privbench.measure.methods.method import Method
from privbench.measure.methods.target import Target
from privbench.plugins.facts import STAGES
from privbench.plugins.requirements import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Heading -> the class whose variables stand under it.
OWNERS: Mapping[str, type] = {
    "every method": Method,
    "attack": Attack,
    "defense": Defense,
    "release": Release,
    "target": Target,
    "dataset": Dataset,
}


@dataclass(frozen=True)
class Variable:
    """One class variable, or property, that a plugin may set.

    Attributes:
        owner: of ``OWNERS``.
        name: of the variable.
        allowed: its values, in words.
        meaning: one sentence without an end.
    """

    owner: str
    name: str
    allowed: str
    meaning: str

    @property
    def default(self) -> str:
        """Its default; "needed" if a class must set it."""
        cls = OWNERS[self.owner]
        if not hasattr(cls, self.name):
            return "needed"
        value = inspect.getattr_static(cls, self.name)
        if isinstance(value, property):
            return _DEFAULTS[self.owner, self.name]
        if isinstance(value, Access):
            return _access(value)
        return '""' if value == "" else str(value)


def _access(value: Access) -> str:
    return " | ".join(f"Access.{one.name}" for one in value) or "Access.NONE"


_TEXT, _FLAG = "text", "True, False"
_ACCESS = "Access." + ", ".join(one.name or "" for one in Access) + ", joined by |"
_NAMES = ", ".join(REQUIREMENTS)
_GAMES = "a tuple of membership, attributes, reconstruction, property, or games of plugins"
_DEFAULTS = {
    ("every method", "requires"): "()",
    ("attack", "shadows"): "Shadows(0)",
    ("attack", "decides_at"): '""',
    ("attack", "max_rows"): "None",
    ("defense", "release_class"): "None",
}

VARIABLES = (
    Variable("every method", "name", "kebab-case text", "name on the command line and on boards"),
    Variable("every method", "version", "1, 2, …", "increased when numbers change"),
    Variable("every method", "paper", "Paper(title, authors, venue, where), None", "the source"),
    Variable("every method", "deviations", _TEXT, "where and why the code differs from the paper"),
    Variable("every method", "presets", "{preset: {field: value}}",
             "hyperparameters of --preset; `paper` has the published sizes"),
    Variable("every method", "requires", f"a tuple of {_NAMES}",
             "cells without these are skipped with a reason"),
    Variable("attack", "game", "name of a game",
             "what it answers; the base class sets it: MembershipAttack, AttributeAttack, "
             "ReconstructionAttack, PropertyAttack"),
    Variable("attack", "needs", _ACCESS, "what it reads; cells that do not grant it are skipped"),
    Variable("attack", "wants", _ACCESS, "what it reads only where it is granted"),
    Variable("attack", "shadows", "Shadows(count, origin), origin offline or online",
             "the models of the adversary that the core trains"),
    Variable("attack", "decides_at", 'text, such as "FPR 0.01"',
             "what decisions aim at, if not at the best balanced accuracy"),
    Variable("attack", "max_rows", "a number, None", "the largest number of rows that it answers"),
    Variable("attack", "misses_planted", _TEXT, "why it cannot find the planted leaks of controls"),
    Variable("defense", "protects", _GAMES, "what it claims to protect; boards mark other games"),
    Variable("defense", "judged_by", "a tuple of Judge(attack, why, fields)",
             "attacks that it must meet before a board ranks it, beside the strongest ones of each "
             "game that it protects"),
    Variable("defense", "uses_attributes", _FLAG, "whether it reads sensitive attributes"),
    Variable("defense", "uses_training_data", _FLAG,
             "whether it reads the training rows beyond training itself; with a claimed epsilon "
             "only defenses that do not are allowed beside it"),
    Variable("defense", "claims_epsilon", _FLAG, "whether it calls ctx.claim"),
    Variable("defense", "control", _FLAG, "whether it plants a leak that attacks must find"),
    Variable("defense", "strength", 'Strength(field, "up", "down" or "listed", sweep), None',
             "the hyperparameter that trades utility for protection"),
    Variable("defense", "family", _TEXT,
             "mechanisms of one family share seeds, and so what ctx.once keeps"),
    Variable("defense", "release_class", "a subclass of Release, None",
             "the class of what release() returns"),
    Variable("release", "of", '"embedding", "posterior"', "the output that it changes"),
    Variable("release", "feeds_classifier", _FLAG,
             "whether the classifier trains on the embeddings that it releases"),
    Variable("release", "keeps_labels", _FLAG, "whether the most likely class never changes"),
    Variable("release", "fresh", _FLAG, "whether every query draws new noise"),
    Variable("release", "uniforms", "0, 1, …", "random numbers of each row that forward() gets"),
    Variable("target", "grants", _ACCESS, "what its victims can answer at all"),
    Variable("target", "contrastive", _FLAG,
             "whether the encoder's loss is not a sum over rows"),
    Variable("target", "labelled_encoder", _FLAG, "whether the encoder's loss reads labels"),
    Variable("target", "trains_encoder", _FLAG, "whether a phase trains the encoder"),
    Variable("dataset", "protocols", '{name: Protocol(…)}, with "default"',
             "how it may be split"),
    Variable("dataset", "reads_given_files", _FLAG, "whether its fields name files of the user"),
)  # fmt: skip


def of(method: Any) -> Iterator[tuple[str, str]]:
    """Yield name and value of each class variable that a method sets to something of its own."""
    for variable in VARIABLES:
        cls = OWNERS[variable.owner]
        if not isinstance(method, cls) or variable.name in _SHOWN_APART:
            continue
        value = getattr(method, variable.name, None)
        if not hasattr(cls, variable.name) or value != getattr(cls, variable.name):
            told = _access(value) if isinstance(value, Access) else value
            if isinstance(value, tuple):
                told = ", ".join(map(str, value)) or "none"
            if isinstance(value, type):
                told = value.__name__
            if variable.default != str(told):
                yield variable.name, str(told)


#: What ``about`` says in words.
_SHOWN_APART = {
    "name", "version", "paper", "deviations", "presets", "protocols", "requires", "game", "needs",
    "wants", "shadows", "decides_at", "protects", "judged_by", "strength", "grants",
}  # fmt: skip

_HEAD = """\
# Class variables, outputs, parts and rows

Written by `python -m privbench.plugins.variables`; do not edit. A variable whose value depends on
hyperparameters may be a property instead. A name near one of these that means nothing
(`protect`, `on_phase`) does not load, and the message says which was meant.
"""

_TAIL = f"""
## Requirements

`requires` names what a cell must have. `privbench run` skips other cells and says why.

| Name | The cell has |
|---|---|
| `classes` | at least two classes |
| `images` | images, not columns |
| `attributes` | a sensitive attribute, and the dataset has all that the cell names |
| `one-attribute` | exactly one sensitive attribute |
| `reference-rows` | rows held out by the defender |
| `member-labels` | a phase whose loss reads members' labels |
| `pool` | rows of the adversary's own (offline shadows imply it) |
| `trainable` | models that the adversary can train (shadows imply it) |
| `trained-encoder` | a phase that trains the encoder (a public encoder is frozen) |

Some follow from other facts, so do not declare them: `classes` for an attack that needs labels or
posteriors and for a release of posteriors; `attributes` for an attack of the attribute game and for
a defense with `uses_attributes`.

## Stages of a defense

`stages()` returns a set of {", ".join(f"`{stage}`" for stage in STAGES)}: by default those whose
methods the class overrides (`on_data`, `relabel`, `on_build`, `on_phases`, `on_trained`,
`release`).

## Parts of a model

| Part | Reads and returns | Needed |
|---|---|---|
| `encoder` | (n, *shape) float → (n, d) | always |
| `classifier` | (n, d) → (n, k) logits | where the dataset has classes |
| `decoder` | (n, d) → (n, *shape) | where the victim reconstructs |
| any other, such as `head` | what your phases do with it | for training only |

Every encoder has an attribute `width`, the d of its embeddings (n, d). Those of
`backbone(name, shape)` have it; set it on an encoder of your own (`encoder.width = 64`). It is
needed to build a classifier, `nn.Linear(encoder.width, card.classes)`, and defenses on embeddings
read it. Everything that training changes must be in a part.

## Outputs of a forward pass

`Phase.forward` returns `Outputs(name=tensor or function)`. Names are free; these have a meaning for
methods that edit phases:

| Name | Shape | Read by |
|---|---|---|
| `h` | (n, d) embeddings | defenses on embeddings (`talos`, `olympus`, `mixup-mmd`) |
| `logits` | (n, k) | losses on classes (`label-smoothing`, `relaxloss`, `hamp`, …) |
| `z` | (views * n, p) projections | the target's own loss |

## Rows of a phase

`Phase.rows` is the name of a part that the protocol shows to that phase: `members`, `public` or
`downstream` (`ctx.protocol.encoder`, a tuple in order, and `ctx.protocol.classifier`). A defense
may also give a mask (n_members,) of bool, which chooses among the members. `reference` rows are
for monitors and for what a defense learns, not for phases of a target.
"""


def page() -> str:
    """Return ``docs/plugins/class-variables.md``."""
    lines = [_HEAD]
    for owner in OWNERS:
        lines += [f"## {owner.capitalize()}", "", "| Variable | Values | Default | Meaning |",
                  "|---|---|---|---|"]  # fmt: skip
        for one in VARIABLES:
            if one.owner == owner:
                cells = [f"`{one.name}`", one.allowed, f"`{one.default}`", one.meaning]
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n" + _TAIL


if __name__ == "__main__":
    from pathlib import Path

    there = Path("docs/plugins/class-variables.md")
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text(page(), encoding="utf-8")
