"""From the configuration's sections to strategies and policies: every kind has a maker, and nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from cascade.config import load, policy_section
from cascade.errors import ConfigError
from cascade.factory import build_policy, build_strategy, certified_policy, policy_of, read_policy
from cascade.policies.artifact import MODEL_FILE, CalibratedPolicy, PolicyArtifact, write
from cascade.policies.config import POLICIES
from cascade.policies.estimators import Signal
from cascade.policies.features import FeatureSet
from cascade.policies.fixed import FixedPolicy, RandomPolicy
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.policies.model_file import dumps, settings
from cascade.policies.prompted import PromptedPolicy
from cascade.policies.reading import read
from cascade.policies.threshold import ThresholdPolicy
from cascade.strategies.base import ModelUse
from cascade.strategies.base_guide import BaseGuide
from cascade.strategies.config import STRATEGIES
from cascade.strategies.exit import Exit
from cascade.strategies.ladder import Ladder
from cascade.strategies.offers import Offers
from cascade.strategies.verified import Verified
from unit.certified import certificate, directory
from unit.made import TWO_MODELS
from unit.policies import learned_made as walks

ENTRY = {"model": "small", "max_tokens": 9, "temperature": 0.5, "seed": 3}
MODELS = {"models": {"base": ENTRY, "guide": "large"}, "provider": "fake"}


@pytest.mark.parametrize(
    ("strategy", "made"),
    [
        (
            {"decider": "base"},
            BaseGuide(ModelUse("small", 9, 0.5, 3, chat_max_tokens=9), ModelUse("large"), decider="base"),
        ),
        (
            {"rounds": 2, "verdict": "sampled", "samples": 5, "on_guide_error": "accept"},
            BaseGuide(ModelUse("small", 9, 0.5, 3, chat_max_tokens=9), ModelUse("large"), 2, "sampled", 5, "accept"),
        ),
        (
            {"kind": "exit", "model": "base", "rounds": 2},
            Exit(ModelUse("small", 9, 0.5, 3, chat_max_tokens=9), "base", 2),
        ),
        ({"kind": "exit"}, Exit(ModelUse("large"), "guide", 4)),
        (
            {"kind": "ladder", "models": ["guide", "base"]},
            Ladder((ModelUse("large"), ModelUse("small", 9, 0.5, 3, chat_max_tokens=9))),
        ),
    ],
)
def test_a_strategy_is_what_its_section_says(strategy: dict[str, Any], made: Any) -> None:
    assert build_strategy(load(MODELS | {"strategy": strategy})) == made


def test_every_kind_of_strategy_can_be_built() -> None:
    needed: dict[str, Any] = {
        "ladder": {"models": ["base"]},
        "offers": {"offers": [{"name": "a", "model": "base"}]},
        "verified": {"models": ["base"], "verifier": {"kind": "schema", "json_schema": {}}},
    }
    made = {
        build_strategy(load(MODELS | {"strategy": {"kind": kind, **needed.get(kind, {})}}))
        for kind in STRATEGIES.built_in
    }
    assert {type(one) for one in made} == {BaseGuide, Ladder, Exit, Offers, Verified}


def test_a_folder_of_prompts_is_read_by_every_strategy(tmp_path: Path) -> None:
    (tmp_path / "exit.txt").write_text("[user]\nStop? {data}")
    for strategy in ({}, {"kind": "exit"}, {"kind": "ladder", "models": ["base"]}):
        made: Any = build_strategy(load(MODELS | {"strategy": strategy | {"prompts": str(tmp_path)}}))
        assert made.prompts.exit.before == "Stop? "
    with pytest.raises(ConfigError, match="does not exist"):
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


@pytest.mark.parametrize("registry", [POLICIES, STRATEGIES])
def test_every_kind_has_settings_of_that_kind(registry: Any) -> None:
    found = {name: registry.find(name).model_fields["kind"].annotation for name in registry.built_in}
    assert {name: get_args(kind) for name, kind in found.items()} == {name: (name,) for name in found}


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


# --- policy directories ---


def test_a_policy_directory_is_its_policy_at_the_certified_threshold(tmp_path: Path) -> None:
    config = load(TWO_MODELS | {"policy": directory(tmp_path, certificate(kappa=0.25))})
    policy = build_policy(config)
    assert isinstance(policy, CalibratedPolicy)
    assert (policy.kappa, policy.inner) == (0.25, ThresholdPolicy(0.4, "both"))
    assert policy_of(config.policy) == policy
    assert certified_policy(config, str(tmp_path)) == (policy, read(tmp_path))


def test_without_a_certificate_it_is_the_policy_as_it_is_set(tmp_path: Path) -> None:
    assert build_policy(load(TWO_MODELS | {"policy": directory(tmp_path)})) == ThresholdPolicy(0.4, "both")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"kind": "treshold"}, "there is no kind 'treshold'"),
        ({"kind": "fixed", "depth": 9}, "9 is more than the 4 steps"),
        ({"kind": "prompted"}, "needs a model that decides"),
        ({"kind": "directory", "path": "elsewhere"}, "holds a policy, not the path of another"),
    ],
)
def test_a_policy_directory_must_hold_a_policy_that_fits(tmp_path: Path, policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_policy(load(TWO_MODELS | {"policy": directory(tmp_path, policy=policy)}))


def test_a_policy_directory_that_is_not_there_or_was_edited_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such policy directory"):
        build_policy(load(TWO_MODELS | {"policy": str(tmp_path / "nowhere")}))
    config = load(TWO_MODELS | {"policy": directory(tmp_path, certificate(kappa=0.25))})
    file = tmp_path / "certificate.json"
    file.write_text(file.read_text().replace("0.25", "0.35"))
    with pytest.raises(ConfigError, match="changed after it was made"):
        build_policy(config)


# --- learned policies


def learned(folder: Path, sources: tuple[str, ...] = walks.PAIR, horizon: int = 4, *names: str) -> str:
    """Write a learned policy that looks at features, by default P(yes), and return its directory."""
    features = FeatureSet(names or ("p_yes",), sources)
    onward = Signal(0, -1.0)
    nobody = (None,) * len(sources)
    rules = [
        StepRule(features, onward if number < horizon else None, nobody, nobody) for number in range(1, horizon + 1)
    ]
    policy = LearnedPolicy("threshold", tuple(rules), kappa=-0.5)
    data = dumps(policy)
    write(folder, PolicyArtifact(settings(policy, data), files={MODEL_FILE: data}))
    return str(folder)


def test_a_learned_policy_is_read_from_its_directory(tmp_path: Path) -> None:
    policy = build_policy(load(TWO_MODELS | {"policy": learned(tmp_path)}))
    assert isinstance(policy, LearnedPolicy)
    assert (policy.kappa, policy.horizon, policy.reads) == (-0.5, 4, ("p_yes",))


@pytest.mark.parametrize(
    ("strategy", "sources", "horizon", "names", "said"),
    [
        (
            {"rounds": 2},
            walks.PAIR,
            4,
            ("p_yes",),
            "fitted on 4 steps, and the strategy has 2; write strategy: {kind: base_guide, rounds: 4}",
        ),
        ({"rounds": 4}, walks.PAIR, 3, ("p_yes",), "policy.horizon: it was fitted on 3 steps, and the strategy has 4"),
        ({}, ("base",), 4, ("p_yes",), "policy.sources: it was fitted on base, and the strategy has base and guide"),
        ({}, walks.LADDER, 4, ("p_yes",), "policy.sources: it was fitted on one answer a step, and"),
        ({}, walks.LADDER, 4, ("p_yes",), "; write strategy: {kind: ladder, models: [the 4 models, cheapest first]}"),
        ({}, walks.LADDER, 2, ("p_yes",), "the strategy has 4; write strategy: {kind: ladder, models: [base, guide]}"),
        (
            {},
            walks.PAIR,
            4,
            ("p_yess.change",),
            "signal p_yess, which the base_guide strategy never gives; did you mean p_yes?",
        ),
        (
            {},
            walks.PAIR,
            4,
            ("says_exit",),
            "it reads the signal says_exit, which the base_guide strategy never gives",
        ),
        (
            {"kind": "ladder", "models": ["base", "guide"]},
            walks.LADDER,
            2,
            ("p_yes",),
            "which the ladder strategy never",
        ),
        ({"kind": "ladder", "models": ["base", "guide"]}, walks.PAIR, 2, ("votes",), "has one candidate a step"),
        ({"kind": "exit"}, ("base",), 4, ("says_exit",), "policy.sources: it was fitted on base, and"),
    ],
)
def test_a_learned_policy_that_does_not_fit_the_strategy_is_refused(
    strategy: dict[str, Any], sources: tuple[str, ...], horizon: int, names: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    config = load(TWO_MODELS | {"strategy": strategy, "policy": learned(tmp_path, sources, horizon, *names)})
    with pytest.raises(ConfigError) as caught:
        build_policy(config)
    assert said in "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("strategy", "sources", "horizon", "names"),
    [
        ({}, ("guide", "base"), 4, ("p_yes", "confidence[guide]", "asked.words", "cost_so_far")),
        ({"kind": "ladder", "models": ["base", "guide"]}, walks.LADDER, 2, ("reply_mean_logprob", "equals.at1")),
        ({"kind": "ladder", "models": ["guide"]}, ("large",), 1, ("reply_mean_logprob",)),
        ({"kind": "exit"}, ("guide",), 4, ("says_exit",)),
    ],
)
def test_a_learned_policy_that_fits_is_built(
    strategy: dict[str, Any], sources: tuple[str, ...], horizon: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    config = load(TWO_MODELS | {"strategy": strategy, "policy": learned(tmp_path, sources, horizon, *names)})
    assert isinstance(build_policy(config), LearnedPolicy)


@pytest.mark.parametrize("policy", [{"kind": "learned"}, {"kind": "learned", "method": "depth", "more": 1}, "learned"])
def test_a_learned_policy_cannot_be_written_out(policy: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load(TWO_MODELS | {"policy": policy})
    said = "policy: a learned policy cannot be given by its settings; name the directory that cascade fit wrote: policy: DIR"
    assert caught.value.problems == (said,)


def test_its_settings_alone_make_no_policy(tmp_path: Path) -> None:
    section = read_policy(learned(tmp_path)).section
    with pytest.raises(ConfigError, match="cannot be given by its settings"):
        policy_section(section.model_dump(mode="json"))
    with pytest.raises(ConfigError, match="the numbers of a learned policy are in its directory"):
        policy_of(section)
