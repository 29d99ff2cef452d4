"""What of a reply is its answer: all of it, in whatever form it comes."""

from __future__ import annotations

from importlib import resources

import pytest
from cases import each

from cascade.logs.files import read_rows
from cascade.plans.reply import is_answer, split_reply, tidy


@each(
    "text, reasoning, answer",
    [
        ("Reasoning: It flows.\nAnswer: Danube", "It flows.", "Danube"),
        ("It flows.\nFinal Answer: **Danube**.", "It flows.", "Danube"),
        ("**Answer:** Danube", "", "Danube"),
        ("- answer : Danube", "", "Danube"),
        ("Answer: Rhine\nWait.\nAnswer: Danube", "Answer: Rhine\nWait.", "Danube"),
        ("Answer:\nDanube\nbecause", "", "Danube\nbecause"),
        ("Answer:", "", ""),
        ("Danube", "", "Danube"),
        ("Reasoning: Danube", "", "Danube"),
        ("It flows.\nDanube", "", "It flows.\nDanube"),
        ("Reasoning: It flows.\nDanube", "It flows.", "Danube"),
        ("", "", ""),
        (" \n ", "", ""),
    ],
)
def test_a_reply_is_reasoning_and_answer(text: str, reasoning: str, answer: str) -> None:
    assert split_reply(text) == (reasoning, answer)


def test_an_answer_of_one_line_is_tidied() -> None:
    assert tidy(' "`Danube`." ') == "Danube"
    assert tidy("3.5") == "3.5"


def test_an_answer_is_never_cut() -> None:
    """0.5.0: what stood beyond 2,000 characters was gone."""
    assert tidy("x" * 5_000) == "x" * 5_000


@pytest.mark.parametrize("line", ['x = "a"', "use `ls`", '"a" or "b"', '{"city": "Vienna"}', '["Danube", "Rhine"]'])
def test_quotes_that_belong_to_the_answer_stay(line: str) -> None:
    """0.5.0: `x = "a"` was served as `x = "a`."""
    assert tidy(line) == line


CODE = "```python\ndef f(x):\n    return x + 1  # Answer: 2\n```"
JSON = '{\n  "question": "Which river?",\n  "answer": "Danube",\n  "sure": true\n}'
BULLETS = "* The base answers.\n* The guide judges.\n\nIn short: both."
LISTED = "Q: Which river?\nA: the Danube.\nQuestion: And here?\nAnswer: the Rhine.\nQuestion: There?\nAnswer: the Elbe."


@each("whole", [CODE, JSON, f"```json\n{JSON}\n```", BULLETS, LISTED, "one\n\ntwo", "    indented\n  so"])
@each("form", ["Reasoning: so it is.\nAnswer: {}", "Reasoning: so it is.\nAnswer:\n{}\n", "{}\n"])
def test_an_answer_of_several_lines_is_whole(whole: str, form: str) -> None:
    """0.5.0: the first line (with "Answer:") or the last (without) was the answer; of code and JSON it was none."""
    reasoning, answer = split_reply(form.replace("{}", whole))
    assert answer == (whole if "Answer: {" not in form else whole.lstrip(" "))
    assert is_answer(answer)
    assert reasoning in {"", "so it is."}


def test_a_fence_around_the_whole_form_is_no_answer() -> None:
    assert split_reply("```\nReasoning: It flows.\nAnswer: Danube\n```") == ("It flows.", "Danube")


def test_the_shipped_log_reads_as_it_was_read() -> None:
    """Of 1,782 replies two differ; both repeat the prompt and hold no answer."""
    replies = {
        (row["text"], row["answer"])
        for row in read_rows(str(resources.files("cascade").joinpath("data/demo_log.parquet")))
        if row["signals"]["replay"]["purpose"] in {"answer", "direct"} and row["answer"]
    }
    assert len(replies) > 500
    other = [text for text, answer in replies if split_reply(text)[1] != answer]
    assert all("It can be mistaken. Think again" in text for text in other)


def test_a_long_text_that_opens_like_a_thought_is_an_answer() -> None:
    """0.5.0: the first 200 characters decided, so "Let's think …" made any text no answer."""
    assert is_answer(f"Let's think about rivers: {'the Danube flows, ' * 20}and so on.")


@each(
    "text, can_be",
    [
        *((text, True) for text in ("Danube", "42", "no", "日本", "None of them", "Answer B", "x")),
        *((text, False) for text in ("", ":", "...", "_", "Thought process:", "Reasoning", "Answer:", "N/A", "none")),
        *((text, False) for text in ("Let's think step by step", "Unknown.")),
    ],
)
def test_what_can_be_an_answer(text: str, can_be: bool) -> None:
    assert is_answer(text) is can_be
