"""Logs for the tests of calibration: simulated worlds, given models, groups and repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from simulated import WORLDS, simulate

from cascade.config import CascadeConfig, load, policy_section
from cascade.episodes.table import EpisodeTable
from cascade.factory import policy_of

SECTION = policy_section({"kind": "threshold"})
POLICY = policy_of(SECTION)
WORLD = WORLDS["hotpotqa/llama-2-7b"]
MODELS = {"base": ("small",), "guide": ("large",)}


def log(
    n: int, seed: int = 0, *, groups: Sequence[str] | None = None, segments: Sequence[str] | None = None
) -> EpisodeTable:
    """Return n questions of a world whose models are called small and large."""
    table = simulate(WORLD, n, seed)
    groups, segments = table.groups if groups is None else groups, table.segments if segments is None else segments
    return replace(table, models=MODELS, groups=tuple(groups), segments=tuple(segments))


def config(**more: Any) -> CascadeConfig:
    """Return a cascade that could have made such a log."""
    models = {
        "base": {"model": "small", "price": {"input": 1.0, "output": 2.0}},
        "guide": {"model": "large", "price": {"input": 5.0, "output": 15.0}},
    }
    return load({"models": models, "strategy": {"kind": "base_guide", "rounds": WORLD.rounds}} | more)


def some(table: EpisodeTable, *rows: int) -> EpisodeTable:
    """Return rows of a log, repetitions allowed."""
    return table.take(np.array(rows, dtype=np.int64))
