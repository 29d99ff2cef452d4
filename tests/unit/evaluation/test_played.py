"""What is counted for each question, and the means of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cascade.calibration.scores import Played
from cascade.conformal.arrays import ScoreArrays
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import played_at
from cascade.evaluation.evaluate import Means, means
from unit.evaluation.plain import Asked, Shown, batches, each, table_of

RIGHT, WRONG = Shown(0, 0, True, None), Shown(1, 1, False, None)
SILENT = {"p_yes": None, "reply_mean_logprob": None}


def asked(*shown: Shown, complete: bool = True, cost: int = 10) -> Asked:
    return Asked((shown,), (cost,), (SILENT,), complete)


def keep_all(table: EpisodeTable) -> ScoreArrays:
    return ScoreArrays(np.full(table.arrays.answer.shape, np.inf), np.full(table.arrays.cost.shape, -np.inf))


def test_the_means_are_those_of_a_hand_worked_log() -> None:
    table = table_of([asked(RIGHT), asked(RIGHT, WRONG), asked(WRONG), asked(WRONG, complete=False)], 1, 2)
    found = means(table, played_at(table, keep_all(table), 0.0))
    assert found == Means(
        coverage=0.75,  # the third has no right answer at all; of the fourth one might have come
        covered_given_solvable=1.0,
        unsolvable=0.25,
        in_set=0.5,
        accuracy=0.5,  # of two answers of one step without confidence the first one kept is served
        cost_usd=1e-8,
        avg_length=1.0,
        leaves=1.25,
        set_size=1.25,
    )


def test_unknown_costs_have_no_mean_and_without_solvable_questions_no_share_of_them() -> None:
    table = table_of([asked(WRONG)], 1, 2, cost_known=False)
    found = means(table, played_at(table, keep_all(table), 0.0))
    assert (found.cost_usd, found.covered_given_solvable, found.coverage) == (None, None, 1.0)


def test_means_are_those_of_plain_python() -> None:
    rng = np.random.default_rng(0)
    for questions, horizon, width in batches(seed=1, per_shape=5):
        table = table_of(questions, horizon, width)
        scores = ScoreArrays(rng.random(table.arrays.answer.shape), rng.random(table.arrays.cost.shape))
        played = played_at(table, scores, 0.5)
        did, found = each(played), means(table, played)
        solvable = [one.in_set for one, question in zip(did, questions, strict=True) if question.solvable]
        assert found.coverage == pytest.approx(sum(one.covered for one in did) / len(did))
        assert found.cost_usd == pytest.approx(sum(one.cost for one in did) / len(did) / 1e9)
        assert found.set_size == pytest.approx(sum(one.distinct for one in did) / len(did))
        assert found.unsolvable == pytest.approx(np.mean([one.complete and not one.solvable for one in questions]))
        assert found.covered_given_solvable == (pytest.approx(sum(solvable) / len(solvable)) if solvable else None)
        assert found.coverage == pytest.approx(found.in_set + found.unsolvable)  # what is kept, and what cannot be


def test_chosen_questions_keep_their_figures() -> None:
    columns = [np.arange(4.0) + k for k in range(8)]
    some = Played(*columns).take(np.array([3, 0]))
    assert [some.covered.tolist(), some.distinct.tolist()] == [[3.0, 0.0], [9.0, 6.0]]


def test_a_threshold_is_a_number() -> None:
    table = table_of([asked(RIGHT)], 1, 2)
    with pytest.raises(UsageError, match="kappa"):
        played_at(table, keep_all(table), math.nan)
