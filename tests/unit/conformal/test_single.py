"""The single answer picked from arrays is the one that the engine serves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cascade.conformal.arrays import levels
from cascade.conformal.served import serves, single
from cascade.engine import abstains
from cascade.errors import UsageError
from unit.conformal.brute import Case, Place, batches, pack, served, telling_kappas


def case(*places: Place) -> Case:
    """Return a question of one candidate a step that goes on to the end."""
    many = len(places)
    return Case(tuple((p,) for p in places), (1,) * many, (1.0,) * many, True)


def picked(*places: Place) -> int:
    steps, scores, confidence = pack([case(*places)], len(places), 1)
    found = single(steps, levels(steps, scores), confidence, 0.5)
    assert (found.answer[0], found.right[0]) == served(case(*places), 0.5)
    return int(found.answer[0])


def test_it_agrees_with_the_engines_rank_on_random_cases() -> None:
    rng = np.random.default_rng(1)
    checks, wrong = 0, []
    for cases, horizon, width in batches(seed=21, per_shape=120):
        steps, scores, confidence = pack(cases, horizon, width)
        found = levels(steps, scores)
        kappas = np.array([telling_kappas(each, rng, 6) for each in cases])
        for column in range(6):
            got = single(steps, found, confidence, kappas[:, column])
            for q, each in enumerate(cases):
                wanted = served(each, float(kappas[q, column]))
                wrong += [(each, wanted)] if (got.answer[q], got.right[q]) != wanted else []
                checks += 1
    assert (checks, wrong) == (15 * 120 * 6, [])


def test_the_highest_confidence_comes_first() -> None:
    assert picked(Place(0, 0, True, 0.9, 0.8), Place(0, 1, False, 0.9, 0.4), Place(0, 1, False, 0.9, 0.7)) == 0


def test_then_votes_then_the_later_step() -> None:
    assert picked(Place(0, 0, True, 0.9, 0.8), Place(0, 1, False, 0.9, 0.8), Place(0, 0, True, 0.9, 0.1)) == 0
    assert picked(Place(0, 0, True, 0.9, 0.8), Place(0, 1, False, 0.9, 0.8)) == 1


def test_an_unknown_confidence_ranks_below_every_known_one() -> None:
    unknown, known = Place(0, 1, False, 0.9, math.nan), Place(0, 0, True, 0.9, 0.0)
    assert picked(known, unknown, unknown) == 0
    assert picked(unknown, unknown, known._replace(confidence=-0.5)) == 0
    assert picked(unknown, known._replace(confidence=-2.0)) == 1, "as engine.rank has it: unknown is −1"


def test_an_answer_is_as_right_as_its_surest_candidate_and_of_equals_the_first() -> None:
    for sure, right in ((0.9, False), (0.5, True), (math.nan, True)):
        steps, scores, confidence = pack([case(Place(0, 0, True, 0.9, 0.5), Place(0, 0, False, 0.9, sure))], 2, 1)
        assert single(steps, levels(steps, scores), confidence, 0.5).right.tolist() == [right]


def test_nothing_kept_is_wrong() -> None:
    steps, scores, confidence = pack([Case(((),), (1,), (0.0,), True)], 1, 1)
    found = single(steps, levels(steps, scores), confidence, 0.5)
    assert (found.answer.tolist(), found.right.tolist(), found.error) == ([-1], [False], 1.0)


def test_the_error_is_the_share_that_is_not_right() -> None:
    right, wrong = Place(0, 0, True, 0.9, 0.5), Place(0, 0, False, 0.9, 0.5)
    steps, scores, confidence = pack([case(right), case(wrong), case(right), case(right)], 1, 1)
    assert single(steps, levels(steps, scores), confidence, 0.5).error == 0.25


def test_it_is_as_sure_as_the_surest_of_the_candidates_that_give_it() -> None:
    sure, doubtful, silent = (Place(0, 0, True, 0.9, each) for each in (0.8, 0.3, math.nan))
    cases = [case(doubtful, sure, silent), case(silent, doubtful, silent), case(silent, silent, silent)]
    steps, scores, confidence = pack([*cases, Case(((),), (1,), (0.0,), True)], 3, 1)
    found = single(steps, levels(steps, scores), confidence, 0.5).sure
    assert found[:2].tolist() == [0.8, 0.3]
    assert np.isnan(found[2:]).all(), "unknown, and nothing kept"


def test_no_questions_have_no_error() -> None:
    steps, scores, confidence = pack([], 2, 2)
    assert math.isnan(single(steps, levels(steps, scores), confidence, 0.5).error)


def test_confidence_of_another_shape_is_refused() -> None:
    steps, scores, confidence = pack([case(Place(0, 0, True, 0.9, 0.5))], 1, 1)
    with pytest.raises(UsageError, match=r"confidence must have the shape \(1, 1, 1\)"):
        single(steps, levels(steps, scores), confidence[:, :, 0], 0.5)


def test_an_answer_is_served_on_a_log_where_the_engine_serves_it() -> None:
    levels_of_doubt = [-math.inf, 0.0, 0.5, 1.0, math.inf]
    for sure in (math.nan, *levels_of_doubt):
        for below in levels_of_doubt:
            said = not abstains(None if math.isnan(sure) else sure, below)
            assert serves(np.array([sure]), below).tolist() == [said]
            assert serves(np.array([sure]), np.array([below])).tolist() == [said]
