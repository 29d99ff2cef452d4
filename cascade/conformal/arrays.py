"""Logged steps and a policy's scores as arrays, and the policy's decisions on them at every threshold.

n questions, at most T steps each, at most m candidates a step. Absent steps and candidates are marked, not guessed.

Only the action "next" leads to another step, and a step's content does not depend on the policy. So a policy's scores
on the log determine, for every kappa at once, how far it goes and which answers it keeps (`design/rollout.md`):

    reach   v_1 = +∞,  v_t = min over s < t of s̃_s(next)        step t is paid      ⇔ v_t ≥ kappa
    leaf    m_t(a) = min(v_t, s̃_t(a))                           answer a is kept    ⇔ m_t(a) ≥ kappa

where s̃ is the score, +∞ for the argmax of a step, −∞ where the action is impossible. A level of −∞ is reached at no
kappa, not even at −∞. The result agrees with `policies.base.actions` followed step by step.

These formulas are for a chain. If steps name their parents, step t is paid if all its parents are paid and its own
score is at least kappa: v_t = min(s̃(t), min over its parents p of v_p), and v_t = +∞ without parents. The policy
decides on a step at the step's last parent, the one with the highest number. The argmax there is taken over the answers
of that parent and the steps decided on there. The last parent does not depend on kappa, so each level is a minimum of
numbers that do not depend on kappa either. A step with several parents may be the argmax where another parent is not
paid: then nothing is kept there.

If a record ends before the question does (`open_end`), the walk might have gone on, and it is unknown whether an answer
there is the argmax. So the answer is kept only for its own score, s̃ = s. Then every answer that counts as kept, and
every question that counts as covered, would also count with a complete record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cascade.errors import UsageError

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Parents: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Logged steps of n questions.

    Attributes:
        answer: int64 (n, T, m), the number of a candidate's answer within its question, equal for equal answers;
            −1 = no candidate.
        correct: bool (n, T, m), whether the candidate is right; False where there is none.
        cost: int64 (n, T), the cost of step t in nano-USD; 0 beyond the last logged step.
        steps: int64 (n,), the number of logged steps, 1 ≤ steps ≤ T.
        complete: bool (n,), whether all possible steps of the question are logged. If not, and no logged answer is
            right, it is unknown whether a later step would have given a right one.
        parents: for each of the T steps the numbers of the earlier steps that it depends on; a step without any is
            always paid. None (and set to None) for a chain, in which each step depends on the one before.
    """

    answer: Ints
    correct: Bools
    cost: Ints
    steps: Ints
    complete: Bools
    parents: Parents | None = None

    def __post_init__(self) -> None:
        if self.parents is not None and self.parents == chain(self.horizon):
            object.__setattr__(self, "parents", None)

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.answer.shape[0])

    @property
    def horizon(self) -> int:
        """T."""
        return int(self.answer.shape[1])

    @property
    def present(self) -> Bools:
        """Bool (n, T, m): whether there is a candidate."""
        return self.answer >= 0

    @property
    def solvable(self) -> Bools:
        """Bool (n,): whether a logged answer is right."""
        return np.asarray(self.correct.any(axis=(1, 2)), dtype=np.bool_)

    def take(self, rows: Ints | Bools | slice) -> StepArrays:
        """Return the chosen questions; a slice is not copied."""
        return StepArrays(
            self.answer[rows],
            self.correct[rows],
            self.cost[rows],
            self.steps[rows],
            self.complete[rows],
            self.parents,
        )

    def only(self, steps: Sequence[int]) -> StepArrays:
        """Return the same questions as if no other steps existed; the steps are numbered from 1, in rising order.

        The result is exact if no step's content depends on another step, as in a ladder, or if `parents` names the
        steps that it depends on. A question whose record ends before one of the chosen steps becomes incomplete.

        Raises:
            UsageError: a chosen step has a parent that is not chosen.
        """
        parents = None if self.parents is None else _among(self.parents, steps)
        columns, numbers = np.array(steps, dtype=np.int64) - 1, np.array(steps, dtype=np.int64)
        many = np.count_nonzero(numbers <= self.steps[:, None], axis=1)
        reached = np.maximum(many, 1)  # a record has at least one step; here that step is empty
        return StepArrays(
            renumbered(self.answer[:, columns]),
            self.correct[:, columns],
            self.cost[:, columns],
            np.asarray(reached, dtype=np.int64),
            np.asarray(many == numbers.size, dtype=np.bool_),
            parents,
        )

    @property
    def nodes(self) -> Parents:
        """The parents of each step, also for a chain (where `parents` is None)."""
        return chain(self.horizon) if self.parents is None else self.parents


def chain(horizon: int) -> Parents:
    """Return the parents of the steps of a chain.

    >>> chain(3)
    ((), (1,), (2,))
    """
    return tuple([(step,) if step else () for step in range(horizon)])


def ancestors(parents: Parents) -> Bools:
    """Return the steps that must be paid to reach each step, itself included: bool (T, T), a row for each step.

    >>> ancestors(((), (1,), (1,), (2, 3))).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]
    """
    found = np.eye(len(parents), dtype=np.bool_)
    for step, needed in enumerate(parents):
        for parent in needed:
            found[step] |= found[parent - 1]
    return found


def parents_problems(parents: Parents, horizon: int) -> list[str]:
    """Return the problems of the parents of T steps, in words."""
    problems = [f"parents must name those of {horizon} steps, not of {len(parents)}"] if len(parents) != horizon else []
    for number, needed in enumerate(parents, 1):
        if list(needed) != sorted(set(needed)) or any(not 1 <= parent < number for parent in needed):
            problems.append(f"the parents of step {number} must be earlier steps in rising order, not {list(needed)}")
    return problems


def _among(parents: Parents, steps: Sequence[int]) -> Parents:
    """Return the parents of the chosen steps, numbered anew."""
    number = {step: place for place, step in enumerate(steps, 1)}
    lacking = {step: [p for p in parents[step - 1] if p not in number] for step in steps}
    if any(lacking.values()):
        listed = "; ".join(f"step {step} depends on step {', '.join(map(str, p))}" for step, p in lacking.items() if p)
        raise UsageError(f"These steps cannot be taken without others: {listed}.")
    return tuple([tuple([number[parent] for parent in parents[step - 1]]) for step in steps])


def renumbered(answer: Ints) -> Ints:
    """Number the answers of each question in the order of their first appearance; −1 (no candidate) stays −1.

    >>> renumbered(np.array([[[7], [-1], [2], [7]]]))[0, :, 0].tolist()
    [0, -1, 2, 0]
    """
    flat = answer.reshape(answer.shape[0], -1)
    found = np.full(flat.shape, -1, dtype=np.int64)
    for place in range(flat.shape[1]):
        same = flat[:, : place + 1] == flat[:, place, None]
        found[:, place] = np.where(flat[:, place] >= 0, same.argmax(axis=1), -1)
    return found.reshape(answer.shape)


class ScoreArrays(NamedTuple):
    """A policy's scores on logged steps, higher = include, +inf always: float64 (n, T, m) and (n, T).

    `next` at column t (from 0) is the score of step t + 2, given by the policy at the last of that step's parents. In a
    chain, it is the score of going on from step t + 1. The last column is ignored.
    """

    candidates: Floats
    next: Floats

    def take(self, rows: Ints | Bools | slice) -> ScoreArrays:
        """Return the chosen questions; of a slice without copying."""
        return ScoreArrays(self.candidates[rows], self.next[rows])


# Questions per chunk: each takes a few hundred bytes of working memory, and a chunk should fit into the cache.
_CHUNK = 1 << 14


class Levels(NamedTuple):
    """The highest kappa at which each step is paid and each answer is kept: +∞ = always, −∞ = never.

    Attributes:
        reach: float64 (n, T), v_t: step t is paid where reach ≥ kappa and reach > −∞.
        leaf: float64 (n, T, m), m_t(a): the answer is kept where leaf ≥ kappa and leaf > −∞.
        first: bool (n, T, m), whether the leaf is the first with its answer to be kept as kappa falls: the highest leaf
            with that answer, the earliest of several. False if the leaf is kept at no kappa.
    """

    reach: Floats
    leaf: Floats
    first: Bools

    def take(self, rows: Ints | Bools) -> Levels:
        """Return the chosen questions."""
        return Levels(self.reach[rows], self.leaf[rows], self.first[rows])


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of the walks of n questions at one threshold, as far as the log records them.

    The figures are exact for complete questions. For an incomplete question every figure is a lower bound.

    Attributes:
        length: int64 (n,), steps paid.
        cost: int64 (n,), nano-USD.
        leaves: int64 (n,), answers kept, repetitions counted.
        distinct: int64 (n,), different answers kept: the size of the prediction set.
        correct_leaves: int64 (n,), right answers kept, repetitions counted.
        in_set: bool (n,), whether a right answer is kept.
        covered: bool (n,), in_set, or no step has a right answer. An incomplete question without a logged right answer
            is not covered: a later step might have had one.
    """

    length: Ints
    cost: Ints
    leaves: Ints
    distinct: Ints
    correct_leaves: Ints
    in_set: Bools
    covered: Bools


def levels(steps: StepArrays, scores: ScoreArrays) -> Levels:
    """Return the levels of n questions, in O(nTm).

    Args:
        steps: the log. "next" is impossible at a complete question's last step. At an open end of an incomplete
            question, "next" leads beyond the record, and no answer is kept as the last resort, whatever the scores are.
        scores: the policy's scores on the log. The scores of absent candidates and of steps beyond the record are
            ignored; NaN excludes a candidate and includes "next".

    Raises:
        UsageError: the shapes do not fit, or answers are not numbered within their question.

    >>> one = StepArrays(
    ...     answer=np.array([[[0, 1], [1, 1]]]), correct=np.array([[[False, True], [True, True]]]),
    ...     cost=np.array([[10, 20]]), steps=np.array([2]), complete=np.array([True]))
    >>> found = levels(one, ScoreArrays(np.array([[[0.2, 0.5], [0.1, 0.6]]]), np.array([[0.3, 0.0]])))
    >>> found.reach.tolist(), found.leaf.tolist()
    ([[inf, 0.3]], [[[0.2, inf], [0.1, 0.3]]])
    """
    check_arrays(steps, scores)
    shape = steps.answer.shape
    found = Levels(np.empty(shape[:2]), np.empty(shape), np.zeros(shape, dtype=np.bool_))
    for some in chunks(steps.n):
        fill_levels(found.reach[some], found.leaf[some], steps.take(some), scores.take(some))
        _mark_first(found.first[some], steps.answer[some], found.leaf[some])
    return found


def rollout(steps: StepArrays, levels: Levels, kappa: float | Floats) -> Outcomes:
    """Return the outcomes at a threshold.

    `kappa` is one threshold, or float64 (n,), one for each question.
    """
    paid = passed(levels.reach, kappa)
    kept = passed(levels.leaf, kappa)
    right = kept & steps.correct
    correct_leaves = _count(right)
    in_set = correct_leaves > 0
    return Outcomes(
        length=_count(paid),
        cost=np.where(paid, steps.cost, 0).sum(axis=1, dtype=np.int64),
        leaves=_count(kept),
        distinct=_count(kept & levels.first),
        correct_leaves=correct_leaves,
        in_set=in_set,
        covered=in_set | hopeless(steps),
    )


def passed(heights: Floats, kappa: float | Floats) -> Bools:
    """Return which levels (n, …) are reached at kappa: level ≥ kappa and level > −∞."""
    bar = np.asarray(kappa, dtype=np.float64)
    if bar.shape not in {(), heights.shape[:1]} or np.isnan(bar).any():
        raise UsageError(
            f"kappa must be one number, or one for each of {heights.shape[0]} questions, and not NaN;"
            f" it has shape {bar.shape}"
        )
    lowest = np.maximum(bar, -np.finfo(np.float64).max)  # every finite level reaches −∞; a level of −∞ does not
    return np.asarray(heights >= lowest.reshape(lowest.shape + (1,) * (heights.ndim - 1) * lowest.ndim))


def hopeless(steps: StepArrays) -> Bools:
    """Return which questions count as covered at every kappa: complete, and never answered rightly."""
    return steps.complete & ~steps.solvable


def open_end(steps: StepArrays) -> Bools:
    """Mark where a record ends before the question does: bool (n, T), all False for a complete record.

    In a chain this is the last logged step. Otherwise it is every step at which the policy would decide on a missing
    step whose parents are all logged (the first step, if the missing step has no parents); if all T steps are logged,
    it is every step. The steps after an open end are unknown for every policy.
    """
    on_record = np.arange(steps.horizon) < steps.steps[:, None]
    if steps.parents is None:
        ends = on_record & (np.arange(steps.horizon) == steps.steps[:, None] - 1)
    else:
        ends = on_record & (steps.steps == steps.horizon)[:, None]
        for child, parents in enumerate(steps.parents):
            last = max(parents, default=1) - 1
            ends[:, last] |= (child >= steps.steps) & on_record[:, last]
    return np.asarray(ends & ~steps.complete[:, None], dtype=np.bool_)


def _count(marks: Bools) -> Ints:
    return np.asarray(np.count_nonzero(marks, axis=tuple(range(1, marks.ndim))), dtype=np.int64)


def chunks(n: int) -> Iterator[slice]:
    """Cut n questions into slices that fit into a processor's cache."""
    return (slice(start, start + _CHUNK) for start in range(0, n, _CHUNK))


def fill_levels(reach: Floats, leaf: Floats, steps: StepArrays, scores: ScoreArrays) -> None:
    """Write the levels of some questions into `reach` and `leaf`."""
    leaf[:], onward = _effective(steps, scores)
    for step, parents in enumerate(steps.nodes):
        if not parents:
            reach[:, step] = np.inf if not step else np.where(step < steps.steps, np.inf, -np.inf)
            continue
        np.minimum(reach[:, parents[0] - 1], onward[:, step - 1], out=reach[:, step])
        for parent in parents[1:]:
            np.minimum(reach[:, step], reach[:, parent - 1], out=reach[:, step])
    for a in range(leaf.shape[2]):  # a handful: long strided columns are faster than many short rows
        np.minimum(leaf[:, :, a], reach, out=leaf[:, :, a])


def _effective(steps: StepArrays, scores: ScoreArrays) -> tuple[Floats, Floats]:
    """Return s̃ of the candidates (n, T, m) and the steps after the first (n, T), as `policies.base.actions` does."""
    present = steps.present
    height = np.where(present & ~np.isnan(scores.candidates), scores.candidates, -np.inf)
    best = np.full(scores.next.shape, -1)  # the argmax of the candidates, −1 where there is none
    highest = np.full(scores.next.shape, -np.inf)
    told = np.full(scores.next.shape, -np.inf)  # its score as given: a NaN never prevents "next" from being the argmax
    for a in range(height.shape[2]):
        better = present[:, :, a] & ((best < 0) | (height[:, :, a] > highest))
        np.copyto(best, a, where=better)
        np.copyto(highest, height[:, :, a], where=better)
        np.copyto(told, scores.candidates[:, :, a], where=better)
    off_record = np.arange(steps.horizon) >= steps.steps[:, None] - 1
    onward = np.where(np.isnan(scores.next), np.inf, scores.next)
    if steps.parents is None:
        next_is_argmax = ~off_record & ((best < 0) | ~(onward <= told))
        onward[next_is_argmax] = np.inf
    else:
        next_is_argmax = _raise_the_argmax(onward, steps, best, told)
    onward[off_record] = -np.inf
    best[next_is_argmax | open_end(steps)] = -1
    for a in range(height.shape[2]):
        height[:, :, a][best == a] = np.inf
    return height, onward


def _raise_the_argmax(onward: Floats, steps: StepArrays, best: Ints, told: Floats) -> Bools:
    """Set the score of a step to +∞ if it is the argmax at its decision; return where one is: bool (n, T).

    At an open end no score is raised: a step or answer that is not logged might have been the argmax.
    """
    found, ends = np.zeros(best.shape, dtype=np.bool_), open_end(steps)
    for at in range(steps.horizon):
        there = [step for step, parents in enumerate(steps.nodes) if parents and parents[-1] == at + 1]
        chosen, highest = np.full(steps.n, -1), np.full(steps.n, -np.inf)
        for step in there:  # the first, if several are equal
            better = (step < steps.steps) & ((chosen < 0) | (onward[:, step - 1] > highest))
            np.copyto(chosen, step, where=better)
            np.copyto(highest, onward[:, step - 1], where=better)
        found[:, at] = (chosen >= 0) & ((best[:, at] < 0) | ~(highest <= told[:, at]))
        for step in there:
            onward[found[:, at] & ~ends[:, at] & (chosen == step), step - 1] = np.inf
    return found


def _mark_first(first: Bools, answer: Ints, leaf: Floats) -> None:
    """Mark, among the leaves with the same answer, the one with the highest level, the earliest of several."""
    n, width = leaf.shape[0], leaf.shape[1] * leaf.shape[2]
    slot = answer + width * np.arange(n)[:, None, None]  # one place in a flat table for each answer
    place = np.flatnonzero(leaf > -np.inf)
    slots, heights = slot.ravel()[place], leaf.ravel()[place]
    highest = np.full(n * width, -np.inf)
    np.maximum.at(highest, slots, heights)
    top = np.flatnonzero(heights == highest[slots])[::-1]
    holder = np.empty(n * width, dtype=np.int64)
    holder[slots[top]] = place[top]  # the last write, so the earliest leaf, stays
    first.reshape(-1)[holder[slots[top]]] = True


def check_arrays(steps: StepArrays, scores: ScoreArrays) -> None:
    """Raise UsageError if the arrays do not match."""
    shape = steps.answer.shape
    if len(shape) != 3 or not shape[1] or not shape[2]:
        raise UsageError(f"answer must have the shape (n, T, m) with T, m ≥ 1, not {shape}; see episodes.table")
    wanted = {
        "correct": (steps.correct, shape),
        "cost": (steps.cost, shape[:2]),
        "steps": (steps.steps, shape[:1]),
        "complete": (steps.complete, shape[:1]),
        "scores.candidates": (scores.candidates, shape),
        "scores.next": (scores.next, shape[:2]),
    }
    problems = [
        f"{name} must have the shape {fit}, not {a.shape}" for name, (a, fit) in wanted.items() if a.shape != fit
    ]
    if not problems and shape[0]:
        if steps.steps.min() < 1 or steps.steps.max() > shape[1]:
            problems.append(f"steps must lie in 1..{shape[1]}")
        if steps.answer.max(initial=-1) >= shape[1] * shape[2] or steps.answer.min(initial=-1) < -1:
            problems.append(f"answers must be numbered 0..{shape[1] * shape[2] - 1} within their question, −1 = none")
    problems += [] if steps.parents is None else parents_problems(steps.parents, shape[1])
    if problems:
        raise UsageError("; ".join(problems) + ". The scores and the steps must be of the same questions.")


# --- Step functions of kappa, one a question, and their sum at every threshold, in integers ---
# A quantity of a question (its cost, its loss) changes only at the levels of `arrays`. So n of them are n·J jumps, and
# one sort and a running sum give their sum: exact, without a grid. Numbers that are not integers are counted in units
# of 2⁻³⁰; whoever creates them rounds to the unfavourable side.

UNITS = 1 << 30
"""Units in a loss of 1. No quality is known more precisely than 2⁻³⁰, and 2³³ losses still fit into 64 bits."""
_INT64 = float(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Curve:
    """The sum over n questions at every threshold. Point k holds for kappa[k + 1] < kappa ≤ kappa[k].

    The last point holds for every kappa up to its own.

    Attributes:
        n: the number of questions.
        kappa: float64 (K,), descending from +∞.
        total: int64 (K,), the sum in units.
        units: how many units make up 1 (a loss of 1, one nano-USD).
    """

    n: int
    kappa: Floats
    total: Ints
    units: int = 1

    def index(self, kappa: float | Floats) -> Ints:
        """Return the index of the point that holds at a threshold, or at each of many: int64 of the same shape."""
        return point_at(self.kappa, kappa)

    def sum_at(self, kappa: float) -> Fraction:
        """Return the sum at a threshold, exactly."""
        return Fraction(int(self.total[self.index(kappa)]), self.units)

    def mean_at(self, kappa: float) -> float | None:
        """Return the mean over the questions at a threshold; None without questions."""
        return float(self.sum_at(kappa) / self.n) if self.n else None


def point_at(kappas: Floats, kappa: float | Floats) -> Ints:
    """Return which of the points, one for each of the descending `kappas`, holds at a threshold, or at each of many."""
    if np.isnan(kappa).any():
        raise UsageError("kappa is not a number; give a threshold, −inf for everything, +inf for the least")
    return np.asarray(kappas.size - 1 - np.searchsorted(kappas[::-1], kappa, side="left"), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class StepFunctions:
    """n step functions of kappa, in integer units: the value is start plus the jumps whose level is reached.

    Attributes:
        start: int64 (n,), the value at a threshold that no level reaches.
        level: float64 (n, J), where the function jumps as kappa falls: at level ≥ kappa, −∞ = never.
        jump: int64 (n, J), the size of each jump.
        units: how many units make up 1 (a loss of 1, one nano-USD).
    """

    start: Ints
    level: Floats
    jump: Ints
    units: int = 1

    def __post_init__(self) -> None:
        """Raise UsageError if the arrays do not fit together, or if their sums need more than 64 bits."""
        shape = self.level.shape
        if len(shape) != 2 or self.jump.shape != shape or self.start.shape != shape[:1]:
            raise UsageError(
                f"start, level and jump must have the shapes (n,), (n, J) and (n, J),"
                f" not {self.start.shape}, {shape} and {self.jump.shape}"
            )
        if np.isnan(self.level).any():
            raise UsageError("a level is not a number")
        most = np.abs(self.start.astype(np.float64)).sum() + np.abs(self.jump.astype(np.float64)).sum()
        if most > _INT64 / 2:  # far below the range in which the float64 sum itself could be wrong
            raise UsageError(f"the sum over {self.n} questions may not fit into 64 bits; use a smaller unit")

    @property
    def n(self) -> int:
        """The number of questions."""
        return int(self.start.shape[0])

    def at(self, kappa: float | Floats) -> Ints:
        """Return the values at one threshold, or at one threshold for each question: int64 (n,), in units."""
        reached = passed(self.level, kappa)
        return np.asarray(self.start + np.where(reached, self.jump, 0).sum(axis=1), dtype=np.int64)

    def take(self, rows: Ints | Bools) -> StepFunctions:
        """Return the chosen questions."""
        return StepFunctions(self.start[rows], self.level[rows], self.jump[rows], self.units)

    def curve(self) -> Curve:
        """Return their sum at every threshold, in O(nJ log nJ), exactly.

        >>> two = StepFunctions(np.array([5, 5]), np.array([[0.5], [np.inf]]), np.array([[-5], [-2]]))
        >>> curve = two.curve()
        >>> curve.kappa.tolist(), curve.total.tolist()
        ([inf, 0.5], [8, 3])
        """
        always = self.level == np.inf
        first = int(self.start.sum()) + int(self.jump[always].sum())
        moving = np.isfinite(self.level) & (self.jump != 0)
        fall, jump = -self.level[moving], self.jump[moving]
        order = np.argsort(fall)
        fall = fall[order]
        ends = np.flatnonzero(np.append(fall[1:] != fall[:-1], np.ones(min(1, fall.size), dtype=np.bool_)))
        total = first + np.cumsum(jump[order], dtype=np.int64)[ends]
        return Curve(self.n, np.append(np.inf, -fall[ends]), np.append(first, total), self.units)


@lru_cache(maxsize=256)
def as_written(share: float) -> Fraction:
    """Return the exact decimal number that a float is printed as: 0.1 is one tenth.

    >>> as_written(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(float(share)))
