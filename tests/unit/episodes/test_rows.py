"""Rows become the columns of a log: what each means, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from cascade.episodes import reading
from cascade.episodes.rows import joined, reads_of
from cascade.errors import UsageError
from cascade.identity import identity, question_id
from cascade.logs.schema import FAILED, GUIDE_ONLY, TOLD, UNJUDGED, Dropped
from cascade.policies import features
from cascade.policies.policy import tie_of
from unit.plain import row

Row = Mapping[str, Any]


def equal(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=True)


# --- by hand ---


class Case(NamedTuple):
    """Rows, and the columns of the first request that they become; None: the episode is left out, for `why`."""

    rows: list[Row]
    columns: dict[str, list[Any]]


NAN = float("nan")
QUESTION: Row = {"question": "Which?"}
CASES = {
    "a null answer is no answer": Case(
        [row(), row(step=2, candidate=None)],
        {"answer": [0, -1], "right": [1, NAN], "cost_nano_usd": [10, 10], "bought": [True, True]},
    ),
    "a null cost is unknown": Case([row(cost_nano_usd=None), row(step=2)], {"cost_nano_usd": [-1, 10]}),
    "a cost that no call has is unknown": Case([row(cost_nano_usd=2**63), row(step=2)], {"cost_nano_usd": [-1, 10]}),
    "a cost is that of the call's own node": Case(
        [row(), row(candidate=1, source="guide", cost_nano_usd=100), row(candidate=None, cost_nano_usd=3)],
        {"cost_nano_usd": [13, 100], "answer": [0, 0]},
    ),
    "a call of neither candidate lies on the last node": Case(
        [row(), row(candidate=1, source="guide"), row(candidate=None, source="judge", cost_nano_usd=5)],
        {"cost_nano_usd": [10, 15]},
    ),
    "an unknown confidence and signal": Case(
        [row(signals={"p_yes": None}, confidence=None), row(step=2, signals={"p_yes": 0.5}, confidence=0.25)],
        {"confidence": [NAN, 0.25], "p_yes": [NAN, 0.5]},
    ),
    "answers are equal as the engine compares them": Case(
        [row(answer="The Danube."), row(step=2, answer="Rhine", correct=False), row(step=3, answer="danube")],
        {"answer": [0, 1, 0], "right": [1, 0, 1]},
    ),
    "without texts all right answers are one": Case(
        [row(step=step, answer=None, correct=right) for step, right in ((1, True), (2, False), (3, True), (4, False))],
        {"answer": [0, 1, 0, 2], "right": [1, 0, 1, 0]},
    ),
    "a request whose record ends early": Case([row(horizon=3)], {"bought": [True, False, False], "complete": [False]}),
    "a call that may have been left out": Case(
        [row(parents=[]), row(step=3, parents=[])],
        {"bought": [True, False, True], "answer": [0, -1, 0], "cost_nano_usd": [10, 0, 10]},
    ),
    "the reply's length is that of the output": Case(
        [row(input_tokens=50, output_tokens=7), row(step=2, input_tokens=60, output_tokens=None)],
        {"reply_tokens": [7, NAN], "prompt_tokens": [50, 60]},
    ),
    "a call that was cut off is no step": Case([row(), row(walk="cut off", candidate=None)], {"cost_nano_usd": [10]}),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_rows_become_columns(case: Case) -> None:
    (read,) = reads_of(case.rows)
    for name, values in case.columns.items():
        column = read.log.signals[name] if name in read.log.signals else getattr(read.log, name)
        assert equal(np.asarray(column[0]).ravel(), np.array(values)), name


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row(correct=None)], UNJUDGED),
        ([row(step=2)], "an episode with a step missing in the middle"),
        ([row(walk=GUIDE_ONLY, kept=True)], "an episode without a step"),
        (
            [row(signals={"replay": {FAILED: [[1, "base", "Timeout"]]}})],
            "an episode in which the call of a model failed",
        ),
        ([row(candidate=None, text=None)], "an episode with a step without a recorded answer or reply"),
        ([row(step=1, parents=[1])], "an episode with a step that depends on itself or on a later step"),
    ],
)
def test_what_cannot_be_judged_is_left_out_and_counted(rows: list[Row], why: str) -> None:
    dropped = Dropped()
    (read,) = reads_of([*rows, row("other")], dropped)
    assert (read.log.n, dict(read.dropped.rows), read.facts.unjudged) == (1, {why: 1}, int(why == UNJUDGED))
    with pytest.raises(UsageError):
        reads_of(rows)


def test_two_answers_under_the_questions_own_id_are_two_runs_in_one() -> None:
    name = question_id("Which?", None)
    dropped = Dropped()
    reads_of([row(name, **QUESTION), row(name, **QUESTION), row("other")], dropped)
    assert dropped.count == 1
    (read,) = reads_of([row(**QUESTION), row(**QUESTION)])  # an id of its own: two calls that made one answer
    assert read.log.cost_nano_usd.tolist() == [[20]]


def test_repeated_questions_have_one_id_and_all_their_spellings() -> None:
    (read,) = reads_of([row("a", question="Which?"), row("b", question="which"), row("c", question="Who?"), row("d")])
    same_id = identity("Which?", None)
    assert read.log.ids == (same_id, same_id, identity("Who?", None), "d")
    assert {name: len(texts) for name, texts in read.facts.spelled.items()} == {same_id: 2, read.log.ids[2]: 1}


def test_a_run_that_ends_when_a_model_is_told_shows_no_length_and_no_cost_to_a_policy() -> None:
    replay = {"replay": {TOLD: True}}
    (read,) = reads_of([row("a", output_tokens=5, signals=replay), row("b", output_tokens=6)])
    assert read.log.revealing
    assert "reply_tokens" not in read.log.signals
    assert tie_of(read.log) is None
    assert np.isnan(features.read(read.log, (0,), ("cost",))).all()
    assert read.log.cost_nano_usd.tolist() == [[10], [10]]


def test_a_baseline_knows_its_own_cost() -> None:
    rows = [row("a"), row("b"), row("a", walk="z", kept=True, cost_nano_usd=None), row("a", walk=GUIDE_ONLY, kept=True)]
    (read,) = reads_of(rows)
    way, reference = read.log.baselines["z"], read.log.reference
    assert reference is not None
    assert (way.known.tolist(), way.cost_nano_usd.tolist()) == ([True, False], [-1, -1])
    assert (reference.cost_nano_usd.tolist(), read.facts.reference) == ([10, -1], GUIDE_ONLY)
    assert read.log.take(np.array([1])).baselines["z"].known.tolist() == [False]
    assert read.log.priced.tolist() == [True, False]


def test_costs_are_compared_with_prices() -> None:
    from cascade.money import PriceTable

    price = PriceTable.bundled().price("gpt-4o-mini")
    rows = [
        row(model="gpt-4o-mini", input_tokens=1000, output_tokens=1000, cost_nano_usd=cost) for cost in (1, 750_000)
    ]
    found = reading.mispriced(rows, {"gpt-4o-mini": price})
    assert [(each.model, each.calls, each.logged_nano_usd) for each in found] == [("gpt-4o-mini", 1, 1)]


# --- several data sets ---


def ladder(dataset: str, models: Sequence[str] = ("small", "large"), **columns: Any) -> list[Row]:
    each = enumerate(models, 1)
    return [row("a", step, dataset=dataset, source=name, model=name, horizon=2, **columns) for step, name in each]


def test_data_sets_of_one_cascade_are_joined() -> None:
    whole = joined(reads_of([*ladder("x"), *ladder("y", signals={"late": 1.0})]))
    assert (whole.log.name, whole.log.n, whole.facts.step_models) == ("x, y", 2, ("small", "large"))
    assert equal(whole.log.signals["late"], np.array([[np.nan, np.nan], [1, 1]]))
    outright = row("a", dataset="x", kept=True, walk=GUIDE_ONLY)
    mixed = joined(reads_of([outright, *ladder("x"), *ladder("y")]))
    assert mixed.log.reference is not None
    assert (mixed.facts.reference, mixed.log.reference.cost_nano_usd.tolist()) == (GUIDE_ONLY, [10, -1])


@pytest.mark.parametrize("other", [("small", "huge"), ("large", "small"), ("small", "middle", "large"), ()])
def test_data_sets_of_other_cascades_are_not(other: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        joined(reads_of([*ladder("x"), *ladder("y", other)]) if other else [])
