"""A threshold that follows the misses on audited questions: the rule with decaying steps, with the corrected sign.

    kappa_{t+1} = kappa_t + eta_t ((1 − miss_t) − (1 − alpha)) = kappa_t − eta_t (miss_t − alpha)
    eta_t = step · t^−(1/2 + decay)

A miss lowers the threshold, so that more is kept; a covered question raises it a little. The two balance where the
share of misses is alpha. With s = −kappa* and q = −kappa the rule is the recursion
q_{t+1} = q_t − eta_t (alpha − miss_t) of online conformal prediction. With the opposite sign, as printed in Eq. 9 of
CCPO, kappa moves away from that point, to where everything or nothing is missed (`design/online.md`).

Use only audited questions: whether a right answer was missed is known only if all steps are run. An audit has to be
drawn independently of the question (`audits.AuditPlan`).

Reference: Angelopoulos, Barber & Bates, Online conformal prediction with decaying step sizes (2024); Gibbs & Candès
(2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace

from cascade.checks import share_problems
from cascade.errors import UsageError


@dataclass(frozen=True, slots=True)
class OnlineThreshold:
    """A threshold and the number of updates behind it. Values are frozen: `update` returns the next one.

    Guarantee, for every sequence of critical values of at least `low`, even one that an adversary chooses; values above
    `upper` count as `upper`. After T updates of a threshold that starts within low..upper, the share of misses among
    the audited questions is at most `bound(T, spread)`, where spread ≥ upper − low. Each question counts at the
    threshold in force when it was used. On i.i.d. questions the threshold converges to the alpha-quantile of the
    critical values if that is unique. Neither result is about a single question, and neither is a certificate.

    Args:
        alpha: the share of questions that may be missed, 0 < alpha < 1.
        kappa: the threshold in force; finite.
        step: the first step, in units of the scores; positive. Misses move the threshold by up to step·(1 − alpha).
        decay: how fast steps shrink beyond t^−1/2, 0 < decay < 1/2. A lower value follows drift, a higher one settles.
        upper: the threshold never rises above it; None without a limit. Without one, questions that are never missed
            (no step has a right answer) push it above every critical value, and the guarantee is lost.
        updates: how many updates were made.
        literal: whether to use the sign printed in CCPO, for the figure that shows its effect. It guarantees nothing.

    Raises:
        UsageError: lists every problem with the arguments.

    Reference: Angelopoulos, Barber & Bates (2024), theorems 1 and 2; proof of the bound in `design/online.md`.

    >>> now = OnlineThreshold(alpha=0.1, kappa=0.5, step=0.2, upper=1.0)
    >>> round(now.update(now.missed(0.3)).kappa, 6), round(now.update(now.missed(0.7)).kappa, 6)
    (0.32, 0.52)
    """

    alpha: float
    kappa: float
    step: float
    decay: float = 0.1
    upper: float | None = None
    updates: int = 0
    literal: bool = False

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise UsageError("\n".join(problems))

    def _problems(self) -> Iterator[str]:
        yield from (f"{problem}." for problem in share_problems(alpha=self.alpha))
        if not math.isfinite(self.kappa):
            yield f"kappa must be a finite threshold, not {self.kappa:g}."
        if not 0 < self.step < math.inf:
            yield f"step must be a positive number in the units of the scores, not {self.step:g}."
        if not 0 < self.decay < 0.5:
            yield f"decay must lie strictly between 0 and 0.5, not {self.decay:g}."
        if self.upper is not None and not self.upper >= self.kappa:
            yield f"kappa must not lie above upper; {self.kappa:g} is above {self.upper:g}."
        if self.updates < 0:
            yield f"updates must be at least 0, not {self.updates}."

    @classmethod
    def warm(
        cls, kappa: float, n: int, *, alpha: float, step: float, decay: float = 0.1, upper: float | None = None
    ) -> OnlineThreshold:
        """Return the rule started at a calibrated threshold, as if n updates had led to it.

        Args:
            kappa: the calibrated threshold; finite.
            n: the number of questions that it was calibrated on. The first step is the (n + 1)-th of the rule.
            alpha: as for the class.
            step: as for the class.
            decay: as for the class.
            upper: as for the class.

        Raises:
            UsageError: lists every problem with the arguments.
        """
        return cls(alpha=alpha, kappa=kappa, step=step, decay=decay, upper=upper, updates=n)

    @property
    def eta(self) -> float:
        """The size of the next step."""
        return self._eta(self.updates + 1)

    def _eta(self, t: int) -> float:
        return float(self.step * t ** -(0.5 + self.decay))

    def missed(self, critical: float) -> bool:
        """Return whether a question with this critical value is missed at the threshold in force.

        Raises:
            UsageError: the critical value is not a number.
        """
        if math.isnan(critical):
            raise UsageError("A critical value is not a number.")
        return bool(self.kappa > critical)

    def update(self, misses: float | Sequence[bool]) -> OnlineThreshold:
        """Return the threshold after one question, or one batch.

        Args:
            misses: whether the question was missed, or the missed share of a batch, or one bool for each question of a
                batch, all at the threshold in force before the update. So keep an audited question's critical value
                until its label arrives, and call `missed` then.

        Raises:
            UsageError: the batch is empty, or the share lies outside 0..1.
        """
        share = self._share(misses)
        sign = 1.0 if self.literal else -1.0
        moved = self.kappa + sign * self.eta * (share - self.alpha)
        limited = moved if self.upper is None else min(moved, self.upper)
        return replace(self, kappa=limited, updates=self.updates + 1)

    @staticmethod
    def _share(misses: float | Sequence[bool]) -> float:
        if not isinstance(misses, Sized):  # numpy's numbers are neither int nor float
            share = float(misses)
        elif len(misses):
            share = sum(map(bool, misses)) / len(misses)
        else:
            raise UsageError("A batch needs at least one question. Do not call update without questions.")
        for problem in share_problems(ends=True, share=share):
            raise UsageError(f"The batch: {problem}.")
        return share

    def bound(self, updates: int, spread: float = 1.0) -> float:
        """Return the most that the share of misses over the next `updates` updates can be, on any sequence.

        alpha + (spread + eta_first) / (T · eta_T). The bound is above 1, and so useless, until T is large enough for
        step and decay.

        Args:
            updates: T, at least 1.
            spread: at least upper − low, where no critical value and not the current threshold lies below low. Critical
                values above `upper` count as `upper`. The limit `upper` counts even if no critical value is near it.

        Raises:
            UsageError: T is below 1, there is no `upper`, the spread does not reach from the threshold to `upper`, or
                the sign is the printed one.

        >>> rule = OnlineThreshold(alpha=0.1, kappa=0.5, step=1.0, upper=1.0)
        >>> round(rule.bound(1500) - 0.1, 4)
        0.1073
        """
        if updates < 1 or self.upper is None or self.literal:
            raise UsageError("The bound needs at least one update, an upper limit of kappa, and the corrected sign.")
        if not spread >= self.upper - self.kappa:
            raise UsageError(
                f"The spread must reach from the lowest critical value to upper; {spread:g} does not reach from "
                f"kappa, {self.kappa:g}, to {self.upper:g}."
            )
        return self.alpha + (spread + self.eta) / (updates * self._eta(self.updates + updates))
