"""The contents of `/ui`, as plain values for a template: who serves, what was promised, what was saved, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from cascade.config import CascadeConfig, modes_url, traces_url
from cascade.conformal.monitor import Monitor
from cascade.errors import UsageError
from cascade.logs.schema import CUT
from cascade.modes.plan import plan_of
from cascade.modes.state import CascadeState, Counts, Look
from cascade.modes.store import ModeStore
from cascade.money import Price, Usage
from cascade.orchestrator import Orchestrator
from cascade.records.address import parse
from cascade.records.traces import Store
from cascade.text import capital, percent
from cascade.types import ALONE

DAYS = 30
"""The page shows the requests of so many days."""
MOST_CALLS = 20_000
"""The most calls that a page reads, the latest ones. Reading them takes about 0.4 s of one core."""
LEAST_MEASURED = 20
"""The least number of audits for an interval: with fewer, a mean of costs is not close to normal."""
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
_Z95 = 1.959964
Row = Mapping[str, Any]


class Standing(NamedTuple):
    """The state of a cascade with modes.

    Attributes:
        state: its state.
        counts: its drawn rows.
        looks: all looks, the earliest first.
        observed: the traces of requests that were drawn while observing.
    """

    state: CascadeState
    counts: Counts
    looks: Sequence[Look]
    observed: frozenset[str]

    @property
    def mode(self) -> str:
        """The mode, or "killed"."""
        return "killed" if self.state.killed else self.state.mode


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
    standing = _standing(config)
    observed = frozenset[str]() if standing is None else standing.observed
    requests, cut = _requests(config, guide, now - timedelta(days=DAYS), observed)
    certificates = _in_service(orchestrator) if standing is None else _in_force(config, standing)
    alarm = orchestrator.runtime.alarm if standing is None else standing.state.alarm
    unknown = 0 if service is None else service.monitors.status.missing
    todo, code = _next(config, standing, certificates, any_requests=bool(requests))
    return {
        "mode": standing.mode if standing is not None else "enforce" if certificates else "no promise",
        "guide": guide,
        "alarm": alarm,
        "todo": todo,
        "code": code,
        "now": now.isoformat(),
        "days": DAYS,
        "cut": cut,
        "total": len(requests),
        "by_base": sum(request.by_base for request in requests),
        "audited": sum(request.audited for request in requests),
        "saving": savings(requests),
        "least": LEAST_MEASURED,
        "audits": sum(certificate["audits"] for certificate in certificates),
        "missed": sum(certificate["missed"] for certificate in certificates),
        "unknown": unknown if standing is None else standing.counts.unknown,
        "certificates": certificates,
        "standing": standing,
        "delta": None if config.modes is None else config.modes.delta,
    }


# --- what was promised ---


def _standing(config: CascadeConfig) -> Standing | None:
    """Return the state of a configuration's cascade; None if it has no modes."""
    url, name = modes_url(config), config.server.name
    if config.modes is None or url is None:
        return None
    store = ModeStore.open(url)
    try:
        rows = store.draws(name, newest=_NEWEST)
        observed = frozenset([row.trace_id for row in rows if row.role != "audit"])
        return Standing(store.state(name), store.counts(name), store.looks(name), observed)
    except UsageError:  # it has not been served yet
        return Standing(CascadeState(name), Counts(), [], frozenset())
    finally:
        store.close()


def _promise(monitor: Monitor | None, problems: Sequence[str], **fields: Any) -> dict[str, Any]:
    """Return a certificate as the page shows it, with what its audits show."""
    watched = None if monitor is None else {"e_value": monitor.e_value, "alarm_at": 1 / monitor.level}
    counts = {"audits": 0, "missed": 0} if monitor is None else {"audits": monitor.audits, "missed": monitor.misses}
    return {**fields, **counts, "problems": problems, "watched": watched}


def _in_service(orchestrator: Orchestrator) -> list[dict[str, Any]]:
    """Return the certificates of a policy directory in service."""
    service, promises = orchestrator.service, list[dict[str, Any]]()
    for certificate, reasons in () if service is None else service.holding:
        monitor = None if service is None else service.monitors.of(certificate).monitor
        alarmed = ("Audits withdrew it.",) if monitor is not None and monitor.alarmed else ()
        every = certificate.covers == "all"
        promise = _promise(
            monitor,
            (*reasons, *alarmed),
            title="All requests" if every else f"{capital(certificate.covers)} {certificate.name}",
            statement=certificate.statement(),
            id=certificate.id,
            n=certificate.n,
            expires=certificate.expires,
            risk=certificate.promise.risk,
        )
        promises.append(promise)
    return promises


def _in_force(config: CascadeConfig, standing: Standing) -> list[dict[str, Any]]:
    """Return the certificate in force of a cascade with modes, if there is one."""
    state, modes, certificate = standing.state, config.modes, standing.state.in_force
    if certificate is None or modes is None:
        return []
    problems = [] if state.alarm is None else [state.alarm]
    problems += ["It is not in service: the mode is observe."] if state.mode == "observe" else []
    promise = _promise(
        state.monitor,
        problems,
        title=f"Look {certificate.look}",
        statement=f"At most {percent(certificate.risk)} of the requests that the policy may answer are "
        f"{certificate.broken}. All certificates ever issued hold together with probability at least "
        f"{percent(modes.confidence)}.",
        id=certificate.certificate,
        n=certificate.n,
        expires=None,
        risk=certificate.risk,
    )
    return [promise]


def _next(
    config: CascadeConfig, standing: Standing | None, certificates: Sequence[Mapping[str, Any]], *, any_requests: bool
) -> tuple[str, str]:
    """Return what to do next, in a sentence, and a line to paste or ""."""
    log, server, modes = traces_url(config.traces), config.server, config.modes
    curl = f"curl http://{server.host}:{server.port}/v1/%s -H \"Content-Type: application/json\" -d '%s'"
    todo, code = "Nothing: the certificate holds, and audits watch it.", ""
    if log is None:
        todo = "This page reads the traces, and they are off: set traces in the configuration, then restart."
    elif standing is not None and standing.state.killed:
        todo = "Once the reason is gone, switch the kill switch off:"
        code = curl % (f"cascades/{server.name}/kill", '{"on": false}')
    elif not any_requests:
        todo = "Send a first request: point your application's base_url here, or try:"
        body = f'{{"model": "{server.name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        code = curl % ("chat/completions", body)
    elif standing is not None and modes is not None and standing.state.mode != "enforce":
        plan, automatic = plan_of(standing.state, standing.counts, modes), modes.promote == "automatic"
        act = "Wait, the server looks by itself" if automatic else "Wait, then promote" if plan.requests else "Promote"
        todo, code = f"{act}: {plan.describe()}.", "" if automatic else "cascade promote"
    elif not certificates:
        todo = "Nothing is promised. Let the server certify (modes), or fit, and name the directory as policy:"
        code = f"cascade fit {parse(log).shown} --promise agreement --confidence 0.9 -o policy"  # without a password
    elif standing is None and any(certificate["problems"] for certificate in certificates):
        todo = "A certificate does not hold: fit and certify again, on newer requests."
    return todo, code


# --- what was served, and what it saved ---


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
        likely: an estimate of what the guide would have cost, if it had read and written as many tokens as the served
            model.
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
    walk, kept = calls[0]["walk"], [call for call in calls if call["kept"] and call["candidate"] is not None]
    audited = calls[0]["split"] == "audit" and not observed
    last = kept[-1] if kept else calls[-1]
    before = [call for call in calls if call["step"] <= last["step"]] if audited else calls
    before = [call for call in calls if call["model"] == guide] if observed else before
    models = {call["model"] for call in before if call["walk"] != CUT}
    costs = [call["cost_nano_usd"] for call in calls]
    of_guide = [call["cost_nano_usd"] for call in calls if call["model"] == guide and call["candidate"] is not None]
    guide_cost = of_guide[-1] if of_guide else None
    likely = price.cost_nano_usd(Usage(*(last[name] for name in _TOKENS))) if price is not None and kept else None
    return ServedRequest(
        calls[0]["created_at"] or "",
        bool(kept) and not observed and walk is None and len(models) == 1 and guide not in models,
        walk is None or walk in ALONE or guide_cost is not None,
        audited,
        None if None in costs else sum(costs),
        sum(cost or 0 for cost in costs) - sum(call["cost_nano_usd"] or 0 for call in before),
        guide_cost,
        likely,
    )


class Savings(NamedTuple):
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


def savings(requests: Iterable[ServedRequest]) -> Savings:
    """Return the saving of requests.

    If the guide was asked, its cost is known (y). Otherwise it is estimated from its cost with the served model's
    tokens (x), corrected by the ratio of y to x on the audited requests, which are drawn at random: a ratio estimator,
    with the error of prediction.

    Reference: Cochran, Sampling Techniques (1977), chapter 6.
    """
    cascaded = [request for request in requests if request.cascaded]
    known = [
        request
        for request in cascaded
        if request.cost is not None and not (request.guide is None and request.likely is None)
    ]
    without = [request.likely or 0 for request in known if request.guide is None]
    asked = [request for request in known if request.guide is not None]
    pairs = [(request.likely or 0, request.guide or 0) for request in asked if request.audited and request.audit_cost]
    ratio, margin = _ratio(pairs, without)
    return Savings(
        len(known),
        len(cascaded) - len(known),
        sum(request.cost or 0 for request in known),
        sum(request.audit_cost for request in known),
        sum(request.guide or 0 for request in asked) + round(ratio * sum(without)),
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
