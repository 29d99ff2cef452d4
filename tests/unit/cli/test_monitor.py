"""`cascade monitor`: logged audits against a certificate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.conformal.monitor import Monitor
from cascade.episodes.files import write_rows
from unit.cli.certified import POLICY, Row, hard_rows

Cli = Callable[..., Any]
PROMISED = ("--promise", "coverage", "--risk", "0.1")


def write(path: Path, rows: Sequence[Row]) -> str:
    write_rows(path, rows)
    return str(path)


@pytest.fixture
def policy(cli: Cli, tmp_path: Path) -> str:
    """Return a policy directory certified at kappa 0.19 with α = 0.1: what has a lower doubt stops after step one."""
    log = write(tmp_path / "log.jsonl", hard_rows(99, range(0, 40, 2)))
    assert cli("fit", log, *PROMISED, "--policy", POLICY, "-o", "policy").code == 0
    return "policy"


def audits(missed: Iterable[bool], **columns: Any) -> list[Row]:
    """Return audited questions, a minute apart, of which these are missed: they stop, and only step two is right."""
    marks = list(missed)
    late = [k for k, mark in enumerate(marks) if mark]
    columns = {"split": "audit", "signals": {"p_yes": 0.9}} | columns
    return [one | columns for one in hard_rows(len(marks), late, about="audit")]


def document(ran: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_misses_are_counted_as_they_would_be_served(cli: Cli, policy: str, tmp_path: Path) -> None:
    marks = [k % 12 == 3 for k in range(120)]
    ran = cli("monitor", policy, write(tmp_path / "audits.jsonl", audits(marks)))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("no alarm: 10 of 120 audits missed (8.3%)")
    going_on = audits(marks, signals={"p_yes": 0.5})  # a doubt above kappa: step two is paid, and right
    assert "0 of 120" in cli("monitor", policy, write(tmp_path / "on.jsonl", going_on)).out


def test_an_alarm_ends_with_3_and_says_after_how_many(cli: Cli, policy: str, tmp_path: Path) -> None:
    marks = [False] * 60 + [k % 2 == 0 for k in range(60)]
    path = write(tmp_path / "audits.jsonl", audits(marks))
    ran = cli("monitor", policy, path)
    monitor = Monitor.start(alpha=0.1, n=99, k=10)
    for mark in marks:
        monitor = monitor.update(mark)
    assert ran.code == 3
    assert f"ALARM after {monitor.alarmed_after} audits" in ran.out
    assert ran.err.count("error:") == 1
    found = document(cli("monitor", policy, path, "--json"))
    (one,) = found["certificates"]
    assert found["alarmed"] is True
    assert (one["audits"], one["misses"], one["alarmed_after"]) == (120, 30, monitor.alarmed_after)
    assert one["e_value"] == pytest.approx(monitor.e_value)
    assert cli("monitor", policy, path, "--level", "1e-9").code == 0


def test_audits_count_in_the_order_they_were_asked(cli: Cli, policy: str, tmp_path: Path) -> None:
    marks = [False] * 60 + [k % 2 == 0 for k in range(60)]
    rows = audits(marks)
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    shuffled = [rows[k] for k in order]
    straight, mixed = (
        document(cli("monitor", policy, write(tmp_path / name, given), "--json"))["certificates"][0]
        for name, given in (("one.jsonl", rows), ("two.jsonl", shuffled))
    )
    assert straight == mixed
    # in the other direction of time the misses come first, which is another record
    late = [one | {"created_at": f"2026-10-{28 - int(one['episode_id'][1:]) // 6:02d}T00:00:00Z"} for one in rows]
    backwards = document(cli("monitor", policy, write(tmp_path / "three.jsonl", late), "--json"))["certificates"][0]
    assert backwards["misses"] == straight["misses"]
    assert backwards["alarmed_after"] != straight["alarmed_after"]


def test_episodes_without_an_audit_are_left_out_and_reported(cli: Cli, policy: str, tmp_path: Path) -> None:
    served = [one | {"episode_id": f"s{one['episode_id']}", "split": None} for one in audits([True] * 50)]
    path = write(tmp_path / "mixed.jsonl", [*served, *audits([False] * 30)])
    ran = cli("monitor", policy, path)
    assert ran.code == 0
    assert "0 of 30 audits missed" in ran.out
    assert "50 episodes were not audited" in ran.err


def test_without_marks_every_episode_is_an_audit(cli: Cli, policy: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log2.jsonl", audits([True, False] * 10, split=None, created_at=None))
    ran = cli("monitor", policy, path)
    assert "10 of 20 audits missed" in ran.out
    assert "20 audits have no date" in ran.err


def test_an_incomplete_audit_counts_as_missed_unless_a_right_answer_was_kept(
    cli: Cli, policy: str, tmp_path: Path
) -> None:
    cut = [one for one in audits([True, True, False, False]) if one["step"] == 1]
    assert "2 of 4 audits missed" in cli("monitor", policy, write(tmp_path / "cut.jsonl", cut)).out


def test_questions_that_made_the_policy_are_reported(cli: Cli, tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", hard_rows(200, range(0, 60, 2)))
    assert (
        cli(
            "fit",
            log,
            "--promise",
            "regret",
            "--confidence",
            "0.9",
            "--risk",
            "0.2",
            "--policy",
            "learned",
            "-o",
            "policy",
        ).code
        == 0
    )
    ran = cli("monitor", "policy", log, "--json")
    found = document(ran)
    assert found["training_questions"] > 0
    assert found["training_questions"] + found["calibration_questions"] == 200
    assert f"{found['training_questions']} audited questions were used to make the policy" in ran.err
    fresh = cli("monitor", "policy", write(tmp_path / "fresh.jsonl", audits([False] * 30)))
    assert "used to make the policy" not in fresh.err


def test_audits_without_any_right_step_are_reported_as_outside_the_promise(
    cli: Cli, policy: str, tmp_path: Path
) -> None:
    """With every answer wrong no alarm comes: the questions count as covered."""
    wrong = [one | {"correct": False} for one in audits([False] * 80)]
    path = write(tmp_path / "wrong.jsonl", wrong)
    ran = cli("monitor", policy, path)
    assert ran.code == 0
    assert "no alarm: 0 of 80 audits missed" in ran.out
    assert "no step is right on 80 of 80 audits (100.0%)" in ran.out
    found = document(cli("monitor", policy, path, "--json"))
    assert (found["unanswered"], found["unanswered_at_calibration"]) == (80, None)
    fine = cli("monitor", policy, write(tmp_path / "fine.jsonl", audits([False] * 80)))
    assert (fine.err, "no step is right" in fine.out) == ("", False)


def test_segments_are_watched_by_themselves_and_share_the_level(cli: Cli, tmp_path: Path) -> None:
    rows = [one | {"segment": ("a", "b")[int(one["episode_id"][1:]) % 2]} for one in hard_rows(198, range(0, 80, 2))]
    cli("fit", write(tmp_path / "log.jsonl", rows), *PROMISED, "--policy", POLICY, "-o", "policy", "--by-segment")
    found = audits([k % 2 == 1 and k // 2 % 3 == 0 for k in range(300)])
    found = [one | {"segment": ("a", "b")[int(one["episode_id"][1:]) % 2]} for one in found]
    ran = cli("monitor", "policy", write(tmp_path / "audits.jsonl", found), "--json")
    by_group = {one["segment"]: one for one in document(ran)["certificates"]}
    assert ran.code == 3
    assert by_group["a"]["alarmed_after"] is None
    assert by_group["b"]["alarmed_after"] is not None
    assert {name: one["alarmed"] for name, one in by_group.items()} == {"a": False, "b": True}
    assert by_group["a"]["alarm_at"] == pytest.approx(2 / 0.05)


def test_an_error_certificate_counts_wrong_answers(cli: Cli, policy: str, tmp_path: Path) -> None:
    log = str(tmp_path / "log.jsonl")
    asked = ("--promise", "error", "--risk", "0.4", "--confidence", "0.9", "--policy", POLICY, "-o", "error")
    assert cli("fit", log, *asked).code == 0
    ran = cli("monitor", "error", write(tmp_path / "audits.jsonl", audits([True] * 3 + [False] * 7)), "--json")
    assert document(ran)["certificates"][0]["misses"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "log.jsonl"), "not a policy directory"),
        (("policy", "none.jsonl"), "none.jsonl"),
        (("policy", "log.jsonl", "--level", "2"), "level must lie"),
    ],
)
def test_bad_input_is_2(cli: Cli, policy: str, arguments: tuple[str, ...], said: str) -> None:
    ran = cli("monitor", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_codes_in_a_log_do_not_reach_the_terminal(cli: Cli, policy: str, tmp_path: Path) -> None:
    """0.5.0: ESC, OSC and NUL in the columns `model` and `source` were printed."""
    hostile = "x\x1b[2J\x1b]0;owned\x07\x00\x9b31m"
    rows = audits([False] * 40, model=hostile, dataset=hostile)
    for more in ((), ("--json",)):
        ran = cli("monitor", policy, write(tmp_path / "audits.jsonl", rows), *more)
        assert "x[2J" in ran.out + ran.err or "u001b" in ran.out
        assert not set("\x1b\x07\x00\x9b") & set(ran.out + ran.err)
