"""A release must answer from its stored state as it answered when it had just learned it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from privbench.ground.errors import PluginError
from privbench.measure.data.examples import as_float
from privbench.measure.training.process_state import known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from privbench.measure.data.examples import Examples
    from privbench.measure.training.model import Model
    from privbench.measure.victims.stages import LearnedRelease

#: Rows on which both are asked.
ROWS = 16


def check_reload(
    learned: Any, one: LearnedRelease, state: Mapping[str, Tensor], model: Model, rows: Examples
) -> None:
    """Load a state into the release as it was built, and compare it with the one that learned.

    Their answers are compared only if anything else than the state differs: some take long.

    Args:
        learned: the release that learned.
        one: the same before it learned.
        state: what is stored of it.
        model: as the release meets it.
        rows: of the world.

    Raises:
        PluginError: if the state cannot be loaded, or the answers differ.
    """
    name, loaded = one.defense.name, copy.deepcopy(one.release)
    advice = "keep all that fit() learns in parameters or buffers that __init__ makes"
    try:
        loaded.load_state_dict(state)
    except RuntimeError as error:
        told = " ".join(str(error).split())
        raise PluginError(
            f"the state of the release of {name} cannot be loaded into a newly built one "
            f"({told}): {advice}, in their final shape"
        ) from error
    if _alike(learned, loaded):
        return
    device = next(model.parameters()).device
    x = as_float(rows.select(slice(0, ROWS)).x.to(device), rows.scale)
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(len(x), loaded.uniforms, generator=generator).to(device)
    answers = []
    for release in (learned, loaded.eval()):
        with known(0), torch.no_grad():
            value = model.encode(x).float()
            if release.of == "posterior":
                value = model.logits(value).double().softmax(-1)
            answers.append(release(x.clone(), value, u.clone()))
    if not torch.equal(*answers):
        raise PluginError(
            f"the release of {name} answers otherwise once its stored state is loaded into a newly "
            f"built one: {advice}"
        )


def _alike(learned: nn.Module, loaded: nn.Module) -> bool:
    """Whether two modules agree in all tensors and attributes; False also if that is unknown."""
    ours, theirs = list(learned.named_modules()), list(loaded.named_modules())
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return False
    tensors = [dict([*m.named_parameters(), *m.named_buffers()]) for m in (learned, loaded)]
    attributes = [
        {(at, n): value for at, m in modules for n, value in vars(m).items() if n not in _OF_TORCH}
        for modules in (ours, theirs)
    ]
    try:
        return (
            tensors[0].keys() == tensors[1].keys()
            and all(torch.equal(tensor, tensors[1][n]) for n, tensor in tensors[0].items())
            and bool(attributes[0] == attributes[1])
        )
    except Exception:  # noqa: BLE001 - values that cannot be compared
        return False


#: What torch keeps in every module: the tensors, compared by name, and the mode.
_OF_TORCH = {"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
