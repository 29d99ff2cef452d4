"""Which answer is served: confidences that follow what is known now, and never worse than the strategy's own."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.calibration.scores import scored
from cascade.conformal.arrays import Floats
from cascade.conformal.served import served_right
from cascade.episodes.table import EpisodeTable
from cascade.guarantees import get
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.stages import LEAST_ROWS, FitTarget, fit_answers, own_answers, staged
from cascade.training.stopping import build, fit_net_benefit
from unit.training.worlds import log, without


def rivals(n: int, seed: int) -> EpisodeTable:
    """Return a ladder of two models: each is right where its own signal is high, mostly; the second no more often."""
    rng = np.random.default_rng(seed)
    sign = rng.normal(size=(n, 2))
    correct = rng.random((n, 2)) < 1 / (1 + np.exp(-3 * sign))
    table = log(correct[:, :, None], np.tile([10, 30], (n, 1)), {"sign": sign}, name=f"r{seed}")
    # Two right answers are the same text; the log says so.
    return without(table, texts_known=np.ones(n, dtype=np.bool_))


def served(table: EpisodeTable, policy: LearnedPolicy) -> Floats:
    """Return how often the answer served after each step is right, by the policy's confidences."""
    return np.asarray(served_right(table.arrays, scored(policy, table)[0].confidence).mean(axis=0))


def policy_with(train: EpisodeTable, **given: object) -> LearnedPolicy:
    stages = staged(train)
    answers = fit_answers(train, stages, **given)  # type: ignore[arg-type]  # seed and init
    nothing = (None,) * len(train.sources)
    rules = zip(stages, answers.confidence, answers.incumbent, strict=True)
    return LearnedPolicy(
        "net_benefit", tuple(StepRule(stage.features, None, nothing, sure, old) for stage, sure, old in rules)
    )


def test_the_likelier_answer_is_served_and_not_the_latest() -> None:
    train, test = rivals(1_000, seed=1), rivals(5_000, seed=2)
    learned, own = served(test, policy_with(train)), served_right(test.arrays, test.confidence).mean(axis=0)
    assert learned[0] == own[0]
    assert learned[1] > own[1] + 0.1
    # Nobody who sees both signals does better than to serve the one with the higher.
    sign = test.signals["sign"]
    best = np.where(sign[:, 0] > sign[:, 1], test.arrays.correct[:, 0, 0], test.arrays.correct[:, 1, 0]).mean()
    assert learned[1] > best - 0.01


def test_confidences_are_probabilities_that_hold() -> None:
    train, test = rivals(2_000, seed=3), rivals(20_000, seed=4)
    first = scored(policy_with(train), test)[0].confidence[:, 0, 0]
    for low, high in ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)):
        some = (first >= low) & (first < high)
        assert abs(first[some].mean() - test.arrays.correct[some, 0, 0].mean()) < 0.04


def test_the_second_step_says_what_the_first_answer_is_worth_now() -> None:
    """At step 1 nothing is seen; what step 2 shows is about the answer of step 1."""
    rng = np.random.default_rng(0)
    n = 1_500
    correct = np.stack([rng.random(n) < 0.7, rng.random(n) < 0.6], axis=1)
    tells = np.stack([rng.normal(size=n), np.where(correct[:, 0], 1.0, -1.0) + rng.normal(0, 0.3, n)], axis=1)
    table = log(correct[:, :, None], np.tile([1, 1], (n, 1)), {"tells": tells})
    table = without(table, texts_known=np.ones(n, dtype=np.bool_))
    train, test = table.take(np.arange(750)), table.take(np.arange(750, n))
    assert served(test, policy_with(train))[1] > 0.85  # 0.7 + 0.3 · 0.6 = 0.88 is the most; the latest alone is 0.6


def test_out_of_fold_they_rank_as_the_policy_would_and_say_how_often_it_is_right() -> None:
    train = rivals(600, seed=5)
    answers = fit_answers(train, staged(train), seed=1)
    assert answers.fitted
    assert answers.right > own_answers(train).right
    assert answers.right == pytest.approx(served_right(train.arrays, answers.out_of_fold).mean())
    live = scored(policy_with(train, seed=1), train)[0].confidence
    assert np.corrcoef(live.ravel(), answers.out_of_fold.ravel())[0, 1] > 0.98
    assert not np.array_equal(live, answers.out_of_fold)


def test_where_the_strategy_knows_better_its_own_confidences_stay() -> None:
    rng = np.random.default_rng(2)
    n = 300
    correct = rng.random((n, 2, 1)) < 0.5
    sure = np.where(correct, 0.9, 0.1) + rng.normal(0, 0.01, correct.shape)
    table = log(correct, np.tile([1, 1], (n, 1)), {"noise": rng.normal(size=(n, 2))}, confidence=sure)
    stages = staged(table)
    # The confidences are features as well; without them nothing is known.
    blind = staged(without(table, confidence=np.full_like(sure, np.nan)))
    answers = fit_answers(table, blind)
    assert not answers.fitted
    assert answers.right == own_answers(table).right
    assert np.array_equal(answers.out_of_fold, table.confidence)
    assert fit_answers(table, stages).right >= answers.right


@pytest.mark.parametrize("n", [1, LEAST_ROWS - 1])
def test_too_few_answers_leave_the_strategys_own(n: int) -> None:
    table = rivals(n, seed=1)
    answers = fit_answers(table, staged(table))
    assert not answers.fitted
    assert answers.confidence == own_answers(table).confidence


def test_questions_of_one_group_leave_the_strategys_own() -> None:
    table = without(rivals(100, seed=1), groups=("all",) * 100)
    assert not fit_answers(table, staged(table)).fitted


def test_the_single_answers_loss_is_that_of_the_answer_the_policy_will_serve() -> None:
    train, test = rivals(1_500, seed=6), rivals(5_000, seed=7)
    policy = fit_net_benefit(build(train, FitTarget("error", 0.3), confidences=False))
    assert policy.judges
    shown, _ = scored(policy, test)
    after = get("error").loss(test, shown.confidence).mean(axis=0)
    own = get("error").loss(test).mean(axis=0)
    assert after[1] < own[1] - 0.1
    assert after[1] < after[0] - 0.1
