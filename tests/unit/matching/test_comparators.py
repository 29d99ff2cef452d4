"""When two outputs of a request are the same: a table of hard cases for each comparator, and which a request chooses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.matching import KeyedComparator, answer_key, default_for, get_comparator

USER = [{"role": "user", "content": "Weather in Wien?"}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """Make a tool."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = ChatRequest(
    USER,
    {
        "tools": [
            tool(
                "geo.weather",
                city={"type": "string"},
                unit={"type": "string", "default": "C"},
                days={"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                place={"type": "object", "properties": {"radius": {"type": "number", "default": 5}}},
            ),
            tool("tell", text={"type": "string"}),
        ]
    },
)


def calls(*made: tuple[str, dict[str, Any]]) -> str:
    """Return calls as `chat.output_text` writes them."""
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in made])


WIEN, GRAZ = ("geo_weather", {"city": "Wien"}), ("geo_weather", {"city": "Graz"})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (calls(("geo_weather", {"city": "Wien", "unit": "C"})), calls(WIEN), True),
        (calls(("geo.weather", {"unit": "C", "city": "Wien"})), calls(WIEN), True),
        (calls(("geo_weather", {"city": "Wien", "unit": "F"})), calls(WIEN), False),
        (calls(("geo_weather", {"city": "wien"})), calls(WIEN), False),
        (calls(("geo_weather", {"city": "Wien", "days": ["a", "b"]})), calls(("geo_weather", {"city": "Wien", "days": ["b", "a"]})), True),
        (calls(("geo_weather", {"place": {"radius": 5.0}})), calls(("geo_weather", {"place": {}})), True),
        (calls(("geo_weather", {"place": {"radius": 5}})), calls(("geo_weather", {})), False),
        (calls(("tell", {"n": 1})), calls(("tell", {"n": 1.0})), True),
        (calls(("tell", {"n": True})), calls(("tell", {"n": 1})), False),
        (calls(("tell", {"n": "1"})), calls(("tell", {"n": 1})), False),
        (calls(("tell", {"n": None})), calls(("tell", {})), False),
        (calls(WIEN, GRAZ), calls(GRAZ, WIEN), True),
        (calls(WIEN, WIEN), calls(WIEN), False),
        (calls(WIEN), "It is sunny.", False),
        ("It is sunny.", "I cannot tell the weather.", True),
        ("", "I cannot tell the weather.", True),
        ('[{"name": 5}]', '[{"name": 5}]', True),
        ('[{"name": 5}]', '[{"name": 6}]', False),
        ('[{"name": 5}]', "It is sunny.", False),
        (calls(("tell", {"a": {"b": [1, {"c": 2}]}})), calls(("tell", {"a": {"b": [1, {"c": 3}]}})), False),
        (f"```json\n{calls(WIEN)}\n```", calls(WIEN), True),
        (calls(("tell", {"text": "ä"})), calls(("tell", {"text": "\u0061\u0308"})), False),
    ],
)  # fmt: skip
def test_tool_calls(one: str, other: str, same: bool) -> None:
    assert default_for(TOOLS).name == "tool_calls"
    assert_same("tool_calls", one, other, TOOLS, same)


def assert_same(spec: str, one: str, other: str, request: ChatRequest | None, same: bool | None) -> None:
    """Check both directions, and that keys say the same where there are any."""
    comparator = get_comparator(spec)
    for verdict in (comparator.same(one, other, request), comparator.same(other, one, request)):
        assert verdict is same
    if isinstance(comparator, KeyedComparator):
        assert (comparator.key(one, request) == comparator.key(other, request)) is same


def test_the_order_of_calls_and_the_words_matter_where_that_is_asked_for() -> None:
    assert_same("tool_calls:order=kept", calls(WIEN, GRAZ), calls(GRAZ, WIEN), TOOLS, same=False)
    assert_same("tool_calls:words=compared", "It is sunny.", "I cannot tell.", TOOLS, same=False)
    assert_same("tool_calls:words=compared", "It is sunny.", "it is  sunny", TOOLS, same=True)


def test_a_request_for_tools_and_json_compares_json_where_no_tool_is_called() -> None:
    both = ChatRequest(USER, {"tools": TOOLS.options["tools"], "response_format": {"type": "json_object"}})
    assert_same("tool_calls", '{"a": 1}', '{ "a": 1.0 }', both, same=True)
    assert_same("tool_calls", '{"a": 1}', '{"a": 2}', both, same=False)


SCHEMA = {
    "properties": {
        "names": {"type": "array", "uniqueItems": True, "items": {"properties": {"x": {"default": 0}}}},
        "steps": {"type": "array"},
        "kind": {"default": "plain"},
    }
}
JSON = ChatRequest(USER, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"names": ["a", "b"]}', '{"names": ["b", "a"], "kind": "plain"}', True),
        ('{"names": ["a", "a"]}', '{"names": ["a"]}', False),
        ('{"names": [{"x": 0, "y": 1}, {"y": 2}]}', '{"names": [{"y": 2}, {"y": 1}]}', True),
        ('{"steps": ["a", "b"]}', '{"steps": ["b", "a"]}', False),
        ('{"steps": []}', "{}", False),
        ('{"a": 10000000000000000}', '{"a": 1e16}', True),
        ('{"a": 0.1}', '{"a": 0.10}', True),
        ('{"a": -0.0}', '{"a": 0}', True),
        ('{"a": "5"}', '{"a": 5}', False),
        ('{"a": null}', "{}", False),
        ('{"a": "x "}', '{"a": "x"}', False),
        ("no JSON", "No JSON.", True),
        ("no JSON", "{}", False),
        ('```json\n{"a": 1}\n```', '{"a":1}', True),
        ('{"a.b": 1}', '{"a": {"b": 1}}', False),
        (f"{'[' * 50_000}{']' * 50_000}", "{}", False),
    ],
)
def test_json(one: str, other: str, same: bool) -> None:
    assert default_for(JSON).name == "json"
    assert_same("json", one, other, JSON, same)


def test_json_fields_to_ignore_and_lists_in_any_order() -> None:
    assert_same("json:ignore=id+note", '{"a": [{"id": 1, "b": 2}]}', '{"note": "", "a": [{"b": 2}]}', None, same=True)
    assert_same("json:lists=unordered", '{"a": [[1, 2], 3]}', '{"a": [3, [2, 1]]}', None, same=True)
    assert_same("json", '{"a": 1, "b": 2}', '{"a": 1, "b": 3}', None, same=False)


LABELS = ChatRequest(USER, {"response_format": {"enum": ["card_arrival", "card arrival late", "A", "B", "no"]}})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("card_arrival", " Card_Arrival. ", True),
        ('"card_arrival"', "card_arrival", True),
        ('{"intent": "card_arrival"}', "card_arrival", True),
        ("The intent is card_arrival", "card_arrival", True),
        ("card arrival late", "card_arrival", False),
        ("It is card arrival late, I think", "card arrival late", True),
        ("A: Question", "A", True),
        ("A) Question", "B) Question", False),
        ("B", "I choose B because a card is lost", True),
        ("A or B", "A", False),
        ("nothing", "no", False),
        ("none of these", "NONE of these", True),
        ("none of these", "something else", False),
    ],
)
def test_labels(one: str, other: str, same: bool) -> None:
    assert default_for(LABELS).name == "label"
    assert_same("label", one, other, LABELS, same)


def test_labels_of_a_schema_with_one_property() -> None:
    schema = {"type": "object", "properties": {"intent": {"enum": ["a", "b"]}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    request = ChatRequest(USER, {"response_format": wanted})
    assert default_for(request).name == "label"
    assert answer_key('{"intent": "a"}', request) == answer_key('{ "intent":"a" }', request)
    assert answer_key('{"intent": "a"}', request) != answer_key('{"intent": "b"}', request)


@pytest.mark.parametrize(
    ("spec", "one", "other", "same"),
    [
        ("text", "The Danube.", "danube", True),
        ("text", "3.5", "35", False),
        ("text", "-5", "5", False),
        ("text", "", " ", True),
        ("number", "It costs $1,200.00", "1200", True),
        ("number", "12 km", "12.5 km", False),
        ("choice", "(B)", "B", True),
        ("exact", "The Danube.", "danube", True),
    ],
)
def test_texts_numbers_and_matchers_as_comparators(spec: str, one: str, other: str, same: bool) -> None:
    assert get_comparator(spec).same(one, other) is same


def test_free_text_is_warned_of_and_a_question_in_our_own_words_is_not() -> None:
    assert "judge" in (default_for(ChatRequest(USER)).warning or "")
    assert default_for(None).warning is None
    assert default_for(JSON).warning is None


def test_the_reference_judges_by_the_same_rule_as_features_do() -> None:
    one, other = calls(("geo.weather", {"city": "Wien", "unit": "C"})), calls(WIEN)
    assert answer_key(one, TOOLS) == answer_key(other, TOOLS)
    assert answer_key(one, None) != answer_key(other, None)
