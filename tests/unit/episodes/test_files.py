"""Logs are written whole lines at a time and read a line at a time."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from cascade.episodes.files import append_jsonl, read_jsonl
from cascade.errors import UsageError

ROWS = [{"a": 1, "text": "naïve 🙂\n\u2028"}, {"a": None, "schema_version": 1}]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert append_jsonl(path, ROWS[:1]) == 1
    assert append_jsonl(path, iter(ROWS[1:])) == 1
    assert list(read_jsonl(path)) == ROWS
    assert path.read_bytes().endswith(b"\n")


def test_nothing_to_write_is_an_empty_log(tmp_path: Path) -> None:
    assert append_jsonl(tmp_path / "log.jsonl", []) == 0
    assert list(read_jsonl(tmp_path / "log.jsonl")) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_a_log_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_jsonl(path, ROWS)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("bad", [{"a": math.nan}, {"a": math.inf}, {"a": object()}])
def test_a_row_that_is_no_json_leaves_the_file_as_it_was(tmp_path: Path, bad: dict[str, object]) -> None:
    path = tmp_path / "log.jsonl"
    append_jsonl(path, ROWS)
    before = path.read_bytes()
    with pytest.raises((ValueError, TypeError)):
        append_jsonl(path, [ROWS[0], bad])
    assert path.read_bytes() == before


def test_lines_that_are_no_rows_are_named_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n\n  \nnot json\n[1]\n{"a": \xff}\n' + b"[" * 100_000 + b'\n{"a": "\xff"}\n{"a"')
    bad: list[str] = []
    assert list(read_jsonl(path, bad)) == [{"a": 1}, {"a": "\ufffd"}]
    assert bad == [f"{path}:{line}: not a JSON object" for line in (4, 5, 6, 7, 9)]
    assert len(list(read_jsonl(path))) == 2


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        list(read_jsonl(tmp_path / "nothing"))


def test_rows_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"schema_version": 1}\n{"schema_version": null}\n{"schema_version": 99}\n')
    read = read_jsonl(path)
    assert [next(read), next(read)] == [{"schema_version": 1}, {"schema_version": None}]
    with pytest.raises(UsageError, match=":3 was written by a newer version"):
        next(read)
