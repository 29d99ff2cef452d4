"""A configuration, from a file or not, is whole and consistent, or one error names every problem with its path."""

from __future__ import annotations

import difflib
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cases import each
from pydantic import ValidationError

from cascade.checks import checked_base, did_you_mean, is_link_local, is_secret_name, secret_problems, share_problems
from cascade.config import CascadeConfig, environment, load, policy_section
from cascade.config.policies import DirectoryConfig, FixedConfig, RandomConfig, ThresholdConfig, UalaConfig
from cascade.config.yamlfile import MAX_FILE_BYTES, read_yaml
from cascade.errors import ConfigError
from cascade.money import Price, PriceTable
from cascade.orchestrator import Orchestrator
from cascade.plans.presets import BaseGuideConfig, LadderConfig
from cascade.policies.policy import Depth

LADDER = {"kind": "ladder", "models": ["base", "guide"]}
MODELS: dict[str, Any] = {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"}


def loaded(**settings: Any) -> CascadeConfig:
    return load({"models": MODELS, "provider": "fake", **settings})


def problems(**settings: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        loaded(**settings)
    assert caught.value.__cause__ is None
    return caught.value.problems


# --- what is read ---


def test_two_model_names_are_enough():
    config = load({"models": MODELS})
    model = config.models["base"]
    assert (model.model, model.max_tokens, model.temperature) == ("openai/gpt-4o-mini", 256, 0.0)
    assert (model.seed, model.provider, model.price) == (None, None, None)
    assert isinstance(config.strategy, BaseGuideConfig)
    assert isinstance(config.policy, UalaConfig)
    assert (config.strategy.rounds, config.strategy.samples, config.policy.threshold) == (4, 3, 0.3)
    assert (config.budget.per_question, config.provider.kind, config.timeouts.per_call_s) == (None, "litellm", 120.0)
    assert config.guarantee is None


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": {"rounds": 1, "samples": 1}},
        {"strategy": {"rounds": 100, "samples": 50}},
        {"models": {**MODELS, "base": {"model": "a", "max_tokens": 1, "temperature": 2}}},
        {"models": {**MODELS, "base": {"model": "a", "price": {"input": 0, "output": 0}}}},
        *({"strategy": strategy, "policy": {"kind": "fixed", "depth": 2}} for strategy in ({"rounds": 2}, LADDER)),
        *({"strategy": LADDER, "policy": {"kind": kind}} for kind in ("fixed", "random", "threshold")),
    ],
)
def test_the_ends_of_a_range_belong_to_it_and_what_fits_together_is_taken(settings):
    loaded(**settings)


def test_a_configuration_is_returned_as_it_is_and_cannot_be_changed():
    config = loaded()
    assert load(config) is config
    with pytest.raises(ValidationError):
        config.budget = None  # type: ignore[misc,assignment]


@pytest.mark.parametrize("name", ["cascade.yaml", "cascade_local.yaml"])
@pytest.mark.parametrize("as_text", [True, False])
def test_the_shipped_examples_are_whole(name, as_text, tmp_path):
    path = tmp_path / name
    path.write_text(resources.files("cascade").joinpath("data", name).read_text("utf-8"), "utf-8")
    assert load(str(path) if as_text else path).models.keys() >= {"base", "guide"}


@each(
    "section, written, read",
    [
        ("policy", {"kind": "fixed", "serves": "newest"}, FixedConfig(serves="newest", depth=1)),
        ("policy", {"kind": "random", "seed": 3}, RandomConfig(seed=3, probability=0.5)),
        ("policy", {"kind": "threshold", "signal": "p_yes"}, ThresholdConfig(signal="p_yes", sign=-1, threshold=0.3)),
        ("policy", {"threshold": 0.1}, UalaConfig(threshold=0.1)),
        *(("policy", path, DirectoryConfig(kind="directory", path=path)) for path in ("./policy", "policy", "/srv/p")),
        ("policy", Path("p"), DirectoryConfig(kind="directory", path="p")),
        ("policy", {"kind": "directory", "path": "p"}, DirectoryConfig(kind="directory", path="p")),
        ("strategy", LADDER, LadderConfig(kind="ladder", models=("base", "guide"))),
        ("strategy", {"prompts": Path("p")}, BaseGuideConfig(kind="base_guide", prompts="p")),
        ("strategy", {"rounds": 2}, BaseGuideConfig(kind="base_guide", rounds=2)),
    ],
)
def test_a_section_is_told_by_its_kind(section, written, read):
    settings = {"strategy": {"rounds": 2}} if section == "policy" else {}
    assert getattr(loaded(**{**settings, section: written}), section) == read


def test_a_provider_is_named_by_a_word_or_with_its_file():
    assert loaded(provider="local").provider.kind == "local"
    replay = loaded(provider="replay:C:/log.jsonl").provider
    assert (replay.kind, dict(replay.options)) == ("replay", {"path": "C:/log.jsonl"})


@pytest.mark.parametrize(
    ("written", "store"),
    [
        *((value, None) for value in (True, "on", {})),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ({"store": "postgresql://me@host/db"}, "postgresql://me@host/db"),
    ],
)
def test_traces_are_on_and_may_have_a_store_or_be_off(written, store):
    traces = loaded(traces=written).traces
    assert (traces.store, traces.content, traces.strict) == (store, "full", False)
    assert [loaded(traces=value).traces for value in (False, "off", None)] == [None] * 3


# --- what is wrong: one problem each, with its path and, for a misspelt word, the one that was meant ---


def model(**settings: Any) -> dict[str, Any]:
    return {"models": {**MODELS, "base": {"model": "a", **settings}}}


@each(
    "settings, path, named",
    [
        ({"budgt": {}}, "budgt", "did you mean budget?"),
        ({"budget": {"per_quest": 1}}, "budget.per_quest", "did you mean per_question?"),
        ({"policy": {"treshold": 1}}, "policy.treshold", "did you mean threshold?"),
        ({"policy": {"kind": "treshold", "signal": 5}}, "policy", "did you mean threshold?"),
        ({"strategy": {"round": 1}}, "strategy.round", "did you mean rounds?"),
        ({"timeouts": {"per_call": 1}}, "timeouts.per_call", "did you mean per_call_s?"),
        ({"provider": {"kind": "fake", "option": {}}}, "provider.option", "did you mean options?"),
        ({"provider": {"kind": "local", "options": {"contxt_tokens": 5}}}, "provider.options.contxt_tokens", "context_t"),
        ({"provider": {"kind": "openai_http", "options": {"a": 5}}}, "provider.options.a", "openai_http"),
        ({"models": {"base": "a", "gide": "b"}}, "models.guide", "did you mean gide?"),
        (model(provider="locl"), "models.base.provider", "did you mean local?"),
        ({"provider": "nobody"}, "provider.kind", "nobody"),
        *(({"policy": value}, "policy", "") for value in ("", " ", 7, ["threshold"], None, Depth())),
        ({"strategy": {"kind": "ladder", "models": ["base", "huge"]}}, "models.huge", "ladder"),
        ({"strategy": {"kind": "ladder", "models": ["base", "base"]}}, "strategy.models", "base"),
        ({"strategy": {"kind": "ladder", "models": []}}, "strategy.models", ""),
        *(({"provider": name}, "provider", "log") for name in ("replay", "replay:", {"kind": "replay"})),
        # what does not fit together
        ({"strategy": LADDER, "policy": {"kind": "uala"}}, "policy", "p_yes"),
        ({"strategy": LADDER, "policy": {"kind": "threshold", "signal": "p_yes"}}, "policy", "reply_mean_logprob"),
        ({"strategy": LADDER, "policy": {"kind": "fixed", "depth": 3}}, "policy.depth", "2 steps"),
        ({"strategy": {"rounds": 2}, "policy": {"kind": "fixed", "depth": 3}}, "policy.depth", "2 steps"),
        # out of range
        *(({"budget": {"per_question": cap}}, "budget.per_question", "") for cap in (0, float("nan"), float("inf"))),
        ({"budget": {"on_exhausted": "stop"}}, "budget.on_exhausted", "not 'stop'"),
        ({"budget": {"time_zone": "Europe/Wien"}}, "budget.time_zone", "did you mean Europe/Vienna?"),
        ({"budget": {"time_zone": "../etc/passwd"}}, "budget.time_zone", ""),
        ({"budget": {"caps": [{"per": "model", "name": "guid", "usd": 1}]}}, "budget.caps[0].name", "did you mean guide?"),
        ({"budget": {"caps": [{"per": "key", "name": "app", "usd": 1}]}}, "budget.caps[0].name", ""),
        ({"budget": {"caps": [{"name": "app", "usd": 1}]}}, "budget.caps", ""),
        ({"budget": {"caps": [{"usd": 1}, {"usd": 2}]}}, "budget.caps", ""),
        ({"budget": {"caps": [{"per": "user", "usd": 1}, {"per": "user", "name": "a", "usd": 2}]}}, "budget.caps", ""),
        ({"budget": {"caps": [{"windw": "day", "usd": 1}]}}, "budget.caps[0].windw", ""),
        ({"timeouts": {"per_call_s": -1}}, "timeouts.per_call_s", "not -1"),
        ({"policy": {"threshold": -0.1}}, "policy.threshold", "not -0.1"),
        ({"policy": {"kind": "fixed", "depth": 0}}, "policy.depth", ""),
        *(({"strategy": {"rounds": rounds}}, "strategy.rounds", "") for rounds in (0, 101, "many")),
        ({"strategy": {"samples": 0}}, "strategy.samples", ""),
        ({"strategy": {"verdict": "guess"}}, "strategy.verdict", ""),
        ({"models": {**MODELS, "base": {"model": ""}}}, "models.base.model", ""),
        (model(temperature=3), "models.base.temperature", ""),
        (model(max_tokens=0), "models.base.max_tokens", ""),
        (model(price={"input": -1, "output": 0}), "models.base.price.input", ""),
        (model(api_base="http://169.254.169.254"), "models.base.api_base", ""),
        ({"provider": {"kind": "fake", "api_base": "nowhere"}}, "provider.api_base", ""),
        ({"models": {**MODELS, "base": 7}}, "models.base", ""),
        ({"models": []}, "models", ""),
        ({"provider": 7}, "provider", ""),
        (model(price={"input": 1}), "models.base.price.output", "missing"),
        (model(price={"input": 1, "output": 1, "tiers": {"flex": {"input": 1}}}), "models.base.price.tiers.flex.output", "missing"),
        (model(price={"input": 1, "output": 1, "inptu": 1}), "models.base.price.inptu", "did you mean input?"),
        (model(price={"input": 1, "output": 1, "search": {"huge": 1}}), "models.base.price.search.huge.[key]", ""),
        # a guarantee
        ({"guarantee": {"promise": "coverag"}}, "guarantee.promise", "did you mean coverage?"),
        ({"guarantee": {"rsk": 0.1}}, "guarantee.rsk", "did you mean risk?"),
        ({"guarantee": {"promise": "coverage", "risk": 1.5}}, "guarantee.risk", "not 1.5"),
        ({"guarantee": {"promise": "error", "confidence": 0}}, "guarantee.confidence", "not 0"),
        ({"audits": {"seed": 1}, "modes": {}}, "audits.seed", "a secret"),
        ({"audits": {"fallback": "guide"}, "modes": {}}, "audits.fallback", "a secret"),
        *(({"audits": {"probability": p}}, "audits.probability", "") for p in (0, 1.1)),
        ({"audits": {"level": 1}}, "audits.level", ""),
        # traces
        ({"traces": "nowhere"}, "traces.store", "sqlite:///"),
        ({"traces": "sqlite:///../x.db"}, "traces.store", ".."),
        ({"traces": "postgresql://me:hunter2@host/db"}, "traces.store", "store_env"),
        ({"traces": {"store": "postgresql://me@host/db?password=hunter2"}}, "traces.store", "store_env"),
        *(({room: {"store": "sqlite:///x.db", "store_env": "NAME"}}, room, "store_env") for room in ("traces", "budget")),
        ({"traces": {"content": "some"}}, "traces.content", "not 'some'"),
        ({"traces": {"contnt": "full"}}, "traces.contnt", "did you mean content?"),
        ({"traces": {"password": "hunter2"}}, "traces.password", "environment variable"),
        ({"traces": 5}, "traces", "not 5"),
        # keys
        ({"provider": {"kind": "fake", "options": {"replies": {"a": ["sk-abcdefghijklmnop"]}}}}, "provider.options.replies.a[0]", "key"),
        *((model(api_key=value), "models.base.api_key", "api_key_env") for value in ("sk-abcdefghijklmnop", "short", 9, None, ["short"], {"env": "X"})),
        *(({"provider": {"kind": "openai_http", name: value}}, f"provider.{name}", "api_key_env") for name in ("token", "password") for value in ("short", ["short"], {"env": "X"})),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_problem_with_its_path_and_the_word_meant(settings, path, named):
    (problem,) = problems(**settings)
    assert problem.partition(": ")[0] == path
    assert named in problem
    assert not any(secret in problem for secret in ("hunter2", "sk-abc", "short"))


def test_missing_models_are_missing():
    with pytest.raises(ConfigError) as caught:
        load({})
    assert caught.value.problems == ("models: is missing",)


def test_a_policy_alone_has_the_problems_that_it_has_in_a_configuration():
    with pytest.raises(ConfigError) as caught:
        policy_section({"kind": "treshold", "signal": 5})
    assert caught.value.problems == problems(policy={"kind": "treshold", "signal": 5})


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
    ],
)
def test_true_is_no_number(place, value):
    """0.5.0: `price: {input: true}` was 1 USD, `rounds: true` one round."""
    config: dict[str, Any] = model(price={"input": 1, "output": 1}) | {"policy": {"kind": "uala"}}
    inner = config
    for name in place[:-1]:
        inner = inner.setdefault(name, {})
    inner[place[-1]] = value
    lines = problems(**config)
    assert any(line.startswith(".".join(place)) and str(value).lower() in line for line in lines)


# --- prices ---


def test_a_hard_cap_needs_every_price():
    unpriced = {"base": "openai/gpt-4o-mini", "guide": "mine"}
    loaded(models=unpriced)
    (problem,) = problems(models=unpriced, budget={"per_question": 0.02})
    assert problem.startswith("models.guide.price: mine")
    priced = {**unpriced, "guide": {"model": "mine", "price": {"input": 1, "output": 4}}}
    loaded(models=priced, budget={"per_question": 0.02})


def test_prices_are_the_configured_ones_then_the_tables_then_unknown():
    entry = {"model": "openai/gpt-4o", "price": {"input": 1, "output": 4, "note": "made up"}}
    table = PriceTable.bundled()
    models = {"base": "openai/gpt-4o-mini", "guide": entry, "other": "mine", "again": "openai/gpt-4o"}
    assert loaded(models=models).prices() == {
        "openai/gpt-4o-mini": table.price("openai/gpt-4o-mini"),
        "openai/gpt-4o@guide": Price.per_million(input=1, output=4, note="made up"),
        "openai/gpt-4o@again": table.price("openai/gpt-4o"),
        "mine": None,
    }


def test_a_price_has_tiers_audio_searches_and_long_prompts_in_any_order():
    above = [{"tokens": tokens, "input": tokens / 1e5, "output": 8} for tokens in (300_000, 200_000)]
    own = {"input": 1, "output": 8, "audio_input": 10, "audio_output": 20, "search": {"low": 0.01, "medium": 0.02}}
    price = loaded(**model(price={**own, "above": above, "tiers": {"flex": {"input": 1, "output": 4}}})).prices()["a"]
    assert (price.audio_input, price.audio_output) == (10_000_000, 20_000_000)
    assert dict(price.tiers)["flex"].output == 4_000_000
    assert dict(price.search) == {"low": 10**10, "medium": 2 * 10**10}
    assert (price.for_input(250_000).input, price.for_input(400_000).input) == (2_000_000, 3_000_000)


# --- paths and the environment ---


def test_an_empty_environment_variable_is_none(monkeypatch):
    monkeypatch.setenv("MINE", "value")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)
    assert [environment(name) for name in ("MINE", "EMPTY", "UNSET", None)] == ["value", None, None, None]


def test_every_path_in_a_file_is_relative_to_the_file(tmp_path, monkeypatch):
    """0.5.0 looked for prompts, replays and trace stores in the working directory."""
    folder = tmp_path / "conf"
    (folder / "my-prompts").mkdir(parents=True)
    (folder / "my-prompts" / "answer.txt").write_text("[user]\nMine: {question}\n")
    (folder / "log.jsonl").write_text("")
    text = (
        "models: {base: small, guide: large}\nstrategy: {kind: base_guide, prompts: my-prompts}\n"
        "policy: ./policy\nprovider: replay:log.jsonl\ntraces: sqlite:///traces.db\n"
        "server: {review: {log: log.jsonl}}\nbudget: {caps: [{usd: 5}], store: sqlite:///spent.db}\n"
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
        assert config.traces_url == f"sqlite:///{folder}/traces.db"
        assert config.ledger_url == f"sqlite:///{folder}/spent.db"
        with Orchestrator.from_config(config.model_copy(update={"policy": FixedConfig(kind="fixed")})) as orchestrator:
            assert orchestrator.runtime.config.strategy.prompts == config.strategy.prompts
    monkeypatch.chdir(folder)
    assert load("cascade.yaml").strategy.prompts == "my-prompts"


def test_a_path_in_python_an_absolute_one_and_a_servers_url_stay_as_written(tmp_path):
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
        assert (config.provider.options["path"], config.traces_url) == (name, traces)


def test_without_a_store_traces_go_beside_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "cascade.yaml").write_text("models: {base: small, guide: large}\n")
    for value, place in (
        (None, f"sqlite:///{tmp_path}/.cascade/records.db"),
        ("sqlite:////told.db", "sqlite:////told.db"),
    ):
        monkeypatch.delenv("CASCADE_TRACES", raising=False)
        if value is not None:
            monkeypatch.setenv("CASCADE_TRACES", value)
        assert load(tmp_path / "cascade.yaml").traces_url == place


@each(
    "address, problem",
    [
        *(
            (address, None)
            for address in (
                "http://127.0.0.1:8080/v1",
                "https://api.openai.com/v1",
                "http://localhost",
                "http://[::1]:80/v1",
            )
        ),
        ("HTTPS://a.b/v1", None),
        *(
            (address, "starts with http")
            for address in ("", "localhost:8080", "ftp://a.b", "file:///etc/passwd", "http://", "https:///v1")
        ),
        *(
            (address, "api_key_env")
            for address in ("http://user@a.b/v1", "http://:pw@a.b/v1", "http://a.b/v1?key=AIza", "http://a.b/v1#token")
        ),
        *((f"http://a.b/v1/chat/completions{end}", r"write http://a\.b/v1$") for end in ("", "/")),
    ],
)
def test_an_address_is_returned_as_it_is_or_refused(address, problem):
    if problem is None:
        assert checked_base(address) == address
        return
    with pytest.raises(ValueError, match=problem):
        checked_base(address)


@each("host", ["127.0.0.1", "10.0.0.1", "example.org", "169.253.169.254", "::1", "metadata.example.org"])
def test_other_hosts_are_not_metadata(host):
    assert not is_link_local(host)


@each("name", ["api_key", "apikey", "API_KEY", "key", "token", "Secret", "password", "authorization"])
@each("value", ["x", "", 12345, None, ["x"], {"a": "x"}])
def test_a_setting_named_like_a_key_is_refused_whatever_it_holds(name, value):
    problems = list(secret_problems({"models": {"base": {name: value}}}))
    assert len(problems) == 1
    assert problems[0].startswith(f"models.base.{name}: ")
    assert "api_key_env" in problems[0]


@pytest.mark.parametrize("name", ["api_key_env", "max_tokens", "monkey", "token_count", 1, None])
def test_other_names_are_not_names_of_keys(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value",
    ["sk-abcdefghijklmnop", "use gsk_abcdefghijklmnop0 here", "AIzaSyA1234567890abcdefghijk", "Bearer abcdefgh12"],
)
def test_a_value_of_a_keys_shape_is_refused_and_not_shown(value):
    problems = list(secret_problems({"a": [{"b": value}]}))
    assert [problem.split(":")[0] for problem in problems] == ["a[0].b"]
    assert value not in problems[0]


@pytest.mark.parametrize("value", ["sk-short", "OPENAI_API_KEY", "openai/gpt-4o-mini", "task-oriented-assistant-x", 7])
def test_an_ordinary_value_is_no_key(value):
    assert not list(secret_problems({"a": value}))


def test_the_nearest_word_is_offered_with_the_others_if_they_are_few():
    assert did_you_mean("treshold", ["threshold", "fixed"]) == "; did you mean threshold? Known: fixed, threshold"
    assert did_you_mean("zzz", ["threshold", "fixed"]) == "; known: fixed, threshold"  # nothing is near
    many = [f"word{n:02}" for n in range(17)]
    assert did_you_mean("word1", many) in {f"; did you mean word{n}?" for n in ("01", *range(10, 17))}


def test_shares_are_held_against_their_range_with_its_ends_or_without():
    good = {"one": 0.5, "two": 1e-300, "three": None}
    assert share_problems(**good) == share_problems(ends=True, **good) == share_problems(ends=True, a=0, b=1.0) == []
    assert share_problems(alpha=0, delta=1.0) == [
        "alpha must lie between 0 and 1, not 0",
        "delta must lie between 0 and 1, not 1.0",
    ]
    for wrong in (-1e-9, 1 + 1e-9, math.nan, math.inf):
        assert len(share_problems(a=wrong)) == len(share_problems(ends=True, a=wrong)) == 1


NO_YAML = [
    "a: [",
    "a: {b: 1",
    "\ta: 1",
    "a: !!python/object/apply:os.system [echo]",
    "a: !!python/name:os.system",
    "a: 2026-13-45",
    "a: !!int abc",
    "a: !!map [b, c]",
    "a: !!binary 'é'",
    "a: *nowhere",
    "? [a, b]\n: 1",
    "{a: 1}: 2",
    "a: 1\n---\nb: 2",
    "a: " + "[" * 5_000,
    "a: \x00",
]


def read(folder: Path, text: str | bytes) -> object:
    path = folder / "cascade.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml(path)


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    assert len(caught.value.problems) == 1
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_a_mapping_is_read(tmp_path):
    assert read(tmp_path, "a: {b: [1, 2.5, yes, null, text]}") == {"a": {"b": [1, 2.5, True, None, "text"]}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((text, "holds no settings") for text in ("", "# nothing", "- a\n- b", "just words", "42")),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than"),
        (b"a: \xff\xfe", "cannot be read"),
        ("a: &x {b: 1}\nc: *x", "aliases"),
        ("a: &a [*a]", "aliases"),  # a document that holds itself
        ("\n".join(["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]), "aliases"),
        ("a: " + "[" * 40 + "]" * 40, "deeper"),
        ("a: 1\nb: 2\na: 3", "'a' appears twice"),
        ("a: 1\nb: 2\na: 3", "line 3"),
        ("a:\n  - {b: 1, b: 2}", "appears twice"),
        *((text, "not valid YAML") for text in NO_YAML),
        ("".join(f"k{number}: {number}\n" for number in range(60_000)), "more than 10"),  # 0.5.0: 28 s
    ],
)
def test_what_is_no_plain_file_of_settings_is_one_problem(tmp_path, text, problem):
    assert problem in refusal(tmp_path, text)


def test_a_folder_cannot_be_read_a_missing_file_says_what_writes_one_and_a_wrong_one_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match=r"mine\.yaml.*cascade init"):
        read_yaml(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("models: {base: a}")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load(tmp_path / "mine.yaml")


@pytest.mark.parametrize("text", ['api_key: "0123456789abcdef', "api_key: 0123456789abcdef: b"])
def test_the_line_at_fault_is_named_and_not_quoted(tmp_path, text):
    message = refusal(tmp_path, text)
    assert "0123456789abcdef" not in message
    assert "line" in message


def test_of_60_000_wrong_settings_the_first_are_said_and_the_others_counted(monkeypatch):
    compared, near = list[str](), difflib.get_close_matches

    def noted(word: str, *rest: Any, **more: Any) -> Any:
        compared.append(word)
        return near(word, *rest, **more)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    with pytest.raises(ConfigError) as caught:
        load({"models": {"base": "a", "guide": "b"}, **{f"k{number}": 1 for number in range(60_000)}})
    assert len(compared) <= 100  # what is not said is not compared with the names that there are
    assert caught.value.problems[0].startswith("k0: there is no such setting")
    assert "59,900" in caught.value.problems[-1]
