"""`cascade fit --levels` and what the other commands do with its directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.api.fit_levels import parsed
from cascade.episodes.files import write_rows
from cascade.errors import UsageError
from cascade.factory import read_levels
from cascade.policies.reading import read
from unit.cli.certified import hard_rows
from unit.cli.documents import words

Cli = Callable[..., Any]
LEVELS = "low=0.3,medium=0.2,high=0.05"
COMPLETE = {"README.md", "certificate.json", "model.safetensors", "policy.json"}
CONFIG = """\
models:
  base: {model: small, price: {input: 1, output: 1}}
  guide: {model: large, price: {input: 1, output: 1}}
provider: {kind: fake, options: {replies: {small: ['Answer: Danube'], large: ['Yes']}}}
strategy: {kind: ladder, models: [base, guide]}
policy: ./depth
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    write_rows(tmp_path / "log.jsonl", hard_rows(200, range(0, 160, 2)))
    return str(tmp_path / "log.jsonl")


@pytest.fixture
def policy(cli: Cli, log: str, tmp_path: Path, kept: Path) -> str:
    """Return a policy of three levels in the test's folder: fitted once, and copied."""
    if not kept.exists():
        ran = cli("fit", log, "--levels", LEVELS, "--policy", "threshold", "-o", str(kept))
        assert ran.code == 0, ran.err
    shutil.copytree(kept, tmp_path / "policy")
    return "policy"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


# --- what is written and printed ---


def test_every_level_is_a_complete_policy_directory(cli: Cli, policy: str, tmp_path: Path) -> None:
    assert {one.name for one in (tmp_path / "policy").iterdir()} == COMPLETE | {"levels", "levels.json"}
    for name in ("low", "high"):
        assert {one.name for one in (tmp_path / "policy" / "levels" / name).iterdir()} == COMPLETE
        assert f"level | {name}" in (tmp_path / "policy" / "levels" / name / "README.md").read_text()
    held = read_levels(policy)
    assert held is not None
    assert held.levels.default == "medium"
    assert read(policy).certificates[0].alpha == 0.2


def test_json_has_each_level_as_a_fit_alone_has_it(cli: Cli, log: str) -> None:
    arguments = ("fit", log, "--policy", "threshold", "--json")
    document = json.loads(cli(*arguments, "--levels", LEVELS, "--default-level", "high", "-o", "policy").out)
    assert list(document["levels"]) == ["low", "medium", "high"]
    assert (document["output"], document["default"]) == ("policy", "high")
    alone = json.loads(cli(*arguments, "--alpha", "0.2", "-o", "alone").out)
    level = document["levels"]["medium"]
    assert level.pop("alpha") == 0.2
    assert level.pop("output") == "policy/levels/medium"
    assert alone.pop("notices") == document["notices"]
    for one in (level, alone):
        one.pop("output", None)
        for candidate in one["candidates"]:
            candidate.pop("fit_seconds")
    assert level == alone
    low, medium, high = (one["realised"]["cost_usd"] for one in document["levels"].values())
    assert low < high < medium  # another signal was chosen for it, at another loss: that is said
    (said,) = document["level_notes"]
    assert said.startswith("level medium costs no less on the calibration questions than high")
    assert len({one["segments"][0]["certificate"]["calibration_id"] for one in document["levels"].values()}) == 3


def test_a_refit_takes_the_place_of_levels_and_levels_that_of_a_refit(
    cli: Cli, log: str, policy: str, tmp_path: Path
) -> None:
    again = ("fit", log, "--policy", "threshold", "-o", "policy", "--force")
    assert cli(*again, "--levels", "0.3,0.1").code == 0
    assert [one.name for one in (tmp_path / "policy" / "levels").iterdir()] == ["low"]
    assert cli(*again, "--alpha", "0.1").code == 0
    assert {one.name for one in (tmp_path / "policy").iterdir()} == COMPLETE


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--levels", LEVELS, "--alpha", "0.1"), ["--alpha is one share for all questions"]),
        (("--levels", LEVELS, "--default-level", "hihg"), ["'hihg', and --levels has low, medium, high"]),
        (("--default-level", "low"), ["--default-level is one of --levels, and there are none"]),
        (("--levels", "0.1"), ["1 alpha without names; name them"]),
        (("--levels", "a=0.1"), ["give two or more levels"]),
        (("--levels", "low=0.2,0.1"), ["name all of them, or none"]),
        (("--levels", "low=0.2,low=0.1"), ["a name appears twice"]),
        (("--levels", "low=0.2,high=x,"), ["'high=x', '' is not of the form NAME=ALPHA"]),
        (("--levels", "low=0.2,Hi=0.2"), ["'Hi' is not a name for a level", "two levels have the same alpha"]),
        (
            ("--levels", "low=2,high=0.1", "--alpha", "0.1", "--policy", "nothing"),
            [
                "3 problems:",
                "alpha of level low",
                "--alpha is one",
                "no policy 'nothing'",
            ],
        ),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(
    cli: Cli, log: str, tmp_path: Path, options: tuple[str, ...], said: list[str]
) -> None:
    ran = cli("fit", log, *options, "-o", "policy")
    assert (ran.code, ran.out) == (2, "")
    assert not [one for one in said if one not in words(ran.err)], ran.err
    assert not (tmp_path / "policy").exists()


def test_a_level_that_cannot_be_certified_writes_nothing(cli: Cli, log: str, tmp_path: Path) -> None:
    ran = cli("fit", log, "--levels", "low=0.3,high=0.002", "--policy", "depth", "-o", "policy")
    assert ran.code == 3
    assert "Level 'high' (alpha 0.002)" in words(ran.err)
    assert not (tmp_path / "policy").exists()


def test_levels_are_not_written_over_other_files(cli: Cli, log: str, tmp_path: Path) -> None:
    (tmp_path / "project" / "levels" / "low").mkdir(parents=True)
    (tmp_path / "project" / "levels" / "low" / "README.md").write_text("mine")
    ran = cli("fit", log, "--levels", LEVELS, "-o", "project")
    assert ran.code == 2
    assert "project/levels/low holds files that do not belong to a level of project" in words(ran.err)
    (tmp_path / "project" / "levels" / "high").mkdir()
    (tmp_path / "project" / "levels" / "high" / "policy.json").write_text("{}")
    ran = cli("fit", log, "--levels", LEVELS, "-o", "project", "--calibration-share", "7")
    assert "2 problems:" in words(ran.err)
    assert "project/levels/low, project/levels/high hold files that do not belong to a level" in words(ran.err)


def test_calibrated_levels_are_not_written_over_other_files(cli: Cli, log: str, policy: str, tmp_path: Path) -> None:
    """A policy of somebody, who calls it by the name of a level."""
    assert cli("fit", log, "--policy", "depth", "-o", "other/levels/low").code == 0
    (tmp_path / "other" / "levels" / "low" / "README.md").write_text("mine")
    before = contents(tmp_path / "other")
    write_rows(tmp_path / "new.jsonl", hard_rows(150, range(0, 100, 2), about="letter"))
    arguments = ("calibrate", "new.jsonl", "--policy", policy, "-o", "other")
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "other/levels/low holds files that do not belong to a level of other; choose another --output" in words(
        ran.err
    )
    assert contents(tmp_path / "other") == before
    assert cli(*arguments, "--force").code == 0
    assert read_levels("other") is not None


def test_levels_that_are_numbers_are_named() -> None:
    assert parsed(" 0.05 ,0.2, 0.1") == {"low": 0.2, "medium": 0.1, "high": 0.05}
    assert parsed("0.05,0.2") == {"low": 0.2, "high": 0.05}
    with pytest.raises(UsageError, match="4 alphas without names"):
        parsed("0.1,0.2,0.3,0.4")


# --- any promise that has an alpha ---


@pytest.mark.parametrize(
    "options",
    [
        ("--guarantee", "regret", "--delta", "0.1"),
        ("--by-segment", "--calibration-share", "0.5"),
        ("--calibration-share", "0.4", "--expires-days", "30"),
    ],
    ids=lambda options: " ".join(options[:2]),
)
def test_levels_of_any_promise_with_an_alpha_are_fitted_and_verified(
    cli: Cli, tmp_path: Path, options: tuple[str, ...]
) -> None:
    separate = "--by-segment" in options
    for about in ("number", "letter"):
        rows = hard_rows(240, range(0, 160, 4), about=about)
        named = [row | {"segment": f"g{int(row['episode_id'][1:]) % 2}" if separate else None} for row in rows]
        write_rows(tmp_path / f"{about}.jsonl", named)
    arguments = ("--levels", "low=0.3,high=0.1", "--policy", "threshold", "-o", "policy", "--json")
    ran = cli("fit", "number.jsonl", *arguments, *options)
    assert ran.code == 0, ran.err
    for level in json.loads(ran.out)["levels"].values():
        assert {one["certificate"]["alpha"] for one in level["segments"]} == {level["alpha"]}
        assert (len(level["segments"]) > 1) == separate
    assert cli("verify", "policy", "number.jsonl").code == 0
    again = cli("calibrate", "letter.jsonl", "--policy", "policy")
    assert again.code == 0, again.err
    assert again.err.count("promised as before") == 2
    assert cli("verify", "policy", "letter.jsonl").code == 0


# --- the other commands ---


@pytest.fixture
def served(cli: Cli, log: str, tmp_path: Path) -> None:
    """Write a configuration whose models give what its policy looks at: nothing but the step."""
    assert cli("fit", log, "--levels", LEVELS, "--policy", "depth", "-o", "depth").code == 0
    (tmp_path / "cascade.yaml").write_text(CONFIG)


@pytest.mark.usefixtures("served")
def test_ask_at_a_level(cli: Cli) -> None:
    asked = ("ask", "Which river?", "--json")
    assert json.loads(cli(*asked).out)["level"] == "medium"
    assert json.loads(cli(*asked, "--level", "low").out)["level"] == "low"
    assert json.loads(cli(*asked, "--level", "0.1").out)["level"] == "high"
    assert "level: low" in cli("ask", "Which river?", "--explain", "--level", "low").out
    assert "level: high" in cli("ask", "Which river?", "--explain", "--stream", "--level", "high").out
    for level, said in (("nan", "There is no level 'nan'"), ("0.01", "No level promises an alpha of 0.01 or less")):
        ran = cli(*asked, "--level", level)
        assert (ran.code, ran.out) == (2, "")
        assert said in words(ran.err)


def test_verify_checks_every_level(cli: Cli, log: str, policy: str, tmp_path: Path) -> None:
    ran = cli("verify", policy, log)
    assert ran.code == 0, ran.err
    assert [line for line in ran.out.splitlines() if line.startswith("level ")] == [
        "level low, alpha 0.3",
        "level medium, alpha 0.2",
        "level high, alpha 0.05",
    ]
    document = json.loads(cli("verify", policy, log, "--json").out)
    assert document["ok"] is True
    assert document["default"] == "medium"
    assert document["checks"] == document["levels"]["medium"]["checks"]
    assert cli("verify", "policy/levels/low", log).code == 0
    write_rows(tmp_path / "other.jsonl", hard_rows(200, range(0, 200, 2)))  # the same questions, answered otherwise
    ran = cli("verify", policy, "other.jsonl")
    assert ran.code == 3
    assert all(f"threshold of {level} (" in words(ran.err) for level in ("low", "medium", "high"))
    (tmp_path / "policy" / "levels" / "low" / "policy.json").write_text("{}")
    ran = cli("verify", policy, log, "--json")
    assert ran.code == 3
    assert "levels.low" in json.loads(ran.out)["checks"][0]["said"]


def test_calibrate_certifies_every_level_anew_with_its_alpha(cli: Cli, policy: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.jsonl", hard_rows(150, range(0, 100, 2), about="letter"))
    before = contents(tmp_path / "policy")
    ran = cli("calibrate", "new.jsonl", "--policy", "policy")
    assert ran.code == 0, ran.err
    for name, alpha in (("low", 0.3), ("medium", 0.2), ("high", 0.05)):
        assert f"{name}: promised as before: coverage, alpha {alpha:g}" in words(ran.err)
    assert "150 calibration questions, the same for all levels" in ran.out
    held = read_levels("policy")
    assert held is not None
    assert [one.artifact.certificates[0].alpha for one in held.policies.values()] == [0.3, 0.2, 0.05]
    assert [one.artifact.certificates[0].n for one in held.policies.values()] == [150] * 3
    after = contents(tmp_path / "policy")
    assert {name for name in before if before[name] != after[name]} == {
        "certificate.json",
        "levels/low/certificate.json",
        "levels/high/certificate.json",
    }
    assert cli("verify", "policy", "new.jsonl").code == 0


def test_calibrate_writes_levels_elsewhere_for_another_promise(cli: Cli, policy: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "new.jsonl", hard_rows(150, range(0, 100, 2), about="letter"))
    before = contents(tmp_path / "policy")
    arguments = ("calibrate", "new.jsonl", "--policy", "policy", "-o", "other", "--json")
    document = json.loads(cli(*arguments, "--guarantee", "error", "--delta", "0.2", "--abstain").out)
    assert document["output"] == "other"
    assert [one["alpha"] for one in document["levels"].values()] == [0.3, 0.2, 0.05]
    held = read_levels("other")
    assert held is not None
    assert {one.artifact.certificates[0].kind for one in held.policies.values()} == {"error"}
    assert contents(tmp_path / "policy") == before


def test_the_default_level_is_what_other_commands_read(cli: Cli, log: str, policy: str) -> None:
    own = json.loads(cli("evaluate", log, "--policy", policy, "--json").out)["datasets"][0]
    low = json.loads(cli("evaluate", log, "--policy", "policy/levels/low", "--json").out)["datasets"][0]
    assert own["n"] == low["n"] == 200
    assert own["rows"][0]["coverage"] > low["rows"][0]["coverage"]


def test_monitor_holds_every_audit_against_every_level(cli: Cli, policy: str, tmp_path: Path) -> None:
    asked = {"about": "letter", "split": "audit"}
    write_rows(tmp_path / "audits.jsonl", hard_rows(60, range(0, 48, 2), **asked))
    document = json.loads(cli("monitor", policy, "audits.jsonl", "--json").out)
    assert (document["alarmed"], document["default"], document["audits"]) == (False, "medium", 60)
    certificates = {name: one["certificates"][0] for name, one in document["levels"].items()}
    assert {name: (one["alpha"], one["audits"]) for name, one in certificates.items()} == {
        "low": (0.3, 60),
        "medium": (0.2, 60),
        "high": (0.05, 60),
    }
    assert [one["alarm_at"] for one in certificates.values()] == pytest.approx([60.0] * 3)  # 1 / (0.05 / 3)
    assert certificates["low"]["misses"] > certificates["high"]["misses"]
    write_rows(tmp_path / "bad.jsonl", hard_rows(200, range(200), **asked))
    ran = cli("monitor", policy, "bad.jsonl")
    assert ran.code == 3
    assert [line.split(":")[0] for line in ran.out.splitlines()[:3]] == ["level low", "level medium", "level high"]
    assert "of 3 certificates no longer hold" in words(ran.err)
