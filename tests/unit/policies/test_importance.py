"""How much a score depends on a feature: that of a linear score is known."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.calibration.scores import history_of
from cascade.conformal.arrays import StepArrays
from cascade.episodes.table import EpisodeTable
from cascade.policies.design import Design
from cascade.policies.estimators import Constant, Linear, Signal
from cascade.policies.features import FeatureSet
from cascade.policies.learned import LearnedPolicy, StepRule, weighed
from cascade.policies.network import Action, Network

N = 1_000


def table(n: int = N) -> EpisodeTable:
    rng = np.random.default_rng(1)
    ones = np.ones((n, 2, 1), dtype=np.int64)
    arrays = StepArrays(ones, ones == 1, ones[:, :, 0], np.full(n, 2), np.ones(n, dtype=np.bool_))
    signals = {"a": rng.normal(0, 1, (n, 2)), "b": rng.normal(0, 2, (n, 2)), "c": rng.normal(0, 1, (n, 2))}
    signals["c"][: n // 4] = np.nan
    ids = tuple(f"q{k}" for k in range(n))
    nothing = np.full((n, 2, 1), np.nan)
    return EpisodeTable("made", ids, ids, ("answer",), arrays, nothing, signals, {})


def policy(*names: str, weights: tuple[float, ...]) -> LearnedPolicy:
    many = len(names)
    plain = (np.zeros(many), np.ones(many), np.full(many, -100.0), np.full(many, 100.0))
    design = Design(*plain, np.array([], dtype=np.int64), np.zeros((0, 2), dtype=np.int64))
    features = FeatureSet(names, ("answer",))
    first = StepRule(features, Linear(design, np.array(weights), 0.0), (None,), (None,))
    return LearnedPolicy("net_benefit", (first, StepRule(features, None, (None,), (None,))))


def test_of_a_linear_score_it_is_the_standardised_weight() -> None:
    found = {
        (one.step, one.feature.name): one for one in weighed(policy("a", "b", weights=(1.0, 1.0)), history_of(table()))
    }
    # score = a + b, sd 1 and 2: 1/√5 and 2/√5
    assert found[1, "a"].weight == pytest.approx(1 / np.sqrt(5), abs=0.04)
    assert found[1, "b"].weight == pytest.approx(2 / np.sqrt(5), abs=0.04)
    assert found[2, "a"].weight is None  # nothing is decided after the last step
    assert found[1, "a"].known == 1


def test_what_is_not_looked_at_weighs_nothing_and_what_is_alone_weighs_all() -> None:
    found = {
        one.feature.name: one
        for one in weighed(policy("a", "b", weights=(2.0, 0.0)), history_of(table()))
        if one.step == 1
    }
    assert found["b"].weight == 0
    assert found["a"].weight == pytest.approx(1, abs=0.05)


def test_missing_that_was_never_foreseen_is_left_out() -> None:
    rule = StepRule(FeatureSet(("c",), ("answer",)), Signal(0, 1.0), (None,), (None,))
    last = StepRule(FeatureSet((), ("answer",)), None, (None,), (None,))
    (one,) = weighed(LearnedPolicy("threshold", (rule, last)), history_of(table()))
    assert one.known == pytest.approx(0.75)
    assert one.weight == pytest.approx(1, abs=0.05)
    (none,) = weighed(LearnedPolicy("threshold", (rule, last)), history_of(table(0)))
    assert (none.weight, none.known) == (None, None)


def test_a_constant_score_hangs_on_nothing() -> None:
    rule = StepRule(FeatureSet(("a",), ("answer",)), Constant(1.0), (None,), (None,))
    last = StepRule(FeatureSet((), ("answer",)), None, (None,), (None,))
    (one,) = weighed(LearnedPolicy("depth", (rule, last)), history_of(table()))
    assert one.weight is None


def test_the_same_questions_give_the_same_weights() -> None:
    made, history = policy("a", "b", weights=(1.0, 1.0)), history_of(table())
    assert weighed(made, history) == weighed(made, history)


def network(weights: list[list[float]], allowed: list[bool]) -> Network:
    """Return a network that passes a and b on: softsign changes little of what is small."""
    plain = (np.zeros(2), np.full(2, 1e6), np.full(2, -100.0), np.full(2, 100.0))
    design = Design(*plain, np.array([], dtype=np.int64), np.zeros((0, 2), dtype=np.int64))
    layers = (np.eye(2), np.array(weights) * 1e6)
    return Network(design, layers, (np.zeros(2), np.zeros(len(allowed))), "softsign", np.array(allowed))


def of_network(*weights: list[float]) -> LearnedPolicy:
    """Return two steps, of which the first keeps its answer or goes on as a network says."""
    made, features = network(list(weights), [True, True]), FeatureSet(("a", "b"), ("answer",))
    first = StepRule(features, Action(made, 1), (Action(made, 0),), (None,))
    return LearnedPolicy("ccpo", (first, StepRule(features, None, (None,), (None,))))


def test_of_a_network_it_is_what_all_its_probabilities_hang_on() -> None:
    history = history_of(table())
    # So near to 0 the probability is linear in the logit: as of the linear score a + b.
    a, b, *last = weighed(of_network([0.0, 0.0], [0.1, 0.1]), history)
    assert a.weight == pytest.approx(1 / np.sqrt(5), abs=0.05)
    assert b.weight == pytest.approx(2 / np.sqrt(5), abs=0.05)
    assert [one.weight for one in last] == [None, None]
    a, b, *_ = weighed(of_network([3.0, 0.0], [0.0, 0.0]), history)
    assert a.weight == pytest.approx(1, abs=0.05)
    assert b.weight == 0


def test_after_the_last_step_a_network_is_weighed_by_what_it_keeps() -> None:
    features = FeatureSet(("a", "b"), ("base", "guide"))
    first = StepRule(features, Constant(1.0), (None, None), (None, None))

    def weights(keeps: list[bool]) -> list[float | None]:
        made = network([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [*keeps, False])
        include = tuple([Action(made, at) if there else None for at, there in enumerate(keeps)])
        last = StepRule(features, None, include, (None, None))
        return [
            one.weight for one in weighed(LearnedPolicy("ccpo", (first, last)), history_of(table())) if one.step == 2
        ]

    assert weights([True, True]) == [pytest.approx(1, abs=0.05), 0]
    assert weights([False, True]) == [None, None]  # the one action has probability 1
