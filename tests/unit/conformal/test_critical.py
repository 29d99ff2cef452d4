"""The critical value says, with one number, at which thresholds a question is covered."""

from __future__ import annotations

import math

import numpy as np

from cascade.conformal.arrays import Floats, levels
from cascade.conformal.split import covered_at, critical_kappa, critical_values
from unit.conformal.brute import Case, Place, batches, outcome, pack, telling_kappas


def place(right: bool, score: float, answer: int = 0) -> Place:
    return Place(0, answer, right, score, 0.5)


def critical(*cases: Case) -> list[float]:
    horizon = max(len(case.steps) for case in cases)
    steps, scores, _ = pack(cases, horizon, 1)
    return critical_kappa(steps, levels(steps, scores)).tolist()


def test_covered_is_at_or_below_it_in_every_tree() -> None:
    rng = np.random.default_rng(1)
    checks, wrong = 0, []
    for cases, horizon, width in batches(seed=11, per_shape=120):
        steps, scores, _ = pack(cases, horizon, width)
        found = critical_kappa(steps, levels(steps, scores))
        for q, case in enumerate(cases):
            own = [found[q], math.nextafter(found[q], math.inf), math.nextafter(found[q], -math.inf)]
            for kappa in [*telling_kappas(case, rng, 7), *own]:
                said = kappa <= found[q] and found[q] > -math.inf
                wrong += [(case, kappa)] if said != outcome(case, kappa).covered else []
                checks += 1
    assert (checks, wrong) == (15 * 120 * 10, [])


def test_it_is_the_least_of_the_ways_on_and_the_answers_own_score() -> None:
    ends = (place(True, 0.9),)
    on = (place(False, 0.5),)
    assert critical(Case((on, on, ends), (1, 1, 1), (0.4, 0.3, 0.0), True)) == [0.3]


def test_it_is_infinite_where_there_is_nothing_to_find() -> None:
    wrong = ((place(False, 0.9),),)
    assert critical(Case(wrong, (1,), (0.0,), True), Case(wrong, (1,), (0.0,), False)) == [math.inf, -math.inf]


def test_it_is_infinite_where_the_right_answer_is_the_argmax_from_the_start() -> None:
    assert critical(Case(((place(True, 0.2),),), (1,), (0.9,), True)) == [math.inf]
    assert critical(Case(((place(True, 0.2),), (place(False, 0.2),)), (1, 1), (0.1, 0.0), False)) == [math.inf]


def test_a_right_answer_at_the_end_of_a_record_cut_short_is_kept_for_its_score_alone() -> None:
    """Whatever "next" scores there, even where a log holds no such score: −∞."""
    for onward in (0.9, 0.1, -math.inf, math.nan):
        cut = Case(((place(True, 0.2),),), (1,), (onward,), False)
        steps, scores, _ = pack([cut], 2, 1)
        assert critical(cut) == critical_values(steps, scores).tolist() == [0.2]
        on = Case(((place(False, 0.5),), (place(True, 0.4),)), (1, 1), (0.3, onward), False)
        assert critical(on) == [0.3]
    assert critical(Case(((place(True, math.nan),),), (1,), (0.9,), False)) == [-math.inf]


def test_no_critical_value_of_a_record_cut_short_is_above_that_of_the_whole() -> None:
    checks = 0
    for cases, horizon, width in batches(seed=12, per_shape=120):
        whole = [case._replace(complete=True) for case in cases]
        cut = [
            Case(case.steps[:many], case.costs[:many], case.onward[:many], many == len(case.steps))
            for case in whole
            for many in range(1, len(case.steps) + 1)
        ]
        full = np.repeat(_values(whole, horizon, width), [len(case.steps) for case in whole])
        assert (_values(cut, horizon, width) <= full).all()
        checks += len(cut)
    assert checks > 3_000


def _values(cases: list[Case], horizon: int, width: int) -> Floats:
    steps, scores, _ = pack(cases, horizon, width)
    found = critical_values(steps, scores)
    assert np.array_equal(found, critical_kappa(steps, levels(steps, scores)))
    return found


def test_a_score_of_minus_infinity_is_never_covered_even_at_kappa_minus_infinity() -> None:
    steps, scores, _ = pack(
        [Case(((Place(0, 0, False, 0.5, 0.5), Place(1, 1, True, -math.inf, 0.5)),), (1,), (0.0,), True)], 1, 2
    )
    found = critical_kappa(steps, levels(steps, scores))
    assert found.tolist() == [-math.inf]
    assert covered_at(found, -math.inf).tolist() == [False]


def test_covered_at_takes_one_threshold_or_one_a_question() -> None:
    values = np.array([math.inf, 0.5, 0.2, -math.inf])
    assert covered_at(values, 0.3).tolist() == [True, True, False, False]
    assert covered_at(values, np.array([math.inf, 0.6, 0.2, -1e308])).tolist() == [True, False, True, False]


def test_no_questions_have_no_critical_values() -> None:
    steps, scores, _ = pack([], 2, 2)
    assert critical_kappa(steps, levels(steps, scores)).shape == (0,)
