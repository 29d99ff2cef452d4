from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from cases import each

from cascade.conformal.binomial import most_losses
from cascade.conformal.ltt import (
    Forecast,
    certify_chance,
    chance_said,
    first_where,
    forecast,
    least_enough,
)


@each("least", [1, 2, 5])
@each("most", [5, 6, 7, 13, 64, 100])
def test_the_least_number_is_found_and_none_beyond_the_most(least: int, most: int) -> None:
    for wanted in range(1, 110):
        asked: list[int] = []

        def enough(n: int, wanted: int = wanted, asked: list[int] = asked) -> bool:
            asked.append(n)
            return n >= wanted

        assert least_enough(enough, least, most) == (max(wanted, least) if wanted <= most else None)
        assert min(asked) >= least
        assert max(asked) <= most


def test_where_enough_comes_and_goes_the_number_is_enough_and_the_one_before_is_not() -> None:
    for period in range(2, 40):

        def enough(n: int, period: int = period) -> bool:
            return n % period > period // 2 or n > 1000

        found = least_enough(enough)
        assert found is not None
        assert enough(found)
        assert found == 1 or not enough(found - 1)


def test_the_first_index_is_that_of_a_search_one_by_one() -> None:
    for size in range(20):
        for start in range(size + 1):
            assert first_where(size, lambda k, start=start: k >= start) == start


# --- the forecast of a risk

_forecast = lru_cache(maxsize=None)(forecast)


def certifies(losses: int, n: int, alpha: float, delta: float) -> bool:
    most = most_losses(n, alpha, delta)
    return most is not None and losses <= most


@pytest.mark.parametrize(("alpha", "n"), [(0.1, 60), (0.05, 200)])
def test_so_many_questions_are_certified_in_about_the_stated_share_of_runs(alpha: float, n: int) -> None:
    """Asked for N, given N. In 0.5.0 the number was that at which the seen share would just pass: half of them failed.

    The risks are spread from 0 to twice the bound, as those of cascades that somebody would try are.
    """
    chance, stated, came = np.random.default_rng(1), [], []
    for risk in chance.uniform(0, 2 * alpha, 2_500):
        lost = int(chance.binomial(n, risk))
        if certifies(lost, n, alpha, 0.1):
            continue
        found = _forecast(lost, n, alpha, 0.1)
        if found.questions is not None:
            stated.append(found.chance)
            came.append(certifies(chance.binomial(found.questions, risk), found.questions, alpha, 0.1))
    told, real = np.array(stated), np.array(came)
    assert told.size > 500
    for some in (told < 0.4, told >= 0.4):
        assert real[some].mean() == pytest.approx(told[some].mean(), abs=0.08)


def test_a_log_that_grows_is_not_told_that_nothing_helps_where_something_does() -> None:
    """0.5.0 said "no number of questions helps" wherever the seen share was alpha or more: here in a tenth to a half of logs."""
    alpha, risk, chance = 0.05, 0.04, np.random.default_rng(2)
    for n in (40, 80, 160):
        lost = chance.binomial(n, risk, 400)
        told = [_forecast(int(one), n, alpha, 0.1).questions is None for one in lost]
        before = np.mean(lost >= alpha * n)
        assert before > 0.05
        assert np.mean(told) < before / 3


def test_one_more_loss_never_makes_it_likelier() -> None:
    for many in (100, 1_000):
        chances = [certify_chance(lost, 60, many, 0.1, 0.1) for lost in range(61)]
        assert all(one >= other for one, other in pairwise(chances))
    assert certify_chance(0, 60, 10, 0.1, 0.1) == 0, "10 questions certify nothing, whatever is lost"


def test_the_chance_is_that_of_the_predictive_law() -> None:
    chance = np.random.default_rng(3)
    for lost, n, many in ((2, 60, 152), (15, 200, 1_141), (20, 200, 300)):
        risks = chance.beta(lost + 1, n - lost + 1, 40_000)
        drawn = np.mean(chance.binomial(many, risks) <= most_losses(many, 0.1, 0.1))
        assert certify_chance(lost, n, many, 0.1, 0.1) == pytest.approx(drawn, abs=0.01)


def test_a_forecast_asks_for_more_than_there_is() -> None:
    for lost, n in ((0, 21), (3, 60), (15, 200), (90, 1_000)):
        found = forecast(lost, n, 0.1, 0.1)
        assert found.questions is not None
        assert found.questions > n
    assert forecast(60, 60, 0.1, 0.1) == Forecast(None, pytest.approx(0, abs=1e-9))


def test_a_chance_is_told_as_roughly_as_it_is_known() -> None:
    assert [chance_said(one) for one in (0.0, 0.0499, 0.05, 0.5, 0.95, 0.951)] == [
        "below 5 %",
        "below 5 %",
        "about 5 %",
        "about 50 %",
        "about 95 %",
        "above 95 %",
    ]
