"""Multiple choice: the letter as such, the text, and answers that name none or several."""

from __future__ import annotations

from cases import each

from cascade.matching import get_matcher
from cascade.matching.text import ChoiceMatcher

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


@each(
    "answer, gold, right",
    [
        # the text alone counts where it is known
        *((text, ["A", "Paris"], True) for text in ("Paris", "paris.", "the Paris", "A Paris", "Answer: Paris")),
        *((text, ["A"], False) for text in ("Paris", "paris.", "the Paris", "A Paris", "Answer: Paris")),
        # what looks like a letter is a text
        ("Vitamin C", ["B", "Vitamin C"], True),
        ("A. Lincoln", ["B", "A. Lincoln"], True),
        ("B", ["Vienna"], None),
        ("(b)", ["Vienna"], None),
        ("B. Vienna", ["Vienna"], True),
        ("B. Graz", ["Vienna"], False),
        ("B Vienna", ["A", "Vienna"], False),
        ("Graz", ["Vienna"], False),
        ("B", [], None),
        ("B", [" "], None),
        ("K", ["K"], True),  # as a text
        ("K. Paris", ["K"], False),
        # the letter I alone is not the pronoun
        *((text, ["I"], True) for text in ("I", "(I)", "Answer: I", "I.", "The answer is I.")),
        *((text, ["I"], False) for text in ("I think so", "I believe B", "The answer is I guess B")),
    ],
)
def test_an_answer_is_right_wrong_or_cannot_be_judged(answer: str, gold: list[str], right: bool | None) -> None:
    assert ChoiceMatcher().matches(answer, gold) is right


def test_letters_are_those_that_were_given() -> None:
    assert get_matcher("choice:letters=ABCDEFGHIJK").matches("K. Paris", ["K"]) is True
    assert get_matcher("choice:letters=XY").matches("x) left", ["X"]) is True
