"""Baselines: the reference, the others, and the least that a promise can cost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cascade.episodes.schema import BASE_ONLY, GUIDE_ONLY, LAST_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation.baselines import ALL_STEPS, clairvoyant, other_baselines, reference_of
from cascade.guarantees import get
from unit.cli.certified import hard_rows
from unit.evaluation.plain import Asked, batches, table_of


def made(n: int = 40, hard: range = range(0, 20, 2), **columns: object) -> EpisodeTable:
    (table,) = tables_from_rows(hard_rows(n, hard, **columns))
    return table


def test_the_reference_is_what_is_on_record() -> None:
    table = made()
    assert reference_of(table).name == LAST_ONLY
    assert reference_of(table, "all").name == ALL_STEPS
    assert reference_of(table).cost[0] == 2_000_000
    assert [one.name for one in other_baselines(table, reference_of(table))] == [BASE_ONLY, ALL_STEPS]
    bare = _without_walks(table)
    assert reference_of(bare).name == ALL_STEPS
    with pytest.raises(UsageError, match=GUIDE_ONLY):
        reference_of(bare, "guide")


def _without_walks(table: EpisodeTable) -> EpisodeTable:
    return replace(table, walks={})


def test_nobody_keeps_a_promise_for_less_than_one_who_knows_everything() -> None:
    """By brute force over all ways to stop: the least total cost at which at most alpha·n count against it."""
    for asked, horizon, width in itertools.islice(batches(11, per_shape=2, size=5), 24):
        table = table_of(asked, horizon, width)
        steps = table.arrays
        many = [range(1, int(k) + 1) for k in steps.steps]
        alpha = 0.4
        for kind in ("coverage", "error"):
            best = None
            for stops in itertools.product(*many):
                lost = sum(_lost(kind, one, stop) for one, stop in zip(asked, stops, strict=True))
                cost = sum(sum(one.costs[:stop]) for one, stop in zip(asked, stops, strict=True))
                if lost <= alpha * len(asked):
                    best = cost if best is None else min(best, cost)
            found = clairvoyant(table, get(kind), alpha, None)
            if best is None:
                assert found.cost_nano_usd is None
            else:
                assert found.cost_nano_usd == pytest.approx(best / len(asked))


def _lost(kind: str, one: Asked, stop: int) -> bool:
    kept = any(shown.right for step in one.steps[:stop] for shown in step)
    return not kept and (kind == "error" or not one.hopeless)
