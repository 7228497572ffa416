"""Endpoints in the formats of known servers: asked as documented, read as documented."""

from __future__ import annotations

import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from tests.unit.test_own_model import MEMBERS, NONMEMBERS, files, forest, run, told

import privbench
from privbench import BadInputError
from privbench.api.own_model import reach
from privbench.cli.main import main
from privbench.toolbox.endpoint import TOKEN, Endpoint
from privbench.toolbox.endpoint_formats import FORMATS, UnreadableError, at, format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from privbench.plugins.registry import Registry

SECRET = "s3cr3tV4lue"  # noqa: S105 - of no one
X = np.concatenate([MEMBERS["x"], NONMEMBERS["x"]])[:70]
Answers = Any


def _tensor(body: Any, ask: Callable[[Any], Answers]) -> Any:
    """The Open Inference Protocol: each input is named, and has a shape, a type and data."""
    (given,) = body["inputs"]
    assert given["datatype"] == "FP32"
    assert given["name"]
    made = ask(np.array(given["data"], np.float32).reshape(given["shape"]))
    out = {"name": "output-0", "shape": list(made.shape), "datatype": "FP64"}
    return {"model_name": "m", "outputs": [{**out, "data": made.ravel().tolist()}]}


def _labels(body: Any, ask: Callable[[Any], Answers]) -> Any:
    """Hugging Face: labels with scores, the likeliest first."""
    made = ask(np.array(body["inputs"], np.float32))[:, : body["parameters"]["top_k"]]
    return [[{"label": f"LABEL_{c}", "score": row[c]} for c in np.argsort(-row)] for row in made]


def _torchserve(body: Any, ask: Callable[[Any], Answers]) -> Any:
    """Class -> probability of one row, the likeliest first."""
    (row,) = ask(np.array([body], np.float32))
    return {str(c): row[c] for c in np.argsort(-row)}


def _sagemaker(body: Any, ask: Callable[[Any], Answers]) -> Any:
    made = ask(np.array([one["features"] for one in body["instances"]], np.float32))
    return {"predictions": [{"score": row.tolist(), "predicted_label": int(row.argmax())}
                            for row in made]}  # fmt: skip


def _csv(body: str, ask: Callable[[Any], Answers]) -> str:
    made = ask(np.array([line.split(",") for line in body.splitlines()], np.float32))
    return "".join(",".join(map(repr, row)) + "\n" for row in made.tolist())


def _embeddings(body: Any, ask: Callable[[Any], Answers]) -> Any:
    assert body["model"] == "my-encoder"
    assert isinstance(body["input"][0][0], int)  # tokens
    made = ask(np.array(body["input"], np.float32)).tolist()
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(made)]
    return {"object": "list", "data": data[::-1], "model": body["model"]}


#: What servers of each format do with a body.
SERVERS: dict[str, Any] = {
    "privbench": lambda body, ask: {"outputs": ask(np.array(body["inputs"], np.float32)).tolist()},
    "kserve": _tensor,
    "tf-serving": lambda body, ask: {
        "predictions": ask(np.array(body["instances"], np.float32)).tolist()
    },
    "hf": _labels,
    "torchserve": _torchserve,
    "sagemaker": _sagemaker,
    "sagemaker-csv": _csv,
    "openai-embeddings": _embeddings,
}


class Served:
    """A server that answers a forest's posteriors in the format that ``answer`` has."""

    def __init__(self) -> None:
        self.model = forest(MEMBERS)
        self.ask: Any = self.model.predict_proba
        self.answer: Any = SERVERS["privbench"]
        self.refusal: tuple[int, str] | None = None
        self.bodies: list[bytes] = []
        self.rows = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.bodies.append(body)
                state, text = outer.refusal or (200, "")
                if not text:
                    media = self.headers["Content-Type"]
                    given = json.loads(body) if media == "application/json" else body.decode()
                    made = outer.answer(given, outer.counted)
                    text = made if isinstance(made, str) else json.dumps(made)
                self.send_response(state)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1/m"

    def counted(self, x: Any) -> Any:
        self.rows += len(x)
        return self.ask(x)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()


# ---- each format ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_answers_are_those_of_the_model(served: Served, name: str) -> None:
    """Bit for bit: JSON and csv carry float64 whole. 70 rows are two requests of 64."""
    served.answer = SERVERS[name]
    x = X.round() if name == "openai-embeddings" else X
    found = Endpoint(served.url, "my-encoder", format=name)(x)
    assert np.array_equal(found, served.ask(x))
    assert len(served.bodies) == (70 if name == "torchserve" else 2)
    one = Endpoint(served.url, "my-encoder", format=name)(x[:1])
    assert np.array_equal(one, served.ask(x[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"openai-embeddings"}))
def test_an_audit_equals_that_of_the_model(tmp_path: Path, served: Served, name: str) -> None:
    served.answer = SERVERS[name]
    found = run(tmp_path, served.url, format=name)
    direct = privbench.audit(
        served.model, members=MEMBERS, nonmembers=NONMEMBERS, out=tmp_path / "direct",
        attacks=["metric-confidence", "metric-correctness"],
    )  # fmt: skip
    assert [one.metrics for one in found] == [one.metrics for one in direct]
    assert [one.trial for one in found] == [one.trial for one in direct]


@pytest.mark.parametrize("name", ["tf-serving", "kserve", "sagemaker-csv"])
def test_classes_are_read_too(served: Served, name: str) -> None:
    labels = served.model.predict

    def answer(body: Any, ask: Any) -> Any:
        if name == "tf-serving":
            return {"predictions": ask(np.array(body["instances"], np.float32)).tolist()}
        if name == "sagemaker-csv":  # one line, as XGBoost's container answered
            x = np.array([line.split(",") for line in body.splitlines()], np.float32)
            return ",".join(str(float(c)) for c in ask(x))
        return _tensor(body, ask)

    served.answer, served.ask = answer, labels
    found = Endpoint(served.url, format=name)(X)
    assert found.shape == (70,)
    assert np.array_equal(found, labels(X))


def test_rows_of_images_are_nested_and_have_a_shape() -> None:
    images = np.zeros((2, 3, 4, 4), np.float32)
    sent = json.loads(format_of("kserve").body(list(images)))
    assert sent["inputs"][0]["shape"] == [2, 3, 4, 4]
    assert np.array(sent["inputs"][0]["data"]).shape == (2, 3, 4, 4)
    assert (
        format_of("sagemaker-csv").body(list(images)).decode() == f"{','.join(['0.0'] * 48)}\n" * 2
    )


def test_every_float32_survives() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32).view(np.float32)
    x = x[np.isfinite(x)].reshape(1, -1)
    lines = format_of("sagemaker-csv").body(list(x)).decode()
    assert np.array_equal(np.array([lines.split(",")], np.float32), x)
    sent = json.loads(format_of("tf-serving").body(list(x)))["instances"]
    assert np.array_equal(np.array(sent, np.float32), x)


# ---- one's own -----------------------------------------------------------------------------------


def template(tmp_path: Path, text: Any) -> str:
    path = tmp_path / "request.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return str(path)


ONE, TWO = [5.0, 6.0], [7.0, 8.0]


@pytest.mark.parametrize(
    ("sent", "body", "path", "answer"),
    [
        ({"x": "$rows", "n": ["$shape"], "by": "$version", "k": 1},
         {"x": [ONE, TWO], "n": [[2, 2]], "by": "v7", "k": 1},
         "a.b", {"a": {"b": [[1, 2], [3, 4]]}}),
        ({"x": [{"in": "$row"}]}, {"x": [{"in": ONE}, {"in": TWO}]},
         "$.a[*].p", {"a": [{"p": [1, 2]}, {"p": [3, 4]}]}),
        ({"x": [{"in": ["$row"]}]}, {"x": [{"in": [ONE, TWO]}]},
         "a['x y'][0]", {"a": {"x y": [[[1, 2], [3, 4]]]}}),
        ({"x": ["$row", 9]}, {"x": [ONE, TWO, 9]}, "[1]", [0, [1, 2, 3, 4]]),
        (["$row"], [ONE, TWO], "a[*]", {"a": [{"b": 2, "a": 1}, {"a": 3, "b": 4}]}),
    ],
)  # fmt: skip
def test_a_template_and_a_path(
    tmp_path: Path, sent: Any, body: Any, path: str, answer: Any
) -> None:
    made = format_of("privbench", template(tmp_path, sent), path, "v7")
    assert json.loads(made.body(list(np.array([ONE, TWO], np.float32)), "v7")) == body
    assert made.answers(json.dumps(answer).encode(), 2)[0] == [[1, 2], [3, 4]]


def test_a_row_without_a_list_is_a_request_of_its_own(tmp_path: Path, served: Served) -> None:
    served.answer = lambda body, ask: {
        "p": ask(np.array([body["features"]], np.float32))[0].tolist()
    }
    asked = Endpoint(served.url, request=template(tmp_path, {"features": "$row"}), answer="p")
    assert np.array_equal(asked(X[:3]), served.ask(X[:3]))
    assert asked.requests == 3


def test_all_requests_name_the_same_classes(served: Served) -> None:
    """A server that tells the two likeliest of three classes."""

    def answer(body: Any, _: Any) -> Any:
        first = "a" if body["inputs"][0][0] > 0 else "b"
        return [[{"label": first, "score": 0.9}, {"label": "c", "score": 0.1}]] * len(
            body["inputs"]
        )

    served.answer = answer
    asked = Endpoint(served.url, format="hf", batch=1)
    assert asked(np.array([[1.0]], np.float32)).tolist() == [[0.9, 0.1]]
    with pytest.raises(BadInputError, match="names other classes for one row than for another"):
        asked(np.array([[2.0], [-1.0]], np.float32))


def test_classes_are_ordered_as_y_is() -> None:
    read = format_of("hf").answers
    scores = [{"label": f"LABEL_{c}", "score": c / 100} for c in (10, 2, 1)]
    assert read(json.dumps([scores]).encode(), 1)[0] == [[0.01, 0.02, 0.1]]
    words = [{"label": c, "score": len(c)} for c in ("dog", "bird", "a")]
    assert read(json.dumps([words]).encode(), 1)[0] == [[1, 4, 3]]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer", "sentence"),
    [
        ("tf-serving", {"outputs": []}, "has no 'predictions' at its top"),
        ("tf-serving", {"predictions": [1]}, "holds 1 answers, not 2"),
        ("tf-serving", {"predictions": 5}, "holds no list of 2 answers"),
        ("tf-serving", {"predictions": [{"p": [1], "c": 1}] * 2}, "an object for each row (p, c)"),
        ("hf", [{"label": "a", "score": 1}] * 2, "one class for each row, and not a number for"),
        ("hf", [[{"label": "a", "score": 1}], [{"label": "b", "score": 1}]], "names other classes"),
        ("torchserve", [{"0": 1}, [1, 0]], "names other classes"),
        ("kserve", {"outputs": [{"name": "a"}, {"name": "b"}]}, "holds 2 tensors (a, b): choose"),
        ("kserve", {"outputs": None}, "is of another format"),
        ("kserve", {"outputs": [{"data": 3}]}, "holds no list of 2 answers"),
        ("openai-embeddings", {"data": [{"index": 1, "embedding": [1]}] * 2}, "does not number"),
        ("openai-embeddings", {"data": [{"embedding": [1]}] * 2}, "has no 'index' at data[0]"),
    ],
)  # fmt: skip
def test_answers_of_another_format(name: str, answer: Any, sentence: str) -> None:
    with pytest.raises(UnreadableError) as error:
        format_of(name, version="v").answers(json.dumps(answer).encode(), 2)
    assert sentence in str(error.value)


def test_a_csv_server_may_answer_json_and_no_words() -> None:
    read = format_of("sagemaker-csv").answers
    assert read(b'{"predictions": [{"score": [0.1, 0.9]}]}', 1)[0] == [[0.1, 0.9]]
    assert read(b"[0.1, 0.9]\n[0.2, 0.8]\n", 2)[0] == read(b"[[0.1, 0.9], [0.2, 0.8]]", 2)[0]
    with pytest.raises(UnreadableError, match="not numbers with commas"):
        read(b"cat\n", 1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--format", "kserv"], "unknown format 'kserv': did you mean 'kserve'?"),
        (["--answer", "a..b"], "answer 'a..b' cannot be read from '..b' on: write names with dots"),
        (["--answer", "a[?(@.x)]"], "cannot be read from '[?(@.x)]' on"),
        (["--format", "openai-embeddings"], "names the model: give its name as the model version"),
        (["--request", "absent.json"], "request absent.json does not exist"),
        (["--request", '{"a":\n [}'], "is no JSON: Expecting value, in line 2, column 3"),
        (["--request", '{"a": 1}'], 'has no places for rows: write "$rows" where'),
        (["--request", '["$rows", "$row"]'], "has 2 places for rows"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_sent(
    tmp_path: Path, served: Served, given: list[str], sentence: str
) -> None:
    if given[1][0] in '{["':
        given = [given[0], template(tmp_path, given[1])]
    rows = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    assert sentence in told(["--model", served.url, *rows, "--out", str(tmp_path / "o"), *given])
    assert not served.bodies


def test_formats_are_of_endpoints(tmp_path: Path) -> None:
    rows = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    assert "format: the model is not an endpoint" in told(
        ["--model", "a:b", *rows, "--format", "hf"]
    )
    with pytest.raises(BadInputError, match="max_queries: the model is not an endpoint"):
        run(tmp_path, forest(MEMBERS), max_queries=3)


def test_tokens_are_whole_numbers(served: Served) -> None:
    with pytest.raises(BadInputError, match="rows must be tokens, whole numbers, and one holds"):
        Endpoint(served.url, "v", format="openai-embeddings")(X[:2])


# ---- errors --------------------------------------------------------------------------------------


def test_a_refusal_shows_both_sides_without_rows_and_secrets(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    echo = {"at": "?key=0p3nS3same", "for": f"Bearer {SECRET}, {SECRET}",
            "detail": [{"loc": ["body", "instances"], "msg": "Field required",
                        "input": {"inputs": X[:2].tolist()}}]}  # fmt: skip
    served.refusal = 422, json.dumps(echo)
    with pytest.raises(BadInputError) as error:
        Endpoint(f"{served.url}?key=0p3nS3same", format="tf-serving")(X)
    sentence = str(error.value)
    assert "it refuses (422 Unprocessable " in sentence  # Python 3.13: Content, before: Entity
    assert '); it answers {"at": "?key=***", "for": ' in sentence
    assert '"msg": "Field required", "input": {"inputs": [[…], […]]}' in sentence
    assert sentence.endswith('and was sent {"instances": "$rows"}: choose another format, or write '
                             "the request as it wants it (request)")  # fmt: skip
    assert TOKEN not in sentence  # no word about tokens or the address
    assert "address" not in sentence
    assert SECRET not in sentence
    assert "0p3nS3same" not in sentence


@pytest.mark.parametrize(
    ("state", "advice"),
    [(401, f"give a token as {TOKEN}"), (404, "correct the address"), (413, "fewer rows at a time"),
     (501, "choose another format")],
)  # fmt: skip
def test_advice_is_about_the_state(served: Served, state: int, advice: str) -> None:
    served.refusal = state, "no"
    with pytest.raises(BadInputError, match=f"it answers no, and was sent .*: .*{advice}"):
        Endpoint(served.url)(X)


# ---- how many rows -------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_will_be_sent_is_said_first(tmp_path: Path, served: Served) -> None:
    heard = Console(file=io.StringIO(), width=300)

    def said(**options: Any) -> str:
        heard.file = io.StringIO()
        run(tmp_path, served.url, console=heard, **options)
        return heard.file.getvalue()

    told = said()
    assert f"{served.url} will be sent 264 rows in 5 requests, 64 of them changed, which" in told
    assert "The first request (64 rows) took 0.0" in told
    assert "s: the other 4 take about 1 s.\n" in told
    assert served.rows == 264
    told = said()
    assert "will be sent 48 rows in 1 request, 48 of them to compare with the answers" in told
    assert "The first request" not in told


def test_attacks_that_ask_for_more_are_named(registry: Registry) -> None:
    named = [registry.get("attack", name)
             for name in ("metric-loss", "label-only-noise", "label-only-boundary")]  # fmt: skip
    all_rows = [registry.get("attack", name) for name in ("label-cmia", "adversarial-mia")]
    settings = {"label-only-noise": {"copies": 7, "rows": 50}}
    assert reach.more_queries(named, settings, 20, 0)["label-only-noise"] == 140
    attributes = [registry.get("attack", "attribute-inference")]
    assert reach.more_queries(attributes, {}, 60, 30) == {"attribute-inference": 30}
    assert reach.more_queries(attributes, {}, 60, 0) == {}
    asked_of_all = reach.more_queries(all_rows, {}, 60, 30)
    assert asked_of_all == {"label-cmia": 240 * 60, "adversarial-mia": 0}
    more = reach.more_queries(named, settings, 60, 30)
    assert more == {"label-only-noise": 350, "label-only-boundary": 0}
    heard = Console(file=io.StringIO(), width=300)
    url = "http://h/?key=abcd"
    asked = SimpleNamespace(endpoint=Endpoint(url), kept=lambda of: ["", "now"][: len(of)])
    reach.announce(asked, torch.zeros(2, 1), torch.zeros(0, 1), more, heard)
    told = heard.file.getvalue()  # type: ignore[attr-defined]
    assert told.startswith("http://h/?key=*** will be sent 2 rows in 2 requests, 1 of them to comp")
    assert told.endswith("kept; label-only-noise asks about 350 more at most; label-only-boundary "
                         "asks more, whose number is not known.\n")  # fmt: skip


def test_more_than_max_queries_are_never_sent(tmp_path: Path, served: Served) -> None:
    with pytest.raises(BadInputError) as error:
        run(tmp_path, served.url, max_queries=263)
    assert str(error.value) == (
        f"max_queries 263: {served.url} will be sent 264 rows in 5 requests, 64 of them changed, "
        "which tell it from other models: allow more, or give fewer rows; nothing was sent"
    )
    assert not served.bodies
    asked = Endpoint(served.url, max_queries=100, ledger=str(tmp_path / "ledger"))
    with pytest.raises(
        BadInputError, match="64 rows were sent, and 64 more are more than the 100 "
    ):
        asked(np.concatenate([MEMBERS["x"], NONMEMBERS["x"]]))
    assert served.rows == 64
    again = Endpoint(served.url, max_queries=100, ledger=str(tmp_path / "ledger"))
    again(MEMBERS["x"])  # 64 of them are kept
    assert served.rows == 100
    assert len(run(tmp_path / "whole", served.url, max_queries=264)) == 2


@pytest.mark.filterwarnings("ignore:.*is repeated in")
def test_repeated_rows_count(served: Served) -> None:
    served.refusal = 503, "no"
    asked = Endpoint(served.url, max_queries=150, retries=9)
    asked._back_off = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(BadInputError, match="128 rows were sent, and 64 more"):
        asked(X[:64])
    assert len(served.bodies) == 2


def test_the_docs_name_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    told = re.findall(
        r"^\| `([a-z-]+)`(?: \(default\))? \| \S+.* \| .* \| .* \|$", page, re.MULTILINE
    )
    assert told[1:] == list(FORMATS)


def test_a_path_is_names_numbers_and_stars() -> None:
    assert at("$")(3) == 3
    assert at("a[*][1]")({"a": [[1, 2], [3, 4]]}) == [2, 4]
    for path in ("a b", "a[-1]", "a[*", "$$", "..a", "a['']"):
        with pytest.raises(BadInputError, match="cannot be read"):
            at(path)


def test_the_command_asks_in_a_format(tmp_path: Path, served: Served) -> None:
    served.answer = SERVERS["kserve"]
    rows = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    words = ["audit", "--model", served.url, *rows, "--format", "kserve", "--max-queries", "264",
             "--attack", "metric-confidence", "--out", str(tmp_path / "out")]  # fmt: skip
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "will be sent 264 rows in 5 requests, 64 of" in done.output
    assert "The model leaks who its members are." in done.output
