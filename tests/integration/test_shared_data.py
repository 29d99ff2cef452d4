"""The comparison on real logs, and on worlds: it runs, and says of them what their sources say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cascade
from cascade.collection.collector import BASELINES
from cascade.conformal.promise import Promise
from cascade.table import Log
from cascade.types import BASE_ONLY

pytest.importorskip("duckdb")
SHARED = Path(cascade.__file__).parents[1].parent / "shared" / "data"
data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared logs are not beside the project")


class Seen(NamedTuple):
    """What `cascade compare --json` prints of a log, a document a data set, and what it read."""

    documents: dict[str, dict[str, Any]]
    logs: dict[str, Log]


def seen(episodes: Path, splits: int = 1) -> Seen:
    """Compare every method on a log."""
    opened = cascade.open_log(str(episodes), tell=lambda _: None)
    comparison = cascade.compare(opened, Promise("coverage", 0.1), splits=splits, tell=lambda _: None)
    documents = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))["studies"]
    return Seen({study["log"]: study for study in documents}, {read.log.name: read.log for read in opened.datasets})


@cache
def log(name: str) -> Seen:
    """Return what one of the shared logs gave: read and compared once for all tests."""
    return seen(SHARED / f"{name}.parquet")


def shares(log: Log) -> tuple[float, ...]:
    """Return how often the base alone, the guide alone and some answer of the log is right."""
    guide = log.right[:, 1] == 1 if log.reference is None else log.reference.right
    some = (log.right == 1).any(axis=1)
    return tuple(float(right.mean()) for right in (log.baselines[BASE_ONLY].right, guide, some))


def sane(document: dict[str, Any]) -> None:
    """Check what holds for every comparison."""
    assert document["methods"][-1]["name"] == "cascade fit"
    for method in document["methods"]:
        assert 0 <= method["right"] <= 1
        assert 0 <= method["risk"] <= 1 - method["right"] + 1e-12 or method["name"] in {"reference alone", "random"}
        assert method["cost_share"] is None or method["cost_share"]["mean"] >= 0
        certified = method["risk"] <= 0.1 and method["name"] not in {BASE_ONLY, *BASELINES}
        if document["bound"] is not None and certified and method["cost_share"] is not None:
            assert method["cost_share"]["mean"] >= document["bound"] * (1 - 1e-9), method["name"]


# Questions, and how often base, guide and some answer are right, as data/README.md has them.
PUBLISHED = {
    "episodes_zell_mmlu": {
        "zell_mmlu/llama-3b>gpt-4o": (1_816, 0.573, 0.829, 0.882),
        "zell_mmlu/gpt-4o-mini>gpt-4o": (1_816, 0.747, 0.829, 0.874),
    },
    "episodes_zell_truthfulqa": {"zell_truthfulqa/llama-3b>gpt-4o": (817, 0.417, 0.736, 0.780)},
    "episodes_zell_gsm8k": {"zell_gsm8k/llama-3b>gpt-4o": (300, 0.897, 0.950, 0.973)},
    "episodes_firstpass_mbpp": {
        "firstpass_mbpp/haiku-4.5>sonnet-5 multi-turn": (974, 0.808, 0.928, 0.967),
        "firstpass_mbpp/haiku-4.5>opus-4.8": (974, 0.783, 0.944, 0.950),
    },
    "episodes_intercode": {"intercode_sql/gpt-3.5-turbo>gpt-4": (1_034, 0.085, 0.071, 0.526)},
    "episodes_uala": {
        "uala_hotpotqa/direct>ReAct": (500, 0.346, 0.320, 0.452),
        "uala_mmlu/direct>ReAct": (570, 0.695, 0.540, 0.786),
        "uala_strategyqa/direct>ReAct": (229, 0.550, 0.555, 0.716),
    },
}


LARGE = {"episodes_zell_mmlu", "episodes_zell_truthfulqa"}


@data
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in sorted(PUBLISHED)]
)
def test_the_tables_say_what_the_sources_say_and_every_way_to_answer_runs(name):
    compared = log(name)
    for dataset, (n, *figures) in PUBLISHED[name].items():
        assert compared.logs[dataset].n == n
        assert shares(compared.logs[dataset]) == pytest.approx(figures, abs=6e-4), dataset
    assert list(compared.documents) == list(compared.logs)
    for document in compared.documents.values():
        sane(document)


@data
def test_intercode_gets_better_turn_by_turn():
    turns = log("episodes_intercode").logs["intercode_sql/gpt-3.5-turbo>gpt-4"].right[:, ::2]
    base = np.logical_or.accumulate(turns == 1, axis=1).mean(axis=0)
    assert (base.size, base[0], base[-1]) == (4, pytest.approx(0.085, abs=6e-4), pytest.approx(0.289, abs=6e-4))
