"""Figures of the served requests, from the traces: what they cost, and what the guide alone would have cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cascade.logs.schema import CUT
from cascade.money import Price, Usage
from cascade.types import ALONE

COLUMNS = (
    "episode_id",
    "walk",
    "split",
    "step",
    "candidate",
    "model",
    "kept",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_nano_usd",
    "created_at",
)
"""The columns that are read of each call; none has a question or an answer."""
LEAST_MEASURED = 20
"""The least number of audits for an interval: with fewer, a mean of costs is not close to normal."""
_Z95 = 1.959964
AUDIT = "audit"
Row = Mapping[str, Any]


class Seen(NamedTuple):
    """One request, from its trace.

    Attributes:
        id: the id of its trace.
        at: when, ISO 8601, UTC.
        by_base: whether the first model answered, and no other was asked before its answer was served.
        walk: the walk, if no policy decided: one model alone.
        audited: whether it was drawn for an audit.
        cost: the cost of all its calls, nano-dollars; None if one is unknown.
        audit_cost: the cost of the calls made only for the audit, or only to observe.
        guide: the cost of the guide's answer; None if it was not asked, or if the cost is unknown.
        likely: an estimate of what the guide would have cost, if it had read and written as many tokens as the served
            model.
    """

    id: str
    at: str
    by_base: bool
    walk: str | None
    audited: bool
    cost: int | None
    audit_cost: int
    guide: int | None
    likely: int | None

    @property
    def cascaded(self) -> bool:
        """Whether the cascade answered, or the guide instead of it, and not another model that the client named."""
        return self.walk is None or self.walk in ALONE or self.guide is not None


def seen(rows: Iterable[Row], guide: str, price: Price | None, observed: frozenset[str] = frozenset()) -> list[Seen]:
    """Return the requests that rows belong to, in the order of their first rows.

    Args:
        rows: rows with the columns `COLUMNS`, in the order they were written; those of one request need not be
            adjacent.
        guide: the model that a saving is counted against.
        price: its price; None if it is unknown.
        observed: the requests that the guide served while the others were only observed.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["episode_id"], []).append(row)
    ordered = ((name, sorted(calls, key=lambda row: row["step"] or 0)) for name, calls in found.items())
    return [_seen(calls, guide, price, observed=name in observed) for name, calls in ordered]


def _seen(calls: Sequence[Row], guide: str, price: Price | None, *, observed: bool) -> Seen:
    kept = [place for place, one in enumerate(calls) if one["kept"] and one["candidate"] is not None]
    audited = calls[0]["split"] == AUDIT and not observed
    last = kept[-1] if kept else len(calls) - 1
    until = [one for one in calls if one["step"] <= calls[last]["step"]] if audited else list(calls)
    if observed:
        until = [one for one in calls if one["model"] == guide]
    models = {one["model"] for one in until if one["walk"] != CUT}
    costs = [one["cost_nano_usd"] for one in calls]
    of_guide = [one["cost_nano_usd"] for one in calls if one["model"] == guide and one["candidate"] is not None]
    return Seen(
        calls[0]["episode_id"],
        calls[0]["created_at"] or "",
        bool(kept) and not observed and calls[0]["walk"] is None and len(models) == 1 and guide not in models,
        calls[0]["walk"],
        audited,
        None if None in costs else sum(costs),
        sum(one["cost_nano_usd"] or 0 for one in calls) - sum(one["cost_nano_usd"] or 0 for one in until),
        of_guide[-1] if of_guide else None,
        None if price is None or not kept else price.cost_nano_usd(_usage(calls[last])),
    )


def _usage(row: Row) -> Usage:
    counts = (row[name] for name in ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"))
    return Usage(*counts)


class Saving(NamedTuple):
    """The cost of the cascade and what the guide alone would have cost. Nano-dollars.

    Attributes:
        requests: how many the cascade answered at a known cost.
        unknown: how many were left out, because a cost is unknown.
        spent: the cost of all calls, including audits.
        audits: the part of it for calls that only audits made.
        alone: what the guide alone would have cost: measured if it was asked, otherwise estimated.
        margin: half the width of a 95 % interval of `alone`; None if too few audits measured it.
        estimated: for how many requests the guide was not asked, so that its cost is estimated.
        measured: how many requests that the guide did not answer were audited, so that its cost is known.
    """

    requests: int
    unknown: int
    spent: int
    audits: int
    alone: int
    margin: int | None
    estimated: int
    measured: int

    @property
    def saved(self) -> int:
        """The saving; below 0 if the cascade cost more."""
        return self.alone - self.spent

    @property
    def share(self) -> float | None:
        """The saving as a share of what the guide alone would have cost; None if that is 0."""
        return self.saved / self.alone if self.alone else None


def saving(requests: Iterable[Seen]) -> Saving:
    """Return the saving of requests.

    If the guide was asked, its cost is known (y). Otherwise it is estimated from its cost with the served model's
    tokens (x), corrected by the ratio of y to x on the audited requests, which are drawn at random: a ratio estimator,
    with the error of prediction.

    Reference: Cochran, Sampling Techniques (1977), chapter 6.
    """
    known, unknown = list[Seen](), 0
    for one in requests:
        if one.cascaded and one.cost is not None and not (one.guide is None and one.likely is None):
            known.append(one)
        else:
            unknown += one.cascaded
    without = [one.likely or 0 for one in known if one.guide is None]
    pairs = [(one.likely or 0, one.guide) for one in known if one.guide is not None and one.audited and one.audit_cost]
    ratio, margin = _ratio(pairs, without)
    measured = sum(one.guide for one in known if one.guide is not None)
    return Saving(
        len(known),
        unknown,
        sum(one.cost or 0 for one in known),
        sum(one.audit_cost for one in known),
        measured + round(ratio * sum(without)),
        margin,
        len(without),
        len(pairs),
    )


def _ratio(pairs: Sequence[tuple[int, int]], without: Sequence[int]) -> tuple[float, int | None]:
    """Return the ratio of y to x on pairs (x, y), and the 95 % margin of the sum of y where only x is known."""
    n, x = len(pairs), sum(x for x, _ in pairs)
    if not without:
        return 1.0, 0
    if n < LEAST_MEASURED or not x:
        return 1.0, None
    ratio = sum(y for _, y in pairs) / x
    variance = sum((y - ratio * x) ** 2 for x, y in pairs) / (n - 1)
    of_ratio = variance / n * (sum(without) / (x / n)) ** 2
    return ratio, round(_Z95 * math.sqrt(of_ratio + variance * len(without)))
