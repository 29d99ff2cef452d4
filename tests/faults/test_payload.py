"""F14-F30: an answer came, whole or in pieces, and it is not what it should be."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import pytest
from steps import superlinear

from cascade.errors import BudgetExceededError, ConfigError, StreamInterruptedError
from cascade.types import Answer

from .bench import PROVIDERS, SMALL_COST
from .bodies import QUESTION, chat, choice

LADDER = {"kind": "ladder", "models": ["base"]}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("mode", "failed"),
    [
        ("500", "ProviderUnavailableError"),
        ("empty_choices", "EmptyCompletionError"),
        ("refusal", "RefusedError"),
        ("finish_error", "BadResponseError"),
    ],
)
def test_f01_f14_f16_f27_what_is_no_answer_is_passed_on_to_the_guide(bench, mode, failed, provider):
    """One for each class of error; `test_table` says which answers end in which."""
    answer = bench.answer(mode, provider)
    assert (answer.text, answer.steps[-1].candidates[0].source) == ("Danube", "guide")
    assert all(text.strip() for text in answer.answers)
    assert answer.calls[0].failed_with == failed
    if mode == "empty_choices":
        assert bench.server.count("small") == len(answer.steps), "it was asked again in the same round"


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
    before = bench.server.count("large")
    orchestrator.ask(QUESTION)
    later = [r for r in bench.server.requests if r["model"] == "large"][before:]
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
    before = bench.server.count("large")
    orchestrator.ask(QUESTION)
    later = [r for r in bench.server.requests if r["model"] == "large"][before:]
    assert [bool(request.get("logprobs")) for request in later] == [True, False, False]  # the others are samples
    assert len([r for r in bench.log.records if "no log-probs" in r.getMessage()]) == 1


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["nan_logprob", "positive_logprob"])
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


PARTIAL = "Reasoning: It is on t"
"""The first three pieces of seven characters."""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["stream_reset", "stream_no_finish", "stream_finish_error", "stream_error_in_choice"])
def test_f26_f27_what_came_of_a_broken_stream_is_kept(bench, mode, provider):
    with pytest.raises(StreamInterruptedError) as caught:
        list(bench.alone(mode, provider).stream(QUESTION))
    assert caught.value.partial == PARTIAL


def test_f26_the_part_that_came_stands_in_the_trace(bench):
    bench.server.modes["small"] = "stream_reset"
    *_, answer = bench.served().stream(QUESTION)
    assert isinstance(answer, Answer)
    assert answer.text == "Danube"
    assert PARTIAL in json.dumps(answer.to_dict())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_f29_the_question_may_hold_anything(bench, provider):
    assert bench.served(provider).ask("Which \ud800 river \x00 \u202e?").text == "Danube"


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        ("", "\n"), ("", "final\n"), ("final ", " "), ("", "-"), ("reasoning", ":"), ("answer", "*"), ("Answer: ", '"*'),
        ("", "a "), ("", "<|"), ("No ", "the answer is "), ("Yes", " "), ("", "{"), ("", "\u200b"),
    ],
)  # fmt: skip
def test_f29_no_reader_of_text_is_slow(bench, start, piece):
    """Base and guide both say it; nothing that reads text may be superlinear (ReDoS)."""
    current = [""]
    orchestrator, _ = bench.scripted(lambda _request: chat(choice(current[0])))

    def ask(text: str) -> None:
        current[0] = f"{start}{text}"
        assert orchestrator.ask(QUESTION).text

    ask(piece * (200_000 // len(piece)) + "\nAnswer: Danube")
    assert superlinear(ask, piece, "\nAnswer: Danube") == []
