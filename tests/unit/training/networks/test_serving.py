"""What is served is what was trained: the same log-probabilities, and the same sets at the same threshold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cases import each

torch = pytest.importorskip("torch")

from cascade.calibration.scores import history_of  # noqa: E402
from cascade.conformal.arrays import (  # noqa: E402
    ScoreArrays,
    levels,
    rollout,
)
from cascade.episodes.table import EpisodeTable  # noqa: E402
from cascade.errors import UsageError  # noqa: E402
from cascade.policies.learned import LearnedPolicy  # noqa: E402
from cascade.training.networks.fitting import Learned, fit_network  # noqa: E402
from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import Batch, BatchEvaluation, TrainingProblem, served_weights, start  # noqa: E402  # noqa: E402
from cascade.training.networks.recursions import at_threshold  # noqa: E402
from cascade.training.networks.training import Trained  # noqa: E402
from cascade.training.stages import FitTarget  # noqa: E402
from unit.training.networks import made  # noqa: E402

COVERAGE, F1 = FitTarget("coverage", 0.2), FitTarget("error", 0.3)
QUICK: dict[str, Any] = {"steps": 4, "learning_rate": 0.05, "layers": (5, 4)}
"""A few large steps: far enough from where the first policy is uniform."""


def fitted(table: EpisodeTable, asked: FitTarget = COVERAGE, **more: Any) -> Learned:
    config = made.SMALL.model_copy(update=QUICK | more.pop("config", {}))
    return fit_network(table, asked, config=config, confidences=False, **more)


def at_random(setting: TrainingProblem) -> Trained:
    """Return a run that ended at random weights."""
    return Trained(start(setting)._replace(weights=made.numbers(setting.net.size, seed=3)), [], None)


def log_policy(found: Learned, level: int = 0) -> torch.Tensor:
    """Return log π of the weights that are served, as training has it on the whole log, (n, T, k)."""
    whole = found.setting
    walks = whole.walks
    if whole.levels > 1:
        told = torch.zeros(*walks.onward.shape, whole.levels, dtype=DTYPE)
        told[..., level] = 1.0
        walks = walks._replace(inputs=torch.cat([walks.inputs, told], dim=2))
    rows = walks.inputs.reshape(-1, whole.inputs)
    logits = whole.net.forward(served_weights(whole, found.trained.state), rows).outputs
    kappa = torch.full((len(walks.counts),), 0.3, dtype=DTYPE)
    batch = Batch(walks, torch.full((len(walks.counts),), level), rows)
    return BatchEvaluation(whole, batch, kappa).log_policy(logits)


def scores(policy: LearnedPolicy, table: EpisodeTable) -> ScoreArrays:
    return policy.batch(history_of(table)).scores


def agree(found: Learned, table: EpisodeTable, *, policy: LearnedPolicy | None = None, level: int = 0) -> None:
    """Hold every score on record against the network as it was trained."""
    served, logs = scores(policy or found.policy, table), log_policy(found, level).numpy()
    present, there = table.arrays.present, np.arange(table.arrays.horizon) < table.arrays.steps[:, None]
    assert present.sum() > 100
    if found.setting.walks.right is None:
        assert bool((served.candidates[present] == math.inf).all())
    else:
        np.testing.assert_allclose(served.candidates[present], logs[..., :-1][present], rtol=0, atol=1e-12)
        assert float(logs[..., :-1][present].std()) > 0.02
    on = there[:, :-1]
    np.testing.assert_allclose(served.next[:, :-1][on], logs[:, :-1, -1][on], rtol=0, atol=1e-12)
    assert bool((served.next[:, -1] == -math.inf).all())


TABLES = {
    "base and guide": made.table(places=2, ragged=False),
    "base and guide, ragged": made.table(places=2, n=90),
    "base and guide, lacking answers": made.table(places=2, n=110, holes=0.3),
    "a ladder": made.table(places=1, horizon=4, n=50, ragged=False),
    "a ladder, ragged": made.table(places=1, horizon=4, n=90),
}


@each("table", TABLES.values())
@each("activation", ["softsign", "relu"])
@each("method", ["ccpo", "cpo"])
def test_the_log_probabilities_served_are_those_trained(table: EpisodeTable, activation: str, method: str) -> None:
    """At every step on record; also where signals lack, where a question ends early, and where its record does."""
    agree(fitted(table, method=method, config={"activation": activation}), table)


def test_the_tables_are_as_odd_as_they_say() -> None:
    ragged = TABLES["base and guide, ragged"].arrays
    short = ragged.steps < ragged.horizon
    assert min((short & ragged.complete).sum(), (short & ~ragged.complete).sum()) > 10
    lacking = TABLES["base and guide, lacking answers"].arrays
    assert (lacking.present.sum(axis=2) == 1).sum() > 30
    assert 0.2 < np.isnan(TABLES["a ladder, ragged"].signals["p_yes"]).mean() < 0.8


@pytest.mark.parametrize("name", ["base and guide, ragged", "a ladder, ragged"])
def test_where_every_answer_is_kept_stopping_alone_is_served(name: str) -> None:
    table = TABLES[name]
    found = fitted(table, F1)
    assert found.setting.walks.actions == 2
    agree(found, table)


@pytest.mark.parametrize("name", ["base and guide, ragged", "a ladder, ragged"])
@pytest.mark.parametrize("method", ["ccpo", "cpo"])
def test_each_level_is_served_as_it_was_trained(name: str, method: str) -> None:
    table = TABLES[name]
    asked = {f"{alpha}": FitTarget("coverage", alpha) for alpha in (0.05, 0.2, 0.5)}
    config = made.SMALL.model_copy(update=QUICK)
    found = fit_network(table, asked, config=config, method=method, confidences=False)
    assert list(found.policies) == list(asked)
    for level, policy in enumerate(found.policies.values()):
        agree(found, table, policy=policy, level=level)
        if method == "ccpo":
            assert policy.kappa == pytest.approx(math.log(float(found.trained.state.kappa[level])))
    assert (log_policy(found, 0) - log_policy(found, 2)).abs().nan_to_num().max() > 0.01


@each("table", TABLES.values())
@each("kappa", [0.05, 0.2, 1 / 3, 0.45, 0.6, 1.5])
def test_the_sets_trained_at_a_threshold_are_those_served_at_its_logarithm(table: EpisodeTable, kappa: float) -> None:
    found = fitted(table)
    served, arrays = scores(found.policy, table), table.arrays
    meant = rollout(arrays, levels(arrays, served), math.log(kappa))
    # Costs as they were: those trained on are cut, and go on where the record of an open question ends.
    walks = found.setting.walks._replace(cost=torch.from_numpy(arrays.cost / made.UNIT))
    got = at_threshold(log_policy(found), walks, torch.full((table.n,), kappa, dtype=DTYPE))
    assert np.allclose(got.cost, meant.cost / made.UNIT)
    missed = (~meant.covered).astype(np.float64)
    assert np.array_equal(got.loss.numpy()[arrays.complete], missed[arrays.complete])
    # Whether an answer at the open end of a record is the argmax is unknown, and where it is, its score may do.
    assert bool((got.loss.numpy() <= missed).all())
    if kappa <= 1 / found.setting.walks.actions:
        assert np.array_equal(got.loss.numpy(), missed)


@pytest.mark.parametrize("kappa", [0.2, 0.5, 0.7])
def test_where_every_answer_is_kept_a_walk_stops_in_training_where_it_does_served(kappa: float) -> None:
    table = TABLES["base and guide, ragged"]
    found = fitted(table, F1)
    arrays = table.arrays
    meant = rollout(arrays, levels(arrays, scores(found.policy, table)), math.log(kappa))
    walks = found.setting.walks._replace(cost=torch.from_numpy(arrays.cost / made.UNIT))
    got = at_threshold(log_policy(found), walks, torch.full((table.n,), kappa, dtype=DTYPE))
    assert np.allclose(got.cost, meant.cost / made.UNIT)
    whole = arrays.complete
    lost = walks.stop_loss.numpy()[np.arange(table.n), meant.length - 1]
    assert np.array_equal(got.loss.numpy()[whole], lost[whole])


@pytest.mark.parametrize("method", ["cpo", "cpo_batch"])
@pytest.mark.parametrize("asked", [COVERAGE, F1], ids=["answers scored", "every answer kept"])
def test_a_policy_of_one_action_is_served_at_its_likeliest(method: str, asked: FitTarget) -> None:
    table = TABLES["base and guide"]
    found = fitted(table, asked, method=method, run=at_random)
    policy = log_policy(found).exp()
    on = policy.argmax(-1) == policy.shape[-1] - 1
    length = 1 + on[:, :-1].cumprod(1).sum(1).numpy()
    assert 0.1 < float((length > 1).mean()) < 1
    steps = table.arrays
    assert np.array_equal(rollout(steps, levels(steps, scores(found.policy, table)), found.policy.kappa).length, length)


def test_other_methods_have_the_threshold_that_was_trained() -> None:
    table = TABLES["base and guide"]
    for method in ("ccpo", "cpo_online"):
        found = fitted(table, method=method)
        assert found.policy.method == method
        assert found.policy.kappa == pytest.approx(math.log(float(found.trained.state.kappa[0])))


def test_what_cannot_be_fitted_is_said() -> None:
    table = TABLES["base and guide"]
    with pytest.raises(UsageError, match="no policy network 'ppo'; there are cpo, cpo_batch, cpo_online, ccpo"):
        fitted(table, method="ppo")
    with pytest.raises(UsageError, match="one step a question"):
        fitted(made.table(horizon=1, ragged=False))
    with pytest.raises(UsageError, match="no question"):
        fitted(table.take(np.zeros(table.n, dtype=np.bool_)))


def test_an_answers_charge_is_without_effect_on_promises_on_the_answer_served() -> None:
    table = TABLES["base and guide"]
    free, charged = (fitted(table, FitTarget("error", 0.3), config={"lambda_set": charge}) for charge in (0.0, 2.0))
    assert torch.equal(free.trained.state.weights, charged.trained.state.weights)
    costly = fitted(table, config={"lambda_set": 2.0})
    assert not torch.equal(costly.trained.state.weights, fitted(table).trained.state.weights)
