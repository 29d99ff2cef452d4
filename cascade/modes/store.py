"""Stores the state of cascades, so that replicas agree and a restart loses nothing.

Every change is one transaction that reads, decides and writes with the row locked; the decision is a pure function.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from cascade.config.schema import ModesConfig
from cascade.errors import UsageError
from cascade.modes.draws import GROUP_PREFIX
from cascade.modes.state import ENDS_S, CascadeState, Counts, Draw, Look, NextLook, counted, iso, next_look
from cascade.records.database import Database, cascades, draws, insert, looks, written

LEASE_S = 300.0
"""Seconds after which a process counts as killed if it has not closed its look, or not renewed a pending row."""
_LOOK, _DRAW = [looks.c[name] for name in Look._fields], [draws.c[name] for name in Draw._fields]
_bound = sa.bindparam
_STATE = sa.select(sa.case((cascades.c.version != _bound("known"), cascades.c.document)), cascades.c.version).where(
    cascades.c.cascade == _bound("cascade")
)
_LOCKED = _STATE.with_for_update()
_WRITTEN = sa.select(written).where(written.c.conversation == _bound("conversation"))
"""Statements that every request runs, built once: building one takes as long as running it."""
_PENDING = draws.c.outcome == "pending"


def now_iso() -> str:
    """Return the current time, UTC, ISO 8601, to the second."""
    return iso(datetime.now(UTC).timestamp())


def _whole(state: CascadeState, now_s: float) -> sa.Select[tuple[str]]:
    """Select conversations that may certify: none of their turns is pending, audited, of another era or used by a look.

    Start times decide, since short and quick conversations are over first: a conversation with a name waits `ENDS_S`,
    and one that began after the oldest pending row waits for that row.
    """
    certifies = (draws.c.role == "certify") & draws.c.look.is_(None) & ~_PENDING & (draws.c.era == state.era)
    mine, began = draws.c.cascade == state.cascade, sa.func.min(draws.c.drawn_s)
    oldest = sa.select(sa.func.coalesce(sa.func.min(draws.c.drawn_s), now_s)).where(mine, _PENDING).scalar_subquery()
    over = sa.case((draws.c.conversation.startswith(GROUP_PREFIX), began + ENDS_S), else_=began) <= oldest
    by_name = sa.select(draws.c.conversation).where(mine).group_by(draws.c.conversation)
    return by_name.having((sa.func.min(sa.case((certifies, 1), else_=0)) == 1) & over)


class ModeStore(Database):
    """The state of cascades in a database. Open it with `shared`, and close it. Threads may share it.

    Each method raises StoreError if the database does not answer. Then it is unknown whether a change was made.
    `cascade` is always a cascade's name, and times (`_s`) are seconds since 1970.
    """

    # --- state ---

    def begin(self, cascade: str, secret: bytes | None = None) -> tuple[CascadeState, bytes]:
        """Return a cascade's state and the secret of its draws; a new cascade gets both, by default 256 random bits."""
        new = {"cascade": cascade, "version": 0, "document": CascadeState(cascade).dumps()}
        new["secret"] = (secret or secrets.token_bytes(32)).hex()
        with self.transaction() as connection:
            connection.execute(insert(cascades).on_conflict_do_nothing(), new)
            stored = connection.scalar(sa.select(cascades.c.secret).where(cascades.c.cascade == cascade))
            return self._state(connection, cascade), bytes.fromhex(str(stored))

    def state(self, cascade: str, before: CascadeState | None = None) -> CascadeState:
        """Return a cascade's state; `before` itself if it has not changed. Raises UsageError if there is none."""
        with self.transaction(reading=True) as connection:
            return self._state(connection, cascade, before)

    def change(self, cascade: str, decide: Callable[[CascadeState], CascadeState]) -> CascadeState:
        """Replace a cascade's state with the result of `decide`; if `decide` raises, the state stays as it is."""
        with self.transaction() as connection:
            before = self._locked(connection, cascade)
            return self._write(connection, before, decide(before))

    @staticmethod
    def _state(
        connection: sa.Connection, cascade: str, before: CascadeState | None = None, *, lock: bool = False
    ) -> CascadeState:
        values = {"known": -1 if before is None else before.version, "cascade": cascade}
        row = connection.execute(_LOCKED if lock else _STATE, values).one_or_none()
        if row is None:
            raise UsageError(f"There is no record of a cascade {cascade!r}: it has not been served with modes yet.")
        return before if before is not None and before.version == row[1] else CascadeState.loads(*row)

    def _locked(self, connection: sa.Connection, cascade: str) -> CascadeState:
        """Return a state, locked until the transaction ends; SQLite has locked the whole file at the start."""
        return self._state(connection, cascade, lock=True)

    @staticmethod
    def _write(connection: sa.Connection, before: CascadeState, after: CascadeState) -> CascadeState:
        if after == before:
            return before
        document, version = after.dumps(), before.version + 1
        changed = sa.update(cascades).where(cascades.c.cascade == before.cascade)
        connection.execute(changed.values(document=document, version=version))
        return CascadeState.loads(document, version)

    # --- drawn rows ---

    def draw(self, row: Draw) -> bool:
        """Record a drawn row; return False if this turn of the conversation is recorded already."""
        values = {**row._asdict(), "until_s": row.drawn_s + LEASE_S}
        with self.transaction() as connection:
            return bool(connection.execute(insert(draws).on_conflict_do_nothing(), values).rowcount)

    def observes(self, cascade: str, conversation: str) -> bool:
        """Return whether an observed turn of a conversation is on record."""
        observed = (draws.c.cascade == cascade) & (draws.c.conversation == conversation) & (draws.c.role != "audit")
        return bool(self.rows(sa.select(draws.c.turn).where(observed).limit(1)))

    def is_pending(self, trace_id: str) -> bool:
        """Return whether a drawn row waits for its outcome, so that its trace is not complete yet."""
        return bool(self.rows(sa.select(draws.c.turn).where(draws.c.trace_id == trace_id, _PENDING)))

    def settle(self, row: Draw, *, missing: bool = False, differs: bool | None = None) -> CascadeState:
        """Settle a row, and count the audits that need not wait (`state.counted`); return the state.

        The row is pending, or an audit that another process marked as missing although this one has the result.
        An audit counts only if its certificate is still in force. `differs` says of an audit whether the served
        answer differs from the guide's; None if that is unknown.
        """
        unsettled = _PENDING if differs is None else draws.c.outcome != "complete"
        settled = sa.update(draws).where(draws.c.trace_id == row.trace_id, unsettled)
        values = {"outcome": "missing" if missing else "complete", "differs": differs}
        with self.transaction() as connection:
            state = self._locked(connection, row.cascade)
            is_new = connection.execute(settled.values(values)).rowcount
            return self._count(connection, state, self.now_s()) if is_new else state

    def count(self, cascade: str, now_s: float, alive: Collection[str] = ()) -> CascadeState:
        """Mark rows of killed processes as missing, and count the audits that need not wait (`state.counted`).

        `alive` has the traces of the pending rows that this process will complete; it renews them.
        """
        mine = sa.update(draws).where(_PENDING, draws.c.trace_id.in_(alive))
        orphans = sa.update(draws).where(draws.c.cascade == cascade, _PENDING, draws.c.until_s < now_s)
        with self.transaction() as connection:
            state = self._locked(connection, cascade)
            connection.execute(mine.values(until_s=now_s + LEASE_S))
            connection.execute(orphans.values(outcome="missing"))
            return self._count(connection, state, now_s)

    def _count(self, connection: sa.Connection, before: CascadeState, now_s: float) -> CascadeState:
        """Count audits of the certificate in force, in conversations of which no audit was counted before."""
        if before.in_force is None:
            return before
        mine = (draws.c.cascade == before.cascade) & (draws.c.certificate == before.in_force.certificate)
        ended = sa.select(draws.c.conversation).where(mine, draws.c.e_value.is_not(None))
        query = sa.select(*_DRAW).where(mine, draws.c.e_value.is_(None), draws.c.conversation.not_in(ended))
        waiting = [Draw(*row) for row in connection.execute(query.order_by(draws.c.drawn_s, draws.c.trace_id))]
        after, audits = counted(before, waiting, now_s, now_iso())
        for audit in audits:
            row = sa.update(draws).where(draws.c.trace_id == audit.trace_id)
            connection.execute(row.values(e_value=audit.e_value))
        return self._write(connection, before, after)

    def draws(self, cascade: str, *, look: int | None = None) -> list[Draw]:
        """Return drawn rows in the order in which they were drawn; with `look`, only the rows that this look took."""
        query = sa.select(*_DRAW).where(draws.c.cascade == cascade).order_by(draws.c.drawn_s, draws.c.trace_id)
        return [Draw(*row) for row in self.rows(query if look is None else query.where(draws.c.look == look))]

    def counts(self, cascade: str) -> Counts:
        """Return the counts of a cascade's drawn rows."""
        with self.transaction(reading=True) as connection:
            return self._counts(connection, self._state(connection, cascade), self.now_s())

    def unknown_audits(self, cascade: str, certificate: str) -> int:
        """Return how many audits of a certificate have ended without a result."""
        audits = (draws.c.cascade == cascade) & (draws.c.certificate == certificate) & ~_PENDING
        return int(self.rows(sa.select(sa.func.count()).where(audits, draws.c.differs.is_(None)))[0][0])

    @staticmethod
    def _counts(connection: sa.Connection, state: CascadeState, now_s: float) -> Counts:
        fits = ((draws.c.role != "certify") | draws.c.look.is_not(None)) & ~_PENDING & (draws.c.era == state.era)
        whole = sa.case((draws.c.conversation.in_(_whole(state, now_s)), draws.c.conversation))
        count, ends = sa.func.count, (sa.func.min(draws.c.drawn_s), sa.func.max(draws.c.until_s))
        pending = [figure.filter(_PENDING) for figure in (count(), *ends)]
        query = sa.select(count().filter(fits), count(whole.distinct()), *pending)
        return Counts._make(connection.execute(query.where(draws.c.cascade == state.cascade)).one())

    # --- looks ---

    def open_look(self, cascade: str, opened_s: float, modes: ModesConfig) -> Look | NextLook:
        """Begin a look: count it, and take the conversations that certify, which never certify again.

        It is counted before any row is read, so an interrupted look has spent its part of delta. It is resumed, with
        its number, its part of delta and its rows, before another one begins.

        Returns:
            The look; or, if the next look is not due, what it needs, and then nothing was counted.

        Raises:
            UsageError: another process may still have a look open; nothing was counted.
        """
        with self.transaction() as connection:
            state = self._locked(connection, cascade)
            open_look = sa.select(*_LOOK).where(looks.c.cascade == cascade, looks.c.verdict == "open")
            row = connection.execute(open_look.order_by(looks.c.look).limit(1)).one_or_none()
            if row is not None:
                return _resumed(connection, _look(row), opened_s)
            plan = next_look(state, self._counts(connection, state, opened_s), modes)
            if not plan.is_ready:
                return plan
            level = state.next_level(modes.delta)
            look = Look(cascade, plan.look, opened_s, opened_s + LEASE_S, level, state.era)
            self._write(connection, state, state.looked(modes.delta))
            chosen = draws.c.conversation.in_(_whole(state, opened_s))
            certify = sa.update(draws).where(draws.c.cascade == cascade, chosen)
            connection.execute(certify.values(look=look.look))
            connection.execute(sa.insert(looks), {**look._asdict(), "page": "{}", "files": "{}"})
            return look

    def close_look(
        self,
        look: Look,
        page: Mapping[str, Any],
        files: Mapping[str, bytes] = MappingProxyType({}),
        promoted: Callable[[CascadeState], CascadeState] | None = None,
    ) -> bool | None:
        """Record the outcome of a look and, in the same transaction, its promotion.

        `promoted` puts the certificate in force; it is None if the look refused. If it returns the state unchanged,
        the certificate came too late and is refused, too.

        Returns:
            Whether the policy was promoted. None if the look was no longer open: another process closed it after
            this one's lease had ended, and nothing changes.
        """
        texts = {name: base64.b64encode(data).decode("ascii") for name, data in files.items()}
        with self.transaction() as connection:
            before = self._locked(connection, look.cascade)
            after = before if promoted is None else promoted(before)
            closed = (
                _update(look)
                .where(looks.c.verdict == "open")
                .values(
                    verdict="refused" if after is before else "promoted",
                    page=json.dumps(dict(page)),
                    files=json.dumps(texts),
                )
            )
            if not connection.execute(closed).rowcount:
                return None
            self._write(connection, before, after)
            return after is not before

    def looks(self, cascade: str) -> list[Look]:
        """Return all looks, the earliest first."""
        return [_look(row) for row in self.rows(sa.select(*_LOOK).where(looks.c.cascade == cascade).order_by("look"))]

    def files(self, cascade: str, look: int) -> dict[str, bytes]:
        """Return the files of the policy that a look certified, by name."""
        rows = self.rows(sa.select(looks.c.files).where(looks.c.cascade == cascade, looks.c.look == look))
        return {name: base64.b64decode(text) for (files,) in rows for name, text in json.loads(files).items()}

    # --- conversations in which a cheaper model answers, or has answered ---

    def claim(self, conversation: str) -> bool:
        """Record that a cheaper model may answer a turn of a conversation; return False if that was on record."""
        if self.is_claimed(conversation):
            return False
        with self.transaction() as connection:
            claim = insert(written).on_conflict_do_nothing()
            return bool(connection.execute(claim, {"conversation": conversation}).rowcount)

    def release(self, conversation: str) -> None:
        """Remove a claim, since the guide has answered."""
        with self.transaction() as connection:
            connection.execute(sa.delete(written).where(written.c.conversation == conversation))

    def is_claimed(self, conversation: str) -> bool:
        """Return whether a cheaper model is answering, or has answered, a turn of a conversation."""
        return bool(self.rows(_WRITTEN, conversation=conversation))


def _resumed(connection: sa.Connection, look: Look, now_s: float) -> Look:
    """Resume an open look once its last process must have ended. Raises UsageError before that."""
    if now_s < look.until_s:
        again = f"Try again once it is done, in {look.until_s - now_s:.0f} s at most."
        raise UsageError(f"Another process is looking at {look.cascade}. {again}")
    resumed = look._replace(until_s=now_s + LEASE_S, tries=look.tries + 1)
    connection.execute(_update(look).values(until_s=resumed.until_s, tries=resumed.tries))
    return resumed


def _update(look: Look) -> sa.Update:
    return sa.update(looks).where(looks.c.cascade == look.cascade, looks.c.look == look.look)


def _look(row: Iterable[Any]) -> Look:
    look = Look(*row)
    return look._replace(page=json.loads(str(look.page)))
