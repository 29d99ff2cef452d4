"""Why a cascade saves on a log or not: how often answers agree, how good the doubt is, how many requests a proof takes.

All figures are computed on the whole log, without splits; nothing here is proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cascade.conformal.certify import most_units
from cascade.conformal.path import UNITS, strict_to_lenient
from cascade.conformal.promise import Promise
from cascade.fitting.attempts import FIRST
from cascade.policies.policy import Depth, known_score, score_policy
from cascade.policies.signals import OF_JUDGES, OF_TRUST
from cascade.table import AGREEMENT, Bools, Floats, Log
from cascade.types import BASE_ONLY

MOST_NEEDED = 1_000_000
_STEP = 1.05
"""Numbers of requests are tried in steps of 5 %, since the result is only an estimate."""


class Signal(NamedTuple):
    """A source of signals of how good an answer is, which a log holds or which could be added to it.

    Attributes:
        name: the source: log-prob, judge, second model …
        names: the log's signals from this source; `nodes` are the nodes that bring only these.
        cost_nano_usd: its mean cost per request; None if unknown.
        break_even: the share of answers that must be kept so that it pays (`break_even`); None if unknown.
        is_held: whether the log has it.
    """

    name: str
    names: frozenset[str]
    nodes: tuple[int, ...]
    cost_nano_usd: float | None
    break_even: float | None
    is_held: bool = True


def break_even(log: Log, cost_nano_usd: float | None) -> float | None:
    """Return the share of first answers to keep for a cascade to cost no more than its reference; None if unknown.

    It assumes that the reference costs its mean on the requests that are kept. Above 1, the cascade never pays.
    """
    rows = log.priced
    alone = 0 if log.reference is None else int(log.reference.cost_nano_usd[rows].sum())
    if cost_nano_usd is None or not alone:
        return None
    return float((int(log.cost_nano_usd[rows, 0].sum()) + Fraction(cost_nano_usd) * int(rows.sum())) / alone)


def signals_of(log: Log) -> tuple[Signal, ...]:
    """Return the signals of a log of single calls that ends with the reference; of any other log, none.

    A node that gives a verdict on what it reads counts as a judge. The other nodes between the first and the last are
    second models, whose answers may agree with the first.
    """
    if log.reference is None or not log.reference.is_last or not log.decides.all() or log.width < 2:
        return ()
    known = {name: np.asarray(~np.isnan(values).all(axis=0)) for name, values in log.signals.items()}
    groups = OF_TRUST | {name: frozenset({name}) for name in known if name.endswith(("uncertainty", "entropy"))}
    between, listed, judging = range(1, log.width - 1), list[tuple[str, frozenset[str], tuple[int, ...]]](), set[int]()
    for title, names in groups.items():
        at = {node for name in names & known.keys() for node in np.flatnonzero(known[name][:-1]).tolist()}
        judges = title in OF_JUDGES
        own = tuple(sorted(node for node in at if judges and node in between and log.nodes[node].reads != ()))
        judging |= {*own}
        if at:
            listed.append((title, names, own))
    if seconds := tuple([node for node in between if node not in judging]):
        listed.append(("second model", frozenset({AGREEMENT}), seconds))
    rows = log.priced
    costs = [float(log.cost_nano_usd[rows][:, own].sum(axis=1).mean()) if rows.any() else None for *_, own in listed]
    return tuple([Signal(*each, cost, break_even(log, cost)) for each, cost in zip(listed, costs, strict=True)])


def limited(log: Log, signals: Sequence[Signal], every: Sequence[Signal]) -> Log:
    """Return a log with only some of its signals, without the nodes that bring the others or read such nodes."""
    nodes = {0, log.width - 1, *(node for signal in signals for node in signal.nodes)}
    nodes = {node for node in nodes if {*(log.nodes[node].reads or ())} <= nodes}
    lost = {name for signal in every for name in signal.names} - {name for signal in signals for name in signal.names}
    part = log.only(sorted(nodes))
    left = {name: values for name, values in part.signals.items() if name not in lost}
    return replace(part, signals=left, confidence=np.full(part.confidence.shape, np.nan))


class Diagnosis(NamedTuple):
    """What a log says about a cascade; None means unknown.

    Attributes:
        first: the name of the first call.
        first_right, reference_right: how often the first answer, and the reference's, is right.
        agree: how often the first answer equals that of `agrees_with`: the reference or, if it is not a node, the last
            node of the first step.
        agrees_with: "the reference", or the name of that node.
        signal: the signal of doubt, chosen in advance; None if the log has none with a known meaning.
        auroc: how well the signal tells right first answers from wrong ones: ½ is chance, 1 perfect.
        asked_again: the cost of the first model / the reference's: the price of asking it again for a missing signal.
        proves: about how many groups of requests it takes to prove anything cheaper than the reference.
        saves_half: about how many it takes to save half of what any number could save with this signal.
        signals: the signals that the log holds.
    """

    first: str
    first_right: float | None
    reference_right: float | None
    agree: float | None
    agrees_with: str
    signal: str | None
    auroc: float | None
    asked_again: float | None
    proves: int | None
    saves_half: int | None
    signals: tuple[Signal, ...] = ()


def diagnose(log: Log, promise: Promise) -> Diagnosis:
    """Return the diagnosis of a log for a promise."""
    score, (equal, agrees_with) = known_score(log), _equal(log, promise)
    right, at = log.right[:, 0], int(np.flatnonzero(log.decides)[0])
    doubt = None if score is None else log.signals[score.signal][:, at] * score.sign
    reference = log.reference
    return Diagnosis(
        log.nodes[0].name, _mean(right), None if reference is None else _mean(reference.right), _mean(equal),
        agrees_with, None if score is None else score.name, None if doubt is None else auroc(-doubt, right == 1),
        _price(log), *needed(log, promise), signals_of(log),
    )  # fmt: skip


def _price(log: Log) -> float | None:
    """Return the cost of the first model / the reference's, by the recorded walk of the base or else the first step."""
    if log.reference is None:
        return None
    rows, paid = log.priced, log.cost_nano_usd[:, log.steps == log.steps[0]].sum(axis=1)
    if BASE_ONLY in log.baselines:
        walk = log.baselines[BASE_ONLY]
        rows, paid = rows & walk.known & (walk.cost_nano_usd >= 0), walk.cost_nano_usd
    alone = int(log.reference.cost_nano_usd[rows].sum())
    return float(paid[rows].sum() / alone) if alone else None


def _equal(log: Log, promise: Promise) -> tuple[Floats, str]:
    """Return whether the first answer equals another, float64 (n,), NaN if unknown, and whose (`Diagnosis`)."""
    if promise.rules.compares:  # then right means equal
        return log.right[:, 0], "the reference"
    is_last = log.reference is not None and log.reference.is_last
    last = log.width - 1 if is_last else int(np.flatnonzero(log.decides)[0])
    comparable = log.answers[:, 0] & log.answers[:, last] & (True if log.texts_known is None else log.texts_known)
    equal = np.where(comparable & (last > 0), log.answer[:, 0] == log.answer[:, last], np.nan)
    return equal, "the reference" if is_last else log.nodes[last].name


def _mean(values: Floats) -> float | None:
    recorded = values[~np.isnan(values)]
    return float(recorded.mean()) if recorded.size else None


def auroc(trust: Floats, right: Bools) -> float | None:
    """Return how often a right answer has more trust than a wrong one, ties counting half; None unless both exist.

    >>> auroc(np.array([0.9, 0.2, 0.2, np.nan]), np.array([True, True, False, False]))
    0.75
    """
    good, bad = (np.sort(trust[rows & ~np.isnan(trust)]) for rows in (right, ~right))
    if not good.size or not bad.size:
        return None
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    return float(below.mean() / (2 * bad.size))


def needed(log: Log, promise: Promise) -> tuple[int | None, int | None]:
    """Return about how many requests prove something cheaper than the reference, and half of the possible saving.

    A number is enough if the rate of losses at a point of the log's own path, taken as true, passes the test with that
    many requests. None if no point within the risk is cheaper, no request has all its costs, or a million are too few.
    """
    policy = score_policy(log) or Depth()
    priced = log.take(log.priced)
    if not priced.n:
        return None, None
    walked = policy.walks(priced)
    path = strict_to_lenient(walked, promise.rules.jumps(walked))
    alone = path.cost_nano_usd[0] if priced.reference is None else priced.reference.cost_nano_usd.sum()
    rate = np.maximum.accumulate(path.loss) / (UNITS * priced.n)
    saving = np.where(rate <= promise.tested_risk, 1 - path.cost_nano_usd / max(int(alone), 1), -1.0)
    if saving.max() <= 0:
        return None, None
    rates = [float(rate[np.argmax(saving >= least)]) for least in (np.nextafter(0, 1), saving.max() / 2)]
    level = None if promise.delta is None else FIRST * promise.delta
    proves, half = (next(_enough(promise, level, each), None) for each in rates)
    return proves, half


def _enough(promise: Promise, level: float | None, rate: float) -> Iterator[int]:
    """Yield, in ascending order, numbers of requests that prove a rate."""
    size = 2.0
    while size < MOST_NEEDED:
        n = int(size)
        if most_units(n, promise, level) >= rate * n * UNITS:
            yield n
        size = max(size * _STEP, size + 1)
