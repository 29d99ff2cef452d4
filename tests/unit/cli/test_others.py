"""`cascade init`, `prices`, `models` and `doctor`."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from stores import postgres_url

from cascade.cli import begin, doctor
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
from unit.certified import certificate, directory

Cli = Callable[..., Any]


# --- init ---


@pytest.mark.parametrize(("flags", "provider"), [((), "litellm"), (("--local",), "local")])
def test_init_writes_a_configuration_that_loads(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], provider: str
) -> None:
    ran = cli("init", "mine.yaml", *flags)
    assert (ran.code, ran.err) == (0, "")
    assert load(tmp_path / "mine.yaml").provider.kind == provider
    assert "wrote mine.yaml" in ran.out
    assert "cascade doctor --config mine.yaml" in ran.out


@pytest.mark.parametrize(("flags", "log"), [((), "episodes.parquet"), (("--local",), "demo-ladder")])
def test_init_writes_a_ladder_and_names_the_log_that_says_what_pays(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], log: str
) -> None:
    """0.5.0: it wrote rounds of base and guide, which end below the base alone at 1.65 × the guide's cost."""
    ran = cli("init", *flags)
    config = load(tmp_path / "cascade.yaml")
    assert config.strategy == LadderConfig(kind="ladder", models=("base", "guide"))
    assert config.policy == ThresholdConfig(signal="reply_mean_logprob", threshold=BY_HAND)
    assert f"cascade prove {log}" in ran.out


@pytest.mark.parametrize("flags", [(), ("--local",)])
def test_what_init_writes_asks_the_guide_only_where_the_base_is_unsure(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    cli("init", *flags)
    config = load(tmp_path / "cascade.yaml").model_copy(update={"traces": None})
    small, large = (config.models[place].model for place in ("base", "guide"))
    script: Script = {
        small: [reply("Answer: Inn", logprobs=[-0.01]), reply("Answer: Inn", logprobs=[-0.5])],
        large: [reply("Answer: Danube", logprobs=[-0.1])],
    }
    with Orchestrator.from_config(config, providers={config.provider.kind: FakeProvider(script)}) as orchestrator:
        assert [len(orchestrator.ask(f"question {n}").steps) for n in (1, 2)] == [1, 2]


def test_init_does_not_write_over_a_file_unless_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text("mine")
    ran = cli("init")
    assert (ran.code, (tmp_path / "cascade.yaml").read_text()) == (2, "mine")
    assert "--force" in ran.err
    assert cli("init", "--force").code == 0
    assert load(tmp_path / "cascade.yaml")


def test_init_into_a_missing_folder_is_2(cli: Cli) -> None:
    ran = cli("init", "nowhere/cascade.yaml")
    assert ran.code == 2
    assert "cannot be written" in ran.err


# --- prices ---


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    age = [0]
    monkeypatch.setattr(PriceTable, "age_days", lambda _self, _today: age[0])
    return age


@pytest.mark.usefixtures("today")
def test_a_price_is_looked_up(cli: Cli) -> None:
    ran = cli("prices", "openai/gpt-4o-mini")
    assert (ran.code, ran.err) == (0, "")
    assert "0.15" in ran.out
    assert "USD per million tokens" in ran.out


@pytest.mark.usefixtures("today")
def test_prices_as_json_say_their_unit_and_source(cli: Cli) -> None:
    ran = cli("prices", "openai/gpt-4o-mini", "--json")
    document = json.loads(ran.out)
    assert document["models"] == {
        "openai/gpt-4o-mini": {
            "input": 0.15,
            "cached_input": 0.075,
            "cache_write": None,
            "output": 0.6,
            "reasoning": None,
            "request": 0.0,
        }
    }
    assert date.fromisoformat(document["as_of"])
    assert len(document["sha256"]) == 64


@pytest.mark.usefixtures("today")
def test_a_part_of_a_name_lists_all_that_hold_it(cli: Cli) -> None:
    found = json.loads(cli("prices", "GPT-4O-MINI", "--json").out)["models"]
    assert len(found) > 3
    assert all("gpt-4o-mini" in name.lower() for name in found)
    assert "more: give a longer part" in cli("prices", "gpt").out


@pytest.mark.usefixtures("today")
def test_an_unknown_name_is_2(cli: Cli) -> None:
    ran = cli("prices", "no-such-model-at-all")
    assert (ran.code, ran.out) == (2, "")
    assert "No price is known" in ran.err


def test_stale_prices_are_reported_on_stderr(cli: Cli, today: list[int]) -> None:
    today[0] = 31
    ran = cli("prices", "openai/gpt-4o-mini", "--json")
    assert "31 days old" in ran.err
    assert json.loads(ran.out)
    today[0] = 30
    assert cli("prices", "openai/gpt-4o-mini").err == ""


# --- models ---


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    made = Weights("tiny", "Tiny [bold]", 5, "0" * 64, "MIT", (Wheel("tiny", "1", "0" * 64),))
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setattr(weights, "models_folder", lambda: folder)
    monkeypatch.setattr(weights, "registry", lambda: {"tiny": made})
    return made


def test_models_are_listed_with_whether_they_are_here(cli: Cli, tiny: Weights) -> None:
    assert json.loads(cli("models", "list", "--json").out)[0]["here"] is False
    tiny.path.write_bytes(b"12345")
    (row,) = json.loads(cli("models", "list", "--json").out)
    assert row == {
        "name": "tiny",
        "title": "Tiny [bold]",
        "bytes": 5,
        "licence": "MIT",
        "sha256": "0" * 64,
        "here": True,
    }
    assert "Tiny" in cli("models", "list").out


def test_a_path_is_printed_if_the_file_is_there(cli: Cli, tiny: Weights) -> None:
    missing = cli("models", "path", "tiny")
    assert (missing.code, missing.out) == (2, "")
    assert "cascade models pull tiny" in missing.err
    tiny.path.write_bytes(b"12345")
    assert cli("models", "path", "tiny") == (0, f"{tiny.path}\n", "")


def test_a_file_that_is_not_the_pinned_one_is_2_when_checked(cli: Cli, tiny: Weights) -> None:
    tiny.path.write_bytes(b"12345")
    ran = cli("models", "path", "tiny", "--check")
    assert (ran.code, ran.out) == (2, "")
    assert "not the pinned file" in ran.err


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
    assert (ran.code, ran.out, pulled) == (0, "", ["tiny"])
    assert "tiny: 0.0 MB, SHA-256 as pinned" in ran.err
    assert cli("models", "pull", "tiny").code == 0
    assert pulled == ["tiny"]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("command", ["pull", "path", "serve"])
def test_an_unknown_model_is_2(cli: Cli, command: str) -> None:
    ran = cli("models", command, "nobody")
    assert (ran.code, ran.out) == (2, "")
    assert "There is no local model 'nobody'" in ran.err


# --- doctor ---


def findings(cli: Cli, *flags: str) -> tuple[int, dict[str, tuple[str, str]]]:
    ran = cli("doctor", "--json", *flags)
    return ran.code, {one["what"]: (one["state"], one["says"]) for one in json.loads(ran.out)}


def test_a_sound_set_up_is_0(cli: Cli, fake_config: Path) -> None:
    code, found = findings(cli)
    assert code == 0
    assert found[fake_config.name] == ("ok", "well-formed")
    assert found["provider"] == ("ok", "fake")
    assert found["price of base"][0] == "ok"
    assert found["Python"][0] == "ok"


SERVED = """
server: {port: PORT, keys: [{name: app, sha256: HASH}, {name: old, sha256: HASH, expires: 2020-01-01}]}
traces: {store: "sqlite:///STORE/traces.db"}
budget: {total: 5, store: "sqlite:///STORE/ledger.db"}
"""


def written(path: Path, port: int, store: str) -> None:
    text = SERVED.replace("PORT", str(port)).replace("HASH", "a" * 64).replace("STORE", store)
    path.write_text(path.read_text() + text)


def test_a_server_that_could_start_is_0(cli: Cli, fake_config: Path, tmp_path: Path) -> None:
    written(fake_config, 0, str(tmp_path))
    assert not any("server" in what for what in findings(cli)[1])
    code, found = findings(cli, "--serve")
    states = {what: state for what, (state, _) in found.items() if "server" in what}
    assert code == 0
    assert states == {
        "server packages": "ok", "server address": "ok", "server key app": "ok", "server key old": "note",
        "server traces": "ok", "server budget": "ok",
    }  # fmt: skip
    assert not (tmp_path / "traces.db").exists()


def test_what_keeps_a_server_from_starting_is_a_problem(cli: Cli, fake_config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        written(fake_config, taken.getsockname()[1], str(tmp_path / "file"))
        code, found = findings(cli, "--serve")
    assert code == 2
    assert {what for what, (state, _) in found.items() if state == "problem" and "server" in what} == {
        "server address", "server traces", "server budget",
    }  # fmt: skip


def test_a_server_without_keys_beyond_this_machine_is_a_problem(cli: Cli, fake_config: Path) -> None:
    fake_config.write_text(fake_config.read_text() + "server: {host: 0.0.0.0, port: 0}\nbudget: {total: 5}\n")
    code, found = findings(cli, "--serve")
    assert (code, found["server address"][0], found["server keys"][0]) == (2, "problem", "note")
    assert "cascade serve --new-key" in found["server address"][1]


def test_an_empty_database_is_what_everybody_begins_with(cli: Cli, fake_config: Path) -> None:
    with postgres_url() as url:
        fake_config.write_text(f"{fake_config.read_text()}traces: {url}\nserver: {{port: 0}}\n")
        code, found = findings(cli, "--serve")
    assert (code, found["traces"][0], found["server traces"][0]) == (0, "ok", "ok")
    assert "which the first question fills" in found["traces"][1]


def test_without_a_configuration_it_is_a_note(cli: Cli) -> None:
    code, found = findings(cli)
    assert code == 0
    assert found["configuration"][0] == "note"


def test_every_problem_of_a_configuration_is_a_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text("models: {base: a}\nbudgt: {}")
    ran = cli("doctor", "--json")
    problems = [one["says"] for one in json.loads(ran.out) if one["state"] == "problem"]
    assert ran.code == 2
    assert {said.split(":")[0] for said in problems} == {"budgt", "models.guide"}


def test_a_local_model_that_is_not_there_is_the_problem_that_ask_names(cli: Cli, tmp_path: Path) -> None:
    """0.5.0: "ok", and `ask` ended with 2."""
    (tmp_path / "cascade.yaml").write_text("models: {base: no-such.gguf, guide: no-such-model}\nprovider: local\n")
    code, found = findings(cli)
    assert code == 2
    assert found["file of base"] == ("problem", "There is no file no-such.gguf.")
    assert found["file of guide"][0] == "problem"
    ran = cli("ask", "Which river?")
    assert (ran.code, "There is no file no-such.gguf." in ran.err) == (2, True)


def test_openais_own_address_without_a_key_is_a_problem(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.5.0: a note, and every question ended with a 401."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "cascade.yaml").write_text("models: {base: a, guide: b}\nprovider: openai_http\n")
    code, found = findings(cli)
    assert code == 2
    assert found["address of a"] == ("problem", "https://api.openai.com/v1, without a key")


def test_a_missing_key_and_an_unknown_price_are_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(
        "models: {base: same, guide: same}\nprovider: {kind: fake, api_key_env: NO_SUCH_KEY}\n"
    )
    code, found = findings(cli)
    assert code == 2
    assert found["key of base"] == ("problem", "the environment variable NO_SUCH_KEY is not set")
    assert found["price of base"][0] == "note"
    assert "judges itself" in found["models"][1]


def test_a_provider_that_cannot_be_made_is_a_problem(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text("models: {base: a, guide: b}\nprovider: replay:nothing.jsonl\n")
    code, found = findings(cli)
    assert (code, found["provider"][0]) == (2, "problem")


def test_a_litellm_that_carried_malware_is_a_problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda _name: "1.82.7")
    code, found = findings(cli)
    assert code == 2
    assert "malware" in found["litellm"][1]


def test_a_package_that_is_missing_comes_with_its_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", nothing)
    _, found = findings(cli)
    assert found["duckdb"] == (
        "note",
        'needed for logs in Parquet, CSV or of other tools, and so the demo log, only; not installed: pip install "certified-cascade[logs]"',
    )


def test_two_distributions_with_the_same_files_are_a_problem(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed one over the other, either may be half of an older version."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("certified-cascade", "certified-cascade-core"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n")
        (folder / "RECORD").write_text("cascade/__init__.py,sha256=x,1\n")
    code, found = findings(cli)
    assert (code, found["cascade"][0]) == (2, "problem")
    assert "pip uninstall certified-cascade certified-cascade-core" in found["cascade"][1]


def test_the_address_of_a_server_is_shown_without_its_key(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    (tmp_path / "cascade.yaml").write_text(
        "models: {base: a, guide: b}\nprovider: {kind: openai_http, api_base: 'http://127.0.0.1:1/v1', api_key_env: MY_KEY}\n"
    )
    ran = cli("doctor", "--json")
    assert "hunter2" not in ran.out + ran.err
    found = {one["what"]: one["says"] for one in json.loads(ran.out)}
    assert found["address of a"] == "http://127.0.0.1:1/v1, with a key"
    assert "proxy" not in found


def test_a_proxy_that_is_not_used_is_reported(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:hunter2@proxy:3128")
    (tmp_path / "cascade.yaml").write_text(
        "models: {base: a, guide: b}\nprovider: {kind: openai_http, api_base: 'http://127.0.0.1:1/v1'}\n"
    )
    ran = cli("doctor", "--json")
    (said,) = [one for one in json.loads(ran.out) if one["what"] == "proxy"]
    assert said["state"] == "note"
    assert said["says"].startswith("HTTPS_PROXY: not used")
    assert "hunter2" not in ran.out + ran.err


def calibrated(config: Path, *certificates: Certificate, guarantee: str = "") -> None:
    folder = directory(config.parent / "policy", *certificates, many=4)
    text = config.read_text().replace("policy: {kind: fixed}", f"policy: {folder}")
    config.write_text(text + (f"guarantee: {guarantee}\n" if guarantee else ""))


@pytest.mark.parametrize("required", ["true", "false"])
def test_a_certificate_that_does_not_hold_is_a_problem(cli: Cli, fake_config: Path, required: str) -> None:
    calibrated(
        fake_config, certificate(created="2020-01-01", expires="2020-02-01"), guarantee=f"{{required: {required}}}"
    )
    code, found = findings(cli)
    assert code == 2
    assert found["certificate"] == ("problem", "does not hold: it expired on 2020-02-01; fit again")


def test_without_a_certificate_it_is_a_problem_where_one_is_required(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config)
    code, found = findings(cli)
    assert (code, found["certificate"][0]) == (0, "note")
    fake_config.write_text(fake_config.read_text() + "guarantee: {required: true}\n")
    code, found = findings(cli)
    assert (code, found["certificate"][0]) == (2, "problem")


def test_a_policy_directory_that_was_edited_is_a_problem(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate())
    file = fake_config.parent / "policy" / "policy.json"
    file.write_text(file.read_text().replace("guide", "guides"))
    code, found = findings(cli)
    assert (code, found["policy"][0]) == (2, "problem")


def test_a_policy_that_the_strategy_cannot_serve_is_one_problem(cli: Cli, fake_config: Path) -> None:
    directory(fake_config.parent / "policy", many=2)
    text = fake_config.read_text().replace("policy: {kind: fixed}", "policy: ./policy")
    fake_config.write_text(text)
    code, found = findings(cli)
    assert (code, found["policy"][0]) == (2, "problem")
    assert "provider" not in found
