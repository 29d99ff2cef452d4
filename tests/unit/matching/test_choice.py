"""Multiple choice: the letter as such, the text, and answers that name none or several."""

from __future__ import annotations

import pytest

from cascade.matching import get_matcher
from cascade.matching.choice import ChoiceMatcher

A = [
    "A",
    "a",
    "(A)",
    "(a)",
    "[A]",
    "A.",
    "A)",
    "a)",
    "Ａ",
    "**A**",
    "\\boxed{A}",
    "$\\boxed{\\text{A}}$",
    "Answer: A",
    "answer: a",
    "Answer:\nA",
    "**Answer:** A",
    "Final answer: **A**",
    "My answer is: A",
    "The answer is A.",
    "the answer is (a)",
    "The correct answer is A.",
    "A. Paris",
    "A) Paris",
    "(A) Paris",
    "A: Paris",
    "Answer: A. Paris",
    "A\nBecause Paris is the capital",
    "B is tempting, but the answer is A",
]
NOT_A = [
    "",
    " ",
    "B",
    "(b)",
    "B. Paris",
    "Answer: B",
    "B (not A)",
    "Vienna",
    "A or B",
    "a or b",
    "A, B",
    "A and B",
    "A/B",
    "A-C",
    "(A) or (B)",
    "Either A or B",
    "The answer is A or B",
    "A) Paris B) Vienna",
    "A) Paris\nB) Vienna",
    "not A",
    "neither A nor B",
    "The answer is not A",
    "A is wrong",
    "anything but A is wrong",
    "a river",
    "A river",
    "the answer is a river",
    "I am sure",
    "Vitamin A",
    "Hepatitis A",
    "A-flat",
    "not (A)",
    "Graz (A)",
    "A. Paris or B. Vienna",
    "I think\n(A) is wrong",
    "A or rather A",
    "A.S. Byatt",
]


def test_the_letter_counts_alone_or_marked() -> None:
    wrong = [
        (gold, answer)
        for gold in [["A"], ["a"], ["(A)"], ["A. Paris"], ["A", "Paris"], ["Paris", "(a)"]]
        for answer in A
        if ChoiceMatcher().matches(answer, gold) is not True
    ]
    assert wrong == []


def test_no_letter_another_or_several_are_wrong() -> None:
    wrong = [
        (gold, answer)
        for gold in [["A"], ["A", "Paris"]]
        for answer in NOT_A
        if ChoiceMatcher().matches(answer, gold) is not False
    ]
    assert wrong == []


@pytest.mark.parametrize("answer", ["Paris", "paris.", "the Paris", "A Paris", "Answer: Paris"])
def test_the_text_alone_counts_where_it_is_known(answer: str) -> None:
    assert ChoiceMatcher().matches(answer, ["A", "Paris"]) is True
    assert ChoiceMatcher().matches(answer, ["A"]) is False


def test_a_text_that_looks_like_a_letter_is_a_text() -> None:
    assert ChoiceMatcher().matches("Vitamin C", ["B", "Vitamin C"]) is True
    assert ChoiceMatcher().matches("A. Lincoln", ["B", "A. Lincoln"]) is True


def test_what_cannot_be_judged_is_unknown() -> None:
    wrong = [
        (answer, gold, correct)
        for answer, gold, correct in [
            ("B", ["Vienna"], None),
            ("(b)", ["Vienna"], None),
            ("B. Vienna", ["Vienna"], True),
            ("B. Graz", ["Vienna"], False),
            ("B Vienna", ["A", "Vienna"], False),
            ("Graz", ["Vienna"], False),
            ("B", [], None),
            ("B", [" "], None),
        ]
        if ChoiceMatcher().matches(answer, gold) is not correct
    ]
    assert wrong == []


def test_letters_are_those_that_were_given() -> None:
    assert ChoiceMatcher().matches("K", ["K"]) is True  # as a text
    assert ChoiceMatcher().matches("K. Paris", ["K"]) is False
    assert get_matcher("choice:letters=ABCDEFGHIJK").matches("K. Paris", ["K"]) is True
    assert get_matcher("choice:letters=XY").matches("x) left", ["X"]) is True


def test_the_letter_i_alone_is_not_the_pronoun() -> None:
    wrong = [
        answer
        for answer in ["I", "(I)", "Answer: I", "I.", "The answer is I."]
        if ChoiceMatcher().matches(answer, ["I"]) is not True
    ]
    assert wrong == []


def test_the_person_i_is_no_letter() -> None:
    wrong = [
        answer
        for answer in ["I think so", "I believe B", "The answer is I guess B"]
        if ChoiceMatcher().matches(answer, ["I"]) is not False
    ]
    assert wrong == []
