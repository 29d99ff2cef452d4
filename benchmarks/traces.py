"""What traces cost: what an ask waits for, and rows a second into SQLite and PostgreSQL. With the machine it ran on.

    python benchmarks/traces.py --postgres postgresql://me@host/db     a database whose tables may be made

Install what it needs, in the clone: pip install -c constraints.txt -e ".[sql]"
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cascade import Orchestrator
from cascade.logs import schema
from cascade.providers.fake import FakeProvider, reply
from cascade.records.traces import Store
from cascade.records.writer import TraceWriter
from cascade.types import Answer, Question, Request

ROUNDS = 4
ANSWERS = 1_500
GROUP_ROWS = 800  # a hundred answers, as the writer groups them
REASONING = (
    "The Danube rises in the Black Forest, passes Ulm, Regensburg, Passau and Linz, and flows through Vienna before it "
    "reaches Bratislava and Budapest; the Wien and the Donaukanal are smaller, so the river that is asked for must be "
    "the Danube itself, which is also what the text above says in its second sentence."
)
BASE_SAYS = reply(f"Reasoning: {REASONING}\nAnswer: The Danube")
GUIDE_SAYS = reply("Yes", p_yes=0.55)  # too unsure for the threshold: all four rounds are run
LIMITS: dict[str, tuple[str, float]] = {
    "record_median_us": ("at most", 100),
    "ask_difference_us": ("at most", 100),
    "sqlite_rows_per_s": ("at least", 5_000),
    "postgresql_rows_per_s": ("at least", 5_000),
}


def script(request: Request) -> Any:
    """Answer as the base or judge as the guide."""
    return GUIDE_SAYS if request.purpose == "judge" else BASE_SAYS


def orchestrator(traces: Any) -> Orchestrator:
    """Return a four-round cascade on the fake provider, with known prices."""
    models = {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"}
    config = {"models": models, "strategy": {"rounds": ROUNDS}, "provider": "fake", "traces": traces}
    return Orchestrator.from_config(config, providers={"fake": FakeProvider(script, keep=0)})


def one_answer() -> Answer:
    """Return the answer that everything here is measured with: eight calls, two thousand characters."""
    with orchestrator("off") as cascade:
        return cascade.ask(Question("Which river runs through Vienna?", "Vienna lies on a well-known river. " * 20))


def paced_us(call: Callable[[], object], count: int, pause_s: float) -> list[float]:
    """Return the times of calls in microseconds, with a pause before each if it is not 0."""
    times = []
    for _ in range(count):
        if pause_s:
            time.sleep(pause_s)
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return times


def record_us(folder: Path, answer: Answer) -> dict[str, float]:
    """Time a record right after an ask, with the writer at work behind it: some 150 asks a second, 1,200 rows."""
    question, times = Question("Which river runs through Vienna?", "Vienna lies on a well-known river. " * 20), []
    with orchestrator("off") as cascade, TraceWriter(f"sqlite:///{folder / 'path.db'}") as writer:
        for _ in range(600):
            time.sleep(0.005)
            cascade.ask(question)
            times += paced_us(lambda: writer.submit(answer, {"horizon": ROUNDS}), 1, 0)
        writer.flush()
        return {"record_median_us": statistics.median(times[100:]), "record_lost": writer.counts.lost}


def whole_asks(folder: Path) -> dict[str, float]:
    """Time whole asks with and without traces, in turns."""
    with orchestrator("off") as without, orchestrator(f"sqlite:///{folder / 'asks.db'}") as with_traces:
        times: dict[str, list[float]] = {"off": [], "on": []}
        for _ in range(400):
            for name, cascade in (("off", without), ("on", with_traces)):
                times[name] += paced_us(lambda cascade=cascade: cascade.ask("Which river?"), 1, 0.001)  # type: ignore[misc]
    off, on = statistics.median(times["off"]), statistics.median(times["on"])
    return {"ask_off_median_us": off, "ask_on_median_us": on, "ask_difference_us": on - off}


def rates(name: str, count: int, work: Callable[[], object]) -> dict[str, float]:
    """Return how many a second some work does."""
    begun_s = time.perf_counter()
    work()
    return {f"{name}_per_s": count / (time.perf_counter() - begun_s)}


def stored(name: str, url: str, answer: Answer) -> dict[str, float]:
    """Write rows in groups, write them through the writer, and read them."""
    ids = map(str, range(ANSWERS))
    rows = [row for name in ids for row in schema.rows(answer, horizon=ROUNDS, episode_id=name, group=name)]
    with Store(url) as store:

        def write() -> None:
            for start in range(0, len(rows), GROUP_ROWS):
                store.append(rows[start : start + GROUP_ROWS])

        figures = rates(f"{name}_rows", len(rows), write)
        figures |= rates(f"{name}_read_rows", len(rows), lambda: sum(1 for _ in store.read()))
        if store.count() != len(rows):
            raise SystemExit(f"{name}: rows are missing")
    with TraceWriter(url) as writer:

        def trace() -> None:
            for _ in range(ANSWERS):
                writer.submit(answer)
            writer.flush(120)

        figures |= rates(f"{name}_traced_rows", len(rows), trace)
        figures[f"{name}_lost"] = writer.counts.lost
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--postgres", help="URL of a database")
    given = parser.parse_args()
    answer = one_answer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = record_us(folder, answer) | whole_asks(folder)
        figures |= stored("sqlite", f"sqlite:///{folder / 'rows.db'}", answer)
        if given.postgres is not None:
            figures |= stored("postgresql", given.postgres, answer)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    machine = (
        f"{os.cpu_count()} cores, load {load:.1f}, {platform.machine()}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}"
    )
    print(f"{datetime.now(UTC).date()}, {machine}")
    for key, value in figures.items():
        way, limit = LIMITS.get(key, ("", None))
        passed = "" if limit is None else "ok" if (value <= limit if way == "at most" else value >= limit) else "OVER"
        print(f"  {key:40} {value:12,.0f}   {f'{way} {limit:g}' if limit is not None else '':14} {passed}")


if __name__ == "__main__":
    main()
