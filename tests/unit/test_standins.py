"""Who answers in the place of a model that is down or too dear, and what is served when the time is over."""

from __future__ import annotations

from typing import Any

import pytest

from cascade import Orchestrator, errors
from cascade.config import load
from cascade.errors import ConfigError, ProviderTimeoutError, ProviderUnavailableError
from cascade.providers.fake import FakeProvider, reply
from cascade.resilience.portal import Deadline
from cascade.types import Answer, Request

PRICE = {"input": 1.0, "output": 2.0}
SETTINGS: dict[str, Any] = {
    "models": {
        "base": {"model": "small", "price": PRICE, "max_tokens": 100},
        "guide": {"model": "large", "price": {"input": 100.0, "output": 200.0}, "max_tokens": 100},
        "spare": {"model": "other", "price": {"input": 3.0, "output": 4.0}, "max_tokens": 100},
    },
    "provider": "fake",
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5},
    "traces": "off",
}


async def _at_once(_seconds: float) -> None:
    """Wait no time."""


def with_fallbacks(place: str, *names: str) -> dict[str, Any]:
    return {**SETTINGS["models"], place: {**SETTINGS["models"][place], "fallbacks": list(names)}}


def asked(script: Any, *, ask: Any = None, **settings: Any) -> Answer:
    provider = FakeProvider(script)
    with Orchestrator.from_config({**SETTINGS, **settings}, providers={"fake": provider}) as orchestrator:
        for guard in orchestrator.runtime.guards.values():
            guard.sleep = _at_once
        return orchestrator.ask("Who?", **(ask or {}))


def down(*models: str, error: Any = ProviderUnavailableError) -> Any:
    def script(request: Request) -> Any:
        return error("down") if request.model in models else reply(f"by {request.model}", logprobs=[-2.0] * 8)

    return script


def test_another_model_answers_in_the_place_of_one_that_is_down():
    found = asked(down("large"), models=with_fallbacks("guide", "spare"))
    assert found.text == "by other"
    assert found.served is not None
    assert found.served[0].model == "other"
    call = found.calls[-1]
    assert call.cost_nano_usd == load({**SETTINGS}).prices()["other"].cost_nano_usd(call.completion.usage)
    assert any("other answered in place of large" in said for said in found.warnings)


def test_fallbacks_are_asked_in_their_order_until_one_answers():
    found = asked(down("small", "other"), models=with_fallbacks("base", "spare", "guide"))
    assert [call.request.model for call in found.steps[0].calls] == ["small", "other", "large"]
    assert {call.request.role for call in found.steps[0].calls} == {"small"}


@pytest.mark.parametrize("error", [errors.BadRequestError, errors.RefusedError])
def test_what_the_request_itself_is_refused_for_no_other_model_is_asked(error):
    with pytest.raises(error):
        asked(down("small", "large", error=error), models=with_fallbacks("guide", "spare"))


def test_a_fallback_that_takes_no_tools_is_left_out():
    models = with_fallbacks("guide", "spare")
    models["spare"] = {**models["spare"], "tools": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    provider = FakeProvider(down("small", "large"))
    with Orchestrator.from_config({**SETTINGS, "models": models}, providers={"fake": provider}) as orchestrator:
        for guard in orchestrator.runtime.guards.values():
            guard.sleep = _at_once
        with pytest.raises(ProviderUnavailableError):
            orchestrator.chat([{"role": "user", "content": "Who?"}], tools=[tool])


def test_a_configuration_lists_what_is_wrong_with_its_fallbacks():
    with pytest.raises(ConfigError) as caught:
        load({**SETTINGS, "models": with_fallbacks("guide", "spar", "guide", "spare", "spare")})
    assert "there is no 'spar' under models" in str(caught.value)
    assert "did you mean spare" in str(caught.value)
    assert "large cannot answer in its own place" in str(caught.value)
    assert "spare is named more than once" in str(caught.value)


# Below, a call of the guide may cost over 0.02 USD and one of the base 0.0002.


def test_when_the_time_is_over_the_best_answer_there_is_is_served(monkeypatch):
    over = [False]
    monkeypatch.setattr(Deadline, "over", property(lambda _: over[0]))

    def script(request: Request) -> Any:
        over[0] = True
        return reply(f"by {request.model}", logprobs=[-2.0] * 8)

    found = asked(script, ask={"deadline_s": 2.0}, models=with_fallbacks("guide", "spare"))
    assert (found.text, found.stopped) == ("by small", "deadline")
    assert [call.request.model for call in found.calls] == ["small"]  # the guide was not asked, nor its fallback
    assert any("the deadline was over before large was asked" in said for said in found.warnings)


def test_without_any_answer_the_deadline_is_an_error_and_so_is_one_that_is_no_time():
    with pytest.raises(ProviderTimeoutError):
        asked(down("small", "large", error=ProviderTimeoutError), ask={"deadline_s": 1e-9})
    for wrong in (0, "2 s"):
        with pytest.raises(errors.UsageError, match="deadline_s must be a number of seconds above 0"):
            asked(down(), ask={"deadline_s": wrong})
