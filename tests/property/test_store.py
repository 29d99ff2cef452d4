"""The store against a model of it: a dict of rows by what they were when they were written."""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stores import row

from cascade.errors import UsageError
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION
from cascade.records.traces import Store

DAYS = st.integers(1, 5)
ROWS = st.builds(
    lambda number, day, step, model: row(
        number, created_at=None if day == 5 else f"2026-11-0{day}T12:00:00.000+00:00", step=step, model=model
    ),
    st.integers(1, 6),
    DAYS,
    st.integers(1, 2),
    st.sampled_from(["small", "large"]),
)
EMPTIED = {"question": None, "context": None, "gold": None, "answer": None, "text": None}


def key_of(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def older(row: dict[str, Any], day: int) -> bool:
    return row["created_at"] is not None and row["created_at"] < f"2026-11-0{day}"


class StoreMachine(RuleBasedStateMachine):
    """Appends, purges and reopenings in any order."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.url = f"sqlite:///{self.folder / 'traces.db'}"
        self.store = Store(self.url)
        self.model: dict[str, dict[str, Any]] = {}

    @rule(rows=st.lists(ROWS, max_size=6))
    def append(self, rows: list[dict[str, Any]]) -> None:
        new = {key_of(row): row for row in rows if key_of(row) not in self.model}
        assert self.store.append(rows) == len(new)
        self.model |= {
            key: dict.fromkeys(COLUMNS) | row | {"schema_version": SCHEMA_VERSION} for key, row in new.items()
        }

    @rule(rows=st.lists(ROWS, max_size=3))
    def append_with_one_that_does_not_fit(self, rows: list[dict[str, Any]]) -> None:
        with pytest.raises(UsageError):
            self.store.append([*rows, row(1, step=0)])

    @rule(day=DAYS)
    def purge(self, day: int) -> None:
        gone = [key for key, row in self.model.items() if older(row, day)]
        assert self.store.purge(datetime(2026, 11, day, tzinfo=UTC)) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(day=DAYS)
    def purge_content(self, day: int) -> None:
        full = [key for key, row in self.model.items() if older(row, day) and row["question"] is not None]
        assert self.store.purge(datetime(2026, 11, day, tzinfo=UTC), content_only=True) == len(full)
        for key in full:
            signals = json.loads(json.dumps(self.model[key]["signals"]))
            signals["replay"]["tokens"] = None
            self.model[key] = self.model[key] | EMPTIED | {"signals": signals}

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = Store(self.url)

    @rule(model=st.sampled_from(["small", "large", "other"]), step=st.integers(1, 3))
    def choose(self, model: str, step: int) -> None:
        wanted = [row for row in self.model.values() if (row["model"], row["step"]) == (model, step)]
        where = {"model": model, "step": str(step)}
        assert list(self.store.read(where)) == wanted
        assert self.store.count(where) == len(wanted)

    @invariant()
    def holds_what_the_model_holds_in_order(self) -> None:
        if hasattr(self, "store"):
            assert list(self.store.read()) == list(self.model.values())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
