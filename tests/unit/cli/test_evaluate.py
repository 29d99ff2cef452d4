"""`cascade evaluate`: what it reads, prints and ends with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.api.evaluating import evaluation_document
from cascade.episodes.files import write_rows
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.evaluate import evaluate
from cascade.policies.fixed import FixedPolicy
from unit.evaluation.plain import draw, row, rows_of

Cli = Callable[..., Any]
Row = dict[str, Any]


def log_rows(n: int = 40, horizon: int = 3, width: int = 2, **columns: Any) -> list[Row]:
    rng = np.random.default_rng(0)
    rows = rows_of([draw(rng, horizon, width) for _ in range(n)], horizon, width)
    return [one | {"question": f"Which river is {one['episode_id']}?"} | columns for one in rows]


def guided(rows: Sequence[Row], name: str = "guide only", every: int = 1) -> list[Row]:
    """Return the rows with a walk of the guide alone for every so many questions."""
    names = sorted({one["episode_id"] for one in rows}, key=lambda episode: int(episode[1:]))
    walks = [
        row(
            episode,
            question="Which?",
            walk=name,
            kept=True,
            correct=k % 3 > 0,
            source="guide",
            cost_nano_usd=5_000_000 + k,
        )
        for k, episode in enumerate(names)
        if k % every == 0
    ]
    return [*rows, *({**one, "dataset": rows[0]["dataset"]} for one in walks)]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Sequence[Row]], str]:
    """Write rows into a log."""

    def write(rows: Sequence[Row]) -> str:
        path = tmp_path / "log.jsonl"
        write_rows(path, rows)
        return str(path)

    return write


@pytest.fixture
def log(written: Callable[[Sequence[Row]], str]) -> str:
    """Return a log of forty questions with three rounds each and the guide alone."""
    return written(guided(log_rows(dataset="made")))


def documents(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    found |= found["datasets"][0] if len(found["datasets"]) == 1 else {}
    return found


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (["split"], "--where takes COLUMN=VALUE"),
        (["=x"], "--where takes COLUMN=VALUE"),
        (["dataste=made"], "no column dataste; did you mean dataset?"),
        (["dataset=nothing"], "has dataset=nothing; the column's values: made."),
        (["dataset=nothing", "split=none"], "the column's values: made. No row"),
        (["foo=1"], "There is no column foo; known: dataset, episode_id, group, question, split."),
        (["foo=1", "step=1"], "There is no column foo; known: dataset, episode_id, group, question, split. Choosing"),
        (["step=1"], "Choosing by step would cut episodes apart"),
        (["dataset=made", "dataset=other"], "takes one value a column; dataset has several"),
    ],
)
def test_a_where_that_cannot_be_is_2(cli: Cli, log: str, where: list[str], says: str) -> None:
    ran = cli("evaluate", log, "--policy", "{kind: fixed}", *[part for one in where for part in ("--where", one)])
    assert (ran.code, ran.out) == (2, "")
    assert says in " ".join(ran.err.split())


def test_matcher_judges_every_answer_anew(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    rows = [
        row(f"q{k}", gold=["42"], answer="42." if k % 2 else "41", correct=None if k % 4 else True) for k in range(20)
    ]
    path = written(rows)
    as_logged = documents(cli("evaluate", path, "--policy", "{kind: fixed}", "--json"))
    assert (as_logged["n"], as_logged["rows"][0]["accuracy"]) == (5, 1.0)
    anew = documents(cli("evaluate", path, "--policy", "{kind: fixed}", "--matcher", "exact", "--json"))
    assert (anew["n"], anew["rows"][0]["accuracy"]) == (20, 0.5)


def test_evaluate_prints_one_policys_figures_with_intervals(cli: Cli, log: str) -> None:
    (table,) = tables_from_rows(guided(log_rows(dataset="made")))
    found = documents(cli("evaluate", log, "--policy", "{kind: fixed, depth: 2}", "--json"))
    promised = {"policy", "cost_usd", "cost_sd", "coverage", "coverage_sd", "avg_length", "set_size", "fit_seconds"}
    (one,) = found["rows"]
    assert promised <= set(one)
    assert {name: found[name] for name in ("dataset", "n", "horizon", "alpha", "splits")} == {
        "dataset": "made",
        "n": 40,
        "horizon": 3,
        "alpha": None,
        "splits": None,
    }
    wanted = evaluate(table, FixedPolicy("both", 2))
    assert (one["policy"], one["kappa"]) == ("{kind: fixed, depth: 2}", 0.0)
    assert (one["coverage"], one["cost_usd"]) == (wanted.mean.coverage, wanted.mean.cost_usd)
    assert one["intervals"]["coverage"] == list(wanted.intervals["coverage"])
    out = cli("evaluate", log, "--policy", "{kind: fixed, depth: 2}").out
    assert "made  40 questions, T = 3, kappa = 0" in out
    low, high = wanted.intervals["coverage"]
    assert f"{wanted.mean.coverage:.3f}" in out
    assert f"{low:.3f} to {high:.3f}" in out


def test_evaluate_takes_a_configurations_policy(cli: Cli, log: str, fake_config: Path) -> None:
    by_file = documents(cli("evaluate", log, "--policy", str(fake_config), "--json"))
    by_text = documents(cli("evaluate", log, "--policy", "{kind: fixed, keep: both}", "--json"))
    assert by_file["rows"][0] | {"policy": ""} == by_text["rows"][0] | {"policy": ""}


def test_several_data_sets_are_evaluated_one_by_one(cli: Cli, written: Callable[[Sequence[Row]], str]) -> None:
    path = written([*log_rows(20, dataset="one"), *log_rows(25, dataset="two")])
    found = documents(cli("evaluate", path, "--policy", "{kind: fixed}", "--json"))
    assert [(one["dataset"], one["n"]) for one in found["datasets"]] == [("one", 20), ("two", 25)]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("nowhere.yaml", "There is no file or folder 'nowhere.yaml', nor is it a policy such as"),
        ("{kind: thresold}", "thresold"),
        ("{kind: threshold, threshold: -1}", "threshold"),
        ("{kind: threshold", "--policy"),
        ("{kind: fixed, note: " + "x" * 5_000 + "}", "note"),
    ],
)
def test_a_policy_that_is_none_is_2(cli: Cli, log: str, policy: str, says: str) -> None:
    ran = cli("evaluate", log, "--policy", policy)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_a_policy_with_an_infinite_threshold_has_a_document() -> None:
    (table,) = tables_from_rows(log_rows())
    found = evaluation_document(evaluate(table, replace(FixedPolicy(), kappa=float("inf")), resamples=5), "p")
    assert json.loads(json.dumps(found, allow_nan=False))["rows"][0]["kappa"] == "inf"
