"""A hostile provider behind `cascade serve`: when does each request end, with what, and how many calls does it cost?

A loopback provider drips, hangs, cuts, floods, resets, and answers with errors. Every request has a deadline, plain and
as a stream. The first table says how far past its deadline a request ended, and how much of that is its own: Linux
counts how long the server and this process waited for a core meanwhile. Then it says what the client got: the status
or, in a stream that had begun, an error event (0); and the exceptions that the official client libraries raise for it.
The second counts the calls that reach a provider which fails a tenth, or all, of them.

    python benchmarks/gateway_faults.py                                       about two minutes
    chrt -r 1 python benchmarks/gateway_faults.py                             in real time, before all other work
    python benchmarks/gateway_faults.py --only "head of 1 MB" --times 20      one fault, a new server each time

It ends with status 1 if a request ended more than 0.1 s past its deadline, waits for a core apart, a client got
something else than is written here, or more calls were made than 1.1 (a tenth fails) or 1.2 (all fail) times those
planned.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[server,dev]"
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anthropic
import openai
import uvloop
from gateway import MESSAGES, Messages, chunks, completion, free_port, process  # type: ignore[import-not-found,unused-ignore]

DEADLINE_S, SLACK_S, DRIP_S = 0.5, 0.1, 0.02
MODELS, EACH, AT_ONCE = 16, 3, 16
"""Models with the same fault, and requests to each: three tries each make nine failures, and ten in a row would open
the model's circuit, so that there would be no fault to see."""
_JSON, _EVENTS = "application/json", "text/event-stream"
_WHOLE = json.dumps(completion()).encode()
_STREAMED = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks()) + b"data: [DONE]\n\n"
_EVENT = _STREAMED[: _STREAMED.index(b"\n\n") + 2]
_FLOOD = 64 * 2**10


def _head(status: int, kind: str, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", f"content-type: {kind}", *fields, "", ""]).encode()


_HUGE_HEAD = _head(200, _JSON, *(f"x-{number}: {'a' * 1_000}" for number in range(1_000))) + _WHOLE


class Hostile(Messages):
    """Answers a request as the name of its model says, and counts it."""

    calls: ClassVar[Counter[str]] = Counter()
    """By fault. One call has one connection here, so that what a fault leaves behind hits no other."""

    def __init__(self) -> None:
        super().__init__()
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def message(self, message: bytes) -> None:
        """Begin to misbehave."""
        request = json.loads(message.partition(b"\r\n\r\n")[2])
        fault = request["model"].rpartition("-")[0]
        Hostile.calls[fault] += 1
        self._task = asyncio.ensure_future(_ALL[fault].does(self, bool(request.get("stream"))))

    def pause_writing(self) -> None:
        """Wait until the other side has read."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Write on."""
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the base class names it
        """Stop."""
        if self._task is not None:
            self._task.cancel()

    async def write(self, data: bytes) -> None:
        """Write as much as the other side reads."""
        await self._may_write.wait()
        self.transport.write(data)

    async def forever(self, data: bytes, pause_s: float) -> None:
        """Write the same until the other side has gone."""
        while True:
            await self.write(data)
            await asyncio.sleep(pause_s)

    def answer(self, status: int, body: bytes, *fields: str, kind: str = _JSON) -> None:
        """Answer and close."""
        self.transport.write(_head(status, kind, f"content-length: {len(body)}", "connection: close", *fields) + body)
        self.transport.close()

    def well(self, stream: bool) -> None:
        """Answer as asked."""
        self.answer(200, _STREAMED if stream else _WHOLE, kind=_EVENTS if stream else _JSON)


def _begin(stream: bool) -> bytes:
    return _head(200, _EVENTS if stream else _JSON)


async def _hang(_to: Hostile, _stream: bool) -> None:
    await asyncio.Event().wait()


async def _hang_in_body(to: Hostile, stream: bool) -> None:
    await to.write(_begin(stream) + (2 * _EVENT if stream else _WHOLE[:40]))
    await asyncio.Event().wait()


async def _drip(to: Hostile, stream: bool) -> None:
    await to.write(_begin(stream))
    for byte in itertools.cycle(_STREAMED if stream else _WHOLE):
        await to.write(bytes([byte]))
        await asyncio.sleep(DRIP_S)


async def _drip_head(to: Hostile, _stream: bool) -> None:
    await to.write(b"HTTP/1.1 200 OK\r\n")
    await to.forever(b"x-alive: 1\r\n", DRIP_S)


async def _keep_alive(to: Hostile, stream: bool) -> None:
    await to.write(_begin(stream))
    await to.forever(b": alive\n\n" if stream else b" ", DRIP_S)


async def _words(to: Hostile, stream: bool) -> None:
    await to.write(_begin(stream))
    await to.forever(_EVENT if stream else b'{"a": 1, ', DRIP_S)


async def _flood(to: Hostile, stream: bool) -> None:
    await to.write(_begin(stream))
    await to.forever(_EVENT * (_FLOOD // len(_EVENT)) if stream else b" " * _FLOOD, 0)


async def _flood_of_comments(to: Hostile, stream: bool) -> None:
    await to.write(_begin(stream))
    await to.forever(b":\n" * (_FLOOD // 2), 0)


async def _endless_head(to: Hostile, _stream: bool) -> None:
    await to.write(b"HTTP/1.1 200 OK\r\n")
    await to.forever(b"x-more: " + b"a" * 1_000 + b"\r\n", 0)


async def _huge_head(to: Hostile, _stream: bool) -> None:
    to.transport.write(_HUGE_HEAD)  # made once: 16 at a time would hold up this process, which measures, too
    to.transport.close()


async def _cut(to: Hostile, stream: bool) -> None:
    await to.write(_head(200, _EVENTS if stream else _JSON, "content-length: 4000"))
    await to.write(2 * _EVENT if stream else _WHOLE[:40])
    await asyncio.sleep(DRIP_S)
    to.transport.abort()


async def _ends_early(to: Hostile, stream: bool) -> None:
    to.transport.write(_begin(stream) + (2 * _EVENT if stream else _WHOLE[:40]))
    to.transport.close()


async def _reset(to: Hostile, _stream: bool) -> None:
    to.transport.abort()


def _status(status: int, *fields: str) -> Callable[[Hostile, bool], Awaitable[None]]:
    async def answered(to: Hostile, _stream: bool) -> None:
        to.answer(status, b'{"error": {"message": "no", "type": "x"}}', *fields)

    return answered


class Fault(NamedTuple):
    """What a provider does, and the status that the client is to get, plain and as a stream; 0 is an error event."""

    does: Callable[[Hostile, bool], Awaitable[None]]
    plain: int
    stream: int


async def _sometimes(to: Hostile, stream: bool) -> None:
    await _status(503)(to, stream) if _DRAWN.random() < 0.1 else to.well(stream)


_DRAWN = random.Random(1)
FAULTS = {
    "hangs": Fault(_hang, 504, 504),
    "hangs in the body": Fault(_hang_in_body, 504, 0),
    "drips its head": Fault(_drip_head, 504, 504),
    "drips its body": Fault(_drip, 504, 504),
    "keeps alive, says nothing": Fault(_keep_alive, 504, 504),
    "words without an end": Fault(_words, 504, 0),
    "flood": Fault(_flood, 502, 0),
    "flood of comments": Fault(_flood_of_comments, 502, 502),
    "endless head": Fault(_endless_head, 503, 503),
    "head of 1 MB": Fault(_huge_head, 503, 503),
    "cut by a reset": Fault(_cut, 502, 0),
    "ends early": Fault(_ends_early, 502, 0),
    "reset before its head": Fault(_reset, 503, 503),
    "503": Fault(_status(503), 503, 503),
    "429": Fault(_status(429), 429, 429),
    "429, again in 1 s": Fault(_status(429, "retry-after: 1"), 429, 429),
    "429, again in 1 h": Fault(_status(429, "retry-after: 3600"), 429, 429),
}
COUNTED = {
    "a tenth 503": Fault(_sometimes, 200, 200),
    "all 503": Fault(_status(503), 503, 503),
    "all 429": Fault(_status(429), 429, 429),
    "all 429, again at once": Fault(_status(429, "retry-after: 0"), 429, 429),
    "all reset": Fault(_reset, 503, 503),
}
MOST = {"a tenth 503": 1.1}
_ALL = {**FAULTS, **COUNTED}
RAISED = {
    429: ("RateLimitError", "RateLimitError"),
    502: ("InternalServerError", "InternalServerError"),
    503: ("InternalServerError", "ServiceUnavailableError"),
    504: ("InternalServerError", "GatewayTimeoutError"),
    0: ("APIError", "APIStatusError"),
}
"""What the official client libraries of OpenAI and Anthropic raise for a status, or for an error event."""


class Ended(NamedTuple):
    """How a request ended.

    Attributes:
        late_s: how far past its deadline.
        own_s: how much of that neither the server nor this process waited for a core.
        seconds: how long it took.
        status: what its client got; 0 for an error event in a stream.
    """

    late_s: float
    own_s: float
    seconds: float
    status: int


class Gateway(NamedTuple):
    """The server that is measured: its port and its process."""

    port: int
    process: int

    def waited_s(self) -> float:
        """Return how long it and this process have waited for a core so far; 0 where the system does not count."""
        try:
            stats = [Path(f"/proc/{pid}/schedstat").read_text("ascii") for pid in (self.process, os.getpid())]
        except OSError:
            return 0.0
        return sum(int(line.split()[1]) for line in stats) / 1e9


async def ended(to: Gateway, model: str, deadline_s: float, *, stream: bool) -> Ended:
    """Ask for a model, and read all that comes."""
    body = json.dumps({"model": model, "messages": MESSAGES, "max_tokens": 100, "stream": stream}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", to.port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\nx-cascade-deadline-s: {deadline_s}\r\n\r\n"
    )
    waited = list[float]()
    clock = asyncio.get_running_loop().call_later(deadline_s, lambda: waited.append(to.waited_s()))
    began = time.perf_counter()
    writer.write(head.encode() + body)
    answer = await reader.read(-1)
    took_s = time.perf_counter() - began
    clock.cancel()
    writer.close()
    late_s = max(0.0, took_s - deadline_s)
    own_s = max(0.0, late_s - (to.waited_s() - waited[0])) if waited else late_s
    status = int(answer.split(b" ", 2)[1])
    broke = status == 200 and stream and b"data: [DONE]" not in answer and b'"error"' in answer
    return Ended(late_s, own_s, took_s, 0 if broke else status)


async def asked_often(
    to: Gateway, models: list[str], count: int, at_once: int, deadline_s: float, *, stream: bool
) -> list[Ended]:
    """Ask for models in turns, so many requests at once."""
    places, names = asyncio.Semaphore(at_once), itertools.cycle(models)

    async def ask(model: str) -> Ended:
        async with places:
            return await ended(to, model, deadline_s, stream=stream)

    return await asyncio.gather(*(ask(next(names)) for _ in range(count)))


def raised(port: int, model: str, *, stream: bool) -> tuple[str, str]:
    """Return what the official client libraries raise."""
    headers, base = {"x-cascade-deadline-s": str(DEADLINE_S)}, f"http://127.0.0.1:{port}"
    fields: Any = {"model": model, "messages": MESSAGES, "max_tokens": 100, "stream": stream, "extra_headers": headers}
    errors = []
    with (
        openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as first,
        anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as second,
    ):
        for create in (first.chat.completions.create, second.messages.create):
            try:
                for _ in create(**fields):
                    pass
            except (openai.APIError, anthropic.APIError) as error:
                errors.append(type(error).__name__)
            else:
                errors.append("nothing")
    return errors[0], errors[1]


def models_of(fault: str, *, stream: bool) -> list[str]:
    """Return the models that have a fault: some to measure, and one for the client libraries."""
    return [f"{fault}-{'stream' if stream else 'plain'}{number}" for number in range(MODELS + 1)]


async def faults(to: Gateway, names: Iterable[str]) -> bool:
    """Print the first table; return whether all is as it must be."""
    print(
        f"{'the provider':26} {'':6} {'status':>7} {'p50 s':>6} {'late by ms':>10} {'own':>6} {'calls':>5}  "
        "openai, anthropic raise"
    )
    right, all_found, count = True, list[Ended](), MODELS * EACH
    for fault in names:
        wanted = FAULTS[fault]
        for stream, status in ((False, wanted.plain), (True, wanted.stream)):
            before, (*models, last) = Hostile.calls[fault], models_of(fault, stream=stream)
            ended = await asked_often(to, models, count, AT_ONCE, DEADLINE_S, stream=stream)
            calls = (Hostile.calls[fault] - before) / count
            classes = await asyncio.to_thread(raised, to.port, last, stream=stream)
            times, got = sorted(end.seconds for end in ended), Counter(end.status for end in ended)
            late_ms, own_ms = (1e3 * max(some) for some in zip(*(end[:2] for end in ended), strict=True))
            all_found += ended
            # 504 also where the deadline came during another try.
            fine = {*got} <= {status, 504} and classes in (RAISED[status], RAISED[504])
            right = right and fine and own_ms <= 1e3 * SLACK_S
            print(
                f"{fault:26} {'stream' if stream else 'plain':6} {'/'.join(map(str, got)):>7} {times[count // 2]:6.3f} "
                f"{late_ms:10.1f} {own_ms:6.1f} {calls:5.2f}  {', '.join(classes)}"
                f"{'' if fine else '  NOT AS IT MUST BE'}",
                flush=True,
            )
    for what, late in (("late", [end.late_s for end in all_found]), ("waits apart", [end.own_s for end in all_found])):
        late.sort()
        p99_ms, most_ms = 1e3 * late[int(0.99 * len(late))], 1e3 * late[-1]
        print(f"{len(late)} requests, {what}: {p99_ms:.1f} ms (p99), {most_ms:.1f} ms (the most)")
    return right


async def counted(to: Gateway, count: int) -> bool:
    """Print the second table; return whether all is as it must be."""
    print(f"\n{'of the calls':26} {'planned':>8} {'made':>8} {'times':>6}  statuses")
    right = True
    for fault in COUNTED:
        before = Hostile.calls[fault]
        ended = await asked_often(to, [models_of(fault, stream=False)[0]], count, 2 * AT_ONCE, 30.0, stream=False)
        sent = Hostile.calls[fault] - before
        fine = sent <= MOST.get(fault, 1.2) * count
        right = right and fine
        got = dict(sorted(Counter(end.status for end in ended).items()))
        print(f"{fault:26} {count:8d} {sent:8d} {sent / count:6.2f}  {got}{'' if fine else '  TOO MANY'}", flush=True)
    return right


def configuration(folder: str, port: int, behind: int) -> str:
    """Write the configuration of a server with a model for each fault, and return its path."""
    names = [model for fault in _ALL for stream in (False, True) for model in models_of(fault, stream=stream)]
    config = {
        "models": {f"m{n}": {"model": name, "price": {"input": 1.0, "output": 2.0}} for n, name in enumerate(names)},
        "provider": {"kind": "openai_http", "api_base": f"http://127.0.0.1:{behind}/v1"},
        "strategy": {"kind": "ladder", "models": ["m0", "m1"]},
        "policy": {"kind": "fixed"},
        "traces": "off",
        "server": {"port": port},
    }
    path = Path(folder) / "cascade.yaml"
    path.write_text(json.dumps(config), "utf-8")
    return str(path)


async def measured(
    to: Callable[[], AbstractContextManager[Gateway]], behind: int, names: Iterable[str], planned: int
) -> bool:
    """Run the provider and the server, and print the tables; the second one where calls are planned."""
    provider = await asyncio.get_running_loop().create_server(Hostile, "127.0.0.1", behind, backlog=1_024)
    served = to()
    gateway = await asyncio.to_thread(served.__enter__)
    try:
        first = await faults(gateway, names)
        return (not planned or await counted(gateway, planned)) and first
    finally:
        served.__exit__(None, None, None)
        provider.close()


@contextmanager
def serving(folder: str, behind: int) -> Iterator[Gateway]:
    """Run the server until the block ends."""
    port = free_port()
    command = (sys.executable, "-m", "cascade", "serve", "-c", configuration(folder, port, behind))
    with process(port, *command) as run:
        yield Gateway(port, run.pid)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--planned", type=int, default=2_000, help="calls of each line of the second table")
    parser.add_argument("--only", choices=FAULTS, help="one fault, without the second table")
    parser.add_argument("--times", type=int, default=1, help="how often, with a new server each time")
    given = parser.parse_args()
    gc.disable()  # a full collection of what the two client libraries make would stop the clock for 0.05 to 0.1 s
    print(f"{datetime.now(UTC).date()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"deadline {DEADLINE_S} s, {MODELS * EACH} requests a line, {AT_ONCE} at once")
    names, planned, right = [given.only] if given.only else list(FAULTS), 0 if given.only else given.planned, True
    for _ in range(given.times):
        behind = free_port()
        with tempfile.TemporaryDirectory() as folder:
            to = partial(serving, folder, behind)
            right = uvloop.run(measured(to, behind, names, planned)) and right
    print("holds" if right else "DOES NOT HOLD")
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
