"""Sampled labels: the draw, the exact test, and which labels a path asks for, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cascade.conformal.labels import (
    KEPT,
    LOST,
    NO_LOSS,
    UNLABELLED,
    is_drawn,
    most_labelled_losses,
    sampled,
    walk,
)
from cascade.errors import UsageError


def test_the_share_that_is_drawn_is_the_rate_and_nested() -> None:
    names = [f"question {number}" for number in range(20_000)]
    held: set[str] = set()
    for rate in (0.2, 0.5, 1.0):
        drawn = {name for name in names if is_drawn("key", name, rate)}
        assert abs(len(drawn) - rate * len(names)) <= 4 * (len(names) * rate * (1 - rate)) ** 0.5
        assert held <= drawn
        held = drawn
    assert {name for name in names if is_drawn("other", name, 0.5)} != {n for n in names if is_drawn("key", n, 0.5)}


def test_a_rate_that_draws_nothing_is_refused() -> None:
    for rate in (0.0, -0.1, 1.5):
        with pytest.raises(UsageError, match="label_rate"):
            is_drawn("key", "q", rate)


def test_the_test_is_the_binomials_at_the_product() -> None:
    for n in (45, 200, 300, 1_000):
        for rate in (1.0, 0.5, 0.2):
            most = most_labelled_losses(n, 0.05, 0.1, rate)
            by_scipy = [k for k in range(n) if stats.binom.cdf(k, n, 0.05 * rate) <= 0.1]
            assert most == (max(by_scipy) if by_scipy else None), (n, rate)
    assert sampled(0.05, 0.2) == 0.01


def asked_in_full(outputs: list[np.ndarray], truth: np.ndarray, most: int) -> int:
    """Return how many points pass where everything is labelled."""
    for at, serves in enumerate(outputs):
        lost = sum(truth[row, out] == LOST for row, out in enumerate(serves) if out != NO_LOSS)
        if lost > most:
            return at
    return len(outputs)


def test_label_by_label_the_same_is_certified_as_with_all_labels() -> None:
    draw = np.random.default_rng(5)
    asked = []
    for _ in range(200):
        n, points, kinds = int(draw.integers(5, 30)), int(draw.integers(1, 8)), 2
        truth = draw.choice([LOST, KEPT], size=(n, kinds), p=[0.3, 0.7])
        outputs = [np.where(draw.random(n) < 0.6, NO_LOSS, draw.integers(0, kinds, n)) for _ in range(points)]
        most = int(draw.integers(0, 6))
        known = np.full((n, kinds), UNLABELLED)
        while (found := walk(outputs, known, most)).open.any():
            row = int(draw.choice(np.flatnonzero(found.open)))
            out = outputs[found.certified][row]
            known[row, out] = truth[row, out]
        assert found.certified == asked_in_full(outputs, truth, most)
        asked.append(int((known != UNLABELLED).sum()))
        needed = {(row, out) for serves in outputs for row, out in enumerate(serves) if out != NO_LOSS}
        assert asked[-1] <= len(needed)
    assert sum(asked) > 0


def test_without_labels_a_path_passes_only_where_nothing_can_be_lost() -> None:
    outputs = [np.array([-1, -1, 0]), np.array([-1, 0, 0])]
    nothing = np.full((3, 1), UNLABELLED)
    assert walk(outputs, nothing, 1).certified == 1
    assert walk(outputs, nothing, 0).certified == 0
    assert walk(outputs, nothing, None) is not None
    assert walk(outputs, nothing, None).certified == 0
