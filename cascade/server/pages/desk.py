"""Reviews over HTTP: each key is a request, and a judgement is on the disk before its response is sent.

The server keeps no review in memory. Each request reads the file of reviews and replays the keys that were pressed
since the last judgement, so a reload, another process or a killed server changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cascade.api.judging import Judging, review_place
from cascade.config import CascadeConfig, traces_url
from cascade.errors import UsageError
from cascade.records.traces import Store
from cascade.review.labels import LossBound, shown
from cascade.review.pairs import Compared, output_lines, request_lines
from cascade.review.report import RaterAgreement, ReviewerTally, agreements, tallies
from cascade.review.reviews import Reviews, ReviewStore, reviews_at
from cascade.review.session import MOVES, Room, Session
from cascade.server.refusals import Refused

_STALE_S = 60.0
"""Seconds after which a log is read again when a page is opened."""


class Card(NamedTuple):
    """A pair as shown: only texts, without any hint at which model wrote which output.

    Attributes:
        token: its name in a request.
        number: its number among the pairs that this reviewer sees.
        text: the question.
        request: the whole request, line by line.
        outputs: both outputs.
        question: what the reviewer is asked.
        choices: the judgement of each key.
        moves: the effect of the other keys.
    """

    token: str
    number: int
    text: str
    request: str
    outputs: tuple[str, str]
    question: str
    choices: Mapping[str, str]
    moves: Mapping[str, str]


class View(NamedTuple):
    """The contents of a review's page.

    Attributes:
        reviewer: the reviewer's name.
        card: the pair; None if no more are needed.
        keys: the keys pressed since the last judgement.
        unknown: an unknown key, if one was pressed.
        total: how many pairs were drawn.
        done: how many of them this reviewer has judged or skipped.
        settled: whether no further judgement changes what can be certified.
        people: the judgements of each reviewer.
        agreement: the agreement of each two reviewers.
        shown: the conclusions from all judgements.
        path: the file.
        notes: notes on the log.
    """

    reviewer: str
    card: Card | None
    keys: str
    unknown: str
    total: int
    done: int
    settled: bool
    people: list[ReviewerTally]
    agreement: list[RaterAgreement]
    shown: LossBound
    path: str
    notes: tuple[str, ...]


class _Read(NamedTuple):
    """A log, and when it was read."""

    compared: Compared
    notes: tuple[str, ...]
    at_s: float


class Desk:
    """The review page's logic: people judge pairs of outputs.

    Args:
        config: names the log to judge (`server.review`) and the traces.
    """

    def __init__(self, config: CascadeConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._log: _Read | None = None
        self._made: tuple[Compared, str, Room] | None = None

    def view(self, reviewer: str) -> View:
        """Return the page's contents for a reviewer. Raises UsageError, with advice, if there is nothing to judge."""
        with self._lock:
            judging = self._judging()
            log = self._read(judging, again=True)
            with ReviewStore(judging.path, judging.terms(log.compared.comparator)) as store:
                reviews = store.reviews
            room = self._room(judging, log, reviews)
            return _view(room, room.session(reviewer, reviews.by(reviewer)), reviews, (reviewer, "", ""), judging, log)

    def press(self, reviewer: str, pair: str, keys: str) -> View:
        """Apply the last of the keys pressed since the last judgement; write the judgement, if it makes one.

        Args:
            reviewer: the reviewer's name.
            pair: the token of the pair that was on the screen.
            keys: all keys since the last judgement.

        Raises:
            Refused: (409) by now another pair is next.
            UsageError: as `view`.
        """
        with self._lock:
            judging = self._judging()
            log = self._read(judging, again=False)
            with ReviewStore(judging.path, judging.terms(log.compared.comparator)) as store:
                room = self._room(judging, log, store.reviews)
                session = room.session(reviewer, store.reviews.by(reviewer))
                for key in keys[:-1]:
                    session.press(key)
                current = session.current
                if current is None or room.token(reviewer, current.pair.id) != pair:
                    raise Refused(409, "Another pair is next by now. Reload the page.", code="stale_pair")
                pressed = session.press(keys[-1])
                if pressed.written is not None:
                    store.add(pressed.written)
            left = "" if pressed.written is not None else keys if pressed.known else keys[:-1]
            unknown = "" if pressed.known else keys[-1]
            reviews = (pressed.written is not None and reviews_at(judging.path)) or store.reviews
            return _view(room, session, reviews, (reviewer, left, unknown), judging, log)

    def _judging(self) -> Judging:
        """Return the log to judge and the options, from the configuration."""
        wanted = self._config.server.review
        log, where, file = wanted.log, None, review_place(self._config)
        if log is None:
            log, where = traces_url(self._config.traces), {"split": "audit"}
            if log is None:
                raise UsageError("There is nothing to judge: traces are off. Set traces, or server.review.log.")
            _refuse_unaudited(log)
        policy = None if wanted.policy is None else Path(wanted.policy)
        return Judging(log, file, wanted.ask, policy, wanted.risk, wanted.confidence, wanted.label_rate, where=where)

    def _read(self, judging: Judging, *, again: bool) -> _Read:
        """Return the log; read it if it has not been read, or if it is old and `again` is true."""
        now = time.monotonic()
        if self._log is None or (again and now - self._log.at_s > _STALE_S):
            notes = list[str]()
            self._log = _Read(judging.read(notes.append), tuple(notes), now)
        return self._log

    def _room(self, judging: Judging, log: _Read, reviews: Reviews) -> Room:
        made = self._made
        if made is None or made[0] is not log.compared or made[1] != reviews.terms.key:
            made = self._made = log.compared, reviews.terms.key, judging.room(log.compared, reviews.terms)
        return made[2]


def _refuse_unaudited(url: str) -> None:
    """Refuse traces without audits. Raises UsageError, with advice."""
    try:
        with Store.open(url, read_only=True) as store:
            audited = store.count({"split": "audit"})
    except UsageError:  # there are no traces yet
        audited = 0
    if not audited:
        raise UsageError(
            "No request has been audited yet, and people judge the differences that audits find. To draw audits, "
            "give the configuration a section modes, or guarantee: {audit: {probability: 0.1}}."
        )


def _view(
    room: Room, session: Session, reviews: Reviews, who: tuple[str, str, str], judging: Judging, log: _Read
) -> View:
    reviewer, keys, unknown = who
    done = sum(pair.id in session.judged for pair in room.drawn)
    return View(
        reviewer,
        _card(room, session, reviewer),
        keys,
        unknown,
        len(room.drawn),
        done,
        room.along is not None and session.current is None,
        tallies(reviews),
        agreements(reviews),
        shown(room.drawn, room.requests, reviews, judging.promise(room.terms.rate)),
        str(judging.path),
        log.notes,
    )


def _card(room: Room, session: Session, reviewer: str) -> Card | None:
    sides = session.current
    if sides is None:
        return None
    pair = sides.pair
    first, second = sides.outputs
    number = 1 + sum(judged != pair.id for judged in session.judged)
    moves = {key: meaning for key, meaning in MOVES.items() if key != "q"}
    return Card(
        room.token(reviewer, pair.id),
        number,
        pair.text,
        "\n".join(request_lines(pair)),
        ("\n".join(output_lines(first)), "\n".join(output_lines(second))),
        *session.stage,
        moves,
    )
