"""A learned policy gives the same numbers to the bit live and on a log, whatever is missing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.policies import learned_made as made

from cascade.conformal.arrays import Floats
from cascade.engine import rank
from cascade.policies.estimators import probability
from cascade.policies.learned import LEAST, LearnedPolicy, beside
from cascade.types import Candidate, Decision, Step
from property.examples import times

SEEDS = st.integers(0, 2**32 - 1)


def bits(values: object) -> list[int]:
    """Return float64s as their bits; all NaNs are one."""
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.isnan(found), np.float64("nan"), found).view(np.int64).ravel().tolist()


@pytest.mark.parametrize("kind", made.KINDS)
@times(10)
@given(seed=SEEDS)
def test_a_scorer_gives_one_row_and_many_the_same_bits(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 9))
    scorer, rows = made.scorer(rng, kind, d), made.raw_rows(rng, 5, d)
    many = scorer.values(rows)
    assert many.shape == (5,)
    assert bits(many) == bits([scorer.value(row.tolist()) for row in rows])
    assert not np.isnan(many).any()
    blind = np.isnan(rows[:, scorer.needs(d)]).any(axis=1)
    if kind not in {"constant", "signal"}:
        assert np.array_equal(many == math.inf, blind)  # the stated fallback, there and nowhere else


@times(10)
@given(seed=SEEDS, ladder=st.booleans())
def test_a_policy_gives_live_the_bits_that_it_gives_on_the_log(seed: int, ladder: bool) -> None:
    rng = np.random.default_rng(seed)
    sources = made.LADDER if ladder else made.PAIR
    policy, seen = made.policy(rng, sources, judges=bool(rng.random() < 0.8)), made.walks(rng, 2, sources)
    scores, confidence, *_ = policy.batch(seen.history)
    assert (confidence is not None) == policy.judges
    for row, steps in enumerate(seen.steps):
        held = made.decided(policy, seen, row)
        for t, step in enumerate(steps):
            places = [0 if ladder else sources.index(one.source) for one in step.candidates]
            absent = sorted(set(range(len(sources))) - set(places))
            again = policy.scores(seen.observation(row, t + 1, held[:t]))  # earlier confidences as they were decided
            found = policy.scores(seen.observation(row, t + 1))  # and worked out anew
            assert repr(found) == repr(again)
            assert bits(scores.next[row, t]) == bits(found.next)
            assert bits(scores.candidates[row, t, places]) == bits(found.candidates)
            assert (scores.candidates[row, t, absent] == -math.inf).all()
            if confidence is not None:
                assert found.confidences is not None
                assert bits(confidence[row, t, places]) == bits(
                    [math.nan if one is None else one for one in found.confidences]
                )
                assert np.isnan(confidence[row, t, absent]).all()
        assert (scores.next[row, len(steps) :] == -math.inf).all()


@times(3)
@given(seed=SEEDS, rows=st.integers(1, 40), chunk=st.integers(1, 7))
def test_how_many_rows_are_scored_together_changes_no_bit(seed: int, rows: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    policy, seen = made.policy(rng), made.walks(rng, rows)
    whole, sure, *_ = policy.batch(seen.history)
    for start in range(0, rows, chunk):
        part, some, *_ = policy.batch(seen.history.take(slice(start, start + chunk)))
        assert bits(part.next) == bits(whole.next[start : start + chunk])
        assert bits(part.candidates) == bits(whole.candidates[start : start + chunk])
        assert sure is None or some is not None
        assert sure is None or bits(some) == bits(sure[start : start + chunk])


UNIT = st.sampled_from([0.0, 0.2, 0.5, 0.5, 0.9, 1.0]) | st.floats(0, 1)
MAYBE = st.none() | UNIT


def known(values: list[float | None] | float | None) -> Floats:
    listed = values if isinstance(values, list) else [values]
    return np.array([math.nan if one is None else one for one in listed], dtype=np.float64)


def ranked(chances: list[float | None], incumbent: float | None, best: float | None) -> list[float | None]:
    """Return `beside` of one question, None where it is unknown."""
    made = beside(known(chances)[None, :], known(incumbent), known(best))[0].tolist()
    return [None if math.isnan(one) else one for one in made]


@times(10)
@given(st.lists(MAYBE, min_size=1, max_size=4), MAYBE, MAYBE)
def test_new_confidences_stand_on_their_side_of_the_best_earlier_one(
    chances: list[float | None], incumbent: float | None, best: float | None
) -> None:
    best = None if best is None else min(max(best, LEAST), 1 - LEAST)
    one = ranked(chances, incumbent, best)
    for chance, sure in zip(chances, one, strict=True):
        assert (chance is None) == (sure is None)
        if chance is None or sure is None:
            continue
        assert 0 <= sure <= 1
        if incumbent is not None and best is not None:
            assert (sure > best) == (chance > incumbent)
            assert (sure < best) == (chance < incumbent)
    pairs = [(c, s) for c, s in zip(chances, one, strict=True) if c is not None and s is not None]
    if incumbent is not None and best is not None:
        for chance, sure in pairs:
            assert all(sure > s for c, s in pairs if chance > c and chance - c > 2 * LEAST)


EDGES = st.sampled_from([0.0, 5e-324, 1e-9, 0.5, 1 - 2**-52, 1 - 2**-53, 1.0])


@times(10)
@given(st.lists(st.none() | EDGES, min_size=1, max_size=4), EDGES, EDGES)
def test_confidences_stay_between_0_and_1_where_the_best_earlier_one_is_at_the_edge(
    chances: list[float | None], incumbent: float, best: float
) -> None:
    one = ranked(chances, incumbent, best)
    for chance, sure in zip(chances, one, strict=True):
        if chance is not None and sure is not None:
            assert 0.0 <= sure <= 1.0
            assert sure >= best if chance > incumbent else sure <= best


@times(3)
@given(seed=SEEDS)
def test_the_answer_that_is_served_is_the_likelier_one_now(seed: int) -> None:
    """Of a step's new answers and the incumbent, `engine.rank` serves whichever has the highest chance of all now."""
    rng = np.random.default_rng(seed)
    steps: list[Step] = []
    for number in range(1, 5):
        chances = rng.choice([0.1, 0.3, 0.5, 0.7, 0.9], size=2, replace=False).tolist()
        incumbent = float(rng.choice([0.2, 0.4, 0.6, 0.8]))
        earlier = [sure for step in steps for sure in step.decision.confidences]  # type: ignore[union-attr]
        sure = ranked(chances, incumbent, max(earlier, default=None))
        held = rank(tuple(steps))[0] if steps else None
        candidates = tuple([Candidate(f"{number}.{place}", "base", "small") for place in range(2)])
        decision = Decision((0, 1), True, (math.inf, math.inf), math.inf, 0.0, tuple(sure))
        steps.append(Step(number, candidates, {}, decision=decision))
        newest = f"{number}.{int(np.argmax(chances))}"
        assert rank(tuple(steps))[0] == (held if held is not None and incumbent > max(chances) else newest)


@given(st.floats(allow_nan=False))
def test_a_probability_is_one(logit: float) -> None:
    assert 0 <= probability(logit) <= 1
    assert bits(probability(np.array([logit]))) == bits(probability(logit))


def test_the_policy_that_is_random_here_is_one_that_decides() -> None:
    """The tests above would pass for a policy that never scored anything: this one goes on, stops, keeps, leaves out."""
    rng = np.random.default_rng(0)
    scores = [made.policy(rng).batch(made.walks(rng, 50).history).scores for _ in range(30)]
    onward = np.concatenate([one.next.ravel() for one in scores])
    kept = np.concatenate([one.candidates.ravel() for one in scores])
    assert np.isfinite(onward).mean() > 0.1
    assert np.isfinite(kept).mean() > 0.05
    assert 0.05 < (onward == math.inf).mean() < 0.6
    assert isinstance(made.policy(rng), LearnedPolicy)
