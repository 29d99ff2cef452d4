"""The pairs and ladders of the shared logs on which a certified cascade could save something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from fitted.cells import FILES, LADDERS, LEAST_QUESTIONS, Cell, LeftOut, rungs, without_first, without_last

from cascade.calibration.scores import reference_cost
from cascade.conformal.arrays import Bools
from cascade.episodes.ladders import as_ladder
from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation.baselines import clairvoyant_cost
from cascade.evaluation.logs import Log, open_log
from cascade.guarantees.served_answer import Regret

WORTH = 0.9
"""A log has something to save where the clairvoyant pays no more than this share of the reference's cost."""
MULTI_TURN = "firstpass_mbpp/haiku-4.5>sonnet-5 multi-turn"
"""Its later turns exist only where the base failed; the same two models are the pair "judged"."""


def read(folder: Path, names: Sequence[str] = ()) -> tuple[list[Cell], list[LeftOut]]:
    """Return every pair and ladder, whether or not there is anything to save, and the logs that cannot be used.

    Args:
        folder: where the logs are.
        names: parts of the names that are wanted; all by default.
    """
    found: dict[str, EpisodeTable] = {}
    for file in FILES:
        path = folder / f"episodes_{file}.parquet"
        if path.exists():
            for table in _tables(open_log(str(path))):
                found.setdefault(table.dataset, table)
    for table in list(found.values()):
        for one in _derived(table):
            found.setdefault(one.dataset, one)
    wanted = [one for name, one in found.items() if not names or any(part in name for part in names)]
    left = [LeftOut(one.dataset, why) for one in wanted if (why := unusable(one)) is not None]
    barred = {one.name for one in left}
    return [Cell(one.dataset, one.dataset.split("/")[0], one) for one in wanted if one.dataset not in barred], left


def _tables(log: Log) -> Iterator[EpisodeTable]:
    """Yield the data sets; rounds of two models as the pair of both asked outright."""
    rounds = {table.dataset for table in log.tables if table.sources != ("answer",)} - {MULTI_TURN}
    yield from (table for table in log.tables if table.dataset not in rounds)
    if rounds:
        yield from tables_from_rows(as_ladder(row for row in log.rows() if row["dataset"] in rounds))


def _derived(table: EpisodeTable) -> Iterator[EpisodeTable]:
    """Yield the ladders and the pairs within a ladder of five models."""
    source, _, models = table.dataset.partition("/")
    five = [name.partition("/")[2] for name in LADDERS]
    if models not in five:
        return
    yield with_walks(without_first(table))
    if models == five[0]:
        yield with_walks(without_last(table))
    names, last = models.split(">")[0].removeprefix("llama-").split(","), models.split(">")[1]
    for rung, name in enumerate(names):
        yield with_walks(rungs(table, (rung, table.arrays.horizon - 1), f"{source}/llama-{name}>{last}"))


def with_walks(table: EpisodeTable) -> EpisodeTable:
    """Return a ladder of one answer a step, all of them on record, with what its first and its last model do alone."""
    return replace(table, walks={BASE_ONLY: _alone(table, 0), GUIDE_ONLY: _alone(table, table.arrays.horizon - 1)})


def _alone(table: EpisodeTable, rung: int) -> Walk:
    steps, one = table.arrays, np.ones(table.n, dtype=np.int64)
    known, right = np.ones(table.n, dtype=np.bool_), steps.correct[:, rung, 0]
    return Walk(known, right, right, steps.cost[:, rung], one, one, one)


def unusable(table: EpisodeTable) -> str | None:
    """Return why no regret can be measured on a log; None if it can."""
    if table.dataset == MULTI_TURN:
        return "rounds, the later ones only where the base failed; the same two models are read as a pair"
    if len(set(table.groups)) < LEAST_QUESTIONS:
        return f"fewer than {LEAST_QUESTIONS} questions"
    if not table.cost_known:
        return "some costs are unknown"
    if not bool(_complete(table).all()):
        return "not every model answered every question"
    return None


def _complete(table: EpisodeTable) -> Bools:
    known = table.arrays.steps == table.arrays.horizon
    return np.asarray(known & np.all([walk.known for walk in table.walks.values()], axis=0), dtype=np.bool_)


def saves(table: EpisodeTable, alpha: float) -> float:
    """Return what the clairvoyant pays at a regret of alpha, as a share of the reference's cost."""
    best, paid = clairvoyant_cost(table, Regret(), alpha), reference_cost(table)
    if best is None or paid is None:
        raise UsageError(f"{table.dataset} lacks a reference or its cost.")
    return best / paid
