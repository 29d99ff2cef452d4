"""What an answer says of itself: cost, path, and a JSON form that holds everything."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from cases import each

from cascade import types
from cascade.money import usd_or_none
from cascade.types import Answer, Decision
from unit.builders import RIVER, call, candidate, completion, roundtrip, step


def answer(*steps: types.Step, **fields: object) -> Answer:
    given = {"question": RIVER, "text": "Danube", "answers": ("Danube",), "steps": steps}
    return Answer(**(given | {"stopped": "policy", "latency_s": 0.5} | fields))


VALUES = [
    RIVER,
    types.Message("user", "text"),
    types.TextDelta("text", "base", 1),
    types.Usage(1, 1),
    types.Token("a", -0.1),
    candidate("Danube"),
    completion(),
    call(1),
    step(1, candidate("Danube"), keep=(0,)),
    Decision((0,), False, (1.0,), 0.0, 0.3),
    Answer(RIVER, None, (), (), "policy", 0.5),
    call(1).request,
]


@each("value", VALUES)
def test_a_value_cannot_be_changed_and_crosses_a_process_border_whole(value):
    names = getattr(value, "_fields", None) or [field.name for field in dataclasses.fields(value)]
    for name in (*names, "nonsense"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 1)
    assert copy.deepcopy(value) == value
    assert roundtrip(value) == value


def test_a_completion_cut_at_the_limit_is_truncated():
    assert completion(finish_reason="length").truncated
    assert not completion(finish_reason="stop").truncated


@pytest.mark.parametrize(
    ("calls", "cost", "bound", "by_model"),
    [
        ((call(10), call(20), call(30)), 60, 60, {"small": 60}),
        ((call(10), call(None, 25)), None, 35, {"small": None}),  # an unknown cost leaves the bound
        ((call(1), call(None)), None, None, {"small": None}),  # without a price there is none
        ((call(5), call(7, model="large"), call(None, 9, model="large"), call(6)), None, 27,
         {"small": 11, "large": None}),
        ((), 0, 0, {}),
    ],
)  # fmt: skip
def test_the_cost_of_an_answer_counts_every_call(calls, cost, bound, by_model):
    done = answer(step(1, calls=calls[:1]), step(2, calls=calls[1:2]), loose_calls=calls[2:])
    assert (done.calls, step(1, calls=calls).cost_nano_usd) == (calls, cost)
    assert (done.cost, done.cost_bound) == (usd_or_none(cost), usd_or_none(bound))
    assert done.cost_by_model == {name: usd_or_none(each) for name, each in by_model.items()}
    document = done.to_dict()
    assert (document["cost_usd"], document["cost_bound_usd"]) == (
        done.cost and float(done.cost),
        done.cost_bound and float(done.cost_bound),
    )
    assert document["cost_by_model_usd"] == {name: value and float(value) for name, value in done.cost_by_model.items()}


@pytest.mark.parametrize(("keep", "parents", "role"), [(True, (), "guide"), (True, (1,), "base"), (False, (), "base")])
def test_of_equal_answers_the_one_that_was_kept_is_served_and_a_judge_wrote_none(keep, parents, role):
    calls = [call(5)._replace(request=call(5).request._replace(role=name)) for name in ("base", "guide")]
    last = step(2, candidate("Inn", "guide"), calls=calls[1:], decision=Decision((0,) * keep, False, (), 0.1, 0.3))
    done = answer(step(1, candidate("Inn"), calls=calls[:1]), last._replace(parents=parents), text="Inn")
    assert done.served[0].source == done.served[1].request.role == role


def test_explain_says_each_step_its_notes_the_warnings_and_the_end():
    decision = Decision((1,), False, (-1.0, 1.0), 0.1, 0.3)
    first = step(1, candidate("Rhine"), candidate("Danube", "guide"), decision=decision, notes=("odd",))
    silent = step(2, decision=Decision((), True, (), 0.1, 0.3))
    done = answer(first, silent, step(3), warnings=("careful",), stopped="horizon")
    assert done.explain().splitlines() == [
        "step 1: base: 'Rhine', guide: 'Danube' -> doubt 0.1, below 0.3: served guide",
        "  note: odd",
        "step 2: no usable answer -> went on",
        "step 3: no usable answer -> not decided",
        "warning: careful",
        "stopped: horizon",
    ]


def test_to_dict_is_json_with_infinite_scores_as_words():
    decision = Decision((0,), False, (float("inf"), float("-inf")), float("nan"), 0.3)
    done = answer(step(1, candidate("Danube"), decision=decision, calls=(call(1_500),)))
    document = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert document["steps"][0]["decision"]["scores"] == ["inf", "-inf"]
    assert document["steps"][0]["decision"]["next_score"] == "nan"
    assert document["question"] == {"text": RIVER.text, "context": None, "group": None, "segment": None, "chat": None}
    assert document["cost_usd"] == document["cost_bound_usd"] == 0.0000015
    assert document["cost_by_model_usd"] == {"small": 0.0000015}
