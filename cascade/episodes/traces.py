"""Write the rows of answers to a store in the background, in groups. `trace.Trace` follows each ask and submits it.

`TraceWriter.submit` searches for keys, queues the answer, and returns. One thread makes rows of the queued answers and
commits them together. A failing store loses traces, which are counted and logged as warnings, but never an answer,
unless `strict` is set.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from logging import getLogger
from typing import Any, Literal, Self

from cascade.episodes.store import Address, StoreError, parse, uuid7
from cascade.episodes.trace_queue import Counts, Entry, TraceQueue
from cascade.errors import CascadeError
from cascade.forks import after_fork
from cascade.identity import identity
from cascade.logs.schema import CONTENT_COLUMNS, hashed, rows, said_text
from cascade.safety import holds_key, redact
from cascade.types import Answer, Call

logger = getLogger("cascade")

Content = Literal["full", "hash", "none"]
WAIT_S = 30.0
"""The longest time that an ask waits for its commit, if it waits at all."""


class TraceWriter:
    """Writes the rows of answers to a store, in the background.

    It may be shared between threads and tasks; a forked child has its own writer. Close it, or use it in a `with`
    block, so that queued answers are written.

    Args:
        store: the store, as a URL or an address.
        content: "full" keeps texts, "hash" their SHA-256, "none" nothing of them.
        durability: "full" makes `record` wait until its rows are on the disk.
        strict: whether `record` raises if its rows could not be written; it then waits, too.
        secrets: keys that must not be in any row, besides everything with the shape of a key.

    Raises:
        UsageError: the URL does not name a store.
    """

    def __init__(
        self,
        store: str | Address,
        *,
        content: Content = "full",
        durability: Literal["group", "full"] = "group",
        strict: bool = False,
        secrets: Iterable[str] = (),
    ) -> None:
        self.address = parse(store) if isinstance(store, str) else store
        self.strict = strict
        self._content: Content = content
        self._durability: Literal["group", "full"] = durability
        self._secrets = tuple(secrets)
        self._renew()
        after_fork(self._begin_anew)

    def _renew(self) -> None:
        """Begin with an empty queue and without a thread."""
        self._queue = TraceQueue(self.address, self._durability)
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def _begin_anew(self) -> None:
        """In a forked child: the thread is gone, and the parent writes the queued answers (F50)."""
        if self._finalizer is not None:
            self._finalizer.detach()
        parents = self._queue
        self._renew()
        if parents.leave_to_parent():
            self._queue.begin_to_close()

    @property
    def waits(self) -> bool:
        """Whether an ask waits until its rows are committed."""
        return self.strict or self._durability == "full"

    @property
    def counts(self) -> Counts:
        """How many answers were taken, written, lost, and are waiting."""
        return self._queue.counts()

    def record(self, answer: Answer, columns: Mapping[str, Any] | None = None) -> None:
        """Record an answer: it is queued at once, and committed on return if this writer waits.

        `columns` has values that the answer lacks: `horizon`, `dataset`, `split`, `walk`, `gold`, `episode_id` (by
        default a new UUID of version 7). The group is the question's own, or else the same for all its near-duplicates.

        Raises:
            UsageError: the writer is closed.
            StoreError: under `strict`, the rows could not be written; `answer` holds the answer.
        """
        self.settle(self.submit(answer, columns), answer)

    def submit(self, answer: Answer, columns: Mapping[str, Any] | None = None) -> Future[None] | None:
        """Queue an answer; return a future to `settle`, None if nothing is to wait for. Raises UsageError if closed."""
        asked = answer.question
        head: dict[str, Any] = {
            "episode_id": uuid7(),
            "group": asked.group or identity(asked.text, asked.context),
            "created_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        head |= columns or {}
        texts = texts_of(answer, head)
        make: Callable[[], list[dict[str, Any]]] = partial(rows_of, answer, head, self._content)
        if holds_key(texts, self._secrets):
            clean = [without_keys(row, self._secrets) for row in rows_of(answer, head, "full")]
            make = partial(veiled, clean, self._content)
        done: Future[None] | None = Future() if self.waits else None
        if self._queue.put(Entry(make, len(texts), done)):
            self._finalizer = weakref.finalize(self, _abandoned, self._queue)
            self._finalizer.atexit = False  # the queue is emptied then anyway
        return done

    def settle(self, done: Future[None] | None, answer: Answer) -> None:
        """Wait for the future that `submit` returned. Raises as `record` does."""
        if done is not None:
            try:
                done.result(WAIT_S)
            except (CascadeError, TimeoutError) as error:
                self._judge(error, answer)

    async def asettle(self, done: Future[None] | None, answer: Answer) -> None:
        """Do as `settle` without blocking the event loop. Cancelling it loses nothing: the rows are still written."""
        if done is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(done), WAIT_S)
            except (CascadeError, TimeoutError) as error:
                self._judge(error, answer)

    def _judge(self, error: CascadeError | TimeoutError, answer: Answer) -> None:
        """Raise the error under `strict`; the queue has counted and logged it in any case."""
        if not self.strict:
            return
        code = error.exit_code if isinstance(error, CascadeError) else 1
        said = str(error) or f"the trace store {self.address.shown} did not answer within {WAIT_S:.0f} s."
        raise StoreError(f"The answer was not recorded: {said}", answer=answer, exit_code=code) from None

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything recorded so far is committed; return whether it is."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write the queued answers and end. May be called twice; after `timeout_s` seconds it gives up."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._queue.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TraceWriter({self.address.shown!r}, content={self._content!r})"


def _abandoned(queue: TraceQueue) -> None:
    queue.begin_to_close()
    warnings.warn("A TraceWriter was not closed; its queued answers are being written.", ResourceWarning, stacklevel=2)


# --- The parts of an answer that go into its traces: keys never, texts as configured ---
#
# The search for keys runs while the question is answered, before anything waits in a queue, so it must be quick. Only
# if a key is found are the rows made at once, without the key.

TEXTS = tuple(name for name in CONTENT_COLUMNS if name != "gold")
"""The columns of content that hold one text each."""


def texts_of(answer: Answer, columns: Mapping[str, Any]) -> str:
    """Return all texts of an answer's rows, each on its own lines."""
    question = answer.question
    texts = [question.text, question.context or "", *_strings(columns.values())]
    for step in answer.steps:
        texts += [candidate.text for candidate in step.candidates]
        _add_generated(texts, step.calls)
    _add_generated(texts, answer.loose_calls)
    return "\n".join(texts)


def _add_generated(texts: list[str], calls: Iterable[Call]) -> None:
    for call in calls:
        completion = call.completion
        if completion is not None:
            texts.append(said_text(completion))
            if completion.tokens is not None:
                generated = "".join([token[0] for token in completion.tokens])
                if generated != completion.text:  # a key may be in the generated tokens but not in the text
                    texts.append(generated)


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _strings(value)


def rows_of(answer: Answer, columns: Mapping[str, Any], content: Content) -> list[dict[str, Any]]:
    """Return the rows of an answer with its texts as `content` says, and the reason for its end among the signals."""
    made = list(rows(answer, **columns))
    for row in made:
        row["signals"]["replay"]["stopped"] = answer.stopped
    return veiled(made, content)


def veiled(rows: list[dict[str, Any]], content: Content) -> list[dict[str, Any]]:
    """Return rows with their texts replaced as `content` says. The given rows are changed."""
    if content != "full":
        for row in rows:
            _veil(row, content)
    return rows


def _veil(row: dict[str, Any], content: Content) -> None:
    """Replace each text of a row by a hash, or remove it."""
    for name in TEXTS:
        row[name] = hashed(row[name]) if content == "hash" and row[name] is not None else None
    gold = row["gold"]
    row["gold"] = [hashed(one) for one in gold] if content == "hash" and gold is not None else None
    row["signals"]["replay"]["tokens"] = None


def without_keys(row: dict[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Return a row without texts of the shape of a key, and without the given secrets."""
    known = tuple(secrets)
    made = {name: _without_keys(value, known) for name, value in row.items() if name != "signals"}
    signals = dict(row["signals"])
    tokens = signals["replay"]["tokens"]
    spelt = () if tokens is None else ("".join([token[0] for token in tokens]), row["text"])
    if any(holds_key(text, known) for text in spelt):
        signals["replay"] = {**signals["replay"], "tokens": None}  # the tokens would still contain the key, in pieces
    return made | {"signals": signals}


def _without_keys(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    return [_without_keys(one, secrets) for one in value] if isinstance(value, list | tuple) else value
