"""The one door to every provider: clock, retries and checks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade.chat import ChatRequest
from cascade.config.schema import TimeoutsConfig
from cascade.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
)
from cascade.providers import guard as room
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.fields import wire_body
from cascade.providers.guard import Guard, Pace
from cascade.resilience.event_loop import NOT_BEGUN, Deadline
from cascade.resilience.health import RetryPolicy
from cascade.types import TextDelta
from unit.builders import Failing, payload, request


def down() -> ProviderUnavailableError:
    return ProviderUnavailableError("down")


NEVER, HI = Deadline(), [{"role": "user", "content": "Hi"}]


class Sleeps(list):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def guarded(provider: Any, **settings: Any) -> tuple[Guard, Sleeps]:
    slept = Sleeps()
    return Guard(provider, sleep=slept, **settings), slept


async def streamed(guard: Guard, call: Any = None, deadline: Deadline = NEVER, got: Any = None) -> list[Any]:
    got = [] if got is None else got
    async for event in guard.stream(call or request(), deadline):
        got.append(event)
    return got


async def test_a_good_answer_is_checked_and_returned():
    provider = Failing()
    guard, slept = guarded(provider, secrets=("hunter2",))
    answer = await guard.complete(request(), NEVER)
    assert (answer.text, answer.maybe_billed, answer.notes, slept) == ("Danube", 0, (), [])
    assert 0 <= answer.latency_s < 60
    assert "hunter2" not in repr(guard)
    await guard.close()
    assert provider.closed == 1


@pytest.mark.parametrize(("free", "maybe"), [(0, 1), (1, 1), (1, 0), (2, 0)])
async def test_a_try_that_may_be_billed_is_counted_in_the_answer(free, maybe):
    guard, _ = guarded(Failing(*[BadResponseError("html") for _ in range(maybe)], *[down() for _ in range(free)]))
    assert (await guard.complete(request(), NEVER)).maybe_billed == maybe


async def test_a_call_that_may_be_made_once_is_repeated_only_if_it_was_free():
    provider = Failing(BadResponseError("html"))
    with pytest.raises(BadResponseError):
        await guarded(provider)[0].complete(request(at_most_once=True), NEVER)
    assert len(provider.requests) == 1
    assert (await guarded(Failing(down()))[0].complete(request(at_most_once=True), NEVER)).text == "Danube"


async def test_a_try_that_may_be_billed_is_not_forgotten_when_the_last_one_was_free():
    guard, _ = guarded(Failing(BadResponseError("html"), down(), down()))
    with pytest.raises(ProviderUnavailableError) as caught:
        await guard.complete(request(), NEVER)
    assert caught.value.billed == "maybe"


async def test_each_try_gets_what_is_left_of_the_shorter_clock(monkeypatch):
    for module in ("cascade.providers.guard", "cascade.resilience.event_loop"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: 7.0))
    guard, _ = guarded(provider := Failing(down()), per_call_s=30.0)
    for deadline in (NEVER, Deadline(12.0)):
        await guard.complete(request(), deadline)
    assert provider.timeouts == [30.0, 30.0, 5.0]


class Hanging(Failing):
    """Says that it is late, or forgets its limit."""

    async def complete(self, request: Any, timeout_s: float) -> Any:
        if self.errors:
            raise TimeoutError
        await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize("errors", [(), (down(),)])
async def test_a_provider_that_forgets_its_limit_is_cut_off(errors, monkeypatch):
    monkeypatch.setattr(room, "_LATE_S", 0.01)
    guard, _ = guarded(Hanging(*errors), per_call_s=0.01, retry=RetryPolicy(max_retries=0))
    with pytest.raises(ProviderTimeoutError) as caught:
        await guard.complete(request(), NEVER)
    assert caught.value.billed == "maybe"


@pytest.mark.parametrize("stream", [False, True])
async def test_no_call_is_begun_after_the_deadline(stream):
    provider = Breaking([PIECE], None)
    guard, passed = guarded(provider)[0], Deadline.after(0.0)
    with pytest.raises(ProviderTimeoutError) as caught:
        await (streamed(guard, deadline=passed) if stream else guard.complete(request(), passed))
    assert (provider.requests, provider.started, caught.value.billed) == ([], 0, "no")


def test_at_the_deadline_no_time_is_left_and_a_call_has_what_the_configuration_gives_it():
    tries = room._Tries(request(), Deadline(10.0), 1.0, 10.0)
    assert tries.left_s(9.5) == 0.5
    with pytest.raises(ProviderTimeoutError):
        tries.left_s(10.0)
    assert Guard(FakeProvider()).per_call_s == TimeoutsConfig().per_call_s


async def test_a_reply_without_logprobs_counts_for_itself_alone():
    provider = Failing()
    guard, _ = guarded(provider)
    first = await guard.complete(request(top_logprobs=20), NEVER)
    again = await guard.complete(request(top_logprobs=20), NEVER)
    assert [wire_body(call, "m").get("top_logprobs") for call in provider.requests] == [20, 20]
    assert first.notes == again.notes == ("small sent no log-probs",)


def unsupported(name: str, more: str = "") -> BadRequestError:
    return BadRequestError(f"Unsupported parameter: '{name}' is not supported with this model.{more}", status=400)


NEWER = " Use 'max_completion_tokens' instead."


async def test_what_cascade_added_and_a_model_refuses_is_left_out_for_an_hour():
    provider = Failing(unsupported("max_tokens", NEWER), unsupported("logprobs"))
    guard, slept = guarded(provider)
    answer = await guard.complete(request(top_logprobs=2), NEVER)
    await guard.complete(request(top_logprobs=2), NEVER)
    sent = [wire_body(call, "m") for call in provider.requests]
    named = [sorted(body.keys() & {"max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"}) for body in sent]
    assert named == [
        ["logprobs", "max_tokens", "top_logprobs"],
        ["logprobs", "max_completion_tokens", "top_logprobs"],
        ["max_completion_tokens"],
        ["max_completion_tokens"],
    ]
    assert (answer.text, answer.maybe_billed, set(slept)) == ("Danube", 0, {0.0})
    assert "small was asked without what it refuses: logprobs, max_tokens" in answer.notes
    guard._refused = {model: (without, 0.0) for model, (without, _) in guard._refused.items()}  # an hour later
    await guard.complete(request(top_logprobs=2), NEVER)
    assert wire_body(provider.requests[-1], "m").keys() >= {"max_tokens", "logprobs"}


async def test_what_was_left_out_in_vain_or_with_another_field_of_the_client_is_sent_again():
    provider = Failing(unsupported("logprobs"), BadRequestError("no", status=400), unsupported("logprobs"))
    guard, _ = guarded(provider)
    with pytest.raises(BadRequestError):
        await guard.complete(request(top_logprobs=2), NEVER)
    for options in ({"reasoning_effort": "high"}, {}, {"reasoning_effort": "low"}, {"reasoning_effort": "high"}):
        await guard.complete(request(top_logprobs=2, chat=ChatRequest(HI, options)), NEVER)
    sent = ["logprobs" in wire_body(call, "m") for call in provider.requests]
    assert sent == [True, False, True, False, True, True, False]


async def test_a_refusal_of_what_the_application_set_comes_out_and_names_what_cascade_added():
    chat = ChatRequest(HI, {"logprobs": True, "max_tokens": 9})
    guard, _ = guarded(provider := Failing(unsupported("logprobs"), unsupported("n")))
    with pytest.raises(BadRequestError) as caught:
        await guard.complete(request(top_logprobs=1, chat=chat), NEVER)
    assert len(provider.requests) == 1
    assert "cascade added" not in str(caught.value)
    with pytest.raises(BadRequestError, match="cascade added to the request: max_tokens, logprobs, top_logprobs"):
        await guard.complete(request(top_logprobs=1, chat=ChatRequest(HI)), NEVER)


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_limit_of_the_application_s_own_goes_under_the_name_that_the_model_takes(refusals):
    guard, _ = guarded(provider := Failing(*[unsupported("max_tokens", NEWER)] * refusals))
    for own in ({"max_tokens": 9}, {"max_tokens": 9, "max_completion_tokens": 7}):
        with suppress(BadRequestError):
            await guard.complete(request(chat=ChatRequest(HI, own)), NEVER)
    sent = [wire_body(call, "m") for call in provider.requests]
    limits = [[body.get(name) for name in ("max_tokens", "max_completion_tokens")] for body in sent]
    assert limits == [[9, None], [None, 9], [9, 7]]


async def test_a_limit_that_is_too_large_is_not_sent_under_another_name():
    provider = Failing(BadRequestError("max_tokens is too large: 64", status=400))
    with pytest.raises(BadRequestError):
        await guarded(provider)[0].complete(request(), NEVER)
    assert len(provider.requests) == 1


async def test_what_a_model_is_configured_to_refuse_is_never_sent():
    provider = Failing()
    guard, _ = guarded(provider, refuses={"small": frozenset({"max_tokens", "temperature"})})
    await guard.complete(request(), NEVER)
    assert wire_body(provider.requests[0], "m").keys() == {"model", "messages", "max_completion_tokens"}


TOKENS = {"top_logprobs": 1}


def odd(bad: int, *unusable: None) -> Any:
    body = reply("a b c d", logprobs=[9.0] * bad + [-0.1] * (4 - bad))
    return {**body, "choices": [*unusable, *body["choices"]]}


@pytest.mark.parametrize(
    ("payloads", "fields", "warned"),
    [
        ([payload(model="other")] * 3, {}, 1),
        ([odd(1), odd(2), odd(3)], TOKENS, 1),  # counted oddities are one
        ([odd(1), odd(0, None)], TOKENS, 2),
        ([payload(model=f"odd{number}") for number in range(1_200)], {}, 1_000),  # none can fill the log
    ],
    ids=range(4),
)
async def test_an_oddity_is_warned_of_once(caplog, payloads, fields, warned):
    guard, _ = guarded(FakeProvider({"small": payloads}))
    with caplog.at_level(logging.WARNING, "cascade"):
        for _ in payloads:
            await guard.complete(request(**fields), NEVER)
    assert (len(caplog.records), {record.args[0] for record in caplog.records}) == (warned, {"small"})


async def test_a_stream_ends_with_the_checked_completion():
    guard, _ = guarded(FakeProvider({"small": [reply("Answer: the Danube")]}))
    *deltas, last = await streamed(guard, request(role="base", step=2))
    assert [delta.text for delta in deltas] == ["Answer:", " the", " Danube"]
    assert {(delta.role, delta.step) for delta in deltas} == {("base", 2)}
    assert last.text == "Answer: the Danube"
    assert len(last.tokens or ()) == 3


async def test_a_provider_without_streams_gives_its_answer_in_one_piece():
    first, last = await streamed(guarded(Failing())[0])
    assert first == TextDelta("Danube", "base", 1)
    assert last.text == "Danube"


class Breaking(Failing):
    """Streams some chunks and then breaks."""

    def __init__(self, chunks: list[Any], error: ProviderError | None) -> None:
        super().__init__()
        self.chunks, self.error = chunks, error
        self.started = 0

    async def stream(self, request: Any, timeout_s: float) -> Any:
        self.started += 1
        for chunk in self.chunks:
            yield chunk
        if self.error:
            raise self.error


PIECE = {"choices": [{"index": 0, "delta": {"content": "Dan"}}]}


@pytest.mark.parametrize(
    "error", [down(), BadResponseError("x"), ProviderTimeoutError("x"), StreamInterruptedError("x"), None]
)
async def test_a_break_after_the_first_text_is_an_interruption_with_what_came(error):
    got: list[Any] = []
    provider = Breaking([PIECE], error)
    with pytest.raises(StreamInterruptedError) as caught:
        await streamed(guarded(provider)[0], got=got)
    assert (caught.value.partial, caught.value.maybe_billed) == ("Dan", 1)
    assert [event.text for event in got] == ["Dan"]
    assert (provider.started, str(caught.value).count("was incomplete")) == (1, 1)
    assert caught.value.__cause__ is None


class Silent(Breaking):
    """Streams some chunks, and then nothing for ever, or the last one again and again, by a clock of its own."""

    now_s = 0.0

    async def stream(self, request: Any, timeout_s: float) -> Any:
        for chunk in self.chunks:
            yield chunk
        while self.error is None:
            self.now_s += 0.002
            await asyncio.sleep(0)
            yield self.chunks[-1]
        await asyncio.Event().wait()


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
THOUGHT = {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]}
DONE = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("chunks", "on", "pace", "error"),
    [
        ([], False, Pace(0.01, PATIENCE_S, PATIENCE_S), ProviderTimeoutError),
        ([ROLE], True, Pace(0.01, PATIENCE_S, PATIENCE_S), ProviderTimeoutError),  # a role is no text
        ([PIECE], False, Pace(PATIENCE_S, 0.01, PATIENCE_S), StreamInterruptedError),
        ([THOUGHT], False, Pace(PATIENCE_S, 0.01, PATIENCE_S), ProviderTimeoutError),
        ([PIECE], True, Pace(PATIENCE_S, PATIENCE_S, 0.01), StreamInterruptedError),
    ],
)
async def test_a_stream_has_a_limit_to_its_first_piece_between_pieces_and_in_all(chunks, on, pace, error, monkeypatch):
    provider = Silent(chunks, None if on else down())
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: provider.now_s))
    guard, _ = guarded(provider, pace=pace, retry=RetryPolicy(max_retries=0))
    with pytest.raises(error):
        async with asyncio.timeout(PATIENCE_S / 2):
            await streamed(guard, request(chat=ChatRequest(HI)))


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error", [ValueError("sk-0123456789abcdefghij"), ExceptionGroup("both", [KeyError(1)]), MuteError()]
)
async def test_what_a_provider_raises_by_mistake_is_a_failure_of_its_model_that_may_be_billed(error, caplog):
    for call in (lambda guard: guard.complete(request(), NEVER), streamed):
        guard, slept = guarded(Breaking([], error) if call is streamed else Failing(error))
        with pytest.raises(ProviderUnavailableError) as caught:
            await call(guard)
        raised = caught.value
        outcome = raised.model, raised.billed, raised.maybe_billed, raised.another_may_answer
        assert outcome == ("small", "maybe", 1, True)
        assert (type(error).__name__ in caplog.text, "sk-0123" in caplog.text, slept) == (True, False, [])
    with pytest.raises(StreamInterruptedError):
        await streamed(guarded(Breaking([PIECE], error))[0])


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("call", [lambda guard: guard.complete(request(), NEVER), streamed])
async def test_an_interrupt_passes_through_a_provider_untouched(error, call):
    with pytest.raises(error):
        await call(guarded(Failing(error()))[0])


async def test_a_provider_that_makes_an_error_of_a_cancellation_is_cancelled_all_the_same():
    class Swallowing(Failing):
        async def complete(self, request: Any, timeout_s: float) -> Any:
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                raise RuntimeError("cancelled") from None

    task = asyncio.ensure_future(guarded(Swallowing())[0].complete(request(), NEVER))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_that_progresses_is_not_cut_by_the_limit_of_a_call():
    pace = Pace(PATIENCE_S, PATIENCE_S, PATIENCE_S)
    guard, _ = guarded(Breaking([PIECE, PIECE, DONE], None), pace=pace, per_call_s=1e-9)
    assert (await streamed(guard))[-1].text == "DanDan"


async def test_a_refused_key_is_no_interruption():
    with pytest.raises(AuthenticationError):
        await streamed(guarded(Breaking([PIECE], AuthenticationError("no")))[0])


async def test_a_streaming_model_without_logprobs_is_noted():
    guard, _ = guarded(Breaking([PIECE, DONE], None))
    events = await streamed(guard, request(top_logprobs=1))
    assert "small sent no log-probs" in events[-1].notes


@pytest.mark.parametrize(("billed", "begun"), [("no", False), ("maybe", True)])
async def test_a_caller_who_leaves_between_two_tries_owes_what_the_first_may_have_cost(billed, begun):
    async def leave(_seconds: float) -> None:
        raise asyncio.CancelledError

    guard = Guard(Failing(ProviderUnavailableError("down", billed=billed)), sleep=leave)
    with pytest.raises(asyncio.CancelledError) as left:
        await guard.complete(request(), NEVER)
    assert (left.value.args != (NOT_BEGUN,)) is begun
