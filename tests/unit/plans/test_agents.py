"""An agent answers in a model's place: its calls are on record, its mistakes are the call's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.collection import collect, journal_of
from cascade.config import load
from cascade.episodes.rows import reads_of
from cascade.errors import BudgetExceededError, ConfigError, ProviderTimeoutError
from cascade.logs.files import read_rows
from cascade.logs.questions import AskedQuestion
from cascade.orchestrator import Orchestrator
from cascade.plans.agents import Loop
from cascade.plans.base import ModelUse
from cascade.plans.presets import ladder as ladder_of
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.types import Message, Question, Request

HERE = __name__
CENT = {"input": 10_000.0, "output": 0.0}
"""A cent for each token read, so that a call of the fake provider, which says 20, costs 0.2 USD."""


def searches(request: Request) -> Loop:
    """Ask until the reply is no search."""
    reply = yield request
    while reply.text.startswith("Search:"):
        found = Message("user", "Vienna lies on the Danube.")
        reply = yield request._replace(messages=(*request.messages, Message("assistant", reply.text), found))
    return reply._replace(text=f"Reasoning: it was looked up.\n{reply.text}")


def breaks(request: Request) -> Loop:
    yield request
    raise ZeroDivisionError("no tool")


def recovers(request: Request) -> Loop:
    try:
        return (yield request)
    except ProviderTimeoutError:
        return (yield request._replace(max_tokens=8))


def config(agent: str, strategy: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    models = {
        "base": {"model": "small", "price": CENT, "agent": f"{HERE}:{agent}"},
        "guide": {"model": "large", "price": CENT},
    }
    return {"models": models, "strategy": strategy, "provider": "fake", **more}


LADDER = {"kind": "ladder", "models": ["base", "guide"]}
JUDGED = {"kind": "base_guide", "rounds": 2}
SAID: Mapping[str, Sequence[Reply]] = {
    "small": ["Search: Vienna river", "Answer: Danube", "Answer: Danube"],
    "large": [reply("Yes", p_yes=0.9)],
}


def test_each_of_its_calls_is_charged_and_the_answer_costs_nothing_more() -> None:
    with Orchestrator.from_config(config("searches", LADDER), providers={"fake": FakeProvider(SAID)}) as one:
        answer = one.ask("Which river?")
    (step, *_) = answer.steps
    assert [(call.request.purpose, call.cost_nano_usd) for call in step.calls] == [
        ("act", 200_000_000),
        ("act", 200_000_000),
        ("answer", 0),
    ]
    assert answer.text == "Danube"
    assert step.signals["reply_mean_logprob"] is not None  # of the reply that answered
    assert answer.served is not None
    assert answer.served[1].request.purpose == "answer"


def test_the_guide_judges_the_agent_and_is_none_itself(tmp_path: Path) -> None:
    fake, log = FakeProvider(SAID), tmp_path / "log.jsonl"
    asked = [AskedQuestion("q", Question("Which river?"), ("Danube",))]
    done = collect(load(config("searches", JUDGED)), asked, log, providers={"fake": fake})
    rows = [row for row in read_rows(log) if row["walk"] is None]
    assert (done.questions, done.unused_calls, journal_of(log).exists()) == (1, 0, False)
    assert [(row["source"], row["signals"]["replay"]["purpose"], row["candidate"]) for row in rows[:4]] == [
        ("base", "act", None),
        ("base", "act", None),
        ("base", "answer", 0),
        ("guide", "judge", 1),
    ]
    assert "it was looked up" in fake.requests[2].messages[-1].content
    (read,) = reads_of(read_rows(log))
    assert read.log.cost_nano_usd[0].sum() == 1_000_000_000
    assert read.log.right[0, 0] == 1
    again = FakeProvider({})
    collect(load(config("searches", JUDGED)), asked, log, providers={"fake": again}, resume=True)
    assert not again.requests  # every call of the agent is on record


def test_a_cap_stops_it_between_two_calls() -> None:
    capped = config("searches", LADDER, budget={"per_question": 30.0})
    fake = FakeProvider({"small": ["Search: more"]})
    with Orchestrator.from_config(capped, providers={"fake": fake}) as one, pytest.raises(BudgetExceededError) as told:
        one.ask("Which river?")
    assert len(told.value.calls) == len(fake.requests) >= 2


def test_its_mistake_is_an_error_of_the_call_and_the_next_model_answers() -> None:
    fake = FakeProvider({"small": ["Answer: Danube"], "large": ["Answer: Rhine"]})
    with Orchestrator.from_config(config("breaks", LADDER), providers={"fake": fake}) as one:
        answer = one.ask("Which river?")
    assert answer.text == "Rhine"
    assert "the agent of small failed: ZeroDivisionError: no tool" in answer.explain()
    assert answer.steps[0].cost_nano_usd == 200_000_000  # what it had spent


def test_it_sees_the_errors_of_its_calls() -> None:
    walked = replace(ladder_of((ModelUse("small"),)), agents={"small": recovers}).plan(Question("Which river?"))
    assert next(walked).max_tokens == 256  # type: ignore[union-attr]
    assert walked.throw(ProviderTimeoutError("late", model="small")).max_tokens == 8  # type: ignore[union-attr]


def test_it_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"models\.base\.agent.*cannot be found"):
        load(config("is_nowhere", LADDER))
