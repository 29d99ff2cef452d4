"""Streamed answers: which part of each reply is shown, and when.

`drafts` shows the text of each model, served or not. `served` shows only text that is served. Whole answers do not pass
through here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import replace
from typing import TypeAlias

from cascade.engine import Steps
from cascade.errors import BudgetExceededError, ProviderError
from cascade.plans.reply import AnswerText
from cascade.policies.signals import purposes_of
from cascade.types import Answer, Completion, Request, Run, Step, TextDelta

Pieces: TypeAlias = Callable[[Request], AsyncGenerator[TextDelta | Completion, None]]
"""Makes a call and yields the reply as it is written."""
Events: TypeAlias = AsyncGenerator[TextDelta | Step | Answer, None]

_ANSWERING = purposes_of("answer", "direct")


async def play(walk: Run, answer: Pieces, *, blocks: bool = False) -> Events:
    """Run a question to its end; yield text from `answer` as it arrives, each finished step, and the answer."""
    result: Completion | Exception | None = None
    with closing(Steps(walk, blocks=blocks)) as steps:
        while isinstance(item := await steps.after(result), Request | Step):
            result = None
            if isinstance(item, Step):
                yield item
                continue
            try:
                async with aclosing(answer(item)) as events:
                    async for event in events:
                        if isinstance(event, Completion):
                            result = event
                        else:
                            yield event
            except (ProviderError, BudgetExceededError) as error:
                result = error
        yield item


def drafts(walk: Run, answer: Pieces, *, raw: bool, blocks: bool = False) -> Events:
    """Run a question to its end; yield the text of the answers, or with `raw` everything that the models write."""

    async def shown(request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        """Yield the part of a reply that is shown and, at its end, the text that was held back because of its form."""
        answers, text = request.purpose in _ANSWERING, AnswerText()
        async with aclosing(answer(request)) as pieces:
            async for event in pieces:
                if isinstance(event, TextDelta):
                    if answers and (piece := text.add(event.text)):
                        yield replace(event, text=piece)
                    continue
                if answers and not event.truncated and (piece := text.rest()):
                    yield TextDelta(piece, request.role, request.step, request.model)
                yield event

    def pieces(request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        return answer(request) if raw or request.chat is not None else shown(request)  # a message is shown as written

    return play(walk, pieces, blocks=blocks)


class Flow:
    """Decides whether a reply can be streamed: only if no other reply can be served instead.

    That is the reply of the last model, if the policy has kept no earlier answer, unless the whole reply has to be
    checked.

    Args:
        horizon: T, the number of the last step; 0 to show nothing before the answer is known.

    >>> from cascade import ChatRequest, Question
    >>> asked = ChatRequest([{"role": "user", "content": "Hi"}])
    >>> request = Request("large", (), "large", "answer", 2, Question("Hi"), 10, chat=asked)
    >>> Flow(2).shows(request), Flow(3).shows(request)
    (True, False)
    """

    def __init__(self, horizon: int) -> None:
        self._horizon, self._open = horizon, horizon > 0

    def take(self, step: Step) -> None:
        """Record a decided step."""
        decision = step.decision
        self._open = self._open and decision is not None and decision.proceed and not decision.keep

    def shows(self, request: Request) -> bool:
        """Return whether the reply can be streamed. JSON, a required tool call and log-probs need the whole reply."""
        chat, last = request.chat, 0 < self._horizon <= request.step and request.purpose in _ANSWERING
        if not (self._open and last) or chat is None or chat.wants_json or chat.top_logprobs:
            return False
        return chat.options.get("tool_choice") in (None, "auto", "none")


async def served(
    walk: Run, whole: Callable[[Request], Awaitable[Completion]], pieces: Pieces, flow: Flow, *, blocks: bool = False
) -> AsyncGenerator[TextDelta | Answer, None]:
    """Run a question to its end; yield only text that is served, then the answer.

    `whole` makes a call and returns the whole reply; `flow` decides what may be shown before the answer is known.

    Raises:
        ProviderError: as `engine.run` does; its `shown` is true if text was yielded.
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

    async with aclosing(play(walk, replied, blocks=blocks)) as events:
        async for event in events:
            if isinstance(event, Step):
                flow.take(event)
            elif isinstance(event, Answer) or event.text:
                yield event
