"""The values that the template of `/ui` shows: the state and the certificates, and what the served requests cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cascade.errors import UsageError
from cascade.logs.schema import CUT
from cascade.modes.state import next_look
from cascade.records.address import parse
from cascade.records.traces import Store

if TYPE_CHECKING:
    from cascade.runtime import Runtime
    from cascade.server.modes import Modes
    from cascade.serving.certified import ServingState

DAYS = 30
"""The number of past days whose requests the page shows."""
MOST_CALLS = 20_000
"""The most calls that a page reads, the latest ones. Reading them takes about 0.4 s of one core."""
LEAST_AUDITS = 20
"""The fewest audits from which the page estimates what the guide alone would have cost."""
COLUMNS = ("episode_id", "walk", "split", "candidate", "source", "kept", "model", "cost_nano_usd", "created_at")
"""The columns that are read of each call; none contains a question or an answer."""
_MOST_REASONS = 3
"""How many reasons why answers have no certificate are shown, the most frequent first."""
_LIMIT_S = 10.0
"""How long a page waits for the traces."""
Row = Mapping[str, Any]


def status(runtime: Runtime, guide: str, now: datetime, modes: Modes | None = None) -> dict[str, Any]:
    """Return all values of the page, by the names in its template. Raises StoreError."""
    config, service, url = runtime.config, runtime.service, runtime.config.traces_url
    standing, watched, rows = None if modes is None else _standing(modes), _watched(modes, service), _latest(url)
    alarm, cut = runtime.alarm if modes is None else modes.state.alarm, len(rows) == MOST_CALLS
    missing = 0 if service is None else service.monitors.status.missing
    since = (now - timedelta(days=DAYS)).isoformat(timespec="milliseconds")
    return {
        "mode": _mode(service) if modes is None else modes.mode,
        "alarm": alarm,
        "guide": guide,
        "on_all": modes is None and service is not None and service.default.falls_back_on_all,
        "modes": config.modes,
        "standing": standing,
        "certificates": watched,
        "served": None if service is None or not service.default.certificates else service.monitors.status,
        "uncovered": [] if service is None else service.monitors.uncovered.most_common(_MOST_REASONS),
        "audited": config.audits is not None,
        "audits": sum(monitor.audits for _, _, monitor in watched if monitor is not None),
        "missed": sum(monitor.misses for _, _, monitor in watched if monitor is not None),
        "unknown_audits": standing["unknown"] if standing else missing,
        "log": None if url is None else parse(url).shown,  # without a password
        "address": f"http://{config.server.host}:{config.server.port}/v1",
        "now": now.isoformat(),
        "days": DAYS,
        "cut": len(rows) if cut else None,
        "least": LEAST_AUDITS,
        **figures([row for row in rows if (row["created_at"] or "") >= since], guide, cut=cut),
    }


def _watched(modes: Modes | None, service: ServingState | None) -> list[tuple[Any, tuple[str, ...], Any]]:
    """Return the certificates in force, why they do not hold here, and their monitors."""
    if modes is not None:
        holding, void, state = [] if service is None else service.holding, modes.void, modes.state
        reasons = next((why for _, why in holding if void in why), (void,)) if void else ()
        return [] if state.in_force is None else [(state.in_force, reasons, state.monitor)]
    if service is None:
        return []
    return [(certificate, why, service.monitors.of(certificate).monitor) for certificate, why in service.holding]


def _mode(service: ServingState | None) -> str:
    """Return the mode of a cascade without modes, by who answers."""
    if service is None or not service.holding:
        return "no promise"
    if not all(reasons for _, reasons in service.holding):
        return "enforce"
    return "fallback" if service.alarm else "void" if service.default.answers_uncovered == "guide" else "no promise"


def _standing(modes: Modes) -> dict[str, Any]:
    """Return the state of a cascade with modes."""
    store, name, state = modes.store, modes.cascade, modes.state
    unknown = 0 if state.in_force is None else store.unknown_audits(name, state.in_force.certificate)
    plan = next_look(state, store.counts(name), modes.settings)
    return {"state": state, "looks": store.looks(name), "plan": plan, "unknown": unknown}


def _latest(url: str | None) -> list[Row]:
    if url is not None:
        with suppress(UsageError), Store(url, read_only=True, limit_s=_LIMIT_S) as store:  # there may be none yet
            return list(store.latest(COLUMNS, MOST_CALLS))
    return []


def figures(rows: Iterable[Row], guide: str, *, cut: bool = False) -> dict[str, Any]:
    """Return who answered requests, what they cost, and what the guide alone would have cost, in nano-dollars.

    Audited and observed requests are drawn at random, and the guide answers each: the mean cost of these answers
    estimates the mean over all requests. Requests of unknown cost are left out and counted.

    Args:
        rows: rows with the columns `COLUMNS`; those of one request need not be adjacent.
        guide: the model against which savings are measured.
        cut: whether the first request may lack rows, and is left out.
    """
    calls = defaultdict[str, list[Row]](list)
    for row in rows:
        calls[row["episode_id"]].append(row)
    requests = [
        request
        for request in [*calls.values()][int(cut) :]
        # The cascade answered, or the guide instead of it, and not another model that was named.
        if any(call["walk"] is None or call["model"] == guide for call in request)
    ]
    costs = [[call["cost_nano_usd"] for call in request] for request in requests]
    priced = [sum(cost) for cost in costs if None not in cost]
    audited = [request for request in requests if request[0]["split"] == "audit"]
    guides = [
        call["cost_nano_usd"]
        for request in audited
        for call in request
        if call["model"] == guide and call["candidate"] is not None and call["cost_nano_usd"] is not None
    ]
    guide_cost = round(len(priced) * sum(guides) / len(guides)) if priced and len(guides) >= LEAST_AUDITS else None
    served = [pair for request in requests if (pair := _served(request))]
    return {
        "total": len(requests),
        "audited": len(audited),
        "by_cheaper": sum(guide not in {*models, *roles} for models, roles in served),
        "by_fallback": sum(guide in roles and guide not in models for models, roles in served),
        "spent": sum(priced) if priced or not requests else None,
        "unknown": len(requests) - len(priced),
        "guide_cost": guide_cost,
    }


def _served(calls: Iterable[Row]) -> tuple[set[str], set[str]] | None:
    """Return the models whose answers were kept, and the models that they stand for; None if nothing was served.

    If the guide failed, no answer is marked as kept: then all answers count.
    """
    candidates = [call for call in calls if call["candidate"] is not None]
    cut = any(call["walk"] == CUT for call in calls)  # then nothing was served
    last = [call for call in candidates if call["kept"]] or [call for call in candidates if not cut]
    return ({call["model"] for call in last}, {call["source"] for call in last}) if last else None
