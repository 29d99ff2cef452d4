"""Is a request dropped when a gateway is replaced under load?

A parent listens, as a process manager with a socket unit does, and gives its socket to `cascade serve`. Clients ask on
and on, half of them over one connection, half over a new one for each request. Now and then the gateway gets SIGTERM,
and once it has ended another one starts. Every request must be answered with 200; nobody tries anything again.

    python benchmarks/gateway_reload.py --reloads 5

Install what it needs, in the clone: pip install -c constraints.txt -e ".[server,dev]"
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime

import httpx
from gateway import Backend, cascade_config, free_port  # type: ignore[import-not-found,unused-ignore]

CLIENTS = 16
_GIVES = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def begun(path: str, listens: socket.socket) -> subprocess.Popen[bytes]:
    """Start a gateway with a socket, by the rules of sd_listen_fds."""
    command = [sys.executable, "-c", _GIVES, str(listens.fileno()), sys.executable]
    command += ["-m", "cascade", "serve", "-c", path]
    return subprocess.Popen(command, pass_fds=[listens.fileno()], stderr=subprocess.DEVNULL)


async def client(url: str, found: Counter[str], *, keeps: bool) -> None:
    """Ask until cancelled."""
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10, "stream": True}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as asking:
        while True:
            try:
                said = await asking.post(url, json=body, headers={} if keeps else {"connection": "close"})
                whole = b"data: [DONE]" in said.content
                found[str(said.status_code) if whole else "cut"] += 1
            except httpx.TransportError as error:
                found[type(error).__name__] += 1


async def until(found: Counter[str], more: int) -> None:
    """Wait until so many more requests have ended."""
    enough = found.total() + more
    while found.total() < enough:  # noqa: ASYNC110 - it counts in the loop's other tasks
        await asyncio.sleep(0.05)


async def tried(path: str, listens: socket.socket, behind: int, reloads: int) -> tuple[Counter[str], list[float]]:
    """Replace the gateway so often; return what the clients got, and how long each replacement took in seconds."""
    provider = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", behind)
    url, found, took_s = f"http://127.0.0.1:{listens.getsockname()[1]}/v1/chat/completions", Counter[str](), []
    running = begun(path, listens)
    clients = [asyncio.create_task(client(url, found, keeps=bool(number % 2))) for number in range(CLIENTS)]
    try:
        for _ in range(reloads):
            await until(found, 10 * CLIENTS)
            began = time.monotonic()
            running.terminate()
            await asyncio.to_thread(running.wait)
            running = begun(path, listens)
            await until(found, 2 * CLIENTS)
            took_s.append(time.monotonic() - began)
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        running.kill()
        await asyncio.to_thread(running.wait)
        provider.close()
    return found, took_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reloads", type=int, default=5)
    asked = parser.parse_args()
    print(f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    behind = free_port()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0), backlog=1_024) as listens:
        path = cascade_config(folder, listens.getsockname()[1], behind)
        found, took_s = asyncio.run(tried(path, listens, behind, asked.reloads))
    print(f"{CLIENTS} clients, {asked.reloads} reloads of {max(took_s):.1f} s at most; answers: {dict(found)}")
    right = set(found) == {"200"}
    print("holds" if right else "DOES NOT HOLD")
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
