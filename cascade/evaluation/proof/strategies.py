"""Compare rounds in which the guide judges with a ladder without judging: one log, the same promise."""

from __future__ import annotations

from dataclasses import dataclass

from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import walked
from cascade.evaluation.proof.proving import Proof

ROUNDS, LADDER = "rounds", "ladder"
_JUDGED = {"base", "guide"}


def holds_both(table: EpisodeTable) -> bool:
    """Return whether a log of rounds also has the guide's own answers, so that it can be read as a ladder too."""
    judged = "base" in table.sources and _JUDGED.issuperset(table.sources) and "p_yes" in table.signals
    return judged and walked(table, GUIDE_ONLY) is not None


@dataclass(frozen=True, slots=True)
class Rivals:
    """The results of both strategies on the same questions, compared with the same guide.

    Attributes:
        rounds: the base answers, the guide judges, and they may try again.
        ladder: the base answers, then the guide if the policy says so (`episodes.ladders`).
    """

    rounds: Proof
    ladder: Proof

    @property
    def better(self) -> str | None:
        """The strategy to take: the one that saves more, of those shown to save; None if neither is shown to save."""
        saved = {
            name: proof.policy.saving.mean
            for name, proof in ((LADDER, self.ladder), (ROUNDS, self.rounds))
            if proof.verdict == "saves" and proof.policy.saving is not None
        }
        return max(saved, key=lambda name: saved[name]) if saved else None

    @property
    def overlap(self) -> bool:
        """Whether the intervals of the two savings overlap, so that it is not certain which saves more."""
        one, other = self.rounds.policy.saving, self.ladder.policy.saving
        if one is None or other is None or None in (one.low, one.high, other.low, other.high):
            return True
        return not (one.high < other.low or other.high < one.low)  # type: ignore[operator]
