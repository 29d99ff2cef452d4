"""The values that the template of `/ui` shows: the state and the certificates, and what the served requests cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.logs.schema import CUT
from cascade.modes.due import next_look
from cascade.modes.state import CascadeState
from cascade.modes.store import ModeStore
from cascade.orchestrator import Orchestrator
from cascade.records.address import parse
from cascade.records.traces import Store
from cascade.serving.certified import ServingState

DAYS = 30
"""The page shows the requests of so many days."""
MOST_CALLS = 20_000
"""The most calls that a page reads, the latest ones. Reading them takes about 0.4 s of one core."""
LEAST_AUDITS = 20
"""The least number of audits that say what the guide alone would have cost."""
COLUMNS = ("episode_id", "walk", "split", "candidate", "kept", "model", "cost_nano_usd", "created_at")
"""The columns that are read of each call; none has a question or an answer."""
_MOST_REASONS = 3
"""The most reasons that are shown why answers have no certificate."""
_LIMIT_S = 10.0
"""How long a page waits for the traces."""
Row = Mapping[str, Any]


def status(orchestrator: Orchestrator, guide: str, now: datetime, void: str | None = None) -> dict[str, Any]:
    """Return all values of the page, by the names in its template.

    A saving is counted against the `guide`; `void` is why the certificate of modes does not hold in this process.
    Raises StoreError.
    """
    config, service = orchestrator.runtime.config, orchestrator.runtime.service
    url, standing = config.traces_url, _standing(config)
    state = None if standing is None else standing["state"]
    void = void if state is not None and state.mode == "enforce" else None
    watched, rows = _watched(state, service, void), _latest(url)
    cut = len(rows) == MOST_CALLS
    since = (now - timedelta(days=DAYS)).isoformat(timespec="milliseconds")
    return {
        "mode": ("enforce" if watched else "no promise") if state is None else "void" if void else state.mode,
        "alarm": orchestrator.runtime.alarm if state is None else state.alarm,
        "guide": guide,
        "modes": config.modes,
        "standing": standing,
        "certificates": watched,
        "served": None if service is None or not service.default.certificates else service.status,
        "uncovered": [] if service is None else service.monitors.uncovered.most_common(_MOST_REASONS),
        "audited": config.modes is not None or (config.guarantee is not None and config.guarantee.audit is not None),
        "audits": sum(monitor.audits for _, _, monitor in watched if monitor is not None),
        "missed": sum(monitor.misses for _, _, monitor in watched if monitor is not None),
        "unknown_audits": standing["unknown"] if standing else 0 if service is None else service.status.missing,
        "log": None if url is None else parse(url).shown,  # without a password
        "address": f"http://{config.server.host}:{config.server.port}/v1",
        "now": now.isoformat(),
        "days": DAYS,
        "cut": len(rows) if cut else None,
        "least": LEAST_AUDITS,
        **figures([row for row in rows if (row["created_at"] or "") >= since], guide, cut=cut),
    }


def _watched(
    state: CascadeState | None, service: ServingState | None, void: str | None
) -> list[tuple[Any, tuple[str, ...], Any]]:
    """Return the certificates in force, why they do not hold here, and their monitors."""
    if state is not None:
        holding = [] if service is None else service.holding
        reasons = next((why for _, why in holding if void in why), (void,)) if void else ()
        return [] if state.in_force is None else [(state.in_force, reasons, state.monitor)]
    if service is None:
        return []
    return [(certificate, why, service.monitors.of(certificate).monitor) for certificate, why in service.holding]


def _standing(config: CascadeConfig) -> dict[str, Any] | None:
    """Return the state of a cascade with modes, else None."""
    url, name = config.modes_url, config.server.name
    if config.modes is None or url is None:
        return None
    with ModeStore.shared(url) as store:
        state, counts, looks = store.state(name), store.counts(name), store.looks(name)
        unknown = 0 if state.in_force is None else store.unknown_audits(name, state.in_force.certificate)
    return {"state": state, "looks": looks, "plan": next_look(state, counts, config.modes), "unknown": unknown}


def _latest(url: str | None) -> list[Row]:
    try:
        store = None if url is None else Store(url, read_only=True, limit_s=_LIMIT_S)
    except UsageError:  # there is none yet
        return []
    if store is None:
        return []
    with store:
        return list(store.latest(COLUMNS, MOST_CALLS))


def figures(rows: Iterable[Row], guide: str, *, cut: bool = False) -> dict[str, Any]:
    """Return what the requests that rows belong to cost, and what the guide alone would have cost, in nano-dollars.

    Audited and observed requests are drawn at random, and the guide answers each: the mean cost of these answers
    estimates the mean over all requests. Requests of unknown cost are left out and counted.

    Args:
        rows: rows with the columns `COLUMNS`; those of one request need not be adjacent.
        guide: the model that a saving is counted against.
        cut: whether the first request may lack rows, and is left out.
    """
    calls = defaultdict[str, list[Row]](list)
    for row in rows:
        calls[row["episode_id"]].append(row)
    requests = [request for request in [*calls.values()][int(cut) :] if _is_cascades(request, guide)]
    costs = [[call["cost_nano_usd"] for call in request] for request in requests]
    priced = [sum(cost) for cost in costs if None not in cost]
    audited = [request for request in requests if request[0]["split"] == "audit"]
    guides = [
        call["cost_nano_usd"]
        for request in audited
        for call in request
        if call["model"] == guide and call["candidate"] is not None and call["cost_nano_usd"] is not None
    ]
    alone = round(len(priced) * sum(guides) / len(guides)) if priced and len(guides) >= LEAST_AUDITS else None
    return {
        "total": len(requests),
        "audited": len(audited),
        "by_base": sum(guide not in models for request in requests if (models := _served(request))),
        "spent": sum(priced) if priced or not requests else None,
        "unknown": len(requests) - len(priced),
        "alone": alone,
    }


def _served(calls: Iterable[Row]) -> set[str]:
    """Return the models whose answers were kept. If the guide failed, none is marked: then all that answered."""
    candidates = [call for call in calls if call["candidate"] is not None]
    cut = any(call["walk"] == CUT for call in calls)  # then nothing was served
    return {call["model"] for call in candidates if call["kept"]} or {call["model"] for call in candidates if not cut}


def _is_cascades(calls: Iterable[Row], guide: str) -> bool:
    """Whether the cascade answered a request, or the guide instead of it, and not another model that was named."""
    return any(call["walk"] is None or call["model"] == guide for call in calls)
