"""F29, F53, F54 and F57: logs that are torn, damaged, too long, or of numbers that are none."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import resource
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs import lines
from cascade.logs.files import Dropped, read_rows, write_rows
from cascade.logs.importing import imported
from cascade.logs.presets import ImportOptions
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION

CHANCE = random.Random(20261121)
FORMS = ("log.jsonl", "log.jsonl.gz", "log.parquet")


def row(number: int, **columns: Any) -> dict[str, Any]:
    values = {"episode_id": f"q{number}", "question": f"Which {number}?", "step": 1, "schema_version": SCHEMA_VERSION}
    return dict.fromkeys(COLUMNS) | values | columns


@pytest.fixture(params=FORMS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def ids(path: Path, dropped: Dropped | None = None) -> list[str]:
    return [record["episode_id"] for record in read_rows(path, dropped)]


def ids_or_refusal(path: Path, dropped: Dropped) -> tuple[list[str], str]:
    try:
        return ids(path, dropped), ""
    except UsageError as error:
        return [], str(error)


# --- F53: a disk that is full or may not be written ---


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_f53_a_folder_that_may_not_be_written(log: Path) -> None:
    log.parent.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        write_rows(log, [row(1)])
    log.parent.chmod(0o700)


def test_f53_a_folder_that_is_not_there_and_a_folder_in_its_place(log: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        write_rows(log.parent / "none" / log.name, [row(1)])
    log.mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_rows(log, [row(1)])


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE") or sys.platform == "darwin", reason="needs a file size limit")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gzip's own buffer in Python 3.14
def test_f53_a_disk_that_fills_up_leaves_the_old_file(log: Path) -> None:
    write_rows(log, [row(1)])
    before = log.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UsageError, match=r"cannot be written: .*File too large"):
            write_rows(log, (row(i, text=CHANCE.randbytes(200).hex()) for i in range(1_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.read_bytes() == before
    assert [path.name for path in log.parent.iterdir()] == [log.name]


# --- F54: torn and damaged files ---


def test_f54_a_log_cut_at_any_place_gives_all_whole_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_rows(path, [row(i) for i in range(5)])
    whole = path.read_bytes()
    first = whole.index(b"\n")
    for size in range(first + 1, 2 * first + 3, 97):  # anywhere in the second row
        path.write_bytes(whole[:size])
        dropped = Dropped()
        complete = whole[:size].count(b"\n") + (whole[size : size + 1] == b"\n")
        assert ids(path, dropped) == [f"q{i}" for i in range(complete)]
        assert dropped.count == (0 if whole[:size].endswith(b"\n") or whole[size : size + 1] == b"\n" else 1)


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.parquet"])
@pytest.mark.parametrize("fault", ["cut", "a byte flipped"])
def test_f54_a_packed_or_binary_file_damaged_anywhere_is_no_crash(tmp_path: Path, name: str, fault: str) -> None:
    path = tmp_path / name
    write_rows(path, (row(i, text=CHANCE.randbytes(30).hex()) for i in range(300)))
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 11)):
        rest = bytes([whole[place] ^ 0xFF]) + whole[place + 1 :] if fault != "cut" else b""
        path.write_bytes(whole[:place] + rest)
        dropped = Dropped()
        read, refusal = ids_or_refusal(path, dropped)
        assert not refusal or path.name in refusal
        if fault == "cut":
            assert read == [f"q{i}" for i in range(len(read))]
            assert refusal or dropped.count == (place > 0)
            assert refusal or read or place < len(whole) // 2


def test_f54_an_empty_file_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").touch()
    with pytest.raises(UsageError, match="not a Parquet file"):
        ids(tmp_path / "log.parquet")


# --- F29: huge texts and odd characters ---


def test_f29_texts_of_any_kind_come_back(log: Path) -> None:
    odd = ["\x00\x01", "\u202e\u200b", "a\nb\r\nc\u2028d\x85", "\ufeff", '"\\', "𝔘𝔫𝔦", "x" * 10_000_000]
    write_rows(log, [row(i, answer=text) for i, text in enumerate(odd)])
    assert [record["answer"] for record in read_rows(log)] == odd


def test_f29_a_bomb_of_zeros_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4 << 20)
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(row(1)).encode() + b"\n")
        for _ in range(30):
            file.write(b"0" * (1 << 20))
        file.write(b"\n" + json.dumps(row(2)).encode() + b"\n")
    dropped = Dropped()
    tracemalloc.start()
    episodes = [record["episode_id"] for record in read_rows(path, dropped)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (episodes, dropped.count) == (["q1", "q2"], 1)
    assert peak < 20 << 20


pq = pytest.importorskip("pyarrow.parquet")

ROWS = 12
HEAD = ["id", "question", "small_answer", "small_cost_usd", "large_answer", "large_cost_usd"]
SHORT = 20
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


def read_mutated_table(folder: Path, seed: int) -> None:
    """Compare a mutated table with what Python's csv reads: each record is read with its answers, or counted."""
    chance = random.Random(seed)
    separator, end = chance.choice(",;|\t"), chance.choice(["\n", "\r\n"])
    written = io.StringIO()
    table = csv.writer(written, delimiter=separator, lineterminator=end)
    table.writerow(HEAD)
    for at in range(ROWS):
        question = f'Which "{at}", è?\nline' if at % 3 == 0 else f"Which {at}?"
        table.writerow([f"q{at}", question, chance.choice(["Danube", "2024-1-6", "007"]), "0.0001", "Mur", "0.02"])
    path, dropped = folder / "t.csv", Dropped()
    path.write_bytes(chance.choice(MUTATIONS[:3])(chance, written.getvalue().encode()))
    try:
        with imported([path], ImportOptions(), dropped) as log:
            read = list(log.rows())
    except UsageError as error:
        assert path.name in str(error)  # noqa: PT017 - a refusal names the file, whatever else it says
        return
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\0", "\ufffd")
        records = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if any(row)]
    except (UnicodeDecodeError, csv.Error):
        return
    if not records or records[0] != HEAD:
        return
    whole = {row[0]: row for row in records[1:] if len(row) == len(HEAD)}  # of two with one id the last
    assert len(whole.keys() - {row["episode_id"] for row in read}) <= dropped.rows.total()
    once = {name for name, times in Counter(row[0] for row in records).items() if times == 1} & whole.keys()
    for row in read if not dropped.rows else ():
        answer = whole[row["episode_id"]][HEAD.index(f"{row['model']}_answer")] if row["episode_id"] in once else ""
        assert not answer or row["answer"] == answer


@pytest.mark.parametrize("seeds", [range(SHORT), pytest.param(range(SHORT, 2_000), marks=pytest.mark.long)])
@pytest.mark.parametrize("read", [read_mutated, read_mutated_table])
def test_mutated_files_are_read_or_refused(tmp_path, read, seeds):
    for seed in seeds:
        read(tmp_path, seed)
