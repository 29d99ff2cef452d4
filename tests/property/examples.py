"""How many examples a property is tried on: few in the suite, twelve times as many in `make long`."""

from __future__ import annotations

import os

from hypothesis import settings

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "8"))


def times(many: float) -> settings:
    """Return the settings of a property that is tried on so many times the usual number of examples."""
    return settings(max_examples=round(many * EXAMPLES))
