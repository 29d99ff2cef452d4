"""Stores for tests: a file in the test's folder, and an empty database on the local PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

SERVER = "postgresql://postgres@127.0.0.1:5432"


@cache
def _database() -> str:
    """Make the database of this process and return its name; skip where there is no server."""
    psycopg = pytest.importorskip("psycopg")
    name = f"cascade_test_{uuid.uuid4().hex}"
    try:
        admin = psycopg.connect(f"{SERVER}/postgres", autocommit=True, connect_timeout=30)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL that lets postgres in at 127.0.0.1:5432: {str(error)[:80]}")
    with admin:
        admin.execute(f"CREATE DATABASE {name}")
        admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    return name


@contextmanager
def postgres_url() -> Iterator[str]:
    """Yield the URL of a database without tables; skip where there is no server.

    A process makes one database and empties it after each test: to make and drop one takes PostgreSQL half a second.
    """
    url = f"{SERVER}/{_database()}"
    try:
        yield url
    finally:
        _empty(url)


def _empty(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        admin.execute("DROP SCHEMA public CASCADE")
        admin.execute("CREATE SCHEMA public")


def drop_database() -> None:
    """Drop the database of this process, where it made one."""
    if _database.cache_info().currsize:
        import psycopg

        with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {_database()} WITH (FORCE)")
        _database.cache_clear()


@contextmanager
def behind(late_s: float) -> Iterator[float]:
    """Let stores that are opened meanwhile be on a machine whose clock is late; yield the time there."""
    from cascade.records import database

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) - timedelta(seconds=late_s)

    with pytest.MonkeyPatch.context() as machine:
        machine.setattr(database, "datetime", Clock)
        yield Clock.now(UTC).timestamp()


@contextmanager
def own_cluster() -> Iterator[tuple[str, Callable[[int], None]]]:
    """Start a PostgreSQL of its own; yield its URL, and what sends a signal to all its processes. Skip elsewhere."""
    pytest.importorskip("psycopg")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs or os.getuid() != 0 or shutil.which("runuser") is None:
        pytest.skip("no programs of PostgreSQL, or no right to become its user")
    folder = Path(tempfile.mkdtemp())
    shutil.chown(folder, "postgres", "postgres")

    def run(program: str, *words: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(programs[-1].with_name(program)), "-D", f"{folder}/data"]
        subprocess.run([*command, *words], check=True, capture_output=True, cwd=folder)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def send(number: int) -> None:
        first = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in (first, *map(int, children)):
            os.kill(pid, number)

    try:
        run("initdb", "-A", "trust", "-U", "postgres", "-N", "-E", "SQL_ASCII", "--locale", "C")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-o", options, "-l", f"{folder}/log", "-w", "-t", str(round(PATIENCE_S)), "start")
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres", send
        run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def rows_in(url: str, where: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a store."""
    from cascade.records.traces import Store

    with Store(url, read_only=True) as store:
        return list(store.read(where))


def row(number: int = 1, **columns: Any) -> dict[str, Any]:
    """Return a row as the schema has it, told from others by its number."""
    return {
        "episode_id": f"episode {number}",
        "group": "g",
        "question": f"Which river is number {number}?",
        "gold": ["Danube", "Donau"],
        "step": 1,
        "horizon": 4,
        "candidate": 0,
        "source": "base",
        "model": "small",
        "answer": "Danube",
        "text": "Reasoning: it flows there.\nAnswer: Danube",
        "correct": True,
        "confidence": 0.75,
        "kept": False,
        "signals": {"p_yes": 0.75, "replay": {"purpose": "answer", "tokens": [["Danube", -0.5]]}},
        "input_tokens": 100,
        "output_tokens": 10,
        "cost_nano_usd": 14_000,
        "cost_source": "price table",
        "latency_ms": 12.5,
        "created_at": "2026-11-21T07:00:00.000+00:00",
    } | columns
