"""What `cascade serve` adds to the calls behind it: requests a second, and time at the median, beside a direct call.

One loopback backend answers at once with a fixed completion. Each round asks it directly, through the server under a
single model's name, and through a cascade of two calls, at 1, 16 and 64 connections; the targets take turns, so that
what else runs on the machine hits all alike. Figures are medians over rounds, and ratios of figures of one round. The
processor time a request takes in the server says what a quiet core would do, whatever else runs.

    python benchmarks/gateway.py                          about two minutes
    python benchmarks/gateway.py --litellm VENV/bin       LiteLLM's proxy beside it, from an environment of its own
    python benchmarks/gateway.py --firstpass VENV/bin     firstpass's proxy beside it (it writes a receipt a request)
    python benchmarks/gateway.py --workers 2              a server of so many workers beside it
    python benchmarks/gateway.py --streams 1000           so many streams at once
    python benchmarks/gateway.py --ledger URL             a server with caps in this store instead, and the ratio

With --rounds 0 nothing is measured but --streams.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[server]"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

CONNECTIONS = (1, 16, 64)
KEY = f"sk-{secrets.token_hex(32)}"
"""LiteLLM's proxy starts with no key that others may know."""
MESSAGES = [{"role": "user", "content": "Which river flows through Vienna?"}]
_USAGE = {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
_TEXT = "The Danube flows through Vienna."


def completion() -> dict[str, Any]:
    """Return what the backend answers."""
    choice = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [choice],
        "usage": _USAGE,
    }


def chunks() -> list[dict[str, Any]]:
    """Return what the backend streams."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    words = [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None} for word in _TEXT.split()]
    ending = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return [*({**head, "choices": [choice]} for choice in (*words, ending)), {**head, "choices": [], "usage": _USAGE}]


def _response(body: bytes, kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Messages(asyncio.Protocol):
    """Splits what comes on a connection into messages with a Content-Length, or in chunks."""

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand over each whole message."""
        self._data += data
        while (end := self._end()) is not None:
            message, self._data = self._data[:end], self._data[end:]
            self.message(message)

    def _end(self) -> int | None:
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return None
        fields = self._data[:head].lower()
        if b"transfer-encoding: chunked" in fields:
            last = self._data.find(b"\r\n0\r\n\r\n", head)
            return None if last < 0 else last + 7
        at = fields.find(b"content-length:")
        length = int(fields[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        return head + 4 + length if len(self._data) >= head + 4 + length else None

    def message(self, message: bytes) -> None:
        """Take one message."""
        raise NotImplementedError


class Backend(Messages):
    """Answers every request at once."""

    whole = _response(json.dumps(completion()).encode(), "application/json")
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks()) + b"data: [DONE]\n\n"
    streamed = _response(events, "text/event-stream")

    def message(self, message: bytes) -> None:
        """Answer it."""
        wants = b'"stream": true' in message or b'"stream":true' in message
        self.transport.write(self.streamed if wants else self.whole)


async def backend(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port, backlog=4_096)
    await server.serve_forever()


class Asking(Messages):
    """Sends the same request again and again, and notes how long each answer took."""

    def __init__(self, request: bytes, left: list[int], times: list[float], done: asyncio.Future[None]) -> None:
        super().__init__()
        self._request, self._left, self._times, self._done = request, left, times, done
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a first request."""
        super().connection_made(transport)
        self._ask()

    def message(self, message: bytes) -> None:
        """Note an answer, and ask again."""
        self._times.append(time.perf_counter() - self._sent)
        if not message.startswith(b"HTTP/1.1 200") or _TEXT.split()[1].encode() not in message:
            self._fail(message)
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the base class names it
        """Give up."""
        if not self._done.done():
            self._fail(b"the connection broke")

    def _ask(self) -> None:
        if self._left[0] <= 0:
            if not self._done.done():
                self._done.set_result(None)
            return
        self._left[0] -= 1
        self._sent = time.perf_counter()
        self.transport.write(self._request)

    def _fail(self, message: bytes) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(message[:500].decode("utf-8", "replace")))


class Load(NamedTuple):
    """Requests a second, times in milliseconds, and the processor time of the server for each request."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


async def load(target: Target, connections: int, count: int) -> Load:
    """Ask so many times over so many connections."""
    loop, left, times = asyncio.get_running_loop(), [count], list[float]()
    started, used_s = time.perf_counter(), cpu_s(target.pid)
    futures, transports = [], []
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda done=done: Asking(target.request, left, times, done),  # type: ignore[misc]
            "127.0.0.1",
            target.port,
        )
        futures.append(done)
        transports.append(transport)
    await asyncio.gather(*futures)
    elapsed = time.perf_counter() - started
    for transport in transports:
        transport.close()
    ordered = sorted(times)
    p50_s, p99_s = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return Load(count / elapsed, 1e3 * p50_s, 1e3 * p99_s, 1e3 * (cpu_s(target.pid) - used_s) / count)


def cpu_s(pid: int) -> float:
    """Return the time that a process and its workers have used, by the kernel's count in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    workers = " ".join(path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(cpu_s(int(each)) for each in workers)


class Target(NamedTuple):
    """What is asked: a process, its port, and the bytes of a request."""

    pid: int
    port: int
    request: bytes
    calls: int = 1

    @classmethod
    def of(cls, pid: int, port: int, model: str, *, calls: int = 1, stream: bool = False) -> Target:
        """Return a target that is asked for a model."""
        body = json.dumps({"model": model, "messages": MESSAGES, "max_tokens": 100, "stream": stream}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return cls(pid, port, head.encode() + body, calls)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def process(port: int, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    run = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        while run.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            log.seek(0)
            raise SystemExit(log.read().decode("utf-8", "replace")[-2_000:])
        yield run
    finally:
        run.kill()
        run.wait()
        log.close()


def cascade_config(folder: str, port: int, behind: int, ledger: str | None = None, by: str = "openai_http") -> str:
    """Write the configuration of a server whose cascade makes two calls, and return its path; `ledger` keeps caps."""
    config = {
        "models": {
            "base": {"model": "small", "price": {"input": 1.0, "output": 2.0}},
            "guide": {"model": "large", "price": {"input": 10.0, "output": 20.0}},
        },
        "provider": {"kind": by, "api_base": f"http://127.0.0.1:{behind}/v1"},
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "policy": {
            "kind": "threshold",
            "signal": "reply_mean_logprob",
            "threshold": 0.5,
        },  # no log-probs: always the guide
        "traces": "off",
        "server": {"port": port, "max_requests": 5_000},
    }
    if ledger is not None:
        config["timeouts"] = {"per_store_s": 10.0}
        caps = [{"usd": 1e6, **cap} for cap in ({"per": "key"}, {"window": "day"}, {})]
        config["budget"] = {"caps": caps, "store": ledger}
    path = Path(folder) / f"{port}.yaml"
    path.write_text(json.dumps(config), "utf-8")
    return str(path)


@contextmanager
def serve(folder: str, behind: int, *options: str, **config: str) -> Iterator[tuple[int, int]]:
    """Run a server of `cascade_config`; yield its process and its port."""
    port = free_port()
    path = cascade_config(folder, port, behind, **config)
    with process(port, sys.executable, "-m", "cascade", "serve", "-c", path, *options) as run:
        yield run.pid, port


@contextmanager
def litellm(programs: Path, folder: str, behind: int) -> Iterator[tuple[int, int]]:
    """Run LiteLLM's proxy before the same backend; yield its process and its port."""
    parameters = {"model": "openai/small", "api_base": f"http://127.0.0.1:{behind}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "small", "litellm_params": parameters}],
        "general_settings": {"master_key": KEY},
    }
    path, port = Path(folder) / "litellm.yaml", free_port()
    path.write_text(json.dumps(config), "utf-8")
    command = [str(programs / "litellm"), "--config", str(path), "--port", str(port)]
    with process(port, *command, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR") as run:
        yield run.pid, port


@contextmanager
def firstpass(programs: Path, folder: str, behind: int) -> Iterator[tuple[int, int]]:
    """Run firstpass's proxy, which hands requests on and keeps its receipts, before the same backend."""
    port = free_port()
    settings = {
        "FIRSTPASS_MODE": "observe",
        "FIRSTPASS_BIND": f"127.0.0.1:{port}",
        "FIRSTPASS_UPSTREAM_OPENAI": f"http://127.0.0.1:{behind}",
        "FIRSTPASS_DB": str(Path(folder) / "firstpass.db"),
        "RUST_LOG": "error",
    }
    with process(port, str(programs / "firstpass"), "up", **settings) as run:
        yield run.pid, port


def measured(targets: dict[str, Target], rounds: int, count: int) -> dict[int, dict[str, list[Load]]]:
    """Measure all targets in turns, at each number of connections."""
    measures: dict[int, dict[str, list[Load]]] = {}
    for connections in CONNECTIONS if rounds else ():
        by_name = measures[connections] = {name: list[Load]() for name in targets}
        for turn in range(rounds + 1):
            for name, target in targets.items():
                measure = uvloop.run(load(target, connections, max(count, 2 * connections)))
                if turn:  # the first one warms up
                    by_name[name].append(measure)
    return measures


def gains(measures: dict[int, dict[str, list[Load]]], name: str) -> None:
    """Print how many requests a target answers for each one that a single process does."""
    for connections, by_name in measures.items():
        pairs = zip(by_name[name], by_name["pass-through"], strict=True)
        times = [several.per_s / single.per_s for several, single in pairs]
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"{connections:11d} {name}: {statistics.median(times):.2f} times one process ({spread})")


def show(measures: dict[int, dict[str, list[Load]]], targets: dict[str, Target]) -> None:
    """Print medians over rounds, and what each target adds to the direct calls of the same round."""
    print(
        f"{'connections':>11} {'target':22} {'req/s':>7} {'p50 ms':>7} {'p99 ms':>7} {'added p50':>9} {'of direct':>9} "
        f"{'CPU ms':>7}"
    )
    for connections, by_name in measures.items():
        direct = by_name["direct"]
        for name, loads in by_name.items():
            calls = targets[name].calls
            added = [run.p50_ms - calls * base.p50_ms for run, base in zip(loads, direct, strict=True)]
            share = [run.per_s / base.per_s for run, base in zip(loads, direct, strict=True)]
            middle = [statistics.median(values) for values in zip(*loads, strict=True)]
            print(
                f"{connections:11d} {name:22} {middle[0]:7.0f} {middle[1]:7.2f} {middle[2]:7.2f} "
                f"{statistics.median(added):9.2f} {statistics.median(share):9.3f} {middle[3]:7.2f}"
            )


def show_ledger(measures: dict[int, dict[str, list[Load]]]) -> None:
    """Print the rate with a ledger over that without, of each round."""
    for connections, by_name in measures.items():
        pairs = zip(by_name["pass-through, ledger"], by_name["pass-through"], strict=True)
        shares = [ledger.per_s / base.per_s for ledger, base in pairs]
        print(f"{connections:11d} with a ledger / without: {statistics.median(shares):.3f} (least {min(shares):.3f})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--litellm", type=Path, help="the folder with the program litellm")
    parser.add_argument("--firstpass", type=Path, help="the folder with the program firstpass")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400, help="requests of one measurement")
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--ledger", help="the URL of a store of caps, whose sums stay in it")
    given = parser.parse_args()
    if given.backend:
        uvloop.run(backend(given.backend))
        return
    behind, port = free_port(), free_port()
    print(
        f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    )
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    with (
        tempfile.TemporaryDirectory() as folder,
        process(behind, sys.executable, __file__, "--backend", str(behind)) as plain,
        process(port, sys.executable, "-m", "cascade", "serve", "-c", cascade_config(folder, port, behind)) as served,
    ):
        targets = {
            "direct": Target.of(plain.pid, behind, "small"),
            "pass-through": Target.of(served.pid, port, "small"),
            "cascade, two calls": Target.of(served.pid, port, "cascade", calls=2),
            "direct, stream": Target.of(plain.pid, behind, "small", stream=True),
            "pass-through, stream": Target.of(served.pid, port, "small", stream=True),
        }
        with ExitStack() as peers:
            if given.litellm is not None:
                proxy = peers.enter_context(litellm(given.litellm, folder, behind))
                targets["LiteLLM proxy"] = Target.of(*proxy, "small")
                calling = peers.enter_context(serve(folder, behind, by="litellm"))
                targets["provider litellm"] = Target.of(*calling, "small")
            if given.firstpass is not None:
                proxy = peers.enter_context(firstpass(given.firstpass, folder, behind))
                targets["firstpass proxy"] = Target.of(*proxy, "small")
            if given.ledger is not None:
                capped = peers.enter_context(serve(folder, behind, ledger=given.ledger))
                targets = {name: targets[name] for name in ("direct", "pass-through")}
                targets["pass-through, ledger"] = Target.of(*capped, "small")
            several = f"{given.workers} workers"
            if given.workers:
                busy = peers.enter_context(serve(folder, behind, "--workers", str(given.workers)))
                targets[several] = Target.of(*busy, "small")
            measures = measured(targets, given.rounds, given.count)
            show(measures, targets)
            if given.ledger is not None:
                show_ledger(measures)
            if given.workers:
                gains(measures, several)
        if given.streams:
            rate = uvloop.run(load(targets["pass-through, stream"], given.streams, 5 * given.streams))
            print(f"{given.streams} streams at once: {rate.per_s:.0f} a second, p50 {rate.p50_ms:.0f} ms, no error")


if __name__ == "__main__":
    main()
