"""The loss of an audited answer: the same on one answer as on a log, and the worse where something is unknown."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest
import scipy  # its parts are imported where they are used: that takes long
from hypothesis import given
from hypothesis import strategies as st

from cascade.conformal.monitor import UNLUCKY, Monitor, weight_after
from cascade.conformal.promise import Promise, kind_of
from cascade.errors import UsageError
from cascade.serving.monitors import loss_of
from cascade.types import Answer, Candidate, Decision, Question, Step

PATHS = st.lists(st.booleans(), max_size=40)
Law = Callable[[tuple[bool, ...]], float]
"""The probability that a stream starts with these audits."""


def urn(n: int, k: int) -> Law:
    """Without ties: the audits of a calibration are a Polya urn's draws."""

    @cache
    def law(path: tuple[bool, ...]) -> float:
        missed, covered, total = k, n + 1 - k, Fraction(1)
        for miss in path:
            total *= Fraction(missed if miss else covered, missed + covered)
            missed, covered = missed + miss, covered + (not miss)
        return float(total)

    return law


def tied(n: int, k: int, rate: float) -> Law:
    """Two values, the lower of probability `rate`: the threshold is the lower one, or all of them are missed."""
    unlucky = float(scipy.stats.binom.cdf(k - 1, n, rate))

    def law(path: tuple[bool, ...]) -> float:
        misses = sum(path)
        return unlucky * rate**misses * (1 - rate) ** (len(path) - misses) + (1 - unlucky) * (misses == 0)

    return law


def steady(rate: float) -> Law:
    return lambda path: rate ** sum(path) * (1 - rate) ** (len(path) - sum(path))


def best_stopping(start: Monitor, law: Law, horizon: int) -> float:
    """Return the largest expectation of the e-value over all rules of when to stop, by backward induction."""

    def value(monitor: Monitor, path: tuple[bool, ...]) -> float:
        stop = law(path) * monitor.e_value
        if len(path) == horizon or law(path) == 0:
            return stop
        return max(stop, sum(value(monitor.update(missed), (*path, missed)) for missed in (False, True)))

    return value(start, ())


def alarm_probability(start: Monitor, law: Law, horizon: int) -> float:
    def value(monitor: Monitor, path: tuple[bool, ...]) -> float:
        if monitor.alarmed:
            return law(path)
        if len(path) == horizon:
            return 0.0
        return sum(value(monitor.update(missed), (*path, missed)) for missed in (False, True))

    return value(start, ())


# --- validity, exactly ---


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.8])
def test_no_way_to_stop_gains_against_the_promised_rate(alpha):
    start = Monitor.start(risk=alpha)
    assert start.e_value == pytest.approx(1.0)
    assert best_stopping(start, steady(alpha), 8) == pytest.approx(1.0)  # a martingale at alpha itself
    for rate in (0.0, alpha / 2, alpha * 0.99):
        assert best_stopping(start, steady(rate), 8) <= 1 + 1e-9


@pytest.mark.parametrize("level", [0.05, 0.4])
def test_false_alarms_have_at_most_the_level(level):
    risk = Monitor.start(risk=0.1, level=level)
    assert 0 < alarm_probability(risk, steady(0.1), 10) <= level
    on_average = Monitor.start(risk=0.1, n=29, k=3, level=level)
    laws = [urn(29, 3), *(tied(29, 3, rate) for rate in (0.05, 0.1, 0.2, 0.4))]
    chances = [alarm_probability(on_average, law, 10) for law in laws]
    assert max(chances) <= level + UNLUCKY


def test_the_weights_of_the_points_of_change_sum_to_one():
    total = sum(map(weight_after, range(1000)))
    assert total + 1 / math.log2(1002) == pytest.approx(1.0, abs=1e-12)


# --- against its definition ---


def mixture(path: list[bool], before: Callable[[list[bool]], float], alpha: float) -> float:
    """Return the mean over raised rates and points of change of the probability of a path, by its definition."""
    total = before(path) / math.log2(len(path) + 2)
    for odds, tau in itertools.product((1.5, 2.0, 3.0, 6.0), range(len(path))):
        theta = odds * alpha / (1 + alpha * (odds - 1))
        weight = 1 / math.log2(tau + 2) - 1 / math.log2(tau + 3)
        total += weight / 4 * before(path[:tau]) * math.prod(theta if miss else 1 - theta for miss in path[tau:])
    return total


@given(PATHS, st.sampled_from([0.05, 0.1, 0.4]))
def test_the_running_sums_are_the_mixture(path, alpha):
    monitor = Monitor.start(risk=alpha)
    for miss in path:
        monitor = monitor.update(miss)
    known = steady(alpha)
    expected = mixture(path, lambda part: known(tuple(part)), alpha) / known(tuple(path))
    assert monitor.e_value == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.booleans(), max_size=25), st.sampled_from([0.01, 0.05, 0.3]), st.booleans())
def test_it_alarms_at_the_first_audit_whose_evidence_reaches_one_over_the_level(path, level, confident):
    monitor, first = Monitor.start(risk=0.2, n=40, k=None if confident else 8, level=level), None
    for count, miss in enumerate(path, start=1):
        monitor = monitor.update(miss)
        if first is None and monitor.e_value >= (1 - 1e-12) / level:
            first = count
        assert monitor.alarmed_after == first


# --- what it is for ---


def feed(monitor: Monitor, rate: float, audits: int, chance: random.Random) -> Monitor:
    for _ in range(audits):
        monitor = monitor.update(chance.random() < rate)
        if monitor.alarmed:
            return monitor
    return monitor


@pytest.mark.parametrize(
    ("null", "within"),
    [({}, 250), ({"n": 200, "k": 20}, 1000)],
)
def test_a_jump_from_10_to_25_percent_is_found(null, within):
    early = late = 0
    for seed in range(40):
        chance = random.Random(seed)
        quiet = feed(Monitor.start(risk=0.1, **null), 0.1, 300, chance)
        early += quiet.alarmed
        late += not quiet.alarmed and not feed(quiet, 0.25, within, chance).alarmed
    assert early <= 5  # of 40 at 5 %, and 3 sd
    assert late <= 2


def test_a_calibration_that_was_merely_unlucky_is_not_drift():
    unlucky = feed(Monitor.start(risk=0.1, n=100, k=10), 0.14, 2000, random.Random(2))  # 1 of 10 calibrations
    assert not unlucky.alarmed
    assert feed(Monitor.start(risk=0.1), 0.14, 2000, random.Random(2)).alarmed


def test_a_rate_that_rises_within_the_promise_is_no_alarm():
    chance = random.Random(4)
    monitor = feed(Monitor.start(risk=0.1, n=200, k=20), 0.03, 500, chance)
    assert not feed(monitor, 0.09, 1000, chance).alarmed


def test_once_alarmed_it_stays_so_and_counts_on():
    monitor = Monitor.start(risk=0.1)
    for _ in range(20):
        monitor = monitor.update(missed=True)
    after = monitor.alarmed_after
    assert after < 20
    for _ in range(500):
        monitor = monitor.update(missed=False)
    assert monitor.e_value < 1
    assert monitor.alarmed
    assert (monitor.alarmed_after, monitor.audits, monitor.misses) == (after, 520, 20)


def test_a_promise_on_average_is_watched_at_a_rate_that_few_calibrations_pass():
    assert (Promise("coverage", 0.1).rank(200), Promise("coverage", 0.1, 0.9).rank(200)) == (20, None)
    bound = Monitor.start(risk=0.1, n=200, k=20).risk
    assert scipy.stats.beta(20, 181).sf(bound) == pytest.approx(UNLUCKY)
    assert Monitor.start(risk=0.1, n=200).risk == 0.1
    assert Monitor.start(risk=0.1, n=5, k=0) == Monitor.start(risk=0.1)


def test_long_quiet_streams_stay_numbers():
    for start in (Monitor.start(risk=0.1), Monitor.start(risk=0.1, n=200, k=20)):
        monitor = start
        for _ in range(5000):
            monitor = monitor.update(missed=False)
        assert 0 < monitor.e_value < 0.1
        monitor = feed(monitor, 1.0, 100, random.Random(0))
        assert monitor.alarmed
    certain = Monitor.start(risk=0.001)
    for _ in range(1000):
        certain = certain.update(missed=True)
    assert math.isfinite(certain.e_value)


def test_every_bad_argument_is_listed():
    with pytest.raises(UsageError) as caught:
        Monitor.start(risk=0.0, level=1.0, n=5, k=6)
    for name in ("risk", "level", "k = 6"):
        assert name in str(caught.value)


def test_a_conversation_that_goes_on_counts_at_its_lowest():
    """Whatever comes of it: with more audits, and with as many misses or more, it ends no lower."""
    start = Monitor.start(risk=0.1, turns=4).update(1, 2).update(0, 4).update(2, 3)
    for audits in range(1, 5):
        for misses in range(audits + 1):
            lowest = start.update(misses, audits, ended=False)
            ends = [start.update(misses + more, last) for last in range(audits, 5) for more in range(last - audits + 1)]
            assert lowest.e_value <= min(end.e_value for end in ends) * (1 + 1e-12)
            assert (lowest.audits, lowest.misses) == (9 + audits, 3 + misses)


TRUTH = {"Danube": True, "Rhine": False, "Mur": False}
"""Any other text cannot be judged."""


def audited(served: str, offered: str = "", answers: str = "") -> Answer:
    """Return an answer of a plan of three steps, of which some brought these answers."""
    texts, keep = (answers or f"{served} Mur Rhine").split(), (offered or served).split()
    decided = [Decision((0,) * (text in keep), False, (), 0, 0) for text in texts]
    steps = [Step(at + 1, (Candidate(text, "a", "a"),), {}, (), (), decided[at]) for at, text in enumerate(texts)]
    return Answer(Question("?"), served, tuple(keep), tuple(steps), "policy", 0.0)


@pytest.mark.parametrize(
    ("kind", "answer", "loss"),
    [
        ("coverage", audited("", "Danube", "Danube Rhine Mur"), 0.0),
        ("coverage", audited("", "Rhine", "Rhine Mur Danube"), 1.0),
        ("coverage", audited("", "Rhine", "Rhine Mur Rhine"), 0.0),
        ("coverage", audited("", "Rhine", "Rhine Mur Inn"), 1.0),
        ("coverage", audited("", "Inn Rhine", "Inn Rhine Danube"), None),
        ("coverage", audited("", "Danube", "Danube Rhine"), None),  # not run to the end
        ("error", audited("Danube"), 0.0),
        ("error", audited("Rhine", answers="Rhine"), 1.0),
        ("error", audited("Inn"), None),
        ("regret", audited("Rhine"), 0.0),
        ("regret", audited("Rhine", answers="Rhine Mur Danube"), 1.0),
        ("regret", audited("Rhine", answers="Rhine Danube"), None),
        ("regret", audited("Rhine", answers="Rhine Danube Inn"), None),
        ("preference", audited("Rhine"), 1.0),
    ],
)
def test_the_loss_of_an_audited_answer(kind, answer, loss):
    actual = loss_of(answer, kind_of(kind), TRUTH.get, 3, by_itself=True)
    assert (None if isinstance(actual, str) else actual) == loss
