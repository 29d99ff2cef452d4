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
from cascade.logs.schema import BASE_ONLY, GUIDE_ONLY
from cascade.table import Log

pytest.importorskip("pyarrow")
SHARED = Path(cascade.__file__).parents[1].parent / "shared" / "data"
data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared logs are not beside the project")
LADDER = "qwen2.5-3b,phi-4-mini>gemini-1.5-pro"


class Seen(NamedTuple):
    """What `cascade compare --json` prints of a log, a document a data set, and what it read."""

    documents: dict[str, dict[str, Any]]
    logs: dict[str, Log]


def seen(episodes: Path, splits: int = 1) -> Seen:
    """Compare every way to answer on a log."""
    opened = cascade.open_log(str(episodes), tell=lambda _: None)
    found = cascade.compare(opened, Promise("coverage", 0.1), splits=splits, tell=lambda _: None)
    documents = json.loads(json.dumps(found.to_dict(), allow_nan=False))["studies"]
    return Seen({one["log"]: one for one in documents}, {read.log.name: read.log for read in opened.reads})


@cache
def log(name: str) -> Seen:
    """Return what one of the shared logs gave: read and compared once for all tests."""
    return seen(SHARED / f"{name}.parquet")


def cut(name: str, target: Path, *, pair: str | None = None, every: int = 1, rows: int | None = None) -> Path:
    """Write some rows of a log of one round into a log of their own: of one pair, every so many, the first so many."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(SHARED / f"{name}.parquet")
    if pair is not None:
        table = table.filter(pc.equal(table["pair"], pair))
    chosen = table.take(pa.array(range(0, table.num_rows, every))).slice(0, rows)
    pq.write_table(chosen, target)
    return target


def shares(log: Log) -> tuple[float, ...]:
    """Return how often the base alone, the guide alone and some answer of the log is right."""
    guide = log.right[:, 1] == 1 if log.reference is None else log.reference.right
    some = (log.right == 1).any(axis=1)
    return tuple(float(right.mean()) for right in (log.baselines[BASE_ONLY].right, guide, some))


def sane(document: dict[str, Any]) -> None:
    """Check what holds for every comparison."""
    assert document["ways"][-1]["name"] == "cascade fit"
    for way in document["ways"]:
        assert 0 <= way["right"] <= 1
        assert 0 <= way["risk"] <= 1 - way["right"] + 1e-12 or way["name"] in {"reference alone", "random"}
        assert way["cost_share"] is None or way["cost_share"]["mean"] >= 0
        kept = way["risk"] <= 0.1 and way["name"] not in {BASE_ONLY, *BASELINES}
        if document["bound"] is not None and kept and way["cost_share"] is not None:
            assert way["cost_share"]["mean"] >= document["bound"] * (1 - 1e-9), way["name"]


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
def test_the_tables_say_what_the_sources_say_and_every_way_to_answer_runs(name: str) -> None:
    found = log(name)
    for dataset, (n, *figures) in PUBLISHED[name].items():
        assert found.logs[dataset].n == n
        assert shares(found.logs[dataset]) == pytest.approx(figures, abs=6e-4), dataset
    assert list(found.documents) == list(found.logs)
    for document in found.documents.values():
        sane(document)


@data
def test_intercode_gets_better_turn_by_turn() -> None:
    turns = log("episodes_intercode").logs["intercode_sql/gpt-3.5-turbo>gpt-4"].right[:, ::2]
    base = np.logical_or.accumulate(turns == 1, axis=1).mean(axis=0)
    assert (base.size, base[0], base[-1]) == (4, pytest.approx(0.085, abs=6e-4), pytest.approx(0.289, abs=6e-4))


@data
@pytest.mark.long
def test_a_ladder_has_its_rungs_and_the_guide_above_them() -> None:
    ladder = log("episodes_zell_mmlu").logs["zell_mmlu/llama-1b,3b,8b,70b>gpt-4o"]
    assert (ladder.width, ladder.decides.all()) == (5, True)
    assert shares(ladder)[:2] == pytest.approx((0.422, 0.829), abs=6e-4)


@data
@pytest.mark.long
def test_mint_over_all_its_sets() -> None:
    found = log("mint_rounds")

    def right(base: str, walk: str) -> tuple[int, float]:
        ending = f"/gpt-3.5-turbo-0613 {base}>gpt-4-0613 alone-max5"
        chosen = [log for name, log in found.logs.items() if name.endswith(ending)]
        n, right = sum(log.n for log in chosen), 0.0
        for log in chosen:
            assert log.reference is not None
            right += float((log.reference if walk == GUIDE_ONLY else log.baselines[walk]).right.sum())
        return n, right / n

    assert right("alone-max5", BASE_ONLY) == (452, pytest.approx(0.345, abs=6e-4))
    assert right("gpt4-feedback-max5", BASE_ONLY) == (452, pytest.approx(0.469, abs=6e-4))
    assert right("alone-max5", GUIDE_ONLY) == (452, pytest.approx(0.650, abs=6e-4))
    for document in found.documents.values():
        sane(document)


@data
@pytest.mark.long
def test_routellm_one_answer_a_row() -> None:
    found = log("routellm")
    assert {name.partition("/")[0]: log.n for name, log in found.logs.items()} == {
        "routellm_gsm8k": 1_319,
        "routellm_mmlu": 14_042,
    }
    for document in found.documents.values():
        sane(document)


@data
def test_a_part_of_the_single_rounds(tmp_path: Path) -> None:
    found = seen(cut("episodes_single_round", tmp_path / "part.parquet", every=10))
    assert len(found.documents) == 14
    for document in found.documents.values():
        sane(document)


@data
@pytest.mark.long
def test_mmlu_pro_says_what_its_source_says_and_its_costs_are_not_known(tmp_path: Path) -> None:
    found = seen(cut("episodes_mmlu_pro", tmp_path / "part.parquet", pair="qwen2.5-3b>gemini-1.5-pro"))
    (only,) = found.logs.values()
    assert shares(only) == pytest.approx((0.362, 0.703, 0.756), abs=6e-4)
    ladder = seen(cut("episodes_mmlu_pro", tmp_path / "ladder.parquet", pair=LADDER, rows=1_000))
    for document in (*found.documents.values(), *ladder.documents.values()):
        sane(document)
        alone, *others = document["ways"]
        assert alone["cost_share"]["mean"] == 1  # of itself
        assert all(way["cost_share"] is None for way in others)


@data
@pytest.mark.long
def test_a_self_check_that_tells_little_gains_little() -> None:
    """How well it tells right answers from wrong ones; TruthfulQA is there as a negative control."""
    control = log("episodes_zell_truthfulqa").documents["zell_truthfulqa/llama-3b>gpt-4o"]
    telling = log("episodes_zell_mmlu").documents["zell_mmlu/llama-3b>gpt-4o"]
    assert control["why"]["auroc"] < 0.6
    assert telling["why"]["auroc"] > 0.7
