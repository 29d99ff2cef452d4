"""One row per call that came back; unknown is null."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from cascade.engine import run
from cascade.errors import AuthenticationError, ProviderUnavailableError
from cascade.identity import question_id
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, rows
from cascade.plans.base import ModelUse
from cascade.types import Answer, Completion, Question, Token, Usage
from unit.made import PRICES, base_guide, candidate, completion, drive, yes_no
from unit.scripted import ThresholdPolicy

ASKED = Question("Which river?", "Vienna lies on the Danube.")


def answered(*said: Completion | Exception, prices: object = PRICES) -> Answer:
    left = iter(said)

    def call(_: object) -> Completion:
        reply = next(left)
        if isinstance(reply, Exception):
            raise reply
        return reply

    strategy = base_guide(ModelUse("small"), ModelUse("large"), rounds=2)
    return drive(run(ASKED, strategy=strategy, policy=ThresholdPolicy(), prices=prices), call)


RHINE = completion("Answer: Rhine", usage=Usage(100, 10, 4, 1), latency_s=0.0123456, finish_reason="stop")
NO = yes_no(0.05, "No, Danube")


def test_every_row_has_every_column_and_is_json() -> None:
    made = list(rows(answered(RHINE, NO), dataset="demo", horizon=2))
    for row in made:
        assert tuple(row) == COLUMNS
        assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_every_row_has_the_columns_of_its_question() -> None:
    for row in rows(answered(RHINE, NO), dataset="demo", horizon=2):
        assert row["episode_id"] == question_id(ASKED.text, ASKED.context)
        assert (row["question"], row["context"], row["dataset"], row["horizon"]) == (*_asked(), "demo", 2)
        assert row["schema_version"] == SCHEMA_VERSION
        assert abs((datetime.now(UTC) - datetime.fromisoformat(row["created_at"])).total_seconds()) < 60


def _asked() -> tuple[str, str | None]:
    return ASKED.text, ASKED.context


def test_a_row_says_what_a_call_brought_and_cost() -> None:
    base, judge = rows(answered(RHINE, NO))
    wanted = {
        "step": 1,
        "candidate": 0,
        "source": "base",
        "model": "small",
        "answer": "Rhine",
        "text": "Answer: Rhine",
        "kept": False,
        "input_tokens": 100,
        "cached_input_tokens": 4,
        "output_tokens": 10,
        "reasoning_tokens": 1,
        "cost_nano_usd": 14_000,
        "cost_source": "price table",
        "latency_ms": 12.346,
    }
    assert {name: base[name] for name in wanted} == wanted
    assert (judge["candidate"], judge["answer"], judge["kept"], judge["text"]) == (1, "Danube", True, "No, Danube")
    assert judge["cached_input_tokens"] is None


def test_unknown_values_are_null() -> None:
    for row in rows(answered(RHINE, NO)):
        assert [row[name] for name in ("split", "group", "gold", "correct", "dataset", "horizon")] == [None] * 6


def test_a_cost_is_null_where_it_is_not_known_and_the_row_says_why() -> None:
    estimated = RHINE._replace(usage=Usage(100, 10, estimated=True))
    base, judge = rows(answered(estimated, NO, prices={"small": PRICES["small"]}))
    assert (base["cost_nano_usd"], base["cost_source"]) == (None, "usage estimated")
    assert base["signals"]["replay"]["usage_estimated"] is True
    assert (judge["cost_nano_usd"], judge["cost_source"]) == (None, "no price")


def test_a_judge_without_a_correction_made_no_candidate() -> None:
    _, judge = rows(answered(RHINE, yes_no(0.01, "No.")))
    assert (judge["candidate"], judge["answer"], judge["kept"]) == (None, None, None)


def test_only_the_first_sample_has_a_candidate() -> None:
    said = [completion("No, Danube")] * 3
    made = list(rows(answered(RHINE, *said, RHINE, *said)))
    assert [row["candidate"] for row in made if row["step"] == 1] == [0, 1, None, None]
    assert [row["signals"]["replay"]["sample"] for row in made if row["step"] == 1] == [0, 0, 1, 2]


def test_signals_and_what_a_replay_needs_stand_in_the_row() -> None:
    base, judge = rows(answered(RHINE, NO))
    assert base["signals"]["p_yes"] == judge["signals"]["p_yes"]
    assert (base["signals"]["replay"]["purpose"], base["signals"]["replay"]["finish_reason"]) == ("answer", "stop")
    assert base["signals"]["replay"]["tokens"] is None
    top = [["Yes", math.log(0.05)], ["No", math.log(0.95)]]
    assert judge["signals"]["replay"]["tokens"] == [["No", math.log(0.95), top]]


def test_an_impossible_token_is_still_json() -> None:
    tokens = (Token("Answer: Rhine", -math.inf), Token("", None))
    made = next(rows(answered(RHINE._replace(tokens=tokens), NO)))
    assert made["signals"]["replay"]["tokens"] == [["Answer: Rhine", -1e9], ["", None]]


def test_every_call_that_came_back_has_a_row_an_interrupted_step_s_too() -> None:
    late = completion("Answer: Danube")
    answer = answered(RHINE, yes_no(0.5), ProviderUnavailableError("down"), AuthenticationError("no key"))
    assert len(list(rows(answer))) == 2
    interrupted = Answer(
        ASKED, "x", ("x",), answer.steps, "budget", 0.1, loose_calls=(answer.calls[0]._replace(completion=late),)
    )
    assert [row["text"] for row in rows(interrupted)][-1] == "Answer: Danube"


def test_an_id_is_stable_and_tells_text_from_context() -> None:
    assert question_id("a", None) == question_id("a", "") == question_id("a", None)
    assert (
        len({question_id(*one) for one in (("a", None), ("b", None), ("a", "b"), ("ab", None), ("\ud800", None))}) == 5
    )
    assert len(question_id("a", None)) == 16


def test_candidates_of_other_sources_are_not_mixed_up() -> None:
    step = answered(RHINE, NO).steps[0]
    assert [made.source for made in step.candidates] == ["base", "guide"]
    assert step.candidates[0] == candidate("Rhine", confidence=step.candidates[0].confidence)
