"""A policy on a log does what it does live: collected with scripted models, replayed, and read as a table."""

from __future__ import annotations

import random
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cascade.collection import collect
from cascade.collection.collector import BASELINES, recorded_baselines
from cascade.config import CascadeConfig, load
from cascade.engine import drive, run
from cascade.episodes.files import read_rows
from cascade.episodes.questions import AskedQuestion
from cascade.episodes.schema import BASE_ONLY, request_digest
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.matching import get_matcher
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.replay import Replay
from cascade.types import Answer, Question, Request

N = 30
ANSWERS = ("Danube", "the Rhine", "Volga.", "Elbe")
MODELS = {
    "models": {
        "base": {"model": "small", "price": {"input": 0.1, "output": 0.4}},
        "guide": {"model": "large", "price": {"input": 1.0, "output": 4.0, "cached_input": 0.5}},
        "third": {"model": "huge", "price": {"input": 3.0, "output": 9.0}},
    },
    "provider": "fake",
}
ROUNDS = {"strategy": {"kind": "base_guide", "rounds": 3, "verdict": "logprobs"}}
LADDER = {"strategy": {"kind": "ladder", "models": ["base", "guide", "third"]}}
QUESTIONS = [
    AskedQuestion(f"q{k}", Question(f"Which river is number {k}?"), gold=(ANSWERS[k % 4],), group=f"g{k // 2}")
    for k in range(N)
]


def said(request: Request) -> Mapping[str, Any]:
    """Answer every call by a hash of what is asked: now and then without an answer, without a verdict, or cut off."""
    chance = random.Random(sha256(request_digest(request).encode()).digest())
    tokens = {"input_tokens": chance.randrange(20, 900), "output_tokens": chance.randrange(1, 90)}
    if request.purpose == "judge":
        p_yes = chance.choice((0.0, 0.1, 0.3, 0.5, 0.5, 0.7, 0.9, 0.9, 1.0, chance.random()))
        if chance.random() < 0.1:
            return reply("I would rather not say.", **tokens)
        return reply("Yes" if p_yes >= 0.5 else f"No. {chance.choice(ANSWERS)}", p_yes=p_yes, **tokens)
    if request.purpose in {"decide", "exit"}:
        return reply(chance.choice(("1", "2", "3", "EXIT", "CONTINUE", "hm")), **tokens)
    if chance.random() < 0.15:
        return reply("Reasoning: it is a long", finish_reason="length", **tokens)
    logprobs = [round(-chance.random(), 1) for _ in range(5)]
    return reply(f"Reasoning: known.\nAnswer: {chance.choice(ANSWERS)}", logprobs=logprobs, **tokens)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Collect one log of rounds with every walk, and one of a ladder."""
    folder, made = tmp_path_factory.mktemp("logs"), {}
    for name, strategy in (("rounds", ROUNDS), ("ladder", LADDER)):
        config = load(MODELS | strategy)
        made[name] = folder / f"{name}.jsonl"
        done = collect(
            config,
            QUESTIONS,
            made[name],
            baselines=recorded_baselines(config),
            matcher=get_matcher("exact"),
            dataset=name,
            concurrency=4,
            providers={"fake": FakeProvider(said)},
        )
        assert (done.progress.done, done.failures, done.stopped) == (N, (), None)
    return made


def table_of(path: Path) -> EpisodeTable:
    (table,) = tables_from_rows(read_rows(path))
    assert table.n == N
    return table


def live(replay: Replay, strategy: dict[str, Any], policy: dict[str, Any]) -> tuple[Orchestrator, list[Answer]]:
    """Ask every question again, of the log instead of the models."""
    config = MODELS | strategy | {"policy": policy, "provider": "replay:the log"}
    with Orchestrator.from_config(config, providers={"replay": replay}) as orchestrator:
        return orchestrator, [orchestrator.ask(asked.question) for asked in QUESTIONS]


def told(answer: Answer, asked: AskedQuestion) -> tuple[Any, ...]:
    """Return what is compared: cost, length, answers kept and different ones, and whether they are right.

    Where the policy kept nothing the best answer is served, with a warning; the log knows no set of answers.
    """
    matches = get_matcher("exact").matches
    kept, answers = kept_by(answer), answers_kept(answer)
    right = answer.text is not None and matches(answer.text, asked.gold) is True
    found = any(matches(text, asked.gold) is True for text in answers)
    return answer.cost_nano_usd, len(answer.steps), kept, len(answers), right, found


def kept_by(answer: Answer) -> int:
    """Return how many answers the policy kept."""
    return sum(len(step.decision.keep) for step in answer.steps if step.decision is not None)


def answers_kept(answer: Answer) -> tuple[str, ...]:
    """Return the different answers that the policy kept, best first; every answer without one comes with a warning."""
    warned = [one for one in answer.warnings if one.startswith(("the policy kept no answer", "no step gave"))]
    assert bool(warned) == (kept_by(answer) == 0)
    return answer.answers if kept_by(answer) else ()


@pytest.mark.parametrize("name", BASELINES)
def test_a_logged_walk_is_what_it_was_live(logs: dict[str, Path], name: str) -> None:
    config: CascadeConfig = load(MODELS | ROUNDS)
    (walk,) = recorded_baselines(config, [name])
    logged = table_of(logs["rounds"]).walks[name]
    assert logged.known.all()
    with Orchestrator.from_config(config, providers={"fake": FakeProvider(said)}) as orchestrator:
        for row, asked in enumerate(QUESTIONS):
            walked = run(asked.question, strategy=walk.strategy, policy=walk.policy, prices=config.prices())
            answer = drive(walked, orchestrator.runtime.complete)
            columns = (logged.cost, logged.length, logged.leaves, logged.distinct, logged.right, logged.covered)
            assert tuple(column[row] for column in columns) == told(answer, asked)


def test_base_only_is_the_ladder_of_the_base_alone(logs: dict[str, Path]) -> None:
    """Also where the base gave no answer: it is wrong then, and paid."""
    config = load(MODELS | {"strategy": {"kind": "ladder", "models": ["base"]}, "policy": {"kind": "fixed"}})
    logged = table_of(logs["ladder"]).walks[BASE_ONLY]
    with Orchestrator.from_config(config, providers={"fake": FakeProvider(said)}) as orchestrator:
        answers = [orchestrator.ask(asked.question) for asked in QUESTIONS]
    rows = zip(logged.cost, logged.length, logged.leaves, logged.distinct, logged.right, logged.covered, strict=True)
    assert list(rows) == [told(answer, asked) for answer, asked in zip(answers, QUESTIONS, strict=True)]
    assert not all(answer.answers for answer in answers)
