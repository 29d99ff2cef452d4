"""`cascade verify`: what it checks, prints and ends with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.logs.files import write_rows
from cascade.policies.directory import PolicyDirectory
from unit.cli.certified import POLICY, Row, hard_rows

Cli = Callable[..., Any]
PROMISED = ("--promise", "coverage", "--risk", "0.1")


def write(path: Path, rows: Sequence[Row]) -> str:
    write_rows(path, rows)
    return str(path)


@pytest.fixture
def log(cli: Cli, tmp_path: Path) -> str:
    """Return a log of 99 questions with a policy directory made of it."""
    path = write(tmp_path / "log.jsonl", hard_rows(99, range(0, 40, 2)))
    assert cli("fit", path, *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    return path


def fresh(path: Path, n: int, hard: Sequence[int]) -> str:
    """Write questions that the policy was not calibrated on."""
    return write(path, hard_rows(n, hard, about="fresh"))


def checks(ran: Any) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(ran.out)["checks"]}


def test_the_same_data_bear_it_out(cli: Cli, log: str) -> None:
    ran = cli("verify", "policy", log)
    assert (ran.code, ran.err) == (0, "")
    assert all(line.split()[0] == "ok" for line in ran.out.splitlines())
    found = checks(cli("verify", "policy", log, "--json"))
    assert {"file", "expiry", "cascade", "seen", "threshold"} <= set(found)
    assert all(one["ok"] for one in found.values())


def test_an_edited_certificate_is_3_with_the_reason(cli: Cli, log: str, tmp_path: Path) -> None:
    path = tmp_path / "policy" / "certificate.json"
    path.write_text(path.read_text().replace('"n": 99', '"n": 999'))
    ran = cli("verify", "policy", log)
    assert ran.code == 3
    assert "changed after it was made" in " ".join(ran.out.split())
    assert ran.err.count("error:") == 1
    assert json.loads(cli("verify", "policy", log, "--json").out)["ok"] is False


@pytest.mark.parametrize(
    ("forged", "check"),
    [
        ({"n": 9_999}, "threshold"),
        ({"unit": "conversation"}, "threshold"),
        ({"reference": "another"}, "reference"),
        ({"attempts": 7}, "attempts"),
        ({}, "threshold"),  # the requests that put points in order
    ],
)
def test_what_was_forged_with_its_hashes_is_not_borne_out(
    cli: Cli, log: str, tmp_path: Path, forged: Mapping[str, Any], check: str
) -> None:
    """The hashes are no signature: what the log does not prove is not called proven."""
    read = PolicyDirectory.read(tmp_path / "policy")
    read = read.certified(*[replace(each, **forged) for each in read.certificates.values()])
    if not forged:
        read = replace(read, requests=replace(read.requests, chose=("0123456789abcdef",)))
    read.write(tmp_path / "forged")
    ran = cli("verify", "forged", log, "--json")
    assert ran.code == 3
    assert [name for name, result in checks(ran).items() if not result["ok"]] == [check]


def test_a_certificate_may_spend_no_more_than_its_fit(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", hard_rows(99, range(0, 40, 2)))
    promised = ("--promise", "coverage", "--risk", "0.4", "--confidence", "0.9", "--policy", POLICY)
    for seed, folder in (("0", "first"), ("1", "second")):
        assert cli("fit", path, *promised, "--seed", seed, "-o", folder).code == 0
    read = PolicyDirectory.read("second")
    assert [each.attempts for each in read.certificates.values()] == [2]
    for folder, changes, failed in (
        ("whole", {"level": 0.1}, {"threshold", "attempts"}),
        ("one", {"attempts": 1}, set()),  # the first might have spent as much, and more
        ("none", {"attempts": None}, {"attempts"}),
    ):
        read.certified(*[replace(each, **changes) for each in read.certificates.values()]).write(folder)
        ran = cli("verify", folder, path, "--json")
        assert {name for name, result in checks(ran).items() if not result["ok"]} - {"threshold"} == failed - {
            "threshold"
        }


@pytest.mark.parametrize("grouped", [False, True])
def test_other_data_under_the_same_questions_are_3(cli: Cli, tmp_path: Path, grouped: bool) -> None:
    for name, hard in (("log", range(0, 40, 2)), ("changed", range(0, 42, 2))):
        rows = hard_rows(99, hard)
        names = [*dict.fromkeys(row["episode_id"] for row in rows)]
        groups = {one: f"group {number // 2}" if grouped else None for number, one in enumerate(names)}
        write(tmp_path / f"{name}.jsonl", [{**row, "group": groups[row["episode_id"]]} for row in rows])
    assert cli("fit", "log.jsonl", *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    assert cli("verify", "policy", "log.jsonl").code == 0
    ran = cli("verify", "policy", "changed.jsonl", "--json")
    assert (ran.code, checks(ran)["threshold"]["ok"]) == (3, False)


def test_fresh_questions_refute_or_do_not(cli: Cli, log: str, tmp_path: Path) -> None:
    kept = cli("verify", "policy", fresh(tmp_path / "kept.jsonl", 200, range(0, 80, 4)), "--json")
    assert kept.code == 0
    assert checks(kept)["fresh"]["text"].startswith("10 of 200 fresh requests lost")
    broken = cli("verify", "policy", fresh(tmp_path / "broken.jsonl", 400, range(400)), "--json")
    assert broken.code == 3
    assert checks(broken)["fresh"]["text"].startswith("74 of 400 fresh requests lost")
    assert "refuted" in checks(broken)["fresh"]["text"]


def test_an_expired_one_and_another_model_are_3(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = hard_rows(99, range(0, 40, 2))
    log = write(tmp_path / "log.jsonl", rows)
    assert cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "policy", "--expires-days", "0").code == 0
    assert cli("verify", "policy", log).code == 0  # until the end of the day
    other = write(tmp_path / "other.jsonl", [one | {"model": "new" + one["model"]} for one in rows])
    ran = cli("verify", "policy", other, "--json")
    assert ran.code == 3
    assert "newsmall" in checks(ran)["cascade"]["text"]


def test_a_configuration_is_compared(cli: Cli, log: str, tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(
        "models: {base: small, guide: huge}\nstrategy: {kind: ladder, models: [base, guide]}\nprovider: fake\npolicy: ./policy\n"
    )
    ran = cli("verify", "policy", log, "--config", "cascade.yaml", "--json")
    assert ran.code == 3
    assert (
        "the list of models is small, then huge; the certificate was made for small, then large"
        in checks(ran)["cascade"]["text"]
    )


def test_a_log_at_other_prices_than_configured_is_3(cli: Cli, tmp_path: Path) -> None:
    tokens = {"input_tokens": 500, "output_tokens": 500, "cost_nano_usd": 1_000_000}
    log = write(tmp_path / "log.jsonl", hard_rows(99, range(0, 40, 2), **tokens))
    assert cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    priced = "models:\n  base: {{model: small, price: {{input: {0}, output: {0}}}}}\n  guide: {{model: large}}\n"
    rest = "strategy: {kind: ladder, models: [base, guide]}\nprovider: fake\npolicy: ./policy\n"
    for price, ok in ((1, True), (3, False)):
        (tmp_path / "cascade.yaml").write_text(priced.format(price) + rest)
        ran = cli("verify", "policy", log, "--config", "cascade.yaml", "--json")
        assert checks(ran)["prices"]["ok"] is ok
        assert ran.code == (0 if ok else 3)
    assert "costs 0.003 USD at the configured price" in checks(ran)["prices"]["text"]
    assert "prices" not in checks(cli("verify", "policy", log, "--json"))


def test_what_is_no_policy_directory_is_2(cli: Cli, log: str, tmp_path: Path) -> None:
    assert cli("verify", "nowhere", log).code == 2
    assert cli("verify", "policy", "nowhere.jsonl").code == 2
    assert cli("verify", str(tmp_path / "log.jsonl"), log).code == 2
    assert cli("verify", str(tmp_path), log).code == 3
