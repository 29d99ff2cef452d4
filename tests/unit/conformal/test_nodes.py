"""Steps that name their parents: trees and joins are walked as one would by asking, node by node."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest

from cascade.conformal.arrays import Parents, ScoreArrays, StepArrays, ancestors, chain, levels, open_end, rollout
from cascade.conformal.frontier import clairvoyant, frontier
from cascade.conformal.served import served
from cascade.conformal.split import covered_at, critical_kappa
from cascade.errors import UsageError
from unit.conformal.brute import SPECIAL, Case, Outcome, Place, pack, random_case, telling_kappas

SHAPES = [(horizon, width) for horizon in range(1, 6) for width in range(1, 4)]
CAP = 10**10


class Walked(NamedTuple):
    outcome: Outcome
    cut: bool  # whether it came to where what follows is not on record
    right: bool  # of the answer that ranks first


def random_parents(rng: np.random.Generator, horizon: int) -> Parents:
    """Draw trees, joins and steps without parents; the first has none."""
    some = [rng.random(step) < rng.choice([0.2, 0.5]) for step in range(horizon)]
    made = [tuple((np.flatnonzero(marks) + 1).tolist()) for marks in some]
    alone = rng.random(horizon) < 0.2
    return tuple(p or (() if alone[t] or not t else (int(rng.integers(1, t + 1)),)) for t, p in enumerate(made))


def walk(case: Case, parents: Parents, horizon: int, kappa: float) -> Walked:
    """Ask node by node. What happens at a node is decided with what was asked so far, and with kappa."""
    many, paid, wanted = len(case.steps), [], set()
    kept: list[tuple[int, Place]] = []
    cut = not case.complete and any(not p for p in parents[many:])
    for node in range(many):
        needed = [p - 1 for p in parents[node]]
        if needed and not (node in wanted and all(p in paid for p in needed)):
            continue
        paid.append(node)
        places = case.steps[node]
        after = [child for child in range(node + 1, horizon) if parents[child] and parents[child][-1] == node + 1]
        if parents == chain(horizon):  # there the record ends at its last step
            ends = not case.complete and node == many - 1
        else:
            ends = not case.complete and (
                many == horizon or any(child >= many for child in after) or (not node and cut)
            )
        cut |= ends
        here = [child for child in after if child < many]
        options = [(-math.inf if math.isnan(p.score) else p.score) for p in places]
        onward = [math.inf if math.isnan(case.onward[c - 1]) else case.onward[c - 1] for c in here]
        keep = {k for k, p in enumerate(places) if -math.inf < p.score and p.score >= kappa}
        go = {c for c, score in zip(here, onward, strict=True) if score > -math.inf and score >= kappa}
        best = options.index(max(options)) if options else None
        to = here[onward.index(max(onward))] if here else None
        if not ends and to is not None and (best is None or not max(onward) <= places[best].score):
            go.add(to)
        elif not ends and best is not None:
            keep.add(best)
        wanted |= go
        kept += [(node, places[k]) for k in sorted(keep)]
    right = [place for _, place in kept if place.right]
    hopeless = case.complete and not any(place.right for places in case.steps for place in places)
    found = Outcome(
        len(paid),
        sum(case.costs[node] for node in paid),
        len(kept),
        len({place.answer for _, place in kept}),
        len(right),
        bool(right),
        bool(right) or hopeless,
    )
    every = [(node, place) for node, places in enumerate(case.steps) for place in places]
    return Walked(found, cut, not cut and first_right(kept or (every if case.complete else [])))


def first_right(kept: list[tuple[int, Place]]) -> bool:
    """Whether the answer that is served is right: the surest, then the most frequent, the latest, the first kept."""

    def sure(place: Place) -> float:
        return -1.0 if math.isnan(place.confidence) else place.confidence

    groups: dict[int, list[tuple[int, Place]]] = {}
    for node, place in kept:
        groups.setdefault(place.answer, []).append((node, place))
    worth = {a: (max(sure(p) for _, p in g), len(g), max(n for n, _ in g)) for a, g in groups.items()}
    if not worth:
        return False
    best = next(a for a, value in worth.items() if value == max(worth.values()))
    return max((p for _, p in groups[best]), key=sure).right


def drawn(seed: int, graphs: int, each: int) -> list[tuple[list[Case], Parents, int, int]]:
    rng = np.random.default_rng(seed)
    found = []
    for horizon, width in SHAPES:
        for _ in range(graphs):
            parents = random_parents(rng, horizon)
            found.append(([random_case(rng, horizon, width) for _ in range(each)], parents, horizon, width))
    return found


def packed(cases: list[Case], parents: Parents, horizon: int, width: int) -> tuple[StepArrays, ScoreArrays, np.ndarray]:
    steps, scores, confidence = pack(cases, horizon, width)
    made = StepArrays(steps.answer, steps.correct, steps.cost, steps.steps, steps.complete, parents)
    return made, scores, confidence


@pytest.mark.parametrize("graphs", [17, pytest.param(84, marks=pytest.mark.long)])  # 84: 5,040 cases
def test_random_trees_and_joins_are_walked_node_by_node(graphs: int) -> None:
    rng, wrong, seen, checks, joins = np.random.default_rng(1), [], 0, 0, 0
    for cases, parents, horizon, width in drawn(seed=0, graphs=graphs, each=4):
        steps, scores, confidence = packed(cases, parents, horizon, width)
        found = levels(steps, scores)
        critical, whole = critical_kappa(steps, found), frontier(steps, found)
        one = served(steps, found, confidence)
        joins += any(len(p) > 1 for p in parents)
        kappas = [telling_kappas(case, rng, 8) for case in cases]
        for column in range(8):
            at = np.array([each[column] for each in kappas])
            got = rollout(steps, found, at)
            state = np.array([one.state(kappa)[q] for q, kappa in enumerate(at)])
            for q, case in enumerate(cases):
                want = walk(case, parents, horizon, at[q])
                row = Outcome(*(getattr(got, name)[q].item() for name in Outcome._fields))
                same = row == want.outcome and bool(covered_at(critical, at[q])[q]) == want.outcome.covered
                same &= bool(one.loss[q, state[q]]) != want.right
                wrong += [] if same else [(case, parents, at[q], row, want)]
                checks += 1
        kappa = kappas[0][3]
        each = [walk(case, parents, horizon, kappa).outcome for case in cases]
        total = (sum(o.cost for o in each), sum(o.covered for o in each))
        point = whole.index(kappa)
        wrong += [] if (whole.cost_nano_usd[point], whole.covered[point]) == total else [(parents, kappa, total)]
        seen += len(cases)
    assert (seen, checks, len(wrong)) == (60 * graphs, 480 * graphs, 0), wrong[:2]
    assert joins > 3 * graphs


def test_a_chain_spelled_out_is_the_chain() -> None:
    for cases, _, horizon, width in drawn(seed=3, graphs=1, each=40):
        plain, scores, _ = pack(cases, horizon, width)
        spelled, _, _ = packed(cases, chain(horizon), horizon, width)
        one, other = levels(plain, scores), levels(spelled, scores)
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        assert np.array_equal(open_end(plain), open_end(spelled))
        assert spelled.parents is None


def test_a_record_cut_short_promises_no_more_than_the_whole() -> None:
    """Critical values, and whether what is served is right, of a record cut after each of its steps."""
    for cases, parents, horizon, width in drawn(seed=4, graphs=12, each=2):
        full = [case._replace(complete=True) for case in cases]
        steps, scores, confidence = packed(full, parents, horizon, width)
        found = levels(steps, scores)
        best = critical_kappa(steps, found)
        whole = served(steps, found, confidence)
        for q, case in enumerate(full):
            for many in range(1, len(case.steps)):
                part = case._replace(steps=case.steps[:many], complete=False)
                short, _, _ = packed([part], parents, horizon, width)
                few = scores.take(np.array([q]))
                cut = levels(short, few)
                assert critical_kappa(short, cut)[0] <= best[q], (case, parents, many)
                lost = served(short, cut, confidence[[q]])
                for kappa in (math.inf, 0.7, 0.4, 0.1, -math.inf):
                    said = lost.loss[0, lost.state(kappa)[0]]
                    assert said or not whole.loss[q, whole.state(kappa)[q]], (case, parents, many, kappa)


def least(case: Case, parents: Parents) -> tuple[int, int | None]:
    """Return what must be paid at the least, and to have a right answer, by trying every set of steps."""
    many, roots = len(case.steps), {t for t, p in enumerate(parents) if not p}
    closed = [
        set(chosen)
        for size in range(many + 1)
        for chosen in itertools.combinations(range(many), size)
        if roots & set(range(many)) <= set(chosen) and all(p - 1 in chosen for t in chosen for p in parents[t])
    ]
    cost = {frozenset(chosen): sum(case.costs[t] for t in chosen) for chosen in closed}
    right = [cost[frozenset(c)] for c in closed if any(p.right for t in c for p in case.steps[t])]
    return min(cost.values()), min(right, default=None)


def test_the_clairvoyant_pays_for_the_cheapest_right_step_and_what_it_needs() -> None:
    for cases, parents, horizon, width in drawn(seed=5, graphs=10, each=6):
        steps, _, _ = packed(cases, parents, horizon, width)
        each = [least(case, parents) for case in cases]
        beyond = sorted(most - little for little, most in each if most is not None)
        for alpha, may in ((0.0, 0), (0.5, 3)):
            gone = min(may, sum(b > 0 for b in beyond))
            total = sum(little for little, _ in each) + sum(beyond[: len(beyond) - gone])
            assert clairvoyant(steps, alpha).cost * len(cases) == pytest.approx(total, rel=1e-12)


def test_a_part_of_the_steps_keeps_its_parents_and_cannot_lose_one() -> None:
    case = random_case(np.random.default_rng(6), 4, 1)
    steps, _, _ = packed([case], ((), (1,), (1,), (3,)), 4, 1)
    assert steps.only([1, 3, 4]).parents is None  # a chain
    assert steps.only([1, 2, 3]).parents == ((), (1,), (1,))
    with pytest.raises(UsageError, match="step 4 depends on step 3"):
        steps.only([1, 2, 4])
    assert steps.take(np.array([0, 0])).parents == steps.parents


@pytest.mark.parametrize(
    ("parents", "said"),
    [
        (((), (2,), (1,)), "the parents of step 2 must be earlier steps"),
        (((), (1,), (2, 1)), r"in rising order, not \[2, 1\]"),
        (((), (1,)), "must name those of 3 steps, not of 2"),
        (((), (1, 1), (0,)), "step 2 .*; the parents of step 3"),
    ],
)
def test_parents_that_cannot_be_are_refused(parents: Parents, said: str) -> None:
    steps, scores, _ = packed([random_case(np.random.default_rng(7), 3, 1)], parents, 3, 1)
    with pytest.raises(UsageError, match=said):
        levels(steps, scores)


def test_what_a_step_needs_is_all_before_it() -> None:
    parents = ((), (1,), (), (2, 3), (1,))
    found = ancestors(parents)
    for step, needed in enumerate(parents):
        assert found[step, step]
        assert all((found[p - 1] <= found[step]).all() for p in needed)
    assert found.sum(axis=1).tolist() == [1, 2, 1, 4, 2]
    assert len(SPECIAL) == 8  # the scores that `random_case` draws have ties, infinities and NaN
