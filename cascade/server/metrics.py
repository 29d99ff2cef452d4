"""What a server measures: the counts of its requests and of its calls to models, its access log, the counts of workers.

`family` writes counts in Prometheus' text form.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from logging.handlers import WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from cascade.budget.caps import Account, label
from cascade.budget.charges import failed_call, paid_call
from cascade.config.schema import ServerConfig
from cascade.errors import ConfigError, ProviderError, StoreError
from cascade.money import Price, usd
from cascade.providers.guard import Guard, Middleware
from cascade.resilience.event_loop import Deadline
from cascade.resilience.health import CALLER
from cascade.server.receipts import Receipt
from cascade.types import Completion, Request

if TYPE_CHECKING:
    from cascade.runtime import Runtime

_MOST_LINES = 10_000
_CLOSE_S = 2.0
_TOLD_S = 2.0
_STALE_S = 5 * _TOLD_S
"""A worker whose counts are older has ended, or hangs."""
PARENT = "parent"
"""The place of the workers' parent, which serves no requests."""
_ADDED = tuple(f"cascade_{n}" for n in ("in_flight", "buffered_bytes", "traces_waiting", "budget_waiting"))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ERROR = 400
_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_LEFT = (asyncio.CancelledError, GeneratorExit)
_LAG_EVERY_S = 0.25
_STORE_S = 1.0
"""How long a scrape waits for the store of the budgets; without an answer the balances are left out."""
_OF_ACCOUNTS = {
    "cap": "The cap of an account.",
    "spent": "What is booked on an account.",
    "held": "What calls under way may cost an account.",
}
_TALLIES = {
    "faulty": ("faulty_messages_total", "Messages of a model that had a fault.", "model"),
    "replaced": ("replaced_calls_total", "Calls that another model answered.", "model"),
    "silent": ("missing_logprobs_total", "Replies without the log-probs asked for.", "model"),
    "skipped": ("skipped_calls_total", "Calls not made because the model had refused the conversation.", "model"),
    "broken_off": ("broken_off_total", "Requests that ended before their policy stopped.", "by"),
}
"""Counts by name: for each field of a receipt with a name, or a tuple of names, the metric, its help and its label."""


class Histogram:
    """Counts of durations, by upper bound."""

    def __init__(self) -> None:
        self._buckets, self._total_s = [0] * (len(_BOUNDS_S) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._buckets[bisect_left(_BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Yield the histogram's samples in Prometheus' text form."""
        below = [*accumulate(self._buckets)]  # each bucket counts those before it, too
        for bound, count in zip([*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf"], below, strict=True):
            yield f"cascade_{name}_bucket{_labels({**labels, 'le': bound})} {count}"
        yield f"cascade_{name}_sum{_labels(labels)} {self._total_s:.6f}"
        yield f"cascade_{name}_count{_labels(labels)} {below[-1]}"


class Metrics:
    """Counts of a cascade since the process began. Only one event loop writes them.

    Labels come only from the configuration, from statuses and from classes of errors.
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._tallies: dict[str, Counter[Any]] = {name: Counter() for name in _TALLIES}
        self._seconds, self.first_text, self._lag = Histogram(), Histogram(), Histogram()
        self._key_costs: Counter[str] = Counter()
        self._unknown_costs = 0
        self._calls: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._errors: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._unknown: Counter[str] = Counter()
        self.retried, self.tried = Counter[str](), Counter[tuple[str, str, str]]()  # counted by guards
        self._reading: asyncio.Task[Mapping[str, tuple[int, Account]]] | None = None

    def count(self, model: str, status: int, duration_s: float, receipt: Receipt | None = None) -> None:
        """Count a request that has ended.

        `model` is the name that was asked for, "" if the server has no such model; the status is 499 if the
        client hung up.
        """
        self._requests[model, "" if receipt is None else receipt.served_by or "", status] += 1
        self._seconds.observe(duration_s)
        if receipt is None:
            return
        for at, tally in self._tallies.items():
            if names := getattr(receipt, at):
                tally.update((names,) if isinstance(names, str) else names)
        self._unknown_costs += receipt.cost_nano_usd is None

    @property
    def unserved(self) -> int:
        """How many requests ended without an answer."""
        return sum(count for (_, _, status), count in self._requests.items() if status >= _ERROR)

    def count_call(
        self,
        request: Request,
        seconds: float,
        reply: Completion | None,
        error: BaseException | None,
        price: Price | None,
    ) -> None:
        """Count a call that has ended, including its retries, by its reply or by its error."""
        call = None if reply is None else paid_call(request, reply, price)
        if call is None and isinstance(error, ProviderError):
            call = failed_call(request, error, price)
        self._key_costs[CALLER.get() or ""] += 0 if call is None else call.cost_nano_usd or 0  # only known costs
        model = request.model
        self._calls[model].observe(seconds)
        if error is not None:
            self._errors[model, "Cancelled" if isinstance(error, _LEFT) else type(error).__name__] += 1
        if reply is not None:
            usage = reply.usage
            for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                if tokens is None:
                    self._unknown[model] += 1
                else:
                    self._tokens[model, kind] += tokens

    async def watch_loop(
        self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep measuring how late the event loop wakes a task."""
        while True:
            due_s = clock() + _LAG_EVERY_S
            await sleep(_LAG_EVERY_S)
            self._lag.observe(max(0.0, clock() - due_s))

    async def text(self, runtime: Runtime, alarm: str | None = None) -> str:
        """Return all counts, and the state of alarm, stores, breakers and caps, in Prometheus' text form.

        `alarm` is the alarm of the modes, if there is one.
        """
        guards, balances = runtime.guards, await self._balances(runtime)
        withdrawn = int((alarm or runtime.alarm) is not None)
        unknown, retried = ({name: counts[name] for name in guards} for counts in (self._unknown, self.retried))
        whys = {} if runtime.service is None else runtime.service.monitors.uncovered  # none has a client's words
        return "".join([
            family("requests_total", "Requests that have ended.", self._requests, "model", "served_by", "status"),
            family("request_seconds", "Time of a whole request.", self._seconds),
            family("first_text_seconds", "Time to a stream's first text.", self.first_text),
            family("cost_usd_total", "Known cost of all calls, also for drawn requests.", self._key_costs.total()),
            family("key_cost_usd_total", "The same, by the key of the request.", self._key_costs, "key"),
            family("unknown_costs_total", "Requests of unknown cost.", self._unknown_costs),
            *(family(name, help_, self._tallies[at], *by) for at, (name, help_, *by) in _TALLIES.items()),
            family("alarm", "1: audits, canaries or a changed model withdrew a certificate.", withdrawn),
            _of_stores(runtime),
            family("uncovered_total", "Answers without a certificate, by the reason.", whys, "why"),
            family("call_seconds", "Time of a call to a model, with its retries.", self._calls, "model"),
            family("loop_lag_seconds", "How late the event loop wakes a task.", self._lag),
            family("call_errors_total", "Calls that failed after their retries.", self._errors, "model", "error"),
            family("tokens_total", "Tokens that providers reported.", self._tokens, "model", "kind"),
            family("unknown_tokens_total", "Counts of tokens that a reply lacked.", unknown, "model"),
            family("retries_total", "Calls that were made again.", retried, "model"),
            _deployments(guards),
            *(family(f"budget_{kind}_usd", help_, {label(name): at[place] for name, at in balances.items()}, "account")
              for place, (kind, help_) in enumerate(_OF_ACCOUNTS.items()) if balances),
        ])  # fmt: skip

    async def _balances(self, runtime: Runtime) -> Mapping[str, tuple[int, int, int]]:
        """Return, by account, the amounts that `_OF_ACCOUNTS` names; none if the store does not answer in time.

        At most one read is under way.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(runtime.balances))
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs it
        await asyncio.wait([self._reading], timeout=_STORE_S)
        with suppress(StoreError, asyncio.InvalidStateError):
            return {name: (cap, stands.spent, stands.held) for name, (cap, stands) in self._reading.result().items()}
        return {}


def _deployments(guards: Mapping[str, Guard]) -> str:
    """Return the state of the circuits of models and of their deployments, and the tries by deployment."""
    models, sites, tries = dict[str, int](), dict[tuple[str, str], int](), dict[tuple[str, str, str], int]()
    for model, guard in guards.items():
        opened = {at: int(circuit is not None and circuit.open) for at, circuit in guard.circuits(model).items()}
        models[model] = int(all(opened.values()))
        sites |= {(model, at): broke for at, broke in opened.items() if at}
        tries |= {place: count for place, count in guard.tried.items() if place[0] == model}
    of_tries, labels = "Tries of calls at a deployment, by the outcome.", ("model", "deployment", "outcome")
    return "".join([
        family("breaker_open", "1: the model is not asked, having failed often, at any deployment.", models, "model"),
        family("deployment_open", "1: the deployment is not asked, having failed often.", sites, *labels[:2]),
        family("deployment_tries_total", of_tries, tries, *labels),
    ])  # fmt: skip


def _of_stores(runtime: Runtime) -> str:
    """Return the counts of failed calls to stores, of traces, and of calls and costs that the budget's store lacks."""
    failures, failing = {name: link.failures for name, link in runtime.links.items()}, runtime.failing_stores
    now = {name: int(name in failing) for name in (*failures, *(("traces",) if runtime.traces else ()))}
    traces, bookings = runtime.traces, runtime.bookings
    return "".join([
        family("store_failures_total", "Calls to a store that failed or were late.", failures, "store"),
        family("store_failing", "1: the store does not answer.", now, "store"),
        *([] if traces is None else [
            family("traces_written_total", "Answers in the traces.", traces.counts.written),
            family("traces_lost_total", "Answers that could not be recorded.", traces.counts.lost),
            family("traces_waiting", "Answers that wait for the store.", traces.counts.waiting),
        ]),
        *([] if bookings is None else [
            family("budget_unasked_total", "Calls made without the budget's store.", bookings.allowed),
            family("budget_waiting", "Costs that wait for the budget's store.", bookings.waiting),
            family("budget_lost_usd_total", "Costs that were never booked.", bookings.lost_nano_usd),
        ]),
    ])  # fmt: skip


def family(
    name: str,
    help_: str,
    samples: Mapping[Any, float | str] | Mapping[Any, Histogram] | Histogram | float | str,
    *labels: str,
) -> str:
    r"""Return one metric in Prometheus' text form: its only value, or its values by their labels.

    Amounts in USD are passed in nano-dollars. A name ending in `total` is a counter, in `seconds` a histogram.

    >>> family("up", "Up.", 1)
    '# HELP cascade_up Up.\n# TYPE cascade_up gauge\ncascade_up 1\n'
    >>> family("cost_usd_total", "Cost.", {("a", "b"): 5 * 10**8}, "key", "model").splitlines()[-1]
    'cascade_cost_usd_total{key="a",model="b"} 0.500000000'
    """
    listed = dict(sorted(samples.items())) if isinstance(samples, Mapping) else {(): samples}
    kind = {"total": "counter", "seconds": "histogram"}.get(name.rpartition("_")[2], "gauge")
    lines = [f"# HELP cascade_{name} {help_}", f"# TYPE cascade_{name} {kind}"]
    for key, value in listed.items():
        named = dict(zip(labels, map(str, key if isinstance(key, tuple) else (key,)), strict=True))
        if isinstance(value, Histogram):
            lines += value.lines(name, named)
        else:
            amount = f"{usd(value):f}" if "usd" in name and isinstance(value, int) else value
            lines.append(f"cascade_{name}{_labels(named)} {amount}")
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    r"""Return labels in the form that follows a metric's name.

    >>> _labels({"model": 'a"b'}), _labels({})
    ('{model="a\\"b"}', '')
    """
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    listed = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""


# --- calls, the access log, several processes ---


class CountedGuard(Middleware):
    """A guard whose calls are counted."""

    def __init__(self, metrics: Metrics, prices: Mapping[str, Price | None], guard: Guard | Middleware) -> None:
        super().__init__(guard)
        self._metrics, self._prices = metrics, prices

    @asynccontextmanager
    async def around(self, request: Request, deadline: Deadline) -> AsyncIterator[list[Completion]]:  # noqa: ARG002
        """Count a call when it has ended."""
        replies, failure, began_s = list[Completion](), None, time.monotonic()
        try:
            yield replies
        except BaseException as error:
            failure = error
            raise
        finally:
            took_s, reply = time.monotonic() - began_s, replies[0] if replies else None
            self._metrics.count_call(request, took_s, reply, failure, self._prices.get(request.model))


class AccessLog:
    """One line of JSON for each request, written by a thread, so that a disk that hangs holds up no request.

    A line names the key but never has its secret, a prompt or an answer. Lines that could not be written are counted.

    Args:
        place: a file, which may be rotated; "-" for the standard output.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, place: str) -> None:
        self.lost = 0
        try:
            self._handler = logging.StreamHandler(sys.stdout) if place == "-" else WatchedFileHandler(place)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError([f"server.access_log: {place} cannot be written: {why}"]) from None
        self._handler.handleError = self._lose  # type: ignore[assignment, method-assign]
        self._lines: Queue[str | None] = Queue(_MOST_LINES)
        self._thread = threading.Thread(target=self._run, name="cascade-access-log", daemon=True)
        self._thread.start()

    def write(self, line: Mapping[str, Any]) -> None:
        """Queue the line of a request that has ended; it is lost if the queue is full."""
        try:
            self._lines.put_nowait(json.dumps(line))
        except Full:
            self.lost += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._handler.emit(logging.makeLogRecord({"msg": line}))
            except OSError:  # the file was moved away, and cannot be created again yet
                self.lost += 1
        with suppress(OSError):  # the last lines, on a full disk
            self._handler.close()

    def _lose(self, _: logging.LogRecord) -> None:
        self.lost += 1

    def close(self) -> None:
        """Write the queued lines, for at most four seconds."""
        with suppress(Full):
            self._lines.put(None, timeout=_CLOSE_S)
            self._thread.join(_CLOSE_S)


@dataclass(frozen=True)
class Instruments:
    """The counts and the access log of a server, for as long as its process runs.

    Args:
        peers: the counts of other workers, if there are any.

    Attributes:
        counts: the counts of each cascade, by the position of its file.
        reloads: how often the configuration was read again, by the outcome.
        alerts: how often an account reached a share of its cap, by account and share.
        webhook_failures: how often an alert could not be posted.
    """

    access: AccessLog | None = None
    peers: WorkerCounts | None = None
    counts: defaultdict[int, Metrics] = field(default_factory=lambda: defaultdict(Metrics))
    reloads: Counter[str] = field(default_factory=lambda: Counter(done=0, refused=0))
    alerts: Counter[tuple[str, str]] = field(default_factory=Counter)
    webhook_failures: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, settings: ServerConfig, peers: WorkerCounts | None = None) -> Instruments:
        """Return the instruments of a configuration. Raises ConfigError if its access log cannot be written."""
        return cls(None if settings.access_log is None else AccessLog(settings.access_log), peers)

    @property
    def text(self) -> str:
        """The counts that belong to no cascade, in Prometheus' text form."""
        lost = 0 if self.access is None else self.access.lost
        return family("access_log_lost_total", "Lines that could not be written.", lost) + of_reloads(self.reloads)

    def works(self, counted: Callable[[], Awaitable[str]]) -> list[Coroutine[Any, Any, None]]:
        """Return what runs beside the requests; `counted` returns the counts of this process."""
        return [self.counts[0].watch_loop(), *([] if self.peers is None else [self.peers.tell(counted)])]


def of_reloads(reloads: Mapping[str, int]) -> str:
    """Return the counts of configurations read again, by the outcome, in Prometheus' text form."""
    return family("reloads_total", "Configurations read again.", reloads, "outcome")


_OF_CASCADE = re.compile(r"^(cascade_(?!budget_|loop_lag_)\w+)(?:\{|(?= ))", re.MULTILINE)


def labelled(text: str, cascade: str) -> str:
    """Return the counts of a cascade with its name as a label, except those of the caps and the loop, which all share.

    >>> labelled(family("up", "Up.", 1) + family("budget_cap_usd", "Cap.", 2 * 10**9), "a").splitlines()[2::3]
    ['cascade_up{cascade="a"} 1', 'cascade_budget_cap_usd 2.000000000']
    """
    return _OF_CASCADE.sub(lambda name: f'{name[1]}{{cascade="{cascade}"{"," if name[0][-1] == "{" else "}"}', text)


def total(texts: Iterable[str], ended: Iterable[str] = ()) -> str:
    """Return the counts of several processes as one, in Prometheus' text form.

    Counters and the gauges in `_ADDED` are added; of other gauges the highest value is kept.

    Args:
        texts: the counts of each process that runs.
        ended: the counts of processes that have ended, whose gauges are left out.

    >>> up, calls = family("up", "Up.", 1), family("calls_total", "Calls.", 2)
    >>> total([up + calls, up + calls], ended=[up + calls]) == up + family("calls_total", "Calls.", 6)
    True
    """
    families: dict[str, dict[str, Decimal | None]] = {}
    for live, text in [*((True, text) for text in texts), *((False, text) for text in ended)]:
        samples, counter, adds = dict[str, Decimal | None](), True, True
        for line in text.splitlines():
            words = line.split(" ")
            if line.startswith("# HELP"):
                samples = families.setdefault(words[2], {})
            elif line.startswith("# TYPE"):
                counter, adds = words[3] != "gauge", words[3] != "gauge" or words[2] in _ADDED
            if line.startswith("#"):
                samples[line] = None
            elif live or counter:
                name, _, written = line.rpartition(" ")
                value, before = Decimal(written), samples.get(name) or Decimal(0)
                samples[name] = value + before if adds else max(value, before)
    counts = [count for samples in families.values() for count in samples.items()]
    return "\n".join([*(name if value is None else f"{name} {value:f}" for name, value in counts), ""])


class WorkerCounts:
    """The counts of all workers: a file for each place, with the counts of its worker and of earlier ones there."""

    def __init__(self, folder: Path, place: str) -> None:
        self._folder, self._file = folder, folder / place
        self._before = [self._file.read_text("utf-8")] if self._file.exists() else []

    async def tell(self, counted: Callable[[], Awaitable[str]]) -> None:
        """Keep writing what this worker has counted."""
        while True:
            await asyncio.to_thread(self.write, await counted())
            await asyncio.sleep(_TOLD_S)

    def write(self, text: str) -> None:
        """Write what this worker has counted to its file."""
        new = self._file.with_suffix(f".{threading.get_ident()}")
        with suppress(OSError):  # the disk may be full
            new.write_text(total([text], self._before), "utf-8")
            new.replace(self._file)

    def total(self, text: str) -> str:
        """Return the counts of all workers; `text` are this one's."""
        self.write(text)
        texts: dict[bool, list[str]] = {True: [], False: []}
        for file in sorted(self._folder.iterdir()):
            if not file.suffix:  # else it is being written
                age_s = datetime.now(UTC).timestamp() - file.stat().st_mtime
                texts[file.name != PARENT and age_s < _STALE_S].append(file.read_text("utf-8"))
        return total([family("workers", "Processes that serve.", len(texts[True])), *texts[True]], texts[False])
