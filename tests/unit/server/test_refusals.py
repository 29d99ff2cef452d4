"""What a client reads of each error."""

from __future__ import annotations

from typing import Any

import pytest

from cascade import errors
from cascade.errors import ConfigError, StoreError
from cascade.providers.fake import FakeProvider, reply
from cascade.server.errors import GatewayError, refusal_of, unexpected

from .served import ASK, asgi, orchestrator

KEY = "sk-0123456789abcdefghijklmn"


@pytest.mark.parametrize(
    ("error", "status", "code", "again"),
    [
        (errors.UsageError("x"), 400, "invalid_request", False),
        (errors.BadRequestError("x", status=404), 400, "refused_by_provider", False),
        (errors.BadRequestError("x", status=422), 422, "refused_by_provider", False),
        (errors.ContextTooLongError("x"), 400, "context_length_exceeded", False),
        (errors.RefusedError("x"), 400, "content_filter", False),
        (errors.BudgetExceededError("x"), 422, "budget_exceeded", False),
        (errors.BudgetExceededError("x", spent=True), 429, "insufficient_quota", False),
        (errors.RateLimitedError("x"), 429, "rate_limited_by_provider", True),
        (errors.ProviderTimeoutError("x"), 504, "provider_timeout", False),
        (errors.AddressError("x"), 502, "provider_address", False),
        (errors.AuthenticationError("x"), 502, "provider_refused_key", False),
        (errors.BadResponseError("x"), 502, "bad_provider_response", False),
        (errors.EmptyCompletionError("x"), 502, "bad_provider_response", False),
        (errors.StreamInterruptedError("x"), 502, "stream_interrupted", False),
        (StoreError("x", retryable=True), 503, "store_unavailable", True),
        (StoreError("x", answer="paid for"), 503, "store_unavailable", False),
        (errors.ProviderUnavailableError("x"), 503, "provider_unavailable", True),
        (errors.ClosedError("x"), 503, "stopping", True),
        (errors.NotCertifiedError("x"), 500, "not_served", False),
        (errors.ConfigError(["x"]), 500, "not_served", False),
    ],
)
def test_each_error_has_the_status_that_client_libraries_act_on(
    error: errors.CascadeError, status: int, code: str, again: bool
) -> None:
    refusal = refusal_of(error)
    assert (refusal.status, refusal.body["error"]["code"]) == (status, code)
    assert (("x-should-retry", "false") in refusal.headers) is not again
    assert set(refusal.body["error"]) == {"message", "type", "param", "code"}


def test_every_error_of_the_tree_is_mapped() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ProviderError)]
    assert len(kinds) > 10
    assert {refusal_of(kind("x")).status for kind in kinds} <= {400, 429, 502, 503, 504}


def test_how_long_to_wait_is_rounded_up_to_whole_seconds() -> None:
    assert refusal_of(errors.RateLimitedError("x", retry_after_s=0.2)).headers == (("retry-after", "1"),)
    assert refusal_of(GatewayError(503, "busy", retry_after_s=3)).headers == (("retry-after", "3"),)


def test_no_store_and_no_money_of_others_leaves_in_a_message(caplog: pytest.LogCaptureFixture) -> None:
    """0.9: a 503 named the file of the store, and a 429 said what all keys together had spent."""
    store = str(refusal_of(StoreError("The store sqlite:////srv/secret.db: another process has locked it.")).body)
    assert "secret.db" not in store
    assert "secret.db" in caplog.text
    for cap, tells in (("per_day", False), ("per_user", False), ("per_key", True), (None, True)):
        error = errors.BudgetExceededError("of $5 $4.99 is spent")
        error.cap, error.spent = cap, True
        assert ("$4.99" in str(refusal_of(error).body)) is tells


def test_no_key_leaves_in_a_message() -> None:
    for error in (errors.AuthenticationError(f"refused {KEY}"), GatewayError(400, f"read {KEY}")):
        assert KEY not in str(refusal_of(error).body)


def test_of_a_mistake_of_ours_a_client_reads_nothing() -> None:
    refusal = unexpected()
    assert (refusal.status, refusal.body["error"]["code"]) == (500, "internal_error")


NODES: dict[str, Any] = {
    "kind": "nodes",
    "nodes": [
        {"name": "first", "model": "base"},
        {"name": "again", "model": "guide", "parents": ["first"]},
        {"name": "last", "model": "guide", "purpose": "outright"},
    ],
}


@pytest.mark.parametrize("strategy", [NODES, {"kind": "exit", "model": "base"}])
def test_a_strategy_that_answers_no_chat_requests_is_not_served(strategy: dict[str, Any]) -> None:
    """0.6: a list of nodes that read others was served, and every request was refused with 400, as the client's fault."""
    policy = {"kind": "fixed", "depth": 1}
    with orchestrator(strategy=strategy, policy=policy) as served, pytest.raises(ConfigError) as refused:
        asgi(served)
    (problem,) = refused.value.problems
    assert "no chat requests; use strategy: {kind: ladder, models: […]}" in problem
    assert (problem.startswith("strategy: again: ")) == (strategy is NODES)


async def test_nodes_that_read_no_other_are_served_as_a_stream_and_with_tools() -> None:
    nodes = {**NODES, "nodes": [NODES["nodes"][0], NODES["nodes"][2]]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    called = reply("", tool_calls=[("look", {"at": "Vienna"})])
    async with asgi(orchestrator(FakeProvider({"small": [called]}), strategy=nodes)) as client:
        for streams in (False, True):
            body = {"model": "cascade", "messages": ASK, "tools": tools, "stream": streams}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert '"name":"look"' in answer.text.replace(" ", "")
            assert answer.text.rstrip().endswith("data: [DONE]") == streams
