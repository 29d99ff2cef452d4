"""The demo's two real models: the same answers, calls and counts here and over both wires, and a log that replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cascade.chat import ChatRequest, output_text
from cascade.config import CascadeConfig, load
from cascade.demo.requests import demo_config
from cascade.episodes.opening import DEMO, open_log
from cascade.logs.files import write_rows
from cascade.logs.schema import rows
from cascade.orchestrator import Orchestrator
from cascade.providers.guard import Guard
from cascade.providers.litellm import LiteLLM
from cascade.providers.local import Local
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience.event_loop import Deadline
from cascade.types import Answer, Question, Request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]
BASE, GUIDE = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"


def questions() -> list[Question]:
    """Return the first questions of the demo; not at import, where every run of the tests would read its log."""
    distinct = dict.fromkeys((row["question"], row["context"]) for row in open_log(DEMO).rows())
    return [Question(*parts) for parts in distinct][:3]


def config(**settings: Any) -> CascadeConfig:
    document = demo_config(BASE, GUIDE).model_dump()
    # A fixed depth: what a prompt cache holds moves P(yes) by about .01, and a threshold can lie between.
    fixed = {"strategy": {"kind": "base_guide", "rounds": 2}, "policy": {"kind": "fixed", "depth": 2}}
    return load(document | fixed | settings)


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city for some days.",
            "parameters": PARAMETERS,
        },
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "intent",
        "schema": {
            "type": "object",
            "properties": {"intent": {"type": "string", "enum": ["card_lost", "refund", "other"]}},
            "required": ["intent"],
            "additionalProperties": False,
        },
    },
}
REQUESTS: dict[str, dict[str, Any]] = {
    "a tool": {
        "messages": [{"role": "user", "content": "What will the weather be in Vienna for 3 days? Use the tool."}],
        "tools": TOOLS,
        "tool_choice": "auto",
    },
    "a schema": {
        "messages": [{"role": "user", "content": "I have lost my card. What is my intent?"}],
        "response_format": SCHEMA,
    },
}


@pytest.fixture(scope="module")
def here(pair: Local) -> list[Answer]:
    """Return the answers of the models in this process, one after another."""
    return Orchestrator.from_config(config(), providers={"local": pair}).many(questions(), concurrency=1)


def test_real_models_answer_judge_and_are_paid(here):
    assert sum(answer.text is not None for answer in here) >= 2
    assert all(answer.cost is not None and answer.cost > 0 for answer in here)
    judged = [answer.steps[0].signals.get("p_yes") for answer in here]
    assert sum(p_yes is not None for p_yes in judged) >= 2
    assert all(p_yes is None or 0 <= p_yes <= 1 for p_yes in judged)


def comparable(answer: Answer) -> Any:
    """Return what must not depend on the way the models were reached."""
    counts = [(c.request.role, c.completion and (c.completion.text, c.completion.usage[:2])) for c in answer.calls]
    return answer.text, answer.answers, answer.stopped, counts, answer.cost_nano_usd


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_way_to_one_model_gives_the_same_message_and_counts(name, pair, pair_servers):
    chat = ChatRequest.from_openai({**REQUESTS[name], "temperature": 0, "seed": 1, "max_tokens": 64})
    request = Request(BASE, (), "base", "answer", 1, Question.of_chat(chat), 64, top_logprobs=1, chat=chat)
    places = {"": Endpoint(pair_servers[0])}
    outcomes = []
    for asking in (pair, OpenAIHTTP(places), LiteLLM(places)):
        reply = await Guard(asking).complete(request, Deadline.after(300.0))
        if asking is not pair:
            await asking.close()
        assert reply.message is not None
        outcomes.append((output_text(reply.message), reply.finish_reason, reply.usage[:2], reply.faults))
    assert outcomes[1:] == outcomes[:1] * 2
    if "tools" in REQUESTS[name]:
        assert '"name":"get_weather"' in outcomes[0][0]
    else:
        assert outcomes[0][3] == ()


@pytest.fixture(scope="module")
def four_rounds(pair: Local) -> Answer:
    """Return an answer that took all four rounds."""
    whole = config(strategy={"kind": "base_guide", "rounds": 4}, policy={"kind": "uala", "threshold": 0})
    return Orchestrator.from_config(whole, providers={"local": pair}).ask(questions()[0])


def test_four_rounds_say_why_they_stopped(four_rounds):
    assert [step.number for step in four_rounds.steps] == [1, 2, 3, 4]
    assert four_rounds.stopped == "horizon"
    assert all("went on" in step.reason for step in four_rounds.steps[:3])
    assert "last step" in four_rounds.steps[3].reason
    assert four_rounds.explain().endswith("stopped: horizon")


@pytest.fixture
def replayed(four_rounds: Answer, tmp_path: Path) -> Iterator[Callable[[], Answer]]:
    log = tmp_path / "log.jsonl"
    write_rows(log, rows(four_rounds))
    whole = config(
        strategy={"kind": "base_guide", "rounds": 4},
        policy={"kind": "uala", "threshold": 0},
        provider=f"replay:{log}",
    )
    with Orchestrator.from_config(whole) as orchestrator:
        yield lambda: orchestrator.ask(questions()[0])


def test_its_log_replays_to_the_same_answer(four_rounds, replayed):
    again = replayed()
    assert (again.text, again.answers, again.explain()) == (
        four_rounds.text,
        four_rounds.answers,
        four_rounds.explain(),
    )
    assert comparable(again) == comparable(four_rounds)
    assert [step.signals for step in again.steps] == [step.signals for step in four_rounds.steps]
