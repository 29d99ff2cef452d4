"""Providers by name, loaded when they are first asked for."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from cascade.config import load
from cascade.errors import ConfigError, MissingExtraError, ProviderUnavailableError
from cascade.orchestrator import Orchestrator
from cascade.providers import local, registry
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.fields import sendable, wire_body
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import PROVIDERS, Endpoint, ProviderSettings
from cascade.providers.replay import Memo
from cascade.types import Message, Question, Request
from unit.made import request

PLAIN = ProviderSettings({}, {})


def mine(settings: ProviderSettings) -> Any:
    """The factory of an installed package."""
    return "made of", settings


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", f"{__name__}:mine", "cascade.providers")]
    monkeypatch.setattr("cascade.registry.entry_points", lambda group: [one for one in points if one.group == group])


@pytest.mark.usefixtures("installed")
def test_an_installed_provider_is_named_and_made():
    assert PROVIDERS.names == ("litellm", "openai_http", "local", "replay", "fake", "mine")
    assert registry.create("mine", PLAIN) == ("made of", PLAIN)
    with pytest.raises(ConfigError, match=r"'nobody'.* litellm, .*, mine"):
        registry.create("nobody", PLAIN)


ENDPOINTS = {"small": Endpoint("http://127.0.0.1:1/v1", "hunter2")}


@pytest.mark.parametrize(
    ("name", "kind", "settings", "made"),
    [
        ("fake", FakeProvider, ProviderSettings({"replies": {"small": ["a"]}}, {}), {"script": {"small": ["a"]}}),
        ("openai_http", OpenAIHTTP, ProviderSettings({}, ENDPOINTS), {"endpoints": ENDPOINTS}),
        ("local", local.Local, ProviderSettings({"context_tokens": 512}, {}), {"context_tokens": 512}),
    ],
)
def test_a_provider_is_made_of_its_settings_and_no_model_is_loaded(monkeypatch, name, kind, settings, made):
    monkeypatch.setattr(local, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(local, "start_server", lambda *_a, **_k: pytest.fail("a model was loaded"))
    found = registry.create(name, settings)
    assert (type(found), {field: getattr(found, field) for field in made}) == (kind, made)
    assert "hunter2" not in repr(ENDPOINTS)


@pytest.mark.parametrize(("name", "module"), [("litellm", "litellm"), ("local", "xllamacpp")])
def test_a_package_that_is_missing_says_what_to_install(monkeypatch, name, module):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda asked, *more: None if asked == module else found(asked, *more)
    )
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"\[{name}\]"):
        registry.create(name, PLAIN)


def test_naming_providers_loads_none_of_their_packages():
    code = "import sys, cascade.providers.registry as r; r.PROVIDERS.names; print({'litellm', 'xllamacpp', 'aiohttp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_plain_request_has_only_what_every_server_reads_and_what_is_wanted_besides():
    plain = {
        "model": "small",
        "messages": [{"role": "user", "content": "Which river runs through Vienna?"}],
        "max_tokens": 64,
        "temperature": 0.0,
    }
    assert wire_body(request(), "small") == plain
    wanted = {"logprobs": True, "top_logprobs": 5, "seed": 0}
    assert wire_body(request(top_logprobs=5, seed=0), "small") == plain | wanted


def test_any_text_can_be_sent_as_utf8():
    assert sendable("naïve 🙂") == sendable("naïve \ud83d\ude42") == "naïve 🙂"
    body = wire_body(request(messages=(Message("user", "Da\ud800nube"),)), "small")
    assert json.dumps(body, ensure_ascii=False).encode("utf-8")
    assert body["messages"][0]["content"] == "Da?nube"


ASKED = Request("m", (Message("user", "Hi"),), "base", "answer", 1, Question("Hi"), 10)


@pytest.mark.parametrize(
    ("first", "second", "calls"),
    [
        ({}, {"role": "m", "step": 2, "purpose": "direct"}, 1),  # whatever its role and step
        ({"temperature": 1.0}, {"temperature": 1.0, "step": 2}, 2),  # a drawn answer is drawn anew
        *(
            ({}, change, 2)
            for change in ({"model": "other"}, {"messages": (Message("user", "Ho"),)}, {"max_tokens": 11})
        ),
        *(({}, change, 2) for change in ({"top_logprobs": 1}, {"sample": 1}, {"temperature": 0.5}, {"seed": 3})),
    ],
)
async def test_the_same_call_is_made_once(first, second, calls):
    inner = FakeProvider(lambda _: reply("Answer: a"))
    memo = Memo(inner)
    payloads = [await memo.complete(ASKED._replace(**change), 1.0) for change in (first, second)]
    assert (len(inner.requests), payloads[0] == payloads[1]) == (calls, True)


async def test_a_failed_call_is_made_again_and_closing_forgets():
    inner = FakeProvider({"m": [ProviderUnavailableError("down", model="m"), reply("Answer: a"), reply("Answer: b")]})
    memo = Memo(inner)
    with pytest.raises(ProviderUnavailableError):
        await memo.complete(ASKED, 1.0)
    assert (await memo.complete(ASKED, 1.0))["choices"]
    await memo.close()
    await memo.complete(ASKED, 1.0)
    assert (inner.closed, len(inner.requests)) == (True, 3)


def test_a_remembered_call_costs_what_the_call_cost():
    inner = FakeProvider(lambda _: reply("Answer: a", input_tokens=7, output_tokens=3))
    price = {"input": 1.0, "output": 2.0}
    config = load(
        {
            "models": {"only": {"model": "m", "price": price}},
            "strategy": {"kind": "ladder", "models": ["only"]},
            "policy": {"kind": "fixed"},
            "provider": "fake",
            "traces": "off",
        }
    )
    memo = Memo(inner)
    costs = [Orchestrator.from_config(config, providers={"fake": memo}).ask("Hi").cost_nano_usd for _ in range(2)]
    assert costs == [7 * 1_000 + 3 * 2_000] * 2
    assert len(inner.requests) == 1
