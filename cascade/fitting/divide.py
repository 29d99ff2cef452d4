"""Which requests learn and which certify: whole groups, each request once, drawn by hashes that depend on no outcome.

Requests of a group (a conversation, a document, a user) are dependent, so a group is never divided, and one request of
each group, drawn at random, certifies. So a promise is about a random request of a random new group. Groups that share
a request are one group.

Reference: Dunn, Wasserman & Ramdas, Distribution-free prediction sets for two-layer hierarchical models (2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.identity import hash_of
from cascade.policies.directory import first_bits
from cascade.table import Bools, Ints, Log


class Usable(NamedTuple):
    """The requests that a promise can be about.

    Attributes:
        log: each request once, with groups that share a request merged.
        repeated: rows left out because another row has the same request.
        unknown: requests left out because the log lacks the reference's answer.
    """

    log: Log
    repeated: int
    unknown: int


class Split(NamedTuple):
    """A log in two parts that have no group in common."""

    training: Log
    calibration: Log


def usable(log: Log, promise: Promise) -> Usable:
    """Return the requests of a log that a promise can be about, as policies may read them.

    Raises:
        UsageError: the promise compares with a reference and the log has none, or its loss is invalid.
    """
    single = log if len({*log.ids}) == log.n else replace(log, groups=merged(log)).take(once(log))
    rules, repeated = promise.rules, log.n - single.n
    single = rules.readable(single)
    if single.reference is None and ("reference" in rules.needs or rules.reference_keeps_it):
        raise UsageError(
            f"{promise.kind} compares with the guide alone, and {log.name} has no answer of it: collect one with "
            "cascade collect, or promise error."
        )
    rows = single.n
    if single.reference is not None and not rules.covers_all:
        single = single.take(~np.isnan(single.reference.right))
    rules.refuse_unlike_loss(single)
    return Usable(single, repeated, rows - single.n)


def merged(log: Log) -> tuple[str, ...]:
    """Return the group of each row, with groups that share a request merged under the first of their names."""
    parent = {group: group for group in log.groups}

    def root(group: str) -> str:
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    first: dict[str, str] = {}
    for request, group in zip(log.ids, log.groups, strict=True):
        low, high = sorted((root(first.setdefault(request, group)), root(group)))
        parent[high] = low
    return tuple([root(group) for group in log.groups])


def once(log: Log) -> Ints:
    """Return the first row of each request, int64, ascending. A repeated request is one piece of evidence."""
    first = dict(zip(reversed(log.ids), reversed(range(log.n)), strict=True))
    return np.array(sorted(first.values()), dtype=np.int64)


def drawn(log: Log, seed: int | None, *, by_segment: bool = False) -> Log:
    """Return one request per group, drawn at random, or the first without a seed; `by_segment`: one in each segment."""
    keys = [*zip(log.groups, log.segments, strict=True)] if by_segment else log.groups
    if len({*keys}) == log.n:
        return log
    at = dict(zip(log.ids, range(log.n), strict=True))
    rows = [at[name] for name in reversed(log.ids if seed is None else in_random_order(log.ids, f"one of each|{seed}"))]
    return log.take(np.array(sorted({keys[row]: row for row in rows}.values()), dtype=np.int64))


def divided(log: Log, train_share: float, seed: int) -> Split:
    """Return a log in two parts: a share of the groups learns, the others certify.

    The result does not depend on the order of the rows.

    Raises:
        UsageError: there are fewer than two groups.
    """
    names = in_random_order(log.groups, seed)
    if len(names) < 2:
        raise UsageError(f"{log.name} has too few groups of requests here: one must learn, another certify. Log more.")
    rows = log.in_groups(set(names[: min(len(names) - 1, max(1, round(train_share * len(names))))]))
    return Split(log.take(rows), log.take(~rows))


def among(log: Log, *hashes: tuple[str, ...]) -> Bools:
    """Return whether each request is among those with these hashes, bool (n,)."""
    members = set().union(*hashes)
    return np.array([hash_of(name) in members for name in log.ids]) if members else np.zeros(log.n, dtype=np.bool_)


def unseen(log: Log, *hashes: tuple[str, ...]) -> Log:
    """Return the requests of the groups that have no request with one of these hashes."""
    groups = {log.groups[row] for row in np.flatnonzero(among(log, *hashes))}
    return log.take(~log.in_groups(groups)) if groups else log


def in_random_order(names: Iterable[str], seed: int | str) -> list[str]:
    """Return the distinct names in the random order of a seed, which does not depend on the order given."""
    distinct = [*dict.fromkeys(names)]
    return [distinct[at] for at in first_bits(f"{seed}|{name}" for name in distinct).argsort(kind="stable").tolist()]
