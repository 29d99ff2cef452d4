"""Whether an answer is right."""

from __future__ import annotations

from decimal import Decimal

from cases import each

from cascade.matching.text import ExactMatcher, only_number


@each(
    "answer, gold, right",
    [
        ("The Danube.", ["Danube"], True),
        ("danube", ["Rhine", "the Danube"], True),
        ("$9", ["9"], True),
        ("9 eggs", ["9"], True),
        ("9 eggs", ["8", "9"], True),
        ("1,200", ["1200"], True),
        ("1200.0", ["1,200"], True),
        ("−5", ["-5"], True),
        ("3 + 4 = 7", ["7"], True),
        ("42%", ["42"], True),
        ("Rhine", ["Danube"], False),
        ("the Danube river", ["Danube"], False),
        ("9 of 10", ["9"], False),
        ("7 x 3", ["21"], False),
        ("7 = 3", ["7"], False),
        ("9", ["9 eggs"], False),
        ("5", ["-5"], False),
        ("35", ["3.5"], False),
        ("nine", ["9"], False),
        ("", ["Danube"], False),
        ("Danube", [], None),
    ],
)
def test_the_right_answer(answer: str, gold: list[str], right: bool | None) -> None:
    assert ExactMatcher().matches(answer, gold) is right


@each(
    "text, number",
    [
        ("9", Decimal(9)),
        ("about -3.50 USD", Decimal("-3.5")),
        ("1,234,567", Decimal(1234567)),
        ("none", None),
        ("1 or 2", None),
        ("", None),
        ("x" * 1_000 + "7", None),
    ],
)
def test_the_only_number_of_a_text(text: str, number: Decimal | None) -> None:
    assert only_number(text) == number
