"""Recorded walks: what another way to answer the same requests did, such as the guide alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from cascade.logs.columns import Calls
from cascade.logs.schema import Dropped
from cascade.table import Baseline


class WalkCall(NamedTuple):
    """A call of a walk. `name` distinguishes its answer: without texts all right answers are one."""

    step: int
    candidate: int | None
    answers: bool
    name: Hashable
    right: bool | None
    confidence: float
    kept: bool | None
    replied: bool
    cost: int | None

    @classmethod
    def of(cls, calls: Calls, at: int) -> WalkCall:
        """Return a call by its number."""
        step, candidate, cost, key, kept = (
            int(calls.columns[name][at]) for name in ("step", "candidate", "cost", "key", "kept")
        )
        right = None if math.isnan(calls.right[at]) else bool(calls.right[at])
        return cls(
            max(step, 1),
            None if candidate < 0 else candidate,
            bool(calls.flags["answers"][at]),
            key if key >= 0 else "right" if right else (max(step, 1), max(candidate, 0)),
            right,
            float(calls.confidence[at]),
            None if kept < 0 else bool(kept),
            bool(calls.flags["replied"][at]),
            None if cost < 0 else cost,
        )


class WalkResult(NamedTuple):
    """What a baseline did on an episode: the fields of `Baseline`, and how many answers it kept."""

    covered: bool
    right: float
    cost: int
    length: int
    size: int
    leaves: int


def walked(
    name: str, calls: Sequence[WalkCall] | None, episode_name: str, unjudged: bool, dropped: Dropped
) -> WalkResult | None:
    """Return the result of a logged walk; None if it is not logged, or its result is unknown, which is then counted."""
    if calls is None:
        return None
    answers: dict[tuple[int, int | None], tuple[WalkCall, bool | None]] = {}
    ambiguous = False
    for call in calls:
        if call.answers:
            ambiguous |= call.candidate is None and bool(answers)
            first, keeps = answers.get((call.step, call.candidate), (call, None))
            answers[call.step, call.candidate] = first, call.kept if keeps is None else keeps
    every = [call for call, _ in answers.values()]
    served = [call for call, keeps in answers.values() if keeps is not False]
    # The only answer of a walk was served, even if `kept` is null. If there are several answers, each needs a `kept`.
    several, keeps_of = ambiguous or len(answers) > 1, [keeps for _, keeps in answers.values()]
    reasons = {
        "neither an answer nor a reply is recorded": not answers and not any(call.replied for call in calls),
        "it has several answers, one of them with a null candidate": several and any(at is None for _, at in answers),
        "it has several answers, and kept is null for one of them": several and (None in keeps_of),
        "it is unknown whether its answer is right": not unjudged and any(call.right is None for call in served),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        dropped.note(f"a walk {name!r} is left out of its episode: {reason}", episode_name)
        return None
    costs, length = [call.cost for call in calls], max(call.step for call in calls)
    total, size = sum(cost or 0 for cost in costs), len({call.name for call in served})
    covered, right = any(call.right is True for call in served), _served_right(served or every)
    return WalkResult(covered, right, -1 if None in costs else total, length, size, len(served))


def _served_right(calls: Sequence[WalkCall]) -> float:
    """Return whether the answer that would be served is right: the surest, then the most frequent, then the latest."""
    groups: dict[Hashable, list[WalkCall]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: (call.step, -1 if call.candidate is None else call.candidate)):
        groups[call.name].append(call)

    def sure(call: WalkCall) -> float:
        return -1.0 if math.isnan(call.confidence) else call.confidence

    def worth(group: list[WalkCall]) -> tuple[float, int, int]:
        return max(map(sure, group)), len(group), max(call.step for call in group)

    best = max(groups.values(), key=worth, default=None)
    right = False if best is None else max(best, key=sure).right
    return math.nan if right is None else float(right)


def baseline_of(outcomes: Sequence[WalkResult | None]) -> Baseline:
    """Return the results of all episodes as a baseline; None: not on record."""
    nothing = WalkResult(False, math.nan, -1, 0, 0, 0)
    covered, right, cost, length, size, _ = zip(*[outcome or nothing for outcome in outcomes], strict=True)
    sums = (np.array(column, dtype=np.int64) for column in (cost, length, size))
    recorded = np.array([outcome is not None for outcome in outcomes], dtype=np.bool_)
    return Baseline(recorded, np.array(covered, dtype=np.bool_), np.array(right, dtype=np.float64), *sums)
