"""One policy on a log: its exact means, and how far the questions that happened to be asked speak for others."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.evaluate import evaluate
from cascade.evaluation.logs import open_log
from cascade.policies.calibrated import EVERYTHING, CalibratedPolicy, Threshold
from cascade.policies.fixed import FixedPolicy
from cascade.policies.prompted import PromptedPolicy
from cascade.policies.threshold import ThresholdPolicy
from unit.evaluation.plain import Asked, Shown, draw, live, table_of

SILENT = {"p_yes": None, "reply_mean_logprob": None}


def asked(right: bool, cost: int = 1_000) -> Asked:
    return Asked(((Shown(0, 0, right, None),),), (cost,), (SILENT,), True)


def coin(n: int, seed: int = 0) -> list[Asked]:
    return [asked(bool(right)) for right in np.random.default_rng(seed).random(n) < 0.5]


def test_the_means_are_those_of_the_policy_live() -> None:
    rng = np.random.default_rng(1)
    questions = [draw(rng, 3, 2) for _ in range(80)]
    policy = ThresholdPolicy(0.4, "both")
    found = evaluate(table_of(questions, 3, 2), policy, resamples=10)
    did = [live(one, policy, 2) for one in questions]
    assert (found.n, found.horizon, found.kappa, found.dataset) == (80, 3, 0.4, "made")
    assert found.mean.coverage == pytest.approx(sum(one.covered for one in did) / 80)
    assert found.mean.accuracy == pytest.approx(sum(one.right for one in did) / 80)
    assert found.mean.cost_usd == pytest.approx(sum(one.cost for one in did) / 80 / 1e9)
    assert found.mean.avg_length == pytest.approx(sum(one.length for one in did) / 80)


def test_every_interval_holds_its_mean() -> None:
    rng = np.random.default_rng(2)
    found = evaluate(table_of([draw(rng, 3, 2) for _ in range(60)], 3, 2), FixedPolicy("both", 2))
    means = asdict(found.mean)
    assert set(means) - set(found.intervals) == {"covered_given_solvable"}
    assert all(low <= means[name] <= high for name, (low, high) in found.intervals.items())


def test_the_bootstraps_width_is_that_of_the_binomial() -> None:
    n = 400
    found = evaluate(table_of(coin(n), 1, 1), FixedPolicy(), resamples=4_000)
    low, high = found.intervals["accuracy"]
    p = found.mean.accuracy
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(p * (1 - p) / n), rel=0.08)


def test_groups_are_drawn_whole_so_that_copies_add_nothing() -> None:
    questions = [one for one in coin(100, seed=3) for _ in range(4)]
    groups = [f"g{k // 4}" for k in range(400)]
    apart = evaluate(table_of(questions, 1, 1), FixedPolicy(), resamples=2_000).intervals["accuracy"]
    together = evaluate(table_of(questions, 1, 1, groups=groups), FixedPolicy(), resamples=2_000).intervals["accuracy"]
    assert (together[1] - together[0]) / (apart[1] - apart[0]) == pytest.approx(2, rel=0.15)


def test_groups_of_any_size_give_shares() -> None:
    questions, groups = [asked(True)] * 9 + [asked(False)], ["large"] * 9 + ["small"]
    low, high = evaluate(table_of(questions, 1, 1, groups=groups), FixedPolicy(), resamples=500).intervals["accuracy"]
    assert (low, high) == (0.0, 1.0)  # of two groups drawn, both may be the small one, or both the large one


def test_the_same_seed_gives_the_same_intervals() -> None:
    table = table_of(coin(50), 1, 1)
    one, again, other = (evaluate(table, FixedPolicy(), seed=seed, resamples=50) for seed in (4, 4, 5))
    assert one == again
    assert one.intervals != other.intervals


def test_unknown_costs_have_neither_mean_nor_interval() -> None:
    found = evaluate(table_of(coin(10), 1, 1, cost_known=False), FixedPolicy(), resamples=10)
    assert found.mean.cost_usd is None
    assert "cost_usd" not in found.intervals


def test_one_question_is_sure_of_itself() -> None:
    found = evaluate(table_of([asked(True)], 1, 1), FixedPolicy(), resamples=10)
    assert found.intervals["accuracy"] == (1.0, 1.0)


def test_a_policy_whose_signal_is_not_in_the_log_is_refused() -> None:
    table = open_log("simulated:mmlu/llama-2-7b,30").tables[0]
    with pytest.raises(UsageError, match=r"looks at decided_action or says_exit, and .* has no such signal; it has: "):
        evaluate(table, PromptedPolicy())


def calibrated(policy: ThresholdPolicy, groups: dict[str | None, Threshold]) -> CalibratedPolicy:
    return CalibratedPolicy(policy, groups[None], groups)


def test_a_calibrated_policy_is_played_at_each_groups_threshold() -> None:
    rng = np.random.default_rng(4)
    questions = [draw(rng, 3, 2) for _ in range(90)]
    names = [("one", "two", "three", "four")[k % 4] for k in range(90)]
    table = replace(table_of(questions, 3, 2), groups=tuple(names))
    thresholds = {None: Threshold(0.5), "one": Threshold(0.1), "two": EVERYTHING, "three": Threshold(0.4)}
    found = evaluate(table, calibrated(ThresholdPolicy(keep="both"), thresholds), resamples=10)
    depth = {"one": 0.1, "two": -1.0, "three": 0.4, "four": 0.5}
    did = [live(one, ThresholdPolicy(depth[name], "both"), 2) for one, name in zip(questions, names, strict=True)]
    assert found.kappa == 0.5
    assert found.mean.avg_length == pytest.approx(sum(one.length for one in did) / 90)
    assert found.mean.coverage == pytest.approx(sum(one.covered for one in did) / 90)
    assert found.mean.cost_usd == pytest.approx(sum(one.cost for one in did) / 90 / 1e9)


def test_where_nothing_is_served_nothing_is_right() -> None:
    rng = np.random.default_rng(5)
    table = table_of([draw(rng, 2, 2) for _ in range(50)], 2, 2)
    sure = replace(table, confidence=np.full(table.confidence.shape, 0.6))

    def accuracy(abstain_below: float | None, table: EpisodeTable = sure) -> float:
        policy = calibrated(ThresholdPolicy(keep="both"), {None: Threshold(0.3, abstain_below=abstain_below)})
        return evaluate(table, policy, resamples=10).mean.accuracy

    assert accuracy(None) == accuracy(-math.inf) == accuracy(0.6) > 0
    assert accuracy(0.61) == accuracy(math.inf) == 0
    unknown = replace(table, confidence=np.full(table.confidence.shape, np.nan))
    assert accuracy(-math.inf, unknown) > 0
    assert accuracy(0.0, unknown) == 0  # an unknown confidence is not enough
