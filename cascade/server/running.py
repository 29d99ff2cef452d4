"""Runs the server: listens, serves until it is stopped, lets running requests end, and closes.

SIGHUP reads the configuration again. What it describes is built beside what serves, and takes its place if that works.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cascade.config import CascadeConfig, environment, ledger_url
from cascade.config.schema import ServerConfig
from cascade.errors import CascadeError, ConfigError, MissingExtraError, StoreError
from cascade.orchestrator import Orchestrator
from cascade.providers.base import Loads
from cascade.resilience import portal
from cascade.safety import redact
from cascade.server.auth import listening_problems
from cascade.telemetry import export

if TYPE_CHECKING:
    from uvicorn import Config, Server

    from cascade.server.app import Edge, Gateway
    from cascade.server.meters import Instruments, WorkerCounts
    from cascade.serving.monitors import ServiceStatus

logger = logging.getLogger("cascade")
_PACKAGES = ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "jinja2")


def refuse_missing() -> None:
    """Raise MissingExtraError if a package of the extra `server` is not installed."""
    from importlib.util import find_spec

    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, "cascade serve")


def serve(
    config: CascadeConfig,
    listening: Callable[[int], None] = lambda _: None,
    again: Callable[[], CascadeConfig] | None = None,
) -> ServiceStatus | None:
    """Serve a configuration until SIGINT or SIGTERM comes, or its terminal is closed.

    `listening` is called with the port once the server takes requests, and `again` at SIGHUP: it reads the
    configuration again. Returns the counts of what was answered; None if
    nothing is promised. The first signal stops listening; requests under way have `server.drain_s` to end, and the rest
    are cancelled.

    Raises:
        MissingExtraError: a package of the extra `server` is missing.
        ConfigError: the server may not listen there, or cannot serve with this configuration.
        StoreError: it has served, and something is not on record.
    """
    refuse_missing()
    refuse(config)
    with bound(config.server) as listens:
        return run(config, lambda: listens, again or (lambda: config), listening)


def refuse(config: CascadeConfig) -> None:
    """Raise ConfigError if the server may not listen at its address, or workers cannot keep what it promises."""
    problems, several = list(listening_problems(config.server)), config.server.workers > 1
    if several and config.budget.caps and ledger_url(config.budget) is None:
        problems.append("budget.store: workers share caps in a store alone; name one, or server.workers: 1")
    if several and config.guarantee is not None and config.guarantee.audit is not None:
        problems.append("guarantee.audit: each worker would count its own; use modes, or server.workers: 1")
    if problems:
        raise ConfigError(problems)


def refused(error: Exception, reloads: Counter[str]) -> None:
    """Log why a configuration that was read again is not used, and count it."""
    reloads["refused"] += 1
    why = str(error) if isinstance(error, CascadeError) else f"{type(error).__name__}: {error}"
    logger.error("the configuration is not used, and the one before serves on: %s", redact(why))


_FIXED = {
    "server": ("host", "port", "workers", "access_log", "max_head_bytes", "keep_alive_s"),
    "traces": ("store", "store_env", "strict"),
    "modes": ("store", "store_env"),
    "budget": ("store", "store_env"),
    "timeouts": ("per_store_s",),
}
"""By the section, what a reload does not change: the address, its connections, and where things are kept."""


def fixed(before: CascadeConfig, now: CascadeConfig) -> CascadeConfig:
    """Return a configuration with what a reload does not change as it was before; log what that is.

    Raises ConfigError if it has no keys any more: a file cut short must not open a server to everybody.
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


class Throttle(logging.Filter):
    """Lets each line of code log so many messages a minute; the next one says how many were left out.

    Args:
        most: messages a minute.

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
        if record.created - since_s >= _MINUTE_S:
            if count > self._most:
                record.msg, record.args = f"{record.getMessage()} ({count - self._most} more were not logged)", ()
            since_s, count = record.created, 0
        self._since[place] = since_s, count + 1
        return count < self._most


_MINUTE_S = 60.0


def run(
    config: CascadeConfig,
    bind: Callable[[], socket.socket],
    again: Callable[[], CascadeConfig],
    listening: Callable[[int], None],
    reloaded: Callable[[], None] = lambda: None,
    peers: WorkerCounts | None = None,
) -> ServiceStatus | None:
    """Serve in this process as `serve` does.

    `bind` returns the socket once all is loaded; `reloaded` is called after each reload, done or refused; `peers` has
    the counts of other workers.
    """
    import uvloop
    from uvicorn import Server

    from cascade.server.app import Gateway
    from cascade.server.meters import Instruments

    _raise_file_limit()
    instruments, throttle, heard = Instruments.of(config.server, peers), Throttle(), hang_ups()
    if heard:  # one that comes before it serves waits until it does
        signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    gateway = Gateway(_built(config, instruments))
    logging.getLogger("cascade").addFilter(throttle)
    server = Server(listener(gateway))

    async def reload() -> None:
        nonlocal config
        try:
            now = fixed(config, await asyncio.to_thread(again))
            refuse(now)
            await gateway.swap(await asyncio.to_thread(_built, now, instruments))
        except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on
            refused(error, instruments.reloads)
        else:
            config = now
            instruments.reloads["done"] += 1
        reloaded()

    # What is loaded by now stays to the end. Each full collection would look through it again, and let every request
    # wait for up to 0.1 s.
    gc.collect()
    gc.freeze()
    # uvicorn raises the signal again once all is closed, although a drained server has ended well.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_served(server, bind(), listening, reload, heard))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        instruments.close()
        logging.getLogger("cascade").removeFilter(throttle)
    runtime = gateway.edge.runtime
    if (unrecorded := runtime.unrecorded) is not None:
        raise StoreError(unrecorded)
    return None if runtime.service is None else runtime.service.status


def _built(config: CascadeConfig, instruments: Instruments) -> Edge:
    """Return what serves a configuration, loaded."""
    from cascade.server.app import edge

    if export(environment):
        config = config.model_copy(update={"telemetry": config.telemetry.model_copy(update={"spans": True})})
    orchestrator = Orchestrator.from_config(config)
    try:
        for guard in orchestrator.runtime.guards.values():  # no request waits for it once `/readyz` is ready
            if isinstance(guard.provider, Loads):
                guard.provider.load()
        return edge(orchestrator, instruments)
    except CascadeError:
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
            if terminal and not os.isatty(0):  # it was closed
                signal.raise_signal(signal.SIGTERM)
            await reload()

    server.startup = startup  # type: ignore[method-assign]
    task = asyncio.create_task(reloading())
    with portal.adopted():
        await server.serve([listens])
    task.cancel()


def hang_ups() -> list[signal.Signals]:
    """Return SIGHUP, if it is heard: under nohup it stays ignored."""
    hang_up = getattr(signal, "SIGHUP", None)
    return [] if hang_up is None or signal.getsignal(hang_up) is not signal.SIG_DFL else [hang_up]


def bound(settings: ServerConfig, *, shares: bool = False) -> socket.socket:
    """Return a socket at the server's address; `shares`: beside those of other workers, to which the kernel deals.

    Raises:
        ConfigError: nothing can listen there: another program does, the port is reserved, or there is no such host.
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
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listener(gateway: Gateway) -> Config:
    """Return uvicorn's settings for an application."""
    from uvicorn import Config

    from cascade.server.wire import LimitedConnection

    settings = gateway.edge.runtime.config.server
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Config(
        gateway,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=cast("Any", partial(LimitedConnection, settings.max_head_bytes, settings.body_s)),
        ws="none",
        lifespan="on",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
