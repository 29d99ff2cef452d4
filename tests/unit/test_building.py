"""From the configuration's sections to strategies and policies: every kind has a maker, and nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from cascade import building
from cascade.building import build_policy, build_strategy, policy_of
from cascade.config import load, policy_section
from cascade.errors import ConfigError
from cascade.policies.fixed import FixedPolicy, RandomPolicy
from cascade.policies.prompted import PromptedPolicy
from cascade.policies.threshold import ThresholdPolicy
from cascade.sections import POLICIES, STRATEGIES
from cascade.strategies.base import ModelUse
from cascade.strategies.base_guide import BaseGuide
from cascade.strategies.exit import Exit
from cascade.strategies.ladder import Ladder
from unit.made import TWO_MODELS

ENTRY = {"model": "small", "max_tokens": 9, "temperature": 0.5, "seed": 3}
MODELS = {"models": {"base": ENTRY, "guide": "large"}, "provider": "fake"}


@pytest.mark.parametrize(
    ("strategy", "made"),
    [
        ({"decider": "base"}, BaseGuide(ModelUse("small", 9, 0.5, 3), ModelUse("large"), decider="base")),
        (
            {"rounds": 2, "verdict": "sampled", "samples": 5, "on_guide_error": "accept"},
            BaseGuide(ModelUse("small", 9, 0.5, 3), ModelUse("large"), 2, "sampled", 5, "accept"),
        ),
        ({"kind": "exit", "model": "base", "rounds": 2}, Exit(ModelUse("small", 9, 0.5, 3), "base", 2)),
        ({"kind": "exit"}, Exit(ModelUse("large"), "guide", 4)),
        ({"kind": "ladder", "models": ["guide", "base"]}, Ladder((ModelUse("large"), ModelUse("small", 9, 0.5, 3)))),
    ],
)
def test_a_strategy_is_what_its_section_says(strategy: dict[str, Any], made: Any) -> None:
    assert build_strategy(load(MODELS | {"strategy": strategy})) == made


def test_every_kind_of_strategy_can_be_built() -> None:
    needed: dict[str, Any] = {"ladder": {"models": ["base"]}}
    made = {build_strategy(load(MODELS | {"strategy": {"kind": kind, **needed.get(kind, {})}})) for kind in STRATEGIES}
    assert {type(one) for one in made} == {BaseGuide, Ladder, Exit}


def test_a_folder_of_prompts_is_read_by_every_strategy(tmp_path: Path) -> None:
    (tmp_path / "exit.txt").write_text("[user]\nStop? {data}")
    for strategy in ({}, {"kind": "exit"}, {"kind": "ladder", "models": ["base"]}):
        made: Any = build_strategy(load(MODELS | {"strategy": strategy | {"prompts": str(tmp_path)}}))
        assert made.prompts.exit.before == "Stop? "
    with pytest.raises(ConfigError, match="no folder"):
        build_strategy(load(MODELS | {"strategy": {"prompts": str(tmp_path / "nowhere")}}))


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ({"kind": "fixed", "keep": "guide", "depth": 2}, FixedPolicy("guide", 2)),
        ({"kind": "random", "seed": 5}, RandomPolicy(5)),
        ({"threshold": 0.2, "keep": "both", "when": "p_yes"}, ThresholdPolicy(0.2, "both", "p_yes")),
        ({"kind": "prompted"}, PromptedPolicy()),
    ],
)
def test_a_policy_is_what_its_section_says(policy: dict[str, Any], made: Any) -> None:
    decider = {"strategy": {"decider": "guide"}}
    assert build_policy(load(TWO_MODELS | decider | {"policy": policy})) == made
    assert policy_of(policy_section(policy)) == made


def test_every_kind_of_policy_has_a_maker() -> None:
    assert set(building._POLICIES) == set(POLICIES)
    assert {get_args(section.model_fields["kind"].annotation)[0] for section in POLICIES.values()} == set(POLICIES)


@pytest.mark.parametrize(
    ("strategy", "policy"), [({"kind": "exit"}, PromptedPolicy()), ({"rounds": 2}, ThresholdPolicy())]
)
def test_a_strategy_brings_the_policy_that_fits_it(strategy: dict[str, Any], policy: Any) -> None:
    assert build_policy(load(TWO_MODELS | {"strategy": strategy})) == policy


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": {"kind": "prompted"}}, "needs a model that decides"),
        ({"strategy": {"kind": "exit", "model": "nobody"}}, "models.nobody: the exit strategy needs it"),
        ({"strategy": {"kind": "exit"}, "policy": {"kind": "threshold"}}, "the exit strategy has no verdicts"),
        ({"strategy": {"kind": "exit"}, "policy": {"kind": "fixed", "keep": "base"}}, "has one candidate"),
        ({"strategy": {"kind": "exit"}, "policy": {"kind": "fixed", "depth": 9}}, "more than the 4 steps"),
        ({"strategy": {"kind": "exits"}}, "there is no kind 'exits'"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(TWO_MODELS | settings)
