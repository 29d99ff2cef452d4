"""Other ways to answer the questions of a log, by name."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.collection.collector import BASELINES, recorded_baselines
from cascade.config import CascadeConfig, load
from cascade.errors import UsageError
from cascade.logs.schema import GUIDE_ONLY
from cascade.policies.policy import Depth, Prompted
from unit.made import TWO_MODELS

NAMES = ("guide only", "LLM policy, base", "LLM-exit, base", "LLM policy, guide", "LLM-exit, guide")


def config(**strategy: object) -> CascadeConfig:
    return load(TWO_MODELS | {"strategy": {"rounds": 3, **strategy}})


def test_the_names_are_those_of_the_command_line_and_the_log():
    assert BASELINES == NAMES
    assert GUIDE_ONLY == "guide only"
    assert tuple(walk.name for walk in recorded_baselines(config())) == NAMES


def nodes_of(strategy: Any) -> list[tuple[str, str, str]]:
    return [(node.name, node.use.name, node.purpose) for node in strategy.nodes]


def test_the_guide_only_is_a_ladder_of_the_guide_that_keeps_its_answer():
    (walk,) = recorded_baselines(config(), [GUIDE_ONLY])
    assert nodes_of(walk.strategy) == [("large", "large", "answer")]
    assert walk.policy is not None
    assert (walk.policy.rule, walk.policy.kappa) == (Depth(serves="surest"), -0.5)


@pytest.mark.parametrize("place", ["base", "guide"])
def test_a_model_as_policy_has_the_logs_own_rounds_and_decides_in_each(place):
    (walk,) = recorded_baselines(config(), [f"LLM policy, {place}"])
    decides = ("base", "small", "decide") if place == "base" else ("guide", "large", "decide")
    assert nodes_of(walk.strategy)[3::4] == [decides] * 3
    assert walk.policy is not None
    assert walk.policy.rule == Prompted()


@pytest.mark.parametrize(("place", "model"), [("base", "small"), ("guide", "large")])
def test_exit_is_one_model_with_as_many_rounds(place, model):
    (walk,) = recorded_baselines(config(), [f"LLM-exit, {place}"])
    assert nodes_of(walk.strategy) == [(place, model, "answer"), (place, model, "exit")] * 3
    assert walk.policy is not None
    assert walk.policy.rule == Prompted()


def test_every_walk_uses_the_configured_prompts(tmp_path):
    (tmp_path / "answer.txt").write_text("[user]\nMine: {question}")
    for walk in recorded_baselines(config(prompts=str(tmp_path))):
        assert walk.strategy.prompts.answer.before == "Mine: "  # type: ignore[attr-defined]


def test_only_the_walks_asked_for_are_made_in_that_order_and_once():
    wanted = ["LLM-exit, base", GUIDE_ONLY, "LLM-exit, base"]
    assert [walk.name for walk in recorded_baselines(config(), wanted)] == ["LLM-exit, base", GUIDE_ONLY]
    assert recorded_baselines(config(), []) == ()


@pytest.mark.parametrize("strategy", [{"kind": "ladder", "models": ["base", "guide"]}, {"kind": "exit"}])
def test_other_strategies_have_none(strategy):
    assert recorded_baselines(load(TWO_MODELS | {"strategy": strategy})) == ()


def test_an_unknown_walk_is_a_usage_error_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"There is no walk 'guide onli'.*guide only"):
        recorded_baselines(config(), ["guide onli"])


def test_the_configuration_is_left_as_it_was():
    given = config()
    before = given.model_dump()
    recorded_baselines(given)
    assert given.model_dump() == before
