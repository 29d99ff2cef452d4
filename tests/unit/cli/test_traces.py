"""`cascade traces`: export, purge and stats."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from stores import row

from cascade.api.logs import open_log
from cascade.episodes.opening import rows_of
from cascade.logs.files import read_rows
from cascade.logs.schema import hashed
from cascade.records.traces import Store

Cli = Callable[..., Any]


def ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


@pytest.fixture
def filled(store_url: str) -> str:
    """Return a store with three rows: 1, 40 and 400 days old."""
    with Store(store_url) as store:
        store.append([row(n, created_at=ago(days), dataset=f"d{n}") for n, days in ((1, 1), (2, 40), (3, 400))])
    return store_url


def left(url: str) -> list[str]:
    with Store(url, read_only=True) as store:
        return [row["episode_id"] for row in store.read()]


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.parquet"])
def test_a_store_is_exported_by_import(cli, tmp_path, filled, name):
    pytest.importorskip("duckdb")
    assert cli("import", filled, "-o", name, "--json").document["rows"] == 3
    with Store(filled, read_only=True) as store:
        assert list(read_rows(tmp_path / name)) == list(store.read()) == list(rows_of(filled))
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_files_of_stores_are_imported_as_stores_are(cli, tmp_path):
    for n in (1, 2):
        with Store(f"sqlite:///{tmp_path / f'{n}.db'}") as store:
            store.append([row(n)])
    document = cli("import", "1.db", f"sqlite:///{tmp_path / '2.db'}", "-o", "log.jsonl", "--json").document
    assert (document["episodes"], [name in document["source"] for name in ("1.db", "2.db")]) == (2, [True, True])
    assert open_log(tmp_path / "1.db").datasets[0].log.n == 1


# --- purge ---


@pytest.mark.parametrize(
    ("options", "removed", "texts"),
    [
        (("--older-than", "30d"), 2, ["Danube", "Danube"]),
        (("--older-than", "8w", "--content-only"), 1, ["Danube", "Danube", None, "Danube"]),
        (("--older-than", "0d"), 4, []),  # everything, also a row without a time
    ],
)
def test_purge_removes_what_is_older_or_its_texts(cli, filled, options, removed, texts):
    with Store(filled) as store:
        store.append([row(4, created_at=None)])
    document = json.loads(cli("traces", "purge", "--store", filled, *options, "--yes", "--json").out)
    assert (document["removed"], document["content_only"]) == (removed, "--content-only" in options)
    assert (document["before"] is None) == (options[1] == "0d")
    with Store(filled, read_only=True) as store:
        answers = [step["answer"] for step in store.read()]
    assert answers == texts


def test_purge_asks_first(cli, filled, monkeypatch):
    class Person(io.StringIO):
        def isatty(self) -> bool:
            return True

    ran = cli("traces", "purge", "--store", filled, "--older-than", "12h")
    assert (ran.code, len(left(filled))) == (2, 3)
    assert "Remove all of 3 rows from before" in ran.err
    assert "give --yes" in ran.err
    for typed, code, rows in (("n\n", 1, 3), ("y\n", 0, 0)):
        monkeypatch.setattr(sys, "stdin", Person(typed))
        ran = cli("traces", "purge", "--store", filled, "--older-than", "12h")
        assert (ran.code, len(left(filled))) == (code, rows)
        assert "[y/N]" in ran.err
    assert cli("traces", "purge", "--store", filled, "--older-than", "12h").out == "0 rows removed\n"


@pytest.mark.parametrize("age", ["", "30", "-3d", "30 years", "1.5d", "999999d", None])
def test_an_age_that_is_none_is_2(cli, filled, age):
    ran = cli("traces", "purge", "--store", filled, *([] if age is None else [f"--older-than={age}"]), "--yes")
    assert (ran.code, ran.out, len(left(filled))) == (2, "", 3)


@pytest.fixture
def user_store(store_url: str) -> str:
    """Return a store with rows of ann, of ann as a hash, of bob, of nobody, and an old one of ann; and feedback."""
    names = ["ann", hashed("ann"), "bob", None, "ann"]
    with Store(store_url) as store:
        store.append([row(n, user=name, created_at=ago(40 if n == 5 else 1)) for n, name in enumerate(names, 1)])
        for n in (1, 3):
            rating = {"episode_id": f"episode {n}", "right": True, "score": None, "better": None, "reviewer": "app"}
            store.add_feedback(rating | {"created_at": ago(1)})
    return store_url


@pytest.mark.parametrize(
    ("options", "remaining"),
    [((), ["episode 3", "episode 4"]), (("--older-than", "30d"), [f"episode {n}" for n in range(1, 5)])],
)
def test_purge_removes_a_users_questions_and_the_feedback_on_them(cli, user_store, options, remaining):
    ran = cli("traces", "purge", "--user", "ann", *options, "--yes", "--json", "--store", user_store)
    assert (json.loads(ran.out)["removed"], json.loads(ran.out)["user"]) == (5 - len(remaining), "ann")
    assert left(user_store) == remaining
    with Store(user_store, read_only=True) as store:
        assert {rating["episode_id"] for rating in store.feedback()} == {"episode 1", "episode 3"} & {*remaining}


def test_a_users_texts_are_removed_with_the_name(cli, user_store):
    cli("traces", "purge", "--user", "ann", "--content-only", "--yes", "--store", user_store)
    with Store(user_store, read_only=True) as store:
        rows = [(row["user"], row["question"] is None) for row in store.read()]
    assert rows == [(None, True), (None, True), ("bob", False), (None, False), (None, True)]


# --- stats ---


def test_stats_count_and_price(cli, filled):
    with Store(filled) as store:
        store.append([row(4, model="lar[ge]", cost_nano_usd=None, confidence=float("nan"))])
    document = json.loads(cli("traces", "stats", "--store", filled, "--json").out)
    assert (document["rows"], document["episodes"]) == (4, 4)
    assert document["models"] == [
        {"model": "small", "rows": 3, "cost_usd": 0.000042, "cost_unknown": 0},
        {"model": "lar[ge]", "rows": 1, "cost_usd": None, "cost_unknown": 1},
    ]
    shown = cli("traces", "stats", "--store", filled).out
    for piece in ("4 rows of 4 episodes", "$0.000042", "lar[ge]", "unknown"):
        assert piece in shown


# --- whose store ---


def test_the_store_is_that_of_the_configuration_or_ones_own(cli, tmp_path, fake_config, monkeypatch):
    ran = cli("traces", "stats")
    assert (ran.code, ran.out) == (2, "")
    assert "traces: off" in ran.err
    fake_config.write_text(fake_config.read_text() + "traces: sqlite:///mine.db\n")
    assert "There is no store sqlite:///mine.db" in cli("traces", "stats").err
    assert cli("ask", "what?").code == 0
    assert json.loads(cli("traces", "stats", "--json").out)["rows"] == 2
    assert json.loads(cli("traces", "stats", "--json", "-c", fake_config.name).out)["rows"] == 2
    assert all("nowhere.yaml" in cli(*verb, "-c", "nowhere.yaml").err for verb in (["traces", "stats"], ["promote"]))
    fake_config.unlink()
    monkeypatch.setenv("CASCADE_TRACES", f"sqlite:///{tmp_path / 'mine.db'}")
    assert json.loads(cli("traces", "stats", "--json").out)["rows"] == 2


def test_a_password_on_the_command_line_is_not_repeated(cli):
    pytest.importorskip("psycopg")
    ran = cli("traces", "stats", "--store", "postgresql://me:hunter2@127.0.0.1:1/db?connect_timeout=1")
    assert (ran.code, ran.out) == (1, "")
    assert "hunter2" not in ran.err
    assert "postgresql://me:***@127.0.0.1:1/db cannot be reached" in ran.err
