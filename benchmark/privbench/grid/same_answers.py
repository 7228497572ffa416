"""A victim answers the same rows alike: now, again, loaded again, and in a fresh process.

A method may keep state outside the tensors that are stored: a list of the rows it saw, a counter of
calls, a cache, an attribute that is lost on loading. Its answers then depend on what ran before in
the process. So some rows are asked repeatedly, together and in parts, and the answers compared with
those of a process that does nothing but load the victim. Noise that is new in every query counts as
no difference: it depends on the number of queries, which each session counts from 0.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from privbench.grid import keys
from privbench.grid.outcome import reason
from privbench.grid.server import as_child, begin, start_server
from privbench.ground.errors import PluginError
from privbench.ground.store.store import Store
from privbench.measure.training.process_state import known, threads
from privbench.plugins.plugin_file import loaded_files, offer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

    from torch import Tensor

    from privbench.measure.data.split import Split
    from privbench.measure.victims.build import Builder
    from privbench.measure.victims.served import Victim
    from privbench.measure.victims.spec import VictimSpec
    from privbench.plugins.plugin_file import PluginFile

#: Rows that are asked: half of them members of the victim, half test rows.
ROWS = 64
#: What fresh processes find imported, if this process has no workers: enough to load a victim.
_PRELOADED = (
    __name__, "privbench.grid.read_code", "safetensors.torch", "sklearn.linear_model",
)  # fmt: skip
#: Relative difference, and that of the largest number, that is rounding.
_RELATIVE, _OF_LARGEST = 1e-4, 1e-5
#: Of the global generators in a fresh process: no answer depends on them.
_OTHER_SEED = 64
_ADVICE = (
    "an answer may depend on its row and on what is stored only: keep what is learned in "
    "parameters and buffers (no list, counter, cache or attribute), and take noise from `u`, of "
    "which a release gets `uniforms` columns"
)


class SameAnswers:
    """Compares what victims answer. A difference is kept in the store: it fails later runs, too.

    Attributes:
        builder: builds victims.
        seconds: spent so far.
    """

    def __init__(self, builder: Builder) -> None:
        """Nothing was compared in this process yet."""
        self.builder = builder
        self.seconds = 0.0
        self._rules = [sys.modules[__name__]]
        self._compared: set[str] = set()

    def prepare(self) -> None:
        """Let the server of fresh processes import torch while this process does something else."""
        start_server(self.builder.numerics.threads, _PRELOADED)

    def check(self, spec: VictimSpec, victim: Victim, parts: Split, who: str) -> str:
        """Ask a victim, and compare with what it answers elsewhere.

        The first time in a process it is asked twice, and in parts. The first time of all, it is
        also loaded again, here and in a fresh process, whose answers are kept.

        Args:
            spec: of the victim.
            victim: as this process holds it.
            parts: the split; it has the rows.
            who: the methods that it is made of, in words.

        Returns:
            Why no fresh process could be asked; "" if one was.

        Raises:
            PluginError: if answers differ, or did before.
        """
        begun = time.perf_counter()
        try:
            x = _rows(spec, parts)
            return self._check(spec, victim, x, who) if len(x) else ""
        finally:
            self.seconds += time.perf_counter() - begun

    def _check(self, spec: VictimSpec, victim: Victim, x: Tensor, who: str) -> str:
        store, device = self.builder.store, self.builder.device.type
        found = keys.of_difference(victim.key, self._rules)
        if (before := store.facts(found)) is not None:
            raise PluginError(before["difference"])
        here = _answers(victim, x)

        def same(answers: Mapping[str, Tensor], when: str) -> None:
            if told := _difference(here, answers):
                told = (
                    f"{who} answers the same {len(x)} rows differently {when} ({told}): {_ADVICE}"
                )
                kept = store.keep(found, {}, {"difference": told})  # or what another process saw
                raise PluginError(kept.facts["difference"])

        if first := victim.key not in self._compared:
            same(_answers(victim, x), "when asked twice in a row")
        kept = keys.of_fresh_answers(
            victim.key, x, self._rules, device=device, threads=self.builder.numerics.threads
        )
        if kept not in store:
            again = _answers(self.builder.victim(spec), x)
            same(again, "once its victim is loaded from the store again")
        fresh = store.make(kept, partial(self._afresh, spec, victim.key, x, here, who))
        unasked = str(fresh.facts["unasked"])
        elsewhere = "another process" if unasked else "a fresh process that only loads its victim"
        same(fresh.tensors, f"in {elsewhere}" if first else "after other queries")
        if first:
            same(_in_parts(victim, x), "when asked in parts")
        self._compared.add(victim.key)
        return unasked

    def _afresh(
        self, spec: VictimSpec, key: str, x: Tensor, here: Mapping[str, Tensor], who: str
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return what a fresh process answers; the answers of this one if none can be asked."""
        from safetensors.torch import load

        try:
            work = pickle.dumps((Store.code, self.builder, spec, key, x))
        except Exception as error:  # noqa: BLE001 - whatever pickling a plugin's class raises
            return here, {"unasked": reason(error)}
        context = start_server(self.builder.numerics.threads, _PRELOADED)
        ours, theirs = context.Pipe()
        life_ours, life_theirs = context.Pipe()
        with as_child(self.builder.numerics.threads):
            process = context.Process(
                target=answer_afresh, args=(theirs, life_theirs, loaded_files())
            )
            process.start()
        theirs.close()
        life_theirs.close()
        try:
            ours.send_bytes(work)
            told = json.loads(ours.recv_bytes())
            answers = load(ours.recv_bytes())
        except (EOFError, OSError):
            process.join(5)
            raise PluginError(
                f"a fresh process that loads the victim of {who} ended before it answered (status "
                f"{process.exitcode}): run again with more memory, or repair that plugin"
            ) from None
        finally:
            process.kill()
            process.join()
            ours.close()
            life_ours.close()
        if told["error"]:
            raise PluginError(
                f"a fresh process cannot load the victim of {who} from the store: {told['error']}"
            )
        return (here if told["unasked"] else answers), {"unasked": told["unasked"]}


def answer_afresh(pipe: Connection, lifeline: Connection, files: Sequence[PluginFile]) -> None:
    """Be the fresh process: load a victim, and send back what it answers.

    Args:
        pipe: the work comes from it, and the answers go to it, as data.
        lifeline: ends with the process that asks.
        files: plugin files.
    """
    from safetensors.torch import save

    begin(lifeline, partial(os._exit, 1))
    told, answers = {"unasked": "", "error": ""}, {}
    try:
        offer(files)
        Store.code, builder, spec, key, x = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the parent
    except Exception as error:  # noqa: BLE001 - a class of a notebook, for example
        told["unasked"] = reason(error)
    else:
        try:
            with threads(builder.numerics.threads), known(_OTHER_SEED):
                answers = _loaded(builder, spec, key, x)
        except BaseException as error:  # noqa: BLE001 - failure is data
            told["error"] = reason(error)
    pipe.send_bytes(json.dumps(told).encode())
    pipe.send_bytes(save({name: t.cpu().contiguous() for name, t in answers.items()}))


def _loaded(builder: Builder, spec: VictimSpec, key: str, x: Tensor) -> dict[str, Tensor]:
    keys = builder.keys(spec)
    if keys.key != key:
        raise PluginError(
            "there it has another key, so what a hook returns depends on what ran before; or the "
            "code changed during the run"
        )
    if missing := [stage for stage in keys.stages if stage not in builder.store]:
        raise PluginError(f"the store has no {missing[0].kind} {missing[0].digest}")
    return _answers(builder.victim(spec), x)


def _rows(spec: VictimSpec, parts: Split) -> Tensor:
    """The rows that are asked: the first of each part in the order of their keys."""
    test, members = parts.test, spec.world.members
    some = min(ROWS // 2, len(test))
    first = [
        rows.select(torch.argsort(rows.keys, stable=True)[:n]).x
        for rows, n in ((test, some), (members, ROWS - some))
    ]
    return torch.cat(first)


def _answers(victim: Victim, x: Tensor) -> dict[str, Tensor]:
    """What a victim answers in a session of its own."""
    asked = victim.session("same answers")
    made = {"embeddings": asked.embeddings(x)}
    if "classifier" in victim.model:
        made["posteriors"] = asked.log_posteriors(x).exp()
    return made


def _in_parts(victim: Victim, x: Tensor) -> dict[str, Tensor]:
    """What it answers about a third of the rows, and about the others, in sessions of their own."""
    third = len(x) // 3
    made = [_answers(victim, part) for part in (x[:third], x[third:]) if len(part)]
    return {name: torch.cat([part[name] for part in made]) for name in made[0]}


def _difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str:
    """Say which answers differ by more than rounding, and by how much; "" for none.

    >>> one, other = torch.zeros(4, 2), torch.tensor([[0, 0.5], [0, 0], [1, 1], [0, 0]])
    >>> _difference({"embeddings": one}, {"embeddings": other})
    'embeddings of 2 rows, by up to 1'
    """
    for name, answer in ours.items():
        other = theirs[name].to(answer)
        if other.shape != answer.shape:
            return f"{name} have another shape"
        largest = float(answer.nan_to_num(0, 0, 0).abs().max())
        far = ~torch.isclose(answer, other, _RELATIVE, _OF_LARGEST * largest, equal_nan=True)
        if count := int(far.flatten(1).any(1).sum()):
            most = float((answer - other).abs()[far].max())
            return f"{name} of {count} rows, by up to {most:.3g}"
    return ""
