"""A policy network as it is served: what it gives, where it stands in a file, and everything that is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cases import each
from safetensors.numpy import load as arrays_of
from safetensors.numpy import save as bytes_of

from cascade.errors import ConfigError, UsageError
from cascade.policies.design import Design, Memo
from cascade.policies.estimators import Constant
from cascade.policies.features import FeatureSet
from cascade.policies.learned import NETWORKS, LearnedPolicy, StepRule
from cascade.policies.model_file import dumps, loads, settings
from cascade.policies.network import MOST_HIDDEN, MOST_UNITS, Action, Network
from unit.policies import learned_made as made

NAN, INF = math.nan, math.inf
DESIGN = Design(
    centre=np.zeros(2),
    scale=np.array([1.0, 2.0]),
    low=np.full(2, -8.0),
    high=np.full(2, 8.0),
    indicators=np.array([1]),
    pairs=np.empty((0, 2), dtype=np.int64),
)
LAYERS = (np.array([[1.0, 0.0, 0.0], [-1.0, 2.0, 3.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
BIASES = (np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0]))
ALL, LAST = np.ones(3, dtype=np.bool_), np.array([True, True, False])
NETWORK = Network(DESIGN, LAYERS, BIASES, "relu", ALL)
ENDS = Network(DESIGN, LAYERS, BIASES, "softsign", LAST)
FEATURES = FeatureSet(("p_yes", "votes"), made.PAIR)
NOBODY = (None, None)


def log_softmax(*logits: float) -> list[float]:
    normaliser = math.log(sum(map(math.exp, logits)))
    return [one - normaliser for one in logits]


@pytest.mark.parametrize(
    ("raw", "logits"),
    [
        ([2.0, 4.0], (2.0, 2.5, 1.0)),  # columns 2, 2, 0; hidden 2, −2 + 4 + 0.5
        ([3.0, -4.0], (3.0, 0.0, 1.0)),  # the second hidden unit is below 0
        ([2.0, NAN], (2.0, 1.5, 1.0)),  # columns 2, 0, 1: the indicator's weight is 3
        ([99.0, 0.0], (8.0, 0.0, 1.0)),  # clipped
    ],
)
def test_it_gives_log_probabilities_of_its_outputs(raw: list[float], logits: tuple[float, ...]) -> None:
    found = NETWORK.log_probabilities(np.array([raw, raw]))
    assert found.shape == (2, 3)
    assert found[0] == pytest.approx(log_softmax(*logits), rel=1e-14)
    assert NETWORK.log_probabilities(np.array(raw)).tolist() == found[1].tolist()


def test_an_output_that_is_not_there_has_no_share() -> None:
    raw = np.array([2.0, 4.0])  # softsign of 2 and 2.5
    assert ENDS.log_probabilities(raw)[:2] == pytest.approx(log_softmax(2 / 3, 2.5 / 3.5), rel=1e-14)
    assert ENDS.log_probabilities(raw)[2] == -INF
    alone = replace(ENDS, allowed=np.array([False, True, False]))
    assert alone.log_probabilities(np.array([raw])).tolist() == [[-INF, 0.0, -INF]]


def test_what_is_missing_for_the_first_time_goes_on_and_keeps_every_answer() -> None:
    rows = np.array([[NAN, 1.0], [2.0, NAN]])
    assert ENDS.log_probabilities(rows)[0].tolist() == [INF, INF, -INF]
    assert np.isfinite(ENDS.log_probabilities(rows)[1, :2]).all()
    assert ENDS.log_probabilities(rows[0]).tolist() == [INF, INF, -INF]
    assert Action(NETWORK, 2).value([NAN, 1.0]) == INF
    assert Action(NETWORK, 2).values(rows)[0] == INF
    assert Action(NETWORK, 2).needs(2).tolist() == NETWORK.needs().tolist() == [True, False]


def test_all_actions_of_a_step_share_one_pass() -> None:
    memo = Memo(np.array([2.0, 4.0]))
    made_once = [Action(NETWORK, j).value(memo.raw, memo) for j in range(3)]
    assert memo.networks[NETWORK] == made_once
    memo.networks[NETWORK] = [7.0, 8.0, 9.0]
    assert [Action(NETWORK, j).value(memo.raw, memo) for j in range(3)] == [7.0, 8.0, 9.0]
    many = Memo(np.zeros((4, 2)))
    first = Action(NETWORK, 0).values(many.raw, many)
    assert np.array_equal(memo.networks[NETWORK], [7.0, 8.0, 9.0])
    assert np.array_equal(many.networks[NETWORK][:, 0], first)


def test_no_feature_and_no_row_are_served_too() -> None:
    empty = Design(*(np.empty(0),) * 4, np.empty(0, dtype=np.int64), np.empty((0, 2), dtype=np.int64))
    network = Network(empty, (np.empty((2, 0)), LAYERS[1]), BIASES, "relu", ALL)
    assert network.log_probabilities(np.empty(0)) == pytest.approx(log_softmax(0.0, 0.5, 1.0), rel=1e-14)
    assert network.log_probabilities(np.empty((3, 0))).tolist() == [network.log_probabilities(np.empty(0)).tolist()] * 3
    assert NETWORK.log_probabilities(np.empty((0, 2))).shape == (0, 3)


def test_a_layer_of_one_unit_is_added_up_in_order_too() -> None:
    narrow = Network(DESIGN, (LAYERS[0][1:], LAYERS[1][:, 1:]), (BIASES[0][1:], BIASES[1]), "relu", ALL)
    raw = np.array([2.0, 4.0])  # hidden −2 + 4 + 0.5
    assert [layer.in_order for layer in narrow._layers] == [False, True]
    assert narrow.log_probabilities(raw) == pytest.approx(log_softmax(0.0, 2.5, 1.0), rel=1e-14)
    alone = Action(narrow, 1).values(raw)
    assert alone.shape == ()
    assert float(alone) == Action(narrow, 1).value(raw) == Action(narrow, 1).values(raw[None])[0]


def test_what_is_served_cannot_be_changed() -> None:
    weights = LAYERS[0].copy()
    network = Network(DESIGN, (weights, LAYERS[1]), BIASES, "relu", ALL)
    weights[0, 0] = 9.0
    assert network.weights[0][0, 0] == 1.0
    for held in (network.weights[0], network.biases[1], network.allowed, network._layers[0].terms):
        with pytest.raises(ValueError, match="read-only"):
            held[0] = 0


# --- refused


def chain(*sizes: int) -> dict[str, Any]:
    pairs = list(pairwise(sizes))
    return {"weights": tuple([np.zeros((b, a)) for a, b in pairs]), "biases": tuple([np.zeros(b) for _, b in pairs])}


@each(
    "change, said",
    [
        ({"activation": "tanh"}, "activation: it must be relu or softsign, not 'tanh'"),
        (chain(3, 3), "there must be 1 to 16 hidden ones"),
        (chain(3, *(2,) * (MOST_HIDDEN + 1), 3), "there must be 1 to 16 hidden ones"),
        ({"biases": BIASES[:1]}, "each with weights and biases"),
        (chain(3, MOST_UNITS + 1, 3), "each must have 1 to 4,096 units"),
        (chain(3, 0, 3), "each must have 1 to 4,096 units"),
        (chain(2, 4, 3), "an input for each output of the layer before it, and the first layer has 3"),
        ({"weights": (LAYERS[0], LAYERS[1].T)}, "an input for each output of the layer before it"),
        ({"weights": (LAYERS[0][0], LAYERS[1])}, "weights must be"),
        ({"biases": (BIASES[0], np.zeros((3, 1)))}, "weights must be"),
        ({"allowed": ALL[:2]}, "one bool for each of the 3 outputs"),
        ({"allowed": ~ALL}, "one of them allowed"),
        ({**chain(3, 2, 1), "allowed": ALL[:1]}, "at least 2 outputs"),
        ({"weights": (LAYERS[0], LAYERS[1] * NAN)}, "not finite, or so large"),
        ({"biases": (BIASES[0], np.array([0.0, INF, 0.0]))}, "not finite, or so large"),
        ({"weights": (LAYERS[0] * 1e160, LAYERS[1] * 1e160)}, "not finite, or so large"),
        ({"weights": (LAYERS[0], LAYERS[1] * 1e301)}, "not finite, or so large"),
        ({"design": replace(DESIGN, scale=np.zeros(2))}, "not finite, or so large"),
    ],
)
def test_numbers_that_are_no_network_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replace(NETWORK, **change)


def test_a_score_is_finite_up_to_the_bound() -> None:
    large = replace(NETWORK, weights=(LAYERS[0], LAYERS[1] * 1e298))
    rows = np.array([[8.0, -8.0], [-8.0, NAN], [0.0, 0.0]])
    found = large.log_probabilities(rows)
    assert np.isfinite(found).all()
    assert found.min() < -1e298
    assert found.tolist() == [large.log_probabilities(row).tolist() for row in rows]
    deep = chain(3, *(4,) * MOST_HIDDEN, 3)
    assert replace(NETWORK, **deep).log_probabilities(rows[0]) == pytest.approx([-math.log(3)] * 3)


def test_softsign_bounds_what_the_next_layer_is_given() -> None:
    large = (LAYERS[0] * 1e200, LAYERS[1] * 1e200)
    assert np.isfinite(replace(NETWORK, weights=large, activation="softsign").log_probabilities(np.ones(2))).all()
    with pytest.raises(UsageError, match="so large"):
        replace(NETWORK, weights=large)


@pytest.mark.parametrize(("network", "output"), [(NETWORK, 3), (NETWORK, -1), (ENDS, 2)])
def test_an_action_is_an_output_that_is_there(network: Network, output: int) -> None:
    with pytest.raises(UsageError, match=f"that the network allows, 0, 1.*, not {output}"):
        Action(network, output)


def rule(onward: Any = None, include: Any = NOBODY, confidence: Any = NOBODY) -> StepRule:
    return StepRule(FEATURES, onward, include, confidence)


TWO = Network(DESIGN, *chain(3, 2, 2).values(), "relu", np.ones(2, dtype=np.bool_))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"onward": Action(NETWORK, 2), "include": (Action(replace(NETWORK), 0), None)}, "must belong to one network"),
        ({"onward": Action(NETWORK, 1)}, "output 2 belongs to going on, not output 1"),
        ({"include": (Action(NETWORK, 0), Action(NETWORK, 0))}, "output 1 belongs to answer 1, not output 0"),
        ({"include": (Action(TWO, 0), None)}, "2 answers and next, or stop and next; it has 2"),
        ({"onward": Action(Network(DESIGN, *chain(3, 2, 4).values(), "relu", np.ones(4)), 3)}, "it has 4"),
        ({"confidence": (Action(NETWORK, 0), None)}, "an action must be the score of going on or of an answer"),
    ],
)
def test_actions_that_do_not_fit_their_rule_are_refused(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rule(**parts)


def test_a_rule_knows_its_network() -> None:
    assert rule(Action(TWO, 1)).network is TWO
    assert rule(None, (None, Action(ENDS, 1))).network is ENDS
    assert rule(Constant(1.0)).network is None
    assert rule(Constant(1.0), (Action(NETWORK, 0), None)).network is NETWORK  # the rest may be anything


# --- in a file


def small(**fields: Any) -> LearnedPolicy:
    """Return two steps, of networks that say what to keep and whether to go on."""
    first = rule(Action(NETWORK, 2), (Action(NETWORK, 0), Action(NETWORK, 1)))
    last = rule(None, (Action(ENDS, 0), Action(ENDS, 1)))
    return LearnedPolicy("ccpo", (first, last), math.log(0.2), **fields)


def read_again(change: Callable[[dict[str, Any]], Any]) -> LearnedPolicy:
    arrays = dict(arrays_of(dumps(small())))
    change(arrays)
    data = bytes_of(arrays)
    return loads(data, settings(small(), data))


def test_a_network_is_stored_once_per_step() -> None:
    names = sorted(arrays_of(dumps(small())))
    of_first = [name for name in names if name.startswith("step1.")]
    design = [f"step1.network.design.{part}" for part in ("centre", "high", "indicators", "low", "pairs", "scale")]
    assert of_first == [
        "step1.include.0.action.output",
        "step1.include.1.action.output",
        "step1.network.activation",
        "step1.network.allowed",
        *design,
        *(f"step1.network.layers.{number}.{part}" for number in (0, 1) for part in ("biases", "weights")),
        "step1.next.action.output",
    ]
    again = read_again(lambda held: held)
    assert dumps(again) == dumps(small())
    network = again.rules[0].network
    assert network is not None
    actions = [one for one in (again.rules[0].next, *again.rules[0].include) if isinstance(one, Action)]
    assert [(one.network is network, one.output) for one in actions] == [(True, 2), (True, 0), (True, 1)]
    assert again.rules[1].network is not network
    assert network.activation == "relu"
    assert settings(again, dumps(again)) == settings(small(), dumps(small()))


def test_a_policy_without_networks_has_no_names_of_them() -> None:
    for seed in range(20):
        names = arrays_of(dumps(made.policy(np.random.default_rng(seed))))
        assert not [name for name in names if "network" in name or "action" in name]


def test_a_network_shares_its_columns_with_the_other_scorers_of_its_step() -> None:
    chance = made.logistic(np.random.default_rng(0), DESIGN)
    policy = replace(small(), rules=(replace(small().rules[0], confidence=(chance, None)), small().rules[1]))
    data = dumps(policy)
    again = loads(data, settings(policy, data)).rules[0]
    assert again.network is not None
    assert again.confidence[0] is not None
    assert again.network.design is again.confidence[0].linear.design


@each(
    "change, said",
    [
        (lambda held: held.pop("step1.network.activation"), "step1.network.activation: is missing"),
        (
            lambda held: held.update({"step1.network.activation": np.array(2)}),
            "it must be one of 2, from 0: relu, softsign",
        ),
        (lambda held: held.update({"step1.network.activation": np.array(-1)}), "it must be one of 2, from 0"),
        (lambda held: held.update({"step1.network.activation": np.array(0.0)}), "its type must be int64, not float64"),
        (
            lambda held: held.update({"step1.network.allowed": np.ones(3, dtype=np.int64)}),
            "its type must be bool, not int64",
        ),
        (
            lambda held: held.update({"step1.network.allowed": np.ones(4, dtype=bool)}),
            "one bool for each of the 3 outputs",
        ),
        (lambda held: held.pop("step1.network.layers.0.biases"), "step1.network.layers.0.biases: is missing"),
        (
            lambda held: held.update({"step1.network.layers.3.biases": held.pop("step1.network.layers.1.biases")}),
            "step1.network.layers.3.biases: it has no such tensor",
        ),
        (
            lambda held: held.update({"step1.network.layers.1.odd": np.zeros(1)}),
            "layers.1.odd: it has no such tensor",
        ),
        (lambda held: held.update({"step1.network.more": np.zeros(1)}), "step1.network.more: it has no such tensor"),
        (
            lambda held: held.update({"step1.network.layers.0.weights": np.zeros((2, 3), dtype=np.float32)}),
            "its type must be float64, not float32",
        ),
        (
            lambda held: held.update({"step1.network.layers.0.weights": np.full((2, 3), NAN)}),
            "step1.network.layers.0.weights: its numbers must be finite",
        ),
        (
            lambda held: held.update({"step1.network.layers.0.weights": np.full((2, 3), 1e308)}),
            "step1.network: These numbers are not a policy network: layers: a number is not finite, or so large",
        ),
        (lambda held: held.update({"step1.network.layers.0.weights": np.zeros((2, 2))}), "an input for each"),
        (lambda held: held.update({"step1.network.design.scale": np.zeros(2)}), "scale must be above 0"),
        (lambda held: held.pop("step1.network.design.low"), "step1.network.design.low: is missing"),
        (lambda held: held.update({"step1.next.action.output": np.array(3)}), "the network allows, 0, 1, 2, not 3"),
        (lambda held: held.update({"step1.next.action.output": np.array(1)}), "output 2 belongs to going on"),
        (lambda held: held.update({"step2.include.0.action.output": np.array(2)}), "allows, 0, 1, not 2"),
        (
            lambda held: held.update({"step2.next.action.output": np.array(2)}),
            "step2.next.action.output: An action must be",
        ),
        (
            lambda held: held.update({"step1.confidence.0.action.output": np.array(0)}),
            "step1: The actions of a step's rule do not fit it: an action must be the score of going on or of an answer",
        ),
        (
            lambda held: [held.pop(name) for name in list(held) if "step1.network." in name],
            "step1.next.action: its step has no network",
        ),
        (
            lambda held: [held.pop(name) for name in list(held) if "step2.include" in name],
            "step2.network: no action uses it",
        ),
        (
            lambda held: held.update({"step1.next.action.network.activation": np.array(0)}),
            "step1.next.action.network.activation: it has no such tensor",
        ),
        (lambda held: held.update({"step1.include.0.constant.number": np.array(0.5)}), "there must be one scorer here"),
    ],
)
def test_tensors_that_make_no_network_are_refused(change: Callable[[dict[str, Any]], Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_again(change)
    assert said in "\n".join(caught.value.problems)


def test_whatever_a_file_holds_it_is_refused_or_a_policy() -> None:
    """Edited files with the hash that they then have: no error but ConfigError, and no score that is not a number."""
    rng = np.random.default_rng(1)
    data, seen = dumps(small()), made.walks(rng, 5)
    refused = 0
    for _ in range(1_000):
        edited = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            edited[int(rng.integers(len(data)))] = int(rng.integers(256))
        try:
            found = loads(bytes(edited), settings(small(), bytes(edited)))
        except ConfigError:
            refused += 1
        else:
            scores = found.batch(seen.history).scores
            assert not np.isnan(scores.next).any()
            assert not np.isnan(scores.candidates).any()
            assert dumps(found) == bytes_of(arrays_of(bytes(edited)))
    assert 200 < refused < 1_000


def test_by_itself_an_action_holds_its_network() -> None:
    one = Action(ENDS, 1)
    again = made.from_arrays("action", one.arrays(), 2)
    assert isinstance(again, Action)
    assert again.output == 1
    rows = np.array([[2.0, 4.0], [1.0, NAN], [NAN, 0.0]])
    assert again.values(rows).tolist() == one.values(rows).tolist()
    with pytest.raises(ConfigError, match="output: is missing"):
        made.from_arrays("action", {name: values for name, values in one.arrays().items() if name != "output"}, 2)
    with pytest.raises(ConfigError, match=r"network\.allowed: is missing"):
        made.from_arrays("action", {"output": np.array(1)}, 2)


# --- as any learned policy


@pytest.mark.parametrize("method", NETWORKS)
def test_its_methods_have_settings_that_are_read(method: str) -> None:
    from cascade.config import policy_section

    policy = replace(small(), method=method)
    section = settings(policy, dumps(policy))
    assert policy_section(section, held=True).model_dump(mode="json") == section


def test_it_says_what_it_reads_and_cannot_do_without() -> None:
    assert small().reads == ("p_yes",)
    assert small().needs == ("p_yes",)
    foreseen = Network(replace(DESIGN, indicators=np.array([0, 1])), *chain(4, 2, 2).values(), "relu", np.ones(2))
    assert LearnedPolicy("cpo", (rule(Action(foreseen, 1)), rule())).needs == ()
