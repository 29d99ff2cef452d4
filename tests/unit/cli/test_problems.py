"""Everything that is wrong with a call of `fit` is said at once; a damaged policy directory is one line with its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.api.logs import Problems
from cascade.errors import CascadeError, ConfigError, NotCertifiedError, UsageError
from cascade.logs.files import write_rows
from cascade.policies.directory import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE
from unit.cli.certified import hard_rows, ladder_log

Cli = Callable[..., Any]


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


def test_problems_are_listed_once_each_and_their_own_lists_are_set_in() -> None:
    problems = Problems()
    assert problems.of(lambda: 3) == 3
    problems.refuse()  # nothing is wrong yet
    for _ in range(2):
        problems.of(lambda: fail(ConfigError(["models: missing"], "cascade.yaml")))
    with pytest.raises(ConfigError, match="missing"):
        problems.refuse()
    problems.of(lambda: fail(UsageError("alpha is 2.")))
    with pytest.raises(UsageError) as refused:
        problems.refuse()
    assert [line.strip(" -") for line in str(refused.value).splitlines()][-2:] == ["models: missing", "alpha is 2."]
    with pytest.raises(NotCertifiedError):  # which is no wrong call
        problems.of(lambda: fail(NotCertifiedError("too few")))


# --- fit ---

PROMISED = ("--promise", "coverage", "--risk", "0.2")


def test_fit_lists_all_that_is_wrong(cli: Cli, log: str) -> None:
    said = refused(cli("fit", log, *PROMISED, "--config", "nofile", "--matcher", "nosuch", "-o", "log.jsonl/policy"))
    for part in ("nofile", "nosuch", "cannot be written"):
        assert part in said, part
    assert said.startswith("error: 3 problems")


@pytest.mark.parametrize(
    "options",
    [
        ("--promise", "foo"),
        ("--promise", "regret"),
        ("--risk", "2"),
        ("--policy", "bar"),
        ("--policy", "{kind: bar}"),
        ("--levels", "low=0.1"),
        ("--levels", "low=a,high=0.1"),
        ("--levels", "low=0.2,high=0.1", "--by-segment"),
        ("--newest", "7"),
        ("--abstain",),
        ("--policy", "{kind: depth, speed: 3}"),
        ("-o", ""),
    ],
)
def test_what_cannot_be_fitted_is_2(cli: Cli, log: str, options: tuple[str, ...], tmp_path: Path) -> None:
    refused(cli("fit", log, *PROMISED, *options))
    assert {one.name for one in tmp_path.iterdir()} <= {"log.jsonl", "cascade.attempts.jsonl"}


@pytest.mark.parametrize("output", ["log.jsonl/policy", "n" * 300, "/proc/none"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_fitted(
    cli: Cli, log: str, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr("cascade.api.fitting.fitted", lambda *_, **__: pytest.fail("it was fitted"))
    refused(cli("fit", log, *PROMISED, "-o", output))


# --- policy directories that cannot be read ---

REGRET = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")
REPAIR = "restore the file as it was, and readable, or make the policy again"
READERS = (
    ("verify", "policy", "log.jsonl"),
    ("evaluate", "log.jsonl", "--policy", "policy"),
    ("fit", "log.jsonl", *REGRET, "--policy", "policy"),
)


@pytest.fixture
def policy(cli: Cli, tmp_path: Path, kept: Path) -> Path:
    """Return a policy in the test's folder, beside its log: fitted once, and copied."""
    write_rows(tmp_path / "log.jsonl", ladder_log(240))
    if not kept.exists():
        assert cli("fit", "log.jsonl", *REGRET, "--policy", "learned", "-o", str(kept)).code == 0
    shutil.copytree(kept, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE, MODEL_FILE])
@pytest.mark.parametrize("called", READERS, ids=lambda called: called[0])
def test_a_damaged_file_is_named_with_what_to_do(cli: Cli, policy: Path, called: tuple[str, ...], name: str) -> None:
    (policy / name).write_bytes((policy / name).read_bytes()[:-20])
    ran = cli(*called)
    assert ran.code == (3 if called[0] == "verify" else 2)
    said = " ".join((ran.out + ran.err).split())
    assert name in said
    assert REPAIR in said
    assert "Traceback" not in said


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
@pytest.mark.parametrize("called", READERS[2:], ids=lambda called: called[0])
def test_a_directory_that_may_not_be_looked_into_is_2(cli: Cli, policy: Path, called: tuple[str, ...]) -> None:
    policy.chmod(0)
    try:
        ran = cli(*called)
    finally:
        policy.chmod(0o755)
    assert (ran.code, "Permission denied" in ran.err) == (2, True)
