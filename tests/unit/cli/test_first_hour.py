"""What strangers stumbled over in their first hour: misspelt columns, advice that cannot help, narrow screens, notebooks."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import cascade
from cascade.conformal.promise import Promise
from cascade.reports.study import of_study
from cascade.studies.study import study
from cascade.text import aligned
from unit.cli.certified import ladder_log
from unit.fitting.test_fit import drawn_log

Cli = Callable[..., Any]
PROMISED = ("--promise", "regret", "--risk", "0.1", "--confidence", "0.9")
COLUMNS = ("question", "small_answer", "small_correct", "small_logprob", "large_answer", "large_correct", "topic")
NARROW = 80


@pytest.mark.parametrize(
    ("right", "written", "code"),
    [
        ("small_correct", "small_corect", 2),
        ("small_logprob", "small_logprb", 0),
        ("small_answer", "small_anwser", 0),
        ("question", "questoin", 2),
        ("topic", "topic", 0),
    ],
)
def test_a_misspelt_column_is_named_with_the_right_one(cli, tmp_path, right, written, code):
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([written if name == right else name for name in COLUMNS])
        rows.writerows([[f"What is {n}?", "4", "true", -n / 40, "4", "true", "sums"] for n in range(40)])
    ran = cli("prove", "log.csv", "--splits", "2")
    assert ran.code == code, ran.err
    assert (written in ran.err, right in ran.err) == (True, True)


@pytest.mark.parametrize(
    ("proves", "half", "more"), [(500, 900, True), (300, 900, False), (100, 900, True), (100, 200, False)]
)
def test_more_requests_are_advised_only_where_the_log_lacks_them(proves, half, more):
    """0.6: a log of 244 was told to log more, since about 134 would be enough."""
    found = study(drawn_log(400), Promise("regret", 0.05, 0.9), splits=2)
    row = replace(found.rows[-1], refused=2)
    short = replace(found, rows=(*found.rows[:-1], row), why=found.why._replace(proves=proves, saves_half=half))
    assert (short.fitted_on, short.groups) == (280, 400)
    advice = of_study(short, "cascade fit LOG").lines[-1]
    assert ("log more requests" in advice, advice.endswith("cascade fit LOG")) == (more, proves == 300)


@pytest.mark.parametrize(("n", "told"), [(30, True), (60, False)])
def test_a_fit_of_few_requests_says_how_many_it_takes(cli, written, n, told):
    """ln .099 / ln .95 = 45.1: with fewer nothing can be proven, whatever the log says."""
    log = written([{**row, "correct": row["step"] == 2} for row in ladder_log(n)])
    ran = cli("fit", log, "--promise", "regret", "--risk", "0.05", "--confidence", "0.9")
    assert ran.code == 0, ran.err
    assert ("46" in ran.out.splitlines()[-1].split()) == told


def test_no_table_is_wider_than_the_screen(cli, written, fake_config, monkeypatch):
    log = written(ladder_log(120))
    monkeypatch.setenv("COLUMNS", str(NARROW))
    for command in (
        ("prices", "gpt-4o"),
        ("evaluate", log, "--policy", "{kind: fixed}"),
        ("compare", log, "--splits", "2"),
    ):
        ran = cli(*command)
        lines = ran.out if command[0] == "prices" else ran.out.partition("\n\n")[2]
        assert lines, command
        assert max(map(len, lines.splitlines())) <= NARROW, command


@pytest.mark.parametrize("width", [None, 200, 60, 40, 20])
def test_no_text_of_a_table_is_lost(width):
    rows = [("a name", *(f"column {n}" for n in range(6)), "says")]
    rows += [(f"row {n}", *map(str, range(n, n + 6)), "some words of a sentence that is long") for n in range(3)]
    text = " ".join("\n".join(aligned(rows, width)).split())
    for cell in {cell for row in rows for cell in row if "sentence" not in cell}:
        assert cell in text
    assert text.count("sentence") == 3


def test_a_log_and_a_result_are_small_in_a_notebook():
    """0.6: `open_log` printed 116,000 characters."""
    log = cascade.open_log("demo-ladder", tell=lambda _: None)
    assert len(repr(log).splitlines()) <= 6
    assert max(map(len, repr(log).splitlines())) <= 200
    done = cascade.fit(log, Promise("regret", 0.1, 0.9), tell=lambda _: None)
    assert repr(done) == str(done)


def test_the_fit_that_prove_prints_is_for_the_configuration_beside_it(cli, written, fake_config):
    log = written(ladder_log(400))
    command = cli("prove", log, *PROMISED, "--splits", "2").out.splitlines()[4]
    assert "--config cascade.yaml" in command
    assert "--config" not in cli("prove", "demo-ladder", *PROMISED, "--splits", "2").out
    fake_config.unlink()
    assert "--config" not in cli("prove", log, *PROMISED, "--splits", "2").out


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from cascade.policies.policy import Threshold
@dataclass(frozen=True, slots=True)
class Unsure(Threshold):
    kind: ClassVar[str] = "unsure"
"""


def test_a_policy_of_ones_own_is_fitted_by_its_place_and_does_not_claim_to_be_served(
    cli, written, tmp_path, monkeypatch
):
    (tmp_path / "unsure_policy.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    policy = "{kind: 'unsure_policy:Unsure', signal: reply_mean_logprob, sign: -1, tie: null}"
    ran = cli("fit", written(ladder_log(400)), *PROMISED, "--policy", policy, "-o", "policy")
    assert ran.code == 0, ran.err
    assert "cascade.yaml" not in ran.out.splitlines()[-1]
    assert "write-a-policy.md" in ran.out.splitlines()[-1]
