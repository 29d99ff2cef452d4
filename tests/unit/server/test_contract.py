"""What a request may be, and what the server writes: errors, headers, chunks, counts."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cascade import errors
from cascade.config import load
from cascade.config.schema import ServerConfig
from cascade.errors import ConfigError, ProviderUnavailableError, StoreError
from cascade.money import Price
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.histories import packed
from cascade.runtime import Runtime
from cascade.server.admission import Admission
from cascade.server.body import ClientLeftError, parsed_object, read_object
from cascade.server.catalog import Catalog, ClientRequest, Names, Route
from cascade.server.dialects import DONE, ChatCompletions, ServedMessage, event
from cascade.server.errors import GatewayError, refusal_of
from cascade.server.metrics import Metrics
from cascade.server.receipts import Receipt
from cascade.types import NO_CERTIFICATE, Answer, Call, Candidate, Completion, Decision, Question, Request, Step, Usage
from unit.builders import request

from .served import ASK, CONFIG, asgi, orchestrator

CATALOG = Catalog("support", ("small", "large"), ("other",), ("low", "high"))
GUIDE = Price.per_million(input=10.0, output=20.0)
SURE = reply("The Danube.", logprobs=[-0.01, -0.01], input_tokens=100, output_tokens=10)
UNSURE = reply("The Rhine?", logprobs=[-2.0, -2.0], input_tokens=100, output_tokens=10)


# --- names and envelopes ---


def test_the_cascade_its_levels_and_each_model_can_be_named():
    levels = {f"support:{level}": Route("support", level) for level in ("low", "high")}
    assert CATALOG.routes == {"support": Route("support"), **levels} | {
        model: Route("support", model=model) for model in ("small", "large", "other")
    }
    models = {**CONFIG["models"], "third": "aside"}
    catalog = Catalog.of(load({**CONFIG, "models": models, "server": {"name": "support"}}), ())
    assert [*catalog.routes] == ["support", "small", "large", "aside", "base", "guide", "third"]
    assert catalog.guide == "large"


@pytest.mark.parametrize(("name", "status"), [("suport", 404), (None, 400), ("", 400), (3, 400)])
def test_a_model_that_there_is_none_of_is_refused(name, status):
    with pytest.raises(GatewayError, match="support") as caught:
        Names(CATALOG).route(name)
    assert (caught.value.status, caught.value.param) == (status, "model")


NODES: dict[str, Any] = {
    "kind": "nodes",
    "nodes": [
        {"name": "first", "model": "base"},
        {"name": "again", "model": "guide", "parents": ["first"]},
        {"name": "last", "model": "guide", "purpose": "outright"},
    ],
}
_KEY = {"name": "a", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"server": {"prot": 1, "name": "a b", "port": 70_000, "keys": [{"nam": "x"}]}},
         {"server.prot", "server.name", "server.port", "server.keys[0].nam", "server.keys[0].name", "server.keys[0].sha256"}),
        ({"server": {"keys": [_KEY, _KEY]}}, {"server.keys"}),
        ({"server": {"keys": [_KEY, {**_KEY, "name": "b"}]}}, {"server.keys"}),
        ({"server": {"keys": [{"name": "a", "sha256": "sk-cascade-0123456789"}]}}, {"server.keys[0].sha256"}),
        ({"server": {"name": "small"}, "strategy": {"kind": "exit", "model": "base"}, "policy": {"kind": "fixed"}},
         {"strategy", "server.name"}),
        # 0.6: such nodes were served, and every request was refused with 400, as the client's fault
        ({"strategy": NODES, "policy": {"kind": "fixed", "depth": 1}}, {"strategy"}),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_at_once_and_as_a_whole(settings, problems):
    with pytest.raises(ConfigError) as caught:
        Catalog.of(load({**CONFIG, **settings}), ())
    assert {problem.split(":")[0] for problem in caught.value.problems} == problems
    assert "sk-cascade-0123456789" not in str(caught.value)


async def test_nodes_that_read_no_other_are_served_as_a_stream_and_with_tools():
    nodes = {**NODES, "nodes": [NODES["nodes"][0], NODES["nodes"][2]]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    called = reply("", tool_calls=[("look", {"at": "Vienna"})])
    async with asgi(orchestrator(FakeProvider({"small": [called]}), strategy=nodes)) as client:
        for stream in (False, True):
            body = {"model": "cascade", "messages": ASK, "tools": tools, "stream": stream}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert '"name":"look"' in answer.text.replace(" ", "")
            assert answer.text.rstrip().endswith("data: [DONE]") == stream


def test_an_envelope_is_read_and_the_rest_is_sent_on():
    body = {
        "model": "support:low", "temperature": 0.3, "made_up": {"a": [1]}, "n": 1,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"x-cascade-explain": "1", "x-cascade-group": "user-7", "x-cascade-segment": "at"}
    request = ClientRequest.of(ChatCompletions({**body, "messages": ASK}, "t"), headers, Names(CATALOG))
    assert request[:2] == ("support:low", Route("support", "low"))
    assert request.stream is request.explain is request.dialect.counts is True
    assert request.chat.body() == {"messages": ASK, "temperature": 0.3, "made_up": {"a": [1]}}
    assert (request.chat.group, request.chat.segment) == ("user-7", "at")


# --- bodies ---


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "too_deep"),
        (b'{"a": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", "invalid_json"),  # orjson stops at 1,024
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_wide"),
        (b'{"messages": [' + b"{}," * 100_000 + b"{}]}", "too_wide"),
        (b'{"a": [' + b'"",' * 100_000 + b'"\\""]}', "too_wide"),
        (b'{"a": "' + b"[{,\\" * 90_000, "invalid_json"),  # a text that does not end
        (json.dumps({"a": [packed({"reasoning": [[]] * 4_000}, "m")] * 20}).encode(), "too_wide"),
    ],
)
def test_a_body_that_is_no_object_or_too_deep_or_too_wide_is_refused(body, code):
    with pytest.raises(GatewayError) as caught:
        parsed_object(body, ServerConfig(max_depth=50))
    assert (caught.value.status, caught.value.code) == (400, code)


@pytest.mark.parametrize("text", ["[{," * 90_000, '\\"[{,' * 90_000, "\\\\" * 5 + '"' + "," * 200_000])
def test_a_text_may_have_as_many_commas_as_it_likes(text):
    for body in ({"a": text}, {"a": packed({"reasoning": text}, "m")}):
        assert parsed_object(json.dumps(body).encode(), ServerConfig()) == body


async def read(
    pieces: list[bytes | None],
    kind: str = "application/json",
    coding: str = "",
    *,
    ends: bool = True,
    make: Any = dict,
    **settings: Any,
) -> Any:
    """Read a body that comes in pieces; at None the client hangs up, and without `ends` the end never comes."""
    events = [
        {"type": "http.disconnect"} if piece is None else {"type": "http.request", "body": piece, "more_body": True}
        for piece in pieces
    ]

    async def receive() -> Any:
        if events:
            return events.pop(0)
        return {"type": "http.request"} if ends else await asyncio.Future()

    visit = Admission(ServerConfig(**settings), ()).visit(None)
    return await read_object(receive, {"content-type": kind, "content-encoding": coding}, visit, make)


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (413, {"pieces": [b" " * 600, b" " * 600, b"never read"], "max_body_bytes": 1_000}),
        (408, {"pieces": [b"{"], "ends": False, "body_s": 0.01}),
        *(
            (415, {"pieces": [b"never read"], "coding": coding})
            for coding in ("gzip", "deflate", "br", "identity, gzip")
        ),
        # what a web page can send to any address
        *((415, {"pieces": [b"{}"], "kind": kind}) for kind in ("", "text/plain", "multipart/form-data")),
        (415, {"pieces": [b"{}"], "kind": "application/x-www-form-urlencoded"}),
    ],
)
async def test_a_body_is_read_to_a_limit_and_no_further(status, arguments):
    with pytest.raises(GatewayError) as caught:
        await read(**arguments)
    assert caught.value.status == status


async def test_a_body_comes_in_pieces_and_a_client_that_hangs_up_in_its_middle_is_gone():
    assert await read([b'{"a":', b"1}"], "Application/JSON; charset=utf-8") == {"a": 1}
    with pytest.raises(ClientLeftError):
        await read([b"{", None])


@pytest.mark.parametrize(("size", "beside"), [(1_000, False), (300_000, True)])
async def test_a_large_body_is_read_in_a_thread(size, beside):
    """0.9: a megabyte of empty objects held up every other request for seconds."""
    thread = await read([b'{"a": "' + b"x" * size + b'"}'], make=lambda _: threading.get_ident())
    assert (thread != threading.get_ident()) is beside


# --- errors ---


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
        (errors.BudgetExceededError("x", spent=True, cap="unsettled_per_key"), 429, "rate_limit_exceeded", True),
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
def test_each_error_has_the_status_that_client_libraries_act_on(error, status, code, again):
    refusal = refusal_of(error)
    assert (refusal.status, refusal.body["error"]["code"]) == (status, code)
    assert (("x-should-retry", "false") in refusal.headers) is not again
    assert set(refusal.body["error"]) == {"message", "type", "param", "code"}


def test_every_error_of_the_tree_is_mapped():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ProviderError)
    ]
    assert len(kinds) > 10
    assert {refusal_of(kind("x")).status for kind in kinds} <= {400, 429, 502, 503, 504}


def test_no_key_no_store_and_no_money_of_others_leaves_in_a_message(caplog):
    """0.9: a 503 named the file of the store, and a 429 said what all keys together had spent."""
    key = "sk-0123456789abcdefghijklmn"
    for error in (errors.AuthenticationError(f"refused {key}"), GatewayError(400, f"read {key}")):
        assert key not in str(refusal_of(error).body)
    store = str(refusal_of(StoreError("The store sqlite:////srv/secret.db: another process has locked it.")).body)
    assert "secret.db" not in store
    assert "secret.db" in caplog.text
    for cap, tells in (("all day", False), ("user", False), ("key", True), ("key month", True), (None, True)):
        over = errors.BudgetExceededError("of $5 $4.99 is spent")
        over.cap, over.spent = cap, True
        assert ("$4.99" in str(refusal_of(over).body)) is tells


# --- headers and chunks ---


def test_a_receipt_counts_each_call_by_what_became_of_it_and_its_headers_name_it():
    whole = Completion("A", "stop", Usage(1, 1))
    calls = (
        Call(request(model="small", role="base", top_logprobs=1), whole._replace(faults=("odd",)), 1, 1),
        Call(request(model="small", role="base"), whole, 2, 2),
        Call(request(model="large", role="guide", instead_of="huge"), whole, 3, 3),
        Call(request(model="tiny", role="guide"), None, 0, 0, error="HistoryRefusedError: no"),
        Call(request(model="away", role="guide", instead_of="gone"), None, 0, 0, error="ProviderError: no"),
    )
    step = Step(1, (Candidate("A", "base", "small"),), {}, (), calls, Decision((0,), False, (1.0,), 0.0, 0.5))
    answer = Answer(Question("?"), "A", ("A",), (step,), "budget", 0.1)
    total = Receipt("t", uncovered="before", mode="enforce", failing=("traces", "modes"), unsent=("user",)).of(answer)
    assert (total.faulty, total.replaced, total.silent, total.skipped) == (("small",), ("huge",), ("small",), ("tiny",))
    assert (total.answered, total.cost_nano_usd) == (("small", "large"), 6)
    assert dict(total.headers()) == {
        "x-cascade-served-by": "small", "x-cascade-asked": "small, large, tiny, away", "x-cascade-trace-id": "t",
        "x-cascade-cost-usd": "0.000000006", "x-cascade-uncovered": "before", "x-cascade-broken-off": "budget",
        "x-cascade-mode": "enforce", "x-cascade-stores-failing": "traces, modes", "x-cascade-fields-not-sent": "user",
    }  # fmt: skip
    later = replace(answer, warnings=(f"{NO_CERTIFICATE}another model",), stopped="policy")
    assert Receipt("t", uncovered="before").of(later)[5:7] == ("another model", None)
    certified: Any = SimpleNamespace(id="c1")
    assert ("x-cascade-certificate", "c1") in Receipt("t").of(replace(answer, certificate=certified)).headers()
    assert Receipt("t").of(replace(answer, text=None)).served_by is None
    assert Receipt("t").headers() == [("x-cascade-trace-id", "t")]


def test_amounts_are_exact_decimals_without_exponents_and_unknown_ones_are_left_out():
    late = Receipt("t", "small", ("small", "large"), answered=("small",)).extension(None)
    assert (late["asked"], "large" in late["summary"]) == (("small", "large"), False)
    assert dict(Receipt("t", cost_nano_usd=5).headers())["x-cascade-cost-usd"] == "0.000000005"
    with orchestrator({"small": [SURE]}, models={"base": "small", "guide": "large"}) as served:
        names = [name for name, _ in Receipt("t").of(served.chat(ASK)).headers()]
    assert names == ["x-cascade-served-by", "x-cascade-asked", "x-cascade-trace-id"]


def chunks(data: bytes) -> list[Any]:
    """Read server-sent events as the standard has it; the last one must be [DONE]."""
    assert data.endswith(DONE)
    blocks = data.decode().removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def ending(answer: Answer, extension: Any = None, *, sent: tuple[str, ...] = (), usage: bool = False) -> list[Any]:
    """Return the chunks of a stream in which these pieces of the text were sent before the end."""
    writer = ChatCompletions({"stream_options": {"include_usage": usage}}, "t")
    before = b"".join([writer.text(piece, "small") for piece in sent])
    return chunks(before + b"".join(writer.ending(ServedMessage(answer), extension)))


@pytest.mark.parametrize("text", ["a\n\ndata: [DONE]\n\n", "\r\n\r\nevent: x", "\u2028\u2029\x85", 'a"}\n'])
def test_no_text_adds_an_event(text):
    data = event({"content": text})
    assert data.count(b"\n") == 2
    assert b"\r" not in data
    assert json.loads(data.removeprefix(b"data: ")) == {"content": text}


def test_text_that_was_sent_is_not_sent_again():
    with orchestrator({"small": [SURE]}) as served:
        events = ending(served.chat(ASK), {"cost_usd": "1"}, sent=("The ", "Danube."), usage=True)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas == [{"role": "assistant", "content": "The "}, {"content": "Danube."}, {}]
    assert events[-2]["cascade"] == {"cost_usd": "1"}
    assert (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]) == ([], 10)


def test_log_probs_that_an_application_asks_for_come_back_in_openai_s_form():
    script = {"small": [reply("The Danube.", logprobs=[-0.25, float("-inf")])]}
    with orchestrator(script, policy={"kind": "fixed"}) as served:
        answers = served.chat(ASK, logprobs=True), served.chat(ASK)
    scored, plain = (ChatCompletions({}, "t").whole(ServedMessage(answer), None)["choices"][0] for answer in answers)
    tokens = scored["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"]) for entry in tokens] == [("The", -0.25), ("Danube.", -9999.0)]
    assert (tokens[0]["bytes"], plain["logprobs"]) == ([84, 104, 101], None)


async def test_counts_are_what_happened_and_a_label_is_one_line(monkeypatch):
    metrics = Metrics()
    metrics.count("cascade", 200, 0.02, Receipt("t", "small", cost_nano_usd=120_000))
    metrics.count("cascade", 200, 3.0, Receipt("t", "large", faulty=("small",)))
    metrics.count('a"}\nb\\', 404, 0.001)
    call = Request("small", (), "base", "answer", 1, Question("q"), 100)
    for answer, price in (
        (Completion("", "stop", Usage(100, 10)), Price.per_million(input=1.0, output=2.0)),
        (None, GUIDE),
    ):
        error = None if answer else ProviderUnavailableError("gone", billed="maybe")  # at a cost that nobody knows
        metrics.count_call(call, 0.1, answer, error, price)
    metrics.first_text.observe(0.5)
    monkeypatch.setattr(Runtime, "alarm", "it was withdrawn")
    async with orchestrator() as served:
        text = await metrics.text(served.runtime)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert samples['cascade_requests_total{model="cascade",served_by="small",status="200"}'] == 1
    assert samples[r'cascade_requests_total{model="a\"}\nb\\",served_by="",status="404"}'] == 1
    assert samples['cascade_request_seconds_bucket{le="0.01"}'] == 1
    assert samples['cascade_request_seconds_bucket{le="+Inf"}'] == samples["cascade_request_seconds_count"] == 3
    assert samples["cascade_cost_usd_total"] == 0.00012
    assert samples["cascade_unknown_costs_total"] == samples['cascade_faulty_messages_total{model="small"}'] == 1
    assert samples["cascade_first_text_seconds_count"] == samples["cascade_alarm"] == 1
