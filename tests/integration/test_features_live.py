"""What a fitted policy looks at is the same live as on the log: every feature of every step of every demo episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from unit.policies.every_feature import differing, every_name

from cascade.calibration.scores import history_of
from cascade.demo.requests import PAIR, demo_config
from cascade.episodes.files import read_rows
from cascade.episodes.ladders import as_ladder
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.orchestrator import Orchestrator
from cascade.policies.base import Observation, Policy, Scores
from cascade.policies.features import FeatureSet, offered
from cascade.providers.replay import Replay
from cascade.types import Question

pytest.importorskip("pyarrow")


class Watcher(Policy):
    """A policy that goes on to the end and keeps what it was shown."""

    kappa = 0.0

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def scores(self, observation: Observation) -> Scores:
        self.seen.append(observation)
        return Scores((0.0,) * len(observation.step.candidates), 1.0)


class Demo(NamedTuple):
    rows: list[Mapping[str, Any]]
    table: EpisodeTable
    questions: list[Question]


def read(rows: Iterable[Mapping[str, Any]]) -> Demo:
    held = list(rows)
    (table,) = tables_from_rows(held)
    found = {row["episode_id"]: Question(row["question"], row["context"]) for row in held}
    return Demo(held, table, [found[name] for name in table.ids])


@pytest.fixture(scope="module")
def log() -> list[dict[str, Any]]:
    return list(read_rows(Path(str(resources.files("cascade").joinpath("data/demo_log.parquet")))))


def compare(demo: Demo, settings: Mapping[str, Any]) -> set[str]:
    """Ask every question again of the log itself; return the names that were ever known."""
    history, watcher = history_of(demo.table), Watcher()
    names = every_name(demo.table.signals, demo.table.sources)
    features = FeatureSet(names, demo.table.sources)
    with Orchestrator.from_config(settings, providers={"replay": Replay.of(demo.rows)}) as orchestrator:
        orchestrator.runtime._bare = watcher
        for question in demo.questions:
            orchestrator.ask(question)
    known: set[str] = set()
    for step in range(1, history.horizon + 1):
        reached = [one for one in watcher.seen if len(one.steps) == step]
        rows = np.flatnonzero(history.steps >= step)
        assert [one.question for one in reached] == [demo.questions[row] for row in rows]
        wanted = features.table(history, step)[rows]
        assert not differing([features.live(one) for one in reached], wanted, names)
        known |= {name for name, column in zip(names, wanted.T, strict=True) if not np.isnan(column).all()}
        assert len(offered(history, step)) > 5
    return known


def test_the_pair_sees_live_what_its_log_says(log: list[dict[str, Any]]) -> None:
    demo = read(row for row in log if row["walk"] is None)
    made = demo_config(*PAIR).model_dump(mode="json", exclude_none=True)
    known = compare(demo, {**made, "provider": "replay:the log"})
    wanted = {"p_yes.change", "confidence[guide].least", "repeats[base]", "same[base,guide]", "votes", "distinct"}
    assert wanted | {"tokens_so_far", "cost_so_far", "asked.words"} <= known
    assert not {"no_such_signal", "asked.nothing", "equals.at4"} & known


def test_a_ladder_sees_live_what_its_log_says(log: list[dict[str, Any]]) -> None:
    demo = read(as_ladder(log))
    made = demo_config(*PAIR).model_dump(mode="json", exclude_none=True)
    ladder = {"kind": "ladder", "models": ["base", "guide"]}
    settings = {**made, "strategy": ladder, "policy": {"kind": "fixed"}, "provider": "replay:the log"}
    known = compare(demo, settings)
    assert {"answer_mean_logprob.at1", "equals.at1", "votes", "tokens_so_far", "cost_so_far"} <= known
