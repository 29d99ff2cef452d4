"""The store: the same rows in and out of SQLite and PostgreSQL, each once, and what it refuses."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import sqlite3
import stat
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cases import each
from patience import PATIENCE_S, at_once, in_child
from stores import postgres_url, row

from cascade.errors import NoTracesError, StoreError, UnfitRowsError, UsageError
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION
from cascade.records import database as database_module
from cascade.records.address import holds_password, parse
from cascade.records.database import Database, formats
from cascade.records.traces import Store


def whole(given: dict[str, Any]) -> dict[str, Any]:
    """Return a row with all its columns, as it is read back."""
    return dict.fromkeys(COLUMNS) | given | {"schema_version": SCHEMA_VERSION}


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store(store_url) as opened:
        yield opened


# --- rows in and out ---


def test_rows_come_back_as_they_went_in_with_every_column_in_order(store):
    given = [row(1), row(2, walk="guide only", correct=None, confidence=None, gold=None), row(3, signals=None)]
    given += [row(4, parents=[]), row(5, parents=[1, 3])]
    assert store.append(given) == 5
    stored = list(store.read())
    assert stored == [whole(record) for record in given]
    assert tuple(stored[0]) == COLUMNS


def test_a_row_that_is_there_is_left_alone(store):
    assert store.append([row(1), row(2)]) == 2
    assert store.append([row(2), row(3), row(3)]) == 1
    assert store.append(list(store.read())) == 0
    assert [record["episode_id"] for record in store.read()] == ["episode 1", "episode 2", "episode 3"]


def test_all_rows_of_an_append_are_written_or_none(store):
    def broken() -> Iterator[dict[str, Any]]:
        yield from (row(number) for number in range(2_500))
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.append(broken())
    assert store.count() == 0
    assert store.append(row(number) for number in range(2_500)) == 2_500


@pytest.mark.parametrize(
    "text",
    [
        "NUL \x00 here",
        "half a pair \ud800",
        "Gödel, Ἀθῆναι, 東京, 🌊",
        "\u202eright to left",
        "",
        "a\nb\tc'\"\\ %s :x",
        "x" * 3_000_000,
    ],
)
def test_any_text_is_stored_safely(store, text):
    assert store.append([row(1, answer=text, signals={"note": text}, gold=[text]), row(1, cost_nano_usd=1)]) == 2
    stored, _ = store.read()
    assert stored["answer"] == text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert (stored["signals"]["note"], stored["gold"]) == (text, [text])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_f57_a_number_that_is_not_finite_becomes_null_and_the_row_says_so(store, value):
    store.append([row(1, confidence=value, signals={"p_yes": value, "replay": {"purpose": "judge"}}), row(2)])
    odd, sound = store.read()
    assert (odd["confidence"], odd["signals"]["p_yes"]) == (None, None)
    assert odd["signals"]["replay"] == {"purpose": "judge", "not_finite": ["confidence", "signals"]}
    assert sound == whole(row(2))


def circle() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["again"] = ring
    return ring


def deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@each(
    "columns, piece",
    [
        ({"step": "one"}, "row 2 does not fit: step is no whole number"),
        ({"cost_nano_usd": -1}, "cost_nano_usd"),
        ({"correct": "yes"}, "correct"),
        ({"modle": "x"}, "did you mean model"),
        ({"created_at": "soon"}, "created_at"),
        ({"schema_version": SCHEMA_VERSION + 1}, "schema"),
        ({"input_tokens": 2**63}, "input_tokens"),
        ({"signals": {"x": object()}}, "signals"),
        ({"signals": {(1, 2): 3}}, "signals"),
        ({"signals": circle()}, "row 2"),
        ({"signals": {"deep": deep()}}, "row 2"),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(file_url, columns, piece):
    with Store(file_url) as store:
        with pytest.raises(UnfitRowsError, match=piece):
            store.append([row(1), row(2, **columns)])
        assert store.count() == 0


def test_times_are_kept_in_one_form_that_sorts(store):
    for number, text in enumerate(["2026-11-21", "2026-11-21T08:00:00+01:00", "2026-11-21T07:00:00Z"]):
        store.append([row(number, created_at=text)])
    assert [record["created_at"] for record in store.read()] == [
        "2026-11-21T00:00:00.000+00:00",
        "2026-11-21T07:00:00.000+00:00",
        "2026-11-21T07:00:00.000+00:00",
    ]


# --- filters ---


ROWS = [
    row(1),
    row(2, step=2, correct=False),
    row(3, model="large", correct=None, walk="guide only", confidence=0.25),
    row(4, model="null", cost_nano_usd=None),
]


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ({"model": "small"}, [1, 2]),
        ({"model": "small", "step": "2"}, [2]),
        ({"correct": "true"}, [1, 4]),
        ({"correct": "false"}, [2]),
        ({"correct": "null"}, [3]),
        ({"walk": "null"}, [1, 2, 4]),
        ({"walk": "guide only"}, [3]),
        ({"confidence": "0.25"}, [3]),
        ({"cost_nano_usd": "null"}, [4]),
        ({"model": "' OR 1=1 --"}, []),
        ({}, [1, 2, 3, 4]),
    ],
)
def test_rows_are_chosen_by_their_values_as_text(store, where, numbers):
    store.append(ROWS)
    assert [record["episode_id"] for record in store.read(where)] == [f"episode {number}" for number in numbers]
    assert store.count(where) == len(numbers)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ({"modle": "x"}, "did you mean model"),
        ({"step": "two"}, "step is a whole number or null, not 'two'"),
        ({"correct": "yes"}, "correct is a true or false or null"),
        ({"signals": "{}"}, "signals cannot be compared"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused_at_once(store, where, problem):
    with pytest.raises(UsageError, match=problem):
        store.read(where)
    with pytest.raises(UsageError, match=problem):
        store.count(where)


# --- reading ---


def test_reading_takes_memory_for_a_few_hundred_rows_whatever_there_is(store):
    def peak() -> int:
        tracemalloc.start()
        for _ in store.read():
            pass
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    text = "x" * 1_000
    store.append(row(number, context=text) for number in range(500))
    assert sum(1 for _ in store.read()) == 500  # warm
    small = peak()
    store.append(row(number, context=text) for number in range(500, 2_000))
    assert peak() < 1.3 * small
    assert small < 5_000_000


def test_rows_may_be_written_and_removed_while_they_are_read(store):
    store.append(row(number) for number in range(600))
    reading = store.read()
    first = next(reading)
    assert store.append([row(1_000)]) == 1
    store.purge(datetime(2020, 1, 1, tzinfo=UTC))
    left = list(reading)
    assert first["episode_id"] == "episode 0"
    assert [record["episode_id"] for record in left[:599]] == [f"episode {number}" for number in range(1, 600)]
    assert left[-1]["episode_id"] == "episode 1000"


# --- purging ---


def test_purge_can_take_the_words_and_leave_the_numbers(store):
    store.append(row(n, created_at=f"2026-11-{n:02d}", context="secret") for n in (1, 2))
    store.append(row(n, created_at="2026-11-01", context="secret") for n in range(1_000, 1_600))
    before = datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert store.purge(before, content_only=True) == 601
    assert store.purge(before, content_only=True) == 0
    old, new = itertools.islice(store.read(), 2)
    empty = {"question": None, "context": None, "gold": None, "answer": None, "text": None}
    signals = {"p_yes": 0.75, "replay": {"purpose": "answer", "tokens": None}}
    stamp = {"created_at": "2026-11-01T00:00:00.000+00:00"}
    assert old == whole(row(1, **empty, signals=signals, **stamp))
    assert new["context"] == "secret"
    assert (store.count(before=before), store.purge(before), store.purge(), store.count()) == (601, 601, 1, 0)
    with pytest.raises(UsageError, match="zone"):
        store.purge(datetime(2026, 1, 1))  # noqa: DTZ001 - on purpose


def test_what_is_purged_is_gone_from_the_file_and_its_side_files(tmp_path, file_url):
    with Store(file_url) as store:
        store.append([row(1, context="a-word-to-find")])
        store.append(row(number) for number in range(2, 1_500))
        size = sum(path.stat().st_size for path in tmp_path.glob("traces.db*"))
        store.purge(content_only=True)
        files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"a-word-to-find" not in files
        store.purge()
        assert sum(path.stat().st_size for path in tmp_path.glob("traces.db*")) < size / 4


# --- opening and closing ---


def test_a_closed_store_says_so_and_closes_twice(store):
    store.append([row(1)])
    reading = store.read()
    store.close()
    store.close()
    for use in (lambda: store.append([row(2)]), store.count, lambda: next(reading)):
        with pytest.raises(UsageError, match="was closed"):
            use()


def test_a_store_opened_for_reading_changes_nothing(store_url):
    with Store(store_url) as store:
        store.append([row(1)])
    with Store(store_url, read_only=True) as store:
        assert list(store.read()) == [whole(row(1))]
        assert store.summary()["rows"] == 1
        for use in (lambda: store.append([row(2)]), store.purge):
            with pytest.raises(UsageError, match="for reading only"):
                use()


def test_what_is_not_there_cannot_be_read(store_url, tmp_path):
    with pytest.raises(NoTracesError, match="There is no store" if "sqlite" in store_url else "cascade import"):
        Store(store_url, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_its_repr_shows_no_password():
    address = parse("postgresql://me:hunter2@db.example:5433/traces?password=hunter2&sslmode=require")
    assert "hunter2" not in repr(address)
    assert address.shown == "postgresql://me:***@db.example:5433/traces"
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        assert parse(f"{scheme}://me@host/db").url == "postgresql+psycopg://me@host/db"


# --- versions (F56) ---


def test_f56_another_format_is_refused_and_left_alone(store_url):
    with Store(store_url) as store, store.transaction() as connection:
        connection.execute(formats.update().values(version="3, rows 9"))
    for read_only in (False, True):
        with pytest.raises(UsageError, match="has the format 3, rows 9"):
            Store(store_url, read_only=read_only)


def test_a_file_with_such_tables_of_another_program_is_refused(tmp_path, file_url):
    with closing(sqlite3.connect(tmp_path / "traces.db")) as file, file:
        file.execute("CREATE TABLE episodes (id INTEGER PRIMARY KEY)")
    with pytest.raises(UsageError, match="that cascade did not make"):
        Store(file_url)


# --- addresses (F70) ---


@each(
    "url",
    [
        "",
        "traces.db",
        "mysql://me@host/db",
        "sqlite://",
        "sqlite:///",
        "sqlite://traces.db",
        "sqlite:///:memory:",
        "sqlite:///a\x00b",
        "sqlite:///x.db?mode=memory",
        "postgresql://host:port/db",
        "sqlite:///../outside.db",
        "sqlite:////tmp/a/../b.db",
    ],
)
def test_what_is_no_store_is_refused(url):
    with pytest.raises(UsageError):
        parse(url)


def test_a_relative_path_is_that_of_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = parse("sqlite:///traces.db")
    monkeypatch.chdir("/")
    assert address.path == tmp_path / "traces.db"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:word@host/db", True),
        ("postgresql://me@host/db?password=word", True),
        ("postgresql://me@host/db", False),
        ("sqlite:///x.db", False),
        ("postgresql://[", False),
    ],
)
def test_a_password_in_a_url_is_found(url, expected):
    assert holds_password(url) is expected


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_f70_every_file_is_its_owners_alone(tmp_path):
    old = os.umask(0)
    try:
        with Store(f"sqlite:///{tmp_path / 'new' / 'traces.db'}") as store:
            store.append([row(1)])
            modes = {path.name: mode_of(path) for path in (tmp_path / "new").iterdir()}
    finally:
        os.umask(old)
    assert "traces.db" in modes
    assert set(modes.values()) == {0o600}
    assert mode_of(tmp_path / "new") == 0o700


def test_f70_a_file_that_others_can_read_is_taken_from_them_with_a_warning(tmp_path, file_url, caplog):
    Store(file_url).close()
    (tmp_path / "traces.db").chmod(0o644)
    Store(file_url).close()
    assert mode_of(tmp_path / "traces.db") == 0o600
    assert "others could read the store" in caplog.text
    assert "(mode 644)" in caplog.text


def test_f70_a_folder_that_everybody_may_write_to_is_warned_about(tmp_path, file_url, caplog):
    tmp_path.chmod(0o777)
    Store(file_url).close()
    assert "everybody may write to the folder" in caplog.text
    caplog.clear()
    tmp_path.chmod(0o1777)
    Store(file_url).close()
    assert caplog.text == ""


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_f70_a_link_is_refused(tmp_path, file_url, suffix):
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    (tmp_path / f"traces.db{suffix}").symlink_to(target)
    with pytest.raises(UsageError, match="is a symbolic link"):
        Store(file_url)
    assert target.read_text() == "mine"


# --- several writers (F55), processes (F50), servers that hang ---


def test_two_may_open_a_new_database_at_once(store_url):
    def open_one(number: int) -> None:
        with Store(store_url) as store:
            store.append([row(number)])

    at_once(*(partial(open_one, number) for number in range(4)))
    with Store(store_url) as store:
        assert store.count() == 4


@pytest.mark.parametrize("since", [(3, 0, 0), (99, 0, 0)])
def test_f55_eight_processes_write_one_file_with_a_sound_sqlite_or_another(file_url, monkeypatch, since):
    monkeypatch.setattr(database_module, "WAL_SINCE", since)
    with Store(file_url) as store:
        with store.driver() as driver:
            (mode,) = driver.execute("PRAGMA journal_mode").fetchone()
        assert mode == ("wal" if since == (3, 0, 0) else "truncate")

    def write(name: int) -> None:
        with Store(file_url) as mine:
            for number in range(10):
                mine.append([row(100 * name + number, step=step) for step in (1, 2)])

    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(name,)) for name in range(8)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in writers] == [0] * 8
    with Store(file_url, read_only=True) as store:
        assert [record["step"] for record in store.read()] == [1, 2] * 80  # the rows of an append stand together


def test_f50_a_child_opens_its_own_connection(store_url):
    with Store(store_url) as store:
        store.append([row(1)])
        assert in_child(lambda: store.append([row(2)])) == 1
        assert store.append([row(3)]) == 1
        assert [record["episode_id"] for record in store.read()] == ["episode 1", "episode 2", "episode 3"]


def test_a_locked_file_is_waited_for_as_long_as_the_limit_says(file_url, tmp_path):
    with Store(file_url) as store, closing(sqlite3.connect(tmp_path / "traces.db", isolation_level=None)) as other:
        store.append([row(1)])
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError) as caught:
            Database(file_url, limit_s=0.1)
        assert (caught.value.busy, caught.value.retryable) == (True, True)
        other.execute("COMMIT")
        assert store.append([row(2)]) == 1


def test_a_server_that_does_not_answer_ends_a_transaction_in_time_and_the_next_works():
    import sqlalchemy as sa

    # The first one makes the tables, for which a busy machine may take longer than the limit.
    with postgres_url() as url, closing(Database(url)), closing(Database(url, limit_s=2.0)) as database:
        for statement in (
            "SELECT pg_sleep(9000)",
            "SET statement_timeout = 0; SELECT pg_sleep(9000)",
        ):  # it keeps the limit, or not
            with pytest.raises(StoreError) as caught, database.transaction() as connection:
                connection.execute(sa.text(statement))
            assert caught.value.retryable
        with database.transaction() as connection:
            assert connection.scalar(sa.text("SELECT 1")) == 1


def test_a_connection_to_a_server_has_the_time_of_a_transaction_but_2_to_10_s(monkeypatch):
    import sqlalchemy as sa

    given: list[int] = []

    def refuse(_url: str, connect_args: dict[str, Any], **_: Any) -> None:
        given.append(connect_args["connect_timeout"])
        raise sa.exc.ArgumentError

    monkeypatch.setattr(sa, "create_engine", refuse)
    for limit_s in (0.5, 4.0, 60.0):
        with pytest.raises(UsageError):
            Database("postgresql://me@host/db", limit_s=limit_s)
    assert given == [2, 4, 10]


def test_a_file_that_is_open_is_not_opened_again_beside_sqlite(file_url, monkeypatch):
    """To close it would release SQLite's locks on it in this process: another one could then damage it."""
    with Store(file_url) as store:
        store.append([row(1)])
        monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("the file was opened"))
        with Store(file_url) as other:
            assert other.append([row(2)]) == 1
        assert store.count() == 2


def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("somebody's own")
    other.chmod(0o644)
    with pytest.raises(UsageError):
        Store(f"sqlite:///{other}")
    assert (other.read_text(), stat.S_IMODE(other.stat().st_mode)) == ("somebody's own", 0o644)


# --- the summary ---


def test_the_summary_counts_and_prices(store):
    store.append([row(1), row(1, step=2), row(2, model="large", cost_nano_usd=None), row(3, walk="guide only")])
    summary = store.summary()
    assert (summary["rows"], summary["episodes"]) == (4, 3)
    assert summary["models"] == [
        {"model": "small", "rows": 3, "cost_nano_usd": 42_000, "cost_unknown": 0},
        {"model": "large", "rows": 1, "cost_nano_usd": None, "cost_unknown": 1},
    ]
    assert summary["first"] == summary["last"] == "2026-11-21T07:00:00.000+00:00"
    assert "postgres:" not in summary["store"]
