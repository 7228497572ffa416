"""Whether the phases of a target train on the rows that the protocol says.

A board names the phases that saw the members after the protocol. If a target trained on other
rows, its numbers would stand under a wrong heading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.ground.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.measure.data.protocol import Protocol
    from privbench.measure.methods.target import Target
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase


def check_obeyed(target: Target, model: Model, phases: Sequence[Phase], protocol: Protocol) -> None:
    """Compare the phases of a target with the protocol; without phases, it is trained already.

    Raises:
        PluginError: saying which phase trains on what, and what the protocol says.
    """
    if problem := disobedience(model, phases, protocol):
        raise PluginError(
            f"target {target.name} under protocol '{protocol.name}': {problem} "
            "(ctx.protocol says which rows to take)"
        )


def disobedience(model: Model, phases: Sequence[Phase], protocol: Protocol) -> str | None:
    """Return how the phases differ from the protocol, or None."""
    shown = (*protocol.encoder, protocol.classifier)
    for phase in phases:
        if _rows(phase) not in shown:
            return (
                f"phase '{phase.name}' trains on rows '{_rows(phase)}', which the protocol shows "
                f"to no phase: train on {' or '.join(dict.fromkeys(shown))}"
            )
    encoders = [_rows(phase) for phase in phases if phase.trains("encoder")]
    last = protocol.encoder[-1]
    if encoders and (encoders[-1] != last or not set(encoders) <= set(protocol.encoder)):
        return (
            f"its phases train the encoder on {', '.join(encoders)}, but the protocol shows it "
            f"{', '.join(protocol.encoder)}: train it on these, in this order"
        )
    if not phases or "classifier" not in model:
        return None
    classifiers = [_rows(phase) for phase in phases if phase.trains("classifier")]
    if not classifiers:
        return "no phase trains the classifier: add one, or build no part 'classifier'"
    if classifiers[-1] != protocol.classifier:
        return (
            f"its phases train the classifier on {', '.join(classifiers)}, but the protocol shows "
            f"it {protocol.classifier} at last: add a phase of the classifier on these rows"
        )
    return None


def _rows(phase: Phase) -> str:
    """Return the part of the world; rows chosen by a mask are members."""
    return phase.rows if isinstance(phase.rows, str) else "members"
