"""How fast a large log is read from Parquet, and what memory that takes: neither may grow with the file.

    python benchmarks/parquet.py                 # 10^5, 10^6 and 3·10^6 rows
    python benchmarks/parquet.py --rows 1000000

Files are made in a temporary folder; each is read by a process of its own, whose peak is its own.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[parquet]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cascade.logs.files import read_rows, write_rows
from cascade.logs.schema import COLUMNS

SEED_ROWS = 65_536
STEPS = 4


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Make rows of episodes of four steps of two candidates, as a collected log has them, without log-probs."""
    for i in range(count):
        episode, place = divmod(i, 2 * STEPS)
        step, candidate = divmod(place, 2)
        yield dict.fromkeys(COLUMNS) | {
            "episode_id": f"{episode:016x}",
            "dataset": "benchmark",
            "split": "log",
            "group": f"{episode // 3:016x}",
            "question": f"Which of the rivers of the country number {episode} flows through its capital?",
            "gold": [f"River {episode % 1009}", f"{episode % 1009}"],
            "step": 1 + step,
            "horizon": STEPS,
            "candidate": candidate,
            "source": ("base", "guide")[candidate],
            "model": ("small", "large")[candidate],
            "answer": f"River {(episode * 7 + place) % 1009}",
            "text": f"Reasoning: it is the {(episode * 7 + place) % 1009}th by its length.\nAnswer: River.",
            "correct": (episode * 7 + place) % 3 == 0,
            "confidence": (i * 37 % 1000) / 1000,
            "signals": {"p_yes": (i * 31 % 1000) / 1000, "reply_mean_logprob": -(i % 977) / 977, "answer_chars": 9.0},
            "input_tokens": 40 + i % 100,
            "output_tokens": 9 + i % 20,
            "cost_nano_usd": 1000 + i % 100_000,
            "latency_ms": 12.5,
            "created_at": "2026-11-21T10:00:00.000+00:00",
        }


def make(path: Path, seed: Path, count: int) -> None:
    """Write a file of so many rows: the seed's, over and over, each time under ids of their own."""
    table = pq.read_table(seed)
    at = table.schema.get_field_index("episode_id")
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for number, first in enumerate(range(0, count, table.num_rows)):
            ids = pa.array([f"{number}-{one}" for one in table.column(at).to_pylist()])
            piece = table.set_column(at, table.schema.field(at), ids).slice(0, count - first)
            writer.write_table(piece, row_group_size=16_384)


def read(path: str) -> dict[str, Any]:
    """Read a file in this process, and say what it took."""
    before = peak_mb()
    started, cpu_started = time.perf_counter(), time.process_time()
    count = sum(1 for _ in read_rows(path))
    return {
        "rows": count,
        "s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu_started,
        "peak_mb": peak_mb(),
        "grown_mb": peak_mb() - before,
        "arrow_mb": pa.default_memory_pool().max_memory() / 2**20,
    }


def peak_mb() -> float:
    """Return the most memory that this process has held. Linux's own `ru_maxrss` counts what its parent held too."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def in_a_process(path: Path) -> dict[str, Any]:
    """Read a file in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--read", path], capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Make the files, read them, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 3_000_000])
    parser.add_argument("--read", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.read:
        print(json.dumps(read(chosen.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        seed = Path(folder, "seed.parquet")
        started = time.process_time()
        write_rows(seed, rows(SEED_ROWS))
        print(f"writing: {SEED_ROWS / (time.process_time() - started):,.0f} rows a second of one core")
        for count in chosen.rows:
            path = Path(folder, "log.parquet")
            make(path, seed, count)
            print(f"\n{count:,} rows, {path.stat().st_size / 2**20:.0f} MB")
            print(shown(in_a_process(path)))


def shown(took: dict[str, Any]) -> str:
    """Return a reading's figures in a line."""
    micros = took["s"] / took["rows"] * 1e6
    return (
        f"  {took['s']:.2f} s ({took['cpu_s']:.2f} s of one core), {micros:.2f} µs a row; peak "
        f"{took['peak_mb']:.0f} MB, {took['grown_mb']:.0f} more than before it, Arrow's share {took['arrow_mb']:.0f}"
    )


if __name__ == "__main__":
    main()
