"""A configuration is whole and consistent, or one error names every problem with its path."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cases import each
from pydantic import ValidationError

from cascade.config import CascadeConfig, environment, ledger_url, load, policy_section, traces_url
from cascade.config.policies import DirectoryConfig, FixedConfig, RandomConfig, ThresholdConfig, UalaConfig
from cascade.config.schema import GuaranteeConfig
from cascade.errors import ConfigError
from cascade.money import Price, PriceTable
from cascade.orchestrator import Orchestrator
from cascade.plans.presets import BaseGuideConfig, LadderConfig

LADDER = {"kind": "ladder", "models": ["base", "guide"]}
MODELS: dict[str, Any] = {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"}


def made(**settings: Any) -> CascadeConfig:
    return load({"models": MODELS, "provider": "fake", **settings})


def problems(**settings: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        made(**settings)
    assert caught.value.__cause__ is None
    return caught.value.problems


def only_problem(**settings: Any) -> str:
    found = problems(**settings)
    assert len(found) == 1, found
    return found[0]


def test_two_model_names_are_enough() -> None:
    config = load({"models": MODELS})
    assert config.models["base"].model == "openai/gpt-4o-mini"
    assert isinstance(config.strategy, BaseGuideConfig)
    assert isinstance(config.policy, UalaConfig)
    assert (config.strategy.rounds, config.policy.threshold, config.provider.kind) == (4, 0.3, "litellm")
    assert config.budget.per_question is None


def test_a_model_is_asked_plainly_where_nothing_is_said() -> None:
    model = made().models["base"]
    assert (model.max_tokens, model.temperature, model.seed, model.provider, model.price) == (
        256,
        0.0,
        None,
        None,
        None,
    )
    assert made(policy={"kind": "random"}).policy == RandomConfig(kind="random", seed=0)
    assert made(policy={"kind": "fixed"}).policy == FixedConfig(kind="fixed", serves="surest", depth=1)
    assert (made().strategy.samples, made().timeouts.per_call_s) == (3, 120.0)


@pytest.mark.parametrize(
    "settings", [{"strategy": {"rounds": 1, "samples": 1}}, {"strategy": {"rounds": 100, "samples": 50}}]
)
def test_the_ends_of_a_range_belong_to_it(settings: dict[str, Any]) -> None:
    assert made(**settings)
    model = {"model": "a", "max_tokens": 1, "temperature": 2, "price": {"input": 0, "output": 0}}
    assert made(models={**MODELS, "base": model})


def test_a_configuration_is_returned_as_it_is() -> None:
    config = made()
    assert load(config) is config


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        made().budget = None


@pytest.mark.parametrize("name", ["cascade.yaml", "cascade_local.yaml"])
@pytest.mark.parametrize("as_text", [True, False])
def test_the_shipped_examples_are_whole(name: str, as_text: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(resources.files("cascade").joinpath("data", name).read_text("utf-8"), "utf-8")
    assert load(str(path) if as_text else path).models.keys() == {"base", "guide"}


def test_a_problem_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("models: {base: a}")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load(path)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ({"kind": "fixed", "serves": "newest"}, FixedConfig),
        ({"kind": "random", "seed": 3}, RandomConfig),
        ({"kind": "threshold", "signal": "p_yes"}, ThresholdConfig),
        ({"threshold": 0.1}, UalaConfig),
    ],
)
def test_a_policy_is_told_by_its_kind(wanted: dict[str, Any], kind: type) -> None:
    assert type(made(policy=wanted).policy) is kind


def test_a_strategy_is_told_by_its_kind() -> None:
    assert isinstance(made(strategy={"kind": "ladder", "models": ["base", "guide"]}).strategy, LadderConfig)
    assert isinstance(made(strategy={"rounds": 2}).strategy, BaseGuideConfig)


def test_a_policy_alone_has_the_problems_that_it_has_in_a_configuration() -> None:
    with pytest.raises(ConfigError) as caught:
        policy_section({"kind": "treshold", "signal": 5})
    assert caught.value.problems == problems(policy={"kind": "treshold", "signal": 5})
    assert caught.value.problems[0].startswith("policy: there is no kind 'treshold'; did you mean threshold?")


@pytest.mark.parametrize("path", ["./policy", "policy", "/srv/policies/support"])
def test_a_text_for_a_policy_is_a_policy_directory(path: str) -> None:
    assert made(policy=path).policy == DirectoryConfig(kind="directory", path=path)
    assert made(policy={"kind": "directory", "path": path}).policy == DirectoryConfig(kind="directory", path=path)


@each(
    "settings, said",
    [
        ({"budgt": {}}, "budgt: there is no such setting; did you mean budget?"),
        ({"budget": {"per_quest": 1}}, "budget.per_quest: there is no such setting; did you mean per_question?"),
        ({"policy": {"treshold": 1}}, "policy.treshold: there is no such setting; did you mean threshold?"),
        ({"strategy": {"round": 1}}, "strategy.round: there is no such setting; did you mean rounds?"),
        ({"timeouts": {"per_call": 1}}, "timeouts.per_call: there is no such setting; did you mean per_call_s?"),
        ({"provider": {"kind": "fake", "option": {}}}, "provider.option: there is no such setting; did you mean opti"),
        ({"policy": ""}, "policy: a setting here starts with its kind"),
        ({"policy": " "}, "policy: a setting here starts with its kind"),
        *(({"policy": value}, "policy") for value in (7, ["threshold"], None)),
        (
            {"provider": {"kind": "fake", "options": {"replies": {"a": ["sk-abcdefghijklmnop"]}}}},
            "provider.options.replies.a[0]: this looks like a key",
        ),
        ({"models": {"base": "a", "gide": "b"}}, "models.guide: the base_guide strategy needs it; did you mean gide?"),
        ({"strategy": {"kind": "ladder", "models": ["base", "huge"]}}, "models.huge: the ladder"),
        ({"strategy": {"kind": "ladder", "models": ["base", "base"]}}, "strategy.models: base is named more than once"),
        ({"strategy": {"kind": "ladder", "models": []}}, "strategy.models"),
        *(({"provider": name}, "provider: replay needs a log") for name in ("replay", "replay:", {"kind": "replay"})),
        (
            {"provider": {"kind": "local", "options": {"contxt_tokens": 5}}},
            "provider.options.contxt_tokens: local has no such option; did you mean context_tokens?",
        ),
        ({"provider": {"kind": "openai_http", "options": {"a": 5}}}, "provider.options.a: openai_http has no such"),
        (
            {"models": {**MODELS, "base": {"model": "a", "provider": "locl"}}},
            "models.base.provider: there is no provider 'locl'; did you mean local?",
        ),
        ({"strategy": LADDER, "policy": {"kind": "uala"}}, "policy: uala reads the signal p_yes, which the ladder"),
        (
            {"strategy": LADDER, "policy": {"kind": "threshold", "signal": "p_yes"}},
            "policy: threshold reads the signal p_yes, which the ladder",
        ),
    ],
)
def test_what_is_wrong_is_one_problem_with_its_path_and_the_word_meant(settings: dict[str, Any], said: str) -> None:
    assert only_problem(**settings).startswith(said)


@each(
    "settings, path",
    [
        ({"budget": {"per_question": 0}}, "budget.per_question"),
        ({"budget": {"per_question": float("nan")}}, "budget.per_question"),
        ({"budget": {"per_question": float("inf")}}, "budget.per_question"),
        ({"budget": {"on_exhausted": "stop"}}, "budget.on_exhausted"),
        ({"timeouts": {"per_call_s": -1}}, "timeouts.per_call_s"),
        ({"policy": {"threshold": -0.1}}, "policy.threshold"),
        ({"policy": {"kind": "fixed", "depth": 0}}, "policy.depth"),
        ({"strategy": {"rounds": 0}}, "strategy.rounds"),
        ({"strategy": {"rounds": 101}}, "strategy.rounds"),
        ({"strategy": {"samples": 0}}, "strategy.samples"),
        ({"strategy": {"verdict": "guess"}}, "strategy.verdict"),
        ({"models": {**MODELS, "base": {"model": ""}}}, "models.base.model"),
        ({"models": {**MODELS, "base": {"model": "a", "temperature": 3}}}, "models.base.temperature"),
        ({"models": {**MODELS, "base": {"model": "a", "max_tokens": 0}}}, "models.base.max_tokens"),
        (
            {"models": {**MODELS, "base": {"model": "a", "price": {"input": -1, "output": 0}}}},
            "models.base.price.input",
        ),
        ({"models": {**MODELS, "base": 7}}, "models.base"),
        ({"models": []}, "models"),
        ({"provider": 7}, "provider"),
        ({"provider": "nobody"}, "provider.kind"),
        ({"provider": {"kind": "fake", "api_base": "nowhere"}}, "provider.api_base"),
        ({"models": {**MODELS, "base": {"model": "a", "api_base": "http://169.254.169.254"}}}, "models.base.api_base"),
    ],
)
def test_a_value_out_of_range_is_one_problem_with_its_path(settings: dict[str, Any], path: str) -> None:
    assert only_problem(**settings).split(": ")[0] == path


def test_a_wrong_value_is_shown_but_a_key_in_it_is_not() -> None:
    assert only_problem(strategy={"rounds": "many"}).endswith("not 'many'")
    with pytest.raises(ConfigError) as caught:
        made(strategy={"rounds": "sk-abcdefgh"})
    assert "sk-abcdefgh" not in str(caught.value)


def test_missing_models_are_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        load({})
    assert caught.value.problems == ("models: is missing",)


def test_all_problems_come_at_once_the_inconsistent_ones_too() -> None:
    found = problems(
        models={"base": "a"}, budgt={}, strategy={"rounds": 0}, policy={"kind": "fixed", "depth": 9}, api_key="x"
    )
    paths = {said.split(": ")[0] for said in found}
    assert {"budgt", "strategy.rounds", "api_key", "models.guide", "policy.depth"} <= paths


@pytest.mark.parametrize("value", ["sk-abcdefghijklmnop", "short", 12345, None])
def test_a_key_in_a_configuration_is_refused_without_showing_it(value: object) -> None:
    said = only_problem(models={**MODELS, "base": {"model": "a", "api_key": value}})
    assert said.startswith("models.base.api_key: keys do not belong")
    assert str(value) not in said


@pytest.mark.parametrize("strategy", [{"rounds": 2}, {"kind": "ladder", "models": ["base", "guide"]}])
def test_a_fixed_depth_fits_the_strategy(strategy: dict[str, Any]) -> None:
    assert made(strategy=strategy, policy={"kind": "fixed", "depth": 2})
    said = only_problem(strategy=strategy, policy={"kind": "fixed", "depth": 3})
    assert said == "policy.depth: 3 is more than the 2 steps that the strategy has"


def test_one_model_has_one_price() -> None:
    def entry(output: float) -> dict[str, Any]:
        return {"model": "same", "price": {"input": 1, "output": output}}

    assert made(models={"base": entry(2), "guide": entry(2)})
    said = only_problem(models={"base": entry(2), "guide": entry(3)})
    assert said == "models.guide.price: same has another price here"


def test_a_hard_cap_needs_every_price() -> None:
    unpriced = {"base": "openai/gpt-4o-mini", "guide": "mine"}
    assert made(models=unpriced)
    said = only_problem(models=unpriced, budget={"per_question": 0.02})
    assert said.startswith("models.guide.price: mine has no known price")
    priced = {**unpriced, "guide": {"model": "mine", "price": {"input": 1, "output": 4}}}
    assert made(models=priced, budget={"per_question": 0.02})


def test_prices_are_the_configured_ones_then_the_tables_then_unknown() -> None:
    entry = {"model": "openai/gpt-4o", "price": {"input": 1, "output": 4, "note": "made up"}}
    config = made(models={"base": "openai/gpt-4o-mini", "guide": entry, "other": "mine"})
    assert config.prices() == {
        "openai/gpt-4o-mini": PriceTable.bundled().price("openai/gpt-4o-mini"),
        "openai/gpt-4o": Price.per_million(input=1, output=4, note="made up"),
        "mine": None,
    }


def test_a_price_given_in_one_place_holds_wherever_the_model_stands() -> None:
    entry = {"model": "mine", "price": {"input": 1, "output": 4}}
    for models in ({"base": entry, "guide": "mine"}, {"base": "mine", "guide": entry}):
        config = made(models=models, budget={"per_question": 1})
        assert config.prices() == {"mine": Price.per_million(input=1, output=4)}


def test_a_provider_is_named_by_a_word_or_with_its_file() -> None:
    assert made(provider="local").provider.kind == "local"
    replay = made(provider="replay:C:/log.jsonl").provider
    assert (replay.kind, dict(replay.options)) == ("replay", {"path": "C:/log.jsonl"})


def test_an_empty_environment_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "value")
    assert environment("MINE") == "value"
    monkeypatch.setenv("MINE", "")
    assert environment("MINE") is None
    monkeypatch.delenv("MINE")
    assert environment("MINE") is None
    assert environment(None) is None


def test_loading_leaves_the_document_as_it_was() -> None:
    document = {"models": {"base": "a"}, "policy": {"kind": "fixed", "depht": 1}}
    with pytest.raises(ConfigError):
        load(document)
    assert document == {"models": {"base": "a"}, "policy": {"kind": "fixed", "depht": 1}}


@pytest.mark.parametrize(
    "policy", [{"kind": "fixed"}, {"kind": "random"}, {"kind": "threshold", "signal": "reply_mean_logprob"}]
)
def test_a_policy_that_works_on_a_ladder_is_taken(policy: dict[str, Any]) -> None:
    assert made(strategy=LADDER, policy=policy)


@pytest.mark.parametrize(
    ("given", "store"),
    [
        (True, None),
        ("on", None),
        ({}, None),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ({"store": "postgresql://me@host/db"}, "postgresql://me@host/db"),
    ],
)
def test_traces_are_on_and_may_have_a_store(given: object, store: str | None) -> None:
    traces = made(traces=given).traces
    assert traces is not None
    assert (traces.store, traces.content, traces.strict) == (store, "full", False)


@pytest.mark.parametrize("given", [False, "off", None])
def test_traces_may_be_off(given: object) -> None:
    assert made(traces=given).traces is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere", "traces.store: A store is sqlite:///FILE"),
        ("sqlite:///../x.db", "traces.store: The path in 'sqlite:///../x.db' leads upwards (..)"),
        ("postgresql://me:hunter2@host/db", "traces.store: a URL with a password does not belong in a configuration"),
        ({"store": "postgresql://host/db?password=hunter2"}, "traces.store: a URL with a password does not belong"),
        ({"store": "sqlite:///x.db", "store_env": "NAME"}, "traces: give store or store_env, not both"),
        ({"content": "some"}, "traces.content: input should be 'full', 'hash' or 'none', not 'some'"),
        ({"strickt": True}, "traces.strickt: there is no such setting; did you mean strict?"),
        ({"password": "x"}, "traces.password: keys do not belong in a configuration"),
        (5, "traces: input should be settings, as in {name: value}, not 5"),
    ],
)
def test_a_wrong_setting_of_traces_is_named_without_what_is_secret(given: object, said: str) -> None:
    found = only_problem(traces=given)
    assert found.startswith(said)
    assert "hunter2" not in found


# --- guarantees ---


def test_without_a_section_nothing_is_asked_for() -> None:
    assert made().guarantee is None


def test_a_guarantee_is_read_whole() -> None:
    asked = {
        "promise": "coverage",
        "risk": 0.05,
        "confidence": 0.9,
        "required": True,
        "uncovered": "policy",
        "audit": {"probability": 0.02, "seed": 7},
        "monitor": {"level": 0.01, "fallback": "guide"},
    }
    found = made(guarantee=asked).guarantee
    assert isinstance(found, GuaranteeConfig)
    assert found.model_dump(exclude_none=True) == asked


def test_what_a_guarantee_does_not_say_is_not_asked_for() -> None:
    found = GuaranteeConfig()
    assert (found.promise, found.risk, found.confidence, found.required, found.audit) == (None, None, None, False, None)
    assert (found.monitor.level, found.monitor.fallback) == (0.05, None)


@each(
    "settings, said",
    [
        ({"promise": "coverag"}, "guarantee: there is no promise 'coverag'"),
        ({"rsk": 0.1}, "guarantee.rsk: there is no such setting; did you mean risk?"),
        ({"promise": "coverage", "risk": 1.5}, "guarantee: risk"),
        ({"promise": "error", "confidence": 0}, "guarantee: confidence"),
        ({"monitor": {}}, "guarantee: monitor learns from audits; add audit: {probability: 0.05}"),
        ({"audit": {"probability": 0}}, "guarantee.audit.probability: input should be greater than 0"),
        ({"audit": {"probability": 1.1}}, "guarantee.audit.probability: input should be less than or equal to 1"),
        ({"audit": {"probabilty": 1}}, "guarantee.audit.probabilty: there is no such setting; did you mean probab"),
        ({"audit": {"probability": 1}, "monitor": {"level": 1}}, "guarantee.monitor.level: input should be less"),
        ({"audit": {"probability": 1}, "monitor": {"falback": 1}}, "guarantee.monitor.falback: there is no such"),
    ],
)
def test_what_is_wrong_with_a_guarantee_is_said_with_its_path(settings: dict[str, Any], said: str) -> None:
    assert any(one.startswith(said) for one in problems(guarantee=settings)), problems(guarantee=settings)


def test_all_problems_of_a_guarantee_are_said_at_once() -> None:
    found = problems(guarantee={"promise": "error", "risk": 2, "monitor": {}}, budgt={})
    assert len(found) == 3


@each("value", [True, False])
@each(
    "place",
    [
        ("models", "base", "price", "input"),
        ("models", "base", "price", "cached_input"),
        ("models", "base", "max_tokens"),
        ("models", "base", "seed"),
        ("strategy", "rounds"),
        ("policy", "threshold"),
        ("timeouts", "per_call_s"),
        ("guarantee", "risk"),
        ("limits", "context_chars"),
    ],
)
def test_true_is_no_number(place: tuple[str, ...], value: bool) -> None:
    """0.5.0: `price: {input: true}` was 1 USD, `rounds: true` one round."""
    config: dict[str, Any] = {
        "models": {"base": {"model": "a", "price": {"input": 1, "output": 1}}, "guide": "b"},
        "strategy": {"kind": "base_guide"},
        "policy": {"kind": "uala"},
        "provider": "fake",
    }
    inner = config
    for name in place[:-1]:
        inner = inner.setdefault(name, {})
    inner[place[-1]] = value
    with pytest.raises(ConfigError) as caught:
        load(config)
    assert any(said.startswith(".".join(place)) and str(value).lower() in said for said in caught.value.problems)


# --- paths ---


def test_every_path_in_a_file_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5.0 looked for prompts, replays and trace stores in the working directory."""
    folder = tmp_path / "conf"
    (folder / "my-prompts").mkdir(parents=True)
    (folder / "my-prompts" / "answer.txt").write_text("[user]\nMine: {question}\n")
    (folder / "log.jsonl").write_text("")
    text = (
        "models: {base: small, guide: large}\nstrategy: {kind: base_guide, prompts: my-prompts}\n"
        "policy: ./policy\nprovider: replay:log.jsonl\ntraces: sqlite:///traces.db\n"
        "server: {review: {log: log.jsonl}}\nbudget: {total: 5, store: sqlite:///spent.db}\n"
    )
    (folder / "cascade.yaml").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for written in (folder / "cascade.yaml", Path("../conf/cascade.yaml")):
        config = load(written)
        assert isinstance(config.policy, DirectoryConfig)
        assert Path(config.policy.path).resolve() == folder / "policy"
        assert Path(config.strategy.prompts or "").resolve() == folder / "my-prompts"
        assert Path(config.provider.options["path"]).resolve() == folder / "log.jsonl"
        assert Path(config.server.review.log or "").resolve() == folder / "log.jsonl"
        assert traces_url(config.traces) == f"sqlite:///{folder}/traces.db"
        assert ledger_url(config.budget) == f"sqlite:///{folder}/spent.db"
        with Orchestrator.from_config(config.model_copy(update={"policy": FixedConfig(kind="fixed")})) as made:
            assert made.runtime.config.strategy.prompts == config.strategy.prompts
    monkeypatch.chdir(folder)
    assert load("cascade.yaml").strategy.prompts == "my-prompts"


def test_a_path_in_python_an_absolute_one_and_a_servers_url_stay_as_written(tmp_path: Path) -> None:
    settings = {
        "models": {"base": "small", "guide": "large"},
        "strategy": {"kind": "base_guide", "prompts": "my-prompts"},
        "provider": "replay:log.jsonl",
    }
    config = load(settings)
    assert (config.strategy.prompts, config.provider.options["path"]) == ("my-prompts", "log.jsonl")
    for name, provider, traces in (
        ("/abs/log.jsonl", "replay:/abs/log.jsonl", "sqlite:////abs/traces.db"),
        ("postgresql://h/db", "replay:postgresql://h/db", "postgresql://h/traces"),
        ("sqlite:////abs/t.db", "replay:sqlite:////abs/t.db", "sqlite:///~/traces.db"),
    ):
        path = tmp_path / "cascade.yaml"
        path.write_text(json.dumps(settings | {"provider": provider, "traces": traces}))
        config = load(path)
        assert (config.provider.options["path"], traces_url(config.traces)) == (name, traces)


def test_without_a_store_traces_go_beside_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cascade.yaml").write_text("models: {base: small, guide: large}\n")
    for value, place in (
        (None, f"sqlite:///{tmp_path}/.cascade/records.db"),
        ("sqlite:////told.db", "sqlite:////told.db"),
    ):
        monkeypatch.delenv("CASCADE_TRACES", raising=False)
        if value is not None:
            monkeypatch.setenv("CASCADE_TRACES", value)
        assert traces_url(load(tmp_path / "cascade.yaml").traces) == place
