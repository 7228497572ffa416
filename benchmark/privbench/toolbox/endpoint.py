"""A model behind an HTTP endpoint, and the ledger of what it answered."""

from __future__ import annotations

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
from privbench.ground.tokens import HIDDEN, redacted
from privbench.toolbox.messages import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TOKEN", "Endpoint", "redacted"]

#: Environment variable whose text is sent as a bearer token; it is written nowhere.
TOKEN = "PRIVBENCH_ENDPOINT_TOKEN"  # noqa: S105 - the name of a variable
#: States in which a server may answer later.
_LATER = {408, 425, 429, 500, 502, 503, 504}
#: How the time of an answer is written.
_TIME = "%Y-%m-%d %H:%M:%S UTC"
_LONGEST_WAIT, _MOST_BYTES = 60.0, 1 << 28
_QUIET = 5.0  # seconds that pass before the user is told what is waited for


@dataclass
class Endpoint:
    """Asks an HTTP endpoint; a row that was answered is asked again only by ``again``.

    A request is ``POST {"inputs": [row, ...]}`` with nested lists of numbers, and its answer is
    ``{"outputs": [answer, ...]}``: for each row a list of numbers (posteriors, logits, an
    embedding) or a class.

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
    """

    url: str = field(repr=False)
    version: str = ""
    ledger: str = ""
    rate: float = 0.0
    retries: int = 5
    batch: int = 64
    request_timeout: float = 60.0
    deadline: float = 0.0
    requests: int = 0
    _known: dict[str, Any] = field(default_factory=dict)
    _times: dict[str, str] = field(default_factory=dict)
    _last: float = 0.0
    _end: float = math.inf

    def __post_init__(self) -> None:
        """Read the ledger.

        Raises:
            BadInputError: if it is of another endpoint or version, or no ledger; if the address
                holds a password, is none, or is as results show it.
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
        body = json.dumps({"inputs": [row.tolist() for row in rows]}).encode()
        if self.deadline and not self.requests:
            self._end = time.monotonic() + self.deadline
        for attempt in range(self.retries + 1):
            self._wait()
            try:
                return self._answers(self._sent(body), len(rows))
            except BadInputError:
                raise
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in _LATER or attempt == self.retries:
                    told = f"it refuses ({error.code} {plain(error.reason)})"
                    advice = f"check the address, and {TOKEN} if it wants a token"
                    raise self._wrong(f"{told}: {advice}") from None
                self._back_off(attempt, f"it is busy ({error.code})", error.headers["Retry-After"])
            except (OSError, http.client.HTTPException) as error:
                self._refuse_after_deadline()
                why = f"it cannot be reached ({plain(getattr(error, 'reason', None) or error)})"
                if attempt == self.retries:
                    raise self._wrong(f"{why}: start it, or correct the address") from None
                self._back_off(attempt, why)
        raise AssertionError("the last attempt returns or raises")

    def _sent(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
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
            told = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"its answer is no JSON ({one_line(error)})") from None
        answers = told.get("outputs") if isinstance(told, dict) else None
        if not isinstance(answers, list) or len(answers) != rows:
            raise self._wrong(f'it did not answer {{"outputs": [...]}} with {rows} answers, one '
                              "for each row")  # fmt: skip
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
