"""How long `import` and `fit` of a log take, and how much memory: a pair with one log-prob, each verb a process.

python benchmarks/scale.py [REQUESTS …]     # 100000 and 1000000 without numbers
"""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

FIT = ("--promise", "regret", "--risk", "0.05", "--confidence", "0.9", "--force")


def write_pair(path: Path, requests: int) -> None:
    """Write a flat table of a small and a large model, whose log-prob tells which answers are right."""
    chance = random.Random(1)
    columns = (
        "question small_answer small_correct small_cost_usd small_logprob large_answer large_correct large_cost_usd"
    )
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns.split())
        for number in range(requests):
            ease, padding = chance.random(), "x" * 60
            question = f"Question {number}: what is {chance.randrange(10**9)} plus {chance.randrange(10**9)}? {padding}"
            small = f"answer {chance.randrange(5)}", int(chance.random() < 0.55 + 0.4 * ease)
            costs = f"{chance.uniform(1e-5, 1e-4):.9f}", f"{chance.uniform(1e-3, 1e-2):.9f}"
            large = f"answer {chance.randrange(5)}", int(chance.random() < 0.9)
            table.writerow(
                [question, *small, costs[0], f"{-2 * (1 - ease) - 0.2 * chance.random():.6f}", *large, costs[1]]
            )


def measured(command: list[str]) -> tuple[float, int]:
    """Return the CPU seconds of a command, and the most memory that it held, in MB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def main(sizes: list[int]) -> None:
    """Print the seconds and the memory of each verb at each size."""
    cascade = str(Path(sys.executable).with_name("cascade"))
    print(f"{'requests':>10}  verb    CPU s   MB")
    for requests in sizes:
        with tempfile.TemporaryDirectory() as folder:
            table, log, policy = (str(Path(folder, name)) for name in ("pair.csv", "pair.parquet", "policy"))
            write_pair(Path(table), requests)
            for verb in (["import", table, "-o", log], ["fit", log, *FIT, "-o", policy]):
                seconds, memory = measured([cascade, *verb])
                print(f"{requests:>10,}  {verb[0]:<6} {seconds:>6.1f} {memory:>5,}", flush=True)


if __name__ == "__main__":
    main([int(text.replace(",", "")) for text in sys.argv[1:]] or [100_000, 1_000_000])
