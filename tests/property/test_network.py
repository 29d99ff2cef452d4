"""A policy network gives one row and many the same bits, whatever its weights, and what it was given to look at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from unit import networks
from unit.made import roundtrip
from unit.policies import learned_made as made

from cascade.conformal.arrays import Bools, Floats
from cascade.policies import network as served
from cascade.policies.design import Design, Memo
from cascade.policies.learned import LearnedPolicy
from cascade.policies.model_file import dumps, loads
from cascade.policies.model_file import settings as settings_of
from cascade.policies.network import Action, Network
from property.examples import times

SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([0.0, 1e-320, 1e-160, 1e-9, 1.0, 1.0, 1.0, 1e3, 1e60])


def bits(values: object) -> list[int]:
    """Return float64s as their bits: −0 and 0 differ."""
    return np.asarray(values, dtype=np.float64).view(np.int64).ravel().tolist()


def drawn(rng: np.random.Generator, scale: float = 1.0) -> Network:
    """Return a network of 0 to 8 features, 2 to 4 outputs of which at least one is there, and up to 3 hidden layers."""
    allowed = rng.random(int(rng.integers(2, 5))) < 0.8
    allowed[int(rng.integers(allowed.size))] = True
    d = int(rng.integers(0, 9))
    plain = made.design(rng, d) if d else Design(*(np.empty(0),) * 4, np.empty(0, dtype=int), np.empty((0, 2)))
    sizes = [int(one) for one in rng.integers(1, 70, size=int(rng.integers(1, 4)))]
    return networks.network(rng, plain, allowed.tolist(), hidden=sizes, scale=scale)


def unforeseen(network: Network, rows: Floats) -> Bools:
    """Return the rows that lack a feature that was never missing in training."""
    return np.asarray((np.isnan(rows) & ~network.design.foreseen).any(axis=-1))


def spelled(network: Network, row: Floats) -> list[float]:
    """Return the log-probabilities of one row in plain Python, each sum added in order."""
    if unforeseen(network, row):
        return [math.inf if there else -math.inf for there in network.allowed.tolist()]
    held = network.design.rows(row).tolist()
    for number, (weights, biases) in enumerate(zip(network.weights, network.biases, strict=True)):
        if number:
            soft = network.activation == "softsign"
            held = [one / (1 + abs(one)) if soft else max(one, 0.0) + 0.0 for one in held]
        totals = []
        for weighing, bias in zip(weights.tolist(), biases.tolist(), strict=True):
            total = bias
            for weight, one in zip(weighing, held, strict=True):
                total += weight * one
            totals.append(total)
        held = totals
    there = [one for one, ok in zip(held, network.allowed.tolist(), strict=True) if ok]
    total = 0.0
    for one in there:
        total += math.exp(one - max(there))
    sure = zip(held, network.allowed.tolist(), strict=True)
    return [one - max(there) - math.log(total) if ok else -math.inf for one, ok in sure]


@times(6)
@given(seed=SEEDS, scale=SCALES)
def test_one_row_and_many_are_what_plain_python_adds_up_to_the_bit(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    network = drawn(rng, scale)
    rows = made.raw_rows(rng, 5, network.design.width)
    many = network.log_probabilities(rows)
    assert many.shape == (5, network.outputs)
    meant = [spelled(network, row) for row in rows]
    assert bits(many) == bits(meant)
    assert bits([network.log_probabilities(row) for row in rows]) == bits(meant)
    for output in np.flatnonzero(network.allowed).tolist():
        action = Action(network, output)
        assert bits(action.values(rows)) == bits(many[:, output])
        assert bits([action.value(row.tolist()) for row in rows]) == bits(many[:, output])
        assert bits([action.values(row) for row in rows]) == bits(many[:, output])


@times(1)
@given(seed=SEEDS, n=st.integers(1, 5_000), scale=SCALES)
@example(seed=1, n=1_024, scale=1.0)
@example(seed=2, n=1_025, scale=1.0)
@example(seed=3, n=5_000, scale=1e3)
def test_how_many_rows_there_are_changes_no_bit(seed: int, n: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    network = drawn(rng, scale)
    rows = made.raw_rows(rng, n, network.design.width)
    many = network.log_probabilities(rows)
    picked = np.unique(np.concatenate([rng.integers(n, size=40), [0, n - 1, min(n - 1, 1_023), min(n - 1, 1_024)]]))
    assert bits(many[picked]) == bits([network.log_probabilities(rows[at]) for at in picked])
    assert bits(many[picked]) == bits(network.log_probabilities(rows[picked]))
    assert bits(many[::-1]) == bits(network.log_probabilities(rows[::-1]))
    assert bits(many) == bits(network.log_probabilities(np.asfortranarray(rows)))
    deep = network.log_probabilities(np.stack([rows, rows]))
    assert deep.shape == (2, n, network.outputs)
    assert bits(deep) == bits([many, many])


@pytest.mark.parametrize("hidden", [(64, 64, 64), (1,), (1, 200, 1), (300, 2)])
@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_a_network_as_large_as_is_served_gives_the_same_bits(hidden: tuple[int, ...], activation: str) -> None:
    rng = np.random.default_rng(len(hidden))
    network = networks.network(rng, made.design(rng, 12), [True] * 3, hidden=hidden, activation=activation)
    rows = made.raw_rows(rng, 1_500, 12)
    many = network.log_probabilities(rows)
    assert bits(many) == bits([network.row(Memo(row)) for row in rows])
    assert bits(many[:20]) == bits([spelled(network, row) for row in rows[:20]])
    assert len(np.unique(many[np.isfinite(many)])) > (100 if min(hidden) > 1 else 2)  # one unit may be dead


@pytest.mark.parametrize("seed", range(30))
def test_where_numpy_would_not_add_in_order_the_bits_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    network = drawn(rng)
    rows = made.raw_rows(rng, 20, network.design.width)
    quick = [network.log_probabilities(row) for row in rows]
    monkeypatch.setattr(served, "_reduces_in_order", lambda rows, columns: False)
    slow = Network(network.design, network.weights, network.biases, network.activation, network.allowed)
    assert not any(layer.in_order for layer in slow._layers)
    assert bits([slow.log_probabilities(row) for row in rows]) == bits(quick)


@times(3)
@given(seed=SEEDS, scale=SCALES)
def test_the_probabilities_of_the_allowed_outputs_add_up_to_one(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    network = drawn(rng, scale)
    rows = made.raw_rows(rng, 20, network.design.width)
    logs, blind = network.log_probabilities(rows), unforeseen(network, rows)
    assert not np.isnan(logs).any()
    assert (logs[:, ~network.allowed] == -math.inf).all()
    assert (logs[blind][:, network.allowed] == math.inf).all()
    seen = logs[~blind][:, network.allowed]
    assert (np.isfinite(seen) & (seen <= 0)).all()
    assert np.exp(seen).sum(axis=1) == pytest.approx(np.ones(len(seen)), abs=1e-12)


# --- whole policies


@times(5)
@given(seed=SEEDS, ladder=st.booleans())
def test_a_policy_of_networks_gives_live_the_bits_that_it_gives_on_the_log(seed: int, ladder: bool) -> None:
    rng = np.random.default_rng(seed)
    sources = made.LADDER if ladder else made.PAIR
    policy = networks.policy(rng, sources, judges=bool(rng.random() < 0.5))
    held = loads(dumps(policy), settings_of(policy, dumps(policy)))
    seen = made.walks(rng, 2, sources)
    scores, confidence = policy.batch(seen.history)[:2]
    for row, steps in enumerate(seen.steps):
        decided = made.decided(policy, seen, row)
        for t, step in enumerate(steps):
            places = [0 if ladder else sources.index(one.source) for one in step.candidates]
            absent = sorted(set(range(len(sources))) - set(places))
            found = policy.scores(seen.observation(row, t + 1, decided[:t]))
            assert repr(found) == repr(held.scores(seen.observation(row, t + 1)))
            assert bits(scores.next[row, t]) == bits(found.next)
            assert bits(scores.candidates[row, t, places]) == bits(found.candidates)
            assert (scores.candidates[row, t, absent] == -math.inf).all()
            assert (confidence is None) == (found.confidences is None)
            if confidence is not None and found.confidences is not None:
                sure = [math.nan if one is None else one for one in found.confidences]
                assert np.array_equal(confidence[row, t, places], sure, equal_nan=True)
        assert (scores.next[row, len(steps) :] == -math.inf).all()


@times(2)
@given(seed=SEEDS)
def test_a_policy_of_networks_comes_back_from_its_file_and_from_another_process(seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = networks.policy(rng, made.LADDER if seed % 2 else made.PAIR, judges=bool(rng.random() < 0.5))
    data = dumps(policy)
    seen = made.walks(rng, 20, policy.sources)
    meant = policy.batch(seen.history)
    for again in (loads(data, settings_of(policy, data)), roundtrip(policy)):
        assert isinstance(again, LearnedPolicy)
        assert dumps(again) == data
        found = again.batch(seen.history)
        assert bits(found.scores.next) == bits(meant.scores.next)
        assert bits(found.scores.candidates) == bits(meant.scores.candidates)
        for rule in again.rules:
            actions = [one for one in (rule.next, *rule.include) if isinstance(one, Action)]
            assert len({id(one.network) for one in actions}) <= 1


def test_the_networks_that_are_random_here_decide() -> None:
    """The tests above would pass for networks that never scored anything: these go on, stop, keep and leave out."""
    rng = np.random.default_rng(0)
    scores = [networks.policy(rng, keeps=False).batch(made.walks(rng, 50).history).scores for _ in range(30)]
    onward = np.concatenate([one.next.ravel() for one in scores])
    kept = np.concatenate([one.candidates.ravel() for one in scores])
    known = onward[np.isfinite(onward)]
    assert known.size > 0.1 * onward.size
    assert 0.1 < (known > math.log(1 / 3)).mean() < 0.9
    assert np.isfinite(kept).mean() > 0.1
    assert 0.05 < (onward == math.inf).mean() < 0.7
