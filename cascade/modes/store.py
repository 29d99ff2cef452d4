"""Stores the state of cascades, so that replicas agree and a restart forgets nothing.

Every change is one transaction that reads, decides and writes with the row locked; the decision is a pure function.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from cascade.budget.database import Database
from cascade.episodes.store import StoreError
from cascade.episodes.store.address import database_at
from cascade.errors import UsageError
from cascade.modes.state import CascadeState, Counts, Draw, Look, Opened

_DRAW = ", ".join(Draw._fields)
_TABLES = (
    """CREATE TABLE IF NOT EXISTS cascade_modes (cascade TEXT PRIMARY KEY, version BIGINT NOT NULL,
    secret TEXT NOT NULL, document TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS cascade_draws (trace_id TEXT PRIMARY KEY, cascade TEXT NOT NULL,
    conversation TEXT NOT NULL, turn TEXT NOT NULL, role TEXT NOT NULL, source TEXT NOT NULL,
    rate DOUBLE PRECISION NOT NULL, drawn_s DOUBLE PRECISION NOT NULL, outcome TEXT NOT NULL, why TEXT, look BIGINT,
    certificate TEXT, differs BOOLEAN, counted BOOLEAN NOT NULL, e_value DOUBLE PRECISION, off_path_nano_usd BIGINT,
    era BIGINT NOT NULL, lost BOOLEAN, pair TEXT, UNIQUE (cascade, conversation, turn))""",
    "CREATE INDEX IF NOT EXISTS cascade_draws_when ON cascade_draws (cascade, drawn_s)",
    """CREATE TABLE IF NOT EXISTS cascade_looks (cascade TEXT NOT NULL, look BIGINT NOT NULL, at TEXT NOT NULL,
    by TEXT NOT NULL, verdict TEXT NOT NULL, page TEXT NOT NULL, files TEXT NOT NULL,
    opened_s DOUBLE PRECISION NOT NULL, tries BIGINT NOT NULL, era BIGINT NOT NULL, level DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (cascade, look))""",
    """CREATE TABLE IF NOT EXISTS cascade_leases (cascade TEXT PRIMARY KEY, owner TEXT NOT NULL,
    until_s DOUBLE PRECISION NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS cascade_written (conversation TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS cascade_format (version BIGINT PRIMARY KEY)",
)
FORMAT = 1
"""The version of the tables and of the state in them. A store of another version is refused."""
LOST_S = 3_600.0
"""Seconds after its draw at which a pending row counts as missing: its process was killed."""
_WHOLE = """SELECT conversation FROM cascade_draws WHERE cascade = ? GROUP BY conversation
HAVING MIN(CASE WHEN role = 'certify' AND look IS NULL AND outcome <> 'pending' AND era = ? THEN 1 ELSE 0 END) = 1"""
"""Conversations that may certify: no turn is pending, audited, of another era, or was looked at."""
_FITS = "(role = 'fit' OR look IS NOT NULL) AND outcome <> 'pending' AND era = ?"


Refuse: TypeAlias = Callable[[int, float, int, int], str | None]
"""Returns why a look would be useless, from its number, its part of delta, the fitting rows and the conversations."""


def now_iso() -> str:
    """Return the current time, UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class ModeStore:
    """The state of cascades in a database. Made by `open` or `memory`; close it. Threads may share it.

    Each method raises StoreError if the database does not answer. Then it is unknown whether a change was made.
    `cascade` is always a cascade's name, and times (`_s`) are seconds since 1970.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failures: tuple[type[Exception], ...] = (*database.broken, sqlite3.OperationalError)
        self.blocks = database.blocks

    @classmethod
    def open(cls, url: str) -> ModeStore:
        """Open a store; create its file and tables if they do not exist.

        Raises:
            UsageError: the URL is not that of a store, or its store is of another format.
            StoreError: it cannot be reached.
        """
        made = cls(database_at(url, _TABLES, "modes.store"))
        made._check_format()
        return made

    @classmethod
    def memory(cls) -> ModeStore:
        """Return a store in memory, which ends with this process."""
        return cls(Database.memory(_TABLES))

    def _check_format(self) -> None:
        """Mark a fresh store with its format. Raises UsageError for a store of another format."""
        with self._transaction() as run:
            if run("SELECT 1 FROM cascade_modes LIMIT 1").fetchone() is None:
                run("INSERT INTO cascade_format (version) VALUES (?) ON CONFLICT DO NOTHING", FORMAT)
            versions = [version for (version,) in run("SELECT version FROM cascade_format").fetchall()]
        if versions != [FORMAT]:
            self.close()
            raise UsageError(
                f"The store of the modes has the format {versions[0] if versions else 0}, and this version of cascade "
                f"reads {FORMAT}. Name a new store in modes.store: the cascade then observes, and promotes anew."
            )

    def close(self) -> None:
        """Release the connections."""
        self._database.close()

    @contextmanager
    def _transaction(self, *, reading: bool = False) -> Iterator[Callable[..., Any]]:
        """Run statements in one transaction. Raises StoreError if the database does not answer."""
        try:
            with self._database.transaction(reading=reading) as run:
                yield run
        except self._failures as error:
            said = f"modes.store cannot be reached ({type(error).__name__}). Try again."
            raise StoreError(said, retryable=True) from error

    # --- state ---

    def begin(self, cascade: str, secret: bytes | None = None) -> tuple[CascadeState, bytes]:
        """Return a cascade's state and the secret of its draws; a new cascade gets both, by default 256 random bits."""
        with self._transaction() as run:
            fresh = CascadeState(cascade)
            run(
                "INSERT INTO cascade_modes (cascade, version, secret, document) VALUES (?, 0, ?, ?) "
                "ON CONFLICT (cascade) DO NOTHING",
                *(cascade, (secret or secrets.token_bytes(32)).hex(), fresh.dumps()),
            )
            found = run("SELECT version, secret, document FROM cascade_modes WHERE cascade = ?", cascade).fetchone()
        return CascadeState.loads(found[2], found[0]), bytes.fromhex(found[1])

    def state(self, cascade: str, known: CascadeState | None = None) -> CascadeState:
        """Return a cascade's state; `known` itself if it has not changed.

        Raises:
            UsageError: there is no such cascade.
        """
        with self._transaction(reading=True) as run:
            query = "SELECT version, document FROM cascade_modes WHERE cascade = ? AND version <> ?"
            found = run(query, cascade, -1 if known is None else known.version).fetchone()
        if found is not None:
            return CascadeState.loads(found[1], found[0])
        if known is None:
            raise UsageError(f"There is no record of a cascade {cascade!r}: it has not been served with modes yet.")
        return known

    def names(self) -> list[str]:
        """Return the names of all cascades in the store."""
        with self._transaction(reading=True) as run:
            return [name for (name,) in run("SELECT cascade FROM cascade_modes ORDER BY cascade").fetchall()]

    def change(self, cascade: str, decide: Callable[[CascadeState], CascadeState]) -> CascadeState:
        """Replace a state by the result of `decide`; if `decide` raises, the state stays."""
        with self._transaction() as run:
            return self._change(run, cascade, decide)

    def _locked(self, run: Callable[..., Any], cascade: str) -> CascadeState:
        """Return a state, locked until the transaction ends."""
        lock = self._database.row_lock
        found = run(f"SELECT version, document FROM cascade_modes WHERE cascade = ?{lock}", cascade).fetchone()  # noqa: S608 - constants
        if found is None:
            raise UsageError(f"There is no record of a cascade {cascade!r}: it has not been served with modes yet.")
        return CascadeState.loads(found[1], found[0])

    def _change(
        self, run: Callable[..., Any], cascade: str, decide: Callable[[CascadeState], CascadeState]
    ) -> CascadeState:
        before = self._locked(run, cascade)
        after = decide(before)
        if after == before:
            return before
        version = before.version + 1
        run("UPDATE cascade_modes SET version = ?, document = ? WHERE cascade = ?", version, after.dumps(), cascade)
        return CascadeState.loads(after.dumps(), version)

    # --- drawn rows ---

    def draw(self, row: Draw) -> bool:
        """Record a drawn row; return False if this turn of the conversation is recorded already."""
        marks = ", ".join("?" * len(row))
        with self._transaction() as run:
            made = run(f"INSERT INTO cascade_draws ({_DRAW}) VALUES ({marks}) ON CONFLICT DO NOTHING", *row)  # noqa: S608 - columns and marks
            return bool(made.rowcount)

    def observes(self, cascade: str, conversation: str) -> bool:
        """Return whether an observed turn of a conversation is on record."""
        with self._transaction(reading=True) as run:
            query = "SELECT 1 FROM cascade_draws WHERE cascade = ? AND conversation = ? AND source = 'observe' LIMIT 1"
            return run(query, cascade, conversation).fetchone() is not None

    def settle(self, trace_id: str, why_missing: str | None, off_path_nano_usd: int | None) -> bool:
        """Settle a pending row; return whether it was pending."""
        with self._transaction() as run:
            return self._settle(run, trace_id, why_missing, off_path_nano_usd)

    @staticmethod
    def _settle(run: Callable[..., Any], trace_id: str, why: str | None, off_path_nano_usd: int | None) -> bool:
        made = run(
            "UPDATE cascade_draws SET outcome = ?, why = ?, off_path_nano_usd = ? "
            "WHERE trace_id = ? AND outcome = 'pending'",
            *("complete" if why is None else "missing", why, off_path_nano_usd, trace_id),
        )
        return bool(made.rowcount)

    def settle_audit(
        self,
        row: Draw,
        differs: bool | None,
        why_missing: str | None = None,
        off_path_nano_usd: int | None = None,
        pair: str | None = None,
    ) -> CascadeState:
        """Settle an audit and let the e-process count what need not wait (`count`); return the state after it.

        It counts only if its certificate is still in force. If people's judgements decide, `count` counts it later. If
        it is unknown whether it differs (None), it never counts: a failure of the guide is no evidence about the
        answers served.
        """
        with self._transaction() as run:
            state = self._locked(run, row.cascade)
            if not self._settle(run, row.trace_id, why_missing, off_path_nano_usd):
                return state
            run(
                "UPDATE cascade_draws SET differs = ?, pair = ? WHERE trace_id = ?",
                *(differs, pair if differs else None, row.trace_id),
            )
            if state.in_force is None or state.in_force.by_people:
                return state
            return self._count_in_order(run, state, lambda one: one.differs)

    def _count_in_order(
        self, run: Callable[..., Any], state: CascadeState, missed: Callable[[Draw], bool | None]
    ) -> CascadeState:
        """Let the e-process count audits of the certificate in force, each after all that were drawn before it.

        Stops at the first audit that is pending or of which `missed` returns None. A row that was drawn before the last
        one counted has had its turn.
        """
        held = state.in_force
        if held is None:
            return state
        mine = state.cascade, held.certificate
        last = "SELECT drawn_s FROM cascade_draws WHERE cascade = ? AND certificate = ? AND counted"
        reached = run(f"{last} ORDER BY drawn_s DESC LIMIT 1", *mine).fetchone()
        query = f"""SELECT {_DRAW} FROM cascade_draws WHERE cascade = ? AND certificate = ? AND drawn_s >= ?
        AND NOT counted AND (outcome = 'pending' OR differs IS NOT NULL) ORDER BY drawn_s, trace_id"""  # noqa: S608 - columns
        for row in map(_draw, run(query, *mine, reached[0] if reached else 0.0).fetchall()):
            if state.mode != "enforce":
                break
            loses = None if row.outcome == "pending" else missed(row)
            if loses is None:
                break
            state = self._count(run, row, loses)
        return state

    def _count(self, run: Callable[..., Any], row: Draw, missed: bool) -> CascadeState:
        at, mine = now_iso(), (row.cascade, row.conversation, row.certificate)
        query = """SELECT COUNT(*), SUM(CASE WHEN lost THEN 1 ELSE 0 END) FROM cascade_draws
        WHERE cascade = ? AND conversation = ? AND certificate = ? AND counted"""
        audits, misses = run(query, *mine).fetchone()
        after = self._change(run, row.cascade, lambda one: one.audited(missed, at, (audits, int(misses or 0))))
        value = None if after.monitor is None else after.monitor.e_value
        run(
            "UPDATE cascade_draws SET counted = ?, lost = ?, e_value = ? WHERE trace_id = ?",
            *(True, missed, value, row.trace_id),
        )
        return after

    def judge(self, cascade: str, losses: Mapping[str, bool]) -> int:
        """Record people's judgements of drawn requests; return how many of these requests are recorded.

        `losses` says by the request's trace whether the answer that differs loses. If reviewers disagree, it does.
        """
        many = 0
        with self._transaction() as run:
            self._locked(run, cascade)
            for trace_id, lost in losses.items():
                made = run(
                    "UPDATE cascade_draws SET lost = CASE WHEN lost THEN lost ELSE ? END "
                    "WHERE cascade = ? AND trace_id = ? AND NOT counted",
                    *(lost, cascade, trace_id),
                )
                many += int(made.rowcount)
        return many

    def count(self, cascade: str, now_s: float, label_s: float, losses: Mapping[str, bool]) -> CascadeState:
        """Let the e-process count audits in the order in which they were drawn.

        An audit waits until all earlier ones are counted. So neither whether nor when it counts depends on its result.
        Where people judge, an audit that differs counts as a loss if nobody judges it in time. If nobody can know
        whether it differs (the guide was down, the process was killed), it is skipped.

        `label_s` is how long a judgement may take; `losses` has the reviewers' judgements, by `pair_name`.
        """
        with self._transaction() as run:
            state = self._locked(run, cascade)
            if state.in_force is None or not state.in_force.by_people:
                return self._count_in_order(run, state, lambda one: one.differs)
            return self._count_in_order(
                run, state, lambda one: missed(one, losses, late=one.drawn_s + label_s <= now_s)
            )

    def is_pending(self, trace_id: str) -> bool:
        """Return whether a drawn row waits for its outcome: its trace is not complete yet."""
        with self._transaction(reading=True) as run:
            query = "SELECT 1 FROM cascade_draws WHERE trace_id = ? AND outcome = 'pending'"
            return run(query, trace_id).fetchone() is not None

    def expire(self, cascade: str, before_s: float) -> int:
        """Mark rows as missing that are pending since before a time, as their process was killed. Return how many."""
        with self._transaction() as run:
            made = run(
                "UPDATE cascade_draws SET outcome = 'missing', why = 'its process ended' "
                "WHERE cascade = ? AND outcome = 'pending' AND drawn_s < ?",
                *(cascade, before_s),
            )
            return int(made.rowcount)

    def draws(self, cascade: str, *, newest: int | None = None, counted_for: str | None = None) -> list[Draw]:
        """Return drawn rows in the order they were drawn; of many, the `newest` ones.

        With `counted_for` only audits that the e-process counted for the certificate with this id.
        """
        query = f"SELECT {_DRAW} FROM cascade_draws WHERE cascade = ?"  # noqa: S608 - columns
        query += "" if counted_for is None else " AND counted AND certificate = ?"
        query += " ORDER BY drawn_s DESC, trace_id DESC" + ("" if newest is None else f" LIMIT {int(newest)}")
        with self._transaction(reading=True) as run:
            found = run(query, cascade, *([] if counted_for is None else [counted_for])).fetchall()
        return [_draw(row) for row in found[::-1]]

    def counts(self, cascade: str, since_s: float = 0.0) -> Counts:
        """Return the counts of all rows, or of those drawn since a time."""
        latest = (
            "SELECT certificate FROM cascade_draws WHERE cascade = ? AND source = 'audit' ORDER BY drawn_s DESC LIMIT 1"
        )
        query = f"""SELECT SUM(CASE WHEN outcome = 'pending' THEN 1 ELSE 0 END),
        SUM(CASE WHEN outcome = 'complete' THEN 1 ELSE 0 END), SUM(CASE WHEN outcome = 'missing' THEN 1 ELSE 0 END),
        SUM(CASE WHEN {_FITS} THEN 1 ELSE 0 END),
        SUM(CASE WHEN whole THEN 1 ELSE 0 END),
        COUNT(DISTINCT CASE WHEN whole THEN conversation END),
        SUM(CASE WHEN counted AND certificate = ({latest}) THEN 1 ELSE 0 END),
        SUM(CASE WHEN counted AND lost AND certificate = ({latest}) THEN 1 ELSE 0 END),
        SUM(CASE WHEN outcome <> 'pending' AND differs IS NULL AND certificate = ({latest}) THEN 1 ELSE 0 END),
        SUM(1 / rate), MIN(drawn_s), SUM(off_path_nano_usd), COUNT(off_path_nano_usd)
        FROM (SELECT *, conversation IN ({_WHOLE}) AS whole FROM cascade_draws) AS draws
        WHERE cascade = ? AND drawn_s >= ?"""  # noqa: S608 - constants
        with self._transaction(reading=True) as run:
            held = run("SELECT document FROM cascade_modes WHERE cascade = ?", cascade).fetchone()
            era = 0 if held is None else CascadeState.loads(held[0], 0).era
            found = run(query, era, *[cascade] * 4, era, cascade, since_s).fetchone()
        *numbers, requests, first, cost, priced = found
        settled = [int(number or 0) for number in numbers]
        return Counts._make([*settled, round(requests or 0.0), first, int(cost or 0), int(priced)])

    # --- looks ---

    def lease(self, cascade: str, owner: str, now_s: float, until_s: float) -> bool:
        """Take or prolong the right to look at a cascade; return False if another owner has it.

        It ends by itself, so that a killed process does not block others for longer. `owner` is a unique name.
        """
        with self._transaction() as run:
            made = run(
                "INSERT INTO cascade_leases (cascade, owner, until_s) VALUES (?, ?, ?) ON CONFLICT (cascade) "
                "DO UPDATE SET owner = excluded.owner, until_s = excluded.until_s "
                "WHERE cascade_leases.owner = excluded.owner OR cascade_leases.until_s <= ?",
                *(cascade, owner, until_s, now_s),
            )
            return bool(made.rowcount)

    def leased_until(self, cascade: str) -> float:
        """Return when the lease ends, in seconds since 1970; 0 if it is free."""
        with self._transaction(reading=True) as run:
            found = run("SELECT until_s FROM cascade_leases WHERE cascade = ?", cascade).fetchone()
        return 0.0 if found is None else float(found[0])

    def release(self, cascade: str, owner: str) -> None:
        """Release a lease; nothing happens if another owner has it by now."""
        with self._transaction() as run:
            run("DELETE FROM cascade_leases WHERE cascade = ? AND owner = ?", cascade, owner)

    def open_look(self, cascade: str, by: str, opened_s: float, delta: float, refuse: Refuse) -> Opened:
        """Begin a look: count it, and take the conversations that certify, which never certify again.

        It is counted before anybody sees a row, so an interrupted look has spent its share. An interrupted look is
        resumed, with its number, its part of delta and its rows, before another one begins.

        Args:
            cascade: its name.
            by: who promotes, for the record.
            opened_s: the time.
            delta: of all looks.
            refuse: returns why a look cannot succeed; None if it may.

        Raises:
            UsageError: it cannot succeed; nothing was counted.
        """
        with self._transaction() as run:
            state = self._locked(run, cascade)
            query = "SELECT look, level, opened_s, tries, era FROM cascade_looks WHERE cascade = ? AND verdict = 'open'"
            left = run(f"{query} ORDER BY look LIMIT 1", cascade).fetchone()
            if left is not None:
                number, level, opened_s, tries, era = left
                run("UPDATE cascade_looks SET tries = tries + 1 WHERE cascade = ? AND look = ?", cascade, number)
                return Opened(number, level, self._looked_at(run, cascade, number), opened_s, tries + 1, era)
            number, level, era = state.looks + 1, state.next_level(delta), state.era
            count = f"SELECT COUNT(*) FROM cascade_draws WHERE cascade = ? AND {_FITS}"  # noqa: S608 - constants
            (fit,) = run(count, cascade, era).fetchone()
            (whole,) = run(f"SELECT COUNT(*) FROM ({_WHOLE}) AS whole", cascade, era).fetchone()  # noqa: S608 - constants
            why = refuse(number, level, fit, whole)
            if why is not None:
                raise UsageError(f"{cascade} was not looked at: {why}.")
            self._change(run, cascade, lambda one: one.looked(delta))
            take = f"UPDATE cascade_draws SET look = ? WHERE cascade = ? AND conversation IN ({_WHOLE})"  # noqa: S608 - constants
            run(take, number, cascade, cascade, era)
            run(
                "INSERT INTO cascade_looks (cascade, look, at, by, verdict, page, files, opened_s, tries, era, level) "
                "VALUES (?, ?, ?, ?, 'open', '{}', '{}', ?, 1, ?, ?)",
                *(cascade, number, now_iso(), by, opened_s, era, level),
            )
            return Opened(number, level, self._looked_at(run, cascade, number), opened_s, 1, era)

    @staticmethod
    def _looked_at(run: Callable[..., Any], cascade: str, look: int) -> list[Draw]:
        """Return the rows that a look took."""
        query = f"SELECT {_DRAW} FROM cascade_draws WHERE cascade = ? AND look = ? ORDER BY drawn_s, trace_id"  # noqa: S608 - columns
        return [_draw(row) for row in run(query, cascade, look).fetchall()]

    def close_look(
        self,
        cascade: str,
        look: int,
        page: Mapping[str, Any],
        files: Mapping[str, str] = MappingProxyType({}),
        promoted: Callable[[CascadeState], CascadeState] | None = None,
    ) -> bool:
        """Record the outcome of a look and, in the same transaction, its promotion.

        Args:
            cascade: its name.
            look: its number.
            page: the result, as plain JSON values.
            files: of the policy that it certified, as base64 by name.
            promoted: puts the certificate in force; None if it was refused. If it returns the state unchanged, the
                certificate came too late and is refused too.

        Returns:
            Whether the look was still open. If another process closed it, after this one's lease ended, nothing
            changes.
        """
        with self._transaction() as run:
            before = self._locked(run, cascade)
            after = before if promoted is None else promoted(before)
            made = run(
                "UPDATE cascade_looks SET verdict = ?, page = ?, files = ? "
                "WHERE cascade = ? AND look = ? AND verdict = 'open'",
                *("refused" if after is before else "promoted", json.dumps(dict(page)), json.dumps(dict(files))),
                *(cascade, look),
            )
            if made.rowcount:
                self._change(run, cascade, lambda _: after)
            return bool(made.rowcount)

    def looks(self, cascade: str) -> list[Look]:
        """Return all looks, the earliest first."""
        query = "SELECT cascade, look, at, by, verdict, page FROM cascade_looks WHERE cascade = ? ORDER BY look"
        with self._transaction(reading=True) as run:
            found = run(query, cascade).fetchall()
        return [Look(*row)._replace(page=json.loads(row[5])) for row in found]

    def files(self, cascade: str, look: int) -> dict[str, str]:
        """Return the files of the policy that a look certified, as base64 by name."""
        with self._transaction(reading=True) as run:
            query = "SELECT files FROM cascade_looks WHERE cascade = ? AND look = ?"
            found = run(query, cascade, look).fetchone()
        held: dict[str, str] = json.loads(found[0]) if found else {}
        return held

    # --- conversations in which a cheaper model has answered ---

    def wrote(self, conversations: Iterable[str]) -> None:
        """Record that a cheaper model has answered a turn of these conversations."""
        with self._transaction() as run:
            for one in sorted(conversations):  # in one order, so that two replicas never wait for each other
                run("INSERT INTO cascade_written (conversation) VALUES (?) ON CONFLICT DO NOTHING", one)

    def cheaply_written(self, conversation: str) -> bool:
        """Return whether a cheaper model has answered a turn of a conversation."""
        with self._transaction(reading=True) as run:
            return run("SELECT 1 FROM cascade_written WHERE conversation = ?", conversation).fetchone() is not None


def _draw(row: Sequence[Any]) -> Draw:
    """Return a `Draw` from a row of the database; SQLite has numbers for truth values."""
    one = Draw(*row)
    differs, lost = (None if value is None else bool(value) for value in (one.differs, one.lost))
    return one._replace(counted=bool(one.counted), differs=differs, lost=lost)


def missed(row: Draw, losses: Mapping[str, bool], *, late: bool) -> bool | None:
    """Return whether an audit counts against a promise that people judge; None while they may still judge it.

    Args:
        row: the audit.
        losses: the reviewers' judgements, by `pair_name`.
        late: whether the time for judgements is over.
    """
    if not row.differs:
        return row.differs
    said = [one for one in (row.lost, losses.get(row.pair or "")) if one is not None]
    return any(said) if said else True if late else None
