"""What an audit says: its words, its gate, and the documents in its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privbench.api.own_model import formats
from privbench.api.own_model import gate as gates
from privbench.api.own_model.defended import UNDEFENDED, compared, lines
from privbench.api.own_model.document import as_dated, document
from privbench.api.own_model.printed import PDF, printed
from privbench.api.own_model.sheet import evidence, sheet
from privbench.api.own_model.shift import separating, shift, shift_of_y
from privbench.api.own_model.subgroups import answers, subgroups
from privbench.api.own_model.sums import SHEET, WORDS, seal
from privbench.api.own_model.words import (
    Audit,
    exposed,
    no_verdict,
    reached,
    risk,
    strongest,
    summary,
)
from privbench.ground.errors import BadInputError
from privbench.ground.store.files import write
from privbench.ground.text import shown
from privbench.results.files import AUDIT
from privbench.results.sample_files import read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from privbench.api.own_model.claim import Claim
    from privbench.api.own_model.errors import Errors
    from privbench.api.own_model.rows import Rows
    from privbench.api.own_model.shadow_fit import ShadowFit
    from privbench.api.own_model.shift import Shift
    from privbench.results.record import Record


#: Why a gate says nothing about two sets that differ, whatever attacks find.
_DIFFER = "the two sets differ in more than membership, which can feign a leak and can hide one"


def documented(
    made: Audit, out: Path, fail_above: Mapping[str, float], rows: Rows, keys: list[int], *,
    deaf: str, junit: str | Path | None, sarif: str | Path | None, chromium: str,
    parameters: int | None,
) -> Audit:  # fmt: skip
    """Give an audit its gate, write its documents, and seal it.

    ``keys`` and ``deaf`` are as for ``told``.
    """
    best = strongest(made)
    doubtful = best.doubtful if best else {}
    if fail_above:
        columns = read_samples(best.record, [out]) if best and made.subgroups else None
        made.gate = gates.judged(
            made, lambda one: read_samples(one, [out]), fail_above,
            doubtful=doubtful, left_out=made.left_out,
            no_verdict=made.no_verdict or (_DIFFER if made.shift.found else ""),
            unsure=deaf, groups={} if columns is None else answers(columns, keys, rows),
        )  # fmt: skip
    found = as_dated(document(made, doubtful, parameters), out / AUDIT)
    write(out / AUDIT, found.model_dump_json(indent=1) + "\n", private=True)
    if junit is not None:
        write(Path(junit), formats.junit(found), private=True)
    if sarif is not None:
        write(Path(sarif), formats.sarif(found, out / AUDIT), private=True)
    shows = evidence(made, rows, best, out)
    write(out / SHEET, sheet(found, shows), private=True)
    made.digest = seal(out)
    (out / PDF).unlink(missing_ok=True)  # of an earlier audit
    if chromium:
        try:
            printed(out / SHEET, out / PDF, chromium)
        except (BadInputError, OSError) as error:  # the verdict counts for more than its print
            made.not_printed = str(error)
    return made


def told(
    records: Sequence[Record], rows: Rows, keys: list[int], left_out: Mapping[str, str], out: Path,
    *,
    judges: Mapping[str, Mapping[str, str]], claim: Claim | None, doubt: str, deaf: str,
    errors: Errors | None, fit: ShadowFit | None, notes: Sequence[str],
) -> Audit:  # fmt: skip
    """Return the results with what they say.

    Args:
        records: results of all attacks, with and without defenses.
        rows: of the audit.
        keys: of all rows, members first.
        left_out: attack -> why it was not planned.
        out: folder of the audit.
        judges: defense -> judge -> why it was not planned.
        claim: to be tested.
        doubt: why the rows cannot be those that the model knows.
        deaf: why shadows say nothing about it.
        errors: of a regression.
        fit: how often shadows by the user's code are right; None without any.
        notes: more lines of words; "" is none.
    """
    made = Audit(one for one in records if one.cell.defense == UNDEFENDED)
    made.folders, made.errors, made.shadow_fit = (out.absolute(),), errors, fit
    failed = [one for one in made if one.status == "failed"]
    if failed and not any(one.status == "ok" for one in made):
        raise BadInputError(f"every attack failed: {failed[0].reason}")
    skipped = {one.cell.attack.name: one.reason for one in made if one.status == "skipped"}
    made.left_out = {**left_out, **skipped}
    made.shift = _compared(rows)
    best = strongest(made)
    columns = read_samples(best.record, [out]) if best else None
    first = groups = None
    if best is not None and columns is not None:
        groups = subgroups(best.record.cell.attack.label, columns, keys, rows)
        first = reached(columns)
        made.exposed = exposed(columns, _places(rows, keys))
    made.no_verdict = no_verdict(best, made.shift, doubt, groups)
    found = best is not None and best.counts and risk(best, groups).state != "none"
    if deaf and not (found or doubt or made.no_verdict):
        made.no_verdict = deaf
    elif deaf:
        notes = [f"WARNING: {deaf}.", *notes]
    made.subgroups = None if made.no_verdict else groups
    words = summary(made, made.shift, made.exposed, made.left_out, first=first,
                   no_verdict=made.no_verdict, groups=made.subgroups, errors=errors,
                   copied=rows.copied)  # fmt: skip
    defended = (one for one in records if one.cell.defense != UNDEFENDED)
    made.defended = compared(made, [*defended], judges, no_verdict=made.no_verdict)
    words = "\n".join([words, *lines(made.defended)])
    if claim is not None:
        made.claim = claim.tested(_of_candidates(made, claim, keys, out))
        words = f"{made.claim}\n{words}"
    if made.shift.found_in_x:
        told = separating(rows.columns(), rows.of("members"), rows.of("nonmembers"))
        notes = [told, *notes]
    if made.shift.found_in_y:
        notes = [_differing_y(rows), *notes]
    told_fit = "" if fit is None else str(fit)
    made.summary = "\n".join(filter(None, (words, told_fit, *notes)))
    write(out / WORDS, f"{made.summary}\n", private=True)
    return made


def _compared(rows: Rows) -> Shift:
    """Return whether members and nonmembers differ, in x or in y."""
    found = shift(rows.described("members"), rows.described("nonmembers"))
    inside, outside = rows.truth("members"), rows.truth("nonmembers")
    if inside is None or outside is None:
        return found
    return replace(found, p_value_of_y=shift_of_y(inside, outside))


def _differing_y(rows: Rows) -> str:
    """Return how y of the two sets differs most, in a sentence."""
    inside, outside = rows.truth("members"), rows.truth("nonmembers")
    assert inside is not None  # noqa: S101 - they were compared
    assert outside is not None  # noqa: S101
    if rows.targets is not None:
        return (f"The median of y is {np.median(inside):.4g} among the members and "
                f"{np.median(outside):.4g} among the nonmembers.")  # fmt: skip
    shares = [np.bincount(y, minlength=rows.classes) / len(y) for y in (inside, outside)]
    most = int(np.abs(shares[0] - shares[1]).argmax())
    assert rows.y is not None  # noqa: S101
    named = most if rows.labels is None else rows.labels[(rows.y == most).argmax()]
    return (f"Class {shown(str(named))} is {shares[0][most]:.1%} of the members and "
            f"{shares[1][most]:.1%} of the nonmembers: draw nonmembers with the members' shares."
            )  # fmt: skip


def _places(rows: Rows, keys: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return key and class of each member -> its first place in the members' file."""
    at, made = rows.of("members"), dict[tuple[int, int], int]()
    y = [-1] * len(keys) if rows.y is None else rows.y.tolist()
    for key, c, place in zip(keys[at], y[at], rows.places("members"), strict=True):
        made.setdefault((key, c), place)
    return made


def _of_candidates(
    made: Audit, claim: Claim, keys: Sequence[int], out: Path
) -> dict[str, NDArray[np.float64]]:
    """Return the scores of each attack that scored all candidates.

    Args:
        made: the results.
        claim: with m candidates.
        keys: of all rows, members first.
        out: folder of the audit.

    Returns:
        Attack -> (m,).
    """
    wanted = [keys[place] for place in claim.places]
    found = {}
    for one in made:
        columns = read_samples(one, [out]) if one.status == "ok" else None
        if columns is None or "victim.scores" not in columns:
            continue
        known = dict(zip(columns["row"].tolist(), columns["victim.scores"].tolist(), strict=True))
        if known.keys() >= set(wanted):
            seed = f", seed {one.seed}" if one.seed else ""
            found[one.cell.attack.label + seed] = np.array(
                [known[key] for key in wanted], np.float64
            )
    if not found:
        raise BadInputError(f"claim: no attack scored all {len(wanted):,} candidates: name one "
                            "that asks each row once, such as metric-confidence")  # fmt: skip
    return found
