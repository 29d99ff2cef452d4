"""Parquet keeps every column, is read in pieces, and is as forgiving as lines of JSON."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import MissingExtraError, UsageError
from cascade.logs import own
from cascade.logs.files import Dropped, read_rows, write_rows
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION
from unit.logs.test_files import ROWS, row

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"question": ["x"], "step": [1]} | columns), path)
    return path


def many(count: int) -> Any:
    return (
        row(episode_id=f"q{i // 2}", step=1 + i % 2, correct=i % 3 == 0, cost_nano_usd=i or None) for i in range(count)
    )


def test_every_column_has_its_type(tmp_path: Path) -> None:
    write_rows(tmp_path / "log.parquet", ROWS)
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "log.parquet")}
    assert list(types) == list(COLUMNS)
    assert {types[name] for name in ("step", "candidate", "cost_nano_usd", "input_tokens")} == {"int64"}
    assert {types[name] for name in ("confidence", "latency_ms")} == {"double"}
    assert {types[name] for name in ("correct", "kept")} == {"bool"}
    assert {types[name] for name in ("gold", "signals", "walk", "answer")} == {"string"}


def test_rows_are_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "ROWS_A_GROUP", 2048)
    path = tmp_path / "log.parquet"
    assert write_rows(path, many(5000)) == 5000
    data = pq.ParquetFile(path).metadata
    assert [data.row_group(i).num_rows for i in range(data.num_row_groups)] == [2048, 2048, 904]
    assert list(read_rows(path)) == list(many(5000))


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_rows(tmp_path / name, many(5000))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_row_that_does_not_fit_is_named(tmp_path: Path) -> None:
    for column, value in {"step": "two", "correct": 7, "gold": 4, "cost_nano_usd": 2**63, "answer": 1.5}.items():
        with pytest.raises(UsageError, match=f"Row 3 cannot be written: its {column} is no"):
            write_rows(tmp_path / "log.parquet", [*ROWS[:2], row(**{column: value})])
    assert list(tmp_path.iterdir()) == []


def test_columns_of_other_writers_are_understood(tmp_path: Path) -> None:
    path = table(
        tmp_path / "log.parquet",
        episode_id=pa.array(["q"], pa.large_string()),
        horizon=pa.array([4.0]),
        candidate=pa.array([0], pa.int8()),
        confidence=pa.array([0.5], pa.float32()),
        gold=pa.array([["a", "b"]]),
        signals=pa.array([{"p_yes": 0.5}]),
        source=pa.array(["base"]).dictionary_encode(),
        created_at=pa.array([0], pa.timestamp("ms", "UTC")),
        schema_version=pa.array([SCHEMA_VERSION], pa.int32()),
    )
    dropped = Dropped()
    (read,) = read_rows(path, dropped)
    assert dropped.describe() == ""
    expected = {"episode_id": "q", "horizon": 4, "candidate": 0, "confidence": 0.5, "gold": ["a", "b"]}
    expected |= {"signals": {"p_yes": 0.5}, "source": "base", "created_at": "1970-01-01T00:00:00.000+00:00"}
    assert {name: read[name] for name in expected} == expected
    assert (read["walk"], read["schema_version"]) == (None, SCHEMA_VERSION)


@pytest.mark.parametrize(
    ("column", "values", "kept"),
    [
        ("step", ["one"], None),
        ("horizon", [-1], None),
        ("cost_nano_usd", [1.5], None),
        ("cost_nano_usd", [math.nan], None),
        ("cost_nano_usd", pa.array([2**63], pa.uint64()), None),
        ("confidence", [math.inf], None),
        ("confidence", ["half"], None),
        ("correct", ["perhaps"], None),
        ("correct", [2], None),
        ("gold", ["Danube"], ["Danube"]),
        ("gold", ["4"], ["4"]),
        ("gold", ["[4, 1]"], ["[4, 1]"]),
        ("signals", ["[1]"], None),
        ("signals", ["x"], None),
        ("signals", ['{"a": NaN, "b": 1}'], {"a": None, "b": 1.0}),
    ],
)
def test_a_value_of_the_wrong_kind_is_null_and_counted(tmp_path: Path, column: str, values: Any, kept: Any) -> None:
    path = table(tmp_path / "log.parquet", **{column: values})
    dropped = Dropped()
    if column == "step":
        with pytest.raises(UsageError, match=r"no step \(1\)"):
            list(read_rows(path, dropped))
        return
    (read,) = read_rows(path, dropped)
    assert read[column] == kept
    assert (kept is None or "NaN" in str(values)) == bool(dropped.notes)


def test_what_data_frames_and_databases_write_is_read(tmp_path: Path) -> None:
    """Truth as 0 and 1.0, and a NUMERIC of a database, which arrives as a Decimal."""
    path = tmp_path / "log.parquet"
    costs = pa.array([Decimal(1200), Decimal("0.5")], pa.decimal128(20, 1))
    right = pa.array([1.0, 0.0])
    pq.write_table(pa.table({"question": ["x"] * 2, "step": [1, 2], "correct": right, "cost_nano_usd": costs}), path)
    dropped = Dropped()
    assert [(one["correct"], one["cost_nano_usd"]) for one in read_rows(path, dropped)] == [(True, 1200), (False, None)]
    assert dropped.noted == ["log.parquet: row 2: cost_nano_usd is no whole number, read as null"]


def test_one_odd_value_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"question": ["x"] * 3, "step": [1, 2, 3], "confidence": [0.5, math.nan, None]}), path)
    dropped = Dropped()
    assert [one["confidence"] for one in read_rows(path, dropped)] == [0.5, None, None]
    assert dropped.noted == ["log.parquet: row 2: confidence is no number, read as null"]


def test_rows_without_step_or_question_are_named_by_their_number(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"question": ["x", None, "y"], "step": [None, 1, 1], "dataset": ["a", "a", "b"]}), path)
    dropped = Dropped()
    assert [one["question"] for one in read_rows(path, dropped)] == ["y"]
    assert dropped.first == ["log.parquet: row 1: no step", "log.parquet: row 2: neither question nor episode_id"]
    other = Dropped()
    assert [one["question"] for one in read_rows(path, other, {"dataset": "b"})] == ["y"]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_row_of_another_schema_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"question": ["x", "y"], "step": [1, 1], "schema_version": [None, version]}), path)
    with pytest.raises(UsageError, match=f"row 2 has the schema {version},"):
        list(read_rows(path))


def test_a_table_of_other_things_is_refused_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"question": ["x"], "spend": [1.5]}), path)
    with pytest.raises(UsageError):
        list(read_rows(path))
    pq.write_table(pa.table({"step": [1]}), path)
    with pytest.raises(UsageError):
        list(read_rows(path))


def test_a_column_of_nulls_alone_is_null(tmp_path: Path) -> None:
    (read,) = read_rows(table(tmp_path / "log.parquet", gold=pa.nulls(1), cost_nano_usd=pa.nulls(1)))
    assert (read["gold"], read["cost_nano_usd"]) == (None, None)


# --- damage ---


def test_without_duckdb_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "log.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[logs\]"):
        list(read_rows(tmp_path / "log.parquet"))


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    write_rows(path, many(1000))
    whole = path.read_bytes()
    for size in (0, 3, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError):
            list(read_rows(path))


def test_damage_in_the_middle_costs_its_group_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "ROWS_A_GROUP", 2048)
    path = tmp_path / "log.parquet"
    write_rows(path, many(10_000))
    column = pq.ParquetFile(path).metadata.row_group(2).column(COLUMNS.index("cost_nano_usd"))
    at = column.data_page_offset
    whole = bytearray(path.read_bytes())
    whole[at + 30 : at + 130] = b"\xff" * 100
    path.write_bytes(whole)
    dropped = Dropped()
    read = list(read_rows(path, dropped))
    assert read == [*many(10_000)][: 2 * 2048] + [*many(10_000)][3 * 2048 :]
    assert dropped.count == 2048
