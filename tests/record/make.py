"""Write the record: what commit 9e9ecfed certifies and decides.

Tests compare the code that is here now with the record. They never run the old code. To make the record again, build
the wheel of that commit, install it with its pinned dependencies in an environment of its own, and run this script
there from the project's root. The published logs are expected in `../shared/data` (`logs`).

    git worktree add ../old 9e9ecfed
    (cd ../old && python -m build --wheel)
    python -m venv ../old-venv
    ../old-venv/bin/pip install -c ../old/constraints.txt "$(ls ../old/dist/*.whl)[train]"
    ../old-venv/bin/python tests/record/make.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[0] = str(HERE.parent)

import cascade  # noqa: E402
from record import logs, networks, numbers, outcomes, policies  # noqa: E402
from record.worlds import WORLDS, world  # noqa: E402

Lines = Iterator[list[Any]]


def random_logs() -> Lines:
    """Yield of each random log its number, its digest and what is certified on it."""
    for seed in range(WORLDS):
        made = world(seed)
        yield [seed, made.digest, outcomes.outcomes(made)]


def kept_logs() -> Lines:
    """Yield of each kept log its source, its data set and what fixed policies are certified for."""
    for source in (*logs.SHIPPED, *logs.PUBLISHED):
        for table in logs.tables(source):
            yield [source.name, table.dataset, policies.outcomes(table)]


def write(name: str, lines: Iterable[Any]) -> None:
    """Write a file of the record, a line for each value."""
    text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)
    (HERE / name).write_text(text, "utf-8")


def main() -> None:
    """Write every file of the record."""
    if Path(cascade.__file__).is_relative_to(ROOT):
        sys.exit("This would record the code that is here, not that of the wheel.")
    write("numbers.json", [{"exact": numbers.exact(), "near": numbers.near()}])
    write("networks.jsonl", networks.trained())
    write("kept.jsonl", kept_logs())
    write("worlds.jsonl", random_logs())


if __name__ == "__main__":
    main()
