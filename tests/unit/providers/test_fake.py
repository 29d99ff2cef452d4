"""The scripted provider says what the script says."""

from __future__ import annotations

import math

import pytest

from cascade.errors import RateLimitedError
from cascade.providers.assembling import Assembler
from cascade.providers.base import Streams
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.reading import read_completion
from cascade.types import Question, Token, Usage
from unit.made import request


def test_a_reply_is_a_payload_that_passes_every_check() -> None:
    made = read_completion(reply("the Danube", input_tokens=7, model="small"), request(top_logprobs=1), 0.0)
    assert (made.text, made.finish_reason, made.usage, made.notes) == ("the Danube", "stop", Usage(7, 2), ())
    assert made.tokens == (Token("the", -0.1), Token("Danube", -0.1))


@pytest.mark.parametrize(("p_yes", "said"), [(0.75, "Yes"), (0.75, "Yes, so it is"), (0.25, "No, Inn")])
def test_p_yes_stands_in_the_first_token(p_yes: float, said: str) -> None:
    made = read_completion(reply(said, p_yes=p_yes), request(top_logprobs=20), 0.0)
    assert made.tokens is not None
    top = dict(made.tokens[0].top)
    assert math.exp(top["Yes"]) == pytest.approx(p_yes)
    assert math.exp(top["No"]) == pytest.approx(1 - p_yes)
    assert made.tokens[0].text == said[: 3 if p_yes > 0.5 else 2]


def test_a_sure_yes_has_an_impossible_no() -> None:
    made = read_completion(reply("Yes", p_yes=1.0), request(top_logprobs=20), 0.0)
    assert made.tokens == (Token("Yes", 0.0, (("Yes", 0.0), ("No", -math.inf))),)


def test_counts_logprobs_and_finish_can_be_given() -> None:
    given = reply("a b", logprobs=[-1.0, -2.0], output_tokens=99, finish_reason="length")
    made = read_completion(given, request(top_logprobs=1), 0.0)
    assert made.usage.output_tokens == 99
    assert made.truncated
    assert [token.logprob for token in made.tokens or ()] == [-1.0, -2.0]


def text(payload: object) -> str:
    return read_completion(payload, request(), 0.0).text  # type: ignore[arg-type]


async def test_a_list_is_told_in_order_and_its_last_reply_repeats() -> None:
    fake = FakeProvider({"small": ["a", reply("b")], "large": ["c"]})
    said = [text(await fake.complete(request(), 1.0)) for _ in range(4)]
    assert said == ["a", "b", "b", "b"]
    assert text(await fake.complete(request(model="large"), 1.0)) == "c"


async def test_a_script_may_go_by_the_role() -> None:
    assert text(await FakeProvider({"base": ["a"]}).complete(request(), 1.0)) == "a"


async def test_a_callable_is_asked() -> None:
    fake = FakeProvider(lambda asked: f"{asked.model} {asked.step}")
    assert text(await fake.complete(request(step=3), 1.0)) == "small 3"


@pytest.mark.parametrize("script", [None, {}, {"small": []}])
async def test_without_a_script_it_echoes(script: object) -> None:
    fake = FakeProvider(script)  # type: ignore[arg-type]
    assert text(await fake.complete(request(question=Question("Why?")), 1.0)).endswith("Answer: you asked: Why?")
    assert text(await fake.complete(request(purpose="judge"), 1.0)) == "Yes"


async def test_an_exception_is_raised() -> None:
    fake = FakeProvider({"small": [ZeroDivisionError()]})
    with pytest.raises(ZeroDivisionError):
        await fake.complete(request(), 1.0)


async def test_a_stream_is_the_same_completion() -> None:
    payload = reply("Answer: the  Danube", p_yes=None, finish_reason="length")
    fake = FakeProvider({"small": [payload]})
    assert isinstance(fake, Streams)
    whole = read_completion(payload, request(top_logprobs=1), 0.0)
    made = Assembler(request())
    async for chunk in fake.stream(request(), 1.0):
        made.add(chunk)
    assert read_completion(made.payload(), request(top_logprobs=1), 0.0) == whole


async def test_it_remembers_what_it_was_asked_up_to_a_limit() -> None:
    fake = FakeProvider(keep=2)
    for step in (1, 2, 3):
        await fake.complete(request(step=step), 1.0)
    assert [asked.step for asked in fake.requests] == [1, 2]


async def test_it_notes_that_it_was_closed() -> None:
    fake = FakeProvider()
    assert not fake.closed
    await fake.close()
    assert fake.closed


async def test_an_error_is_raised_as_a_fresh_copy_each_time() -> None:
    scripted = RateLimitedError("slow down", model="small", retry_after_s=2.0)
    fake = FakeProvider({"small": [scripted]})
    raised = []
    for _ in range(2):
        with pytest.raises(RateLimitedError) as caught:
            await fake.complete(request(model="small"), 1.0)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert scripted not in raised
    assert scripted.__traceback__ is None
    assert [(str(one), one.retry_after_s) for one in raised] == [("slow down", 2.0)] * 2
