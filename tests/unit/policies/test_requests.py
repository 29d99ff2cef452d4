"""Which kinds of requests a calibration held, and how a fresh request is unlike all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cascade.calibration.fingerprint import MOST_TEXTS, seen
from cascade.chat import ChatRequest
from cascade.episodes.schema import COLUMNS
from cascade.episodes.tabulate import tables_from_rows
from cascade.episodes.traces import rows_of
from cascade.orchestrator import Orchestrator
from cascade.policies.scope import PLAIN, UNSAID, form_unsaid, kind_of, unlike
from cascade.types import Question

HI = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Be brief."}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


def chat(*messages: Any, **options: Any) -> ChatRequest:
    return ChatRequest(list(messages) or [HI], options)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (chat(tools=TOOLS), "the request has tools, which no calibration request had"),
        (chat(response_format=SCHEMA), "the request has a JSON schema, which no calibration request had"),
        (chat(IMAGE), "the request has image parts, which no calibration request had"),
        (chat(SYSTEM, HI), "the request has a system message, which no calibration request had"),
        (
            chat(HI, {"role": "assistant", "content": "Yes?"}, HI),
            "the request has several turns, which no calibration request had",
        ),
        (chat(temperature=2), "the request has temperature 2, which no calibration request had"),
        (chat(max_tokens=1), "the request has a limit of the reply 1, which no calibration request had"),
        (chat(logit_bias={"5": 100}), 'the request has logit_bias {"5": 100}, which no calibration request had'),
    ],
)
def test_what_no_calibration_question_had_is_named(asked: ChatRequest, said: str) -> None:
    held = seen([PLAIN, kind_of(chat())])
    assert list(unlike(kind_of(asked), held)) == [said]
    assert list(unlike(kind_of(asked), seen([PLAIN, kind_of(asked)]))) == []


def test_what_is_passed_on_and_what_is_the_default_are_no_kind_of_their_own() -> None:
    asked = chat(user="ann", metadata={"id": "7"}, store=True, seed=3, tool_choice="auto", parallel_tool_calls=True)
    assert kind_of(asked) == kind_of(chat()) != PLAIN


CHAT_REQUEST = "the request is a chat request, and the calibration asked questions in cascade's own prompt"
QUESTION = "the question is asked in cascade's own prompt, and the calibration had chat requests"


@pytest.mark.parametrize(
    ("calibrated", "of_chat", "of_question"),
    [
        ([PLAIN, PLAIN], [CHAT_REQUEST], []),
        ([kind_of(chat()), kind_of(chat())], [], [QUESTION]),
        ([kind_of(chat()), PLAIN], [], []),
        ([UNSAID, UNSAID], [], []),
        ([UNSAID, PLAIN], [], []),
        ([UNSAID, kind_of(chat())], [], []),
    ],
)
def test_a_question_in_cascades_prompt_and_a_chat_request_are_two_forms(
    calibrated: list[Any], of_chat: list[str], of_question: list[str]
) -> None:
    """The models see a chat request of one message without the prompt and its instruction: their replies differ."""
    held = seen(calibrated)
    assert list(unlike(kind_of(chat()), held)) == of_chat
    assert list(unlike(PLAIN, held)) == of_question
    assert form_unsaid(held) is (UNSAID in calibrated)


def test_another_form_is_the_only_difference_that_is_named() -> None:
    assert list(unlike(kind_of(chat(SYSTEM, HI, temperature=1)), seen([PLAIN]))) == [CHAT_REQUEST]
    assert list(unlike(PLAIN, seen([kind_of(chat(SYSTEM, HI))]))) == [QUESTION]


def test_a_setting_is_still_compared_if_the_form_is_not_recorded() -> None:
    said = "the request has temperature 1, which no calibration request had"
    assert list(unlike(kind_of(chat(temperature=1)), seen([UNSAID]))) == [said]


def test_numbers_hold_between_the_least_and_the_most_and_a_limit_above_the_least() -> None:
    held = seen([kind_of(chat(temperature=heat, max_tokens=100)) for heat in (0.2, 0.8)])
    assert list(unlike(kind_of(chat(temperature=0.5, max_tokens=5_000)), held)) == []
    assert list(unlike(kind_of(chat(temperature=0.9, max_tokens=50)), held)) == [
        "the request has temperature 0.9, and the calibration requests had 0.2 to 0.8",
        "the request has a limit of the reply 50, and the calibration requests had 100",
    ]


def test_what_every_calibration_request_had_is_missed() -> None:
    held = seen([kind_of(chat(SYSTEM, HI, max_tokens=9))] * 2)
    assert list(unlike(kind_of(chat()), held)) == [
        "the request lacks a system message, which every calibration request had"
    ]


def test_a_setting_that_differs_with_each_request_is_not_compared() -> None:
    held = seen([kind_of(chat(stop=[str(number)])) for number in range(MOST_TEXTS + 1)])
    assert list(unlike(kind_of(chat(stop=["another"])), held)) == []


def test_nothing_is_compared_if_a_request_is_not_recorded() -> None:
    assert seen([PLAIN, None]) is None
    assert list(unlike(kind_of(chat(tools=TOOLS)), None)) == []


@pytest.mark.parametrize("content", ["full", "hash"])
def test_a_log_of_requests_says_of_what_kinds_they_are(content: Any) -> None:
    ladder = {"models": {"a": "small", "b": "large"}, "strategy": {"kind": "ladder", "models": ["a", "b"]}}
    with Orchestrator.from_config({**ladder, "provider": "fake", "traces": "off"}) as orchestrator:
        answers = [orchestrator.chat([SYSTEM, HI], temperature=0.5), orchestrator.ask("Hello?")]
    columns = [{"dataset": "d", "episode_id": str(number), "gold": ["x"]} for number in range(2)]
    rows = [row for answer, held in zip(answers, columns, strict=True) for row in rows_of(answer, held, content)]
    (table,) = tables_from_rows([{**row, "correct": True} for row in rows])
    first = {"form": "chat", "a system message": "", "temperature": 0.5} if content == "full" else None
    assert list(table.kinds) == [first, PLAIN]
    assert table.take(table.drawn_from > 0).kinds == table.kinds


def rows_answered(question: Question, *calls: tuple[str, Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the rows of calls, each with its role and what cascade would log of it under "replay"."""
    head = dict.fromkeys(COLUMNS) | {"episode_id": "1", "dataset": "d", "horizon": 1, "step": 1, "schema_version": 5}
    head |= {"question": question.text, "context": question.context, "candidate": 0, "answer": "x", "correct": True}
    return [{**head, "source": role, "model": role, "signals": {"replay": replay}} for role, replay in calls]


ANSWER = {"purpose": "answer", "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("question", "calls", "kind"),
    [
        (Question("Hi"), [("small", ANSWER)], PLAIN),
        (Question("Hi"), [("small", None)], UNSAID),
        (Question("Hi"), [("small", {"told": True})], UNSAID),
        (Question("Hi"), [("small", {**ANSWER, "purpose": "act", "chat": True}), ("small", ANSWER)], PLAIN),
        (
            Question.of_chat(chat()),
            [("small", {**ANSWER, "purpose": "act"}), ("small", {**ANSWER, "chat": True})],
            {"form": "chat"},
        ),
        (Question("sha256:0"), [("small", {**ANSWER, "chat": True}), ("judge", {**ANSWER, "purpose": "verify"})], None),
    ],
)
def test_a_log_says_which_form_the_models_saw(question: Question, calls: list[Any], kind: Any) -> None:
    """What cascade did not log may have been asked in any form; a call of an agent, or of a judge, has its own."""
    (table,) = tables_from_rows(rows_answered(question, *calls))
    assert list(table.kinds) == [kind]
