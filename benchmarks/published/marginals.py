"""What published tables say of a base-guide cascade, and the same figures of a table of episodes, exactly.

The tables are those of Si et al., Conformal Constrained Policy Optimization for Cost-Effective LLM Agents
(arXiv 2511.11828), Tables 2-9. Money is in cents for 200 questions there, and so it is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable

TEST_QUESTIONS = 200
"""What the tables' figures are taken on."""
MONEY_TOLERANCE = 0.03
"""Of a cost: the one-round cost of one and the same data set and base varies by this much between the tables' rows."""
_CENTS_PER_NANO_USD = 1e-7
_ACTIONS = 3
"""The base's answer, the guide's, another round: Random takes each with the same probability."""


_LENGTH_SD = 0.79
"""Standard deviation of Random's length: 1, 2, 3 or 4 with probabilities 18, 6, 2 and 1 of 27."""


@dataclass(frozen=True, slots=True)
class Published:
    """A figure of the tables: the name of its marginal, its value as printed, and where it is printed."""

    marginal: str
    value: float
    source: str

    @property
    def tolerance(self) -> float:
        """How near is near enough: one standard error on 200 questions, 3 % of an amount of money.

        >>> round(Published("UALA 1 coverage", 0.85, "Table 6, UALA").tolerance, 3)
        0.025
        """
        kind = self.marginal.rsplit(" ", 1)[-1]
        if kind == "coverage":
            return math.sqrt(self.value * (1.0 - self.value) / TEST_QUESTIONS)
        if kind in {"length", "leaves"}:
            return _LENGTH_SD / math.sqrt(TEST_QUESTIONS)
        return MONEY_TOLERANCE * self.value

    def matches(self, figures: Mapping[str, float]) -> bool:
        """Whether what `marginals` found is near enough."""
        return abs(figures[self.marginal] - self.value) <= self.tolerance


def marginals(table: EpisodeTable, *, yes_is_no_answer: bool = False) -> dict[str, float]:
    """Return the figures that the tables print and that follow from a log of base-guide rounds.

    "UALA L" keeps the judged answer of each of the first L rounds: the base's after a yes, the guide's after a no; that
    is the guide's candidate. "both L" keeps both answers. Coverage counts unsolvable questions as covered. Random's
    figures are exact expectations, no draws.

    Args:
        table: rounds of base and guide, with the walks of `simulate`.
        yes_is_no_answer: whether a guide that said yes gave no answer of its own, so that Random, choosing the guide,
            chooses nothing right (the second reading in `design/paper.md`).
    """
    arrays = table.arrays
    cents = TEST_QUESTIONS * _CENTS_PER_NANO_USD
    round_cents = arrays.cost.mean(axis=0) * cents
    found = {"one round cents": float(round_cents[0])}
    unsolvable = ~arrays.solvable
    for depth in range(1, arrays.horizon + 1):
        judged = arrays.correct[:, :depth, 1].any(axis=1)
        both = arrays.correct[:, :depth].any(axis=(1, 2))
        found[f"UALA {depth} leaves"], found[f"both {depth} leaves"] = float(depth), 2.0 * depth
        found[f"UALA {depth} coverage"] = _share(judged | unsolvable)
        found[f"UALA {depth} cents"] = float(round_cents[:depth].sum())
        found[f"both {depth} coverage"] = _share(both | unsolvable)
    found |= _random(table, round_cents, yes_is_no_answer=yes_is_no_answer)
    for name, walk in table.walks.items():
        found[f"{name} coverage"] = _share(walk.covered | unsolvable)
        found[f"{name} length"] = float(walk.length.mean())
        found[f"{name} leaves"] = float(walk.leaves.mean())
        found[f"{name} cents"] = float(walk.cost.mean() * cents)
    return found


def _share(true: Bools) -> float:
    return float(true.mean())


def _random(table: EpisodeTable, round_cents: Floats, *, yes_is_no_answer: bool) -> dict[str, float]:
    """Return the expectations of the policy that takes each of three actions with the same probability."""
    correct = table.arrays.correct
    reached = float(_ACTIONS) ** -np.arange(table.arrays.horizon)
    chosen = reached / _ACTIONS  # each of the two answers; in the last round there is nothing but them
    chosen[-1] = reached[-1] / 2
    guide = correct[:, :, 1] & (table.signals["p_yes"] < 0.5) if yes_is_no_answer else correct[:, :, 1]
    right = correct[:, :, 0].mean(axis=0) + guide.mean(axis=0)
    length = float(reached.sum())
    amount = float(reached @ round_cents)
    return {
        "Random coverage": float(chosen @ right) + _share(~table.arrays.solvable),
        "Random length": length,
        "Random leaves": 1.0,
        "Random cents": amount,
        "Random cents a round": amount / length,
    }


def _rows(source: str, **figures: float) -> tuple[Published, ...]:
    """Return one printed row; in the names, "_" stands for " " ("UALA_1_coverage")."""
    return tuple([Published(name.replace("_", " "), value, source) for name, value in figures.items()])


def _ualas(source: str, depth: int, cents: float, coverage: float) -> tuple[Published, ...]:
    """Return a row of UALA, whose length and set size are both its depth."""
    first = {"one round cents": cents} if depth == 1 else {f"UALA {depth} cents": cents}
    figures = {**first, f"UALA {depth} coverage": coverage, f"UALA {depth} leaves": float(depth)}
    return tuple([Published(name, value, f"{source}, UALA") for name, value in figures.items()])


def _one_round(source: str, cents: float, coverage: float) -> tuple[Published, ...]:
    """Return a row of a learned policy that keeps one answer after round 1: what judging alone can do."""
    return _rows(source, one_round_cents=cents, UALA_1_coverage=coverage)


def _random_row(source: str, cents: float, coverage: float, length: float) -> tuple[Published, ...]:
    figures = {"coverage": coverage, "length": length, "leaves": 1.0, "cents": cents, "cents a round": cents / length}
    return tuple([Published(f"Random {kind}", value, f"{source}, Random") for kind, value in figures.items()])


def _exit_row(source: str, who: str, cents: float, coverage: float, length: float) -> tuple[Published, ...]:
    figures = {"coverage": coverage, "length": length, "leaves": length, "cents": cents}
    return tuple([Published(f"LLM-exit, {who} {kind}", value, f"{source}, EXIT") for kind, value in figures.items()])


PUBLISHED: Mapping[str, tuple[Published, ...]] = MappingProxyType(
    {
        "hotpotqa/llama-2-7b": (
            *_ualas("Table 6", 1, 4.635, 0.850),
            *_one_round("Table 2, CPO (length 1.004)", 4.704, 0.832),
            *_one_round("Table 6, CPO", 4.711, 0.840),
            *_ualas("Table 2", 2, 9.153, 0.923),
            *_random_row("Tables 2 and 6", 6.811, 0.578, 1.44),
            *_exit_row("Table 2", "guide", 827.0, 0.908, 2.39),
            *_exit_row("Table 2", "base", 0.0, 0.653, 2.55),
        ),
        "hotpotqa/llama-3.2-3b": (
            *_one_round("Table 3, CPO", 4.655, 0.829),
            *_rows("Table 3, LLaMA-3.2-3b", one_round_cents=4.449),
            *_rows("Table 7, CPO (length 1.02)", UALA_1_coverage=0.846),
            *_ualas("Table 3", 2, 8.012, 0.923),
            *_ualas("Table 7", 3, 13.25, 0.970),
            *_random_row("Tables 3 and 7", 1.411, 0.610, 1.51),
            *_exit_row("Table 3", "guide", 827.0, 0.908, 2.39),
            *_exit_row("Table 3", "base", 0.0, 0.718, 4.00),
        ),
        "mmlu/llama-2-7b": (
            *_ualas("Table 8", 1, 7.612, 0.889),
            *_one_round("Table 8, CPO", 7.521, 0.860),
            *_ualas("Table 4", 2, 16.99, 0.920),
            *_rows("Table 4, CCPO (length 1.08, set size 2.14)", both_1_coverage=0.920),
            *_random_row("Tables 4 and 8", 12.99, 0.545, 1.53),
            *_exit_row("Table 4", "guide", 104.6, 0.960, 1.39),
            *_exit_row("Table 4", "base", 0.0, 0.790, 3.14),
        ),
        "mmlu/llama-3.2-3b": (
            *_ualas("Table 9", 1, 7.755, 0.839),
            *_one_round("Table 9, CPO", 7.121, 0.805),
            *_rows("Table 5, CPO (length 1.01)", UALA_1_coverage=0.860),
            *_ualas("Table 5", 2, 16.10, 0.893),
            *_random_row("Tables 5 and 9", 12.74, 0.607, 1.55),
            *_exit_row("Table 5", "guide", 104.6, 0.960, 1.39),
            *_exit_row("Table 5", "base", 0.0, 0.840, 3.97),
        ),
    }
)
"""The rows that a world can be held against. Rows of learned and of prompted policies are results, not marginals."""
