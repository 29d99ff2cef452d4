"""Rounds in which the guide judges, or a ladder without judging: what one log says of both at the same promise."""

from __future__ import annotations

from dataclasses import dataclass

from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import walked
from cascade.evaluation.proof.proving import Proof

ROUNDS, LADDER = "rounds", "ladder"
_JUDGED = {"base", "guide"}


def holds_both(table: EpisodeTable) -> bool:
    """Whether a log of rounds of base and guide has the guide's own answers too, so that it can be read as a ladder."""
    judged = "base" in table.sources and _JUDGED.issuperset(table.sources) and "p_yes" in table.signals
    return judged and walked(table, GUIDE_ONLY) is not None


@dataclass(frozen=True, slots=True)
class Rivals:
    """What was found for both strategies on the same questions, held against the same guide.

    Attributes:
        rounds: the base answers, the guide judges, and they may try again.
        ladder: the base answers, then the guide if the policy says so (`episodes.ladders`).
    """

    rounds: Proof
    ladder: Proof

    @property
    def better(self) -> str | None:
        """The strategy to take: of those that are shown to save, the one that saves more; None where neither is."""
        saved = {
            name: proof.policy.saving.mean
            for name, proof in ((LADDER, self.ladder), (ROUNDS, self.rounds))
            if proof.verdict == "saves" and proof.policy.saving is not None
        }
        return max(saved, key=lambda name: saved[name]) if saved else None

    @property
    def overlap(self) -> bool:
        """Whether the intervals of the two savings overlap, so that which saves more is not sure."""
        one, other = self.rounds.policy.saving, self.ladder.policy.saving
        if one is None or other is None or None in (one.low, one.high, other.low, other.high):
            return True
        return not (one.high < other.low or other.high < one.low)  # type: ignore[operator]
