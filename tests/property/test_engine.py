"""Random completions and errors: the same answer whole and streamed, every cent accounted for, no cap passed; the set of actions."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.builders import PRICES, RIVER, base_guide, completion, drive, yes_no
from unit.scripted import FixedPolicy, RandomPolicy, ThresholdPolicy

from cascade.budget.charges import Budget
from cascade.engine import Actions, RunPlan, RunTerms, actions, run
from cascade.errors import (
    AuthenticationError,
    BudgetExceededError,
    CascadeError,
    EmptyCompletionError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from cascade.matching.text import normalize_answer
from cascade.plans.base import ModelUse
from cascade.plans.presets import ladder as ladder_of
from cascade.providers.guard import Guard
from cascade.providers.replay import Replay
from cascade.resilience import event_loop
from cascade.resilience.event_loop import Deadline
from cascade.streaming import play
from cascade.types import Answer, Completion, Request, Usage

SMALL, LARGE = ModelUse("small", 32), ModelUse("large", 32)

TEXTS = st.sampled_from(
    [
        "Answer: Danube",
        "Answer: Rhine",
        "Answer: the danube.",
        ":",
        "Yes",
        "No",
        "No, Inn",
        "Yes and no",
        "Reasoning: x\nAnswer: 7",
    ]
)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """A usage whose parts are no more than what they are parts of."""
    read, written = draw(st.integers(1, 60)), draw(st.integers(1, 32))
    cached = draw(st.none() | st.integers(0, read))
    return Usage(
        read,
        written,
        cached_input_tokens=cached,
        reasoning_tokens=draw(st.none() | st.integers(0, written)),
        written_input_tokens=draw(st.none() | st.integers(0, read - (cached or 0))),
        estimated=draw(st.booleans()),
    )


USAGES = usages()
COMPLETIONS = st.builds(
    lambda text, usage, finish: completion(text, usage=usage, finish_reason=finish),
    TEXTS,
    USAGES,
    st.sampled_from(["stop", "stop", "length"]),
) | st.builds(yes_no, st.floats(0, 1), st.sampled_from(["Yes", "No", "No, Inn"]))
ERRORS = st.builds(
    lambda kind, usage: kind("it broke", usage=usage),
    st.sampled_from([ProviderUnavailableError, AuthenticationError, ProviderTimeoutError, EmptyCompletionError]),
    st.none() | USAGES,
)
SCRIPTS = st.lists(COMPLETIONS | COMPLETIONS | ERRORS, min_size=40, max_size=40)
STRATEGIES = st.builds(
    lambda rounds, samples: base_guide(SMALL, LARGE, rounds, samples=samples), st.integers(1, 4), st.integers(1, 3)
) | st.sampled_from([ladder_of((SMALL,)), ladder_of((SMALL, LARGE))])
POLICIES = st.builds(
    ThresholdPolicy, st.floats(0, 1), st.sampled_from(["judged", "both"]), st.sampled_from(["uncertain", "p_yes"])
) | st.sampled_from([FixedPolicy(), FixedPolicy("guide", 3), RandomPolicy(1)])
CAPS = st.none() | st.integers(0, 2_000_000)


def settings(strategy: Any, policy: Any, cap: int | None, exhausted: str) -> dict[str, Any]:
    return {"plan": RunPlan(strategy, policy), "terms": RunTerms(PRICES, exhausted), "budget": Budget(cap)}


def caller(script: list[Any]) -> Any:
    left = iter(script)

    def call(_: Request) -> Completion:
        reply = next(left)
        if isinstance(reply, ProviderError):
            raise type(reply)("it broke", usage=reply.usage)
        answered: Completion = reply
        return answered

    return call


def outcome(result: Answer | CascadeError) -> Any:
    """Return what must not depend on the driver."""
    if isinstance(result, CascadeError):
        return type(result), str(result), result.calls  # type: ignore[attr-defined]
    return result.text, result.answers, result.steps, result.stopped, result.warnings, result.loose_calls


def driven(given_settings: dict[str, Any], script: list[Any]) -> Answer | CascadeError:
    try:
        return drive(run(RIVER, **given_settings), caller(script))
    except (ProviderError, BudgetExceededError) as error:
        return error


def streamed(given_settings: dict[str, Any], script: list[Any]) -> Any:
    call = caller(script)

    async def pieces(request: Request) -> Any:
        yield call(request)

    async def last() -> Any:
        try:
            return [event async for event in play(run(RIVER, **given_settings), pieces)][-1]
        except (ProviderError, BudgetExceededError) as error:
            return error

    return asyncio.run(last())


@given(STRATEGIES, POLICIES, CAPS, st.sampled_from(["refuse", "answer"]), SCRIPTS)
def test_a_whole_answer_and_a_streamed_one_are_the_same_whatever_comes(strategy, policy, cap, exhausted, script):
    whole, pieces = (settings(strategy, policy, cap, exhausted) for _ in range(2))
    assert outcome(driven(whole, script)) == outcome(streamed(pieces, script))
    assert whole["budget"].spent_nano_usd == pieces["budget"].spent_nano_usd


@given(STRATEGIES, POLICIES, CAPS, st.sampled_from(["refuse", "answer"]), SCRIPTS)
def test_no_cap_is_passed_and_every_call_is_accounted_for(strategy, policy, cap, exhausted, script):
    setup = settings(strategy, policy, cap, exhausted)
    result = driven(setup, script)
    spent = setup["budget"].spent_nano_usd
    unbounded = [call for call in result.calls if call.cost_bound_nano_usd is None]  # type: ignore[union-attr]
    known = [call.cost_nano_usd for call in result.calls if call.cost_nano_usd is not None]  # type: ignore[union-attr]
    assert all(call.unpriced for call in unbounded)  # what it wrote to a cache has no price
    assert all(call.cost_nano_usd in {None, call.cost_bound_nano_usd} for call in result.calls)  # type: ignore[union-attr]
    if cap is not None:
        assert sum(known) <= spent <= cap
    if isinstance(result, Answer):
        assert result.cost_nano_usd in {None, sum(known)}


@given(STRATEGIES, POLICIES, SCRIPTS)
def test_an_answer_keeps_its_promises(strategy, policy, script):
    result = driven(settings(strategy, policy, None, "refuse"), script)
    if not isinstance(result, Answer):
        return
    assert result.text == (result.answers[0] if result.answers else None)
    keys = [normalize_answer(text) for text in result.answers]
    assert len(set(keys)) == len(keys)
    offered = {normalize_answer(candidate.text) for step in result.steps for candidate in step.candidates}
    assert set(keys) <= offered
    assert [step.number for step in result.steps] == list(range(1, len(result.steps) + 1))
    assert len(result.steps) <= strategy.horizon
    assert result.stopped in {"policy", "horizon", "provider error"}
    assert all(step.decision is not None for step in result.steps)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.explain().endswith(f"stopped: {result.stopped}")


@given(STRATEGIES, st.lists(COMPLETIONS, min_size=40, max_size=40))
def test_a_log_replays_to_the_same_answer(strategy, script):
    from cascade.logs.schema import rows

    setup = settings(strategy, ThresholdPolicy(0.0), None, "refuse")
    first = drive(
        run(RIVER, **setup), caller([reply._replace(usage=reply.usage._replace(estimated=False)) for reply in script])
    )
    if first.loose_calls:
        return
    guard = Guard(Replay.of(json.loads(json.dumps(list(rows(first))))))
    again = drive(run(RIVER, **setup), lambda request: event_loop.run(guard.complete(request, Deadline())))
    assert (again.text, again.answers, again.explain()) == (first.text, first.answers, first.explain())
    assert again.cost_nano_usd == first.cost_nano_usd


SCORE = st.floats(-3, 3) | st.sampled_from([math.inf, -math.inf, math.nan])
SCORES = st.lists(SCORE, max_size=4)
KAPPA = st.floats(-3, 3) | st.sampled_from([math.inf, -math.inf])
LAST = st.booleans()


def chosen(allowed: Actions) -> set[int | str]:
    return set(allowed.keep) | ({"next"} if allowed.proceed else set())


@given(SCORES, SCORE, KAPPA, KAPPA, LAST)
def test_the_sets_grow_as_kappa_falls(scores, onward, kappa, other, last):
    high, low = max(kappa, other), min(kappa, other)
    assert chosen(actions(scores, onward, high, last=last)) <= chosen(actions(scores, onward, low, last=last))


@given(SCORES, st.floats(-3, 3), KAPPA, LAST)
def test_the_argmax_is_in_the_set(scores, onward, kappa, last):
    options = {index: -math.inf if math.isnan(score) else score for index, score in enumerate(scores)}
    if not last:
        options |= {len(scores): onward}
    if not options:
        return
    best = min(options, key=lambda index: (-options[index], index))
    wanted = "next" if best == len(scores) else best
    assert wanted in chosen(actions(scores, onward, kappa, last=last))


@given(st.lists(st.floats(-3, 3), max_size=4), st.floats(-3, 3), st.floats(-3, 3), LAST)
def test_what_reaches_kappa_is_in_the_set_and_little_else(scores, onward, kappa, last):
    allowed = actions(scores, onward, kappa, last=last)
    members = chosen(allowed)
    reaching: set[int | str] = {index for index, score in enumerate(scores) if score >= kappa}
    if not last and (onward >= kappa or not scores):
        reaching.add("next")
    assert reaching <= members
    assert len(members - reaching) <= 1
    assert not (reaching and members - reaching), "only where nothing reaches kappa does the argmax stand alone"
    assert list(allowed.keep) == sorted(set(allowed.keep))
