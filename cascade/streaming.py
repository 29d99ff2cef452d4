"""Streamed answers: selects the part of each reply that is shown, on the drivers of `engine`.

`stream` and `astream` show drafts: the text of each model, served or not. `aserve` shows only text that is served.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import TypeAlias

from cascade.chat import ChatRequest
from cascade.engine import Run, aplay, play
from cascade.errors import ProviderError
from cascade.plans.reply import AnswerText
from cascade.types import Answer, Completion, Request, Step, TextDelta

Pieces: TypeAlias = Callable[[Request], AsyncGenerator[TextDelta | Completion, None]]
"""Makes a call and yields the reply as it is written."""
Settle: TypeAlias = Callable[[Answer], Awaitable[Answer]]
"""Returns an answer once its trace is settled."""

_ANSWERING = frozenset({"answer", "direct"})
"""The purposes of calls whose replies have an answer; other calls judge or decide."""


class _VisibleReply:
    """The part of a call's reply that is shown: all of it if `raw`, else its answer."""

    def __init__(self, request: Request, *, raw: bool) -> None:
        self._request, self._answer = request, AnswerText()
        self._answers = request.purpose in _ANSWERING
        self._raw = raw or request.chat is not None  # a message is shown as it is written

    def of(self, event: TextDelta) -> Iterator[TextDelta]:
        """Yield the part of a piece of the reply that is shown, if any."""
        if self._raw:
            yield event
        elif self._answers and (text := self._answer.add(event.text)):
            yield replace(event, text=text)

    def rest(self, completion: Completion) -> Iterator[TextDelta]:
        """Yield the answer that was held back to the end of a whole reply, if there is one."""
        if self._raw or not self._answers or completion.truncated:
            return
        if text := self._answer.rest():
            yield TextDelta(text, self._request.role, self._request.step, self._request.model)


def stream(
    walk: Run,
    answer: Callable[[Request], Iterator[TextDelta | Completion]],
    settle: Callable[[Answer], Answer],
    *,
    raw: bool,
) -> Iterator[TextDelta | Step | Answer]:
    """Run a question to its end, blocking, and yield text, steps, and the answer after its trace is settled.

    The text is that of the answers, or with `raw` everything that the models write.
    """

    def shown(request: Request) -> Iterator[TextDelta | Completion]:
        completion, reply = None, _VisibleReply(request, raw=raw)
        for event in answer(request):
            if isinstance(event, Completion):
                completion = event
            else:
                yield from reply.of(event)
        if completion is not None:
            yield from reply.rest(completion)
            yield completion

    with closing(play(walk, shown)) as events:
        for event in events:
            yield settle(event) if isinstance(event, Answer) else event


async def astream(
    walk: Run, answer: Pieces, settle: Settle, *, raw: bool
) -> AsyncGenerator[TextDelta | Step | Answer, None]:
    """Do as `stream` without blocking; cancelling closes the walk."""

    async def shown(request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        completion, reply = None, _VisibleReply(request, raw=raw)
        async with aclosing(answer(request)) as pieces:
            async for event in pieces:
                if isinstance(event, Completion):
                    completion = event
                else:
                    for piece in reply.of(event):
                        yield piece
        if completion is not None:
            for piece in reply.rest(completion):
                yield piece
            yield completion

    async with aclosing(aplay(walk, shown)) as events:
        async for event in events:
            yield await settle(event) if isinstance(event, Answer) else event


class Flow:
    """Decides whether a reply can be streamed: only if no other reply can be served instead.

    That is the reply of the last model, if the policy has kept no earlier answer, unless the cascade may abstain or the
    whole reply has to be checked.

    Args:
        horizon: T, the number of the last step; 0 to show nothing before the answer is known.
        may_abstain: whether the answer may be withheld once it is known.

    >>> from cascade.types import Question
    >>> asked = ChatRequest([{"role": "user", "content": "Hi"}])
    >>> request = Request("large", (), "large", "answer", 2, Question("Hi"), 10, chat=asked)
    >>> Flow(2, may_abstain=False).shows(request), Flow(3, may_abstain=False).shows(request)
    (True, False)
    """

    def __init__(self, horizon: int, *, may_abstain: bool) -> None:
        self._horizon = horizon
        self._open = horizon > 0 and not may_abstain

    def take(self, step: Step) -> None:
        """Record a decided step."""
        decision = step.decision
        self._open = self._open and decision is not None and decision.proceed and not decision.keep

    def shows(self, request: Request) -> bool:
        """Return whether the reply to a request can be streamed."""
        last = 0 < self._horizon <= request.step and request.purpose in _ANSWERING
        return self._open and last and request.chat is not None and not _checked_whole(request.chat)


def _checked_whole(asked: ChatRequest) -> bool:
    """Whether the whole reply is needed before it can be served: JSON, a required tool call, log-probs."""
    choice = asked.options.get("tool_choice")
    return asked.wants_json or choice not in (None, "auto", "none") or bool(asked.top_logprobs)


async def aserve(
    walk: Run, whole: Callable[[Request], Awaitable[Completion]], pieces: Pieces, flow: Flow, settle: Settle
) -> AsyncGenerator[TextDelta | Answer, None]:
    """Run a question to its end; yield only text that is served, then the answer.

    `whole` makes a call and returns the whole reply; `flow` decides what may be shown before the answer is known.

    Raises:
        ProviderError: as `engine.run` does; with `shown`, after text was yielded.
    """

    async def replied(request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        if not flow.shows(request):
            yield await whole(request)
            return
        shown = False
        try:
            async with aclosing(pieces(request)) as events:
                async for event in events:
                    shown = shown or (isinstance(event, TextDelta) and bool(event.text))
                    yield event if isinstance(event, TextDelta) else event._replace(shown=shown)
        except ProviderError as error:
            error.shown = shown
            raise

    async with aclosing(astream(walk, replied, settle, raw=True)) as events:
        async for event in events:
            if isinstance(event, Step):
                flow.take(event)
            elif isinstance(event, Answer) or event.text:
                yield event
