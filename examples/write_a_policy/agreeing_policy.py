"""A policy: go on until an answer agrees with the earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cascade.conformal.path import Scores
from cascade.policies.policy import Policy, ranked
from cascade.table import Log


@dataclass(frozen=True)
class Agreeing(Policy):
    """The doubt is the share of earlier answers that differ from the newest. The first has nothing to agree with."""

    kind: ClassVar[str] = "agreeing"
    columns: ClassVar[frozenset[str]] = frozenset({"agrees_with_earlier"})
    nodes: tuple[int, ...] | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that a log, or a plan, must have."""
        return ("agrees_with_earlier",)

    def scores(self, log: Log) -> Scores:
        """Return the doubt after each node; NaN, where it is unknown, goes on."""
        agrees = log.signals.get("agrees_with_earlier", np.full(log.answer.shape, np.nan))
        return Scores(ranked(1.0 - agrees))
