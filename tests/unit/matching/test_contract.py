"""What each matcher calls right, wrong and unknown: one table a matcher, of hard cases."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from cases import each

from cascade.chat import ChatRequest
from cascade.matching import KeyedMatcher, answer_key, default_for, get_matcher
from cascade.matching.number import read_numbers, read_run

# --- words ---

EXACT = [  # the last ones are the table of design/matching.md
    ("The Danube.", ["Danube"], True), ("danube", ["Rhine", "the Danube"], True), ("$9", ["9"], True),
    ("9 eggs", ["9"], True), ("9 eggs", ["8", "9"], True), ("1,200", ["1200"], True), ("1200.0", ["1,200"], True),
    ("−5", ["-5"], True), ("3 + 4 = 7", ["7"], True), ("42%", ["42"], True), ("Rhine", ["Danube"], False),
    ("the Danube river", ["Danube"], False), ("9 of 10", ["9"], False), ("7 x 3", ["21"], False),
    ("7 = 3", ["7"], False), ("9", ["9 eggs"], False), ("5", ["-5"], False), ("35", ["3.5"], False),
    ("nine", ["9"], False), ("", ["Danube"], False), ("Danube", [], None),
    ("3.5", ["35"], False),
    ("-5", ["5"], False),
    ("\u201cDanube\u201d", ["Danube"], True),
    ("1914\u20131918", ["1914-1918"], True),
    ("\uff24anube", ["Danube"], True),
    ("Straße", ["STRASSE"], True),
    ("!!!", ["?"], False),
    ("the", ["a"], False),
    ("foo_bar", ["foobar"], True),
    ("9 eggs", ["9"], True),
    ("1 000", ["1000"], True),
    ("cafe\u0301", ["caf\u00e9"], True),
    ("x" * 2_000 + "y", ["x" * 2_000 + "z"], False),
]  # fmt: skip


@each("answer, gold, right", EXACT)
def test_exact(answer, gold, right):
    assert get_matcher("exact").matches(answer, gold) is right


# --- numbers ---

SAME_NUMBER = [
    ("42", "42"), ("42.0", "42"), ("042", "42"), ("+42", "42"), ("**42**", "42"), ("~42", "42"),
    ("about 42.", "42"),
    # thousands and decimals
    ("1,000", "1000"), ("1 000", "1000"), ("1\u00a0000\u202f000", "1000000"), ("1'000", "1000"), ("1_000", "1000"),
    ("12,34,567", "1234567"), ("1.234.567", "1234567"), ("1,000.5", "1000.5"), ("1.000,5", "1000.5"),
    ("1 000,5", "1000.5"), ("3,14", "3.14"), (".5", "0.5"), ("１２", "12"),
    # fractions, percent, powers
    ("3/4", "0.75"), ("3 / 4", "0.75"), ("0.75", "3/4"), ("1 1/2", "1.5"), ("2½", "2.5"), ("\\frac{3}{4}", "0.75"),
    ("-\\frac{3}{4}", "-0.75"), ("50%", "0.5"), ("0.5", "50 percent"), ("42%", "42"), ("42", "42%"),
    ("1e3", "1000"), ("1.5E-3", "0.0015"), ("1.5 x 10^3", "1500"), ("1.5×10³", "1500"),
    ("1.5 \\times 10^{3}", "1500"),
    # signs
    ("−5", "-5"), ("-$5", "-5"), ("$-5", "-5"),
    # scales
    ("5 million", "5,000,000"),
    ("2.5 billion", "2500000000"), ("5th", "5"),
    # units
    ("9 eggs", "9"), ("9", "9 eggs"), ("5 km", "5 m"), ("1,500 km²", "1500"), ("5 kilometres per hour", "5 mph"),
    ("100 °F", "100 °C"), ("$9", "9"), ("C$9", "€9"), ("9 USD", "$9"), ("USD 9", "$9"), ("$5 per hour", "$5"),
    ("5 percent", "5%"), ("$5/hour", "$5"), ("5: five of them are red", "5"),
    # what is stated counts
    ("x = 5", "5"), ("3 + 4 = 7", "7"), ("3 + 4 = 7, so x = 7", "7"), ("\\boxed{12}", "12"),
    ("$12$", "12"), ("There are 3 boxes of 4. The answer is 12.", "12"), ("Answer: 1,234 km.", "1234 km"),
    ("#### 12", "12"), ("about 5", "5"), ("- 5", "5"),  # an item of a list
]  # fmt: skip
ANOTHER_NUMBER = [
    ("", "5"), ("none", "5"), ("3 or 4", "3"), ("3 or four", "3"), ("9 of 10", "9"), ("7 x 3", "21"), ("5-6", "5"),
    ("5 ± 1", "5"), ("1,2,3", "123"), ("5", "-5"), ("35", "3.5"), ("1,000", "1"), ("1.000", "1000"),
    ("0.5%", "0.5"), ("50%", "50.5"), ("5 km (3.1 mi)", "5 km"), ("5 ft 3 in", "5"), ("1.5 km", "1500 m"),
    ("5km", "5"), ("> 5", "5"), ("at least 5", "5"), ("less than five", "5"), ("more than 5", "5"),
    # formulas, which `math` reads
    ("q - 3", "3"), ("2 + x", "2"), ("-7 - 3c + 3d", "-7"), ("(q-1)(q+4)/3", "3"), ("18\\sqrt{5}", "18"),
    ("30π/4", "30"), ("6sin^2 y", "6"), ("2(x+1)", "2"), ("2/x", "2"), ("[-3, -7]", "-3"), ("1.001", "1"),
    ("1/0", "1"), ("1/3", "0.3333"), ("no one", "1"), ("one or two", "2"), ("half a million", "0.5"),
    ("2 hundred thousand million", "200000"), ("twenty-third", "20"), ("two three", "5"), ("x = 5, y = 6", "6"),
    ("5 million", "5"),
    # no numbers, though there are digits
    ("B12", "12"), ("COVID-19", "19"), ("2x", "2"), ("10:30", "10"), ("5 pm", "5"), ("1.2.3", "1.2"),
    ("5/5/1992", "1"), ("2^10", "2"), ("2^10", "1024"),
    # too large to be read
    ("9" * 5_000, "9"), ("1e999999", "5"), ("1e-999999", "0"), ("10^999999999999", "5"),
    ("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22", "1"), ("two hundred and five", "200"),
    ("two hundred one", "200"), ("twenty thousand one", "20000"), ("two thirds", "2"), ("two and a half", "2"),
    ("3k", "3"), ("$5m", "5"), ("3 and a half", "3"),
]  # fmt: skip
TINY = "0." + "0" * 300 + "1"


@each(
    "answer, gold, right",
    [
        *((answer, [gold], True) for answer, gold in SAME_NUMBER),
        *((answer, [gold], False) for answer, gold in ANOTHER_NUMBER),
        # an accepted answer without one number leaves the truth unknown
        *(("5", gold, None) for gold in ([], [""], ["Danube"], ["3 or 4"], ["10:30"], ["1e999999"], ["B12"], ["< 5"])),
        # the same text is right whatever it is
        *((f" {text}\n", [text], True) for text in ("3 or 4", "10:30", "1e999999", "Danube", "B12")),
        ("5", ["Danube", "4", "5 km"], True),
        ("5", ["Danube", "4"], False),
        (TINY, ["0"], False),
        (TINY, ["1e-301"], True),
    ],
)
def test_number(answer, gold, right):
    assert get_matcher("number").matches(answer, gold) is right


@each(
    "options, answer, gold, right",
    [
        ("rel=0.01", "3.14", "3.14159", True),
        ("rel=1e-4", "3.14", "3.14159", False),
        ("rel=1%", "99", "100", True),
        ("rel=1%", "98.9", "100", False),
        ("abs=0.5", "4.5", "5", True),
        ("abs=0.5", "4.49", "5", False),
        ("rel=1%,abs=2", "98", "100", True),
    ],
)
def test_a_tolerance_is_relative_or_absolute(options, answer, gold, right):
    assert get_matcher(f"number:{options}").matches(answer, [gold]) is right


def test_values_are_exact():
    assert [number.value for number in read_numbers("1/3") or ()] == [Fraction(1, 3)]


@each(
    "run, value",
    [
        ("1,000", Fraction(1000)),
        ("1.000", Fraction(1)),
        ("0,123", Fraction(123, 1000)),
        ("1234,567", Fraction(1234567, 1000)),
        ("1.234,567", Fraction(1234567, 1000)),
        ("1,234.567", Fraction(1234567, 1000)),
        ("1,00,000", Fraction(100000)),
        ("1,000,00", None),
        ("1,0000.5", None),
        ("1.2,3.4", None),
        ("1'000.5", Fraction(2001, 2)),
        ("9" * 1_001, None),
    ],
)
def test_separators_are_read_where_only_one_reading_is_clear(run, value):
    assert read_run(run) == value


# --- letters ---

IS_A = [
    "A", "a", "(A)", "(a)", "[A]", "A.", "A)", "a)", "Ａ", "**A**", "\\boxed{A}", "$\\boxed{\\text{A}}$",
    "Answer: A", "answer: a", "Answer:\nA", "**Answer:** A", "Final answer: **A**", "My answer is: A",
    "The answer is A.", "the answer is (a)", "The correct answer is A.", "A. Paris", "A) Paris", "(A) Paris",
    "A: Paris", "Answer: A. Paris", "A\nBecause Paris is the capital", "B is tempting, but the answer is A",
]  # fmt: skip
IS_NOT_A = [
    "", " ", "B", "(b)", "B. Paris", "Answer: B", "B (not A)", "Vienna", "A or B", "a or b", "A, B", "A and B",
    "A/B", "A-C", "(A) or (B)", "Either A or B", "The answer is A or B", "A) Paris B) Vienna",
    "A) Paris\nB) Vienna", "not A", "neither A nor B", "The answer is not A", "A is wrong",
    "anything but A is wrong", "a river", "A river", "the answer is a river", "I am sure", "Vitamin A",
    "Hepatitis A", "A-flat", "not (A)", "Graz (A)", "A. Paris or B. Vienna", "I think\n(A) is wrong",
    "A or rather A", "A.S. Byatt",
]  # fmt: skip


@each(
    "answer, gold, right",
    [
        *((text, [*gold], True) for text in IS_A for gold in ("A", "a", ["(A)"], ["A", "Paris"], ["Paris", "(a)"])),
        *((text, [*gold], False) for text in IS_NOT_A for gold in ("A", ["A", "Paris"])),
        *((text, ["A", "Paris"], True) for text in ("Paris", "paris.", "Answer: Paris")),
        *((text, ["A"], False) for text in ("Paris", "the Paris", "A Paris")),
        # what looks like a letter is a label
        ("Vitamin C", ["B", "Vitamin C"], True),
        ("A. Lincoln", ["B", "A. Lincoln"], True),
        ("B", ["Vienna"], False),
        ("B Vienna", ["A", "Vienna"], False),
        ("Graz or Vienna", ["Vienna"], False),
        ("B", [], None),
        ("B", [" "], None),
        # the letter I alone is not the pronoun
        *((text, ["I"], True) for text in ("I", "(I)", "Answer: I", "I.", "The answer is I.")),
        *((text, ["I"], False) for text in ("I think so", "I believe B", "The answer is I guess B")),
    ],
)
def test_label(answer, gold, right):
    assert get_matcher("label").matches(answer, gold) is right


def test_labels_are_those_that_were_given():
    assert get_matcher("label:X|Y").matches("x) left", ["X"]) is True
    assert get_matcher("label:spam|ham").matches("I think it is spam", ["spam"]) is True
    assert get_matcher("label:spam|ham").matches("spam or ham", ["spam"]) is False


# --- tool calls and JSON, with accepted answers ---

CALL = '[{"name": "f", "arguments": {"a": 1, "b": "x"}}]'
ACCEPTED = '{"my.f": {"a": [1, 2], "b": ["x y", ""]}}'

TWO = [{"name": "f", "arguments": {"n": n}} for n in (1, 2)]

TOOLS_AND_JSON = [
    ("tool_calls", '[{"arguments":{"b":"x","a":1.0},"name":"f"}]', CALL, True),
    ("tool_calls", '[{"name": "f", "arguments": {"a": 2, "b": "x"}}]', CALL, False),
    ("tool_calls", '[{"name": "f", "arguments": {"a": "1", "b": "x"}}]', CALL, False),
    ("tool_calls", '[{"name": "f", "arguments": {"a": true, "b": "x"}}]', CALL, False),
    ("tool_calls", '[{"name": "f", "arguments": {"a": 1, "b": "x", "c": null}}]', CALL, False),
    ("tool_calls", '[{"name": "g", "arguments": {"a": 1, "b": "x"}}]', CALL, False),
    ("tool_calls", '{"name": "f", "arguments": {"a": 1, "b": "x"}}', CALL, True),
    ("tool_calls", f"```json\n{CALL}\n```", CALL, True),
    ("tool_calls", f"[{CALL[1:-1]}, {CALL[1:-1]}]", CALL, False),
    ("tool_calls", "It is 7.", CALL, False),
    ("tool_calls", "I cannot do that.", "[]", True),
    ("tool_calls", CALL, "[]", False),
    ("tool_calls", '[{"name": "f", "arguments": [1]}]', CALL, False),
    ("tool_calls", '[{"name": "my_f", "arguments": {"a": 2, "b": "X-Y"}}]', ACCEPTED, True),
    ("tool_calls", '[{"name": "my.f", "arguments": {"a": 1}}]', ACCEPTED, True),
    ("tool_calls", '[{"name": "my.f", "arguments": {"b": "x y"}}]', ACCEPTED, False),
    ("tool_calls", '[{"name": "my.f", "arguments": {"a": 3}}]', ACCEPTED, False),
    ("tool_calls", CALL, "call f", None),
    ("tool_calls", json.dumps(TWO[::-1]), json.dumps(TWO), True),
    # the first accepted call that fits would be wrong
    ("tool_calls", json.dumps(TWO), json.dumps({"f 1": {"n": [1, 2]}, "f 2": {"n": [1]}}), True),
    ("json", '{"b": [1, 2.0], "a": null}', '{"a":null,"b":[1.0,2]}', True),
    ("json", '{"b": [2, 1]}', '{"b": [1, 2]}', False),
    ("json", '{"a": "X"}', '{"a": "x"}', False),
    ("json", "{}", '{"a": {}}', False),
    ("json:ignore=note+id", '{"a": {"id": 1, "v": 2}, "note": "n"}', '{"a": {"v": 2}}', True),
    ("json", "not json", '{"a": 1}', False),
    ("json", '{"a": 1}', "not json", None),
    ("json", '["x", "1"]', ["x", "1"], True),  # a list of texts may be the value
    ("json", '["1", "x"]', ["x", "1"], False),
    ("json", "{}", ["x", "1"], False),
    *(("json", answer, ["x", "y"], None) for answer in ('"x"', "x")),  # right as one of two, wrong as the list
    ("json", '["x"]', "x", True),
    ("json", '["y"]', "x", False),
    ("json", '["1", "2"]', ["1", "2"], True),
    ("json", "2", ["1", "2"], True),
    ("json", "{}", [], None),
]


@each("spec, answer, gold, right", TOOLS_AND_JSON)
def test_tool_calls_and_json(spec, answer, gold, right):
    assert get_matcher(spec).matches(answer, [gold] if isinstance(gold, str) else gold) is right


# --- two outputs of a request ---

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


def calls(*pairs: tuple[str, dict[str, Any]]) -> str:
    """Return calls as `chat.output_text` writes them."""
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in pairs])


WIEN, GRAZ = ("geo_weather", {"city": "Wien"}), ("geo_weather", {"city": "Graz"})
SCHEMA = {
    "properties": {
        "names": {"type": "array", "uniqueItems": True, "items": {"properties": {"x": {"default": 0}}}},
        "steps": {"type": "array"},
        "kind": {"default": "plain"},
    }
}
JSON = ChatRequest(USER, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}})
TOOLS_AND_JSON_WANTED = ChatRequest(USER, {**TOOLS.options, "response_format": {"type": "json_object"}})
LABELS = ChatRequest(USER, {"response_format": {"enum": ["card_arrival", "card arrival late", "A", "B", "no"]}})
ENUM = {"type": "object", "properties": {"intent": {"enum": ["a", "b"]}}}
FIELD = ChatRequest(USER, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": ENUM}}})

SAME_WORDS = [
    ("The Danube.", "danube"), ("a  Big\n river", "big river"), ("Straße", "STRASSE"), ("ＡＢＣ", "abc"), ("", " "),
    ("1,851", "1851"), ("snake_case", "snakecase"), ("“Danube”", "Danube"), ("It's", "Its"),
    ("x " * 2_000 + "The y.", "X " * 2_000 + "y"),
]  # fmt: skip
OTHER_WORDS = [
    ("Danube", "Rhine"), ("10", "100"), ("Theo", "o"), ("theatre", "atre"), ("é", "e"), ("3.5", "35"), ("-5", "5"),
    ("1.25", "12.5"), ("?!", "..."), ("the", "a"), ("—", ""), ("x" * 2_000 + "y", "x" * 2_000 + "z"),
]  # fmt: skip
OUTPUTS = [
    ("tool_calls", TOOLS, calls(("geo_weather", {"city": "Wien", "unit": "C"})), calls(WIEN), True),
    ("tool_calls", TOOLS, calls(("geo.weather", {"unit": "C", "city": "Wien"})), calls(WIEN), True),
    ("tool_calls", TOOLS, calls(("geo_weather", {"city": "Wien", "unit": "F"})), calls(WIEN), False),
    ("tool_calls", TOOLS, calls(("geo_weather", {"city": "wien"})), calls(WIEN), False),
    ("tool_calls", TOOLS, calls(("geo_weather", {"city": "Wien", "days": ["a", "b"]})), calls(("geo_weather", {"city": "Wien", "days": ["b", "a"]})), True),
    ("tool_calls", TOOLS, calls(("geo_weather", {"place": {"radius": 5.0}})), calls(("geo_weather", {"place": {}})), True),
    ("tool_calls", TOOLS, calls(("geo_weather", {"place": {"radius": 5}})), calls(("geo_weather", {})), False),
    ("tool_calls", TOOLS, calls(("tell", {"n": 1})), calls(("tell", {"n": 1.0})), True),
    ("tool_calls", TOOLS, calls(("tell", {"n": True})), calls(("tell", {"n": 1})), False),
    ("tool_calls", TOOLS, calls(("tell", {"n": "1"})), calls(("tell", {"n": 1})), False),
    ("tool_calls", TOOLS, calls(("tell", {"n": None})), calls(("tell", {})), False),
    ("tool_calls", TOOLS, calls(WIEN, GRAZ), calls(GRAZ, WIEN), True),
    ("tool_calls", TOOLS, calls(WIEN, WIEN), calls(WIEN), False),
    ("tool_calls", TOOLS, calls(WIEN), "It is sunny.", False),
    ("tool_calls", TOOLS, "It is sunny.", "I cannot tell the weather.", True),
    ("tool_calls", TOOLS, "", "I cannot tell the weather.", True),
    ("tool_calls", TOOLS, '[{"name": 5}]', '[{"name": 5}]', True),
    ("tool_calls", TOOLS, '[{"name": 5}]', '[{"name": 6}]', False),
    ("tool_calls", TOOLS, '[{"name": 5}]', "It is sunny.", False),
    ("tool_calls", TOOLS, calls(("tell", {"a": {"b": [1, {"c": 2}]}})), calls(("tell", {"a": {"b": [1, {"c": 3}]}})), False),
    ("tool_calls", TOOLS, f"```json\n{calls(WIEN)}\n```", calls(WIEN), True),
    ("tool_calls", TOOLS, calls(("tell", {"text": "ä"})), calls(("tell", {"text": "\u0061\u0308"})), False),
    ("tool_calls:words=compared", TOOLS, "It is sunny.", "I cannot tell.", False),
    ("tool_calls:words=compared", TOOLS, "It is sunny.", "it is  sunny", True),
    ("tool_calls", TOOLS_AND_JSON_WANTED, '{"a": 1}', '{ "a": 1.0 }', True),
    ("tool_calls", TOOLS_AND_JSON_WANTED, '{"a": 1}', '{"a": 2}', False),
    ("json", JSON, '{"names": ["a", "b"]}', '{"names": ["b", "a"], "kind": "plain"}', True),
    ("json", JSON, '{"names": ["a", "a"]}', '{"names": ["a"]}', False),
    ("json", JSON, '{"names": [{"x": 0, "y": 1}, {"y": 2}]}', '{"names": [{"y": 2}, {"y": 1}]}', True),
    ("json", JSON, '{"steps": ["a", "b"]}', '{"steps": ["b", "a"]}', False),
    ("json", JSON, '{"steps": []}', "{}", False),
    ("json", JSON, '{"a": 10000000000000000}', '{"a": 1e16}', True),
    ("json", JSON, '{"a": 0.1}', '{"a": 0.10}', True),
    ("json", JSON, '{"a": -0.0}', '{"a": 0}', True),
    ("json", JSON, '{"a": "5"}', '{"a": 5}', False),
    ("json", JSON, '{"a": null}', "{}", False),
    ("json", JSON, '{"a": "x "}', '{"a": "x"}', False),
    ("json", JSON, "no JSON", "No JSON.", True),
    ("json", JSON, "no JSON", "{}", False),
    ("json", JSON, '```json\n{"a": 1}\n```', '{"a":1}', True),
    ("json", JSON, '{"a.b": 1}', '{"a": {"b": 1}}', False),
    ("json", JSON, f"{'[' * 50_000}{']' * 50_000}", "{}", False),
    ("json:ignore=id+note", None, '{"a": [{"id": 1, "b": 2}]}', '{"note": "", "a": [{"b": 2}]}', True),
    ("json", None, '{"a": 1, "b": 2}', '{"a": 1, "b": 3}', False),
    ("label", LABELS, "card_arrival", " Card_Arrival. ", True),
    ("label", LABELS, '"card_arrival"', "card_arrival", True),
    ("label", LABELS, '{"intent": "card_arrival"}', "card_arrival", True),
    ("label", LABELS, "The intent is card_arrival", "card_arrival", True),
    ("label", LABELS, "card arrival late", "card_arrival", False),
    ("label", LABELS, "It is card arrival late, I think", "card arrival late", True),
    ("label", LABELS, "A: Question", "A", True),
    ("label", LABELS, "A) Question", "B) Question", False),
    ("label", LABELS, "A or B", "A", False),
    ("label", LABELS, "nothing", "no", False),
    ("label", LABELS, "none of these", "NONE of these", True),
    ("label", LABELS, "none of these", "something else", False),
    ("label", FIELD, '{"intent": "a"}', '{ "intent":"a" }', True),
    ("label", FIELD, '{"intent": "a"}', '{"intent": "b"}', False),
    *(("text", None, output, other, True) for output, other in SAME_WORDS),
    *(("text", None, output, other, False) for output, other in OTHER_WORDS),
    ("number", None, "It costs $1,200.00", "1200", True),
    ("number", None, "12 km", "12.5 km", False),
    ("exact", None, "The Danube.", "danube", True),
    ("exact", None, "9 eggs", "9", True),
    ("request", TOOLS, calls(WIEN), "It is sunny.", False),
    ("request", None, "The Danube.", "danube", True),
]  # fmt: skip


@each("spec, request, output, other, same", OUTPUTS)
def test_two_outputs(spec, request, output, other, same):
    matcher = get_matcher(spec)
    assert matcher.same(output, other, request) is same
    if spec != "exact":  # its accepted answer is the number
        assert matcher.same(other, output, request) is same
    if isinstance(matcher, KeyedMatcher):
        assert (matcher.key(output, request) == matcher.key(other, request)) is same
    if request is not None and default_for(request).name == spec:
        assert (answer_key(output, request) == answer_key(other, request)) is same


@each(
    "request, name, warned",
    [
        (None, "text", False),
        (ChatRequest(USER), "text", True),
        (JSON, "json", False),
        (TOOLS, "tool_calls", True),
        (TOOLS_AND_JSON_WANTED, "tool_calls", False),
        (LABELS, "label", False),
        (FIELD, "label", False),
    ],
)
def test_a_request_chooses_its_matcher(request, name, warned):
    chosen = default_for(request)
    assert (chosen.name, chosen.warning is not None) == (name, warned)
