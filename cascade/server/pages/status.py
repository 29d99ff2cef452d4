"""The contents of `/ui`, as plain values for a template: who serves, what holds, what was saved, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from cascade.config import CascadeConfig, modes_url, traces_url
from cascade.config.schema import ModesConfig
from cascade.conformal.certificate import Certificate
from cascade.conformal.monitor import Monitor
from cascade.errors import UsageError
from cascade.modes.plan import plan_of
from cascade.modes.state import CascadeState, Counts, Look
from cascade.modes.store import ModeStore
from cascade.orchestrator import Orchestrator
from cascade.records.address import parse
from cascade.records.traces import Store
from cascade.server.pages.traffic import COLUMNS, LEAST_MEASURED, Seen, saving, seen
from cascade.server.pages.words import share
from cascade.text import capital, counted, percent

DAYS = 30
"""The page shows the requests of so many days."""
MOST_CALLS = 20_000
"""The most calls that a page reads, the latest ones. Reading them takes about 0.4 s of one core."""
_LIMIT_S = 10.0
"""How long a page waits for the traces."""
_NEWEST = 5_000
"""The most drawn rows that are read, the newest ones."""
_EXAMPLE = """curl http://{host}:{port}/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
_FIT = """cascade fit {log} --promise agreement --confidence 0.9 -o policy
# cascade.yaml
policy: policy"""


class InService(NamedTuple):
    """A certificate in service, as the page shows it.

    Attributes:
        title: what it covers.
        statement: its promise in words.
        id: the certificate's.
        n: requests that it was made from.
        expires: the last day, ISO 8601.
        problems: the reasons why it does not hold here today.
        audits, missed: how many audits were counted, and how many were missed.
        risk: the promised share.
        e_value: the evidence against it; None if no audit watches it.
        alarm_at: the evidence at which the alarm is raised.
    """

    title: str
    statement: str
    id: str
    n: int
    expires: str | None
    problems: tuple[str, ...]
    audits: int
    missed: int
    risk: float
    e_value: float | None
    alarm_at: float | None

    @property
    def audited(self) -> str:
        """The result of the audits, in a sentence."""
        if not self.audits:
            return "No audit yet."
        result = f"{self.missed} of {counted(self.audits, 'audit')} differed ({share(self.missed / self.audits)})."
        if self.e_value is None or self.alarm_at is None:
            return result
        return f"{result} Evidence against it: {self.e_value:.2g}; an alarm needs {self.alarm_at:.3g}."


class Next(NamedTuple):
    """What to do next, in a sentence, with a line to paste."""

    said: str
    code: str = ""


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


def status(orchestrator: Orchestrator, guide: str, now: datetime) -> dict[str, Any]:
    """Return all values of the page, by the names in its template.

    Args:
        orchestrator: the orchestrator that serves.
        guide: the model that a saving is counted against.
        now: the time.

    Raises:
        StoreError: the traces or the modes cannot be read.
    """
    config = orchestrator.runtime.config
    standing = _standing(config)
    observed = frozenset[str]() if standing is None else standing.observed
    requests, cut = _requests(config, guide, now - timedelta(days=DAYS), observed)
    promises = _in_service(orchestrator) if standing is None else _in_force(config, standing)
    alarm = orchestrator.runtime.alarm if standing is None else standing.state.alarm
    return {
        "mode": "enforce" if standing is None and promises else "no promise" if standing is None else _mode(standing),
        "serves": _serves(orchestrator, standing, guide),
        "alarm": alarm,
        "next": _next(config, standing, promises, any_requests=bool(requests)),
        "now": now.isoformat(),
        "days": DAYS,
        "cut": cut,
        "total": len(requests),
        "by_base": sum(request.by_base for request in requests),
        "audited": sum(request.audited for request in requests),
        "saving": saving(requests),
        "least": LEAST_MEASURED,
        "audits": sum(promise.audits for promise in promises),
        "missed": sum(promise.missed for promise in promises),
        "unknown": _unknown(orchestrator) if standing is None else standing.counts.unknown,
        "certificates": promises,
        "standing": standing,
        "delta": None if standing is None or config.modes is None else config.modes.delta,
        "spent": None if standing is None or config.modes is None else standing.state.spent,
    }


# --- what was served ---


def _requests(
    config: CascadeConfig, guide: str, since: datetime, observed: frozenset[str]
) -> tuple[list[Seen], int | None]:
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
    requests = seen(rows, guide, config.prices()[guide], observed)[int(cut) :]
    begin = since.isoformat(timespec="milliseconds")
    return [request for request in requests if request.at >= begin], len(rows) if cut else None


# --- what was promised ---


def _in_service(orchestrator: Orchestrator) -> list[InService]:
    """Return the certificates of a policy directory in service."""
    service = orchestrator.service
    if service is None:
        return []
    return [
        _promise(certificate, problems, service.monitors.of(certificate).monitor)
        for certificate, problems in service.holding
    ]


def _unknown(orchestrator: Orchestrator) -> int:
    """Return the number of audits of which nobody can know whether they differ."""
    return 0 if orchestrator.service is None else orchestrator.service.monitors.status.missing


def _promise(certificate: Certificate, problems: tuple[str, ...], monitor: Monitor | None) -> InService:
    if monitor is not None and monitor.alarmed:
        problems = (*problems, "Audits withdrew it.")
    return InService(
        "All requests" if certificate.covers == "all" else f"{capital(certificate.covers)} {certificate.name}",
        certificate.statement(),
        certificate.id,
        certificate.n,
        certificate.expires,
        problems,
        0 if monitor is None else monitor.audits,
        0 if monitor is None else monitor.misses,
        certificate.promise.risk,
        None if monitor is None else monitor.e_value,
        None if monitor is None else 1 / monitor.level,
    )


def _in_force(config: CascadeConfig, standing: Standing) -> list[InService]:
    """Return the certificate in force of a cascade with modes, if there is one."""
    state, modes = standing.state, config.modes
    certificate, monitor = state.in_force, state.monitor
    if certificate is None or monitor is None or modes is None:
        return []
    problems = [] if state.alarm is None else [state.alarm]
    problems += ["It is not in service: the mode is observe."] if state.mode == "observe" else []
    promise = InService(
        f"Look {certificate.look}",
        f"At most {percent(certificate.risk)} of the requests that the policy may answer are {certificate.broken}. "
        f"All certificates ever issued hold together with probability at least {percent(modes.confidence)}.",
        certificate.certificate,
        certificate.n,
        None,
        tuple(problems),
        monitor.audits,
        monitor.misses,
        certificate.risk,
        monitor.e_value,
        1 / monitor.level,
    )
    return [promise]


# --- who serves, and what to do next ---


def _standing(config: CascadeConfig) -> Standing | None:
    """Return the state of a configuration's cascade; None if it has no modes."""
    url, name = modes_url(config), config.server.name
    if config.modes is None or url is None:
        return None
    store = ModeStore.open(url)
    try:
        drawn = store.draws(name, newest=_NEWEST)
        observed = frozenset([draw.trace_id for draw in drawn if draw.role != "audit"])
        return Standing(store.state(name), store.counts(name), store.looks(name), observed)
    except UsageError:  # it has not been served yet
        return Standing(CascadeState(name), Counts(), [], frozenset())
    finally:
        store.close()


def _mode(standing: Standing) -> str:
    return "killed" if standing.state.killed else standing.state.mode


def _serves(orchestrator: Orchestrator, standing: Standing | None, guide: str) -> str:
    """Return who serves, in a sentence."""
    if standing is None:
        return (
            "The policy answers."
            if orchestrator.runtime.alarm is None
            else f"After an alarm, {guide} answers everything."
        )
    return {
        "killed": f"The kill switch is on: {guide} answers everything.",
        "observe": f"{guide} answers everything; the server observes what a cascade would have done.",
        "fallback": f"After an alarm, {guide} answers everything until there is a new certificate.",
        "enforce": "The policy answers, under a certificate that audits watch.",
    }[_mode(standing)]


def _next(
    config: CascadeConfig, standing: Standing | None, promises: Sequence[InService], *, any_requests: bool
) -> Next:
    """Return what to do next."""
    store, server = traces_url(config.traces), config.server
    if store is None:
        return Next("This page reads the traces, and they are off: set traces in the configuration, then restart.")
    if standing is not None and standing.state.killed:
        path = f"http://{server.host}:{server.port}/v1/cascades/{server.name}/kill"
        return Next(
            "Once the reason is gone, switch the kill switch off:",
            f'curl {path} -H "Content-Type: application/json" -d \'{{"on": false}}\'',
        )
    if not any_requests:
        code = _EXAMPLE.format(host=server.host, port=server.port, name=server.name)
        return Next("Send a first request: point your application's base_url here, or try:", code)
    if standing is None or config.modes is None:
        return _without_modes(promises, parse(store).shown)  # without a password
    return _with_modes(standing, config.modes)


def _without_modes(promises: Sequence[InService], log: str) -> Next:
    if any(promise.problems for promise in promises):
        return Next("A certificate does not hold: fit and certify again, on newer requests.")
    if promises:
        return Next("Nothing: the certificate holds.")
    return Next("Nothing is promised. Let the server certify (modes), or fit:", _FIT.format(log=log))


def _with_modes(standing: Standing, modes: ModesConfig) -> Next:
    if standing.state.mode == "enforce":
        return Next("Nothing: audits watch the certificate.")
    plan = plan_of(standing.state, standing.counts, modes)
    if modes.promote == "automatic":
        return Next(f"Wait, the server looks by itself: {plan.describe()}.")
    return Next(f"{'Wait, then promote' if plan.requests else 'Promote'}: {plan.describe()}.", "cascade promote")
