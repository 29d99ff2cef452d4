"""The simulated worlds of the tests, for the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from simulated import HIGH, HOTPOTQA, LOW, MEDIUM, MMLU, WORLDS, World, simulate, worlds

__all__ = ["HIGH", "HOTPOTQA", "LOW", "MEDIUM", "MMLU", "WORLDS", "World", "simulate", "worlds"]
