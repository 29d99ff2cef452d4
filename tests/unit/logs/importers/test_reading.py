"""Which log a file is, is told by its columns; commands read all of them alike."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.files import Dropped, write_rows
from cascade.logs.importers import IMPORTERS, import_rows, known, read_log
from cascade.logs.importers.sources import records
from unit.logs.importers.test_langfuse import observed
from unit.logs.importers.test_litellm_spend import spent
from unit.logs.importers.test_otel import export, span
from unit.logs.importers.test_pairs import answer, pair
from unit.logs.test_files import ROWS

KNOWN = {"pairs": pair(), "litellm": spent(1), "otel": export(span()), "langfuse": observed()}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(("name", "record"), [*KNOWN.items(), ("pairs", answer("base", 1))])
def test_a_foreign_log_is_known_by_its_columns(tmp_path: Path, name: str, record: dict[str, Any]) -> None:
    path = write(tmp_path / "log.jsonl", {"something": "else"}, record)
    assert known(path) == name
    path = write(tmp_path / "log.jsonl", record)
    dropped = Dropped()
    assert list(read_log(path, dropped)) == list(import_rows(path)) == list(import_rows(path, kind=name))
    assert dropped.count == 0


@pytest.mark.parametrize("name", ["log.jsonl", "log.parquet"])
def test_our_own_log_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    write_rows(tmp_path / name, ROWS)
    assert known(tmp_path / name) == "cascade"
    assert list(read_log(tmp_path / name)) == ROWS
    assert [row["step"] for row in read_log(tmp_path / name, where={"step": "2"})] == [2]


def test_our_rows_in_another_form_are_a_table_that_needs_no_mapping(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "signals"} for row in ROWS[:1]]
    (tmp_path / "log.json").write_text(json.dumps(rows))
    with (tmp_path / "log.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows([{**row, "gold": json.dumps(row["gold"])} for row in rows])
    for name in ("log.json", "log.csv"):
        assert known(tmp_path / name) == "table"
        assert [row["gold"] for row in read_log(tmp_path / name)] == [["Danube", "the Danube"]]


def test_a_foreign_log_is_filtered_by_our_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", pair(), pair(pair="tiny>large"))
    assert {row["dataset"] for row in read_log(path, where={"dataset": "rivers/tiny>large"})} == {"rivers/tiny>large"}
    with pytest.raises(UsageError, match=r"no column datset; did you mean dataset"):
        list(read_log(path, where={"datset": "x"}))


def test_an_unknown_kind_of_log_is_refused_with_advice(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", {"prompt": "x", "reply": "y"})
    assert known(path) is None
    with pytest.raises(UsageError, match="has no row of an episode log"):
        list(read_log(path))
    with pytest.raises(UsageError, match=r"not those of a known log. Name its kind with --from \(pairs, .*--map"):
        import_rows(path)
    (row,) = import_rows(path, columns={"question": "prompt", "answer": "reply"})
    assert (row["question"], row["answer"]) == ("x", "y")


def test_importers_that_there_are_not_and_options_that_do_not_go(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", pair())
    with pytest.raises(UsageError, match=r"no importer langfus; did you mean langfuse\?"):
        import_rows(path, kind="langfus")
    for options in ({"roles": {"a": "base"}}, {"columns": {"gold": "x"}}, {"dataset": "x"}):
        with pytest.raises(UsageError, match="takes no roles, mapping or name"):
            import_rows(path, **options)  # type: ignore[arg-type]
    assert {*KNOWN, "requests", "batch", "harness", "table"} == set(IMPORTERS)


def test_a_missing_log_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        list(read_log(tmp_path / "nothing.jsonl"))


def test_a_document_with_a_record_on_each_line_is_read_as_the_document_it_is(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text('{"data":[\n{"id": "a"},\n{"id": "b"}\n],"meta":{"page":1}}\n')
    dropped = Dropped()
    assert [one.fields["id"] for one in records(path, dropped)] == ["a", "b"]
    assert dropped.count == 0
    path.write_text('torn": 1}\n{"id": "a"}\n{"id": "b"}\n')  # lines, of which the first is damaged
    assert [one.fields["id"] for one in records(path, dropped)] == ["a", "b"]
    assert dropped.count == 1
