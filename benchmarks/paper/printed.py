"""Tables 2 to 9 of Si et al., Conformal Constrained Policy Optimization (arXiv 2511.11828), as they are printed.

Cents are those of 200 questions. Coverage counts questions that no round answers. Set sizes count leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

EXIT_GUIDE, EXIT_BASE, RANDOM = "GPT-4o EXIT", "LLaMA EXIT", "Random"
GUIDE_POLICY, BASE_POLICY, UALA = "GPT-4o", "LLaMA", "UALA"
CPO, CPO_BATCH, CPO_ONLINE = "CPO", "CPO batch", "CPO online"
CCPO, CHARGED = "CCPO (λ = 0)", "CCPO (λ > 0)"
ROWS = (
    EXIT_GUIDE, EXIT_BASE, RANDOM, GUIDE_POLICY, BASE_POLICY, UALA, CPO, CPO_BATCH, CPO_ONLINE, CCPO, CHARGED,
)  # fmt: skip
QUESTIONS = 200
"""Of calibration, and of test: what the cents are for."""
TRAIN = {"hotpotqa": 1_000, "mmlu": 560}


class Row(NamedTuple):
    """A printed row: cents for 200 questions, share covered, mean rounds, mean leaves."""

    cents: float
    coverage: float
    length: float
    leaves: float


class Table(NamedTuple):
    """A printed table.

    Attributes:
        number: as it is printed.
        world: the simulated world that is fitted to its data set and base (`tests.simulated.WORLDS`).
        alpha: the share of questions that may be missed.
        charge: λ of its last row, as printed; the unit is not.
        rows: by name; a table of the appendix has no EXIT rows.
    """

    number: int
    world: str
    alpha: float
    charge: float
    rows: Mapping[str, Row]

    @property
    def train(self) -> int:
        """Training questions."""
        return TRAIN[self.world.split("/", maxsplit=1)[0]]

    @property
    def depth(self) -> int:
        """The rounds after which its UALA stops, all questions alike: 1, 2 or 3."""
        return round(self.rows[UALA].length)


def _table(number: int, world: str, alpha: float, charge: float, *rows: tuple[float, float, float, float]) -> Table:
    named = zip(ROWS[len(ROWS) - len(rows) :], (Row(*row) for row in rows), strict=True)
    return Table(number, world, alpha, charge, MappingProxyType(dict(named)))


TABLES: Mapping[int, Table] = MappingProxyType(
    {
        table.number: table
        for table in (
            _table(
                2, "hotpotqa/llama-2-7b", 0.1, 2e-4,
                (827.0, 0.908, 2.39, 2.39), (0.000, 0.653, 2.55, 2.55), (6.811, 0.578, 1.44, 1.00),
                (18.65, 0.780, 1.20, 1.00), (4.551, 0.675, 1.03, 1.00), (9.153, 0.923, 2.00, 2.00),
                (4.704, 0.832, 1.004, 1.00), (7.835, 0.905, 1.70, 2.19), (7.484, 0.897, 1.58, 2.38),
                (6.552, 0.902, 1.34, 2.35), (7.026, 0.903, 1.48, 2.22),
            ),
            _table(
                3, "hotpotqa/llama-3.2-3b", 0.1, 1e-4,
                (827.0, 0.908, 2.39, 2.39), (0.000, 0.718, 4.00, 4.00), (1.411, 0.61, 1.51, 1.00),
                (18.09, 0.850, 1.15, 1.00), (4.449, 0.615, 1.00, 1.00), (8.012, 0.923, 2.00, 2.00),
                (4.655, 0.829, 1.00, 1.00), (8.007, 0.932, 1.79, 3.58), (8.829, 0.875, 1.856, 3.11),
                (7.061, 0.901, 1.59, 3.18), (7.397, 0.902, 1.66, 2.78),
            ),
            _table(
                4, "mmlu/llama-2-7b", 0.1, 2e-4,
                (104.6, 0.960, 1.39, 1.39), (0.000, 0.790, 3.14, 3.14), (12.99, 0.545, 1.53, 1.00),
                (25.35, 0.930, 1.08, 1.00), (8.682, 0.660, 1.11, 1.00), (16.99, 0.920, 2.00, 2.00),
                (9.174, 0.70, 1.195, 1.00), (22.25, 0.902, 2.86, 4.20), (19.07, 0.901, 2.48, 3.46),
                (7.949, 0.920, 1.08, 2.14), (8.071, 0.907, 1.11, 1.48),
            ),
            _table(
                5, "mmlu/llama-3.2-3b", 0.1, 1e-4,
                (104.6, 0.960, 1.39, 1.39), (0.000, 0.840, 3.97, 3.97), (12.74, 0.607, 1.55, 1.00),
                (26.87, 0.913, 1.19, 1.00), (8.540, 0.580, 1.03, 1.00), (16.10, 0.893, 2.00, 2.00),
                (6.846, 0.860, 1.01, 1.00), (12.12, 0.917, 1.51, 2.36), (11.76, 0.878, 1.51, 2.53),
                (10.82, 0.901, 1.34, 2.66), (10.90, 0.900, 1.35, 2.70),
            ),
            _table(
                6, "hotpotqa/llama-2-7b", 0.2, 1e-4,
                (6.811, 0.578, 1.44, 1.00), (19.25, 0.810, 1.16, 1.00), (4.524, 0.685, 1.02, 1.00),
                (4.635, 0.850, 1.00, 1.00), (4.711, 0.840, 1.00, 1.00), (4.663, 0.841, 1.00, 1.00),
                (4.709, 0.819, 1.00, 1.00), (4.640, 0.862, 1.00, 1.00), (4.647, 0.815, 1.00, 1.00),
            ),
            _table(
                7, "hotpotqa/llama-3.2-3b", 0.05, 1e-4,
                (1.411, 0.610, 1.51, 1.00), (18.77, 0.845, 1.12, 1.00), (4.495, 0.605, 1.00, 1.00),
                (13.25, 0.970, 3.00, 3.00), (4.722, 0.846, 1.02, 1.00), (8.717, 0.979, 1.97, 3.66),
                (10.02, 0.894, 2.11, 3.68), (8.126, 0.954, 1.86, 3.39), (8.575, 0.951, 1.95, 3.20),
            ),
            _table(
                8, "mmlu/llama-2-7b", 0.2, 2e-4,
                (12.99, 0.545, 1.53, 1.00), (27.15, 0.887, 1.31, 1.00), (8.712, 0.520, 1.12, 1.00),
                (7.612, 0.889, 1.00, 1.00), (7.521, 0.860, 1.00, 1.00), (8.024, 0.886, 1.00, 1.00),
                (7.643, 0.828, 1.00, 0.95), (7.612, 0.801, 1.00, 0.90), (7.670, 0.805, 1.00, 0.90),
            ),
            _table(
                9, "mmlu/llama-3.2-3b", 0.2, 2e-4,
                (12.74, 0.607, 1.55, 1.00), (26.87, 0.913, 1.19, 1.00), (8.547, 0.580, 1.03, 1.00),
                (7.755, 0.839, 1.00, 1.00), (7.121, 0.805, 1.00, 1.00), (7.767, 0.805, 1.00, 0.91),
                (7.620, 0.818, 1.00, 0.98), (7.735, 0.806, 1.00, 1.02), (7.742, 0.806, 1.00, 0.89),
            ),
        )
    }
)  # fmt: skip
"""By number."""

IMPOSSIBLE: Mapping[tuple[int, str], str] = MappingProxyType(
    {
        (3, RANDOM): "a third of one round's price (4.449) at a length of 1.51: a misprint, or another unit",
        (7, RANDOM): "a third of one round's price (4.495) at a length of 1.51: a misprint, or another unit",
        (3, UALA): "two rounds for 8.012 and, in Table 7, three for 13.25: round 3 would cost 5.2, round 2 only 3.6",
        (9, CPO): "7.121 where the same single round costs 7.620 to 7.767 in the other rows",
        (5, CPO): "6.846 at a length of 1.01 where a single round costs 7.620 to 7.767 in Table 9",
        (8, CPO_ONLINE): "fewer than one answer a question: its sets may be empty",
        (8, CCPO): "fewer than one answer a question: its sets may be empty",
        (8, CHARGED): "fewer than one answer a question: its sets may be empty",
        (9, CPO_BATCH): "fewer than one answer a question: its sets may be empty",
        (9, CPO_ONLINE): "fewer than one answer a question: its sets may be empty",
        (9, CHARGED): "fewer than one answer a question: its sets may be empty",
    }
)
"""Printed figures that contradict others of the same tables (`design/paper.md`), by table and row."""
