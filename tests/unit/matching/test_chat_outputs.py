"""Hard cases of the matchers for tool calls and JSON."""

from __future__ import annotations

import json

import pytest

from cascade.matching import get_matcher

CALL = '[{"name": "f", "arguments": {"a": 1, "b": "x"}}]'
ACCEPTED = '{"my.f": {"a": [1, 2], "b": ["x y", ""]}}'

TOOL_CASES = [
    ("spelling of the JSON", '[{"arguments":{"b":"x","a":1.0},"name":"f"}]', CALL, True),
    ("another value", '[{"name": "f", "arguments": {"a": 2, "b": "x"}}]', CALL, False),
    ("a text for a number", '[{"name": "f", "arguments": {"a": "1", "b": "x"}}]', CALL, False),
    ("true is not 1", '[{"name": "f", "arguments": {"a": true, "b": "x"}}]', CALL, False),
    ("an argument more", '[{"name": "f", "arguments": {"a": 1, "b": "x", "c": null}}]', CALL, False),
    ("another tool", '[{"name": "g", "arguments": {"a": 1, "b": "x"}}]', CALL, False),
    ("one call by itself", '{"name": "f", "arguments": {"a": 1, "b": "x"}}', CALL, True),
    ("a fence", f"```json\n{CALL}\n```", CALL, True),
    ("two calls for one", f"[{CALL[1:-1]}, {CALL[1:-1]}]", CALL, False),
    ("words for a call", "It is 7.", CALL, False),
    ("no call wanted, none made", "I cannot do that.", "[]", True),
    ("no call wanted, one made", CALL, "[]", False),
    ("arguments that are no object", '[{"name": "f", "arguments": [1]}]', CALL, False),
    ("accepted values", '[{"name": "my_f", "arguments": {"a": 2, "b": "X-Y"}}]', ACCEPTED, True),
    ("an argument that may be left out", '[{"name": "my.f", "arguments": {"a": 1}}]', ACCEPTED, True),
    ("an argument that may not", '[{"name": "my.f", "arguments": {"b": "x y"}}]', ACCEPTED, False),
    ("a value that is not accepted", '[{"name": "my.f", "arguments": {"a": 3}}]', ACCEPTED, False),
    ("no accepted answer that can be read", CALL, "call f", None),
]


@pytest.mark.parametrize(("answer", "gold", "right"), [case[1:] for case in TOOL_CASES], ids=[c[0] for c in TOOL_CASES])
def test_tool_calls(answer: str, gold: str, right: bool | None) -> None:
    assert get_matcher("tool_calls").matches(answer, [gold]) is right


def test_the_order_of_calls_counts_only_where_it_is_asked_for() -> None:
    calls = [{"name": "f", "arguments": {"n": n}} for n in (1, 2)]
    there, back = json.dumps(calls), json.dumps(calls[::-1])
    assert get_matcher("tool_calls").matches(back, [there])
    assert not get_matcher("tool_calls:order=kept").matches(back, [there])


def test_calls_are_assigned_to_accepted_ones_where_the_first_that_fits_would_be_wrong() -> None:
    gold = json.dumps({"f 1": {"n": [1, 2]}, "f 2": {"n": [1]}})
    calls = json.dumps([{"name": "f", "arguments": {"n": n}} for n in (1, 2)])
    assert get_matcher("tool_calls").matches(calls, [gold])


JSON_CASES = [
    ("json", '{"b": [1, 2.0], "a": null}', '{"a":null,"b":[1.0,2]}', True),
    ("json", '{"b": [2, 1]}', '{"b": [1, 2]}', False),
    ("json:lists=unordered", '{"b": [2, 1]}', '{"b": [1, 2]}', True),
    ("json:lists=unordered", '[{"a": 1, "b": 2}, {"a": 3, "b": 4}]', '[{"a": 3, "b": 2}, {"a": 1, "b": 4}]', False),
    ("json", '{"a": "X"}', '{"a": "x"}', False),
    ("json", "{}", '{"a": {}}', False),
    ("json:ignore=note+id", '{"a": {"id": 1, "v": 2}, "note": "n"}', '{"a": {"v": 2}}', True),
    ("json", "not json", '{"a": 1}', False),
    ("json", '{"a": 1}', "not json", None),
]


@pytest.mark.parametrize(("spec", "answer", "gold", "right"), JSON_CASES)
def test_json(spec: str, answer: str, gold: str, right: bool | None) -> None:
    assert get_matcher(spec).matches(answer, [gold]) is right
