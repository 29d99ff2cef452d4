"""A simulated ladder whose models are sure on different scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from unit.evaluation.plain import row

COSTS = (1, 4, 20, 100)
SCALES = (1.0, 30.0, 0.05)
"""How far each model's log-probs spread: confidences of three models on three scales."""


def ladder(n: int, models: int = 4, seed: int = 3) -> EpisodeTable:
    """Return a ladder whose models know which of their answers are right, each on a scale of its own."""
    rng, rows = np.random.default_rng(seed), []
    for q in range(n):
        hard = float(rng.random())
        for step in range(1, models + 1):
            last = step == models
            right = bool(hard < (0.95 if last else 0.35 + 0.15 * step))
            doubt = float(np.clip(0.3 + (not right) * 0.5 + rng.normal() * 0.25, 0.01, None))
            signals = {"reply_mean_logprob": None if last else -doubt * SCALES[step - 1]}
            given: dict[str, Any] = {
                "horizon": models,
                "source": f"m{step}",
                "cost_nano_usd": COSTS[step - 1],
                "signals": signals,
            }
            rows.append(row(f"q{q}", step, correct=right, answer=f"{right} {step}", **given))
    return tables_from_rows(rows)[0]
