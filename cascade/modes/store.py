"""Stores the state of cascades, so that replicas agree and a restart forgets nothing.

Every change is one transaction that reads, decides and writes with the row locked; the decision is a pure function.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from cascade.errors import UsageError
from cascade.modes.state import CascadeState, Counts, Draw, Look, in_order, missed
from cascade.records.database import Database, Run

_DRAW, _LOOK = ", ".join(Draw._fields), ", ".join(Look._fields)
LOST_S = 3_600.0
"""Seconds after its draw at which a pending row counts as missing: its process was killed."""
_WHOLE = """SELECT conversation FROM cascade_draws WHERE cascade = ? GROUP BY conversation
HAVING MIN(CASE WHEN role = 'certify' AND look IS NULL AND outcome <> 'pending' AND era = ? THEN 1 ELSE 0 END) = 1"""
"""Conversations that may certify: no turn is pending, audited, of another era, or was looked at."""
_COUNTS = f"""SELECT COUNT(*) FILTER (WHERE outcome = 'pending'), COUNT(*) FILTER (WHERE outcome = 'complete'),
COUNT(*) FILTER (WHERE outcome = 'missing'),
COUNT(*) FILTER (WHERE (role <> 'certify' OR look IS NOT NULL) AND outcome <> 'pending' AND era = ?),
COUNT(*) FILTER (WHERE whole), COUNT(DISTINCT CASE WHEN whole THEN conversation END),
COUNT(*) FILTER (WHERE outcome <> 'pending' AND differs IS NULL AND certificate = ?),
SUM(off_path_nano_usd), COUNT(off_path_nano_usd)
FROM (SELECT *, conversation IN ({_WHOLE}) AS whole FROM cascade_draws) AS draws WHERE cascade = ?"""  # noqa: S608 - constants

Refuse: TypeAlias = Callable[[Look, Counts], str | None]
"""Returns why a look would be useless, from the look and the counts before it; None if it may succeed."""


def now_iso() -> str:
    """Return the current time, UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class ModeStore:
    """The state of cascades in a database. Made by `open`; close it. Threads may share it.

    Each method raises StoreError if the database does not answer. Then it is unknown whether a change was made.
    `cascade` is always a cascade's name, and times (`_s`) are seconds since 1970.
    """

    def __init__(self, database: Database) -> None:
        self._database, self.close = database, database.close

    @classmethod
    def open(cls, url: str) -> ModeStore:
        """Open a store; create its file and tables if they do not exist.

        Raises:
            UsageError: the URL is not that of a store.
            StoreError: it cannot be reached.
        """
        return cls(Database.shared(url))

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        with self._database.statements(reading=True) as run:
            rows: list[tuple[Any, ...]] = run(query, *values).fetchall()
        return rows

    # --- state ---

    def begin(self, cascade: str, secret: bytes | None = None) -> tuple[CascadeState, bytes]:
        """Return a cascade's state and the secret of its draws; a new cascade gets both, by default 256 random bits.

        Raises:
            UsageError: the store is of another format.
        """
        new = secret or secrets.token_bytes(32)
        with self._database.statements() as run:
            run(
                "INSERT INTO cascade_modes (cascade, version, secret, document) VALUES (?, 0, ?, ?) "
                "ON CONFLICT (cascade) DO NOTHING",
                *(cascade, new.hex(), CascadeState(cascade).dumps()),
            )
            (stored,) = run("SELECT secret FROM cascade_modes WHERE cascade = ?", cascade).fetchone()
            return self._state(run, cascade), bytes.fromhex(stored)

    def state(self, cascade: str, known: CascadeState | None = None) -> CascadeState:
        """Return a cascade's state; `known` itself if it has not changed.

        Raises:
            UsageError: there is no such cascade.
        """
        with self._database.statements(reading=True) as run:
            return self._state(run, cascade, known=known)

    def change(self, cascade: str, decide: Callable[[CascadeState], CascadeState]) -> CascadeState:
        """Replace a state by the result of `decide`; if `decide` raises, the state stays."""
        with self._database.statements() as run:
            before = self._locked(run, cascade)
            return self._write(run, before, decide(before))

    @staticmethod
    def _state(run: Run, cascade: str, lock: str = "", known: CascadeState | None = None) -> CascadeState:
        query = f"""SELECT CASE WHEN version <> ? THEN document END, version FROM cascade_modes
        WHERE cascade = ?{lock}"""  # noqa: S608 - constants
        row = run(query, -1 if known is None else known.version, cascade).fetchone()
        if row is None:
            raise UsageError(f"There is no record of a cascade {cascade!r}: it has not been served with modes yet.")
        return known if known is not None and known.version == row[1] else CascadeState.loads(*row)

    def _locked(self, run: Run, cascade: str) -> CascadeState:
        """Return a state, locked until the transaction ends."""
        return self._state(run, cascade, self._database.row_lock)

    @staticmethod
    def _write(run: Run, before: CascadeState, after: CascadeState) -> CascadeState:
        if after == before:
            return before
        text, version = after.dumps(), before.version + 1
        run("UPDATE cascade_modes SET version = ?, document = ? WHERE cascade = ?", version, text, before.cascade)
        return CascadeState.loads(text, version)

    # --- drawn rows ---

    def draw(self, row: Draw) -> bool:
        """Record a drawn row; return False if this turn of the conversation is recorded already."""
        marks = ", ".join("?" * len(row))
        with self._database.statements() as run:
            insert = f"INSERT INTO cascade_draws ({_DRAW}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608 - columns
            return bool(run(insert, *row).rowcount)

    def observes(self, cascade: str, conversation: str) -> bool:
        """Return whether an observed turn of a conversation is on record."""
        query = "SELECT 1 FROM cascade_draws WHERE cascade = ? AND conversation = ? AND role <> 'audit' LIMIT 1"
        return bool(self._read(query, cascade, conversation))

    def is_pending(self, trace_id: str) -> bool:
        """Return whether a drawn row waits for its outcome: its trace is not complete yet."""
        return bool(self._read("SELECT 1 FROM cascade_draws WHERE trace_id = ? AND outcome = 'pending'", trace_id))

    def settle(
        self,
        row: Draw,
        why_missing: str | None = None,
        off_path_nano_usd: int | None = None,
        *,
        differs: bool | None = None,
        pair: str | None = None,
    ) -> CascadeState:
        """Settle a row that is pending, and count the audits that need not wait (`in_order`); return the state then.

        An audit counts only if its certificate is still in force. If people's judgements decide, `count` counts it
        later.

        Args:
            row: the row as it was drawn.
            why_missing: why it has no outcome; None if it has.
            off_path_nano_usd: the cost of the calls made only for the row; None if unknown.
            differs: of an audit, whether what was served differs from the guide's; None if that is unknown.
            pair: the name under which people judge an audit that differs.
        """
        outcome = "complete" if why_missing is None else "missing"
        with self._database.statements() as run:
            state = self._locked(run, row.cascade)
            cursor = run(
                "UPDATE cascade_draws SET outcome = ?, why = ?, off_path_nano_usd = ?, differs = ?, pair = ? "
                "WHERE trace_id = ? AND outcome = 'pending'",
                *(outcome, why_missing, off_path_nano_usd, differs, pair if differs else None, row.trace_id),
            )
            if not cursor.rowcount or state.in_force is None or state.in_force.by_people:
                return state
            return self._count(run, state, lambda audit: audit.differs)

    def count(self, cascade: str, now_s: float, label_s: float, losses: Mapping[str, bool]) -> CascadeState:
        """Count the audits that need not wait (`in_order`).

        Where people judge, an audit that differs counts as a loss if nobody judges it in time: `label_s` is how long a
        judgement may take, and `losses` has the reviewers' judgements, by the pair's name.
        """

        def loses(audit: Draw) -> bool | None:
            return missed(audit, losses, late=audit.drawn_s + label_s <= now_s) if by_people else audit.differs

        with self._database.statements() as run:
            state = self._locked(run, cascade)
            by_people = state.in_force is not None and state.in_force.by_people
            return self._count(run, state, loses)

    def _count(self, run: Run, before: CascadeState, loses: Callable[[Draw], bool | None]) -> CascadeState:
        """Count audits of the certificate in force. A row drawn before the last one counted has had its turn."""
        if before.in_force is None:
            return before
        mine, after = "cascade = ? AND certificate = ?", before
        values = before.cascade, before.in_force.certificate

        def earlier(audit: Draw) -> tuple[int, int]:
            query = f"""SELECT COUNT(*), COUNT(*) FILTER (WHERE lost) FROM cascade_draws
            WHERE {mine} AND conversation = ? AND e_value IS NOT NULL"""  # noqa: S608 - constants
            audits, misses = run(query, *values, audit.conversation).fetchone()
            return audits, misses

        query = f"""SELECT {_DRAW} FROM cascade_draws WHERE {mine} AND e_value IS NULL AND drawn_s >=
        COALESCE((SELECT MAX(drawn_s) FROM cascade_draws WHERE {mine} AND e_value IS NOT NULL), 0)
        ORDER BY drawn_s, trace_id"""  # noqa: S608 - constants
        waiting = [_draw(row) for row in run(query, *values, *values).fetchall()]
        for audit, state in in_order(before, waiting, loses, earlier, now_iso()):
            counted, after = (audit.lost, audit.e_value, audit.trace_id), state
            run("UPDATE cascade_draws SET lost = ?, e_value = ? WHERE trace_id = ?", *counted)
        return self._write(run, before, after)

    def judge(self, cascade: str, losses: Mapping[str, bool]) -> int:
        """Record people's judgements of drawn requests; return how many of these requests are recorded.

        `losses` says by the request's trace whether the answer that differs loses. If reviewers disagree, it does.
        """
        update = """UPDATE cascade_draws SET lost = CASE WHEN lost THEN lost ELSE ? END
        WHERE cascade = ? AND trace_id = ? AND e_value IS NULL"""
        with self._database.statements() as run:
            self._locked(run, cascade)
            return sum(int(run(update, lost, cascade, trace_id).rowcount) for trace_id, lost in losses.items())

    def expire(self, cascade: str, before_s: float) -> int:
        """Mark rows as missing that are pending since before a time, as their process was killed. Return how many."""
        with self._database.statements() as run:
            cursor = run(
                "UPDATE cascade_draws SET outcome = 'missing', why = 'its process ended' "
                "WHERE cascade = ? AND outcome = 'pending' AND drawn_s < ?",
                *(cascade, before_s),
            )
            return int(cursor.rowcount)

    def draws(
        self, cascade: str, *, newest: int | None = None, counted_for: str | None = None, look: int | None = None
    ) -> list[Draw]:
        """Return drawn rows in the order they were drawn; of many, the `newest` ones.

        With `counted_for` only audits that were counted for the certificate with this id, with `look` only the rows
        that a look took.
        """
        query, values = f"SELECT {_DRAW} FROM cascade_draws WHERE cascade = ?", [cascade]  # noqa: S608 - columns
        query += "" if counted_for is None else " AND e_value IS NOT NULL AND certificate = ?"
        query += ("" if look is None else " AND look = ?") + " ORDER BY drawn_s DESC, trace_id DESC"
        query += "" if newest is None else f" LIMIT {int(newest)}"
        chosen = [value for value in (counted_for, look) if value is not None]
        return [_draw(row) for row in self._read(query, *values, *chosen)[::-1]]

    def counts(self, cascade: str) -> Counts:
        """Return the counts of all rows."""
        with self._database.statements(reading=True) as run:
            return self._counts(run, self._state(run, cascade))

    @staticmethod
    def _counts(run: Run, state: CascadeState) -> Counts:
        certificate = None if state.in_force is None else state.in_force.certificate
        mine = state.era, certificate, state.cascade, state.era, state.cascade
        counts = Counts(*run(_COUNTS, *mine).fetchone())
        return counts._replace(off_path_nano_usd=int(counts.off_path_nano_usd or 0))

    # --- looks ---

    def open_look(self, cascade: str, by: str, opened_s: float, delta: float, refuse: Refuse) -> Look:
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
        with self._database.statements() as run:
            state = self._locked(run, cascade)
            query = f"SELECT {_LOOK} FROM cascade_looks WHERE cascade = ? AND verdict = 'open' ORDER BY look LIMIT 1"  # noqa: S608 - columns
            row = run(query, cascade).fetchone()
            if row is not None:
                run("UPDATE cascade_looks SET tries = tries + 1 WHERE cascade = ? AND look = ?", *row[:2])
                return _look(row)._replace(tries=_look(row).tries + 1)
            look = Look(cascade, state.looks + 1, by, opened_s, state.next_level(delta), state.era)
            why = refuse(look, self._counts(run, state))
            if why is not None:
                raise UsageError(f"{cascade} was not looked at: {why}.")
            self._write(run, state, state.looked(delta))
            take = f"UPDATE cascade_draws SET look = ? WHERE cascade = ? AND conversation IN ({_WHOLE})"  # noqa: S608 - constants
            run(take, look.look, cascade, cascade, state.era)
            marks = ", ".join("?" * len(look))
            run(f"INSERT INTO cascade_looks ({_LOOK}, files) VALUES ({marks}, '{{}}')", *look[:-1], "{}")  # noqa: S608 - columns
            return look

    def close_look(
        self,
        look: Look,
        page: Mapping[str, Any],
        files: Mapping[str, bytes] = MappingProxyType({}),
        promoted: Callable[[CascadeState], CascadeState] | None = None,
    ) -> bool | None:
        """Record the outcome of a look and, in the same transaction, its promotion.

        Args:
            look: the look.
            page: the result, as plain JSON values.
            files: of the policy that it certified.
            promoted: puts the certificate in force; None if it was refused. If it returns the state unchanged, the
                certificate came too late and is refused too.

        Returns:
            Whether the policy was promoted. None if the look was not open any more: another process closed it, after
            this one's lease ended, and nothing changes.
        """
        texts = {name: base64.b64encode(data).decode("ascii") for name, data in files.items()}
        with self._database.statements() as run:
            before = self._locked(run, look.cascade)
            after = before if promoted is None else promoted(before)
            cursor = run(
                "UPDATE cascade_looks SET verdict = ?, page = ?, files = ? "
                "WHERE cascade = ? AND look = ? AND verdict = 'open'",
                *("refused" if after is before else "promoted", json.dumps(dict(page)), json.dumps(texts)),
                *(look.cascade, look.look),
            )
            if not cursor.rowcount:
                return None
            self._write(run, before, after)
            return after is not before

    def looks(self, cascade: str) -> list[Look]:
        """Return all looks, the earliest first."""
        query = f"SELECT {_LOOK} FROM cascade_looks WHERE cascade = ? ORDER BY look"  # noqa: S608 - columns
        return [_look(row) for row in self._read(query, cascade)]

    def files(self, cascade: str, look: int) -> dict[str, bytes]:
        """Return the files of the policy that a look certified, by name."""
        rows = self._read("SELECT files FROM cascade_looks WHERE cascade = ? AND look = ?", cascade, look)
        return {name: base64.b64decode(text) for (files,) in rows for name, text in json.loads(files).items()}

    # --- conversations in which a cheaper model has answered ---

    def wrote(self, conversations: Iterable[str]) -> None:
        """Record that a cheaper model has answered a turn of these conversations."""
        with self._database.statements() as run:
            for name in sorted(conversations):  # in one order, so that two replicas never wait for each other
                run("INSERT INTO cascade_written (conversation) VALUES (?) ON CONFLICT DO NOTHING", name)

    def cheaply_written(self, conversation: str) -> bool:
        """Return whether a cheaper model has answered a turn of a conversation."""
        return bool(self._read("SELECT 1 FROM cascade_written WHERE conversation = ?", conversation))


def _look(row: Iterable[Any]) -> Look:
    look = Look(*row)
    return look._replace(page=json.loads(str(look.page)))


def _draw(row: Iterable[Any]) -> Draw:
    """Return a `Draw` from a row of the database; SQLite has numbers for truth values."""
    draw = Draw(*row)
    differs, lost = (None if value is None else bool(value) for value in (draw.differs, draw.lost))
    return draw._replace(differs=differs, lost=lost)
