"""`cascade fit --cross-calibrate`: what it writes, prints and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.calibration.crossing import bound
from cascade.episodes.files import write_rows
from cascade.factory import read_policy
from cascade.policies.cross import CrossPolicy
from unit.cli.certified import hard_rows

Cli = Callable[..., Any]
FILES = {"README.md", "certificate.json", "model.safetensors", "policy.json"}


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return a log of 200 questions, 40 of them answered rightly by the second step alone, all of low doubt."""
    write_rows(tmp_path / "log.jsonl", hard_rows(200, range(0, 80, 2)))
    return str(tmp_path / "log.jsonl")


def fitted(cli: Cli, log: str, folder: Path, *more: str) -> Any:
    return cli("fit", log, "--alpha", "0.1", "--policy", "threshold", "--cross-calibrate", "-o", str(folder), *more)


def test_it_writes_a_directory_and_says_both_bounds(cli: Cli, log: str, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    ran = fitted(cli, log, folder)
    assert ran.code == 0, ran.err
    assert {one.name for one in folder.iterdir()} == FILES
    assert isinstance(read_policy(folder).policy, CrossPolicy)
    printed = " ".join(ran.out.split())
    assert "200 questions of 2 steps, in 5 folds: each is used both to fit and to certify" in printed
    assert "With probability at least 80 %" in printed
    assert f"- {bound(0.1)}" in printed
    card = (folder / "README.md").read_text("utf-8")
    assert f"**{bound(0.1)}**" in card
    assert card.count("| threshold on ") == 5
    assert "| alpha asked for | 0.1 |" in card


def test_as_json_it_is_one_document(cli: Cli, log: str, tmp_path: Path) -> None:
    ran = fitted(cli, log, tmp_path / "policy", "--json")
    found = json.loads(ran.out)
    assert (found["questions"], found["alpha_asked"], found["bound"]) == (200, 0.1, bound(0.1))
    assert [(one["training"], one["calibration"]) for one in found["members"]] == [(160, 40)] * 5
    (group,) = found["segments"]
    assert (group["certificate"]["alpha"], group["certificate"]["kappa"], group["certificate"]["k"]) == (0.2, 0.1, None)


def test_it_is_verified(cli: Cli, log: str, tmp_path: Path) -> None:
    assert fitted(cli, log, tmp_path / "policy").code == 0
    ran = cli("verify", "policy", log)
    assert ran.code == 0, ran.err
    assert "the same folds and critical values" in " ".join(ran.out.split())


def test_what_does_not_go_with_it_is_reported_at_once(cli: Cli, log: str, tmp_path: Path) -> None:
    more = ("--delta", "0.1", "--lambda-set", "0.1", "--calibration-share", "0.5", "--allow-everything", "--embed")
    ran = fitted(cli, log, tmp_path / "policy", *more)
    assert ran.code == 2
    assert "has no delta" in ran.err
    for option in ("--lambda-set", "--embed", "--allow-everything", "--calibration-share"):
        assert option in ran.err
    assert not (tmp_path / "policy").exists()


def test_too_few_questions_are_not_certified(cli: Cli, tmp_path: Path) -> None:
    write_rows(tmp_path / "few.jsonl", hard_rows(40, range(10)))
    ran = fitted(cli, str(tmp_path / "few.jsonl"), tmp_path / "policy")
    assert ran.code == 3
    assert "46 would be enough" in ran.err


def test_another_policy_s_plot_goes(cli: Cli, log: str, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    assert cli("fit", log, "--alpha", "0.1", "--policy", "depth", "-o", "policy", "--allow-everything").code == 0
    assert fitted(cli, log, folder, "--force").code == 0
    assert {one.name for one in folder.iterdir()} == FILES


def test_there_is_no_starting_from_several_policies(cli: Cli, log: str, tmp_path: Path) -> None:
    assert fitted(cli, log, tmp_path / "policy").code == 0
    ran = cli("fit", log, "--init", "policy", "-o", "new")
    assert ran.code == 2
    assert "--init starts from one" in " ".join(ran.err.split())
