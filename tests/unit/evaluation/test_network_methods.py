"""Policy networks as methods: each plays as its method serves, and what is the same network is trained once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from simulated import WORLDS, simulate

from cascade.calibration.scores import scored
from cascade.episodes.table import EpisodeTable
from cascade.errors import MissingExtraError, UsageError
from cascade.evaluation.baselines import played_at
from cascade.evaluation.compare import compare
from cascade.evaluation.network_methods import (
    CCPO,
    CPO,
    CPO_BATCH,
    CPO_ONLINE,
    PolicyNetwork,
    network_methods,
)
from cascade.guarantees.base import Guarantee
from cascade.policies.learned import LearnedPolicy
from cascade.training.dividing import allowed_loss
from cascade.training.networks import fitting
from cascade.training.networks import trainer as networks
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.trainer import Networks
from cascade.training.stages import FitTarget

ALPHA, SEED = 0.1, 3
QUICK = CCPOConfig(steps=60, layers=(16,))
DRAWN = simulate(WORLDS["hotpotqa/llama-2-7b"], 500, seed=4)
TRAIN, CALIBRATION, TEST = (DRAWN.take(np.arange(*ends)) for ends in ((0, 200), (200, 300), (300, 500)))


@pytest.fixture(scope="module")
def methods() -> dict[str, Any]:
    """Return the methods: what one of them trained, the others of a test after it play too."""
    return {one.name: one for one in network_methods(TRAIN, QUICK)}


@cache
def fitted(method: str) -> LearnedPolicy:
    """Return what a method trains by itself, as the methods ask for it."""
    loss = allowed_loss(Guarantee("coverage", ALPHA), CALIBRATION.n)
    asked = FitTarget("coverage", loss)
    return fitting.fit_network(TRAIN, asked, method=method, config=QUICK, confidences=False, seed=SEED).policy


def played(method: Any, table: EpisodeTable = TEST) -> Any:
    return method.prepare(TRAIN, CALIBRATION, ALPHA, SEED).play(table)


def assert_same(one: Any, other: Any) -> None:
    for name in ("covered", "cost", "length", "leaves", "distinct"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_cpo_and_cpo_online_are_played_as_their_methods_serve(methods: dict[str, Any]) -> None:
    for name, method in ((CPO, "cpo"), (CPO_ONLINE, "cpo_online")):
        policy = fitted(method)
        assert_same(played(methods[name]), played_at(TEST, scored(policy, TEST)[1], policy.kappa))


def test_the_shared_network_is_the_one_that_each_method_trains_by_itself() -> None:
    alone = [scored(fitted(method), TEST)[1] for method in ("cpo", "cpo_batch", "cpo_online")]
    for other in alone[1:]:
        assert np.array_equal(alone[0].candidates, other.candidates)
        assert np.array_equal(alone[0].next, other.next)


def test_the_argmax_keeps_one_answer_and_a_threshold_more(methods: dict[str, Any]) -> None:
    assert played(methods[CPO]).leaves.tolist() == [1.0] * TEST.n
    assert played(methods[CPO_BATCH]).leaves.mean() > 1


def test_a_calibrated_network_misses_what_split_conformal_allows_on_its_calibration_questions(
    methods: dict[str, Any],
) -> None:
    for name in (CPO_BATCH, CCPO):
        on_calibration = played(methods[name], CALIBRATION)
        missed = int((1 - on_calibration.covered).sum())
        # The threshold is the k-th smallest critical value, k = ⌊0.1 · 101⌋ = 10: it covers all but at most 9.
        assert missed <= 9, name
        assert missed >= 5, name


def test_three_of_the_four_share_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {one.name: one for one in network_methods(TRAIN, QUICK)}
    trained: list[str] = []
    original = fitting.fit_network

    def counting(table: EpisodeTable, asked: Mapping[str, FitTarget], **settings: Any) -> Any:
        trained.append(settings["method"])
        return original(table, asked, **settings)

    monkeypatch.setattr(fitting, "fit_network", counting)
    for one in methods.values():
        one.prepare(TRAIN, CALIBRATION, ALPHA, SEED)
    assert trained == ["cpo_online", "ccpo"]
    methods[CPO].prepare(TRAIN, CALIBRATION, ALPHA, SEED + 1)
    other = TRAIN.take(np.arange(TRAIN.n))
    methods[CPO].prepare(other, CALIBRATION, ALPHA, SEED)  # the same questions, but another table
    methods[CPO].prepare(other, CALIBRATION, 0.3, SEED)
    assert trained == ["cpo_online", "ccpo", "cpo_online", "cpo_online", "cpo_online"]


def test_a_charge_for_answers_keeps_fewer_of_them() -> None:
    configs = [CCPOConfig(steps=300, layers=(16,), lambda_set=charge) for charge in (0.0, 1.0)]
    free, charged = (PolicyNetwork("CCPO", Networks(config)) for config in configs)
    each = [played(one) for one in (charged, free)]
    kept = [float(one.leaves.sum() / one.length.sum()) for one in each]  # of a step's two answers
    assert kept[0] < kept[1] - 0.03


def test_networks_are_compared_beside_the_others() -> None:
    found = compare(DRAWN, count=1, others=network_methods(DRAWN, QUICK))
    names = [row.policy for row in found.rows]
    assert names[-5:] == [CPO, CPO_BATCH, CPO_ONLINE, CCPO, "clairvoyant bound"]
    assert found.row(CPO).matched_cost_usd is None
    assert found.row(CPO_BATCH).matched_cost_usd == found.row(CPO_ONLINE).matched_cost_usd
    assert found.row(CPO).fit_seconds > found.row(CPO_BATCH).fit_seconds  # who asks first trains


def test_nothing_is_to_be_decided_of_one_step() -> None:
    world = replace(WORLDS["hotpotqa/llama-2-7b"], rounds=1, exit_base_rounds=1.0, exit_guide_rounds=1.0)
    assert network_methods(simulate(world, 50, seed=1)) == []


def test_without_torch_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs the package torch.*\[train\]"):
        network_methods(TRAIN)


def test_the_threshold_of_the_argmax_is_above_all_log_probabilities() -> None:
    scores = scored(fitted("cpo"), TEST)[1]
    assert max(float(scores.candidates.max()), float(scores.next.max())) <= 0 < math.inf


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UsageError, match="no policy network"):
        PolicyNetwork("x", Networks(QUICK), method="ppo").prepare(TRAIN, CALIBRATION, ALPHA, SEED)
