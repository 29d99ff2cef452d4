"""Processes that write traces and are killed while they do; what they said was written must be there (F52).

A child says of each group, or each ask, that it is committed, only after `append`, `ask` under `strict`, or
`flush` came back. It is killed at a random moment; then the store is opened as always and looked at.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stores import row

from cascade.orchestrator import Orchestrator
from cascade.records.traces import Store

GROUP = 20
WAYS = ("append", "durable asks", "flushed asks")
LONGEST_S = 0.5
PRELOADED = [
    "sigkill",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "cascade.records.traces",
    "cascade.providers.fake",
]
KILLS_PER_FILE = 10


@dataclass
class Tally:
    """What came of some kills."""

    kills: int = 0
    acknowledged: int = 0
    missing: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def write_forever(way: str, url: str, life: int, pipe: Any) -> None:
    """Write until killed, and say what is committed."""

    def say(text: str) -> None:
        os.write(pipe.fileno(), f"{text}\n".encode())

    say("up")
    if way == "append":
        with Store(url) as store:
            for number in range(10**9):
                name = f"{life} {number}"
                store.append(row(number, question=name, step=place, context="x" * 500) for place in range(1, GROUP + 1))
                say(name)
    traces = {"store": url, "strict": way == "durable asks"}
    with Orchestrator("small", "large", provider="fake", traces=traces) as cascade:
        names: list[str] = []
        for number in range(10**9):
            cascade.ask(f"{life} {number}")
            names.append(f"{life} {number}")
            if way == "durable asks":
                say(names.pop())
            elif number % 7 == 0 and cascade.runtime.traces is not None and cascade.runtime.traces.flush():
                say("\n".join(names))
                names.clear()


def kill_some(kills: int, folder: Path, seed: int, url: str | None = None) -> Tally:
    """Start a writer and kill it at a random moment, so many times; return what was found after each.

    Args:
        kills: how many times.
        folder: where files are made, a new one for every ten kills.
        seed: of the moments.
        url: a store to use instead.
    """
    chance, tally = random.Random(seed), Tally()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    promised: dict[str, set[str]] = {}
    for life in range(kills):
        way = WAYS[life % len(WAYS)]
        store = url or f"sqlite:///{folder / f'traces-{life // KILLS_PER_FILE}.db'}"
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=write_forever, args=(way, store, life, theirs))
        process.start()
        theirs.close()
        lines = _lines(ours)
        assert next(lines) == "up"
        # One in four is killed while it opens, or makes, the store; the others once they write.
        first = [] if life % 4 == 3 else [next(lines)]
        time.sleep(chance.uniform(0.0, LONGEST_S))
        process.kill()
        process.join()
        acknowledged = {*first, *lines}
        ours.close()
        promised.setdefault(store, set()).update(acknowledged)
        tally.kills += 1
        tally.acknowledged += len(acknowledged)
        _look(store, promised[store], tally)
    return tally


def _lines(pipe: Any) -> Iterator[str]:
    """Yield what a child says, to its end; a line that was cut short was not said."""
    left = b""
    while piece := os.read(pipe.fileno(), 65_536):
        *whole, left = (left + piece).split(b"\n")
        yield from (line.decode() for line in whole)


def damage_of(store: Store) -> list[str]:
    """Return what SQLite finds wrong with the file of a store."""
    with store.transaction(reading=True) as connection:
        return [line for (line,) in connection.exec_driver_sql("PRAGMA integrity_check") if line != "ok"]


def _look(url: str, promised: set[str], tally: Tally) -> None:
    """Open the store as always, without any repair, and compare."""
    with Store(url) as store:
        tally.damaged += damage_of(store) if url.startswith("sqlite:") else []
        counts = Counter(row["question"] for row in store.read())
    tally.missing += sorted(promised - counts.keys())
    # The rows of a group, and those of an ask, are there together or not at all.
    tally.torn += [name for name, count in counts.items() if count not in {GROUP, 2}]
