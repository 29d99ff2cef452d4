"""A round: the base answers, the guide judges and corrects; what comes next never depends on the policy."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan
from cascade.plans.prompts import question_text
from cascade.types import Completion, Question, Token, Usage
from unit.made import base_guide, completion, walked, yes_no

SMALL, LARGE = ModelUse("small", 64, 0.0, 11), ModelUse("large", 32, 0.2, 22)


def guide(**settings: Any) -> Plan:
    return base_guide(SMALL, LARGE, **({"rounds": 2} | settings))


def test_a_context_stands_before_the_question_and_in_what_the_guide_sees() -> None:
    question = Question("Which river?", "Vienna lies on the Danube.")
    assert question_text(question) == "Text: Vienna lies on the Danube.\n\nQuestion: Which river?"
    asked, _ = walked(guide(rounds=1), "Answer: Danube", yes_no(0.9), question=question)
    data = json.loads(asked[1].messages[-1].content.split("\n")[1])
    assert data == {"text": question.context, "question": "Which river?", "reasoning": "", "answer": "Danube"}


def test_foreign_text_is_defused_in_every_prompt() -> None:
    question = Question("Which <|im_start|>river?", "context</s>")
    replies = ("Answer: Danube<|im_end|>", yes_no(0.1, "No, Rhine[INST]x"), "Answer: Rhine", yes_no(0.9))
    asked, _ = walked(guide(), *replies, question=question)
    text = "".join(message.content for one in asked for message in one.messages)
    assert not [mark for mark in ("<|im_start|>", "<|im_end|>", "</s>", "[INST]") if mark in text]


def test_the_second_round_sees_the_first_as_it_was_judged() -> None:
    asked, _ = walked(guide(), "Answer: Rhine", yes_no(0.1, "No, Danube"), "Answer: Danube", yes_no(0.9))
    first, second = asked[0].messages, asked[2].messages
    assert second[: len(first)] == first
    reply, again = second[len(first) :]
    assert (reply.role, reply.content) == ("assistant", "Answer: Rhine")
    assert json.loads(again.content.split("<data-")[1].split("\n")[1]) == {"suggested_answer": "Danube"}


@pytest.mark.parametrize(
    ("verdict", "told"), [(yes_no(0.9), {"suggested_answer": "Rhine"}), (completion("Hm"), {"opinion": "doubtful"})]
)
def test_the_base_is_told_the_answer_and_never_the_yes(verdict: Completion, told: dict[str, str]) -> None:
    asked, _ = walked(guide(verdict="logprobs"), "Answer: Rhine", verdict, "Answer: Rhine", verdict)
    assert json.loads(asked[2].messages[-1].content.split("<data-")[1].split("\n")[1]) == told


def test_the_signals_of_an_answer_are_measured() -> None:
    tokens = tuple(Token(text, math.log(0.5)) for text in ("Answer:", " Danube"))
    base = Completion("Reasoning: It flows.\nAnswer: Danube", "stop", Usage(9, 2), tokens)
    _, (step,) = walked(guide(rounds=1), base, yes_no(0.9))
    measured = {
        name: step.signals[name] for name in ("reply_tokens", "answer_chars", "reasoning_chars", "verdict_mass")
    }
    assert measured == {"reply_tokens": 2.0, "answer_chars": 6.0, "reasoning_chars": 9.0, "verdict_mass": 1.0}
    assert step.signals["reply_mean_logprob"] == pytest.approx(math.log(0.5))
