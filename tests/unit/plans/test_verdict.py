"""No verdict is ever read as a yes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cases import each

from cascade.plans.verdict import (
    NO_VERDICT,
    combine,
    read,
    read_logprobs,
    read_text,
    sensible,
    without_alternatives,
)
from cascade.types import Token
from unit.made import completion, yes_no

LN = math.log


YES, NO, NONE = (True, None), (False, None), (None, None)


@each(
    "text, read_as",
    [
        *((text, YES) for text in ("Yes", "yes.", "YES!", " Yes, that is right.", "**Yes**", '"Yes"', "\nYes\n")),
        *((text, YES) for text in ("Yes - the Danube.", "(yes)")),
        *((text, NO) for text in ("No", "No.", "No ...", "No, the answer is incorrect.", "No, it is wrong.")),
        ("No, that is not correct.", NO),  # to say that it is wrong is no correction
        ("no: Vienna", (False, "Vienna")),
        ("No, Vienna.", (False, "Vienna")),
        ("No — the correct answer is Vienna.", (False, "Vienna")),
        ("No. The answer is: Vienna", (False, "Vienna")),
        ("No, it's Vienna", (False, "Vienna")),
        ("No, it is Vienna", (False, "Vienna")),
        ("No, the right answer would be Vienna", (False, "Vienna")),
        ("**No** `Vienna`", (False, "Vienna")),
        ("No\n\nVienna\nbecause it lies there", (False, "Vienna")),
        ('No, "Vienna."', (False, "Vienna")),
        ("No, not correct. The correct answer is 12.", (False, "12")),
        ("No. It's wrong: 12", (False, "12")),
        ("No, incorrect, 12", (False, "12")),
        ("No, -5", (False, "-5")),
        ("No: 3.5", (False, "3.5")),
        ("No, yes", (False, "yes")),
        ("No, " + "x" * 5_000, (False, "x" * 5_000)),  # 0.5.0 cut it at 500 characters
        *((text, NONE) for text in ("", "   ", "I think so", "Yes and no", "Yes, but it is not the Danube", "Correct")),
        *((text, NONE) for text in ("Yes, this is incorrect", "Yes. Wrong.", "No, yes it is right", "Nope", "Nothing")),
        *((text, NONE) for text in ("Yesterday", "Ja", "oui", "The answer is yes", "True", "是")),
        # what is no whole JSON object
        *((text, NONE) for text in ('{"verdict": "yes"', '{"verdict": "yes"} and more', "{yes}", "{" * 1_500)),
        *((text, NONE) for text in ('{"verdict": "no", "verdict": "yes"}', '{"a":' * 400)),
    ],
)
def test_a_text_is_a_clear_yes_a_clear_no_or_no_verdict(text: str, read_as: tuple[bool | None, str | None]) -> None:
    assert read_text(text) == read_as


@pytest.mark.parametrize(
    "said",
    [
        "Yes, the answer should be London",
        "Yes, that's untrue",
        "Yes, that\u2019s untrue.",
        "Yes, London.",
        "Yes, it isn't",
        "Yes. The correct answer is London.",
        "Yes, the right answer would be London",
        "Yes, although Lyon is larger",
        "Yes, nearly.",
        '{"verdict": "yes", "answer": "London"}',
    ],
)
def test_a_yes_that_takes_itself_back_is_no_yes(said: str) -> None:
    """0.5.0: read as a yes to "Paris" in sampled verdicts."""
    assert read_text(said, "Paris") == (None, None)
    assert combine([completion(said)], "Paris").p_yes is None


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Yes.", "Paris"),
        ("Yes, that is right", "Paris"),
        ("Yes, Paris is the capital of France.", "Paris"),
        ("Yes, the answer is Paris", "Paris"),
        ("Yes. The answer is correct.", "Paris"),
        ("Yes, No Country for Old Men is right", "No Country for Old Men"),
    ],
)
def test_a_yes_may_say_why(said: str, answer: str) -> None:
    assert read_text(said, answer) == (True, None)


@pytest.mark.parametrize(
    ("said", "correction"),
    [
        ("No\n```python\nx = 1\n```", "```python\nx = 1\n```"),
        ("No. The correct answer is:\n\n- Danube\n- Rhine\n", "- Danube\n- Rhine"),
        ("No, that is wrong.", None),
    ],
)
def test_the_correction_of_an_answer_of_several_lines_is_whole(said: str, correction: str | None) -> None:
    """0.5.0: the first line was served as the guide's answer, and a fence lost its marks."""
    assert read_text(said, "- Elbe\n- Oder") == (False, correction)


def tok(text: str, logprob: float | None, **top: float) -> Token:
    return Token(text, logprob, tuple(top.items()))


def test_p_yes_is_renormalised_over_yes_and_no() -> None:
    p_yes, mass = read_logprobs([tok("Yes", LN(0.6), Yes=LN(0.6), No=LN(0.2), Maybe=LN(0.2))])
    assert p_yes == pytest.approx(0.75)
    assert mass == pytest.approx(0.8)


def test_every_spelling_of_a_word_counts() -> None:
    top = ((" Yes", LN(0.3)), ("YES", LN(0.2)), ("▁yes", LN(0.1)), ("No", LN(0.1)), ("no.", LN(0.1)))
    p_yes, mass = read_logprobs([Token("Yes", LN(0.3), top)])
    assert p_yes == pytest.approx(0.75)
    assert mass == pytest.approx(0.8)


def test_rounding_cannot_make_the_mass_more_than_one() -> None:
    assert read_logprobs([tok("Yes", 0.0, Yes=0.0, No=-9.0)])[1] == 1.0


def test_blank_tokens_before_the_verdict_are_passed_over() -> None:
    verdict = tok("Yes", LN(0.9), Yes=LN(0.9), No=LN(0.1))
    p_yes, _ = read_logprobs([tok("", 0.0), tok(" \n", 0.0), verdict])
    assert p_yes == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("tokens", "read_as"),
    [
        ([tok(" ", 0.0)] * 3 + [tok("Yes", 0.0, Yes=0.0)], (None, None)),  # only the first tokens are looked at
        ([], (None, None)),
        ([tok("The", LN(0.9), The=LN(0.9), A=LN(0.1)), tok("Yes", 0.0, Yes=0.0)], (None, 0.0)),
        ([tok("Yes", None, Yes=LN(0.9), No=LN(0.1))], (None, None)),
        ([tok("Yes", None)], (None, None)),
        ([tok("Yes", 0.0, Yes=0.0, No=-math.inf)], (1.0, 1.0)),
        ([tok("No", 0.0, Yes=-math.inf, No=0.0)], (0.0, 1.0)),
    ],
)
def test_the_log_probs_of_a_verdict(tokens: list[Token], read_as: tuple[float | None, float | None]) -> None:
    assert read_logprobs(tokens) == read_as


@pytest.mark.parametrize("said", ["Yes", "No"])
def test_a_token_without_alternatives_is_not_surer_than_its_own_probability(said: str) -> None:
    p_yes, _ = read_logprobs([tok(said, LN(0.6))])
    p_said = None if p_yes is None else (p_yes if said == "Yes" else 1 - p_yes)
    assert p_said is None or p_said <= 0.6 + 1e-9


def test_text_and_logprobs_are_read_together() -> None:
    verdict = read(yes_no(0.25, "No, Vienna."))
    assert verdict.p_yes == pytest.approx(0.25)
    assert verdict[1:3] == (False, "Vienna")
    assert verdict.mass == pytest.approx(1.0)
    assert verdict.method == "logprobs"


def test_without_logprobs_the_text_alone_gives_no_probability() -> None:
    assert read(completion("Yes")) == (None, True, None, None, "none")


def test_prose_is_no_verdict_whatever_its_first_token() -> None:
    verdict = read(yes_no(0.9, "Yes and no"))
    assert verdict[:3] == (None, None, None)
    assert verdict.method == "none"


@pytest.mark.parametrize(("share", "counts"), [(0.49, False), (0.5, True)])
def test_a_small_mass_of_yes_and_no_is_no_verdict(share: float, counts: bool) -> None:
    top = (("Yes", LN(share - 0.1)), ("No", LN(0.1)), ("Maybe", LN(1 - share)))
    verdict = read(completion("Yes", tokens=(Token("Yes", LN(share - 0.1), top),)))
    assert (verdict.p_yes is not None) is counts
    assert (verdict.says_yes is True) is counts
    assert verdict.mass == pytest.approx(share)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (("Yes", "No, Rhine", "Yes"), (2.5 / 4, True, None, None, "sampled")),  # half a vote of doubt
        (("Yes", "well"), (1.5 / 2, True, None, None, "sampled")),
        (("well", "hm"), NO_VERDICT),
        ((), NO_VERDICT),
        (("Yes", "No, Rhine"), (0.5, False, "Rhine", None, "sampled")),  # a tie is no yes
        (("No, Inn", "No, the Rhine", "No, Rhine.", "No"), (0.5 / 5, False, "the Rhine", None, "sampled")),
        (("No, Inn", "No, Rhine"), (0.5 / 3, False, "Inn", None, "sampled")),  # of equally common ones the first
    ],
)
def test_samples_are_counted(said: tuple[str, ...], verdict: tuple[Any, ...]) -> None:
    assert combine([completion(text) for text in said]) == verdict


@pytest.mark.parametrize(("answer", "stays"), [("Danube", False), ("no", True), ("No.", True), ("yes", False)])
def test_a_bare_yes_corrects_a_no_only(answer: str, stays: bool) -> None:
    verdict = read(completion("No, yes"))
    assert verdict.correction == "yes"
    assert sensible(verdict, answer) == (verdict if stays else NO_VERDICT)


def test_another_correction_is_sensible() -> None:
    for said in ("No, Inn", "No", "Yes"):
        verdict = read(completion(said))
        assert sensible(verdict, "Danube") == verdict


@pytest.mark.parametrize(
    ("tokens", "needs_samples"),
    [
        (None, True),
        ((tok("Yes", -0.1),), True),
        ((tok("Yes", -0.1, Yes=-0.1, No=-3.0),), False),
        ((tok("Yes", None),), False),
    ],
)
def test_log_probs_without_alternatives_need_samples(tokens: tuple[Token, ...] | None, needs_samples: bool) -> None:
    assert without_alternatives(completion("Yes", tokens=tokens)) is needs_samples
