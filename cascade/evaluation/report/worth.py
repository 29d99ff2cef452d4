"""Whether a certified policy is worth serving, as far as the questions that its threshold was set on say it."""

from __future__ import annotations

import math
from typing import NamedTuple

from cascade.calibration.calibrating import Calibrated


class Worth(NamedTuple):
    """A certified policy's decisions and costs on its calibration questions.

    Attributes:
        keeps_everything: whether it keeps every answer of every step there, so that it decides nothing.
        times_reference: its cost as a multiple of the guide alone, or a ladder's last model; None where unknown.
        within_budget: whether a mean cost is what is promised: then as much is spent as that allows.
        is_reference: whether it asks the reference alone, at once.
    """

    keeps_everything: bool
    times_reference: float | None
    within_budget: bool = False
    is_reference: bool = False

    @property
    def saves(self) -> bool:
        """Whether serving it may save money; if costs are unknown, whether it stops early on some question."""
        times = self.times_reference
        return times < 1 if times is not None else not self.keeps_everything

    def describe(self, reference: str) -> str | None:
        """Return, in words, what the policy does not save or decide; None if there is nothing to say.

        Args:
            reference: what the reference is called, as "the guide alone".
        """
        more = "do not serve it. Log more questions, or ask for a higher alpha"
        times = "" if self.times_reference is None else f"costs {self.times_reference:.2f} × what {reference} costs"
        if self.is_reference and self.times_reference is None:
            return (
                f"No saving is certified: it asks {reference}, at once. It is safe to serve. The log has no costs, so "
                f"that steps were counted, and one step of {reference} is the least there is: log what calls cost "
                "(cost_nano_usd; in a wide table NAME_cost), and fit again."
            )
        if self.is_reference:
            return (
                f"No saving is certified: it asks {reference}, at once, and costs the same. It is safe to serve. To "
                "save, log more questions or ask for a higher alpha."
            )
        if self.within_budget:
            return (
                "The budget pays for every answer of every step: it decides nothing." if self.keeps_everything else None
            )
        if not self.keeps_everything:
            return None if self.saves else f"It {times}, and saves nothing: {more}."
        if self.saves:
            return f"It keeps every answer of every step, as running all steps does: it decides nothing, and {times}."
        return f"It keeps every answer of every step{times and f' and {times}'}: it saves nothing, so {more}."


def worth_of(done: Calibrated) -> Worth:
    """Return a certified policy's decisions and costs on its calibration questions."""
    own, everything, reference = done.realised, done.everything, done.reference_cost_nano_usd
    decides = (own.length, own.set_size, own.abstained) != (
        everything.length,
        everything.set_size,
        everything.abstained,
    )
    times = None if own.cost_nano_usd is None or not reference else own.cost_nano_usd / reference
    silent = done.artifact.policy.get("takes") == "calls" and all(
        one.kappa == math.inf for one in done.artifact.certificates
    )
    return Worth(
        not decides,
        times,
        within_budget=done.guarantee.rules.on_cost,
        is_reference=done.artifact.asks_reference or silent,
    )
