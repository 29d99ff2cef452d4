"""`cascade fit`, and the same in Python: what it certifies, writes and says; every verb reads the directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cascade
from cascade import FitSettings, PolicyDirectory, Promise
from cascade.api.logs import Problems
from cascade.errors import CascadeError, ConfigError, NotCertifiedError, UsageError
from cascade.files import REPAIR
from cascade.fitting.attempts import place_of
from cascade.logs.files import write_rows
from cascade.policies.directory import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE
from unit.cli.certified import LADDER_POLICY, hard_rows, ladder_log
from unit.cli.conftest import Ran

Cli = Callable[..., Ran]
REGRET = ("--promise", "regret", "--risk", "0.1", "--confidence", "0.9")


@pytest.mark.parametrize(
    "options",
    [
        (*REGRET, "--policy", "rungs", "--newest", "0.5"),
        (*REGRET, "--policy", "learned"),
        (*REGRET, "--policy", "fixed", "--expires-days", "30"),
        (*REGRET, "--policy", LADDER_POLICY),
        (*REGRET, "--levels", "low=0.2,high=0.1"),
        ("--promise", "agreement", "--risk", "0.1", "--confidence", "0.9"),
        ("--promise", "coverage", "--risk", "0.1"),
        ("--promise", "coverage", "--risk", "0.1", "--confidence", "0.9"),
        ("--promise", "error", "--risk", "0.3", "--confidence", "0.9"),
    ],
    ids=" ".join,
)
def test_what_is_fitted_is_written_verified_and_evaluated(cli, written, options):
    log = written(ladder_log(400))
    fitted = cli("fit", log, *options, "-o", "policy", "--json").document
    read = PolicyDirectory.read("policy")
    assert {name: each.document for name, each in read.certificates.items()} == fitted["certificates"]
    assert read.policy.kind == fitted["policy"]
    for each in read.certificates.values():
        assert each.losses <= each.promise.risk * each.n
        assert (each.expires is None) == ("--expires-days" not in options)
    assert cli("verify", "policy", log).code == 0
    (report,) = cli("evaluate", log, "--policy", "policy", "--json").document["reports"]
    assert min(each["loss"][0] for each in report["figures"].values()) <= read.promise.risk
    if "--policy" not in options:
        (audits,) = cli("evaluate", log, "--policy", "policy", "--audits", "--json").document["reports"]
        assert audits["alarmed"] is False


def test_the_cost_that_fit_states_is_what_evaluate_finds_and_no_policy_is_overwritten_without_force(cli, written):
    log = written(ladder_log(400))
    fitted = cli("fit", log, *REGRET, "--policy", "threshold", "-o", "policy", "--json").document
    assert cli("fit", log, *REGRET, "-o", "policy").code == 2
    (report,) = cli("evaluate", log, "--policy", "policy", "--json").document["reports"]
    assert fitted["saves"]
    assert fitted["requests"] == 400
    assert report["figures"]["policy"]["cost_share"][0] == pytest.approx(fitted["cost_share"])
    assert cli("fit", log, *REGRET, "-o", "policy", "--force").code == 0


def test_each_segment_has_a_certificate_and_both_losses_are_said(cli, written):
    rows = [{**row, "segment": "ab"[int(row["episode_id"][1:]) % 2]} for row in ladder_log(800, every=3)]
    log = written(rows)
    ran = cli("fit", log, *REGRET, "--by-segment", "--policy", LADDER_POLICY, "-o", "policy", "--details")
    assert ran.code == 0, ran.err
    assert {each.segment for each in PolicyDirectory.read("policy").certificates.values()} == {"a", "b"}
    assert "in a mean segment" in ran.out
    assert "of all requests" in ran.out
    assert cli("verify", "policy", log).code == 0


def test_a_fit_of_the_same_requests_again_is_counted_and_tested_at_less(cli, written):
    log = written(ladder_log(400))
    levels = []
    for seed in ("0", "0", "1"):
        fitted = cli("fit", log, *REGRET, "--seed", seed, "--json").document
        levels.append((fitted["attempt"], fitted["level"]))
    assert levels[0] == levels[1] == (1, pytest.approx(0.099))
    assert levels[2][0] == 2
    assert 0 < levels[2][1] < 0.05
    assert place_of(log).exists()
    Path("copy.jsonl").write_bytes(Path(log).read_bytes())
    assert cli("fit", "copy.jsonl", *REGRET, "--seed", "2", "--json").document["attempt"] == 3
    opened = cascade.fit(cascade.open_log(log), Promise("regret", 0.1, 0.9), FitSettings(seed=3))
    assert [each.attempts for each in opened.certificates] == [4]
    assert cli("fit", "demo-ladder", *REGRET, "--json").document["attempt"] is None


def test_a_policy_is_certified_again_without_what_it_learned_from(cli, written):
    log = written(ladder_log(400))
    first = cli("fit", log, *REGRET, "--policy", "learned", "-o", "policy", "--json").document
    agreement = ("--promise", "agreement", "--risk", "0.1", "--confidence", "0.9")
    again = cli("fit", log, *agreement, "--policy", "policy", "-o", "again", "--json").document
    assert (again["policy"], again["attempt"], again["learned_from"]) == ("learned", 2, 0)
    assert first["requests"] == again["requests"]
    before, after = PolicyDirectory.read("policy"), PolicyDirectory.read("again")
    assert before.policy_sha256 == after.policy_sha256
    assert before.requests.fitted == after.requests.fitted
    assert cli("fit", "demo", *agreement, "--policy", "policy").code == 2  # a log of another plan


def test_nothing_to_save_asks_the_reference_alone(cli, written):
    log = written([{**row, "correct": row["step"] == 2} for row in ladder_log(200)])
    fitted = cli("fit", log, *REGRET, "-o", "policy", "--json").document
    assert (fitted["policy"], fitted["saves"]) == ("reference", False)
    assert cli("verify", "policy", log).code == 0
    assert cli("fit", log, "--promise", "error", "--risk", "0.01", "--confidence", "0.99").code in {0, 3}


def test_five_lines_come_first_and_the_tables_on_request(cli, written):
    log = written(ladder_log(400))
    few, more = cli("fit", log, *REGRET).out, cli("fit", log, *REGRET, "--details").out
    assert len(few.splitlines()) <= 5
    assert more.startswith(few)
    assert "level" in more


def test_python_and_the_command_write_the_same(cli, written, tmp_path):
    log = written(ladder_log(300))
    done = cascade.fit(log, Promise("regret", 0.1, 0.9), FitSettings(seed=3), output=tmp_path / "ours")
    assert cli("fit", log, *REGRET, "--seed", "3", "-o", "theirs").code == 0
    ours, theirs = PolicyDirectory.read(tmp_path / "ours"), PolicyDirectory.read("theirs")
    assert ours.certificates == theirs.certificates == done.directory.certificates
    for name in ("policy.json", "certificate.json"):
        assert (tmp_path / "ours" / name).read_bytes() == Path("theirs", name).read_bytes()


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return a log of 60 questions."""
    write_rows(tmp_path / "log.jsonl", hard_rows(60, range(0, 20, 2)))
    return str(tmp_path / "log.jsonl")


def refused(ran: Any) -> str:
    """Return what a refused call said, its blanks as one."""
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert ran.err.count("error:") == 1
    return " ".join(ran.err.split())


# --- the collection ---


def fail(error: CascadeError) -> None:
    raise error


def test_problems_are_listed_once_each_and_their_own_lists_are_set_in():
    problems = Problems()
    assert problems.catch(lambda: 3) == 3
    problems.refuse()  # nothing is wrong yet
    for _ in range(2):
        problems.catch(lambda: fail(ConfigError(["models: missing"], "cascade.yaml")))
    with pytest.raises(ConfigError, match="missing"):
        problems.refuse()
    problems.catch(lambda: fail(UsageError("alpha is 2.")))
    with pytest.raises(UsageError) as refused:
        problems.refuse()
    assert [line.strip(" -") for line in str(refused.value).splitlines()][-2:] == ["models: missing", "alpha is 2."]
    with pytest.raises(NotCertifiedError):  # which is no wrong call
        problems.catch(lambda: fail(NotCertifiedError("too few")))


# --- fit ---


@pytest.mark.parametrize("name", ["misspelt", "misspelt.jsonl"])
def test_a_promise_that_cannot_be_made_is_told_with_a_log_that_is_not_there(cli, name):
    error = refused(cli("fit", name, "--promise", "regret", "--risk", "2"))
    assert (error.startswith("error: 2 problems"), "misspelt" in error, "risk" in error) == (True, True, True)


def test_a_fit_has_the_confidence_of_prove_unless_it_covers_on_average(cli, log):
    for kind, confidence in (("error", 0.9), ("coverage", None)):
        assert cli("fit", log, "--promise", kind, "--risk", "0.4", "-o", kind).code == 0
        promise = PolicyDirectory.read(kind).promise
        assert promise.confidence == confidence


PROMISED = ("--promise", "coverage", "--risk", "0.2")


def test_fit_lists_all_that_is_wrong(cli, log):
    error = refused(cli("fit", log, *PROMISED, "--config", "nofile", "--matcher", "nosuch", "-o", "log.jsonl/policy"))
    for part in ("nofile", "nosuch", "cannot be written"):
        assert part in error, part
    assert error.startswith("error: 3 problems")


@pytest.mark.parametrize(
    "options",
    [
        ("--promise", "foo"),
        ("--risk", "2"),
        ("--policy", "bar"),
        ("--policy", "{kind: bar}"),
        ("--levels", "low=0.1"),
        ("--levels", "low=a,high=0.1"),
        ("--levels", "low=0.2,high=0.1", "--by-segment"),
        ("--newest", "7"),
        ("--policy", "{kind: depth, speed: 3}"),
        ("-o", ""),
    ],
)
def test_what_cannot_be_fitted_is_2(cli, log, options, tmp_path):
    refused(cli("fit", log, *PROMISED, *options))
    assert {path.name for path in tmp_path.iterdir()} <= {"log.jsonl", "cascade.attempts.jsonl"}


@pytest.mark.parametrize("output", ["log.jsonl/policy", "n" * 300, "/proc/none"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_fitted(cli, log, monkeypatch, output):
    monkeypatch.setattr("cascade.api.fitting.fitted", lambda *_, **__: pytest.fail("it was fitted"))
    refused(cli("fit", log, *PROMISED, "-o", output))


# --- policy directories that cannot be read ---

REGRET_PROBLEMS = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")
READERS = (
    ("verify", "policy", "log.jsonl"),
    ("evaluate", "log.jsonl", "--policy", "policy"),
    ("fit", "log.jsonl", *REGRET_PROBLEMS, "--policy", "policy"),
)


@pytest.fixture
def policy(cli: Cli, tmp_path: Path, shared_policy: Path) -> Path:
    """Return a policy in the test's folder, beside its log: fitted once, and copied."""
    write_rows(tmp_path / "log.jsonl", ladder_log(240))
    if not shared_policy.exists():
        assert cli("fit", "log.jsonl", *REGRET_PROBLEMS, "--policy", "learned", "-o", str(shared_policy)).code == 0
    shutil.copytree(shared_policy, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE, MODEL_FILE])
@pytest.mark.parametrize("called", READERS, ids=lambda called: called[0])
def test_a_damaged_file_is_named_with_what_to_do(cli, policy, called, name):
    (policy / name).write_bytes((policy / name).read_bytes()[:-20])
    ran = cli(*called)
    assert ran.code == (3 if called[0] == "verify" else 2)
    output = " ".join((ran.out + ran.err).split())
    assert name in output
    assert REPAIR in output
    assert "Traceback" not in output


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
@pytest.mark.parametrize("called", READERS[2:], ids=lambda called: called[0])
def test_a_directory_that_may_not_be_looked_into_is_2(cli, policy, called):
    policy.chmod(0)
    try:
        ran = cli(*called)
    finally:
        policy.chmod(0o755)
    assert (ran.code, "Permission denied" in ran.err) == (2, True)
