"""A menu of exact tests that share δ: each pair of a ladder, the whole ladder, and a learned rule; the cheapest wins.

Every member, its score and its level are fixed before an outcome is read, so that all certificates hold at once with
probability 1 − δ, and any request may be used to choose among them. Losses are whole, so a test uses less than its
level (`certify.spent`); what it leaves, which depends only on the number of requests, goes to the next member.

The learned rule comes last. If a score says how good an answer is, the rule has a twentieth of the level, which takes
next to nothing from the simple tests; if only the length of a reply is known, it has three quarters; if nothing (or all
replies are of one length), four fifths: then a pair without such a score also has a random choice, as signals mislead.

Reference: `design/path.md`; the union bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from cascade.conformal.binomial import most_losses
from cascade.conformal.certify import Certified, certify, spent
from cascade.conformal.path import Walks, strict_to_lenient
from cascade.conformal.promise import Promise
from cascade.policies.policy import LEARNED, TIE, Policy, Random, Threshold, known_score, tie_of
from cascade.table import Ints, Log

BESIDE_SCORE, BESIDE_LENGTH, BESIDE_CHANCE = 0.05, 0.75, 0.8
"""The learned rule's share of the level, beside tests of a score, of a length, and of chance (`design/results.md`)."""
CHANCE, CHANCE_BESIDE_SCORE = "random choice", 0.2
"""A random choice, and its share if another plan has a score: a misleading judge should not cost more than chance."""
LEAST = 100
"""With fewer requests to learn from, nothing is learned: a fit of a few dozen losses is noise."""


class Member(NamedTuple):
    """A policy to be tested, and its share of the level.

    Attributes:
        name: its name in reports.
        share: its part of the level, 0..1; the shares of a menu sum to 1 at most.
        make: returns the policy, which may learn only from requests that do not certify it.
        rows: int64, the rows that certify it; None: all.
    """

    name: str
    share: float
    make: Callable[[], Policy]
    rows: Ints | None = None


class MemberResult(NamedTuple):
    """A member of the menu after its test.

    Attributes:
        name: the member's name.
        policy: the policy.
        level: the level at which it was tested.
        n: the number of requests on which it was tested.
        certified: its proven point; None if not even the strictest is proven.
        cost: its cost at that point, as a share of the reference's, on all requests of the groups that certify it;
            None if unknown.
    """

    name: str
    policy: Policy
    level: float
    n: int
    certified: Certified | None
    cost: float | None


def simple_members(log: Log, share: float = 1.0, *, chance: bool = False) -> list[Member]:
    """Return the members that need no learning, with their parts of a share of the level.

    Each plan has a threshold on the score that the signals of its own nodes name: a verdict if a judge is asked, else a
    log-prob. With `chance`, each pair without a score that says how good an answer is also has a random choice. These
    choices have a small part if other plans have such a score, half if there are only lengths, and else all.
    """
    names = {plan: known_score(log.only(plan)) for plan in _plans(log)}
    scores = {plan: score for plan, score in names.items() if score is not None}
    good = {plan: score for plan, score in scores.items() if score.signal != TIE}
    pairs = [plan for plan in names if chance and len(plan) == 2 and plan not in good]
    scores = good if chance and good else scores
    drawn = 0.0 if not pairs else CHANCE_BESIDE_SCORE if good else 0.5 if scores else 1.0
    members = [_member(log, CHANCE, pair, share * drawn / len(pairs), Random) for pair in pairs]
    for plan, score in reversed(scores.items()):
        make = partial(Threshold, score.signal, score.sign, tie=tie_of(log.only(plan)))
        members.insert(0, _member(log, score.name, plan, share * (1 - drawn) / len(scores), make))
    return members


def _plans(log: Log) -> list[tuple[int, ...]]:
    """Return, for each node but the last, it and the last node with all that they read; and the plan of all nodes."""
    needs = list[set[int]]()
    for at, node in enumerate(log.nodes):
        needs.append({at}.union(*(needs[read] for read in node.reads or ())))
    last = log.width - 1
    plans = [tuple(sorted(needs[at] | needs[last])) for at in range(last)]
    return [*dict.fromkeys([*plans, *([tuple(range(log.width))] if last > 1 else [])])]


def _member(log: Log, name: str, plan: tuple[int, ...], share: float, make: Callable[..., Policy]) -> Member:
    nodes = None if len(plan) == log.width else plan
    return Member(f"{name}: {' > '.join(log.nodes[node].name for node in plan)}", share, partial(make, nodes=nodes))


def menu(calibration: Log, training: Log, promise: Promise, level: float) -> list[Member]:
    """Return the members for a log, fixed by its signals, its nodes and its numbers of requests; no outcome is read.

    Args:
        calibration: one request of each group.
        training: the requests that a policy may learn from; none of their groups certifies that policy.
        promise: what is promised.
        level: the level that the members share.
    """
    rows = np.flatnonzero(~calibration.in_groups(set(training.groups)))
    score, enough = known_score(calibration), np.count_nonzero(training.bought.all(axis=1)) >= LEAST and rows.size
    weak, simple = score is None or score.signal == TIE, partial(simple_members, calibration, chance=True)
    by_length = weak and score is not None and bool(np.ptp(calibration.signals[TIE][:, :-1], axis=0).any())
    if not enough or not calibration.decides.all():
        return simple()
    from cascade.policies.learned import MOST_NODES, learn

    if not 2 <= calibration.width <= MOST_NODES:
        return simple()
    share = BESIDE_LENGTH if by_length else BESIDE_CHANCE if weak else BESIDE_SCORE
    allowed_losses = most_losses(rows.size, promise.tested_risk, level * share) or 0
    allowed = max(allowed_losses / rows.size, promise.tested_risk / 3)
    return [
        *simple(1 - share, chance=not by_length),
        Member(LEARNED, share, lambda: learn(training, promise.rules, allowed), rows),
    ]


def run_tests(log: Log, every: Log, members: Sequence[Member], promise: Promise, level: float) -> list[MemberResult]:
    """Test the members of a menu in order, each at its share of the level plus what the earlier tests left.

    Args:
        log: the requests that may certify, one of each group.
        every: all requests of these groups, from which the cost of a member is computed.
        members: the menu, fixed without these requests' outcomes.
        promise: what is promised; a walk to the end must keep it (`Kind.safe_last`).
        level: the probability, at most, that any certificate of the menu breaks its promise.
    """
    tested = []
    for member, here in zip(members, levels(log.n, members, promise, level)[0], strict=True):
        policy = member.make()
        proving = log if member.rows is None else log.take(member.rows)
        walked = policy.walks(proving)
        proven = certify(strict_to_lenient(walked, promise.rules.jumps(walked)), promise, here)
        requests = proving if every is log else every.take(every.in_groups({*proving.groups}))
        walked = walked if requests.n == proving.n else policy.walks(requests)
        cost = None if proven is None else cost_share(walked, proven.kappa, requests)
        tested.append(MemberResult(member.name, policy, here, proving.n, proven, cost))
    return tested


def levels(n: int, members: Sequence[Member], promise: Promise, level: float) -> tuple[list[float], float]:
    """Return the level of each member's test, and how much of `level` all tests spend; n requests may certify.

    No outcome is read: everything follows from numbers of requests.
    """
    assigned, unspent, total = list[float](), 0.0, 0.0
    for member in members:
        assigned.append(level * member.share + unspent)
        spends = spent(n if member.rows is None else member.rows.size, promise, assigned[-1])
        unspent, total = assigned[-1] - spends, total + spends
    return assigned, total


def cost_share(walked: Walks, kappa: float, log: Log) -> float | None:
    """Return the cost of walks at a threshold as a share of the cost of the reference alone; None if unknown.

    Both are sums over the requests of `log` whose costs are all known.
    """
    alone = int(reference_costs(log).sum())
    return int(walked.cost.at(kappa)[log.priced].sum()) / alone if alone else None


def reference_costs(log: Log) -> Ints:
    """Return the reference's cost on each request whose costs are all known, int64, nano-USD."""
    return np.zeros(0, dtype=np.int64) if log.reference is None else log.reference.cost_nano_usd[log.priced]


def cheapest(tested: Sequence[MemberResult]) -> MemberResult | None:
    """Return the cheapest member if it costs less than the reference; None: only the reference is asked."""
    saving = [member for member in tested if member.cost is not None and member.cost < 1.0]
    return min(saving, key=attrgetter("cost"), default=None)
