"""How long one decision of a fitted policy takes while a question is being answered.

    python benchmarks/decision_speed.py           half a minute
    python benchmarks/decision_speed.py --json

Every method is fitted on the demo log, and asked at every step of every question of it, with the texts of questions and
answers, in one thread: from the observation to the decision (`engine.decide`). As in service, each step before the
latest has its decision with it. A turn goes through all questions once, with no answer compared before. Of each
decision the quickest of the turns counts, so that other work on the machine does not. "hand-set" is the threshold
policy that needs no fitting; "products" is net benefit with products of features and fitted confidences, whatever the
choice would take: the most that a linear policy has to add up.
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
from typing import Any, NamedTuple, TypeAlias

from fitted.live import walks
from fitted.report import head, table

from cascade.conformal.guarantee import Guarantee
from cascade.engine import decide
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log
from cascade.policies.base import Observation, Policy
from cascade.policies.learned import METHODS, LearnedPolicy
from cascade.policies.threshold import ThresholdPolicy
from cascade.text import normalize_answer
from cascade.training.fitting import fit_policy
from cascade.training.osc.net_benefit import fit_net_benefit
from cascade.training.osc.targets import Asked
from cascade.types import Question, Step

ALPHA, LAMBDA_SET = 0.1, 0.01
"""Answers are priced too, so that a decision scores every answer as well as going on."""
TURNS, BAR_US = 15, 50.0
TODAY = date(2026, 11, 21)
Walk: TypeAlias = tuple[Question, tuple[Step, ...], int]


class Timing(NamedTuple):
    """One policy on one log.

    Attributes:
        log, method: what was asked of what.
        features, columns: the most that one step looks at, and has weights for.
        median_us, p95_us: over the decisions, the quickest turn of each, microseconds.
    """

    log: str
    method: str
    features: int
    columns: int
    median_us: float
    p95_us: float


def turn(policy: Policy, asked: Sequence[Walk]) -> list[float]:
    """Return how long each decision took, microseconds; answers that were compared before are forgotten."""
    normalize_answer.cache_clear()
    spent = []
    for question, steps, horizon in asked:
        decided: tuple[Step, ...] = ()
        for step in steps:
            observation = Observation(question, (*decided, step), horizon)
            started = time.perf_counter_ns()
            decision = decide(policy, observation)
            spent.append((time.perf_counter_ns() - started) / 1e3)
            decided = (*decided, step._replace(decision=decision))
    return spent


def timed(log: str, method: str, policy: Policy, asked: Sequence[Walk]) -> Timing:
    """Time a policy."""
    turns = [turn(policy, asked) for _ in range(TURNS + 1)][1:]
    best = [min(spent) for spent in zip(*turns, strict=True)]
    rules = policy.rules if isinstance(policy, LearnedPolicy) else ()
    features = max((len(rule.features.names) for rule in rules), default=1)
    columns = max((line.design.columns for rule in rules for one in rule.scorers for line in one.lines), default=0)
    return Timing(log, method, features, columns, statistics.median(best), statistics.quantiles(best, n=20)[-1])


def measure() -> list[Timing]:
    """Time every method on both readings of the demo log."""
    found = []
    for name in (DEMO, DEMO_LADDER):
        log = open_log(name)
        asked = list(walks(log.rows()))
        policies: Mapping[str, Policy] = {
            "hand-set": ThresholdPolicy(0.16, when="reply_logprob"),
            **{method: fitted(log.tables, method) for method in METHODS},
            "products": with_products(log.tables[0]),
        }
        found += [timed(name, method, policy, asked) for method, policy in policies.items()]
    return found


def fitted(tables: Sequence[Any], method: str) -> Policy:
    """Fit one method."""
    asked = Guarantee("coverage", ALPHA)
    return fit_policy(tables, asked, method=method, lambda_set=LAMBDA_SET, allow_everything=True, today=TODAY).policy


def with_products(questions: EpisodeTable) -> Policy:
    """Fit net benefit with products of features."""
    return fit_net_benefit(questions, Asked("coverage", ALPHA, lambda_set=LAMBDA_SET), products=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a decision takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(argv)
    found = measure()
    slow = [one for one in found if one.median_us > BAR_US]
    if given.json:
        print(json.dumps({"head": head(), "timings": [one._asdict() for one in found], "bar_us": BAR_US}))
        return int(bool(slow))
    print(f"{head()}; load average {os.getloadavg()[0]:.1f}\n")
    columns = ("log", "method", "features, at most", "columns, at most", "median, µs", "95 % are below, µs")
    rows = [(*map(str, one[:4]), f"{one.median_us:.1f}", f"{one.p95_us:.1f}") for one in found]
    print("\n".join(table(columns, rows)))
    worst = max(found, key=lambda one: one.median_us)
    met = "MISSED" if slow else "ok    "
    print(f"\n{met} {worst.median_us:.1f} µs ({worst.log}, {worst.method}), at most {BAR_US:g} at the median")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
