"""UALA: go on while the guide is uncertain.

The uncertainty of a verdict is u = −ln max(p, 1 − p) with p = P(yes), the guide's probability of "Yes" over {Yes, No}:
0 for a sure verdict, ln 2 ≈ 0.693 for a coin flip. A step's answer is accepted once u is below the threshold.
A missing verdict counts as fully uncertain.

Reference: Han et al., Towards uncertainty-aware language agent (2024), with the verdict's own uncertainty instead of
the free-form score, which measures an answer's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cascade.policies.base import Observation, Scores
from cascade.policies.fixed import ALWAYS, NEVER


def uncertainty(p_yes: float | None) -> float:
    """Return −ln max(p, 1 − p) in nats; +inf without a verdict.

    >>> round(uncertainty(0.5), 3), round(uncertainty(0.01), 3), uncertainty(None)
    (0.693, 0.01, inf)
    """
    if p_yes is None:
        return math.inf
    return -math.log(max(p_yes, 1.0 - p_yes))


@dataclass(frozen=True, slots=True)
class ThresholdPolicy:
    """Go on while the guide's uncertainty is at least `kappa` (nats); else keep what the guide judged right.

    `keep="judged"` keeps the base's answer after a yes and the guide's after a no; `keep="both"` keeps both answers of
    every step that was paid. `when="p_yes"` goes on while 1 − P(yes) ≥ kappa instead, so that a sure "no" is not enough
    to stop: use it where the guide's corrections are weaker than its judgement.
    """

    kappa: float = 0.3
    keep: Literal["judged", "both"] = "judged"
    when: Literal["uncertain", "p_yes"] = "uncertain"

    def scores(self, observation: Observation) -> Scores:
        """Give "next" its uncertainty as score, so that kappa is the threshold on it."""
        step = observation.step
        p_yes = step.signals.get("p_yes")
        doubt = uncertainty(p_yes) if self.when == "uncertain" or p_yes is None else 1.0 - p_yes
        stops = observation.last or doubt < self.kappa
        if self.keep == "both":
            return Scores((ALWAYS,) * len(step.candidates), doubt)
        if not stops:
            return Scores((NEVER,) * len(step.candidates), ALWAYS if math.isinf(doubt) else doubt)
        judged = "guide" if p_yes is not None and p_yes < 0.5 else "base"
        sources = [candidate.source for candidate in step.candidates]
        kept = judged if judged in sources else (sources[-1] if sources else judged)
        return Scores(tuple(ALWAYS if source == kept else NEVER for source in sources), doubt)
