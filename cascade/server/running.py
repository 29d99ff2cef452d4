"""Run the server: listen, serve until it is told to stop, let requests under way end, and close."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cascade.config import CascadeConfig
from cascade.errors import ConfigError, MissingExtraError
from cascade.orchestrator import Orchestrator
from cascade.resilience import background
from cascade.server.access import listening_problems

if TYPE_CHECKING:
    from uvicorn import Config, Server

_PACKAGES = ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "jinja2")


def refuse_missing() -> None:
    """Raise MissingExtraError where a package of the extra `server` is not installed."""
    from importlib.util import find_spec

    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, "cascade serve")


def serve(config: CascadeConfig) -> None:
    """Serve a configuration until SIGINT or SIGTERM comes.

    The first signal stops listening; requests under way have `server.drain_s` to end, and what is left is cancelled.

    Raises:
        MissingExtraError: a package of the extra `server` is missing.
        ConfigError: the server may not listen there, or cannot serve with this configuration.
    """
    refuse_missing()
    problems = list(listening_problems(config.server))
    if problems:
        raise ConfigError(problems)
    import uvloop
    from uvicorn import Server

    _raise_file_limit()
    server = Server(listener(Orchestrator.from_config(config)))
    # What is loaded by now stays to the end. Each full collection would look through it again, and let every request
    # wait for up to 0.1 s.
    gc.collect()
    gc.freeze()
    # uvicorn raises the signal again once all is closed: a drained server has ended well.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_served(server))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _served(server: Server) -> None:
    with background.adopted():
        await server.serve()


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: a stream takes two connections."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listener(orchestrator: Orchestrator) -> Config:
    """Return uvicorn's settings for an orchestrator."""
    from uvicorn import Config

    from cascade.server.app import application
    from cascade.server.wire import LimitedConnection

    settings = orchestrator.config.server
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Config(
        application(orchestrator),
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
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
