"""Logs are written whole and read a piece at a time, whatever form they are in."""

from __future__ import annotations

import gzip
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs import lines
from cascade.logs.files import Dropped, read_rows, write_rows
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION
from cascade.records.address import is_url

FORMS = ("log.jsonl", "log.jsonl.gz", "log.parquet")


def row(**columns: Any) -> dict[str, Any]:
    """Make a whole row."""
    head = {"episode_id": "q1", "question": "Which river?", "step": 1, "schema_version": SCHEMA_VERSION}
    return dict.fromkeys(COLUMNS) | head | columns


ROWS = [
    row(
        dataset="rivers",
        gold=["Danube", "the Danube"],
        horizon=4,
        candidate=0,
        source="base",
        answer="naïve 🙂\n\u2028",
        correct=True,
        confidence=0.25,
        kept=False,
        signals={"p_yes": 0.5, "none": None, "replay": {"tokens": [["Da", -1e9, [["Po", -3.5]]]]}},
        input_tokens=40,
        cost_nano_usd=10**13,
        latency_ms=12.5,
        created_at="2026-11-21T10:00:00.000+00:00",
    ),
    row(step=2, walk="guide only", gold=["42"], signals={}),
    row(episode_id="q2", question=None, correct=False),
]


@pytest.fixture(params=FORMS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param.endswith("parquet"):
        pytest.importorskip("duckdb")
    return tmp_path / str(request.param)


def test_what_was_written_is_read(log: Path) -> None:
    assert write_rows(log, iter(ROWS)) == 3
    dropped = Dropped()
    assert list(read_rows(log, dropped)) == ROWS
    assert (dropped.count, dict(dropped.notes)) == (0, {"question is null": 1})


def test_the_name_does_not_decide_how_a_file_is_read(log: Path) -> None:
    write_rows(log, ROWS)
    other = log.rename(log.with_name("unnamed"))
    assert list(read_rows(str(other))) == ROWS


def test_columns_that_a_row_lacks_are_null(log: Path) -> None:
    write_rows(log, [{"question": "x", "step": 1}])
    assert list(read_rows(log)) == [row(question="x", episode_id=question_id("x", None))]


def test_columns_that_no_log_has_are_refused_not_lost(log: Path) -> None:
    with pytest.raises(UsageError, match="Row 2 has columns that no log has: colour"):
        write_rows(log, [ROWS[0], ROWS[1] | {"colour": 1}])


def test_a_log_without_rows_reads_as_none(log: Path) -> None:
    assert write_rows(log, []) == 0
    assert list(read_rows(log)) == []


def test_the_same_rows_give_the_same_bytes(log: Path) -> None:
    write_rows(log, ROWS)
    first = log.read_bytes()
    write_rows(log, ROWS)
    assert log.read_bytes() == first


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_a_log_is_readable_by_its_owner_only(log: Path) -> None:
    write_rows(log, ROWS)
    assert log.stat().st_mode & 0o077 == 0


def test_a_file_is_there_whole_or_as_it_was(log: Path) -> None:
    write_rows(log, ROWS)
    before = log.read_bytes()

    def broken() -> Any:
        yield ROWS[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_rows(log, broken())
    assert log.read_bytes() == before
    assert [path.name for path in log.parent.iterdir()] == [log.name]


def test_an_ending_that_says_no_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in one of \.jsonl, \.jsonl\.gz, \.parquet"):
        write_rows(tmp_path / "log.csv", ROWS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_stored_as_null_and_flagged(log: Path, value: float) -> None:
    write_rows(log, [row(confidence=value, signals={"p_yes": value, "kept": 1.0})])
    (read,) = read_rows(log)
    assert read["confidence"] is None
    assert read["signals"] == {"p_yes": None, "kept": 1.0, "replay": {"not_finite": ["confidence", "signals"]}}


def test_half_a_pair_of_surrogates_is_no_crash(log: Path) -> None:
    write_rows(log, [row(answer="a\ud800b")])
    assert [one["answer"] for one in read_rows(log)] in (["a\ud800b"], ["a?b"])


@pytest.mark.parametrize("value", [object(), [object()]])
def test_a_value_without_a_form_is_named(log: Path, value: object) -> None:
    with pytest.raises(UsageError, match="Row 2 "):
        write_rows(log, [ROWS[0], row(gold=value)])
    assert not log.exists()


TEXTS = st.none() | st.text(max_size=20)
COUNTS = st.none() | st.integers(0, 1000)
ANY_ROW = st.fixed_dictionaries(
    {"episode_id": st.text(min_size=1, max_size=8), "question": st.text(max_size=20), "step": st.integers(1, 9)},
    optional={
        "walk": TEXTS,
        "answer": TEXTS,
        "context": TEXTS,
        "gold": st.none() | st.lists(st.text(max_size=5), max_size=3),
        "correct": st.none() | st.booleans(),
        "candidate": COUNTS,
        "cost_nano_usd": COUNTS,
        "confidence": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "signals": st.none()
        | st.dictionaries(st.text(max_size=5).filter(lambda name: name != "replay"), st.none() | st.floats(-1e9, 1e9)),
    },
)


@given(st.lists(ANY_ROW, max_size=4))
@settings(max_examples=25, deadline=None)
def test_any_row_comes_back_from_any_form(rows: list[dict[str, Any]]) -> None:
    pytest.importorskip("duckdb")
    whole = [row(**one) for one in rows]
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMS:
            path = Path(folder, name)
            assert write_rows(path, rows) == len(rows)
            dropped = Dropped()
            assert list(read_rows(path, dropped)) == whole
            assert dropped.describe() == ""


# --- versions ---


def test_rows_of_no_version_are_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({**ROWS[1], "schema_version": None}) + "\n")
    assert list(read_rows(path)) == [ROWS[1]]


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, 99])
def test_rows_of_another_version_are_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[0] | {"schema_version": version}) + "\n")
    with pytest.raises(UsageError, match=rf"log\.jsonl:2 has the schema {version},"):
        next(read_rows(path))


# --- filters ---


@pytest.mark.parametrize(
    ("where", "steps"),
    [
        ({}, [1, 2, 1]),
        ({"step": "1"}, [1, 1]),
        ({"walk": "null", "episode_id": "q1"}, [1]),
        ({"walk": "guide only"}, [2]),
        ({"correct": "true"}, [1]),
        ({"correct": "false", "step": "1"}, [1]),
        ({"dataset": "lakes"}, []),
    ],
)
def test_a_filter_compares_texts(log: Path, where: dict[str, str], steps: list[int]) -> None:
    write_rows(log, ROWS)
    assert [one["step"] for one in read_rows(log, where=where)] == steps


def test_a_filter_on_a_column_that_is_none_says_what_was_meant(log: Path) -> None:
    write_rows(log, ROWS)
    with pytest.raises(UsageError, match="gold and signals cannot be compared with a text"):
        list(read_rows(log, where={"gold": "x", "signals": "y"}))
    with pytest.raises(UsageError, match=r"There is no column datset; did you mean dataset.*and no column stp"):
        list(read_rows(log, where={"datset": "x", "stp": "1"}))


# --- what is odd ---


def lines_of(path: Path, *texts: str | bytes) -> Path:
    path.write_bytes(b"".join(one if isinstance(one, bytes) else one.encode() + b"\n" for one in texts))
    return path


GOOD = '{"question": "x", "step": 1}'


def test_lines_that_are_no_rows_are_named_and_passed_over(tmp_path: Path) -> None:
    path = lines_of(
        tmp_path / "log.jsonl", GOOD, "", "  ", "not json", "[1]", b"[" * 100_000 + b"\n", "{}", GOOD, b'{"a"'
    )
    dropped = Dropped()
    assert len(list(read_rows(path, dropped))) == 2
    assert dict(dropped.rows) == {"not a JSON object": 3, "no step": 1, "a torn last line": 1}
    assert dropped.first[0] == "log.jsonl:4: not a JSON object"
    assert dropped.describe().startswith(
        "5 rows dropped: not a JSON object (3), no step (1), a torn last line (1). First: "
    )


def test_only_the_first_places_of_a_reason_are_kept() -> None:
    dropped = Dropped()
    for number in range(10):
        dropped.drop("odd", f"log:{number}")
    assert (dropped.count, dropped.first) == (10, ["log:0: odd", "log:1: odd", "log:2: odd"])
    assert Dropped().describe() == ""


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("horizon", "four"),
        ("horizon", 0),
        ("horizon", 1001),
        ("candidate", True),
        ("candidate", -1),
        ("cost_nano_usd", 1.5),
        ("cost_nano_usd", -1),
        ("cost_nano_usd", 10**13 + 1),
        ("cost_nano_usd", 2**63 - 1),
        ("cost_nano_usd", 2**63),
        ("input_tokens", 2**63),
        ("confidence", "high"),
        ("confidence", True),
        ("latency_ms", {}),
        ("correct", 2),
        ("correct", "perhaps"),
        ("gold", {"a": 1}),
        ("gold", [1.5]),
        ("signals", [1]),
        ("signals", "x"),
    ],
)
def test_a_value_of_the_wrong_kind_is_null_and_counted(tmp_path: Path, column: str, value: Any) -> None:
    raw = {"episode_id": "q", "question": "x", "step": 1, column: value}
    dropped = Dropped()
    (read,) = read_rows(lines_of(tmp_path / "log.jsonl", json.dumps(raw)), dropped)
    assert read[column] is None
    assert any(reason.startswith((f"{column} is no", f"{column} is negative")) for reason in dropped.notes)


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("group", 73, "73"),
        ("group", 12345678901234567890123, "12345678901234567890123"),
        ("answer", "2024-1-6", "2024-1-6"),
        ("answer", "007", "007"),
        ("answer", "", ""),
        ("answer", 1.5, "1.5"),
        ("answer", ["x"], '["x"]'),
        ("horizon", "4", 4),
        ("correct", "true", True),
        ("gold", "[4, 1]", ["[4, 1]"]),
        ("horizon", 4.0, 4),
        ("confidence", 1, 1.0),
        ("correct", 1, True),
        ("correct", 0.0, False),
        ("gold", "Danube", ["Danube"]),
        ("gold", [4, "four"], ["4", "four"]),
    ],
)
def test_a_value_that_only_looks_different_is_kept(tmp_path: Path, column: str, value: Any, kept: Any) -> None:
    raw = {"question": "x", "step": 1, column: value}
    dropped = Dropped()
    (read,) = read_rows(lines_of(tmp_path / "log.jsonl", json.dumps(raw)), dropped)
    assert (read[column], dropped.describe()) == (kept, "")


def test_a_signal_that_is_no_number_is_null_and_named(tmp_path: Path) -> None:
    signals = '{"a": "high", "b": NaN, "c": true, "d": 2, "replay": {"purpose": "judge"}}'
    path = lines_of(tmp_path / "log.jsonl", f'{{"question": "x", "step": 1, "signals": {signals}}}')
    dropped = Dropped()
    (read,) = read_rows(path, dropped)
    assert read["signals"] == {"a": None, "b": None, "c": 1.0, "d": 2.0, "replay": {"purpose": "judge"}}
    assert dict(dropped.notes) == {f"signals.{name} is no number, read as null": 1 for name in "ab"}


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400"])
def test_nan_and_infinity_are_null_never_zero(tmp_path: Path, literal: str) -> None:
    text = f'{{"question": "x", "step": 1, "cost_nano_usd": {literal}, "confidence": {literal}}}'
    dropped = Dropped()
    (read,) = read_rows(lines_of(tmp_path / "log.jsonl", text), dropped)
    assert (read["cost_nano_usd"], read["confidence"]) == (None, None)
    assert sum(dropped.notes.values()) == 2


def test_unknown_columns_are_left_out_and_named_once(tmp_path: Path) -> None:
    one = '{"question": "x", "step": 1, "source": "base", "colour": "red"}'
    dropped = Dropped()
    read = list(read_rows(lines_of(tmp_path / "log.jsonl", one, one), dropped))
    assert [set(each) for each in read] == [set(COLUMNS)] * 2
    assert dict(dropped.notes) == {"an unknown column 'colour', left out": 1}


def test_keys_at_random_do_not_fill_the_memory(tmp_path: Path) -> None:
    raw = {"question": "x", "episode_id": "x", "step": 1} | {f"k{i}": i for i in range(1000)}
    dropped = Dropped()
    list(read_rows(lines_of(tmp_path / "log.jsonl", json.dumps(raw)), dropped))
    assert len(dropped.notes) < 60


def test_a_null_question_is_kept_under_its_id_and_dropped_without(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", '{"episode_id": "q", "step": 1}', '{"question": null, "step": 1}')
    dropped = Dropped()
    assert [one["episode_id"] for one in read_rows(path, dropped)] == ["q"]
    assert dict(dropped.rows) == {"neither question nor episode_id": 1}
    assert dict(dropped.notes) == {"question is null": 1}


def test_a_version_that_is_no_number_is_not_guessed(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", GOOD, '{"question": "x", "step": 1, "schema_version": "two"}')
    dropped = Dropped()
    assert len(list(read_rows(path, dropped))) == 1
    assert dict(dropped.rows) == {"schema_version is no whole number": 1}


def test_bytes_that_are_not_utf8_are_replaced_and_noted(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", b'{"question": "\xff", "step": 1}\n')
    dropped = Dropped()
    assert [one["question"] for one in read_rows(path, dropped)] == ["\ufffd"]
    assert dict(dropped.notes) == {"bytes that are not UTF-8, replaced": 1}


def test_a_mark_at_the_start_and_windows_line_ends_are_nothing(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\r\n" + GOOD.encode() + b"\r\n")
    dropped = Dropped()
    assert len(list(read_rows(path, dropped))) == 2
    assert dropped.describe() == ""


def test_a_file_in_utf16_says_so(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", GOOD.encode("utf-16"))
    with pytest.raises(UsageError, match="UTF-16; save it as UTF-8"):
        list(read_rows(path))


def test_a_line_of_ten_million_characters_is_read(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", json.dumps({"question": "x", "step": 1, "text": "y" * 10_000_000}), GOOD)
    assert [len(one["text"] or "") for one in read_rows(path)] == [10_000_000, 0]


def test_a_line_past_the_limit_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 64)
    path = lines_of(tmp_path / "log.jsonl", GOOD, "x" * 1000, GOOD)
    dropped = Dropped()
    assert len(list(read_rows(path, dropped))) == 2
    assert dropped.count == 1


def test_a_packed_file_that_was_cut_short_gives_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    text = "".join(json.dumps({"question": os.urandom(40).hex(), "step": 1}) + "\n" for _ in range(2000))
    whole = gzip.compress(text.encode())
    path.write_bytes(whole[: len(whole) // 2])
    dropped = Dropped()
    assert 100 < len(list(read_rows(path, dropped))) < 2000
    assert dict(dropped.rows) == {"the file is cut short or damaged from here on": 1}


def test_a_file_without_one_good_row_is_refused(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", '{"model": "x", "spend": 1}', "junk")
    with pytest.raises(UsageError):
        list(read_rows(path))


def test_a_filter_that_finds_nothing_is_no_bad_file(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "log.jsonl", GOOD, "junk")
    assert list(read_rows(path, where={"dataset": "none"})) == []


def test_a_missing_file_a_folder_and_one_that_may_not_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        list(read_rows(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="has no log"):
        list(read_rows(tmp_path))


def test_an_empty_file_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    assert list(read_rows(tmp_path / "log.jsonl")) == []


def test_what_a_store_is_called() -> None:
    assert is_url("postgresql://host/db")
    assert is_url("postgresql+psycopg://host/db")
    assert not is_url(Path("sqlite.jsonl"))
