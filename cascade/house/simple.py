"""Policies that read one number, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cascade.conformal.path import Scores, Walks, walks
from cascade.house.policy import Policy, ranked
from cascade.table import Floats, Log


class Known(NamedTuple):
    """A signal whose meaning is known: sign 1 if a high value means doubt, −1 if a low one does."""

    signal: str
    sign: float
    name: str


KNOWN = (
    Known("p_yes", -1.0, "verdict"),
    Known("reply_mean_logprob", -1.0, "log-prob"),
    Known("self_check", -1.0, "self-check"),
    Known("answer_min_logprob", -1.0, "answer log-prob"),
    Known("gate", -1.0, "gate"),
    Known("judge_share", -1.0, "judge's votes"),
    Known("answer_share", -1.0, "share of this answer"),
    Known("reply_tokens", 1.0, "length of the reply"),
)
"""The signals that name a score before a log is read, in the order of preference."""
TIE, COST = "reply_tokens", "cost"
"""What breaks ties: the length of a node's reply, or its cost where no length is logged. Large means doubt, in every
log; both are known before anything else is asked."""


@dataclass(frozen=True, slots=True)
class Threshold(Policy):
    """Go on while one signal means doubt; serve the newest answer.

    Attributes:
        signal: its name.
        sign: 1 if a high value means doubt, −1 if a low one does.
        tie: the signal that breaks ties, or "cost": a high value means doubt. None: nothing breaks them.
        nodes: the nodes of the plan that are bought; None: all.
    """

    kind: ClassVar[str] = "threshold"
    signal: str
    sign: float
    tie: str | None = TIE
    nodes: tuple[int, ...] | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The signal; a missing tie number costs some money and no promise."""
        return (self.signal,)

    def scores(self, log: Log) -> Scores:
        """Return the signal as doubt, on the grid."""
        unknown = np.full(log.answer.shape, np.nan)
        values = log.signals.get(self.signal, unknown) * self.sign
        return Scores(ranked(values, _breaking(log, self.tie)))

    def without_ties(self) -> Threshold:
        """Return it with ties unbroken."""
        return replace(self, tie=None)

    def settings(self) -> dict[str, Any]:
        """Return signal, sign and tie."""
        return {"signal": self.signal, "sign": self.sign, "tie": self.tie}


@dataclass(frozen=True, slots=True)
class Depth(Policy):
    """Read nothing: the threshold is a number of nodes. Serve the newest answer."""

    kind: ClassVar[str] = "depth"
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        """Return a doubt that falls from node to node."""
        return Scores(np.broadcast_to(-np.arange(1.0, log.width + 1), log.answer.shape))


def named(log: Log) -> Known | None:
    """Return the score that is named before a log is read: the first of `KNOWN` that the log has; None if it has none.

    It reads which signals there are, and neither an answer nor an outcome.
    """
    return next((known for known in KNOWN if not np.isnan(log.signals.get(known.signal, np.nan)).all()), None)


@dataclass(frozen=True, slots=True)
class Alone(Policy):
    """Ask the reference alone, at once: the guide, or a ladder's last model."""

    kind: ClassVar[str] = "reference"
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        """Return no doubt: nothing follows."""
        return Scores(np.zeros(log.answer.shape))

    def walks(self, log: Log) -> Walks:
        """Return its walks over a log of the whole plan: one node."""
        alone = log.alone()
        return walks(alone, self.scores(alone))


def named_policy(log: Log) -> Threshold | None:
    """Return the threshold on the score that a log's signals name; None if it has no signal of a known meaning."""
    known = named(log)
    return None if known is None else Threshold(known.signal, known.sign, tie=tie_of(log))


def tie_of(log: Log) -> str | None:
    """Return what breaks ties in a log: the length of replies, else their cost; None if it has neither."""
    if not np.isnan(log.signals.get(TIE, np.nan)).all():
        return TIE
    return COST if (log.cost_nano_usd[:, 0] > 0).any() else None


def _breaking(log: Log, tie: str | None) -> Floats | None:
    if tie is None:
        return None
    if tie == COST:
        known = log.bought & (log.cost_nano_usd >= 0)
        return np.asarray(np.where(known, log.cost_nano_usd, np.nan), dtype=np.float64)
    signal: Floats = log.signals.get(tie, np.full(log.answer.shape, np.nan))
    return signal


POLICIES: Mapping[str, type[Policy]] = {policy.kind: policy for policy in (Threshold, Depth, Alone)}
"""Every kind of policy that a directory may hold."""
