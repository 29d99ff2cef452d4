"""Whether an answer is right."""

from __future__ import annotations

from decimal import Decimal

from cascade.matching import exact_match, only_number


def test_the_right_answer() -> None:
    wrong = [
        (answer, gold)
        for answer, gold in [
            ("The Danube.", ["Danube"]),
            ("danube", ["Rhine", "the Danube"]),
            ("$9", ["9"]),
            ("9 eggs", ["9"]),
            ("1,200", ["1200"]),
            ("1200.0", ["1,200"]),
            ("−5", ["-5"]),
            ("3 + 4 = 7", ["7"]),
            ("42%", ["42"]),
        ]
        if not (exact_match(answer, gold))
    ]
    assert wrong == []


def test_a_wrong_answer() -> None:
    wrong = [
        (answer, gold)
        for answer, gold in [
            ("Rhine", ["Danube"]),
            ("the Danube river", ["Danube"]),
            ("9 of 10", ["9"]),
            ("7 x 3", ["21"]),
            ("7 = 3", ["7"]),
            ("9", ["9 eggs"]),
            ("5", ["-5"]),
            ("35", ["3.5"]),
            ("nine", ["9"]),
            ("", ["Danube"]),
            ("Danube", []),
        ]
        if exact_match(answer, gold)
    ]
    assert wrong == []


def test_accepted_answers_may_come_from_a_generator() -> None:
    assert exact_match("9 eggs", (one for one in ("8", "9")))


def test_the_only_number_of_a_text() -> None:
    wrong = [
        (text, number)
        for text, number in [
            ("9", Decimal(9)),
            ("about -3.50 USD", Decimal("-3.5")),
            ("1,234,567", Decimal(1234567)),
            ("none", None),
            ("1 or 2", None),
            ("", None),
            ("x" * 1_000 + "7", None),
        ]
        if only_number(text) != number
    ]
    assert wrong == []
