"""Write the rows of answers to a store in the background, in groups. `trace.Trace` follows each ask and brings them.

`TraceWriter.submit` looks for keys, puts the answer in a queue, and returns. One thread makes rows of what is there and
commits them together. A store that fails costs traces, which are counted and warned about, and never an answer, unless
`strict` asks for it.
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
from types import TracebackType
from typing import Any, Literal, Self

from cascade.episodes.schema import CONTENT_COLUMNS, hashed, identity, rows, said_text
from cascade.episodes.store import Address, StoreError, parse, uuid7
from cascade.episodes.trace_queue import Counts, Entry, TraceQueue
from cascade.errors import CascadeError
from cascade.forks import after_fork
from cascade.safety import holds_key, redact
from cascade.types import Answer, Call

logger = getLogger("cascade")

Content = Literal["full", "hash", "none"]
WAIT_S = 30.0
"""How long an ask waits at most for its commit, where it waits at all."""


class TraceWriter:
    """Writes the rows of answers to a store, in the background.

    It may be shared between threads and tasks; a forked child has a writer of its own. Close it, or use it in a `with`
    block: what is still in the queue is then written.

    Args:
        store: where to, as a URL or an address.
        content: "full" keeps texts, "hash" their SHA-256, "none" nothing of them.
        durability: "full" makes `record` wait until its rows are on the disk.
        strict: whether `record` raises where its rows could not be written; it then waits, too.
        secrets: keys that may stand in no row, besides all that has the shape of one.

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
        """In a forked child: the thread is gone, and what is in the queue is the parent's to write (F50)."""
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
        """Put an answer on record: at once in the queue, and committed on return where this writer waits.

        Args:
            answer: the answer, with its steps.
            columns: what the answer does not know: `horizon`, `dataset`, `split`, `walk`, `gold`. The episode's id is a
                new UUID of version 7, or `episode_id`; the group is the question's own, or else the same for all
                near-duplicates of the question; segment and user are the question's own.

        Raises:
            UsageError: the writer is closed.
            StoreError: under `strict`, the rows could not be written; `answer` holds the answer.
        """
        self.settle(self.submit(answer, columns), answer)

    async def arecord(self, answer: Answer, columns: Mapping[str, Any] | None = None) -> None:
        """Do as `record` without blocking the event loop."""
        await self.asettle(self.submit(answer, columns), answer)

    def submit(self, answer: Answer, columns: Mapping[str, Any] | None = None) -> Future[None] | None:
        """Queue an answer; return what to `settle`, None where nothing is waited for. Raises UsageError if closed."""
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
        """Wait for what `submit` returned. Raises as `record` does."""
        if done is not None:
            try:
                done.result(WAIT_S)
            except (CascadeError, TimeoutError) as error:
                self._judge(error, answer)

    async def asettle(self, done: Future[None] | None, answer: Answer) -> None:
        """Do as `settle` without blocking the event loop. To cancel it loses nothing: the rows are written anyway."""
        if done is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(done), WAIT_S)
            except (CascadeError, TimeoutError) as error:
                self._judge(error, answer)

    def _judge(self, error: CascadeError | TimeoutError, answer: Answer) -> None:
        """Raise what went wrong if that is wanted; the queue has counted and said it in any case."""
        if not self.strict:
            return
        code = error.exit_code if isinstance(error, CascadeError) else 1
        said = str(error) or f"the trace store {self.address.shown} did not answer within {WAIT_S:.0f} s."
        raise StoreError(f"The answer is there, and its trace is not: {said}", answer=answer, exit_code=code) from None

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all that was recorded so far is committed; return whether it is."""
        return self._queue.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is in the queue and end. May be called twice; after `timeout_s` seconds it gives up."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._queue.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TraceWriter({self.address.shown!r}, content={self._content!r})"


def _abandoned(queue: TraceQueue) -> None:
    queue.begin_to_close()
    warnings.warn("A TraceWriter was not closed; what it had is being written.", ResourceWarning, stacklevel=2)


# --- What of an answer goes into its traces: keys never, texts as the configuration says ---
#
# The search for keys runs while the question is answered, before anything waits in a queue, so it must be quick. Only
# if a key is found are the rows made at once, without the key.

TEXTS = tuple(name for name in CONTENT_COLUMNS if name != "gold")
"""The columns of content that hold one text each."""


def texts_of(answer: Answer, columns: Mapping[str, Any]) -> str:
    """Return all that an answer's rows will spell out, each text on lines of its own."""
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
                if generated != completion.text:  # a key may stand in what was generated and not in the text
                    texts.append(generated)


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _strings(value)


def rows_of(answer: Answer, columns: Mapping[str, Any], content: Content) -> list[dict[str, Any]]:
    """Return the rows of an answer with what `content` says of its texts, and why the walk ended among its signals."""
    made = list(rows(answer, **columns))
    for row in made:
        row["signals"]["replay"]["stopped"] = answer.stopped
    return veiled(made, content)


def veiled(rows: list[dict[str, Any]], content: Content) -> list[dict[str, Any]]:
    """Return rows with what `content` says in place of their texts. The rows given are changed."""
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
    """Return a row without anything of the shape of a key, and without the given secrets."""
    known = tuple(secrets)
    made = {name: _without_keys(value, known) for name, value in row.items() if name != "signals"}
    signals = dict(row["signals"])
    tokens = signals["replay"]["tokens"]
    spelt = () if tokens is None else ("".join([token[0] for token in tokens]), row["text"])
    if any(holds_key(text, known) for text in spelt):
        signals["replay"] = {**signals["replay"], "tokens": None}  # piece by piece they would spell it out
    return made | {"signals": signals}


def _without_keys(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    return [_without_keys(one, secrets) for one in value] if isinstance(value, list | tuple) else value
