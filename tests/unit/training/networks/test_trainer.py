"""Policy networks among the candidates and in levels."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from importlib import util
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from cascade.calibration.scores import sample_of
from cascade.episodes.table import EpisodeTable
from cascade.errors import MissingExtraError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import MODEL_FILE
from cascade.policies.learned import BARE, CERTIFIABLE, NETWORKS
from cascade.training.dividing import about_training, divided, ended_early
from cascade.training.fitting import Fitted, fit_policy, objective_of
from cascade.training.levels import conditioned, fit_levels
from cascade.training.networks import mlp as devices
from cascade.training.networks import trainer as module
from cascade.training.networks import training
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.problem import TrainingProblem
from cascade.training.networks.trainer import Networks, require_torch
from cascade.training.portfolio import asked_of, portfolio
from unit.calibration.logs import log

DAY = date(2026, 11, 21)
SMALL = CCPOConfig(layers=(6,), batch=20, steps=20)
COVERAGE = Guarantee("coverage", 0.1)


def fit(table: EpisodeTable, guarantee: Guarantee = COVERAGE, **more: Any) -> Fitted:
    given = {"method": "ccpo", "today": DAY, "networks": Networks(SMALL)} | more
    return fit_policy([table], guarantee, **given)


def objective(table: EpisodeTable, guarantee: Guarantee = COVERAGE) -> Any:
    return objective_of(divided([table], guarantee), guarantee)


# --- as candidates


class Counting(Networks):
    """Networks that count the runs of training."""

    runs = 0

    def _trained(self, setting: TrainingProblem) -> training.Trained:
        self.runs += 1
        return super()._trained(setting)


def test_a_network_is_trained_once_and_certified() -> None:
    networks = Counting(SMALL)
    found = fit(log(300), networks=networks)
    assert networks.runs == 1  # though the choice asks for it too
    assert found.policy.method == found.choice.winner.method == "ccpo"
    assert found.choice.folds == 0
    assert found.artifact.certificates[0].n == found.sizes.calibration
    assert found.learning is not None
    assert (found.learning.steps, found.learning.questions, found.learning.levels) == (20, found.sizes.training, 1)
    again = fit(log(300))
    assert again.artifact == found.artifact
    assert again.learning == found.learning
    assert fit(log(300), seed=1).artifact.files != found.artifact.files


@pytest.mark.parametrize("method", CERTIFIABLE)
@pytest.mark.parametrize(
    "guarantee",
    [
        COVERAGE,
        Guarantee("error", 0.5, 0.2),
        Guarantee("regret", 0.4, 0.2),
        Guarantee("coverage", 0.3, by_segment=True),
    ],
)
def test_every_kind_of_promise_can_be_asked_of_a_network(method: str, guarantee: Guarantee) -> None:
    networks = Counting(SMALL.model_copy(update={"steps": 5}))
    found = fit(promised(guarantee), guarantee, method=method, networks=networks, allow_everything=True)
    assert found.policy.method == method
    assert {one.kind for one in found.artifact.certificates} == {guarantee.kind}
    assert networks.runs == 1


def promised(guarantee: Guarantee) -> EpisodeTable:
    """Return a log that has what a kind of promise needs."""
    table = log(400)
    if guarantee.by_segment:
        table = replace(table, segments=("law", "medicine") * 200)
    return table


def test_auto_tries_networks_where_they_are_offered_and_not_otherwise() -> None:
    table = log(120)
    plain = [one.name for one in portfolio(table, objective(table))]
    offered = portfolio(table, objective(table), networks=Networks(SMALL, offered=True))
    assert not set(plain) & set(NETWORKS)
    assert [one.name for one in offered] == [*plain, *CERTIFIABLE]
    assert all(one.complexity > offered[-3].complexity for one in offered[-2:])
    found = fit(table, method="auto", networks=Networks(SMALL, offered=True))
    assert found.choice.folds == 5
    assert {"ccpo", "cpo_batch"} <= {one.name for one in found.choice.judged}
    assert all(found.choice.of(name).matched is not None for name in CERTIFIABLE)
    assert (found.learning is not None) == (found.policy.method in NETWORKS)


def test_a_network_out_of_fold_is_that_of_the_fold_without_confidences() -> None:
    table = log(120)
    network = Networks(SMALL)
    (one,) = portfolio(table, objective(table), "ccpo", networks=network)
    sketch, whole = one.fit(table), one.whole(table)
    assert not sketch.judges  # type: ignore[attr-defined]
    assert whole.judges  # type: ignore[attr-defined]
    assert network.training_of(sketch) is None  # type: ignore[arg-type]
    assert np.array_equal(sample_of(table, sketch).scores.next, sample_of(table, whole).scores.next)


def test_the_same_sketch_is_trained_once_while_its_table_is_looked_at() -> None:
    network = Counting(SMALL.model_copy(update={"steps": 2}))
    table, other = log(60), log(60, 7)
    asked = asked_of(objective(table))
    served = network.policy(table, asked, "ccpo")
    sketch = network.sketch(table, asked, "ccpo")
    assert network.sketch(table, asked, "ccpo") is sketch
    assert network.runs == 2  # the sketch is another than what is served: it has no confidences
    network.sketch(table, asked, "ccpo", seed=1)
    network.sketch(other, asked, "ccpo")
    assert network.runs == 4
    assert network.sketch(table, asked, "ccpo") is not sketch  # that of an earlier table was let go
    assert network.policy(table, asked, "ccpo") is served
    assert network.runs == 5


@pytest.mark.parametrize("method", BARE)
def test_what_carries_no_certificate_is_no_candidate(method: str) -> None:
    with pytest.raises(UsageError, match="cpo-batch"):
        fit(log(100), method=method)


# --- several levels


def test_one_network_serves_all_levels_and_each_is_certified_by_itself() -> None:
    networks, alphas = Counting(SMALL), {"low": 0.3, "high": 0.1}
    make = conditioned(networks, "ccpo", 0)
    found = fit_levels([log(300)], Guarantee("coverage"), alphas, make=make, networks=networks, today=DAY)
    assert networks.runs == 1
    assert [one.calibrated.guarantee.alpha for one in found.values()] == [0.3, 0.1]
    low, high = found["low"], found["high"]
    assert low.learning is high.learning
    assert low.learning is not None
    assert low.learning.levels == 2
    layers = [one.policy.rules[0].network.weights for one in (low, high)]  # type: ignore[union-attr]
    assert all(np.array_equal(one, other) for one, other in zip(*layers, strict=True))
    assert low.artifact.files[MODEL_FILE] != high.artifact.files[MODEL_FILE]  # the level is in the biases


# --- how it was trained


def test_training_that_was_ended_early_is_said_and_certified_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_WINDOW", 8)
    monkeypatch.setattr(training, "_LOST", -2.0)
    found = fit(log(300))
    assert found.learning is not None
    assert found.learning.steps == 8
    (said,) = ended_early(found.learning)
    assert said in found.notes
    assert said.startswith("the training of the network was ended early, at step 8: over the last 8 steps")
    assert found.artifact.certificates[0].alpha == 0.1


def test_a_network_of_a_gpu_is_said_to_be_none_of_the_same_bytes() -> None:
    learning = fit(log(60)).learning
    assert learning is not None
    assert list(about_training(learning)) == []
    (said,) = about_training(learning._replace(settings={**learning.settings, "device": "cuda:1"}))
    assert said.startswith("trained on cuda:1, where the order of sums is not fixed")
    assert list(about_training(None)) == []


# --- without torch, without a GPU


@pytest.mark.parametrize(
    "run",
    [
        lambda: fit(log(60)),
        lambda: fit(log(60), method="auto", networks=Networks(SMALL, offered=True)),
    ],
)
def test_without_torch_the_error_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(MissingExtraError, match=r"Training a policy network needs the package torch.*\[train\]"):
        run()
    assert fit(log(60), method="depth").policy.method == "depth"


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    with pytest.raises(UsageError, match="Device cuda: torch finds no GPU here"):
        fit(log(60), networks=Networks(SMALL.model_copy(update={"device": "cuda"})))
    monkeypatch.setattr(devices, "gpus", lambda: 2)
    require_torch("cuda:1")
    with pytest.raises(UsageError, match="finds 2 of them, counted from 0"):
        require_torch("cuda:2")
