"""Doctests of the package run as the tests do: nothing goes to the trace store of the person who runs them."""

import gc
import os

os.environ["CASCADE_TRACES"] = "off"
# Threads of numpy and torch that wait would spin: beside other tests on the same cores, a hundred times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

gc.disable()  # what is collected here stays to the end: a third of the time went into looking through it


def pytest_collection_finish() -> None:
    """Look for garbage again, but seldom, and not among the modules and tests that are there now.

    At Python's own thresholds it is 7 % of the processor time of tests/unit/server, at these 2 %.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
