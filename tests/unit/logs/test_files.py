"""Logs are written whole and read a piece at a time, whatever form they are in."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
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


NOT_FINITE = {"not_finite": ["confidence", "signals"]}
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
    return tmp_path / str(request.param)


def test_what_was_written_is_read_by_its_owner_alone_under_any_name(log):
    assert write_rows(log, iter(ROWS)) == 3
    first, dropped = log.read_bytes(), Dropped()
    assert os.name == "nt" or log.stat().st_mode & 0o077 == 0  # Windows has no modes
    assert list(read_rows(log, dropped)) == ROWS
    assert (dropped.count, dropped.notes.total()) == (0, 1)  # a question is null
    write_rows(log, ROWS)
    assert log.read_bytes() == first
    assert list(read_rows(str(log.rename(log.with_name("unnamed"))))) == ROWS


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([], []),
        ([{"question": "x", "step": 1}], [{"question": "x", "episode_id": question_id("x", None)}]),
        *(
            (
                [row(confidence=value, signals={"p_yes": value, "kept": 1.0})],
                [{"confidence": None, "signals": {"p_yes": None, "kept": 1.0, "replay": NOT_FINITE}}],
            )
            for value in (math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_what_a_row_lacks_and_what_is_no_number_are_null(log, given, read):
    assert write_rows(log, given) == len(given)
    assert list(read_rows(log)) == [row(**columns) for columns in read]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("second", "error", "match"),
    [
        (lambda: 1 // 0, ZeroDivisionError, None),
        (lambda: ROWS[1] | {"colour": 1}, UsageError, "Row 2 .* colour"),  # no log has that column
        *((lambda value=value: row(gold=value), UsageError, "Row 2 ") for value in (object(), [object()])),
    ],
)
def test_a_file_is_there_whole_or_as_it_was(log, second, error, match, there):
    if there:
        write_rows(log, ROWS)
    before = {path.name: path.read_bytes() for path in log.parent.iterdir()}
    with pytest.raises(error, match=match):
        write_rows(log, (make() for make in (lambda: ROWS[0], second)))
    assert {path.name: path.read_bytes() for path in log.parent.iterdir()} == before


def test_half_a_pair_of_surrogates_is_no_crash(log):
    write_rows(log, [row(answer="a\ud800b")])
    assert [record["answer"] for record in read_rows(log)] in (["a\ud800b"], ["a?b"])


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
def test_any_row_comes_back_from_any_form(rows):
    whole = [row(**fields) for fields in rows]
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMS:
            path = Path(folder, name)
            assert write_rows(path, rows) == len(rows)
            dropped = Dropped()
            assert list(read_rows(path, dropped)) == whole
            assert dropped.describe() == ""


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
def test_a_filter_compares_texts(log, where, steps):
    write_rows(log, ROWS)
    assert [row["step"] for row in read_rows(log, where=where)] == steps


# --- what is odd ---


def lines_of(path: Path, *texts: str | bytes) -> Path:
    path.write_bytes(b"".join(text if isinstance(text, bytes) else text.encode() + b"\n" for text in texts))
    return path


GOOD = '{"question": "x", "step": 1}'
CALL = {"question": "x", "step": 1}
COLOURED = '{"question": "x", "step": 1, "source": "base", "colour": "red"}'
MARKED = b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\r\n" + GOOD.encode() + b"\r\n"  # line ends of Windows
SIGNALS = '{"a": "high", "b": NaN, "c": true, "d": 2, "replay": {"purpose": "judge"}}'
INFINITE = [
    f'{{"question": "x", "step": 1, "cost_nano_usd": {literal}, "confidence": {literal}}}'
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", "-1E+400")
]
READ = {"a": None, "b": None, "c": 1.0, "d": 2.0, "replay": {"purpose": "judge"}}


@pytest.mark.parametrize(
    ("texts", "rows", "dropped_rows", "noted", "first"),
    [
        ([], [], [], 0, None),
        (
            [GOOD, "", "  ", "not json", "[1]", b"[" * 100_000 + b"\n", "{}", GOOD, b'{"a"'],
            [{}, {}],
            [("no step", 1), ("not a JSON object", 4)],
            0,
            "log.jsonl:4: ",
        ),
        ([GOOD, json.dumps({**CALL, "schema_version": "two"})], [{}], [(ANY, 1)], 0, "log.jsonl:2: "),
        (['{"episode_id": "q", "step": 1}', '{"step": 1}'], [{"episode_id": "q"}], [(ANY, 1)], 1, "log.jsonl:2: "),
        ([json.dumps({**ROWS[1], "schema_version": None})], [ROWS[1]], [], 0, None),
        ([COLOURED, COLOURED], [{"source": "base"}] * 2, [], 1, None),  # named once
        ([b'{"question": "\xff", "step": 1}\n'], [{"question": "\ufffd"}], [], 1, None),
        ([MARKED], [{}, {}], [], 0, None),
        ([f'{{"question": "x", "step": 1, "signals": {SIGNALS}}}'], [{"signals": READ}], [], 2, None),
        *(([text], [{"cost_nano_usd": None, "confidence": None}], [], 2, None) for text in INFINITE),
        ([json.dumps({**CALL, "text": "y" * 10**7}), GOOD], [{"text": "y" * 10**7}, {"text": None}], [], 0, None),
    ],
    ids=range(15),
)
def test_what_is_odd_in_a_file_is_null_or_dropped_and_counted(tmp_path, texts, rows, dropped_rows, noted, first):
    dropped = Dropped()
    read = list(read_rows(lines_of(tmp_path / "log.jsonl", *texts), dropped))
    assert [{name: row[name] for name in wanted} for row, wanted in zip(read, rows, strict=True)] == rows
    assert {frozenset(row) for row in read} <= {frozenset(COLUMNS)}
    assert (sorted(dropped.rows.items()), dropped.notes.total()) == (dropped_rows, noted)
    assert (dropped.first or [None])[0] == first or dropped.first[0].startswith(first or "no")
    assert bool(dropped.describe()) is bool(dropped_rows or noted)


def test_each_reason_has_a_place_among_the_first_before_a_second_of_another():
    dropped = Dropped()
    for at, reason in enumerate(["odd"] * 10 + ["no time", "not JSON: x"]):
        dropped.drop(reason, f"log.csv:{at}")
    assert (dropped.count, dropped.first[:3]) == (12, ["log.csv:0: odd", "log.csv:1: odd", "log.csv:2: odd"])
    first = ["log.csv:0: odd", "log.csv:10: no time", "log.csv:11: not JSON: x"]
    assert dropped.describe().partition("First: ")[2].split("; ") == first


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        *(("horizon", value, None) for value in ("four", 0, 1001)),
        *(("candidate", value, None) for value in (True, -1)),
        *(("cost_nano_usd", value, None) for value in (1.5, -1, 10**13 + 1, 2**63 - 1, 2**63)),
        ("input_tokens", 2**63, None),
        *(("confidence", value, None) for value in ("high", True)),
        ("latency_ms", {}, None),
        *(("correct", value, None) for value in (2, "perhaps")),
        *(("gold", value, None) for value in ({"a": 1}, [1.5])),
        *(("signals", value, None) for value in ([1], "x")),
        # what only looks different is kept
        *(("group", value, str(value)) for value in (73, 12345678901234567890123)),
        *(("answer", value, value) for value in ("2024-1-6", "007", "")),
        *(("answer", value, text) for value, text in ((1.5, "1.5"), (["x"], '["x"]'))),
        *(("horizon", value, 4) for value in ("4", 4.0)),
        ("confidence", 1, 1.0),
        *(("correct", value, truth) for value, truth in (("true", True), (1, True), (0.0, False))),
        *(("gold", value, [value]) for value in ("[4, 1]", "Danube")),
        ("gold", [4, "four"], ["4", "four"]),
    ],
)
def test_a_value_of_the_wrong_kind_is_null_and_counted(tmp_path, column, value, expected):
    dropped, raw = Dropped(), {"episode_id": "q", "question": "x", "step": 1, column: value}
    (read,) = read_rows(lines_of(tmp_path / "log.jsonl", json.dumps(raw)), dropped)
    assert (read[column], dropped.rows.total()) == (expected, 0)
    assert [reason.partition(" ")[0] for reason in dropped.notes] == ([column] if expected is None else [])


def test_keys_at_random_do_not_fill_the_memory(tmp_path):
    raw, dropped = {"question": "x", "episode_id": "x", "step": 1} | {f"k{i}": i for i in range(1000)}, Dropped()
    list(read_rows(lines_of(tmp_path / "log.jsonl", json.dumps(raw)), dropped))
    assert len(dropped.notes) < 60


def test_a_line_past_the_limit_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 64)
    path, dropped = lines_of(tmp_path / "log.jsonl", GOOD, "x" * 1000, GOOD), Dropped()
    assert (len(list(read_rows(path, dropped))), dropped.count) == (2, 1)


def test_a_filter_that_finds_nothing_is_no_bad_file(tmp_path):
    path = lines_of(tmp_path / "log.jsonl", GOOD, "junk")
    assert list(read_rows(path, where={"dataset": "none"})) == []


@pytest.mark.parametrize(
    ("name", "texts", "where", "match"),
    [
        ("nothing", [GOOD], {}, "no file"),
        ("folder", [GOOD], {}, "has no log"),
        ("log.jsonl", [GOOD.encode("utf-16")], {}, "UTF-16"),
        ("log.jsonl", [GOOD], {"gold": "x", "signals": "y"}, "gold and signals"),
        ("log.jsonl", [GOOD], {"datset": "x", "stp": "1"}, "datset; did you mean dataset.* stp"),
        *(
            ("log.jsonl", [GOOD, json.dumps({**CALL, "schema_version": version})], {}, rf"log\.jsonl:2 .* {version},")
            for version in (0, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, 99)
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, texts, where, match):
    (tmp_path / "folder").mkdir()
    lines_of(tmp_path / "log.jsonl", *texts)
    with pytest.raises(UsageError, match=match):
        list(read_rows(tmp_path / name, where=where))
    with pytest.raises(UsageError, match=r"\.jsonl, \.jsonl\.gz, \.parquet"):
        write_rows(tmp_path / "log.csv", ROWS)


def test_what_a_store_is_called():
    names = ("postgresql://host/db", "postgresql+psycopg://host/db", Path("sqlite.jsonl"))
    assert [is_url(name) for name in names] == [True, True, False]
