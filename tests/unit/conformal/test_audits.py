from __future__ import annotations

import itertools
import math

import pytest

from cascade.conformal.audits import AuditPlan
from cascade.errors import UsageError


@pytest.mark.parametrize("probability", [0.03, 0.5, 0.9])
def test_audits_have_their_probability_and_no_pattern(probability) -> None:
    draws = [AuditPlan(probability, seed=5).draw(str(number)) for number in range(20_000)]
    sd = math.sqrt(probability * (1 - probability) / 20_000)
    assert abs(sum(draws) / 20_000 - probability) < 4 * sd
    both = sum(one and other for one, other in itertools.pairwise(draws)) / 19_999
    assert abs(both - probability**2) < 4 * math.sqrt(probability**2 / 20_000)


def test_draws_depend_on_seed_and_number_alone() -> None:
    plan = AuditPlan(0.3, seed=1)
    backwards = {number: plan.draw(str(number)) for number in reversed(range(300))}
    assert [AuditPlan(0.3, seed=1).draw(str(number)) for number in range(300)] == [backwards[n] for n in range(300)]
    assert backwards != {number: AuditPlan(0.3, seed=2).draw(str(number)) for number in range(300)}


def test_a_lower_probability_audits_a_part_of_the_same_questions() -> None:
    few, many = AuditPlan(0.1, seed=1), AuditPlan(0.4, seed=1)
    assert all(many.draw(str(number)) for number in range(2000) if few.draw(str(number)))


def test_never_and_always() -> None:
    assert not any(AuditPlan(0.0).draw(str(number)) for number in range(1000))
    assert all(AuditPlan(1.0).draw(str(number)) for number in range(1000))
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(UsageError, match="probability"):
            AuditPlan(bad)
