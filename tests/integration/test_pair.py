"""The demo's two real models: the same answers in this process and over both wires, and a log that replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cascade.config import CascadeConfig, load
from cascade.demo.requests import demo_config
from cascade.episodes.opening import DEMO, open_log
from cascade.logs.files import append_jsonl
from cascade.logs.schema import rows
from cascade.orchestrator import Orchestrator
from cascade.providers.local import Local
from cascade.types import Answer, Question

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]
BASE, GUIDE = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
QUESTIONS = [
    Question(*asked) for asked in dict.fromkeys((row["question"], row["context"]) for row in open_log(DEMO).rows())
][:3]


def config(**settings: Any) -> CascadeConfig:
    document = demo_config(BASE, GUIDE).model_dump()
    # A fixed depth: what a prompt cache holds moves P(yes) by about .01, and a threshold can lie between.
    fixed = {"strategy": {"kind": "base_guide", "rounds": 2}, "policy": {"kind": "fixed", "depth": 2}}
    return load(document | fixed | settings)


@pytest.fixture(scope="module")
def here(pair: Local) -> list[Answer]:
    """Return the answers of the models in this process, one after another."""
    return Orchestrator.from_config(config(), providers={"local": pair}).many(QUESTIONS, concurrency=1)


def test_real_models_answer_judge_and_are_paid(here: list[Answer]) -> None:
    assert sum(answer.text is not None for answer in here) >= 2
    assert all(answer.cost is not None and answer.cost > 0 for answer in here)
    judged = [answer.steps[0].signals.get("p_yes") for answer in here]
    assert sum(p_yes is not None for p_yes in judged) >= 2
    assert all(p_yes is None or 0 <= p_yes <= 1 for p_yes in judged)


def said(answer: Answer) -> Any:
    """Return what must not depend on the way the models were reached."""
    counts = [(c.request.role, c.completion and (c.completion.text, c.completion.usage[:2])) for c in answer.calls]
    return answer.text, answer.answers, answer.stopped, counts, answer.cost_nano_usd


@pytest.mark.parametrize("kind", ["openai_http", pytest.param("litellm", marks=pytest.mark.litellm)])
def test_over_the_wire_the_answers_and_counts_are_the_same(
    kind: str, here: list[Answer], pair_servers: tuple[str, str]
) -> None:
    document = config().model_dump()
    for place, address in zip(("base", "guide"), pair_servers, strict=True):
        document["models"][place]["api_base"] = address
    with Orchestrator.from_config(document | {"provider": {"kind": kind}}) as orchestrator:
        there = orchestrator.many(QUESTIONS[:2], concurrency=1)
    assert [said(answer) for answer in there] == [said(answer) for answer in here[:2]]


@pytest.fixture(scope="module")
def four_rounds(pair: Local) -> Answer:
    """Return an answer that took all four rounds."""
    whole = config(strategy={"kind": "base_guide", "rounds": 4}, policy={"kind": "uala", "threshold": 0})
    return Orchestrator.from_config(whole, providers={"local": pair}).ask(QUESTIONS[0])


def test_four_rounds_say_why_they_stopped(four_rounds: Answer) -> None:
    assert [step.number for step in four_rounds.steps] == [1, 2, 3, 4]
    assert four_rounds.stopped == "horizon"
    assert all("asked on" in step.reason for step in four_rounds.steps[:3])
    assert "last step" in four_rounds.steps[3].reason
    assert four_rounds.explain().endswith("stopped: horizon")


@pytest.fixture
def replayed(four_rounds: Answer, tmp_path: Path) -> Iterator[Callable[[], Answer]]:
    log = tmp_path / "log.jsonl"
    append_jsonl(log, rows(four_rounds))
    whole = config(
        strategy={"kind": "base_guide", "rounds": 4},
        policy={"kind": "uala", "threshold": 0},
        provider=f"replay:{log}",
    )
    with Orchestrator.from_config(whole) as orchestrator:
        yield lambda: orchestrator.ask(QUESTIONS[0])


def test_its_log_replays_to_the_same_answer(four_rounds: Answer, replayed: Callable[[], Answer]) -> None:
    again = replayed()
    assert (again.text, again.answers, again.explain()) == (
        four_rounds.text,
        four_rounds.answers,
        four_rounds.explain(),
    )
    assert said(again) == said(four_rounds)
    assert [step.signals for step in again.steps] == [step.signals for step in four_rounds.steps]
