"""The contents of `/ui`, read from the traces and the orchestrator, as plain values for a template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from cascade.config import CascadeConfig, traces_url
from cascade.conformal.binomial import lower_bound, upper_bound
from cascade.conformal.monitor import Monitor
from cascade.episodes.schema import replay_of
from cascade.episodes.store import Store, parse
from cascade.errors import UsageError
from cascade.guarantees.certificate import statement
from cascade.orchestrator import Orchestrator
from cascade.server.pages import chart
from cascade.server.pages.standing import Promise, read_standing
from cascade.server.pages.traffic import COLUMNS, LEAST_MEASURED, Saving, Seen, by_day, outcomes, saving, seen
from cascade.server.pages.words import MINUS, day, money, share
from cascade.text import capital, counted, percent
from cascade.types import Certificate

MOST_CALLS = 20_000
"""The most calls that a page reads, the latest ones. Reading them takes about 0.4 s of one core."""
_LATEST_CALLS, _LATEST = 120, 25
_MOST_TEXT = 4_000
PERIODS = ((1, "24 hours"), (7, "7 days"), (30, "30 days"), (365, "a year"))
_EXAMPLE = """curl http://{host}:{port}/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""


class Traffic(NamedTuple):
    """What the page read from the traces.

    Attributes:
        requests: those within the period, the earliest first.
        latest: the latest calls, with their texts.
        cut: how many calls were read, if there are more.
        earlier: whether there are requests before the period.
    """

    requests: Sequence[Seen] = ()
    latest: Sequence[Mapping[str, Any]] = ()
    cut: int | None = None
    earlier: bool = False


def read_traffic(config: CascadeConfig, guide: str, since: datetime, observed: frozenset[str]) -> Traffic:
    """Read the traces of a period; there are none without a store. Raises StoreError."""
    url = traces_url(config.traces)
    if url is None:
        return Traffic()
    try:
        store = Store.open(url, read_only=True)
    except UsageError:  # there is none yet
        return Traffic()
    with store:
        rows = store.latest(COLUMNS, MOST_CALLS)
        latest = store.latest(_TOLD, _LATEST_CALLS)
    found = seen(rows, guide, config.prices()[guide], observed)
    cut = len(rows) == MOST_CALLS
    begin = since.isoformat(timespec="milliseconds")
    requests = sorted((one for one in found[int(cut) :] if one.at >= begin), key=lambda one: one.at)
    return Traffic(requests, latest, len(rows) if cut else None, earlier=len(requests) < len(found))


_TOLD = (*COLUMNS, "segment", "question", "answer", "text", "confidence", "signals")


# --- the promises ---


def promises(orchestrator: Orchestrator, today: date) -> list[Promise]:
    """Return the certificates of a policy directory in service."""
    service = orchestrator.service
    if service is None:
        return []
    return [_promise(*one, service.monitors.of(one[1]).monitor, today) for one in service.holding]


def _promise(
    level: str | None, one: Certificate, problems: tuple[str, ...], monitor: Monitor | None, today: date
) -> Promise:
    where = [f"Level {level}"] if level is not None else []
    where += [f"segment {one.segment}"] if one.segment is not None else []
    left = None if one.expires is None else (date.fromisoformat(one.expires) - today).days
    if monitor is not None and monitor.alarmed:
        problems = (*problems, "Audits withdrew it.")
    return Promise(
        capital(", ".join(where)) or "All requests",
        capital(statement(one)),
        one.calibration_id,
        one.n,
        one.created,
        one.expires,
        left,
        problems,
        0 if monitor is None else monitor.audits,
        0 if monitor is None else monitor.misses,
        one.alpha,
        None,
        None if monitor is None else monitor.e_value,
        None if monitor is None else 1 / monitor.level,
        one.delta,
    )


def at_once(found: Sequence[Promise]) -> str | None:
    """Return a sentence on the probability that all certificates hold at once; None for fewer than two.

    Each may fail with its own δ, and the same questions may have certified them, so only the sum of the δ bounds it.
    """
    if len(found) < 2:
        return None
    deltas = [None if one.delta is None else Decimal(repr(one.delta)) for one in found]
    said = f"{len(found)} certificates are in service; each promise is separate."
    if any(one is None for one in deltas):
        return f"{said} How likely all of them hold at once is unknown: they promise means over calibrations."
    spent = sum(one for one in deltas if one is not None)
    if spent >= 1:
        return f"{said} That all of them hold at once is not promised: their δ add up to {spent:.3g}."
    least = percent(float(spent), rest=True)
    return f"{said} All of them hold at once with probability at least {least}: their δ add up."


class Audits(NamedTuple):
    """All audits that were counted: how many differed, a 95 % interval of the share, and what was promised."""

    n: int = 0
    missed: int = 0
    low: float = 0.0
    high: float = 1.0
    promised: float | None = None


def audits_of(found: Sequence[Promise]) -> Audits:
    """Return the audits of all certificates together, and the promised share if all promise the same."""
    n, missed = sum(one.audits for one in found), sum(one.missed for one in found)
    if not n:
        return Audits()
    promised = {one.alpha for one in found if one.audits}
    same = promised.pop() if len(promised) == 1 else None
    return Audits(n, missed, lower_bound(missed, n, 0.025), upper_bound(missed, n, 0.025), same)


# --- the sentence on top ---


def headline(requests: Sequence[Seen], total: Saving, audits: Audits) -> str:
    """Return a one-sentence summary of the period."""
    if not requests:
        return "No requests in this period"
    said = f"Since {day(requests[0].at)}: {counted(len(requests), 'request')}"
    if total.requests and total.alone:
        change = f"{MINUS if total.saved > 0 else '+'}{share(abs(total.share or 0.0))}"
        said += f", {money(total.spent)} instead of {money(total.alone)} ({change})"
    elif total.requests:
        said += f", {money(total.spent)}"
    if audits.n:
        said += f", {audits.missed} of {counted(audits.n, 'audit')} differed"
        said += "" if audits.promised is None else f"; promised: at most {percent(audits.promised)}"
    return f"{said}."


class Empty(NamedTuple):
    """Advice for a page that has nothing to show."""

    heading: str
    said: str
    code: str = ""


def empty(config: CascadeConfig, *, any_earlier: bool) -> Empty:
    """Return advice if the period has no request."""
    if traces_url(config.traces) is None:
        said = "This page reads the traces, and they are off. Set traces in the configuration, then restart the server."
        return Empty("Traces are off", said)
    if any_earlier:
        return Empty("Nothing in this period", "Choose a longer one above.")
    server = config.server
    code = _EXAMPLE.format(host=server.host, port=server.port, name=server.name)
    return Empty("Send a first request", "Point your application's base_url here, or try:", code)


# --- the latest requests ---


class Made(NamedTuple):
    """One call of a request, as a page shows it."""

    model: str
    kept: bool
    cost: int | None
    latency_ms: float
    tokens: str
    confidence: float | None
    text: str | None


class Told(NamedTuple):
    """One of the latest requests. `at_most` is the most that it can have cost, where its cost is unknown."""

    seen: Seen
    at_most: int | None
    asked: str | None
    segment: str | None
    stopped: str | None
    calls: Sequence[Made]


def latest_of(traffic: Traffic, *, texts: bool) -> list[Told]:
    """Return the latest requests, the newest first.

    Args:
        traffic: what was read.
        texts: whether the traces keep questions and answers.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in traffic.latest:
        rows.setdefault(row["episode_id"], []).append(row)
    newest = [one for one in reversed(traffic.requests) if one.id in rows][:_LATEST]
    return [_told(one, rows[one.id], texts=texts) for one in newest]


def _told(one: Seen, rows: Sequence[Mapping[str, Any]], *, texts: bool) -> Told:
    ordered = sorted(rows, key=lambda row: row["step"] or 0)
    signals = _parsed(ordered[-1]["signals"])
    stopped = replay_of({"signals": signals}).get("stopped")
    calls = [
        Made(
            row["model"] or "",
            bool(row["kept"]) and row["model"] == one.served,
            row["cost_nano_usd"],
            row["latency_ms"] or 0.0,
            _tokens(row),
            row["confidence"],
            _text(row["answer"] or row["text"]) if texts else None,
        )
        for row in ordered
    ]
    asked = _text(ordered[0]["question"]) if texts else None
    most = [_bound(row) for row in ordered] if one.cost is None else [None]
    at_most = None if None in most else sum(bound for bound in most if bound is not None)
    return Told(one, at_most, asked, ordered[0]["segment"], stopped if isinstance(stopped, str) else None, calls)


def _bound(row: Mapping[str, Any]) -> int | None:
    """Return the most that a call can have cost; None where that is unknown, as without a price."""
    if row["cost_nano_usd"] is not None:
        return int(row["cost_nano_usd"])
    bound = replay_of({"signals": _parsed(row["signals"])}).get("cost_bound_nano_usd")
    return bound if isinstance(bound, int) else None


def _tokens(row: Mapping[str, Any]) -> str:
    read, written = row["input_tokens"], row["output_tokens"]
    return "" if read is None or written is None else f"{read:,} tokens in, {written:,} out"


def _text(text: str | None) -> str | None:
    if text is None or len(text) <= _MOST_TEXT:
        return text
    return f"{text[:_MOST_TEXT]}\n… ({len(text) - _MOST_TEXT:,} more characters are in the traces)"


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None


def overview(orchestrator: Orchestrator, guide: str, days: int, now: datetime) -> dict[str, Any]:
    """Return all values of the page, by the names in its template.

    Args:
        orchestrator: the orchestrator that serves.
        guide: the model that a saving is counted against.
        days: the length of the period.
        now: the time.

    Raises:
        StoreError: the traces cannot be read.
    """
    config = orchestrator.config
    standing = read_standing(config, guide)
    observed = frozenset[str]() if standing is None else standing.observed
    traffic = read_traffic(config, guide, now - timedelta(days=days), observed)
    requests = traffic.requests
    held = promises(orchestrator, now.date()) if standing is None else [*filter(None, [standing.certificate])]
    total, audits, days_seen = saving(requests), audits_of(held), by_day(requests)
    content = "none" if config.traces is None else config.traces.content
    return {
        "headline": headline(requests, total, audits),
        "now": now.isoformat(),
        "alarm": orchestrator.alarm if standing is None else standing.state.alarm,
        "standing": standing,
        "period": days,
        "periods": PERIODS,
        "address": f"/ui?days={days}",
        "cut": traffic.cut,
        "total": len(requests),
        "kept": sum(one.many for one in outcomes(requests) if one.kind == "kept"),
        "audited": sum(one.audited for one in requests),
        "saving": total,
        "least": LEAST_MEASURED,
        "audits": audits,
        "certificates": held,
        "at_once": at_once(held),
        "outcomes": outcomes(requests),
        "bars": chart.bars(days_seen),
        "highest": max((max(one.spent, one.alone) for one in days_seen), default=0),
        "latest": latest_of(traffic, texts=content == "full"),
        "content": content,
        "store": None if (url := traces_url(config.traces)) is None else parse(url).shown,  # without a password
        "empty": empty(config, any_earlier=traffic.earlier),
    }
