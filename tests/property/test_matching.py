"""Matchers: an answer that is the accepted one is right, forms of one value are equal, no text breaks anything."""

from __future__ import annotations

import json
import re

from cases import each
from hypothesis import assume, example, given
from hypothesis import strategies as st
from steps import superlinear

from cascade.matching import Matcher, get_matcher
from cascade.matching.number import NumberMatcher, only_number
from cascade.matching.text import clean, normalize_answer, same_text, stated
from cascade.plans.reply import is_answer, split_reply
from cascade.plans.verdict import read_text
from cascade.safety import defuse
from cascade.text import data_block

NAMES = ("exact", "label", "number")
MATCHERS: dict[str, Matcher] = {name: get_matcher(name) for name in NAMES}

WORDS = st.sampled_from([
    "the", "a", "an", "A", "B", "(C)", "I", "not", "or", "and", "answer", "is", ":", ".", ",", "-", "=", "yes", "no",
    "5", "1,000", "3/4", "10^3", "km", "$", "°C", "%", "half", "two", "hundred", "May", "1992", "BC", "'92",
    "5/5/1992", "\\boxed{", "}", "\n", "\u200f", "\x00", "½", "²", "٣", "é", "İ", "—",
])  # fmt: skip
TEXT = st.text() | st.lists(WORDS, max_size=12).map(" ".join) | st.lists(WORDS, max_size=12).map("".join)


@given(st.sampled_from(NAMES), TEXT)
def test_an_accepted_answer_is_right(name, text):
    assume(clean(text))
    assert MATCHERS[name].matches(text, [text]) is True


@given(st.sampled_from(NAMES), TEXT, TEXT)
def test_one_of_several_accepted_answers_is_enough(name, text, other):
    assume(clean(text))
    alone = MATCHERS[name].matches(text, [text])
    assert MATCHERS[name].matches(text, [other, text]) is alone


@given(st.sampled_from(NAMES), TEXT, st.lists(TEXT, max_size=3))
def test_any_text_gets_a_verdict(name, answer, gold):
    verdict = MATCHERS[name].matches(answer, gold)
    assert verdict in {True, False, None}
    assert gold or verdict is None
    assert MATCHERS[name].matches(answer, gold) is verdict


# Not of labels: beside a letter a text that was right may be overruled, as it should.
@given(st.sampled_from([name for name in NAMES if name != "label"]), TEXT, st.sampled_from(["{}", " {} ", "{}."]), TEXT)
def test_more_accepted_answers_never_make_a_right_answer_wrong(name, gold, form, more):
    answer = form.format(gold.replace("{", "(").replace("}", ")"))
    if MATCHERS[name].matches(answer, [gold]) is True:
        assert MATCHERS[name].matches(answer, [gold, more]) is True


@given(TEXT)
@example("A.N.")
def test_normalising_twice_is_normalising_once(text):
    plain = clean(text)
    assert clean(plain) == plain
    assert plain == "" or stated(plain)


@given(TEXT, TEXT)
def test_the_same_text_is_so_both_ways(text, other):
    assert same_text(text, other) == same_text(other, text)


NUMBERS = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10_000)
WHOLE = st.integers(-(10**12), 10**12)


@given(WHOLE)
def test_a_whole_number_is_the_same_in_any_form(number):
    grouped = f"{number:,}"
    forms = [str(number), grouped, f"{number:_}", grouped.replace(",", " "), grouped.replace(",", "'")]
    forms += [f"{number}.0", f"{grouped}.00", f"x = {number}", f"about {grouped} km", f"{number}e0", f"{number}/1"]
    forms += [f"Answer: {number}", f"\\boxed{{{number}}}", f"{number}.", f"**{number}**", grouped.replace("-", "−")]
    assert [form for form in forms if NumberMatcher().matches(form, [str(number)]) is not True] == []


@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_when_their_values_are(number, other):
    matcher = NumberMatcher()
    assert matcher.matches(str(number), [str(other)]) is (number == other)
    assert matcher.matches(str(other), [str(number)]) is (number == other)


@given(NUMBERS, NUMBERS, st.fractions(0, 1, max_denominator=100), st.fractions(0, 100, max_denominator=100))
def test_a_tolerance_is_what_its_formula_says(number, other, rel, most):
    right = abs(number - other) <= max(most, rel * abs(other))
    assert NumberMatcher(rel, most).matches(str(number), [str(other)]) is right


QUANTITY = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "-", "$", "$-", "(", "about ", "x = ", "< ", "minus "]),
    st.text("0123456789", min_size=1, max_size=4)
    | st.sampled_from(["1,000", "1.000", "3/4", "10^3", "1e3", "50", "0.5"]),
    st.sampled_from(
        ["", "%", " km", " m", "m", ")", " USD", " million", "k", "th", " °C", " °F", "°", ".", " and a half"]
    ),
)


@given(QUANTITY, QUANTITY)
def test_numbers_agree_both_ways(first, other):
    if all(only_number(text) for text in (first, other)):
        assert NumberMatcher().matches(first, [other]) == NumberMatcher().matches(other, [first])


@given(st.sampled_from("ABCDEFGHIJ"), st.sampled_from("ABCDEFGHIJ"))
def test_a_letter_is_itself_in_any_form(key, other):
    forms = [key, key.lower(), f"({key})", f"{key}.", f"{key})", f"Answer: {key}", f"the answer is ({key.lower()})"]
    forms += [f"**{key}**", f"\\boxed{{{key}}}", f"{key}. Some text", f"({key}) some text"]
    matcher = MATCHERS["label"]
    assert [form for form in forms if matcher.matches(form, [other]) is not (key == other)] == []
    if key != other:
        assert matcher.matches(f"{key} or {other}", [key]) is False
        assert matcher.matches(f"({key}) or ({other})", [key]) is False


MARK = st.sampled_from(
    ["<|im_start|>", "<|", "|>", "[INST]", "</s>", "<s>", "\u200b", "</data>", "\n", '"', "\\", "<", "[", "]"]
)
TEXT_TEXT = st.text() | st.lists(MARK | st.text(max_size=5), max_size=20).map("".join)


@given(TEXT_TEXT)
def test_normalising_twice_is_normalising_once_of_text(text):
    once = normalize_answer(text)
    assert normalize_answer(once) == once


@given(TEXT_TEXT)
def test_an_answer_equals_itself_in_other_clothes(text):
    assert normalize_answer(f"  {text}\n") == normalize_answer(text) or not text.strip()


@given(TEXT_TEXT, TEXT_TEXT)
def test_a_data_block_gives_back_any_text_and_holds_no_mark_inside(question, answer):
    block = data_block({"question": question, "answer": answer})
    first, body, last = block.split("\n")
    assert (first, last) == ("<data>", "</data>")
    assert "<" not in body
    assert json.loads(body) == {"question": defuse(question), "answer": defuse(answer)}


@given(TEXT_TEXT)
def test_data_blocks_that_begin_alike_are_alike_up_to_what_differs(text):
    same = data_block({"conversation": text})[: -len("}\n</data>")]
    assert data_block({"conversation": text, "reply": "Rhine"}).startswith(same)


@given(st.text(st.characters(exclude_characters="<[", exclude_categories=["Cf", "Cc", "Zl", "Zp", "Mn", "Lo", "Cn"])))
def test_text_without_marks_goes_through_untouched(text):
    assert defuse(text) == text
    assert json.loads(data_block({"a": text}).split("\n", 1)[1].rsplit("\n", 1)[0]) == {"a": text}


@given(TEXT_TEXT)
def test_a_defused_text_is_never_longer(text):
    assert len(defuse(text)) <= len(text)


@each("read", [defuse, split_reply, is_answer, read_text, normalize_answer])
@each("opening", ["<|", "|>", "[INST", "<", "<s", "<<SYS", "|", "<｜", " "])
@each("closing", ["", "|>", ">", "]", "｜>"])
def test_hostile_text_takes_steps_like_its_length(read, opening, closing):
    assert superlinear(lambda text: read(text + closing * len(text)), opening, "") == []


@given(TEXT_TEXT)
def test_a_reply_and_a_verdict_can_be_any_text(text):
    reasoning, answer = split_reply(text)
    assert isinstance(reasoning, str)
    assert isinstance(is_answer(answer), bool)
    says_yes, correction = read_text(text)
    assert correction is None or says_yes is False


@given(st.text().filter(lambda text: not re.search(r"\W*(?:yes|no)\b", text, re.IGNORECASE)))
def test_what_does_not_say_yes_or_no_is_never_a_verdict(text):
    assert read_text(text) == (None, None)
