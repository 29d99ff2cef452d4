"""Reviews over HTTP: each key is a request, and a judgement is on the disk before its response is sent.

The server keeps no review in memory. Each request reads the file of reviews and replays the keys that were pressed
since the last judgement, so a reload, another process or a killed server changes nothing.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from cascade.api.logs import LogOptions
from cascade.api.reviews import ReviewOptions, review_location
from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.records.traces import Store
from cascade.review.pairs import Compared, output_lines, request_lines
from cascade.review.reviews import ReviewStore, location_shown
from cascade.review.session import MOVES, Pressed, Session
from cascade.server.errors import GatewayError

_LIMIT_S = 10.0
"""How long a page waits for the traces."""
_STALE_S = 60.0
"""Seconds after which a log is read again when a page is opened."""


class _OpenLog(NamedTuple):
    """A log, and when it was read."""

    outputs: Compared
    notes: tuple[str, ...]
    at_s: float


class ReviewPage:
    """The review page's logic: people judge pairs of outputs from `server.review.log` or from the traces."""

    def __init__(self, config: CascadeConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._log: _OpenLog | None = None

    def view(self, reviewer: str, pair: str | None = None, keys: str = "") -> dict[str, Any]:
        """Apply the last of the keys, writing the judgement if it makes one; return the page's contents for a reviewer.

        `pair` is the token of the pair that was on the screen, None if nothing was pressed; `keys` are all keys
        since the last judgement.

        Raises:
            GatewayError: another pair is next by now (409).
            UsageError: there is nothing to judge; the message has advice.
        """
        with self._lock:
            options = self._options()
            log = self._read(options, again=pair is None)
            pressed = Pressed()
            with ReviewStore(options.path, options.terms(log.outputs.comparator)) as store:
                reviews = store.reviews
                session = Session(log.outputs.pairs, reviews.terms, reviewer, reviews.by(reviewer))
                if pair is not None:
                    pressed = _press(session, pair, keys)
                if pressed.written is not None:
                    store.add(pressed.written)
            keys = keys if pressed.written is None else ""
            return {
                "reviewer": reviewer,
                "card": _card(session),
                "pressed": keys if pressed.meant else keys[:-1],
                "unknown": "" if pressed.meant else keys[-1],
                "total": len(session.drawn),
                "done": sum(drawn.id in session.judged for drawn in session.drawn),
                "path": location_shown(options.path),
                "notes": log.notes,
            }

    def _options(self) -> ReviewOptions:
        """Return the log to judge and the options, from the configuration."""
        options = self._config.server.review
        log, where, file = options.log, None, review_location(self._config)
        if log is None:
            log, where = self._config.traces_url, {"split": "audit"}
            if log is None:
                raise UsageError("There is nothing to judge: traces are off. Set traces, or server.review.log.")
            audited = 0
            with suppress(UsageError), Store(log, read_only=True, limit_s=_LIMIT_S) as store:  # there may be none yet
                audited = store.count(where)
            if not audited:
                raise UsageError(
                    "No request has been audited or observed yet, and people judge the differences that this finds. It "
                    "needs a section modes in the configuration, or audits: {probability: 0.1}."
                )
        return ReviewOptions(LogOptions(log, where), file, options.ask, options.label_rate)

    def _read(self, options: ReviewOptions, *, again: bool) -> _OpenLog:
        """Return the log; read it if it has not been read, or if it is old and `again` is true."""
        now_s = time.monotonic()
        if self._log is None or (again and now_s - self._log.at_s > _STALE_S):
            notes = list[str]()
            self._log = _OpenLog(options.read(notes.append), tuple(notes), now_s)
        return self._log


def _press(session: Session, pair: str, keys: str) -> Pressed:
    """Press keys, the last one on the pair that was on the screen; return its effect."""
    for key in keys[:-1]:
        session.press(key)
    current = session.current
    if current is None or current.token != pair:
        raise GatewayError(409, "Another pair is next by now. Reload the page.", code="stale_pair")
    return session.press(keys[-1])


def _card(session: Session) -> dict[str, Any] | None:
    """Return a pair as texts, without any hint at which model wrote which output; None if no more are needed."""
    sides = session.current
    if sides is None:
        return None
    return {
        "token": sides.token,
        "number": session.number,
        "text": sides.pair.text,
        "request": "\n".join(request_lines(sides.pair)),
        "outputs": ["\n".join(output_lines(output)) for output in sides.outputs],
        "question": session.stage.question,
        "choices": session.stage.keys,
        "moves": {key: meaning for key, meaning in MOVES.items() if key != "q"},
    }
