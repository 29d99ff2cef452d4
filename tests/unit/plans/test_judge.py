"""A decision model as the judge of a ladder: what it is asked, what decides, and what a certificate holds for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.collection import collect
from cascade.config import load
from cascade.conformal.certificate import differences, moving
from cascade.errors import ConfigError
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import rows
from cascade.providers.fake import FakeProvider, reply
from cascade.server.catalog import Catalog
from cascade.serving.made_for import made_for
from cascade.types import Answer, Question, Request

PRICE = {"input": 1.0, "output": 4.0}
MODELS: dict[str, Any] = {
    "base": {"model": "small", "price": PRICE},
    "middle": {"model": "middle", "price": PRICE},
    "judge": {"model": "decider-latest", "kind": "decision", "price": {"input": 0.1, "output": 0.0}},
    "guide": {"model": "large", "price": PRICE},
}
LADDER = {"kind": "ladder", "models": ["base", "guide"], "judge": "judge"}
JUDGED = {"kind": "threshold", "signal": "p_yes", "threshold": -0.6}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def config(**changes: Any) -> dict[str, Any]:
    return {"models": MODELS, "strategy": LADDER, "policy": JUDGED, "provider": "fake", "traces": "off", **changes}


def changed(**judge: Any) -> dict[str, Any]:
    """Return the configuration with other settings of its judge."""
    return config(models={**MODELS, "judge": {**MODELS["judge"], **judge}})


def judging(p_yes: float, answer: Any = "Answer: Danube") -> FakeProvider:
    """Return a provider whose judge gives every answer this P(yes)."""

    def script(request: Request) -> Any:
        return reply("Yes" if p_yes >= 0.5 else "No", p_yes=p_yes) if request.purpose == "judge" else answer

    return FakeProvider(script)


def asked(fake: FakeProvider, settings: dict[str, Any], chat: dict[str, Any] | None = None) -> Answer:
    with Orchestrator.from_config(settings, providers={"fake": fake}) as cascade:
        if chat is None:
            return cascade.ask("Which river?")
        return cascade.chat([{"role": "user", "content": "Which river?"}], **chat)


@pytest.mark.parametrize(("p_yes", "models"), [(0.61, ["small"]), (0.59, ["small", "large"])])
def test_p_yes_decides_and_the_judge_costs_its_input_alone(p_yes, models):
    answer = asked(judging(p_yes), config())
    assert [call.request.model for call in answer.calls if call.request.purpose == "answer"] == models
    (verdict,) = [call for call in answer.calls if call.request.purpose == "judge"]
    assert answer.steps[1].signals["p_yes"] == pytest.approx(p_yes)
    assert (answer.steps[1].parents, verdict.request.max_tokens, verdict.cost_nano_usd) == ((1,), 1, 20 * 100)


def test_each_answer_but_the_last_is_judged():
    fake = judging(0.1)
    asked(fake, config(strategy={**LADDER, "models": ["base", "middle", "guide"]}))
    made = [request.model for request in fake.requests]
    assert made == ["small", "decider-latest", "middle", "decider-latest", "large"]


@pytest.mark.parametrize(
    ("chat", "said", "shown"),
    [
        ({"tools": TOOLS}, reply("", tool_calls=[("find", {"name": "Vienna"})]), ["tools", "conversation", "reply"]),
        ({"response_format": SCHEMA}, '{"river": "Danube"}', ["format", "conversation", "reply"]),
    ],
)
def test_a_message_is_judged_as_json_with_the_reply_last(chat, said, shown):
    fake = judging(0.9, said)
    answer = asked(fake, config(), chat)
    assert len(answer.steps) == 2
    statement, data = fake.requests[1].messages
    assert statement.role == "system"
    fields = json.loads(data.content)
    assert [*fields] == shown
    reply_shown = fields["reply"]
    if "tools" in chat:
        assert reply_shown["tool_calls"][0]["function"]["name"] == "find"
    else:
        assert json.loads(reply_shown["content"]) == {"river": "Danube"}
    drafted, judged = rows(answer)  # the judge's row offers the answer again, so that a policy can stop at it
    assert (judged["candidate"], judged["answer"]) == (0, drafted["answer"])


def test_without_a_policy_it_logs_and_observes_but_does_not_serve(tmp_path):
    bare = {name: value for name, value in config().items() if name != "policy"}
    with pytest.raises(ConfigError) as caught:
        Orchestrator.from_config(bare, providers={"fake": judging(0.9)})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["policy"]
    questions = [AskedQuestion(f"q{n}", Question(f"Which river, {n}?"), ("Danube",)) for n in range(3)]
    done = collect(load(bare), questions, tmp_path / "log.jsonl", providers={"fake": judging(0.9)})
    assert done.rows == 9
    observing = {**bare, "modes": {"store": f"sqlite:///{tmp_path}/modes.db"}, "traces": "on"}
    for strategy in (observing["strategy"], {"kind": "ladder", "models": observing["strategy"]["models"]}, {}):
        settings = {**observing, "strategy": strategy}
        with Orchestrator.from_config(settings, providers={"fake": judging(0.9)}) as orchestrator:
            answer = orchestrator.ask("Which river?")
        assert [call.request.model for call in answer.calls] == ["large"]


def test_a_client_cannot_name_a_judge_as_its_model():
    unused = config(strategy={"kind": "ladder", "models": ["base"]}, policy={"kind": "fixed"})
    for settings in (config(), unused):
        assert not {"judge", "decider-latest"} & Catalog.of(load(settings), ()).routes.keys()


def test_a_certificate_names_dialect_question_and_data_and_warns_of_a_moving_name():
    made = json.loads(json.dumps(made_for(load(config()))))
    asks = made["models"]["decider-latest"]["decision"]
    assert (asks["dialect"], asks["questions"][0]["type"], len(asks["rendering_sha256"])) == ("openai", "predicate", 64)
    assert len(moving(made)) == 1
    assert moving(made_for(load(changed(model="decider-2026-09-22")))) == ()


def test_another_judge_dialect_or_statement_is_another_cascade(tmp_path):
    (tmp_path / "judge_decision.txt").write_text("[system]\nThe answer is right.\n[user]\n{data}")
    then = json.loads(json.dumps(made_for(load(config()))))
    assert differences(then, made_for(load(config()))) == []
    for now in (
        changed(model="another-decider"),
        changed(dialect="systemone"),
        changed(dialect="logprobs"),
        config(strategy={**LADDER, "prompts": str(tmp_path)}),
        config(strategy={"kind": "ladder", "models": ["base", "guide"]}, policy={"kind": "fixed"}),
    ):
        assert differences(then, made_for(load(now)))
