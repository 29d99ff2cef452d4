"""When two questions are one. 0.5.0: a trailing blank or capitals made a training question a fresh one."""

from __future__ import annotations

import pytest
from cases import each

from cascade.identity import identity, plain, question_id

RIVER = "Which river runs through Vienna?"


@pytest.mark.parametrize(
    "written",
    [
        "which river runs through vienna?",
        "WHICH RIVER RUNS THROUGH VIENNA?",
        f"  {RIVER} \n",
        "Which  river\truns through\u00a0Vienna ?",
        "Which river runs through Vienna",
        "Which river runs through Vienna…",
        "Which river runs through Vienna??",
        "Which river, runs through Vienna?",
        "Which river runs through Vienna\uff1f",
        "\ufeffWhich ri\u200bver runs through Vienna?",
        "Which river runs through \uff36ienna?",
    ],
)
def test_near_duplicates_are_one_question(written: str) -> None:
    assert identity(written) == identity(RIVER)


@each(
    "one, other",
    [
        ("What is x+1?", "What is x-1?"),
        ("What is x+1?", "What is x1?"),
        ("Is 3 < 5?", "Is 3 > 5?"),
        ("Is a <= b?", "Is a < b?"),
        ("What is 3.5 times 2?", "What is 35 times 2?"),
        ("What is 1,5 plus 2?", "What is 15 plus 2?"),
        ("Add 1, 2", "Add 12"),
        ("What is 5!", "What is 5"),
        ("Simplify n!", "Simplify n"),
        ("What is 2² plus 1?", "What is 22 plus 1?"),
        ("What is H₂?", "What is H2?"),
        ("What is 1½ m in cm?", "What is 11/2 m in cm?"),
        ("What is -5 plus 2?", "What is 5 plus 2?"),
        ("Which is right?\nA. yes\nB. no", "Which is right?\nA. no\nB. yes"),
        ("Which is right?\nA. yes\nB. no", "Which is right?\nA. yes\nB. maybe"),
        ("What does print('a') show?", "What does print(a) show?"),
        ("What does a[0] hold?", "What does a(0) hold?"),
        ("What does f(a, b) give?", "What does f(a b) give?"),
        ("What does a*b give?", "What does a**b give?"),
        ("What does x == y give?", "What does x = y give?"),
        ("What is 50% of 8?", "What is 50 of 8?"),
        ("How long is 2'?", 'How long is 2"?'),
        ("Who was Peña?", "Who was Pena?"),
        ("What is under $5?", "What is under €5?"),
        ("?", "!"),
    ],
)
def test_what_differs_in_meaning_stays_apart(one: str, other: str) -> None:
    assert identity(one) != identity(other)


def test_the_context_belongs_to_the_question() -> None:
    assert identity(RIVER, "Vienna lies on the Danube.") == identity(RIVER, "vienna lies  on the danube")
    assert identity(RIVER, "Vienna lies on the Danube.") != identity(RIVER, None)


@each("text", ["", " ", "?", "\u200b", "!!", "a" * 10_000, "\ud800", "ẞ", "İ", "e\u0301", "½", "n!?"])
def test_any_text_has_a_form_that_stays_as_it_is(text: str) -> None:
    assert plain(plain(text)) == plain(text)


def test_a_plain_question_is_known_as_before() -> None:
    assert identity("x + 1", None) == question_id("x + 1", None)
