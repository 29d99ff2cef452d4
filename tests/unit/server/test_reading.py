"""What a client may ask for, and what is refused before a model is asked."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from cascade.config import load
from cascade.config.schema import ServerConfig
from cascade.errors import ConfigError, UsageError
from cascade.server.catalog import Catalog, ClientRequest, Route
from cascade.server.dialects import ChatCompletions
from cascade.server.errors import GatewayError
from cascade.server.limits import ClientLeftError, parsed_object, read_object

from .served import ASK, CONFIG

CATALOG = Catalog("support", ("small", "large"), ("other",), ("low", "high"))


def read_request(body: dict[str, Any]) -> ClientRequest:
    return ClientRequest.of(ChatCompletions({"model": "support", **body}, "t"), {}, CATALOG)


def refused(call: Any, *arguments: Any, **named: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        call(*arguments, **named)
    return caught.value


def test_the_cascade_its_levels_and_each_model_can_be_named() -> None:
    assert CATALOG.routes == {
        "support": Route(),
        "support:low": Route(level="low"),
        "support:high": Route(level="high"),
        "small": Route(model="small"),
        "large": Route(model="large"),
        "other": Route(model="other"),
    }
    assert [one["id"] for one in CATALOG.listing()["data"]] == [*CATALOG.routes]


def test_a_bypass_sends_what_a_policy_would_decide_to_the_guide_and_nothing_else() -> None:
    assert CATALOG.route("support:low", bypass=True) == Route(model="large")
    assert CATALOG.route("small", bypass=True) == Route(model="small")


@pytest.mark.parametrize(("name", "status"), [("suport", 404), (None, 400), ("", 400), (3, 400)])
def test_a_model_that_there_is_none_of_is_refused(name: object, status: int) -> None:
    error = refused(CATALOG.route, name)
    assert (error.status, error.param) == (status, "model")
    assert "support" in str(error)


def test_the_catalog_of_a_configuration_has_the_models_outside_the_ladder_then_the_places() -> None:
    models = {**CONFIG["models"], "third": "aside"}
    catalog = Catalog.of(load({**CONFIG, "models": models, "server": {"name": "support"}}), ())
    assert [*catalog.routes] == ["support", "small", "large", "aside", "base", "guide", "third"]
    assert catalog.guide == "large"


def test_all_that_keeps_a_configuration_from_being_served_is_reported_at_once() -> None:
    models = {"base": "small", "guide": "large"}
    config = load({"models": models, "server": {"name": "small"}, "provider": "fake", "strategy": {"kind": "exit"}})
    with pytest.raises(ConfigError) as caught:
        Catalog.of(config, ())
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["strategy", "server.name"]


def test_settings_of_the_server_are_strict_and_all_problems_come_at_once() -> None:
    keys = [{"name": "a", "sha256": "0" * 64}, {"name": "a", "sha256": "0" * 64}]
    with pytest.raises(ConfigError) as caught:
        load({**CONFIG, "server": {"prot": 1, "name": "a b", "port": 70_000, "keys": [{"nam": "x"}]}})
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "server.prot", "server.name", "server.port", "server.keys[0].nam", "server.keys[0].name",
        "server.keys[0].sha256",
    }  # fmt: skip
    assert "did you mean name?" in str(caught.value)
    with pytest.raises(ConfigError, match=r"server\.keys: .*a is named more than once"):
        load({**CONFIG, "server": {"keys": keys}})


def test_a_key_itself_does_not_belong_in_the_configuration() -> None:
    with pytest.raises(ConfigError) as caught:
        load({**CONFIG, "server": {"keys": [{"name": "a", "sha256": "sk-cascade-0123456789"}]}})
    assert "sk-cascade-0123456789" not in str(caught.value)


def test_an_envelope_is_read_and_the_rest_is_sent_on() -> None:
    body = {
        "model": "support:low", "messages": ASK, "temperature": 0.3, "made_up": {"a": [1]}, "n": 1,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"x-cascade-explain": "1", "x-cascade-group": "user-7", "x-cascade-segment": "at"}
    asked = ClientRequest.of(ChatCompletions(body, "t"), headers, CATALOG)
    assert (asked.name, asked.route, asked.stream, asked.explain) == ("support:low", Route(level="low"), True, True)
    assert asked.dialect.counts
    assert asked.chat.body() == {"messages": ASK, "temperature": 0.3, "made_up": {"a": [1]}}
    assert (asked.chat.group, asked.chat.segment) == ("user-7", "at")


@pytest.mark.parametrize("field", [{"stream": "yes"}, {"stream": True, "stream_options": [1]}])
def test_a_wrong_envelope_is_refused(field: Any) -> None:
    assert refused(read_request, {"messages": ASK, **field}).status == 400


@pytest.mark.parametrize("field", [{"n": 2}, {"messages": []}, {"messages": "hi"}, {"tools": "all"}])
def test_what_is_no_request_is_refused_with_every_problem(field: Any) -> None:
    with pytest.raises(UsageError):
        read_request({"messages": ASK, **field})


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
    ],
)
def test_a_body_that_is_no_json_object_or_too_deep_is_refused(body: bytes, code: str) -> None:
    error = refused(parsed_object, body, ServerConfig(max_depth=50))
    assert (error.status, error.code) == (400, code)


@pytest.mark.parametrize("text", ["[{," * 90_000, '\\"[{,' * 90_000, "\\\\" * 5 + '"' + "," * 200_000])
def test_a_text_may_have_as_many_commas_as_it_likes(text: str) -> None:
    assert parsed_object(json.dumps({"a": text}).encode(), ServerConfig()) == {"a": text}


@pytest.mark.parametrize(("size", "beside"), [(1_000, False), (300_000, True)])
async def test_a_large_body_is_read_in_a_thread(size: int, beside: bool) -> None:
    """0.9: a megabyte of empty objects held up every other request for seconds."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"a": "' + b"x" * size + b'"}'}

    thread = await read_object(receive, "application/json", ServerConfig(), lambda _: threading.get_ident())
    assert (thread != threading.get_ident()) is beside


async def read(
    pieces: list[bytes | None], kind: str = "application/json", *, ends: bool = True, **settings: Any
) -> dict[str, Any]:
    """Read a body that comes in pieces; at None the client hangs up, and without `ends` the end never comes."""
    events = [
        {"type": "http.disconnect"} if piece is None else {"type": "http.request", "body": piece, "more_body": True}
        for piece in pieces
    ]

    async def receive() -> Any:
        if events:
            return events.pop(0)
        return {"type": "http.request"} if ends else await asyncio.Future()

    return await read_object(receive, kind, ServerConfig(**settings), dict)


async def test_a_body_is_read_to_a_limit_and_no_further() -> None:
    with pytest.raises(GatewayError, match="1,000 bytes") as caught:
        await read([b" " * 600, b" " * 600, b"never read"], max_body_bytes=1_000)
    assert caught.value.status == 413


async def test_a_body_that_stops_coming_is_refused_in_time() -> None:
    with pytest.raises(GatewayError, match="did not arrive") as caught:
        await read([b"{"], ends=False, body_s=0.01)
    assert caught.value.status == 408


async def test_a_client_that_hangs_up_in_the_middle_of_its_request_is_gone() -> None:
    with pytest.raises(ClientLeftError):
        await read([b"{", None])


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_what_a_web_page_can_send_to_any_address_is_refused(kind: str) -> None:
    with pytest.raises(GatewayError) as caught:
        await read([b"{}"], kind)
    assert caught.value.status == 415


async def test_parameters_of_the_content_type_do_not_matter() -> None:
    assert await read([b'{"a":', b"1}"], "Application/JSON; charset=utf-8") == {"a": 1}
