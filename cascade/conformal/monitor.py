"""Audits: which requests are drawn, and the evidence in their misses that a promise no longer holds.

The evidence is an e-process, which may be read after each audit: a number whose expectation is at most 1 while the miss
rate is at most a bound, at any stopping time. The probability that it ever reaches 1/level is at most level (Ville's
inequality). It bets that the miss rate rises above the bound: it is a weighted mean over a few raised rates and over
the number of bets before the rise.

The bound is the promised risk, if the promise has a confidence. A promise on average over calibrations says nothing
about one calibration, whose miss rate follows a Beta(k, n + 1 − k) law, or is lower if critical values are tied. The
bound is then the rate that this law exceeds with probability `UNLUCKY`, or the promised risk if that is higher.

Reference: Ville (1939); Wasserman, Ramdas & Balakrishnan, Universal inference (2020); Shin, Ramdas & Rinaldo,
E-detectors (2023).
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cascade.checks import share_problems
from cascade.conformal.binomial import upper_bound
from cascade.errors import UsageError

_ODDS = (1.5, 2.0, 3.0, 6.0)
"""The raised rates θ that the monitor bets on, in multiples of the bound's odds."""
_MOST_STAKED = 0.95
"""The largest share of the capital that one bet may lose."""
UNLUCKY = 0.01
"""For promises on average: the share of calibrations, at most, whose miss rate is above their monitor's bound."""
_LARGEST = 700.0  # e^709 is about the largest float


@dataclass(frozen=True, slots=True)
class Monitor:
    """Evidence against a promise. Values are frozen: `update` returns the next one. Make one with `start`.

    Guarantee: while audited questions are i.i.d. from the distribution of the calibration questions, the probability
    that the monitor ever alarms is at most `level` + 1 − confidence, over calibration and audits together; for a
    promise on average, with or without ties, at most `level` + `UNLUCKY`. An alarm is final.

    Attributes:
        level: the accepted probability of a false alarm.
        risk: the bound on the share of misses.
        audits: the number of audits counted.
        misses: how many of them were missed.
        bets: the number of conversations that they belong to; without conversations each audit is a bet.
        turns: the most audits of one conversation that count; later ones are left out.
        alarmed_after: the number of audits at which it alarmed; None if it has not.
        risen: for each raised rate, the logarithm of its evidence, summed over the points of change so far.
    """

    level: float
    risk: float
    audits: int = 0
    misses: int = 0
    bets: int = 0
    turns: int = 1
    alarmed_after: int | None = None
    risen: tuple[float, ...] = field(default_factory=lambda: (-math.inf,) * len(_ODDS))

    @classmethod
    def start(cls, *, risk: float, n: int = 0, k: int | None = None, level: float = 0.05, turns: int = 1) -> Monitor:
        """Return the monitor of a certificate, before its first audit.

        Args:
            risk: the promised bound on the share of misses.
            n: the number of calibration questions behind the threshold.
            k: the rank of the threshold among their critical values. With 0 everything is kept, so no calibration can
                be unlucky; None if the promise has a confidence.
            level: the accepted probability of a false alarm.
            turns: the most audits that one conversation may have, if the promise is about turns of conversations.

        Raises:
            UsageError: lists every problem with the arguments.

        >>> watch = Monitor.start(risk=0.1, n=200, k=20)
        >>> round(watch.risk, 3), Monitor.start(risk=0.1).risk
        (0.154, 0.1)
        >>> for number in range(40):
        ...     watch = watch.update(missed=number % 2 == 0)
        >>> watch.alarmed_after
        13
        """
        problems = list(_problems(risk, n, k, level))
        if problems:
            raise UsageError("\n".join(problems))
        if k:
            risk = max(risk, upper_bound(k - 1, n, UNLUCKY))
        return cls(level, risk, turns=turns)

    @property
    def e_value(self) -> float:
        """The current evidence: while nothing has drifted, its expectation is at most 1 at any stopping time.

        It starts at 1. The monitor alarms when it reaches 1/level.
        """
        return math.exp(min(self._log_e_value, _LARGEST))

    @property
    def _log_e_value(self) -> float:
        later = -math.log(math.log2(self.bets + 2))  # the weight of all rises that are still to come
        return _log_mean(self.risen, later)

    @property
    def alarmed(self) -> bool:
        """Whether it has alarmed, now or before."""
        return self.alarmed_after is not None

    def update(self, missed: int, audits: int = 1, *, ended: bool = True) -> Monitor:
        """Return the monitor after one more bet, in constant time: an audit, or all those of a conversation.

        Turns of a conversation are dependent. So a conversation with D misses in T audits is one bet, which multiplies
        a sum by 1 + λ(D − rT): on average by at most 1, if at most a share r of all turns is missed. The largest stake
        λ keeps this factor above 0 for `turns` audits. A conversation in progress is treated as if it had `turns`
        audits without further misses, so that the evidence never exceeds what it will be when the conversation ends.

        Args:
            missed: how many of the audits were missed.
            audits: how many of the conversation's audits count, `turns` at most.
            ended: whether the conversation has had all its audits.
        """
        rise, counts = math.log(weight_after(self.bets)), audits if ended else self.turns
        # The bets are the likelihood ratios of the raised rates θ: a stake is (θ − r)/(r(1 − r)) at a risk r.
        ratios = [(odds - 1) / (1 + self.risk * (odds - 1)) for odds in _ODDS]
        stakes = [min(ratio, _MOST_STAKED / (self.risk * self.turns)) for ratio in ratios]
        risen = tuple(
            _log_add(total, rise) + math.log1p(stake * (missed - self.risk * counts))
            for total, stake in zip(self.risen, stakes, strict=True)
        )
        sums = {"audits": self.audits + audits, "misses": self.misses + missed, "bets": self.bets + 1}
        after = replace(self, **sums, risen=risen)
        if not self.alarmed and after._log_e_value >= -math.log(self.level):  # noqa: SLF001 - of its own class
            return replace(after, alarmed_after=after.audits)
        return after


def _problems(risk: float, n: int, k: int | None, level: float) -> Iterator[str]:
    yield from (f"{problem}." for problem in share_problems(risk=risk, level=level))
    if k is not None and not 0 <= k <= n:
        yield f"The rank k lies in 0..n; these are n = {n}, k = {k}."


def weight_after(before: int) -> float:
    """Return the weight of a rise after a number of bets."""
    return 1 / math.log2(before + 2) - 1 / math.log2(before + 3)


def _log_add(left: float, right: float) -> float:
    """Return ln(e^left + e^right); at least one of them is finite."""
    high, low = max(left, right), min(left, right)
    return high + math.log1p(math.exp(low - high))


def _log_mean(logs: tuple[float, ...], log_rest: float) -> float:
    """Return the logarithm of the sum of the mean over the raised rates and the rest."""
    top = max(*logs, log_rest)
    return top + math.log(sum(math.exp(value - top) for value in logs) / len(logs) + math.exp(log_rest - top))


# --- draws by a keyed hash of names: of requests to audit, to observe and to judge ---
# A draw depends on the key and on names, never on a content or an outcome. So drawn requests are like the rest, nobody
# without the key can predict them, and processes that share the key agree. Let a loss L be 0 or 1, and a request be
# drawn with probability q: the drawn losses of independent requests are then independent with the rate q·E[L]. So "the
# risk is above r" means "the rate of drawn losses is above q·r" (`Promise.tested_risk`).

_BETWEEN = b"\x1f"


def uniform(key: bytes | str, *names: str) -> float:
    """Return a pseudorandom number in [0, 1) that depends only on the key and the names.

    Numbers of different keys, or of different names, are independent.
    """
    secret, *message = (name if isinstance(name, bytes) else name.encode("utf-8", "replace") for name in (key, *names))
    return int.from_bytes(hmac.digest(secret, _BETWEEN.join(message), "sha256")[:8]) / 2**64


def is_drawn(key: bytes | str, rate: float, *names: str) -> bool:
    """Return whether names are drawn, with a probability of `rate` (0..1) over keys.

    Names drawn at one rate are also drawn at every higher rate.

    >>> is_drawn(b"key", 1.0, "request 1"), is_drawn(b"key", 0.0, "request 1"), is_drawn("key", 1e-12, "request 1")
    (True, False, False)
    """
    return uniform(key, *names) < rate
