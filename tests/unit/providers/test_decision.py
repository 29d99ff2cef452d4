"""The requests of decision models against the vendor's own types, and what the reader makes of random replies."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from faults.decisions import decided
from hypothesis import given
from hypothesis import strategies as st

from cascade.errors import ProviderError
from cascade.money import Price
from cascade.plans.verdict import read
from cascade.providers import decision
from cascade.providers.reading import read_completion
from cascade.types import Message, Request
from unit.builders import request

REQUEST: Request = request(
    model="decider", messages=(Message("system", "It is right."), Message("user", '{"answer": "4"}')), top_logprobs=20
)
FREE_OUTPUT = Price.per_million(input=0.1, output=0)
SCALAR = st.none() | st.booleans() | st.integers(-2, 200) | st.floats() | st.sampled_from(["right", "0.9", "decider"])
NAMES = ["right", "type", "name", "noul", "probability", "answers", "usage", "model", "success", "result", "error"]
NAMES += ["input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "total_tokens"]
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
DIALECTS = st.sampled_from(sorted(decision.DIALECTS))


def test_requests_and_replies_are_what_openais_library_types():
    params = pytest.importorskip("openai.types.decision_create_params", reason="openai < 3.57 has no decisions")
    from openai.types.decision import Decision
    from pydantic import TypeAdapter

    body = decision.body(REQUEST, "openai", "decider")
    assert TypeAdapter(params.DecisionCreateParams).validate_python(body)
    for mode in ("ok", "refusal"):
        reply = json.loads(decided(mode, body))
        reply["usage"] |= {
            "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        assert TypeAdapter(Decision).validate_python(reply).answers[0].name == "right"


@given(DIALECTS, st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_whatever_comes_is_a_probability_or_no_verdict(dialect, odd):
    good = json.loads(decided("ok", decision.body(REQUEST, dialect, "decider")))
    for reply in (odd, good | odd, {**good, "answers": odd.get("answers")}, {"success": True, "result": good | odd}):
        _checked(reply, dialect)


@given(DIALECTS, JSON)
def test_whatever_stands_for_an_answer_is_a_probability_or_no_verdict(dialect, odd):
    good = json.loads(decided("ok", decision.body(REQUEST, dialect, "decider")))
    for name in decision.DIALECTS[dialect][1:]:
        for value in (odd, {"type": decision.DIALECTS[dialect].type, name: odd}):
            answers: Any = [{"name": "right", **value}] if isinstance(value, dict) else [value]
            _checked(good | {"answers": answers if dialect == "openai" else {"right": value}}, dialect)


def _checked(reply: dict[str, Any], dialect: str) -> None:
    """Check that a reply is refused by an error of ours, or gives a P(yes) in [0, 1] and a cost above 0, or unknown."""
    try:
        completion = read_completion(decision.completion(reply, REQUEST, dialect), REQUEST, 0.1)
    except ProviderError:
        return
    verdict = read(completion, "4")
    assert 0.0 <= verdict.p_yes <= 1.0
    assert completion.usage.estimated or (FREE_OUTPUT.cost_nano_usd(completion.usage) or 0) > 0


@given(DIALECTS, st.floats(0.0, 1.0))
def test_a_probability_comes_through_as_it_was_sent(dialect, p_yes):
    good = json.loads(decided("ok", decision.body(REQUEST, dialect, "decider")).replace(b"0.9", repr(p_yes).encode()))
    verdict = read(read_completion(decision.completion(good, REQUEST, dialect), REQUEST, 0.1), "4")
    assert math.isclose(verdict.p_yes, p_yes, rel_tol=1e-12)
    assert verdict.says_yes is (p_yes >= 0.5)
