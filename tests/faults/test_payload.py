"""F14-F25 and F30: an answer came, and it is not what it should be."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from cascade.errors import (
    BudgetExceededError,
    ConfigError,
    RefusedError,
)
from cascade.providers.fake import reply

from .bench import PROVIDERS, SMALL_COST, needs_litellm
from .bodies import QUESTION, chat, choice, entry

BAD_USAGES = ["negative_usage", "text_usage", "float_usage", "nan_usage", "huge_usage", "bool_usage", "list_usage"]
BAD_LOGPROBS = ["nan_logprob", "positive_logprob", "missing_logprob", "text_logprob", "gigantic_logprob"]
LADDER = {"kind": "ladder", "models": ["base"]}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f14_a_completion_without_a_choice_is_charged_and_passed_on(bench, provider):
    answer = bench.answer("empty_choices", provider)
    first = answer.calls[0]
    assert answer.text == "Danube"
    assert answer.steps[0].candidates[0].source == "guide"
    assert "EmptyCompletionError" in (first.error or "")
    assert (first.billed, first.cost_nano_usd) == ("yes", SMALL_COST)
    assert bench.server.count("small") == len(answer.steps), "it was asked again in the same round"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["null_content_filter", "blank", "refusal"])
def test_f16_a_refusal_is_never_an_empty_answer(bench, mode, provider):
    bench.error(mode, RefusedError, provider)
    answer = bench.answer(mode, provider)
    assert answer.text == "Danube"
    assert all(text.strip() for text in answer.answers)
    assert "RefusedError" in answer.explain()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["finish_error", "finish_abort", "error_in_choice"])
def test_f27_an_end_that_is_not_known_to_be_good_is_no_answer(bench, mode, provider):
    answer = bench.answer(mode, provider)
    assert (answer.text, answer.steps[-1].candidates[0].source) == ("Danube", "guide")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f17_a_cut_answer_is_marked_and_neither_kept_nor_judged(bench, provider):
    answer = bench.answer("length", provider)
    assert "Dan" not in answer.answers
    assert answer.calls[0].completion is not None
    assert answer.calls[0].completion.truncated
    assert "raise max_tokens" in answer.explain()
    assert not [call for call in answer.calls if call.request.purpose == "judge"]


def test_f20_under_a_hard_cap_the_whole_hold_is_booked(bench):
    """The second call fits beside the first one's estimate, but not beside its hold."""
    price = {"input": 0, "output": 10}
    models = {
        "base": {"model": "small", "price": price, "max_tokens": 1_000},
        "more": {"model": "large", "price": price, "max_tokens": 500},
    }
    climb = {
        "models": models,
        "budget": {"per_question": 0.010},
        "strategy": {"kind": "ladder", "models": ["base", "more"]},
        "policy": {"kind": "fixed", "depth": 2},
    }
    assert len(bench.answer("ok", **climb).calls) == 2
    with pytest.raises(BudgetExceededError):
        bench.answer("no_usage", **climb)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["wrong_model_echo", "near_model_echo"])
def test_f22_another_model_answered(bench, mode, provider):
    orchestrator = bench.alone(mode, provider)
    first, second = orchestrator.ask(QUESTION), orchestrator.ask(QUESTION)
    completion = first.calls[0].completion
    assert completion is not None
    assert (first.calls[0].request.model, completion.model != "small") == ("small", True)
    assert completion.model in " ".join(completion.notes)
    assert [answer.cost for answer in (first, second)] == [Decimal(SMALL_COST).scaleb(-9)] * 2
    assert len([r for r in bench.log.records if "answered by" in r.getMessage()]) == 1


def test_f23_an_unknown_price_is_unknown_and_refused_under_a_cap(bench):
    unpriced = {"models": {"base": "nobody/knows-this"}, "strategy": LADDER}
    answer = bench.served(**unpriced).ask(QUESTION)
    assert (answer.text, answer.cost, answer.cost_bound) == ("Danube", None, None)
    with pytest.raises(ConfigError, match="no known price"):
        bench.served(**unpriced, budget={"per_question": 1.0})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f24_a_guide_that_refuses_logprobs_is_asked_without(bench, provider):
    bench.server.modes["large"] = "refuses_logprobs"
    orchestrator = bench.served(provider)
    assert orchestrator.ask(QUESTION).text == "Danube"
    asked = bench.server.count("large")
    orchestrator.ask(QUESTION)
    later = [r for r in bench.server.requests if r["model"] == "large"][asked:]
    assert later
    assert not any(request.get("logprobs") for request in later)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f24_a_guide_without_logprobs_is_sampled_instead(bench, provider):
    bench.server.modes["large"] = "no_logprobs"
    orchestrator = bench.served(provider)
    answer = orchestrator.ask(QUESTION)
    assert answer.text == "Danube"
    assert answer.steps[0].signals["p_yes"] == pytest.approx(3.5 / 4)
    assert answer.steps[0].signals["verdict_mass"] is None
    assert "without log-probs" in answer.explain()
    asked = bench.server.count("large")
    orchestrator.ask(QUESTION)
    later = [r for r in bench.server.requests if r["model"] == "large"][asked:]
    assert [bool(request.get("logprobs")) for request in later] == [True, False, False]  # the others are samples
    assert len([r for r in bench.log.records if "no log-probs" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("mode", "provider"),
    [
        *((mode, PROVIDERS[0]) for mode in BAD_LOGPROBS),
        *(pytest.param(mode, "litellm", marks=needs_litellm) for mode in BAD_LOGPROBS[:2]),
    ],
)
def test_f25_what_is_no_log_probability_is_no_verdict(bench, mode, provider):
    bench.server.modes["large"] = mode
    answer = bench.answer(mode, provider)
    assert answer.text == "Danube"
    for step in answer.steps:
        assert step.signals["p_yes"] is None
        assert all(value is None or math.isfinite(value) for value in step.signals.values())
    logprobs = [token.logprob for call in answer.calls for token in call.completion.tokens or ()]
    assert None in logprobs
    assert all(value is None or value <= 0 for value in logprobs)


def test_f25_minus_infinity_is_probability_zero(bench):
    orchestrator, _ = bench.scripted({"small": ["Answer: Elbe"], "large": [reply("No, the Danube", p_yes=0.0)]})
    answer = orchestrator.ask(QUESTION)
    assert answer.steps[0].signals["p_yes"] == 0.0
    assert answer.text == "the Danube"


@pytest.mark.parametrize("bad", [math.nan, 3.5, None, "low"])
def test_f25_half_a_verdict_is_no_verdict(bench, bad):
    """If the probability of No is not known, the probability of Yes among {Yes, No} is not known either."""
    half = chat(choice("Yes", logprobs=[entry("Yes", -0.5, Yes=-0.5, No=bad)]))
    orchestrator, _ = bench.scripted({"small": ["Answer: Elbe"], "large": [half]})
    assert orchestrator.ask(QUESTION).steps[0].signals["p_yes"] is None
