"""Whether a certified policy is worth serving."""

from __future__ import annotations

import pytest

from cascade.evaluation.baselines import Worth

GUIDE = "the guide alone"


@pytest.mark.parametrize(
    ("worth", "said"),
    [
        (Worth(keeps_everything=False, times_reference=0.6), None),
        (Worth(keeps_everything=False, times_reference=None), None),
        (
            Worth(keeps_everything=False, times_reference=1.0),
            "It costs 1.00 × what the guide alone costs, and saves nothing: do not serve it",
        ),
        (
            Worth(keeps_everything=True, times_reference=1.07),
            "keeps every answer of every step and costs 1.07 × what the guide alone costs: it saves",
        ),
        (
            Worth(keeps_everything=True, times_reference=None),
            "It keeps every answer of every step: it saves nothing, so do not serve it",
        ),
        (
            Worth(keeps_everything=True, times_reference=0.4),
            "it decides nothing, and costs 0.40 × what the guide alone costs.",
        ),
        (
            Worth(keeps_everything=True, times_reference=1.07, within_budget=True),
            "The budget pays for every answer of every step",
        ),
        (Worth(keeps_everything=False, times_reference=1.07, within_budget=True), None),
    ],
)
def test_what_speaks_against_serving_it(worth: Worth, said: str | None) -> None:
    found = worth.describe(GUIDE)
    assert found is None if said is None else said in (found or "")
