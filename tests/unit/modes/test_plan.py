"""What the next look takes, from counts alone."""

from __future__ import annotations

import pytest

from cascade.config.schema import ModesConfig
from cascade.modes.plan import conversations_for, plan_of
from cascade.modes.state import CascadeState, Counts

SEEN = Counts(complete=100, fit=60, certify=40, conversations=40)
STATE = CascadeState("cascade")
MODES = ModesConfig(share=0.1, certify=0.5)


@pytest.mark.parametrize(
    ("state", "counts", "needed", "requests"),
    [
        (STATE, SEEN, 116, 1_520),
        (STATE, SEEN._replace(certify=80), 116, 3_040),  # later turns of a conversation certify nothing
        (STATE, SEEN._replace(conversations=120, certify=120, fit=20), 116, 600),
        (CascadeState("cascade", looks=1), SEEN, 174, 2_680),
    ],
    ids=["first look", "later turns", "few to fit", "second look"],
)
def test_a_look_takes_conversations_and_rows_to_fit(
    state: CascadeState, counts: Counts, needed: int, requests: int
) -> None:
    plan = plan_of(state, counts, MODES)
    assert (plan.needed, plan.requests, plan.labels, plan.is_ready) == (needed, requests, 0, False)


def test_a_look_is_ready_with_enough_conversations_rows_and_judgements() -> None:
    enough = SEEN._replace(certify=116, conversations=116)
    assert plan_of(STATE, enough, MODES).is_ready
    assert not plan_of(STATE, enough._replace(fit=49), MODES).is_ready
    assert not plan_of(STATE, enough._replace(conversations=115), MODES).is_ready
    people = MODES.model_copy(update={"promise": "regret"})
    assert (plan_of(STATE, enough, people).labels, plan_of(STATE, enough, people).is_ready) == (116, False)
    assert (plan_of(STATE, enough, people, 0.1).labels, plan_of(STATE, enough, people, 0.1).is_ready) == (12, False)
    assert (plan_of(STATE, enough, people, 0.0).labels, plan_of(STATE, enough, people, 0.0).is_ready) == (0, True)


@pytest.mark.parametrize(("alpha", "level", "most"), [(0.2, 0.05, 5), (0.1, 0.05, 5), (0.02, 0.01, 7)])
def test_half_of_the_promised_share_may_lose(alpha: float, level: float, most: int) -> None:
    from cascade.conformal.binomial import most_losses

    count = conversations_for(alpha, level)
    assert (most_losses(count, alpha, level) or 0) >= alpha * count / 2 >= most - 1
