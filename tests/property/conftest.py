"""Hypothesis as the suite wants it: no deadline on a shared machine, the same examples for everybody; more of them in `make long`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("PROPERTY_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
