"""An audit in the formats of continuous integration: JUnit's XML and SARIF 2.1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown, terminal
from privbench.results.intervals import FIGURES

if TYPE_CHECKING:
    from privbench.api.own_model.document import Document, Tried

_ENDING = {"junit": ".xml", "sarif": ".sarif"}
_LONGEST = 2000  # characters of a reason
_OUTCOMES = {"failed": "failure", "undecided": "error"}
_STATUSES = {"failed": "error", "not run": "skipped"}


def refuse(option: str, kind: str, path: str | Path | None) -> None:
    """Refuse a path to which the file of a kind cannot be written.

    Args:
        option: as messages name it.
        kind: ``junit`` or ``sarif``.
        path: of the file; None for none.

    Raises:
        BadInputError: if it is a folder, or another program would take the file for another kind.
    """
    if path is None:
        return
    told = f"{option} {shown(str(path), 200)}"
    if Path(path).is_dir():
        raise BadInputError(f"{told} is a folder: name a file in it")
    if Path(path).suffix != _ENDING[kind]:
        raise BadInputError(f"{told}: the name of this file ends in {_ENDING[kind]}")


def junit(found: Document) -> str:
    """Return the audit as JUnit's XML: a test case for each threshold, claim and attack.

    A threshold that failed and a refuted claim are failures; one that is undecided, an audit
    without a verdict and an attack that broke are errors; an attack that did not run is skipped.
    """
    root = ET.Element("testsuites", name="privbench audit")
    gate = _suite(root, "gate", found)
    for one in found.gate.thresholds if found.gate else ():
        _case(gate, "gate", one.name, _OUTCOMES.get(one.outcome, ""), one.words)
    if found.claim:
        ended = "failure" if found.claim.refuted else ""
        _case(gate, "gate", "claim", ended, str(found.claim))
    if found.no_verdict:
        _case(gate, "gate", "verdict", "error", f"No verdict: {found.no_verdict}.")
    attacks = _suite(root, "attacks", found)
    one_seed = len({tried.seed for tried in found.attacks} - {None}) < 2  # noqa: PLR2004
    for tried in found.attacks:
        seed = "" if one_seed or tried.seed is None else f", seed {tried.seed}"
        name = f"{tried.attack}{seed}"
        case = _case(attacks, "attacks", name, _STATUSES.get(tried.status, ""), tried.reason)
        if tried.status == "ran":
            ET.SubElement(case, "system-out").text = _numbers(tried)
    for part in (gate, attacks, root):
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            part.set(name, str(len(part.findall(f".//{tag}"))))
        part.set("tests", str(len(part.findall(".//testcase"))))
    ET.indent(root)
    return f"{ET.tostring(root, 'unicode', xml_declaration=True)}\n"


def _suite(root: ET.Element, name: str, found: Document) -> ET.Element:
    return ET.SubElement(root, "testsuite", name=name, timestamp=found.date.partition("+")[0])


def _case(suite: ET.Element, of: str, name: str, ended: str, told: str) -> ET.Element:
    case = ET.SubElement(
        suite, "testcase", classname=f"privbench.{of}", name=shown(name, 200), time="0"
    )
    if ended:
        ET.SubElement(case, ended, message=shown(told, _LONGEST), type=ended)
    return case


def _numbers(tried: Tried) -> str:
    lines = [
        f"{name} {number.value:.4g} ({number.low:.4g} to {number.high:.4g})"
        for name, number in tried.metrics.items()
        if number.value is not None and number.low is not None and number.high is not None
    ]
    return terminal("\n".join(lines))


def sarif(found: Document, place: Path) -> str:
    """Return the audit as SARIF 2.1.0: a result for each threshold that did not pass.

    A refuted claim is one, too. One that failed is an error. One that is undecided is ``open``,
    which has no level.

    Args:
        found: by the audit.
        place: of ``audit.json``, to which the results point.
    """
    rules: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []

    def add(name: str, rule: str, note: str, outcome: str, words: str, **more: Any) -> None:
        rules.append({"id": f"privbench/{name}", "shortDescription": {"text": rule},
                      "help": {"text": note}})  # fmt: skip
        if outcome != "passed":
            failed = outcome == "failed"
            results.append({
                "ruleId": f"privbench/{name}", "ruleIndex": len(rules) - 1,
                "kind": "fail" if failed else "open", "level": "error" if failed else "none",
                "message": {"text": words}, "locations": [_location(place)],
                "partialFingerprints": {"privbench/v1": f"{found.model.name} {name}"},
                "properties": more,
            })  # fmt: skip

    for one in found.gate.thresholds if found.gate else ():
        name = one.figure
        add(name, f"Attacks reach {name} above the threshold",
            FIGURES[name].note or f"{name} of attacks on membership", one.outcome, one.words,
            threshold=one.value, rows=one.rows)  # fmt: skip
    if found.claim:
        add("claim", "Attacks refute the claimed epsilon", "Coins decided what was trained on",
            "failed" if found.claim.refuted else "passed", str(found.claim),
            threshold=found.claim.epsilon)  # fmt: skip
    driver = {"name": "privbench", "version": found.versions["privbench"], "rules": rules}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "invocations": [
            {"executionSuccessful": True, "endTimeUtc": found.date.replace("+00:00", "Z")}
        ],
        "results": results,
    }
    whole = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _location(place: Path) -> dict[str, Any]:
    """Return a location: a path below the working directory, or the address of a file."""
    place, here = place.absolute(), Path.cwd()
    inside = place.is_relative_to(here)
    uri = quote(place.relative_to(here).as_posix()) if inside else place.as_uri()
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}
