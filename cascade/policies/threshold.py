"""UALA: go on while there is doubt.

The uncertainty of a verdict is u = −ln max(p, 1 − p) with p = P(yes), the guide's probability of "Yes" over {Yes, No}:
0 for a sure verdict, ln 2 ≈ 0.693 for a coin flip. A step's answer is accepted once u is below the threshold.
A missing verdict counts as fully uncertain.

Reference: Han et al., Towards uncertainty-aware language agent (2024), with the verdict's own uncertainty instead of
the free-form score, which measures an answer's length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from cascade.policies.base import ALWAYS, NEVER, Observation, Policy, Scores
from cascade.policies.config import PolicyConfig, StrategyFacts
from cascade.types import Step


def uncertainty(p_yes: float | None) -> float:
    """Return −ln max(p, 1 − p) in nats; +inf without a verdict.

    >>> round(uncertainty(0.5), 3), round(uncertainty(0.01), 3), uncertainty(None)
    (0.693, 0.01, inf)
    """
    if p_yes is None:
        return math.inf
    return -math.log(max(p_yes, 1.0 - p_yes))


When: TypeAlias = Literal["uncertain", "p_yes", "reply_logprob", "gate"]
_READS = {"uncertain": "p_yes", "p_yes": "p_yes", "reply_logprob": "reply_mean_logprob", "gate": "gate"}


@dataclass(frozen=True, slots=True)
class ThresholdPolicy(Policy):
    """Go on while the doubt about a step is at least `kappa`; otherwise keep the answer that was judged right.

    Attributes:
        kappa: the threshold on the doubt.
        keep: "judged" keeps the base's answer after a yes, the guide's after a no, and the newest without a verdict;
            "both" keeps every answer of every step that was paid.
        when: the doubt. "uncertain": the guide's uncertainty, in nats. "p_yes": 1 − P(yes), so that a sure "no" does
            not stop (for guides that judge better than they correct). "reply_logprob": minus the mean log-prob of the
            reply's tokens, in nats, which needs no verdict (for ladders). "gate": 1 − the verdict of a verifier (for
            `verified`). An unknown value is full doubt.
    """

    kappa: float = 0.3
    keep: Literal["judged", "both"] = "judged"
    when: When = "uncertain"

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it reads."""
        return (_READS[self.when],)

    @property
    def needs(self) -> tuple[str, ...]:
        """The signals that it requires: without them it has full doubt about every answer."""
        return self.reads

    @property
    def depends_on_kappa(self) -> bool:
        """Whether the scores themselves change with the threshold, so that no threshold can be calibrated."""
        return self.keep == "judged"

    def scores(self, observation: Observation) -> Scores:
        """Give "next" the doubt as its score, so that kappa is the threshold on it."""
        step = observation.step
        doubt = self._doubt(step)
        if self.keep == "both":
            return Scores((ALWAYS,) * len(step.candidates), doubt)
        if doubt >= self.kappa and not observation.last:
            return Scores((NEVER,) * len(step.candidates), doubt)
        p_yes = step.signals.get("p_yes")
        judged = "guide" if p_yes is not None and p_yes < 0.5 else "base"
        sources = [candidate.source for candidate in step.candidates]
        kept = judged if judged in sources else (sources[-1] if sources else judged)
        return Scores(tuple([ALWAYS if source == kept else NEVER for source in sources]), doubt)

    def _doubt(self, step: Step) -> float:
        if self.when == "uncertain":
            return uncertainty(step.signals.get("p_yes"))
        value = step.signals.get(_READS[self.when])
        if value is None:
            return ALWAYS
        return -value if self.when == "reply_logprob" else 1.0 - value


class ThresholdConfig(PolicyConfig):
    """UALA: go on while there is doubt. `threshold` in nats, or in probability for when: p_yes."""

    kind: Literal["threshold"] = "threshold"
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3
    keep: Literal["judged", "both"] = "judged"
    when: When = "uncertain"

    def build(self) -> ThresholdPolicy:
        """Return the policy."""
        return ThresholdPolicy(self.threshold, self.keep, self.when)

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:
        """Yield a problem if no step of the strategy, as it is configured, gives the signal of the doubt."""
        if _READS[self.when] in strategy.signals:
            return
        lacks = {"reply_logprob": "log-probs", "gate": "verifier"}.get(self.when, "verdicts")
        readable = [f"when: {when}" for when, name in _READS.items() if name in strategy.signals]
        ways = " or ".join([*readable, "{kind: fixed, depth: …}"])
        yield f"policy.when: the {strategy.kind} strategy has no {lacks} as it is configured; use {ways}"
