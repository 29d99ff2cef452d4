"""A round: the base answers, the guide judges and corrects; what comes next never depends on the policy."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cascade.errors import AuthenticationError, ProviderUnavailableError
from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan
from cascade.plans.prompts import question_text
from cascade.types import Completion, Question, Step, Token, Usage
from unit.made import RIVER, base_guide, completion, walked, yes_no

SMALL, LARGE = ModelUse("small", 64, 0.0, 11), ModelUse("large", 32, 0.2, 22)
DOWN = ProviderUnavailableError("down")


def guide(**settings: Any) -> Plan:
    return base_guide(SMALL, LARGE, **({"rounds": 2} | settings))


def sources(step: Step) -> list[tuple[str, str]]:
    return [(made.source, made.text) for made in step.candidates]


def test_it_says_what_it_will_use() -> None:
    strategy = guide(rounds=3)
    assert (strategy.horizon, strategy.models) == (3, ("small", "large"))


BOTH = [("base", "Danube"), ("guide", "Danube")]


@pytest.mark.parametrize(
    ("answer", "verdict", "offered", "sure", "agrees"),
    [
        ("Danube", yes_no(0.9), BOTH, [0.9, 0.9], 1.0),
        ("Rhine", yes_no(0.2, "No, the Danube."), [("base", "Rhine"), ("guide", "the Danube")], [0.2, 0.8], 0.0),
        ("Rhine", yes_no(0.2, "No."), [("base", "Rhine")], [0.2], None),
        ("Danube", yes_no(0.4, "No, Danube"), BOTH, [0.4, 0.4], 1.0),  # a correction that says the same supports it
    ],
)
def test_a_round_offers_the_bases_answer_and_what_the_guide_says(
    answer: str, verdict: Completion, offered: list[tuple[str, str]], sure: list[float], agrees: float | None
) -> None:
    asked, (step,) = walked(guide(rounds=1), f"Reasoning: It flows.\nAnswer: {answer}", verdict)
    assert sources(step) == offered
    assert [made.confidence for made in step.candidates] == pytest.approx(sure)
    assert [made.model for made in step.candidates] == ["small", "large"][: len(offered)]
    assert step.signals["p_yes"] == pytest.approx(sure[0])
    assert step.signals.get("guide_agrees") == agrees
    assert [(one.role, one.purpose, one.step) for one in asked] == [("base", "answer", 1), ("guide", "judge", 1)]


def test_the_models_are_asked_as_configured() -> None:
    (base, judge), _ = walked(guide(rounds=1), "Answer: Danube", yes_no(0.9))
    assert (base.model, base.max_tokens, base.temperature, base.seed, base.top_logprobs) == ("small", 64, 0.0, 11, 1)
    assert (judge.model, judge.max_tokens, judge.temperature, judge.seed) == ("large", 32, 0.2, 22)
    assert judge.top_logprobs == 20
    assert base.question == judge.question == RIVER


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


def test_a_later_round_knows_how_often_its_answer_came_before() -> None:
    replies: list[Any] = []
    for answer in ("Rhine", "the Danube", "Danube"):
        replies += [f"Answer: {answer}", yes_no(0.9)]
    _, steps = walked(guide(rounds=3), *replies)
    assert [step.signals["agrees_with_earlier"] for step in steps] == [None, 0.0, 0.5]


def test_a_reply_cut_at_the_limit_is_neither_judged_nor_offered() -> None:
    cut = completion("Reasoning: It", finish_reason="length")
    asked, steps = walked(guide(), cut, "Answer: Danube", yes_no(0.9))
    assert [one.purpose for one in asked] == ["answer", "answer", "judge"]
    assert steps[0].candidates == ()
    assert "p_yes" not in steps[0].signals
    assert "max_tokens" in steps[0].warnings[0]
    assert asked[1].messages == asked[0].messages


@pytest.mark.parametrize("text", ["Thought process:", ":", "Answer: N/A"])
def test_a_reply_without_an_answer_scores_0_without_asking_the_guide(text: str) -> None:
    asked, steps = walked(guide(), text, "Answer: Danube", yes_no(0.9))
    assert [one.role for one in asked] == ["base", "base", "guide"]
    assert steps[0].candidates == ()
    assert steps[0].signals["p_yes"] == 0.0


def test_if_no_round_brought_an_answer_the_guide_answers_by_itself() -> None:
    asked, steps = walked(guide(), ":", ":", "Answer: Danube")
    assert [(one.role, one.purpose) for one in asked] == [("base", "answer"), ("base", "answer"), ("guide", "direct")]
    assert sources(steps[1]) == [("guide", "Danube")]
    assert asked[2].messages == asked[0].messages


@pytest.mark.parametrize("last", [":", completion("Answer: Dan", finish_reason="length")])
def test_a_guide_without_an_answer_of_its_own_leaves_none(last: Any) -> None:
    _, steps = walked(guide(rounds=1), ":", last)
    assert steps[0].candidates == ()
    assert len(steps[0].warnings) == 2


def test_a_base_that_fails_leaves_the_guide_to_answer_and_ends_the_walk() -> None:
    asked, steps = walked(guide(), DOWN, "Answer: Danube")
    assert [(one.role, one.purpose) for one in asked] == [("base", "answer"), ("guide", "direct")]
    assert sources(steps[0]) == [("guide", "Danube")]
    assert ["ProviderUnavailableError" in note for note in steps[0].notes] == [True, False]
    assert [step.final for step in steps] == [True]
    asked, _ = walked(guide(rounds=1), DOWN, ":")  # nor in its last round is the guide asked twice
    assert [one.purpose for one in asked] == ["answer", "direct"]
    with pytest.raises(AuthenticationError):
        walked(guide(), DOWN, AuthenticationError("no key"))


@pytest.mark.parametrize(("setting", "forced"), [("escalate", None), ("accept", "accept"), ("abstain", "abstain")])
def test_what_a_guide_that_fails_means_is_configured(setting: Any, forced: str | None) -> None:
    strategy = guide(rounds=1, on_guide_error=setting)
    _, (step,) = walked(strategy, "Answer: Danube", DOWN)
    assert (step.forced.action if step.forced else None) == forced
    assert step.forced is None or repr(setting) in step.forced.reason
    assert sources(step) == [("base", "Danube")]
    assert step.candidates[0].confidence is None
    assert step.signals["p_yes"] is None
    assert ["ProviderUnavailableError" in note for note in step.notes] == [True]


def test_no_clear_verdict_is_noted() -> None:
    _, (step,) = walked(guide(rounds=1), "Answer: Danube", yes_no(0.9, "Yes and no"))
    assert step.signals["p_yes"] is None
    assert any("no verdict" in note for note in step.notes)
    assert sources(step) == [("base", "Danube")]


def test_auto_asks_for_samples_where_the_guide_gives_no_logprobs() -> None:
    asked, (step,) = walked(guide(rounds=1), "Answer: Danube", "Yes", "No, Rhine", "Yes")
    judged = asked[1:]
    assert [one.sample for one in judged] == [0, 1, 2]
    assert [one.temperature for one in judged] == [0.2, 1.0, 1.0]
    assert [one.seed for one in judged] == [22, 23, 24]
    assert len({one.messages for one in judged}) == 1
    assert step.signals["p_yes"] == 2.5 / 4
    assert "verdict from 3 samples, without log-probs" in step.notes


@pytest.mark.parametrize(
    ("settings", "replies", "judged"),
    [
        ({}, [yes_no(0.9, "Yes and no")], [(0, 20, 0.2, 22)]),  # log-probs come: no samples
        ({"verdict": "logprobs"}, ["Yes"], [(0, 20, 0.2, 22)]),
        ({"verdict": "sampled", "samples": 2}, ["Yes", "Yes"], [(0, None, 1.0, 22), (1, None, 1.0, 23)]),
        ({"verdict": "sampled", "samples": 1}, ["Yes"], [(0, None, 0.2, 22)]),  # at the guide's own temperature
    ],
)
def test_how_often_and_how_the_guide_is_asked(settings: dict[str, Any], replies: list[Any], judged: list[Any]) -> None:
    asked, (step,) = walked(guide(rounds=1, **settings), "Answer: Danube", *replies)
    assert [(one.sample, one.top_logprobs, one.temperature, one.seed) for one in asked[1:]] == judged
    assert (step.signals["p_yes"] is None) is ("samples" not in settings)


def test_a_guide_without_a_seed_is_sampled_without_one() -> None:
    strategy = base_guide(SMALL, ModelUse("large"), rounds=1, verdict="sampled", samples=2)
    asked, _ = walked(strategy, "Answer: Danube", "Yes", "Yes")
    assert [one.seed for one in asked[1:]] == [None, None]


def test_the_signals_of_an_answer_are_measured() -> None:
    tokens = tuple(Token(text, math.log(0.5)) for text in ("Answer:", " Danube"))
    base = Completion("Reasoning: It flows.\nAnswer: Danube", "stop", Usage(9, 2), tokens)
    _, (step,) = walked(guide(rounds=1), base, yes_no(0.9))
    measured = {
        name: step.signals[name] for name in ("reply_tokens", "answer_chars", "reasoning_chars", "verdict_mass")
    }
    assert measured == {"reply_tokens": 2.0, "answer_chars": 6.0, "reasoning_chars": 9.0, "verdict_mass": 1.0}
    assert step.signals["reply_mean_logprob"] == pytest.approx(math.log(0.5))
