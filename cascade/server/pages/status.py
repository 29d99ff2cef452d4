"""The values that the template of `/ui` shows: the state and the certificates, and what the served requests cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from cascade.config import CascadeConfig, modes_url, traces_url
from cascade.errors import UsageError
from cascade.logs.schema import CUT
from cascade.modes.plan import plan_of
from cascade.modes.state import CascadeState, Counts
from cascade.modes.store import ModeStore
from cascade.money import Price, Usage
from cascade.orchestrator import Orchestrator
from cascade.records.address import parse
from cascade.records.traces import Store
from cascade.serving.certified import ServingState
from cascade.types import ALONE

DAYS = 30
"""The page shows the requests of so many days."""
MOST_CALLS = 20_000
"""The most calls that a page reads, the latest ones. Reading them takes about 0.4 s of one core."""
LEAST_MEASURED = 20
"""The least number of audits whose costs correct the estimate of a saving."""
_TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
COLUMNS = (
    *("episode_id", "walk", "split", "step", "candidate", "model", "kept", *_TOKENS),
    *("cost_nano_usd", "created_at"),
)
"""The columns that are read of each call; none has a question or an answer."""
_LIMIT_S = 10.0
"""How long a page waits for the traces."""
_NEWEST = 5_000
"""The most drawn rows that are read, the newest ones."""
Row = Mapping[str, Any]


def status(orchestrator: Orchestrator, guide: str, now: datetime) -> dict[str, Any]:
    """Return all values of the page, by the names in its template.

    Args:
        orchestrator: the orchestrator that serves.
        guide: the model that a saving is counted against.
        now: the time.

    Raises:
        StoreError: the traces or the modes cannot be read.
    """
    config, service = orchestrator.runtime.config, orchestrator.service
    url, (standing, observed) = traces_url(config.traces), _standing(config)
    state = None if standing is None else standing["state"]
    requests, cut = _requests(config, guide, now - timedelta(days=DAYS), observed)
    watched = _watched(state, service)
    mode, unknown = "enforce" if watched else "no promise", 0 if service is None else service.monitors.status.missing
    return {
        "mode": mode if state is None else "killed" if state.killed else state.mode,
        "alarm": orchestrator.runtime.alarm if state is None else state.alarm,
        "guide": guide,
        "modes": config.modes,
        "standing": standing,
        "certificates": watched,
        "audits": sum(monitor.audits for _, _, monitor in watched if monitor is not None),
        "missed": sum(monitor.misses for _, _, monitor in watched if monitor is not None),
        "unknown": unknown if standing is None else standing["counts"].unknown,
        "log": None if url is None else parse(url).shown,  # without a password
        "address": f"http://{config.server.host}:{config.server.port}/v1",
        "now": now.isoformat(),
        "days": DAYS,
        "cut": cut,
        "total": len(requests),
        "by_base": sum(request.by_base for request in requests),
        "audited": sum(request.audited for request in requests),
        "saving": savings(requests),
        "least": LEAST_MEASURED,
    }


def _watched(state: CascadeState | None, service: ServingState | None) -> list[tuple[Any, tuple[str, ...], Any]]:
    """Return the certificates in force, why they do not hold here, and their monitors."""
    if state is not None:
        return [] if state.in_force is None else [(state.in_force, (), state.monitor)]
    if service is None:
        return []
    return [(certificate, why, service.monitors.of(certificate).monitor) for certificate, why in service.holding]


def _standing(config: CascadeConfig) -> tuple[dict[str, Any] | None, frozenset[str]]:
    """Return the state of a cascade with modes, else None; and the traces that were only observed."""
    url, name = modes_url(config), config.server.name
    if config.modes is None or url is None:
        return None, frozenset()
    state, counts, looks, observed = CascadeState(name), Counts(), list[Any](), frozenset[str]()
    store = ModeStore.open(url)
    try:
        rows = store.draws(name, newest=_NEWEST)
        observed = frozenset([row.trace_id for row in rows if row.role != "audit"])
        state, counts, looks = store.state(name), store.counts(name), store.looks(name)
    except UsageError:  # it has not been served yet
        pass
    finally:
        store.close()
    plan = plan_of(state, counts, config.modes)
    return {"state": state, "counts": counts, "looks": looks, "plan": plan}, observed


class ServedRequest(NamedTuple):
    """One request, from its trace. Amounts are nano-dollars.

    Attributes:
        at: when, ISO 8601, UTC.
        by_base: whether the first model answered, and no other was asked before its answer was served.
        cascaded: whether the cascade answered, or the guide instead of it, and not another model that the client named.
        audited: whether it was drawn for an audit.
        cost: the cost of all its calls; None if one is unknown.
        audit_cost: the cost of the calls made only for the audit, or only to observe.
        guide: the cost of the guide's answer; None if it was not asked, or if the cost is unknown.
        likely: what the guide would have cost for the served model's tokens; None if unknown.
    """

    at: str
    by_base: bool
    cascaded: bool
    audited: bool
    cost: int | None
    audit_cost: int
    guide: int | None
    likely: int | None


def _requests(
    config: CascadeConfig, guide: str, since: datetime, observed: frozenset[str]
) -> tuple[list[ServedRequest], int | None]:
    """Return the requests since a time, and how many calls were read if there are more."""
    url = traces_url(config.traces)
    if url is None:
        return [], None
    try:
        store = Store.open(url, read_only=True, limit_s=_LIMIT_S)
    except UsageError:  # there is none yet
        return [], None
    with store:
        rows = store.latest(COLUMNS, MOST_CALLS)
    cut = len(rows) == MOST_CALLS
    requests = served_requests(rows, guide, config.prices()[guide], observed)[int(cut) :]
    begin = since.isoformat(timespec="milliseconds")
    return [request for request in requests if request.at >= begin], len(rows) if cut else None


def served_requests(
    rows: Iterable[Row], guide: str, price: Price | None, observed: frozenset[str] = frozenset()
) -> list[ServedRequest]:
    """Return the requests that rows belong to, in the order of their first rows.

    Args:
        rows: rows with the columns `COLUMNS`; those of one request need not be adjacent.
        guide: the model that a saving is counted against.
        price: its price; None if it is unknown.
        observed: the requests that the guide served while the others were only observed.
    """
    calls: dict[str, list[Row]] = {}
    for row in rows:
        calls.setdefault(row["episode_id"], []).append(row)
    ordered = ((name, sorted(rows, key=lambda row: row["step"] or 0)) for name, rows in calls.items())
    return [_served_request(rows, guide, price, observed=name in observed) for name, rows in ordered]


def _served_request(calls: Sequence[Row], guide: str, price: Price | None, *, observed: bool) -> ServedRequest:
    walk, finished = calls[0]["walk"], [call for call in calls if call["kept"] and call["candidate"] is not None]
    audited = calls[0]["split"] == "audit" and not observed
    last = finished[-1] if finished else calls[-1]
    before = [call for call in calls if call["step"] <= last["step"]] if audited else calls
    before = [call for call in calls if call["model"] == guide] if observed else before
    models = {call["model"] for call in before if call["walk"] != CUT}
    costs = [call["cost_nano_usd"] for call in calls]
    of_guide = [call["cost_nano_usd"] for call in calls if call["model"] == guide and call["candidate"] is not None]
    guide_cost = of_guide[-1] if of_guide else None
    return ServedRequest(
        calls[0]["created_at"] or "",
        bool(finished) and not observed and walk is None and len(models) == 1 and guide not in models,
        walk is None or walk in ALONE or guide_cost is not None,
        audited,
        None if None in costs else sum(costs),
        sum(cost or 0 for cost in costs) - sum(call["cost_nano_usd"] or 0 for call in before),
        guide_cost,
        price.cost_nano_usd(Usage(*(last[name] for name in _TOKENS))) if price is not None and finished else None,
    )


def _alone(request: ServedRequest) -> int | None:
    return request.likely if request.guide is None else request.guide


def savings(requests: Iterable[ServedRequest]) -> dict[str, Any]:
    """Return what requests cost, and what the guide alone would have cost, in nano-dollars.

    If the guide was asked, its cost is known. Otherwise it is estimated from its cost with the served model's tokens,
    corrected by the ratio of the two on audited requests, which are drawn at random: a ratio estimator (Cochran,
    Sampling Techniques, 1977, chapter 6). Requests of unknown cost are left out and counted.
    """
    cascaded = [request for request in requests if request.cascaded]
    priced = [request for request in cascaded if None not in {request.cost, _alone(request)}]
    without = [request.likely or 0 for request in priced if request.guide is None]
    of_guide = [request for request in priced if request.guide is not None]
    audits = [request for request in of_guide if request.audited and request.audit_cost]
    likely = sum(request.likely or 0 for request in audits)
    corrects = len(audits) >= LEAST_MEASURED and likely > 0
    ratio = sum(request.guide or 0 for request in audits) / likely if corrects else 1.0
    spent = sum(request.cost or 0 for request in priced)
    alone = sum(request.guide or 0 for request in of_guide) + round(ratio * sum(without))
    return {
        "requests": len(priced),
        "unknown": len(cascaded) - len(priced),
        "spent": spent,
        "audits": sum(request.audit_cost for request in priced),
        "alone": alone,
        "saved": alone - spent,
        "share": (alone - spent) / alone if alone else None,
        "estimated": len(without),
        "measured": len(audits),
    }
