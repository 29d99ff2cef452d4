"""What a policy does on a log, each question at a threshold of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cascade.calibration.scores import play, realised
from cascade.conformal.arrays import ScoreArrays
from cascade.engine import abstains
from cascade.errors import UsageError
from cascade.policies.artifact import EVERYTHING, Threshold
from unit.conformal.brute import Case, batches, outcome, pack, served
from unit.evaluation.plain import Asked, Shown, each, table_of


def test_each_question_is_played_at_its_own_threshold() -> None:
    """Against the trees of each, the engine's answer and its rule for abstaining."""
    kinds = [Threshold(0.3), Threshold(math.inf), Threshold(0.1, abstain_below=0.5), EVERYTHING]
    for cases, horizon, width in batches(seed=31, per_shape=24):
        steps, scores, confidence = pack(cases, horizon, width)
        table = table_of([_asked(case) for case in cases], horizon, width)
        confidence = np.where(steps.present, confidence, np.nan)
        assert np.array_equal(table.arrays.answer, steps.answer)
        assert np.array_equal(table.confidence, confidence, equal_nan=True)
        before = scores.candidates.copy()
        thresholds = [kinds[q % 4] for q in range(len(cases))]
        played = play(table, scores, thresholds)
        assert np.array_equal(before, scores.candidates, equal_nan=True)
        for case, one, did, abstained in zip(cases, thresholds, each(played), played.abstained, strict=True):
            shown = _whole(case) if one.keeps_everything else case
            wanted, (answer, right) = outcome(shown, one.kappa), served(shown, one.kappa)
            fields = (did.covered, did.in_set, did.cost, did.length, did.leaves, did.distinct)
            assert fields == (
                *(wanted.covered, wanted.in_set, wanted.cost, wanted.length),
                *(wanted.leaves, wanted.distinct),
            )
            if one.abstain_below is None:
                _, right = served(shown, one.kappa, at_any_cost=shown.complete)
                assert (did.right, abstained) == (right, 0.0)
            else:
                assert did.right == (right and not abstained)
                assert abstained or answer >= 0  # where nothing is kept it is not known how sure


def _asked(case: Case) -> Asked:
    steps = tuple(
        tuple(Shown(p.index, p.answer, p.right, None if math.isnan(p.confidence) else p.confidence) for p in places)
        for places in case.steps
    )
    silent = {"p_yes": None, "reply_mean_logprob": None}
    return Asked(steps, case.costs, (silent,) * len(steps), case.complete)


def _whole(case: Case) -> Case:
    return case._replace(
        steps=tuple(tuple(p._replace(score=math.inf) for p in places) for places in case.steps),
        onward=(math.inf,) * len(case.onward),
    )


def test_an_answer_is_withheld_where_the_engine_would() -> None:
    sures, below = [0.2, 0.5, 0.8, None], [None, -math.inf, 0.5, math.inf]
    silent = {"p_yes": None, "reply_mean_logprob": None}
    asked = [Asked(((Shown(0, 0, True, sure),),), (1,), (silent,), True) for sure in sures for _ in below]
    thresholds = [Threshold(0.0, abstain_below=bar) for _ in sures for bar in below]
    table = table_of(asked, 1, 1)
    played = play(table, ScoreArrays(np.ones((16, 1, 1)), np.zeros((16, 1))), thresholds)
    wanted = [float(abstains(sure, bar)) for sure in sures for bar in below]
    assert played.abstained.tolist() == wanted
    assert played.right.tolist() == [1 - one for one in wanted]
    means = realised(table, played)
    assert means is not None
    assert (means.n, means.abstained, means.error) == (16, sum(wanted) / 16, 0.0)
    assert realised(table, played, played.abstained > 1) is None


def test_as_many_thresholds_as_questions() -> None:
    table = table_of([], 1, 1)
    nothing = ScoreArrays(np.zeros((0, 1, 1)), np.zeros((0, 1)))
    assert play(table, nothing, EVERYTHING).covered.shape == (0,)
    with pytest.raises(UsageError, match="2 thresholds for 0 questions"):
        play(table, nothing, [EVERYTHING, EVERYTHING])
