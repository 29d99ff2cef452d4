"""Which kinds of requests a calibration held, and how a fresh request is unlike all of them."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.conformal.scope import MOST_TEXTS, PLAIN, UNSAID, form_unsaid, kind_of, seen, unlike
from cascade.episodes.rows import datasets_of
from cascade.logs.schema import COLUMNS
from cascade.orchestrator import Orchestrator
from cascade.records.rows import rows_of
from cascade.types import Question

HI = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Be brief."}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


def chat(*messages: Any, **options: Any) -> ChatRequest:
    return ChatRequest(list(messages) or [HI], options)


@pytest.mark.parametrize(
    ("logged", "sent", "reasons"),
    [
        ([PLAIN, chat()], chat(tools=TOOLS), 1),
        ([PLAIN, chat()], chat(response_format=SCHEMA), 1),
        ([PLAIN, chat()], chat(IMAGE), 1),
        ([PLAIN, chat()], chat(SYSTEM, HI), 1),
        ([PLAIN, chat()], chat(HI, {"role": "assistant", "content": "Yes?"}, HI), 1),
        ([PLAIN, chat()], chat(temperature=2), 1),
        ([PLAIN, chat()], chat(max_tokens=1), 1),
        ([PLAIN, chat()], chat(logit_bias={"5": 100}), 1),
        ([PLAIN, chat(tools=TOOLS)], chat(tools=TOOLS), 0),
        ([PLAIN, chat(temperature=2)], chat(temperature=2), 0),
        # a question in cascade's prompt and a chat request are two forms: the models see other texts
        ([PLAIN, PLAIN], chat(SYSTEM, HI, temperature=1), 1),
        ([chat(), chat()], PLAIN, 1),
        ([chat(SYSTEM, HI)], PLAIN, 1),
        ([PLAIN, PLAIN], PLAIN, 0),
        ([chat(), chat()], chat(), 0),
        ([chat(), PLAIN], chat(), 0),
        ([chat(), PLAIN], PLAIN, 0),
        ([UNSAID, UNSAID], chat(), 0),
        ([UNSAID, UNSAID], PLAIN, 0),
        ([UNSAID, PLAIN], chat(), 0),
        ([UNSAID, chat()], PLAIN, 0),
        ([UNSAID], chat(temperature=1), 1),
        # numbers hold between the least and the most, and a limit above the least
        ([chat(temperature=heat, max_tokens=100) for heat in (0.2, 0.8)], chat(temperature=0.5, max_tokens=5_000), 0),
        ([chat(temperature=heat, max_tokens=100) for heat in (0.2, 0.8)], chat(temperature=0.9, max_tokens=50), 2),
        ([chat(SYSTEM, HI, max_tokens=9)] * 2, chat(), 1),
        # a setting that differs with each request is not compared
        ([chat(stop=[str(number)]) for number in range(MOST_TEXTS + 1)], chat(stop=["another"]), 0),
        ([chat(stop=[str(number)]) for number in range(MOST_TEXTS)], chat(stop=["another"]), 1),
        # an unknown request: nothing is compared
        ([PLAIN, None], chat(tools=TOOLS), 0),
    ],
)
def test_a_request_is_covered_if_the_log_had_its_kind(logged, sent, reasons):
    kinds = [kind_of(each) if isinstance(each, ChatRequest) else each for each in logged]
    kind = kind_of(sent) if isinstance(sent, ChatRequest) else sent
    assert len(unlike(kind, seen(kinds))) == reasons
    assert form_unsaid(seen(kinds)) is (UNSAID in kinds)


def test_a_table_does_not_say_which_settings_its_requests_had():
    """Covered is none with a setting, since the log does not record it; it is not said that none had it."""
    for kinds, recorded in (([UNSAID], False), ([kind_of(chat())], True)):
        (reason,) = unlike(kind_of(chat(max_tokens=5)), seen(kinds)).values()
        assert ("does not record" in reason) is not recorded


def test_what_is_passed_on_and_what_is_the_default_are_no_kind_of_their_own():
    request = chat(user="ann", metadata={"id": "7"}, store=True, seed=3, tool_choice="auto", parallel_tool_calls=True)
    assert kind_of(request) == kind_of(chat()) != PLAIN


@pytest.mark.parametrize("content", ["full", "hash"])
def test_a_log_of_requests_says_of_what_kinds_they_are(content):
    ladder = {"models": {"a": "small", "b": "large"}, "strategy": {"kind": "ladder", "models": ["a", "b"]}}
    with Orchestrator.from_config({**ladder, "provider": "fake", "traces": "off"}) as orchestrator:
        answers = [orchestrator.chat([SYSTEM, HI], temperature=0.5), orchestrator.ask("Hello?")]
    columns = [{"dataset": "d", "episode_id": str(number), "gold": ["x"]} for number in range(2)]
    rows = [row for answer, extra in zip(answers, columns, strict=True) for row in rows_of(answer, extra, content)]
    (read,) = datasets_of([{**row, "correct": True} for row in rows])
    first = {"form": "chat", "a system message": "", "temperature": 0.5} if content == "full" else None
    assert read.log.kinds == (first, PLAIN)


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
def test_a_log_says_which_form_the_models_saw(question, calls, kind):
    """What cascade did not log may have been asked in any form; a call of an agent, or of a judge, has its own."""
    head = dict.fromkeys(COLUMNS) | {"episode_id": "1", "dataset": "d", "horizon": 1, "step": 1, "schema_version": 5}
    head |= {"question": question.text, "context": question.context, "candidate": 0, "answer": "x", "correct": True}
    (read,) = datasets_of([{**head, "source": by, "model": by, "signals": {"replay": replay}} for by, replay in calls])
    assert read.log.kinds == (kind,)
