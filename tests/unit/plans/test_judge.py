"""Who judges a ladder: a decision model, a model that says yes or no, or a function; its verdict decides, is logged, and certified for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cascade import Orchestrator
from cascade.collection import collect
from cascade.config import load
from cascade.conformal.certificate import differences, moving
from cascade.errors import ConfigError, UsageError
from cascade.factory import build_strategy
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import rows
from cascade.policies.base import Selection
from cascade.providers.fake import FakeProvider, reply
from cascade.server.catalog import Catalog
from cascade.serving.conditions import made_for
from cascade.types import Answer, Question, Request
from unit.builders import TWO_MODELS

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


def answered(fake: FakeProvider, settings: dict[str, Any], chat: dict[str, Any] | None = None) -> Answer:
    with Orchestrator.from_config(settings, providers={"fake": fake}) as cascade:
        if chat is None:
            return cascade.ask("Which river?")
        return cascade.chat([{"role": "user", "content": "Which river?"}], **chat)


@pytest.mark.parametrize(("p_yes", "models"), [(0.61, ["small"]), (0.59, ["small", "large"])])
def test_p_yes_decides_and_the_judge_costs_its_input_alone(p_yes, models):
    answer = answered(judging(p_yes), config())
    assert [call.request.model for call in answer.calls if call.request.purpose == "answer"] == models
    (verdict,) = [call for call in answer.calls if call.request.purpose == "judge"]
    assert answer.steps[1].signals["p_yes"] == pytest.approx(p_yes)
    assert (answer.steps[1].parents, verdict.request.max_tokens, verdict.cost_nano_usd) == ((1,), 1, 20 * 100)


def test_each_answer_but_the_last_is_judged():
    fake = judging(0.1)
    answered(fake, config(strategy={**LADDER, "models": ["base", "middle", "guide"]}))
    models = [request.model for request in fake.requests]
    assert models == ["small", "decider-latest", "middle", "decider-latest", "large"]


@pytest.mark.parametrize(
    ("chat", "response", "shown"),
    [
        ({"tools": TOOLS}, reply("", tool_calls=[("find", {"name": "Vienna"})]), ["tools", "conversation", "reply"]),
        ({"response_format": SCHEMA}, '{"river": "Danube"}', ["format", "conversation", "reply"]),
    ],
)
def test_a_message_is_judged_as_json_with_the_reply_last(chat, response, shown):
    fake = judging(0.9, response)
    answer = answered(fake, config(), chat)
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
    check = {"name": "check", "model": "judge", "purpose": "judge", "parents": ["base"]}
    nodes = [{"name": "base", "model": "base"}, check, {"name": "guide", "model": "guide", "purpose": "outright"}]
    for judged in (LADDER, {"kind": "nodes", "nodes": nodes}):
        with pytest.raises(ConfigError, match=r"1 problem:\s+- policy: "):
            Orchestrator.from_config({**bare, "strategy": judged}, providers={"fake": judging(0.9)})
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
    record = json.loads(json.dumps(made_for(load(config()))))
    asks = record["models"]["decider-latest"]["decision"]
    assert (asks["dialect"], asks["questions"][0]["type"], len(asks["rendering_sha256"])) == ("openai", "predicate", 64)
    assert len(moving(record)) == 1
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


QUESTION = "What is 2 + 2?"


def is_four(question: Question, message: Any) -> Any:
    """Tell whether an answer is 4; of another question nothing."""
    return "4" in message["content"] if question.text == QUESTION else None


def fails(question: Question, message: Any) -> bool:
    raise ZeroDivisionError("no verdict")


HERE = f"{__name__}:is_four"


def verified(verifier: Any, **more: Any) -> dict[str, Any]:
    return TWO_MODELS | {"strategy": {"kind": "ladder", "models": ["base", "guide"], "judge": verifier}, **more}


def ask_verified(verifier: Any, response: Any, question: Any = QUESTION, script: Any = None, **more: Any) -> Answer:
    fake = FakeProvider(script or (lambda request: response if request.model == "small" else "Answer: 4, surely"))
    with Orchestrator.from_config(verified(verifier, **more), providers={"fake": fake}) as cascade:
        return cascade.chat(question) if isinstance(question, list) else cascade.ask(question)


def test_an_answer_that_passes_is_served_and_one_that_fails_is_not():
    right = ask_verified(HERE, "Answer: 4")
    assert (right.text, right.stopped, len(right.steps)) == ("4", "policy", 2)
    assert right.steps[1].signals["gate"] == 1.0
    assert right.steps[1].parents == (1,)
    assert right.served[0].model == "small"  # type: ignore[index]
    wrong = ask_verified(HERE, "Answer: 5")
    assert wrong.text == "4, surely"
    assert wrong.steps[1].signals["gate"] == 0.0


def test_a_verdict_costs_nothing_and_the_cost_stays_known():
    calls = ask_verified(HERE, "Answer: 4").calls
    assert [call.cost_nano_usd for call in calls] == [None, 0]  # the fake model has no price, the verifier is free


def adds(question: Question, message: Any) -> bool:
    return bool(message["tool_calls"][0]["function"]["name"] == "add")


def test_a_message_is_verified_whole():
    response = reply("", tool_calls=[("add", {"n": 1})])
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    fake = FakeProvider(lambda _: response)
    with Orchestrator.from_config(verified(f"{__name__}:adds"), providers={"fake": fake}) as cascade:
        answer = cascade.chat([{"role": "user", "content": "Add."}], tools=tools)
    assert answer.message == response["choices"][0]["message"]
    assert answer.to_openai()["usage"]["prompt_tokens"] == 20
    assert len(fake.requests) == 1


def test_a_model_verifies_with_yes_or_no():
    def script(request: Request) -> Any:
        if request.purpose == "judge":
            return reply("Yes" if '"answer": "4"' in request.messages[-1].content else "No", p_yes=None)
        return response if request.model == "small" else "Answer: 4, surely"

    for response, served in (("Answer: 4", "4"), ("Answer: 5", "4, surely")):
        assert ask_verified("guide", response, script=script, policy={**JUDGED, "threshold": -0.5}).text == served


def test_a_verifier_that_cannot_tell_is_unknown_and_the_next_model_answers():
    answer = ask_verified(f"{__name__}:fails", "Answer: 4")
    assert answer.steps[1].signals["gate"] is None
    assert answer.text == "4, surely"


def test_a_step_without_an_answer_fails_and_nobody_is_asked():
    before = len(CHECKED)
    answer = ask_verified(f"{__name__}:counted", ":")
    assert answer.steps[1].signals["gate"] == 0.0
    assert [(call.request.role, call.request.purpose) for call in answer.calls] == [
        ("small", "answer"), ("verifier", "skip"), ("large", "answer"),
    ]  # fmt: skip
    assert len(CHECKED) == before


@pytest.mark.parametrize(
    ("verifier", "place"),
    [("cascade:nothing", "strategy.judge"), ("cascade.types:SKIP", "strategy.judge"), ("judge", "models.judge")],
)
def test_what_is_wrong_with_a_verifier_is_refused_beforehand(verifier, place):
    with pytest.raises(ConfigError, match=place):
        Orchestrator.from_config(verified(verifier), providers={"fake": FakeProvider()})


def test_its_verdicts_are_collected_and_replayed_from_the_log(tmp_path):
    log = tmp_path / "log.jsonl"
    questions = [AskedQuestion(f"q{n}", Question(QUESTION + " " * n), ("4",)) for n in range(4)]
    fake = FakeProvider(
        lambda request: f"Answer: {len(request.question.text) % 2 + 4}" if request.model == "small" else "Answer: 4"
    )
    counted = f"{__name__}:counted"
    collect(load(verified(counted)), questions, log, providers={"fake": fake})
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert {(row["step"], row["source"], row["candidate"]) for row in rows if row["walk"] is None} == {
        (1, "small", 0), (2, "verifier", 0), (3, "large", 0),
    }  # fmt: skip
    gates = [row["signals"]["gate"] for row in rows if row["source"] == "verifier"]
    assert sorted(gates) == [0.0, 0.0, 0.0, 1.0]  # of two questions with the same answer each has its own verdict
    before = len(CHECKED)
    again = verified(counted, provider=f"replay:{log}")
    with Orchestrator.from_config(again) as cascade:
        answers = [cascade.ask(question.question) for question in questions]
    assert [answer.steps[1].signals["gate"] for answer in answers] == gates
    assert len(CHECKED) == before


CHECKED: list[str] = []


def counted(question: Question, message: Any) -> bool:
    CHECKED.append(question.text)
    return bool(message["content"] == "4" and question.text == QUESTION)


def test_a_policy_may_leave_out_a_model_or_a_check_but_no_model_that_is_checked():
    models = {"base": "small", "middle": "medium", "guide": "large"}
    verifier = HERE
    strategy = build_strategy(
        load({**verified(verifier), "models": models, "strategy": {
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
