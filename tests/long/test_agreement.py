"""Agreement in 20,000 simulated calibrations, single requests and conversations, where its risk is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from unit.guarantees.test_agreement import table

from cascade.calibration.samples import one_a_group
from cascade.calibration.scores import sample_of
from cascade.guarantees.base import Guarantee, get
from cascade.training.simple import plain_threshold

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SIMULATIONS = 20_000
DELTA = 0.1
KIND = get("agreement")
FAILED = 0.01
"""How often the reference gives nothing: every answer of the first model then counts."""
LONGEST = 6


def risk(kappa: float) -> float:
    """Return how often the answer served at a threshold differs, of a random turn of a random conversation.

    A first answer with doubt s differs with probability h s, where the conversation's h is 0.2 or 0.8, each as likely;
    it is served where s is at most kappa. Where the reference gave nothing every answer counts: the last step has none.
    """
    served = min(max(kappa, 0.0), 1.0)
    return FAILED + (1 - FAILED) * 0.5 * served**2 / 2


def drawn(rng: np.random.Generator, conversations: int, *, one: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the doubts, whether each answer is the reference's, and the conversations; hard ones are longer."""
    hard = rng.random(conversations) < 0.5
    turns = np.ones(conversations, dtype=np.int64) if one else np.where(hard, LONGEST, 1)
    member = np.repeat(np.arange(conversations), turns)
    score = rng.random(member.size)
    return score, rng.random(member.size) >= np.where(hard[member], 0.8, 0.2) * score, [f"c{at}" for at in member]


@pytest.mark.parametrize("one", [True, False], ids=["requests", "conversations"])
@pytest.mark.parametrize(("n", "alpha"), [(100, 0.1), (300, 0.05)])
def test_agreement_is_broken_in_a_share_of_delta_at_most(n: int, alpha: float, one: bool) -> None:
    rng, broken = np.random.default_rng(n), 0
    asked = Guarantee("agreement", alpha, DELTA)
    policy = plain_threshold(table(*drawn(rng, n, one=one)[:2]), "doubt", 1.0, KIND)  # the same for every log
    for number in range(SIMULATIONS):
        score, equal, groups = drawn(rng, n, one=one)
        log = replace(table(score, equal, rng.random(score.size) >= FAILED), groups=tuple(groups))
        sample = sample_of(one_a_group(log, seed=number), policy)
        (found,) = KIND.calibrate(sample, asked, None)
        # Going on scores the doubt: what is served at a threshold has no higher doubt than it.
        broken += found.refused is None and risk(found.kappa) > alpha
    assert broken / SIMULATIONS <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / SIMULATIONS)
    assert broken, "nothing was at stake"
