"""`cascade init`, `prices` and `models`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from stores import postgres_url, row

from cascade.cli import setup
from cascade.config import load
from cascade.config.policies import ThresholdConfig
from cascade.conformal.certificate import Certificate
from cascade.demo.requests import BY_HAND
from cascade.money import PriceTable
from cascade.orchestrator import Orchestrator
from cascade.plans.presets import LadderConfig
from cascade.providers import weights
from cascade.providers.fake import FakeProvider, Script, reply
from cascade.providers.weights import Weights, Wheel
from cascade.records.traces import Store
from unit.certified import certificate, directory

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("keys", "base", "judge"),
    [
        ((), "openai/gpt-6-luna", "judge"),
        (("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "openai/gpt-6-luna", "judge"),
        (("ANTHROPIC_API_KEY",), "anthropic/claude-haiku-5-5", None),
        (("GEMINI_API_KEY",), "gemini/gemini-3.5-flash-lite", None),
    ],
)
def test_init_writes_a_pair_that_the_keys_allow_which_observes_and_has_prices(
    cli, tmp_path, monkeypatch, keys, base, judge
):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "sk-secret" if name in keys else "")
    ran = cli("init", "mine.yaml")
    assert (ran.code, ran.err, "OPENAI_API_KEY" in ran.out) == (0, "", not keys)
    config = load(tmp_path / "mine.yaml")
    assert config.strategy == LadderConfig(kind="ladder", models=("base", "guide"), judge=judge)
    assert (config.models["base"].model, set(config.models)) == (base, {"base", "guide", judge} - {None})
    assert (config.modes is None, None in config.prices().values()) == (False, False)
    assert "sk-secret" not in (tmp_path / "mine.yaml").read_text()


def test_the_local_ladder_asks_the_guide_only_where_the_base_is_unsure(cli, tmp_path):
    """0.5.0: it wrote rounds of base and guide, which end below the base alone at 1.65 × the guide's cost."""
    provider, ran = "local", cli("init", "mine.yaml", "--local")
    assert (ran.code, ran.err) == (0, "")
    (prove,) = [line.split() for line in ran.out.splitlines() if "cascade prove demo-ladder" in line]
    assert cli(*prove[1:], "--splits", "4", "--json").document["studies"][0]["verdict"] == "saves"
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


def test_init_does_not_write_over_a_file_unless_told(cli, tmp_path):
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


def test_prices_are_looked_up_with_their_unit_and_source(cli):
    ran = cli("prices", "openai/gpt-4o-mini")
    assert (ran.code, ran.err, "0.15" in ran.out) == (0, "", True)
    document = json.loads(cli("prices", "openai/gpt-4o-mini", "--json").out)
    rates = {
        "input": 0.15,
        "cached_input": 0.075,
        "cache_write": None,
        "cache_write_1h": None,
        "output": 0.6,
        "reasoning": None,
    }
    assert document["models"] == {"openai/gpt-4o-mini": {**rates, "request": 0.0}}
    assert date.fromisoformat(document["as_of"])
    assert len(document["sha256"]) == 64
    models = json.loads(cli("prices", "GPT-4O-MINI", "--json").out)["models"]
    assert len(models) > 3
    assert all("gpt-4o-mini" in name.lower() for name in models)
    ran = cli("prices", "no-such-model-at-all")
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize(("age", "stale"), [(30, False), (31, True)])
def test_stale_prices_are_reported_on_stderr(cli, today, age, stale):
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


def test_models_are_listed_and_found_where_they_are(cli, tiny):
    assert json.loads(cli("models", "list", "--json").out)[0]["here"] is False
    tiny.path.write_bytes(b"12345")
    (row,) = json.loads(cli("models", "list", "--json").out)
    assert (row["name"], row["bytes"], row["sha256"], row["here"]) == ("tiny", 5, "0" * 64, True)
    assert "Tiny [bold]" in cli("models", "list").out


def test_pull_fetches_what_is_missing_and_says_so_on_stderr(cli, tiny, monkeypatch):
    pulled: list[str] = []

    def pull(entry: Weights, progress: Any) -> None:
        progress("fetching", 1, 2)
        pulled.append(entry.name)
        entry.path.write_bytes(b"12345")

    monkeypatch.setattr(setup.weights, "pull", pull)
    ran = cli("models", "pull")
    assert (ran.code, ran.out, pulled, "tiny: " in ran.err) == (0, "", ["tiny"], True)
    again = cli("models", "pull", "tiny")
    assert (again.code, pulled, "tiny" in again.err) == (0, ["tiny"], True)
    assert cli("models", "pull", "nobody").code == 2


JUDGED = (
    "models: {base: a, guide: b, judge: {model: openai/c, kind: decision}}\nprovider: {kind: litellm, api_key_env: K}\n"
    "strategy: {kind: ladder, models: [base, guide], judge: judge}\n"
)
SERVER = "provider: {kind: openai_http, api_base: 'http://127.0.0.1:1/v1'"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no key in the environment."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def findings(cli: Cli, *flags: str) -> tuple[int, dict[str, tuple[str, str]]]:
    ran = cli("doctor", "--json", *flags)
    return ran.code, {finding["what"]: (finding["state"], finding["says"]) for finding in json.loads(ran.out)}


@pytest.mark.parametrize(
    ("config", "code", "states"),
    [
        (None, 0, {"configuration": "note"}),
        ("models: {base: a, guide: b}\nprovider: fake\n", 0, {"provider": "ok", "price of base": "note"}),
        ("models: {base: a, guide: b}\nprovider: replay:nothing.jsonl\n", 2, {"provider": "problem"}),
        ("models: {base: a, guide: b}\nprovider: openai_http\n", 2, {"address of a": "problem"}),
        (f"models: {{base: a, guide: b}}\n{SERVER}}}\n", 0, {"address of a": "note"}),
        ("models: {base: a-latest, guide: b}\nprovider: fake\n", 0, {"name of base": "note"}),
        ("models: {base: a, guide: b}\nprovider: fake\ntraces: off\nmodes: {}\n", 2, {"modes": "problem"}),
        (JUDGED, 2, {"address of openai/c": "problem", "provider": "problem"}),
        ("models: {base: a, guide: b}\nprovider: {kind: fake, api_key_env: NO_KEY}\n", 2, {"key of base": "problem"}),
        (
            "models: {base: no-such.gguf, guide: no-such-model}\nprovider: local\n",
            2,
            {"file of base": "problem", "file of guide": "problem"},
        ),
    ],
)
def test_findings_of_a_configuration(cli, tmp_path, config, code, states):
    if config is not None:
        (tmp_path / "cascade.yaml").write_text(config)
    ended, checks = findings(cli)
    assert (ended, {what: checks[what][0] for what in states}) == (code, states)
    if "file of base" in states:  # 0.5.0: "ok", and `ask` ended with 2
        assert cli("ask", "Which river?").code == 2


def test_each_of_several_configurations_is_checked_and_what_one_server_must_not_share(cli, tmp_path):
    for name in ("a", "b"):
        text = f"models: {{base: a, guide: b}}\nprovider: fake\nserver: {{name: {name}s}}\n"
        (tmp_path / f"{name}.yaml").write_text(f"{text}traces: sqlite:///{name}.db\n")
    several = ("-c", "a.yaml", "-c", "b.yaml")
    code, checks = findings(cli, *several)
    assert (code, checks["a.yaml: provider"][0], checks["server"][0]) == (0, "ok", "ok")
    (tmp_path / "b.yaml").write_text((tmp_path / "a.yaml").read_text())
    code, checks = findings(cli, *several)
    assert (code, checks["server"][0]) == (2, "problem")
    (tmp_path / "a.yaml").write_text("models: 1\n")
    assert findings(cli, *several)[0] == 2


def test_where_a_budget_is_counted_and_alerts_are_posted(cli, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    alerts = "alerts: {webhook_env: HOOK}"
    budget = f"{{caps: [{{usd: 5}}], store: 'sqlite:///{tmp_path}/file/x.db', {alerts}}}"
    (tmp_path / "cascade.yaml").write_text(f"models: {{base: a, guide: b}}\nprovider: fake\nbudget: {budget}\n")
    code, checks = findings(cli)
    assert (code, checks["budget"][0], checks["alerts"][0]) == (2, "problem", "problem")
    monkeypatch.setenv("HOOK", "https://hooks.example/secret")
    (tmp_path / "cascade.yaml").write_text(
        f"models: {{base: a, guide: b}}\nprovider: fake\nbudget: {{caps: [{{usd: 5}}], {alerts}}}\n"
    )
    ran = cli("doctor", "--json")
    states = {finding["what"]: finding["state"] for finding in ran.document}
    assert (states["budget"], states["alerts"], "secret" in ran.out) == ("ok", "ok", False)


def test_what_an_own_policy_reads_is_a_line(cli, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples" / "write_a_policy"))
    both = "models: {base: a, guide: b}\nprovider: fake\nstrategy: {kind: ladder, models: [base, guide]}\n"
    (tmp_path / "cascade.yaml").write_text(both + "policy: {kind: 'agreeing_policy:Agreeing', threshold: 0.5}\n")
    state, says = findings(cli)[1]["policy"]
    assert (state, "agrees_with_earlier" in says) == ("ok", True)


def test_every_problem_of_a_configuration_is_a_line(cli, tmp_path):
    (tmp_path / "cascade.yaml").write_text("models: {base: a, guide: b}\nbudgt: {}\ntimeouts: {per_call_s: 0}")
    ran = cli("doctor", "--json")
    problems = [finding["says"] for finding in json.loads(ran.out) if finding["state"] == "problem"]
    assert (ran.code, {text.split(":")[0] for text in problems}) == (2, {"budgt", "timeouts.per_call_s"})


@pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed")
@pytest.mark.parametrize("key", [None, "", "sk-a"])
def test_an_empty_key_is_none(cli, tmp_path, monkeypatch, key):
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    (tmp_path / "cascade.yaml").write_text("models: {base: openai/a, guide: openai/b}\nprovider: litellm\n")
    code, checks = findings(cli)
    assert (code, "key of base" in checks, os.environ.get("OPENAI_API_KEY")) == (0 if key else 2, not key, key)
    (tmp_path / "cascade.yaml").write_text("models: {base: a, guide: openai/b}\nprovider: litellm\n")
    assert findings(cli)[1]["key of base"][0] == "problem"  # litellm knows no provider of `a`: a traceback before


def test_no_key_is_shown(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "hunter2")
    (tmp_path / "cascade.yaml").write_text(f"models: {{base: a, guide: b}}\n{SERVER}, api_key_env: MY_KEY}}\n")
    ran = cli("doctor", "--json")
    assert "hunter2" not in ran.out + ran.err
    checks = {finding["what"]: (finding["state"], finding["says"]) for finding in json.loads(ran.out)}
    assert checks["address of a"] == ("ok", "http://127.0.0.1:1/v1, with a key")


# --- the store ---


def test_an_empty_database_is_what_everybody_begins_with(cli, fake_config):
    with postgres_url() as url:
        fake_config.write_text(f"{fake_config.read_text()}traces: {url}\n")
        code, checks = findings(cli)
    assert (code, checks["traces"][0]) == (0, "ok")


@pytest.mark.usefixtures("fake_config")
def test_the_store_is_looked_at_and_none_is_made(cli, tmp_path, monkeypatch):
    file = tmp_path / "mine.db"
    assert findings(cli)[1]["traces"] == ("note", "off")
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{file}")
    assert (findings(cli)[1]["traces"][0], file.exists()) == ("ok", False)
    with Store(f"sqlite:///{file}") as store:
        store.append([row(1)])
    assert findings(cli)[1]["traces"][1].endswith("mine.db, 1 row")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{tmp_path}/file/mine.db")
    assert findings(cli)[1]["traces"][0] == "problem"
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{file}")
    file.write_bytes(b"this is no database, and it is long enough to be looked at" * 20)
    code, checks = findings(cli)
    assert (code, checks["traces"][0]) == (2, "problem")
    (tmp_path / "cascade.yaml").unlink()
    assert findings(cli)[1]["traces"][0] == "problem"


# --- certificates ---


def calibrated(config: Path, *certificates: Certificate, guarantee: str = "", many: int = 4) -> None:
    folder = directory(config.parent / "policy", *certificates, many=many)
    text = config.read_text().replace("policy: {kind: fixed}", f"policy: {folder}")
    config.write_text(text + (f"guarantee: {guarantee}\n" if guarantee else ""))


@pytest.mark.parametrize("required", ["true", "false"])
def test_a_certificate_that_does_not_hold_is_a_problem(cli, fake_config, required):
    expired = certificate(created="2020-01-01", expires="2020-02-01")
    calibrated(fake_config, expired, guarantee=f"{{required: {required}}}")
    code, checks = findings(cli)
    assert (code, checks["certificate"][0], "2020-02-01" in checks["certificate"][1]) == (2, "problem", True)


@pytest.mark.parametrize(("guarantee", "code", "state"), [("", 0, "note"), ("{required: true}", 2, "problem")])
def test_no_certificate_is_a_problem_where_one_is_required(cli, fake_config, guarantee, code, state):
    calibrated(fake_config, guarantee=guarantee)
    ended, checks = findings(cli)
    assert (ended, checks["certificate"][0]) == (code, state)


def test_a_policy_directory_that_was_edited_is_a_problem(cli, fake_config):
    calibrated(fake_config, certificate())
    file = fake_config.parent / "policy" / "policy.json"
    file.write_text(file.read_text().replace("guide", "guides"))
    code, checks = findings(cli)
    assert (code, checks["policy"][0]) == (2, "problem")


def test_a_policy_that_the_strategy_cannot_serve_is_one_problem(cli, fake_config):
    calibrated(fake_config, many=2)
    code, checks = findings(cli)
    assert (code, checks["policy"][0], "provider" in checks) == (2, "problem", False)
