"""What holds of every fit: the gradient is zero, the slope never negative, a group never cut, the design always finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from unit.calibration.logs import log

from cascade.calibration.samples import clusters, folds
from cascade.training.estimators import Ridge, logistic, make_design, platt, probabilities

SHAPES = st.tuples(st.integers(1, 30), st.integers(0, 5))
# Few values, so that columns are often constant, the same or opposite.
VALUES = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, 1e-9, 1e6])
PENALTIES = st.sampled_from([1e-3, 1.0, 30.0])


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    shape = draw(SHAPES)
    rows = draw(arrays(np.float64, shape, elements=VALUES))
    y = draw(arrays(np.float64, shape[0], elements=st.floats(-3, 3)))
    weights = draw(arrays(np.float64, shape[0], elements=st.sampled_from([1.0, 0.5, 3.0])))
    return rows, y, weights, draw(PENALTIES)


@given(problems())
def test_no_line_is_better_than_ridges(problem: tuple[np.ndarray, np.ndarray, np.ndarray, float]) -> None:
    rows, y, _, penalty = problem
    found = Ridge.prepare(rows, penalty).solve(y)
    size = 1.0 + np.abs(rows).max(initial=0.0)

    def loss(intercept: float, slopes: np.ndarray) -> float:
        return float(np.square(y - intercept - rows @ slopes).sum() + penalty * slopes @ slopes)

    least = loss(*found)
    for step in (1e-3, -1e-3):
        assert loss(found.intercept + step, found.weights) >= least - 1e-9
        for place in range(rows.shape[1]):
            moved = found.weights.copy()
            moved[place] += step / size
            assert loss(found.intercept, moved) >= least - 1e-9


@given(problems())
@example((np.array([[-1.0], [1e6], [0.0], [0.0]]), np.array([0.0, 1.0, 1.0, 1.0]), np.ones(4), 1e-3))
def test_the_gradient_of_a_logistic_fit_is_zero(problem: tuple[np.ndarray, np.ndarray, np.ndarray, float]) -> None:
    rows, drawn, weights, penalty = problem
    y = (drawn > 0).astype(float)
    found = logistic(rows, y, penalty, weights=weights)
    assert np.isfinite([found.intercept, *found.weights]).all()
    if 0 < y.sum() < len(y):
        pull = weights * (probabilities(found.of(rows)) - y)
        assert abs(pull.sum()) < 1e-6
        scale = 1.0 + np.abs(rows).max(axis=0, initial=0.0)
        assert (np.abs(pull @ rows + penalty * found.weights) / scale < 1e-5).all()


@given(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=1, max_size=40))
def test_platt_keeps_the_order_of_logits_and_never_turns_it(pairs: list[tuple[float, bool]]) -> None:
    logit, y = np.array([one for one, _ in pairs]), np.array([float(right) for _, right in pairs])
    slope, offset = platt(logit, y)
    assert slope >= 0
    calibrated = probabilities(slope * np.sort(logit) + offset)
    assert (np.diff(calibrated) >= 0).all()
    assert ((calibrated > 0) & (calibrated < 1)).all()
    # On the whole as many right ones are expected as Platt's targets hold.
    right, wrong = y.sum(), (1 - y).sum()
    target = right * (right + 1) / (right + 2) + wrong / (wrong + 2)
    np.testing.assert_allclose(probabilities(slope * logit + offset).sum(), target, rtol=1e-6)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=2, max_size=40),
    st.integers(2, 6),
    st.integers(0, 9),
)
def test_folds_never_cut_what_hangs_together(rows: list[tuple[int, int]], k: int, seed: int) -> None:
    table = replace(
        log(len(rows)), groups=tuple(f"g{group}" for group, _ in rows), questions=tuple(f"q{q}" for _, q in rows)
    )
    held = clusters(table)
    if len(set(held)) < 2:
        return
    found = folds(table, k, seed)
    assert set(found.tolist()) == set(range(min(k, len(set(held)))))
    for values in (held, table.groups, table.questions):
        assert len(set(zip(values, found.tolist(), strict=True))) == len(set(values))
    sizes = np.bincount(found)
    assert sizes.max() - sizes.min() <= max(held.count(name) for name in set(held))


@given(arrays(np.float64, st.tuples(st.integers(1, 25), st.integers(1, 5)), elements=st.sampled_from(
    [0.0, 1.0, -1.0, 3.5, 1e300, -1e300, np.nan, np.inf, -np.inf, 5e-324])))  # fmt: skip
def test_a_design_is_finite(raw: np.ndarray) -> None:
    design = make_design(raw)
    rows = design.rows(raw)
    assert np.isfinite(rows).all()
    assert design.foreseen[np.isnan(raw).any(axis=0)].all()
    assert (design.scale > 0).all()
    assert (design.low <= design.high).all()
