"""A model behind an HTTP endpoint, and the ledger of what it answered."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.ground.tokens import HIDDEN, hidden, redacted
from privbench.toolbox.endpoint_formats import Format, UnreadableError, format_of
from privbench.toolbox.messages import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TOKEN", "Endpoint", "redacted"]

#: Environment variable whose text is sent as a bearer token; it is written nowhere.
TOKEN = "PRIVBENCH_ENDPOINT_TOKEN"  # noqa: S105 - the name of a variable
#: States in which a server may answer later.
_LATER = {408, 425, 429, 500, 502, 503, 504}
#: What to do about the state of a refusal; other ones may have any cause.
_ADVICE = {
    401: f"give a token as {TOKEN}", 403: f"give a token as {TOKEN}",
    404: "correct the address", 405: "correct the address",
    408: "ask for fewer rows at a time (batch)", 413: "ask for fewer rows at a time (batch)",
    425: "ask less often (rate)", 429: "ask less often (rate), or try more often (retries)",
}  # fmt: skip
_OTHER = "choose another format, or write the request as it wants it (request)"
_FAILS = "its log says why; it may be down, or want another format or request"
_LATE = "allow more time (request_timeout), or ask for fewer rows at a time (batch)"
_AWAY = "start it, or correct the address"
_READ = "choose another format, or say where its answers are (answer)"
#: How the time of an answer is written.
_TIME = "%Y-%m-%d %H:%M:%S UTC"
_MOST_SAID = 1 << 14  # bytes of an error
_SHORTEST = 4  # characters of a secret; shorter ones are in any text
_LONGEST_WAIT, _MOST_BYTES = 60.0, 1 << 28
_QUIET = 5.0  # seconds that pass before the user is told what is waited for


@dataclass
class Endpoint:
    """Asks an HTTP endpoint; a row that was answered is asked again only by ``again``.

    An answer is, for each row, a list of numbers (posteriors, logits, an embedding) or a class.
    ``endpoint_formats`` says how rows and answers are written.

    The ledger and all messages show the address without the values of its query.

    Attributes:
        url: of the endpoint, http or https.
        version: of the model behind it, as the user says.
        ledger: file that keeps each answer, one line of JSON for each row; "" for none.
        rate: most requests per second; 0 for no limit.
        retries: how often a failed request is repeated, after 0.5 s, 1 s, 2 s and so on, or as
            long as the server's ``Retry-After`` says, if that is at most 60 s.
        batch: most rows of a request.
        request_timeout: seconds in which a request must be answered.
        deadline: seconds for all requests, from the first on; 0 for no limit.
        format: name of a format of requests and answers.
        request: file of a template that replaces the format's body; "" for none.
        answer: path that replaces how the format reads an answer; "" for none.
        max_queries: most rows that are sent, repeated ones included; 0 for no limit.
        requests: that were sent.
        sent: rows that were sent.
        on_first: is called once, with the rows and seconds of the first request with an answer.
    """

    url: str = field(repr=False)
    version: str = ""
    ledger: str = ""
    rate: float = 0.0
    retries: int = 5
    batch: int = 64
    request_timeout: float = 60.0
    deadline: float = 0.0
    format: str = "privbench"
    request: str = ""
    answer: str = ""
    max_queries: int = 0
    requests: int = 0
    sent: int = 0
    on_first: Callable[[int, float], None] | None = None
    _format: Format = field(init=False, repr=False)
    _classes: tuple[str, ...] = ()
    _known: dict[str, Any] = field(default_factory=dict)
    _times: dict[str, str] = field(default_factory=dict)
    _last: float = 0.0
    _end: float = math.inf

    def __post_init__(self) -> None:
        """Read the ledger and the template.

        Raises:
            BadInputError: if the ledger is of another endpoint or version, or no ledger; if the
                address holds a password, is none, or is as results show it; if there is no such
                format.
        """
        try:
            parts = urllib.parse.urlsplit(self.url)
            named = "@" in parts.netloc
            whole = bool(parts.hostname) and parts.port != 0 and self.url.isprintable()
        except ValueError:
            named = whole = False
        if not whole or " " in self.url or HIDDEN in self.url:
            raise self._wrong("this is no whole address: write it as https://host/path")
        if named:
            raise BadInputError("own-model: the address holds a name or password, which is not "
                                f"sent: set {TOKEN} instead")  # fmt: skip
        self._format = format_of(self.format, self.request, self.answer, self.version)
        self.batch = 1 if self._format.single else self.batch
        if self.ledger and Path(self.ledger).exists():
            self._read()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the answers (n, ...) to rows (n, *shape) float32.

        Raises:
            BadInputError: if the endpoint refuses, or answers something else.
        """
        names = [_name(row) for row in x]
        unknown = {name: row for name, row in zip(names, x, strict=True) if name not in self._known}
        asked = list(unknown.items())
        for start in range(0, len(asked), self.batch):
            part = asked[start : start + self.batch]
            answers = self._post([row for _, row in part])
            self._keep([name for name, _ in part], answers)
        try:
            return np.asarray([self._known[name] for name in names])
        except ValueError:
            raise self._wrong("its answers to different rows differ in length") from None

    def kept(self, x: np.ndarray) -> list[str]:
        """Return when each of the rows (n, *shape) was answered, in UTC; "" for never."""
        return [self._times.get(_name(row), "") for row in x]

    def again(self, x: np.ndarray) -> np.ndarray:
        """Return the answers (n, ...) that the endpoint gives now, whatever is kept of the rows.

        They go to the ledger too, which counts every query; the first answer to a row stays its
        answer.

        Raises:
            BadInputError: if the endpoint refuses, or answers something else.
        """
        made: list[Any] = []
        for start in range(0, len(x), self.batch):
            part = x[start : start + self.batch]
            answers = self._post(list(part))
            self._keep([_name(row) for row in part], answers)
            made += answers
        return np.asarray(made)

    # ---- requests --------------------------------------------------------------------------

    def _post(self, rows: Sequence[np.ndarray]) -> list[Any]:
        body = self._format.body(rows, self.version)
        if self.deadline and not self.requests:
            self._end = time.monotonic() + self.deadline
        for attempt in range(self.retries + 1):
            self._wait()
            self._refuse_beyond_budget(len(rows))
            begun = time.monotonic()
            try:
                text = self._sent(body)
            except _RefusalError as error:
                if error.code not in _LATER or attempt == self.retries:
                    advice = _ADVICE.get(error.code, _FAILS if error.code in _LATER else _OTHER)
                    raise self._wrong(f"it refuses ({error.code} {plain(error.reason)})"
                                      f"{self._both(error.text)}: {advice}") from None  # fmt: skip
                self._back_off(attempt, f"it is busy ({error.code})", error.retry_after)
            except (OSError, http.client.HTTPException) as error:
                self._refuse_after_deadline()
                why = f"it cannot be reached ({plain(getattr(error, 'reason', None) or error)})"
                if attempt == self.retries:
                    late = isinstance(getattr(error, "reason", error), TimeoutError)
                    raise self._wrong(f"{why}: {_LATE if late else _AWAY}") from None
                self._back_off(attempt, why)
            else:
                answers = self._answers(text, len(rows))
                if self.on_first is not None:
                    told, self.on_first = self.on_first, None
                    told(len(rows), time.monotonic() - begun)
                return answers
        raise AssertionError("the last attempt returns or raises")

    def _sent(self, body: bytes) -> bytes:
        headers = {"Content-Type": self._format.media, "Accept": self._format.media}
        if token := os.environ.get(TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        self.requests += 1
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - http or https only
        seconds = min(self.request_timeout, self._end - time.monotonic())
        made: Future[bytes] = Future()

        def send() -> None:
            try:
                with _direct().open(request, timeout=seconds) as response:
                    made.set_result(response.read(_MOST_BYTES + 1))
            except urllib.error.HTTPError as error:
                made.set_exception(_RefusalError(error))
            except BaseException as error:  # noqa: BLE001 - it is raised below
                made.set_exception(error)

        # A server may send a byte now and then for ever: only another thread can be left.
        threading.Thread(target=send, daemon=True).start()
        if not wait([made], min(_QUIET, seconds)).done and seconds > _QUIET:
            self._tell(
                f"request {self.requests} has no answer yet: waiting at most {seconds:.0f} s"
            )
        if not wait([made], max(0.0, seconds - _QUIET)).done:
            raise TimeoutError(f"no whole answer in {seconds:.3g} s")
        return made.result()

    def _answers(self, text: bytes, rows: int) -> list[Any]:
        if len(text) > _MOST_BYTES:
            raise self._wrong(f"it answers more than {_MOST_BYTES:,} bytes: ask for fewer rows at "
                              "a time (batch)")  # fmt: skip
        try:
            answers, classes = self._format.answers(text, rows)
        except UnreadableError as error:
            raise self._wrong(f"its answer {error}{self._both(text)}: {_READ}") from None
        except (ValueError, RecursionError) as error:
            why = f"its answer is no JSON ({one_line(error)}){self._both(text)}"
            raise self._wrong(f"{why}: correct the address, or choose another format") from None
        self._classes = self._classes or classes
        if classes != self._classes:
            raise self._wrong("it names other classes for one row than for another: ask the server "
                              "for all classes of each")  # fmt: skip
        try:
            found = np.asarray(answers)
            if found.dtype.kind == "U":
                raise self._wrong("its answers are texts, not numbers: send 0.5 without quotes")
            numbers = found.astype(np.float64)
        except (ValueError, TypeError, OverflowError):
            raise self._wrong("its answers are not numbers, or differ in length: give one class, "
                              "or one list of numbers, for each row") from None  # fmt: skip
        if not np.isfinite(numbers).all():
            raise self._wrong("it answers numbers that are not finite: correct the model")
        return answers

    def _wait(self) -> None:
        """Keep to the rate and to the deadline."""
        pause = max(0.0, self._last + 1 / self.rate - time.monotonic()) if self.rate else 0.0
        self._refuse_after_deadline(pause)
        if self.rate:
            time.sleep(pause)
        self._last = time.monotonic()

    def _back_off(self, attempt: int, why: str, wanted: str | None = None) -> None:
        """Wait before the next attempt, as long as the server asks for, within limits."""
        asked = _seconds(wanted)
        if asked is not None and asked > _LONGEST_WAIT:
            raise self._wrong(f"{why} and asks for a pause of {asked:.0f} s (Retry-After), more "
                              f"than {_LONGEST_WAIT:.0f} s: run this again after it")  # fmt: skip
        pause = min(0.5 * 2**attempt, _LONGEST_WAIT) if asked is None else asked
        self._refuse_after_deadline(pause)
        if pause >= _QUIET:
            self._tell(f"{why}: request {self.requests} is repeated in {pause:.0f} s")
        time.sleep(pause)

    def _refuse_after_deadline(self, pause: float = 0.0) -> None:
        if time.monotonic() + pause >= self._end:
            raise self._wrong(f"its deadline of {self.deadline:g} s for all requests is over: run "
                              "this again, which goes on where it stopped, or set a later "
                              "deadline")  # fmt: skip

    def _refuse_beyond_budget(self, rows: int) -> None:
        if self.max_queries and self.sent + rows > self.max_queries:
            raise self._wrong(f"{self.sent:,} rows were sent, and {rows:,} more are more than the "
                              f"{self.max_queries:,} of max_queries: run this again, which goes on "
                              "where it stopped, or allow more")  # fmt: skip
        self.sent += rows

    def _both(self, text: bytes) -> str:
        """Return what the server answers and what it was sent, without rows and secrets."""
        query = urllib.parse.urlsplit(self.url).query
        as_sent = [pair.partition("=")[2] for pair in query.split("&")]
        secrets = [os.environ.get(TOKEN, ""), *as_sent, *map(urllib.parse.unquote_plus, as_sent)]
        secrets = [one for one in secrets if len(one) >= _SHORTEST]
        told = " ".join(hidden(text.decode(errors="replace"), *secrets).split())
        sent = shown(hidden(self._format.outline(), *secrets), 200)
        return f"; it answers {shown(told, 300) or 'nothing'}, and was sent {sent}"

    def _tell(self, what: str) -> None:
        warnings.warn(f"{plain(redacted(self.url))}: {what}", UserWarning, stacklevel=2)

    # ---- ledger ----------------------------------------------------------------------------

    def _read(self) -> None:
        path = Path(self.ledger)
        whole, _, partial = path.read_bytes().rpartition(b"\n")
        try:
            head, *lines = [json.loads(line) for line in whole.split(b"\n")]
            changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime(_TIME)
            for line in lines:
                self._known.setdefault(line["row"], line["output"])
                self._times.setdefault(line["row"], str(line.get("time", changed)))
            of = head["endpoint"], head["version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadInputError(f"own-model: {plain(path)} is no ledger of an endpoint: move it "
                                "away, or choose another directory") from None  # fmt: skip
        known, now = (redacted(str(of[0])), of[1]), (redacted(self.url), self.version)
        if known != now:
            raise BadInputError(
                f"own-model: {plain(path)} holds answers of {plain(known[0])}, version "
                f"'{plain(known[1])}', not of {plain(now[0])}, version '{plain(now[1])}': "
                "choose another directory"
            )
        if partial:  # of a run that was interrupted while it wrote
            path.write_bytes(whole + b"\n")

    def _keep(self, names: Sequence[str], answers: Sequence[Any]) -> None:
        now = datetime.now(UTC).strftime(_TIME)
        for name, one in zip(names, answers, strict=True):
            self._known.setdefault(name, one)
            self._times.setdefault(name, now)
        if not self.ledger:
            return
        path = Path(self.ledger)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"row": name, "output": one, "time": now}
                 for name, one in zip(names, answers, strict=True)]  # fmt: skip
        with open(path, "a", encoding="utf-8", opener=_private) as file:
            if file.tell() == 0:
                lines = [{"endpoint": redacted(self.url), "version": self.version}, *lines]
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def _wrong(self, problem: str) -> BadInputError:
        return BadInputError(f"own-model: the endpoint {plain(redacted(self.url))}: {problem}")


class _RefusalError(Exception):
    """A state of a server other than 200, with the beginning of what it says."""

    def __init__(self, error: urllib.error.HTTPError) -> None:
        """Read it; whoever does may wait for long."""
        super().__init__()
        self.code, self.reason, self.text = error.code, error.reason, b""
        self.retry_after = error.headers["Retry-After"]
        with error, contextlib.suppress(OSError, http.client.HTTPException):
            self.text = error.read(_MOST_SAID)


def _private(name: str, flags: int) -> int:
    """Open a file that only the user may read, if it is new."""
    return os.open(name, flags, 0o600)


def _seconds(wanted: str | None) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, as a number or a date; None if none."""
    if wanted is None:
        return None
    try:
        if wanted.isdecimal():
            return float(wanted)
        return max(0.0, (parsedate_to_datetime(wanted) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a zone
        return None


def _direct() -> urllib.request.OpenerDirector:
    """Return an opener that follows no redirection, which could lead anywhere."""
    return urllib.request.build_opener(_Still)


class _Still(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        """Follow none: a redirection is then an error of the server."""
        del given, named


def _name(row: np.ndarray) -> str:
    """Return what identifies the content of a row."""
    content = np.ascontiguousarray(row, np.float32)
    return hashlib.sha256(f"{content.shape}".encode() + content.tobytes()).hexdigest()[:32]
