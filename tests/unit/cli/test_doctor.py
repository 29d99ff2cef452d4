"""`cascade doctor`: what it finds in a set-up, before any question is paid for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import postgres_url, row

from cascade.conformal.certificate import Certificate
from cascade.records.traces import Store
from unit.certified import certificate, directory

Cli = Callable[..., Any]
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
        ("models: {base: a, guide: b}\nprovider: {kind: fake, api_key_env: NO_KEY}\n", 2, {"key of base": "problem"}),
        (
            "models: {base: no-such.gguf, guide: no-such-model}\nprovider: local\n",
            2,
            {"file of base": "problem", "file of guide": "problem"},
        ),
    ],
)
def test_findings_of_a_configuration(
    cli: Cli, tmp_path: Path, config: str | None, code: int, states: dict[str, str]
) -> None:
    if config is not None:
        (tmp_path / "cascade.yaml").write_text(config)
    ended, found = findings(cli)
    assert (ended, {what: found[what][0] for what in states}) == (code, states)
    if "file of base" in states:  # 0.5.0: "ok", and `ask` ended with 2
        assert cli("ask", "Which river?").code == 2


def test_every_problem_of_a_configuration_is_a_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text("models: {base: a, guide: b}\nbudgt: {}\ntimeouts: {per_call_s: 0}")
    ran = cli("doctor", "--json")
    problems = [finding["says"] for finding in json.loads(ran.out) if finding["state"] == "problem"]
    assert (ran.code, {text.split(":")[0] for text in problems}) == (2, {"budgt", "timeouts.per_call_s"})


def test_no_key_is_shown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2")
    (tmp_path / "cascade.yaml").write_text(f"models: {{base: a, guide: b}}\n{SERVER}, api_key_env: MY_KEY}}\n")
    ran = cli("doctor", "--json")
    assert "hunter2" not in ran.out + ran.err
    found = {finding["what"]: (finding["state"], finding["says"]) for finding in json.loads(ran.out)}
    assert found["address of a"] == ("ok", "http://127.0.0.1:1/v1, with a key")


# --- the store ---


def test_an_empty_database_is_what_everybody_begins_with(cli: Cli, fake_config: Path) -> None:
    with postgres_url() as url:
        fake_config.write_text(f"{fake_config.read_text()}traces: {url}\n")
        code, found = findings(cli)
    assert (code, found["traces"][0]) == (0, "ok")


@pytest.mark.usefixtures("fake_config")
def test_the_store_is_looked_at_and_none_is_made(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.db"
    assert findings(cli)[1]["traces"] == ("note", "off")
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{file}")
    assert (findings(cli)[1]["traces"][0], file.exists()) == ("ok", False)
    with Store.open(f"sqlite:///{file}") as store:
        store.append([row(1)])
    assert findings(cli)[1]["traces"][1].endswith("mine.db, 1 rows")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{tmp_path}/file/mine.db")
    assert findings(cli)[1]["traces"][0] == "problem"
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{file}")
    file.write_bytes(b"this is no database, and it is long enough to be looked at" * 20)
    code, found = findings(cli)
    assert (code, found["traces"][0]) == (2, "problem")
    (tmp_path / "cascade.yaml").unlink()
    assert findings(cli)[1]["traces"][0] == "problem"


# --- certificates ---


def calibrated(config: Path, *certificates: Certificate, guarantee: str = "", many: int = 4) -> None:
    folder = directory(config.parent / "policy", *certificates, many=many)
    text = config.read_text().replace("policy: {kind: fixed}", f"policy: {folder}")
    config.write_text(text + (f"guarantee: {guarantee}\n" if guarantee else ""))


@pytest.mark.parametrize("required", ["true", "false"])
def test_a_certificate_that_does_not_hold_is_a_problem(cli: Cli, fake_config: Path, required: str) -> None:
    expired = certificate(created="2020-01-01", expires="2020-02-01")
    calibrated(fake_config, expired, guarantee=f"{{required: {required}}}")
    code, found = findings(cli)
    assert (code, found["certificate"][0], "2020-02-01" in found["certificate"][1]) == (2, "problem", True)


@pytest.mark.parametrize(("guarantee", "code", "state"), [("", 0, "note"), ("{required: true}", 2, "problem")])
def test_no_certificate_is_a_problem_where_one_is_required(
    cli: Cli, fake_config: Path, guarantee: str, code: int, state: str
) -> None:
    calibrated(fake_config, guarantee=guarantee)
    ended, found = findings(cli)
    assert (ended, found["certificate"][0]) == (code, state)


def test_a_policy_directory_that_was_edited_is_a_problem(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, certificate())
    file = fake_config.parent / "policy" / "policy.json"
    file.write_text(file.read_text().replace("guide", "guides"))
    code, found = findings(cli)
    assert (code, found["policy"][0]) == (2, "problem")


def test_a_policy_that_the_strategy_cannot_serve_is_one_problem(cli: Cli, fake_config: Path) -> None:
    calibrated(fake_config, many=2)
    code, found = findings(cli)
    assert (code, found["policy"][0], "provider" in found) == (2, "problem", False)
