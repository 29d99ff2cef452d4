"""Write the rows of answers in the background: a bounded queue, one thread, one transaction per group.

A request never waits for the store. When the queue holds too many answers, the oldest is dropped; when it holds too
much text, the longest is, so that a client with long answers cannot displace those of others. The thread survives every
error: temporary failures are retried, losses are counted and logged, and an answer is never affected, unless `strict`
is set.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from cascade.errors import CascadeError, StoreError, UnfitRowsError, UsageError, logger
from cascade.files import Closed
from cascade.forks import after_fork, keep, no_fork
from cascade.identity import identity
from cascade.logs.schema import hashed
from cascade.records import link
from cascade.records.address import Address, parse
from cascade.records.rows import Content, rows_of
from cascade.text import now_utc
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.records.traces import Store
GROUP_S = 0.05
"""How long the first answer of a group waits for others. A request takes seconds, a commit some milliseconds."""
GROUP_ANSWERS = 100
"""The most answers in one commit; with four rounds, 800 rows."""
MAX_ANSWERS = 10_000
MAX_CHARS = 64_000_000
"""The limits of the queue, so that a store that does not respond does not fill the memory."""
RETRY_S = 1.0
COMMIT_S = 10.0
"""How long one commit may take, so that a server that hangs is reported as failing."""
WAIT_S = 30.0
"""The longest time that a request waits for its commit, if it waits at all."""
EXIT_S = 30.0
"""How long a process waits for the store when it exits; several processes that start at once take seconds."""
WARN_EVERY_S = 60.0


class TraceCounts(NamedTuple):
    """How many answers were accepted, written with all their rows, lost, or wait; and how often the store failed."""

    accepted: int
    written: int
    lost: int
    waiting: int
    failures: int


class TraceWriter(Closed):
    """Writes the rows of answers to a store, in the background.

    It may be shared between threads and tasks; a forked child has its own queue. Close it, or use it in a `with`
    block, so that queued answers are written.

    Args:
        store: the store, as a URL or an address.
        content: "full" keeps texts, "hash" replaces them by their SHA-256, "none" removes them.
        strict: whether a request waits until its rows are on the disk, and fails if they could not be written.
        secrets: keys that must not be in any row, besides everything with the format of a key.

    Raises:
        UsageError: the URL does not name a store.
    """

    def __init__(
        self,
        store: str | Address,
        *,
        content: Content = "full",
        strict: bool = False,
        secrets: Iterable[str] = (),
    ) -> None:
        self.address = parse(store) if isinstance(store, str) else store
        self.strict = strict
        self.content: Content = content
        self.secrets = tuple(secrets)
        self._begin()
        after_fork(self._begin_in_child)

    def _begin(self) -> None:
        self._queue = _Queue(self.address, strict=self.strict)
        self._finalizer = weakref.finalize(self, _abandoned, self._queue)
        self._finalizer.atexit = False  # the queue is emptied at exit anyway

    def _begin_in_child(self) -> None:
        """Start with an empty queue: the thread is gone, and the parent writes what was queued (F50)."""
        parents = self._queue
        self._finalizer.detach()
        atexit.unregister(parents.close)
        keep(parents)  # none of its locks may be taken: the threads that held them are gone
        self._begin()
        self._queue.closing = parents.closing

    @property
    def counts(self) -> TraceCounts:
        """How many answers were accepted, written and lost, and how many are waiting."""
        return self._queue.counts()

    @property
    def problem(self) -> str | None:
        """Why the last attempt to write failed, or that one is taking longer than a request would wait; else None."""
        began_s = self._queue.began_s
        if began_s is not None and time.monotonic() - began_s > link.LIMIT_S:
            return self._queue.problem or f"the store {self.address.shown} does not answer"
        return self._queue.problem

    def submit(self, answer: Answer, columns: Mapping[str, Any] | None = None) -> Future[None] | None:
        """Queue an answer; return a future to `settle`, or None if there is nothing to wait for.

        Args:
            answer: the answer. Its group is the question's own, or else the same for all its near-duplicates.
            columns: values that the answer lacks: `horizon`, `dataset`, `split`, `walk`, `gold`, `episode_id` (by
                default a new UUID).

        Raises:
            UsageError: the writer is closed.
        """
        question = answer.question
        head = {
            "episode_id": str(uuid4()),
            "created_at": now_utc(),
            **(columns or {}),
        }
        texts = (call.completion.text for call in answer.calls if call.completion is not None)
        chars = len(question.text) + len(question.context or "") + sum(map(len, texts))
        done: Future[None] | None = Future() if self.strict else None
        self._queue.put(_Entry(partial(_rows, answer, head, self.content, self.secrets), chars, done))
        return done

    async def settle(self, done: Future[None] | None, answer: Answer, within_s: float = WAIT_S) -> None:
        """Wait for the future that `submit` returned. Cancelling it loses nothing: the rows are still written.

        Raises:
            StoreError: the rows could not be written; `answer` holds the answer.
        """
        if done is None:
            return
        wait_s = min(WAIT_S, within_s)
        try:
            await asyncio.wait_for(asyncio.wrap_future(done), wait_s)
        except (CascadeError, TimeoutError) as error:
            code = error.exit_code if isinstance(error, CascadeError) else 1
            reason = str(error) or f"the store {self.address.shown} did not answer within {wait_s:.2g} s."
            raise StoreError(f"The answer was not recorded: {reason}", answer=answer, exit_code=code) from None

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything recorded so far is committed; return whether it is."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write the queued answers and stop, or give up after `timeout_s` seconds. May be called twice."""
        self._finalizer.detach()
        self._queue.close(timeout_s)


def _rows(answer: Answer, head: dict[str, Any], content: Content, secrets: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of an answer. Runs in the thread, because the identity of a long text takes 30 ms."""
    question, group = answer.question, answer.question.group
    own = group if group is None or content == "full" else hashed(group)
    named = {"group": own or identity(question.text, question.context)}
    return rows_of(answer, named | head, content, secrets)


@dataclass(slots=True, eq=False)
class _Entry:
    """A queued answer: a function that makes its rows, the length of its texts, and the future of its commit."""

    rows: Callable[[], list[dict[str, Any]]]
    chars: int
    done: Future[None] | None
    number: int = 0


class _Queue:
    """The waiting answers, and the thread that writes them in order; it is started by the first answer.

    An answer whose commit a request waits for is never dropped: there are no more of these than concurrent requests.
    """

    def __init__(self, address: Address, *, strict: bool) -> None:
        self.closing = False
        self.problem: str | None = None
        self.began_s: float | None = None
        """When the current attempt to write began."""
        self._address, self._strict = address, strict
        self._changed = threading.Condition()  # has an RLock, since a garbage collection may run at any point
        self._waiting: deque[_Entry] = deque()
        self._writing: list[_Entry] = []
        self._chars = self._accepted = self._written = self._lost = self._failures = 0
        self._gives_up_at_s = 0.0
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._warned_at_s = -WARN_EVERY_S

    # --- used by requests ---

    def put(self, entry: _Entry) -> None:
        """Add an entry; drop the oldest of too many, or the longest of too much text. Raises UsageError once closed."""
        with self._changed:
            if self.closing:
                raise UsageError("This trace writer was closed. Make a new one.")
            self._accepted += 1
            entry.number = self._accepted
            self._waiting.append(entry)
            self._chars += entry.chars
            waiting, lost = self._waiting, self._lost
            while (many := len(waiting) > MAX_ANSWERS) or (self._chars > MAX_CHARS and len(waiting) > 1):
                gone = waiting[0] if many else max(waiting, key=lambda at: at.chars)
                if gone.done is not None:
                    break
                waiting.remove(gone)
                self._chars -= gone.chars
                self._lost += 1
            if self._lost > lost:
                self._complain("the queue was full, so the oldest or longest answers were dropped")
            if entry.done is not None or len(waiting) in {1, GROUP_ANSWERS}:
                self._changed.notify_all()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        """Start the thread. If there is no memory, or the process is ending, that fails, and what waits is lost."""
        self._thread = threading.Thread(target=self._run, name="cascade-traces", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._writing = [*self._waiting]
            self._waiting.clear()
            self._fail(self._writing, StoreError("no thread could be started to write traces", retryable=True))
            return
        atexit.register(self.close, EXIT_S)
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:  # a child that skips `atexit`
            from multiprocessing.util import Finalize

            Finalize(None, self.close, (EXIT_S,), exitpriority=0)

    def counts(self) -> TraceCounts:
        with self._changed:
            waiting = self._accepted - self._written - self._lost
            return TraceCounts(self._accepted, self._written, self._lost, waiting, self._failures)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all entries so far are written or lost; return whether all are written."""
        with self._changed:
            last, lost = self._accepted, self._lost
            ended = self._changed.wait_for(
                lambda: all(entry.number > last for entry in [*self._writing, *self._waiting]), timeout_s
            )
            return ended and self._lost == lost

    def begin_to_close(self) -> None:
        """Tell the thread to end when it has written everything, without waiting."""
        with self._changed:
            self.closing = True
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
            self._warned_at_s = -WARN_EVERY_S
            self._complain(f"the store did not answer within {timeout_s:.0f} s at shutdown")

    def _complain(self, reason: str) -> None:
        """Warn that answers are lost or late, once a minute."""
        counts, now_s = self.counts(), time.monotonic()
        if now_s - self._warned_at_s >= WARN_EVERY_S:
            self._warned_at_s = now_s
            logger.warning(
                "traces: %d answers were not recorded and %d are waiting; the answers themselves are not affected. %s",
                *(counts.lost, counts.waiting, reason),
            )

    # --- the thread ---

    def _run(self) -> None:
        """Write until the queue is closed and empty."""
        with suppress(Exception):  # reported when there is something to write
            _load()
        while self._take():
            try:
                self._write(self._writing)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the thread goes on, and what is lost is counted
                self._fail(self._writing, _unforeseen(error))
        self._close_store()
        atexit.unregister(self.close)

    def _take(self) -> bool:
        """Wait for a group of entries and take it; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.closing)
            self._changed.wait_for(lambda: self._strict or self.closing or len(self._waiting) >= GROUP_ANSWERS, GROUP_S)
            self._writing = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_ANSWERS))]
            self._chars -= sum(entry.chars for entry in self._writing)
            return bool(self._writing)

    def _write(self, group: list[_Entry]) -> None:
        """Write a group; retry if the store fails temporarily, and write one by one if an answer's rows do not fit."""
        while (error := self._attempt(group)) is not None:
            about_a_row = not isinstance(error, StoreError | UsageError) or isinstance(error, UnfitRowsError)
            if about_a_row and len(group) > 1:
                for entry in group:
                    self._write([entry])
                return
            failure = error if isinstance(error, CascadeError) else _unforeseen(error)
            if about_a_row or not self._tries_again(group, failure):
                self._fail(group, failure)
                return
        self.problem = None
        self._end(group)

    def _attempt(self, group: list[_Entry]) -> Exception | None:
        self.began_s = time.monotonic()
        try:
            rows = [row for entry in group for row in entry.rows()]
            if self._store is None:
                self._store = _load()(self._address, durable=self._strict, limit_s=COMMIT_S)
            self._store.append(rows)
        except UnfitRowsError as error:
            return error
        except (OSError, MemoryError) as error:
            self._close_store()
            return StoreError(f"The store {self._address.shown} failed: {type(error).__name__}.", retryable=True)
        except Exception as error:  # noqa: BLE001 - judged by the caller
            self._close_store()
            return error
        finally:
            self.began_s = None
        return None

    def _tries_again(self, group: list[_Entry], error: CascadeError) -> bool:
        """Return whether to try again, after a pause; while closing, only if another process has locked the file."""
        if not isinstance(error, StoreError) or not error.retryable:
            return False
        with self._changed:
            if self.closing:
                return error.busy and time.monotonic() < self._gives_up_at_s
            self._note(error)
            _tell(group, error)  # requests need not wait any longer
            if not error.busy:  # else it has already waited for the other process, which may be done now
                self._changed.wait_for(lambda: self.closing, RETRY_S)
        return True

    def _note(self, error: CascadeError) -> None:
        """Count and log a failure."""
        with self._changed:
            self._failures += 1
            self.problem = str(error)
        self._complain(self.problem)

    def _fail(self, group: Iterable[_Entry], error: CascadeError) -> None:
        self._note(error)
        self._end([*group], error)

    def _end(self, group: list[_Entry], error: CascadeError | None = None) -> None:
        """Count a group as written, or as lost with an error, and notify the requests that wait."""
        with self._changed:
            self._written += 0 if error else len(group)
            self._lost += len(group) if error else 0
            self._writing = [entry for entry in self._writing if entry not in group]
            self._changed.notify_all()
        _tell(group, error)

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except Exception as error:  # noqa: BLE001 - what was committed is safe; the rest was reported
                logger.warning("traces: the store could not be closed: %s", type(error).__name__)


def _load() -> type[Store]:
    """Import the store. Forks in other threads wait meanwhile, since their child could not finish the imports."""
    with no_fork():
        from cascade.records.traces import Store

        return Store


def _unforeseen(error: BaseException) -> StoreError:
    return StoreError(f"{type(error).__name__} in an answer's trace.")


def _tell(group: Iterable[_Entry], error: CascadeError | None) -> None:
    """Notify the requests that wait for these entries, once; cancelled requests no longer wait."""
    for entry in group:
        done, entry.done = entry.done, None
        if done is not None and done.set_running_or_notify_cancel():
            done.set_result(None) if error is None else done.set_exception(error)


def _abandoned(queue: _Queue) -> None:
    if queue.counts().accepted and not queue.closing:
        warnings.warn("A TraceWriter was not closed; its answers are still written.", ResourceWarning, stacklevel=2)
    queue.begin_to_close()
