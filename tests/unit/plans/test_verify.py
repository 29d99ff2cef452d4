"""A verifier is a step of its own: a function, or a model; its verdict decides and is logged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.collection import collect
from cascade.config import load
from cascade.errors import ConfigError, UsageError
from cascade.factory import build_strategy
from cascade.logs.questions import AskedQuestion
from cascade.policies.base import Selection
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Answer, Question, Request

QUESTION = "What is 2 + 2?"


def is_four(question: Question, message: Any) -> Any:
    """Tell whether an answer is 4; of another question nothing."""
    return "4" in message["content"] if question.text == QUESTION else None


def fails(question: Question, message: Any) -> bool:
    raise ZeroDivisionError("no verdict")


HERE = f"{__name__}:is_four"


def config(verifier: Any, **more: Any) -> dict[str, Any]:
    return {
        "models": {"base": "small", "guide": "large"},
        "provider": "fake",
        "strategy": {"kind": "ladder", "models": ["base", "guide"], "judge": verifier},
        **more,
    }


def ask(verifier: Any, said: Any, question: Any = QUESTION, script: Any = None, **more: Any) -> Answer:
    fake = FakeProvider(script or (lambda request: said if request.model == "small" else "Answer: 4, surely"))
    with Orchestrator.from_config(config(verifier, **more), providers={"fake": fake}) as cascade:
        return cascade.chat(question) if isinstance(question, list) else cascade.ask(question)


def test_an_answer_that_passes_is_served_and_one_that_fails_is_not():
    right = ask(HERE, "Answer: 4")
    assert (right.text, right.stopped, len(right.steps)) == ("4", "policy", 2)
    assert right.steps[1].signals["gate"] == 1.0
    assert right.steps[1].parents == (1,)
    assert right.served[0].model == "small"  # type: ignore[index]
    wrong = ask(HERE, "Answer: 5")
    assert wrong.text == "4, surely"
    assert wrong.steps[1].signals["gate"] == 0.0


def test_a_verdict_costs_nothing_and_the_cost_stays_known():
    found = ask(HERE, "Answer: 4").calls
    assert [call.cost_nano_usd for call in found] == [None, 0]  # the fake model has no price, the verifier is free


def adds(question: Question, message: Any) -> bool:
    return bool(message["tool_calls"][0]["function"]["name"] == "add")


def test_a_message_is_verified_whole():
    said = reply("", tool_calls=[("add", {"n": 1})])
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    fake = FakeProvider(lambda _: said)
    with Orchestrator.from_config(config(f"{__name__}:adds"), providers={"fake": fake}) as cascade:
        answer = cascade.chat([{"role": "user", "content": "Add."}], tools=tools)
    assert answer.message == said["choices"][0]["message"]
    assert answer.to_openai()["usage"]["prompt_tokens"] == 20
    assert len(fake.requests) == 1


def test_a_model_verifies_with_yes_or_no():
    def script(request: Request) -> Any:
        if request.purpose == "judge":
            return reply("Yes" if '"answer": "4"' in request.messages[-1].content else "No", p_yes=None)
        return said if request.model == "small" else "Answer: 4, surely"

    policy = {"kind": "threshold", "signal": "p_yes", "threshold": -0.5}
    for said, served in (("Answer: 4", "4"), ("Answer: 5", "4, surely")):
        answer = ask("guide", said, script=script, policy=policy)
        assert answer.text == served


def test_a_verifier_that_cannot_tell_is_unknown_and_the_next_model_answers():
    answer = ask(f"{__name__}:fails", "Answer: 4")
    assert answer.steps[1].signals["gate"] is None
    assert answer.text == "4, surely"


def test_a_step_without_an_answer_fails_and_nobody_is_asked():
    before = len(ASKED)
    answer = ask(f"{__name__}:counted", ":")
    assert answer.steps[1].signals["gate"] == 0.0
    assert [(call.request.role, call.request.purpose) for call in answer.calls] == [
        ("small", "answer"), ("verifier", "skip"), ("large", "answer"),
    ]  # fmt: skip
    assert len(ASKED) == before


@pytest.mark.parametrize(
    ("verifier", "place"),
    [
        ("cascade:nothing", "strategy.judge"),
        ("cascade.types:ALONE", "strategy.judge"),
        ("judge", "models.judge"),
    ],
)
def test_what_is_wrong_with_a_verifier_is_refused_beforehand(verifier, place):
    with pytest.raises(ConfigError, match=place):
        Orchestrator.from_config(config(verifier), providers={"fake": FakeProvider()})


def test_its_verdicts_are_collected_and_replayed_from_the_log(tmp_path):
    log = tmp_path / "log.jsonl"
    asked = [AskedQuestion(f"q{n}", Question(QUESTION + " " * n), ("4",)) for n in range(4)]
    fake = FakeProvider(
        lambda one: f"Answer: {len(one.question.text) % 2 + 4}" if one.model == "small" else "Answer: 4"
    )
    counted = f"{__name__}:counted"
    collect(load(config(counted)), asked, log, providers={"fake": fake})
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert {(row["step"], row["source"], row["candidate"]) for row in rows if row["walk"] is None} == {
        (1, "small", 0), (2, "verifier", 0), (3, "large", 0),
    }  # fmt: skip
    gates = [row["signals"]["gate"] for row in rows if row["source"] == "verifier"]
    assert sorted(gates) == [0.0, 0.0, 0.0, 1.0]  # of two questions with the same answer each has its own verdict
    before = len(ASKED)
    again = config(counted, provider=f"replay:{log}")
    with Orchestrator.from_config(again) as cascade:
        answers = [cascade.ask(one.question) for one in asked]
    assert [answer.steps[1].signals["gate"] for answer in answers] == gates
    assert len(ASKED) == before


ASKED: list[str] = []


def counted(question: Question, message: Any) -> bool:
    ASKED.append(question.text)
    return bool(message["content"] == "4" and question.text == QUESTION)


def test_a_policy_may_leave_out_a_model_or_a_check_but_no_model_that_is_checked():
    models = {"base": "small", "middle": "medium", "guide": "large"}
    verifier = HERE
    strategy = build_strategy(
        load({**config(verifier), "models": models, "strategy": {
            "kind": "ladder", "models": ["base", "middle", "guide"], "judge": verifier}})
    )  # fmt: skip
    assert (strategy.horizon, strategy.only(Selection(reference=True)).models) == (5, ("large",))
    part = strategy.only(Selection(steps=(3, 4, 5)))
    assert (part.horizon, part.models) == (3, ("medium", f"verifier {HERE}", "large"))
    assert strategy.only(Selection(steps=(1, 5))).models == ("small", "large")
    with pytest.raises(UsageError, match="leaves out what the check"):
        strategy.only(Selection(steps=(2, 5)))
    with pytest.raises(UsageError, match="has 5"):
        strategy.only(Selection(steps=(1, 6)))
