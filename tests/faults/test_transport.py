"""F01-F13: the way to the model is broken, slow, or leads elsewhere."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from typing import Any

import pytest
from patience import PATIENCE_S
from unit.made import request

from cascade.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    RateLimitedError,
    StreamInterruptedError,
)
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience import portal

from .bench import KEY, PROVIDERS, Bench, needs_litellm
from .bodies import QUESTION
from .server import FaultServer


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", ["500", "502", "503", "504", "529"])
def test_f01_f08_a_server_error_is_retried_twice_by_one_layer_only(bench: Bench, status: str, provider: str) -> None:
    error = bench.error(status, ProviderUnavailableError, provider)
    assert (error.status, bench.server.count()) == (int(status), 3)
    assert len(bench.waits) == 2
    assert all(0 <= wait <= 8 for wait in bench.waits)


def test_f01_the_next_model_answers_when_the_first_is_down(bench: Bench) -> None:
    answer = bench.answer("500")
    assert answer.text == "Danube"
    assert "base failed" in answer.explain()


async def test_f01_retries_are_the_same_without_blocking(bench: Bench) -> None:
    async with bench.alone(["500", "503", "ok"]) as orchestrator:
        assert (await orchestrator.aask(QUESTION)).text == "Danube"
    assert bench.server.count() == 3


def _in_two_seconds() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)


@pytest.mark.parametrize(
    ("header", "value", "longest"),
    [("Retry_After", "3", 3), ("retry_after_ms", "250", 0.25), ("Retry_After", _in_two_seconds, 2)],
)
def test_f02_retry_after_is_obeyed(bench: Bench, header: str, value: Any, longest: float) -> None:
    bench.server.headers[header] = value() if callable(value) else value
    assert bench.alone(["429", "ok"]).ask(QUESTION).text == "Danube"
    assert longest - 2 < bench.waits[0] <= longest
    assert bench.waits[0] > 0 or callable(value)


@pytest.mark.parametrize(
    "value", ["soon", "-5", "nan", "inf", "", "Mon, 99 Foo", "Mon, 01 Jan 99999999999 00:00:00 GMT"]
)
def test_f02_garbage_in_retry_after_means_our_own_backoff(bench: Bench, value: str) -> None:
    bench.server.headers["Retry_After"] = value
    assert bench.alone(["429", "ok"]).ask(QUESTION).text == "Danube"
    assert 0 <= bench.waits[0] <= 8


def test_f02_a_retry_after_that_is_too_long_is_not_waited_for(bench: Bench) -> None:
    bench.server.headers["Retry_After"] = "61"
    assert bench.error("429", RateLimitedError).retry_after_s == 61
    assert (bench.waits, bench.server.count()) == ([], 1)


def test_f02_a_retry_after_beyond_the_deadline_is_not_waited_for(bench: Bench) -> None:
    bench.server.headers["Retry_After"] = "30"
    with pytest.raises(RateLimitedError):
        bench.alone("429", timeouts={"per_question_s": 10.0}).ask(QUESTION)
    assert bench.waits == []


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", ["400", "404", "422"])
def test_f03_a_refused_request_is_not_retried_and_says_why(bench: Bench, status: str, provider: str) -> None:
    bench.server.text = "max_tokens is too large"
    error = bench.error(status, BadRequestError, provider)
    assert "max_tokens" in str(error)
    assert bench.server.count() == 1


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", ["401", "403"])
def test_f04_a_refused_key_is_not_retried_and_not_shown(bench: Bench, status: str, provider: str) -> None:
    error = bench.error(status, AuthenticationError, provider)
    assert bench.server.keys == [f"Bearer {KEY}"]
    assert KEY not in f"{error!r} {error}"
    assert bench.server.count() == 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f05_a_reset_before_the_first_byte_is_retried(bench: Bench, provider: str) -> None:
    assert bench.alone(["reset", "ok"], provider).ask(QUESTION).text == "Danube"
    assert bench.server.count() == 2


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f05_nobody_listens(bench: Bench, provider: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    orchestrator = bench.alone("ok", provider, address=f"http://127.0.0.1:{port}/v1")
    with pytest.raises(ProviderUnavailableError) as caught:
        orchestrator.ask(QUESTION)
    assert len(bench.waits) == 2
    assert provider == "litellm" or f"127.0.0.1:{port}" in str(caught.value)


def test_f05_an_answer_that_breaks_off_is_not_asked_for_again(bench: Bench) -> None:
    with pytest.raises(Exception, match="broke"):
        bench.alone("cut_short").ask(QUESTION)
    assert bench.server.count() == 1


@pytest.mark.parametrize(
    ("mode", "provider", "way"),
    [
        *((mode, PROVIDERS[0], way) for mode in ("hang", "slow_drip", "slow_headers") for way in ("ask", "aask")),
        ("slow_drip", PROVIDERS[0], "stream"),
        *(pytest.param(mode, "litellm", "ask", marks=needs_litellm) for mode in ("hang", "slow_drip", "slow_headers")),
        pytest.param("slow_drip", "litellm", "stream", marks=needs_litellm),
    ],
)
def test_f06_f07_the_wall_clock_holds(bench: Bench, mode: str, provider: str, way: str) -> None:
    orchestrator = bench.alone(mode, provider, timeouts={"per_question_s": 0.12})
    with pytest.raises(ProviderTimeoutError):
        if way == "aask":
            asyncio.run(orchestrator.aask(QUESTION))
        else:
            _ = [*(orchestrator.stream(QUESTION) if way == "stream" else [orchestrator.ask(QUESTION)])]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_f07_the_wall_clock_of_a_stream_never_cancels_its_reader(bench: Bench, provider: str) -> None:
    """The clock runs out while the reader is busy with a piece: the reader is told, not cancelled."""
    async with bench.alone("stream_empty_chunks", provider, timeouts={"per_question_s": 0.15}) as orchestrator:
        with pytest.raises((ProviderTimeoutError, StreamInterruptedError)):
            async for _ in orchestrator.astream(QUESTION):
                await asyncio.sleep(0.2)
    await asyncio.sleep(0)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f10_a_timed_out_call_may_have_been_billed(bench: Bench, provider: str) -> None:
    for limit_s in (0.3, 3.0, 30.0):  # on a busy machine the shortest ends before the request is sent
        with pytest.raises(ProviderTimeoutError) as caught:
            bench.alone("hang", provider, timeouts={"per_question_s": limit_s}).ask(QUESTION)
        if bench.server.count():
            break
    (call,) = caught.value.calls
    assert (call.billed, call.cost_nano_usd) == ("maybe", None)
    assert call.cost_bound_nano_usd > 0


def test_f10_a_caller_who_leaves_before_there_is_a_connection_sends_nothing(bench: Bench) -> None:
    """The clock runs out while a name is looked up: the call counts as not billed, so it must not be sent after all."""
    provider = OpenAIHTTP({"": Endpoint(bench.server.address, KEY)})
    exchange = provider._exchange(request(), 1.0, stream=False)
    assert not exchange.left()
    with pytest.raises(ProviderTimeoutError):
        portal.run(portal.on_loop(provider._whole(exchange), 1.0))
    portal.run(provider.close())
    assert bench.server.requests == []


def test_f11_a_redirect_is_not_followed(bench: Bench) -> None:
    with FaultServer() as other:
        bench.server.text = f"{other.address}/chat/completions"
        bench.error("redirect", BadResponseError)
    assert (other.keys, other.paths) == ([], [])


@pytest.mark.parametrize("provider", PROVIDERS[1:])
def test_f11_litellm_never_takes_the_key_to_another_host(bench: Bench, provider: str) -> None:
    with FaultServer() as other:
        bench.server.text = f"{other.address}/chat/completions"
        bench.alone("redirect", provider).ask(QUESTION)
    assert bench.server.keys == [f"Bearer {KEY}"]
    assert not any(other.keys)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f12_a_captive_portal_is_no_completion(bench: Bench, provider: str) -> None:
    error = bench.error("html_200", BadResponseError, provider)
    assert bench.server.count() == 2
    assert "Sign in to the network" in str(error)
    assert len(str(error)) < 200 + 100
    assert KEY not in str(error)


def test_f13_a_clock_that_jumps_back_changes_nothing(bench: Bench) -> None:
    backwards = count(2e9, -3600.0)
    bench.patch.setattr(time, "time", lambda: next(backwards))
    orchestrator, _ = bench.scripted(None, timeouts={"per_question_s": 60.0})
    answer = orchestrator.ask(QUESTION)
    latencies = [call.completion.latency_s for call in answer.calls if call.completion]
    assert answer.text
    assert len(latencies) == 2
    assert all(0 <= latency < 10 for latency in [answer.latency_s, *latencies])


async def test_f10_a_caller_who_is_cancelled_before_the_request_is_sent_is_known_to_owe_nothing(bench: Bench) -> None:
    provider, begun = OpenAIHTTP({"": Endpoint(bench.server.address, KEY)}), threading.Event()

    async def connecting(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    bench.patch.setattr(provider, "_whole", connecting)
    task = asyncio.create_task(provider.complete(request(), 60.0))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.args == (portal.NOT_BEGUN,)
