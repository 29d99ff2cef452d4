"""Find the one number that a threshold reads: the doubt about a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cascade.conformal.arrays import Floats, Ints
from cascade.episodes.table import EpisodeTable


@dataclass(frozen=True, slots=True)
class Doubt:
    """A signal, and how to convert it to doubt: higher means more doubt, +inf means unknown."""

    signal: str
    name: str
    convert: Callable[[Floats], Floats]

    @property
    def sign(self) -> float:
        """1 where more of the signal means more doubt about the answer, −1 where it means less.

        A verdict is read as P(the answer is right): it may also be sure that the answer is wrong, and then `read`, but
        not this, says that there is no doubt left.
        """
        less, more = self.convert(np.array([0.6, 0.9])).tolist()
        return 1.0 if more > less else -1.0

    def read(self, table: EpisodeTable) -> Floats:
        """Return the doubt at each step, float64 (n, T)."""
        values = table.signals.get(self.signal)
        if values is None:
            return np.full(table.arrays.cost.shape, np.inf)
        doubt = self.convert(values)
        return np.where(np.isnan(doubt), np.inf, doubt)

    def chosen(self, table: EpisodeTable) -> Ints:
        """Return which candidate a step's verdict favours, int64 (n, T), −1 where there is none.

        After a no it is the last one, the guide's; after a yes, and where nothing was judged in a step of several
        candidates, the first; in a step of one candidate that one.
        """
        present = table.arrays.present
        first = np.where(present.any(axis=2), present.argmax(axis=2), -1)
        last = np.where(present.any(axis=2), present.shape[2] - 1 - present[:, :, ::-1].argmax(axis=2), -1)
        p_yes = table.signals.get("p_yes")
        says_no = np.zeros(first.shape, dtype=np.bool_) if p_yes is None else p_yes < 0.5
        return np.asarray(np.where(says_no, last, first), dtype=np.int64)


def _judged(p_yes: Floats) -> Floats:
    """Return −ln max(p, 1 − p), to the last bit `policies.threshold.uncertainty`: numpy's own logarithm may differ."""
    sure = np.maximum(p_yes, 1.0 - p_yes)
    return -np.fromiter(map(math.log, sure.ravel().tolist()), np.float64, count=sure.size).reshape(sure.shape)


def _negative(values: Floats) -> Floats:
    return -values


def _complement(values: Floats) -> Floats:
    return 1.0 - values


def _same(values: Floats) -> Floats:
    return values


KNOWN = (
    Doubt("p_yes", "verdict", _judged),
    Doubt("reply_mean_logprob", "log-prob", _negative),
    Doubt("self_check", "self-check", _complement),
    Doubt("answer_min_logprob", "answer log-prob", _negative),
    Doubt("gate", "gate", _complement),
    Doubt("judge_share", "judge's votes", _complement),
    Doubt("answer_share", "share of this answer", _complement),
)
"""In the order in which a log's signals are looked for; each also as the base's own, "base_…", where both have one."""


def doubt_of(table: EpisodeTable) -> Doubt | None:
    """Return the first known kind of doubt for which a log has numbers; None if it has none."""
    there = _there(table)
    for doubt in KNOWN:
        for signal in (doubt.signal, f"base_{doubt.signal}"):
            if signal in there:
                return replace(doubt, signal=signal)
    others = [name for name in there if name.endswith(("uncertainty", "entropy"))]
    return Doubt(others[0], others[0].replace("_", " "), _same) if others else None


def only_unknown(table: EpisodeTable) -> bool:
    """Whether some numbers of the first step vary (tools offered, calls made), but none is known to mean doubt."""
    first = [values[:, 0] for values in table.signals.values()]
    known = [values[~np.isnan(values)] for values in first]
    return doubt_of(table) is None and any(values.size and values.min() < values.max() for values in known)


def why_no_doubt(table: EpisodeTable) -> str | None:
    """Return why `doubt_of` finds no doubt in a log, with the log's signals named; None if it finds one."""
    if doubt_of(table) is not None:
        return None
    there = _there(table)
    if not there:
        return "the log has no signals"
    known = ", ".join(doubt.signal for doubt in KNOWN)
    listed = f"the signal {there[0]} is" if len(there) == 1 else f"the signals {', '.join(there)} are"
    return (
        f"{listed} of no known kind, so it is unknown whether more of it means more doubt; known are {known}, and any "
        "name that ends with uncertainty or entropy, where more means more doubt"
    )


def _there(table: EpisodeTable) -> list[str]:
    """Return the signals that a log has numbers of, sorted."""
    return [name for name, values in sorted(table.signals.items()) if not np.isnan(values).all()]
