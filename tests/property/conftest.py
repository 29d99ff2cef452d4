"""Hypothesis as the suite wants it: no deadline on a shared machine, the same examples for everybody; more of them in `make long`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from property.examples import EXAMPLES

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
