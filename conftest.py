"""Doctests of the package run as the tests do: nothing goes to the trace store of the person who runs them."""

import os
from importlib.util import find_spec

os.environ["CASCADE_TRACES"] = "off"
# Threads of scikit-learn and torch that wait would spin: beside other tests on the same cores, a hundred times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if find_spec("torch") is None:  # of the extra `train`: without it these modules cannot even be imported
    collect_ignore_glob = [
        "cascade/training/trust_region.py",
        "cascade/training/vtrace.py",
        "cascade/training/constrained/*.py",
    ]
