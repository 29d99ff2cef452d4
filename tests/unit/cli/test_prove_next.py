"""What `cascade prove` says to do next: on logs where nothing can be told, where the base is enough, without costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cascade.episodes.files import write_rows
from unit.cli.certified import Row, hard_rows

Cli = Callable[..., Any]
Page = Callable[..., str]


@pytest.fixture
def page(cli: Cli, tmp_path: Path) -> Page:
    def prove(rows: Sequence[Row], method: str = "threshold") -> str:
        write_rows(tmp_path / "log.jsonl", rows)
        kind = ("--guarantee", "coverage") if method == "depth" else ()
        ran = cli("prove", "log.jsonl", "--policy", method, "--splits", "3", *kind)
        assert ran.code == 0, ran.err
        return " ".join(ran.out.split())

    return prove


def after(said: str) -> str:
    return said.partition(" Next ")[2]


def test_where_the_base_is_always_right_it_is_enough(page: Page) -> None:
    said = page(hard_rows(120, []))
    assert "The first step answers every question rightly: there is no wrong answer" in said
    assert "on record" not in said.partition("Why")[2]
    assert after(said) == (
        "Serve the base alone: it is as right as the last model alone, for 50.0 % of the cost, and needs no policy."
    )


def test_where_no_answer_is_right_the_judging_is_to_be_checked(page: Page) -> None:
    said = page([one | {"correct": False} for one in hard_rows(120, [])])
    assert "No step answers any question rightly: there is no right answer for a signal to detect" in said
    assert after(said).startswith("No logged answer is right: check how they are judged (--matcher)")


def test_a_base_that_may_be_as_right_is_named_beside_the_advice(page: Page) -> None:
    rows = hard_rows(60, range(0, 60, 30))
    for one in rows:  # the reference alone is wrong on two others
        one["correct"] = one["correct"] and not (one["step"] == 2 and one["episode_id"] in {"q0010", "q0040"})
    said = after(page(rows))
    assert said.startswith("The base alone may be as right as the last model alone, for 50.0 % of the cost: more")
    assert len(said.split(". ")) > 1


def test_without_costs_and_without_a_step_saved_no_command_is_given(page: Page) -> None:
    rows = [one | {"cost_nano_usd": None} for one in hard_rows(120, range(120))]
    said = page(rows, "depth")
    assert "2.00 of 2 steps are run on average" in said
    assert after(said) == "Log what calls cost, or ask for a higher alpha: no step is saved."


def test_without_costs_a_policy_that_saves_steps_is_offered(page: Page) -> None:
    said = after(page([one | {"cost_nano_usd": None} for one in hard_rows(120, range(0, 120, 2))]))
    assert said.startswith("Log what calls cost, or serve by length: cascade fit")


def test_advice_for_a_log_without_a_varying_signal(page: Page) -> None:
    rows = [one | {"signals": {}, "confidence": 0.5} for one in hard_rows(120, range(0, 120, 2))]
    assert "The log has no signal of the first step that varies" in page(rows, "depth")


def test_one_step_is_one(page: Page) -> None:
    rows = [one | {"horizon": 1} for one in hard_rows(120, []) if one["step"] == 1]
    assert "120 questions, 1 step." in page(rows, "depth")
