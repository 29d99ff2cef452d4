"""Stores for tests: a file in the test's folder, and a database of its own on the local PostgreSQL, dropped after."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SERVER = "postgresql://postgres@127.0.0.1:5432"


@contextmanager
def postgres_url() -> Iterator[str]:
    """Make a database, yield its URL, drop it; skip where there is no server."""
    psycopg = pytest.importorskip("psycopg")
    name = f"cascade_test_{uuid.uuid4().hex}"
    try:
        admin = psycopg.connect(f"{SERVER}/postgres", autocommit=True, connect_timeout=2)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL that lets postgres in at 127.0.0.1:5432: {str(error)[:80]}")
    with admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{SERVER}/{name}"
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


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
