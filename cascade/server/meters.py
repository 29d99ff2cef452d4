"""What a server measures with: its access log, what counts calls to models, the counts of all its workers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from logging.handlers import WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from typing import Any

from cascade.config.schema import ServerConfig
from cascade.errors import ConfigError
from cascade.money import Price, usd
from cascade.providers.guard import Around, Guard
from cascade.resilience.portal import Deadline
from cascade.safety import redact
from cascade.server.chat import HttpExchange
from cascade.server.receipts import Metrics, family
from cascade.types import Completion, Request

_MOST_LINES = 10_000
_CLOSE_S = 2.0
_LONGEST_PATH = 200
_TOLD_S = 2.0
_STALE_S = 5 * _TOLD_S
"""A worker whose counts are older has ended, or hangs."""
PARENT = "parent"
"""The place of the workers' parent, which serves nothing."""
_ADDED = tuple(f"cascade_{n}" for n in ("in_flight", "buffered_bytes", "traces_waiting", "budget_waiting"))


class CountedGuard(Around):
    """A guard whose calls are counted."""

    def __init__(self, metrics: Metrics, prices: Mapping[str, Price | None], guard: Guard | Around) -> None:
        super().__init__(guard)
        self._metrics, self._prices = metrics, prices

    def around(self, request: Request, deadline: Deadline) -> _Counting:  # noqa: ARG002
        """Count a call when it has ended."""
        return _Counting(self._metrics, request, self._prices.get(request.model))


class _Counting:
    def __init__(self, metrics: Metrics, request: Request, price: Price | None) -> None:
        self._metrics, self._request, self._price, self._began_s = metrics, request, price, time.monotonic()
        self._replies = list[Completion]()

    async def __aenter__(self) -> list[Completion]:
        return self._replies

    async def __aexit__(self, _: object, failure: BaseException | None, __: object) -> None:
        took_s, reply = time.monotonic() - self._began_s, self._replies[0] if self._replies else None
        self._metrics.count_call(self._request, took_s, reply, failure, self._price)


class AccessLog:
    """One line of JSON for each request, written by a thread: a disk that hangs holds up no request.

    A line has no key, no prompt and no answer. Lines that could not be written are counted.

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

    def write(self, exchange: HttpExchange, method: str, path: str, status: int) -> None:
        """Write the line of a request that has ended."""
        receipt, now = exchange.receipt, datetime.now(UTC).isoformat(timespec="milliseconds")
        cost = None if receipt is None or receipt.cost_nano_usd is None else float(usd(receipt.cost_nano_usd))
        line: dict[str, Any] = {
            "time": now, "trace_id": exchange.trace_id, "key": exchange.key, "method": method,
            "client_trace_id": None if exchange.caller is None else exchange.caller.trace_id,
            "path": redact(path[:_LONGEST_PATH]), "status": status, "model": exchange.model or None,
            "served_by": None if receipt is None else receipt.served_by, "cost_usd": cost,
            "duration_s": round(exchange.duration_s, 4), "reason": exchange.reason or (receipt and receipt.broken_off),
        }  # fmt: skip
        try:
            self._lines.put_nowait(json.dumps(line))
        except Full:
            self.lost += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._handler.emit(logging.makeLogRecord({"msg": line}))
            except OSError:  # the file was moved away, and cannot be made again yet
                self.lost += 1
        with suppress(OSError):  # the last lines, on a full disk
            self._handler.close()

    def _lose(self, _: logging.LogRecord) -> None:
        self.lost += 1

    def close(self) -> None:
        """Write what waits, for two seconds at most."""
        with suppress(Full):
            self._lines.put(None, timeout=_CLOSE_S)
            self._thread.join(_CLOSE_S)


@dataclass(frozen=True)
class Instruments:
    """What a server measures with, for as long as its process runs.

    Args:
        peers: the counts of other workers, if there are any.

    Attributes:
        counts: those of each cascade, by its place among the files.
        reloads: how often SIGHUP came, by the outcome.
        alerts: how often an account reached a share of its cap, by both.
        webhook_failures: how often an alert could not be posted.
    """

    access: AccessLog | None = None
    peers: WorkerCounts | None = None
    counts: defaultdict[int, Metrics] = field(default_factory=lambda: defaultdict(Metrics))
    reloads: Counter[str] = field(default_factory=Counter)
    alerts: Counter[tuple[str, str]] = field(default_factory=Counter)
    webhook_failures: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, settings: ServerConfig, peers: WorkerCounts | None = None) -> Instruments:
        """Return those of a configuration. Raises ConfigError if its access log cannot be written."""
        return cls(None if settings.access_log is None else AccessLog(settings.access_log), peers)

    @property
    def text(self) -> str:
        """What is counted of no cascade, in Prometheus' text form."""
        lost = 0 if self.access is None else self.access.lost
        text = family("access_log_lost_total", "Lines that could not be written.", lost)
        return text + of_reloads(self.reloads)

    def works(self, counted: Callable[[], Awaitable[str]]) -> list[Coroutine[Any, Any, None]]:
        """Return what runs beside the requests, given what counts."""
        return [self.counts[0].watch_loop(), *([] if self.peers is None else [self.peers.tell(counted)])]

    async def whole(self, text: str) -> str:
        """Return the counts of all workers; `text` are those of this process."""
        return text if self.peers is None else await asyncio.to_thread(self.peers.total, text)

    def close(self) -> None:
        """Write what the access log has not written."""
        if self.access is not None:
            self.access.close()


def of_reloads(reloads: Mapping[str, int]) -> str:
    """Return the counts of configurations read again, by the outcome, in Prometheus' text form."""
    counts = {outcome: reloads.get(outcome, 0) for outcome in ("done", "refused")}
    return family("reloads_total", "Configurations read again.", counts, "outcome")


_OF_CASCADE = re.compile(r"^(cascade_(?!budget_|loop_lag_)\w+)(?:\{|(?= ))", re.MULTILINE)


def labelled(text: str, cascade: str) -> str:
    """Return the counts of a cascade with its name as a label, but for the caps and the loop, which all share.

    >>> labelled(family("up", "Up.", 1) + family("budget_cap_usd", "Cap.", 2 * 10**9), "a").splitlines()[2::3]
    ['cascade_up{cascade="a"} 1', 'cascade_budget_cap_usd 2.000000000']
    """
    return _OF_CASCADE.sub(lambda name: f'{name[1]}{{cascade="{cascade}"{"," if name[0][-1] == "{" else "}"}', text)


def total(texts: Iterable[str], ended: Iterable[str] = ()) -> str:
    """Return the counts of several processes as one, in Prometheus' text form.

    Counters and amounts are added; of other gauges the highest stands.

    Args:
        texts: the counts of each process that runs.
        ended: those of processes that have ended, whose gauges say nothing.

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
    """The counts of all workers: files in a folder, each of one worker and of those before it in its place."""

    def __init__(self, folder: Path, place: str) -> None:
        self._folder, self._file = folder, folder / place
        self._before = [self._file.read_text("utf-8")] if self._file.exists() else []

    async def tell(self, counted: Callable[[], Awaitable[str]]) -> None:
        """Keep for ever what this worker has counted."""
        while True:
            await asyncio.to_thread(self.write, await counted())
            await asyncio.sleep(_TOLD_S)

    def write(self, text: str) -> None:
        """Keep what this worker has counted."""
        new = self._file.with_suffix(f".{threading.get_ident()}")
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
        up = family("workers", "Processes that serve.", len(texts[True]))
        return total([up, *texts[True]], texts[False])
