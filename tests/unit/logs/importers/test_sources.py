"""The records of a file are the same whatever form it is in; what is none of them is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.importers import sources
from cascade.logs.importers.sources import AROUND, records
from cascade.logs.schema import Dropped

ROWS = [{"a": "1", "b": "x, y"}, {"a": "2", "b": 'a "quoted"\nline'}, {"a": None, "b": "ü"}]
TABLE = 'a,b\r\n1,"x, y"\r\n2,"a ""quoted""\nline"\r\n,ü\r\n'
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


def read(path: Path, dropped: Dropped | None = None) -> list[dict[str, Any]]:
    return [record.fields for record in records(path, dropped or Dropped())]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", TABLE),
        ("log.tsv", 'a\tb\n1\tx, y\n2\t"a ""quoted""\nline"\n\tü\n'),
        ("log.jsonl", LINES),
        ("log.ndjson", "\n" + LINES),
        ("log.json", json.dumps(ROWS)),
        ("pretty.json", "\ufeff\n" + json.dumps(ROWS, indent=2)),
        ("page.json", json.dumps(ROWS[:1]).replace("[", "[ ", 1)),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_holds_the_same_records(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    dropped = Dropped()
    assert read(path, dropped) == (ROWS[:1] if name == "page.json" else ROWS)
    assert dropped.describe() == ""


def test_parquet_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(sources, "_BATCH_ROWS", 2)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "log.parquet")
    found = list(records(tmp_path / "log.parquet", Dropped()))
    assert [record.fields for record in found] == ROWS
    assert found[2].place == "log.parquet: row 3"


def test_one_document_is_one_record(tmp_path: Path) -> None:
    (tmp_path / "doc.json").write_text(json.dumps({"resourceSpans": [], "n": 1}, indent=2))
    assert read(tmp_path / "doc.json") == [{"resourceSpans": [], "n": 1}]


def test_a_page_and_a_trace_give_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "page.json").write_text(json.dumps({"data": [{"id": 1}, {"id": 2}], "meta": {"page": 1}}))
    assert read(tmp_path / "page.json") == [{"id": n, AROUND: {"meta": {"page": 1}}} for n in (1, 2)]
    (tmp_path / "traces.jsonl").write_text(json.dumps({"id": "t", "observations": [{"id": 1}]}) + "\n")
    assert read(tmp_path / "traces.jsonl") == [{"id": 1, AROUND: {"id": "t"}}]
    (tmp_path / "ids.jsonl").write_text(json.dumps({"id": "t", "observations": ["o1"]}) + "\n")
    assert read(tmp_path / "ids.jsonl") == [{"id": "t", "observations": ["o1"]}]


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
def test_a_list_is_read_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sources, "_CHUNK_BYTES", size)
    (tmp_path / "log.json").write_text(json.dumps(ROWS, ensure_ascii=False))
    assert read(tmp_path / "log.json") == ROWS


@pytest.mark.parametrize(
    ("text", "count", "reason"),
    [
        ('[{"a": 1}, {"a": 2}', 2, "the list is cut short"),
        ('[{"a": 1}, {"a": ', 1, "not JSON from here on"),
        ('[{"a": 1}, junk, {"a": 2}]', 1, "not JSON from here on"),
        ('[{"a": 1}, 12', 1, "not a JSON object"),
        ('[{"a": 1}, "text", {"a": 2}]', 2, "not a JSON object"),
        ("nothing of the kind", 0, "not JSON (Expecting value: line 1 column 1 (char 0))"),
    ],
)
def test_what_is_wrong_with_a_document_is_counted(tmp_path: Path, text: str, count: int, reason: str) -> None:
    (tmp_path / "log.json").write_text(text)
    dropped = Dropped()
    assert len(read(tmp_path / "log.json", dropped)) == count
    assert reason in dropped.rows


def test_nan_in_a_document_is_null_and_noted(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('[{"a": NaN}, {"a": 1}]')
    dropped = Dropped()
    assert read(tmp_path / "log.json", dropped) == [{"a": None}, {"a": 1}]
    assert dict(dropped.notes) == {"NaN or an infinite number, read as null": 1}


def test_a_long_item_does_not_end_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_CHUNK_BYTES", 1024)
    (tmp_path / "log.json").write_text(json.dumps([{"a": "x" * 3_000_000}, {"a": "y"}]))
    assert [len(row["a"]) for row in read(tmp_path / "log.json")] == [3_000_000, 1]


def test_a_packed_document_that_was_cut_is_reported(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps([{"a": n} for n in range(1000)]).encode())
    (tmp_path / "log.json.gz").write_bytes(packed[:-20])
    dropped = Dropped()
    read(tmp_path / "log.json.gz", dropped)
    assert "the file is cut short or damaged from here on" in dropped.rows


def test_a_row_of_another_length_is_dropped_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b\n1,2\n1\n1,2,3\n\n3,4\n")
    dropped = Dropped()
    assert read(tmp_path / "log.csv", dropped) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    assert [one.split(":")[1] for one in dropped.first] == ["3", "4"]


def test_a_cell_of_a_million_characters_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a\n" + "x" * 1_000_000 + "\n")
    assert len(read(tmp_path / "log.csv")[0]["a"]) == 1_000_000


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(UsageError, match="more than one column a"):
        read(tmp_path / "log.csv")


def test_a_byte_that_is_not_utf8_is_noted(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b"a\n\xff\n")
    dropped = Dropped()
    assert read(tmp_path / "log.csv", dropped) == [{"a": "\ufffd"}]
    assert dropped.notes.total() == 1


@pytest.mark.parametrize("name", ["log.csv", "log.json", "log.jsonl"])
def test_an_empty_file_holds_no_record(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert read(tmp_path / name) == []


def test_a_missing_file_and_a_folder_are_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path / "nothing.json", tmp_path / "nothing.parquet", tmp_path):
        with pytest.raises(UsageError, match=r"There is no file|is a folder"):
            read(path)


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.Table.from_arrays([pa.array(["one"]), pa.array(["other"])], names=["answer", "answer"])
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(UsageError, match="more than one column answer"):
        list(records(tmp_path / "log.parquet", Dropped()))
