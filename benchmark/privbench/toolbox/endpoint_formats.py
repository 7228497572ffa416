"""What an endpoint is sent and what is read from its answer: known formats, and one's own.

A format is a body with placeholders and a reader. ``"$rows"`` stands for the list of all rows,
``"$shape"`` for ``[n, *shape]`` and ``"$version"`` for the user's name of the model's version. The
nearest list around ``"$row"`` gets one element for each row; without a list, a request holds one
row. A template of the user's replaces the body, and a path the reader.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.text import quoted, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS, ROW, SHAPE, VERSION = "$rows", "$row", "$shape", "$version"
_LARGEST = 1 << 20  # bytes of a template


class UnreadableError(Exception):
    """An answer is not what the format expects; the message goes on from "its answer"."""


@dataclass(frozen=True)
class Format:
    """How rows are sent to an endpoint, and how its answers are read.

    Attributes:
        sent: JSON with placeholders; None for lines of numbers with commas.
        read: what an answer in JSON holds, for ``answers``.
        tokens: whether rows are sent as whole numbers.
    """

    sent: Any
    read: Callable[[Any], Any]
    tokens: bool = False

    @property
    def single(self) -> bool:
        """Whether a request holds one row."""
        return self.sent is not None and _bare(self.sent)

    @property
    def media(self) -> str:
        """The content type of a request and of an answer."""
        return "application/json" if self.sent is not None else "text/csv"

    def body(self, rows: Sequence[Any], version: str = "") -> bytes:
        """Return the body of a request.

        Args:
            rows: arrays (*shape), or values of JSON.
            version: the user's name for the version of the model.

        Raises:
            BadInputError: if the rows are not tokens, and tokens are sent.
        """
        plain = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
        if self.sent is None:
            return "".join(f"{','.join(map(repr, _flat(row)))}\n" for row in plain).encode()
        plain = [_whole(row) for row in plain] if self.tokens else plain
        shape = [len(rows), *getattr(rows[0], "shape", ())]
        return json.dumps(_filled(self.sent, plain, {SHAPE: shape, VERSION: version})).encode()

    def outline(self) -> str:
        """Return what is sent, with placeholders for the rows."""
        return "lines of numbers with commas" if self.sent is None else json.dumps(self.sent)

    def answers(self, text: bytes, rows: int) -> tuple[list[Any], tuple[str, ...]]:
        """Return an answer, a number or a list of numbers, for each row; and the classes it names.

        A flat list of n * k numbers is read row by row. Named classes are sorted: by their number
        if all are numbers or ``LABEL_3``, else as texts, as the audit sorts texts in y.

        Raises:
            UnreadableError: if there are not as many as rows, or not in this format.
            ValueError: if the text is no JSON.
        """
        csv = self.sent is None and text.lstrip()[:1] != b"{"
        told = _lines(text) if csv else json.loads(text)
        try:
            found = self.read(told)
        except (TypeError, KeyError, AttributeError, IndexError):
            raise UnreadableError("is of another format") from None
        if rows == 1 and not (isinstance(found, list) and len(found) == 1):
            found = [found]
        if not isinstance(found, list):
            raise UnreadableError(f"holds no list of {rows} answers, one for each row")
        if len(found) != rows and len(found) % rows == 0 and all(map(_is_number, found)):
            wide = len(found) // rows
            found = [found[i : i + wide] for i in range(0, len(found), wide)]
        if len(found) != rows:
            raise UnreadableError(f"holds {len(found)} answers, not {rows}, one for each row")
        named = [_named(one) for one in found]
        classes = {tuple(_ordered(one)) for one in named if one is not None}
        if len(classes) > 1 or (classes and None in named):
            raise UnreadableError("names other classes for one row than for another: ask the "
                                  "server for all classes of each")  # fmt: skip
        order = next(iter(classes), ())
        return [one if by is None else [by[name] for name in order]
                for one, by in zip(found, named, strict=True)], order  # fmt: skip


def at(path: str) -> Callable[[Any], Any]:
    """Return what reads a path in JSON.

    ``$.a.b`` or ``a['b']`` is a value by its name, ``[0]`` an element from 0, ``[*]`` all elements
    of a list. Two of the last give lists in a list.

    >>> at("outputs[*].p")({"outputs": [{"p": [0.5, 0.5]}, {"p": [1, 0]}]})
    [[0.5, 0.5], [1, 0]]

    Raises:
        BadInputError: if it is not such a path.
    """
    steps: list[str | int | None] = []
    rest = path.strip().removeprefix("$")
    while rest:
        step = _STEP.match(rest)
        if step is None:
            raise BadInputError(f"answer {quoted(path)} cannot be read from {quoted(rest)} on: "
                                "write names with dots, [0] and [*], such as "
                                "predictions[*].scores")  # fmt: skip
        name, number, star = step["name"] or step["quoted"], step["number"], step["star"]
        steps.append(None if star else int(number) if number else str(name))
        rest = rest[step.end() :]
    return lambda told: _walked(told, steps, "")


_STEP = re.compile(
    r"""\.?(?P<name>[^\s.\[\]*$'"?@()]+) | \[(?P<number>\d+)\] | (?P<star>\[\*\])
      | \[(?:'(?=[^']+'\])|"(?=[^"]+"\]))(?P<quoted>[^'"]+)['"]\]""",
    re.VERBOSE,
)


def _walked(told: Any, steps: Sequence[str | int | None], where: str) -> Any:
    if not steps:
        return told
    step, *rest = steps
    if step is None:
        if not isinstance(told, list):
            raise UnreadableError(f"has no list at {shown(where) or 'its top'}")
        return [_walked(one, rest, f"{where}[{i}]") for i, one in enumerate(told)]
    if isinstance(step, int):
        if not isinstance(told, list) or step >= len(told):
            raise UnreadableError(f"has no element {step} at {shown(where) or 'its top'}")
        return _walked(told[step], rest, f"{where}[{step}]")
    if not isinstance(told, dict) or step not in told:
        raise UnreadableError(f"has no '{shown(step)}' at {shown(where) or 'its top'}")
    return _walked(told[step], rest, f"{where}.{step}".lstrip("."))


# ---- readers of the formats ----------------------------------------------------------------------


def _tensor(told: Any) -> Any:
    """Read the data of the only tensor of the Open Inference Protocol."""
    outputs = at("outputs")(told)
    if not isinstance(outputs, list) or len(outputs) != 1:
        names = [one.get("name") for one in outputs if isinstance(one, dict)]
        raise UnreadableError(f"holds {len(outputs)} tensors ({shown(', '.join(map(str, names)))}):"
                              " choose one by the path of its data, such as answer "
                              "outputs[0].data")  # fmt: skip
    return at("outputs[0].data")(told)


def _scored(told: Any) -> Any:
    """Read the scores of SageMaker's own algorithms, else the classes, or a plain list."""
    found = told.get("predictions", told) if isinstance(told, dict) else told
    if not isinstance(found, list):
        return found
    keys = ("score", "probabilities", "predicted_label")
    return [next((one[key] for key in keys if key in one), one) if isinstance(one, dict) else one
            for one in found]  # fmt: skip


def _embedded(told: Any) -> Any:
    """Read embeddings, which may come in any order."""
    found = at("data")(told)
    places = at("data[*].index")(told)
    if sorted(places) != list(range(len(found))):
        raise UnreadableError("does not number its embeddings from 0")
    return [one["embedding"] for _, one in sorted(zip(places, found, strict=True),
                                                  key=lambda pair: pair[0])]  # fmt: skip


#: name -> format; a new one is a line here and a line in docs/audit.md.
FORMATS = {
    "privbench": Format({"inputs": ROWS}, at("outputs")),
    "kserve": Format(
        {"inputs": [{"name": "input-0", "shape": SHAPE, "datatype": "FP32", "data": ROWS}]},
        _tensor,
    ),
    "tf-serving": Format({"instances": ROWS}, at("predictions")),
    "hf": Format({"inputs": ROWS, "parameters": {"top_k": 1000}}, at("$")),
    "torchserve": Format(ROW, at("$")),
    "sagemaker": Format({"instances": [{"features": ROW}]}, _scored),
    "sagemaker-csv": Format(None, _scored),
    "openai-embeddings": Format(
        {"model": VERSION, "input": ROWS, "encoding_format": "float"}, _embedded, tokens=True
    ),
}


def format_of(name: str, request: str | Path = "", answer: str = "", version: str = "") -> Format:
    """Return a format, with a template of the user's and a path in place of its own.

    >>> format_of("tf-serving", answer="predictions[*].probabilities").outline()
    '{"instances": "$rows"}'

    Args:
        name: of ``FORMATS``.
        request: file of a template in JSON; "" for the format's own.
        answer: path for ``at``; "" for the format's own reader.
        version: the user's name for the model's version, which some formats send.

    Raises:
        BadInputError: if one of them cannot be used.
    """
    if name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    made = FORMATS[name]
    if request:
        made = replace(made, sent=_template(Path(request)))
    if answer:
        made = replace(made, read=at(answer))
    if _holds(made.sent, VERSION) and not version:
        raise BadInputError(f"format {name}: a request names the model: give its name as the model "
                            "version")  # fmt: skip
    return made


def _template(file: Path) -> Any:
    told = f"request {shown(str(file), 200)}"
    if not file.is_file():
        there = "is not a regular file" if file.exists() else "does not exist"
        raise BadInputError(f"{told} {there}: name a file with JSON")
    try:
        if file.stat().st_size > _LARGEST:
            raise BadInputError(f"{told} has more than {_LARGEST:,} bytes: it holds placeholders, "
                                "not rows")  # fmt: skip
        made = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{told} cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise BadInputError(f"{told} is no JSON: {error.msg}, in line {error.lineno}, column "
                            f"{error.colno}") from None  # fmt: skip
    except (ValueError, RecursionError):
        raise BadInputError(f"{told} is no JSON in UTF-8: correct it") from None
    places = _holds(made, ROWS) + _holds(made, ROW)
    if places != 1:
        raise BadInputError(f'{told} has {places or "no"} places for rows: write "{ROWS}" where '
                            f'the list of rows goes, or "{ROW}" where one row goes')  # fmt: skip
    return made


# ---- JSON ----------------------------------------------------------------------------------------


def _holds(body: Any, word: str) -> int:
    """Return how often a text stands in JSON as a value."""
    if isinstance(body, (list, dict)):
        return sum(_holds(one, word) for one in (body.values() if isinstance(body, dict) else body))
    return int(isinstance(body, str) and body == word)


def _bare(body: Any) -> bool:
    """Return whether a row is in it with no list around."""
    return body == ROW if not isinstance(body, dict) else any(map(_bare, body.values()))


def _filled(body: Any, rows: Sequence[Any], values: dict[str, Any]) -> Any:
    if isinstance(body, dict):
        return {name: _filled(one, rows, values) for name, one in body.items()}
    if isinstance(body, list):
        made = []
        for one in body:
            each = [[row] for row in rows] if _bare(one) else [rows]
            made += [_filled(one, part, values) for part in each]
        return made
    if not isinstance(body, str):
        return body
    return rows if body == ROWS else rows[0] if body == ROW else values.get(body, body)


def _flat(row: Any) -> list[Any]:
    return [x for one in row for x in _flat(one)] if isinstance(row, list) else [row]


def _whole(row: Any) -> Any:
    """Return numbers of a row as whole ones."""
    if isinstance(row, list):
        return [_whole(one) for one in row]
    if isinstance(row, float):
        if not row.is_integer():
            raise BadInputError(f"rows must be tokens, whole numbers, and one holds {row:g}: give "
                                "the tokens of each text")  # fmt: skip
        return int(row)
    return row


def _lines(text: bytes) -> list[Any]:
    """Return the numbers of lines with commas; if there is one line, its numbers."""
    try:
        lines = [line.strip("[] \t\r") for line in text.decode().replace("],", "]\n").splitlines()]
        made = [[float(x) for x in re.split(r"[,\s]+", line)] for line in lines if line]
    except ValueError:
        raise UnreadableError("is not numbers with commas between them") from None
    if len(made) == 1:
        return list(made[0])
    return [one[0] if len(one) == 1 else one for one in made]


def _is_number(one: Any) -> bool:
    return isinstance(one, (int, float))


def _named(one: Any) -> dict[str, Any] | None:
    """Return class -> number, of an object or of a list of labels with scores; None if neither."""
    if isinstance(one, list) and one and all(isinstance(part, dict) for part in one):
        pairs = [_labelled(part) for part in one]
        if None not in pairs:
            return dict(pair for pair in pairs if pair is not None)
    if isinstance(one, dict) and one:
        if _labelled(one):
            raise UnreadableError("holds one class for each row, and not a number for each class: "
                                  "ask the server for all classes")  # fmt: skip
        if not all(map(_is_number, one.values())):
            raise UnreadableError(f"holds an object for each row ({shown(', '.join(one))}): choose "
                                  "one value by the end of the path (answer)")  # fmt: skip
        return one
    return None


def _labelled(part: dict[str, Any]) -> tuple[str, Any] | None:
    names = [part[key] for key in ("label", "className", "class") if key in part]
    scores = [part[key] for key in ("score", "probability", "prob") if key in part]
    return (str(names[0]), scores[0]) if names and scores else None


def _ordered(classes: dict[str, Any]) -> list[str]:
    numbers = [re.fullmatch(r"(?:LABEL_)?(\d+)", name) for name in classes]
    if all(numbers):
        return sorted(classes, key=lambda name: int(name.removeprefix("LABEL_")))
    return sorted(classes)
