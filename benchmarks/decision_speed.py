"""How long one decision of a fitted policy takes while a question is being answered.

    python benchmarks/decision_speed.py           half a minute
    python benchmarks/decision_speed.py --json

Every method is fitted on the demo log, and asked at every step of every question of it, with the texts of questions and
answers, in one thread: from the observation to the decision (`engine.decide`). A turn goes through all questions once,
with no answer compared before. Of each decision the quickest of the turns counts, so that other work on the machine
does not; shown is the mean over the decisions. "hand-set" is the threshold policy that needs no fitting.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from fitted.live import observations
from fitted.report import head, table

from cascade.conformal.guarantee import Guarantee
from cascade.engine import decide
from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log
from cascade.policies.base import Observation, Policy
from cascade.policies.learned import METHODS, LearnedPolicy
from cascade.policies.threshold import ThresholdPolicy
from cascade.text import normalize_answer
from cascade.training.fitting import fit_policy

ALPHA, LAMBDA_SET = 0.1, 0.01
"""Answers are priced too, so that a decision scores every answer as well as going on."""
TURNS, BAR_US = 15, 50.0
TODAY = date(2026, 11, 21)


class Timing(NamedTuple):
    """One policy on one log.

    Attributes:
        log, method: what was asked of what.
        features: the most that one step looks at.
        mean_us, p99_us: over the decisions, the quickest turn of each, microseconds.
    """

    log: str
    method: str
    features: int
    mean_us: float
    p99_us: float


def turn(policy: Policy, asked: Sequence[Observation]) -> list[float]:
    """Return how long each decision took, microseconds; answers that were compared before are forgotten."""
    normalize_answer.cache_clear()
    spent = []
    for observation in asked:
        started = time.perf_counter_ns()
        decide(policy, observation)
        spent.append((time.perf_counter_ns() - started) / 1e3)
    return spent


def timed(log: str, method: str, policy: Policy, asked: Sequence[Observation]) -> Timing:
    """Time a policy."""
    turns = [turn(policy, asked) for _ in range(TURNS + 1)][1:]
    best = [min(spent) for spent in zip(*turns, strict=True)]
    features = (
        max((len(rule.features.names) for rule in policy.rules), default=0) if isinstance(policy, LearnedPolicy) else 1
    )
    return Timing(log, method, features, statistics.mean(best), statistics.quantiles(best, n=100)[-1])


def measure() -> list[Timing]:
    """Time every method on both readings of the demo log."""
    found = []
    for name in (DEMO, DEMO_LADDER):
        log = open_log(name)
        asked = observations(log.rows())
        policies: Mapping[str, Policy] = {
            "hand-set": ThresholdPolicy(0.16, when="reply_logprob"),
            **{method: fitted(log.tables, method) for method in METHODS},
        }
        found += [timed(name, method, policy, asked) for method, policy in policies.items()]
    return found


def fitted(tables: Sequence[Any], method: str) -> Policy:
    """Fit one method."""
    asked = Guarantee("coverage", ALPHA)
    return fit_policy(tables, asked, method=method, lambda_set=LAMBDA_SET, allow_everything=True, today=TODAY).policy


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a decision takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(argv)
    found = measure()
    slow = [one for one in found if one.mean_us > BAR_US]
    if given.json:
        print(json.dumps({"head": head(), "timings": [one._asdict() for one in found], "bar_us": BAR_US}))
        return int(bool(slow))
    print(f"{head()}; load average {os.getloadavg()[0]:.1f}\n")
    columns = ("log", "method", "features, at most", "µs a decision", "99th percentile, µs")
    rows = [(one.log, one.method, str(one.features), f"{one.mean_us:.1f}", f"{one.p99_us:.1f}") for one in found]
    print("\n".join(table(columns, rows)))
    worst = max(found, key=lambda one: one.mean_us)
    print(f"\n{'MISSED' if slow else 'ok    '} {worst.mean_us:.1f} µs ({worst.method}), at most {BAR_US:g} on the mean")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
