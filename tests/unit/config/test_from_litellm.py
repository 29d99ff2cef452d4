"""A LiteLLM proxy's configuration becomes one of cascade's, and what has no counterpart is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cascade.cli.main import app
from cascade.config import load
from cascade.config.from_litellm import carried
from cascade.errors import ConfigError
from cascade.server.catalog import Catalog, Route

SECRET = "sk-live-0123456789abcdefghij"
PROXY = f"""
model_list:
  - model_name: large
    litellm_params: {{model: azure/gpt-4o, api_base: "https://eu.example/v1", api_key: os.environ/AZURE_KEY, rpm: 60,
                      input_cost_per_token: 0.0000025, output_cost_per_token: 0.00001}}
  - model_name: small
    litellm_params: {{model: openai/gpt-4o-mini, api_key: {SECRET}, temperature: 0.2, max_tokens: 512}}
  - model_name: small
    litellm_params: {{model: groq/llama-3.1-8b-instant, api_key: os.environ/GROQ_KEY}}
  - model_name: vectors
    litellm_params: {{model: openai/text-embedding-3-small}}
    model_info: {{mode: embedding}}
  - {{model_name: "*", litellm_params: {{model: "*"}}}}
router_settings: {{routing_strategy: least-busy, num_retries: 5, timeout: 30, fallbacks: [{{large: [small, gone]}}]}}
litellm_settings: {{callbacks: [langfuse]}}
general_settings: {{master_key: sk-1234, database_url: "postgresql://u:{SECRET}@db/x"}}
"""


def test_models_keys_prices_fallbacks_and_time_limits_are_carried_over() -> None:
    found = carried(yaml.safe_load(PROXY))
    config = load(found.config)
    assert config.strategy.places == ("small", "large")
    assert config.models["large"].fallbacks == ("small",)
    assert config.models["small"].fallbacks == ("small_2",)
    assert (config.models["large"].api_key_env, config.models["large"].api_base) == (
        "AZURE_KEY",
        "https://eu.example/v1",
    )
    assert config.models["large"].price is not None
    assert (config.models["large"].price.input, config.models["large"].price.output) == (2.5, 10.0)
    assert (config.models["small"].temperature, config.models["small"].max_tokens) == (0.2, 512)
    assert config.timeouts.per_call_s == 30
    assert config.modes is not None  # so that the dearest model serves until a promotion


def test_a_proxy_of_one_model_has_nothing_to_observe() -> None:
    listed = [{"model_name": "one", "litellm_params": {"model": "openai/gpt-4o-mini"}}]
    assert "modes" not in carried({"model_list": listed}).config


@pytest.mark.parametrize(
    "said",
    ["model_list[0].litellm_params.rpm", "model_list[1].litellm_params.api_key: put the key", "vectors answers no chat",
     "model_list[4]: it names no one model", "router_settings.routing_strategy", "router_settings.num_retries: cascade",
     "router_settings.fallbacks: large", "litellm_settings.callbacks", "general_settings.master_key: make a key",
     "model_list[2]: requests for small are not spread"],
)  # fmt: skip
def test_what_has_no_counterpart_is_listed(said: str) -> None:
    assert any(said in one for one in carried(yaml.safe_load(PROXY)).left)


@pytest.mark.parametrize("document", [{}, {"model_list": 3}, {"model_list": [None, {"litellm_params": []}]}])
def test_a_configuration_without_models_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no model in it"):
        carried(document)


def test_a_price_is_found_where_litellm_keeps_it() -> None:
    listed = [
        {"model_name": "a", "litellm_params": {"model": "openai/a", "input_cost_per_token": 2e-6},
         "model_info": {"input_cost_per_token": 9e-6, "output_cost_per_token": "8e-6", "base_model": "azure/a",
                        "cache_read_input_token_cost": 0.000001, "mode": "chat"}},
        {"model_name": "b", "litellm_params": {"model": "openai/b"}, "model_info": {"input_cost_per_token": 1e-6}},
        {"model_name": "c", "litellm_params": {"model": "openai/c", "input_cost_per_token": "os.environ/PRICE",
                                               "output_cost_per_token": 1e-6}},
    ]  # fmt: skip
    found = carried({"model_list": listed})
    assert found.config["models"]["a"]["price"] == {"input": 2.0, "output": 8.0, "cached_input": 1.0}
    assert [one.get("price") for one in found.config["models"].values()][1:] == [None, None]
    assert load(found.config).models["a"].price is not None
    for said in ("model_list[0].model_info.base_model", "model_list[1]: input_cost_per_token: a price needs",
                 "model_list[2]: input_cost_per_token is a number of USD"):  # fmt: skip
        assert any(one.startswith(said) for one in found.left), said


def test_a_budget_for_observing_needs_prices() -> None:
    """The share was never lowered where the cost of a drawn request was unknown: the budget was passed in silence."""
    listed = [{"model_name": name, "litellm_params": {"model": f"openai/no-such-{name}"}} for name in "ab"]
    config = carried({"model_list": listed}).config
    assert load({**config, "modes": {"share": 0.2}}).modes is not None
    with pytest.raises(ConfigError, match=r"models\.a\.price: .* modes\.per_day bounds what observing costs"):
        load({**config, "modes": {"share": 0.2, "per_day": 2}})


def test_init_writes_a_file_that_serves_the_same_names(tmp_path: Path) -> None:
    source, target = tmp_path / "config.yaml", tmp_path / "cascade.yaml"
    source.write_text(PROXY, "utf-8")
    done = CliRunner().invoke(app, ["init", str(target), "--from-litellm", str(source)])
    assert done.exit_code == 0, done.output
    written = target.read_text("utf-8")
    assert "not carried over" in done.output
    assert "num_retries" in written
    assert SECRET not in written + done.output
    catalog = Catalog.of(load(target), ())
    assert catalog.route("small") == Route(model="openai/gpt-4o-mini")
    assert catalog.route("large") == Route(model="azure/gpt-4o")
    assert {"small", "large"} <= {one["id"] for one in catalog.listing()["data"]}
