"""`cascade fit` on logs where a promise is kept but nothing is saved, or nothing can be learned: the last line says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cascade.episodes.files import write_rows
from unit.cli.certified import Row, hard_rows, ladder_rows

Cli = Callable[..., Any]
Write = Callable[..., str]
NO_USE = "it saves nothing, so do not serve it. Log more questions, or ask for a higher alpha."


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(rows: Sequence[Row]) -> str:
        write_rows(tmp_path / "log.jsonl", rows)
        return str(tmp_path / "log.jsonl")

    return write


def last_line(ran: Any) -> str:
    """Return the last line of a page that was printed, on a screen wide enough for it."""
    assert ran.code == 0, ran.err
    found: str = ran.out.rstrip().splitlines()[-1]
    return found


@pytest.mark.parametrize("options", [["--alpha", "0.05"], ["--alpha", "0.1"], ["--calibration-share", "0.99"]])
def test_where_everything_is_kept_the_last_line_says_so(cli: Cli, written: Write, options: list[str]) -> None:
    said = last_line(cli("fit", written(hard_rows(20, range(10, 20))), "-o", "policy", *options))
    assert said.startswith("It keeps every answer of every step and costs 1.50 × what the guide")
    assert said.endswith(NO_USE)
    assert NO_USE in (Path("policy") / "README.md").read_text()


def test_where_something_is_saved_the_last_line_serves_it(cli: Cli, written: Write) -> None:
    log = written(hard_rows(200, range(0, 20, 2)))
    assert last_line(cli("fit", log, "-o", "policy")) == "next: policy: ./policy in cascade.yaml serves it"
    assert "do not serve" not in (Path("policy") / "README.md").read_text()


def test_where_costs_are_unknown_fit_and_prove_say_that_costs_are_missing(cli: Cli, written: Write) -> None:
    bare = {"cost_nano_usd": None, "signals": None, "confidence": None, "correct": None, "gold": None}
    log = written([{**one, **bare} for one in ladder_rows(200, range(0, 200, 2))])
    asked = ("--guarantee", "agreement", "--alpha", "0.05")
    missing = "calls cost (cost_nano_usd; in a wide table NAME_cost)"
    assert missing in last_line(cli("fit", log, "-o", "policy", *asked))
    assert f"Log what {missing}: without it steps are counted" in " ".join(
        cli("prove", log, *asked, "--splits", "2").out.split()
    )


def test_where_costs_are_unknown_a_score_of_no_known_kind_does_not_hide_it(cli: Cli, written: Write) -> None:
    """An evaluation harness's log: no costs, and a number of the answer that no strategy gives live."""
    rows = ladder_rows(200, range(0, 200, 2))
    log = written([{**one, "cost_nano_usd": None, "signals": {"margin": one["step"] * 0.5}} for one in rows])
    ran = cli("fit", log, "-o", "policy", "--guarantee", "regret", "--alpha", "0.1")
    assert "calls cost (cost_nano_usd; in a wide table NAME_cost)" in last_line(ran)
    assert "keeps every answer" not in ran.out


def test_the_document_has_it_too(cli: Cli, written: Write) -> None:
    log = written(hard_rows(20, range(10, 20)))
    ran = cli("fit", log, "-o", "policy", "--json")
    assert json.loads(ran.out)["worth"] == {
        "keeps_everything": True,
        "times_reference": 1.5,
        "within_budget": False,
        "is_reference": False,
    }


def test_a_charge_for_answers_has_a_column_and_is_no_money(cli: Cli, written: Write) -> None:
    log = written(hard_rows(200, range(0, 80, 2)))
    ran = cli("fit", log, "-o", "policy", "--lambda-set", "1000000000")
    assert ran.code == 0, ran.err
    assert [line for line in ran.out.splitlines() if line.split()[:2] == ["cost/1k", "charge"]]
    assert "but not money" in ran.out
    assert "| charge |" in (Path("policy") / "README.md").read_text()
    judged = json.loads(cli("fit", log, "-o", "other", "--lambda-set", "1e9", "--json").out)["candidates"]
    assert all(one["matched"] <= 0.003 for one in judged)
    assert max(one["charge"] for one in judged) > 1
    assert cli("fit", log, "-o", "third").out.count("charge") == 0
