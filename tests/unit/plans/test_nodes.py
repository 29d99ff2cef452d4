"""A plan as a list of nodes: what each is asked, what it brings, and what the log of all of them says."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.config import load
from cascade.engine import run
from cascade.episodes.rows import reads_of
from cascade.errors import ConfigError, UsageError
from cascade.factory import build_strategy
from cascade.logs.schema import rows
from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan, PlanNode
from cascade.plans.presets import ladder as ladder_of
from cascade.policies.base import Selection
from cascade.table import Log
from cascade.types import SKIP, Answer, Completion, Question, Request
from unit.made import base_guide, completion, drive, walked, yes_no
from unit.scripted import FixedPolicy, ThresholdPolicy

SMALL, LARGE = ModelUse("small", 64, 0.7, 5), ModelUse("large", 64)
MODELS = {
    "small": {"model": "small", "price": {"input": 0.1, "output": 0.4}, "max_tokens": 64, "temperature": 0.7},
    "judge": {"model": "judge", "price": {"input": 0.5, "output": 2}, "max_tokens": 64},
    "large": {"model": "large", "price": {"input": 1, "output": 4}, "max_tokens": 64},
}
JUDGED = (
    PlanNode("base", SMALL),
    PlanNode("check", LARGE, "judge", (1,)),
    PlanNode("again", SMALL, "answer", (1, 2)),
    PlanNode("guide", LARGE, "outright"),
)


def test_a_judge_offers_the_answer_again_as_likely_right_as_it_says():
    asked, steps = walked(
        Plan(JUDGED), "Reasoning: it is.\nAnswer: Rhine", yes_no(0.2), "Answer: Danube", "Answer: Danube"
    )
    assert [(one.role, one.purpose, one.model, one.step) for one in asked] == [
        ("base", "answer", "small", 1),
        ("check", "judge", "large", 2),
        ("again", "answer", "small", 3),
        ("guide", "answer", "large", 4),
    ]
    assert "Rhine" in asked[1].messages[-1].content
    assert "it is." in asked[1].messages[-1].content
    assert [message.content for message in asked[2].messages[-2:-1]] == ["Reasoning: it is.\nAnswer: Rhine"]
    assert asked[3].messages == asked[0].messages
    (judged,) = steps[1].candidates
    assert (judged.text, judged.source, judged.model) == ("Rhine", "check", "small")
    assert judged.confidence == pytest.approx(0.2)
    assert steps[1].signals["p_yes"] == pytest.approx(0.2)
    assert [step.parents for step in steps] == [(), (1,), (1, 2), ()]
    assert [step.signals.get("agrees_with_earlier") for step in steps] == [None, None, 0.0, 0.5]


def test_what_cannot_be_read_as_an_answer_is_judged_as_it_is_and_offered_by_nobody():
    cut = completion("Reasoning: it is long", finish_reason="length")
    asked, steps = walked(Plan(JUDGED), cut, yes_no(0.1), "Answer: Danube", "Answer: Danube")
    assert "Reasoning: it is long" in asked[1].messages[-1].content
    assert [len(step.candidates) for step in steps] == [0, 0, 1, 1]


def test_some_offers_can_be_taken_where_none_reads_one_that_is_left_out():
    whole = Plan(JUDGED)
    assert whole.only(Selection(reference=True)) == ladder_of((LARGE,))
    assert whole.only(Selection(steps=(1, 2, 4))) == Plan((JUDGED[0], JUDGED[1], JUDGED[3]))
    with pytest.raises(UsageError, match="leaves out what check must read"):
        whole.only(Selection(steps=(2, 4)))
    with pytest.raises(UsageError, match="steps 1, 5, but this strategy has 4"):
        whole.only(Selection(steps=(1, 5)))


def offered(*offers: dict[str, Any]) -> dict[str, Any]:
    return {"models": MODELS, "provider": "fake", "strategy": {"kind": "nodes", "nodes": list(offers)}}


CALL_LEVEL = (
    {"name": "base", "model": "small"},
    {"name": "check", "model": "judge", "purpose": "judge", "parents": ["base"]},
    {"name": "again", "model": "small", "parents": ["base", "check"]},
    {"name": "guide", "model": "large", "purpose": "outright"},
)


@pytest.mark.parametrize(
    ("offers", "said"),
    [
        ([{"name": "a", "model": "small"}] * 2, "a is named more than once"),
        ([{"name": "a", "model": "small", "purpose": "judge"}], "a: purpose judge needs one parent"),
        ([{"name": "a", "model": "small", "parents": ["b"]}], "a: its parent 'b' is no earlier node"),
        (
            [CALL_LEVEL[0], {"name": "c", "model": "judge", "purpose": "outright", "parents": ["base"]}],
            "cannot read other nodes",
        ),
        (list(CALL_LEVEL[:2]), "check: the last node is the reference"),
        ([{"name": "a", "model": "tiny"}], "tiny"),
        ([{"name": "a", "model": "small", "purpose": "guess"}], "purpose"),
    ],
)
def test_a_list_that_cannot_be_bought_is_refused_in_words(offers, said):
    with pytest.raises(ConfigError, match=said):
        load(offered(*offers))


def test_all_that_is_wrong_with_a_list_is_said_at_once_and_nothing_else():
    """Until 0.6 the problems stood in one line, and base and guide were missed, which no list of offers needs."""
    small, large = {"name": "a", "model": "small"}, {"name": "g", "model": "large", "purpose": "outright"}
    judge = {"model": "judge", "purpose": "judge"}
    offers = (
        small,
        small,
        {"name": "up", **judge, "parents": ["later"]},
        {"name": "later", **judge, "parents": ["aa"]},
        {"name": "own", **judge, "parents": ["own"]},
        {"name": "two", **judge, "parents": ["a", "g"]},
        {"name": "both", **judge, "parents": ["a", "own"]},
        {"name": "line\nbreak", "model": "small"},
        {**large, "parents": ["a"]},
    )
    with pytest.raises(ConfigError) as caught:
        load(offered(*offers))
    assert [said.split(": ")[1] for said in caught.value.problems] == [
        "a is named more than once", "up", "later", "own", "two", "both", "'line\\nbreak'", "g", "g",
    ]  # fmt: skip


def test_a_sample_at_temperature_0_is_refused():
    made = load(offered({"name": "a", "model": "large", "purpose": "sample"}, {"name": "b", "model": "large"}))
    with pytest.raises(ConfigError, match="a: a sample needs a model with a temperature above 0"):
        build_strategy(made)


def test_chat_requests_are_answered_where_no_offer_reads_another():
    asked = Question.of_chat(ChatRequest.from_openai({"messages": [{"role": "user", "content": "Hello"}]}))
    both = (PlanNode("small", SMALL), PlanNode("large", LARGE, "outright"))
    hello = completion("Hello", message={"role": "assistant", "content": "Hello"})
    _, steps = walked(Plan(both), hello, hello, question=asked)
    assert [step.candidates[0].message for step in steps] == [hello.message] * 2
    with pytest.raises(UsageError, match="answers no chat requests"):
        walked(Plan(JUDGED), question=asked)


def said(request: Request) -> Completion:
    """Let the small model be wrong of every other question, and the judge know it."""
    wrong = len(request.question.text) % 2
    if request.purpose == "judge":
        return yes_no(0.2 if wrong else 0.9)
    right = "Answer: Danube" if request.model == "large" or not wrong else "Answer: Inn"
    return completion(right)


def log_of_all(questions: int = 6) -> Log:
    made = load(offered(*CALL_LEVEL))
    strategy, found = build_strategy(made), []
    for number in range(questions):
        question = Question(f"Which river is it{'?' * number}")
        answer: Answer = drive(
            run(question, strategy=strategy, policy=FixedPolicy("both", strategy.horizon), prices=made.prices()), said
        )
        for row in rows(answer, horizon=strategy.horizon):
            right = None if row["answer"] is None else row["answer"] == "Danube"
            found.append(row | {"correct": right, "kept": None})
    (read,) = reads_of(found)
    return read.log


def test_a_log_of_all_offers_has_every_call_with_its_price_and_what_it_reads():
    log = log_of_all()
    assert [node.reads for node in log.nodes] == [(), (0,), (0, 1), ()]
    assert [node.model for node in log.nodes] == ["small", "judge", "small", "large"]
    assert log.complete.all()
    assert (log.cost_nano_usd > 0).all()
    assert log.answers.all()
    assert log.right.mean(axis=0).tolist() == [0.5, 0.5, 0.5, 1.0]


def test_a_policy_stops_after_a_yes_and_pays_the_guide_after_a_no():
    made = load(offered(*CALL_LEVEL[:2], CALL_LEVEL[3]))
    strategy, policy = build_strategy(made), ThresholdPolicy(0.5, when="p_yes")
    for text, steps in (("even", 2), ("odd", 3)):
        answer = drive(run(Question(text), strategy=strategy, policy=policy, prices=made.prices()), said)
        assert (len(answer.steps), answer.text) == (steps, "Danube")
        assert answer.cost is not None


UALA = {"kind": "uala"}
JUDGE, SAMPLE, GUIDE = CALL_LEVEL[1], {"name": "more", "model": "small", "purpose": "sample"}, CALL_LEVEL[3]


@pytest.mark.parametrize(
    ("offers", "policy", "refused"),
    [
        ((CALL_LEVEL[0], GUIDE), UALA | {"accepts_no": False}, True),
        ((CALL_LEVEL[0], GUIDE), UALA, True),
        ((CALL_LEVEL[0], SAMPLE, GUIDE), UALA | {"accepts_no": False}, True),
        ((CALL_LEVEL[0], GUIDE), {"kind": "threshold", "signal": "gate"}, True),
        ((CALL_LEVEL[0], GUIDE), {"kind": "threshold"}, False),
        ((CALL_LEVEL[0], JUDGE, GUIDE), UALA | {"accepts_no": False}, False),
        ((CALL_LEVEL[0], {**JUDGE, "purpose": "verify"}, GUIDE), UALA, False),
    ],
)
def test_a_policy_that_reads_what_no_offer_gives_is_refused(offers, policy, refused):
    """0.6: a policy that reads P(yes) was accepted by a list without a judge, so that it bought every offer for every question."""
    made = offered(*offers) | {"policy": policy}
    if not refused:
        load(made)
        return
    with pytest.raises(ConfigError) as error:
        load(made)
    (problem,) = error.value.problems
    assert problem.startswith(f"policy: {policy['kind']} reads the signal ")
    assert "reply_mean_logprob" in problem


def test_the_signals_of_a_list_are_those_of_its_purposes():
    def given(*offers: dict[str, Any]) -> set[str]:
        return set(load(offered(*offers)).strategy.given)

    plain = given(CALL_LEVEL[0], GUIDE)
    assert given(CALL_LEVEL[0], JUDGE, GUIDE) - plain == {"p_yes", "verdict_mass", "judge_share"}
    assert given(CALL_LEVEL[0], SAMPLE, GUIDE) - plain == {"answer_share"}
    assert "reply_mean_logprob" in plain


CHAT = Question.of_chat(ChatRequest.from_openai({"messages": [{"role": "user", "content": "Hello"}]}))
HELLO = completion("Hello", message={"role": "assistant", "content": "Hello"})


def test_a_judge_of_a_list_reads_the_whole_message_of_a_chat_request():
    asked, steps = walked(Plan((*JUDGED[:2], JUDGED[3])), HELLO, yes_no(0.8), HELLO, question=CHAT)
    assert "Hello" in asked[1].messages[-1].content
    assert asked[1].chat is None
    (judged,) = steps[1].candidates
    assert (judged.message, judged.source) == (HELLO.message, "check")
    assert judged.confidence == pytest.approx(0.8)


def test_a_faulty_message_in_the_only_round_is_answered_by_the_guide():
    asked, (step,) = walked(base_guide(SMALL, LARGE, 1), HELLO._replace(faults=("cut",)), HELLO, question=CHAT)
    assert [request.role for request in asked] == ["base", "guide"]
    assert [candidate.source for candidate in step.candidates] == ["guide"]
    assert step.final


def test_a_model_that_lacks_what_a_request_needs_is_left_out_of_a_list():
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
    question = Question.of_chat(ChatRequest.from_openai({"messages": [picture]}))
    plan = Plan((PlanNode("blind", ModelUse("small", images=False)), PlanNode("last", LARGE, "outright")))
    asked, steps = walked(plan, HELLO, HELLO, question=question)
    assert [request.purpose for request in asked] == [SKIP, "answer"]
    assert [step.signals.get("model_skipped") for step in steps] == [1.0, None]


def test_a_reply_that_cannot_be_read_is_not_handed_on():
    asked, _ = walked(
        Plan((*JUDGED[:1], PlanNode("again", SMALL, "answer", (1,)), JUDGED[3])), ":", *["Answer: Inn"] * 2
    )
    assert asked[1].messages == asked[0].messages
