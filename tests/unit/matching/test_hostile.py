"""Fault F29: huge answers, a million newlines, NULs, surrogates, right-to-left marks: no crash, nothing quadratic."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from cases import each
from steps import superlinear

from cascade.identity import plain
from cascade.matching import Matcher, get_matcher, maths, text
from cascade.matching.judge import read_verdict
from cascade.matching.maths import as_latex
from cascade.safety import defuse, holds_key, redact

GOLD = {
    "exact": "Danube",
    "label": "B",
    "number": "5 km",
    "judge": "Danube",
    "function": "Danube",
}
HUGE = 500_000
HOSTILE = {
    "letters": "x" * HUGE,
    "digits": "1" * HUGE,
    "words": "the answer is B 5 km 5 May 1992 yes " * (HUGE // 36),
    "newlines": "\n" * 100_000,
    "nul": "\x00" * 100_000,
    "blanks": " \t\u00a0\u2028" * 25_000,
    "marks": "\u202e\u200f\u200b\u2066" * 25_000,
    "surrogates": "\ud800" * 100_000,
    "combining": "e\u0301" * 50_000,
    "expanding": "\ufdfa" * 50_000,  # NFKC makes 18 characters of each
}


def made(name: str) -> Matcher:
    given: dict[str, object] = {}
    if name == "judge":
        given["ask"] = lambda messages: "No"
    if name == "function":
        given["function"] = lambda answer, gold: answer in gold
    return get_matcher(name, **given)


@each("kind", HOSTILE)
@each("name", GOLD)
def test_a_huge_answer_is_wrong_and_does_no_harm(name, kind):
    assert made(name).matches(HOSTILE[kind], [GOLD[name]]) is False


@each("kind", HOSTILE)
@each("name", GOLD)
def test_a_huge_accepted_answer_does_no_harm(name, kind):
    assert made(name).matches("Danube", [HOSTILE[kind]]) in {False, None}


@each("name", ["label", "number"])
@each("around", ["\n" * 1_000_000, "\u200f\u202e", "\x00" * 10, " \u00a0\t", "\ufeff"])
def test_what_cannot_be_seen_changes_nothing(name, around):
    assert made(name).matches(f"{around}{GOLD[name]}{around}", [GOLD[name]]) is True


@pytest.mark.parametrize("name", ["label", "number"])
def test_a_lone_surrogate_is_a_letter_like_others(name):
    assert made(name).matches("\ud800", ["\ud800"]) is True
    assert made(name).matches("\ud8005 \udfff", [GOLD[name]]) in {True, False, None}


@each("name", ["exact", "label", "number"])
@each(
    "mark", ["{", "*", "$", "**", "\\boxed{}", "\\boxed{", "answer:", "Answer is", "=", "()", "-", "####", "\\text{}"]
)
def test_marks_without_content_are_texts_like_others(name, mark):
    assert made(name).matches(mark, [mark]) is True
    assert made(name).matches(mark, [GOLD[name]]) is False
    assert made(name).matches("Danube", [mark]) in {False, None}


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_huge_formula_never_reaches_the_parser(kind):
    latex = as_latex(HOSTILE[kind])
    assert latex is None or len(latex) <= maths.MAX_FORMULA_CHARS + 2


# Texts that make a regular expression with nested or overlapping repetition try every cut: openings without an end.
PIECES = [
    "1", "1,", "1.", "1 ", "1'", "1/", "1:", "1-", "-", "+", "$", "(", "((", "(1", "[a", "{", "\\frac{1}", "\\boxed{",
    "=", "1=", ", 1=", "and ", "or ", "one ", "one-", "one and ", "twenty ", "hundred ", "half ", "a million ", "minus ",
    "10^", "1e", "1 x 10^", "5 ft ", "5 ft and ", "km", "km ", "$1", "USD ", "1992-", "1992 ",
    "answer", "answer ", "answer is ", "answer: ", "*", "**answer**", "####",
    "A", "A ", "A or ", "A, ", "not A ", "(A) ", "A) ", "A\n", "is ", "\n", " ", "the ", "a ", "yes ", "no ", "\\text{",
    "\u0660", "½", "²", "\u200b", "é", "<", "< ", "%", "5 % ", "per ", "5/h", "√(", "sqrt(", "1 1/", "word ", "x^",
]  # fmt: skip


@pytest.mark.parametrize("name", ["exact", "label", "number", "judge", "reply", "math"])
def test_no_text_takes_quadratic_time(name, monkeypatch):
    monkeypatch.setattr(text, "MAX_ANSWER_CHARS", 10**9)  # the guard is off: the patterns themselves must hold
    monkeypatch.setattr(maths, "MAX_FORMULA_CHARS", 10**9)
    work: Callable[[str], object]
    if name == "reply":
        work = read_verdict
    elif name == "math":
        work = as_latex
    else:
        matcher = made(name)
        work = lambda piece: matcher.matches(piece, [GOLD[name]])  # noqa: E731
    assert {piece: slow for piece in PIECES if (slow := superlinear(work, piece))} == {}


SENT = [
    *(".", ". ", "?!", "aa.", "eyJaaaaaaaa-", "_eyJaaaaaaaa", "eyJaaaaaaaa.", "secret: ", "token=", "api_key=AAA_"),
    *("://a:b", "-----BEGIN A PRIVATE KEY-----", "bearer ", "bearer" + 50 * " ", "sk-a ", '"A', "<|", "[|", "data:,"),
    *("\u200b", "\u00b2", "\u00e9", "1" * 18 + " ", "-ghp_aaaa", "authorization: basic ", '"\\"'),
]  # fmt: skip


@pytest.mark.parametrize("work", [plain, holds_key, redact, defuse], ids=lambda work: work.__name__)
def test_what_a_client_sends_is_read_in_linear_time(work):
    """80,000 full stops and a letter held up a gateway for 15 s."""
    assert {piece: slow for piece in SENT for end in "!x" if (slow := superlinear(work, piece, end))} == {}


@pytest.mark.parametrize(
    ("pattern", "piece", "slow"),
    [
        (r"\s*\n\S", " ", True),
        (r"(\d+,?)+x", "1", True),
        (r"(?:a|b)*?c", "ab", True),
        (r"\d{1,50}x", "1", False),
        (r"(?<!\d)\d+x", "1", False),
    ],
)
def test_the_check_itself_finds_quadratic_time(pattern, piece, slow, monkeypatch):
    monkeypatch.setattr(text, "_MARKER", re.compile(pattern))
    assert superlinear(lambda pieces: list(text._MARKER.finditer(pieces)), piece) == ([pattern] if slow else [])
