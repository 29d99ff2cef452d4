"""Runs the server: listens, serves until it is stopped, lets running requests end, and closes.

SIGHUP reads the configuration again: a new edge is built beside the one that serves, and replaces it if that works.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cascade.config import CascadeConfig, environment
from cascade.config.schema import ServerConfig
from cascade.errors import CascadeError, ConfigError, MissingExtraError, StoreError, logger
from cascade.orchestrator import Orchestrator
from cascade.providers.base import Loads
from cascade.records.address import FOLDER, parse
from cascade.resilience import event_loop
from cascade.safety import redact
from cascade.server.auth import listening_problems
from cascade.telemetry import export

if TYPE_CHECKING:
    from uvicorn import Config, Server

    from cascade.server.app import Edge, Gateway
    from cascade.server.metrics import Instruments, WorkerCounts
    from cascade.serving.monitors import ServiceStatus
_PACKAGES = ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "jinja2")


def refuse_missing() -> None:
    """Raise MissingExtraError if a package of the extra `server` is not installed."""
    from importlib.util import find_spec

    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, "cascade serve")


Configs: TypeAlias = Mapping[str, CascadeConfig]
"""Configurations of cascades by their files, at least one. The first is also the server's."""
_OWN = {"server": ("name", "review"), "budget": ("per_question", "on_exhausted")}
"""By section of the server's settings, the fields that each cascade sets for itself."""


def serve(
    configs: Configs,
    listening: Callable[[int], None] = lambda _: None,
    again: Callable[[], Configs] | None = None,
) -> Mapping[str, ServiceStatus]:
    """Serve cascades until SIGINT or SIGTERM comes, or the terminal is closed.

    `listening` is called with the port once the server takes requests, and `again` at SIGHUP, to read the
    configurations again. Returns the counts of the answers of each cascade that promises something, by its name.
    The first signal stops listening; requests under way have `server.drain_s` to end, and the rest are cancelled.

    Raises:
        MissingExtraError: a package of the extra `server` is missing.
        ConfigError: the server may not listen there, or cannot serve with these configurations.
        StoreError: the server has ended, and something could not be recorded.
    """
    refuse_missing()
    serving = together(configs)
    with bound(serving[0].server) as listens:
        return run(serving, lambda: listens, again or (lambda: configs), listening)


def together(configs: Configs) -> list[CascadeConfig]:
    """Return the configurations of one server: each gets the server's settings of the first one.

    Raises ConfigError, with every problem: the server may not listen at its address, another file changes one of the
    server's settings, cascades share a name or their traces, or several workers could not keep caps or count feedback.
    """
    (file, first), *later = configs.items()
    problems, merged, several = list(listening_problems(first.server)), {file: first}, first.server.workers > 1
    for name, config in later:
        update = dict[str, Any]()
        for section, own in _OWN.items():
            ours, theirs = getattr(first, section), getattr(config, section)
            values = {field: getattr(ours, field) for field in type(ours).model_fields if field not in own}
            update[section] = theirs.model_copy(update=values)
            problems += [
                f"{name}: {section}.{field}: {file} sets it for all cascades of the server; leave it out"
                for field, value in values.items()
                if field in theirs.model_fields_set and getattr(theirs, field) != value
            ]
        merged[name] = config.model_copy(update=update)
    problems += _mixed(merged)
    if several and first.budget.caps and first.ledger_url is None:
        problems.append("budget.store: workers share caps only through a store; set one, or server.workers: 1")
    if several and any(config.audits and not config.modes for config in merged.values()):
        problems.append("audits: only one worker could count feedback on an answer; use modes, or server.workers: 1")
    if problems:
        raise ConfigError(problems)
    return [*merged.values()]


def _mixed(configs: Configs) -> Iterator[str]:
    """Yield a problem for each name or store of traces that cascades share: pages and fits take all rows as theirs."""
    from cascade.server.catalog import Catalog, Names

    try:
        Names(*(Catalog.of(config, ()) for config in configs.values()))
    except ConfigError as error:
        yield from error.problems
    stores = dict[object, str]()
    for name, config in configs.items():
        if (url := config.traces_url) is not None:
            address = parse(url)
            before = stores.setdefault(address.path or address.url, name)
            if before != name:
                own = f"traces: {{store: sqlite:///{FOLDER}/{config.server.name}.db}}"
                yield f"{name}: traces.store: {before} records there, too; give each cascade its own, as in {own}"


def refused(error: Exception, reloads: Counter[str]) -> None:
    """Log why a configuration that was read again is not used, and count it."""
    reloads["refused"] += 1
    why = str(error) if isinstance(error, CascadeError) else f"{type(error).__name__}: {error}"
    logger.error("the new configuration is not used, and the earlier one stays in service: %s", redact(why))


_FIXED = {
    "server": ("host", "port", "workers", "access_log", "max_head_bytes", "body_s", "drain_s", "keep_alive_s"),
    "traces": ("store", "store_env", "strict"),
    "modes": ("store", "store_env"),
    "budget": ("store", "store_env"),
    "timeouts": ("per_store_s",),
}
"""By section, the fields that a reload does not change: the address, its connections, and the stores."""


def fixed(before: CascadeConfig, now: CascadeConfig) -> CascadeConfig:
    """Return a configuration with the earlier values of all that a reload does not change; log each difference.

    Raises ConfigError if it no longer has keys: a truncated file must not open a server to everybody.
    """
    if before.server.keys and not now.server.keys:
        raise ConfigError(["server.keys: a reload does not take away all keys; restart the server"])
    for section, names in _FIXED.items():
        old, new = getattr(before, section), getattr(now, section)
        if old is not None and new is not None and (section != "budget" or (old.caps and new.caps)):
            update = {name: getattr(old, name) for name in names if getattr(old, name) != getattr(new, name)}
            for name in update:
                logger.warning("%s.%s: a reload does not change it; restart the server", section, name)
            now = now.model_copy(update={section: new.model_copy(update=update)})
    return now


def renewed(before: Sequence[CascadeConfig], configs: Configs) -> list[CascadeConfig]:
    """Return configurations that were read again, each as `fixed` does. Raises ConfigError as it and `together` do."""
    return [fixed(*pair) for pair in zip(before, together(configs), strict=True)]


class Throttle(logging.Filter):
    """Lets each line of code log so many messages per minute; its next message says how many were left out.

    >>> throttle, record = Throttle(1), logging.makeLogRecord({"msg": "down"})
    >>> throttle.filter(record), throttle.filter(record)
    (True, False)
    """

    def __init__(self, most: int = 10) -> None:
        super().__init__()
        self._most, self._since = most, dict[tuple[str, int], tuple[float, int]]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is logged."""
        place = (record.pathname, record.lineno)
        since_s, count = self._since.get(place, (record.created, 0))
        if not 0 <= record.created - since_s < _MINUTE_S:  # a clock may be set back
            if count > self._most:
                record.msg, record.args = f"{record.getMessage()} ({count - self._most} more were not logged)", ()
            since_s, count = record.created, 0
        self._since[place] = since_s, count + 1
        return count < self._most


_MINUTE_S = 60.0
_LOGGERS = ("cascade", "uvicorn.error")


@contextmanager
def hang_ups_wait() -> Iterator[None]:
    """Block SIGHUP, for what is started meanwhile, too, until the server unblocks it; afterwards restore the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@hang_ups_wait()
def run(
    serving: Sequence[CascadeConfig],
    bind: Callable[[], socket.socket],
    again: Callable[[], Configs],
    listening: Callable[[int], None],
    reloaded: Callable[[bool], None] = lambda _: None,
    peers: WorkerCounts | None = None,
) -> Mapping[str, ServiceStatus]:
    """Serve in this process as `serve` does.

    `bind` is called for the socket once all is loaded, `reloaded` after each reload, with whether it was done; `peers`
    has the counts of other workers. Where `again` returns nothing, nothing is reloaded: a hang-up reaches whole groups.
    """
    import uvloop
    from uvicorn import Server

    from cascade.server.app import Gateway
    from cascade.server.metrics import Instruments

    _raise_file_limit()
    instruments, throttle = Instruments.of(serving[0].server, peers), Throttle()
    gateway = Gateway(_built(serving, instruments))
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(throttle)
    server = Server(listener(gateway))

    async def reload() -> None:
        nonlocal serving
        try:
            if not (configs := await asyncio.to_thread(again)):
                return
            now = renewed(serving, configs)
            await gateway.swap(await asyncio.to_thread(_built, now, instruments))
        except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on
            refused(error, instruments.reloads)
            reloaded(False)
            return
        serving = now
        instruments.reloads["done"] += 1
        logger.warning("the configuration was read again, and is in service")
        reloaded(True)

    # What is loaded by now stays until the end. Each full garbage collection would scan it again and delay every
    # request by up to 0.1 s.
    gc.collect()
    gc.freeze()

    def stop(*_: object) -> None:  # for signals before uvicorn handles them; it raises each again at the end
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_served(server, bind(), listening, reload, hang_ups()))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if instruments.access is not None:
            instruments.access.close()
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(throttle)
    runtimes = {cascade.catalog.name: cascade.runtime for cascade in gateway.edge.cascades}
    if unrecorded := [runtime.unrecorded for runtime in runtimes.values() if runtime.unrecorded is not None]:
        raise StoreError(" ".join(unrecorded))
    return {name: runtime.service.monitors.status for name, runtime in runtimes.items() if runtime.service is not None}


def _built(configs: Sequence[CascadeConfig], instruments: Instruments) -> Edge:
    """Return the edge that serves the configurations, with everything loaded."""
    from cascade.server.app import Edge

    if export(environment):
        configs = [
            at.model_copy(update={"telemetry": at.telemetry.model_copy(update={"spans": True})}) for at in configs
        ]
    orchestrators = list[Orchestrator]()
    try:
        for config in configs:
            orchestrators.append(Orchestrator.from_config(config))
            for guard in orchestrators[-1].runtime.guards.values():  # no request waits for it once `/readyz` is ready
                if isinstance(guard.provider, Loads):
                    guard.provider.load()
        return Edge(orchestrators, instruments)
    except CascadeError:
        for orchestrator in orchestrators:
            orchestrator.close()
        raise


async def _served(
    server: Server,
    listens: socket.socket,
    listening: Callable[[int], None],
    reload: Callable[[], Awaitable[None]],
    heard: Sequence[signal.Signals],
) -> None:
    begin, terminal, came = server.startup, os.isatty(0), asyncio.Event()

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await begin(sockets)
        if server.started:
            for number in heard:
                asyncio.get_running_loop().add_signal_handler(number, came.set)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
            listening(int(listens.getsockname()[1]))

    async def reloading() -> None:
        while await came.wait():
            came.clear()
            if terminal and not os.isatty(0):  # the terminal was closed
                signal.raise_signal(signal.SIGTERM)
            await reload()

    server.startup = startup  # type: ignore[method-assign]
    task = asyncio.create_task(reloading())
    with event_loop.adopted():
        await server.serve([listens])
    task.cancel()


def hang_ups() -> list[signal.Signals]:
    """Return SIGHUP if the server handles it: under nohup it stays ignored."""
    return [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []


def bound(settings: ServerConfig, *, shares: bool = False) -> socket.socket:
    """Return a socket at the server's address; with `shares`, the kernel divides connections among workers' sockets.

    Raises ConfigError if nothing can listen there.
    """
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, reuse_port=shares)
    except OSError as error:
        advice = "stop the program that listens there, or name another port (0: a free one)"
        raise ConfigError([f"server.port: {host}:{port} cannot be used: {error.strerror or error}; {advice}"]) from None


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: a stream takes two connections."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listener(gateway: Gateway) -> Config:
    """Return uvicorn's settings for an application."""
    from uvicorn import Config

    from cascade.server.connection import LimitedConnection

    settings, admission = gateway.edge.settings, gateway.edge.admission
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Config(
        gateway,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=cast("Any", partial(LimitedConnection, settings.max_head_bytes, settings.body_s, admission.newcomers)),
        ws="none",
        lifespan="on",
        interface="asgi3",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
