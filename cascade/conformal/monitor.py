"""Whether a promise still holds: evidence from audited misses that may be looked at after each one.

The evidence is an e-process: a number whose expectation is at most 1 while nothing has drifted, whenever one stops. It
passes 1/level with probability at most level, ever (Ville's inequality). N bets that the rate of misses rises above
alpha: a mean over a few raised rates, and over the number of audits before the rise. What has not drifted depends on
the promise (`design/online.md`, with proofs):

* "risk": with delta, the miss rate is at most alpha but for a probability delta over calibrations. The evidence is N.
* "exchangeable": on average, the miss rate of one calibration follows a Beta(k, n + 1 − k) law, or lies below it where
  critical values are tied. Each rate that an unlucky calibration could have has to be ruled out, the less likely ones
  by less: E_t = min over rates u of h(u) N^u_t, with a mean of h of at most 1 under the law.

Reference: Ville (1939); Wasserman, Ramdas & Balakrishnan, Universal inference (2020); Shin, Ramdas & Rinaldo,
E-detectors (2023); Vovk & Wang, E-values (2021), for h.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from cascade.checks import share_problems
from cascade.conformal.binomial import upper_bound
from cascade.errors import UsageError

Null = Literal["risk", "exchangeable"]
_ODDS = (1.5, 2.0, 3.0, 6.0)
"""Raised rates θ that are looked for, in multiples of alpha's odds (`design/online.md`)."""
_HURDLES = 8
"""Steps of h. 4 alarm a little later; the time of an update grows with them."""
_POWER = 0.2
"""h belongs to q ↦ p q^(p − 1), which turns a tail q of the law into an e-value. Of 0.1..0.4 the compromise: higher is
sooner for n of 200 and more, lower for fewer (`design/online.md`)."""
_LARGEST = 700.0  # e to the 709 is the largest float


@dataclass(frozen=True, slots=True)
class Monitor:
    """Evidence against a promise. Values are frozen: `update` returns the next one. Make one with `start`.

    Guarantee: while audited questions are i.i.d. and come from where the calibration questions came from, the
    probability that it ever alarms is at most `level` for "exchangeable", over calibration and audits together, ties or
    not; for "risk" at most level + delta. Once alarmed it stays so.

    Attributes:
        level: the probability of a false alarm that is accepted.
        alpha: the promised share of misses.
        null: "risk" or "exchangeable".
        n: calibration questions behind "exchangeable"; 0 for "risk".
        k: the rank of the threshold among them; 0 for "risk".
        audits: how many audits were counted.
        misses: how many of them were missed.
        alarmed_after: the number of audits at which it alarmed; None where it has not.
        risen: for each raised rate the logarithm of its sum in N, over the points of change so far.
        joint: the same for the law of the whole stream that "exchangeable" bets on (Q); −∞ for "risk".
    """

    level: float
    alpha: float
    null: Null
    n: int
    k: int
    audits: int = 0
    misses: int = 0
    alarmed_after: int | None = None
    risen: tuple[float, ...] = field(default_factory=lambda: (-math.inf,) * len(_ODDS))
    joint: tuple[float, ...] = field(default_factory=lambda: (-math.inf,) * len(_ODDS))

    @classmethod
    def start(
        cls,
        *,
        alpha: float,
        n: int = 0,
        k: int | None = None,
        delta: float | None = None,
        level: float = 0.05,
        null: Null | None = None,
    ) -> Monitor:
        """Return the monitor of a certificate, before its first audit.

        Args:
            alpha: the promised share of misses.
            n: calibration questions behind the threshold.
            k: the rank of the threshold among their critical values. With 0 everything is kept, no calibration can be
                unlucky, and the promise is watched as "risk".
            delta: of the certificate; None for a promise on average over calibrations.
            level: the probability of a false alarm that is accepted.
            null: "risk" or "exchangeable"; None for what fits: "risk" with delta, "exchangeable" without.

        Raises:
            UsageError: everything that is wrong with the arguments.

        >>> watch = Monitor.start(alpha=0.1, n=200, k=20)
        >>> watch.null, Monitor.start(alpha=0.1, n=200, k=15, delta=0.1).null
        ('exchangeable', 'risk')
        >>> for number in range(40):
        ...     watch = watch.update(missed=number % 2 == 0)
        >>> watch.alarmed_after
        13
        """
        chosen: Null = null or ("exchangeable" if delta is None else "risk")
        problems = list(_problems(alpha, n, k, level, chosen))
        if problems:
            raise UsageError("\n".join(problems))
        if chosen == "risk" or not k:
            return cls(level, alpha, "risk", 0, 0)
        return cls(level, alpha, chosen, n, k)

    @property
    def e_value(self) -> float:
        """The evidence now: its expectation is at most 1 while nothing has drifted, at any stopping time.

        It starts at 1 for "risk". For "exchangeable" it starts lower and ends at 1/level: the price of not knowing the
        rate.
        """
        return math.exp(min(self._log_e_value, _LARGEST))

    @property
    def _log_e_value(self) -> float:
        later = -math.log(math.log2(self.audits + 2))  # the weight of all rises that are still to come
        against_alpha = _log_mean(self.risen, later)
        if self.null == "risk":
            return against_alpha
        law = _log_mean(self.joint, later + self._log_urn)
        first, *hurdles = _hurdles(self.n, self.k, self.alpha, self.level)
        return min(
            -math.log(self.level),
            first.log_price + against_alpha,
            *(hurdle.log_price + law - self._log_most(hurdle) for hurdle in hurdles),
        )

    @property
    def _log_urn(self) -> float:
        """Return the logarithm of the Polya urn's probability of the audits so far, in their order."""
        covered = self.n + 1 - self.k
        return _log_beta(self.k + self.misses, covered + self.audits - self.misses) - _log_beta(self.k, covered)

    def _log_most(self, hurdle: _Hurdle) -> float:
        """Return the logarithm of the largest probability of the audits so far at a rate within the hurdle."""
        rate = min(max(self.misses / max(self.audits, 1), hurdle.low), hurdle.high)
        covered = self.audits - self.misses
        return self.misses * math.log(rate) + (covered * math.log1p(-rate) if covered else 0.0)

    @property
    def alarmed(self) -> bool:
        """Whether it has alarmed, now or before."""
        return self.alarmed_after is not None

    def update(self, missed: bool) -> Monitor:
        """Return the monitor after one more audit, in constant time.

        Args:
            missed: whether the question was missed as it was served (`audits.audit_missed`). Where a threshold follows
                the audits (`online`), whether the certified threshold would have missed it: it is that one which is
                watched, and a rate that moves with the threshold is not what "exchangeable" speaks of.
        """
        rise = math.log(_weight(self.audits))
        risen = tuple(
            _log_add(one, rise) + _log_rate(self.alpha, odds, missed) - _log_rate(self.alpha, 1.0, missed)
            for one, odds in zip(self.risen, _ODDS, strict=True)
        )
        joint = self.joint
        if self.null == "exchangeable":
            start = rise + self._log_urn
            joint = tuple(
                _log_add(one, start) + _log_rate(self.alpha, odds, missed)
                for one, odds in zip(self.joint, _ODDS, strict=True)
            )
        after = replace(self, audits=self.audits + 1, misses=self.misses + bool(missed), risen=risen, joint=joint)
        if not self.alarmed and after._log_e_value >= -math.log(self.level):  # noqa: SLF001 - of its own class
            return replace(after, alarmed_after=after.audits)
        return after


class _Hurdle(NamedTuple):
    """Rates that an unlucky calibration could have, and the logarithm of h there."""

    log_price: float
    low: float
    high: float


@lru_cache(maxsize=64)
def _hurdles(n: int, k: int, alpha: float, level: float) -> tuple[_Hurdle, ...]:
    """Return the rates up to alpha, then those above in steps of their tail under Beta(k, n + 1 − k).

    Pr[rate > c] ≤ q where c is the Clopper-Pearson bound of k − 1 misses among n at delta = q, for the law's tail above
    c is Pr[Bin(n, c) ≤ k − 1]. With h_j = (F(q_j) − F(q_{j+1}))/(q_j − q_{j+1}) and F(q) = q^p, summation by parts
    gives a mean of at most h_0 + Σ_j (h_j − h_{j−1}) q_j = F(1) = 1. The last q is such that h = F(q)/q = 1/level.
    """
    last = level ** (1 / (1 - _POWER))
    tails = [last ** (j / _HURDLES) for j in range(_HURDLES + 1)]
    cuts = [alpha, *(max(alpha, upper_bound(k - 1, n, tail)) for tail in tails[1:])]
    prices = [math.log((high**_POWER - low**_POWER) / (high - low)) for high, low in pairwise(tails)]
    above = [_Hurdle(price, low, high) for price, (low, high) in zip(prices, pairwise(cuts), strict=True)]
    return (_Hurdle(prices[0], 0.0, alpha), *(one for one in above if one.low < one.high))


def _problems(alpha: float, n: int, k: int | None, level: float, null: str) -> Iterator[str]:
    yield from (f"{problem}." for problem in share_problems(alpha=alpha, level=level))
    if null not in {"risk", "exchangeable"}:
        yield f"null is 'risk' or 'exchangeable', not {null!r}."
    if null == "exchangeable" and (k is None or not 0 <= k <= n):
        yield f"exchangeable needs the calibration's n and k, 0 ≤ k ≤ n; these are n = {n}, k = {k}."


def _weight(before: int) -> float:
    """Return the weight of a rise after so many audits."""
    return 1 / math.log2(before + 2) - 1 / math.log2(before + 3)


def _log_rate(alpha: float, odds: float, missed: bool) -> float:
    """Return the logarithm of the probability of x at the rate whose odds are so many times those of alpha."""
    covered = math.log1p(-alpha) - math.log1p(alpha * (odds - 1))
    return math.log(alpha) + math.log(odds) - math.log1p(alpha * (odds - 1)) if missed else covered


def _log_add(one: float, other: float) -> float:
    """Return ln(e^one + e^other); one of them is finite."""
    high, low = max(one, other), min(one, other)
    return high + math.log1p(math.exp(low - high))


def _log_mean(logs: tuple[float, ...], log_rest: float) -> float:
    """Return the logarithm of the mean over the raised rates, plus the rest."""
    top = max(*logs, log_rest)
    return top + math.log(sum(math.exp(one - top) for one in logs) / len(logs) + math.exp(log_rest - top))


def _log_beta(one: float, other: float) -> float:
    return math.lgamma(one) + math.lgamma(other) - math.lgamma(one + other)
