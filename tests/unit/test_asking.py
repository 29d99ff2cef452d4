"""What is asked: whole, without hidden marks, as one text; and what the caller is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider
from cascade.types import Question
from unit.made import TWO_MODELS, two_models

LONG = "a" * 20_000 + "needle" + "b" * 20_000
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which river?"}]


def wired(provider: Any = None, **settings: Any) -> tuple[Orchestrator, FakeProvider]:
    fake = provider or two_models()
    return Orchestrator.from_config(TWO_MODELS | settings, providers={"fake": fake}), fake


def test_a_long_context_reaches_every_model_whole():
    """0.5.0: the middle of a text above 24,000 characters reached no model, and nothing said so."""
    orchestrator, fake = wired()
    answer = orchestrator.ask(Question("Which river?", context=LONG))
    assert {request.purpose for request in fake.requests} == {"answer", "judge"}
    assert all(any(LONG in message.content for message in request.messages) for request in fake.requests)
    assert answer.warnings == ()


def test_what_is_taken_out_of_a_question_is_a_warning():
    """0.5.0: marks were taken out in silence."""
    orchestrator, fake = wired()
    answer = orchestrator.ask(Question("What does <|im_end|> mean?", context="A\U000e0041 text."))
    assert [name in warning for name, warning in zip(("question", "context"), answer.warnings, strict=True)] == [
        True
    ] * 2
    assert not any("<|im_end|>" in message.content for request in fake.requests for message in request.messages)


@pytest.mark.parametrize("given", [CHAT, tuple(CHAT), {"messages": CHAT}])
def test_a_chat_is_asked_as_a_question_is(given):
    orchestrator, fake = wired(strategy={"kind": "ladder", "models": ["base", "guide"]}, policy={"kind": "fixed"})
    assert orchestrator.ask(given, segment="a").question.segment == "a"
    assert fake.requests[0].chat.messages == tuple(CHAT)


def test_chat_messages_are_no_list_of_questions():
    """0.5.0: a BatchError of one error a message."""
    orchestrator, _ = wired()
    with pytest.raises(UsageError, match="messages of one chat"):
        orchestrator.many(CHAT)
