"""Agents offline: one of two models for a whole task, chosen from the task alone, at matched cost.

    python benchmarks/whole_tasks.py ../shared/data/requests

tau2_retail: 61 customer conversations with tools; swebench_agent: 305 issues. A task's success and cost are means over
the runs of a model. The router is a ridge regression of what the dear model gains on a task's own words (tau2: the
customer's first message; SWE-bench has no text in the log: the repository), predicted for each task from the other nine
tenths of the tasks, in 20 random divisions into tenths (±: their standard deviation). It sends the
tasks with the largest predicted gain to the dear model. A coin does so at random (± its standard deviation); "knows"
knows each task's outcome. All are compared at the same mean cost, one, two and three quarters of the way from the cheap
model to the dear one. There are too few tasks to certify anything.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[fit]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from cascade.conformal.arrays import Floats

PAIRS = (
    ("tau2_retail", "gpt-5-nano", "gpt-5-mini"),
    ("tau2_retail", "gpt-5-nano", "gpt-4.1-mini"),
    ("swebench_agent", None, None),
)
"""A data set, its cheap and its dear model; None: the best one, and the cheapest that solves half of what it does."""
SHARES, FOLDS, DIVISIONS, SEED, DRAWS = (0.25, 0.5, 0.75), 10, 20, 0, 2_000


class Tasks(NamedTuple):
    """One pair on its common tasks: words, success and cost (n, 2), the cheap model first; cost in USD."""

    name: str
    words: list[str]
    right: Floats
    cost: Floats


def read(folder: Path, name: str, cheap: str | None, dear: str | None) -> Tasks:
    """Return a pair's tasks."""
    columns = ["request_id", "group", "messages_json", "model", "correct", "cost_nano_usd"]
    rows = pq.read_table(folder / f"{name}.parquet", columns=columns).to_pylist()
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    words: dict[str, str] = {}
    for row in rows:
        if row["correct"] is not None and row["cost_nano_usd"] is not None:
            found[row["model"]][row["request_id"]].append((float(row["correct"]), row["cost_nano_usd"] / 1e9))
            words[row["request_id"]] = _words(row)
    if cheap is None or dear is None:
        cheap, dear = _apart(found)
    shared = sorted(found[cheap].keys() & found[dear].keys())
    means = np.array([[np.mean(found[model][task], axis=0) for model in (cheap, dear)] for task in shared])
    return Tasks(f"{name}: {cheap} > {dear}", [words[task] for task in shared], means[:, :, 0], means[:, :, 1])


def _words(row: dict[str, Any]) -> str:
    """Return what is known of a task before it begins."""
    said = [one for one in json.loads(row["messages_json"] or "[]") if one["role"] == "user"]
    return str(said[0]["content"]) if said else str(row["group"])


def _apart(found: dict[str, dict[str, list[tuple[float, float]]]]) -> tuple[str, str]:
    """Return the best model and, of those that solve at least half of what it does, the cheapest."""
    worth = {model: np.mean([one for runs in tasks.values() for one in runs], axis=0) for model, tasks in found.items()}
    dear = max(worth, key=lambda model: worth[model][0])
    able = [model for model in worth if worth[model][0] >= worth[dear][0] / 2 and model != dear]
    return min(able, key=lambda model: worth[model][1]), dear


def routed(tasks: Tasks, order: Sequence[int], budget: float) -> float:
    """Return the success of a router that sends tasks to the dear model in an order, at exactly a mean cost."""
    chosen = np.array(order)
    more = np.concatenate([[0.0], np.cumsum((tasks.cost[:, 1] - tasks.cost[:, 0])[chosen])]) / len(chosen)
    gain = np.concatenate([[0.0], np.cumsum((tasks.right[:, 1] - tasks.right[:, 0])[chosen])]) / len(chosen)
    left = budget - tasks.cost[:, 0].mean()
    last = int(np.flatnonzero(more <= left)[-1])
    if last == len(chosen):
        return float(tasks.right[:, 0].mean() + gain[-1])
    part = (left - more[last]) / (more[last + 1] - more[last])
    return float(tasks.right[:, 0].mean() + gain[last] + part * (gain[last + 1] - gain[last]))


def lines(tasks: Tasks) -> Iterator[str]:
    """Yield a pair's rows."""
    gain = tasks.right[:, 1] - tasks.right[:, 0]
    model = make_pipeline(TfidfVectorizer(min_df=2), Ridge(1.0))
    predicted = [
        cross_val_predict(model, tasks.words, gain, cv=KFold(FOLDS, shuffle=True, random_state=SEED + division))
        for division in range(DIVISIONS)
    ]
    rng = np.random.default_rng(SEED)
    low, high = (float(one) for one in tasks.cost.mean(axis=0))
    yield f"| {tasks.name}, {len(gain)} tasks | always small | {low:.4f} | {tasks.right[:, 0].mean():.3f} | | |"
    for share in SHARES:
        budget = low + share * (high - low)
        coins = [routed(tasks, rng.permutation(len(gain)).tolist(), budget) for _ in range(DRAWS)]
        routers = [routed(tasks, np.argsort(-by).tolist(), budget) for by in predicted]
        knows = routed(tasks, np.argsort(-gain).tolist(), budget)
        coin, router = (f"{np.mean(one):.3f} ± {np.std(one):.3f}" for one in (coins, routers))
        yield f"| | {share:.2f} of the way | {budget:.4f} | {coin} | {router} | {knows:.3f} |"
    yield f"| | always large | {high:.4f} | {tasks.right[:, 1].mean():.3f} | | |"


def main() -> int:
    """Print the table."""
    print("| pair | cost | USD a task | coin | router | knows |\n|---|---|---|---|---|---|")
    for pair in PAIRS:
        print("\n".join(lines(read(Path(sys.argv[1]), *pair))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
