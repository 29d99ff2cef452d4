"""What a log has to offer: intervals over groups, the area under a signal's curve, what is not on record."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.arrays import Floats
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.baselines import first_step
from cascade.evaluation.proof.diagnosis import auroc, clustered_interval, default_kind, signal_uses, unknowns
from cascade.evaluation.splits import Interval, student_t_quantile
from unit.calibration.logs import log
from unit.cli.certified import hard_rows


def made(n: int = 40, hard: range = range(0, 20, 2), **columns: object) -> EpisodeTable:
    (table,) = tables_from_rows(hard_rows(n, hard, **columns))
    return table


def mean_interval(values: Floats, groups: list[str]) -> Interval:
    return clustered_interval(float(values.mean()), values - values.mean(), groups)


def test_the_interval_of_independent_questions_is_students() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    found = mean_interval(values, list("abcde"))
    half = student_t_quantile(0.975, 4) * values.std(ddof=1) / np.sqrt(5)
    assert found.mean == pytest.approx(0.6)
    assert found.high == pytest.approx(0.6 + half)


def test_questions_that_repeat_within_a_group_add_nothing() -> None:
    values, groups = np.array([0.0, 1.0, 1.0, 0.0, 1.0]), list("abcde")
    one, many = (
        mean_interval(values, groups),
        mean_interval(np.repeat(values, 7), [g for g in groups for _ in range(7)]),
    )
    assert many.low == pytest.approx(one.low)
    assert mean_interval(values, ["a"] * 5).low is None


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(3)
    values, right = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    pairs = itertools.product(values[right], values[~right])
    share = np.mean([1.0 if good > bad else 0.5 if good == bad else 0.0 for good, bad in pairs])
    found = auroc(values, right, [str(k) for k in range(60)])
    assert found is not None
    assert found.mean == pytest.approx(share)
    assert auroc(values, np.ones(60, dtype=np.bool_), ["a"] * 60) is None


def test_the_areas_interval_covers_it() -> None:
    rng, inside = np.random.default_rng(5), 0
    true = 0.7602  # P(N(1, 1) > N(0, 1)) = Φ(1/√2)
    for _ in range(300):
        right = rng.random(150) < 0.5
        found = auroc(rng.normal(right.astype(float)), right, [str(k) for k in range(150)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= true <= found.high
    assert 0.91 <= inside / 300 <= 0.985  # 95 % within three standard errors


def test_signals_of_doubt_are_turned_round_and_constant_ones_left_out() -> None:
    table = made()
    right = first_step(table).right
    noise = np.arange(table.n) % 7 / 7.0
    signals = {"trust": right + noise, "doubt": -(right + noise), "flat": np.ones(table.n)}
    both = {name: np.stack([column, column], axis=1) for name, column in signals.items()}
    found = {one.name: one for one in signal_uses(_with_signals(table, both))}
    assert set(found) == {"trust", "doubt"}
    assert found["trust"].auroc == found["doubt"].auroc
    assert found["doubt"].doubt
    assert found["trust"].auroc.mean == 1


def _with_signals(table: EpisodeTable, signals: dict[str, np.ndarray]) -> EpisodeTable:
    return replace(table, signals=signals)


def test_without_texts_coverage_is_shown_where_votes_would_decide() -> None:
    table = log(40)
    apart = np.linspace(0.1, 0.9, table.confidence.size).reshape(table.confidence.shape)
    bare = replace(table, texts_known=np.zeros(40, dtype=np.bool_))
    tied = replace(bare, confidence=np.full(apart.shape, np.nan))
    assert default_kind(table) == "regret"
    assert default_kind(table, "all") == "coverage"
    assert default_kind(replace(bare, confidence=apart)) == "regret"
    assert default_kind(tied) == "coverage"
    assert "not regret or error" in " ".join(unknowns(tied))
    assert "not regret or error" not in " ".join(unknowns(replace(bare, confidence=apart)))


def test_the_interval_of_an_auroc_lies_within_0_and_1() -> None:
    """Half widths on the scale of the AUROC itself led above 1 for a signal that tells nearly all."""
    right = np.arange(40) < 20
    values = np.where(right, 1.0, 0.0)
    values[[0, 1, 39]] = 0.0, 0.0, 1.0
    found = auroc(values, right, [str(k) for k in range(40)])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert 0.5 < found.low < found.mean < found.high < 1
    sharp = auroc(np.where(right, np.arange(40) + 100.0, np.arange(40.0)), right, [str(k) for k in range(40)])
    assert sharp is not None
    assert (sharp.mean, sharp.high) == (1.0, 1.0)
    assert sharp.low == pytest.approx(0.025 ** (1 / 20))
