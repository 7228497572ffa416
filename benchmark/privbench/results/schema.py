"""The JSON schema of results, from the models that read them and their docstrings."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

from privbench.ground import columns as board
from privbench.results import limits, record

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODELS = (
    record.AdversaryRecord, record.CellRecord, record.Cost, record.MethodRecord,
    record.Number, record.SampleFile, record.StrengthRecord, board.Board, board.Column,
)  # fmt: skip

_ABOUT = f"""\
One trial of privbench: a file TRIAL.json, or a line of NAME.jsonl, where fields with their \
default are left out. A reader also refuses more than {limits.MOST_BYTES:,} bytes, more than \
{limits.MOST_RECORDS:,} lines, lists and mappings more than {limits.DEEPEST} deep, names of more \
than {limits.LONGEST_NAME:,} and texts of more than {limits.LONGEST_TEXT:,} characters, NaN and \
infinities."""


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a result of the current version.

    Each field has a description, from the section ``Attributes`` of its model's docstring.

    Raises:
        KeyError: if a docstring leaves out a field.
    """
    made = record.Record.model_json_schema()
    made["description"] = _ABOUT
    made["properties"]["schema_version"] = {"const": record.SCHEMA}
    described(made, record.Record)
    made["properties"]["checksum"] = {
        "description": "BLAKE2b digest, 32 hexadecimal digits, of all other fields as JSON with "
        "sorted keys, without spaces, and with characters above ASCII as escapes.",
        "pattern": "^[0-9a-f]{32}$", "type": "string",
    }  # fmt: skip
    made["required"] = [*made["required"], "checksum", "schema_version"]
    for model in _MODELS:
        described(made["$defs"][model.__name__], model)
    made["$defs"]["SampleFile"]["properties"]["base64"] = {
        "description": "The file itself, in a line of a submission: at most "
        f"{limits.MOST_SCORES:,} bytes. It comes first in its mapping, and the "
        "checksum leaves it out.",
        "contentEncoding": "base64", "type": "string",
    }  # fmt: skip
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"privbench-result-{record.SCHEMA}",
        "title": "A result of privbench",
    }
    return {**head, **{name: value for name, value in made.items() if name != "title"}}


def dumped() -> str:
    """Return the text of ``docs/result.schema.json``."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def described(part: dict[str, Any], model: type) -> None:
    """Put the descriptions of a model's docstring into its part of a JSON schema.

    Raises:
        KeyError: if the docstring leaves out a field.
    """
    told = dict(_attributes(model))
    if model is not record.Record:  # whose description is longer
        part["description"] = inspect.cleandoc(model.__doc__ or "").splitlines()[0]
    del part["title"]
    for name, field in part["properties"].items():
        field.pop("title", None)
        field["description"] = told[name]


def _attributes(model: type) -> Iterator[tuple[str, str]]:
    """The fields that a docstring describes, with the descriptions."""
    _, _, section = inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")
    for names, text in re.findall(r"^    ([\w, ]+): (.*(?:\n     +.*)*)", section, re.MULTILINE):
        sentence = " ".join(text.replace("``", "`").split())
        for name in names.split(", "):
            yield name, sentence[0].upper() + sentence[1:]


if __name__ == "__main__":
    print(dumped(), end="")  # noqa: T201
