"""Answers many questions at once, in threads or tasks; returns all answers in order, or raises one error with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import SupportsIndex, TypeVar

from cascade.chat import ChatRequest
from cascade.errors import BatchError, CascadeError, UsageError
from cascade.resilience.halting import SETTLE_S, Halt
from cascade.types import Answer, Question

Asked = TypeVar("Asked")


def check(asked: object, concurrency: object) -> None:
    """Raise UsageError if `asked` is one question or chat, or `concurrency` is no whole number of at least 1."""
    if isinstance(asked, str | Question | Mapping | ChatRequest):
        raise UsageError("many takes a list of questions or of chat requests; for one question use ask or chat.")
    messages = isinstance(asked, list | tuple) and any(isinstance(each, Mapping) and "role" in each for each in asked)
    if messages:
        raise UsageError("These are messages of one chat: orchestrator.chat(messages), or many([messages, …]).")
    if isinstance(concurrency, bool) or not isinstance(concurrency, SupportsIndex) or concurrency.__index__() < 1:
        raise UsageError(f"concurrency must be a whole number of at least 1, not {concurrency!r}.")


def in_threads(
    ask: Callable[[Asked, Halt], Answer], questions: Iterable[Asked], concurrency: int, halt: Halt
) -> list[Answer]:
    """Return the answers in order; Ctrl-C cancels the calls under way and makes no other.

    Args:
        ask: answers one question; it ends when its halt is stopped.
        questions: the questions.
        concurrency: the number of questions that run at once.
        halt: the switch that stops all of them.

    Raises:
        BatchError: some failed; `results` holds every answer and every error.
    """
    check(questions, concurrency)
    own = Halt()

    def one(question: Asked) -> Answer | CascadeError:
        try:
            return ask(question, own)
        except CascadeError as error:
            return error

    threads = ThreadPoolExecutor(concurrency, thread_name_prefix="cascade-ask")
    with halt.over(own.stop), halt.working():
        try:
            asked = [threads.submit(one, question) for question in questions]
            results = [future.result() for future in asked]
        except BaseException:  # Ctrl-C: no further question starts, and running ones end now
            own.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            own.wait_idle(SETTLE_S)
            raise
    threads.shutdown()
    return _all_or_error(results)


async def in_tasks(
    ask: Callable[[Asked], Awaitable[Answer]], questions: Iterable[Asked], concurrency: int
) -> list[Answer]:
    """Return the answers in order, without blocking; cancelling cancels all. Raises as `in_threads` does."""
    check(questions, concurrency)
    places = asyncio.Semaphore(concurrency)

    async def one(question: Asked) -> Answer | CascadeError:
        async with places:
            try:
                return await ask(question)
            except CascadeError as error:
                return error

    tasks = [asyncio.create_task(one(question)) for question in questions]
    try:
        return _all_or_error(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _all_or_error(results: list[Answer | CascadeError]) -> list[Answer]:
    failed = [result for result in results if isinstance(result, CascadeError)]
    if failed:
        raise BatchError(
            f"{len(failed)} of {len(results)} questions failed, first {type(failed[0]).__name__}: {failed[0]}. "
            "`.results` of this error holds every answer and every error, in order.",
            results=tuple(results),
        )
    return [result for result in results if isinstance(result, Answer)]
