"""Gateways on one PostgreSQL, clients that keep asking, SIGKILLs and dropped connections: does the ledger hold?

A loopback provider counts what it is asked, and bills each call. Gateways share a ledger with caps on all, on a day, on
each key and on each user; clients ask whichever they find. Now and then a gateway is killed in the middle and started
again, or all its connections to the database are. The caps are near: those of a key or a user are reached first, then
the day's. In the end what is on record must be at least what the provider bills, and at most each cap; a call that was
answered to its end must have its trace in the store.

    python benchmarks/gateway_kill.py --postgres postgresql://localhost/scratch --seconds 60
    python benchmarks/gateway_kill.py --postgres … --gateways 3 --clients 24 --requests 3600 --leaves 0.25 --cap 100000

The second has caps out of reach: what is on record must also be at most 1.05 x the bill, of which hang-ups are a part.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[sql,server,dev]"
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
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

from cascade.budget.caps import label
from cascade.records.ledger import SqlLedger

PRICES = {"input": 0.0, "output": 0.1, "request": 2e-7}
"""USD: an output token costs 100 nano-dollars, a call 200."""
PRICE, HOLD = 1_000, 1_200
"""Of a call with 8 output tokens, and the most that one with 10 can cost, in nano-dollars."""
KINDS = ("all", "all day", "key", "user")
"""Accounts whose sums are each the bill: a killed gateway leaves a lease of each account."""
KEYS, USERS = [f"sk-cascade-{'k' * 42}{number}" for number in range(4)], 8
PAUSE_S, CALL_S = 3.0, 5.0
MOST_TOKENS = (10, 40)
"""Of a request; what a killed gateway held is booked in full, so that these decide by how much it is too high."""


class Provider(Backend):
    """Counts and bills the calls that it is asked for, and writes on where the connection ends."""

    calls = 0

    def message(self, message: bytes) -> None:
        """Bill it; answer in two pieces, the second after 0.1 s."""
        Provider.calls += 1
        data = self.streamed if b'"stream":true' in message else self.whole
        first = data.find(b"\n\n", data.find(b"\r\n\r\n") + 4) + 2
        self.transport.write(data[:first])
        asyncio.get_running_loop().call_later(0.1, self.transport.write, data[first:])


class Gateways:
    """Processes that serve, each on a port of its own."""

    def __init__(self, folder: Path, count: int, behind: int, url: str, caps: list[dict[str, Any]]) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._running: list[subprocess.Popen[bytes]] = []
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
        for port in self.ports:
            config = {
                "models": {"only": {"model": "small", "price": PRICES}},
                "provider": {"kind": "openai_http", "api_base": f"http://127.0.0.1:{behind}/v1"},
                "strategy": {"kind": "ladder", "models": ["only"]},
                "policy": {"kind": "fixed"},
                "traces": {"store": url, "content": "none", "strict": True},
                "timeouts": {"per_call_s": CALL_S, "per_store_s": 10.0},
                "budget": {"caps": caps, "store": url},
                "server": {
                    "port": port,
                    "keys": [{"name": f"key{number}", "sha256": digest} for number, digest in enumerate(hashes)],
                },
            }
            (folder / f"{port}.yaml").write_text(json.dumps(config), "utf-8")
        self._folder = folder
        self._running = [self._begun(port) for port in self.ports]

    def _begun(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cascade", "serve", "-c", str(self._folder / f"{port}.yaml")]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        """Kill one and start it again."""
        self._running[number].send_signal(signal.SIGKILL)
        self._running[number].wait()
        self._running[number] = self._begun(self.ports[number])

    def disconnect(self, url: str) -> None:
        """Break about half of all connections to the database."""
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
            )

    def end(self) -> None:
        """Kill them all."""
        for process in self._running:
            process.kill()
            process.wait()


def skewed(rng: random.Random, count: int) -> int:
    """Return one of so many: the first half of the time, the second a quarter of it, and so on."""
    return min(count - 1, int(rng.expovariate(math.log(2))))


class Answers:
    """What the clients got.

    Attributes:
        statuses: how often each status came; 0 for a connection or a stream that broke, 499 for a client that left.
        traces: the ids of the whole answers.
        first: set with the first answer.
    """

    def __init__(self) -> None:
        self.statuses, self.traces, self.first = Counter[int](), list[str](), asyncio.Event()

    def take(self, answer: httpx.Response) -> None:
        """Note an answer. A stream that ends with an error was none: its store or its provider failed midway."""
        broke = "event-stream" in answer.headers["content-type"] and not answer.text.endswith("data: [DONE]\n\n")
        self.statuses[0 if broke else answer.status_code] += 1
        self.first.set()
        if answer.status_code == 200 and not broke:
            self.traces.append(answer.headers["x-cascade-trace-id"])


async def client(gateways: Gateways, answers: Answers, rng: random.Random, asked_for: argparse.Namespace) -> None:
    """Ask one gateway after another, plain and streamed, until cancelled or all is asked."""
    chat: dict[str, Any] = {"model": "cascade", "messages": [{"role": "user", "content": "Hi"}]}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as asking:
        while answers.statuses.total() < asked_for.requests:
            url = f"http://127.0.0.1:{rng.choice(gateways.ports)}/v1/chat/completions"
            headers = {"authorization": f"Bearer {KEYS[skewed(rng, len(KEYS))]}"}
            body = {**chat, "user": f"user{skewed(rng, USERS)}", "stream": rng.random() < 0.5}
            body["max_tokens"] = rng.choice(MOST_TOKENS)
            try:
                async with asyncio.timeout(0.3 * rng.random() if rng.random() < asked_for.leaves else None):
                    answers.take(await asking.post(url, json=body, headers=headers))
            except TimeoutError:
                answers.statuses[499] += 1
            except httpx.TransportError:  # killed, or not there yet
                answers.statuses[0] += 1
                await asyncio.sleep(0.2)


class Tried(NamedTuple):
    """What the clients got, how many processes were killed, and how often connections to the database were."""

    answers: Answers
    kills: int
    cuts: int


async def tried(given: argparse.Namespace, folder: Path, caps: list[dict[str, Any]]) -> Tried:
    """Let clients ask, processes die and connections break."""
    rng, answers, done, behind = random.Random(given.seed), Answers(), [0, 0], free_port()
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", behind)
    gateways = Gateways(folder, given.gateways, behind, given.postgres, caps)
    clients = [asyncio.create_task(client(gateways, answers, random.Random(n), given)) for n in range(given.clients)]
    try:
        await answers.first.wait()
        ends = time.monotonic() + given.seconds
        while time.monotonic() < ends and not all(task.done() for task in clients):
            await asyncio.sleep(given.pause)
            if done[0] + done[1] >= given.kills:
                continue
            cut = rng.random() < 0.5
            await (
                asyncio.to_thread(gateways.disconnect, given.postgres)
                if cut
                else asyncio.to_thread(gateways.kill, rng.randrange(given.gateways))
            )
            done[cut] += 1
            print(f"{dict(sorted(answers.statuses.items()))}, {Provider.calls} calls", flush=True)
        await asyncio.sleep(PAUSE_S)  # calls whose clients have left come to their ends
    finally:
        await asyncio.to_thread(gateways.end)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        server.close()
    return Tried(answers, *done)


def emptied(url: str) -> SqlLedger:
    """Return a ledger with nothing on it."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return SqlLedger(url)


def lost(url: str, traces: list[str]) -> int:
    """Return how many of these traces are not in the store."""
    import psycopg

    with psycopg.connect(url) as connection:
        there = {trace for (trace,) in connection.execute("SELECT episode_id FROM episodes").fetchall()}
    return sum(trace not in there for trace in traces)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", required=True, help="the URL of a database whose ledger and traces are dropped")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=float, default=math.inf)
    parser.add_argument("--leaves", type=float, default=0.05, help="the share of clients that hang up within 0.3 s")
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds between two kills or cuts")
    parser.add_argument("--kills", type=float, default=math.inf, help="at most so many kills and cuts")
    parser.add_argument("--cap", type=int, default=800, help="calls that the total, and the day, allow")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    ledger, total = emptied(given.postgres), given.cap * PRICE
    least = total * 3 // 10
    sizes = (("all", None, total), ("all", "day", total), ("key", None, least), ("user", None, least))
    caps = [{"per": scope, "window": window, "usd": size / 1e9} for scope, window, size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(tried(given, Path(folder), caps))
    overdue = ledger.recover(datetime.now(UTC).timestamp())
    open_ = ledger.recover(1e15)
    day = f"all day:{datetime.now(UTC).date()}"
    accounts = {
        **dict.fromkeys(("all", day), total),
        **{f"key:key{number}": least for number in range(len(KEYS))},
        **{f"user:user{number}": least for number in range(USERS)},
    }
    stands = {name: ledger.account(name) for name in accounts}
    billed, answered = PRICE * Provider.calls, done.answers.statuses[200]
    missing = lost(given.postgres, done.answers.traces)
    print(
        f"{given.gateways} gateways, {given.clients} clients, {done.kills} SIGKILLs, {done.cuts} times half of the "
        f"connections to the database cut; answered by status {dict(sorted(done.answers.statuses.items()))} (0: the "
        "connection or the stream broke, 499: the client left)"
    )
    print(
        f"{Provider.calls} calls reached the provider, which bills {billed}; on record {stands['all'].spent} of at "
        f"most {total}; at the end {open_} holds were open and {overdue} overdue, all booked in full"
    )
    for name, stand in stands.items():
        print(f"{name:16} {stand.spent:9d} of {accounts[name]:9d}, {100 * stand.spent / accounts[name]:5.1f} %")
    print(f"{missing} of {answered} answers have no trace")
    right = (
        answered * PRICE <= billed <= stands["all"].spent
        and missing == 0
        and all(stand.spent <= accounts[name] and stand.held == 0 for name, stand in stands.items())
    )
    kinds = [(label(name).partition(":")[0], stand.spent) for name, stand in stands.items()]
    sums = {kind: sum(spent for of, spent in kinds if of == kind) for kind in KINDS}
    print("on record / bill:", ", ".join(f"{kind} {spent / billed:.4f}" for kind, spent in sums.items()))
    right = right and all(billed <= spent for spent in sums.values())
    right = right and (given.requests == math.inf or all(spent <= 1.05 * billed for spent in sums.values()))
    print("holds" if right else "DOES NOT HOLD")
    ledger.close()
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
