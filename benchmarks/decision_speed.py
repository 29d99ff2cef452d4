"""How long one decision of a fitted policy takes while a question is being answered, and how long a log.

    python benchmarks/decision_speed.py           two minutes
    python benchmarks/decision_speed.py --json

Every method but purchases is fitted on the demo log, and asked at every step of every question of it, with the texts of
questions and answers, in one thread: from the observation to the decision (`engine.decide`). As in service, each step
before the latest has its decision with it. A turn goes through all questions once, with no answer compared before. Of
each decision the quickest of the turns counts, so that other work on the machine does not. "hand-set" is the threshold
policy that needs no fitting. The networks have 3 hidden layers of 64 units and look
at what net benefit looks at; their weights are by chance, since what they are changes no time.

A log is the demo log's questions over and over, 100,000 of them, of which all steps are scored at once.
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
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from fitted.live import walks
from fitted.report import head, table

from cascade.calibration.scores import history_of
from cascade.engine import decide
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log
from cascade.guarantees.base import Guarantee
from cascade.policies.base import History, Observation, Policy
from cascade.policies.design import Design
from cascade.policies.estimators import Linear, Logistic, Scorer
from cascade.policies.learned import METHODS, NETWORKS, LearnedPolicy, StepRule
from cascade.policies.network import ACTIVATIONS, Action, Network
from cascade.policies.threshold import ThresholdPolicy
from cascade.text import remembered
from cascade.training.fitting import fit_policy
from cascade.training.stages import FitTarget, staged
from cascade.training.stopping import build, fit_net_benefit
from cascade.types import Question, Step

ALPHA = 0.1
TURNS, BAR_US, NETWORK_BAR_US = 15, 250.0, 250.0
HIDDEN, QUESTIONS = (64, 64, 64), 100_000
NOT_FITTED = {*NETWORKS, "reference", "purchases"}
"""The demo has rounds of two calls, and purchases decides before each call: `purchases.py --speed` times it."""
TODAY = date(2026, 11, 21)
Walk: TypeAlias = tuple[Question, tuple[Step, ...], int]


class Timing(NamedTuple):
    """One policy on one log.

    Attributes:
        log, method: what was asked of what.
        features, columns: the most that one step looks at, and has weights for.
        median_us, p95_us: over the decisions, the quickest turn of each, microseconds.
        log_s: how long all steps of 100,000 questions take, seconds; None where the policy scores no log by itself.
    """

    log: str
    method: str
    features: int
    columns: int
    median_us: float
    p95_us: float
    log_s: float | None

    @property
    def network(self) -> bool:
        """Whether it is a policy network."""
        return self.method.startswith("network")

    @property
    def slow(self) -> bool:
        """Whether the median is above the bar."""
        return self.median_us > (NETWORK_BAR_US if self.network else BAR_US)


def turn(policy: Policy, asked: Sequence[Walk]) -> list[float]:
    """Return how long each decision took, microseconds; answers that were compared before are forgotten."""
    remembered.cache_clear()
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


def timed(log: str, method: str, policy: Policy, asked: Sequence[Walk], history: History) -> Timing:
    """Time a policy."""
    turns = [turn(policy, asked) for _ in range(TURNS + 1)][1:]
    best = [min(spent) for spent in zip(*turns, strict=True)]
    rules = policy.rules if isinstance(policy, LearnedPolicy) else ()
    features = max((len(rule.features.names) for rule in rules), default=1)
    columns = max((columns_of(rule) for rule in rules), default=0)
    started = time.perf_counter()
    if isinstance(policy, LearnedPolicy):
        policy.batch(history)
    log_s = time.perf_counter() - started if rules else None
    return Timing(log, method, features, columns, statistics.median(best), statistics.quantiles(best, n=20)[-1], log_s)


def columns_of(rule: StepRule) -> int:
    """Return the columns that the widest design of a rule has."""
    found = [design.columns for one in rule.scorers for design in designs_of(one)]
    return max([*found, 0 if rule.network is None else rule.network.design.columns], default=0)


def designs_of(scorer: Scorer) -> list[Design]:
    """Return the designs of the linear forms in a scorer."""
    if isinstance(scorer, Logistic):
        return [scorer.linear.design]
    return [scorer.design] if isinstance(scorer, Linear) else []


def measure() -> list[Timing]:
    """Time every method on both readings of the demo log."""
    found = []
    for name in (DEMO, DEMO_LADDER):
        log = open_log(name)
        asked, history = list(walks(log.rows())), history_of(log.tables[0])
        history = history.take(np.arange(QUESTIONS) % history.n)
        policies: Mapping[str, Policy] = {
            "hand-set": ThresholdPolicy(0.16, when="reply_logprob"),
            **{method: fitted(log.tables, method) for method in METHODS if method not in NOT_FITTED},
            **{f"network, {kind}": with_networks(log.tables[0], kind, sure=False) for kind in ACTIVATIONS},
            "network, confidences": with_networks(log.tables[0], "relu", sure=True),
        }
        found += [timed(name, method, policy, asked, history) for method, policy in policies.items()]
    return found


def fitted(tables: Sequence[Any], method: str) -> Policy:
    """Fit one method."""
    asked = Guarantee("coverage", ALPHA)
    return fit_policy(tables, asked, method=method, allow_everything=True, today=TODAY).policy


def with_networks(questions: EpisodeTable, activation: str, *, sure: bool) -> Policy:
    """Return what net benefit would be with networks for what is kept and going on, by chance; `sure`: confidences."""
    linear, rng, rules = fit_net_benefit(build(questions, FitTarget("coverage", ALPHA))), np.random.default_rng(0), []
    for rule, stage in zip(linear.rules, staged(questions), strict=True):
        many, last = len(rule.include), rule is linear.rules[-1]
        shared = [design for one in rule.confidence if one is not None for design in designs_of(one)]
        design = shared[0] if shared else stage.design  # as in a policy that was read: equal designs are one
        sizes = [design.columns, *HIDDEN, many + 1]
        weights = [rng.normal(0, (2 / into) ** 0.5, (out, into)) for into, out in pairwise(sizes)]
        biases = [rng.normal(0, 0.1, out) for out in sizes[1:]]
        network = Network(design, tuple(weights), tuple(biases), activation, np.arange(many + 1) < many + (not last))
        include = tuple([Action(network, place) for place in range(many)])
        chances = (rule.confidence, rule.incumbent) if sure else ((None,) * many, None)
        rules.append(StepRule(stage.features, None if last else Action(network, many), include, *chances))
    return LearnedPolicy("ccpo", tuple(rules))


def shown(one: Timing) -> tuple[str, ...]:
    """Return a line of the table."""
    log_s = "-" if one.log_s is None else f"{one.log_s:.1f}"
    return (*map(str, one[:4]), f"{one.median_us:.1f}", f"{one.p95_us:.1f}", log_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a decision takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(argv)
    found = measure()
    slow = [one for one in found if one.slow]
    if given.json:
        print(
            json.dumps(
                {
                    "head": head(),
                    "timings": [one._asdict() for one in found],
                    "bar_us": BAR_US,
                    "network_bar_us": NETWORK_BAR_US,
                }
            )
        )
        return int(bool(slow))
    print(f"{head()}; load average {os.getloadavg()[0]:.1f}\n")
    columns = ("log", "method", "features, at most", "columns, at most", "median, µs", "95 % are below, µs", "log, s")
    print("\n".join(table(columns, [shown(one) for one in found])))
    for network, bar in ((False, BAR_US), (True, NETWORK_BAR_US)):
        worst = max([one for one in found if one.network == network], key=lambda one: one.median_us)
        met = "MISSED" if worst.slow else "ok    "
        print(f"\n{met} {worst.median_us:.1f} µs ({worst.log}, {worst.method}), at most {bar:g} at the median")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
