"""Providers by name, loaded when they are first asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from cascade.errors import ConfigError, MissingExtraError
from cascade.providers import local, registry
from cascade.providers.fake import FakeProvider
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import PROVIDERS, Endpoint, ProviderSettings

PLAIN = ProviderSettings({}, {})


def mine(settings: ProviderSettings) -> Any:
    """The factory of an installed package."""
    return "made of", settings


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", f"{__name__}:mine", "cascade.providers")]
    monkeypatch.setattr("cascade.registry.entry_points", lambda group: [one for one in points if one.group == group])


def test_the_built_in_providers_are_named() -> None:
    assert PROVIDERS.names[:5] == ("litellm", "openai_http", "local", "replay", "fake")


@pytest.mark.usefixtures("installed")
def test_an_installed_provider_is_named_and_made() -> None:
    assert PROVIDERS.names[-1] == "mine"
    assert registry.create("mine", PLAIN) == ("made of", PLAIN)


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'nobody'; known are litellm, .*, mine"):
        registry.create("nobody", PLAIN)


def test_fake_is_made_with_its_replies() -> None:
    made = registry.create("fake", ProviderSettings({"replies": {"small": ["a"]}}, {}))
    assert isinstance(made, FakeProvider)
    assert made.script == {"small": ["a"]}


def test_openai_http_is_made_with_its_endpoints() -> None:
    endpoints = {"small": Endpoint("http://127.0.0.1:1/v1", "key")}
    made = registry.create("openai_http", ProviderSettings({}, endpoints))
    assert isinstance(made, OpenAIHTTP)
    assert made.endpoints == endpoints


def test_an_endpoint_shows_no_key() -> None:
    assert "hunter2" not in repr(Endpoint("http://127.0.0.1:1/v1", "hunter2"))


def test_litellm_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "litellm" else found(name, *more)
    )
    with pytest.raises(MissingExtraError, match=r"litellm\. Install .*\[litellm\]"):
        registry.create("litellm", PLAIN)


def test_xllamacpp_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[local\]"):
        registry.create("local", PLAIN)


def test_local_is_made_without_loading_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(local, "start_server", lambda *_a, **_k: pytest.fail("a model was loaded"))
    made = registry.create("local", ProviderSettings({"context_tokens": 512}, {}))
    assert isinstance(made, local.Local)
    assert made.context_tokens == 512


def test_naming_providers_loads_none_of_their_packages() -> None:
    code = "import sys, cascade.providers.registry as r; r.PROVIDERS.names; print({'litellm', 'xllamacpp', 'aiohttp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
