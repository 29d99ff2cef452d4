from __future__ import annotations

import numpy as np
import pytest

from cascade.conformal.betting import mean_below_p_value
from cascade.conformal.needed import first_where, least_enough, needed_for_cost


@pytest.mark.parametrize("least", [1, 2, 5])
@pytest.mark.parametrize("most", [5, 6, 7, 13, 64, 100])
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


def test_the_number_for_a_cost_is_a_multiple_that_is_certified_and_the_one_before_is_not() -> None:
    costs = np.array([1, 2, 6], dtype=np.int64)
    found = needed_for_cost(costs, 4, 20, 0.1)
    assert found is not None
    assert found % 3 == 0
    assert mean_below_p_value(np.tile(costs, found // 3), 4, 20) <= 0.1
    assert mean_below_p_value(np.tile(costs, found // 3 - 1), 4, 20) > 0.1
    assert needed_for_cost(costs, 3, 20, 0.1) is None, "a mean at the budget is certified by no number"
