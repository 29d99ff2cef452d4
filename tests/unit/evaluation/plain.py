"""The oracle of evaluation: questions in plain Python, asked step by step as they would be live, and logs of them.

Nothing here is shared with the array code but what serves: the policies, `engine.decide` and `engine.rank`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from cascade.calibration.scores import Played
from cascade.conformal.arrays import StepArrays
from cascade.engine import decide, rank
from cascade.episodes.schema import COLUMNS
from cascade.episodes.table import EpisodeTable
from cascade.policies.base import Observation, Policy
from cascade.types import Candidate, Question, Step

SOURCES = {1: ("answer",), 2: ("base", "guide"), 3: ("base", "guide", "third")}
SIGNALS = ("p_yes", "reply_mean_logprob")
Row = dict[str, Any]


class Shown(NamedTuple):
    """One candidate of one step."""

    place: int
    answer: int
    right: bool
    sure: float | None


class Asked(NamedTuple):
    """One question: for each step on record its candidates, its cost and its signals."""

    steps: tuple[tuple[Shown, ...], ...]
    costs: tuple[int, ...]
    signals: tuple[dict[str, float | None], ...]
    complete: bool

    @property
    def solvable(self) -> bool:
        return any(shown.right for step in self.steps for shown in step)

    @property
    def hopeless(self) -> bool:
        return self.complete and not self.solvable


class Did(NamedTuple):
    """What a way to answer did on a question; the fields of `Played`."""

    covered: float
    in_set: float
    right: float
    cost: float
    length: float
    leaves: float
    distinct: float


def draw(rng: np.random.Generator, horizon: int, width: int) -> Asked:
    """Draw a question: ragged, with absent candidates, unknown signals and equal ones."""
    many = horizon if rng.random() < 0.6 else int(rng.integers(1, horizon + 1))
    pool, rounded = int(rng.integers(1, min(4, horizon * width) + 1)), bool(rng.random() < 0.5)
    truth = int(rng.integers(0, pool + 1))

    def shown(place: int) -> Shown:
        answer = int(rng.integers(pool))
        right = answer == truth if rng.random() < 0.95 else bool(rng.random() < 0.5)
        return Shown(place, answer, right, None if rng.random() < 0.3 else round(float(rng.random()), 1))

    def signal(low: float) -> float | None:
        value = low + float(rng.random())
        return None if rng.random() < 0.2 else round(value, 1) if rounded else value

    return Asked(
        steps=tuple(tuple(shown(a) for a in range(width) if rng.random() < 0.85) for _ in range(many)),
        costs=tuple(int(cost) for cost in rng.integers(0, 10**9, many)),
        signals=tuple({"p_yes": signal(0.0), "reply_mean_logprob": signal(-1.0)} for _ in range(many)),
        complete=many == horizon or bool(rng.random() < 0.3),
    )


def table_of(
    questions: Sequence[Asked],
    horizon: int,
    width: int,
    *,
    cost_known: bool = True,
    groups: Sequence[str] | None = None,
) -> EpisodeTable:
    """Return the same questions as a table."""
    n = len(questions)
    arrays = StepArrays(
        answer=np.full((n, horizon, width), -1, dtype=np.int64),
        correct=np.zeros((n, horizon, width), dtype=np.bool_),
        cost=np.zeros((n, horizon), dtype=np.int64),
        steps=np.array([len(one.steps) for one in questions], dtype=np.int64),
        complete=np.array([one.complete for one in questions], dtype=np.bool_),
    )
    confidence = np.full((n, horizon, width), np.nan)
    signals = {name: np.full((n, horizon), np.nan) for name in SIGNALS}
    for q, one in enumerate(questions):
        for t, step in enumerate(one.steps):
            arrays.cost[q, t] = one.costs[t]
            for name, value in one.signals[t].items():
                signals[name][q, t] = math.nan if value is None else value
            for shown in step:
                at = (q, t, shown.place)
                arrays.answer[at], arrays.correct[at] = shown.answer, shown.right
                confidence[at] = math.nan if shown.sure is None else shown.sure
    ids = tuple([f"q{q}" for q in range(n)])
    return EpisodeTable(
        "made", ids, tuple(groups or ids), SOURCES[width], arrays, confidence, signals, {}, cost_known=cost_known
    )


def live(one: Asked, policy: Policy, width: int) -> Did:
    """Follow a policy step by step, as the engine does; where the record ends early, keep what is certain."""
    question, seen, horizon = Question("asked"), [], len(one.steps) + (not one.complete)
    for number, (shown, signals) in enumerate(zip(one.steps, one.signals, strict=True), 1):
        candidates = tuple(
            Candidate(f"answer {c.answer}", SOURCES[width][c.place], SOURCES[width][c.place], c.sure) for c in shown
        )
        step = Step(number, candidates, signals)
        decision = decide(policy, Observation(question, (*seen, step), horizon))
        if number == len(one.steps) and not one.complete:  # it might have gone on, so that none is the last resort
            certain = [k for k, score in enumerate(decision.scores) if -math.inf < score >= policy.kappa]
            decision = decision._replace(keep=tuple(certain), proceed=False)
        seen.append(step._replace(decision=decision))
        if not decision.proceed:
            break
    kept = [one.steps[step.number - 1][k] for step in seen if step.decision for k in step.decision.keep]
    reached = kept or [shown for step in one.steps[: len(seen)] for shown in step if one.complete]
    found = did(one, reached, rank(seen, at_any_cost=one.complete), len(seen))
    return found if kept else did(one, kept, [], len(seen))._replace(right=found.right)


def goes_beyond(one: Asked, policy: Policy, width: int) -> bool:
    """Whether a policy, followed step by step, asks for a step that is not on record."""
    question, seen, horizon = Question("asked"), [], len(one.steps) + (not one.complete)
    for number, (shown, signals) in enumerate(zip(one.steps, one.signals, strict=True), 1):
        candidates = tuple(
            Candidate(f"answer {c.answer}", SOURCES[width][c.place], SOURCES[width][c.place], c.sure) for c in shown
        )
        seen.append(Step(number, candidates, signals))
        if not decide(policy, Observation(question, tuple(seen), horizon)).proceed:
            return False
    return not one.complete


def did(one: Asked, kept: Sequence[Shown], ranked: Sequence[str], length: int) -> Did:
    in_set = any(shown.right for shown in kept)
    same = [shown for shown in kept if ranked and f"answer {shown.answer}" == ranked[0]]
    served = max(same, key=lambda shown: -1.0 if shown.sure is None else shown.sure, default=None)
    return Did(
        covered=float(in_set or one.hopeless),
        in_set=float(in_set),
        right=float(served is not None and served.right),
        cost=float(sum(one.costs[:length])),
        length=float(length),
        leaves=float(len(kept)),
        distinct=float(len({shown.answer for shown in kept})),
    )


def by_chance(one: Asked) -> Did:
    """Return the expectation of a uniform choice at every step, over every path there is, exactly."""
    total = dict.fromkeys(Did._fields, Fraction(0))
    for chance, kept, length in _paths(one, 0):
        ranked = [f"answer {kept[0].answer}"] if kept else []
        for name, value in did(one, kept, ranked, length)._asdict().items():
            total[name] += chance * Fraction(value)
    return Did(*(float(value) for value in total.values()))


def _paths(one: Asked, t: int) -> Iterator[tuple[Fraction, list[Shown], int]]:
    last = t == len(one.steps) - 1
    options = len(one.steps[t]) + (not last)
    for shown in one.steps[t]:
        yield Fraction(1, options), [shown], t + 1
    if not last:
        for chance, kept, length in _paths(one, t + 1):
            yield chance / options, kept, length
    elif not options:
        yield Fraction(1), [], t + 1


def each(played: Played) -> list[Did]:
    """Return what was played question by question."""
    return [Did(*row) for row in zip(*(getattr(played, name).tolist() for name in Did._fields), strict=True)]


def batches(seed: int, per_shape: int, size: int = 8) -> Iterator[tuple[list[Asked], int, int]]:
    """Yield lists of questions for each shape T = 1..4, m = 1..3: `per_shape` lists of `size`."""
    rng = np.random.default_rng(seed)
    for horizon in range(1, 5):
        for width in range(1, 4):
            for _ in range(per_shape):
                yield [draw(rng, horizon, width) for _ in range(size)], horizon, width


def row(episode: str = "q", step: int = 1, candidate: int | None = 0, **columns: Any) -> Row:
    """Return one call's row: right, by the base, for 10 nano-USD, unless told otherwise."""
    given: Row = {"episode_id": episode, "step": step, "candidate": candidate, "source": "base"}
    if candidate is not None:
        given |= {"answer": "Danube", "correct": True}
    blank: Row = dict.fromkeys(COLUMNS)
    return blank | given | {"text": "said", "cost_nano_usd": 10} | columns


def rows_of(questions: Sequence[Asked], horizon: int, width: int) -> list[Row]:
    """Return the rows that a log of these questions has, with the cost of a step split over its calls."""
    made = []
    for q, one in enumerate(questions):
        for t, step in enumerate(one.steps):
            head = {"horizon": horizon if not one.complete else len(one.steps), "signals": one.signals[t]}
            made.append(row(f"q{q}", t + 1, None, **head, cost_nano_usd=one.costs[t] - one.costs[t] // 3 * len(step)))
            for shown in step:
                answer = f"The answer {shown.answer}." if shown.place else f"answer {shown.answer}"
                made.append(
                    row(
                        f"q{q}",
                        t + 1,
                        shown.place,
                        **head,
                        source=SOURCES[width][shown.place],
                        answer=answer,
                        correct=shown.right,
                        confidence=shown.sure,
                        cost_nano_usd=one.costs[t] // 3,
                    )
                )
    return made
