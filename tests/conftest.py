"""What holds for every test: no network but loopback, no key and no setting from the environment."""

from __future__ import annotations

import functools
import importlib.util
import ipaddress
import os
import re
import socket
import sqlite3
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from property.examples import EXAMPLES
from stores import drop_database, postgres_url

_FOREIGN_SETTINGS = re.compile(r".*_API_KEY$|OPENAI_|CASCADE_")
_connect, _connect_ex, _getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


# The same examples for everybody, however slow the machine; more of them in `make long`.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


class NetworkBlockedError(AssertionError):
    """A test tried to leave the machine."""


@pytest.fixture(scope="session")
def session_patch() -> Iterator[pytest.MonkeyPatch]:
    """Patch for all tests of a process."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session", autouse=True)
def _no_network(session_patch: pytest.MonkeyPatch) -> None:
    """Refuse every address but loopback, by number and by name."""
    session_patch.setattr(socket.socket, "connect", lambda self, address: _connect(self, _checked(address)))
    session_patch.setattr(socket.socket, "connect_ex", lambda self, address: _connect_ex(self, _checked(address)))
    session_patch.setattr(socket, "getaddrinfo", _resolve)


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(session_patch: pytest.MonkeyPatch) -> None:
    """Take every key and every setting of the person who runs the tests out of the environment."""
    for name in [name for name in os.environ if _FOREIGN_SETTINGS.match(name)]:
        session_patch.delenv(name)
    session_patch.setenv("CASCADE_TRACES", "off")  # no test writes to the trace store of the person who runs it


@pytest.fixture(scope="session", autouse=True)
def _a_busy_machine_cuts_no_transaction_off(session_patch: pytest.MonkeyPatch) -> None:
    """Give transactions a minute: on a busy machine one that is well takes more than the 1 s of a service."""
    session_patch.setattr("cascade.records.link.LIMIT_S", 60.0)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk(session_patch: pytest.MonkeyPatch) -> None:
    """Leave what is written to the operating system: tests kill processes, they do not cut the power."""
    from cascade.records.database import Database

    set_up = Database._set_up

    def unsynchronized(database: Database, connection: sqlite3.Connection) -> None:
        set_up(database, connection)
        connection.execute("PRAGMA synchronous = OFF")

    session_patch.setattr(os, "fsync", lambda handle: None)
    session_patch.setattr(Database, "_set_up", unsynchronized)
    session_patch.setattr("cascade.episodes.journal.SYNCHRONOUS", "OFF")


@pytest.fixture(scope="session", autouse=True)
def _shipped_logs_are_decoded_once(session_patch: pytest.MonkeyPatch) -> None:
    """Keep the rows of the shipped logs: decoding them is most of what the sixty tests that read one would do."""
    from cascade.episodes import opening

    read, cache = opening.rows_of, {}

    def rows(given: str, where: Any = None, dropped: Any = None, models: Any = ()) -> Iterator[Any]:
        if given not in opening.SHIPPED or where:
            return read(given, where, dropped, models)
        if given not in cache:
            cache[given] = tuple(read(given, None))
        return map(dict, cache[given])

    session_patch.setattr(opening, "rows_of", rows)


@pytest.fixture(scope="session", autouse=True)
def _installed_packages_are_looked_through_once(session_patch: pytest.MonkeyPatch) -> None:
    """Keep which plug-ins packages bring, as long as the path stays: a command looks several times, 10 ms each."""
    from cascade import registry

    uncached = registry.entry_points
    look = functools.cache(lambda group, _path: tuple(uncached(group=group)))
    session_patch.setattr(registry, "entry_points", lambda group: look(group, tuple(sys.path)))


@pytest.fixture(scope="session", autouse=True)
def _a_retry_comes_at_once(session_patch: pytest.MonkeyPatch) -> None:
    """Wait a hundredth of the time before a retry, unless a server named the time: calls of tests fail on purpose."""
    from cascade.resilience.health import RetryPolicy

    backoff = RetryPolicy._backoff_s

    @functools.wraps(backoff)
    def shorter(policy: RetryPolicy, retries_done: int) -> float:
        return backoff(policy, retries_done) / 100

    session_patch.setattr(RetryPolicy, "_backoff_s", shorter)


@pytest.fixture(autouse=True)
def _litellm_drops_no_client() -> None:
    """Keep all of litellm's clients: beyond 200 it leaves open connections to the collector, which warns in another test."""
    clients = getattr(sys.modules.get("litellm"), "in_memory_llm_clients_cache", None)
    if clients is not None:
        clients.max_size_in_memory = 100_000


@pytest.fixture
def loopback() -> Iterator[Any]:
    """Return a running OpenAI-compatible server on 127.0.0.1 that misbehaves on demand."""
    from faults.server import FaultServer

    with FaultServer() as server:
        yield server


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """Return the URL of a store in a file that is not there yet."""
    return f"sqlite:///{tmp_path / 'traces.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, file_url: str) -> Iterator[str]:
    """Return the URL of a store that is not there yet, on both databases."""
    if request.param == "sqlite":
        yield file_url
    else:
        with postgres_url() as url:
            yield url


def _checked(address: Any) -> Any:
    if isinstance(address, tuple) and not _is_loopback(str(address[0])):
        raise NetworkBlockedError(f"a test tried to reach {address[0]}")
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", ""}


def _resolve(host: Any, *rest: Any, **more: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if name is not None and not _is_loopback(name):
        raise NetworkBlockedError(f"a test tried to look up {name}")
    return _getaddrinfo(host, *rest, **more)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in docstrings in `cascade` alone: tests have none, and each file would be collected twice."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def pytest_sessionfinish() -> None:
    drop_database()


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what needs litellm, so that one worker loads it (5 s) and not each; skip it where it is not installed."""
    items.sort(key=lambda item: item.get_closest_marker("litellm") is None)
    if importlib.util.find_spec("litellm") is not None:
        return
    for item in items:
        if item.get_closest_marker("litellm") is not None:
            item.add_marker(pytest.mark.skip(reason="litellm is not installed"))
