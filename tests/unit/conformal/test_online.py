from __future__ import annotations

import math
import random

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from cascade.conformal.online import OnlineThreshold
from cascade.errors import UsageError

UNIT = st.floats(0, 1, allow_nan=False)


def beta_2_3(chance: random.Random) -> float:
    """Return a draw from Beta(2, 3), whose 10 % quantile is 0.142559."""
    return chance.betavariate(2, 3)


# --- the published recursion ---


@given(
    scores=st.lists(st.floats(-2, 2), min_size=1, max_size=60),
    first=st.floats(-2, 2),
    alpha=st.floats(0.01, 0.99),
    step=st.floats(0.001, 10),
    decay=st.floats(0.01, 0.49),
)
def test_it_is_the_decaying_step_recursion_with_the_signs_of_score_and_quantile_turned(
    scores, first, alpha, step, decay
) -> None:
    # aangelopoulos/online-conformal-decaying, core.py: err_t = s_t > q_t; q_{t+1} = q_t − eta_t (alpha − err_t).
    rule, q = OnlineThreshold(alpha=alpha, kappa=-first, step=step, decay=decay), first
    for t, score in enumerate(scores, start=1):
        error = int(score > q)
        assert rule.missed(-score) == bool(error)
        rule = rule.update(rule.missed(-score))
        q = q - step * t ** -(0.5 + decay) * (alpha - error)
        assert rule.kappa == -q  # to the last bit


# --- the bound on any sequence ---


def excess(rule: OnlineThreshold, choose, updates: int) -> tuple[float, float]:
    """Return the share of misses over that many updates, and what was promised."""
    promised, missed = rule.bound(updates), 0
    for t in range(updates):
        miss = rule.missed(choose(t, rule))
        missed, rule = missed + miss, rule.update(miss)
    return missed / updates, promised


SEQUENCES = {
    "just below, while it can": lambda t, rule: max(0.0, math.nextafter(rule.kappa, -1)) if rule.kappa > 0 else 0.0,
    "always the least": lambda t, rule: 0.0,
    "always the most": lambda t, rule: 1.0,
    "in blocks": lambda t, rule: float(t // 50 % 2),
    "rise, then fall": lambda t, rule: 1.0 if t < 500 else 0.0,
    "slowly down": lambda t, rule: 1 - t / 1000,
}


@each("name", SEQUENCES)
@each("step", [0.05, 1.0, 20.0])
@each("updates", [1, 30, 1000])
def test_misses_are_bounded_on_any_sequence(name, step, updates) -> None:
    for alpha in (0.05, 0.3):
        for start in (0.0, 0.5, 1.0):
            rule = OnlineThreshold(alpha=alpha, kappa=start, step=step, upper=1.0)
            realised, promised = excess(rule, SEQUENCES[name], updates)
            assert realised <= promised + 1e-12


@given(st.lists(UNIT, min_size=1, max_size=80), UNIT, st.floats(0.02, 5), st.floats(0.01, 0.49), st.floats(0.05, 0.9))
def test_misses_are_bounded_whatever_comes(criticals, start, step, decay, alpha) -> None:
    rule = OnlineThreshold(alpha=alpha, kappa=start, step=step, decay=decay, upper=1.0)
    realised, promised = excess(rule, lambda t, _: criticals[t], len(criticals))
    assert realised <= promised + 1e-12


def test_values_above_the_upper_limit_count_as_the_limit() -> None:
    """Critical values of 0.8 and +∞: a range of 0.2 from `low` to `upper`, however far above it they lie."""
    for block in (1, 7, 40):
        rule = OnlineThreshold(alpha=0.1, kappa=0.9, step=0.02, upper=1.0)
        promised, missed = rule.bound(2000, spread=1.0 - 0.8), 0
        for t in range(2000):
            miss = rule.missed(math.inf if t // block % 2 else 0.8)
            missed, rule = missed + miss, rule.update(miss)
        assert missed / 2000 <= promised


def test_a_spread_that_does_not_reach_from_the_threshold_to_the_limit_is_refused() -> None:
    """Finite values lie in [0, 0.2], but those of +∞ lead up to 1: the spread is 1, and for 0.2 the bound is broken."""
    rule = now = OnlineThreshold.warm(0.2, 20, alpha=0.2, step=3.0, decay=0.49, upper=1.0)
    updates, missed = 159, 0
    for t in range(updates):
        miss = now.missed(math.inf if t < 100 else min(0.2, math.nextafter(now.kappa, 0)))
        missed, now = missed + miss, now.update(miss)
    last = 3.0 * (20 + updates) ** -0.99
    assert missed / updates > 0.2 + (0.2 + rule.eta) / (updates * last)
    assert missed / updates <= rule.bound(updates, spread=1.0)
    with pytest.raises(UsageError, match=r"spread must reach .* 0\.2 does not reach from kappa, 0\.2, to 1"):
        rule.bound(updates, spread=0.2)
    with pytest.raises(UsageError, match="spread"):
        rule.bound(updates, spread=math.nan)


def test_the_bound_is_the_published_one_and_is_met_to_a_good_part() -> None:
    rule = OnlineThreshold(alpha=0.1, kappa=0.5, step=1.0, upper=1.0)
    for updates in (100, 1500):
        assert math.isclose(rule.bound(updates), 0.1 + 2 * updates**-0.4)
    rule = OnlineThreshold(alpha=0.1, kappa=1.0, step=0.05, upper=1.0)
    realised, promised = excess(rule, SEQUENCES["just below, while it can"], 200)
    assert realised - 0.1 > 0.2 * (promised - 0.1)  # an adversary that is answered by small steps does real harm


def test_without_an_upper_limit_questions_that_are_never_missed_undo_the_bound() -> None:
    def nothing_to_be_found_then_hard(t, rule) -> float:
        return math.inf if t < 5000 else 0.5

    free = OnlineThreshold(alpha=0.3, kappa=0.5, step=1.0, decay=0.01)
    for t in range(5000):
        free = free.update(free.missed(nothing_to_be_found_then_hard(t, free)))
    assert free.kappa > 20
    with pytest.raises(UsageError, match="upper"):
        free.bound(10)
    held = OnlineThreshold(alpha=0.3, kappa=0.5, step=1.0, decay=0.01, upper=1.0)
    for t in range(5000):
        held = held.update(held.missed(nothing_to_be_found_then_hard(t, held)))
        assert held.kappa <= 1.0


# --- independent questions ---


def run(rule: OnlineThreshold, updates: int, seed: int) -> tuple[OnlineThreshold, float]:
    chance, missed = random.Random(seed), 0
    for t in range(updates):
        miss = rule.missed(beta_2_3(chance))
        missed, rule = missed + (miss if t >= updates // 2 else 0), rule.update(miss)
    return rule, missed / (updates - updates // 2)


@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
def test_the_corrected_sign_converges_to_the_quantile_and_the_printed_one_runs_away(start) -> None:
    corrected, share = run(OnlineThreshold(alpha=0.1, kappa=start, step=0.1, upper=1.0), 20_000, seed=1)
    assert abs(corrected.kappa - 0.142559) < 0.02
    assert abs(share - 0.1) < 0.01
    printed = OnlineThreshold(alpha=0.1, kappa=start, step=0.1, upper=1.0, literal=True)
    _, share = run(printed, 20_000, seed=1)
    assert share in {0.0, 1.0}  # everything kept, or everything missed


def test_a_warm_start_stays_near_where_it_starts() -> None:
    warm = OnlineThreshold.warm(0.142559, 1000, alpha=0.1, step=0.1)
    assert warm.updates == 1000
    assert warm.eta == 0.1 * 1001**-0.6
    chance, farthest = random.Random(3), 0.0
    for _ in range(2000):
        warm = warm.update(warm.missed(beta_2_3(chance)))
        farthest = max(farthest, abs(warm.kappa - 0.142559))
    cold = OnlineThreshold(alpha=0.1, kappa=0.142559, step=0.1).update(misses=True)
    assert farthest < 0.02 < 0.142559 - cold.kappa


# --- one step ---


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.floats(-5, 5))
def test_a_batch_counts_by_its_share(batch, kappa) -> None:
    rule = OnlineThreshold(alpha=0.2, kappa=kappa, step=0.5)
    after = rule.update(batch)
    assert after == rule.update(sum(batch) / len(batch))
    assert after.updates == 1
    assert (after.kappa < kappa) == (sum(batch) / len(batch) > 0.2) or math.isclose(after.kappa, kappa, abs_tol=1e-12)


def test_missed_is_the_opposite_of_covered_at_every_edge() -> None:
    rule = OnlineThreshold(alpha=0.1, kappa=0.5, step=1)
    assert [rule.missed(one) for one in (0.5, math.nextafter(0.5, 0), math.inf, -math.inf)] == [
        False,
        True,
        False,
        True,
    ]
    with pytest.raises(UsageError, match="not a number"):
        rule.missed(math.nan)


@pytest.mark.parametrize("number", [np.float64, np.float32])
def test_critical_values_of_numpy_are_taken_and_so_are_its_misses(number) -> None:
    rule = OnlineThreshold(alpha=0.2, kappa=0.5, step=0.5)
    for critical in (0.25, 0.75):
        missed = rule.missed(number(critical))
        assert type(missed) is bool
        assert rule.update(missed) == rule.update(np.bool_(missed)) == rule.update(rule.missed(critical))
    assert rule.update(number(0.25)) == rule.update(0.25)
    assert rule.update(np.array([True, False])) == rule.update([True, False])
    with pytest.raises(UsageError, match="batch"):
        rule.update(np.array([], dtype=np.bool_))


def test_every_bad_argument_is_listed() -> None:
    with pytest.raises(UsageError) as caught:
        OnlineThreshold(alpha=1.0, kappa=-math.inf, step=0.0, decay=0.5, upper=math.nan, updates=-1)
    for name in ("alpha", "kappa", "step", "decay", "upper", "updates"):
        assert name in str(caught.value)
    good = OnlineThreshold(alpha=0.1, kappa=0.0, step=1, upper=1.0)
    for share in (1.5, -0.1, math.nan):
        with pytest.raises(UsageError, match="share"):
            good.update(share)
    with pytest.raises(UsageError, match="batch"):
        good.update([])
    with pytest.raises(UsageError, match="at least one"):
        good.bound(0)
    with pytest.raises(UsageError, match="sign"):
        OnlineThreshold(alpha=0.1, kappa=0.0, step=1, upper=1.0, literal=True).bound(10)
