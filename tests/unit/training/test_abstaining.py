"""A ladder that may abstain: about as many answers as the last model gives alone, at no more than its cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cascade.conformal.arrays import StepArrays
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.evaluation.evaluate import play_policy
from cascade.guarantees.base import Guarantee
from cascade.training.abstaining import bars, has_one_bar, one_bar
from cascade.training.fitting import Fitted, fit_policy

ASKED = Guarantee("error", 0.1, 0.1, abstain=True)
CHEAP, DEAR = 100, 1_000


def ladder(n: int, seed: int, *, skill: float = 4.0, cheap: int = CHEAP) -> EpisodeTable:
    """Make a ladder of two models whose log-probs say how likely they are right; the first is worse."""
    chance = np.random.default_rng(seed)
    sure = np.stack([chance.beta(skill, 2.0, n), chance.beta(5.0, 1.0, n)], axis=1)
    correct = chance.random((n, 2)) < sure
    answer = np.stack([np.zeros(n, dtype=np.int64), np.where(correct.all(axis=1), 0, 1)], axis=1)
    arrays = StepArrays(
        answer[:, :, None],
        correct[:, :, None],
        np.tile(np.array([cheap, DEAR]), (n, 1)),
        np.full(n, 2),
        np.ones(n, dtype=np.bool_),
    )
    one, names = np.ones(n, dtype=np.int64), tuple(f"q{seed}-{row}" for row in range(n))
    walk = Walk(one > 0, correct[:, 1], correct[:, 1], DEAR * one, one, one, one)
    return EpisodeTable(
        dataset="made",
        ids=names,
        groups=names,
        sources=("answer",),
        arrays=arrays,
        confidence=np.full((n, 2, 1), np.nan),
        signals={"reply_mean_logprob": np.log(sure)},
        walks={LAST_ONLY: walk},
        texts_known=one > 0,
    )


def served(found: Fitted, table: EpisodeTable) -> tuple[float, float, float]:
    """Return the cost as a share of the last model's, the share answered, and the share answered wrongly."""
    played = play_policy(table, found.artifact.calibrated(found.policy))
    wrong = (played.right == 0) & (played.abstained == 0)
    return float(played.cost.mean()) / DEAR, float(1 - played.abstained.mean()), float(wrong.mean())


def last_alone(table: EpisodeTable, alpha: float) -> float:
    """Return the share of questions that the last model answers alone with alpha of all lost."""
    sure, right = table.signals["reply_mean_logprob"][:, 1], table.arrays.correct[:, 1, 0]
    lost = np.cumsum(~right[np.argsort(-sure)])
    return float(np.searchsorted(lost, alpha * table.n, side="right")) / table.n


def test_it_costs_less_than_the_guide_alone_and_answers_about_as_much() -> None:
    """0.5.0 asked both models always: 1.06 × the guide's cost on 20 of 20 splits of a real log, here 1.1 ×."""
    world = ladder(20_000, 0)
    found = fit_policy([ladder(1_500, 1)], ASKED)
    cost, answered, wrong = served(found, world)
    assert cost < 0.9
    assert answered > last_alone(world, ASKED.alpha or 0) - 0.05
    assert wrong < 0.11
    assert found.sizes.calibration == 1_200


def test_a_cheap_model_that_saves_nothing_is_not_asked() -> None:
    for log in (ladder(1_500, 2, skill=0.5), ladder(1_500, 2, cheap=DEAR)):
        found = fit_policy([log], ASKED)
        assert found.policy.takes is not None
        assert found.policy.takes.steps == (2,)
        assert served(found, ladder(5_000, 3))[0] == 1.0


def test_a_cheap_model_that_only_seems_to_save_is_hardly_ever_asked() -> None:
    """Asking it costs 1.05 × the last model alone. By their means alone, 7 of these 120 logs would choose it."""
    steps = [
        one_bar(log, ASKED).whole(log).takes
        for log in (ladder(60, seed, skill=3.0, cheap=300) for seed in range(1, 121))
    ]
    assert sum(one is not None and len(one.steps) > 1 for one in steps) <= 2


def test_the_promise_is_kept() -> None:
    world = ladder(20_000, 4)
    wrong = [served(fit_policy([ladder(300, seed)], ASKED), world)[2] for seed in range(10, 22)]
    assert np.mean([one > 0.1 for one in wrong]) <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 12)


def test_the_bars_are_tested_from_the_strictest_on_and_rest_on_no_outcome() -> None:
    table = ladder(3_000, 5)
    policy = one_bar(table, ASKED).whole(table)
    path = bars(policy, table, ASKED)  # type: ignore[arg-type]
    assert path is not None
    assert len(path) == 1_000
    assert [one.abstain_below for one in path] == sorted((one.abstain_below for one in path), reverse=True)
    assert [one.kappa for one in path] == sorted(one.kappa for one in path)
    wrong = StepArrays(*(getattr(table.arrays, name) for name in StepArrays.__slots__))
    wrong.correct[:] = False
    assert bars(policy, table, ASKED) == path  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [Guarantee("error", 0.1, 0.1), Guarantee("regret", 0.1, 0.1)],
)
def test_other_promises_have_no_such_bar(asked: Guarantee) -> None:
    assert not has_one_bar(ladder(50, 6), asked)
    assert has_one_bar(ladder(50, 6), ASKED)


def test_a_log_that_does_not_say_how_sure_each_answer_is_has_none() -> None:
    table = ladder(50, 7)
    table.signals["reply_mean_logprob"][3, 1] = np.nan
    assert not has_one_bar(table, ASKED)
