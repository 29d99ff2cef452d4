"""What the estimators of `cascade fit` take, and how they compare with those that could have been used instead.

    python benchmarks/estimators.py            about two minutes; --rows 10000 for less
    python benchmarks/estimators.py --json

Everything runs in one thread, in one process, the two sides of a ratio in turns: other work on the machine then slows
both. Times are processor seconds, the least of several runs. LightGBM is compared where it is installed; the project
does not depend on it.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[fit]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import sklearn
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression

from cascade.conformal.arrays import Floats
from cascade.training.estimators import Ridge, logistic, make_design, one_thread, platt, probabilities
from cascade.training.trees import boosted

COLUMNS, PENALTY = 20, 10.0
TREES, LEAVES = 60, 8
GOALS_S = {1_000: 0.15, 100_000: 4.0}
SOLVERS: Mapping[str, Mapping[str, Any]] = {
    "lbfgs, as it comes": {},
    "lbfgs, tol 1e-8": {"tol": 1e-8, "max_iter": 1_000},
    "newton-cholesky, tol 1e-8": {"solver": "newton-cholesky", "tol": 1e-8},
}


def least_s(calls: Mapping[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Return the least processor seconds of each call, the calls in turns."""
    found = dict.fromkeys(calls, np.inf)
    for _ in range(runs):
        for name, call in calls.items():
            started = time.process_time()
            call()
            found[name] = min(found[name], time.process_time() - started)
    return found


def labelled(rows: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Return standardised columns and right or wrong, as like each other as features of one step are."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, 1))
    made = 0.6 * common + 0.8 * rng.normal(size=(rows, COLUMNS))
    return made, (rng.random(rows) < probabilities(made @ rng.normal(size=COLUMNS) / 3.0 + 0.5)).astype(np.float64)


def compare_logistic(rows: int) -> dict[str, Any]:
    """Return times and differences of own and scikit-learn's logistic regression."""
    x, y = labelled(rows)
    models = {name: LogisticRegression(C=1.0 / PENALTY, **more) for name, more in SOLVERS.items()}
    calls: dict[str, Callable[[], object]] = {name: partial(model.fit, x, y) for name, model in models.items()}
    seconds = least_s({"own": lambda: logistic(x, y, PENALTY), **calls}, max(3, 30_000 // rows))
    own = logistic(x, y, PENALTY)
    apart = {name: float(np.abs(model.coef_[0] - own.weights).max()) for name, model in models.items()}
    return {"rows": rows, "seconds": seconds, "largest_difference_of_weights": apart}


def regressed(rows: int, seed: int) -> tuple[Floats, Floats]:
    """Return Friedman's first function with noise: 20 features, 5 of them of use, 5 % missing."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows, COLUMNS))
    bent = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    y = bent + 10 * x[:, 3] + 5 * x[:, 4] + 3 * rng.normal(size=rows)
    x[rng.random(x.shape) < 0.05] = np.nan
    return x, y


def rivals(x: Floats, y: Floats) -> dict[str, Callable[[], Callable[[Floats], Floats]]]:
    """Return what fits trees: each, called, gives what predicts."""
    found: dict[str, Callable[[], Callable[[Floats], Floats]]] = {
        "histogram, exported": lambda: boosted(x, y, seed=0, trees=TREES, leaves=LEAVES).values
    }
    if len(y) <= 10_000:  # a minute and more beyond
        older = GradientBoostingRegressor(
            n_estimators=TREES, max_leaf_nodes=LEAVES, min_samples_leaf=20, random_state=0
        )
        # It takes no missing values; 0.5 is their mean.
        found["exact splits"] = lambda: _filled(older.fit(np.nan_to_num(x, nan=0.5), y).predict)
    light = _lightgbm()
    if light is not None:
        found["LightGBM"] = lambda: light(x, y)
    return found


def _filled(predict: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda raw: predict(np.nan_to_num(raw, nan=0.5))


def _lightgbm() -> Callable[[Floats, Floats], Callable[[Floats], Floats]] | None:
    try:
        from lightgbm import LGBMRegressor  # type: ignore[import-not-found]  # compared where it is installed
    except ImportError:
        return None

    def fit(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
        settings = {"deterministic": True, "force_row_wise": True, "n_jobs": 1, "verbose": -1, "random_state": 0}
        model = LGBMRegressor(n_estimators=TREES, num_leaves=LEAVES, min_child_samples=20, **settings).fit(x, y)

        def predict(raw: Floats) -> Floats:
            return np.asarray(model.predict(raw))

        return predict

    return fit


def compare_trees(rows: int) -> dict[str, Any]:
    """Return times of fitting, and the share of what can be explained that each explains on fresh rows."""
    x, y = regressed(rows, seed=0)
    fresh, truth = regressed(20_000, seed=1)
    makers = rivals(x, y)
    seconds = least_s(makers, max(2, 3_000 // rows))
    explained = {}
    for name, maker in makers.items():
        predict = maker()
        parts = np.concatenate([predict(fresh[start : start + 2_000]) for start in range(0, len(fresh), 2_000)])
        explained[name] = float(1.0 - np.square(parts - truth).mean() / truth.var())
    return {"rows": rows, "seconds": seconds, "explained": explained, "goal_s": GOALS_S.get(rows)}


def all_of_them(rows: int) -> dict[str, Any]:
    """Return what each estimator takes on 15 features with products, and on 20 without."""
    raw = np.random.default_rng(0).normal(size=(rows, 15))
    raw[::7, 3] = np.nan
    design = make_design(raw, products=True)
    x = design.rows(raw)
    y = (np.random.default_rng(1).random(rows) < probabilities(x[:, 0])).astype(np.float64)
    prepared = Ridge.prepare(x, 300.0)
    calls: dict[str, Callable[[], object]] = {
        "design": lambda: make_design(raw, products=True),
        "rows": lambda: design.rows(raw),
        "ridge, prepared": lambda: Ridge.prepare(x, 300.0),
        "ridge, each target": lambda: prepared.solve(y),
        "logistic": lambda: logistic(x, y, PENALTY),
        "Platt": lambda: platt(x[:, 0], y),
    }
    return {"rows": rows, "columns": design.columns, "seconds": least_s(calls, 3)}


def import_s() -> float:
    """Return what importing scikit-learn's trees takes a fresh process, on top of numpy."""
    said = (
        "import time, numpy; started = time.process_time(); from sklearn.ensemble import HistGradientBoostingRegressor;"
        "print(time.process_time() - started)"
    )
    runs = [subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def measure(sizes: list[int]) -> dict[str, Any]:
    """Return everything that is printed."""
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LightGBM and scikit-learn disagree about names of features
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "numpy": np.__version__,
            "scikit_learn": sklearn.__version__,
            "load_average": os.getloadavg()[0],
            "import_s": import_s(),
            "logistic": [compare_logistic(rows) for rows in sizes],
            "trees": [compare_trees(rows) for rows in sizes],
            "all": [all_of_them(rows) for rows in sizes],
        }


def show(found: dict[str, Any]) -> None:
    """Print it as text."""
    print(f"{found['date']}, {found['machine']}, numpy {found['numpy']}, scikit-learn {found['scikit_learn']}")
    print(
        f"load {found['load_average']:.1f}; one thread; importing scikit-learn's trees takes {found['import_s']:.2f} s"
    )
    print(f"logistic regression, {COLUMNS} columns, penalty {PENALTY:g}")
    for row in found["logistic"]:
        own = row["seconds"]["own"]
        print(f"  {row['rows']:9,} rows  own {own * 1e3:9.2f} ms")
        for name, apart in row["largest_difference_of_weights"].items():
            taken = row["seconds"][name]
            print(f"  {'':14}  {name:26} {taken * 1e3:9.2f} ms, {taken / own:6.2f} × own, weights {apart:.1e} apart")
    print(f"{TREES} trees of {LEAVES} leaves, {COLUMNS} features")
    for row in found["trees"]:
        for name, taken in row["seconds"].items():
            goal = row["goal_s"] if name.startswith("histogram") else None
            held = "" if goal is None else f", goal {goal:g} s: {'ok' if taken <= goal else 'MISSED'}"
            print(f"  {row['rows']:9,} rows  {name:22} {taken:8.3f} s, R² {row['explained'][name]:.3f}{held}")
    print("15 features and their products")
    for row in found["all"]:
        each = ", ".join(f"{name} {taken * 1e3:.2f} ms" for name, taken in row["seconds"].items())
        print(f"  {row['rows']:9,} rows, {row['columns']} columns: {each}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="the largest size")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    found = measure([rows for rows in (1_000, 10_000, 100_000) if rows <= asked.rows])
    print(json.dumps(found)) if asked.json else show(found)


if __name__ == "__main__":
    main()
