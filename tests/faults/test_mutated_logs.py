"""Damaged files through the reader of logs: no crash, every row that is lost is counted, and what pyarrow reads is equal."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.files import Dropped, read_rows, write_rows
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION

pq = pytest.importorskip("pyarrow.parquet")

ROWS = 12
SHORT = 40
"""Files of the short form; `make long` reads 2,000."""
ODD: tuple[Any, ...] = (
    None,
    "",
    "x",
    "2024-1-6",
    -1,
    0,
    1.5,
    10**30,
    2**63,
    True,
    [],
    [1],
    {},
    {"a": [None]},
    "\x00",
    "NaN",
)


def rows(chance: random.Random) -> list[dict[str, Any]]:
    blank = dict.fromkeys(COLUMNS) | {"schema_version": SCHEMA_VERSION}
    return [
        blank
        | {"episode_id": f"q{at}", "question": f"Which {at}?", "step": 1, "candidate": 0, "source": "base"}
        | {"answer": chance.choice(["Danube", "2024-1-6", "007", "naïve\n\u2028"]), "correct": chance.random() < 0.5}
        | {"cost_nano_usd": chance.randrange(10**6), "signals": {"p_yes": chance.random()}, "gold": ["Danube"]}
        for at in range(ROWS)
    ]


def flipped(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] = chance.choice(
            [0, 10, 13, 34, 44, 92, 123, 255, chance.randrange(256)]
        )
    return bytes(changed)


def inserted(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    return (
        data[:at] + chance.choice([b"\r\n", b"\x00", b"\xef\xbb\xbf", b"NaN", b'"', b"\xff", b"{", b"\r"]) + data[at:]
    )


def of_other_types(chance: random.Random, data: bytes) -> bytes:
    """Give some columns of lines values of other types, or swap two columns."""
    if not data.startswith(b"{"):
        return flipped(chance, data)
    lines = [json.loads(line) for line in data.splitlines()]
    for line in lines:
        first, second = chance.sample(COLUMNS, 2)
        if chance.random() < 0.3:
            line[first], line[second] = line[second], line[first]
        if chance.random() < 0.5:
            line[chance.choice(COLUMNS)] = chance.choice(ODD)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda chance, data: data[: chance.randrange(len(data))],
    flipped,
    inserted,
    of_other_types,
)


def in_pyarrow(path: Path) -> dict[str, list[Any]] | None:
    try:
        return {name: column.to_pylist() for name, column in zip(COLUMNS, pq.read_table(path).columns, strict=True)}
    except Exception:
        return None


def read_mutated(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = folder / f"log{chance.choice(['.jsonl', '.jsonl.gz', '.parquet'])}"
    write_rows(path, rows(chance))
    path.write_bytes(chance.choice(MUTATIONS)(chance, path.read_bytes()))
    dropped, read = Dropped(), list[dict[str, Any]]()
    try:
        read = list(read_rows(path, dropped))
    except UsageError as error:
        if path.name not in str(error):
            raise
        return
    for row in read:
        assert set(row) == set(COLUMNS)
        assert row["cost_nano_usd"] is None or 0 <= row["cost_nano_usd"] <= 10**13
        assert row["answer"] is None or isinstance(row["answer"], str)
    if path.suffix == ".jsonl" and path.read_bytes().startswith(b"{"):
        lines = sum(not line.isspace() for line in path.read_bytes().split(b"\n") if line)
        assert len(read) + dropped.count == lines
    if path.suffix == ".parquet" and (oracle := in_pyarrow(path)) is not None:
        assert len(read) + dropped.count == len(oracle["step"])
        if not dropped.count and not dropped.notes:
            for name in ("episode_id", "step", "answer", "correct", "cost_nano_usd"):
                assert [row[name] for row in read] == oracle[name]


def test_mutated_logs_are_read_or_refused(tmp_path: Path) -> None:
    for seed in range(SHORT):
        read_mutated(tmp_path, seed)


@pytest.mark.long
def test_two_thousand_mutated_logs_are_read_or_refused(tmp_path: Path) -> None:
    for seed in range(SHORT, 2_000):
        read_mutated(tmp_path, seed)
