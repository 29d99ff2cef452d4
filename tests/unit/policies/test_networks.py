"""Policy networks: exact outcomes and gradients against enumeration, training by its rules, serving bit for bit."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import each
from packages import Package
from pydantic import ValidationError

from cascade.conformal.path import Scores, reaches, walks
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.policies.directory import PolicyDirectory
from cascade.policies.networks import (
    METHODS,
    Networks,
    NetworkSettings,
    Outcomes,
    StepActions,
    brought,
    log_policy,
    served_sets,
    soft_sets,
    train,
)
from cascade.table import Log, Node, Reference

torch = Package("torch")
COVERAGE, ERROR = Promise("coverage", 0.2), Promise("error", 0.3, 0.9)
SMALL = NetworkSettings(layers=(6, 5), batch=30, steps=20)


def log_of(n: int = 60, steps: int = 3, places: int = 2, seed: int = 0, *, ragged: bool = True) -> Log:
    """Return requests whose signal tells how hard they are; some end early, some records do, some answers lack."""
    rng = np.random.default_rng([seed, n, steps, places])
    hard, shape = rng.random(n), (n, steps * places)
    nodes = tuple([Node(f"{step}.{place}", step) for step in range(steps) for place in range(places)])
    length = rng.integers(1, steps + 1, n) if ragged else np.full(n, steps)
    bought = np.repeat(np.arange(steps) < length[:, None], places, axis=1)
    there = bought & (rng.random(shape) < 0.9) if ragged else bought
    right = (rng.random(shape) > hard[:, None]) & there
    signal = np.full(shape, np.nan)
    signal[:, places - 1 :: places] = 1 - hard[:, None] + 0.2 * rng.normal(size=(n, steps))
    names = tuple(map(str, range(n)))
    return Log(
        name="made", nodes=nodes, ids=names, groups=names, answer=np.where(there, rng.integers(0, 4, shape), -1),
        right=np.where(there, right, np.nan), cost_nano_usd=np.where(bought, rng.integers(50, 200, shape), 0),
        bought=bought, complete=rng.random(n) < 0.8, confidence=np.where(there, rng.random(shape), np.nan),
        signals={"p_yes": np.where(bought, signal, np.nan)}, features={"size": rng.normal(size=n), "words": rng.normal(size=n)},
        reference=Reference(rng.integers(0, 2, n).astype(float), np.full(n, 500), is_last=False),
    )  # fmt: skip


def outcomes_of(log: Log, promise: Promise = COVERAGE) -> Outcomes:
    return Outcomes.of(log, promise, np.zeros((log.n, int(log.decides.sum()), 1)))


def logs_of(log: Log, promise: Promise = COVERAGE, seed: int = 0, scale: float = 1.0) -> Any:
    """Return log π at random, (n, S, k)."""
    allowed = StepActions.of(log).allowed(not promise.rules.of_set)
    logits = np.random.default_rng(seed).normal(size=(log.n, *allowed.shape)) * scale
    return log_policy(torch.from_numpy(logits), torch.from_numpy(allowed))


def follow(member: Any, outcomes: Outcomes, row: int, step: int = 0) -> np.ndarray[Any, Any]:
    """Return cost, size, loss and right answers of one request's sets of 0 and 1, followed step by step."""
    keep, onward = member[step, :-1], member[step, -1]
    right = float((keep * outcomes.right[row, step].numpy()).sum())
    here = np.array([float(outcomes.cost[row, step]), keep.sum(), right])
    return here + follow(member, outcomes, row, step + 1) if onward else here


@each("steps, places", [(1, 1), (1, 3), (2, 2), (3, 1), (2, 3)])
def test_soft_sets_bring_the_mean_over_all_sets(steps, places):
    """Each action is in or out on its own, so the recursions are an expectation over 2^(S k) sets."""
    log = log_of(3, steps, places)
    outcomes = outcomes_of(log)
    soft = torch.from_numpy(np.random.default_rng(1).random(outcomes.possible.shape)) * outcomes.possible
    soft[:, -1, -1] = 0.0
    exact, counted = brought(soft, outcomes, counted=False), brought(soft, outcomes, counted=True)
    for row in range(3):
        meant, flat = np.zeros(4), soft[row].numpy().ravel()
        for chosen in itertools.product((0.0, 1.0), repeat=flat.size):
            chance = np.prod(np.where(chosen, flat, 1 - flat))
            if chance:
                cost, size, right = follow(np.reshape(chosen, soft.shape[1:]), outcomes, row)
                meant += chance * np.array([cost, size, right == 0, 1 - right])
        meant[2:] *= float(outcomes.counts[row])
        got = [float(part[row]) for part in (*exact, counted[2])]
        assert np.allclose(got, meant, rtol=1e-11, atol=1e-12)


@each("promise", [COVERAGE, ERROR])
def test_one_action_a_step_costs_and_loses_what_its_paths_do(promise):
    log = log_of(20)
    outcomes, logs = outcomes_of(log, promise), logs_of(log, promise)
    policy = soft_sets(logs, outcomes, None, 0.05, keeps_all=not promise.rules.of_set)
    assert torch.allclose(policy.sum(-1), torch.ones(20, 3, dtype=torch.float64))
    cost, _, loss = brought(policy, outcomes, counted=True)
    for row in range(20):
        reach, paid, hit = 1.0, 0.0, 0.0
        for step in range(3):
            paid += reach * float(outcomes.cost[row, step])
            hit += reach * float((policy[row, step, :-1] * outcomes.right[row, step]).sum())
            reach *= float(policy[row, step, -1])
        assert reach == 0
        assert [float(cost[row]), float(loss[row])] == pytest.approx([paid, float(outcomes.counts[row]) * (1 - hit)])


@each("promise", [COVERAGE, ERROR])
@each("kappa", [None, 0.25])
def test_gradients_are_those_of_differences(promise, kappa):
    log, keeps_all = log_of(4), not promise.rules.of_set
    outcomes, allowed = outcomes_of(log, promise), torch.from_numpy(StepActions.of(log).allowed(keeps_all))
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(4, *allowed.shape))).requires_grad_()

    def objective(given: Any) -> Any:
        soft = soft_sets(log_policy(given, allowed), outcomes, kappa, 0.2, keeps_all=keeps_all)
        return brought(soft, outcomes, counted=keeps_all or kappa is None)

    assert torch.autograd.gradcheck(objective, (logits,))


@each("width", [0.01, 0.2])
@each("kappa", [0.0, 1e-9, 0.3, 1.0])
def test_no_logit_makes_a_gradient_anything_but_a_number(width, kappa):
    sizes = [0.0, 1.0, -40.0, 800.0, -800.0, 1e6, -1e12, 1e150, -1e300]
    logits = torch.tensor(list(itertools.product(sizes, repeat=3)), dtype=torch.float64)[:, None].expand(-1, 2, -1)
    log = log_of(len(logits), 2, 2)
    given = logits.clone().requires_grad_()
    soft = soft_sets(
        log_policy(given, torch.from_numpy(StepActions.of(log).allowed(False))), outcomes_of(log), kappa, width
    )
    total = torch.stack(brought(soft, outcomes_of(log), counted=False)).sum()
    (gradient,) = torch.autograd.grad(total, given)
    assert bool(torch.isfinite(total))
    assert bool(torch.isfinite(gradient).all())


@each("promise", [COVERAGE, ERROR])
@each("kappa", [0.05, 0.3, 0.6, math.e])
@each("steps, places", [(1, 2), (3, 2), (4, 1)])
def test_what_training_counts_at_a_threshold_is_what_is_served(promise, kappa, steps, places):
    """On complete records; also where requests end early, and where steps lack some answers, or all."""
    log = log_of(80, steps, places)
    log = replace(log, complete=np.ones(log.n, dtype=np.bool_))
    outcomes, logs, actions = outcomes_of(log, promise), logs_of(log, promise, scale=2.0), StepActions.of(log)
    paid = np.add.reduceat(log.cost_nano_usd, np.flatnonzero(np.append(True, np.diff(log.steps))), axis=1)
    outcomes = outcomes._replace(cost=torch.from_numpy(paid.astype(float)))
    keeps_all = not promise.rules.of_set
    cost, _, loss = brought(served_sets(logs, outcomes, kappa, keeps_all=keeps_all), outcomes, counted=keeps_all)
    doubt = np.full(log.answer.shape, np.nan)
    doubt[:, log.decides] = logs[:, :, -1]
    keep = None if keeps_all else logs.numpy()[:, actions.step, actions.slot]
    walked = walks(log, Scores(doubt, keep))
    bought = walked.cost.at(math.log(kappa))
    free = np.full(log.n, keeps_all) & (~log.answers).any(axis=1)  # a step without an answer always goes on
    assert np.array_equal(cost.numpy()[~free], bought[~free])
    missed = promise.rules.jumps(walked).at(math.log(kappa)) / 2**30
    assert np.allclose(loss.numpy()[~free], missed[~free])


# --- training


def test_the_threshold_follows_the_misses_by_eq_9_with_its_sign_corrected():
    """κ ← κ − η₁ t^(−½−ξ) (misses − α), cut to its range."""
    log, kappas = log_of(40, ragged=False), []
    for right in (0.0, 1.0):
        part = replace(log, right=np.full(log.right.shape, right), complete=np.zeros(log.n, dtype=np.bool_))
        for steps in (1, 2, 100):
            kappas.append(math.exp(train(part, COVERAGE, "ccpo", SMALL.model_copy(update={"steps": steps})).kappa))
    lost, won = 0.2 - 0.1 * (1 - 0.2), 0.2 + 0.1 * 0.2
    assert kappas[:1] + kappas[2:5] == pytest.approx([lost, 0.1, won, won + 0.1 * 0.2 * 2**-0.6])
    assert [kappas[1], kappas[5]] == pytest.approx([0.1, 1 / 3])


@each("method", METHODS)
def test_a_method_is_served_at_its_own_threshold(method):
    policy = train(log_of(), COVERAGE, method, SMALL)
    kappa = policy.kappa
    assert (kappa == 1.0) is (method in {"cpo", "cpo_batch"})  # no log-probability is above 0: the likeliest alone
    sizes = reaches(policy.walks(log_of()).keep, kappa).sum(axis=1)
    assert bool(sizes.max() == 1) is (method in {"cpo", "cpo_batch"})
    assert train(log_of(), ERROR, method, SMALL).keeps_all


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_threads():
    first, before = train(log_of(), COVERAGE, settings=SMALL, seed=3), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again, other = (train(log_of(), COVERAGE, settings=SMALL, seed=seed) for seed in (3, 4))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert first.settings() == again.settings()
    assert all(np.array_equal(values, again.tensors()[name]) for name, values in first.tensors().items())
    assert not np.array_equal(first.weights[0], other.weights[0])


def hinted(n: int = 300, seed: int = 4) -> Log:
    """Return requests of two steps: half are hard, the signal says which, and the second step is always right."""
    log, rng = log_of(n, 2, 2, ragged=False), np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    right = np.stack([~hard, ~hard, np.ones(n), np.ones(n)], axis=1).astype(float)
    signal = np.full(right.shape, np.nan)
    signal[:, 1] = signal[:, 3] = hard
    return replace(log, right=right, signals={"p_yes": signal}, complete=np.ones(n, dtype=np.bool_),
                   cost_nano_usd=np.full(right.shape, 100))  # fmt: skip


@pytest.mark.parametrize("promise", [Promise("coverage", 0.05), Promise("error", 0.05, 0.9)], ids=lambda p: p.kind)
def test_it_learns_to_go_on_where_that_pays(promise):
    log = hinted()
    policy = train(log, promise, "ccpo", NetworkSettings(layers=(8,), steps=300, learning_rate=0.02))
    stop = policy.walks(log).stop(policy.kappa) > 1
    hard = log.right[:, 0] == 0
    assert stop[hard].mean() > 0.95
    assert stop[~hard].mean() < 0.05


def test_a_price_on_answers_makes_sets_smaller_and_a_price_on_misses_makes_them_fewer():
    log = log_of(200, ragged=False)

    def figures(**changes: Any) -> tuple[float, float]:
        policy = train(log, COVERAGE, "ccpo", SMALL.model_copy(update={"steps": 150} | changes))
        walked = policy.walks(log)
        lost = COVERAGE.rules.jumps(walked).at(policy.kappa) > 0
        return float(reaches(walked.keep, policy.kappa).sum(axis=1).mean()), float(lost.mean())

    assert figures(lambda_set=1.0)[0] < figures(lambda_set=0.0)[0]
    dear, cheap = (figures(multiplier=price, steps=60, learning_rate=0.02)[1] for price in (100.0, 0.001))
    assert dear < cheap


def test_numbers_of_a_text_that_are_learned_by_heart_are_not_offered():
    assert "request:size" in trained().features
    assert "request:words" not in trained().features


def test_what_cannot_be_trained_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    wrong: list[tuple[Log, str, dict[str, Any]]] = [
        (log_of(), "ppo", {}), (log_of(steps=1), "ccpo", {}), (log_of().take(np.arange(0)), "ccpo", {}),
        (log_of(), "ccpo", {"device": "cuda:1"}), (log_of(), "ccpo", {"learning_rate": 1e308}),
    ]  # fmt: skip
    for log, method, changes in wrong:
        with pytest.raises(UsageError):
            train(log, COVERAGE, method, SMALL.model_copy(update=changes))


@each(
    "given",
    [
        {"steps": 0}, {"batch": 0}, {"layers": ()}, {"layers": (64, 0)}, {"layers": (5000,)}, {"layers": (4,) * 17},
        {"mask_width": 0.0}, {"mask_width": float("nan")}, {"lambda_set": -1.0}, {"lambda_set": float("inf")},
        {"learning_rate": 0.0}, {"multiplier": float("nan")}, {"device": "tpu"}, {"epsilon": 0.1},
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(given):
    with pytest.raises(ValidationError):
        NetworkSettings(**given)
    assert NetworkSettings.model_validate_json(SMALL.model_dump_json()) == SMALL


# --- serving


@cache
def trained() -> Networks:
    return train(log_of(), COVERAGE, settings=SMALL)


def test_served_probabilities_are_the_trained_ones():
    log, logs = log_of(), trained().log_probabilities(log_of())
    rows, _ = trained().scaling.inputs(log, trained().features)
    hidden = torch.from_numpy(rows)
    for number, (weights, biases) in enumerate(zip(trained().weights, trained().biases, strict=True)):
        hidden = torch.nn.functional.softsign(hidden) if number else hidden
        hidden = torch.nn.functional.linear(hidden, torch.from_numpy(weights), torch.from_numpy(biases))
    wanted = log_policy(hidden, torch.from_numpy(StepActions.of(log).allowed(False)))
    there = log.bought[:, log.decides]
    assert np.allclose(logs[there], wanted.clamp(min=-(2.0**20)).numpy()[there], rtol=0, atol=2.0**-17)


@each("seed", range(3))
def test_a_row_that_is_served_has_the_bits_of_the_log(seed):
    """As its nodes are bought, step by step, and in any company."""
    log = log_of(50, seed=seed)
    whole = trained().scores(log)
    assert whole.keep is not None
    for row in range(log.n):
        for step in np.unique(log.steps[log.bought[row]]):
            first, now = log.take(np.array([row])), np.flatnonzero(log.steps == step)
            later = log.steps > step
            live = replace(
                first, bought=first.bought & ~later, answer=np.where(later, -1, first.answer),
                right=np.full(first.right.shape, np.nan), confidence=np.where(later, np.nan, first.confidence),
                signals={name: np.where(later, np.nan, values) for name, values in first.signals.items()},
            )  # fmt: skip
            scores = trained().scores(live)
            assert np.array_equal(scores.keep[0, now], whole.keep[row, now])
            assert np.array_equal(scores.doubt[0, now], whole.doubt[row, now], equal_nan=True)


def test_the_likeliest_action_is_in_the_set_at_every_threshold_and_sets_grow_as_it_falls():
    log = log_of(200, ragged=False)
    walked = trained().walks(log)
    before = np.zeros(log.n)
    for kappa in (np.inf, -0.5, -1.0, -1.2, -2.0, -np.inf):
        size = reaches(walked.keep, kappa).sum(axis=1)
        assert (size >= np.maximum(before, 1)).all()
        before = size
    assert (reaches(walked.keep, np.inf).sum(axis=1) == 1).all()


def test_a_number_that_was_never_missing_in_training_is_not_guessed():
    log = log_of(ragged=False)
    policy = train(log, COVERAGE, settings=SMALL)
    assert policy.reads == ("p_yes",)
    lacking = replace(log, signals={"p_yes": np.full(log.answer.shape, np.nan)})
    logs = policy.log_probabilities(lacking)
    assert np.isposinf(logs[:, :-1]).all()
    seen = log.signals["p_yes"].copy()
    seen[::2] = np.nan
    foreseen = train(replace(log, signals={"p_yes": seen}), COVERAGE, settings=SMALL)
    assert foreseen.reads == ()
    assert np.isfinite(foreseen.log_probabilities(lacking)).all()


@pytest.mark.parametrize("make", [trained, lambda: train(log_of(), ERROR, "cpo_batch", SMALL)])
def test_a_policy_comes_back_from_its_directory(make, tmp_path):
    nodes, policy = log_of().nodes, make()
    PolicyDirectory(nodes, policy).write(tmp_path)
    again = PolicyDirectory.read(tmp_path).policy
    assert json.loads(json.dumps(policy.settings())) == again.settings()
    assert [
        np.array_equal(*pair, equal_nan=True)
        for pair in zip(policy.scores(log_of())[:1], again.scores(log_of())[:1], strict=True)
    ] == [True]


def test_serving_needs_no_torch(tmp_path):
    PolicyDirectory(log_of().nodes, trained()).write(tmp_path)
    code = f"""
import sys
from cascade.policies.directory import PolicyDirectory
policy = PolicyDirectory.read({str(tmp_path)!r}).policy
assert policy.kind == "network" and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
