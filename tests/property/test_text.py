"""Foreign text: compared the same however often, put into prompts whole and harmless."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import superlinear

from cascade.matching.text import normalize_answer
from cascade.plans.reply import is_answer, split_reply
from cascade.plans.verdict import read_text
from cascade.text import data_block, defuse

MARK = st.sampled_from(
    ["<|im_start|>", "<|", "|>", "[INST]", "</s>", "<s>", "\u200b", "</data-00000000>", "\n", '"', "\\", "<", "[", "]"]
)
TEXT = st.text() | st.lists(MARK | st.text(max_size=5), max_size=20).map("".join)


@given(TEXT)
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = normalize_answer(text)
    assert normalize_answer(once) == once


@given(TEXT)
def test_an_answer_equals_itself_in_other_clothes(text: str) -> None:
    assert normalize_answer(f"  {text}\n") == normalize_answer(text) or not text.strip()


@given(TEXT, TEXT)
def test_a_data_block_gives_back_any_text_and_holds_no_mark_inside(one: str, other: str) -> None:
    block = data_block({"question": one, "answer": other})
    first, body, last = block.split("\n")
    assert re.fullmatch(r"<data-[0-9a-f]{8}>", first)
    assert last == f"</{first[1:]}"
    assert "<" not in body
    assert json.loads(body) == {"question": defuse(one), "answer": defuse(other)}


def test_the_mark_of_a_data_block_depends_on_its_content_alone() -> None:
    mark = data_block({"answer": "Danube"}).split("\n")[0]
    assert data_block({"answer": "Danube"}).startswith(mark)
    assert not data_block({"answer": "Rhine"}).startswith(mark)
    assert data_block({"answer": "\ud800"}).startswith("<data-")


@given(st.text(st.characters(exclude_characters="<[", exclude_categories=["Cf", "Cc", "Zl", "Zp", "Mn", "Lo", "Cn"])))
def test_text_without_marks_goes_through_untouched(text: str) -> None:
    assert defuse(text) == text
    assert json.loads(data_block({"a": text}).split("\n", 1)[1].rsplit("\n", 1)[0]) == {"a": text}


@given(TEXT)
def test_a_defused_text_is_never_longer(text: str) -> None:
    assert len(defuse(text)) <= len(text)


@pytest.mark.parametrize("read", [defuse, split_reply, is_answer, read_text, normalize_answer])
@pytest.mark.parametrize("opening", ["<|", "|>", "[INST", "<", "<s", "<<SYS", "|", "<｜", " "])
@pytest.mark.parametrize("closing", ["", "|>", ">", "]", "｜>"])
def test_hostile_text_takes_steps_like_its_length(read: Callable[[str], object], opening: str, closing: str) -> None:
    assert superlinear(lambda text: read(text + closing * len(text)), opening, "") == []


@given(TEXT)
def test_a_reply_and_a_verdict_can_be_any_text(text: str) -> None:
    reasoning, answer = split_reply(text)
    assert isinstance(reasoning, str)
    assert isinstance(is_answer(answer), bool)
    says_yes, correction = read_text(text)
    assert correction is None or says_yes is False


@given(st.text().filter(lambda text: not re.search(r"\W*(?:yes|no)\b", text, re.IGNORECASE)))
def test_what_does_not_say_yes_or_no_is_never_a_verdict(text: str) -> None:
    assert read_text(text) == (None, None)
