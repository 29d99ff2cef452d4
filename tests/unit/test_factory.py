"""From the configuration's sections to strategies and policies: every kind has a maker, and nothing is lost on the way."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest

from cascade.config import load, policy_section
from cascade.config.policies import POLICIES
from cascade.errors import ConfigError
from cascade.factory import build_policy, build_strategy
from cascade.plans.base import ModelUse
from cascade.plans.presets import STRATEGIES
from cascade.plans.presets import ladder as ladder_of
from cascade.policies.live import LivePolicy
from cascade.policies.policy import Depth, Prompted, Random, Threshold, Uala
from unit.builders import TWO_MODELS, base_guide, exits
from unit.certified import ROUNDS as NODES
from unit.certified import certificate, directory

SMALL, LARGE = ModelUse("small", 9, 0.5, 3, chat_max_tokens=9), ModelUse("large")
ENTRY = {"model": "small", "max_tokens": 9, "temperature": 0.5, "seed": 3}
ROUNDS = TWO_MODELS | {"strategy": {"rounds": 3}}
MODELS = {"models": {"base": ENTRY, "guide": "large"}, "provider": "fake"}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"decider": "base"}, base_guide(SMALL, LARGE, decider="base")),
        ({"rounds": 2, "samples": 5}, base_guide(SMALL, LARGE, 2, samples=5)),
        ({"kind": "exit", "model": "base", "rounds": 2}, exits(SMALL, "base", 2)),
        ({"kind": "exit"}, exits(LARGE, "guide", 4)),
        ({"kind": "ladder", "models": ["guide", "base"]}, ladder_of((LARGE, SMALL))),
    ],
)
def test_a_strategy_is_what_its_section_says(strategy, expected):
    assert build_strategy(load(MODELS | {"strategy": strategy})) == expected


def test_a_folder_of_prompts_is_read_by_every_strategy(tmp_path):
    (tmp_path / "exit.txt").write_text("[user]\nStop? {data}")
    for strategy in ({}, {"kind": "exit"}, {"kind": "ladder", "models": ["base"]}):
        plan: Any = build_strategy(load(MODELS | {"strategy": strategy | {"prompts": str(tmp_path)}}))
        assert plan.prompts.exit.before == "Stop? "
    with pytest.raises(ConfigError, match="does not exist"):
        build_strategy(load(MODELS | {"strategy": {"prompts": str(tmp_path / "nowhere")}}))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"kind": "fixed", "serves": "newest", "depth": 2}, (Depth(), -3.5)),
        ({"kind": "fixed", "serves": "first", "depth": 2}, (Depth(serves="first"), -3.5)),
        ({"kind": "random", "seed": 5, "probability": 0.25}, (Random(5), 0.75)),
        ({"threshold": 0.25, "accepts_no": False}, (Uala(accepts_no=False), 0.25)),
        ({"threshold": 0.25}, (Uala(), 0.25)),
        ({"kind": "prompted"}, (Prompted(), 0.0)),
    ],
)
def test_a_policy_is_what_its_section_says(policy, expected):
    decider = {"strategy": {"decider": "guide"}}
    live = build_policy(load(TWO_MODELS | decider | {"policy": policy}))
    assert (live.rule, live.kappa) == expected
    assert policy_section(policy).rule(live.plan) == expected


@pytest.mark.parametrize("registry", [POLICIES, STRATEGIES])
def test_every_kind_has_settings_of_that_kind(registry):
    kinds = {name: registry.find(name).model_fields["kind"].annotation for name in registry.built_in}
    assert {name: get_args(kind) for name, kind in kinds.items()} == {name: (name,) for name in kinds}


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        ({"kind": "exit"}, Prompted()),
        ({"rounds": 2}, Uala()),
        ({"kind": "ladder", "models": ["base", "guide"]}, Threshold("reply_mean_logprob", -1.0, tie=None)),
    ],
)
def test_a_strategy_brings_the_policy_that_fits_it(strategy, policy):
    assert build_policy(load(TWO_MODELS | {"strategy": strategy})).rule == policy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": {"kind": "prompted"}}, "needs a model that decides"),
        ({"strategy": {"kind": "exit", "model": "nobody"}}, "models.nobody: the exit strategy needs it"),
        ({"strategy": {"kind": "exit"}, "policy": {"kind": "uala"}}, "uala reads the signal p_yes"),
        ({"strategy": {"kind": "exit"}, "policy": {"kind": "fixed", "depth": 9}}, "more than the 4 steps"),
        ({"strategy": {"kind": "exits"}}, "there is no kind 'exits'"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load(TWO_MODELS | settings)


# --- policy directories ---


def test_a_policy_directory_is_its_policy_at_the_certified_threshold(tmp_path):
    config = load(ROUNDS | {"policy": directory(tmp_path, certificate(kappa=0.25))})
    assert build_policy(config) == LivePolicy(Uala(), NODES, 0.25)


def test_without_a_certificate_it_goes_on_to_the_end(tmp_path):
    assert build_policy(load(ROUNDS | {"policy": directory(tmp_path)})).kappa == -math.inf


@pytest.mark.parametrize("strategy", [{"rounds": 2}, {"kind": "ladder", "models": ["base", "guide"]}])
def test_a_strategy_that_cannot_serve_a_directory_is_refused(tmp_path, strategy):
    with pytest.raises(ConfigError):
        build_policy(load(TWO_MODELS | {"strategy": strategy, "policy": directory(tmp_path)}))
