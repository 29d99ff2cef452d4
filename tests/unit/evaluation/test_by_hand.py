"""The ways that one would set up by hand, against a recursion over each question in plain Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.arrays import Floats, StepArrays, renumbered
from cascade.episodes.schema import BASE_ONLY, LAST_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.evaluation.by_hand import ROUTERS, Majority, Router, by_neighbours, methods_by_hand
from cascade.evaluation.compare import compare


def ladder(n: int, horizon: int, seed: int, *, hint: float = 3.0) -> EpisodeTable:
    """Return a ladder whose first model is right of easy questions, which a number of the request tells."""
    rng = np.random.default_rng(seed)
    easy = rng.random(n)
    right = np.stack([easy + 0.15 * t > rng.random(n) for t in range(horizon)], axis=1)
    answer = np.where(right, 0, rng.integers(1, 4, (n, horizon)))[:, :, None]
    cost = np.broadcast_to(10 ** (1 + np.arange(horizon)), (n, horizon)).astype(np.int64).copy()
    arrays = StepArrays(renumbered(answer), right[:, :, None], cost, np.full(n, horizon), np.ones(n, dtype=np.bool_))
    ids = tuple(f"q{i}" for i in range(n))

    def alone(step: int) -> Walk:
        ones = np.ones(n, dtype=np.int64)
        return Walk(ones == 1, right[:, step], right[:, step], cost[:, step], ones, ones, ones)

    return EpisodeTable(
        dataset="made",
        ids=ids,
        groups=ids,
        sources=("answer",),
        arrays=arrays,
        confidence=np.full(answer.shape, np.nan),
        signals={},
        walks={BASE_ONLY: alone(0), LAST_ONLY: alone(horizon - 1)},
        asked={"words": hint * easy + rng.normal(size=n), "noise": rng.normal(size=n), "same": np.ones(n)},
        texts_known=np.ones(n, dtype=np.bool_),
    )


def played(method: Majority | Router, table: EpisodeTable, alpha: float = 0.2) -> tuple[Floats, Floats]:
    third = table.n // 3
    parts = [table.take(np.arange(start, start + third)) for start in (0, third, 2 * third)]
    found = method.prepare(parts[0], parts[1], alpha, 0).play(parts[2])
    return found.cost, found.right


@pytest.mark.parametrize("horizon", [3, 4, 5, 6])
def test_a_majority_is_asked_for_until_it_stands_and_the_last_model_where_there_is_none(horizon: int) -> None:
    table = ladder(150, horizon, horizon)
    rng = np.random.default_rng(horizon)
    table.arrays.answer[rng.random(table.arrays.answer.shape) < 0.1] = -1  # an answer that could not be read
    table.arrays.correct[table.arrays.answer < 0] = False
    cost, right = played(Majority(), table)
    for place, row in enumerate(range(100, 150)):
        given = table.arrays.answer[row, :, 0].tolist()
        stop = next(
            (t for t in range(horizon - 1) if given[t] >= 0 and given[: t + 1].count(given[t]) > (horizon - 1) / 2),
            horizon - 1,
        )
        assert cost[place] == table.arrays.cost[row, : stop + 1].sum()
        if given[stop] >= 0:
            assert right[place] == table.arrays.correct[row, stop, 0]


@pytest.mark.parametrize("router", ROUTERS, ids=lambda one: one.name)
def test_a_router_asks_one_model_and_the_bar_is_the_cheapest_that_covers_enough(router: Router) -> None:
    table, alpha = ladder(900, 3, 1), 0.3
    third = [table.take(np.arange(start, start + 300)) for start in (0, 300, 600)]
    ready = router.prepare(third[0], third[1], alpha, 0)
    for part in third:
        found = ready.play(part)
        assert set(found.cost.tolist()) <= {10.0, 1000.0}
        first = found.cost == 10
        wanted = np.where(first, part.walks[BASE_ONLY].right, part.walks[LAST_ONLY].right)
        assert found.right.tolist() == wanted.tolist()
        assert 0 < first.mean() < 1
    tuned = ready.play(third[1])
    assert tuned.covered.mean() >= 1 - alpha
    spent = tuned.cost.mean()
    centre = third[0].asked["words"].mean()
    by_length = np.where(third[1].asked["words"] >= centre, 10.0, 1000.0)
    assert spent <= by_length.mean() + 200  # it has learnt what the number tells


def test_where_no_bar_covers_enough_the_one_that_covers_most_is_taken() -> None:
    table = ladder(300, 3, 2)
    cost, _ = played(ROUTERS[0], table, alpha=0.0001)
    assert (cost == 1000).mean() > 0.8


def test_the_nearest_neighbours_are_the_nearest() -> None:
    rng = np.random.default_rng(3)
    rows, right, asked = rng.normal(size=(200, 4)), rng.random(200) < 0.5, rng.normal(size=(30, 4))
    found = by_neighbours(rows, right)(asked)
    for one, chance in zip(asked, found, strict=True):
        nearest = np.argsort(((rows - one) ** 2).sum(axis=1))[:25]
        assert chance == pytest.approx(right[nearest].mean())


def test_a_log_that_lacks_the_numbers_has_no_such_row() -> None:
    table = ladder(30, 3, 4)
    assert [one.name for one in methods_by_hand(table)] == [
        "majority, else the last model",
        "router on the request, logistic",
        "router on the request, neighbours",
    ]
    assert list(methods_by_hand(replace(table, asked={}, texts_known=np.zeros(30, dtype=np.bool_)))) == []
    assert len(list(methods_by_hand(ladder(30, 2, 4)))) == 2
    walk = table.walks[BASE_ONLY]
    unknown = replace(table, walks={**table.walks, BASE_ONLY: replace(walk, known=np.arange(30) > 3)})
    assert len(list(methods_by_hand(unknown))) == 1


def test_they_are_rows_of_a_comparison() -> None:
    found = compare(ladder(120, 3, 5), alpha=0.3, count=3)
    for name in (one.name for one in methods_by_hand(ladder(120, 3, 5))):
        row = found.row(name)
        assert row.matched_cost_usd is None
        assert row.mean.cost_usd is not None
