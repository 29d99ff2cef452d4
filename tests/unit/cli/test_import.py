"""`cascade import`: any log in, one form out, and every row that is missing accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cascade.logs.files import read_rows
from unit.logs.reading import lines
from unit.logs.test_formats import pair, spend

Cli = Callable[..., Any]
MAPPED = ("--map", "question=prompt", "--map", "answer=reply", "--map", "model=reply")


def test_an_import_reports_what_it_wrote(cli, tmp_path):
    lines(tmp_path / "pairs.jsonl", pair("q1"), pair("q2", base_cost_usd=None), "torn")
    ran = cli("import", "pairs.jsonl", "-o", "episodes.jsonl.gz")
    assert (ran.code, ran.err) == (0, "")
    assert "2 episodes, 6 rows from pairs.jsonl (pairs)" in ran.out
    assert "1 row whose cost is not known" in ran.out
    assert "1 left out: not a JSON object (1)" in ran.out
    assert len(list(read_rows(tmp_path / "episodes.jsonl.gz"))) == 6


def test_models_and_a_mapping_are_taken(cli, tmp_path):
    lines(tmp_path / "spend.jsonl", spend(1), spend(2, model="large"))
    options = ["--models", "large,gpt-4o-mini-2024-07-18", "--map", "gold=metadata.status", "--dataset", "rivers"]
    ran = cli("import", "spend.jsonl", "-o", "log.jsonl", "--from", "litellm", *options, "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["from"], document["unjudged_answers"]) == (0, "litellm", 2)
    assert document["datasets"] == {"rivers": {"episodes": 1, "rows": 2}}
    assert document["dropped"] == {"rows": {}, "notes": {}, "first": []}
    rows = [(row["step"], row["source"], row["gold"]) for row in read_rows(tmp_path / "log.jsonl")]
    assert rows == [(1, "large", ["success"]), (2, "gpt-4o-mini-2024-07-18", ["success"])]


def test_a_cost_by_hand_fills_in_what_the_log_does_not_know(cli, tmp_path):
    (tmp_path / "mine.csv").write_text("question,small_answer,small_cost_usd,large_answer\n2+2?,4,,4\n3+3?,5,0.5,6\n")
    given = ["--cost", "small=0.0001", "--cost", "large=0.002"]
    ran = cli("import", "mine.csv", "-o", "log.jsonl", *given, "--json")
    assert (ran.code, json.loads(ran.out)["rows_without_cost"]) == (0, 0)
    costs = [row["cost_nano_usd"] for row in read_rows(tmp_path / "log.jsonl")]
    assert costs == [100_000, 2_000_000, 500_000_000, 2_000_000]
    for wrong in ("small=free", "small=-1", "small=nan", "small=1e999"):
        ran = cli("import", "mine.csv", "-o", "other.jsonl", "--cost", wrong)
        assert (ran.code, f"not {wrong}" in ran.err) == (2, True), wrong


def test_our_own_log_changes_its_form(cli, tmp_path):
    pytest.importorskip("duckdb")
    lines(tmp_path / "pairs.jsonl", pair("q1"))
    cli("import", "pairs.jsonl", "-o", "a.jsonl")
    ran = cli("import", "a.jsonl", "-o", "a.parquet")
    assert "(cascade)" in ran.out
    assert list(read_rows(tmp_path / "a.parquet")) == list(read_rows(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.jsonl", "-o", "x.jsonl"), "nothing.jsonl"),
        (("odd.jsonl", "-o", "x.jsonl"), "--map question=FIELD"),
        (("odd.jsonl", "-o", "x.jsonl", "--from", "tabel"), "did you mean table?"),
        (("odd.jsonl", "-o", "x.jsonl", "--map", "question"), "not question."),
        (("odd.jsonl", "-o", "x.jsonl", "--rename", "=b"), "not =b."),
        (("odd.jsonl", "-o", "x.jsonl", "--rename", "a=b", "--rename", "a=c"), "a=b, a=c"),
        (("odd.jsonl", "-o", "x.jsonl", *MAPPED, "--map", "gold=promt"), "did you mean prompt?"),
        (("odd.jsonl", "-o", "odd.jsonl", "--map", "question=prompt"), "--output is the file that is read"),
        (("failed.jsonl", "-o", "x.jsonl"), "Nothing in failed.jsonl can be imported."),
        (("sqlite:///s.db", "odd.jsonl", "-o", "x.jsonl"), "without other files"),
        (("head.csv", "-o", "x.jsonl"), "Nothing in head.csv can be imported."),
    ],
)
def test_what_cannot_be_imported_is_2_and_leaves_no_file(cli, tmp_path, arguments, message):
    lines(tmp_path / "odd.jsonl", {"prompt": "x", "reply": "y"})
    lines(tmp_path / "failed.jsonl", spend(1, status="failure"))
    (tmp_path / "head.csv").write_text("question,small_answer,large_answer\n")
    ran = cli("import", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert "the steps are ," not in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failed.jsonl", "head.csv", "odd.jsonl"]
