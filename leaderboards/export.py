# ruff: noqa: INP001 - a script
"""All published results as data for others: a Parquet file, its description, a data card.

``uv run python leaderboards/export.py --out FOLDER`` writes ``privbench-boards.parquet`` (a row for
each number), ``croissant.json`` (what the columns are, in the Croissant 1.0 vocabulary) and
``README.md`` (the data card). Equal results give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from pyarrow import parquet

import privbench
from privbench import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from privbench.results.record import Number, Record

FILE = "privbench-boards.parquet"
#: Column -> type, meaning.
COLUMNS: dict[str, tuple[str, str]] = {
    "board": ("string", "name of the board"),
    "dataset": ("string", "name of the dataset, with settings that are not the default"),
    "protocol": ("string", "how rows are split into members, nonmembers and others"),
    "target": ("string", "how the victim is built and trained"),
    "defense": ("string", "the defense of the victim; none for no defense"),
    "adversary": ("string", "what the attacker knows: adaptive, naive or white-box"),
    "attack": ("string", "name of the attack"),
    "game": ("string", "the question: membership, attributes, reconstruction or property"),
    "sensitive": ("string", "attributes that are guessed, separated by commas; may be empty"),
    "seed": ("int64", "number of the repetition; all random draws follow from it"),
    "status": ("string", "ok, skipped or failed"),
    "reason": ("string", "why a cell was skipped or failed; may be empty"),
    "part": ("string", "whose number: metrics (the victim), a control or a baseline, or utility"),
    "metric": ("string", "name of the number, such as auc; empty where nothing was measured"),
    "value": ("double", "the number; null if it was refused"),
    "low": ("double", "lower end of its 95 % interval over rows; null for none"),
    "high": ("double", "upper end of that interval; null for none"),
    "refused": ("string", "why a number was refused; may be empty"),
    "result": ("string", "digest of the result, as `privbench verify` names it"),
}
_TYPES = {"string": "sc:Text", "int64": "sc:Integer", "double": "sc:Float"}
CARD = """\
# privbench boards, version {version}

Which privacy attacks work against which defenses, on which models: all numbers of {boards} boards,
{rows:,} rows, {trials:,} trials. Each trial attacked one victim, with one seed.

- **Made by** `uv run python leaderboards/export.py --out FOLDER` from `leaderboards/results`.
  Licence: Apache-2.0.
- **Read it** with `pandas.read_parquet("{file}")`. The boards' pages say how each was run.
- **Not in it**: rows of the datasets, scores of single rows, weights.
- **Read with care**: `low` and `high` are over the rows of one seed; several seeds of a cell say
  more. A board with fewer than five seeds is a draft. A number on the null victim (`part` is
  `control null`) shows what the attack reaches without a leak. An attack that found nothing does
  not show that nothing leaks.

| column | type | meaning |
|---|---|---|
{columns}
"""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    """Write the three files."""
    out.mkdir(parents=True, exist_ok=True)
    boards = {name: privbench.published(name) for name in privbench.published()}
    rows = [
        row
        for name, found in boards.items()
        for one, flat in zip(found, found.rows(), strict=True)
        for row in rows_of(name, one, flat)
    ]
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, (kind, _) in COLUMNS.items()])
    table = pa.table({name: [row[name] for row in rows] for name in COLUMNS}, schema=schema)
    parquet.write_table(table, out / FILE, compression="zstd")
    described = croissant(hashlib.sha256((out / FILE).read_bytes()).hexdigest())
    (out / "croissant.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    told = "\n".join(f"| `{name}` | {kind} | {text} |" for name, (kind, text) in COLUMNS.items())
    card = CARD.format(version=__version__, boards=len(boards), rows=len(rows), columns=told,
                       trials=sum(map(len, boards.values())), file=FILE)  # fmt: skip
    (out / "README.md").write_text(card, encoding="utf-8")
    click.echo(f"{len(rows):,} rows of {len(boards)} boards in {out / FILE}")


def rows_of(board: str, record: Record, flat: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of a result; one without a number if it has none.

    Args:
        board: name of the board.
        record: a result of it.
        flat: its row of ``Results.rows``: what ran.
    """
    named = {name: flat[name] for name in COLUMNS if name in flat}
    named |= {"board": board, "result": record.digest}
    parts: dict[str, Mapping[str, Number]] = {"metrics": record.metrics}
    parts |= {f"control {name}": of for name, of in record.controls.items()}
    parts |= {f"baseline {name}": of for name, of in record.baselines.items()}
    made = [
        {"part": part, "metric": name, "value": one.value, "low": one.low, "high": one.high,
         "refused": one.refused or ""}
        for part, of in parts.items() for name, one in of.items()
    ]  # fmt: skip
    empty = {"low": None, "high": None, "refused": ""}
    made += [{"part": "utility", "metric": name, "value": value, **empty}
             for name, value in record.utility.items()]  # fmt: skip
    made = made or [{"part": "", "metric": "", "value": None, **empty}]
    yield from ({**named, **one} for one in made)


def croissant(sha256: str) -> dict[str, Any]:
    """Return the description of the file in the Croissant 1.0 vocabulary (JSON-LD)."""
    fields = [
        {
            "@type": "cr:Field", "@id": f"numbers/{name}", "name": name, "description": text,
            "dataType": _TYPES[kind],
            "source": {"fileObject": {"@id": FILE}, "extract": {"column": name}},
        }
        for name, (kind, text) in COLUMNS.items()
    ]  # fmt: skip
    return {
        "@context": {
            "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/", "dct": "http://purl.org/dc/terms/",
            "conformsTo": "dct:conformsTo", "recordSet": "cr:recordSet", "field": "cr:field",
            "source": "cr:source", "fileObject": "cr:fileObject", "extract": "cr:extract",
            "column": "cr:column", "citeAs": "cr:citeAs",
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "privbench-boards",
        "description": "Which privacy attacks work against which defenses, on which models.",
        "license": "https://spdx.org/licenses/Apache-2.0",
        "version": __version__,
        "citeAs": f"The privbench authors: privbench, version {__version__}",
        "distribution": [
            {
                "@type": "cr:FileObject", "@id": FILE, "name": FILE, "contentUrl": FILE,
                "encodingFormat": "application/x-parquet", "sha256": sha256,
            }
        ],
        "recordSet": [
            {"@type": "cr:RecordSet", "@id": "numbers", "name": "numbers", "field": fields}
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
