"""The literal text is run by `benchmarks/literal`; one thread, as in the tests of networks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))

from unit.training.networks.conftest import _one_thread  # noqa: F401
