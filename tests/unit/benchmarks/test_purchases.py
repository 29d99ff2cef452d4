"""Backward regressions over sets of calls find the best order there is, where they see all that can be told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from purchases import KINDS, Requests, Shown, State, fit, further, losses, play, served, states

from cascade.conformal.arrays import Floats


def drawn(rng: np.random.Generator, n: int = 12) -> Requests:
    """Draw a few requests with answers and numbers of few values, so that many of them look alike."""
    calls = int(rng.integers(2, 5))
    answer = rng.integers(-1, 2, (n, calls))
    right = (answer == 0) & (answer >= 0)
    cost = np.round(rng.random((n, calls)), 2)
    parents = tuple(tuple(p for p in range(1, j + 1) if rng.random() < 0.25) for j in range(calls - 1))
    seen = rng.integers(0, 2, (n, calls, 1)).astype(float)
    return Requests(answer, right, cost, seen, np.zeros((n, 0)), (*parents, ()))


def looks(state: State, requests: Requests) -> list[tuple[float, ...]]:
    columns = [requests.answer[:, j] for j in state] + [requests.seen[:, j, 0] for j in state]
    return [tuple(float(column[row]) for column in columns) for row in range(requests.n)]


def told_apart(whole: Requests) -> Shown:
    """Return features that are 1 for one look each: a regression on them is the mean of those that look alike."""

    def shown(state: State, requests: Requests) -> Floats:
        kinds = sorted(set(looks(state, whole)))
        return np.array([[float(look == kind) for kind in kinds] for look in looks(state, requests)])

    return shown


def mean_of_those_alike(rows: np.ndarray):
    return lambda y: (0.0, (rows * y[:, None]).sum(axis=0) / rows.sum(axis=0))


def best(requests: Requests, kind: str, price: float, state: State = ()) -> float:
    """Return the greatest sum of values of requests that look alike, by trying every call and every look."""
    options = []
    if not further(state, requests, kind) or (state and (served(state, requests) >= 0).all()):
        options.append(-price * float(losses(state, requests).sum()))
    for j in further(state, requests, kind):
        after = tuple(sorted((*state, j)))
        alike: dict[tuple[float, ...], list[int]] = {}
        for row, look in enumerate(looks(after, requests)):
            alike.setdefault(look, []).append(row)
        parts = [requests.take(np.array(rows)) for rows in alike.values()]
        options.append(sum(best(part, kind, price, after) for part in parts) - float(requests.cost[:, j].sum()))
    return max(options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_is_the_best_of_all_orders_and_subsets(kind: str) -> None:
    rng, wrong = np.random.default_rng(KINDS.index(kind)), []
    for _ in range(40):
        requests, price = drawn(rng), float(rng.choice([0.1, 0.5, 1, 3, 10]))
        shown = told_apart(requests)
        (rules,) = fit(requests, kind, [price], shown, mean_of_those_alike)
        cost, lost = play(rules, requests, price, shown)
        value = -float(cost.sum()) - price * float(lost.sum())
        wanted = best(requests, kind, price)
        wrong += [] if abs(value - wanted) < 1e-9 else [(requests, price, value, wanted)]
    assert not wrong, wrong[:1]


def test_a_call_is_bought_after_what_it_must_see() -> None:
    requests = drawn(np.random.default_rng(9))
    chained = Requests(
        *(getattr(requests, name) for name in Requests.__slots__[:-1]), ((),) + ((1,),) * (requests.calls - 1)
    )
    for kind in KINDS:
        assert all(not state or state[0] == 0 for state in states(chained, kind))
        assert () in states(chained, kind)


def test_more_freedom_is_no_worse_on_what_was_fitted() -> None:
    rng = np.random.default_rng(10)
    for _ in range(20):
        requests = drawn(rng)
        values = [best(requests, kind, 2.0) for kind in KINDS]
        assert values[0] <= values[1] + 1e-9
        assert values[1] <= values[2] + 1e-9
