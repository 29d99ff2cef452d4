"""The public logs that benchmarks fit on: pairs and ladders whose costs are known and whose last model answers all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cascade.conformal.promise import Promise
from cascade.episodes.opening import open_log
from cascade.policies.policy import TIE, known_score
from cascade.studies.study import oracle_cost
from cascade.table import Log, Reference

LEAST_GROUPS = 200
WORTH = 0.9
"""A log has something to save where the oracle pays no more than this share of the reference's cost."""
FILES = (
    "firstpass_mbpp", "single_round", "uala", "zell_gsm8k", "zell_truthfulqa", "zell_mmlu", "mmlu_pro",
)  # fmt: skip
TOOLS, LIVE = "requests/bfcl_v1.parquet", "requests/bfcl_v4_live.parquet"
MINI, TURBO, GPT4O = "gpt-4o-mini-2024-07-18-FC", "gpt-3.5-turbo-0125-FC", "gpt-4o-2024-08-06-FC"
NEMO, NEMO_ANY, LARGE = "open-mistral-nemo-2407-FC-Auto", "open-mistral-nemo-2407-FC-Any", "mistral-large-2407-FC-Any"
CALLS = {
    "mini>4o": (MINI, GPT4O),
    "mini,nemo>4o": (MINI, NEMO, GPT4O),
    "mini,nemo,3.5>4o": (MINI, NEMO, TURBO, GPT4O),
    "3.5>4o": (TURBO, GPT4O),
    "nemo>4o": (NEMO, GPT4O),
    "nemo>large": (NEMO_ANY, LARGE),
}
"""Models of the Berkeley Function Calling Leaderboard, the cheapest first."""
NAMED, LENGTHS, LADDERS, V1, V4 = "named pairs", "length-only pairs", "ladders", "bfcl v1", "bfcl v4 live"
HAIKU = "firstpass_mbpp/haiku-4.5>opus-4.8"


class Cell(NamedTuple):
    """One log and the family that its figures are pooled in."""

    family: str
    log: Log

    def least(self, promise: Promise) -> float:
        """Return what the oracle pays, as a share of the reference's cost."""
        reference, least = self.log.reference, oracle_cost(self.log, promise)
        return 1.0 if reference is None or least is None else least / float(reference.cost_nano_usd.mean())


def cells(folder: Path) -> Iterator[Cell]:
    """Yield every log of the folder that a regret can be measured on, and the pairs and ladders within one of five."""
    for name in FILES:
        path = folder / f"episodes_{name}.parquet"
        whole = list(_read(path)) if path.exists() else []
        single = {each.name: each for log in whole for each in (*_within(log), log)}
        yield from (Cell(_family(each), each) for each in single.values())
    if (folder / TOOLS).exists():
        for name, models in CALLS.items():
            yield from (Cell(V1, replace(log, name=f"bfcl_v1/{name}")) for log in _read(folder / TOOLS, models))
    if (folder / LIVE).exists():
        yield from (Cell(V4, log) for log in _read(folder / LIVE))


def _read(path: Path, models: tuple[str, ...] = ()) -> Iterator[Log]:
    for each in open_log(str(path), models=models).datasets:
        log, reference = each.log, each.log.reference
        usable = reference is not None and reference.is_last and log.priced.all() and log.bought.all()
        if usable and len(set(log.groups)) >= LEAST_GROUPS:
            yield log


def _family(log: Log) -> str:
    if log.width > 2:
        return LADDERS
    score = known_score(log)
    return LENGTHS if score is None or score.signal == TIE else NAMED


def _within(log: Log) -> Iterator[Log]:
    """Yield what a ladder of five models contains: without its first, without its last, each model with the last."""
    if log.width != 5:
        return
    source, _, models = log.name.partition("/")
    first, last = models.removeprefix("llama-").split(">")
    rungs = first.split(",")
    yield replace(log.only((1, 2, 3, 4)), name=f"{source}/llama-{','.join(rungs[1:])}>{last}")
    if last == "gpt-4o":
        shorter = log.only((0, 1, 2, 3))
        fourth = Reference(shorter.right[:, 3], shorter.cost_nano_usd[:, 3], is_last=True)
        yield replace(shorter, reference=fourth, name=f"{source}/llama-{','.join(rungs[:-1])}>{rungs[-1]}")
    for at, rung in enumerate(rungs):
        yield replace(log.only((at, 4)), name=f"{source}/llama-{rung}>{last}")
