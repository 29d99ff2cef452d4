"""Streams show the answers of the models, and everything that they write where that is asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.chat import ChatRequest
from cascade.errors import StreamInterruptedError
from cascade.orchestrator import Orchestrator
from cascade.plans.reply import AnswerText, split_reply
from cascade.providers.fake import FakeProvider, reply
from cascade.runtime import AskOptions
from cascade.streaming import Flow
from cascade.types import Answer, Candidate, Decision, Question, Request, Step, TextDelta
from unit.builders import TWO_MODELS, TWO_RUNGS

FORM = "Reasoning: It flows there.\nAnswer: The Danube"


def wired(base: Any, guide: Any, **settings: Any) -> Orchestrator:
    config = TWO_MODELS | {"strategy": {"kind": "base_guide", "rounds": 1}} | settings
    return Orchestrator.from_config(config, providers={"fake": FakeProvider({"small": [base], "large": [guide]})})


def shown(events: Any) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_stream_shows_the_answer_alone_unless_asked():
    """0.5.0: "Reasoning: It flows there. Answer: The Danube", and the guide's "Yes" behind it."""
    orchestrator = wired(FORM, reply("Yes", p_yes=0.99))
    assert shown([event async for event in orchestrator.astream("Which river?")]) == "The Danube"
    blocking = await asyncio.to_thread(lambda: [*orchestrator.stream("Which river?", raw=True)])
    assert shown(blocking) == f"{FORM}Yes"
    raw = shown([event async for event in orchestrator.astream("Which river?", raw=True)])
    assert raw == f"{FORM}Yes"


@pytest.mark.parametrize(
    ("raw", "finish", "text"),
    [
        ("The Danube, of course.", "stop", "The Danube, of course."),
        ("Reasoning: It flows there.\nThe Danube", "stop", "The Danube"),
        ("Reasoning: It flows and flows", "length", ""),
        ("**Answer:**\n- Danube\n- Rhine", "stop", "- Danube\n- Rhine"),
        ("A", "stop", "A"),
        ("", "length", ""),
    ],
)
def test_a_reply_in_another_form_is_shown_as_it_is_read(raw, finish, text):
    orchestrator = wired(reply(raw, finish_reason=finish), reply("Yes", p_yes=0.99))
    events = list(orchestrator.stream("Which river?"))
    assert "".join(e.text for e in events if isinstance(e, TextDelta) and e.role == "base").strip() == text


PIECES = st.sampled_from(["Reasoning:", "Answer:", "\n", " ", "so it is", "Danube", "**", "- ", "an", "reason", "1"])


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_however_a_reply_is_cut_the_same_is_shown(text, sizes):
    def run(cuts: list[int]) -> str:
        passing, output, place = AnswerText(), "", 0
        while place < len(text):
            size = cuts[place % len(cuts)]
            output += passing.add(text[place : place + size])
            place += size
        return output + passing.rest()

    assert run([1]) == run(sizes)


@given(st.text(alphabet="abc xyz.", max_size=20), st.text(alphabet="defg hij\n-", max_size=30))
def test_in_the_form_that_is_asked_for_the_answer_is_shown_whole(reasoning, answer):
    text = f"Reasoning: {reasoning}\nAnswer: {answer}"
    passing = AnswerText()
    output = "".join(passing.add(char) for char in text) + passing.rest()
    assert output.strip() == answer.strip()
    assert "\n" not in answer.strip() or split_reply(text)[1].strip() == output.strip()


ASK = [{"role": "user", "content": "Which river flows through Vienna?"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
SURE = reply("The Danube.", logprobs=[-0.01, -0.01])
UNSURE = reply("The Rhine?", logprobs=[-2.0, -2.0])
CONFIG = TWO_RUNGS | {"policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5}}


async def events(script: Any, *, stream: bool = True, policy: Any = None, model: Any = None, **fields: Any) -> Any:
    """Return the texts that were shown, and the answer."""
    config = CONFIG if policy is None else {**CONFIG, "policy": policy}
    async with Orchestrator.from_config(config, providers={"fake": FakeProvider(script)}) as served:
        chat = ChatRequest(ASK, fields)
        pending = served.runtime.start(chat, AskOptions(model=model))
        received = [event async for event in pending.served()] if stream else [await pending.answer()]
    *texts, answer = received
    assert isinstance(answer, Answer)
    assert all(isinstance(delta, TextDelta) for delta in texts)
    return [delta.text for delta in texts], answer


CALLS = reply("", tool_calls=[("look", {"at": "maps"})], logprobs=[-2.0])


@pytest.mark.parametrize(
    ("base", "fields", "texts"),
    [
        (UNSURE, {}, ["The", " Danube."]),  # the guide as it writes, once the base is refused
        (SURE, {}, []),  # a kept base when it is decided
        (UNSURE, {"stream": False}, []),
        # an earlier answer was kept: which is best is not known
        (UNSURE, {"policy": {"kind": "fixed", "depth": 2}}, []),
        # a reply that is checked as a whole
        (UNSURE, {"response_format": {"type": "json_object"}}, []),
        (UNSURE, {"tools": [TOOL], "tool_choice": "required"}, []),
        (UNSURE, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}}, []),
        (UNSURE, {"logprobs": True}, []),
        (CALLS, {"tools": [TOOL]}, []),
    ],
)
async def test_what_is_shown_before_the_answer(base, fields, texts):
    shown, answer = await events({"small": [base], "large": [CALLS if base is CALLS else SURE]}, **fields)
    assert shown == texts
    assert (answer.text == "The Danube.") is (base is not CALLS and "policy" not in fields) or len(answer.answers) == 2
    assert [call["function"]["name"] for call in answer.tool_calls or ()] == ["look"] * (base is CALLS)


async def test_a_model_asked_alone_is_shown_at_once_and_asked_for_nothing_that_its_client_did_not_ask():
    fake = FakeProvider({"large": [SURE]})
    async with Orchestrator.from_config(CONFIG, providers={"fake": fake}) as served:
        large = AskOptions(model="large")
        received = [event async for event in served.runtime.start(ChatRequest(ASK), large).served()]
        [event async for event in served.runtime.start(ChatRequest(ASK, {"logprobs": True}), large).served()]
    assert [delta.text for delta in received[:-1]] == ["The", " Danube."]
    assert [request.model for request in fake.requests] == ["large", "large"]
    assert [request.top_logprobs for request in fake.requests] == [None, 1]


async def test_text_that_was_shown_is_served_though_the_reply_proves_faulty():
    """A reply that is cut at its limit loses against an earlier one, but not once a client has read it."""
    cut = reply("The Danube", finish_reason="length", logprobs=[-0.1, -0.1])
    texts, answer = await events({"small": [UNSURE], "large": [cut]})
    assert "".join(texts) == answer.text == "The Danube"
    assert any("was streamed before" in warning for warning in answer.warnings)
    _, plain = await events({"small": [UNSURE], "large": [cut]}, stream=False)
    assert plain.text == "The Rhine?"


async def test_a_stream_that_breaks_after_its_first_text_fails_and_serves_no_other_model():
    class Breaks(FakeProvider):
        async def stream(self, request: Request, timeout_s: float) -> Any:
            async for chunk in super().stream(request, timeout_s):
                yield chunk
                raise StreamInterruptedError("it broke", model=request.model)

    script = {"small": [UNSURE], "large": [SURE]}
    async with Orchestrator.from_config(CONFIG, providers={"fake": Breaks(script)}) as served:
        shown = []
        with pytest.raises(StreamInterruptedError) as caught:
            async for event in served.runtime.start(ChatRequest(ASK)).served():
                shown.append(event)
    assert [event.text for event in shown] == ["The"]
    assert caught.value.shown
    assert [call.request.model for call in caught.value.calls] == ["small", "large"]


def test_nothing_is_shown_where_every_answer_may_be_replaced():
    assert not Flow(0).shows(Request("large", (), "large", "answer", 2, Question("?"), 10, chat=ChatRequest(ASK)))


@pytest.mark.parametrize(
    ("keep", "proceed", "shown"), [((), True, True), ((0,), True, False), ((0,), False, False), ((), False, False)]
)
def test_what_follows_a_decision_to_stop_is_not_shown(keep, proceed, shown):
    """An audit goes on after the decision; its replies are served to nobody."""
    flow = Flow(2)
    decision = Decision(keep, proceed, (0.5,), 0.5, 0.5)
    flow.take(Step(1, (Candidate("a", "small", "small"),), {}, decision=decision))
    request = Request("large", (), "large", "answer", 2, Question("?"), 10, chat=ChatRequest(ASK))
    assert flow.shows(request) is shown


async def test_a_model_that_is_not_configured_cannot_be_asked_alone():
    with pytest.raises(Exception, match="No model is called"):
        await events(None, model="another")


async def test_an_episode_is_on_record_under_the_id_that_the_server_gave_it(tmp_path):
    from cascade.episodes.opening import rows_of

    url = f"sqlite:///{tmp_path / 'traces.db'}"
    fake = FakeProvider({"small": [SURE], "large": [SURE]})
    async with Orchestrator.from_config({**CONFIG, "traces": url}, providers={"fake": fake}) as served:
        for model, name in ((None, "first"), ("large", "second")):
            await served.runtime.start(ChatRequest(ASK), AskOptions(model=model, trace_id=name)).answer()
    rows = list(rows_of(url))
    assert [(row["episode_id"], row["walk"]) for row in rows] == [("first", None), ("second", "large only")]
