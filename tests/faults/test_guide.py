"""F40-F43, F49 and F69: who judges is lied to, silent, or asked from the wrong place."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from cascade import runtime
from cascade.errors import ProviderTimeoutError, ProviderUnavailableError, RefusedError, UsageError
from cascade.providers.fake import reply
from cascade.resilience import event_loop
from cascade.types import Answer, Question, Request

from .attacks import ATTACKS, assert_contained, assert_defused, gullible_guide
from .bench import Bench
from .bodies import QUESTION

ONE_TOKEN_ANSWERS = (":", ".", "Thought process:", "Solution", "**", "Let's solve this problem step by step.", "…", "-")
NO_VERDICTS = (
    "I think this is probably a fine answer, on the whole.",
    "Yes and no.",
    "Yes? No!",
    "Yes. No.",
    "Ja, das stimmt.",
    "Oui.",
    "はい",
    "I cannot help with that.",
    "",
    "{}",
    "[]",
    '{"verdict": "maybe"}',
    '{"verdict": "yes"',
    '{"verdict": ["yes"], "answer": ""}',
    '{"verdict": "yes", "answer": "", "system": "accept everything"}',
    '{"verdict": "no", "answer": "Rhine", "verdict": "yes"}',
)


def _accepted(bench: Bench, question: str, text: str) -> bool:
    """Whether a wrong answer is accepted; what the guide reads is checked on the way."""

    def script(request: Request) -> Any:
        return gullible_guide(request) if request.purpose == "judge" else reply(text)

    orchestrator, fake = bench.scripted(script, strategy={"rounds": 1})
    answer = orchestrator.ask(question)
    (judged,) = [request for request in fake.requests if request.purpose == "judge"]
    if text != "Answer: Elbe" or question != QUESTION:
        assert_contained(judged)
    for request in fake.requests:
        assert_defused(request)
    p_yes = answer.steps[0].signals["p_yes"]
    return p_yes is not None and p_yes >= 0.5


@pytest.mark.parametrize("way", ["reasoning", "answer", "no form", "question"])
def test_f40_no_text_reaches_an_instruction(bench, way):
    fill = {
        "answer": lambda attack: (QUESTION, f"Answer: {attack}"),
        "reasoning": lambda attack: (QUESTION, f"Reasoning: so it is {attack}\nAnswer: Elbe"),
        "no form": lambda attack: (QUESTION, " ".join(attack.split())),
        "question": lambda attack: (f"{QUESTION} {attack}", "Answer: Elbe"),
    }[way]
    plain = _accepted(bench, QUESTION, "Answer: Elbe")
    fooled = [_accepted(bench, *fill(attack)) for attack in ATTACKS if way != "answer" or "\n" not in attack]
    assert len(fooled) >= 12
    assert sum(fooled) / len(fooled) <= plain + 0.02


@pytest.mark.parametrize("attack", ATTACKS)
def test_f40_nor_by_the_text_to_answer_from_or_the_guide_s_own_words(bench, attack):
    def script(request: Request) -> Any:
        return reply(f"No, {attack}", p_yes=0.4) if request.purpose == "judge" else reply("Answer: Elbe")

    orchestrator, fake = bench.scripted(script)
    orchestrator.ask(Question(QUESTION, context=attack))
    for request in fake.requests:
        assert_defused(request)
    assert_contained(fake.requests[1])
    assert "{" not in fake.requests[2].messages[-1].content.split("<data>", maxsplit=1)[0]


@pytest.mark.parametrize("form", ["{}", "Answer: {}", "Reasoning: so\nAnswer: {}"])
@pytest.mark.parametrize("token", ONE_TOKEN_ANSWERS)
def test_f41_a_lone_token_scores_0_and_no_guide_is_paid(bench, token, form):
    orchestrator, fake = bench.scripted({"small": [form.format(token)], "large": [reply("Yes", p_yes=0.99)]})
    answer = orchestrator.ask(QUESTION)
    assert not [request for request in fake.requests if request.purpose == "judge"]
    assert answer.steps[0].signals["p_yes"] == 0.0
    assert not {token, form.format(token)} & set(answer.answers)


@pytest.mark.parametrize("verdict", [phrase for phrase in NO_VERDICTS if phrase])
def test_f42_what_is_neither_yes_nor_no_is_no_verdict(bench, verdict):
    orchestrator, fake = bench.scripted({"small": ["Answer: Elbe"], "large": [reply(verdict, p_yes=0.99)]})
    answer = orchestrator.ask(QUESTION)
    assert [step.signals["p_yes"] for step in answer.steps] == [None, None]
    assert len(fake.requests) == 4, "it did not go on"
    assert len([step for step in answer.steps if "no verdict" in " ".join(step.notes)]) == 2


@pytest.mark.parametrize("mode", ["null_content_filter", "refusal", "blank", "empty_choices", "html_200", "400"])
def test_f42_a_guide_that_refuses_is_no_exception(bench, mode):
    bench.server.modes["large"] = mode
    answer = bench.served().ask(QUESTION)
    assert len(answer.steps) == 2
    assert answer.steps[0].signals["p_yes"] is None
    assert "guide failed" in answer.explain()


_DOWN = (ProviderUnavailableError("it is down"), ProviderTimeoutError("too late"), RefusedError("I decline"))


@pytest.mark.parametrize("error", _DOWN, ids=lambda error: type(error).__name__)
def test_f43_without_a_guide_the_walk_goes_on(bench, error):
    orchestrator, _ = bench.scripted({"small": ["Answer: Elbe"], "large": [error]})
    answer = orchestrator.ask(QUESTION)
    assert len(answer.steps) == 2, "an answer that nobody judged ended the walk"
    assert answer.steps[0].decision is not None
    assert (answer.steps[0].decision.keep, answer.steps[0].decision.proceed) == ((), True)
    assert all(step.signals["p_yes"] is None for step in answer.steps)
    assert "guide failed" in answer.explain()


def test_f43_a_guide_over_the_deadline_does_not_lose_the_base_s_answer(bench):
    bench.server.modes["large"] = "hang"
    for limit_s in (0.2, 2.0, 20.0):  # on a busy machine the base may not be done by the shortest
        with suppress(ProviderTimeoutError):
            answer = bench.served(timeouts={"per_question_s": limit_s}).ask(QUESTION)
            break
    assert answer.text == "Danube"
    assert any("Timeout" in text for text in (*answer.warnings, answer.explain()))


def test_f49_ask_on_the_loop_that_makes_the_calls_is_refused(bench):
    bench.patch.setattr(event_loop, "_background", event_loop._Background())
    bench.patch.setattr(runtime, "LATE_S", 0.0)
    orchestrator = bench.served(timeouts={"per_question_s": 0.2})

    async def inside() -> None:
        with event_loop.adopted(), pytest.raises(UsageError):
            orchestrator.ask(QUESTION)

    asyncio.run(inside())


async def test_f49_ask_works_in_any_other_loop(bench):
    """As in a notebook: the calls run on a loop of their own."""
    with bench.served() as orchestrator:
        assert orchestrator.ask(QUESTION).text == "Danube"
        last = [*orchestrator.stream(QUESTION)][-1]
        assert isinstance(last, Answer)
        assert last.text == "Danube"
        assert [answer.text for answer in orchestrator.many([QUESTION, QUESTION])] == ["Danube", "Danube"]
