"""The kept logs: those that ship with the package or the tests, and published ones that lie beside the project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools
from cascade.episodes.table import EpisodeTable, Walk
from cascade.evaluation.logs import open_log
from cascade.types import BASE_ONLY, GUIDE_ONLY

TESTS = Path(__file__).resolve().parents[1]
SHARED = TESTS.parents[1] / "shared" / "data"
LEAST = 200
"""A log of fewer questions is left out."""
MOST_MODELS = 5
"""Of a ladder of more models no part is taken by itself."""


class Source(NamedTuple):
    """A log to open: its name, its file (None: it ships with the package), its models (empty: as they are)."""

    name: str
    file: str | None = None
    models: Sequence[str] = ()

    @property
    def place(self) -> Path:
        return (TESTS / "golden" if self in SHIPPED else SHARED) / str(self.file)


SHIPPED = (
    Source("demo"),
    Source("demo-ladder"),
    Source("demo-requests"),
    Source("golden ladder", "ladder.parquet"),
    Source("golden rounds", "rounds.parquet"),
)
PUBLISHED = (
    Source("mbpp", "episodes_firstpass_mbpp.parquet"),
    Source("intercode", "episodes_intercode.parquet"),
    Source("uala", "episodes_uala.parquet"),
    Source("gsm8k", "episodes_zell_gsm8k.parquet"),
    Source("mmlu", "episodes_zell_mmlu.parquet"),
    Source("truthfulqa", "episodes_zell_truthfulqa.parquet"),
    Source("mmlu_pro", "episodes_mmlu_pro.parquet"),
    Source("single_round", "episodes_single_round.parquet"),
    Source("bfcl_v1", "requests/bfcl_v1.parquet", ("gpt-4o-mini-2024-07-18-FC", "gpt-4o-2024-08-06-FC")),
    Source("bfcl_v4_live", "requests/bfcl_v4_live.parquet"),
    Source("swebench_agent", "requests/swebench_agent.parquet"),
    Source("css", "requests/css_classification.parquet", ("flan-t5-xxl", "gpt-3.5-turbo (March 2023)")),
)
QUICK = ("demo-ladder", "golden ladder", "mbpp", "gsm8k")
"""The logs that every run of the suite compares; `make long` compares all."""


def tables(source: Source) -> Iterator[EpisodeTable]:
    """Yield the data sets of a log that are large enough."""
    given = source.name if source.file is None else str(source.place)
    for table in open_log(given, models=source.models).tables:
        if source in SHIPPED or table.n >= LEAST:
            yield table


def rungs(table: EpisodeTable) -> Iterator[EpisodeTable]:
    """Yield the ladders and pairs within a ladder that every model answered: without the first, each with the last."""
    steps = table.arrays
    if (
        not 3 <= steps.horizon <= MOST_MODELS
        or steps.answer.shape[2] > 1
        or not bool((steps.steps == steps.horizon).all())
    ):
        return
    last = steps.horizon
    for numbers in dict.fromkeys((tuple(range(2, last + 1)), *((rung, last) for rung in range(1, last)))):
        yield _only(table, numbers)


def _only(table: EpisodeTable, numbers: tuple[int, ...]) -> EpisodeTable:
    fewer = table.only(numbers)
    name = f"{table.dataset}, rungs {','.join(map(str, numbers))}"
    return replace(fewer, dataset=name, walks={BASE_ONLY: _alone(fewer, 0), GUIDE_ONLY: _alone(fewer, -1)})


def _alone(table: EpisodeTable, step: int) -> Walk:
    steps, one = table.arrays, np.ones(table.n, dtype=np.int64)
    known: Bools = np.ones(table.n, dtype=np.bool_)
    right = steps.correct[:, step, 0]
    return Walk(known, right, right, steps.cost[:, step], one, one, one)
