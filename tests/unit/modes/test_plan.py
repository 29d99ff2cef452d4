"""What the next look takes, from counts alone."""

from __future__ import annotations

import pytest

from cascade.config.schema import ModesConfig
from cascade.modes.plan import conversations_for, plan_of
from cascade.modes.state import CascadeState, Counts

SEEN = Counts(fit=60, conversations=40)
MODES = ModesConfig(share=0.1, certify=0.5)


@pytest.mark.parametrize(
    ("looks", "counts", "needed", "wait"),
    [
        (0, SEEN, 116, 1_520),
        (0, SEEN._replace(conversations=120, fit=20), 116, 600),
        (1, SEEN, 174, 2_680),
        (0, Counts(fit=50, conversations=116), 116, 0),
        (0, Counts(fit=49, conversations=116), 116, 20),
        (0, Counts(fit=50, conversations=115), 116, 20),
    ],
)
def test_a_look_takes_conversations_and_rows_to_fit(looks: int, counts: Counts, needed: int, wait: int) -> None:
    plan = plan_of(CascadeState("cascade", looks=looks), counts, MODES)
    assert (plan.look, plan.needed, plan.wait, plan.is_ready) == (looks + 1, needed, wait, wait == 0)


@pytest.mark.parametrize(("alpha", "level", "most"), [(0.2, 0.05, 5), (0.1, 0.05, 5), (0.02, 0.01, 7)])
def test_half_of_the_promised_share_may_lose(alpha: float, level: float, most: int) -> None:
    from cascade.conformal.binomial import most_losses

    count = conversations_for(alpha, level)
    assert (most_losses(count, alpha, level) or 0) >= alpha * count / 2 >= most - 1
