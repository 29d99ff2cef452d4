"""Write the record: what commit 9e9ecfed certifies and decides.

Tests compare the code that is here now with the record. They never run the old code. To make the record again, build
the wheel of that commit, install it with its pinned dependencies in an environment of its own, and run this script
there from the project's root:

    git worktree add ../old 9e9ecfed
    (cd ../old && python -m build --wheel)
    python -m venv ../old-venv
    ../old-venv/bin/pip install -c ../old/constraints.txt "$(ls ../old/dist/*.whl)[train]"
    ../old-venv/bin/python tests/record/make.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[0] = str(HERE.parent)

import cascade  # noqa: E402
from record import numbers  # noqa: E402
from record.outcomes import outcomes  # noqa: E402
from record.worlds import WORLDS, world  # noqa: E402


def main() -> None:
    """Write every file of the record."""
    if Path(cascade.__file__).is_relative_to(ROOT):
        sys.exit("This would record the code that is here, not that of the wheel.")
    lines = []
    for seed in range(WORLDS):
        made = world(seed)
        lines.append(json.dumps([seed, made.digest, outcomes(made)], separators=(",", ":")))
    (HERE / "worlds.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    tables = {"exact": numbers.exact(), "near": numbers.near()}
    (HERE / "numbers.json").write_text(json.dumps(tables, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
