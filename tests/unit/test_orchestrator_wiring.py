"""Who is asked where, how, and with which key: as the configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cascade.config import load
from cascade.errors import AuthenticationError
from cascade.factory import build_policy, build_strategy, endpoints
from cascade.orchestrator import Orchestrator
from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan
from cascade.policies.policy import Depth, Random, Uala
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.registry import Endpoint
from cascade.types import Request
from unit.made import RIVER, TWO_MODELS, Failing, two_models


def wired(provider: Any = None, **settings: Any) -> Orchestrator:
    return Orchestrator.from_config(TWO_MODELS | settings, providers={"fake": provider or two_models()})


# --- who is asked where ---


def test_each_model_may_have_a_provider_of_its_own() -> None:
    one, other = FakeProvider({"small": ["Answer: Danube"]}), FakeProvider({"large": [reply("Yes", p_yes=0.9)]})
    models = {"base": "small", "guide": {"model": "large", "provider": "local"}}
    orchestrator = Orchestrator.from_config(
        {"models": models, "provider": "fake"}, providers={"fake": one, "local": other}
    )
    assert orchestrator.ask(RIVER).text == "Danube"
    assert {asked.model for asked in one.requests} == {"small"}
    assert {asked.model for asked in other.requests} == {"large"}


def test_one_model_in_two_places_is_two_models() -> None:
    models = {
        "base": {"model": "m", "api_base": "http://127.0.0.1:1/v1"},
        "guide": {"model": "m", "api_base": "http://127.0.0.1:2/v1"},
    }
    with Orchestrator.from_config({"models": models, "provider": "openai_http"}) as orchestrator:
        assert {*orchestrator.runtime.guards} == {"m@base", "m@guide"}


def test_the_strategy_and_its_models_are_those_of_the_configuration() -> None:
    entry = {"model": "small", "max_tokens": 9, "temperature": 0.5, "seed": 3}
    made = build_strategy(
        load(
            {
                "models": {"base": entry, "guide": "large"},
                "strategy": {"rounds": 2, "samples": 5},
            }
        )
    )
    assert isinstance(made, Plan)
    assert made.nodes[0].use == ModelUse("small", 9, 0.5, 3, chat_max_tokens=9)
    assert (made.horizon, made.nodes[1].samples) == (2, 5)
    ladder = build_strategy(
        load({"models": {"a": "x", "b": "y"}, "strategy": {"kind": "ladder", "models": ["b", "a"]}})
    )
    assert ladder.models == ("y", "x")


def test_a_folder_of_prompts_is_used(tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("[user]\nMine: {question}")
    provider = two_models()
    wired(provider, strategy={"prompts": str(tmp_path)}).ask(RIVER)
    assert provider.requests[0].messages[-1].content.startswith("Mine: ")


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ({"kind": "fixed", "serves": "first", "depth": 2}, Depth(serves="first")),
        ({"kind": "random", "seed": 9}, Random(9)),
        ({"threshold": 0.1, "accepts_no": False}, Uala(accepts_no=False)),
    ],
)
def test_the_policy_is_that_of_the_configuration(policy: dict[str, Any], made: Any) -> None:
    assert build_policy(load(TWO_MODELS | {"policy": policy})).rule == made


def served(kind: str, **settings: Any) -> dict[str, Endpoint]:
    config = load({"models": {"base": "small", "guide": "large"}, "provider": {"kind": kind}} | settings)
    return endpoints(config, kind, config.models.values())


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OPENAI_API_KEY", "default-key")
    monkeypatch.setenv("MY_KEY", "my-key")
    return monkeypatch


@pytest.mark.usefixtures("keys")
def test_openai_http_goes_to_openai_with_the_default_key() -> None:
    assert served("openai_http")["small"] == Endpoint("https://api.openai.com/v1", "default-key")


def test_the_default_address_may_be_another_without_the_default_key(keys: pytest.MonkeyPatch) -> None:
    keys.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert served("openai_http")["small"] == Endpoint("http://127.0.0.1:1/v1", None)


@pytest.mark.usefixtures("keys")
def test_another_server_is_given_its_key_by_name_only() -> None:
    shared = {"kind": "openai_http", "api_base": "http://127.0.0.1:1/v1"}
    assert served("openai_http", provider=shared)["small"] == Endpoint("http://127.0.0.1:1/v1", None)
    named = shared | {"api_key_env": "MY_KEY"}
    assert served("openai_http", provider=named)["small"] == Endpoint("http://127.0.0.1:1/v1", "my-key")


@pytest.mark.usefixtures("keys")
def test_a_models_own_address_comes_before_the_providers() -> None:
    models = {
        "base": {"model": "small", "api_base": "http://127.0.0.1:2/v1", "api_key_env": "MY_KEY"},
        "guide": "large",
    }
    found = served("openai_http", models=models, provider={"kind": "openai_http", "api_base": "http://127.0.0.1:1/v1"})
    assert found == {
        "small": Endpoint("http://127.0.0.1:2/v1", "my-key"),
        "large": Endpoint("http://127.0.0.1:1/v1", None),
    }


@pytest.mark.usefixtures("keys")
def test_litellm_finds_its_own_address_where_none_is_configured() -> None:
    assert served("litellm") == {}
    assert served("litellm", provider={"kind": "litellm", "api_key_env": "MY_KEY"})["small"] == Endpoint(None, "my-key")


@pytest.mark.usefixtures("keys")
def test_the_shared_address_is_not_that_of_another_kind() -> None:
    config = load(
        {
            "models": {"base": {"model": "s", "provider": "litellm"}, "guide": "l"},
            "provider": {"kind": "openai_http", "api_base": "http://127.0.0.1:1/v1", "api_key_env": "MY_KEY"},
        }
    )
    assert endpoints(config, "litellm", [config.models["base"]]) == {}


@pytest.mark.usefixtures("keys")
def test_a_key_that_a_server_repeats_is_in_no_error() -> None:
    told = AuthenticationError("x")

    class Repeats(Failing):
        async def complete(self, request: Request, timeout_s: float) -> Any:
            return {"error": {"message": "bad key my-key", "code": 401}}

    config = {"models": {"base": "small", "guide": "large"}, "provider": {"kind": "fake", "api_key_env": "MY_KEY"}}
    with pytest.raises(type(told)) as caught:
        Orchestrator.from_config(config, providers={"fake": Repeats()}).ask(RIVER)
    assert "my-key" not in str(caught.value)
    assert "my-key" not in "".join(str(call.error) for call in caught.value.calls)
