"""The steps of a log's episodes, the answers in them, and which episodes can be judged."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from cascade.logs import schema
from cascade.logs.columns import Calls
from cascade.logs.schema import Dropped
from cascade.table import Bools, Ints

_FAILED = "an episode in which the call of a model failed"
_OTHERS = "an episode with a step that depends on other steps than in other episodes"
_REASONS = (
    _FAILED,
    "a question that is answered twice in one step: give each run its own episode_id",
    "an episode without a step, such as when only the guide was asked",
    "an episode with a step missing in the middle",
    "an episode with a step that depends on itself or on a later step",
    "an episode with a step of several answers, one of them with a null candidate",
    "an episode with a step without a recorded answer or reply",
    schema.UNJUDGED,
)
"""Why an episode cannot be judged: the first that applies, or of the last three, that of the first bad step."""
_AMBIGUOUS, _SILENT, _UNJUDGED = 5, 6, 7


@dataclass(frozen=True, slots=True)
class Bought:
    """The steps of all episodes and the answers in them, sorted by episode and step. Refused calls are left out.

    Attributes:
        every: the numbers of all calls of steps, including the refused ones.
        calls: the same without the refused ones; `step_of` has the index of each call's step.
        episode, step, first: for each step, its episode, its number from 1, and its first call in the log.
        parents: what each step reads, as numbers in `Calls.reads`; −1: not on record.
        ambiguous: whether a step has several answers, one of them with a null candidate.
        answer, place, answers_in: the calls that answer, their places, and the numbers of their steps.
        stood_in: by episode, whether another model answered in a refused step.
    """

    every: Ints
    calls: Ints
    step_of: Ints
    episode: Ints
    step: Ints
    first: Ints
    parents: Ints
    ambiguous: Bools
    answer: Ints
    place: Ints
    answers_in: Ints
    stood_in: Bools

    @classmethod
    def of(cls, calls: Calls) -> Bought:
        """Return the steps of all calls that belong to no walk."""
        column, answers = calls.columns, calls.flags["answers"]
        is_step = (column["walk"] < 0) & (column["step"] >= 1)
        every = np.flatnonzero(is_step)
        every = every[np.lexsort((column["step"][every], column["episode"][every]))]
        out, stood_in = np.zeros(every.size, dtype=np.bool_), np.zeros(len(calls.episodes.name), dtype=np.bool_)
        steps_of: dict[int, set[int]] = defaultdict(set)
        for call, steps in calls.refused.items():
            if is_step[call]:
                steps_of[int(column["episode"][call])] |= steps
        for number, refused in steps_of.items():
            low, high = np.searchsorted(column["episode"][every], [number, number + 1]).tolist()
            out[low:high] = np.isin(column["step"][every[low:high]], list(refused))
            stood_in[number] = answers[every[low:high][out[low:high]]].any()
        chosen = every[~out] if out.any() else every
        episode, step = column["episode"][chosen], column["step"][chosen]
        opens = np.append(True, (episode[1:] != episode[:-1]) | (step[1:] != step[:-1]))[: chosen.size]
        step_of, starts = np.cumsum(opens) - 1, np.flatnonzero(opens)
        parents = np.full(starts.size, -1)
        known = column["parents"][chosen] >= 0
        parents[step_of[known][::-1]] = column["parents"][chosen][known][::-1]  # the first counts
        candidate, gives = column["candidate"][chosen], answers[chosen]
        loose = np.bincount(step_of[gives & (candidate < 0)], minlength=starts.size)
        placed = np.bincount(step_of[gives & (candidate >= 0)], minlength=starts.size)
        ambiguous = (loose > 0) & ((loose > 1) | (placed > 0))
        at = np.flatnonzero(gives & ~ambiguous[step_of])
        place = np.maximum(candidate[at], 0)
        _, first = np.unique(step_of[at] * (place.max(initial=0) + 1) + place, return_index=True)
        at, place = at[first], place[first]
        return cls(
            every, chosen, step_of, episode[starts], step[starts], chosen[starts], parents, ambiguous, chosen[at],
            place, step_of[at], stood_in,
        )  # fmt: skip


def problems_of(calls: Calls, bought: Bought, *, unjudged: bool) -> Ints:
    """Return why each episode cannot be judged, as an index into `_REASONS`, int64 (e,); −1 if it can be.

    With `unjudged`, an answer whose truth is unknown is no problem: people judge only some of the answers.
    """
    n, column, steps = len(calls.episodes.name), calls.columns, bought.step.size

    def any_of(episodes: Ints) -> Bools:
        return np.bincount(episodes, minlength=n) > 0

    many = np.bincount(bought.answers_in, minlength=steps)
    later, leaves_out = _reads_later(calls, bought), _may_leave_out(calls, bought, many)
    failed = any_of(column["episode"][bought.every[calls.flags["failed"][bought.every]]])
    is_step = np.zeros(column["episode"].size, dtype=np.bool_)
    is_step[bought.every] = True
    refused = np.array([call for call, steps in calls.refused.items() if steps and is_step[call]], dtype=np.int64)
    refuses = any_of(column["episode"][refused])
    count, highest = np.bincount(bought.episode, minlength=n), np.zeros(n, dtype=np.int64)
    np.maximum.at(highest, bought.episode, bought.step)
    candidate = column["candidate"][bought.calls]
    gives = calls.flags["answers"][bought.calls] & (candidate >= 0)
    width = int(candidate.max(initial=0)) + 1
    runs, times = np.unique(bought.step_of[gives] * width + candidate[gives], return_counts=True)
    doubled = any_of(bought.episode[runs[times > 1] // width]) & calls.episodes.own
    silent = (many == 0) & (np.bincount(bought.step_of[calls.flags["replied"][bought.calls]], minlength=steps) == 0)
    unknown = np.bincount(bought.answers_in[np.isnan(calls.right[bought.answer])], minlength=steps) > 0
    unknown |= np.isnan(calls.right).all()  # in such a log an episode without an answer is not judged either
    kinds = {_AMBIGUOUS: bought.ambiguous, _SILENT: silent, _UNJUDGED: unknown & (not unjudged)}
    of_step = np.select(list(kinds.values()), list(kinds), -1)
    of_episode = np.full(n, -1)
    bad = np.flatnonzero(of_step >= 0)
    bad = bad[np.argsort(-bought.first[bad])]  # the first step in the log counts
    of_episode[bought.episode[bad]] = of_step[bad]
    lacks = failed & (~refuses | bought.stood_in | (count == 0) | ~leaves_out)
    tests = (lacks, doubled, count == 0, (highest > count) & ~leaves_out, any_of(bought.episode[later]))
    return np.select(tests, list(range(len(tests))), of_episode)


def _reads_later(calls: Calls, bought: Bought) -> Bools:
    """Return which steps depend on themselves or on a later step."""
    highest = np.array([max(steps, default=0) for steps in calls.reads] + [0])
    return highest[bought.parents] >= bought.step


def _may_leave_out(calls: Calls, bought: Bought, many: Ints) -> Bools:
    """Return in which episodes a policy may have skipped steps: each step is one call whose parents are on record."""
    n, column = len(calls.episodes.name), calls.columns
    own, model, source = (column[name][bought.every] for name in ("episode", "model", "source"))
    ladder = (np.bincount(own[model >= 0], minlength=n) > 0) & (
        np.bincount(own[(model >= 0) & (model != source)], minlength=n) == 0
    )
    unsaid = (bought.parents < 0) & ~ladder[bought.episode]
    wrong = unsaid | bought.ambiguous | (many > 1)
    width = int(bought.step.max(initial=0)) + 1
    there = bought.episode * width + bought.step
    for number, steps in enumerate(calls.reads):
        reading = np.flatnonzero(bought.parents == number)
        for step in steps:
            wrong[reading] |= (step >= width) | ~np.isin(bought.episode[reading] * width + min(step, width), there)
    return np.asarray(np.bincount(bought.episode[wrong], minlength=n) == 0)


def usable(calls: Calls, bought: Bought, chosen: Ints, problems: Ints, dropped: Dropped) -> Ints:
    """Return the episodes that can be judged and whose steps read what they read in the first one; count the rest."""
    others = set[int]()
    if (bought.parents >= 0).any():
        reads_by_step: dict[int, Any] = {}
        verdicts: dict[tuple[Any, ...], bool] = {}
        for episode in chosen[problems[chosen] < 0].tolist():
            low, high = np.searchsorted(bought.episode, [episode, episode + 1]).tolist()
            pairs = tuple(zip(bought.step[low:high].tolist(), bought.parents[low:high].tolist(), strict=True))
            if pairs not in verdicts:
                reads = {step: reads_before(calls, step, number) for step, number in pairs}
                verdicts[pairs] = all(reads_by_step.get(step, steps) == steps for step, steps in reads.items())
                reads_by_step |= reads if verdicts[pairs] else {}
            if not verdicts[pairs]:
                others.add(episode)
    good = (problems[chosen] < 0) & ~np.isin(chosen, list(others))
    for episode in chosen[~good].tolist():
        dropped.drop(_OTHERS if episode in others else _REASONS[problems[episode]], calls.episodes.name[episode])
    return chosen[good]


def reads_before(calls: Calls, step: int, parents: int) -> tuple[int, ...]:
    """Return the steps that a step reads; by default, the step before it."""
    return calls.reads[parents] if parents >= 0 else (step - 1,) if step > 1 else ()


def first_of(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first index of each distinct row of the columns, in sorted order, and each row's number among them."""
    code, codes = np.zeros(columns[0].size, dtype=np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 2
        if codes * size >= 1 << 62:  # too many combinations for int64: number only those that occur
            _, code = np.unique(code, return_inverse=True)
            codes = code.size
        code, codes = code * size + column + 1, codes * size
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return first, group


def summed(numbers: Ints, groups: Ints, size: int) -> Ints:
    """Return the sum of the numbers in each group; −1 if one of them is unknown, 0 for an empty group."""
    total = np.zeros(size, dtype=np.int64)
    np.add.at(total, groups, np.maximum(numbers, 0))
    total[groups[numbers < 0]] = -1
    return total
