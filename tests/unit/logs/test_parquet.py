"""Parquet keeps every column, is read in pieces, and is as forgiving as lines of JSON."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

from cascade.engine import RunPlan, RunTerms, run
from cascade.errors import AuthenticationError, MissingExtraError, ProviderUnavailableError, UsageError
from cascade.identity import question_id
from cascade.logs import sql
from cascade.logs.duck import opened, text_literal
from cascade.logs.files import Dropped, read_rows, write_rows
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, rows
from cascade.plans.base import ModelUse
from cascade.types import Answer, Completion, Question, Token, Usage
from unit.builders import PRICES, base_guide, candidate, completion, drive, yes_no
from unit.logs.test_files import ROWS, row
from unit.scripted import ThresholdPolicy

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"question": ["x"], "step": [1]} | columns), path)
    return path


def many(count: int) -> Any:
    return (
        row(episode_id=f"q{i // 2}", step=1 + i % 2, correct=i % 3 == 0, cost_nano_usd=i or None) for i in range(count)
    )


def test_every_column_has_its_type(tmp_path):
    write_rows(tmp_path / "log.parquet", ROWS)
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "log.parquet")}
    assert list(types) == list(COLUMNS)
    assert {types[name] for name in ("step", "candidate", "cost_nano_usd", "input_tokens")} == {"int64"}
    assert {types[name] for name in ("confidence", "latency_ms")} == {"double"}
    assert {types[name] for name in ("correct", "kept")} == {"bool"}
    assert {types[name] for name in ("gold", "signals", "walk", "answer")} == {"string"}


def test_rows_are_written_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "ROWS_A_GROUP", 2048)
    path = tmp_path / "log.parquet"
    assert write_rows(path, many(5000)) == 5000
    data = pq.ParquetFile(path).metadata
    assert [data.row_group(i).num_rows for i in range(data.num_row_groups)] == [2048, 2048, 904]
    assert list(read_rows(path)) == list(many(5000))
    first = path.read_bytes()
    write_rows(path, many(5000))
    assert path.read_bytes() == first


def test_a_row_that_does_not_fit_is_named(tmp_path):
    for column, value in {"step": "two", "correct": 7, "gold": 4, "cost_nano_usd": 2**63, "signals": 1.5}.items():
        with pytest.raises(UsageError, match=f"{column}.*:3"):
            write_rows(tmp_path / "log.parquet", [*ROWS[:2], row(**{column: value})])
    assert list(tmp_path.iterdir()) == []


def test_columns_of_other_writers_are_understood(tmp_path):
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


COSTS = pa.array([Decimal(1200), Decimal("0.5")], pa.decimal128(20, 1))  # a NUMERIC of a database


@pytest.mark.parametrize(
    ("column", "values", "expected", "noted"),
    [
        ("horizon", [-1], [None], [1]),
        *(("cost_nano_usd", [value], [None], [1]) for value in (1.5, math.nan)),
        ("cost_nano_usd", pa.array([2**63], pa.uint64()), [None], [1]),
        ("cost_nano_usd", COSTS, [1200, None], [2]),
        *(("confidence", [value], [None], [1]) for value in (math.inf, "half")),
        ("confidence", [0.5, math.nan, None], [0.5, None, None], [2]),  # one odd value takes no other with it
        *(("correct", [value], [None], [1]) for value in ("perhaps", 2)),
        ("correct", pa.array([1.0, 0.0]), [True, False], []),  # as data frames write truth
        *(("gold", [value], [[value]], []) for value in ("Danube", "4", "[4, 1]")),
        *(("signals", [value], [None], [1]) for value in ("[1]", "x")),
        ("signals", ['{"a": NaN, "b": 1}'], [{"a": None, "b": 1.0}], [0]),
        *((column, pa.nulls(1), [None], []) for column in ("gold", "cost_nano_usd")),
    ],
)
def test_a_value_of_the_wrong_kind_is_null_and_counted(tmp_path, column, values, expected, noted):
    dropped, count = Dropped(), len(values)
    path = table(tmp_path / "log.parquet", question=["x"] * count, step=[*range(1, count + 1)], **{column: values})
    assert [read[column] for read in read_rows(path, dropped)] == expected
    assert [int((re.search(r"row (\d+)", note) or [0, 0])[1]) for note in dropped.noted] == noted
    assert all(f": {column}" in note for note in dropped.noted) or column == "signals"


def test_rows_without_step_or_question_are_named_by_their_number(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"question": ["x", None, "y"], "step": [None, 1, 1], "dataset": ["a", "a", "b"]}), path)
    dropped = Dropped()
    assert [row["question"] for row in read_rows(path, dropped)] == ["y"]
    assert dropped.first == ["log.parquet: row 1: no step", "log.parquet: row 2: neither question nor episode_id"]
    other = Dropped()
    assert [row["question"] for row in read_rows(path, other, {"dataset": "b"})] == ["y"]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_row_of_another_schema_is_refused(tmp_path, version):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"question": ["x", "y"], "step": [1, 1], "schema_version": [None, version]}), path)
    with pytest.raises(UsageError, match=f"row 2 has the schema {version},"):
        list(read_rows(path))


@pytest.mark.parametrize(
    "columns", [{"question": ["x"], "spend": [1.5]}, {"step": [1]}, {"question": ["x"], "step": ["one"]}]
)
def test_a_table_of_other_things_is_refused(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    with pytest.raises(UsageError):
        list(read_rows(tmp_path / "log.parquet"))


# --- damage ---


def test_without_duckdb_it_says_what_to_install(tmp_path, monkeypatch):
    write_rows(tmp_path / "log.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[logs\]"):
        list(read_rows(tmp_path / "log.parquet"))


def test_a_file_that_was_cut_short_or_is_damaged_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "log.parquet"
    write_rows(path, many(10_000))
    at = pq.ParquetFile(path).metadata.row_group(0).column(COLUMNS.index("cost_nano_usd")).data_page_offset
    intact = path.read_bytes()
    damaged = [intact[:size] for size in (0, 3, 8, len(intact) // 2, len(intact) - 1)]
    for data in (*damaged, intact[: at + 30] + b"\xff" * 100 + intact[at + 130 :]):
        path.write_bytes(data)
        with pytest.raises(UsageError):
            list(read_rows(path))


LARGEST, THEN = 2**63 - 1, 1795255200.0
VALUES: list[tuple[str, Any, list[str]]] = [
    ("nano", 392_500, ["0.0003925"]),
    ("nano", 2, ["2.5e-9"]),
    ("nano", 4, ["3.5e-9"]),
    ("nano", 1_200_000, ["$0.0012"]),
    ("nano", 10**9, ["1"]),
    ("nano", 99_999_999_123_456_789, ["99999999.123456789"]),
    ("nano", 1_234_500_000_000, ["1,234.5"]),
    ("nano", LARGEST, ["9223372036.854775807"]),
    ("nano", None, ["1,234", "$12,345", "-0,001"]),  # a decimal comma, perhaps
    ("nano", 1_000_000, ["0,001", "$0,001", "0,0010"]),
    ("nano", 1_234_500_000_000, ["1.234,5", "1234,5"]),
    ("nano", None, ["-1", "free", "nan", "1e400", "9223372036.854775808"]),
    ("whole", 52, ["52"]),
    ("whole", 12, ["12.0"]),
    ("whole", 1234, ["1,234"]),
    ("whole", LARGEST, ["9223372036854775807"]),
    ("whole", None, ["12.5", "-1", "true", "12345678901234567890123"]),
    ("number", 0.5, ["0.5"]),
    ("number", 1234.5, ["1,234.5"]),
    ("number", -0.25, ["-0,25"]),
    ("number", None, ["1,234", "-12,345", "nan", "inf", "1e400", "0x10"]),
    ("truth", True, ["1.0", "[true]", "t"]),
    ("truth", False, ["Wrong", "f"]),
    ("truth", None, ["0.7", "", "F", "T"]),  # F is a grade
    ("seconds", THEN, ["2026-11-21T10:00:00Z", "2026-11-21T12:00:00+02:00", "2026-11-21 10:00:00"]),
    ("seconds", THEN, [f"1795255200{zeros}" for zeros in ("", "0" * 3, "0" * 6, "0" * 9)]),
    ("seconds", THEN + 0.5, ["[1795255200, 500000000]"]),  # JavaScript's spans (L14)
    ("seconds", None, ["yesterday", "12345678901234567890123", "46347.5"]),
    ("texts", '["a", "b"]', ['["a", "b"]']),
    ("texts", '["[4, 1]"]', ["[4, 1]"]),
    ("texts", '["say \\"x\\""]', ['say "x"']),
]


def test_texts_become_values_or_null():
    with opened() as duck:
        for macro, value, texts in VALUES:
            for text in texts:
                assert (text, duck.value(f"SELECT {macro}({text_literal(text)})")) == (text, value)


def test_amounts_are_those_of_exact_decimals():
    draw = random.Random(3)
    texts = [f"{draw.random() * 10 ** draw.randint(-12, 9):.{draw.randint(0, 14)}f}" for _ in range(500)]
    texts += [f"0.{draw.randrange(10**9):09}5" for _ in range(200)]
    exact = [int(Decimal(text).scaleb(9).to_integral_value(ROUND_HALF_EVEN)) for text in texts]
    with opened() as duck:
        listed = ", ".join(f"({at}, {text_literal(text)})" for at, text in enumerate(texts))
        amounts = duck.rows(f"SELECT nano(t) FROM (VALUES {listed}) AS v(k, t) ORDER BY k")
    assert [value for (value,) in amounts] == exact


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "ATTACH '{folder}/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
    ],
)
def test_a_connection_touches_only_its_files_and_keeps_its_settings(tmp_path, sql):
    with opened() as duck, pytest.raises(UsageError):
        duck.run(sql.format(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_connection_prints_no_progress_and_its_folder_is_gone_at_the_end():
    with opened() as duck:
        assert duck.rows("SELECT current_setting('enable_progress_bar')") == [(False,)]
        folder = duck.folder
        assert folder.is_dir()
    assert not folder.exists()


QUESTION = Question("Which river?", "Vienna lies on the Danube.")


def answered(*replies: Completion | Exception, prices: object = PRICES) -> Answer:
    left = iter(replies)

    def call(_: object) -> Completion:
        reply = next(left)
        if isinstance(reply, Exception):
            raise reply
        return reply

    strategy = base_guide(ModelUse("small"), ModelUse("large"), rounds=2)
    return drive(run(QUESTION, RunPlan(strategy, ThresholdPolicy()), RunTerms(prices)), call)


RHINE = completion("Answer: Rhine", usage=Usage(100, 10, 4, 1), latency_s=0.0123456, finish_reason="stop")
NO = yes_no(0.05, "No, Danube")


def test_every_row_has_every_column_those_of_its_question_too_and_is_json():
    unknown = dict.fromkeys(("split", "group", "gold", "correct"))
    wanted = {"question": QUESTION.text, "context": QUESTION.context, "schema_version": SCHEMA_VERSION, **unknown}
    wanted |= {"episode_id": question_id(QUESTION.text, QUESTION.context)}
    for more in ({"dataset": "demo", "horizon": 2}, {}):
        for each in rows(answered(RHINE, NO), **more):
            assert tuple(each) == COLUMNS
            assert json.loads(json.dumps(each, allow_nan=False)) == each
            expected = wanted | {"dataset": None, "horizon": None} | more
            assert {name: each[name] for name in expected} == expected
            assert abs((datetime.now(UTC) - datetime.fromisoformat(each["created_at"])).total_seconds()) < 60


BROUGHT = {
    "step": 1, "candidate": 0, "source": "base", "model": "small", "answer": "Rhine", "text": "Answer: Rhine", "kept": False,
    "input_tokens": 100, "cached_input_tokens": 4, "output_tokens": 10, "reasoning_tokens": 1,
    "cost_nano_usd": 14_000, "cost_source": "price table", "latency_ms": 12.346,
}  # fmt: skip
JUDGED = {"candidate": 1, "answer": "Danube", "kept": True, "text": "No, Danube", "cached_input_tokens": None}


@pytest.mark.parametrize(
    ("replies", "wanted"),
    [((RHINE, NO), JUDGED), ((RHINE, yes_no(0.01, "No.")), {"candidate": None, "answer": None, "kept": None})],
)
def test_a_row_says_what_a_call_brought_and_cost(replies, wanted):
    base, judge = rows(answered(*replies))
    assert {name: judge[name] for name in wanted} == wanted
    assert {name: base[name] for name in BROUGHT} == BROUGHT | {"kept": wanted["kept"] is None}


def test_a_cost_is_null_where_it_is_not_known_and_the_row_says_why():
    estimated = RHINE._replace(usage=Usage(100, 10, estimated=True))
    base, judge = rows(answered(estimated, NO, prices={"small": PRICES["small"]}))
    assert (base["cost_nano_usd"], base["cost_source"]) == (None, "usage estimated")
    assert base["signals"]["replay"]["usage_estimated"] is True
    assert (judge["cost_nano_usd"], judge["cost_source"]) == (None, "no price")


def test_only_the_first_sample_has_a_candidate():
    verdicts = [completion("No, Danube")] * 3
    calls = list(rows(answered(RHINE, *verdicts, RHINE, *verdicts)))
    assert [each["candidate"] for each in calls if each["step"] == 1] == [0, 1, None, None]
    assert [each["signals"]["replay"]["sample"] for each in calls if each["step"] == 1] == [0, 0, 1, 2]


def test_signals_and_what_a_replay_needs_stand_in_the_row():
    base, judge = rows(answered(RHINE, NO))
    assert base["signals"]["p_yes"] == judge["signals"]["p_yes"]
    assert (base["signals"]["replay"]["purpose"], base["signals"]["replay"]["finish_reason"]) == ("answer", "stop")
    assert base["signals"]["replay"]["tokens"] is None
    top = [["Yes", math.log(0.05)], ["No", math.log(0.95)]]
    assert judge["signals"]["replay"]["tokens"] == [["No", math.log(0.95), top]]


def test_an_impossible_token_is_still_json():
    tokens = (Token("Answer: Rhine", -math.inf), Token("", None))
    call = next(rows(answered(RHINE._replace(tokens=tokens), NO)))
    assert call["signals"]["replay"]["tokens"] == [["Answer: Rhine", -1e9], ["", None]]


def test_every_call_that_came_back_has_a_row_an_interrupted_step_s_too():
    late = completion("Answer: Danube")
    answer = answered(RHINE, yes_no(0.5), ProviderUnavailableError("down"), AuthenticationError("no key"))
    assert len(list(rows(answer))) == 2
    interrupted = Answer(
        QUESTION, "x", ("x",), answer.steps, "budget", 0.1, loose_calls=(answer.calls[0]._replace(completion=late),)
    )
    assert [each["text"] for each in rows(interrupted)][-1] == "Answer: Danube"


def test_an_id_is_stable_and_tells_text_from_context():
    assert question_id("a", None) == question_id("a", "")
    ids = {question_id(*texts) for texts in (("a", None), ("b", None), ("a", "b"), ("ab", None), ("\ud800", None))}
    assert [*map(len, ids)] == [16] * 5


def test_candidates_of_other_sources_are_not_mixed_up():
    step = answered(RHINE, NO).steps[0]
    assert [option.source for option in step.candidates] == ["base", "guide"]
    assert step.candidates[0] == candidate("Rhine", confidence=step.candidates[0].confidence)
