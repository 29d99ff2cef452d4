"""Tracks which prompts of a conversation the providers have cached, to decide whether staying with a model is cheapest.

Providers charge less for a prompt that they have read before. So the next turn of a conversation is cheap for an
expensive model that answered the turn before, while a cheap model would have to read the whole conversation. This
module records what each model has read from its replies. A cached prefix counts only if the provider has reported
cached tokens for this conversation.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from cascade.budget.tokens import estimate_tokens
from cascade.chat import ChatRequest
from cascade.engine import Run
from cascade.money import Price, Usage
from cascade.strategies.base import Strategy
from cascade.types import Answer, Question

MOST_KEPT = 10_000
"""The maximum number of recorded prompts; the oldest are dropped first and then do not count as cached."""


class _CachedPrompt(NamedTuple):
    """A prompt that a model has read.

    Attributes:
        tokens: tokens of the prompt.
        written: tokens of the reply.
        cached: whether the provider reported cached tokens, here or at an earlier turn.
        at_s: the time, by the clock.
    """

    tokens: int
    written: int
    cached: bool
    at_s: float


class PromptCaches:
    """The prompts that models have read recently. Thread-safe.

    Args:
        keeps_s: how long a provider keeps a prompt, in seconds.
        prices: the prices of the models.
        clock: returns seconds.
    """

    def __init__(
        self, keeps_s: float, prices: Mapping[str, Price | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keeps_s, self._prices, self._clock = keeps_s, prices, clock
        self._read: OrderedDict[tuple[str, bytes], _CachedPrompt] = OrderedDict()
        self._lock = threading.Lock()

    def stays(self, question: Question, strategy: Strategy) -> bool:
        """Whether the answer of a ladder's last model is expected to cost no more than that of the first one.

        It assumes that both write as many tokens as the last model did at an earlier turn.
        """
        request, models = question.chat, strategy.models
        if request is None or not strategy.ends_with_reference or len(models) == 1:
            return False
        first, last = models[0], models[-1]
        before = self._longest(request, last)
        if before is None or not before.cached:
            return False
        own, other = self.expected_nano_usd(request, first, before), self.expected_nano_usd(request, last, before)
        return own is not None and other is not None and other <= own

    def expected_nano_usd(self, request: ChatRequest, model: str, before: _CachedPrompt) -> int | None:
        """Return the expected cost of a model's answer, with its cached prompt; None without a price.

        Args:
            request: the next turn of a conversation.
            model: the model.
            before: the record of an earlier turn, for the length of the conversation and of a reply.
        """
        price, known = self._prices.get(model), self._longest(request, model)
        if price is None:
            return None
        cached = known.tokens if known is not None and known.cached else 0
        whole = before.tokens + before.written + estimate_tokens(_text(request.messages[-1]))
        return price.cost_nano_usd(Usage(whole, before.written, min(cached, whole)))

    def followed(self, walk: Run) -> Run:
        """Return the same walk; at its end, the prompts that its models read are recorded."""
        answer = yield from walk
        self.note(answer)
        return answer

    def note(self, answer: Answer) -> None:
        """Record the prompts that the asked models have read."""
        request = answer.question.chat
        if request is None:
            return
        key = _digests(request)[-1]
        for call in (*(call for step in answer.steps for call in step.calls), *answer.loose_calls):
            usage = None if call.completion is None else call.completion.usage
            if usage is None or usage.estimated or not usage.input_tokens or call.request.purpose != "answer":
                continue
            model, before = call.request.model, self._longest(request, call.request.model)
            told = bool(usage.cached_input_tokens or usage.written_input_tokens)
            cached = told or (before is not None and before.cached)
            with self._lock:
                self._read[model, key] = _CachedPrompt(
                    usage.input_tokens, usage.output_tokens or 0, cached, self._clock()
                )
                self._read.move_to_end((model, key))
                while len(self._read) > MOST_KEPT:
                    self._read.popitem(last=False)

    def _longest(self, request: ChatRequest, model: str) -> _CachedPrompt | None:
        """Return the longest prefix of a request that a model has read and the provider still caches."""
        since = self._clock() - self._keeps_s
        with self._lock:
            for key in reversed(_digests(request)):
                found = self._read.get((model, key))
                if found is not None and found.at_s >= since:
                    return found
        return None


def _digests(request: ChatRequest) -> list[bytes]:
    """Return a digest of each prefix of a request: tools and schema, then each message."""
    whole = blake2b(digest_size=16)
    whole.update(_text({name: request.options.get(name) for name in ("tools", "response_format")}).encode())
    found = []
    for message in request.messages:
        whole.update(_text(message).encode())
        found.append(whole.digest())
    return found


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True)
