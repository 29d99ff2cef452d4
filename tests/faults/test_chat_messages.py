"""Faults of chat messages: none is served while another model is left, none crashes, each is said."""

from __future__ import annotations

from typing import Any

import pytest
from unit.builders import TWO_RUNGS

from cascade import Orchestrator
from cascade.chat import ChatRequest
from cascade.chat_faults import message_faults, schema_problem
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Answer, Request

from .bench import PROVIDERS, Bench

PARAMETERS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": PARAMETERS}}
GOOD = reply("", tool_calls=[("add", {"n": 1})])
CONFIG = TWO_RUNGS | {"policy": {"kind": "fixed", "depth": 1}}


def ask(bad: Any, good: Any = GOOD, **fields: Any) -> Answer:
    """Ask a base that sends `bad` and a guide that sends `good`, with a policy that keeps whatever the base says."""
    fake = FakeProvider(lambda request: bad if request.model == "small" else good)
    with Orchestrator.from_config(CONFIG, providers={"fake": fake}) as orchestrator:
        return orchestrator.chat([{"role": "user", "content": "Add one."}], **{"tools": TOOLS, **fields})


def sent(message: dict[str, Any]) -> dict[str, Any]:
    """Return a payload with a message as it stands."""
    payload: Any = reply("")
    payload["choices"][0]["message"] = {"role": "assistant", "content": None, **message}
    return dict(payload)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
CALL_ADD, DEMANDED = {"tool_choice": {"type": "function", "function": {"name": "add"}}}, {"tool_choice": "required"}
BOTH = {"tools": [*TOOLS, {"type": "function", "function": {"name": "drop"}}]}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CALL_ADD["tool_choice"]]}}
AS_JSON, NO_HELP = {"tools": [], "response_format": SCHEMA}, {"type": "refusal", "refusal": "I cannot help with that."}
NAMED = {**CALL, "function": {"name": ["add"], "arguments": "{}"}}
CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "add", "input": "1"}}


def calling(*arguments: Any, name: str = "add", **fields: Any) -> Any:
    return reply("", tool_calls=[(name, each) for each in arguments], **fields)


FAULTS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "F101 arguments that are no JSON": (calling('{"n": 1'), "not JSON", {}),
    "F102 a tool that was not offered": (calling({}, name="drop"), "'drop' was not offered", {}),
    "F102 a tool that may not be called": (calling({}, name="drop"), "'drop' was", {**BOTH, "tool_choice": ALLOWED}),
    "F102 a name that is no text": (sent({"tool_calls": [NAMED]}), "was not offered", {}),
    "F102 a tool of another kind": (sent({"tool_calls": [CUSTOM]}), "'add' was not offered", {}),
    "F103 a call that is no object": (sent({"tool_calls": [CALL, "add"]}), "call is not a JSON object", {}),
    "F103 arguments that are no object": (calling("[1]"), "not a JSON object", {}),
    "F104 arguments of the wrong type": (calling({"n": "1"}), "$.n: '1' is not of type", {}),
    "F104 an argument that no schema has": (calling({"n": 1, "m": 2}), "its schema", {}),
    "F105 two calls where one is allowed": (calling({"n": 1}, {"n": 2}), "2 tools", {"parallel_tool_calls": False}),
    "F105 a call where none is allowed": (GOOD, "none may be", {"tool_choice": "none"}),
    "F106 no call where one is demanded": (reply("Sure."), "one must be", DEMANDED),
    "F106 no call where one of some is": (reply("Sure."), "one must be", {**BOTH, "tool_choice": ALLOWED}),
    "F106 another tool than is demanded": (reply("Sure."), "'add' was not called", CALL_ADD),
    "F107 cut in the middle of the arguments": (calling('{"n"', finish_reason="length"), "was cut", {}),
    "F108 a reply that is no JSON": (reply("one"), "not JSON", AS_JSON),
    "F108 a reply that breaks the schema": (reply('{"n": "1"}'), "JSON schema", AS_JSON),
    "F109 an empty reply": (reply(""), "neither text nor a tool call", {}),
    "F109 an empty list of tool calls": (sent({"tool_calls": []}), "neither text nor a tool call", {}),
    "F110 a refusal": (sent({"refusal": NO_HELP["refusal"]}), "refused", {}),
    "F110 a refusal as a part of the content": (sent({"content": [NO_HELP]}), "refused", {}),
    "F110 a reply that a filter withheld": (reply("Well", finish_reason="content_filter"), "refused", {}),
    "F115 arguments of a megabyte": (calling('{"n": 1' + " " * 1_000_000 + "}"), "more than", {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_served_with_a_warning_only_where_no_model_is_left(name):
    bad, problem, fields = FAULTS[name]
    good = reply("2") if fields.get("tool_choice") == "none" else reply('{"n": 1}') if fields is AS_JSON else GOOD
    answer, last = ask(bad, good, **fields), ask(bad, bad, **fields)
    assert answer.message == good["choices"][0]["message"]
    assert any(problem in warning for warning in answer.warnings)
    assert [step.signals["message_faults"] > 0 for step in answer.steps] == [True, False]  # type: ignore[operator]
    sent_message = bad["choices"][0]["message"]
    in_parts = isinstance(sent_message.get("content"), list)  # a refusal in a part has a field of its own, once read
    refused = {**sent_message, "content": None, "refusal": NO_HELP["refusal"]}
    assert last.message == (refused if in_parts else sent_message)
    assert any("no other model is left" in warning and problem in warning for warning in last.warnings)


@pytest.mark.parametrize("mode", ["refusal", "stream_refusal"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_refusal_that_is_served_has_its_field_through_each_provider(bench: Bench, provider, mode):
    """litellm puts it aside, and leaves it out of a stream: a client read an empty answer of a model that had refused."""
    orchestrator = bench.alone(mode, provider)
    streamed = mode.startswith("stream")
    ways = {False: orchestrator.chat, True: lambda messages: list(orchestrator.stream(messages))[-1]}
    answer: Any = ways[streamed]([{"role": "user", "content": "Hi"}])
    assert answer.message["refusal"] == ("I cannot." if streamed else NO_HELP["refusal"])
    assert answer.to_openai()["choices"][0]["finish_reason"] == "stop"
    assert any("refused" in warning for warning in answer.warnings)


def test_f111_parallel_calls_whose_pieces_come_out_of_order_are_put_in_order():
    def piece(index: int, **function: Any) -> dict[str, Any]:
        call = {"index": index, "function": function} | (
            {"id": f"c{index}", "type": "function"} if "name" in function else {}
        )
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}

    class Mixed(FakeProvider):
        async def stream(self, request: Request, timeout_s: float) -> Any:
            yield piece(1, name="add", arguments="")
            yield piece(0, name="add", arguments='{"n"')
            yield piece(1, arguments='{"n": 2}')
            yield piece(0, arguments=": 1}")
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}

    with Orchestrator.from_config(CONFIG, providers={"fake": Mixed()}) as orchestrator:
        *_, answer = orchestrator.stream([{"role": "user", "content": "Add."}], tools=TOOLS)
    assert [call["function"]["arguments"] for call in answer.tool_calls] == ['{"n": 1}', '{"n": 2}']  # type: ignore[union-attr]


def test_f112_log_probs_that_are_missing_for_tool_tokens_are_unknown():
    bare: Any = reply("", tool_calls=[("add", {"n": 1})])
    bare["choices"][0]["logprobs"] = None
    signals = ask(bare).steps[0].signals
    assert signals["answer_mean_logprob"] is None
    assert signals["reply_mean_logprob"] is None


def test_f113_deltas_that_never_close_are_no_message():
    class Open(FakeProvider):
        async def stream(self, request: Request, timeout_s: float) -> Any:
            if request.model == "large":
                async for chunk in super().stream(request, timeout_s):
                    yield chunk
                return
            call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
            yield {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}

    provider = Open(lambda _: GOOD)
    with Orchestrator.from_config(CONFIG, providers={"fake": provider}) as orchestrator:
        *_, answer = orchestrator.stream([{"role": "user", "content": "Add."}], tools=TOOLS)
    assert answer.message["tool_calls"][0]["id"] == "call_0"  # type: ignore[union-attr,index]
    assert answer.served[0].model == "large"  # type: ignore[union-attr,index]


def test_f114_a_schema_that_is_none_blames_no_model_and_without_tools_there_is_none_to_call():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "wrong", "$ref": "http://x/y"}}}]
    assert ask(GOOD, tools=tools).steps[0].candidates
    answer = ask(GOOD, reply("2"), tools=[])
    assert (answer.text, any("'add' was not offered" in warning for warning in answer.warnings)) == ("2", True)


def test_f116_a_message_that_is_nested_without_end_is_an_error_and_the_next_model_answers():
    for deep in ({"content": "Hi", "more": nested(5_000)}, {"tool_calls": [{**CALL, "more": nested(101)}]}):
        answer = ask(sent(deep))
        assert answer.served[0].model == "large"  # type: ignore[index]
        assert any("nested deeper than 100 levels" in warning for warning in answer.warnings)
    answer = ask(reply("", tool_calls=[("add", '{"n": ' + "[" * 900 + "]" * 900 + "}")]))
    assert answer.served[0].model == "large"  # type: ignore[index]


LADDER = {f"d{step}": {"anyOf": [{"$ref": f"#/$defs/d{step + 1}"}] * 8} for step in range(12)}
LONG = "a" * 100
CHAIN = {f"d{step}": {"$ref": f"#/$defs/d{step + 1}", "unevaluatedProperties": True} for step in range(100)} | {
    "d100": {}
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^(a+)+$"}, LONG + "!"),
        ({"pattern": "(a?){50}a{50}"}, "a" * 50),
        ({"pattern": "(a|aa)+$"}, LONG + "!"),
        ({"pattern": "a*a*a*a*a*b"}, LONG * 30),
        ({"pattern": r"(a*)\1$"}, LONG * 30),
        ({"patternProperties": {"(a+)+$": {}}}, {LONG + "!": 1}),
        ({"unevaluatedProperties": False, "allOf": [{"patternProperties": {"(a+)+$": {}}}]}, {LONG + "!": 1}),
        ({"$defs": {**LADDER, "d12": {"type": "integer"}}, "$ref": "#/$defs/d0"}, "x"),
        ({"uniqueItems": True}, [{"a": number} for number in range(20_000)]),
        ({"enum": [[number] for number in range(100_000)]}, "x"),
        ({"allOf": [*[{"contains": False, "minContains": 0}] * 1_000, False]}, [0] * 2_000),
        ({"allOf": [*[{"items": True}] * 2_000, False]}, [0] * 3_000),
        ({"allOf": [*[{"propertyNames": True}] * 1_500, False]}, dict.fromkeys(map(str, range(3_000)), 1)),
        ({"$defs": CHAIN, "allOf": [{"$ref": "#/$defs/d0"}, False]}, dict.fromkeys(map(str, range(200)), 1)),
        ({"allOf": [{"$schema": DRAFT, "allOf": [*[{"items": True}] * 1_500, False]}]}, [0] * 3_000),
        ({"anyOf": [{"type": "string"}] * 2_000}, [0] * 10_000),  # each error shows the value
        ({"allOf": [*[{}] * 12_000, False]}, 1),  # the reading takes too long, not the check
    ],
)
def test_f117_no_schema_holds_the_server_up(schema, value):
    """What would take longer than others can wait is not known: without a bound each of these takes minutes."""
    assert schema_problem(schema, value) is None


def test_f117_the_calls_of_a_message_share_one_bound_and_one_reading_of_the_tools(monkeypatch):
    listed = {"type": "object", "properties": {"n": {"items": {"type": "integer"}}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": listed}}]
    request = ChatRequest([{"role": "user", "content": "Add."}], {"tools": tools})
    readings: list[int] = []
    monkeypatch.setattr(ChatRequest, "tools", property(lambda chat: readings.append(1) or tuple(chat.options["tools"])))
    message = calling(*({"n": [*[0] * 3_000, f"x{call}"]} for call in range(5)))["choices"][0]["message"]
    assert len(message_faults(request, message, "tool_calls")) == 3  # 6,000 steps each
    assert len(message_faults(request, message, "tool_calls")) == 3
    assert len(readings) == 2


def test_objects_with_unevaluated_properties_are_still_checked():
    base = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    inside = {"allOf": [{"$ref": "#/$defs/base"}], "unevaluatedProperties": False}
    schema = {"$schema": DRAFT, "$defs": {"base": base}, "items": inside}
    assert schema_problem(schema, [{"a": "x", "b": 1}] * 50) is None
    assert schema_problem(schema, [*[{"a": "x", "b": 1}] * 50, {"a": "x", "c": 1}])


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^[a-z]+$", LONG * 10 + "!"),
        ("^[0-9]{4}-[0-9]{2}$", "x" * 5_000),
        ("^[^@]+@[^@]+[.][a-z]+$", "ann"),
        ("^(on|off)$", "of"),
    ],
)
def test_patterns_that_take_little_time_are_still_checked(pattern, text):
    assert schema_problem({"pattern": pattern}, text) is not None
