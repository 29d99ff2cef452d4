"""How many holds a second a ledger makes and settles, and whether the money is right when processes are killed.

    python benchmarks/ledger.py                            in memory and in a file, some seconds
    python benchmarks/ledger.py --postgres URL             PostgreSQL, 16 connections, beside the disk's fsync rate
    python benchmarks/ledger.py --postgres URL --kill 60   8 processes, one killed (SIGKILL) every second

With --kill a provider of its own, in this process, counts the calls that reach it and bills each at a fixed price. At
the end the spend on record must be at least that, and no more than any cap. The tables cascade_accounts and
cascade_holds of the database are dropped first.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[sql]"
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cascade.budget.caps import Hold, MemoryLedger
from cascade.records.ledger import SqlLedger

CAP = 10**15
PRICE = 7
HOLD = 10
PROCESSES = 8
PAUSE_S = 1.0


class Rate(NamedTuple):
    """Holds made and settled, a second of the wall clock and a second of this process on a core."""

    per_s: float
    per_cpu_s: float


def rate(ledger: MemoryLedger | SqlLedger, threads: int, count: int, caps: Callable[[int], dict[str, int]]) -> Rate:
    """Measure so many threads."""

    def work(number: int) -> None:
        wanted = caps(number)
        for _ in range(count):
            hold = ledger.reserve(HOLD, wanted, 1e12)
            assert isinstance(hold, Hold)  # noqa: S101 - the cap is out of reach
            ledger.settle(hold, PRICE)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    started, used = time.perf_counter(), time.process_time()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    done = threads * count
    return Rate(done / (time.perf_counter() - started), done / (time.process_time() - used))


def fsyncs_per_s(folder: Path, seconds: float = 1.0) -> float:
    """Return how often a second a page can be written and brought to the disk, one after the other."""
    with (folder / "fsync").open("wb") as file:
        count, ends = 0, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            file.write(b"x" * 8_192)
            file.flush()
            os.fsync(file.fileno())
            count += 1
    return count / seconds


def emptied(url: str) -> SqlLedger:
    """Return an empty ledger in a database."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return SqlLedger(url)


class Provider(threading.Thread):
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self.calls = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        """Take connections until the process ends."""
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(1):
                    with self._lock:
                        self.calls += 1
                    connection.sendall(b"x")
            except OSError:
                return


def spend(url: str, port: int, number: int, caps: dict[str, int]) -> None:
    """Hold, call and settle until killed, or until a cap ends it."""
    owner = f"process-{number}"
    ledger = SqlLedger(url, owner=owner)
    ledger.recover(0.0, owner)  # what the process before it left
    wanted = {name: cap for name, cap in caps.items() if name in {"total", f"key:{number % 4}"}}
    with socket.create_connection(("127.0.0.1", port)) as provider:
        while True:
            hold = ledger.reserve(HOLD, wanted, datetime.now(UTC).timestamp() + 600)
            if not isinstance(hold, Hold):
                if not hold.may_fit_later:
                    return
                time.sleep(0.001)
                continue
            provider.sendall(b"x")
            provider.recv(1)
            ledger.settle(hold, PRICE)


def killed(url: str, seconds: float, seed: int) -> None:
    """Let processes spend, kill one now and then, and compare the ledger with the provider's count."""
    ledger, provider, rng = emptied(url), Provider(), random.Random(seed)
    provider.start()
    caps = {"total": 200_000, **{f"key:{key}": 60_000 for key in range(4)}}
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["psycopg", "cascade.records.ledger"])

    def begin(number: int) -> Any:
        process = server.Process(target=spend, args=(url, provider.port, number, caps), daemon=True)
        process.start()
        return process

    running = [begin(number) for number in range(PROCESSES)]
    kills, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(PAUSE_S)
        number = rng.randrange(PROCESSES)
        if running[number].is_alive():
            os.kill(running[number].pid, signal.SIGKILL)
            running[number].join()
            kills += 1
        running[number] = begin(number)
    for process in running:
        process.kill()
        process.join()
    lost = sum(ledger.recover(0.0, f"process-{number}") for number in range(PROCESSES))
    billed, total = PRICE * provider.calls, ledger.account("total")
    keys = {name: ledger.account(name) for name in caps if name != "total"}
    print(
        f"{kills} processes killed, {provider.calls} calls reached the provider, which bills {billed}; on record "
        f"{total.spent} of at most {caps['total']}, {lost} holds recovered at the end"
    )
    print("keys:", ", ".join(f"{stands.spent} of {caps[name]}" for name, stands in keys.items()))
    right = (
        billed <= total.spent <= caps["total"]
        and total.held == 0
        and all(account.spent <= caps[name] and account.held == 0 for name, account in keys.items())
        and billed <= sum(account.spent for account in keys.values())
    )
    print("holds" if right else "DOES NOT HOLD")
    ledger.close()
    raise SystemExit(not right)


def show(ledger: str, accounts: str, threads: int, measured: Rate) -> None:
    """Print one line."""
    print(f"{ledger:20} {accounts:28} {threads:7d} {measured.per_s:14,.0f} {measured.per_cpu_s:15,.0f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", help="the URL of a database whose tables of a ledger may be dropped")
    parser.add_argument("--kill", type=float, default=0.0, help="for so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    if given.kill:
        killed(given.postgres, given.kill, given.seed)

    def own(number: int) -> dict[str, int]:
        return {f"key:{number}": CAP}

    def total(number: int) -> dict[str, int]:
        return {f"key:{number}": CAP, "day:1": CAP, "total": CAP}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'ledger':20} {'accounts':28} {'threads':>7} {'pairs a second':>14} {'a second of CPU':>15}")
        memory = MemoryLedger()
        show("memory", "a key's own", 1, rate(memory, 1, 20_000, own))
        show("memory", "a key's, a day's, the total", 1, rate(memory, 1, 20_000, total))
        ledger = SqlLedger(f"sqlite:///{folder / 'ledger.db'}")
        show("SQLite, synchronous", "a key's own", 1, rate(ledger, 1, 100, own))
        ledger.close()
        if given.postgres:
            ledger = emptied(given.postgres)
            for caps, says in ((own, "a key's own"), (total, "a key's, a day's, the total")):
                rate(ledger, 16, 3, caps)
                show("PostgreSQL", says, 16, rate(ledger, 16, 100, caps))
            ledger.close()
        print(f"fsync of a page: {fsyncs_per_s(folder):,.0f} a second")


if __name__ == "__main__":
    main()
