"""The columns of a file are those of its rows: what SQL decides, Python decides equally."""

from __future__ import annotations

import random
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.episodes.rows import reads_of
from cascade.logs.columns import Calls, calls_of
from cascade.logs.files import opened_log, read_rows, write_rows
from unit.plain import row

pytest.importorskip("duckdb")

SHIPPED = Path(str(resources.files("cascade").joinpath("data")))
TEXTS = (
    "Who wrote  HAMLET ?", "who wrote hamlet", "x+1?", "a, b", "f(a, b).", "Yes!! Is it?", "n!", "5!", " \t ", "...", "?",
    "", "3.5 or 35.", "well,then", "end.\n", "The end;", "naïve?", "2²", "it''s “so”", "A\x1cB", "a\u00a0b", "\x00", "The",
    "the Danube", "an a the", "DANUBE.", "{}", "[1]", "sha256:" + "0" * 64,
)  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if hasattr(one, "keys"):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and one and isinstance(one[0], np.ndarray):
        return all(map(equal, one, other))
    return bool(one == other)


def same(first: Calls, second: Calls) -> None:
    for one, other in zip(reads_of(first), reads_of(second), strict=True):
        for part in ("log", "facts"):
            left, right = getattr(one, part), getattr(other, part)
            unlike = [f.name for f in fields(left) if not equal(getattr(left, f.name), getattr(right, f.name))]
            assert unlike == []


@pytest.mark.parametrize("name", ["demo_log.parquet", "demo_requests.parquet"])
def test_columns_of_a_shipped_log_are_those_of_its_rows(name: str) -> None:
    with opened_log(SHIPPED / name) as log:
        same(log.columns(), calls_of(read_rows(SHIPPED / name)))


@pytest.mark.parametrize("name", ["log.jsonl", "log.parquet"])
def test_columns_of_odd_texts_are_those_of_their_rows(tmp_path: Path, name: str) -> None:
    chance = random.Random(7)
    replay = {"finish_reason": "stop", "purpose": "answer", "echoed": "m-1"}
    rows = [
        row(f"q{number}", step, question=text, context=chance.choice([None, text]), answer=chance.choice(TEXTS))
        | {"source": f"m{step}", "model": f"m{step}", "group": chance.choice([None, "", "g"])}
        | {
            "signals": {"p_yes": chance.random(), 'odd "name/~': 1.0, "replay": replay},
            "correct": chance.random() < 0.5,
        }
        for number, text in enumerate(TEXTS)
        for step in (1, 2)
    ]
    write_rows(tmp_path / name, rows)
    with opened_log(tmp_path / name) as log:
        same(log.columns(), calls_of(rows))
