r"""A provider for tests and examples: scripted answers, log-probs, usage and faults. It never leaves the process.

    >>> from cascade.providers.fake import FakeProvider, reply
    >>> fake = FakeProvider({"small": ["Reasoning: a river.\nAnswer: Danube"], "large": [reply("Yes", p_yes=0.97)]})

Give it a list of replies per model (the last one repeats), one callable that maps a `Request` to a reply, or nothing,
for an echo. A reply is a text, a payload from `reply`, or an exception, which is raised.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from cascade.chat import tool_call
from cascade.policies.signals import purposes_of
from cascade.providers.base import Payload
from cascade.providers.registry import ProviderSettings
from cascade.resilience.event_loop import in_thread
from cascade.types import Request

Reply: TypeAlias = str | Payload | BaseException
Script: TypeAlias = Mapping[str, Sequence[Reply]] | Callable[[Request], Reply] | None

_TOKEN_LOGPROB = -0.1
_JUDGING = purposes_of("verdict")


def reply(
    text: str,
    *,
    p_yes: float | None = None,
    logprobs: Sequence[float] | None = None,
    input_tokens: int = 20,
    output_tokens: int | None = None,
    finish_reason: str = "stop",
    model: str | None = None,
    tool_calls: Sequence[tuple[str, Mapping[str, Any] | str]] = (),
) -> Payload:
    """Return a chat completion payload.

    Args:
        text: the model's text.
        p_yes: if given, the first token's log-probs are {"Yes": ln p, "No": ln(1 − p)}.
        logprobs: log-probs of the words, in order; by default −0.1 each.
        input_tokens: reported prompt tokens.
        output_tokens: reported completion tokens; by default the number of words.
        finish_reason: "stop", "length", "content_filter", …
        model: the model's name in the reply.
        tool_calls: names and arguments of the called tools; arguments given as a text are sent unchanged.
    """
    words = text.split(" ")
    values = list(logprobs) if logprobs is not None else [_TOKEN_LOGPROB] * len(words)
    content: list[dict[str, Any]] = [
        {"token": word, "logprob": value, "top_logprobs": [{"token": word, "logprob": value}]}
        for word, value in zip(words, values, strict=False)
    ]
    if p_yes is not None:
        pair = {"Yes": p_yes, "No": 1.0 - p_yes}
        top = [{"token": token, "logprob": math.log(p) if p > 0 else -math.inf} for token, p in pair.items()]
        says_yes = words[0].strip(".,:").lower() == "yes"
        content[0] = {**top[not says_yes], "top_logprobs": top}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tool_calls:
        named = [{"name": name, "arguments": arguments} for name, arguments in tool_calls]
        message |= {"content": text or None, "tool_calls": [tool_call(index, call) for index, call in enumerate(named)]}
        finish_reason = "tool_calls" if finish_reason == "stop" else finish_reason
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": {"content": content}}
    written = len(words) if output_tokens is None else output_tokens
    payload = {"choices": [choice], "usage": {"prompt_tokens": input_tokens, "completion_tokens": written}}
    return payload if model is None else {**payload, "model": model}


@dataclass(slots=True)
class FakeProvider:
    """Answers from a script. `requests` records the requests, newest last, up to `keep`."""

    script: Script = None
    keep: int = 1_000
    requests: list[Request] = field(default_factory=list)
    closed: bool = False
    _counts: dict[str, int] = field(default_factory=dict)

    async def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - it answers at once
        """Return the script's next reply for this request. A callable may block, so it is called in a thread."""
        if len(self.requests) < self.keep:
            self.requests.append(request)
        scripted = await in_thread(partial(self.script, request)) if callable(self.script) else self._next(request)
        if isinstance(scripted, BaseException):
            raise copy(scripted)  # a copy, since an exception that is raised again keeps all earlier tracebacks
        return reply(scripted) if isinstance(scripted, str) else scripted

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the reply word by word."""
        for chunk in chunks(await FakeProvider.complete(self, request, timeout_s)):  # a subclass may delay its own
            yield chunk

    async def close(self) -> None:
        """Record that the provider was closed."""
        self.closed = True

    def _next(self, request: Request) -> Reply:
        script = {} if self.script is None or callable(self.script) else self.script
        replies = script.get(request.model) or script.get(request.role)
        if not replies:
            return _echo(request)
        place = self._counts.get(request.model, 0)
        self._counts[request.model] = place + 1
        return replies[min(place, len(replies) - 1)]


def _echo(request: Request) -> Payload:
    if request.purpose in _JUDGING:
        return reply("Yes", p_yes=0.9)
    if request.chat is not None:
        return reply(f"you asked: {request.question.text}")
    return reply(f"Reasoning: this is the fake provider.\nAnswer: you asked: {request.question.text}")


def chunks(payload: Payload) -> Iterator[Payload]:
    """Yield a reply as the chunks of a stream: other fields, such as thinking, then each word, then each tool call."""
    choice = payload["choices"][0]
    message, logprobs = choice["message"], iter((choice.get("logprobs") or {}).get("content") or ())
    words, calls = (message["content"] or "").split(" "), message.get("tool_calls") or ()
    deltas = [{name: message[name]} for name in message if name not in {"role", "content", "tool_calls"}]
    deltas += [{"content": word if place == 0 else f" {word}"} for place, word in enumerate(words)]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    for delta in deltas:
        token = [*islice(logprobs, 1)] if "content" in delta else []
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": {"content": token}}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {"choices": [], "usage": payload["usage"]}


def create(settings: ProviderSettings) -> FakeProvider:
    """Return the provider with its replies."""
    return FakeProvider(settings.options.get("replies"))
