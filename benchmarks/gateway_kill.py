"""Gateways on one PostgreSQL, clients that keep asking, and SIGKILLs: does the ledger hold?

A loopback provider counts what it is asked, and bills each call. Gateways share a ledger with caps on all and on each
key; clients ask whichever they find, and now and then one is killed in the middle and started again. In the end what
is on record must be at least what the provider bills, and at most each cap.

    python benchmarks/gateway_kill.py --postgres postgresql://localhost/scratch --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from gateway import Backend, free_port  # type: ignore[import-not-found,unused-ignore]

from cascade.budget.sql_ledger import SqlLedger

PRICE_USD = 1e-6
PRICE = 1_000
"""Of a call, in nano-dollars: the gateways know it beforehand, so that what is held is what is booked."""
KEYS = [f"sk-cascade-{'k' * 42}{number}" for number in range(4)]
PAUSE_S = 3.0


class Provider(Backend):
    """Counts the calls that it is asked for, before it answers."""

    calls = 0

    def message(self, message: bytes) -> None:
        """Bill it."""
        Provider.calls += 1
        super().message(message)


class Gateways:
    """Processes that serve, each on a port of its own."""

    def __init__(self, folder: Path, count: int, behind: int, url: str, caps: dict[str, float]) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._running: list[subprocess.Popen[bytes]] = []
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
        for port in self.ports:
            config = {
                "models": {"only": {"model": "small", "price": {"input": 0.0, "output": 0.0, "request": PRICE_USD}}},
                "provider": {"kind": "openai_http", "api_base": f"http://127.0.0.1:{behind}/v1"},
                "strategy": {"kind": "ladder", "models": ["only"]},
                "policy": {"kind": "fixed"},
                "traces": "off",
                "budget": {**caps, "store": url},
                "server": {
                    "port": port,
                    "keys": [{"name": f"key{number}", "sha256": one} for number, one in enumerate(hashes)],
                },
            }
            (folder / f"{port}.yaml").write_text(json.dumps(config), "utf-8")
        self._folder = folder
        self._running = [self._begun(port) for port in self.ports]

    def _begun(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cascade.cli.main", "serve", "-c", str(self._folder / f"{port}.yaml")]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        """Kill one and start it again."""
        self._running[number].send_signal(signal.SIGKILL)
        self._running[number].wait()
        self._running[number] = self._begun(self.ports[number])

    def end(self) -> None:
        """Kill them all."""
        for one in self._running:
            one.kill()
            one.wait()


async def client(gateways: Gateways, found: Counter[int], first: asyncio.Event, rng: random.Random) -> None:
    """Ask one gateway after another, until cancelled."""
    body = {"model": "cascade", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as asking:
        while True:
            port = rng.choice(gateways.ports)
            headers = {"authorization": f"Bearer {rng.choice(KEYS)}"}
            try:
                said = await asking.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers)
                found[said.status_code] += 1
                first.set()
            except httpx.TransportError:  # killed, or not there yet
                found[0] += 1
                await asyncio.sleep(0.2)


class Tried(NamedTuple):
    """How often each status came, 0 for a broken connection, and how many processes were killed."""

    statuses: Counter[int]
    kills: int


async def tried(asked: argparse.Namespace, folder: Path, caps: dict[str, float]) -> Tried:
    """Let clients ask and processes die."""
    rng, statuses, kills, behind = random.Random(asked.seed), Counter[int](), 0, free_port()
    first = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", behind)
    gateways = Gateways(folder, asked.gateways, behind, asked.postgres, caps)
    clients = [asyncio.create_task(client(gateways, statuses, first, random.Random(n))) for n in range(asked.clients)]
    try:
        await first.wait()
        ends = time.monotonic() + asked.seconds
        while time.monotonic() < ends:
            await asyncio.sleep(PAUSE_S)
            await asyncio.to_thread(gateways.kill, rng.randrange(asked.gateways))
            kills += 1
    finally:
        await asyncio.to_thread(gateways.end)
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        server.close()
    return Tried(statuses, kills)


def emptied(url: str) -> SqlLedger:
    """Return a ledger with nothing on it."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS cascade_accounts, cascade_holds")
    return SqlLedger.postgres(url)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", required=True, help="the URL of a database whose tables of a ledger are dropped")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--cap", type=int, default=4_000, help="calls that the total allows")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    ledger, total, each = emptied(asked.postgres), asked.cap * PRICE, asked.cap * PRICE * 3 // 10
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(tried(asked, Path(folder), {"total": total / 1e9, "per_key": each / 1e9}))
    lost = ledger.recover(1e15)
    billed, stands = PRICE * Provider.calls, ledger.account("total")
    keys: dict[str, Any] = {f"key:key{number}": ledger.account(f"key:key{number}") for number in range(len(KEYS))}
    print(
        f"{asked.gateways} gateways, {asked.clients} clients, {done.kills} SIGKILLs; answered by status "
        f"{dict(sorted(done.statuses.items()))} (0: the connection broke)"
    )
    print(
        f"{Provider.calls} calls reached the provider, which bills {billed}; on record {stands.spent} of at most "
        f"{total}, {lost} holds of the killed recovered"
    )
    print("keys:", ", ".join(f"{one.spent} of {each}" for one in keys.values()))
    right = (
        done.statuses[200] * PRICE <= billed <= stands.spent <= total
        and stands.held == 0
        and all(one.spent <= each and one.held == 0 for one in keys.values())
        and sum(one.spent for one in keys.values()) == stands.spent
    )
    print("holds" if right else "DOES NOT HOLD")
    ledger.close()
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
