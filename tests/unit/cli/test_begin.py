"""`cascade init`, `prices` and `models`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cascade.cli import begin
from cascade.config import load
from cascade.config.policies import ThresholdConfig
from cascade.demo.requests import BY_HAND
from cascade.money import PriceTable
from cascade.orchestrator import Orchestrator
from cascade.plans.presets import LadderConfig
from cascade.providers import weights
from cascade.providers.fake import FakeProvider, Script, reply
from cascade.providers.weights import Weights, Wheel

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("flags", "provider", "log"), [((), "litellm", "episodes.parquet"), (("--local",), "local", "demo-ladder")]
)
def test_init_writes_a_ladder_that_asks_the_guide_only_where_the_base_is_unsure(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], provider: str, log: str
) -> None:
    """0.5.0: it wrote rounds of base and guide, which end below the base alone at 1.65 × the guide's cost."""
    ran = cli("init", "mine.yaml", *flags)
    assert (ran.code, ran.err) == (0, "")
    assert f"cascade prove {log}" in ran.out
    config = load(tmp_path / "mine.yaml").model_copy(update={"traces": None})
    assert config.provider.kind == provider
    assert config.strategy == LadderConfig(kind="ladder", models=("base", "guide"))
    assert config.policy == ThresholdConfig(signal="reply_mean_logprob", threshold=BY_HAND)
    small, large = (config.models[name].model for name in ("base", "guide"))
    script: Script = {
        small: [reply("Answer: Inn", logprobs=[-0.01]), reply("Answer: Inn", logprobs=[-0.5])],
        large: [reply("Answer: Danube", logprobs=[-0.1])],
    }
    with Orchestrator.from_config(config, providers={provider: FakeProvider(script)}) as orchestrator:
        assert [len(orchestrator.ask(f"question {n}").steps) for n in (1, 2)] == [1, 2]


def test_init_does_not_write_over_a_file_unless_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text("mine")
    assert (cli("init").code, (tmp_path / "cascade.yaml").read_text()) == (2, "mine")
    assert cli("init", "--force").code == 0
    assert load(tmp_path / "cascade.yaml")
    assert cli("init", "nowhere/cascade.yaml").code == 2


# --- prices ---


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    age = [0]
    monkeypatch.setattr(PriceTable, "age_days", lambda _self, _today: age[0])
    return age


def test_prices_are_looked_up_with_their_unit_and_source(cli: Cli) -> None:
    ran = cli("prices", "openai/gpt-4o-mini")
    assert (ran.code, ran.err, "0.15" in ran.out) == (0, "", True)
    document = json.loads(cli("prices", "openai/gpt-4o-mini", "--json").out)
    rates = {"input": 0.15, "cached_input": 0.075, "cache_write": None, "output": 0.6, "reasoning": None}
    assert document["models"] == {"openai/gpt-4o-mini": {**rates, "request": 0.0}}
    assert date.fromisoformat(document["as_of"])
    assert len(document["sha256"]) == 64
    found = json.loads(cli("prices", "GPT-4O-MINI", "--json").out)["models"]
    assert len(found) > 3
    assert all("gpt-4o-mini" in name.lower() for name in found)
    ran = cli("prices", "no-such-model-at-all")
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize(("age", "stale"), [(30, False), (31, True)])
def test_stale_prices_are_reported_on_stderr(cli: Cli, today: list[int], age: int, stale: bool) -> None:
    today[0] = age
    ran = cli("prices", "openai/gpt-4o-mini", "--json")
    assert (bool(ran.err), bool(json.loads(ran.out))) == (stale, True)


# --- models ---


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    entry = Weights("tiny", "Tiny [bold]", 5, "0" * 64, "MIT", (Wheel("tiny", "1", "0" * 64),))
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setattr(weights, "models_folder", lambda: folder)
    monkeypatch.setattr(weights, "registry", lambda: {"tiny": entry})
    return entry


def test_models_are_listed_and_found_where_they_are(cli: Cli, tiny: Weights) -> None:
    assert json.loads(cli("models", "list", "--json").out)[0]["here"] is False
    tiny.path.write_bytes(b"12345")
    (row,) = json.loads(cli("models", "list", "--json").out)
    assert (row["name"], row["bytes"], row["sha256"], row["here"]) == ("tiny", 5, "0" * 64, True)
    assert "Tiny [bold]" in cli("models", "list").out


def test_pull_fetches_what_is_missing_and_says_so_on_stderr(
    cli: Cli, tiny: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []

    def pull(entry: Weights, progress: Any) -> None:
        progress("fetching", 1, 2)
        pulled.append(entry.name)
        entry.path.write_bytes(b"12345")

    monkeypatch.setattr(begin.weights, "pull", pull)
    ran = cli("models", "pull")
    assert (ran.code, ran.out, pulled, "tiny: " in ran.err) == (0, "", ["tiny"], True)
    again = cli("models", "pull", "tiny")
    assert (again.code, pulled, "tiny" in again.err) == (0, ["tiny"], True)
    assert cli("models", "pull", "nobody").code == 2
