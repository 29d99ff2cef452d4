"""Random cross-calibrated policies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cascade.policies.cross import CrossPolicy
from cascade.policies.learned import LearnedPolicy
from unit.policies import learned_made as made


def member(rng: np.random.Generator, sources: tuple[str, ...] = made.PAIR, *, kind: str = "") -> LearnedPolicy:
    """Return a policy that keeps every answer and judges none."""
    one = made.policy(rng, sources, kind=kind, judges=False)
    nothing = (None,) * len(sources)
    return replace(one, rules=tuple([replace(rule, include=nothing, confidence=nothing) for rule in one.rules]))


def critical(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return critical values, some of them tied or infinite."""
    values = rng.normal(size=n).round(1)
    values[rng.random(n) < 0.2] = np.inf
    values[rng.random(n) < 0.05] = -np.inf
    return np.sort(values)


def policy(rng: np.random.Generator, many: int = 3, *, kind: str = "") -> CrossPolicy:
    members = tuple([member(rng, kind=kind) for _ in range(many)])
    return CrossPolicy(members, tuple([critical(rng, int(rng.integers(0, 30))) for _ in range(many)]), 0.1)
