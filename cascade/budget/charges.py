"""The cost of a call, its upper bound, and whether a question can pay for it (`Budget`).

Tokens, service tiers, web searches and audio have prices. The most that a call can cost is held before it is made, and
its actual cost is settled afterwards. Checking only the money already spent could exceed the cap by a whole call;
holding the maximum first cannot (`design/money.md`).

Unknown is None. If a provider may have billed more than it reported, the record of the call has a bound instead of a
cost.

A reply is priced at the service tier that it names, or else at the tier that the request asks for. The bound before
the reply takes the more expensive of that tier and the plain one, since a provider may serve at its plain tier.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.budget.tokens import bound_tokens
from cascade.chat import ChatRequest
from cascade.errors import BudgetExceededError, ProviderError
from cascade.money import PICO_PER_NANO, Price, PriceTable, exact_dollars
from cascade.text import same_model
from cascade.types import Call, Completion, Request, Usage

_MEDIUM = "medium"
"""The default search context size in OpenAI's documentation."""


class Charged(NamedTuple):
    """An amount in nano-dollars, or None and the item without a known price."""

    nano_usd: int | None
    unpriced: str | None = None


_FREE = Charged(0)


def cost_of(request: Request, completion: Completion, price: Price) -> Charged:
    """Return the cost of an answered call from the usage in its reply, with each run at the price of its own model."""
    if completion.iterations:
        return _of_runs(request, completion, price)
    tier, usage = completion.tier if completion.tier is not None else asked_tier(request), completion.usage
    priced, more = price if tier is None else price.at_tier(tier), _searched(request.chat, price)
    if priced is None:
        return _tier_unknown(tier)
    rate = priced.for_input(usage.input_tokens or 0)
    if usage.written_input_tokens:
        if usage.hour_input_tokens is None and not _for_an_hour(request):
            usage = usage._replace(hour_input_tokens=0)
        if unknown := _writes_unknown(usage, rate):
            return Charged(None, unknown)
    plain = priced.cost_nano_usd(usage)
    if plain is None or more.nano_usd is None:
        return Charged(None, more.unpriced)
    audio = _audio(completion.details, rate, cached=bool(usage.cached_input_tokens)) if completion.details else _FREE
    return audio if audio.nano_usd is None else Charged(plain + more.nano_usd + audio.nano_usd)


def _of_runs(request: Request, completion: Completion, price: Price) -> Charged:
    """Return the cost of the runs that a vendor made for one call; other models are priced from the bundled table."""
    total, wire_model = 0, request.wire_model
    for run in completion.iterations:
        own = run.model is None or same_model(wire_model, run.model)
        name = f"{wire_model.rpartition('/')[0]}/{run.model}".lstrip("/")
        rate = price if own else PriceTable.bundled().price(name)
        if rate is None:
            return Charged(None, f"{run.model}, another model that the vendor asked (usage.iterations)")
        cost = cost_of(request, completion._replace(iterations=(), usage=run.usage), rate)
        if cost.nano_usd is None:
            return cost
        total += cost.nano_usd
    return Charged(total)


def _writes_unknown(usage: Usage, rate: Price) -> str | None:
    """Return the name of a cache-writing price that is needed but unknown; None if all are known."""
    written, hour = usage.written_input_tokens or 0, usage.hour_input_tokens
    if written > (hour or 0) and rate.cache_write is None:
        return "writing to a prompt cache (price.cache_write)"
    if written and hour != 0 and rate.cache_write_1h is None:
        return "writing to a prompt cache for an hour (price.cache_write_1h)"
    return None


def _for_an_hour(request: Request) -> bool:
    """Return whether a request may write to a prompt cache for an hour (`cache_control` with `ttl`)."""
    return request.chat is not None and '"ttl":"1h"' in request.chat.canonical


def _audio(details: Mapping[str, Any], rate: Price, *, cached: bool) -> Charged:
    """Return the difference that audio tokens make to the cost of a call."""
    counts = (
        details.get(name, {}).get("audio_tokens") for name in ("prompt_tokens_details", "completion_tokens_details")
    )
    heard, spoken = (count if isinstance(count, int) else 0 for count in counts)
    unknown = _audio_unknown(rate, heard=bool(heard), spoken=bool(spoken))
    if heard and cached:
        unknown = "audio in a prompt that was partly read from a cache"
    if unknown is not None:
        return Charged(None, unknown)
    pico = heard * ((rate.audio_input or 0) - rate.input) + spoken * ((rate.audio_output or 0) - rate.output)
    return Charged(-(-pico // PICO_PER_NANO))


def bound_of(request: Request, price: Price, input_tokens: int) -> Charged:
    """Return the highest possible cost of a call whose prompt has at most `input_tokens` tokens."""
    tier, chat = asked_tier(request), request.chat
    rate, more = price.at_tier(tier), _searched(chat, price)
    if rate is None:
        return _tier_unknown(tier)
    if more.nano_usd is None:
        return more
    if chat is not None and any(tool.get("model") is not None for tool in chat.tools):
        return Charged(None, "a tool that calls another model any number of times")
    if chat is not None and chat.options.get("prediction") is not None:
        return Charged(None, "prediction, whose rejected tokens are billed beyond max_tokens")
    rates = [price, rate]
    heard, spoken = (False, False) if chat is None else (_hears(chat), _speaks(chat))
    if heard or spoken:
        unknown = _audio_unknown(rate, heard=heard, spoken=spoken)
        if unknown is not None:
            return Charged(None, unknown)
        dearest = (max(rate.audio_input or 0, rate.input), max(rate.audio_output or 0, rate.output))
        rates.append(Price(*dearest, request=rate.request))
    written = request.max_tokens + _thinking(request)
    hour = _for_an_hour(request)
    most = max(rate.bound_nano_usd(input_tokens, written, for_an_hour=hour) for rate in rates)
    return Charged(most + more.nano_usd)


def most_nano_usd(request: Request, price: Price | None) -> Charged:
    """Return the most that a call can cost, by an upper bound on the prompt's tokens and the longest allowed answer."""
    return Charged(None) if price is None else bound_of(request, price, bound_tokens(request))


def _tier_unknown(tier: str | None) -> Charged:
    return Charged(None, f"service_tier {tier!r} (price.tiers.{tier})")


def _audio_unknown(rate: Price, *, heard: bool, spoken: bool) -> str | None:
    """Return the names of the audio prices that are needed but unknown; None if all are known."""
    needed = {"audio_input": heard and rate.audio_input is None, "audio_output": spoken and rate.audio_output is None}
    lacking = [f"price.{name}" for name, lacks in needed.items() if lacks]
    return f"audio ({', '.join(lacking)})" if lacking else None


def _thinking(request: Request) -> int:
    """Return the thinking tokens that a request allows; some servers do not count them towards max_tokens."""
    wanted = request.sends.get("thinking", {} if request.chat is None else request.chat.options.get("thinking"))
    budget = wanted.get("budget_tokens") if isinstance(wanted, Mapping) else None
    return max(0, budget) if isinstance(budget, int) else 0  # a negative budget leaves the amount to the model


def asked_tier(request: Request) -> str | None:
    """Return the service tier that a request asks for; the operator's setting takes precedence over the client's."""
    options = {} if request.chat is None else request.chat.options
    tier = request.sends.get("service_tier", options.get("service_tier"))
    return tier if isinstance(tier, str) else None


def _searched(chat: ChatRequest | None, price: Price) -> Charged:
    """Return the cost of web search; a model that always searches charges it once per request."""
    wanted = None if chat is None else chat.options.get("web_search_options")
    if not price.search:
        return _FREE if wanted is None else Charged(None, "web_search_options (price.search)")
    size = wanted.get("search_context_size") if isinstance(wanted, Mapping) else None
    pico = dict(price.search).get(str(size or _MEDIUM))
    unknown = f"web_search_options (price.search.{size or _MEDIUM})"
    return Charged(None, unknown) if pico is None else Charged(-(-pico // PICO_PER_NANO))


def _hears(chat: ChatRequest) -> bool:
    """Return whether the request has audio input, or an earlier audio reply, which counts as input again."""
    if "audio" not in chat.canonical:  # nearly always; a request may have 50,000 parts
        return False
    parts = [
        part for message in chat.messages if isinstance(content := message.get("content"), list) for part in content
    ]
    heard = any(isinstance(part, Mapping) and "audio" in str(part.get("type")) for part in parts)
    return heard or any(message.get("audio") for message in chat.messages)


def _speaks(chat: ChatRequest) -> bool:
    """Return whether the request asks for audio output."""
    modes = chat.options.get("modalities")
    return (isinstance(modes, list) and "audio" in modes) or chat.options.get("audio") is not None


def paid_call(request: Request, completion: Completion, price: Price | None) -> Call:
    """Return the record of an answered call.

    Its cost is only a bound if the usage is an estimate (F20), an earlier try may be billed (F10), or how long a cache
    write is kept is unknown. If an extra item has an unknown price, there is neither, and `unpriced` names the item.
    """
    if price is None:
        return Call(request, completion, None, None)
    cost, unpriced = cost_of(request, completion, price)
    most, usage = cost, completion.usage
    if cost is None and unpriced is None:  # everything written to the cache may be kept for an hour
        longest = usage._replace(hour_input_tokens=usage.written_input_tokens)
        most = cost_of(request, completion._replace(usage=longest), price).nano_usd
    if most is None or not (usage.estimated or completion.maybe_billed):
        return Call(request, completion, cost, most, unpriced=unpriced)
    more = _tries(completion.maybe_billed, request, price)
    return Call(request, completion, None, None if more is None else most + more)


def cut_call(request: Request, price: Price | None) -> Call:
    """Return the record of a call that was in progress when its question ended; it may be billed."""
    return Call(request, None, None, most_nano_usd(request, price).nano_usd, "maybe")


def failed_call(request: Request, error: ProviderError, price: Price | None) -> Call:
    """Return the record of a failed call: free, charged by its reported usage, or possibly charged."""
    reason = f"{type(error).__name__}: {error}"
    if error.billed == "no":
        return Call(request, None, 0, 0, "no", reason)
    if price is None:
        return Call(request, None, None, None, error.billed, reason)
    usage, tries = error.usage if isinstance(error.usage, Usage) else None, max(1, error.maybe_billed)
    reported = None if usage is None or usage.estimated or tries > 1 else Completion("", "failed", usage)
    cost, unpriced = (None, None) if reported is None else cost_of(request, reported, price)
    most = _tries(tries, request, price) if cost is None else cost
    return Call(request, None, cost, most, error.billed, reason, unpriced)


def _tries(tries: int, request: Request, price: Price) -> int | None:
    """Return the highest possible cost of this many tries of a call; None if unknown."""
    most = most_nano_usd(request, price).nano_usd
    return 0 if not tries else None if most is None else tries * most


@dataclass(slots=True)
class Budget:
    """A cap on the calls of a question, or of a run, in nano-dollars; None means no cap. Thread-safe.

    A hold that does not fit waits while other calls are in flight, since they may cost less than their holds (F32). A
    question has one call in flight at a time, so it never waits.
    """

    limit_nano_usd: int | None = None
    spent_nano_usd: int = 0
    _held_nano_usd: int = field(default=0, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)

    def hold(self, request: Request, price: Price | None) -> int:
        """Hold the most that a call can cost, and return that amount; 0 without a cap.

        Raises:
            BudgetExceededError: it could exceed the cap with nothing else in flight, or its price is unknown (F23).
        """
        if self.limit_nano_usd is None:
            return 0
        bound, unpriced = most_nano_usd(request, price)
        if bound is None:
            cap = f"the cap of {exact_dollars(self.limit_nano_usd)}"
            raise BudgetExceededError(no_price(request.model, cap, unpriced))
        with self._changed:
            while self.spent_nano_usd + self._held_nano_usd + bound > self.limit_nano_usd:
                if not self._held_nano_usd:
                    raise BudgetExceededError(_over(request.model, bound, self.spent_nano_usd, self.limit_nano_usd))
                self._changed.wait()
            self._held_nano_usd += bound
        return bound

    def settle(self, hold_nano_usd: int, cost_nano_usd: int | None) -> None:
        """End a hold and book what the call cost; an unknown cost is booked as the full hold (F20)."""
        with self._changed:
            self._held_nano_usd -= hold_nano_usd
            self.spent_nano_usd += hold_nano_usd if cost_nano_usd is None else cost_nano_usd
            if hold_nano_usd:  # else nobody waits for it
                self._changed.notify_all()


def _over(model: str, bound: int, spent: int, limit: int) -> str:
    return (
        f"the next call to {model} may cost up to {exact_dollars(bound)}; {exact_dollars(spent)} of the cap of "
        f"{exact_dollars(limit)} is spent. Raise the cap or lower max_tokens."
    )


def no_price(model: str, cap: str, unpriced: str | None) -> str:
    """Return the error message for a call under a cap whose price is unknown."""
    if unpriced is None:
        return f"{model} has no known price, so no call to it can be kept under {cap}. Give it a price under models."
    lacks = f"{model} has no known price for {unpriced}"
    return f"{lacks}, so no such call can be kept under {cap}. Leave it out, or give the price under models."
