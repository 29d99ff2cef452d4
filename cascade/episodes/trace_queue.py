"""The queue between asks and the writing thread, and that thread."""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cascade.episodes.store import Address, StoreError, load
from cascade.errors import CascadeError, UsageError
from cascade.forks import keep

if TYPE_CHECKING:
    from cascade.episodes.store.core import Store

logger = getLogger("cascade")
GROUP_S = 0.05
"""How long the first answer of a group waits for others: an ask takes seconds, and a commit some milliseconds."""
GROUP_ANSWERS = 100
"""The most answers in one commit; with four rounds, 800 rows."""
MAX_ANSWERS = 10_000
MAX_CHARS = 64_000_000
"""The limit of the queue, so that a store that does not respond does not fill the memory."""
RETRY_S = 1.0
TURN_S = 0.25
"""The longest time to hold the file if only one process may write to it (`store.sqlite`)."""
EXIT_S = 30.0
"""How long a process waits for the store at its end; several processes that start at once take seconds."""
WARN_EVERY_S = 60.0


class Counts(NamedTuple):
    """Counts of answers: accepted, written with all their rows, lost, waiting; and failures of the store."""

    taken: int
    written: int
    lost: int
    waiting: int
    failures: int


@dataclass(slots=True)
class Entry:
    """A queued answer: how its rows are made, the length of its texts, and who waits for the commit."""

    make: Callable[[], list[dict[str, Any]]]
    chars: int
    done: Future[None] | None = None
    number: int = 0


class TraceQueue:
    """A bounded queue with a thread, which starts with the first entry.

    If it is full, it drops the oldest entry: an ask never waits for room. Entries that an ask waits for are not
        dropped:
    there are never more of them than concurrent asks.
    """

    def __init__(self, address: Address, durability: Literal["group", "full"]) -> None:
        self.address = address
        self.durability: Literal["group", "full"] = durability
        self._changed = threading.Condition()  # on an RLock: a garbage collection may run at any point
        self._waiting: deque[Entry] = deque()
        self._chars = 0
        self._taken = self._written = self._lost = self._failures = 0
        self._in_hand: set[int] = set()  # the numbers of the entries that are being written
        self._closing = self._hurry = False
        self._gives_up_at_s = 0.0
        self._thread: threading.Thread | None = None
        self._warned_at = -WARN_EVERY_S

    # --- used by asks ---

    def put(self, entry: Entry) -> bool:
        """Add an entry; return whether it is the first. Raises UsageError once closed."""
        with self._changed:
            if self._closing:
                raise UsageError("This trace writer was closed. Make a new one.")
            self._taken += 1
            entry.number = self._taken
            self._waiting.append(entry)
            self._chars += entry.chars
            dropped = self._make_room()
            if entry.done is not None or len(self._waiting) in {1, GROUP_ANSWERS}:
                self._changed.notify_all()
            first = self._thread is None
            started = self._start() if first else True
        if dropped:
            self.complain("the queue was full, so the oldest answers were dropped")
        if not started:
            self._give_back(entry)
        return first and started

    def _make_room(self) -> int:
        dropped = 0
        while len(self._waiting) > MAX_ANSWERS or (self._chars > MAX_CHARS and len(self._waiting) > 1):
            if self._waiting[0].done is not None:
                break
            self._chars -= self._waiting.popleft().chars
            dropped += 1
        self._lost += dropped
        return dropped

    def _start(self) -> bool:
        """Start the thread; return whether that worked: it fails without memory, or when the process is ending."""
        thread = threading.Thread(target=_Writer(self).run, name="cascade-traces", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        _running.add(self)
        _at_exit()
        return True

    def _give_back(self, entry: Entry) -> None:
        with self._changed:
            self._waiting.remove(entry)
            self._chars -= entry.chars
        self.ended([entry], StoreError("no thread could be started to write traces", retryable=True))
        self.complain("no thread could be started to write them")

    def counts(self) -> Counts:
        """Return how many answers were accepted, written, lost, and are waiting."""
        with self._changed:
            waiting = self._taken - self._written - self._lost
            return Counts(self._taken, self._written, self._lost, waiting, self._failures)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all entries so far are written or lost; return whether all are written."""
        with self._changed:
            last, lost = self._taken, self._lost
            self._hurry = True
            self._changed.notify_all()
            ended = self._changed.wait_for(lambda: self._first_open() > last, timeout_s)
            return ended and self._lost == lost

    def _first_open(self) -> int:
        """Return the number of the oldest entry that is neither written nor lost, or the next one's."""
        waiting_from = self._waiting[0].number if self._waiting else self._taken + 1
        return min(waiting_from, *self._in_hand) if self._in_hand else waiting_from

    def begin_to_close(self) -> None:
        """Tell the thread to end when it has written everything, without waiting."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Let the thread write everything and end; wait for that at most `timeout_s` seconds."""
        self._gives_up_at_s = time.monotonic() + timeout_s
        self.begin_to_close()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_s)
        if thread.is_alive():
            self.complain(f"the store did not answer within {timeout_s:.0f} s of the end", at_once=True)

    def leave_to_parent(self) -> bool:
        """Abandon the queue in a forked child; return whether it was closed. No lock is taken: its holder is gone."""
        _running.discard(self)
        keep(self)
        return self._closing

    def complain(self, why: str, *, at_once: bool = False) -> None:
        """Warn that answers are lost or late, once a minute."""
        with self._changed:
            now = time.monotonic()
            if now - self._warned_at < WARN_EVERY_S and not at_once:
                return
            self._warned_at = now
            lost, waiting = self._lost, self._taken - self._written - self._lost
        logger.warning(
            "traces: %d answers were not recorded and %d are waiting; the answers themselves are not affected. %s",
            lost,
            waiting,
            why,
        )

    # --- used by the thread ---

    def take(self, idle_s: float | None) -> list[Entry] | None:
        """Wait for a group of entries and take it; [] after `idle_s` seconds without entries, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing, idle_s)
            if not self._waiting:
                return None if self._closing else []
            if not self._in_haste():
                self._changed.wait_for(self._in_haste, GROUP_S)
            count = min(len(self._waiting), GROUP_ANSWERS)
            group = [self._waiting.popleft() for _ in range(count)]
            self._chars -= sum(entry.chars for entry in group)
            if not self._waiting:
                self._hurry = False
            self._in_hand.update(entry.number for entry in group)
            return group

    def _in_haste(self) -> bool:
        if self._closing or self._hurry or len(self._waiting) >= GROUP_ANSWERS:
            return True
        return any(entry.done is not None for entry in self._waiting)

    def ended(self, group: list[Entry], error: CascadeError | None = None) -> None:
        """Count a group as written, or as lost with an error, and notify the waiting asks."""
        with self._changed:
            if error is None:
                self._written += len(group)
            else:
                self._lost += len(group)
            self._in_hand.difference_update(entry.number for entry in group)
            self._changed.notify_all()
        _tell(group, error)

    def put_back(self, group: list[Entry], error: StoreError) -> None:
        """Queue a group for another try; waiting asks get the error.

        While closing, only if another process uses the file, and only as long as `close` waits.
        """
        if self._closing and not (error.busy and time.monotonic() < self._gives_up_at_s):
            self.ended(group, error)
            return
        with self._changed:
            self._waiting.extendleft(reversed(group))
            self._chars += sum(entry.chars for entry in group)
        _tell(group, error)
        with self._changed:
            self._in_hand.difference_update(entry.number for entry in group)
            self._make_room()
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Count a failure of the store and log it."""
        with self._changed:
            self._failures += 1
        self.complain(str(error))

    def pause(self) -> None:
        """Wait before the next try, unless the queue is closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, RETRY_S)


def _tell(group: list[Entry], error: CascadeError | None) -> None:
    """Notify the asks that wait for these entries, once; cancelled asks no longer wait."""
    for entry in group:
        done, entry.done = entry.done, None
        if done is not None and done.set_running_or_notify_cancel():
            done.set_result(None) if error is None else done.set_exception(error)


class _Writer:
    """The work of the background thread: it takes groups and writes each in one transaction. It owns the store."""

    def __init__(self, queue: TraceQueue) -> None:
        self._queue = queue
        self._store: Store | None = None
        self._held_since = 0.0

    def run(self) -> None:
        """Write until the queue is closed and empty."""
        with suppress(CascadeError, ImportError):  # reported when there is something to write
            load(self._queue.address)
        try:
            while (group := self._queue.take(self._idle_s())) is not None:
                if group:
                    self._write(group)
                self._take_turns(idle=not group)
        finally:
            self._close_store()
            _running.discard(self._queue)

    def _idle_s(self) -> float | None:
        """How long to wait for entries: forever, or until the file must be released."""
        if self._store is None or not self._store.exclusive:
            return None
        return max(0.0, self._held_since + TURN_S - time.monotonic())

    def _write(self, group: list[Entry]) -> None:
        try:
            self._append(group)
        except StoreError as error:
            self._close_store()
            self._queue.failed(error)
            if error.retryable:
                self._queue.put_back(group, error)
            else:
                self._queue.ended(group, error)
            if not error.busy:  # it has waited its time for the other process, which may be done now
                self._queue.pause()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on and those who wait are told
            self._sort_out(group, error)
        else:
            self._queue.ended(group)

    def _sort_out(self, group: list[Entry], error: Exception) -> None:
        """Write a group one by one if a row may be invalid; count answers that cannot be written as lost."""
        from cascade.episodes.store.records import UnfitRowsError

        about_a_row = isinstance(error, UnfitRowsError) or not isinstance(error, CascadeError)
        if about_a_row and len(group) > 1:
            for entry in group:
                self._write([entry])
            return
        ours = error if isinstance(error, CascadeError) else StoreError(f"{type(error).__name__} in an answer's trace.")
        self._queue.failed(ours)
        self._queue.ended(group, ours)
        if not isinstance(error, UnfitRowsError):
            self._close_store()
        if not about_a_row:
            self._queue.pause()

    def _append(self, group: list[Entry]) -> None:
        rows = itertools.chain.from_iterable([entry.make() for entry in group])
        if self._store is None:
            load(self._queue.address)
            from cascade.episodes.store.core import Store

            self._store = Store.open(self._queue.address, durability=self._queue.durability)
            self._held_since = time.monotonic()
        self._store.append(rows)

    def _take_turns(self, *, idle: bool) -> None:
        """Release the file for other processes if only one may write."""
        if self._store is None or not self._store.exclusive:
            return
        if idle or time.monotonic() - self._held_since > TURN_S:
            self._close_store()

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except Exception as error:  # noqa: BLE001 - what was committed is safe; the rest is said
                logger.warning("traces: the store could not be closed: %s", type(error).__name__)


_running: set[TraceQueue] = set()
"""The queues with a thread, so that they can be emptied when the process ends."""


def _at_exit() -> None:
    """Empty the queues when the process ends, also one that `multiprocessing` forked, which skips `atexit`."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    for queue in list(_running):
        queue.close(timeout_s=EXIT_S)
