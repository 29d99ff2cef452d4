"""Policy directories that cannot be read or written: one line, exit code 2, the file's name and what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.logs.files import write_rows
from cascade.policies.directory import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE
from unit.cli.certified import ladder_log

Cli = Callable[..., Any]
PROMISED = ("--promise", "regret", "--risk", "0.2", "--confidence", "0.9")
REPAIR = "restore the file as it was, and readable, or make the policy again"
READERS = (
    ("verify", "policy", "log.jsonl"),
    ("evaluate", "log.jsonl", "--policy", "policy"),
    ("fit", "log.jsonl", *PROMISED, "--policy", "policy"),
)


@pytest.fixture
def policy(cli: Cli, tmp_path: Path, kept: Path) -> Path:
    """Return a policy in the test's folder, beside its log: fitted once, and copied."""
    write_rows(tmp_path / "log.jsonl", ladder_log(240))
    if not kept.exists():
        assert cli("fit", "log.jsonl", *PROMISED, "--policy", "learned", "-o", str(kept)).code == 0
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


@pytest.mark.parametrize("output", ["file/policy", "x" * 300, "/proc/none"])
def test_an_unwritable_place_is_reported_before_any_work(cli: Cli, tmp_path: Path, output: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    ran = cli("fit", "nolog.jsonl", *PROMISED, "-o", output)
    assert ran.code == 2
    assert "cannot be written" in ran.err
