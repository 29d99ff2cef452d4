"""Prompts are files; a place for text stands exactly once, and text put in it is never read for places."""

from __future__ import annotations

from pathlib import Path

import pytest

from cascade.errors import ConfigError
from cascade.plans.prompts import Template, load, parse, question_text
from cascade.types import Message, Question


def test_the_shipped_prompts_end_with_the_users_turn() -> None:
    prompts = load()
    for template in (getattr(prompts, name) for name in prompts.__slots__):
        *fixed, last = template.fill("TEXT")
        assert last.role == "user"
        assert last.content.count("TEXT") == 1
        assert all(message.content and "{" not in message.content for message in fixed)


def test_text_is_put_in_as_it_is() -> None:
    template = Template((Message("system", "Be brief."),), "user", "Q: ", "!")
    filled = template.fill("{question} {0} %s {data}")
    assert filled == (Message("system", "Be brief."), Message("user", "Q: {question} {0} %s {data}!"))


def test_a_context_stands_before_the_question() -> None:
    assert question_text(Question("Which?", "Vienna.")) == "Text: Vienna.\n\nQuestion: Which?"


def test_sections_become_messages() -> None:
    template = parse(
        "[system]\nBe brief.\n\n[user]\nExample\n[assistant] \nA\n[user]\nQ: {question}\nNow.\n", "{question}"
    )
    assert template.fixed == (Message("system", "Be brief."), Message("user", "Example"), Message("assistant", "A"))
    assert (template.role, template.before, template.after) == ("user", "Q: ", "\nNow.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{question}", "no section"),
        ("", "no section"),
        ("[user]\nnothing", "exactly once"),
        ("[user]\n{question} {question}", "exactly once"),
        ("[system]\n{question}\n[user]\n{question}", "exactly once"),
        ("[user]\n{question}\n[assistant]\nno", "exactly once"),
    ],
)
def test_a_malformed_prompt_says_what_it_lacks(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text, "{question}")


def test_a_folder_replaces_the_prompts_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("[user]\nMine: {question}")
    prompts = load(tmp_path)
    assert prompts.answer.fill("x") == (Message("user", "Mine: x"),)
    assert prompts.judge == load().judge


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.prompts: the folder .* does not exist"):
        load(tmp_path / "nothing")


def test_all_malformed_prompts_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("nothing")
    (tmp_path / "judge.txt").write_text("[user]\nnothing")
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path))
    assert [
        str(tmp_path / name) in said
        for name, said in zip(("answer.txt", "judge.txt"), caught.value.problems, strict=True)
    ] == [
        True,
        True,
    ]


def test_a_prompt_that_is_not_utf8_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_bytes(b"[user]\n{question} \xff")
    with pytest.raises(ConfigError, match=r"answer\.txt"):
        load(tmp_path)
