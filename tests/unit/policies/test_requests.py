"""Which kinds of requests a calibration held, and how a fresh request is unlike all of them."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.calibration.fingerprint import MOST_TEXTS, seen
from cascade.chat import ChatRequest
from cascade.episodes.tabulate import tables_from_rows
from cascade.episodes.traces import rows_of
from cascade.orchestrator import Orchestrator
from cascade.policies.scope import PLAIN, kind_of, unlike

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
    assert kind_of(asked) == PLAIN


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
        "the request has not a system message, and every calibration request had"
    ]


def test_a_setting_that_differs_with_each_request_is_not_compared() -> None:
    held = seen([kind_of(chat(stop=[str(number)])) for number in range(MOST_TEXTS + 1)])
    assert list(unlike(kind_of(chat(stop=["another"])), held)) == []


def test_nothing_is_compared_where_a_request_is_not_on_record() -> None:
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
    first = {"a system message": "", "temperature": 0.5} if content == "full" else None
    assert list(table.kinds) == [first, PLAIN]
    assert table.take(table.drawn_from > 0).kinds == table.kinds
