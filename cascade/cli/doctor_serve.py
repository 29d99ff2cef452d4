"""What `cascade doctor --serve` looks at: whether the server could start, and keep what it has to keep."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from cascade.config import CascadeConfig, ledger_url, traces_url
from cascade.config.schema import ServerConfig
from cascade.episodes.store import Store, parse
from cascade.errors import CascadeError
from cascade.server.access import listening_problems
from cascade.server.running import refuse_missing
from cascade.serving.spending import Spending


class Finding(NamedTuple):
    """One line: what was looked at, how it is ("ok", "note", "problem"), and what that means."""

    what: str
    state: str
    says: str


def findings(config: CascadeConfig) -> Iterator[Finding]:
    """Look at the extra, the port, the keys, and the stores. A budget's store is made where it is not there."""
    try:
        refuse_missing()
        yield Finding("server packages", "ok", "installed")
    except CascadeError as error:
        yield Finding("server packages", "problem", str(error))
    refused = [Finding("server address", "problem", said) for said in listening_problems(config.server)]
    yield from refused or [_port(config.server)]
    yield from _keys(config.server)
    try:
        yield _writable(traces_url(config.traces))
    except CascadeError as error:
        yield Finding("server traces", "problem", str(error))
    try:
        yield _budget(config)
    except CascadeError as error:
        yield Finding("server budget", "problem", str(error))


def _port(server: ServerConfig) -> Finding:
    """Bind the address as the server would, and let go of it."""
    where = f"{server.host}:{server.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        return Finding("server address", "problem", f"{where}: {error.strerror}; choose another with server.port")
    return Finding("server address", "ok", f"{where} is free")


def _keys(server: ServerConfig) -> Iterator[Finding]:
    today = datetime.now(UTC).date()
    for key in server.keys:
        if key.expires is not None and key.expires < today:
            yield Finding(f"server key {key.name}", "note", f"expired on {key.expires}; it opens nothing")
        else:
            until = "" if key.expires is None else f", until {key.expires}"
            yield Finding(f"server key {key.name}", "ok", f"held as its SHA-256{until}")
    if not server.keys:
        yield Finding("server keys", "note", "none: whoever reaches the address may ask")


def _writable(url: str | None) -> Finding:
    """Look at whether traces can be written, without making their file."""
    if url is None:
        return Finding("server traces", "note", "off, so POST /v1/feedback is refused")
    address = parse(url)
    if address.path is None:
        with Store.open(address):
            return Finding("server traces", "ok", f"{address.shown} can be written")
    there = next(one for one in (address.path, *address.path.absolute().parents) if one.exists())
    folder = there if there != address.path else address.path.absolute().parent
    if not folder.is_dir() or not all(os.access(one, os.W_OK) for one in {there, folder}):
        return Finding("server traces", "problem", f"{address.shown}: {there} cannot be written")
    return Finding("server traces", "ok", f"{address.shown} can be written")


def _budget(config: CascadeConfig) -> Finding:
    spending = Spending.of(config)
    if spending is None:
        return Finding("server budget", "note", "no cap on what many requests spend together")
    spending.ledger.account("total")
    spending.ledger.close()
    url = ledger_url(config.budget)
    if url is None:
        return Finding("server budget", "note", "counted in each process by itself, and forgotten when it ends")
    return Finding("server budget", "ok", f"{parse(url).shown} can be reached")
